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

/**
 * The best of these heads: {sharpness, scale, excess}. A scan of the sharpness for the valley; then the
 * zero of the slope in it, by false positions (Illinois).
 */
export function bestHead(task, rule, low = 0.3, high = 6) {
  const { delta, c } = task;
  const bayes = bayesAlong(task);
  const slope = (sharpness) => {
    const scale = bestScale(task, rule, sharpness);
    const unit = headAlong(task, sharpness, 1);
    return rule.nodes.reduce((sum, t, i) => {
      const turn = t + ((delta * delta * t) / c) / Math.cosh((sharpness * delta * t) / c) ** 2;
      return sum + rule.weights[i] * (scale * unit(t) - bayes(t)) * scale * turn;
    }, 0);
  };
  const scan = Array.from({ length: 13 }, (_, i) => low * (high / low) ** (i / 12));
  const heights = scan.map((q) => headExcess(task, rule, q, bestScale(task, rule, q)));
  const k = heights.indexOf(Math.min(...heights));
  let [l, r] = [scan[Math.max(k - 1, 0)], scan[Math.min(k + 1, 12)]];
  let [u, v] = [slope(l), slope(r)];
  let sharpness = u * v < 0 ? r : scan[k];
  for (let n = 0; n < 60 && u * v < 0 && l !== r; n++) {
    const next = (l * v - r * u) / (v - u);
    const w = slope(next);
    if (Math.abs(next - sharpness) < 1e-13) break;
    sharpness = next;
    if (w === 0) break;
    if (w * v < 0) [l, u] = [r, v];
    else u /= 2;
    [r, v] = [next, w];
  }
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
export const LONGEST = 5000;

/**
 * Iterates from a start: the first `shown` of them, the limit of u, and the number of steps after which
 * the distance from the limit is 1 % of delta (LONGEST where it takes longer).
 */
export function iterate(map, [across, u], delta, shown) {
  const limit = Math.sign(u) * fixedPoint(map.lambda);
  const next = step(map);
  const path = [];
  let [at, steps] = [[across, u], LONGEST];
  for (let n = 0; n < (steps < LONGEST ? shown : LONGEST); n++) {
    if (n < shown) path.push(at);
    if (steps === LONGEST && Math.hypot(at[0] / delta, at[1] - limit) <= NEAR) steps = n;
    at = next(at);
  }
  return { path, limit, steps };
}
