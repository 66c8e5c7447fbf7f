r"""Softmax attention over a finite prompt of independent tokens: its law, its bias, its error.

The output over L tokens is a ratio of two means, :math:`V A_L / B_L` with
:math:`A_L = \frac1L \sum_i x_i e^{t^\top x_i}`, :math:`B_L = \frac1L \sum_i e^{t^\top x_i}` and the
tilt t = U z. Its first-order law is in closed form for mixtures, because the squared weights are
the law tilted twice as far (`finite_prompt_covariance`, `finite_prompt_bias`,
`effective_prompt_length`). In dimension one its first two moments, and how much its softmax weights
concentrate, are exact one-dimensional integrals (`exact_error_1d`, `mean_square_error_1d`,
`exact_participation_1d`), without expansion or simulation.

Nothing here is in the paper, which leaves finite prompts open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from mixattn._checks import FloatArray, as_array, as_scalar, is_finite
from mixattn.integrals.rules import normal_density
from mixattn.mixture import GaussianMixture

# Trapezoidal steps of the exact integrals. All integrands are functions of log s + t x, analytic
# in a strip of half-width pi / 2: a step of 1/4 leaves exp(-4 pi^2), and half a standard deviation
# of a Gaussian exp(-8 pi^2).
_LOG_STEP = 0.25
_GAUSSIAN_STEP = 0.5
# What is cut off has at most this log size, relative to an error of size 1 / L.
_CUT = 42.0
# Time grows with its square: seconds for the largest.
_LARGEST_SPAN = 5000.0
# In standard deviations of the queries, or of their tilts in units of the tokens' deviation.
_QUERY_STEP = 0.25


def finite_prompt_covariance(
    mixture: GaussianMixture, query: ArrayLike, U: ArrayLike, V: ArrayLike, length: float
) -> FloatArray:
    r"""Covariance of the output over `length` independent tokens, to first order in 1 / length.

    .. math::
        \frac{\kappa(t)}{L}\, V \bigl[\nabla^2 K(2t) + \delta \delta^\top\bigr] V^\top, \qquad
        t = U z, \quad \kappa(t) = e^{K(2t) - 2K(t)}, \quad \delta = \nabla K(2t) - \nabla K(t),

    with K the cumulant generating function of the mixture. The law of
    :math:`\sqrt L\,(\text{output} - T[\mu](z))` tends to the centered Gaussian of L times this
    covariance, for each fixed query (delta method).

    Parameters
    ----------
    mixture : GaussianMixture
        Law of the prompt's tokens, in dimension d.
    query : array_like, shape (..., d)
    U : array_like, shape (d, d)
    V : array_like, shape (d_out, d)
    length : float
        Number L of tokens, at least 1.

    Returns
    -------
    ndarray, shape (..., d_out, d_out)
        An entry beyond the largest float comes back as a signed infinity, without a warning: the
        effective prompt length is then far below 1 and the expansion says nothing.

    Raises
    ------
    ValueError
        If a shape does not fit, an entry is not finite, `length` is below 1, or the
        tilt is so large that K(2t) or the output overflows.

    Examples
    --------
    On a standard Gaussian the variance is :math:`e^{t^2} (1 + t^2) / L`:

    >>> import numpy as np
    >>> from mixattn import GaussianMixture, finite_prompt_covariance
    >>> gaussian = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> variance = finite_prompt_covariance(gaussian, [[0.0], [2.0]], [[1.0]], [[1.0]], 100)
    >>> variance[:, 0, 0].round(4)
    array([0.01  , 2.7299])
    """
    centered, tilts = _as_tilts(mixture, query, U)
    values = as_array("V", V, ("d_out", mixture.dim), copy=False)
    log_factor = _log_growth(centered, tilts) - np.log(as_scalar("length", length, at_least=1.0))
    shift = centered.tilted_mean(2.0 * tilts) - centered.tilted_mean(tilts)
    with np.errstate(over="ignore", invalid="ignore"):
        pushed = shift @ values.T
        spread = values @ centered.tilted_covariance(2.0 * tilts) @ values.T
        spread += pushed[..., :, None] * pushed[..., None, :]
    return _scaled(spread, log_factor[..., None, None])


def finite_prompt_bias(
    mixture: GaussianMixture, query: ArrayLike, U: ArrayLike, V: ArrayLike, length: float
) -> FloatArray:
    r"""Bias of the output over `length` independent tokens, to first order in 1 / length.

    .. math::
        -\frac{\kappa(t)}{L}\, V \delta, \qquad
        \kappa(t) = e^{K(2t) - 2K(t)}, \quad \delta = \nabla K(2t) - \nabla K(t), \quad t = U z .

    For one Gaussian :math:`\delta = \Gamma t`: the output falls short of
    :math:`V (m + \Gamma t)`, towards the mean.

    Parameters
    ----------
    mixture : GaussianMixture
        Law of the prompt's tokens, in dimension d.
    query : array_like, shape (..., d)
    U : array_like, shape (d, d)
    V : array_like, shape (d_out, d)
    length : float
        Number L of tokens, at least 1.

    Returns
    -------
    ndarray, shape (..., d_out)
        An entry beyond the largest float comes back as a signed infinity, without a warning.

    Raises
    ------
    ValueError
        As `finite_prompt_covariance`.
    """
    centered, tilts = _as_tilts(mixture, query, U)
    values = as_array("V", V, ("d_out", mixture.dim), copy=False)
    log_factor = _log_growth(centered, tilts) - np.log(as_scalar("length", length, at_least=1.0))
    shift = centered.tilted_mean(2.0 * tilts) - centered.tilted_mean(tilts)
    with np.errstate(over="ignore", invalid="ignore"):
        pushed = -(shift @ values.T)
    return _scaled(pushed, log_factor[..., None])


def effective_prompt_length(
    mixture: GaussianMixture, query: ArrayLike, U: ArrayLike, length: float
) -> FloatArray:
    r"""Effective number of tokens that a query reads, :math:`L\, e^{2K(t) - K(2t)} \le L`.

    It is the limit, relative to L, of the inverse participation ratio :math:`1 / \sum_i p_i^2` of
    the softmax weights :math:`p_i`, known in importance sampling as Kish's effective sample size.
    For a Gaussian it is :math:`L\, e^{-t^\top \Gamma t}`. Below about 1 it no longer counts
    anything: the prompt has no tokens where the query looks.

    Parameters
    ----------
    mixture : GaussianMixture
    query : array_like, shape (..., d)
    U : array_like, shape (d, d)
    length : float
        Number L of tokens, at least 1.

    Returns
    -------
    ndarray, shape (...)
        Between 0 and `length`; a value below the smallest float comes back as 0.

    Raises
    ------
    ValueError
        As `finite_prompt_covariance`.

    Examples
    --------
    >>> from mixattn import GaussianMixture, effective_prompt_length
    >>> gaussian = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> effective_prompt_length(gaussian, [[0.0], [2.0], [40.0]], [[1.0]], 1000).round(2)
    array([1000.  ,   18.32,    0.  ])
    """
    centered, tilts = _as_tilts(mixture, query, U)
    length = as_scalar("length", length, at_least=1.0)
    return length * np.exp(-_log_growth(centered, tilts))


def exact_error_1d(
    mixture: GaussianMixture, tilts: ArrayLike, lengths: ArrayLike, *, center: float | None = None
) -> tuple[FloatArray, FloatArray]:
    r"""Exact mean and mean square of the error over a finite prompt, in dimension one, V = 1.

    With sums A, B over L tokens, :math:`1/B = \int_0^\infty e^{-sB} ds` and
    :math:`1/B^2 = \int_0^\infty s e^{-sB} ds` turn the moments of A / B into integrals of products
    over tokens. For the error :math:`A/B - c`, with :math:`y = x - c`, :math:`u = s e^{tx}` and
    :math:`M = E\, e^{-u}`,

    .. math::
        E\Bigl(\frac AB - c\Bigr)^2 = \int_{-\infty}^\infty \Bigl\{
            L\, E[y^2 u^2 e^{-u}]\, M^{L-1} + L(L-1)\, E[y u e^{-u}]^2 M^{L-2} \Bigr\}\, d\log s,
        \qquad
        E\Bigl(\frac AB - c\Bigr) = \int_{-\infty}^\infty L\, E[y u e^{-u}]\, M^{L-1}\, d\log s .

    The integrals over log s and over each component are trapezoidal sums whose error falls
    exponentially with the number of points. What remains is rounding: 1e-30 of a token's squared
    deviation from c in the mean square, 1e-15 in the mean.

    Parameters
    ----------
    mixture : GaussianMixture
        In dimension one.
    tilts : array_like, shape (n,)
        Tilts t = U z.
    lengths : array_like, shape (m,)
        Numbers of tokens, at least 1; any real numbers, up to 1e30.
    center : float, optional
        The point c that the error is measured from; the infinite prompt's output
        :math:`K'(t)` unless given.

    Returns
    -------
    mean, mean_square : ndarray, shape (n, m)

    Raises
    ------
    ValueError
        If the mixture is not in dimension one, a length is less than 1 or above 1e30, an entry is
        not finite, or a tilt is so large that the exponents t x of the tokens, 18 standard
        deviations of them, are more than 5000 apart.

    Examples
    --------
    One token: the output is the token, whatever the query.

    >>> from mixattn import GaussianMixture
    >>> from mixattn.finite_prompt import exact_error_1d
    >>> gaussian = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> mean, mean_square = exact_error_1d(gaussian, [0.5], [1])
    >>> mean.round(10), mean_square.round(10)
    (array([[-0.5]]), array([[1.25]]))
    """
    _check_1d("mixture", mixture)
    t = as_array("tilts", tilts, ("n",))
    counts = _as_lengths(lengths)
    if center is not None:
        center = as_scalar("center", center)
    origin = float(mixture.mean[0])
    centered = _present(mixture, origin)
    limits = centered.tilted_mean(t[:, None])[:, 0]
    mean = np.empty((len(t), len(counts)))
    mean_square = np.empty_like(mean)
    for row, tilt in enumerate(t):
        reference = limits[row] if center is None else center - origin
        mean[row], mean_square[row] = _error_of_tilt(centered, float(tilt), reference, counts)
    if not is_finite(mean_square):
        raise ValueError(
            "mixture, center: expected errors of finite square, got one that overflows"
        )
    return mean, mean_square


def exact_participation_1d(
    mixture: GaussianMixture, tilts: ArrayLike, lengths: ArrayLike
) -> FloatArray:
    r"""Exact expectation of :math:`\sum_i p_i^2`, the squared softmax weights, in dimension one.

    It lies between 1 / L (all tokens weigh the same) and 1 (one token has all the weight), and to
    first order it is 1 / `effective_prompt_length`. In the notation of `exact_error_1d`,

    .. math::
        E \sum_i p_i^2 = \int_{-\infty}^\infty L\, E[u^2 e^{-u}]\, M^{L-1}\, d\log s .

    In dimension d it is what a coordinate of the tokens that is independent of the alignment, of
    mean 0 and variance 1, adds to the mean-square error.

    Parameters
    ----------
    mixture : GaussianMixture
        In dimension one.
    tilts : array_like, shape (n,)
        Tilts t = U z.
    lengths : array_like, shape (m,)
        As for `exact_error_1d`.

    Returns
    -------
    ndarray, shape (n, m)

    Raises
    ------
    ValueError
        As `exact_error_1d`.
    """
    _check_1d("mixture", mixture)
    t = as_array("tilts", tilts, ("n",))
    counts = _as_lengths(lengths)
    centered = _present(mixture, float(mixture.mean[0]))
    return np.array([_participation_of_tilt(centered, float(tilt), counts) for tilt in t])


def mean_square_error_1d(
    mixture: GaussianMixture, queries: GaussianMixture, interaction: float, lengths: ArrayLike
) -> FloatArray:
    r"""Mean-square error over a finite prompt, averaged over queries, in dimension one, V = 1.

    The average of `exact_error_1d` over the law of the queries, again by a trapezoidal sum.

    Parameters
    ----------
    mixture : GaussianMixture
        Law of the tokens, in dimension one.
    queries : GaussianMixture
        Law of the queries, in dimension one, each variance positive.
    interaction : float
        The 1 x 1 matrix U: the tilt of the query z is U z.
    lengths : array_like, shape (m,)
        As for `exact_error_1d`.

    Returns
    -------
    ndarray, shape (m,)

    Raises
    ------
    ValueError
        As `exact_error_1d`, or if a component of the queries of positive weight has variance 0.

    Examples
    --------
    Without interaction the output is the mean of the tokens:

    >>> from mixattn import GaussianMixture
    >>> from mixattn.finite_prompt import mean_square_error_1d
    >>> gaussian = GaussianMixture([1.0], [[0.0]], [[2.0]])
    >>> mean_square_error_1d(gaussian, gaussian, 0.0, [1, 10]).round(10)
    array([2. , 0.2])
    """
    _check_1d("mixture", mixture)
    _check_1d("queries", queries)
    u = as_scalar("interaction", interaction)
    counts = _as_lengths(lengths)
    present = queries.weights > 0
    weights, means = queries.weights[present], queries.means[present, 0]
    deviations = np.sqrt(queries.covariances[present, 0, 0])
    if (deviations == 0).any():
        raise ValueError("queries: expected positive variances, got 0: sum over the points instead")
    # errors grow at most like the square of the query, so the tail beyond is negligible
    reach = np.sqrt(2.0 * (np.log(counts.max()) + _CUT))
    law = _present(mixture, float(mixture.mean[0]))
    _check_span("interaction", law, abs(u) * float(np.max(np.abs(means) + reach * deviations)))
    pull = abs(u) * np.sqrt(law.covariances.max())
    steps = _QUERY_STEP / np.maximum(1.0, pull * deviations)
    grids = [step * np.arange(-np.ceil(reach / step), np.ceil(reach / step) + 1) for step in steps]
    nodes = np.concatenate([m + d * g for m, d, g in zip(means, deviations, grids, strict=True)])
    mass = np.concatenate(
        [w * h * normal_density(g) for w, h, g in zip(weights, steps, grids, strict=True)]
    )
    if _is_symmetric(mixture):
        distinct, place = np.unique(np.abs(nodes), return_inverse=True)
        mass = np.bincount(place, weights=mass)
        nodes = distinct
    mean_square = exact_error_1d(mixture, u * nodes, counts)[1]
    return mass @ mean_square


def _as_tilts(
    mixture: GaussianMixture, query: ArrayLike, U: ArrayLike
) -> tuple[GaussianMixture, FloatArray]:
    """Return the mixture moved to mean zero, and the tilts U z.

    Nothing in the first-order law depends on where the tokens' mean is: at zero its contribution
    does not cost the digits of a difference.
    """
    if not isinstance(mixture, GaussianMixture):
        raise ValueError(f"mixture: expected a GaussianMixture, got {type(mixture).__name__}")
    dim = mixture.dim
    z = as_array("query", query, (None, dim), copy=False)
    interaction = as_array("U", U, (dim, dim), copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        tilts = z @ interaction.T
        if not is_finite(2.0 * tilts):
            raise ValueError("query: expected a finite tilt 2 U z, got one that overflows")
    centered = GaussianMixture(mixture.weights, mixture.means - mixture.mean, mixture.covariances)
    return centered, tilts


def _log_growth(mixture: GaussianMixture, tilts: FloatArray) -> FloatArray:
    r"""K(2t) - 2 K(t) = log sum_k a_k(t)^2 / pi_k exp(t^T Gamma_k t) >= 0, K being convex.

    With the gates a_k(t) in logarithms: no two large numbers are subtracted.
    """
    kept = mixture.weights > 0
    log_weights = np.log(mixture.weights[kept])
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.einsum("...i,kij,...j->...k", tilts, mixture.covariances[kept], tilts)
        logits = log_weights + tilts @ mixture.means[kept].T + 0.5 * spread
        log_gates = logits - logsumexp(logits, axis=-1, keepdims=True)
        growth = logsumexp(2.0 * log_gates - log_weights + spread, axis=-1)
    if not is_finite(growth):
        raise ValueError("query: expected a tilt U z with finite K(2t), got one that overflows")
    return np.asarray(np.maximum(growth, 0.0))


def _scaled(values: FloatArray, log_factor: FloatArray) -> FloatArray:
    """Values times exp(log_factor): too large becomes infinite, zero stays zero."""
    if not is_finite(values):
        raise ValueError("V: expected an output of finite size, got one that overflows")
    with np.errstate(over="ignore", divide="ignore"):
        size = np.exp(np.log(np.abs(values)) + log_factor)
    return np.where(values == 0.0, 0.0, np.copysign(size, values))


def _check_1d(name: str, mixture: GaussianMixture) -> None:
    if not isinstance(mixture, GaussianMixture) or mixture.dim != 1:
        got = f"dim = {mixture.dim}" if isinstance(mixture, GaussianMixture) else type(mixture)
        raise ValueError(f"{name}: expected a GaussianMixture in dimension one, got {got}")


def _present(mixture: GaussianMixture, origin: float) -> GaussianMixture:
    """Return the components of positive weight, seen from `origin`."""
    kept = mixture.weights > 0
    return GaussianMixture(
        mixture.weights[kept], mixture.means[kept] - origin, mixture.covariances[kept]
    )


def _check_span(name: str, mixture: GaussianMixture, tilt: float) -> None:
    """Refuse a tilt that spreads the exponents too far for the integral over all tokens."""
    reach = 2.0 * np.sqrt(2.0 * _CUT) * np.sqrt(mixture.covariances.max())
    with np.errstate(over="ignore"):
        span = tilt * (np.ptp(mixture.means) + reach)
    if not span <= _LARGEST_SPAN:
        raise ValueError(
            f"{name}: expected exponents t x of tokens that differ by at most {_LARGEST_SPAN:g} "
            f"(the integral runs over all of them), got {span:.3g} at a tilt of {tilt:g}"
        )


def _is_symmetric(mixture: GaussianMixture) -> bool:
    """Whether the law is its own mirror image, so that opposite tilts have the same errors."""
    law = _present(mixture, float(mixture.mean[0]))
    parts = zip(law.weights, law.means[:, 0], law.covariances[:, 0, 0], strict=True)
    listed = sorted((float(p), float(m), float(v)) for p, m, v in parts)
    return listed == sorted((p, -m, v) for p, m, v in listed)


def _as_lengths(lengths: ArrayLike) -> FloatArray:
    counts = as_array("lengths", lengths, ("m",))
    if counts.min() < 1 or counts.max() > 1e30:
        raise ValueError(
            f"lengths: expected numbers from 1 to 1e30, got {counts.min():g} to {counts.max():g}"
        )
    return counts


class _TokenMeans(NamedTuple):
    """Expectations over one token of functions of u = s e^(t x), on the grid of log s."""

    survival: FloatArray  # E e^-u
    missing: FloatArray  # 1 - E e^-u
    weight_squared: FloatArray  # E u^2 e^-u
    error: FloatArray  # E y u e^-u
    error_squared: FloatArray  # E y^2 u^2 e^-u

    @property
    def log_survival(self) -> FloatArray:
        """Logarithm of M = E e^-u; where M underflows, so does all that it multiplies."""
        near_one = np.log1p(-np.minimum(self.missing, 0.5))
        with np.errstate(divide="ignore"):
            log_m = np.where(self.missing < 0.5, near_one, np.log(self.survival))
        return np.maximum(log_m, -1e150)


def _error_of_tilt(
    mixture: GaussianMixture, tilt: float, reference: float, counts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and mean square of the error for one tilt and all lengths."""
    with np.errstate(over="ignore", invalid="ignore"):  # squared deviations: judged by the caller
        token = _token_means(mixture, tilt, reference, counts)
        log_m = token.log_survival[:, None]
        others = np.exp((counts - 1.0) * log_m)
        log_pair = 2.0 * np.log(np.maximum(np.abs(token.error), 1e-300))[:, None]
        pairs = np.exp(np.maximum(counts - 2.0, 0.0) * log_m + log_pair)
        mean = counts * (token.error @ others)
        mean_square = counts * (token.error_squared @ others)
        mean_square += counts * (counts - 1.0) * pairs.sum(axis=0)
    return _LOG_STEP * mean, _LOG_STEP * mean_square


def _participation_of_tilt(mixture: GaussianMixture, tilt: float, counts: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):  # the deviations, not used here
        token = _token_means(mixture, tilt, 0.0, counts)
    others = np.exp((counts - 1.0) * token.log_survival[:, None])
    return _LOG_STEP * counts * (token.weight_squared @ others)


def _token_means(
    mixture: GaussianMixture, tilt: float, reference: float, counts: FloatArray
) -> _TokenMeans:
    """Average over a token of the mixture, on a grid of log s that holds all that matters."""
    log_length = float(np.log(counts.max()))
    _check_span("tilts", mixture, abs(tilt))
    rules = [
        _token_nodes(weight, mean, np.sqrt(variance), tilt, log_length)
        for weight, [mean], [[variance]] in zip(
            mixture.weights, mixture.means, mixture.covariances, strict=True
        )
    ]
    exponents = tilt * np.array([x[[0, -1]] for x, _ in rules])
    # below, L^2 s^2 E[e^(2tx)] and L s E[e^(tx)] are negligible; above, all tokens have u > 50
    low = -min(0.5 * float(mixture.cgf([2.0 * tilt])), exponents.max()) - log_length - _CUT
    high = 4.0 - exponents.min()
    log_s = _LOG_STEP * np.arange(np.floor(low / _LOG_STEP), np.ceil(high / _LOG_STEP) + 1)
    parts = [_component_means(log_s, tilt, x, p, reference) for x, p in rules]
    return _TokenMeans(*np.sum(parts, axis=0))


def _token_nodes(
    weight: float, mean: float, deviation: float, tilt: float, log_length: float
) -> tuple[FloatArray, FloatArray]:
    """Nodes x, in the order of their exponents t x, and weights for one component."""
    if deviation == 0:
        return np.array([mean]), np.array([weight])
    pull = abs(tilt) * deviation
    # In units of the deviation: the tokens that carry a prompt's mass, and those that carry its
    # squared weights, as far out as they matter beside an error of size 1 / L.
    near = np.sqrt(2.0 * _CUT)
    far = max(near, min(near + 2.0 * pull, np.sqrt(2.0 * (2.0 * log_length + _CUT))))
    step = _LOG_STEP / max(pull, _LOG_STEP / _GAUSSIAN_STEP)
    g = step * np.arange(-np.ceil(near / step), np.ceil(far / step) + 1)
    p = weight * step / np.sqrt(2.0 * np.pi) * np.exp(-0.5 * g * g)
    return mean + (-deviation if tilt < 0 else deviation) * g, p


def _component_means(
    log_s: FloatArray, tilt: float, x: FloatArray, p: FloatArray, reference: float
) -> _TokenMeans:
    """One component's part of the token's averages, by nodes x of weights p."""
    y = x - reference
    spacing = tilt * (x[-1] - x[0]) / max(len(x) - 1, 1)
    if len(x) > 1 and np.isclose(spacing, _LOG_STEP, rtol=1e-9):
        # log s and t x have the same step, so log s + t x takes few values: a correlation
        exponents = log_s[0] + tilt * x[0] + _LOG_STEP * np.arange(len(log_s) + len(x) - 1)

        def average(function: FloatArray, weights: FloatArray) -> FloatArray:
            return np.correlate(function, weights, "valid")
    else:
        exponents = log_s[:, None] + tilt * x

        def average(function: FloatArray, weights: FloatArray) -> FloatArray:
            return function @ weights

    u = np.exp(np.minimum(exponents, 700.0))
    decay = np.exp(-u)
    first = u * decay
    second = u * first
    return _TokenMeans(
        survival=average(decay, p),
        missing=average(-np.expm1(-u), p),
        weight_squared=average(second, p),
        error=average(first, p * y),
        error_squared=average(second, p * y * y),
    )
