// A figure for the tests: a chart with a handle on each axis and a clock.
import { figure } from "./stage.js";
import { format } from "./dom.js";

export function derive(state) {
  return { product: state.a * state.b };
}

function build(stage) {
  const { change } = stage;
  const chart = stage.chart({ x: [0, 2], y: [-10, 30], axes: { x: "a", y: "b" } });
  const curve = chart.line("curve", "1");
  const now = chart.mark("time", "disc", "2");
  stage.handle(chart, {
    part: "a", label: "a", shape: "disc", look: "1", axes: "x", step: 0.05,
    at: () => [stage.state.a, 0], move: ([a]) => change({ a }),
  });
  stage.handle(chart, {
    part: "b", label: "b", shape: "square", look: "2", axes: "y", step: 1,
    at: () => [0.1, stage.state.b], move: ([, b]) => change({ b }),
  });
  stage.clock({ label: "Play", seconds: 1, show: (time) => stage.play({ time }) });
  const points = Array.from({ length: 101 }, (_, i) => i / 50);
  return (state) => {
    curve.set(chart.path(points.map((x) => [x, state.b * (x - state.a) ** 2])));
    now.set([2 * state.time, state.b * (2 * state.time - state.a) ** 2]);
  };
}

export default figure({
  derive,
  sentence: (state, derived) => `a times b is ${format(derived.product)} at time ${format(state.time)}.`,
  describe: (state) => `A chart with a at ${format(state.a)} and b at ${format(state.b)}.`,
  build,
});
