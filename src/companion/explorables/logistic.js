// The logistic risk of the effective parameters (w, b, r, s) on the line, the formulas of mixattn.lda
// in dimension one, with w and b at their best for every (r, s); and the gradient flow of what is left.
// Integrals are sums over the nodes of a rule that Python sends, so both sides compute one sum.

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const sigmoid = (t) => (t > 0 ? 1 / (1 + Math.exp(-t)) : 1 - 1 / (1 + Math.exp(t)));

/** The law of (X, Y) on the nodes: X | Y = +-1 ~ N(means, variance), P(Y = 1) = prior. */
export function lawOnNodes({ prior, means: [plus, minus], variance }, { nodes, weights }) {
  const logit = Math.log(prior / (1 - prior));
  const w = (plus - minus) / variance;
  const b = (minus * minus - plus * plus) / (2 * variance) + logit;
  const density = (x, m) => Math.exp((-(x - m) * (x - m)) / (2 * variance)) / Math.sqrt(2 * Math.PI * variance);
  const mass = nodes.map((x, i) => weights[i] * (prior * density(x, plus) + (1 - prior) * density(x, minus)));
  const bayes = nodes.map((x) => w * x + b);
  return { nodes, mass, bayes, eta: bayes.map(sigmoid), logit, w, b, gate: new Float64Array(nodes.length) };
}

/** Slope and curvature, in (w, b), of the risk along the scores w x + b + r gate; the gates are set. */
function sums({ nodes, mass, eta, gate }, r, w, b) {
  let g0 = 0, g1 = 0, h00 = 0, h01 = 0, h11 = 0;
  for (let i = 0; i < nodes.length; i++) {
    const x = nodes[i];
    const p = sigmoid(w * x + b + r * gate[i]);
    const slope = mass[i] * (p - eta[i]);
    const bend = mass[i] * p * (1 - p);
    g0 += slope * x;
    g1 += slope;
    h00 += bend * x * x;
    h01 += bend * x;
    h11 += bend;
  }
  return [g0, g1, h00, h01, h11];
}

/** Newton's method in (w, b): the risk is convex there, and a step that does not help is halved. */
function bestLine(law, r, [w, b]) {
  let now = sums(law, r, w, b);
  for (let n = 0; n < 40; n++) {
    const [g0, g1, h00, h01, h11] = now;
    const det = h00 * h11 - h01 * h01;
    const dw = (h01 * g1 - h11 * g0) / det;
    const db = (h01 * g0 - h00 * g1) / det;
    const size = Math.hypot(g0, g1);
    let t = 1;
    let next = sums(law, r, w + dw, b + db);
    while (!(Math.hypot(next[0], next[1]) < size) && t > 1e-6) {
      t /= 2;
      next = sums(law, r, w + t * dw, b + t * db);
    }
    if (t <= 1e-6) break; // at the rounding error
    w += t * dw;
    b += t * db;
    now = next;
    if (Math.hypot(now[0], now[1]) < 1e-13) break;
  }
  return [w, b];
}

/** (r, s): the best w and b there, the excess risk they leave, and its gradient in (r, s). */
export function reduced(law, [r, s], guess) {
  const { nodes, mass, bayes, eta, gate, logit } = law;
  for (let i = 0; i < nodes.length; i++) gate[i] = sigmoid(logit + s * nodes[i]);
  // sigmoid(logit + s x) is near its tangent at 0: a start that is right for small s
  const g = sigmoid(logit);
  const [w, b] = bestLine(law, r, guess ?? [law.w - r * s * g * (1 - g), law.b - r * g]);
  let excess = 0, gr = 0, gs = 0;
  for (let i = 0; i < nodes.length; i++) {
    const f = w * nodes[i] + b + r * gate[i];
    const off = f - bayes[i];
    // log(1 + e^f) - log(1 + e^f*) - eta (f - f*), with its digits where f is near f*
    excess += mass[i] * (off < 30 ? Math.log1p(eta[i] * Math.expm1(off)) - eta[i] * off : (1 - eta[i]) * off + Math.log(eta[i]));
    const slope = mass[i] * (sigmoid(f) - eta[i]);
    gr += slope * gate[i];
    gs += slope * r * gate[i] * (1 - gate[i]) * nodes[i];
  }
  // with w and b at their best, their own slopes vanish, and these are all that is left
  return { w, b, excess: Math.max(excess, 0), gradient: [gr, gs] };
}

const FLOOR = 1e-9; // excess risk at which a ball has arrived
const SLIP = 1e-4; // allowed error of a step, in units of r and s
const STRIDE = 0.15; // and its length: a trail is drawn through its points

/**
 * d(r, s)/dt = -gradient, until the excess risk is below the floor: a list of {t, at, excess}.
 * Bogacki and Shampine's pair of orders three and two; the clock is free to run for ages.
 */
export function flow(law, start, floor = FLOOR) {
  let at = [...start];
  let here = reduced(law, at);
  let t = 0;
  let h = 0.1 / (Math.hypot(...here.gradient) + 1e-300);
  const path = [{ t, at, excess: here.excess }];
  const move = (parts) => at.map((x, i) => x - parts.reduce((sum, [c, g]) => sum + h * c * g[i], 0));
  for (let n = 0; n < 2000 && here.excess > floor; n++) {
    const warm = [here.w, here.b];
    const k1 = here.gradient;
    const k2 = reduced(law, move([[1 / 2, k1]]), warm).gradient;
    const k3 = reduced(law, move([[3 / 4, k2]]), warm).gradient;
    const next = move([[2 / 9, k1], [1 / 3, k2], [4 / 9, k3]]);
    const there = reduced(law, next, warm);
    const error = Math.hypot(...k1.map((g, i) => h * (-5 / 72 * g + k2[i] / 12 + k3[i] / 9 - there.gradient[i] / 8)));
    const taken = error < SLIP && there.excess <= here.excess;
    if (taken) {
      t += h;
      at = next;
      here = there;
      path.push({ t, at, excess: here.excess });
    }
    const grow = clamp(0.9 * Math.cbrt(SLIP / (error + 1e-300)), 0.2, 4);
    h = Math.min(h * (taken ? grow : Math.min(grow, 0.5)), STRIDE / Math.hypot(...here.gradient));
  }
  return path;
}
