"""The classification task of section 3 and the two parametrizations of its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from mixattn._checks import (
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
        U11, u12, v21, _ = attention_slices(d)
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


Params = TypeVar("Params", AttentionParams, EffectiveParams)


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


def attention_slices(d: int) -> tuple[slice, slice, slice, slice]:
    """Return where U11, u12, v21, v22 sit in a vector."""
    ends = (0, d * d, d * d + d, d * d + 2 * d, d * d + 2 * d + 1)
    U11, u12, v21, v22 = map(slice, ends[:-1], ends[1:])
    return U11, u12, v21, v22


def _exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded product and its rounding error, which is a float too (Dekker, Veltkamp)."""
    product = a * b
    a_high = a * 134217729.0 - (a * 134217729.0 - a)
    b_high = b * 134217729.0 - (b * 134217729.0 - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
