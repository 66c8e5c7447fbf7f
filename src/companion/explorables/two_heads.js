// One head against Bayes along the line between two means, and the two heads that are Bayes together.
import { bayesAlong, bestHead, headAlong, headExcess, twoHeadsAlong } from "./denoise.js";

/** delta, c = gamma^2 + xi^2 and a = xi^2 / c of a state, whose ratio is gamma^2 / xi^2. */
export const taskOf = ({ delta, variance, ratio }) => ({ delta, c: variance, a: 1 / (1 + ratio) });

export function derive(state) {
  const task = taskOf(state);
  const own = { sharpness: state.sharpness, scale: state.scale };
  const { sharpness, scale } = state.best ? bestHead(task, state.rule) : own;
  return {
    sharpness,
    scale,
    slope: sharpness * scale,
    asked: { sharpness: 1, scale: task.a, slope: 1 - task.a },
    bayes: bayesAlong(task)(state.at),
    head: headAlong(task, sharpness, scale)(state.at),
    parts: twoHeadsAlong(task)(state.at),
    excess: headExcess(task, state.rule, sharpness, scale),
  };
}
