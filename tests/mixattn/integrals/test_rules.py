"""Quadrature rules against closed forms and multiple-precision references."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixattn.integrals import rules as quadrature
from mixattn.integrals.rules import (
    gauss_hermite,
    gauss_legendre,
    gaussian_trapezoid,
    graded_panels,
    logistic_derivatives,
    logistic_normal,
    panel_rule,
    tensor_product,
    trapezoidal_step,
)


def softplus_derivative(k, y):
    """The k-th derivative of log(1 + e^y) in multiple precision, from its textbook formula."""
    p = 1 / (1 + mp.exp(-y))
    tail = 1 / (1 + mp.exp(y))
    if k == 0:
        return mp.log1p(mp.exp(-abs(y))) + max(y, 0)
    return [p, p * tail, p * tail * (tail - p)][k - 1]


def gaussian_moments(mean, std, k, j, offset):
    """E[(offset + Z)^j g] and E|(offset + Z)^j g|, g the k-th derivative of softplus at mean + std Z.

    Tanh-sinh in 20 digits between cuts around the peak of the density times g and around y = 0.
    """
    with mp.workdps(20):
        mean, std, offset = mp.mpf(mean), mp.mpf(std), mp.mpf(offset)
        zero = -mean / std
        # exp(-|y|) moves the mass by std, at most to where y = 0
        peaks = [mp.mpf(0), mp.sign(zero) * min(std, abs(zero))]
        cuts = {zero + sign * width / std for sign in (-1, 1) for width in (0, 6, 50)}
        cuts |= {peak + shift for peak in peaks for shift in (-12, -4, 0, 4, 12)} | {-offset}
        low, high = min(peaks) - 12, max(peaks) + 12
        cuts = sorted(c for c in cuts if low <= c <= high)

        def integrand(z):
            return mp.npdf(z) * (offset + z) ** j * softplus_derivative(k, mean + std * z)

        # mpmath's tolerance is absolute
        unit = max(abs(integrand(z + mp.mpf("0.1"))) for z in (*peaks, zero))
        pieces = [mp.quad(lambda z: integrand(z) / unit, pair) for pair in itertools.pairwise(cuts)]
        return unit * mp.fsum(pieces), unit * mp.fsum(abs(piece) for piece in pieces)


def test_gauss_hermite_is_exact_for_polynomials():
    nodes, weights = gauss_hermite(7)
    for degree in range(14):
        exact = 0.0 if degree % 2 else float(math.prod(range(degree - 1, 0, -2)))
        scale = weights @ np.abs(nodes) ** degree
        assert abs(weights @ nodes**degree - exact) < 1e-13 * scale


def test_large_gauss_hermite_rules_stay_finite():
    nodes, weights = gauss_hermite(400)
    assert np.isfinite(weights).all()
    assert abs(weights @ np.cos(nodes) - np.exp(-0.5)) < 1e-13


def test_gauss_legendre_is_exact_for_polynomials():
    nodes, weights = gauss_legendre(5)
    for degree in range(10):
        assert abs(weights @ nodes**degree - (0 if degree % 2 else 2 / (degree + 1))) < 1e-14


@pytest.mark.parametrize("slope", [0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-10, 1e-14])
def test_trapezoid_meets_its_tolerance_on_logistic_functions(slope, tolerance):
    strip = 0.9 * np.pi / slope
    nodes, weights = gaussian_trapezoid(strip, tolerance=tolerance)
    exact, _ = gaussian_moments(slope * 0.3, slope, 1, 0, 0)
    # sigma is bounded by 1 / sin(0.1 pi) = 3.3 in nine tenths of its strip
    error = abs(weights @ (1 / (1 + np.exp(-slope * (nodes + 0.3)))) - float(exact))
    assert error < 3.3 * tolerance + 1e-15


def test_trapezoidal_step_has_the_bound_of_the_literature():
    # 2 exp(a^2/2) / (exp(2 pi a / h) - 1) at the best a: the optimum within the strip
    for strip in (0.01, 0.5, 3.0, 8.0, np.inf):
        step = trapezoidal_step(strip, 1e-12)
        a = min(strip, 2 * np.pi / step)
        assert 2 * np.exp(a**2 / 2 - 2 * np.pi * a / step) == pytest.approx(1e-12, rel=1e-6)


def test_window_follows_the_mass():
    # E exp(-20 Z) = e^200 has its mass at z = -20
    nodes, weights = gaussian_trapezoid(lower=-30.0, upper=0.0)
    assert weights @ np.exp(-20 * nodes) == pytest.approx(np.exp(200), rel=1e-13)


def test_tensor_product_multiplies_moments():
    nodes, weights = tensor_product(gauss_hermite(4), gaussian_trapezoid(), gauss_hermite(5))
    assert nodes.shape == (len(weights), 3)
    assert weights @ (nodes[:, 0] ** 2 * nodes[:, 1] ** 4 * nodes[:, 2] ** 2) == pytest.approx(3.0)


def test_graded_panels_tile_the_interval_and_fit():
    def fits(center, half):
        return half <= 0.3 * np.hypot(center - 0.7, 1e-6)

    centers, halves = graded_panels(-3.0, 5.0, fits)
    np.testing.assert_allclose((centers - halves)[1:], (centers + halves)[:-1], atol=1e-12)
    assert centers[0] - halves[0] == -3.0
    assert centers[-1] + halves[-1] == 5.0
    assert fits(centers, halves).all()
    # graded: the number of panels grows with the logarithm of the scale
    assert len(centers) < 200


def test_panels_integrate_a_steep_function():
    slope = 1e5
    centers, halves = graded_panels(
        -1.0, 2.0, lambda c, h: 1.8 * h <= 0.9 * np.hypot(c, np.pi / slope)
    )
    x, dx = panel_rule(centers, halves, 18)
    value = (logistic_derivatives(slope * x, 1)[1] * dx).sum()
    assert value == pytest.approx(2.0, rel=1e-13)


@pytest.mark.parametrize("k", range(4))
def test_logistic_derivatives_keep_relative_accuracy_in_the_tails(k):
    y = np.array([-700.0, -40.0, -3.0, 0.0, 0.5, 37.0, 650.0])
    with mp.workdps(30):
        exact = np.array([float(softplus_derivative(k, mp.mpf(v))) for v in y])
    # the second derivative of sigma crosses zero at 0, elsewhere all are relative
    np.testing.assert_allclose(logistic_derivatives(y, k)[k], exact, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize(
    ("mean", "std"),
    [(0.7, 1e-8), (-40.0, 0.4), (50.0, 2.9), (-260.0, 20.0), (3e5, 1e6)],
)
def test_logistic_normal_matches_mpmath(mean, std):
    offset = -0.5 * mean / max(std, 1.0)
    moments = logistic_normal(np.array([mean]), std, order=3, degree=2, offset=offset)
    for j, k in [(0, 0), (1, 1), (2, 2)]:
        exact, size = gaussian_moments(mean, std, k, j, offset)
        assert abs(moments[j, k, 0] - float(exact)) < 2e-12 * float(size), (j, k)


@pytest.mark.parametrize("std", [2.0, 8.0])
def test_both_inner_rules_agree(std):
    mean = np.linspace(-60, 60, 41)
    by_trapezoid = quadrature._by_trapezoid(mean, std, 2, 2, 0.0)
    reach = 60 + 9 * std
    by_panels = quadrature._by_panels(mean, std, 2, 2, 0.0, -reach, reach)
    size = by_trapezoid[[0, 2, 2]] + by_trapezoid[0]
    assert (np.abs(by_trapezoid - by_panels) / size).max() < 2e-12


@settings(max_examples=40, deadline=None)
@given(mean=st.floats(-300, 300), std=st.floats(0, 300))
def test_logistic_normal_identities(mean, std):
    values = logistic_normal(np.array([mean, -mean]), std, order=2, degree=1)
    # softplus(y) - softplus(-y) = y, sigma(y) + sigma(-y) = 1, sigma' even
    scale = 1 + abs(mean) + std
    assert abs(values[0, 0, 0] - values[0, 0, 1] - mean) < 1e-12 * scale
    assert abs(values[0, 1].sum() - 1) < 1e-12
    assert values[0, 2, 0] == pytest.approx(values[0, 2, 1], rel=1e-10, abs=1e-300)
    # Stein: E[Z sigma(mean + std Z)] = std E[sigma'(mean + std Z)]
    assert abs(values[1, 1, 0] - std * values[0, 2, 0]) < 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gauss_hermite(0), "n: expected an integer >= 1"),
        (lambda: gauss_legendre(2.5), "n: expected an integer"),
        (lambda: gaussian_trapezoid(-1.0), "strip: expected a number > 0"),
        (lambda: gaussian_trapezoid(1.0, 3.0, 2.0), "upper: expected a number > 3"),
        (lambda: gaussian_trapezoid(tolerance=2.0), "tolerance"),
        (lambda: graded_panels(1.0, 0.0, lambda c, h: h < 1), "upper"),
        (lambda: logistic_normal([[0.0]], 1.0, 0), "mean: expected shape"),
        (lambda: logistic_normal([0.0], -1.0, 0), "std: expected a number >= 0"),
        (lambda: logistic_normal([0.0], 1.0, 5), "expected at most 3 and 2"),
        (lambda: logistic_normal([np.nan], 1.0, 0), "mean: expected finite"),
    ],
)
def test_bad_requests_are_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
