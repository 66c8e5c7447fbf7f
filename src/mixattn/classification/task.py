"""The classification task of section 3."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from mixattn._checks import (
    EQUALITY_RTOL,
    FloatArray,
    Frozen,
    as_array,
    as_covariance,
    as_generator,
    as_integer,
    as_scalar,
    frozen,
)
from mixattn.classification import _exact
from mixattn.mixture import GaussianMixture

# In standard deviations: beyond, squares come near the largest float.
FARTHEST_MEAN = 1e100


@dataclass(frozen=True, eq=False, init=False)
class LDATask(Frozen):
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
        If a shape is wrong, an entry is not finite, the means are equal or beyond 1e100 standard
        deviations, the covariance is not positive definite or the prior is outside (0, 1).

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
        gamma = as_covariance("covariance", covariance, dim, definite=True)
        try:
            cholesky = scipy.linalg.cholesky(gamma, lower=True)
        except scipy.linalg.LinAlgError as error:
            raise ValueError(
                f"covariance: expected a positive definite matrix, got a singular one ({error})"
            ) from error
        for name, mean in (("mean_pos", positive), ("mean_neg", negative)):
            with np.errstate(over="ignore", invalid="ignore"):
                whitened = scipy.linalg.solve_triangular(cholesky, mean, lower=True)
            if not (np.abs(whitened) <= FARTHEST_MEAN).all():
                raise ValueError(
                    f"{name}: expected a mean within {FARTHEST_MEAN:g} standard deviations of 0, "
                    f"got {mean}"
                )
        self._set(
            mean_pos=positive,
            mean_neg=negative,
            covariance=gamma,
            prior_pos=as_scalar("prior_pos", prior_pos, above=0.0, below=1.0),
            cholesky=cholesky,
        )

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.mean_pos)

    @property
    def has_opposite_means(self) -> bool:
        """Whether ``m_1 = -m_-1`` within a relative 1e-9: Phi is then singular everywhere."""
        scale = np.linalg.norm(self.mean_pos) + np.linalg.norm(self.mean_neg)
        return bool(np.linalg.norm(self.mean_pos + self.mean_neg) <= EQUALITY_RTOL * scale)

    @property
    def has_equal_priors(self) -> bool:
        """Whether ``pi_+ = 1/2`` within a relative 1e-9."""
        return abs(2 * self.prior_pos - 1) <= EQUALITY_RTOL

    @cached_property
    def priors(self) -> FloatArray:
        """Probabilities of the classes +1 and -1, shape (2,)."""
        return frozen(np.array([self.prior_pos, 1 - self.prior_pos]))

    @cached_property
    def mean_difference(self) -> FloatArray:
        """The vector Dm = ``m_1 - m_-1``, shape (d,)."""
        return frozen(self.mean_pos - self.mean_neg)

    @cached_property
    def midpoint(self) -> FloatArray:
        """The vector ``(m_1 + m_-1) / 2``, shape (d,)."""
        return frozen(0.5 * (self.mean_pos + self.mean_neg))

    @cached_property
    def prior_logit(self) -> float:
        """The constant s0 = log(pi_+ / (1 - pi_+))."""
        return self.prior_logit_pair[0]

    @cached_property
    def prior_logit_pair(self) -> _exact.Pair:
        """The float s0 and what it lacks to log(pi_+ / (1 - pi_+))."""
        return _exact.logit(self.prior_pos)

    @cached_property
    def whitened_difference(self) -> FloatArray:
        """The vector L^-1 Dm = L^T w*, whose norm is the distance between the whitened classes."""
        return frozen(
            scipy.linalg.solve_triangular(self.cholesky, self.mean_difference, lower=True)
        )

    @cached_property
    def whitened_midpoint(self) -> FloatArray:
        """The vector ``L^-1 (m_1 + m_-1) / 2``, shape (d,)."""
        return frozen(scipy.linalg.solve_triangular(self.cholesky, self.midpoint, lower=True))

    @property
    def bayes_score(self) -> tuple[FloatArray, float]:
        """The Bayes score (w*, b*), f*(x) = w*^T x + b* = log odds of Y = 1 (Proposition B.2).

        Correctly rounded, or nearly.
        """
        return self.bayes_slope_pair[0], self._bayes_intercept

    @cached_property
    def bayes_slope_pair(self) -> tuple[FloatArray, FloatArray]:
        """The floats w* and what they lack, by two steps of iterative refinement."""
        # in units of a power of two in which no product overflows
        unit = 2.0 ** round(0.5 * math.log2(self.covariance.max()))
        gamma, factor = self.covariance / unit / unit, (self.cholesky / unit, True)
        means = np.stack([self.mean_pos, -self.mean_neg], axis=1) / unit
        w, tail = np.zeros(self.dim), np.zeros(self.dim)
        for _ in range(3):
            w, tail = w + tail, tail - ((w + tail) - w)
            rows = (means.tolist(), _exact.dot_terms(gamma, -w), _exact.dot_terms(gamma, -tail))
            residual = [math.fsum(itertools.chain(*terms)) for terms in zip(*rows, strict=True)]
            tail = tail + scipy.linalg.cho_solve(factor, np.array(residual))
        w, tail = w + tail, tail - ((w + tail) - w)
        return frozen((w / unit, tail / unit))

    @cached_property
    def separation(self) -> _exact.Pair:
        """The squared distance of the whitened means, w*^T Dm, as a float and what it lacks."""
        products = [
            _exact.dot_terms(sign * mean, w)
            for sign, mean in ((1, self.mean_pos), (-1, self.mean_neg))
            for w in self.bayes_slope_pair
        ]
        return _exact.pair_sum(itertools.chain(*products))

    @cached_property
    def _bayes_intercept(self) -> float:
        products = [
            _exact.dot_terms(-0.5 * mean, w)
            for mean in (self.mean_pos, self.mean_neg)
            for w in self.bayes_slope_pair
        ]
        return math.fsum(itertools.chain(self.prior_logit_pair, *products))

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

        Parameters
        ----------
        n : int
            At least 0.
        rng : numpy.random.Generator

        Returns
        -------
        x : ndarray, shape (n, d)
        y : ndarray of int, shape (n,), entries -1 and +1

        Raises
        ------
        ValueError
            If an argument is not as above.
        """
        n = as_integer("n", n)
        rng = as_generator(rng)
        positive = rng.random(n) < self.prior_pos
        noise = rng.standard_normal((n, self.dim)) @ self.cholesky.T
        x = np.where(positive[:, None], self.mean_pos, self.mean_neg) + noise
        return x, np.where(positive, 1, -1)


def as_lda_task(task: object) -> LDATask:
    """Return `task` if it is a classification task; anything else is refused by name."""
    if not isinstance(task, LDATask):
        raise ValueError(f"task: expected an LDATask, got {type(task).__name__}")
    return task
