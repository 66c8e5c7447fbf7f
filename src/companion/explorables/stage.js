// The stage of a live figure: its state, controls, sentence, theme and the text around it.
//
// How to write a figure (selection_map.js is a whole one):
//
//   import { figure } from "./stage.js";
//   export function derive(state) { ... }      what follows from the state: pure, plain JSON, no DOM;
//                                              the tests compare it with the package in Python
//   export default figure({
//     derive,
//     sentence(state, derived) { ... },        one sentence under the figure, what this state means
//     describe(state, derived) { ... },        what is seen, for a reader who does not see it
//     quantities(state, derived) { ... },      optional: { q: text } for the page's text
//     scrubs: { q: { label, min, max, step, get(state), set(value, state) } },     optional
//     build(stage) { ...; return (state, derived) => { draw } },
//     row: true,                               optional: views side by side, controls below them
//     wide: true,                              optional: one wide view, controls below it
//   });
//
// The file's name is the figure's kind. `state` is a plain object of numbers, lists and texts, given
// by Python together with `name` (of its spans in the text) and `title`. `build` runs once:
//
//   stage.plane({ x, y, aspect })                       a view of equal units; see view.js
//   stage.chart({ x, y, axes: { x: label, y: label }, aspect })     a view of unequal units with ticks
//       view.line(part, look).set(view.path(points) | view.zeroLine(f) | view.ellipse(m, root, r))
//       view.mark(part, shape, look).set(point, radius), view.arrow(part, look).set(from, to)
//       view.label(part, text, look), view.placeLabels([[label, point], ...]), view.placeRegion(...)
//       view.paint((x, y, rgba) => ...) a field, or view.ink() a canvas for many marks
//   stage.handle(view, { part, label, shape, look, axes: "xy" | "x" | "y", step, at, move, describe })
//   stage.tap(view, move)                               a click beside the handles
//   stage.bars([{ part, look, label }])                 a divided bar: .set([share, ...])
//   stage.slider({ label, min, max, step, get, set, text })
//   stage.choice({ label, options: [[value, text], ...], get, set })
//   stage.preset(text, part | (state) => part)          glides there; stage.button(text, action)
//   stage.clock({ label, seconds, show })               a button that plays show(s), s from 0 to 1, and
//                                                       pauses; { play(), pause(), rewind() }; `show`
//                                                       changes the state by stage.play(part)
//   stage.note(text)                                    a fixed line under the picture: how to read it
//   stage.state, stage.start, stage.moved(), stage.change(part), stage.glide(part), stage.rgb("--mx-1")
//
// Nothing is drawn in `build`: colors and sizes are known only in the returned function, which runs
// once a frame after a change. A button "Start again" comes by itself. `part` is a name that handles,
// lines and the text's `ref-NAME-part` share: pointing at one lights the others.
import { clamp, element, everyFrame, format, mix, ownKeys, percent, run, setAttributes, setText } from "./dom.js";
import { prose } from "./prose.js";
import { handle, view } from "./view.js";

const QUIET = 700; // ms after the last change until a screen reader hears of it
const TALK = 80; // ms between two messages to the kernel

/** What anywidget and the site mount: `{ render({ model, el }) }`. */
export function figure(parts) {
  return { render: ({ model, el }) => mount(parts, model, el) };
}

function mount(parts, model, el) {
  const stage = { state: structuredClone(model.get("state")) };
  stage.start = structuredClone(stage.state);
  const { name, title } = stage.state;
  const root = element("div", { class: `mx-figure${parts.row ? " mx-row" : ""}${parts.wide ? " mx-wide" : ""}`, role: "group", "aria-label": title });
  const picture = element("div", { class: "mx-picture" });
  const side = element("div", { class: "mx-side" });
  const places = element("div", { class: "mx-places" });
  const sentence = element("p", { class: "mx-sentence" });
  const status = element("p", { class: "mx-quiet", role: "status" });
  const probe = element("span", { hidden: true });
  root.append(element("div", { class: "mx-body" }, picture, sentence, side), status, probe);
  el.append(root);
  root.addEventListener("keydown", ownKeys);

  const views = [];
  const placed = []; // whatever has .place(): handles and controls
  let draw = () => {};
  let derived = parts.derive(stage.state);
  let stop = () => {};

  // One object, replaced at each change. The kernel, if there is one, hears of it a dozen times a second.
  let said = 0;
  let saying;
  const share = () => {
    clearTimeout(saying);
    said = performance.now();
    model.set("state", structuredClone(stage.state));
    model.set("derived", parts.derive(stage.state));
    model.save_changes();
  };
  const apply = (part) => {
    stage.state = { ...stage.state, ...part };
    root.dataset.moved = "";
    text.own();
    paint();
    clearTimeout(saying);
    saying = setTimeout(share, Math.max(0, TALK - (performance.now() - said)));
  };
  stage.change = (part) => {
    stop();
    apply(part);
  };
  stage.play = apply;
  stage.glide = (part) => {
    stop();
    const from = stage.state;
    stop = run(0.45, (s) => {
      const eased = s * s * (3 - 2 * s);
      apply(Object.fromEntries(Object.entries(part).map(([key, to]) => [key, mix(from[key], to, eased)])));
    });
  };

  let hush;
  const paint = everyFrame(() => {
    if (!root.dataset.theme || !views.every((v) => v.width)) return;
    derived = parts.derive(stage.state);
    draw(stage.state, derived);
    for (const control of placed) control.place();
    const words = parts.sentence(stage.state, derived);
    const seen = parts.describe(stage.state, derived);
    setText(sentence, words);
    for (const v of views) setAttributes(v.svg, { "aria-label": seen });
    text.show();
    clearTimeout(hush);
    if (stage.moved()) hush = setTimeout(() => setText(status, words), QUIET);
  });

  // Views
  const addView = (options) => {
    const made = view(picture, { ...options, redraw: () => { theme.look(); paint(); } });
    views.push(made);
    return made;
  };
  stage.plane = ({ x, y, aspect, narrow }) => addView({ x, y, aspect, narrow, equal: true });
  stage.chart = ({ x, y, axes, aspect = 1.5, narrow, pad }) => addView({ x, y, axes, aspect, narrow, pad });
  stage.handle = (on, options) => {
    const made = handle(on, options);
    placed.push(made);
    return made;
  };
  stage.tap = (on, move) =>
    on.box.addEventListener("click", (event) => {
      if (!event.target.closest(".mx-handle")) move(on.inside(on.under(event)));
    });

  // Controls
  const control = (node, place) => {
    side.append(node);
    placed.push({ place });
  };
  stage.slider = ({ label, min, max, step, get, set, text: say = format }) => {
    const input = element("input", { type: "range", min, max, step });
    const output = element("output", { "aria-hidden": "true" });
    input.addEventListener("input", () => set(Number(input.value)));
    control(element("label", { class: "mx-slider" }, element("span", {}, label), output, input), () => {
      input.value = get();
      setText(output, say(get()));
      setAttributes(input, { "aria-valuetext": say(get()) });
    });
  };
  stage.choice = ({ label, options, get, set }) => {
    const group = `mx-${Math.random().toString(36).slice(2)}`;
    const inputs = options.map(([value]) => element("input", { type: "radio", name: group, value }));
    options.forEach(([value], i) => inputs[i].addEventListener("change", () => set(value)));
    const labels = options.map(([, said], i) => element("label", {}, inputs[i], element("span", {}, said)));
    control(element("fieldset", { class: "mx-choice" }, element("legend", {}, label), ...labels), () => {
      options.forEach(([value], i) => (inputs[i].checked = value === get()));
    });
  };
  stage.bars = (segments) => {
    const bars = segments.map(({ part, look }) =>
      element("span", { class: `mx-bar mx-${look}`, "data-part": part }, element("b"), element("i")),
    );
    side.append(element("div", { class: "mx-bars", "aria-hidden": "true" }, ...bars));
    return {
      set: (shares) =>
        shares.forEach((s, k) => {
          bars[k].style.setProperty("--share", clamp(s, 0, 1).toFixed(4));
          setText(bars[k].firstChild, `${segments[k].label} ${percent(s)}`);
        }),
    };
  };
  stage.button = (said, action) => {
    const node = element("button", { type: "button" }, said);
    node.addEventListener("click", action);
    places.append(node);
    return node;
  };
  stage.preset = (said, part) =>
    stage.button(said, () => stage.glide(typeof part === "function" ? part(stage.state) : part));
  stage.note = (said) => picture.append(element("p", { class: "mx-note" }, said));
  stage.moved = () => "moved" in root.dataset;
  stage.clock = ({ label, seconds, show }) => {
    let at = 0;
    let running = false;
    let halt = () => {};
    const say = () => setText(node, running ? "Pause" : at > 0 && at < 1 ? "Go on" : label);
    const pause = () => {
      halt();
      running = false;
      say();
    };
    const play = (from = at < 1 ? at : 0) => {
      halt();
      running = true;
      halt = run(seconds, (s) => { at = s; show(s); }, { from, done: pause });
      say();
    };
    const node = stage.button(label, () => (running ? pause() : play()));
    clocks.push(pause);
    return { play: () => play(0), pause, rewind: () => { pause(); at = 0; say(); } };
  };
  const clocks = [];

  // Colors as the theme of the moment has them, for the canvas
  let known = new Map();
  stage.rgb = (variable) => {
    if (!known.has(variable)) {
      probe.style.color = `var(${variable})`;
      known.set(variable, getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number));
    }
    return known.get(variable);
  };
  const theme = followTheme(root, () => {
    known = new Map();
    paint();
  });

  const text = prose(name, root, {
    quantities: () => parts.quantities?.(stage.state, derived) ?? {},
    scrubs: parts.scrubs ?? {},
    state: () => stage.state,
    change: (part) => stage.change(part),
  });

  draw = parts.build(stage);
  stage.button("Start again", () => {
    for (const pause of clocks) pause();
    stage.glide(stage.start);
  });
  side.append(places);

  const heard = () => {
    const sent = model.get("state");
    if (JSON.stringify(sent) === JSON.stringify(stage.state)) return;
    stop();
    stage.state = structuredClone(sent);
    model.set("derived", parts.derive(stage.state));
    model.save_changes();
    paint();
  };
  model.on("change:state", heard);
  model.set("derived", derived);
  model.save_changes();
  for (const v of views) v.measure();
  paint();

  return () => {
    stop();
    for (const pause of clocks) pause();
    clearTimeout(saying);
    clearTimeout(hush);
    model.off("change:state", heard);
    theme.stop();
    text.remove();
    for (const v of views) v.remove();
    root.remove();
  };
}

/** Marks `root` dark or light by the ground it stands on: the same rule on every host. */
function followTheme(root, changed) {
  const ground = () => {
    for (let node = root.parentNode; node; node = node.parentNode ?? node.host) {
      if (!(node instanceof Element)) continue;
      const [r, g, b, a = 1] = (getComputedStyle(node).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
      if (r !== undefined && a > 0.5) return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? 0 : 255;
  };
  const look = () => {
    if (!root.isConnected) return; // ipywidgets draws before it attaches; nothing has a style yet
    const theme = ground() < 128 ? "dark" : "light";
    if (root.dataset.theme === theme) return;
    root.dataset.theme = theme;
    changed();
  };
  // The host's own rules may come a transition later than its attribute.
  const later = () => {
    look();
    setTimeout(look, 400);
  };
  const watcher = new MutationObserver(later);
  for (const node of [document.documentElement, document.body]) {
    watcher.observe(node, {
      attributes: true,
      attributeFilter: ["class", "data-theme", "data-mode", "data-jp-theme-light", "data-vscode-theme-kind", "theme"],
    });
  }
  const queries = ["(prefers-color-scheme: dark)", "(forced-colors: active)"].map((q) => matchMedia(q));
  const again = () => {
    delete root.dataset.theme;
    later();
  };
  for (const query of queries) query.addEventListener("change", again);
  look();
  return {
    look,
    stop() {
      watcher.disconnect();
      for (const query of queries) query.removeEventListener("change", again);
    },
  };
}

