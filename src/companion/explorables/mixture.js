// Population attention on a Gaussian mixture in the plane: the formulas of mixattn.mixture, U = V = I.
// Plain arrays, no DOM: the tests run this file in Node against the Python package.

export function apply(A, v) {
  return [A[0][0] * v[0] + A[0][1] * v[1], A[1][0] * v[0] + A[1][1] * v[1]];
}

export function dot(a, b) {
  return a[0] * b[0] + a[1] * b[1];
}

export function softmax(values) {
  const top = Math.max(...values);
  const masses = values.map((v) => Math.exp(v - top));
  const total = masses.reduce((a, b) => a + b, 0);
  return masses.map((m) => m / total);
}

/** sum_k weights[k] points[k] */
export function average(weights, points) {
  const sum = [0, 0];
  weights.forEach((w, k) => {
    sum[0] += w * points[k][0];
    sum[1] += w * points[k][1];
  });
  return sum;
}

/** log pi_k + m_k.t + t.Gamma_k t / 2, less what all components share (it cancels in the softmax). */
export function logits({ weights, means, covariances }, t) {
  const mean = average(weights, means);
  const quadratic = covariances.map((C) => dot(t, apply(C, t)));
  const shared = quadratic.reduce((sum, q, k) => sum + weights[k] * q, 0);
  return weights.map(
    (w, k) =>
      Math.log(w) + dot([means[k][0] - mean[0], means[k][1] - mean[1]], t) + (quadratic[k] - shared) / 2,
  );
}

export function gates(mixture, t) {
  return softmax(logits(mixture, t));
}

/** What component k alone would answer: m_k + Gamma_k t. */
export function experts({ means, covariances }, t) {
  return means.map((m, k) => {
    const moved = apply(covariances[k], t);
    return [m[0] + moved[0], m[1] + moved[1]];
  });
}

export function attention(mixture, t) {
  return average(gates(mixture, t), experts(mixture, t));
}

/** What component k alone would answer without the softmax: E[X X'] t = (Gamma_k + m_k m_k') t. */
export function linearExperts({ means, covariances }, t) {
  return means.map((m, k) => {
    const [moved, along] = [apply(covariances[k], t), dot(m, t)];
    return [moved[0] + along * m[0], moved[1] + along * m[1]];
  });
}

export function linearAttention(mixture, t) {
  return average(mixture.weights, linearExperts(mixture, t));
}

/** The three parts of log(gate 1 / gate 2): prior, linear, quadratic. */
export function logOdds({ weights, means, covariances }, t) {
  const difference = [means[0][0] - means[1][0], means[0][1] - means[1][1]];
  const quadratic = dot(t, apply(covariances[0], t)) - dot(t, apply(covariances[1], t));
  return [Math.log(weights[0] / weights[1]), dot(difference, t), quadratic / 2];
}

/** log(gate 1 / gate 2) as a function of the point: a quadratic, cheap enough for every pixel. */
export function logOddsField({ weights, means, covariances: [A, B] }) {
  const prior = Math.log(weights[0] / weights[1]);
  const [u, v] = [means[0][0] - means[1][0], means[0][1] - means[1][1]];
  const [a, b, c] = [(A[0][0] - B[0][0]) / 2, A[0][1] - B[0][1], (A[1][1] - B[1][1]) / 2];
  return (x, y) => prior + u * x + v * y + a * x * x + b * x * y + c * y * y;
}

/** Lower triangular square root of a 2 x 2 covariance: [[l, 0], [f, g]]. */
export function cholesky([[a, b], [, c]]) {
  const l = Math.sqrt(a);
  const f = l > 0 ? b / l : 0;
  return [[l, 0], [f, Math.sqrt(Math.max(c - f * f, 0))]];
}
