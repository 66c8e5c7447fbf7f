// On a static page: the same figures without a kernel. Each stands as
//   <div class="explorable" data-kind="selection_map"><script type="application/json">state</script>
//   <img ...></div>
// and its picture makes room once the figure is drawn.

/** What anywidget's model offers, kept in the page. */
export function localModel(values) {
  const listeners = new Map();
  const of = (event) => listeners.get(event) ?? [];
  return {
    get: (key) => values[key],
    set(key, value) {
      values[key] = value;
      for (const listener of of(`change:${key}`)) listener();
    },
    save_changes() {},
    on: (event, listener) => listeners.set(event, [...of(event), listener]),
    off: (event, listener) => listeners.set(event, of(event).filter((other) => other !== listener)),
  };
}

export function start(kinds) {
  const mountAll = () => {
    for (const el of document.querySelectorAll(".explorable:not([data-ready])")) {
      const kind = kinds[el.dataset.kind];
      const data = el.querySelector('script[type="application/json"]');
      if (!kind || !data) continue;
      const model = localModel({ state: JSON.parse(data.textContent), derived: {} });
      try {
        kind.render({ model, el });
        el.dataset.ready = "";
        el.model = model; // for tests, and for a curious reader's console
      } catch (error) {
        el.querySelector(".mx-figure")?.remove(); // the picture stays
        console.error(`live figure ${el.dataset.kind}:`, error);
      }
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", mountAll);
  else mountAll();
}
