// A prompt of L tokens and a query: discs grow with the softmax weights, a star is the output, and a
// hollow star what an infinite prompt of the same law would give (U = V = I).
import { format, formatPoint } from "./dom.js";
import { attention, average } from "./mixture.js";
import { figure } from "./stage.js";
import { carriers, tokens, tokenWeights } from "./tokens.js";

const PART = 0.9;
const INK = 0.14; // radius of a disc with all the weight, in heights of the plane

export function derive(state) {
  const prompt = drawn(state);
  const weights = tokenWeights(prompt, state.query);
  return {
    output: average(weights, prompt),
    limit: attention(state, state.query),
    carriers: carriers(weights, PART),
    largest: Math.max(...weights),
  };
}

/** The prompt, drawn again only when it has changed. */
let last = {};
function drawn(state) {
  const key = JSON.stringify([state.weights, state.means, state.covariances, state.length, state.seed]);
  if (last.key !== key) last = { key, prompt: tokens(state, state.length, state.seed) };
  return last.prompt;
}

const distance = ({ output, limit }) => Math.hypot(output[0] - limit[0], output[1] - limit[1]);

function sentence(state, derived) {
  const carry = derived.carriers === 1 ? "token carries" : "tokens carry";
  return (
    `${derived.carriers} of ${state.length} ${carry} 90\u00a0% of the weight; ` +
    `the output misses the limit of long prompts by ${format(distance(derived))}.`
  );
}

function describe(state, derived) {
  return (
    `Plane with ${state.length} tokens drawn as discs whose area is their softmax weight; the heaviest carries ` +
    `${format(100 * derived.largest, 1)} percent. The query stands at ${formatPoint(state.query)}, a filled star marks the output ` +
    `${formatPoint(derived.output)}, a hollow star the limit of long prompts ${formatPoint(derived.limit)}.`
  );
}

function quantities(state, derived) {
  return {
    z: formatPoint(state.query), output: formatPoint(derived.output), limit: formatPoint(derived.limit),
    carriers: `${derived.carriers}`, length: `${state.length}`, gap: format(distance(derived)),
  };
}

const LENGTHS = [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000];

function build(stage) {
  const { change } = stage;
  const plane = stage.plane({ x: [-4, 4], y: [-3, 3] });
  const tilt = plane.line("query", "ink thin dash");
  const gap = plane.line("gap", "soft");
  const limit = plane.mark("limit", "star", "2 hollow");
  const output = plane.mark("output", "star", "2");
  const names = {
    query: plane.label("query", "z"), output: plane.label("output", "output", "2"),
    limit: plane.label("limit", "limit", "2"),
  };
  const move = (query) => change({ query });
  stage.handle(plane, {
    part: "query", label: "Query z", shape: "diamond", at: () => stage.state.query, move,
    describe: () => `; ${derive(stage.state).carriers} tokens carry 90 percent of the weight`,
  });
  stage.tap(plane, move);
  const place = () => LENGTHS.findLastIndex((length) => length <= stage.state.length);
  stage.slider({
    label: "tokens in the prompt, L", min: 0, max: LENGTHS.length - 1, step: 1,
    get: place, set: (i) => change({ length: LENGTHS[i] }), text: () => `${stage.state.length}`,
  });
  stage.button("New prompt", () => change({ seed: stage.state.seed + 1 }));
  stage.preset("No tilt: plain mean", { query: [0, 0] });
  stage.preset("Strong tilt", { query: [3.2, 1.6] });
  stage.note("Area of a disc: softmax weight of the token");

  return (state, derived) => {
    const prompt = drawn(state);
    const weights = tokenWeights(prompt, state.query);
    const context = plane.ink();
    const color = (a) => `rgb(${stage.rgb("--mx-1").join(" ")} / ${a})`;
    context.fillStyle = color(0.35);
    context.strokeStyle = color(0.9);
    prompt.forEach((x, i) => {
      const [px, py] = plane.px(x);
      const radius = INK * plane.height * Math.sqrt(weights[i]);
      context.beginPath();
      context.arc(px, py, radius, 0, 2 * Math.PI);
      context.fill();
      if (radius > 1.5) context.stroke();
    });
    // Where a token lies is seen however little it weighs.
    context.fillStyle = color(0.9);
    for (const x of prompt) {
      const [px, py] = plane.px(x);
      context.fillRect(px - 0.75, py - 0.75, 1.5, 1.5);
    }
    tilt.set(plane.path([[0, 0], state.query]));
    gap.set(plane.path([derived.output, derived.limit]));
    output.set(derived.output, 9);
    limit.set(derived.limit, 9);
    names.query.textContent = stage.moved() ? "z" : "drag z";
    plane.placeLabels([[names.query, state.query], [names.output, derived.output], [names.limit, derived.limit]]);
  };
}

export default figure({ derive, sentence, describe, quantities, build });
