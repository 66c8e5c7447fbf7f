"""Linear discriminant analysis by one attention head: the risk and its derivatives (section 3).

A head reads the prompt law of labeled tokens (X, Y) and a query (x, 0); its last output coordinate is

    f(x) = w^T x + b + r sigma(s0 + s^T x),          s0 = log(pi_+ / (1 - pi_+)),

an affine score plus a gate. Everything here is a function of the effective coordinates
(w, b, r, s), pulled back to the head's own coordinates by the chain rule.

Each expectation over a class is one integral over the gate's direction of an expectation of a logistic
function under a one-dimensional Gaussian (`_lda_integrals`), so the number of nodes does not
depend on d, and the only work that does is a product with a Cholesky factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from scipy import special

from mixattn._lda_integrals import RiskIntegrals, mean_divergence, risk_integrals
from mixattn._validation import (
    FloatArray,
    as_array,
    as_covariance,
    as_generator,
    as_integer,
    as_scalar,
    freeze,
)
from mixattn.mixture import GaussianMixture


@dataclass(frozen=True, eq=False, init=False)
class LDATask:
    r"""Two Gaussian classes: P(Y = 1) = pi_+ and X | Y = c ~ N(m_c, Gamma), c in {-1, +1}.

    Parameters
    ----------
    mean_pos, mean_neg : array_like, shape (d,)
        Distinct means of the classes +1 and -1.
    covariance : array_like, shape (d, d)
        Symmetric positive definite, shared by the classes.
    prior_pos : float
        Probability of the class +1, in (0, 1).

    Attributes
    ----------
    cholesky : ndarray, shape (d, d)
        Lower triangular L with L L^T = Gamma.

    Raises
    ------
    ValueError
        If a shape is wrong, an entry is not finite, the means are equal, the covariance is not
        positive definite or the prior is outside (0, 1).

    Examples
    --------
    >>> task = LDATask([1.0, 0.0], [0.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], 0.5)
    >>> w, b = task.bayes_score
    >>> w, b
    (array([ 1., -1.]), 0.0)
    """

    mean_pos: FloatArray
    mean_neg: FloatArray
    covariance: FloatArray
    prior_pos: float
    cholesky: FloatArray

    def __init__(
        self,
        mean_pos: ArrayLike,
        mean_neg: ArrayLike,
        covariance: ArrayLike,
        prior_pos: float,
    ) -> None:
        positive = as_array("mean_pos", mean_pos, ("d",))
        dim = len(positive)
        negative = as_array("mean_neg", mean_neg, (dim,))
        if np.array_equal(positive, negative):
            raise ValueError(f"mean_neg: expected a mean distinct from mean_pos, got {negative}")
        set_field = object.__setattr__
        set_field(self, "mean_pos", freeze(positive))
        set_field(self, "mean_neg", freeze(negative))
        gamma = as_covariance("covariance", covariance, dim, definite=True)
        set_field(self, "covariance", freeze(gamma))
        try:
            set_field(self, "cholesky", freeze(scipy.linalg.cholesky(gamma, lower=True)))
        except scipy.linalg.LinAlgError as error:
            raise ValueError(
                f"covariance: expected a positive definite matrix, got a singular one ({error})"
            ) from error
        set_field(self, "prior_pos", as_scalar("prior_pos", prior_pos, above=0.0, below=1.0))

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.mean_pos)

    @cached_property
    def priors(self) -> FloatArray:
        """Probabilities of the classes +1 and -1, shape (2,)."""
        return freeze(np.array([self.prior_pos, 1 - self.prior_pos]))

    @cached_property
    def mean_difference(self) -> FloatArray:
        """The vector Dm = ``m_1 - m_-1``, shape (d,)."""
        return freeze(self.mean_pos - self.mean_neg)

    @cached_property
    def midpoint(self) -> FloatArray:
        """The vector ``(m_1 + m_-1) / 2``, shape (d,)."""
        return freeze(0.5 * (self.mean_pos + self.mean_neg))

    @cached_property
    def prior_logit(self) -> float:
        """The constant s0 = log(pi_+ / (1 - pi_+))."""
        return self._prior_logit_parts[0]

    @cached_property
    def whitened_difference(self) -> FloatArray:
        """The vector L^-1 Dm = L^T w*, whose norm is the distance between the whitened classes."""
        return freeze(
            scipy.linalg.solve_triangular(self.cholesky, self.mean_difference, lower=True)
        )

    @cached_property
    def whitened_midpoint(self) -> FloatArray:
        """The vector ``L^-1 (m_1 + m_-1) / 2``, shape (d,)."""
        return freeze(scipy.linalg.solve_triangular(self.cholesky, self.midpoint, lower=True))

    @property
    def bayes_score(self) -> tuple[FloatArray, float]:
        """The Bayes score (w*, b*), f*(x) = w*^T x + b* = log odds of Y = 1 (Proposition B.2).

        Correctly rounded, or nearly: see `bayes_gap`.
        """
        (w, _), (b, _) = self._bayes_parts
        return w, b

    def bayes_gap(self, p: EffectiveParams) -> tuple[FloatArray, float]:
        """Return the tangent at s = 0 of the gap f - f*, as (slope, intercept).

        ``w - w* + r sigma'(s0) s`` and ``b - b* + r sigma(s0)``, where sigma(s0) = pi_+. Both vanish on
        the optimal families, so they are summed exactly, with w* and b* carried beyond double
        precision: what is left is the distance of the given floating-point parameters from the
        true optimum.
        """
        check_params(p, self, EffectiveParams, name="p")
        (w, w_tail), (b, b_tail) = self._bayes_parts
        tangent = p.r * self.prior_pos * (1 - self.prior_pos) * p.s
        slope = np.array(
            [math.fsum(terms) for terms in zip(p.w, -w, -w_tail, tangent, strict=True)]
        )
        intercept = math.fsum([p.b, -b, -b_tail, *_exact_product(p.r, self.prior_pos)])
        return slope, intercept

    @cached_property
    def _prior_logit_parts(self) -> tuple[float, float]:
        """The float s0 and what it lacks to log(pi_+ / (1 - pi_+))."""
        prior = Decimal(self.prior_pos)
        with localcontext(prec=40):
            exact = prior.ln() - (1 - prior).ln()
            return float(exact), float(exact - Decimal(float(exact)))

    @cached_property
    def _bayes_parts(self) -> tuple[tuple[FloatArray, FloatArray], tuple[float, float]]:
        """The floats w* and b*, each with what it lacks, by one step of iterative refinement."""
        factor = (self.cholesky, True)
        w = scipy.linalg.cho_solve(factor, self.mean_difference)
        for _ in range(2):
            products, errors = _exact_product(self.covariance, w)
            residual = [
                math.fsum([plus, -minus, *row, *row_errors])
                for plus, minus, row, row_errors in zip(
                    self.mean_pos, self.mean_neg, -products, -errors, strict=True
                )
            ]
            w_tail = scipy.linalg.cho_solve(factor, np.array(residual))
            w, w_tail = w + w_tail, w_tail - ((w + w_tail) - w)
        terms = list(self._prior_logit_parts)
        for mean in (self.mean_pos, self.mean_neg):
            for part in (w, w_tail):
                products, errors = _exact_product(-0.5 * mean, part)
                terms += [*products, *errors]
        b = math.fsum(terms)
        return (freeze(w), freeze(w_tail)), (b, math.fsum([*terms, -b]))

    @cached_property
    def prompt_law(self) -> GaussianMixture:
        """The law of a token (X, Y) in R^(d+1), component 0 the class +1, label last."""
        dim = self.dim
        means = np.array([[*self.mean_pos, 1.0], [*self.mean_neg, -1.0]])
        covariance = np.zeros((dim + 1, dim + 1))
        covariance[:dim, :dim] = self.covariance
        return GaussianMixture([self.prior_pos, 1 - self.prior_pos], means, covariance)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64]]:
        """Draw n independent labeled tokens.

        Returns
        -------
        x : ndarray, shape (n, d)
        y : ndarray of int, shape (n,), entries -1 and +1
        """
        n = as_integer("n", n)
        rng = as_generator(rng)
        positive = rng.random(n) < self.prior_pos
        noise = rng.standard_normal((n, self.dim)) @ self.cholesky.T
        x = np.where(positive[:, None], self.mean_pos, self.mean_neg) + noise
        return x, np.where(positive, 1, -1)


@dataclass(frozen=True, eq=False, init=False)
class EffectiveParams:
    """Effective coordinates (w, b, r, s) of the score w^T x + b + r sigma(s0 + s^T x) (Lemma B.1).

    Parameters
    ----------
    w, s : array_like, shape (d,)
    b, r : float
    """

    w: FloatArray
    b: float
    r: float
    s: FloatArray

    def __init__(self, w: ArrayLike, b: float, r: float, s: ArrayLike) -> None:
        set_field = object.__setattr__
        set_field(self, "w", freeze(as_array("w", w, ("d",))))
        set_field(self, "b", as_scalar("b", b))
        set_field(self, "r", as_scalar("r", r))
        set_field(self, "s", freeze(as_array("s", s, (len(self.w),))))

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.w)

    def to_vector(self) -> FloatArray:
        """Return (w, b, r, s) as one vector of shape (2d + 2,)."""
        return np.concatenate([self.w, [self.b, self.r], self.s])

    @classmethod
    def from_vector(cls, v: ArrayLike, d: int) -> EffectiveParams:
        """Inverse of `to_vector` in dimension d."""
        d = as_integer("d", d, at_least=1)
        vector = as_array("v", v, (2 * d + 2,))
        return cls(vector[:d], float(vector[d]), float(vector[d + 1]), vector[d + 2 :])


@dataclass(frozen=True, eq=False, init=False)
class AttentionParams:
    """The blocks (U11, u12, v21, v22) of a head (U, V) on R^(d+1) that its score depends on.

    As in the paper, U11 and u12 are blocks of U **transposed**:
    ``U^T = [[U11, u12], [u21^T, u22]]`` and ``V = [[V11, v12], [v21^T, v22]]``.

    Parameters
    ----------
    U11 : array_like, shape (d, d)
    u12, v21 : array_like, shape (d,)
    v22 : float
    """

    U11: FloatArray
    u12: FloatArray
    v21: FloatArray
    v22: float

    def __init__(self, U11: ArrayLike, u12: ArrayLike, v21: ArrayLike, v22: float) -> None:
        set_field = object.__setattr__
        set_field(self, "u12", freeze(as_array("u12", u12, ("d",))))
        set_field(self, "U11", freeze(as_array("U11", U11, (self.dim, self.dim))))
        set_field(self, "v21", freeze(as_array("v21", v21, (self.dim,))))
        set_field(self, "v22", as_scalar("v22", v22))

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.u12)

    def to_vector(self) -> FloatArray:
        """Return (U11 row by row, u12, v21, v22) as one vector of shape (d^2 + 2d + 1,)."""
        return np.concatenate([self.U11.ravel(), self.u12, self.v21, [self.v22]])

    @classmethod
    def from_vector(cls, v: ArrayLike, d: int) -> AttentionParams:
        """Inverse of `to_vector` in dimension d."""
        d = as_integer("d", d, at_least=1)
        vector = as_array("v", v, (d * d + 2 * d + 1,))
        U11, u12, v21, _ = _attention_slices(d)
        return cls(vector[U11].reshape(d, d), vector[u12], vector[v21], float(vector[-1]))

    def to_matrices(self) -> tuple[FloatArray, FloatArray]:
        """Return the head's matrices (U, V), both (d+1, d+1), with every free block zero.

        The last coordinate of the head's output at the query (x, 0) is the score at x.
        """
        d = self.dim
        U, V = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
        U[:d, :d] = self.U11.T
        U[d, :d] = self.u12
        V[d, :d] = self.v21
        V[d, d] = self.v22
        return U, V


def _exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded product and its rounding error, which is a float too (Dekker, Veltkamp)."""
    product = a * b
    a_high = a * 134217729.0 - (a * 134217729.0 - a)
    b_high = b * 134217729.0 - (b * 134217729.0 - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


Params = TypeVar("Params", AttentionParams, EffectiveParams)


def effective_params(theta: AttentionParams, task: LDATask) -> EffectiveParams:
    r"""Map a head to its effective coordinates, (w, b, r, s) = Phi(theta) (Lemma B.1).

    .. math::
        w = U_{11} \Gamma v_{21}, \quad b = v_{21}^\top m_{-1} - v_{22}, \quad
        r = v_{21}^\top \Delta m + 2 v_{22}, \quad s = 2 u_{12} + U_{11} \Delta m.
    """
    check_params(theta, task, AttentionParams)
    return EffectiveParams(
        theta.U11 @ (task.covariance @ theta.v21),
        float(theta.v21 @ task.mean_neg) - theta.v22,
        float(theta.v21 @ task.mean_difference) + 2 * theta.v22,
        2 * theta.u12 + theta.U11 @ task.mean_difference,
    )


def effective_jacobian(theta: AttentionParams, task: LDATask) -> FloatArray:
    """Return DPhi(theta), shape (2d + 2, d^2 + 2d + 1), in `to_vector` order on both sides (Lemma B.14).

    By Lemma 3.2 its rank is 2d + 2 if and only if ``m_1 != -m_-1`` and ``v21 != 0``.
    """
    check_params(theta, task, AttentionParams)
    d = task.dim
    eye = np.eye(d)
    jacobian = np.zeros((2 * d + 2, d * d + 2 * d + 1))
    U11, u12, v21, v22 = _attention_slices(d)
    w, b, r, s = _effective_slices(d)
    jacobian[w, U11] = np.kron(eye, task.covariance @ theta.v21)
    jacobian[w, v21] = theta.U11 @ task.covariance
    jacobian[b, v21] = task.mean_neg
    jacobian[b, v22] = -1.0
    jacobian[r, v21] = task.mean_difference
    jacobian[r, v22] = 2.0
    jacobian[s, U11] = np.kron(eye, task.mean_difference)
    jacobian[s, u12] = 2 * eye
    return jacobian


@np.errstate(under="ignore")
def score(params: AttentionParams | EffectiveParams, task: LDATask, x: ArrayLike) -> FloatArray:
    """Return the score f(x) = w^T x + b + r sigma(s0 + s^T x) at points x of shape (..., d)."""
    p = _as_effective(params, task)
    points = as_array("x", x, (None, task.dim))
    gate = special.expit(task.prior_logit + points @ p.s)
    values: FloatArray = points @ p.w + p.b + p.r * gate
    return values


@np.errstate(under="ignore")
def logistic_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    """Return the population logistic risk E log(1 + exp(-Y f(X)))."""
    integrals = risk_integrals(_as_effective(params, task), task, order=0)
    return integrals.scalar(0, np.ones_like(integrals.position))


@np.errstate(under="ignore")
def excess_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Return R(f) - R(f*) as the expected divergence between the posteriors.

    .. math::
        R(f) - R(f^*) = \mathbb E\, \mathrm{KL}\big(\mathrm{Ber}(\sigma(f^*(X))) \,\|\, \mathrm{Ber}(\sigma(f(X)))\big)

    Never a difference of two risks: every term is nonnegative and accurate relative to itself, so
    the value is too, however small (Lemma B.4 gives its sign). Attention parameters are first
    mapped to effective ones in floating point, which perturbs the score by rounding.
    """
    return mean_divergence(_as_effective(params, task), task)


def risk_gradient(params: Params, task: LDATask) -> Params:
    """Return the gradient of `logistic_risk`, as an object of the same type as `params`.

    In effective coordinates it is E[(sigma(f) - 1{Y = 1}) Df] (Lemmas B.7 and B.9), summed class by class:
    two-dimensional integrals, where the equal E[(sigma(f) - eta) Df] needs a third variable for eta. In
    attention coordinates it is the pullback DPhi^T of that (Lemmas B.10 and B.15). It costs
    O(d^2 + nodes).
    """
    return risk_and_gradient(params, task)[1]


@np.errstate(under="ignore")
def risk_and_gradient(params: Params, task: LDATask) -> tuple[float, Params]:
    """Return `logistic_risk` and `risk_gradient` from the same nodes, for the price of the latter."""
    p = _as_effective(params, task)
    integrals = risk_integrals(p, task, order=1)
    risk = integrals.scalar(0, np.ones_like(integrals.position))
    gradient = _gradient(integrals, p.r)
    if isinstance(params, EffectiveParams):
        return risk, gradient
    return risk, pull_back(gradient, params, task)


def pull_back(gradient: EffectiveParams, theta: AttentionParams, task: LDATask) -> AttentionParams:
    r"""Return DPhi(theta)^T applied to an effective gradient, in O(d^2) (Lemmas B.10 and B.15).

    .. math::
        dU_{11} = g_w (\Gamma v_{21})^\top + g_s \Delta m^\top, \quad du_{12} = 2 g_s, \quad
        dv_{21} = \Gamma U_{11}^\top g_w + g_b m_{-1} + g_r \Delta m, \quad dv_{22} = -g_b + 2 g_r.
    """
    return AttentionParams(
        np.outer(gradient.w, task.covariance @ theta.v21)
        + np.outer(gradient.s, task.mean_difference),
        2 * gradient.s,
        task.covariance @ (theta.U11.T @ gradient.w)
        + gradient.b * task.mean_neg
        + gradient.r * task.mean_difference,
        2 * gradient.r - gradient.b,
    )


@np.errstate(under="ignore")
def risk_hessian(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """Return the Hessian of `logistic_risk` in `to_vector` order (Lemma B.11), exactly symmetric.

    Shape (2d + 2, 2d + 2) in effective coordinates, (d^2 + 2d + 1,) * 2 in attention coordinates.
    """
    p = _as_effective(params, task)
    integrals = risk_integrals(p, task, order=2)
    hessian = _hessian(integrals, p.r)
    if isinstance(params, EffectiveParams):
        return hessian
    jacobian = effective_jacobian(params, task)
    pulled_back: FloatArray = jacobian.T @ hessian @ jacobian
    # Phi is linear but for w = U11 Gamma v21, which is bilinear
    U11, _, v21, _ = _attention_slices(task.dim)
    bilinear = np.kron(_gradient(integrals, p.r).w[:, None], task.covariance)
    pulled_back[U11, v21] += bilinear
    pulled_back[v21, U11] += bilinear.T
    return 0.5 * (pulled_back + pulled_back.T)


def _attention_slices(d: int) -> tuple[slice, slice, slice, slice]:
    """Return where U11, u12, v21, v22 sit in a vector."""
    ends = (0, d * d, d * d + d, d * d + 2 * d, d * d + 2 * d + 1)
    U11, u12, v21, v22 = map(slice, ends[:-1], ends[1:])
    return U11, u12, v21, v22


def _effective_slices(d: int) -> tuple[slice, int, int, slice]:
    """Return where w, b, r, s sit in a vector."""
    return slice(0, d), d, d + 1, slice(d + 2, 2 * d + 2)


def as_lda_task(task: object) -> LDATask:
    """Return `task` if it is a classification task; anything else is refused by name."""
    if not isinstance(task, LDATask):
        raise ValueError(f"task: expected an LDATask, got {type(task).__name__}")
    return task


def check_params(params: object, task: object, *kinds: type, name: str = "params") -> None:
    """Raise ValueError unless `params` is of one of the kinds, `task` is a task, and dimensions match."""
    dim = as_lda_task(task).dim
    if not isinstance(params, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{name}: expected {expected}, got {type(params).__name__}")
    if params.dim != dim:  # type: ignore[attr-defined]
        raise ValueError(f"{name}: expected the task's dimension {dim}, got {params.dim}")  # type: ignore[attr-defined]


def _as_effective(params: AttentionParams | EffectiveParams, task: LDATask) -> EffectiveParams:
    check_params(params, task, AttentionParams, EffectiveParams)
    return effective_params(params, task) if isinstance(params, AttentionParams) else params


def _gradient(integrals: RiskIntegrals, r: float) -> EffectiveParams:
    """E[l'(f) Df] with Df = (x, 1, sigma(v), r sigma'(v) x), v = s0 + s^T x."""
    gate, slope = integrals.gate[1:3]
    one = np.ones_like(gate)
    return EffectiveParams(
        integrals.vector(1, one),
        integrals.scalar(1, one),
        integrals.scalar(1, gate),
        r * integrals.vector(1, slope),
    )


def _hessian(integrals: RiskIntegrals, r: float) -> FloatArray:
    """E[l''(f) Df Df^T + l'(f) D2f] with Df as in `_gradient`."""
    gate, slope, curvature = integrals.gate[1:]
    one = np.ones_like(gate)
    d = integrals.frame.shape[-1]
    w, b, r_, s = _effective_slices(d)
    hessian = np.empty((2 * d + 2, 2 * d + 2))
    hessian[w, w] = integrals.matrix(2, one)
    hessian[w, b] = integrals.vector(2, one)
    hessian[w, r_] = integrals.vector(2, gate)
    hessian[w, s] = r * integrals.matrix(2, slope)
    hessian[b, b] = integrals.scalar(2, one)
    hessian[b, r_] = integrals.scalar(2, gate)
    hessian[b, s] = r * integrals.vector(2, slope)
    hessian[r_, r_] = integrals.scalar(2, gate**2)
    hessian[r_, s] = r * integrals.vector(2, gate * slope) + integrals.vector(1, slope)
    hessian[s, s] = r**2 * integrals.matrix(2, slope**2) + r * integrals.matrix(1, curvature)
    upper = np.triu(hessian)
    return upper + np.triu(hessian, 1).T
