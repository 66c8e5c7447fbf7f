r"""The symmetric balanced task and the invariant Krylov subspace of its gradient flow.

Section 3.3 and appendix B.9-B.12 of the paper. With ``m_1 = -m_-1 = m`` and ``pi_+ = 1/2``, let K
be the Krylov space of (Gamma, m) and

.. math::
    I_K = \{u_{12} = 0,\; v_{22} = 0,\; v_{21} \in K^\perp,\; U_{11} P_K = 0\}.

Gradient flow leaves this subspace of attention parameters invariant, and on it the score is linear.
"""

from __future__ import annotations

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from mixattn._checks import EQUALITY_RTOL, FloatArray, as_array, as_generator, as_scalar
from mixattn.classification.params import AttentionParams, EffectiveParams, check_params
from mixattn.classification.risk import risk_hessian
from mixattn.classification.task import LDATask, as_lda_task


def krylov_basis(matrix: ArrayLike, vector: ArrayLike, rtol: float = 1e-10) -> FloatArray:
    r"""Orthonormal basis of :math:`\mathrm{span}\{v, A v, A^2 v, \dots\}`.

    For a symmetric matrix the space is spanned by the projections of v onto the eigenspaces
    (Proposition B.35), and they are orthogonal: its dimension is the number of distinct eigenvalues
    that v meets. This is how it is computed, because orthogonalizing the powers one by one
    finds the copies of a multiple eigenvalue that rounding errors make. Other matrices are treated
    by the Arnoldi process with reorthogonalization.

    Parameters
    ----------
    matrix : array_like, shape (d, d)
    vector : array_like, shape (d,)
    rtol : float
        Eigenvalues closer than `rtol` times the matrix's norm are one eigenvalue, and a projection
        of at most `rtol` times the vector's norm is zero.

    Returns
    -------
    ndarray, shape (d, k)
        Orthonormal columns; k = 0 if the vector is zero.

    Raises
    ------
    ValueError
        If an argument is not as above.

    Examples
    --------
    >>> import numpy as np
    >>> from mixattn import krylov_basis
    >>> krylov_basis(np.diag([1.0, 1.0, 2.0]), [3.0, 4.0, 0.0]).round(3)
    array([[0.6],
           [0.8],
           [0. ]])
    """
    v = as_array("vector", vector, ("d",))
    A = as_array("matrix", matrix, (len(v), len(v)))
    rtol = as_scalar("rtol", rtol, at_least=0.0, below=1.0)
    # unit scale: neither the space nor the decisions depend on the sizes of A and v
    A = A / (np.abs(A).max() or 1.0)
    v = v / (np.abs(v).max() or 1.0)
    if not v.any():
        return np.empty((len(v), 0))
    v = v / np.linalg.norm(v)
    if np.abs(A - A.T).max() <= 1e-12:
        return _spectral_krylov(0.5 * (A + A.T), v, rtol)
    return _arnoldi(A, v, rtol)


def _spectral_krylov(A: FloatArray, v: FloatArray, rtol: float) -> FloatArray:
    eigenvalues, eigenvectors = np.linalg.eigh(A)
    norm = np.abs(eigenvalues).max()
    gaps = np.diff(eigenvalues)
    cuts = np.flatnonzero(gaps > rtol * norm)
    starts, stops = np.r_[0, cuts + 1], np.r_[cuts + 1, len(v)]
    # an eigenspace is known to rounding over its gap, and the projection of v no better
    widths = np.r_[np.inf, gaps[cuts], np.inf]
    columns = []
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        space = eigenvectors[:, start:stop]
        projection = space @ (space.T @ v)
        uncertainty = len(v) * np.finfo(float).eps * norm / min(widths[i], widths[i + 1])
        size = np.linalg.norm(projection)
        if size > rtol + uncertainty:
            columns.append(projection / size)
    return np.column_stack(columns)


def _arnoldi(A: FloatArray, v: FloatArray, rtol: float) -> FloatArray:
    norm = np.linalg.norm(A, 2)
    basis = v[:, None]
    while basis.shape[1] < len(v):
        new = A @ basis[:, -1]
        for _ in range(2):  # twice is enough for orthogonality to rounding
            new = new - basis @ (basis.T @ new)
        size = np.linalg.norm(new)
        if size <= rtol * norm:
            break
        basis = np.column_stack([basis, new / size])
    return basis


def task_krylov_basis(task: LDATask, rtol: float = 1e-10) -> FloatArray:
    """Orthonormal basis of the Krylov space K of ``(Gamma, m_1 - m_-1)`` (Proposition B.35).

    Parameters
    ----------
    task : LDATask
    rtol : float
        As in `krylov_basis`.

    Returns
    -------
    ndarray, shape (d, k)

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    task = as_lda_task(task)
    return krylov_basis(task.covariance, task.mean_difference, rtol)


def project_to_invariant_subspace(theta: AttentionParams, task: LDATask) -> AttentionParams:
    """Closest point of I_K: ``u12`` and ``v22`` set to zero, ``v21`` and the rows of ``U11`` cut.

    Parameters
    ----------
    theta : AttentionParams
    task : LDATask
        Symmetric and balanced: otherwise I_K is not invariant (Lemma B.37).

    Returns
    -------
    AttentionParams

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    check_params(theta, task, AttentionParams, name="theta")
    _require_symmetric_balanced(task)
    basis = task_krylov_basis(task)
    v21 = theta.v21 - basis @ (basis.T @ theta.v21)
    U11 = theta.U11 - (theta.U11 @ basis) @ basis.T
    return AttentionParams(U11, np.zeros_like(v21), v21, 0.0)


def distance_to_invariant_subspace(theta: AttentionParams, task: LDATask) -> float:
    """Euclidean distance of attention parameters to I_K.

    Parameters
    ----------
    theta : AttentionParams
    task : LDATask
        Symmetric and balanced.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    inside = project_to_invariant_subspace(theta, task)
    return float(np.linalg.norm(theta.to_vector() - inside.to_vector()))


def conserved_quantity(theta: AttentionParams, task: LDATask, C: ArrayLike | None = None) -> float:
    r"""Invariant :math:`\mathrm{tr}\, C (U_{11}^\top U_{11} - v_{21} v_{21}^\top)` on I_K.

    Parameters
    ----------
    theta : AttentionParams
    task : LDATask
    C : array_like, shape (d, d), optional
        Symmetric and commuting with Gamma. The default, the identity, gives the balance
        :math:`|U_{11}|_F^2 - |v_{21}|^2` of Lemma B.34; the others are not in the paper.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above, `C` is not symmetric or does not commute with Gamma.
    """
    check_params(theta, task, AttentionParams, name="theta")
    d = len(theta.v21)
    weight = np.eye(d) if C is None else as_array("C", C, (d, d))
    gamma = task.covariance
    size = np.abs(weight).max()
    if np.abs(weight - weight.T).max() > EQUALITY_RTOL * size:
        raise ValueError("C: expected a symmetric matrix")
    commutator = float(np.abs(weight @ gamma - gamma @ weight).max())
    if commutator > EQUALITY_RTOL * d * size * np.abs(gamma).max():
        raise ValueError(
            f"C: expected a matrix that commutes with Gamma, got a commutator of {commutator:.2g}"
        )
    return float(np.sum(weight * (theta.U11.T @ theta.U11)) - theta.v21 @ weight @ theta.v21)


def expected_positive_part(mean: float, std: float) -> float:
    r""":math:`E[\max(X, 0)] = \mu \Phi(\mu/s) + s \varphi(\mu/s)`, X Gaussian (Lemma B.6).

    Parameters
    ----------
    mean : float
    std : float
        Positive.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    mean = as_scalar("mean", mean)
    std = as_scalar("std", std, above=0.0)
    q = mean / std
    return float(mean * scipy.special.ndtr(q) + std * np.exp(-0.5 * q * q) / np.sqrt(2 * np.pi))


def coercivity_constant(task: LDATask) -> float:
    r"""Constant of Lemma B.32: :math:`L(w) \geq C_1 |w|` in the symmetric balanced task.

    :math:`C_1 = \lambda_{\min}(\Gamma)^{1/2} \min_{|t| \leq M} (t \Phi(t) + \varphi(t))` with
    :math:`M = (m^\top \Gamma^{-1} m)^{1/2}`; the function increases, so its minimum is at -M.

    Parameters
    ----------
    task : LDATask
        Symmetric and balanced.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    _require_symmetric_balanced(task)
    m = task.mean_pos
    M = float(np.sqrt(m @ np.linalg.solve(task.covariance, m)))
    smallest = float(np.linalg.eigvalsh(task.covariance)[0])
    return float(np.sqrt(smallest)) * expected_positive_part(-M, 1.0)


def linear_risk_hessian(w: ArrayLike, task: LDATask) -> FloatArray:
    r"""Hessian of the reduced risk :math:`L(w) = R(w, 0, 0, 0)` (Lemma B.33).

    Parameters
    ----------
    w : array_like, shape (d,)
    task : LDATask

    Returns
    -------
    ndarray, shape (d, d)

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    task = as_lda_task(task)
    d = task.dim
    zeta = EffectiveParams(as_array("w", w, (d,)), 0.0, 0.0, np.zeros(d))
    return risk_hessian(zeta, task)[:d, :d]


def reduced_metric(theta: AttentionParams, task: LDATask) -> FloatArray:
    r"""Metric of the reduced flow :math:`\dot w = -G \nabla L(w)` on I_K.

    :math:`G = |\Gamma v_{21}|^2 I + U_{11} \Gamma^2 U_{11}^\top` (proof of Theorem 3.6).

    Parameters
    ----------
    theta : AttentionParams
    task : LDATask

    Returns
    -------
    ndarray, shape (d, d)

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    check_params(theta, task, AttentionParams, name="theta")
    a = task.covariance @ theta.v21
    root = theta.U11 @ task.covariance
    return (a @ a) * np.eye(len(a)) + root @ root.T


def predicted_krylov_rate(theta: AttentionParams, task: LDATask) -> float:
    r"""Exponential rate of the excess risk from the starts of Theorem 3.6, per unit of time.

    From ``U11 = 0`` the predictor w stays in K, which :math:`G \nabla^2 L(w^\star)` maps to
    itself; the rate is twice its least eigenvalue there. This sharpens the bound of Theorem 3.6 and
    is not in the paper.

    Parameters
    ----------
    theta : AttentionParams
        The limit point of the flow.
    task : LDATask
        Symmetric and balanced.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    check_params(theta, task, AttentionParams, name="theta")
    _require_symmetric_balanced(task)
    basis = task_krylov_basis(task)
    metric = basis.T @ reduced_metric(theta, task) @ basis
    curvature = basis.T @ linear_risk_hessian(task.bayes_score[0], task) @ basis
    root = np.linalg.cholesky(metric)
    return 2 * float(np.linalg.eigvalsh(root.T @ curvature @ root)[0])


def figure45_starts(
    rng: np.random.Generator,
) -> tuple[LDATask, AttentionParams, AttentionParams]:
    """Task C2 of the paper and one random start each of its Figures 4 and 5.

    ``d = 20``, means ``e_1`` and ``-e_1``, ``Gamma = I``, equal priors.

    Parameters
    ----------
    rng : numpy.random.Generator

    Returns
    -------
    task : LDATask
    gaussian : AttentionParams
        Figure 4: all entries are independent standard normal.
    near_krylov : AttentionParams
        Figure 5: ``v21`` is standard normal, everything else zero. It is near I_K but not in it:
        ``v21`` has a component along the mean.

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    rng = as_generator(rng)
    d = 20
    mean = np.eye(d)[0]
    task = LDATask(mean, -mean, np.eye(d), 0.5)
    gaussian = AttentionParams.from_vector(rng.standard_normal(d * d + 2 * d + 1), d)
    zero = np.zeros(d)
    near_krylov = AttentionParams(np.zeros((d, d)), zero, rng.standard_normal(d), 0.0)
    return task, gaussian, near_krylov


def _require_symmetric_balanced(task: LDATask) -> None:
    task = as_lda_task(task)
    if not task.has_opposite_means:
        raise ValueError("task: expected opposite means, m_1 = -m_-1 (symmetric case)")
    if not task.has_equal_priors:
        raise ValueError(f"task: expected equal priors (balanced), got pi_+ = {task.prior_pos!r}")
