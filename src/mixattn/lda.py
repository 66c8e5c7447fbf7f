"""Linear discriminant analysis by one attention head: the risk and its derivatives (section 3).

A head reads the prompt law of labeled tokens (X, Y) and a query (x, 0); its last output coordinate is

    f(x) = w^T x + b + r sigma(s0 + s^T x),          s0 = log(pi_+ / (1 - pi_+)),

an affine score plus a gate. Everything here is a function of the effective coordinates
(w, b, r, s), pulled back to the head's own coordinates by the chain rule.

How the integrals are done. Under class c, x = m_c + L z with L L^T = Gamma and z ~ N(0, I). Split z along
the gate, z = z1 e1 + (rest) with e1 parallel to L^T s; then f = A(z1) + (component of L^T w orthogonal
to e1)^T z, whose second term is Gaussian with standard deviation tau. So each expectation is one
integral over z1 of an expectation of softplus, sigma or a derivative of sigma under N(A(z1), tau^2), which
`logistic_normal` gives to rounding. Factors of x in the integrand become derivatives by Stein's
identity. The number of nodes does not depend on d, and the only work that does is a product with L.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from scipy import special

from mixattn import quadrature
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
        set_field(self, "prior_pos", as_scalar("prior_pos", prior_pos, above=0.0, below=1.0))

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.mean_pos)

    @cached_property
    def mean_difference(self) -> FloatArray:
        """The vector Dm = m_1 - m_-1, shape (d,)."""
        return freeze(self.mean_pos - self.mean_neg)

    @cached_property
    def prior_logit(self) -> float:
        """The constant s0 = log(pi_+ / (1 - pi_+))."""
        return float(special.logit(self.prior_pos))

    @cached_property
    def cholesky(self) -> FloatArray:
        """Lower triangular L with L L^T = Gamma, shape (d, d)."""
        return freeze(np.linalg.cholesky(self.covariance))

    @cached_property
    def bayes_score(self) -> tuple[FloatArray, float]:
        """The Bayes score (w*, b*), f*(x) = w*^T x + b* = log odds of Y = 1 (Proposition B.2)."""
        w = scipy.linalg.cho_solve((self.cholesky, True), self.mean_difference)
        # the midpoint form of b* subtracts no two large quadratic forms
        midpoint = 0.5 * (self.mean_pos + self.mean_neg)
        return freeze(w), self.prior_logit - float(midpoint @ w)

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

    def _classes(self) -> Iterator[tuple[int, float, FloatArray]]:
        """Yield (label, prior, mean) of each class."""
        yield 1, self.prior_pos, self.mean_pos
        yield -1, 1 - self.prior_pos, self.mean_neg


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
        U11, u12, v21, v22 = np.split(vector, np.cumsum([d * d, d, d]))
        return cls(U11.reshape(d, d), u12, v21, float(v22[0]))

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


def effective_params(theta: AttentionParams, task: LDATask) -> EffectiveParams:
    r"""Map a head to its effective coordinates, (w, b, r, s) = Phi(theta) (Lemma B.1).

    .. math::
        w = U_{11} \Gamma v_{21}, \quad b = v_{21}^\top m_{-1} - v_{22}, \quad
        r = v_{21}^\top \Delta m + 2 v_{22}, \quad s = 2 u_{12} + U_{11} \Delta m.
    """
    _check(theta, task, AttentionParams)
    return EffectiveParams(
        theta.U11 @ (task.covariance @ theta.v21),
        float(theta.v21 @ task.mean_neg) - theta.v22,
        float(theta.v21 @ task.mean_difference) + 2 * theta.v22,
        2 * theta.u12 + theta.U11 @ task.mean_difference,
    )


def effective_jacobian(theta: AttentionParams, task: LDATask) -> FloatArray:
    """Return DPhi(theta), shape (2d + 2, d^2 + 2d + 1), in `to_vector` order on both sides (Lemma B.14).

    By Lemma 3.2 its rank is 2d + 2 if and only if m_1 != -m_-1 and v21 != 0.
    """
    _check(theta, task, AttentionParams)
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


def score(params: AttentionParams | EffectiveParams, task: LDATask, x: ArrayLike) -> FloatArray:
    """Return the score f(x) = w^T x + b + r sigma(s0 + s^T x) at points x of shape (..., d)."""
    p = _as_effective(params, task)
    points = as_array("x", x, (None, task.dim))
    gate = special.expit(task.prior_logit + points @ p.s)
    values: FloatArray = points @ p.w + p.b + p.r * gate
    return values


def logistic_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    """Return the population logistic risk E log(1 + exp(-Y f(X)))."""
    return sum(float(c.weights @ c.expected[0]) for c in _class_integrals(params, task, order=0))


def risk_gradient(params: Params, task: LDATask) -> Params:
    """Return the gradient of `logistic_risk`, as an object of the same type as `params`.

    In effective coordinates it is E[(sigma(f) - 1{Y = 1}) Df] (Lemmas B.7 and B.9); in attention
    coordinates its pullback DPhi^T (Lemmas B.10 and B.15), at a cost of O(d^2 + nodes).
    """
    gradient = _effective_gradient(params, task)
    if isinstance(params, EffectiveParams):
        return gradient
    return AttentionParams(
        np.outer(gradient.w, task.covariance @ params.v21)
        + np.outer(gradient.s, task.mean_difference),
        2 * gradient.s,
        task.covariance @ (params.U11.T @ gradient.w)
        + gradient.b * task.mean_neg
        + gradient.r * task.mean_difference,
        2 * gradient.r - gradient.b,
    )


def risk_hessian(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """Return the Hessian of `logistic_risk` in `to_vector` order (Lemma B.11), exactly symmetric.

    Shape (2d + 2, 2d + 2) in effective coordinates, (d^2 + 2d + 1,) * 2 in attention coordinates.
    """
    hessian = _effective_hessian(params, task)
    if isinstance(params, EffectiveParams):
        return hessian
    jacobian = effective_jacobian(params, task)
    pulled_back: FloatArray = jacobian.T @ hessian @ jacobian
    # Phi is linear but for w = U11 Gamma v21, which is bilinear
    U11, _, v21, _ = _attention_slices(task.dim)
    bilinear = np.kron(_effective_gradient(params, task).w[:, None], task.covariance)
    pulled_back[U11, v21] += bilinear
    pulled_back[v21, U11] += bilinear.T
    return 0.5 * (pulled_back + pulled_back.T)


def _attention_slices(d: int) -> tuple[slice, slice, slice, slice]:
    """Return where U11, u12, v21, v22 sit in a vector."""
    ends = np.cumsum([0, d * d, d, d, 1])
    u, v, w, x = (slice(int(a), int(b)) for a, b in zip(ends, ends[1:], strict=False))
    return u, v, w, x


def _effective_slices(d: int) -> tuple[slice, int, int, slice]:
    """Return where w, b, r, s sit in a vector."""
    return slice(0, d), d, d + 1, slice(d + 2, 2 * d + 2)


def _check(params: object, task: object, *kinds: type) -> None:
    """Raise ValueError unless `params` is of one of the kinds, `task` is a task, and dimensions match."""
    if not isinstance(task, LDATask):
        raise ValueError(f"task: expected an LDATask, got {type(task).__name__}")
    if not isinstance(params, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"params: expected {expected}, got {type(params).__name__}")
    dim = params.dim  # type: ignore[attr-defined]
    if dim != task.dim:
        raise ValueError(f"params: expected the task's dimension {task.dim}, got {dim}")


def _as_effective(params: AttentionParams | EffectiveParams, task: LDATask) -> EffectiveParams:
    _check(params, task, AttentionParams, EffectiveParams)
    return effective_params(params, task) if isinstance(params, AttentionParams) else params


# Panels of the outer rule: the error bound of `quadrature.graded_panels` is RATE^(-2 * 18) = 2e-19
# times the growth of the integrand off the real axis, exp((1.5 * 3)^2 / 2) = 2.5e4 at most for the density.
PANEL_NODES = 18
LONGEST_PANEL = 3.0
# keep the integrand's poles a little outside the discs
MARGIN = 0.9
# N(0, 1) has no mass in double precision beyond this, wherever an integrand's bulk may be
UNDERFLOW = 38.5
# parts of the line where the integrand is below exp(-BULK) of its peak are left out
BULK = 42.0


@dataclass(frozen=True, eq=False)
class _ClassIntegral:
    """The outer nodes of one class and the inner expectations there.

    ``expected[k]`` is E[l^(k)(f) | z1], l(f) = log(1 + exp(-y f)), so that l' = sigma(f) - 1{y = 1}. The
    moments below are E[h(z1) l^(k)(f) x ... x; Y = y] for x-degrees 0, 1 and 2: x = mean + L z, the
    component of z along the gate is integrated by the nodes and the others by Stein's identity, where
    `along` = L e1 and `across` = L (I - e1 e1^T) L^T w.
    """

    weights: FloatArray
    z: FloatArray
    gate: FloatArray
    expected: FloatArray
    mean: FloatArray
    along: FloatArray
    across: FloatArray
    covariance: FloatArray

    def scalar(self, k: int, h: FloatArray) -> float:
        return float((self.weights * h) @ self.expected[k])

    def vector(self, k: int, h: FloatArray) -> FloatArray:
        weighted = self.weights * h
        return self.mean * (weighted @ self.expected[k]) + self._centered(k, weighted)

    def _centered(self, k: int, weighted: FloatArray) -> FloatArray:
        centered: FloatArray = self.along * (
            (weighted * self.z) @ self.expected[k]
        ) + self.across * (weighted @ self.expected[k + 1])
        return centered

    def matrix(self, k: int, h: FloatArray) -> FloatArray:
        weighted = self.weights * h
        total = weighted @ self.expected[k]
        centered = self._centered(k, weighted)
        mixed = np.outer(self.along, self.across) * ((weighted * self.z) @ self.expected[k + 1])
        second: FloatArray = (
            np.outer(self.mean, self.mean) * total
            + np.outer(self.mean, centered)
            + np.outer(centered, self.mean)
            + self.covariance * total
            + np.outer(self.along, self.along) * ((weighted * (self.z**2 - 1)) @ self.expected[k])
            + mixed
            + mixed.T
            + np.outer(self.across, self.across) * (weighted @ self.expected[k + 2])
        )
        return second


def _effective_gradient(
    params: AttentionParams | EffectiveParams, task: LDATask
) -> EffectiveParams:
    p = _as_effective(params, task)
    gradient = np.zeros(2 * task.dim + 2)
    w, b, r, s = _effective_slices(task.dim)
    for c in _class_integrals(p, task, order=2):
        gate, slope = c.gate[1], c.gate[2]
        gradient[w] += c.vector(1, np.ones_like(gate))
        gradient[b] += c.scalar(1, np.ones_like(gate))
        gradient[r] += c.scalar(1, gate)
        gradient[s] += p.r * c.vector(1, slope)
    return EffectiveParams.from_vector(gradient, task.dim)


def _effective_hessian(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """E[l''(f) Df Df^T + l'(f) D2f], Df = (x, 1, sigma(v), r sigma'(v) x), v = s0 + s^T x."""
    p = _as_effective(params, task)
    d = task.dim
    hessian = np.zeros((2 * d + 2, 2 * d + 2))
    w, b, r, s = _effective_slices(d)
    for c in _class_integrals(p, task, order=4):
        _, gate, slope, curvature = c.gate
        one = np.ones_like(gate)
        hessian[w, w] += c.matrix(2, one)
        hessian[w, b] += c.vector(2, one)
        hessian[w, r] += c.vector(2, gate)
        hessian[w, s] += p.r * c.matrix(2, slope)
        hessian[b, b] += c.scalar(2, one)
        hessian[b, r] += c.scalar(2, gate)
        hessian[b, s] += p.r * c.vector(2, slope)
        hessian[r, r] += c.scalar(2, gate**2)
        hessian[r, s] += p.r * c.vector(2, gate * slope) + c.vector(1, slope)
        hessian[s, s] += p.r**2 * c.matrix(2, slope**2) + p.r * c.matrix(1, curvature)
    upper = np.triu(hessian)
    return upper + np.triu(hessian, 1).T


def _class_integrals(
    params: AttentionParams | EffectiveParams, task: LDATask, order: int
) -> Iterator[_ClassIntegral]:
    """Yield the nodes and inner expectations of each class, up to the `order`-th derivative."""
    p = _as_effective(params, task)
    L = task.cholesky
    w, s = L.T @ p.w, L.T @ p.s
    # with no gate the only direction is that of w, and nothing is left across
    axis = _unit(s if s.any() else w)
    across = _orthogonal_part(w, axis)
    inner_std = _norm(across)
    gate_slope, score_slope = float(axis @ s), float(axis @ w)
    for label, prior, mean in task._classes():
        gate_offset = task.prior_logit + float(p.s @ mean)
        score_offset = float(p.w @ mean) + p.b

        def logit(z: FloatArray, a: float = score_offset, v: float = gate_offset) -> FloatArray:
            gated: FloatArray = p.r * special.expit(v + gate_slope * z)
            return a + score_slope * z + gated

        def fits(
            center: FloatArray, half: FloatArray, v: float = gate_offset, at=logit
        ) -> NDArray[np.bool_]:
            radius = quadrature.ELLIPSE * half
            gate_at = v + gate_slope * center
            reach = abs(gate_slope) * radius
            change = abs(score_slope) * radius + abs(p.r) * _gate_change(gate_at, reach)
            room = np.maximum(np.hypot(at(center), np.pi), 1.5 * inner_std)
            return (
                (half <= LONGEST_PANEL)
                & (reach <= MARGIN * np.hypot(gate_at, np.pi))
                & (change <= MARGIN * room)
            )

        z, dz = quadrature.panel_rule(
            *quadrature.graded_panels(-UNDERFLOW, UNDERFLOW, fits), PANEL_NODES
        )
        keep = _bulk(z, -label * logit(z), gate_offset + gate_slope * z, inner_std)
        z, dz = z[keep].ravel(), dz[keep].ravel()
        # l(f) = softplus(-y f): a derivative of odd order changes sign with y
        expected = quadrature.logistic_normal(-label * logit(z), inner_std, order)
        if label == 1:
            expected[1::2] *= -1
        yield _ClassIntegral(
            weights=prior * quadrature.normal_density(z) * dz,
            z=z,
            gate=quadrature.logistic_derivatives(gate_offset + gate_slope * z, 3),
            expected=expected,
            mean=mean,
            along=L @ axis,
            across=L @ across,
            covariance=task.covariance,
        )


def _gate_change(v: FloatArray, reach: FloatArray) -> FloatArray:
    """Bound \\|sigma(v') - sigma(v)\\| over the complex disc \\|v' - v\\| <= reach.

    By the derivative: \\|sigma'(x + iy)\\| = 1 / (2 (cosh x + cos y)).
    """
    nearest = np.minimum(np.maximum(np.abs(v) - reach, 0.0), 700.0)
    floor = np.cosh(nearest) + np.cos(np.minimum(reach, np.pi))
    return reach / np.maximum(2 * floor, 1e-300)


def _bulk(
    z: FloatArray, loss_logit: FloatArray, gate_logit: FloatArray, std: float
) -> NDArray[np.bool_]:
    """Say which panels carry mass of some integrand: density times a loss derivative times a gate factor.

    The loss factor is softplus or sigma of loss_logit + std Z, or sigma' of it, which decays in
    \\|loss_logit\\|; the gate factor is 1, sigma or sigma'.
    """
    log_density = -0.5 * z**2
    away = np.abs(loss_logit)
    # log E exp(-(a + std Z)^+), up to a few units: a Gaussian tail, then an exponential
    decay = np.where(
        away < std**2, 0.5 * (away / std) ** 2 if std > 0 else 0.0, away - 0.5 * std**2
    )
    keep = np.zeros(len(z), dtype=bool)
    for loss in (np.where(loss_logit < 0, decay, 0.0), decay):
        for gate in (0.0, np.logaddexp(0.0, -gate_logit), np.abs(gate_logit)):
            log_size = (log_density - loss - gate).max(axis=1)
            keep |= log_size >= log_size.max() - BULK
    return keep


def _unit(v: FloatArray) -> FloatArray:
    """Return v / |v|, or the first coordinate vector for v = 0; nothing underflows."""
    scale = np.abs(v).max()
    if scale == 0:
        return np.eye(1, len(v))[0]
    unit: FloatArray = (v / scale) / np.linalg.norm(v / scale)
    return unit


def _norm(v: FloatArray) -> float:
    return float(_unit(v) @ v)


def _orthogonal_part(v: FloatArray, axis: FloatArray) -> FloatArray:
    """Return v - (axis^T v) axis, orthogonal to rounding, zero when v is parallel to the axis."""
    rest = v - (axis @ v) * axis
    rest = rest - (axis @ rest) * axis
    negligible = 4 * np.finfo(float).eps * np.abs(v).max()
    return rest if np.abs(rest).max() > negligible else np.zeros_like(v)


def excess_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Return R(f) - R(f*) as the expected divergence between the posteriors, never as a difference.

    .. math::
        R(f) - R(f^*) = \mathbb E\, \mathrm{KL}\big(\mathrm{Ber}(\sigma(f^*)) \,\|\, \mathrm{Ber}(\sigma(f))\big)

    Every term is nonnegative and computed from the difference f - f* itself, so the value keeps its
    relative accuracy down to rounding in the parameters.

    With e1 along the gate and e2 along the rest of w*, the divergence averaged over the direction e3 that
    is left of w is in closed form: f* does not depend on it, f = A + tau Z does, and
    ``E KL(f*, A + tau Z) = KL(f*, A) + (E softplus(A + tau Z) - softplus(A))``, again two nonnegative
    terms. Two integrals remain, in any dimension.
    """
    p = _as_effective(params, task)
    w_bayes, b_bayes = task.bayes_score
    prior = task.prior_pos
    variance = prior * (1 - prior)
    s = p.s if p.r != 0 else np.zeros(task.dim)
    # f - f* = intercept + slope^T x + r (sigma(s0 + u) - sigma(s0) - sigma'(s0) u), u = s^T x: near the
    # optimal families the affine part cancels in the parameters and the rest is small by itself
    intercept = (p.b - b_bayes) + p.r * prior
    slope = (p.w - w_bayes) + p.r * variance * s
    L = task.cholesky
    gate_direction, bayes_direction, slope_direction = L.T @ s, L.T @ w_bayes, L.T @ slope
    axis = _unit(gate_direction if s.any() else bayes_direction)
    bayes_rest = _orthogonal_part(bayes_direction, axis)
    second = _unit(bayes_rest)
    if not bayes_rest.any():
        second = np.zeros_like(axis)
    slope_rest = _orthogonal_part(slope_direction, axis)
    slope_second = float(second @ slope_rest)
    inner_std = _norm(slope_rest - slope_second * second)
    total = 0.0
    for _, class_prior, mean in task._classes():
        total += class_prior * _class_divergence(
            task,
            p.r,
            bayes=(
                float(w_bayes @ mean) + b_bayes,
                float(axis @ bayes_direction),
                _norm(bayes_rest),
            ),
            difference=(
                intercept + float(slope @ mean),
                float(axis @ slope_direction),
                slope_second,
            ),
            gate=(float(s @ mean), float(axis @ gate_direction)),
            inner_std=inner_std,
        )
    return total


def _class_divergence(
    task: LDATask,
    r: float,
    bayes: tuple[float, float, float],
    difference: tuple[float, float, float],
    gate: tuple[float, float],
    inner_std: float,
) -> float:
    """Integrate the divergence over one class: (offset, slope along e1, slope along e2) of each part."""

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        radius = quadrature.ELLIPSE * half
        gate_at = gate[0] + gate[1] * center + task.prior_logit
        reach = abs(gate[1]) * radius
        bayes_at = bayes[0] + bayes[1] * center
        score_at = (
            bayes_at
            + difference[0]
            + difference[1] * center
            + r * _gate_remainder(gate[0] + gate[1] * center, task)
        )
        swing = (quadrature.GAUSSIAN_REACH + abs(bayes[2])) * abs(bayes[2])
        score_swing = (quadrature.GAUSSIAN_REACH + abs(bayes[2])) * abs(bayes[2] + difference[2])
        bayes_room = np.hypot(np.maximum(np.abs(bayes_at) - swing, 0), np.pi)
        score_room = np.hypot(np.maximum(np.abs(score_at) - score_swing, 0), np.pi)
        affine = bayes[1] + difference[1] - r * task.prior_pos * (1 - task.prior_pos) * gate[1]
        change = abs(affine) * radius + abs(r) * _gate_change(gate_at, reach)
        return (
            (half <= LONGEST_PANEL)
            & (reach <= MARGIN * np.hypot(gate_at, np.pi))
            & (abs(bayes[1]) * radius <= MARGIN * bayes_room)
            & (change <= MARGIN * np.maximum(score_room, 1.5 * inner_std))
        )

    z1, dz1 = quadrature.panel_rule(*quadrature.graded_panels(-20.0 - 9.0, 20.0 + 9.0, fits), 14)
    z1, dz1 = z1.ravel(), dz1.ravel() * quadrature.normal_density(z1.ravel())
    steepest = max(abs(bayes[2]), abs(bayes[2] + difference[2]))
    if steepest > 0:
        window = quadrature.GAUSSIAN_REACH + abs(bayes[2])
        z2, dz2 = quadrature.gaussian_trapezoid(
            0.9 * np.pi / steepest, -window, window, tolerance=1e-12
        )
    else:
        z2, dz2 = np.zeros(1), np.ones(1)
    total = 0.0
    remainder = r * _gate_remainder(gate[0] + gate[1] * z1, task)
    for i in range(0, len(z1), max(1, 200_000 // len(z2))):
        rows = slice(i, i + max(1, 200_000 // len(z2)))
        f_bayes = bayes[0] + bayes[1] * z1[rows, None] + bayes[2] * z2
        gap = (difference[0] + difference[1] * z1[rows, None] + difference[2] * z2) + remainder[
            rows, None
        ]
        values = _divergence(f_bayes, gap) + _jensen_gap(f_bayes + gap, inner_std)
        total += float(dz1[rows] @ values @ dz2)
    return total


def _gate_remainder(u: FloatArray, task: LDATask) -> FloatArray:
    """Return sigma(s0 + u) - sigma(s0) - sigma'(s0) u without cancellation at small u."""
    p = task.prior_pos
    variance = p * (1 - p)
    small = np.clip(u, -1.0, 1.0)
    e = np.expm1(small)
    odd = _expm1_tail(small, 2) - 0.5 * small * e
    near = variance * (odd + (0.5 - p) * small * e) / (1 + p * e)
    far = special.expit(task.prior_logit + u) - p - variance * u
    return np.where(np.abs(u) < 1.0, near, far)


def _expm1_tail(x: FloatArray, n: int) -> FloatArray:
    if n != 2:
        raise ValueError
    series = np.zeros_like(x)
    for k in range(20, 1, -1):
        series = (series + 1) * x / k
    return np.where(np.abs(x) < 1, series * x, np.expm1(x) - x)


def _divergence(f_bayes: FloatArray, gap: FloatArray) -> FloatArray:
    """Return KL(Ber(sigma(f*)) || Ber(sigma(f* + gap))) = softplus(f) - softplus(f*) - sigma(f*) gap."""
    gap = np.where(f_bayes > 0, -gap, gap)
    low = -np.abs(f_bayes)
    t = np.exp(low)
    p = t / (1 + t)
    q = 1 / (1 + t)
    near = np.clip(gap, -1, 1)
    small = np.log1p(p * _expm1_tail(q * near, 2) + q * _expm1_tail(-p * near, 2))
    large = np.logaddexp(0, low + gap) - np.log1p(t) - p * gap
    return np.where(np.abs(gap) < 1, small, large)


def _jensen_gap(mean: FloatArray, std: float) -> FloatArray:
    """Return E softplus(mean + std Z) - softplus(mean), nonnegative and even in the mean."""
    if std == 0:
        return np.zeros_like(mean)
    low = -np.abs(mean)
    if std > 3:
        return quadrature.logistic_normal(low.ravel(), std, 0)[0].reshape(
            mean.shape
        ) - np.logaddexp(0, low)
    nodes, weights = quadrature.gaussian_trapezoid(
        0.9 * np.pi / std, upper=9 + std, lower=-9 - std, tolerance=1e-12
    )
    slope = np.exp(low) / (1 + np.exp(low)) ** 2
    half = nodes >= 0
    nodes, weights = nodes[half], weights[half] * np.where(nodes[half] > 0, 1.0, 0.5)
    return sum(
        w * np.log1p(4 * slope * np.sinh(0.5 * std * x) ** 2) for x, w in zip(nodes, weights)
    )
