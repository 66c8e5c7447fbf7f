// Iterating the Bayes denoiser of two clusters: the plane, the cobweb and the bifurcation diagram.
import { fixedPoint, iterate } from "./denoise.js";

const SHOWN = 25; // iterates that are drawn

/** lambda = |delta| / s and a = xi^2 / s^2 with s^2 = gamma^2 + xi^2, the variance of a noisy cluster. */
function mapOf({ delta, width, noise }) {
  const variance = width * width + noise * noise;
  return { lambda: delta / Math.sqrt(variance), a: (noise * noise) / variance };
}

export function derive(state) {
  const map = mapOf(state);
  const [across, along] = state.start;
  const { path, limit, steps } = iterate(map, [across, along / state.delta], state.delta, SHOWN);
  return { ...map, fixed: fixedPoint(map.lambda), limit, steps, path: path.map(([x, u]) => [x, u * state.delta]) };
}
