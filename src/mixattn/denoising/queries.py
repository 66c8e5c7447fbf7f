"""Mean squared error of a gated map over weighted queries, and its gradient.

The one place where a gated map is differentiated at given queries: for online descent on fresh
samples and for training over many tasks at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixattn._checks import FloatArray, Frozen
from mixattn.denoising.gated import softmax


@dataclass(frozen=True, eq=False)
class QueryRule(Frozen):
    """Weighted queries of N tasks, whose noisy laws share a covariance, and the targets there.

    For training loops: the arrays are taken as they are, unchecked. Those of the tasks and of the
    queries may have leading axes R, one entry a run.

    Attributes
    ----------
    log_odds : ndarray, shape (R, N, K, 1)
        Logarithms of the component weights over the last one's.
    differences : ndarray, shape (R, N, K, d)
        Means of the components less that of the last.
    reference : ndarray, shape (R, N, d, 1)
        Mean of the last component.
    covariance : ndarray, shape (d, d)
        Of every component of the noisy law.
    queries, targets : ndarray, shape (R, N, d, n)
        The queries and the Bayes denoiser there.
    weights : ndarray, shape (R, N, n)
        They sum to 1 over n.
    """

    log_odds: FloatArray
    differences: FloatArray
    reference: FloatArray
    covariance: FloatArray
    queries: FloatArray
    targets: FloatArray
    weights: FloatArray

    def __post_init__(self) -> None:
        """Mark the arrays as read-only."""
        self._set(**vars(self))

    def excess_and_gradient(
        self, A: FloatArray, P: FloatArray, U: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Mean over tasks of the weighted squared error, and its derivatives in A, P and U.

        Parameters
        ----------
        A : ndarray, shape (R, d, d)
        P, U : ndarray, shape (R, H, d, d)

        Returns
        -------
        value : ndarray, shape (R,)
        grad_A : ndarray, shape (R, d, d)
        grad_P, grad_U : ndarray, shape (R, H, d, d)
        """
        z, D = self.queries, self.differences
        heads = [
            (P[..., h, None, :, :], U[..., h, None, :, :]) for h in range(P.shape[-3])
        ]  # each (R, 1, d, d): one head for all tasks
        reads = [self._read(U_h) for _, U_h in heads]
        error = A[..., None, :, :] @ z - self.targets
        error = error + sum(P_h @ read for (P_h, _), (read, _) in zip(heads, reads, strict=True))
        back = (2.0 / z.shape[-3]) * self.weights[..., None, :] * error
        value = 0.5 * np.sum(back * error, axis=(-3, -2, -1))

        grad_A = np.sum(back @ _transposed(z), axis=-3)
        grad_P, grad_U = [], []
        for (P_h, _), (read, gates) in zip(heads, reads, strict=True):
            grad_P.append(np.sum(back @ _transposed(read), axis=-3))
            on_read = _transposed(P_h) @ back
            along = D @ on_read
            through = gates * (along - np.sum(gates * along, axis=-2, keepdims=True))
            on_tilt = self.covariance @ on_read + _transposed(D) @ through
            grad_U.append(np.sum(on_tilt @ _transposed(z), axis=-3))
        return value, grad_A, np.stack(grad_P, axis=-3), np.stack(grad_U, axis=-3)

    def _read(self, U: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what a head reads at the queries, (R, N, d, n), and its gates (R, N, K, n)."""
        tilts = U @ self.queries
        gates, _ = softmax(self.log_odds + self.differences @ tilts)
        read = self.covariance @ tilts + self.reference + _transposed(self.differences) @ gates
        return read, gates


def _transposed(array: FloatArray) -> FloatArray:
    return np.swapaxes(array, -1, -2)
