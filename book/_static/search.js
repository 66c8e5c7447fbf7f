// Inlined into the search page: results that are headings or statements come before mere words, and
// excerpts show what is read, not what is spoken.
Scorer.score = ([, title, anchor, , score]) => (anchor && title.includes(" > ") ? score + 20 : score);
{
  const toText = Search.htmlToText;
  Search.htmlToText = (html, anchor) =>
    toText(html.replace(/<span class="katex-mathml">.*?<\/math><\/span>/gs, ""), anchor);
}
