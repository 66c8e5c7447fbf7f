// What the theme and the widget manager leave undone, once the page is parsed.
(() => {
  "use strict";

  // Widgets draw a label beside the control without tying the two together for a screen reader.
  function nameWidgetControls(root) {
    for (const widget of root.querySelectorAll(".widget-inline-hbox")) {
      const label = widget.querySelector(".widget-label");
      const name = label?.textContent.trim();
      if (!name) continue;
      if (label.title === "null") label.removeAttribute("title");
      const readout = widget.querySelector(".widget-readout");
      for (const control of widget.querySelectorAll(".noUi-handle, input, select")) {
        setAttribute(control, "aria-label", name);
        // The handle knows the position; the reader wants the value that stands there.
        if (readout && control.matches(".noUi-handle")) {
          setAttribute(control, "aria-valuetext", readout.textContent);
        }
      }
      if (readout?.isContentEditable) {
        setAttribute(readout, "role", "textbox");
        setAttribute(readout, "aria-label", `${name}: value`);
      }
    }
    for (const button of root.querySelectorAll("button.jupyter-widgets, .jupyter-widgets button")) {
      const icon = button.querySelector("i")?.className.match(/fa-([a-z-]+)/)?.[1];
      if (!button.textContent.trim() && icon) setAttribute(button, "aria-label", button.title || icon);
    }
  }

  // Writes only what changes: an observer watches.
  function setAttribute(element, name, value) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }

  // A box that scrolls sideways must be reachable with the keyboard.
  const SCROLLING =
    ".math-scroll, pre, .cell_output, .table-scroll, .pst-scrollable-table-container";
  const SCROLLS = "scrolls sideways";
  function focusScrollingBoxes() {
    for (const box of document.querySelectorAll(SCROLLING)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      if (scrolls && !box.hasAttribute("tabindex")) {
        box.tabIndex = 0;
        box.dataset.scrolls = "";
        if (!box.hasAttribute("role")) {
          box.setAttribute("role", "group");
          box.setAttribute("aria-label", SCROLLS);
        }
      } else if (!scrolls && "scrolls" in box.dataset) {
        const named = box.getAttribute("aria-label") === SCROLLS ? ["role", "aria-label"] : [];
        for (const name of ["tabindex", "data-scrolls", ...named]) box.removeAttribute(name);
      }
    }
  }

  // Tables scroll in a box of their own; as a block the table itself would lose its semantics.
  function boxTables() {
    for (const table of document.querySelectorAll(".bd-article table")) {
      if (table.closest(".table-scroll, .pst-scrollable-table-container, .jupyter-widgets")) continue;
      const box = document.createElement("div");
      box.className = "table-scroll";
      table.replaceWith(box);
      box.append(table);
    }
  }

  // Paper is white: a page printed from the dark is set in the light theme.
  const root = document.documentElement.dataset;
  let theme;
  window.addEventListener("beforeprint", () => {
    theme = root.theme;
    root.theme = "light";
  });
  window.addEventListener("afterprint", () => (root.theme = theme));

  document.addEventListener("DOMContentLoaded", () => {
    boxTables();
    const outputs = document.querySelectorAll(".cell_output");
    const watcher = new MutationObserver((changes) => {
      for (const change of changes) {
        const { target } = change;
        const cell = (target.nodeType === 1 ? target : target.parentElement)?.closest(".cell_output");
        if (cell) nameWidgetControls(cell);
      }
    });
    for (const output of outputs) {
      nameWidgetControls(output);
      watcher.observe(output, { childList: true, subtree: true, characterData: true });
    }
    focusScrollingBoxes();
    window.addEventListener("load", focusScrollingBoxes);
    window.addEventListener("resize", focusScrollingBoxes);
  });
})();
