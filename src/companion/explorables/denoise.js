// Denoising two clusters of equal weight with means +-delta e and covariance gamma^2 I in the plane,
// e the second axis: the Bayes denoiser, heads that try to be it, and its iteration (mixattn.denoising).
// c = gamma^2 + xi^2 is the variance of a noisy cluster, a = xi^2 / c the noise's share of it.

/** Bayes, for one coordinate along e: shrink towards each mean, and average the two. */
export const bayesAlong = ({ delta, c, a }) => (t) => (1 - a) * t + a * delta * Math.tanh((delta * t) / c);

/**
 * One head that keeps the line and the direction across it apart, U = diag(1, sharpness) / c and
 * V = diag(1 - a, scale): across it is Bayes, along e it has two numbers.
 */
export const headAlong = ({ delta, c }, sharpness, scale) => (t) =>
  scale * (sharpness * t + delta * Math.tanh((sharpness * delta * t) / c));

/**
 * The two heads of two_head_denoiser at z = t e. The gate cannot see the first axis n: there head 1
 * reads a copy of t and returns it along e as a straight line; head 2 has the gate.
 */
export const twoHeadsAlong = ({ delta, c, a }) => (t) => [(1 - 2 * a) * t, a * (t + delta * Math.tanh((delta * t) / c))];

/**
 * Excess risk of that head. Only the line adds to it, and there the square of the difference is even:
 * `rule` integrates even functions of t against the law of a noisy token, over t >= 0.
 */
export function headExcess(task, { nodes, weights }, sharpness, scale) {
  const [bayes, head] = [bayesAlong(task), headAlong(task, sharpness, scale)];
  return nodes.reduce((sum, t, i) => sum + weights[i] * (head(t) - bayes(t)) ** 2, 0);
}

/** For a given sharpness the best scale is a projection. */
function bestScale(task, { nodes, weights }, sharpness) {
  const [bayes, unit] = [bayesAlong(task), headAlong(task, sharpness, 1)];
  let [top, bottom] = [0, 0];
  nodes.forEach((t, i) => {
    const f = unit(t);
    top += weights[i] * f * bayes(t);
    bottom += weights[i] * f * f;
  });
  return top / bottom;
}

/** The best of these heads: {sharpness, scale, excess}. A scan for the valley, then golden sections. */
export function bestHead(task, rule, low = 0.3, high = 6) {
  const value = (q) => headExcess(task, rule, Math.exp(q), bestScale(task, rule, Math.exp(q)));
  const [from, to] = [Math.log(low), Math.log(high)];
  const scan = Array.from({ length: 13 }, (_, i) => from + ((to - from) * i) / 12);
  const heights = scan.map(value);
  const k = heights.indexOf(Math.min(...heights));
  let [l, r] = [scan[Math.max(k - 1, 0)], scan[Math.min(k + 1, 12)]];
  const cut = (Math.sqrt(5) - 1) / 2;
  let [m, n] = [r - cut * (r - l), l + cut * (r - l)];
  let [u, v] = [value(m), value(n)];
  while (r - l > 1e-7) {
    if (u < v) [r, n, v, m] = [n, m, u, n - cut * (n - l)], (u = value(m));
    else [l, m, u, n] = [m, n, v, m + cut * (r - m)], (v = value(n));
  }
  const sharpness = Math.exp((l + r) / 2);
  const scale = bestScale(task, rule, sharpness);
  return { sharpness, scale, excess: headExcess(task, rule, sharpness, scale) };
}

/** One step of the iteration, (across, u) -> (across, u): z = across n + u delta e. */
export const step = ({ lambda, a }) => ([across, u]) => [(1 - a) * across, (1 - a) * u + a * Math.tanh(lambda * lambda * u)];

/** Largest solution of u = tanh(lambda^2 u): clustering_fixed_point. */
export function fixedPoint(lambda) {
  if (lambda <= 1) return 0;
  // v = lambda^2 u solves v coth v - 1 = lambda^2 - 1, whose right side has all its digits near 1
  const excess = (lambda - 1) * (lambda + 1);
  if (excess > 400) return 1;
  let v = excess < 1 ? Math.sqrt(3 * excess) : 1 + excess;
  for (let n = 0; n < 8; n++) v -= (langevin(v) - excess) / langevinSlope(v);
  return Math.tanh(v);
}

/** v coth v - 1, by a series of positive terms for small v. */
function langevin(v) {
  if (v > 1) return v / Math.tanh(v) - 1;
  let [term, total] = [(v * v) / 3, 0];
  for (let k = 1; k < 12; k++) {
    total += term;
    term *= (v * v * (k + 1)) / (k * (2 * k + 2) * (2 * k + 3));
  }
  return (total * v) / Math.sinh(v);
}

const langevinSlope = (v) => (v < 1e-2 ? (2 * v) / 3 : v > 20 ? 1 : 1 / Math.tanh(v) - v / Math.sinh(v) ** 2);

const NEAR = 0.01; // arrived: this far from the limit, in units of delta
const LONGEST = 5000;

/** Iterates from a start to its limit: {path, limit, steps}, steps = null where they are too many. */
export function iterate(map, start, delta) {
  const top = fixedPoint(map.lambda);
  const limit = Math.sign(start[1]) * top;
  const next = step(map);
  const path = [start];
  let steps = null;
  for (let n = 0, at = start; n <= LONGEST; n++, at = next(at)) {
    if (n) path.push(at);
    if (Math.hypot(at[0] / delta, at[1] - limit) <= NEAR) {
      steps = n;
      break;
    }
  }
  return { path, limit, steps };
}
