// The ball on the landscape: the logistic risk over (r, s), w and b at their best, and its gradient flow.
import { flow, lawOnNodes, reduced } from "./logistic.js";

let kept = {}; // the law of the prior that was asked for last
function lawOf({ prior, means, variance, rule }) {
  const key = `${prior} ${means} ${variance}`;
  if (kept.key !== key) kept = { key, law: lawOnNodes({ prior, means, variance }, rule) };
  return kept.law;
}

/** Which family a path ends on: the sigmoid is off (r = 0) or frozen (s = 0). */
const family = ([r, s]) => (Math.abs(r) < Math.abs(s) ? "off" : "frozen");

export function derive(state) {
  const law = lawOf(state);
  const { w, b, excess, gradient } = reduced(law, state.ball);
  const last = flow(law, state.ball).at(-1);
  return { w, b, excess, gradient, end: last.at, time: last.t, left: last.excess, family: family(last.at) };
}
