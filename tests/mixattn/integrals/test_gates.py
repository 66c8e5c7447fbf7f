"""The nested graded rule, against mpmath in one dimension and a fine uniform grid in two."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixattn.integrals.gates import (
    _graded_trapezoid,
    gate_nodes,
    interpolate_rows,
    steepest_axes,
)


def sigmoid(logit):
    return np.exp(-np.logaddexp(0.0, -logit))


def mixture_integral(f, centers, weights, breaks):
    """Sum of weights times E f(N(center, 1)) by adaptive quadrature in 30 digits."""
    with mp.workdps(30):
        total = mp.mpf(0)
        for center, weight in zip(centers, weights, strict=True):
            cuts = sorted({center - 16.0, center, center + 16.0, *breaks})
            total += weight * mp.quad(lambda y, c=center: mp.npdf(y, c, 1) * f(y), cuts)
        return float(total)


@pytest.mark.parametrize(
    ("slope", "offset"), [(0.5, 1.0), (3.0, -2.0), (20.0, 5.0), (300.0, -100.0), (20.0, 200.0)]
)
def test_one_gate_against_mpmath(slope, offset):
    centers, weights = [0.0, 1.0], [0.3, 0.7]
    points, nodes = gate_nodes(
        np.array(centers)[:, None],
        np.array(weights),
        np.array([[slope]]),
        np.array([offset]),
        1e-12,
    )
    y = points[:, 0]
    breaks = [-offset / slope + k / slope for k in (-60, -20, -6, -2, 0, 2, 6, 20, 60)]

    def gate(y):
        return 1 / (1 + mp.exp(-offset - slope * y))

    bump = mixture_integral(lambda y: gate(y) * (1 - gate(y)), centers, weights, breaks)
    square = mixture_integral(lambda y: (y - 2 * gate(y)) ** 2, centers, weights, breaks)
    logit = offset + slope * y
    assert nodes @ (sigmoid(logit) * sigmoid(-logit)) == pytest.approx(bump, rel=1e-9)
    assert nodes @ (y - 2 * sigmoid(logit)) ** 2 == pytest.approx(square, rel=1e-11)
    assert len(y) < 120


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), log_scale=st.floats(-2.0, 0.7))
def test_three_gates_in_the_plane_against_a_uniform_grid(seed, log_scale):
    rng = np.random.default_rng(seed)
    slopes = 10**log_scale * rng.standard_normal((3, 2))
    offsets, centers, weights = rng.standard_normal(3), rng.standard_normal((2, 2)), [0.02, 0.98]

    def f(y):
        gates = sigmoid(offsets + y @ slopes.T)
        return (gates @ [1.0, -2.0, 1.0] + 0.1 * y[:, 0]) ** 2

    axes = steepest_axes(slopes)
    points, nodes = gate_nodes(centers @ axes, np.array(weights), slopes @ axes, offsets, 1e-12)
    line = np.arange(-10.0, 10.0, 0.04)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    density = sum(
        w * np.exp(-0.5 * np.sum((grid - c) ** 2, axis=1)) / (2 * np.pi)
        for w, c in zip(weights, centers, strict=True)
    )
    brute = 0.04**2 * density @ f(grid)
    assert nodes @ f(points @ axes.T) == pytest.approx(brute, rel=1e-9)


def test_no_axis_gives_the_total_mass():
    points, nodes = gate_nodes(
        np.zeros((2, 0)), np.array([0.4, 0.6]), np.zeros((3, 0)), np.ones(3), 1e-12
    )
    assert points.shape == (1, 0)
    assert nodes.sum() == pytest.approx(1.0, abs=1e-15)


def test_mass_and_moments_in_three_axes():
    rng = np.random.default_rng(0)
    slopes, centers = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    points, nodes = gate_nodes(centers, np.array([0.5, 0.5]), slopes, np.zeros(2), 1e-10)
    assert nodes.sum() == pytest.approx(1.0, abs=1e-9)
    second = points.T * nodes @ points
    np.testing.assert_allclose(second, np.eye(3) + 0.5 * centers.T @ centers, atol=1e-8)


def test_steepest_axes_span_the_directions_steepest_first():
    rng = np.random.default_rng(1)
    directions = rng.standard_normal((3, 6)) * np.array([[1.0], [100.0], [10.0]])
    axes = steepest_axes(np.vstack([directions, directions[0] + directions[1]]))
    assert axes.shape == (6, 3)
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(directions @ axes @ axes.T, directions, atol=1e-12)
    steepest = directions[0] + directions[1]
    if np.linalg.norm(directions[1]) > np.linalg.norm(steepest):
        steepest = directions[1]
    assert abs(axes[:, 0] @ steepest) == pytest.approx(np.linalg.norm(steepest))


def test_steepest_axes_of_nothing():
    assert steepest_axes(np.zeros((0, 4))).shape == (4, 0)
    assert steepest_axes(np.zeros((2, 4))).shape == (4, 0)


def test_nodes_are_evenly_spaced_in_the_graded_variable():
    # steep gates, close together and far apart: a first guess alone is off here
    rng = np.random.default_rng(3)
    places, widths = rng.uniform(-6.0, 6.0, (7, 4)), np.array([3.0, 0.3, 0.01, 1e-5])
    step, grading = 0.7, 3.4
    y, dy = _graded_trapezoid(-9.0, 9.0, places, widths, step, grading)
    scaled = (y[:, None, :] - places[:, :, None]) / widths[:, None]
    x = y / step + grading * np.arcsinh(scaled).sum(axis=1)
    gaps = np.diff(x, axis=1)
    np.testing.assert_allclose(gaps, np.broadcast_to(gaps[:, :1], gaps.shape), rtol=1e-9)
    density = 1 / step + (grading / widths[:, None] / np.sqrt(1 + scaled**2)).sum(axis=1)
    np.testing.assert_allclose(dy * density, gaps[:, :1] * np.ones_like(y), rtol=1e-9)


def test_rows_are_interpolated_each_in_its_own_table():
    rng = np.random.default_rng(4)
    x_table = np.cumsum(rng.random((5, 9)), axis=1) - 3.0
    y_table = rng.standard_normal((5, 9))
    x = rng.uniform(x_table[:, :1], x_table[:, -1:], (5, 20))
    expected = [np.interp(*row) for row in zip(x, x_table, y_table, strict=True)]
    np.testing.assert_allclose(interpolate_rows(x, x_table, y_table), expected, atol=1e-12)
