// The paper's title in one gesture (U = V = I): the answers to a line of queries. One Gaussian cluster
// in the prompt: they lie on a line. Two: the line bends where the head changes its mind.
import { attention, cholesky, gates } from "./mixture.js";
import { figure } from "./stage.js";
import { formatPoint, percent } from "./dom.js";

const HALF = 4; // the line of queries runs from -HALF to HALF
const STEPS = 80;

const mixture = ({ share, means, covariances }) => ({ weights: [1 - share, share], means, covariances });

/** Answers to the queries on the horizontal line through the query. */
function answers(state) {
  const law = mixture(state);
  return Array.from({ length: STEPS + 1 }, (_, i) => attention(law, [-HALF + (2 * HALF * i) / STEPS, state.query[1]]));
}

/** Largest distance of points from the line through the first and the last of them. */
function bend(points) {
  const [a, b] = [points[0], points[points.length - 1]];
  const [u, v] = [b[0] - a[0], b[1] - a[1]];
  return Math.max(...points.map((p) => Math.abs(u * (p[1] - a[1]) - v * (p[0] - a[0])))) / Math.hypot(u, v);
}

export function derive(state) {
  const law = mixture(state);
  return { gates: gates(law, state.query), output: attention(law, state.query), bend: bend(answers(state)) };
}

function sentence(state, { gates: [left, right], output }) {
  if (state.share < 0.01) return `One cluster: the answer ${formatPoint(output)} is affine in z, so queries on a line get answers on a line.`;
  const [side, gate] = left > right ? ["left", left] : ["right", right];
  if (gate > 0.95) return `Two clusters: here only the ${side} one answers (${percent(gate)} of the weight). Move z to the other side.`;
  return `Two clusters: here both answer, the left one with ${percent(left)} of the weight. The line bends where the head changes its mind.`;
}

function describe(state, derived) {
  const clusters = state.share < 0.01 ? "one cluster of tokens" : "two clusters of tokens";
  const curve = derived.bend < 1e-9 ? "a straight line" : "a bent curve";
  return (
    `Plane with ${clusters}. The query stands at ${formatPoint(state.query)} on a horizontal line of queries; the answers to ` +
    `the queries on that line form ${curve}. The answer to this query is ${formatPoint(derived.output)}.`
  );
}

function build(stage) {
  const plane = stage.plane({ x: [-4.2, 4.2], y: [-2.4, 2], aspect: 2.1 });
  const rings = [0, 1].map((k) => plane.line(`cluster${k + 1}`, `${k + 1}`));
  const line = plane.line("queries", "soft dash");
  const curve = plane.line("answers", "out thick");
  const link = plane.line("answer", "soft dot");
  const star = plane.mark("answer", "star", "out");
  const names = {
    z: plane.label("query", "drag z"),
    answer: plane.label("answer", "answer", "out"),
    clusters: [plane.label("cluster1", "cluster", "1"), plane.label("cluster2", "cluster", "2")],
  };
  const move = (query) => stage.change({ query });
  stage.handle(plane, {
    part: "query", label: "Query z", shape: "diamond", at: () => stage.state.query, move,
    describe: () => `; answer ${formatPoint(derive(stage.state).output)}`,
  });
  stage.tap(plane, move);
  stage.choice({
    label: "The prompt has", options: [["one", "one cluster"], ["two", "two clusters"]],
    get: () => (stage.state.share < 0.25 ? "one" : "two"),
    set: (clusters) => stage.glide({ share: clusters === "two" ? 0.5 : 0 }),
  });
  stage.note("Dashed: queries on a line. Green: the head's answers to them.");

  return (state, derived) => {
    const shown = [true, state.share >= 0.01];
    rings.forEach((ring, k) => {
      const root = cholesky(state.covariances[k]);
      ring.set(shown[k] ? plane.ellipse(state.means[k], root, 1) + plane.ellipse(state.means[k], root, 2) : "");
    });
    line.set(plane.path([[-HALF, state.query[1]], [HALF, state.query[1]]]));
    curve.set(plane.path(answers(state)));
    link.set(plane.path([state.query, derived.output]));
    star.set(derived.output);
    names.z.textContent = stage.moved() ? "z" : "drag z";
    names.clusters[1].textContent = shown[1] ? "cluster" : "";
    const foot = ([x, y]) => [x, y - 1.1];
    plane.placeLabels([
      [names.z, state.query], [names.answer, derived.output],
      ...names.clusters.map((label, k) => [label, foot(state.means[k])]),
    ]);
  };
}

export default figure({ derive, sentence, describe, build, wide: true });
