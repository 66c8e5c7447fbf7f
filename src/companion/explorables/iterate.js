// Iterating the Bayes denoiser of two clusters: the plane, the cobweb and the bifurcation diagram, side by
// side with one vertical axis, the position u on the line of the means.
import { fixedPoint, iterate, LONGEST, step } from "./denoise.js";
import { figure } from "./stage.js";
import { format, formatPoint } from "./dom.js";

const SHOWN = 25; // iterates that are drawn

/** lambda = |delta| / s and a = xi^2 / s^2 with s^2 = gamma^2 + xi^2, the variance of a noisy cluster. */
function mapOf({ delta, width, noise }) {
  const variance = width * width + noise * noise;
  return { lambda: delta / Math.sqrt(variance), a: (noise * noise) / variance };
}

/** The noise at which lambda = 1. */
const threshold = ({ delta, width }) => Math.sqrt(delta * delta - width * width);

export function derive(state) {
  const map = mapOf(state);
  const [across, along] = state.start;
  const { path, limit, steps } = iterate(map, [across, along / state.delta], state.delta, SHOWN);
  return { ...map, fixed: fixedPoint(map.lambda), limit, steps, path: path.map(([x, u]) => [x, u * state.delta]) };
}

function sentence({ start }, { lambda, limit, fixed, steps }) {
  const when = steps === 0 ? "and it is there already" : steps === LONGEST ? `after more than ${LONGEST} steps` : `after ${steps} step${steps > 1 ? "s" : ""}`;
  if (fixed === 0) {
    const close = lambda > 0.97 ? "The clusters have just merged" : "The noise has merged the clusters";
    return `${close} (λ = ${format(lambda)}): every start ends in the middle, this one ${when}.`;
  }
  if (start[1] === 0) return `λ = ${format(lambda)}: this start is on the border, and its iterates go to the middle. Move it by a hair, and they leave.`;
  const side = start[1] > 0 ? 1 : 2;
  return `λ = ${format(lambda)}, two limits: this start is on the side of cluster ${side} and ends at u = ${format(limit)}, ${Math.abs(limit) > 0.995 ? "as good as its mean" : "short of its mean"}, ${when}.`;
}

function describe(state, { lambda, limit, fixed, path }) {
  return (
    `Noise ${format(state.noise)}, separation ${format(lambda)}. Left: from ${formatPoint(state.start)} the iterates run by ${formatPoint(path[1])} and ${formatPoint(path[2])} ` +
    `to u = ${format(limit)}. Middle: the map of u crosses the diagonal ${fixed ? `in three points, 0 and plus or minus ${format(fixed)}` : "at 0 only"}. ` +
    `Right: the limits against the noise; two branches join at ${format(threshold(state))}.`
  );
}

const quantities = (state, { lambda, limit, fixed, steps }) => ({
  noise: format(state.noise), lambda: format(lambda), limit: format(limit), fixed: format(fixed), steps: String(steps),
});

const WIDE = 3; // half of the plane's width
const HIGH = 1.5; // the largest u
const [QUIET, LOUD] = [0.3, 3]; // the noise's range
const U = [[-1, "−1"], [0, "0"], [1, "1"]];

function build(stage) {
  const { delta } = stage.start;
  const pad = { left: 30, right: 8, top: 10, bottom: 38 };
  const shared = { y: [-HIGH, HIGH], aspect: 1, pad };
  const plane = stage.chart({ ...shared, x: [-WIDE, WIDE], axes: { x: "across", y: "u", xTicks: [[-2, "−2"], [0, "0"], [2, "2"]], yTicks: U }, narrow: 1.35 });
  const web = stage.chart({ ...shared, x: [-HIGH, HIGH], axes: { x: "uₙ", y: "uₙ₊₁", xTicks: U, yTicks: U } });
  const fork = stage.chart({ ...shared, x: [QUIET, LOUD], axes: { x: "noise ξ", y: "limits", xTicks: [[1, "1"], [2, "2"], [3, "3"]], yTicks: U } });

  const diagonal = web.line("diagonal", "soft");
  const curve = web.line("map", "3 thick");
  const cobweb = web.line("steps", "ink");
  const stable = fork.line("limit", "out thick");
  const unstable = fork.line("middle", "soft dash");
  const now = fork.line("noise", "soft thin");
  const dots = fork.line("steps", "ink");
  const levels = [plane, web, fork].map((view) => view.line("limit", "out dash"));
  const steps = plane.line("steps", "ink");
  const means = [1, -1].map((u, k) => [plane.mark(`mean${k + 1}`, ["disc", "square"][k], `${k + 1}`), [0, u]]);
  const limits = [plane, web, fork].map((view) => view.mark("limit", "star", "out"));

  const place = ([x, y]) => [x, y / delta];
  const height = () => place(stage.state.start);
  const say = () => { const { limit } = derive(stage.state); return `; its limit is u = ${format(limit)}`; };
  const move = ([x, u]) => stage.change({ start: [x, (Math.abs(u) < 0.02 ? 0 : u) * delta] });
  stage.handle(plane, { part: "start", label: "Start of the iteration: across and u", shape: "diamond", at: height, move, describe: say });
  stage.handle(web, {
    part: "start", label: "u of the start", shape: "diamond", axes: "x", at: () => [height()[1], height()[1]],
    move: ([u]) => move([stage.state.start[0], u]), describe: say,
  });
  const loud = (noise) => stage.change({ noise });
  stage.handle(fork, { part: "noise", label: "Noise", axes: "x", look: "3", at: () => [stage.state.noise, -1.2], move: ([noise]) => loud(noise), describe: say });
  stage.tap(plane, move);
  stage.slider({ label: "noise ξ", min: QUIET, max: LOUD, step: 0.05, get: () => stage.state.noise, set: loud });
  const clock = stage.clock({ label: "Iterate", seconds: 5, show: (s) => stage.play({ shown: Math.round(1 + s * (SHOWN - 2)) }) });
  stage.button("At the threshold", () => { clock.pause(); stage.glide({ noise: threshold(stage.start), start: [-2.2, 2.4], shown: SHOWN - 1 }); });
  stage.button("On the border", () => { clock.pause(); stage.glide({ noise: 1, start: [-2.6, 0], shown: SHOWN - 1 }); });

  const spot = (view, point, r = 2.5) => { const [x, y] = view.px(point); return `M${(x - r).toFixed(1)},${y.toFixed(1)}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0`; };
  const us = Array.from({ length: 81 }, (_, i) => -HIGH + (2 * HIGH * i) / 80);
  // On the fork u = tanh v is the parameter: lambda^2 = v / u.
  const branch = Array.from({ length: 120 }, (_, i) => 12.5 * (i / 119) ** 2)
    .map((v) => [Math.sqrt(Math.max(delta ** 2 / (v ? v / Math.tanh(v) : 1) - stage.start.width ** 2, 0)), Math.tanh(v)])
    .filter(([noise]) => noise >= QUIET);
  stage.note("All three share one axis, u: 1 is the mean of cluster 1, −1 that of cluster 2.");
  const name = plane.label("limit", "limit", "out");

  let drawn = "";
  return (state, derived) => {
    const { limit, lambda } = derived;
    const key = `${lambda} ${plane.width} ${stage.rgb("--mx-1")}`;
    if (key !== drawn) {
      drawn = key;
      const colors = [stage.rgb("--mx-1"), stage.rgb("--mx-2")];
      plane.paint((x, u, rgba) => {
        rgba.splice(0, 3, ...colors[u > 0 ? 0 : 1]);
        rgba[3] = 70 * Math.abs(Math.tanh(lambda * lambda * u)); // |2 posterior - 1|
      });
    }
    const path = derived.path.slice(0, state.shown + 1).map(place);
    steps.set(plane.path(path) + path.map((p) => spot(plane, p)).join(""));
    for (const [mark, at] of means) mark.set(at, 7);

    const g = step(derived);
    diagonal.set(web.path([[-HIGH, -HIGH], [HIGH, HIGH]]));
    curve.set(web.path(us.map((u) => [u, g([0, u])[1]])));
    cobweb.set(web.path(path.flatMap(([, u], n) => (n + 1 < path.length ? [[u, u], [u, path[n + 1][1]]] : [[u, u]]))));

    const end = threshold(state);
    stable.set(fork.path([...[...branch].reverse(), ...branch.map(([noise, u]) => [noise, -u])]) + fork.path([[end, 0], [LOUD, 0]]));
    unstable.set(fork.path([[QUIET, 0], [end, 0]]));
    now.set(fork.path([[state.noise, -HIGH], [state.noise, HIGH]]));
    dots.set(path.map(([, u]) => spot(fork, [state.noise, u])).join(""));
    [plane, web, fork].forEach((view, k) => {
      levels[k].set(view.path([[view.x[0], limit], [view.x[1], limit]]));
      limits[k].set([[0, limit], [limit, limit], [state.noise, limit]][k], 6);
    });
    plane.placeLabels([[name, [0, limit]]]);
  };
}

export default figure({ derive, sentence, describe, quantities, build, row: true });
