// Along the line between two means: what Bayes asks, what one head returns, and how two heads share it.
import { bayesAlong, bestHead, headAlong, headExcess, twoHeadsAlong } from "./denoise.js";
import { figure } from "./stage.js";
import { clamp, format } from "./dom.js";

/** delta, c = gamma^2 + xi^2 and a = xi^2 / c of a state, where gamma^2 / xi^2 = 2^power. */
const taskOf = ({ delta, variance, power }) => ({ delta, c: variance, a: 1 / (1 + 2 ** power) });

let kept = {}; // the best head of the ratio that was asked for last
function best(state) {
  const key = `${state.power} ${state.delta} ${state.variance}`;
  if (kept.key !== key) kept = { key, head: bestHead(taskOf(state), state.rule) };
  return kept.head;
}

export function derive(state) {
  const task = taskOf(state);
  const { sharpness, scale } = state.best ? best(state) : state;
  return {
    sharpness,
    scale,
    slope: sharpness * scale,
    asked: [task.a, 1 - task.a],
    bayes: bayesAlong(task)(state.at),
    head: headAlong(task, sharpness, scale)(state.at),
    parts: twoHeadsAlong(task)(state.at),
    excess: headExcess(task, state.rule, sharpness, scale),
  };
}

const equal = (a, b) => Math.abs(a - b) < 1e-6;

function sentence(state, { sharpness, scale, slope, asked: [jump, rise], excess }) {
  if (state.heads === "two") {
    const line = 1 - 2 * jump;
    const does = equal(line, 0) ? "has nothing to add" : `${line < 0 ? "takes" : "adds"} ${format(Math.abs(line))} t${line < 0 ? " away" : ""}`;
    return `The head with the gate has the right jump, but the slope ${format(jump)} instead of ${format(rise)}; the other, a straight line, ${does}. Their sum is Bayes, everywhere.`;
  }
  if (equal(sharpness, 1) && equal(scale, jump) && equal(slope, rise)) {
    return "γ² = ξ²: slope and jump ask for the same number, and one head is Bayes everywhere.";
  }
  const judge = (has, asks, more, less) => (equal(has, asks) ? "right" : `${format(has)} where Bayes asks ${format(asks)}, ${has > asks ? more : less}`);
  return (
    `${state.best ? "The best head of this kind" : "Your head"}: its slope is ${judge(slope, rise, "too steep", "too flat")}; ` +
    `its jump is ${judge(scale, jump, "too big", "too small")}. It loses ${excess < 1e-4 ? "less than 0.0001" : excess.toPrecision(2)} in mean square.`
  );
}

function describe(state, derived) {
  const rest = state.heads === "two"
    ? `The parts of the two heads there are ${format(derived.parts[1])} and ${format(derived.parts[0])}, and add up to it.`
    : `One head returns ${format(derived.head)}, a loss of ${format(derived.excess, 4)} on average.`;
  return (
    `Output along the line of the means against the query's place t on it, for γ²/ξ² = ${format(2 ** state.power)}. Bayes: a line of slope ${format(derived.asked[1])} with a smooth ` +
    `step of height ${format(derived.asked[0])} times the distance of the means at t = 0. At t = ${format(state.at)} Bayes returns ${format(derived.bayes)}. ${rest}`
  );
}

const quantities = (state, { slope, scale, asked: [jump, rise], excess }) => ({
  ratio: format(2 ** state.power), slope: format(slope), rise: format(rise), scale: format(scale), jump: format(jump), excess: format(excess, 4),
});

const HALF = 4.5; // the line is shown from -HALF to HALF
const TOP = 3.6; // and outputs to TOP
const [LOW, HIGH] = [-3, 2]; // log2 of the ratio
const FLOOR = -5; // log10 of an excess risk drawn as zero
const depth = (excess) => clamp(Math.log10(excess + 1e-300), FLOOR, 0.9);

function build(stage) {
  const { state: first, change } = stage;
  const chart = stage.chart({ x: [-HALF, HALF], y: [-TOP, TOP], axes: { x: "t, place of the query on the line", y: "output along the line" }, aspect: 1.35, narrow: 1.1 });
  const cost = stage.chart({
    x: [LOW, HIGH], y: [FLOOR, 1],
    axes: {
      x: "γ² / ξ²", y: "excess risk of one head",
      xTicks: [[-3, "1/8"], [-2, "1/4"], [-1, "1/2"], [0, "1"], [1, "2"], [2, "4"]], yTicks: [[-4, "10⁻⁴"], [-2, "10⁻²"], [0, "1"]],
    },
    aspect: 2.6, narrow: 2,
  });
  const tokens = chart.line("tokens", "soft fill thin");
  const between = chart.line("gap", "2 fill thin");
  const bayes = chart.line("bayes", "ink thick");
  const part = chart.line("second", "2");
  const head = chart.line("head", "1 dash");
  const sum = chart.line("sum", "out dash");
  const gap = chart.line("gap", "2 thick");
  const point = chart.mark("head", "disc", "1 hollow");
  const names = { bayes: chart.label("bayes", "Bayes"), head: chart.label("head", "", "1"), second: chart.label("second", "", "2"), tokens: chart.label("tokens", "where tokens are", "soft") };
  const valley = cost.line("cost", "1");
  const mine = cost.mark("cost", "disc", "1 hollow");

  stage.handle(chart, {
    part: "bayes", label: "Query t", axes: "x", shape: "diamond", at: () => [stage.state.at, derive(stage.state).bayes],
    move: ([at]) => change({ at }), describe: () => `; Bayes returns ${format(derive(stage.state).bayes)}, the head ${format(derive(stage.state).head)}`,
  });
  const turn = (power) => change({ power, best: true });
  stage.handle(cost, {
    part: "cost", label: "Ratio of variances, as a power of two", axes: "x", look: "1", at: () => [stage.state.power, depth(best(stage.state).excess)],
    move: ([power]) => turn(Math.abs(power) < 0.03 ? 0 : power), describe: () => `; ratio ${format(2 ** stage.state.power)}`,
  });
  stage.choice({ label: "Heads", options: [["one", "one"], ["two", "two"]], get: () => stage.state.heads, set: (heads) => change({ heads }) });
  const now = () => { const { sharpness, scale } = derive(stage.state); return { sharpness, scale, best: false, heads: "one" }; };
  stage.slider({
    label: "output scale of one head", min: 0, max: 1, step: 0.01, get: () => derive(stage.state).scale, set: (scale) => change({ ...now(), scale }),
  });
  stage.slider({
    label: "sharpness of its gate", min: 0.3, max: 6, step: 0.05, get: () => derive(stage.state).sharpness, set: (sharpness) => change({ ...now(), sharpness }),
  });
  const own = (said, scale) =>
    stage.button(said, () => {
      const { asked } = derive(stage.state);
      change(now());
      stage.glide({ sharpness: 1, scale: scale(asked) });
    });
  own("Right jump", ([jump]) => jump);
  own("Right slope", ([, rise]) => rise);
  stage.preset("Where they meet", { power: 0, best: true, heads: "one" });

  stage.note("The one head keeps this line apart from the direction across it. On the line it has two numbers: the sharpness of its gate and the scale of its output.");

  const line = Array.from({ length: 121 }, (_, i) => -HALF + (2 * HALF * i) / 120);
  let costs; // of the best head at each ratio: the same whatever is moved
  const costCurve = () => Array.from({ length: 51 }, (_, i) => LOW + ((HIGH - LOW) * i) / 50)
    .map((power) => [power, depth(bestHead(taskOf({ ...first, power }), first.rule).excess)]);

  return (state, derived) => {
    const task = taskOf(state);
    const two = state.heads === "two";
    const points = (f) => line.map((t) => [t, f(t)]).filter(([, y]) => Math.abs(y) <= TOP);
    const graph = (f) => chart.path(points(f));
    const parts = twoHeadsAlong(task);
    const asked = bayesAlong(task);
    const shown = two ? (t) => parts(t)[1] : headAlong(task, derived.sharpness, derived.scale);
    const bell = (t) => Math.exp(-((t - task.delta) ** 2) / (2 * task.c)) + Math.exp(-((t + task.delta) ** 2) / (2 * task.c));
    tokens.set(chart.path([[-HALF, -TOP], ...line.map((t) => [t, 0.9 * bell(t) - TOP]), [HALF, -TOP]]));
    bayes.set(graph(asked));
    head.set(graph(shown));
    between.set(two ? "" : chart.path([...points(asked), ...line.map((t) => [t, clamp(shown(t), -TOP, TOP)]).reverse()]));
    part.set(two ? graph((t) => parts(t)[0]) : "");
    sum.set(two ? graph((t) => parts(t)[0] + parts(t)[1]) : "");
    const other = clamp(shown(state.at), -TOP, TOP);
    const seen = Math.abs(shown(state.at)) <= TOP;
    point.set([state.at, other], seen ? 6 : 0);
    gap.set(chart.path([[state.at, derived.bayes], [state.at, other]]));
    names.head.textContent = two ? "head with the gate" : "one head";
    names.second.textContent = two ? "head without a gate" : "";
    names.bayes.textContent = two ? "Bayes = their sum" : "Bayes";
    chart.placeLabels([
      [names.head, two ? [-1.5, clamp(shown(-1.5), -TOP, TOP)] : [-3.4, clamp(shown(-3.4), -TOP, TOP)]], [names.bayes, two ? [-3.2, asked(-3.2)] : [3, asked(3)]], [names.second, [-2, parts(-2)[0]]], [names.tokens, [0, -TOP + 0.1]],
    ]);
    costs ??= costCurve();
    valley.set(cost.path(costs));
    mine.set([state.power, depth(derived.excess)], 5);
  };
}

export default figure({ derive, sentence, describe, quantities, build });
