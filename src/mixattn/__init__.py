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
from mixattn.classification.flow import (
    Trajectory,
    gradient_descent,
    gradient_flow,
    online_sgd,
)
from mixattn.classification.krylov import krylov_basis
from mixattn.classification.params import (
    AttentionParams,
    EffectiveParams,
    effective_jacobian,
    effective_params,
    score,
)
from mixattn.classification.risk import (
    excess_risk,
    logistic_risk,
    risk_and_gradient,
    risk_gradient,
    risk_hessian,
)
from mixattn.classification.task import LDATask
from mixattn.denoising.constructions import (
    TwoHeadDenoiser,
    best_affine_denoiser,
    best_linear_denoiser,
    in_context_denoiser,
    one_head_denoiser,
    two_head_denoiser,
)
from mixattn.denoising.gated import AffineDenoiser, GatedMap
from mixattn.denoising.iteration import clustering_fixed_point, iterate_denoiser
from mixattn.denoising.task import DenoisingTask, RiskEstimate
from mixattn.denoising.training import (
    SingleHeadFit,
    best_single_head,
    random_heads,
    train_quasi_newton,
    train_sgd,
)
from mixattn.descent import History, Status
from mixattn.finite_prompt import (
    effective_prompt_length,
    finite_prompt_bias,
    finite_prompt_covariance,
)
from mixattn.mixture import GaussianMixture

__all__ = [
    "AffineDenoiser",
    "AttentionParams",
    "DenoisingTask",
    "EffectiveParams",
    "GatedMap",
    "GaussianMixture",
    "Head",
    "History",
    "LDATask",
    "MultiHead",
    "ResidualMultiHead",
    "RiskEstimate",
    "SingleHeadFit",
    "Status",
    "Trajectory",
    "TwoHeadDenoiser",
    "best_affine_denoiser",
    "best_linear_denoiser",
    "best_single_head",
    "clustering_fixed_point",
    "effective_jacobian",
    "effective_params",
    "effective_prompt_length",
    "excess_risk",
    "finite_prompt_bias",
    "finite_prompt_covariance",
    "gradient_descent",
    "gradient_flow",
    "in_context_denoiser",
    "iterate_denoiser",
    "krylov_basis",
    "linear_attention",
    "logistic_risk",
    "one_head_denoiser",
    "online_sgd",
    "population_attention",
    "population_linear_attention",
    "random_heads",
    "risk_and_gradient",
    "risk_gradient",
    "risk_hessian",
    "score",
    "softmax_attention",
    "train_quasi_newton",
    "train_sgd",
    "two_head_denoiser",
]
