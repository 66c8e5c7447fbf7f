"""Denoising with softmax attention (section 4 of the paper): tasks, denoisers, training."""

from mixattn.denoiser_constructions import (
    TwoHeadDenoiser,
    best_affine_denoiser,
    best_linear_denoiser,
    in_context_denoiser,
    one_head_denoiser,
    two_head_denoiser,
)
from mixattn.denoiser_dynamics import clustering_fixed_point, iterate_denoiser
from mixattn.denoiser_training import (
    DenoiserTraining,
    SingleHeadFit,
    best_single_head,
    excess_risk_gradient,
    random_heads,
    train_quasi_newton,
    train_sgd,
)
from mixattn.denoising_task import AffineDenoiser, DenoisingTask, RiskEstimate

__all__ = [
    "AffineDenoiser",
    "DenoiserTraining",
    "DenoisingTask",
    "RiskEstimate",
    "SingleHeadFit",
    "TwoHeadDenoiser",
    "best_affine_denoiser",
    "best_linear_denoiser",
    "best_single_head",
    "clustering_fixed_point",
    "excess_risk_gradient",
    "in_context_denoiser",
    "iterate_denoiser",
    "one_head_denoiser",
    "random_heads",
    "train_quasi_newton",
    "train_sgd",
    "two_head_denoiser",
]
