// The page's text follows the figure, and leads it. In any text of the page
//   <span class="live-NAME-q">0.71</span>        shows the quantity q,
//   <span class="scrub-NAME-q">0.50</span>       shows it and moves it (drag sideways, arrow keys),
//   <span class="ref-NAME-part">expert 1</span>  points at a part of the figure, and the part at it.
// Classes, because JupyterLab strips data attributes from Markdown. Texts may come and go, so they are
// looked up at each change.
import { clamp, format, ownKeys, setAttributes, setText } from "./dom.js";

export function prose(name, root, { quantities, scrubs, state, change }) {
  // Of two figures with one name the text follows the one that the reader moved last. The list stands
  // on the document because every widget in a notebook has this module for itself.
  const owners = (document.mxOwners ??= {});
  const own = () => (owners[name] = root);
  const owned = () => {
    if (!owners[name]?.isConnected) own();
    return owners[name] === root;
  };
  const all = (kind) => (name && owned() ? document.querySelectorAll(`[class*="${kind}-${name}-"]`) : []);
  const what = (node, kind) =>
    [...(node?.classList ?? [])].find((c) => c.startsWith(`${kind}-${name}-`))?.slice(kind.length + name.length + 2);
  const closest = (event, kind) =>
    name && owned() && event.target instanceof Element && event.target.closest(`[class*="${kind}-${name}-"]`);

  // Pointing: at a word of the text or at a part of the figure; a click keeps a part lit, until the next.
  let [lit, kept] = ["", ""];
  const light = (part = "") => {
    if (part === lit) return;
    lit = part;
    for (const node of root.querySelectorAll("[data-part]")) node.classList.toggle("mx-lit", node.dataset.part === lit);
    for (const node of all("ref")) node.classList.toggle("mx-lit", what(node, "ref") === lit);
  };
  const over = (event) => {
    const word = closest(event, "ref");
    const part = root.contains(event.target) && event.target.closest("[data-part]")?.dataset.part;
    light(word ? what(word, "ref") : part || kept);
  };
  const press = (event) => {
    const word = closest(event, "ref");
    if (!word) return;
    kept = kept === what(word, "ref") ? "" : what(word, "ref");
    for (const other of all("ref")) other.setAttribute("aria-pressed", what(other, "ref") === kept);
    light(kept);
  };

  // Scrubbing
  const turn = (node, by) => {
    const scrub = scrubs[what(node, "scrub")];
    if (!scrub) return;
    const value = Math.round(scrub.get(state()) / scrub.step + by) * scrub.step;
    change(scrub.set(clamp(Number(value.toFixed(10)), scrub.min, scrub.max), state()));
  };
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
  const key = (event) => {
    const [word, number] = [closest(event, "ref"), closest(event, "scrub")];
    if (!word && !number) return;
    ownKeys(event);
    if (word && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      press(event);
    } else if (number && steps[event.key]) {
      event.preventDefault();
      turn(number, steps[event.key] * (event.shiftKey ? 5 : 1));
    }
  };
  const down = (event) => {
    const node = closest(event, "scrub");
    if (!node) return;
    event.preventDefault();
    node.focus({ preventScroll: true });
    node.setPointerCapture(event.pointerId);
    let last = event.clientX;
    const follow = (e) => {
      const by = Math.trunc((e.clientX - last) / 4);
      last += 4 * by;
      if (by) turn(node, by);
    };
    node.addEventListener("pointermove", follow);
    node.addEventListener("lostpointercapture", () => node.removeEventListener("pointermove", follow), { once: true });
  };
  const listeners = { pointerover: over, focusin: over, focusout: over, click: press, keydown: key, pointerdown: down };
  for (const [type, listener] of Object.entries(listeners)) document.addEventListener(type, listener, true);

  return {
    own,
    show() {
      const values = quantities();
      for (const node of all("live")) {
        const q = what(node, "live");
        if (q in values) setText(node, values[q]);
      }
      for (const node of all("scrub")) {
        const scrub = scrubs[what(node, "scrub")];
        if (!scrub) continue;
        const value = scrub.get(state());
        setText(node, format(value));
        setAttributes(node, {
          role: "slider", tabindex: 0, "aria-label": scrub.label,
          "aria-valuemin": scrub.min, "aria-valuemax": scrub.max, "aria-valuenow": Number(value.toFixed(4)),
        });
      }
      for (const node of all("ref")) {
        if (node.tabIndex !== 0) setAttributes(node, { tabindex: 0, role: "button", "aria-pressed": false });
      }
    },
    remove() {
      for (const [type, listener] of Object.entries(listeners)) document.removeEventListener(type, listener, true);
      if (owners[name] === root) delete owners[name];
    },
  };
}
