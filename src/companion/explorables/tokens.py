"""The prompts of the live figures: the same tokens as in the browser (``tokens.js``)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mixattn import GaussianMixture

_BITS = 0xFFFFFFFF


def uniforms(seed: int) -> Iterator[float]:
    """Yield numbers in (0, 1): Marsaglia's xorshift with 32 bits (2003)."""
    x = (((seed * 0x9E3779B1) & _BITS) ^ 0x5BF03635) or 1
    for count in range(-8, 1 << 31):
        x ^= (x << 13) & _BITS
        x ^= x >> 17
        x ^= (x << 5) & _BITS
        if count >= 0:
            yield (x + 0.5) / 2**32


def tokens(mixture: GaussianMixture, length: int, seed: int) -> np.ndarray:
    """Return the first `length` tokens of the prompt that `seed` names, shape (length, 2)."""
    numbers = uniforms(seed)
    roots = [np.linalg.cholesky(covariance) for covariance in mixture.covariances]
    prompt = []
    for _ in range(length):
        u, k = next(numbers), 0
        while k < mixture.n_components - 1 and u > mixture.weights[k]:
            u -= mixture.weights[k]
            k += 1
        radius = math.sqrt(-2 * math.log(next(numbers)))
        angle = 2 * math.pi * next(numbers)
        normal = np.array([radius * math.cos(angle), radius * math.sin(angle)])
        prompt.append(mixture.means[k] + roots[k] @ normal)
    return np.array(prompt)
