r"""Attention denoisers that equal the Bayes denoiser, and the best ones without a gate.

Two components of weights :math:`\pi_1, \pi_2`, covariance :math:`\gamma^2 I`, means of equal norm;
:math:`c = \gamma^2 + \xi^2`, :math:`a = \xi^2 / c`, :math:`\Delta m = m_1 - m_2`. A sum of heads is
the Bayes denoiser of equation (11) of the paper as soon as

* every gate is the posterior: :math:`U_h^\top \Delta m = \Delta m / c`;
* the gated parts add up: :math:`\sum_h V_h m_k = a\, m_k`;
* the linear parts add up: :math:`c \sum_h V_h U_h = (1 - a) I`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from mixattn._checks import FloatArray, as_integer, as_scalar
from mixattn.attention import Head, MultiHead, ResidualMultiHead
from mixattn.denoising.task import DenoisingTask, as_denoising_task

# Hypotheses that are equalities hold within this relative distance.
EQUALITY_TOLERANCE = 1e-9

Construction = Literal["uniform", "noncollinear", "opposite"]


class TwoHeadDenoiser(MultiHead):
    """A two-head Bayes denoiser that says which construction made it.

    Attributes
    ----------
    heads : tuple of Head
    construction : str
        "uniform", "noncollinear" or "opposite" (see `two_head_denoiser`).
    """

    construction: Construction

    def __init__(self, heads: tuple[Head, Head], construction: Construction) -> None:
        super().__init__(heads)
        object.__setattr__(self, "construction", construction)

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
        V_i m_i = a m_i, \quad V_i m_j = 0, \quad V_i = \tfrac a2 \text{ on } \{m_1, m_2\}^\perp, \quad
        U_i = \frac{\gamma^2}{\xi^2 c} I
              + \frac{\xi^2 - \gamma^2}{\xi^2 c} \frac{m_j \Delta m^\top}{m_j^\top \Delta m},

    so its entries grow without bound as the means approach opposite ones (and, for
    :math:`\gamma \ne \xi`, equal ones). The second is for opposite means only:
    :math:`U_{1,2} = (I \pm n e^\top)/c`,
    :math:`V_{1,2} = (\xi^2 e e^\top + \gamma^2 (I - e e^\top) \pm (\gamma^2 - \xi^2) e n^\top)/(2c)`.

    Parameters
    ----------
    task : DenoisingTask
        Two components, one covariance :math:`\gamma^2 I` with :math:`\gamma \ge 0`, distinct means of
        equal norm, d at least 2.
    construction : {"uniform", "noncollinear", "opposite"}

    Returns
    -------
    TwoHeadDenoiser
        A MultiHead with the attribute `construction`.

    Raises
    ------
    ValueError
        If a hypothesis fails, naming it.
    """
    setting = _EqualNormPair(task, "two_head_denoiser", "Theorem 4.1")
    if task.dim < 2:
        raise ValueError(
            "two_head_denoiser: Theorem 4.1 of the paper needs dimension d >= 2, got d = 1"
        )
    builders = {"uniform": _uniform, "noncollinear": _noncollinear, "opposite": _opposite}
    if not isinstance(construction, str) or construction not in builders:
        raise ValueError(f"construction: expected one of {sorted(builders)}, got {construction!r}")
    return TwoHeadDenoiser(builders[construction](setting), construction)


def one_head_denoiser(task: DenoisingTask) -> Head:
    r"""Build the single head that is the Bayes denoiser, where there is one.

    With :math:`\gamma > 0` there is one if and only if :math:`\gamma^2 = \xi^2` (Theorem 4.1 of the
    paper): :math:`U = S^{-1}, V = I/2`. With :math:`\gamma = 0` there is one if the means are opposite
    (Remark 4.2) or d is at least 3: with n a unit vector orthogonal to both means,

    .. math::
        U = \frac{1}{\xi^2} (e + n) e^\top, \qquad V = I - (e + n) n^\top ,

    so that V fixes both means and kills the range of U.

    Parameters
    ----------
    task : DenoisingTask
        As for `two_head_denoiser`.

    Raises
    ------
    ValueError
        If no single head is the Bayes denoiser, naming the hypothesis that fails.
    """
    setting = _EqualNormPair(task, "one_head_denoiser", "Theorem 4.1")
    eye = np.eye(task.dim)
    gamma2, xi2 = setting.gamma2, setting.xi2
    if abs(gamma2 - xi2) <= EQUALITY_TOLERANCE * xi2:
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
    a smaller risk. Shape (d, d), any mixture.
    """
    task = as_denoising_task(task)
    return _right_solve(task.mixture.second_moment, task.noisy.second_moment)


def best_affine_denoiser(task: DenoisingTask) -> tuple[FloatArray, FloatArray]:
    r"""Compute A and c of the best affine map.

    :math:`A = \mathrm{Cov}(X) \mathrm{Cov}(Z)^{-1}` and :math:`c = (I - A) E[X]`, shapes (d, d) and (d,),
    any mixture.
    """
    task = as_denoising_task(task)
    A = _right_solve(task.mixture.covariance, task.noisy.covariance)
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
        mixture = task.mixture
        kept = np.arange(mixture.n_components)
        if len(kept) > 2:
            kept = np.flatnonzero(mixture.weights > 0)
        needs = f"{caller}: {statement} of the paper needs"
        if len(kept) != 2:
            raise ValueError(f"{needs} two components, got {len(kept)}")
        self.gamma2 = float(np.trace(mixture.covariances[kept[0]])) / task.dim
        isotropic = self.gamma2 * np.eye(task.dim)
        spread = float(np.abs(mixture.covariances[kept] - isotropic).max())
        if spread > EQUALITY_TOLERANCE * self.gamma2:
            raise ValueError(
                f"{needs} one covariance gamma^2 I for both components, got entries off by "
                f"{spread:g} from {self.gamma2:g} I"
            )
        self.m1, self.m2 = mixture.means[kept]
        difference = self.m1 - self.m2
        self.distance = float(np.linalg.norm(difference))
        if self.distance == 0:
            raise ValueError(f"{needs} distinct means, got {self.m1} twice")
        norms = np.linalg.norm(self.m1), np.linalg.norm(self.m2)
        if abs(norms[0] - norms[1]) > EQUALITY_TOLERANCE * max(norms):
            raise ValueError(
                f"{needs} means of equal norm, got norms {norms[0]:g} and {norms[1]:g}"
            )
        self.dim = task.dim
        self.norm = float(max(norms))
        self.e = difference / self.distance
        self.sum = self.m1 + self.m2
        self.xi2 = task.noise_variance
        self.c = self.gamma2 + self.xi2
        self.a = self.xi2 / self.c

    @property
    def opposite(self) -> bool:
        return float(np.linalg.norm(self.sum)) <= EQUALITY_TOLERANCE * self.norm

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
    means = np.stack([setting.m1, setting.m2])
    # rows d_1, d_2 of the span of the means with d_i^T m_j = 1 if i = j, else 0
    dual = np.linalg.pinv(means, rcond=0.0).T
    off_span = eye - means.T @ dual
    heads = []
    for i, j in ((0, 1), (1, 0)):
        V = setting.a * (np.outer(means[i], dual[i]) + 0.5 * off_span)
        tilt = np.outer(means[j], setting.e) / (means[j] @ setting.e)
        heads.append(Head((gamma2 * eye + (xi2 - gamma2) * tilt) / (xi2 * c), V))
    return heads[0], heads[1]


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


def _unit_normal(vectors: list[FloatArray]) -> FloatArray:
    """Last column of the orthogonal matrix whose first columns span the given directions."""
    directions = np.stack([v / np.linalg.norm(v) for v in vectors], axis=1)
    orthogonal, _ = np.linalg.qr(directions, mode="complete")
    return np.array(orthogonal[:, -1], dtype=np.float64)


def _right_solve(left: FloatArray, right: FloatArray) -> FloatArray:
    """Compute left @ inv(right) for a symmetric positive definite `right`."""
    return np.asarray(np.linalg.solve(right, left.T).T, dtype=np.float64)
