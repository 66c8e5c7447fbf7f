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

from mixattn._checks import EQUALITY_RTOL, FloatArray, as_array, as_scalar
from mixattn.classification.params import (
    AttentionParams,
    EffectiveParams,
    as_effective,
    check_params,
    effective_jacobian,
    effective_params,
    effective_slices,
)
from mixattn.classification.risk import risk_gradient, risk_hessian
from mixattn.classification.task import LDATask, as_lda_task

# Beyond this whitened slope a gate is a step: a search for a critical point has run to infinity,
# where the gradient vanishes too.
STEP_SLOPE = 1e6
# A search for a critical point ends at a gradient of rounding size.
CRITICAL_GRADIENT = 1e-11
# A reduced gradient of this size, in units of the tokens, is zero.
ROUNDED_GRADIENT = 1e-12


# --- the two families of minimizers in effective coordinates ---------------------------------


def E1_point(task: LDATask, s: ArrayLike) -> EffectiveParams:
    """Point ``(w*, b*, 0, s)`` of E1: the sigmoid has amplitude zero (Theorem 3.1).

    Parameters
    ----------
    task : LDATask
    s : array_like, shape (d,)
        Free.

    Returns
    -------
    EffectiveParams

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    task = as_lda_task(task)
    w, b = task.bayes_score
    return EffectiveParams(w, b, 0.0, as_array("s", s, (len(w),)))


def E2_point(task: LDATask, r: float) -> EffectiveParams:
    """Point ``(w*, b* - r sigma(s0), r, 0)`` of E2: the gate is constant (Theorem 3.1).

    Parameters
    ----------
    task : LDATask
    r : float
        Free.

    Returns
    -------
    EffectiveParams

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    task = as_lda_task(task)
    w, b = task.bayes_score
    r = as_scalar("r", r)
    return EffectiveParams(w, b - r * task.prior_pos, r, np.zeros(len(w)))


def distance_to_E1(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Euclidean distance of the effective parameters to E1.

    It is :math:`(|w - w^\star|^2 + (b - b^\star)^2 + r^2)^{1/2}`. Attention parameters are mapped
    through Phi first: this is the "effective distance" of Figure 1.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above or dimensions differ.
    """
    zeta = as_effective(params, task)
    w, b = task.bayes_score
    return float(np.linalg.norm([*(zeta.w - w), zeta.b - b, zeta.r]))


def distance_to_E2(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Euclidean distance of the effective parameters to E2.

    In the plane of (b, r) the family is the line :math:`b + r \sigma(s_0) = b^\star`, so the
    distance is :math:`(|w - w^\star|^2 + |s|^2 + (b + r \sigma(s_0) - b^\star)^2 /
    (1 + \sigma(s_0)^2))^{1/2}`.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above or dimensions differ.
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

    Returns
    -------
    EffectiveParams

    Raises
    ------
    ValueError
        If an argument is not as above.
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

    Returns
    -------
    AttentionParams

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

    Returns
    -------
    AttentionParams

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

    Parameters
    ----------
    task : LDATask

    Returns
    -------
    AttentionParams

    Raises
    ------
    ValueError
        If `task` is not a classification task.
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

    Returns
    -------
    task : LDATask
    theta1, theta2 : AttentionParams
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
    :math:`\Gamma U_{11}^\top g + (m_1 + m_{-1}) \partial_r R` with :math:`g = \nabla_w R`. If
    :math:`g \neq 0` it is made to vanish by the :math:`U_{11}` of least norm; if :math:`g = 0` and
    the means are not opposite, no head with this pair is critical, whatever :math:`U_{11}` is.
    (Lemma B.16 shows :math:`g \neq 0` only at heads that are critical already; the converse is not
    in the paper.) At :math:`v_{22} = 0`, :math:`g = -E[YX]/2` for every s.

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
        If the search from this start does not converge or escapes to infinity, or if the reduced
        gradient g vanishes where it ends: at ``v22 = 0``, if E[YX] = 0.
    """
    task = as_lda_task(task)
    d = task.dim
    start = np.concatenate([[as_scalar("v22", v22)], as_array("s", s, (d,))])
    pair = _critical_pair(task, start)
    slopes = risk_gradient(_on_gate(pair), task)
    M = np.zeros(d) if task.has_opposite_means else task.mean_pos + task.mean_neg
    size = np.linalg.norm(task.mean_pos) + np.linalg.norm(task.cholesky)
    if M.any() and np.linalg.norm(slopes.w) <= ROUNDED_GRADIENT * size:
        raise ValueError(_no_head(task, pair, slopes))
    row = -slopes.r * scipy.linalg.cho_solve((task.cholesky, True), M)
    U11 = np.outer(slopes.w, row) / (slopes.w @ slopes.w)
    u12 = 0.5 * (pair[1:] - U11 @ task.mean_difference)
    head = AttentionParams(U11, u12, np.zeros(d), float(pair[0]))
    if not np.linalg.norm(risk_gradient(head, task).to_vector()) <= CRITICAL_GRADIENT * (1 + size):
        raise ValueError(_no_head(task, pair, slopes))
    return head


def _critical_pair(task: LDATask, start: FloatArray) -> FloatArray:
    """Find a zero of the gradient in (v22, s), shape (d + 1,)."""
    d = task.dim
    embed = np.zeros((2 * d + 2, d + 1))
    embed[d, 0], embed[d + 1, 0] = -1.0, 2.0
    embed[d + 2 :, 1:] = np.eye(d)

    def gradient(y: FloatArray) -> FloatArray:
        return embed.T @ risk_gradient(_on_gate(y), task).to_vector()

    def hessian(y: FloatArray) -> FloatArray:
        return embed.T @ risk_hessian(_on_gate(y), task) @ embed

    def escaped(y: FloatArray) -> bool:
        return bool(np.linalg.norm(task.cholesky.T @ y[1:]) > STEP_SLOPE)

    at_infinity = (
        f"start (v22, s) = {start.tolist()}: the search escaped to infinity, "
        "where the gradient is small but there is no critical point"
    )
    gradient(start)  # refuses a start that is beyond the integrals' reach
    try:
        found = scipy.optimize.root(
            gradient, start, jac=hessian, method="lm", tol=1e-15, options={"maxiter": 300}
        ).x
        norm = np.linalg.norm(gradient(found))
    except ValueError as error:  # the only refusal left: parameters beyond the integrals' reach
        raise ValueError(at_infinity) from error
    if not norm <= CRITICAL_GRADIENT:
        raise ValueError(
            f"start (v22, s) = {start.tolist()}: the search reached no critical point, it stopped "
            f"at {found.tolist()} with a gradient of {norm:.2g}"
        )
    if escaped(found):
        raise ValueError(at_infinity)
    return found


def _on_gate(pair: FloatArray) -> EffectiveParams:
    """Effective parameters (0, -v22, 2 v22, s) of the score v22 tanh((s0 + s^T x) / 2)."""
    return EffectiveParams(np.zeros(len(pair) - 1), -pair[0], 2 * pair[0], pair[1:])


def _no_head(task: LDATask, pair: FloatArray, slopes: EffectiveParams) -> str:
    label_mean = task.prior_pos * task.mean_pos - (1 - task.prior_pos) * task.mean_neg
    return (
        f"start: the critical pair (v22, s) = {pair.tolist()} belongs to no critical head, or to "
        f"none that floats resolve: expected a reduced gradient g in w that is not zero, got "
        f"|g| = {np.linalg.norm(slopes.w):.2g} (at v22 = 0, g = -E[YX]/2, and |E[YX]| = "
        f"{np.linalg.norm(label_mean):.2g})"
    )


def negative_curvature_direction(
    saddle: AttentionParams, task: LDATask, v21_direction: ArrayLike | None = None
) -> AttentionParams:
    r"""Return a unit direction of negative curvature where ``v21 = 0`` (Lemma B.22).

    It is the combination of :math:`h_0 = (0, 0, \delta v_{21}, 0)` and
    :math:`h_1 = (-g (\Gamma \delta v_{21})^\top, g\, (\Gamma \delta v_{21})^\top \Delta m / 2, 0,
    0)`, :math:`g = \nabla_w R`, where the curvature is least. The curvature along
    :math:`h_0 + t h_1` is :math:`C - 2 t |g|^2 |\Gamma \delta v_{21}|^2`, so that it is negative
    there.

    Parameters
    ----------
    saddle : AttentionParams
    task : LDATask
    v21_direction : array_like, shape (d,), optional
        The vector :math:`\delta v_{21} \neq 0`; by default the leading eigenvector of Gamma.

    Returns
    -------
    AttentionParams
        Of Euclidean norm 1.

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
        dv = np.linalg.eigh(task.covariance)[1][:, -1]
    else:
        dv = as_array("v21_direction", v21_direction, (d,))
        if not dv.any():
            raise ValueError("v21_direction: expected a nonzero vector, got zero")
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
    """Orthonormal basis of the tangent space of E1: the directions of s.

    Parameters
    ----------
    task : LDATask

    Returns
    -------
    ndarray, shape (2d + 2, d)

    Raises
    ------
    ValueError
        If `task` is not a classification task.
    """
    d = as_lda_task(task).dim
    return np.eye(2 * d + 2)[:, d + 2 :]


def tangent_E2(task: LDATask) -> FloatArray:
    """Return the unit vector along E2: ``(0, -sigma(s0), 1, 0)`` normalized.

    Parameters
    ----------
    task : LDATask

    Returns
    -------
    ndarray, shape (2d + 2, 1)

    Raises
    ------
    ValueError
        If `task` is not a classification task.
    """
    d = as_lda_task(task).dim
    tangent = np.zeros((2 * d + 2, 1))
    tangent[d : d + 2, 0] = np.array([-task.prior_pos, 1.0]) / np.hypot(1.0, task.prior_pos)
    return tangent


def tangent_theta1(theta: AttentionParams, task: LDATask) -> FloatArray:
    r"""Orthonormal basis of the tangent space of Theta1.

    It is the kernel of the differential of (w, b, r), which is onto when the means are not
    opposite (Lemma B.26). With opposite means and equal priors r = -2b, and it is that of
    (w, b), one dimension larger (not in the paper).

    Parameters
    ----------
    theta : AttentionParams
        A point of Theta1.
    task : LDATask

    Returns
    -------
    ndarray, shape (d^2 + 2d + 1, d^2 + d - 1), or (d^2 + 2d + 1, d^2 + d) with opposite means

    Raises
    ------
    ValueError
        If an argument is not as above, or Theta1 is empty: opposite means and unequal priors.
    """
    check_params(theta, task, AttentionParams, name="theta")
    opposite = task.has_opposite_means
    if opposite and not task.has_equal_priors:
        raise ValueError(
            "task: expected m_1 != -m_-1 or equal priors (otherwise r = -2b keeps r = 0 from being "
            "optimal, and Theta1 is empty)"
        )
    rows = task.dim + (1 if opposite else 2)
    return scipy.linalg.null_space(effective_jacobian(theta, task)[:rows])


def tangent_theta2(theta: AttentionParams, task: LDATask) -> FloatArray:
    r"""Orthonormal basis of the tangent space of Theta2.

    It is the preimage under the differential of Phi of the tangent line of E2 (Corollary B.31).
    With opposite means r = -2b: the line is free if the priors are equal, and not met otherwise
    (not in the paper).

    Parameters
    ----------
    theta : AttentionParams
        A point of Theta2.
    task : LDATask

    Returns
    -------
    ndarray, shape (d^2 + 2d + 1, d^2), or (d^2 + 2d + 1, d^2 + 1) with opposite means and equal
    priors

    Raises
    ------
    ValueError
        If an argument is not as above or dimensions differ.
    """
    check_params(theta, task, AttentionParams, name="theta")
    jacobian = effective_jacobian(theta, task)
    w, b, _, s = effective_slices(task.dim)
    if task.has_opposite_means:
        fixed = [jacobian[w], jacobian[s]] + [jacobian[b : b + 1]] * (not task.has_equal_priors)
        return scipy.linalg.null_space(np.concatenate(fixed))
    # an orthonormal basis of the complement of the tangent line, so that rows are independent
    transverse = scipy.linalg.null_space(tangent_E2(task).T)
    return scipy.linalg.null_space(transverse.T @ jacobian)


def hessian_spectrum(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """Eigenvalues of the Hessian of the risk, ascending.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    ndarray, shape (p,)

    Raises
    ------
    ValueError
        As `risk_hessian`.
    """
    return np.asarray(np.linalg.eigvalsh(risk_hessian(params, task)), dtype=np.float64)


def hessian_kernel(
    params: AttentionParams | EffectiveParams, task: LDATask, rtol: float = 1e-9
) -> FloatArray:
    """Orthonormal basis of the numerical kernel of the Hessian of the risk.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask
    rtol : float
        Eigenvalues of at most `rtol` times the largest in size count as zero.

    Returns
    -------
    ndarray, shape (p, k)

    Raises
    ------
    ValueError
        If `rtol` is negative, or as `risk_hessian`.
    """
    rtol = as_scalar("rtol", rtol, at_least=0.0)
    eigenvalues, eigenvectors = np.linalg.eigh(risk_hessian(params, task))
    return eigenvectors[:, np.abs(eigenvalues) <= rtol * np.abs(eigenvalues).max()]


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

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If `rtol` is not in [0, 1), or as `risk_hessian`.
    """
    rtol = as_scalar("rtol", rtol, at_least=0.0, below=1.0)
    eigenvalues = hessian_spectrum(params, task)
    positive = eigenvalues > rtol * eigenvalues[-1]
    return 2 * float(eigenvalues[positive].min())


# --- private ---------------------------------------------------------------------------------


def _unit_normal(vector: FloatArray) -> FloatArray:
    """Return a unit vector orthogonal to `vector` (any unit vector if it is zero)."""
    axis = np.eye(len(vector))[np.argmin(np.abs(vector))]
    if not vector.any():
        return axis
    unit = vector / np.linalg.norm(vector)
    normal = axis - unit * (unit @ axis)
    return normal / np.linalg.norm(normal)
