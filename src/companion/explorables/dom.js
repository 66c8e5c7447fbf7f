// Elements, numbers as text, time: what knows nothing of figures.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element if `tag` is one, else an HTML element; a false or undefined attribute is left out. */
export function element(tag, attributes = {}, ...children) {
  const svg = /^(svg|g|path|circle|rect|line|text)$/.test(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** 1.234 -> "1.23", -0.5 -> "−0.50": two decimals and a real minus sign. */
export function format(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text;
}

export const formatPoint = ([x, y]) => `(${format(x)}, ${format(y)})`;
export const percent = (x) => `${Math.round(100 * x)}\u00a0%`;
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
/** A copy of the list with one entry replaced. */
export const replaceAt = (list, k, value) => list.map((old, i) => (i === k ? value : old));

/** Writes only what has changed: an attribute set to its old value may cost a layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

/** Calls `draw` once in the next frame, however often it is asked. */
export function everyFrame(draw) {
  let waiting = 0;
  return () => {
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      draw();
    });
  };
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Keeps plain keys from a notebook, which listens further up and takes "b" for "add a cell". */
export function ownKeys(event) {
  if (!event.ctrlKey && !event.metaKey && event.key !== "Escape") event.stopPropagation();
}

/**
 * Runs `show(s)` with s from 0 to 1 in `seconds`, then `done()`; at once where motion is unwelcome.
 * Returns the function that stops it. `from` resumes a run that was stopped.
 */
export function run(seconds, show, { from = 0, done = () => {} } = {}) {
  if (reducedMotion()) {
    show(1);
    done();
    return () => {};
  }
  let begin;
  let frame = requestAnimationFrame(function step(now) {
    begin ??= now - 1000 * seconds * from;
    const s = clamp((now - begin) / (1000 * seconds), 0, 1);
    show(s);
    if (s < 1) frame = requestAnimationFrame(step);
    else done();
  });
  return () => cancelAnimationFrame(frame);
}

/** Between `a` and `b`, number by number; what is no number takes its new value at once. */
export function mix(a, b, s) {
  if (s >= 1 || typeof b === "string" || typeof b === "boolean") return b;
  if (Array.isArray(b)) return b.map((x, i) => mix(a[i], x, s));
  return a + (b - a) * s;
}
