// What the theme, MathJax and the widget manager leave undone. No dependency; runs once the page is parsed.
(() => {
  "use strict";

  // The widget manager asks MathJax 2's queue to typeset labels; the site has MathJax 3.
  function bridgeMathJax() {
    const mathJax = window.MathJax;
    if (!mathJax?.startup || mathJax.Hub) return;
    mathJax.Hub = {
      Queue: ([, , element]) =>
        mathJax.startup.promise.then(() => mathJax.typesetPromise([element])),
      Config: () => {},
      Configured: () => {},
    };
  }

  // Widgets draw their label beside the control without tying the two together for a screen reader.
  function nameWidgetControls(root) {
    for (const widget of root.querySelectorAll(".jupyter-widgets.widget-inline-hbox")) {
      const label = widget.querySelector(".widget-label")?.textContent.trim();
      const handles = widget.querySelectorAll(".noUi-handle, input, select");
      for (const handle of handles) {
        if (label && !handle.getAttribute("aria-label")) handle.setAttribute("aria-label", label);
      }
      const readout = widget.querySelector(".widget-readout");
      if (readout && label) readout.setAttribute("aria-label", `${label}, value`);
      for (const handle of widget.querySelectorAll(".noUi-handle")) {
        if (readout) handle.setAttribute("aria-valuetext", readout.textContent);
      }
    }
    for (const button of root.querySelectorAll(".jupyter-widgets button, button.jupyter-widgets")) {
      const name = button.title || button.querySelector("i")?.className.replace(/.*fa-/, "");
      if (!button.textContent.trim() && name && !button.getAttribute("aria-label")) {
        button.setAttribute("aria-label", name);
      }
    }
  }

  // A box that scrolls sideways must be reachable with the keyboard.
  const SCROLLING = "div.math, mjx-container[display], pre, .cell_output, .table-scroll, .pst-scrollable-table-container";
  function focusScrollingBoxes() {
    for (const box of document.querySelectorAll(SCROLLING)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      if (scrolls && !box.hasAttribute("tabindex")) {
        box.tabIndex = 0;
        box.dataset.scrolls = "";
        if (!box.hasAttribute("role")) {
          box.setAttribute("role", "region");
          box.setAttribute("aria-label", "scrolls sideways");
        }
      } else if (!scrolls && "scrolls" in box.dataset) {
        for (const name of ["tabindex", "role", "aria-label", "data-scrolls"]) box.removeAttribute(name);
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

  document.addEventListener("DOMContentLoaded", () => {
    bridgeMathJax();
    boxTables();
    const outputs = document.querySelectorAll(".cell_output");
    const watcher = new MutationObserver((changes) => {
      for (const change of changes) {
        const cell = (change.target.nodeType === 1 ? change.target : change.target.parentElement)?.closest(".cell_output");
        if (cell) nameWidgetControls(cell);
      }
    });
    for (const output of outputs) {
      nameWidgetControls(output);
      watcher.observe(output, { childList: true, subtree: true, characterData: true });
    }
    focusScrollingBoxes();
    window.MathJax?.startup?.promise?.then(focusScrollingBoxes);
    window.addEventListener("load", focusScrollingBoxes);
    window.addEventListener("resize", focusScrollingBoxes);
  });
})();
