// The ball on the landscape: the excess risk over (r, s), w and b at their best, both families of its
// minimizers, and the gradient flow of what is drawn from wherever the ball is dropped.
import { flow, lawOnNodes, reduced } from "./logistic.js";
import { figure } from "./stage.js";
import { format, formatPoint, reducedMotion, setAttributes } from "./dom.js";

let kept = {}; // the law of the prior that was asked for last, and the paths in it
function lawOf({ prior, means, variance, rule }) {
  const key = `${prior} ${means} ${variance}`;
  if (kept.key !== key) kept = { key, law: lawOnNodes({ prior, means, variance }, rule), paths: new Map() };
  return kept.law;
}

/** Path of a ball from `start`: the flow's points with the lengths so far. */
function pathOf(state, start) {
  const law = lawOf(state);
  const key = String(start);
  if (!kept.paths.has(key)) {
    let length = 0;
    const path = flow(law, start);
    path.forEach((p, i) => (p.length = length += i ? Math.hypot(p.at[0] - path[i - 1].at[0], p.at[1] - path[i - 1].at[1]) : 0));
    if (kept.paths.size > 40) kept.paths.clear();
    kept.paths.set(key, path);
  }
  return kept.paths.get(key);
}

/** Which family a path ends on: the sigmoid is off (r = 0) or frozen (s = 0). */
const familyOf = (path) => (Math.abs(path.at(-1).at[0]) < Math.abs(path.at(-1).at[1]) ? "off" : "frozen");

export function derive(state) {
  const { w, b, excess, gradient } = reduced(lawOf(state), state.ball);
  return { w, b, excess, gradient };
}

/** Where the ball comes to rest: [r, s], the time it took, and the family. */
export function ending(state) {
  const path = pathOf(state, state.ball);
  return { end: path.at(-1).at, time: path.at(-1).t, family: familyOf(path) };
}

/** Where the ball is after the share `s` of its way; clock and risk run on a log scale between points. */
function along(path, s) {
  const goal = s * path.at(-1).length;
  const i = Math.max(1, path.findIndex((p) => p.length >= goal));
  const [p, q] = [path[i - 1], path[i] ?? path[i - 1]];
  const part = q.length > p.length ? (goal - p.length) / (q.length - p.length) : 1;
  const mix = (a, b) => a + (b - a) * part;
  return {
    at: [mix(p.at[0], q.at[0]), mix(p.at[1], q.at[1])],
    t: mix(p.t, q.t),
    excess: Math.exp(mix(Math.log(p.excess + 1e-300), Math.log(q.excess + 1e-300))),
    before: path.slice(0, i).map((point) => point.at),
  };
}

const raised = (n) => [...String(n)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("");
function power(x) {
  if (x === 0) return "0";
  const n = Math.floor(Math.log10(x) + 1e-12);
  if (n >= -3 && n < 4) return n >= 1 ? x.toFixed(0) : x.toPrecision(2);
  const lead = (x / 10 ** n).toFixed(0);
  return lead === "10" ? `10${raised(n + 1)}` : lead === "1" ? `10${raised(n)}` : `${lead} × 10${raised(n)}`;
}

function sentence(state, { excess }) {
  if (state.rolled === 0) {
    return `At (r, s) = ${formatPoint(state.ball)} the excess risk is ${power(excess)}. Seen from the side, this row is a bowl with its bottom at r = 0: there is a way down.`;
  }
  if (state.rolled < 1) {
    const path = pathOf(state, state.ball);
    const now = along(path, state.rolled);
    return `At (r, s) = ${formatPoint(now.at)} the excess risk is ${power(now.excess)}, and it only falls. Time ${power(now.t)}.`;
  }
  const { end, time, family } = ending(state);
  const begin = `From an excess risk of ${power(excess)} the ball rolls down to the optimum, with the sigmoid `;
  return family === "off"
    ? `${begin}switched off: r = 0, at s = ${format(end[1])}. That takes the time ${power(time)}.`
    : `${begin}frozen: s = 0, at r = ${format(end[0])}. The valley is flat there: that takes the time ${power(time)}.`;
}

function describe(state) {
  const { end, family } = ending(state);
  return (
    `Landscape of the excess risk over r (across) and s (upwards) for a prior of ${format(state.prior)}: it is zero on the vertical line r = 0 and on ` +
    `the horizontal line s = 0, and positive elsewhere. A ball dropped at ${formatPoint(state.ball)} rolls to ${formatPoint(end)}, ` +
    `on the line ${family === "off" ? "r = 0" : "s = 0"}. ${state.trails.length} earlier trails.`
  );
}

function quantities(state, { excess }) {
  const { time, family } = ending(state);
  return { r: format(state.ball[0]), s: format(state.ball[1]), excess: power(excess), time: power(time), family };
}

/**
 * The signed root of the excess risk on a grid over the window, and between its points: a smooth
 * function, since the risk is quadratic across r = 0; contours of the risk itself would have a kink.
 */
function landscape(law, { x, y }, [columns, rows]) {
  const values = [];
  for (let j = 0; j <= rows; j++) {
    const s = y[0] + ((y[1] - y[0]) * j) / rows;
    let guess;
    for (let i = 0; i <= columns; i++) {
      const r = x[0] + ((x[1] - x[0]) * i) / columns;
      const here = reduced(law, [r, s], guess);
      guess = [here.w, here.b];
      values.push(Math.sign(r) * Math.sqrt(here.excess));
    }
  }
  return (r, s) => {
    const u = Math.min(Math.max(((r - x[0]) / (x[1] - x[0])) * columns, 0), columns - 1e-9);
    const v = Math.min(Math.max(((s - y[0]) / (y[1] - y[0])) * rows, 0), rows - 1e-9);
    const at = Math.floor(v) * (columns + 1) + Math.floor(u);
    const [p, q] = [u % 1, v % 1];
    return (
      (1 - q) * ((1 - p) * values[at] + p * values[at + 1]) +
      q * ((1 - p) * values[at + columns + 1] + p * values[at + columns + 2])
    );
  };
}

const LEVELS = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2];
const TRAILS = 6;
const REST = 350; // ms without a change until a ball is let go

/** A pair of starts on both sides of the border between the two families. */
function hair(state) {
  let [low, high] = [0.3, 3.7];
  for (let n = 0; n < 9; n++) {
    const middle = (low + high) / 2;
    if (familyOf(flow(lawOf(state), [2, middle])) === "off") high = middle;
    else low = middle;
  }
  return [[2, low - 0.03], [2, high + 0.03]];
}

function build(stage) {
  const plane = stage.plane({ x: [-5, 5], y: [-3.75, 3.75] });
  const contours = plane.line("contours", "soft thin");
  const cut = plane.line("cut", "soft fill thin");
  const off = plane.line("off", "1 thick");
  const frozen = plane.line("frozen", "2 thick dash");
  const looks = { off: "1", frozen: "2" };
  const lines = (part, look) => Object.fromEntries(Object.keys(looks).map((f) => [f, plane.line(part, `${looks[f]} ${look}`)]));
  const [old, ahead, behind] = [lines("trails", ""), lines("trail", "dot"), lines("trail", "thick")];
  const ball = plane.mark("ball", "disc", "out");
  const names = {
    ball: plane.label("ball", ""),
    cut: plane.label("cut", "this row from the side", "soft"),
    off: plane.label("off", "sigmoid off: r = 0", "1"),
    frozen: plane.label("frozen", "frozen: s = 0", "2"),
  };
  const heights = LEVELS.slice(1).map((l) => plane.label("contours", `10${raised(Math.log10(l))}`, "soft"));

  const clock = stage.clock({ label: "Roll", seconds: 2.2, show: (rolled) => stage.play({ rolled }) });
  let resting;
  const drop = (at) => {
    clock.rewind();
    clearTimeout(resting);
    const { ball, trails, rolled } = stage.state;
    const home = String(at) === String(stage.start.ball);
    const near = trails.length && Math.hypot(...trails.at(-1).map((x, i) => x - ball[i])) < 0.3;
    const old = home ? [] : rolled === 0 || near ? trails : [...trails, ball].slice(-TRAILS);
    if (reducedMotion()) return stage.change({ ball: at, trails: old, rolled: home ? 0 : 1 });
    stage.change({ ball: at, trails: old, rolled: 0 });
    const letGo = () => {
      if (String(stage.state.ball) !== String(at)) return; // something else has moved it
      if (grip.node.classList.contains("mx-dragged")) resting = setTimeout(letGo, REST);
      else clock.play();
    };
    resting = setTimeout(letGo, REST);
  };
  const grip = stage.handle(plane, { part: "ball", label: "Where the ball starts: r, s", at: () => stage.state.ball, move: drop });
  stage.tap(plane, drop);
  stage.slider({
    label: "prior of class 1", min: 0.1, max: 0.9, step: 0.05, get: () => stage.state.prior,
    set: (prior) => { clock.pause(); stage.change({ prior, rolled: 1 }); },
  });
  stage.button("A hair apart", () => {
    const [one, other] = hair(stage.state);
    drop(other);
    stage.change({ trails: [one] });
  });
  stage.button("Flat valley", () => drop([4, 0.7]));
  stage.button("Far away", () => drop([-4.5, -3.3]));

  stage.note("r runs across, s upwards. Height is the excess risk with the best w and b; the ball follows its gradient.");

  let drawn = "";
  let refine;
  const field = (law, cells, grain) => {
    const f = landscape(law, plane, cells);
    const c = stage.rgb("--mx-3");
    plane.paint((x, y, rgba) => {
      rgba.splice(0, 3, ...c);
      rgba[3] = 90 * Math.min(1, Math.max(0, 1 + Math.log10(f(x, y) ** 2 / 0.03 + 1e-12) / 6));
    }, grain);
    contours.set(LEVELS.map((l) => Math.sqrt(l)).map((l) => plane.zeroLine((x, y) => f(x, y) - l, grain) + plane.zeroLine((x, y) => f(x, y) + l, grain)).join(""));
    // Each contour's height stands where it crosses the way from the center down to the right.
    const way = Array.from({ length: 200 }, (_, i) => [(i / 200) * plane.x[1], (i / 200) * plane.y[0]]);
    heights.forEach((label, k) => {
      const [x, y] = plane.px(way.find((at) => f(...at) ** 2 > LEVELS[k + 1]) ?? [99, 99]);
      setAttributes(label, { x: x.toFixed(0), y: (y + 5).toFixed(0), "text-anchor": "middle" });
    });
  };

  return (state) => {
    const key = `${state.prior} ${plane.width} ${stage.rgb("--mx-ink")}`;
    if (key !== drawn) {
      drawn = key;
      // while the slider moves: a coarse picture, from every second node
      const { nodes, weights } = state.rule;
      const half = { nodes: nodes.filter((_, i) => i % 2 === 0), weights: weights.filter((_, i) => i % 2 === 0).map((w) => 2 * w) };
      field(lawOnNodes(state, half), [24, 18], 12);
      clearTimeout(refine);
      refine = setTimeout(() => key === drawn && field(lawOf(stage.state), [60, 44], 6), 250);
    }
    off.set(plane.path([[0, plane.y[0]], [0, plane.y[1]]]));
    frozen.set(plane.path([[plane.x[0], 0], [plane.x[1], 0]]));

    // The row of the start, seen from the side: a bowl with its bottom at r = 0.
    const [, s] = state.ball;
    const row = Array.from({ length: 41 }, (_, i) => plane.x[0] + ((plane.x[1] - plane.x[0]) * i) / 40);
    const bowl = row.map((r) => reduced(lawOf(state), [r, s]).excess);
    const scale = 1.1 / Math.max(...bowl, 1e-12);
    cut.set(plane.path([[row[0], s], ...row.map((r, i) => [r, s + scale * bowl[i]]), [row[40], s]]));

    const path = pathOf(state, state.ball);
    const now = along(path, state.rolled);
    const trails = { off: "", frozen: "" };
    for (const start of state.trails) {
      const before = pathOf(state, start);
      trails[familyOf(before)] += plane.path(before.map((p) => p.at));
    }
    for (const f of Object.keys(looks)) {
      const mine = f === familyOf(path);
      old[f].set(trails[f]);
      ahead[f].set(mine ? plane.path(path.map((p) => p.at)) : "");
      behind[f].set(mine ? plane.path([...now.before, now.at]) : "");
    }
    ball.set(now.at, 9);
    names.ball.textContent = stage.moved() ? "" : "drop it anywhere";
    plane.placeLabels([
      [names.ball, state.ball], [names.off, [0, plane.y[0] + 0.4]], [names.frozen, [plane.x[0] + 1.2, 0]],
      [names.cut, [state.ball[0] > 0 ? plane.x[0] + 0.3 : plane.x[1] - 0.3, s]],
    ]);
  };
}

export default figure({ derive, sentence, describe, quantities, build });
