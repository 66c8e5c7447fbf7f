"""The numbers that the chapters draw, against routes that share nothing with the chapters.

Strict nbval compares a chapter's text outputs with the committed ones and leaves out the pixels of
its figures. Here the chapters' code runs with the figures kept, and what their curves, points and
arrows say is compared with Gauss-Hermite sums, adaptive quadrature, high precision and fresh
simulations.
"""

import itertools
from types import SimpleNamespace

import matplotlib.pyplot as plt
import mpmath
import notebooks
import numpy as np
import pytest
from matplotlib.quiver import Quiver
from scipy.integrate import quad
from scipy.stats import norm

import companion


def run_chapter(name, monkeypatch):
    """Execute a chapter up to its exercises; keep its variables and figures."""
    figures = []
    monkeypatch.setattr(companion, "show_figure", lambda fig, alt, caption: figures.append(fig))
    variables = {}
    for cell in notebooks.read(notebooks.ROOT / "book" / f"{name}.ipynb").cells:
        if cell.id == "exercises":
            break
        if cell.cell_type == "code" and "colab" not in cell.metadata.get("tags", []):
            exec(compile(cell.source, f"{name}, cell {cell.id}", "exec"), variables)
    return SimpleNamespace(figures=figures, **variables)


@pytest.fixture(scope="module")
def chapters():
    with pytest.MonkeyPatch.context() as monkeypatch, plt.rc_context():
        monkeypatch.setattr("builtins.print", lambda *_, **__: None)
        yield SimpleNamespace(
            one=run_chapter("01_attention_on_measures", monkeypatch),
            two=run_chapter("02_gated_affine_experts", monkeypatch),
        )
    plt.close("all")


@pytest.fixture
def one(chapters):
    return chapters.one


@pytest.fixture
def two(chapters):
    return chapters.two


def line_labeled(ax, label):
    [line] = [line for line in ax.lines if line.get_label() == label]
    return line


def component_points(mean, covariance, order=40):
    """Gauss-Hermite nodes and weights of one Gaussian."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    nodes = np.array(list(itertools.product(x, repeat=len(mean))))
    weights = np.prod(list(itertools.product(w / w.sum(), repeat=len(mean))), axis=1)
    return mean + nodes @ np.linalg.cholesky(covariance).T, weights


def mixture_points(mixture):
    parts = [
        component_points(m, c) for m, c in zip(mixture.means, mixture.covariances, strict=True)
    ]
    weights = [pi * w for pi, (_, w) in zip(mixture.weights, parts, strict=True)]
    return np.concatenate([x for x, _ in parts]), weights


def aligned_mean(alignment, mixture):
    """Output for V = I and the gates for one query, from an alignment of the tokens (n, d)."""
    points, weights = mixture_points(mixture)
    masses = alignment(points) * np.concatenate(weights)
    gates = [part.sum() for part in np.split(masses, mixture.n_components)]
    return masses @ points / masses.sum(), np.array(gates) / masses.sum()


@pytest.mark.claim("S2.empirical")
def test_finite_prompt_in_high_precision(one):
    with mpmath.workdps(40):
        prompt = mpmath.matrix(one.point_masses.means.tolist())
        # the chapter's U and V at that cell: redraw them as it did
        rng = np.random.default_rng(1)
        rng.standard_normal((40, 3))
        U, V = (mpmath.matrix(m.tolist()) for m in rng.standard_normal((2, 3, 3)) / 2)
        queries = rng.standard_normal((200, 3))[:5]
        for z, given in zip(queries, one.by_formula[:5], strict=True):
            logits = prompt * U * mpmath.matrix(z.tolist())
            weights = [mpmath.exp(logit) for logit in logits]
            total = mpmath.fsum(weights)
            output = V * (prompt.T * mpmath.matrix(weights)) / total
            np.testing.assert_allclose(given, [float(x) for x in output], atol=1e-13)


@pytest.mark.claim("S2.lln")
def test_reference_lines_of_the_error(one):
    points, weights = mixture_points(one.mixture)
    weights = np.concatenate(weights)
    for tilt, drawn in zip(one.tilts, one.constants, strict=True):
        w = np.exp(points @ tilt)
        w /= weights @ w
        limit = (weights * w) @ points
        squared = weights @ (w**2 * ((points - limit) ** 2).sum(axis=1))
        assert drawn == pytest.approx(np.sqrt(squared), rel=1e-9)
    left, right = one.figures[1].axes
    reference = line_labeled(left, r"$c(t)/\sqrt{L}$")
    np.testing.assert_allclose(
        reference.get_ydata() * np.sqrt(reference.get_xdata()), one.constants[1]
    )
    dashed = [line for line in right.lines if line.get_linestyle() == "--"]
    assert len(dashed) == len(one.tilts)
    for line, constant in zip(dashed, one.constants, strict=True):
        np.testing.assert_allclose(line.get_ydata() * np.sqrt(line.get_xdata()), constant)


@pytest.mark.claim("S2.lln")
def test_drawn_errors_agree_with_fresh_prompts(one):
    rng = np.random.default_rng(2026)
    n_prompts, row = 400, 1
    length = one.lengths[row]
    squared = np.empty((n_prompts, len(one.tilts)))
    for j in range(n_prompts):
        labels = rng.random(length) > one.mixture.weights[0]
        noise = rng.standard_normal((length, 2))
        roots = np.linalg.cholesky(one.mixture.covariances)[labels.astype(int)]
        tokens = one.mixture.means[labels.astype(int)] + np.einsum("nij,nj->ni", roots, noise)
        w = np.exp(tokens @ one.tilts.T)
        squared[j] = (((w.T @ tokens) / w.sum(axis=0)[:, None] - one.limit) ** 2).sum(axis=1)
    fresh = squared.mean(axis=0)
    drawn = one.rms[row] ** 2
    error = np.hypot(
        squared.std(axis=0) / np.sqrt(n_prompts), one.errors[row].std(axis=0) / np.sqrt(200)
    )
    assert np.all(np.abs(fresh - drawn) < 4 * error)


def test_saturating_curves(one):
    [ax] = one.figures[2].axes
    tokens = np.random.default_rng(5).standard_normal(100_000)
    for length in (10, 100, 1_000, 100_000):
        line = line_labeled(ax, f"$L = {length}$")
        x, y = line.get_xdata(), line.get_ydata()
        for at in (0, 40, 100):
            w = np.exp(x[at] * tokens[:length] - np.max(x[at] * tokens[:length]))
            assert y[at] == pytest.approx(w @ tokens[:length] / w.sum(), abs=1e-12)


@pytest.mark.claim("S2.gaussian", "A1.mgf")
def test_affine_map_by_adaptive_quadrature():
    for m, s, tilt in ((0.7, 1.3, -0.8), (-2.0, 0.4, 3.0)):

        def weighted(x, power, m=m, s=s, tilt=tilt):
            return x**power * np.exp(tilt * x) * norm.pdf(x, m, s)

        ends = m + tilt * s**2 - 12 * s, m + tilt * s**2 + 12 * s
        top, bottom = (quad(weighted, *ends, args=(power,), epsabs=0)[0] for power in (1, 0))
        assert top / bottom == pytest.approx(m + s**2 * tilt, rel=1e-9)
        assert np.log(bottom) == pytest.approx(m * tilt + s**2 * tilt**2 / 2, rel=1e-9)


@pytest.mark.claim("S2.gaussian")
def test_affine_map_of_the_chapter(one):
    for z, drawn in zip(one.z, one.affine, strict=True):
        tilt = one.U2 @ z
        points, weights = component_points(one.mean, one.covariance)
        w = weights * np.exp(points @ tilt)
        np.testing.assert_allclose(drawn, one.V2 @ (w @ points / w.sum()), atol=1e-10)


@pytest.mark.claim("S2.gaussian.control")
def test_share_that_is_not_affine_in_high_precision(one):
    left, right = one.figures[3].axes
    drawn = line_labeled(right, "coin flips")
    for at in (0, 15, 25, 39):
        rho = mpmath.mpf(float(drawn.get_xdata()[at]))

        def mean(f, rho=rho):
            return 2 * mpmath.quad(lambda x: f(rho * x) * mpmath.npdf(x), [0, 0.05, 0.5, 2, 5, 12])

        variance = mean(lambda z: mpmath.tanh(z) ** 2)
        slope = mean(lambda z: z * mpmath.tanh(z)) / rho**2
        share = 1 - slope**2 * rho**2 / variance
        assert drawn.get_ydata()[at] == pytest.approx(float(share), abs=1e-10)
    np.testing.assert_allclose(line_labeled(right, "Gaussian").get_ydata(), 0, atol=1e-12)
    curve = line_labeled(left, r"coin flips: $\tanh z$")
    z = curve.get_xdata()
    coin = (np.exp(z) - np.exp(-z)) / (np.exp(z) + np.exp(-z))
    np.testing.assert_allclose(curve.get_ydata(), coin, atol=1e-14)


@pytest.mark.claim("P2.1.general")
def test_curves_of_the_pair_by_adaptive_quadrature(two):
    top, bottom = two.figures[0].axes
    output = line_labeled(top, "attention $T[\\mu](z)$")
    gates = [line_labeled(bottom, f"gate {k}") for k in (1, 2)]
    components = [(0.6, -1.0, 0.3), (0.4, 1.5, 1.0)]
    for at in range(0, 201, 40):
        z = output.get_xdata()[at]
        masses, moments = [], []
        for pi, m, variance in components:
            middle, reach = m + variance * z, 12 * np.sqrt(variance)

            def weighted(x, power, m=m, variance=variance, z=z):
                return x**power * np.exp(z * x) * norm.pdf(x, m, np.sqrt(variance))

            parts = [
                quad(weighted, middle - reach, middle + reach, args=(power,), epsabs=0)[0]
                for power in (0, 1)
            ]
            masses.append(pi * parts[0])
            moments.append(pi * parts[1])
        assert output.get_ydata()[at] == pytest.approx(sum(moments) / sum(masses), rel=1e-8)
        for line, mass in zip(gates, masses, strict=True):
            assert line.get_ydata()[at] == pytest.approx(mass / sum(masses), rel=1e-8, abs=1e-12)


@pytest.mark.claim("P2.1.general", "P2.1.shared")
def test_arrows_of_the_regions(two):
    for ax, mixture in zip(two.figures[1].axes, (two.shared, two.trio), strict=True):
        [arrows] = [artist for artist in ax.get_children() if isinstance(artist, Quiver)]
        tilts = np.stack([arrows.X, arrows.Y], axis=1)
        inside = np.flatnonzero(np.linalg.norm(tilts, axis=1) < 4)  # where 40 nodes suffice
        assert len(inside) > 20
        for at in inside:
            _, gates = aligned_mean(lambda x, t=tilts[at]: np.exp(x @ t), mixture)
            drawn = arrows.U[at], arrows.V[at]
            np.testing.assert_allclose(drawn, gates @ mixture.means, atol=1e-7)


@pytest.mark.claim("S2.select")
def test_selection_error_and_its_bound(two):
    [ax] = two.figures[2].axes
    drawn, bound = ax.lines[0], ax.lines[1]
    means, weights = two.shared.means, two.shared.weights
    with mpmath.workdps(40):
        for at in (0, 20, 56):
            tilt = drawn.get_xdata()[at] * np.array([0.28, 0.96])
            masses = [
                mpmath.mpf(p) * mpmath.exp(mpmath.fdot(m, tilt))
                for p, m in zip(weights, means, strict=True)
            ]
            lost = [mass / sum(masses) for mass in masses]
            selected = int(np.argmax(means @ [0.28, 0.96]))
            offset = [
                sum(g * (m[i] - means[selected][i]) for g, m in zip(lost, means, strict=True))
                for i in (0, 1)
            ]
            assert drawn.get_ydata()[at] == pytest.approx(float(mpmath.norm(offset)), rel=1e-8)
    assert np.all(drawn.get_ydata() <= bound.get_ydata())


@pytest.mark.claim("PA.1")
@pytest.mark.parametrize("kind", ["rbf", "poly"])
def test_other_alignments(two, kind):
    for n, (z, tilt) in enumerate(zip(two.queries, two.tilts, strict=True)):
        if kind == "rbf":
            output, gates = aligned_mean(
                lambda x, z=z: np.exp(-((x - z) ** 2).sum(axis=1) / (2 * 0.8**2)), two.trio
            )
        else:
            output, gates = aligned_mean(lambda x, t=tilt: 1 + (1 + x @ t) ** 2, two.trio)
        np.testing.assert_allclose(getattr(two, f"{kind}_output")[n], output, atol=1e-6)
        np.testing.assert_allclose(getattr(two, f"{kind}_gates")[n], gates, atol=1e-6)


@pytest.mark.claim("PA.1")
def test_four_shares(two):
    [ax] = two.figures[3].axes
    alignments = {
        "dot product": lambda x, z: np.exp(x * z),
        "RBF, h = 1": lambda x, z: np.exp(-((x - z) ** 2) / 2),
        "polynomial": lambda x, z: 1 + (1 + x * z) ** 2,
    }
    for name, alignment in alignments.items():
        line = line_labeled(ax, name)
        for at in range(20, 241, 40):
            z = line.get_xdata()[at]
            _, gates = aligned_mean(lambda x, z=z, a=alignment: a(x[:, 0], z), two.two)
            assert line.get_ydata()[at] == pytest.approx(gates[1], abs=1e-9)
    far = 1e6
    _, gates = aligned_mean(lambda x: alignments["polynomial"](x[:, 0], far), two.two)
    assert two.polynomial_limit == pytest.approx(gates[1], rel=1e-5)


@pytest.mark.claim("S2.linear")
def test_linear_attention_has_fixed_shares(two):
    [ax] = two.figures[3].axes
    np.testing.assert_array_equal(line_labeled(ax, "linear").get_ydata(), 0.4)
    points, weights = mixture_points(two.trio)
    for tilt, drawn in zip(two.tilts, two.linear_output, strict=True):
        parts = [
            part @ (points[rows] * (points[rows] @ tilt)[:, None])
            for part, rows in zip(weights, np.split(np.arange(len(points)), 3), strict=True)
        ]
        np.testing.assert_allclose(drawn, two.V @ sum(parts), atol=1e-10)
