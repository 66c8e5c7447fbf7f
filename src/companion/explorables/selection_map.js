// Two Gaussian components, a query, and what one attention head makes of them (U = V = I): the gate
// selects an expert; without the softmax the same head only mixes in fixed proportions.
import { attention, cholesky, experts, gates, linearAttention, linearExperts, logOdds, logOddsField } from "./mixture.js";
import { figure } from "./stage.js";
import { format, formatPoint, percent, replaceAt } from "./dom.js";

export function derive(state) {
  const z = state.query;
  return {
    gates: gates(state, z),
    experts: experts(state, z),
    output: attention(state, z),
    linear_experts: linearExperts(state, z),
    linear_output: linearAttention(state, z),
    log_odds: logOdds(state, z),
  };
}

/** What is shown: the head's parts, their shares and its output, with the softmax or without. */
function head(state, derived) {
  return state.attention === "linear"
    ? { shares: state.weights, answers: derived.linear_experts, output: derived.linear_output }
    : { shares: derived.gates, answers: derived.experts, output: derived.output };
}

const variance = (C) => (C[0][0] + C[1][1]) / 2;
const scaled = (C, s) => C.map((row) => row.map((x) => (x * s) / variance(C)));
const round = (s) => [[s, 0], [0, s]];

function sentence(state, derived) {
  if (state.attention === "linear") {
    const [a, b] = state.weights;
    return `Without the softmax nothing is selected: wherever z stands, the two parts are mixed ${percent(a)} to ${percent(b)}.`;
  }
  const k = derived.gates[0] >= derived.gates[1] ? 0 : 1;
  const share = derived.gates[k];
  if (share > 0.99) return `Component ${k + 1} is selected: its expert alone gives the output (gate ${share > 0.999 ? "above 0.999" : format(share, 3)}).`;
  if (share > 0.75) return `Component ${k + 1} prevails: its expert carries ${percent(share)} of the output.`;
  return `Near the border both speak: expert 1 carries ${percent(derived.gates[0])} of the output, expert 2 ${percent(derived.gates[1])}.`;
}

function describe(state, derived) {
  const { answers, output } = head(state, derived);
  return (
    `Plane with two Gaussian components, centered at ${formatPoint(state.means[0])} and ${formatPoint(state.means[1])}. ` +
    `The query stands at ${formatPoint(state.query)}. Expert 1 answers ${formatPoint(answers[0])}, expert 2 answers ` +
    `${formatPoint(answers[1])}; an arrow leads from the query to the output ${formatPoint(output)}.`
  );
}

function quantities(state, derived) {
  const [prior, linear, quadratic] = derived.log_odds;
  const odds = prior + linear + quadratic;
  return {
    z: formatPoint(state.query), m1: formatPoint(state.means[0]), m2: formatPoint(state.means[1]),
    output: formatPoint(derived.output), expert1: formatPoint(derived.experts[0]), expert2: formatPoint(derived.experts[1]),
    gate1: percent(derived.gates[0]), gate2: percent(derived.gates[1]), winner: odds > 0 ? "1" : "2",
    prior: format(prior), linear: format(linear), quadratic: format(quadratic), odds: format(odds),
  };
}

function build(stage) {
  const { start, change } = stage;
  const plane = stage.plane({ x: [-4, 4], y: [-3.3, 3.3] });
  const border = plane.line("border", "ink");
  const rings = [0, 1].map((k) => plane.line(`component${k + 1}`, `${k + 1}`));
  const shifts = [0, 1].map((k) => plane.line(`expert${k + 1}`, `${k + 1} dot`));
  const segment = plane.line("segment", "soft");
  const arrow = plane.arrow("output", "out");
  const answers = [0, 1].map((k) => plane.mark(`expert${k + 1}`, ["disc", "square"][k], `${k + 1} hollow`));
  const regions = [0, 1].map((k) => plane.label(`component${k + 1}`, `${k + 1} selected`, `${k + 1} region`));
  const names = {
    z: plane.label("query", "z"),
    output: plane.label("output", "output", "out"),
    means: [plane.label("component1", "m₁", "1"), plane.label("component2", "m₂", "2")],
    answers: [plane.label("expert1", "expert 1", "1"), plane.label("expert2", "expert 2", "2")],
  };

  const spoken = () => `; gates ${derive(stage.state).gates.map(percent).join(" and ")}`;
  [0, 1].forEach((k) =>
    stage.handle(plane, {
      part: `component${k + 1}`, label: `Mean of component ${k + 1}`, shape: ["disc", "square"][k], look: `${k + 1}`,
      at: () => stage.state.means[k], move: (m) => change({ means: replaceAt(stage.state.means, k, m) }), describe: spoken,
    }),
  );
  const move = (query) => change({ query });
  stage.handle(plane, { part: "query", label: "Query z", shape: "diamond", at: () => stage.state.query, move, describe: spoken });
  stage.tap(plane, move);

  stage.choice({
    label: "Attention", options: [["softmax", "softmax"], ["linear", "linear"]],
    get: () => stage.state.attention, set: (attention) => change({ attention }),
  });
  const bars = stage.bars([0, 1].map((k) => ({ part: `expert${k + 1}`, look: `${k + 1}`, label: `expert ${k + 1}` })));
  [0, 1].forEach((k) =>
    stage.slider({
      label: `variance of component ${k + 1}`, min: 0.05, max: 2, step: 0.05,
      get: () => variance(stage.state.covariances[k]),
      set: (s) => change({ covariances: replaceAt(stage.state.covariances, k, scaled(stage.state.covariances[k], s)) }),
    }),
  );
  stage.preset("Equal variances", { covariances: [round(0.5), round(0.5)] });
  stage.preset("Wide around narrow", { covariances: [round(0.25), round(1.5)], means: [[2, 0.5], [0, 0]], weights: [0.5, 0.5] });
  stage.preset("1 is rare", { weights: [0.02, 0.98], means: start.means, covariances: start.covariances });

  return (state, derived) => {
    const { means, covariances, query } = state;
    const { shares, answers: experts, output } = head(state, derived);
    const soft = state.attention !== "linear";
    const odds = logOddsField(state);
    const colors = [stage.rgb("--mx-1"), stage.rgb("--mx-2")];
    plane.paint((x, y, rgba) => {
      const l = soft ? odds(x, y) : 0;
      const c = colors[l > 0 ? 0 : 1];
      rgba[0] = c[0];
      rgba[1] = c[1];
      rgba[2] = c[2];
      rgba[3] = soft ? 12 + 58 * Math.abs(Math.tanh(l / 2)) : 0; // |2 gate - 1|
    });
    border.set(soft ? plane.zeroLine(odds) : "");
    rings.forEach((ring, k) => {
      const root = cholesky(covariances[k]);
      ring.set(plane.ellipse(means[k], root, 1) + plane.ellipse(means[k], root, 2));
    });
    shifts.forEach((shift, k) => shift.set(plane.path([means[k], experts[k]])));
    segment.set(soft ? plane.path(experts) : "");
    arrow.set(query, output);
    answers.forEach((mark, k) => mark.set(experts[k]));
    names.z.textContent = stage.moved() ? "z" : "drag z";
    plane.placeLabels([
      [names.z, query], [names.output, output],
      ...names.means.map((label, k) => [label, means[k]]), ...names.answers.map((label, k) => [label, experts[k]]),
    ]);
    const points = [query, output, ...means, ...experts];
    regions.forEach((label, k) => plane.placeRegion(label, (x, y) => soft && odds(x, y) > 0 === (k === 0), points));
    bars.set(shares);
  };
}

const scrubs = {
  weight1: { label: "weight of component 1", min: 0.02, max: 0.98, step: 0.01, get: (state) => state.weights[0], set: (w) => ({ weights: [w, 1 - w] }) },
};

export default figure({ derive, sentence, describe, quantities, scrubs, build });
