"""Softmax attention on Gaussian mixtures."""

from mixattn.attention import (
    Head,
    MultiHead,
    ResidualMultiHead,
    linear_attention,
    population_attention,
    population_linear_attention,
    softmax_attention,
)
from mixattn.mixture import GaussianMixture

__all__ = [
    "GaussianMixture",
    "Head",
    "MultiHead",
    "ResidualMultiHead",
    "linear_attention",
    "population_attention",
    "population_linear_attention",
    "softmax_attention",
]
