// A prompt drawn from a mixture, and attention over it (U = V = I). Plain arrays, no DOM.
// The generator is small enough to be written twice: tokens.py draws the same tokens.
import { cholesky, dot, softmax } from "./mixture.js";

/** Marsaglia's xorshift with 32 bits (2003): numbers in (0, 1), the same for the same seed. */
export function uniforms(seed) {
  let x = Math.imul(seed, 0x9e3779b1) ^ 0x5bf03635 || 1;
  const next = () => {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return ((x >>> 0) + 0.5) / 2 ** 32;
  };
  for (let i = 0; i < 8; i++) next(); // neighboring seeds part
  return next;
}

/** The first `length` tokens of the prompt that `seed` names: a longer prompt begins with a shorter one. */
export function tokens({ weights, means, covariances }, length, seed) {
  const next = uniforms(seed);
  const roots = covariances.map(cholesky);
  return Array.from({ length }, () => {
    let u = next();
    let k = 0;
    while (k < weights.length - 1 && u > weights[k]) u -= weights[k++];
    const radius = Math.sqrt(-2 * Math.log(next()));
    const angle = 2 * Math.PI * next();
    const normal = [radius * Math.cos(angle), radius * Math.sin(angle)];
    return [0, 1].map((i) => means[k][i] + dot(roots[k][i], normal));
  });
}

/** Softmax weight of each token for the tilt t. */
export function tokenWeights(prompt, t) {
  return softmax(prompt.map((x) => dot(x, t)));
}

/** How many of the heaviest tokens carry the given part of the weight. */
export function carriers(weights, part) {
  let sum = 0;
  const heaviest = [...weights].sort((a, b) => b - a);
  return 1 + heaviest.findIndex((w) => (sum += w) >= part - 1e-12);
}
