r"""Geometry of the logistic risk of linear discriminant analysis: minimizers, saddles, curvature.

Section 3.2 and appendix B.5-B.8 of the paper. The score ``w^T x + b + r sigma(s0 + s^T x)`` equals
the Bayes score on two affine families of effective parameters,

.. math::
    E_1 = \{(w^\star, b^\star, 0, s)\}, \qquad E_2 = \{(w^\star, b^\star - r \sigma(s_0), r, 0)\},

and the minimizers among attention parameters are their preimages Theta1 and Theta2 under Phi.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import ArrayLike

from mixattn._checks import FloatArray, as_array, as_scalar
from mixattn.classification.params import (
    AttentionParams,
    EffectiveParams,
    as_effective,
    check_params,
    effective_jacobian,
    effective_params,
)
from mixattn.classification.risk import risk_gradient, risk_hessian
from mixattn.classification.task import EQUALITY_RTOL, LDATask, as_lda_task

# Beyond this whitened slope a gate is a step: a search for a critical point has run to infinity,
# where the gradient vanishes too.
STEP_SLOPE = 1e6


# --- the two families of minimizers in effective coordinates ---------------------------------


def E1_point(task: LDATask, s: ArrayLike) -> EffectiveParams:
    """Point ``(w*, b*, 0, s)`` of E1: the sigmoid has amplitude zero, `s` (d,) is free."""
    task = as_lda_task(task)
    w, b = task.bayes_score
    return EffectiveParams(w, b, 0.0, as_array("s", s, (len(w),)))


def E2_point(task: LDATask, r: float) -> EffectiveParams:
    """Point ``(w*, b* - r sigma(s0), r, 0)`` of E2: the gate is constant, `r` is free."""
    task = as_lda_task(task)
    w, b = task.bayes_score
    r = as_scalar("r", r)
    return EffectiveParams(w, b - r * task.prior_pos, r, np.zeros(len(w)))


def distance_to_E1(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Euclidean distance of the effective parameters to E1.

    It is :math:`(|w - w^\star|^2 + (b - b^\star)^2 + r^2)^{1/2}`. Attention parameters are mapped
    through Phi first: this is the "effective distance" of Figure 1.
    """
    zeta = as_effective(params, task)
    w, b = task.bayes_score
    return float(np.linalg.norm([*(zeta.w - w), zeta.b - b, zeta.r]))


def distance_to_E2(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Euclidean distance of the effective parameters to E2.

    In the plane of (b, r) the family is the line :math:`b + r \sigma(s_0) = b^\star`, so the
    distance is :math:`(|w - w^\star|^2 + |s|^2 + (b + r \sigma(s_0) - b^\star)^2 /
    (1 + \sigma(s_0)^2))^{1/2}`.
    """
    zeta = as_effective(params, task)
    w, b = task.bayes_score
    off_line = (zeta.b + zeta.r * task.prior_pos - b) / np.hypot(1.0, task.prior_pos)
    return float(np.linalg.norm([*(zeta.w - w), *zeta.s, off_line]))


def minimizing_sequence(task: LDATask, c: ArrayLike, R: float) -> EffectiveParams:
    r"""Point :math:`\zeta_R` of the minimizing sequence that escapes to infinity (P3.4).

    .. math::
        \zeta_R = (w^\star - \sigma'(s_0) c,\; b^\star - \sigma(s_0) R,\; R,\; c / R).

    Parameters
    ----------
    task : LDATask
    c : array_like, shape (d,)
        Direction and size of the gate's slope.
    R : float
        Amplitude of the sigmoid, positive; the excess risk vanishes as it grows.
    """
    task = as_lda_task(task)
    w, b = task.bayes_score
    c = as_array("c", c, (len(w),))
    R = as_scalar("R", R, above=0.0)
    slope = task.prior_pos * (1 - task.prior_pos)
    return EffectiveParams(w - slope * c, b - task.prior_pos * R, R, c / R)


# --- the two families in attention coordinates -----------------------------------------------


def lift(target: EffectiveParams, task: LDATask, v21: ArrayLike | None = None) -> AttentionParams:
    r"""Attention parameters whose effective parameters are `target`: a section of Phi.

    The equations of Phi for b and r read :math:`v_{21}^\top (m_1 + m_{-1}) = r + 2b` and
    :math:`v_{22} = v_{21}^\top m_{-1} - b`. Any solution :math:`v_{21} \neq 0` then allows
    :math:`U_{11} = w a^\top / |a|^2` with :math:`a = \Gamma v_{21}`, the matrix of least norm with
    :math:`U_{11} a = w`, and :math:`u_{12} = (s - U_{11} \Delta m) / 2`.

    Parameters
    ----------
    target : EffectiveParams
    task : LDATask
    v21 : array_like, shape (d,), optional
        Which solution to take. By default the one of least norm plus, if d > 1, a unit vector
        orthogonal to ``m_1 + m_-1``, so that it is never small.

    Returns
    -------
    AttentionParams

    Raises
    ------
    ValueError
        If no attention parameters have these effective parameters, and which hypothesis fails:
        opposite means force ``r = -2b``; in dimension one ``r = -2b`` forces ``v21 = 0``, hence
        ``w = 0``. Also if a given `v21` is not a solution.
    """
    check_params(target, task, EffectiveParams, name="target")
    d = task.dim
    M = task.mean_pos + task.mean_neg
    level = target.r + 2 * target.b
    scale = abs(target.r) + 2 * abs(target.b) + float(np.linalg.norm(target.w) * np.linalg.norm(M))
    level_vanishes = abs(level) <= EQUALITY_RTOL * scale
    opposite = task.has_opposite_means
    if opposite and not level_vanishes:
        raise ValueError(
            "target: opposite means (m_1 = -m_-1) force r = -2b for every attention head, "
            f"got r = {target.r:.6g}, b = {target.b:.6g}"
        )
    if d == 1 and level_vanishes and not opposite and target.w.any():
        raise ValueError(
            "target: in dimension 1 with m_1 != -m_-1, r = -2b forces v21 = 0 and hence w = 0, "
            f"got w = {target.w[0]:.6g}"
        )
    if v21 is None:
        least = np.zeros(d) if opposite else M * (level / (M @ M))
        v = least + (_unit_normal(M) if d > 1 or opposite else 0.0)
    else:
        v = as_array("v21", v21, (d,))
        if abs(v @ M - level) > EQUALITY_RTOL * (scale + np.linalg.norm(v) * np.linalg.norm(M)):
            raise ValueError(
                f"v21: expected v21^T (m_1 + m_-1) = r + 2b = {level:.6g}, got {v @ M:.6g}"
            )
        if target.w.any() and not v.any():
            raise ValueError("v21: expected a nonzero vector (w is not zero), got zero")
    a = task.covariance @ v
    U11 = np.outer(target.w, a / (a @ a)) if a.any() else np.zeros((d, d))
    u12 = 0.5 * (target.s - U11 @ task.mean_difference)
    return AttentionParams(U11, u12, v, float(v @ task.mean_neg) - target.b)


def theta1_point(task: LDATask, s: ArrayLike, v21: ArrayLike | None = None) -> AttentionParams:
    r"""Point of Theta1 (score without sigmoid) with gate direction `s` (d,).

    Parameters
    ----------
    task : LDATask
    s : array_like, shape (d,)
    v21 : array_like, shape (d,), optional
        Any nonzero solution of :math:`v_{21}^\top (m_1 + m_{-1}) = 2 b^\star`; see `lift`.

    Raises
    ------
    ValueError
        If Theta1 is empty, which is when the means are opposite and the priors differ, or when
        d = 1, ``b* = 0`` and the means are not opposite.
    """
    target = E1_point(task, s)
    try:
        return lift(target, task, v21)
    except ValueError as error:
        raise ValueError(f"no point of Theta1 (r = 0, b = b*) of this kind: {error}") from error


def theta2_point(task: LDATask, r: float, v21: ArrayLike | None = None) -> AttentionParams:
    r"""Point of Theta2 (constant gate) with sigmoid amplitude `r`.

    Parameters
    ----------
    task : LDATask
    r : float
        Free unless the means are opposite and the priors differ: then only
        :math:`r = 2 b^\star / (2 \pi_+ - 1)` is possible.
    v21 : array_like, shape (d,), optional
        Any nonzero solution of
        ``v21^T (m_1 + m_-1) = 2 b* + r (1 - 2 pi_+)``; see `lift`.

    Raises
    ------
    ValueError
        If Theta2 has no point with this `r`; Theta2 itself is never empty.
    """
    target = E2_point(task, r)
    try:
        return lift(target, task, v21)
    except ValueError as error:
        raise ValueError(f"no point of Theta2 (s = 0) with r = {target.r:.6g}: {error}") from error


def bayes_attention(task: LDATask) -> AttentionParams:
    r"""One head that realizes the Bayes score, in every case of Lemma B.3.

    - :math:`\pi_+ \neq 1/2`: :math:`U_{11} = I`, :math:`u_{12} = -\Delta m / 2`,
      :math:`v_{21} = \Gamma^{-1} w^\star`, :math:`v_{22} = (b^\star - v_{21}^\top \bar m) /
      (2 \pi_+ - 1)` with :math:`\bar m = (1 - \pi_+) m_{-1} + \pi_+ m_1`.
    - :math:`\pi_+ = 1/2`: the gate is constant (``s = 0``), :math:`v_{22} = 0` (it is free), and
      :math:`v_{21}` satisfies :math:`v_{21}^\top (m_1 + m_{-1}) / 2 = b^\star`; this includes
      opposite means, where :math:`b^\star = 0` and any :math:`v_{21} \neq 0` will do.
    """
    task = as_lda_task(task)
    w, b = task.bayes_score
    gap = task.mean_difference
    if task.has_equal_priors:
        M = task.mean_pos + task.mean_neg
        v = _unit_normal(M) if len(w) > 1 or task.has_opposite_means else np.zeros(1)
        if not task.has_opposite_means:
            v = v + M * (2 * b / (M @ M))
        a = task.covariance @ v
        U11 = np.outer(w, a / (a @ a))
        return AttentionParams(U11, -0.5 * U11 @ gap, v, 0.0)
    v = scipy.linalg.cho_solve((task.cholesky, True), w)
    prompt_mean = (1 - task.prior_pos) * task.mean_neg + task.prior_pos * task.mean_pos
    v22 = (b - float(v @ prompt_mean)) / (2 * task.prior_pos - 1)
    return AttentionParams(np.eye(len(w)), -0.5 * gap, v, v22)


def figure1_starts() -> tuple[LDATask, AttentionParams, AttentionParams]:
    """Task C1 and the two unperturbed starts of Figure 1 (Tables 1 and 3 of the paper).

    The first is in Theta1, the second in Theta2. The second column of the first one's ``U11`` is
    free (it does not change w) and is taken to be zero here.
    """
    task = LDATask([1.0, 0.0], [0.0, 1.0], np.eye(2), 0.6)
    _, b = task.bayes_score
    U11 = np.array([[0.5 / b, 0.0], [-0.5 / b, 0.0]])
    theta1 = AttentionParams(U11, [10.0, 10.0], [2 * b, 0.0], -b)
    v21 = np.array([1.0, -1.0])
    gap = task.mean_difference
    v22 = (v21 @ task.mean_neg - b + task.prior_pos * v21 @ gap) / (1 - 2 * task.prior_pos)
    return task, theta1, AttentionParams(np.eye(2), -0.5 * gap, v21, float(v22))


# --- critical points that are not minimizers -------------------------------------------------


def gate_critical_point(task: LDATask, v22: float, s: ArrayLike) -> AttentionParams:
    r"""Critical point of the risk with ``v21 = 0``, found from a start in (v22, s).

    With :math:`v_{21} = 0` the score is :math:`v_{22} \tanh((s_0 + s^\top x) / 2)`. At a critical
    point of the risk in :math:`(v_{22}, s)` the gradient in :math:`v_{21}` is
    :math:`\Gamma U_{11}^\top g + (m_1 + m_{-1}) \partial_r R` with :math:`g = \nabla_w R \neq 0`
    (Lemma B.16); it is made to vanish by the :math:`U_{11}` of least norm.

    Parameters
    ----------
    task : LDATask
    v22 : float
    s : array_like, shape (d,)
        Where the search for a critical point in (v22, s) starts.

    Returns
    -------
    AttentionParams

    Raises
    ------
    ValueError
        If the search from this start does not converge or escapes to infinity.
    """
    task = as_lda_task(task)
    d = task.dim
    start = np.concatenate([[as_scalar("v22", v22)], as_array("s", s, (d,))])
    # (w, b, r, s) = (0, -v22, 2 v22, s), linear in (v22, s)
    embed = np.zeros((2 * d + 2, d + 1))
    embed[d, 0], embed[d + 1, 0] = -1.0, 2.0
    embed[d + 2 :, 1:] = np.eye(d)

    def zeta(y: FloatArray) -> EffectiveParams:
        return EffectiveParams.from_vector(embed @ y, d)

    def gradient(y: FloatArray) -> FloatArray:
        slope: FloatArray = embed.T @ risk_gradient(zeta(y), task).to_vector()
        return slope

    def hessian(y: FloatArray) -> FloatArray:
        curvature: FloatArray = embed.T @ risk_hessian(zeta(y), task) @ embed
        return curvature

    found = scipy.optimize.root(
        gradient, start, jac=hessian, method="lm", tol=1e-15, options={"maxiter": 300}
    )
    if not np.linalg.norm(gradient(found.x)) <= 1e-11:
        raise ValueError(
            f"start (v22, s) = {start.tolist()}: the search reached no critical point, it stopped "
            f"at {found.x.tolist()} with a gradient of {np.linalg.norm(gradient(found.x)):.2g}"
        )
    if np.linalg.norm(task.cholesky.T @ found.x[1:]) > STEP_SLOPE:
        raise ValueError(
            f"start (v22, s) = {start.tolist()}: the search escaped to infinity, it stopped at "
            f"{found.x.tolist()}, where the gradient is small but there is no critical point"
        )
    slopes = risk_gradient(zeta(found.x), task)
    M = task.mean_pos + task.mean_neg
    row = -slopes.r * scipy.linalg.cho_solve((task.cholesky, True), M)
    U11 = np.outer(slopes.w, row) / (slopes.w @ slopes.w)
    u12 = 0.5 * (found.x[1:] - U11 @ task.mean_difference)
    return AttentionParams(U11, u12, np.zeros(d), float(found.x[0]))


def negative_curvature_direction(
    saddle: AttentionParams, task: LDATask, v21_direction: ArrayLike | None = None
) -> AttentionParams:
    r"""Return a unit direction of negative curvature at a critical point with ``v21 = 0`` (Lemma B.22).

    It is the combination of :math:`h_0 = (0, 0, \delta v_{21}, 0)` and
    :math:`h_1 = (-g (\Gamma \delta v_{21})^\top, g\, (\Gamma \delta v_{21})^\top \Delta m / 2, 0, 0)`,
    :math:`g = \nabla_w R`, where the curvature is least. The curvature along :math:`h_0 + t h_1` is
    :math:`C - 2 t |g|^2 |\Gamma \delta v_{21}|^2`, so that it is negative there.

    Parameters
    ----------
    saddle : AttentionParams
    task : LDATask
    v21_direction : array_like, shape (d,), optional
        The vector :math:`\delta v_{21} \neq 0`; by default the leading eigenvector of Gamma.

    Raises
    ------
    ValueError
        If ``v21`` is not zero at `saddle`, or the reduced w-gradient vanishes there.
    """
    check_params(saddle, task, AttentionParams, name="saddle")
    d = task.dim
    if np.linalg.norm(saddle.v21) > EQUALITY_RTOL:
        raise ValueError(f"saddle: expected v21 = 0, got {saddle.v21.tolist()}")
    g = risk_gradient(effective_params(saddle, task), task).w
    if not np.linalg.norm(g) > 1e-12:
        raise ValueError("saddle: expected a nonzero reduced gradient in w, got zero")
    if v21_direction is None:
        dv: FloatArray = np.linalg.eigh(task.covariance)[1][:, -1]
    else:
        dv = as_array("v21_direction", v21_direction, (d,))
    a = task.covariance @ dv
    zero_matrix, zero = np.zeros((d, d)), np.zeros(d)
    turn = AttentionParams(zero_matrix, zero, dv, 0.0).to_vector()
    push = AttentionParams(
        -np.outer(g, a), 0.5 * g * (a @ task.mean_difference), zero, 0.0
    ).to_vector()
    # the two are orthogonal, so the least Rayleigh quotient of their plane is a 2 x 2 eigenproblem
    plane = np.column_stack([turn / np.linalg.norm(turn), push / np.linalg.norm(push)])
    lowest = np.linalg.eigh(plane.T @ risk_hessian(saddle, task) @ plane)[1][:, 0]
    return AttentionParams.from_vector(plane @ lowest, d)


# --- tangent spaces and spectra --------------------------------------------------------------


def tangent_E1(task: LDATask) -> FloatArray:
    """Orthonormal basis (2d+2, d) of the tangent space of E1: the directions of s."""
    task = as_lda_task(task)
    d = task.dim
    return np.eye(2 * d + 2)[:, d + 2 :]


def tangent_E2(task: LDATask) -> FloatArray:
    """Return the unit vector (2d+2, 1) along E2: ``(0, -sigma(s0), 1, 0)`` normalized."""
    task = as_lda_task(task)
    d = task.dim
    tangent = np.zeros((2 * d + 2, 1))
    tangent[d : d + 2, 0] = np.array([-task.prior_pos, 1.0]) / np.hypot(1.0, task.prior_pos)
    return tangent


def tangent_theta1(theta: AttentionParams, task: LDATask) -> FloatArray:
    r"""Orthonormal basis of the tangent space of Theta1, shape (d^2+2d+1, d^2+d-1).

    It is the kernel of the differential of (w, b, r), which is onto when the means are not
    opposite (Lemma B.26). `theta` should be a point of Theta1.
    """
    check_params(theta, task, AttentionParams, name="theta")
    _require_regular(task)
    d = task.dim
    return _null_space(effective_jacobian(theta, task)[: d + 2])


def tangent_theta2(theta: AttentionParams, task: LDATask) -> FloatArray:
    r"""Orthonormal basis of the tangent space of Theta2, shape (d^2+2d+1, d^2).

    It is the preimage under the differential of Phi of the tangent line of E2 (Corollary B.31).
    `theta` should be a point of Theta2.
    """
    check_params(theta, task, AttentionParams, name="theta")
    _require_regular(task)
    along = tangent_E2(task)
    jacobian = effective_jacobian(theta, task)
    # an orthonormal basis of the complement of the tangent line, so that rows are independent
    transverse = _null_space(along.T)
    return _null_space(transverse.T @ jacobian)


def hessian_spectrum(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """Eigenvalues of the Hessian of the risk, ascending, shape (p,)."""
    return np.asarray(np.linalg.eigvalsh(risk_hessian(params, task)), dtype=np.float64)


def hessian_kernel(
    params: AttentionParams | EffectiveParams, task: LDATask, rtol: float = 1e-9
) -> FloatArray:
    """Orthonormal basis (p, k) of the numerical kernel of the Hessian of the risk.

    Eigenvalues of at most `rtol` times the largest in size count as zero.
    """
    eigenvalues, eigenvectors = np.linalg.eigh(risk_hessian(params, task))
    zero = np.abs(eigenvalues) <= as_scalar("rtol", rtol, at_least=0.0) * np.abs(eigenvalues).max()
    return eigenvectors[:, zero]


def predicted_rate(
    params: AttentionParams | EffectiveParams, task: LDATask, rtol: float = 1e-9
) -> float:
    r"""Exponential rate of the excess risk towards a nondegenerate minimizer, per unit of time.

    Along gradient flow to a Morse-Bott minimizer the slowest normal direction decays like
    :math:`e^{-\lambda t}`, :math:`\lambda` the least nonzero eigenvalue of the Hessian at the
    limit, so for generic starts the excess risk decays like :math:`e^{-2 \lambda t}`. This sharpens
    Theorem 3.5, which asserts some exponential rate; it is not in the paper.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
        The limit point, a minimizer.
    task : LDATask
    rtol : float
        Eigenvalues of at most `rtol` times the largest count as zero.
    """
    eigenvalues = hessian_spectrum(params, task)
    positive = eigenvalues > as_scalar("rtol", rtol, at_least=0.0, below=1.0) * eigenvalues[-1]
    return 2 * float(eigenvalues[positive].min())


# --- private ---------------------------------------------------------------------------------


def _unit_normal(vector: FloatArray) -> FloatArray:
    """Return a unit vector orthogonal to `vector` (any unit vector if it is zero)."""
    axis: FloatArray = np.eye(len(vector))[np.argmin(np.abs(vector))]
    if not vector.any():
        return axis
    unit = vector / np.linalg.norm(vector)
    normal: FloatArray = axis - unit * (unit @ axis)
    normal /= np.linalg.norm(normal)
    return normal


def _null_space(matrix: FloatArray) -> FloatArray:
    basis: FloatArray = scipy.linalg.null_space(matrix)
    return basis


def _require_regular(task: LDATask) -> None:
    if task.has_opposite_means:
        raise ValueError(
            "task: expected m_1 != -m_-1 (with opposite means the differential of Phi is not onto "
            "and the tangent space is not given by its kernel)"
        )
