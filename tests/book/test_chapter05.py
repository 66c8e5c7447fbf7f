"""What chapter 5 claims, by routes that the chapter does not use, and the stored runs that it draws."""

import data
import numpy as np
import pytest
from scipy import integrate, optimize, stats
from scipy.special import expit

from companion import within
from companion.store import read_data
from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    excess_risk,
    risk_gradient,
    risk_hessian,
)
from mixattn.classification.landscape import E1_point, E2_point, lift

DATA = read_data("ch05_constant_gate", data.FOLDER)
KINDS = {"effective": EffectiveParams, "attention": AttentionParams}


def find_run(geometry, prior, coordinates):
    (run,) = (
        run
        for run in DATA["runs"]
        if (run["geometry"], run["prior_pos"], run["coordinates"]) == (geometry, prior, coordinates)
    )
    return run


def test_stored_runs_are_those_that_the_command_plans():
    planned = data.constant_gate_plans()
    assert len(DATA["runs"]) == len(planned)
    for plan, run in zip(planned, DATA["runs"], strict=True):
        seed = plan.pop("seed")
        assert plan.items() <= run.items()
        task = LDATask(**run["task"])
        assert run["start"] == data.constant_gate_start(task, run["coordinates"], seed)
        assert run["status"] == "reached t_end"
        assert len(run["excess_risk"]) == len(run["log10_t"])
        assert (np.diff(run["excess_risk"]) < 0).all()


@pytest.mark.claim("E2.rate")
@pytest.mark.parametrize(
    ("geometry", "prior", "kind"), [("line", 0.5, "effective"), ("plane", 0.3, "attention")]
)
def test_stored_run_begins_as_another_integrator_says(geometry, prior, kind):
    run = find_run(geometry, prior, kind)
    task = LDATask(**run["task"])

    def params(y):
        return KINDS[kind].from_vector(y, task.dim)

    solution = integrate.solve_ivp(
        lambda _, y: -risk_gradient(params(y), task).to_vector(),
        (0, 32),
        run["start"],
        method="Radau",
        jac=lambda _, y: -risk_hessian(params(y), task),
        t_eval=10.0 ** np.array([0.0, 1.0, 1.5]),
        rtol=1e-7,
        atol=1e-10,
    )
    excess = [excess_risk(params(y), task) for y in solution.y.T]
    np.testing.assert_allclose(excess, np.array(run["excess_risk"])[[0, 4, 6]], rtol=1e-4)


@pytest.mark.claim("E2.rate")
@pytest.mark.parametrize("prior", [0.3, 0.5])
def test_long_run_on_the_line_has_the_law_with_its_constant_by_adaptive_quadrature(prior, measured):
    run = find_run("line", prior, "effective")
    task = LDATask(**run["task"])
    (w,), b = task.bayes_score
    r, s = run["final"][2:]
    deviation = np.sqrt(task.covariance[0, 0])
    kappa, coefficient = (3, -1 / 48) if prior == 0.5 else (2, prior * (1 - prior) * 0.4 / 2)

    def weighted(f):
        def integrand(x):
            eta = expit(w * x + b)
            density = prior * stats.norm.pdf(x, 1.5, deviation)
            density += (1 - prior) * stats.norm.pdf(x, -0.5, deviation)
            return density * eta * (1 - eta) * f(x)

        return integrate.quad(integrand, -14, 14, epsabs=1e-13, limit=200)[0]

    # squared distance of x^kappa from the affine functions, by the normal equations
    moments = [weighted(lambda x, k=k: x**k) for k in range(2 * kappa + 1)]
    gram = np.array([[moments[0], moments[1]], [moments[1], moments[2]]])
    right = np.array([moments[kappa], moments[kappa + 1]])
    distance = moments[2 * kappa] - right @ np.linalg.solve(gram, right)
    Q = 0.5 * r**2 * coefficient**2 * distance
    mobility = 1 / (1 + (r * prior * (1 - prior)) ** 2)
    t = 10.0 ** run["log10_t"][-1]
    # |s|' = -2 kappa mobility Q |s|^(2 kappa - 1)
    n = 2 * kappa
    length = ((n - 2) * n * mobility * Q * t) ** (-1 / (n - 2))
    size, excess = abs(s) / length, run["excess_risk"][-1] / (Q * length**n)
    place = f"on the line, prior {prior}, t = 1e7"
    measured("E2.rate", within(f"{place}: |s| over its law with the constant", size, 0.99, 1.01))
    measured("E2.rate", within(f"{place}: excess over its law", excess, 0.98, 1.02))


@pytest.mark.claim("E2.rate")
@pytest.mark.parametrize(("prior", "order"), [(0.3, 4), (0.5, 6)])
def test_least_excess_over_the_affine_part_has_the_stated_order(prior, order, measured):
    task = LDATask([1.0, 0.5], [-0.5, 1.0], [[4.0, 1.2], [1.2, 2.8]], prior)
    point = E2_point(task, 4.0)
    values = []
    for size in (0.04, 0.02):
        s = size * np.array([0.6, 0.8])
        start = np.append(point.w - 4.0 * prior * (1 - prior) * s, point.b)
        scale = size**-order  # an objective of the order of one for the optimizer

        def params(y, s=s):
            return EffectiveParams(y[:2], y[2], 4.0, s)

        found = optimize.minimize(
            lambda y, c=scale, p=params: c * excess_risk(p(y), task),
            start,
            jac=lambda y, c=scale, p=params: c * risk_gradient(p(y), task).to_vector()[:3],
        )
        values.append(found.fun / scale)
    found = np.log2(values[0] / values[1])
    check = f"prior {prior}: order in |s| of the least excess at fixed r"
    measured("E2.rate", within(check, found, order - 0.1, order + 0.1))


@pytest.mark.claim("E2.rate")
@pytest.mark.parametrize("prior", [0.2, 0.5])
def test_lojasiewicz_inequality_near_the_frozen_family(prior):
    # in dimension three, in both coordinates, at random points of shrinking weighted size
    task = LDATask(**data.GEOMETRIES["space"], prior_pos=prior)
    kappa = 3 if prior == 0.5 else 2
    rng = np.random.default_rng(0)
    for size in (0.2, 0.05):
        for _ in range(5):
            s = size * rng.standard_normal(3)
            base = E2_point(task, 3.0)
            zeta = EffectiveParams(
                base.w - 3.0 * prior * (1 - prior) * s + size**kappa * rng.standard_normal(3) / 5,
                base.b + size**kappa * rng.standard_normal() / 5,
                3.0,
                s,
            )
            F = excess_risk(zeta, task)
            for params in (zeta, lift(zeta, task)):
                squared = np.sum(risk_gradient(params, task).to_vector() ** 2)
                assert squared > 0.1 * F ** (2 - 1 / kappa)


@pytest.mark.claim("E1E2")
def test_at_the_crossing_the_reduced_flow_conserves_a_quantity():
    # d/dt |s|^2 over d/dt r^2 on the floor of the valley is 2 (1 + prior^2) to leading order
    task = LDATask([1.0, 0.5], [-0.5, 1.0], [[4.0, 1.2], [1.2, 2.8]], 0.3)
    w, b = task.bayes_score
    for size in (0.2, 0.1):
        r, s = 0.5 * size, size * np.array([0.8, -0.6])
        y = np.append(w - r * 0.21 * s, b - 0.3 * r)
        for _ in range(5):
            zeta = EffectiveParams(y[:2], y[2], r, s)
            hessian, slope = risk_hessian(zeta, task)[:3, :3], risk_gradient(zeta, task)
            y = y - np.linalg.solve(hessian, slope.to_vector()[:3])
        slope = risk_gradient(EffectiveParams(y[:2], y[2], r, s), task)
        ratio = (s @ slope.s) / (r * slope.r / (1 + 0.3**2))
        assert ratio == pytest.approx(2 * (1 + 0.3**2), rel=0.5 * size)
    assert excess_risk(E1_point(task, np.zeros(2)), task) < 1e-25
