r"""Attention denoisers that equal the Bayes denoiser, and the best ones without a gate.

Two components of weights :math:`\pi_1, \pi_2`, covariance :math:`\gamma^2 I`, means of equal norm;
:math:`c = \gamma^2 + \xi^2`, :math:`a = \xi^2 / c`, :math:`\Delta m = m_1 - m_2`. A sum of heads is
the Bayes denoiser of equation (11) of the paper as soon as

* every gate is the posterior: :math:`U_h^\top \Delta m = \Delta m / c`;
* the gated parts add up: :math:`\sum_h V_h m_k = a\, m_k`;
* the linear parts add up: :math:`c \sum_h V_h U_h = (1 - a) I`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from mixattn._checks import EQUALITY_RTOL, FloatArray, as_integer, as_scalar
from mixattn.attention import Head, MultiHead, ResidualMultiHead
from mixattn.denoising.task import DenoisingTask, as_denoising_task

# A construction whose own equations fail by more than this has lost its digits.
_CONSTRUCTION_RTOL = 1e-8

Construction = Literal["uniform", "noncollinear", "opposite"]


class TwoHeadDenoiser(MultiHead):
    """A two-head Bayes denoiser that says which construction made it.

    Parameters
    ----------
    heads : sequence of Head
        Two.
    construction : {"uniform", "noncollinear", "opposite"}
        See `two_head_denoiser`.

    Raises
    ------
    ValueError
        If there are not two heads of one shape, or the construction is not one of the three.
    """

    construction: Construction

    def __init__(self, heads: Sequence[Head], construction: Construction) -> None:
        super().__init__(heads)
        if len(self.heads) != 2:
            raise ValueError(f"heads: expected two heads, got {len(self.heads)}")
        self._set(construction=_as_construction(construction))

    def __repr__(self) -> str:
        """Dimension and construction, not entries."""
        return f"TwoHeadDenoiser(dim={self.heads[0].dim}, construction={self.construction!r})"


def two_head_denoiser(
    task: DenoisingTask, construction: Construction = "uniform"
) -> TwoHeadDenoiser:
    r"""Build two heads whose sum is the Bayes denoiser (Theorem 4.1 of the paper).

    "uniform", the default, covers all cases and is well conditioned in all. With
    :math:`e = \Delta m / |\Delta m|` and n any unit vector orthogonal to it,

    .. math::
        U_2 = \frac{1}{c} e e^\top + \frac{\gamma^2}{\xi^2 c} (I - e e^\top), \quad
        U_1 = U_2 + \frac{1}{c} n e^\top, \quad
        V_1 = \frac{\gamma^2 - \xi^2}{c}\, e n^\top, \quad V_2 = a I - V_1 .

    "noncollinear" and "opposite" are the two printed in the paper (Proposition C.5). The first
    gives one mean to each head,

    .. math::
        V_i m_i = a m_i, \quad V_i m_j = 0, \quad V_i = \tfrac a2 \text{ on } \{m_1, m_2\}^\perp,
        \quad U_i = \frac{\gamma^2}{\xi^2 c} I
              + \frac{\xi^2 - \gamma^2}{\xi^2 c} \frac{m_j \Delta m^\top}{m_j^\top \Delta m},

    so the entries of V grow without bound as the means approach equal or opposite ones: it is
    refused where it loses its digits. The second is for opposite means only:
    :math:`U_{1,2} = (I \pm n e^\top)/c`,
    :math:`V_{1,2} = (\xi^2 e e^\top + \gamma^2 (I - e e^\top) \pm (\gamma^2 - \xi^2) e
    n^\top)/(2c)`.

    Parameters
    ----------
    task : DenoisingTask
        Two components, one covariance :math:`\gamma^2 I` with :math:`\gamma \ge 0`, distinct means
        of equal norm, d at least 2.
    construction : {"uniform", "noncollinear", "opposite"}

    Returns
    -------
    TwoHeadDenoiser
        A MultiHead with the attribute `construction`.

    Raises
    ------
    ValueError
        If a hypothesis fails, naming it, or if the means are so close to collinear that the
        construction "noncollinear" has lost its digits.
    """
    setting = _EqualNormPair(task, "two_head_denoiser", "Theorem 4.1")
    if task.dim < 2:
        raise ValueError(
            "two_head_denoiser: Theorem 4.1 of the paper needs dimension d >= 2, got d = 1"
        )
    builders = {"uniform": _uniform, "noncollinear": _noncollinear, "opposite": _opposite}
    heads = builders[_as_construction(construction)](setting)
    return TwoHeadDenoiser(heads, construction)


def _as_construction(construction: Construction) -> Construction:
    if construction not in get_args(Construction):
        raise ValueError(
            f"construction: expected one of {get_args(Construction)}, got {construction!r}"
        )
    return construction


def one_head_denoiser(task: DenoisingTask) -> Head:
    r"""Build the single head that is the Bayes denoiser, where there is one.

    With :math:`\gamma > 0` there is one if and only if :math:`\gamma^2 = \xi^2` (Theorem 4.1 of the
    paper): :math:`U = S^{-1}, V = I/2`. With :math:`\gamma = 0` there is one if the means are
    opposite (Remark 4.2) or d is at least 3: with n a unit vector orthogonal to both means,

    .. math::
        U = \frac{1}{\xi^2} (e + n) e^\top, \qquad V = I - (e + n) n^\top ,

    so that V fixes both means and kills the range of U.

    Parameters
    ----------
    task : DenoisingTask
        As for `two_head_denoiser`.

    Returns
    -------
    Head

    Raises
    ------
    ValueError
        If no single head is the Bayes denoiser, naming the hypothesis that fails.
    """
    setting = _EqualNormPair(task, "one_head_denoiser", "Theorem 4.1")
    eye = np.eye(task.dim)
    gamma2, xi2 = setting.gamma2, setting.xi2
    if abs(gamma2 - xi2) <= EQUALITY_RTOL * xi2:
        return Head(eye / setting.c, 0.5 * eye)
    if gamma2 > 0:
        raise ValueError(
            "one_head_denoiser: by Theorem 4.1 of the paper one head is the Bayes denoiser only if "
            f"gamma^2 = xi^2, got gamma^2 = {gamma2:g} and xi^2 = {xi2:g}"
        )
    normal = setting.normal_to_means()
    if normal is None:
        raise ValueError(
            "one_head_denoiser: gamma = 0, where Remark 4.2 of the paper (Proposition C.3) needs "
            "opposite means in dimension 2 (and the construction a direction orthogonal to both "
            f"means), got d = {task.dim} and means {setting.m1} and {setting.m2}"
        )
    lifted = setting.e + normal
    return Head(np.outer(lifted, setting.e) / xi2, eye - np.outer(lifted, normal))


def best_linear_denoiser(task: DenoisingTask) -> FloatArray:
    r"""Compute the matrix :math:`A = E[X Z^\top] E[Z Z^\top]^{-1}` of the best linear map.

    By Lemma C.7 of the paper every network of linear attention layers is a linear map, so none has
    a smaller risk.

    Parameters
    ----------
    task : DenoisingTask
        Any mixture.

    Returns
    -------
    ndarray, shape (d, d)

    Raises
    ------
    ValueError
        If the noise is below the rounding of the second moment.
    """
    task = as_denoising_task(task)
    return _shrinkage(task.mixture.second_moment, task.noise_variance)


def best_affine_denoiser(task: DenoisingTask) -> tuple[FloatArray, FloatArray]:
    r"""Compute A and c of the best affine map.

    :math:`A = \mathrm{Cov}(X) \mathrm{Cov}(Z)^{-1}` and :math:`c = (I - A) E[X]`.

    Parameters
    ----------
    task : DenoisingTask
        Any mixture.

    Returns
    -------
    A : ndarray, shape (d, d)
    c : ndarray, shape (d,)

    Raises
    ------
    ValueError
        If the noise is below the rounding of the covariance.
    """
    task = as_denoising_task(task)
    A = _shrinkage(task.mixture.covariance, task.noise_variance)
    mean = task.mixture.mean
    return A, mean - A @ mean


def in_context_denoiser(
    dim: int, within_variance: float, noise_variance: float
) -> ResidualMultiHead:
    r"""Build the one residual layer that denoises every task in context (Proposition 4.4).

    :math:`U_1 = S^{-1}, V_1 = a I, U_2 = V_2 = 0, W_{out} = (I, -2 a I)`. On the noisy law of any
    task with covariance :math:`\gamma^2 I` and means of equal norm, two or more and of any weights,
    it is the Bayes denoiser: the parameters do not depend on means or weights.

    Parameters
    ----------
    dim : int
        Dimension d, at least 1.
    within_variance : float
        :math:`\gamma^2 \ge 0`.
    noise_variance : float
        :math:`\xi^2 > 0`.

    Returns
    -------
    ResidualMultiHead

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    eye = np.eye(as_integer("dim", dim, at_least=1))
    gamma2 = as_scalar("within_variance", within_variance, at_least=0.0)
    xi2 = as_scalar("noise_variance", noise_variance, above=0.0)
    a = xi2 / (gamma2 + xi2)
    reader, copier = Head(eye / (gamma2 + xi2), a * eye), Head(0.0 * eye, 0.0 * eye)
    return ResidualMultiHead([reader, copier], np.hstack([eye, -2.0 * a * eye]))


class _EqualNormPair:
    """The setting of Theorem 4.1, checked: names as in the module's docstring."""

    def __init__(self, task: DenoisingTask, caller: str, statement: str) -> None:
        task = as_denoising_task(task)
        needs = f"{caller}: {statement} of the paper needs"
        pair = task.mixture if task.mixture.n_components == 2 else task.components
        if pair.n_components != 2:
            raise ValueError(f"{needs} two components, got {pair.n_components}")
        if task.within_variance is None:
            raise ValueError(
                f"{needs} one covariance gamma^2 I for both components, got {pair.covariances}"
            )
        self.m1, self.m2 = pair.means
        if np.array_equal(self.m1, self.m2):
            raise ValueError(f"{needs} distinct means, got {self.m1} twice")
        if not task.has_equal_norms:
            norms = np.linalg.norm(pair.means, axis=1)
            raise ValueError(
                f"{needs} means of equal norm, got norms {norms[0]:g} and {norms[1]:g}"
            )
        self.dim = task.dim
        self.e = _unit(self.m1 - self.m2)
        self.sum = self.m1 + self.m2
        self.opposite = task.has_opposite_means
        self.gamma2 = task.within_variance
        self.xi2 = task.noise_variance
        self.c = self.gamma2 + self.xi2
        self.a = self.xi2 / self.c

    def normal_to_means(self) -> FloatArray | None:
        """Return a unit vector orthogonal to both means, None if there is none."""
        if self.opposite and self.dim == 2:
            return _unit_normal([self.e])
        if self.dim < 3:
            return None
        if not self.sum.any():
            return _unit_normal([self.e])
        return _unit_normal([self.e, self.sum])


def _uniform(setting: _EqualNormPair) -> tuple[Head, Head]:
    e, n = setting.e, _unit_normal([setting.e])
    eye, c, gamma2, xi2 = np.eye(setting.dim), setting.c, setting.gamma2, setting.xi2
    along = np.outer(e, e)
    U2 = along / c + gamma2 / (xi2 * c) * (eye - along)
    V1 = (gamma2 - xi2) / c * np.outer(e, n)
    return Head(U2 + np.outer(n, e) / c, V1), Head(U2, setting.a * eye - V1)


def _noncollinear(setting: _EqualNormPair) -> tuple[Head, Head]:
    if setting.opposite:
        raise ValueError(
            "two_head_denoiser: the construction for non-collinear means divides by the distance "
            f"from opposite means, got means {setting.m1} and {setting.m2}"
        )
    eye, xi2, gamma2, c = np.eye(setting.dim), setting.xi2, setting.gamma2, setting.c
    # the two means, in the unit of the larger: the construction does not depend on it
    means = np.stack([setting.m1, setting.m2]) / np.abs([setting.m1, setting.m2]).max()
    with np.errstate(all="ignore"):
        # rows d_1, d_2 of the span of the means with d_i^T m_j = 1 if i = j, else 0
        dual = np.linalg.pinv(means, rcond=0.0).T
        off_span = eye - means.T @ dual
        tilts = [np.outer(means[j], setting.e) / (means[j] @ setting.e) for j in (1, 0)]
        U = [(gamma2 * eye + (xi2 - gamma2) * tilt) / (xi2 * c) for tilt in tilts]
        V = [setting.a * (np.outer(means[i], dual[i]) + 0.5 * off_span) for i in (0, 1)]
        lost = _equation_error(setting, means, U, V)
    if not lost <= _CONSTRUCTION_RTOL:
        raise ValueError(
            "two_head_denoiser: the construction for non-collinear means divides by the angle "
            f"between their lines and has lost its digits (its equations fail by {lost:.1g}); "
            'expected means further from collinear, or the construction "uniform"'
        )
    return Head(U[0], V[0]), Head(U[1], V[1])


def _equation_error(
    setting: _EqualNormPair, means: FloatArray, U: list[FloatArray], V: list[FloatArray]
) -> float:
    """Largest relative error in the three equations of the module's docstring."""
    eye, c, a = np.eye(setting.dim), setting.c, setting.a
    errors = [c * (matrix.T @ setting.e) - setting.e for matrix in U]
    errors += [sum(V) @ mean / a - mean for mean in means]
    errors += [(c * (V[0] @ U[0] + V[1] @ U[1]) - (1 - a) * eye).ravel()]
    return float(np.abs(np.concatenate(errors)).max())


def _opposite(setting: _EqualNormPair) -> tuple[Head, Head]:
    if not setting.opposite:
        raise ValueError(
            "two_head_denoiser: this construction needs opposite means, got "
            f"{setting.m1} and {setting.m2}"
        )
    e, n = setting.e, _unit_normal([setting.e])
    eye, along, c = np.eye(setting.dim), np.outer(e, e), setting.c
    shared = setting.xi2 * along + setting.gamma2 * (eye - along)
    split = (setting.gamma2 - setting.xi2) * np.outer(e, n)
    return (
        Head((eye + np.outer(n, e)) / c, (shared + split) / (2.0 * c)),
        Head((eye - np.outer(n, e)) / c, (shared - split) / (2.0 * c)),
    )


def _unit(vector: FloatArray) -> FloatArray:
    scaled = vector / np.abs(vector).max()
    return scaled / np.linalg.norm(scaled)


def _unit_normal(vectors: list[FloatArray]) -> FloatArray:
    """Last column of the orthogonal matrix whose first columns span the given directions."""
    orthogonal, _ = np.linalg.qr(np.stack([_unit(v) for v in vectors], axis=1), mode="complete")
    return np.array(orthogonal[:, -1], dtype=np.float64)


def _shrinkage(moment: FloatArray, noise_variance: float) -> FloatArray:
    r"""Compute :math:`M (M + \xi^2 I)^{-1}` of a symmetric positive semidefinite M."""
    eigenvalues, vectors = np.linalg.eigh(moment)
    if noise_variance <= len(moment) * np.finfo(float).eps * eigenvalues[-1]:
        raise ValueError(
            "task: expected a noise variance above the rounding of the clean law's moments, got "
            f"{noise_variance:g} beside an eigenvalue of {eigenvalues[-1]:g}"
        )
    eigenvalues = np.maximum(eigenvalues, 0.0)
    return vectors * (eigenvalues / (eigenvalues + noise_variance)) @ vectors.T
