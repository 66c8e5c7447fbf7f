"""Attention against plain formulas, quadrature, simulation, and the symmetries it must have."""

import itertools
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from threadpoolctl import threadpool_info, threadpool_limits

from mixattn import (
    GaussianMixture,
    Head,
    MultiHead,
    ResidualMultiHead,
    linear_attention,
    population_attention,
    population_linear_attention,
    softmax_attention,
)

seeds = st.integers(0, 2**32 - 1)


def plain_softmax_attention(prompt, queries, U, V):
    """The formula, one query at a time; V applied to each token first."""
    values = prompt @ V.T
    flat = [softmax(prompt @ (U @ z)) @ values for z in queries.reshape(-1, prompt.shape[1])]
    return np.reshape(flat, (*queries.shape[:-1], len(V)))


def random_mixture(rng, dim, n_components, *, shared=False):
    factors = rng.standard_normal((n_components, dim, dim)) / np.sqrt(dim)
    covariances = factors @ factors.swapaxes(1, 2)
    return GaussianMixture(
        rng.dirichlet(3 * np.ones(n_components)),
        rng.standard_normal((n_components, dim)),
        covariances[0] if shared else covariances,
    )


def expectation(mixture, function, n_nodes=60):
    """E f(X) by tensor Gauss-Hermite quadrature in each component; f of points (n, d)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    grid = np.array(list(itertools.product(nodes, repeat=mixture.dim)))
    mass = np.prod(list(itertools.product(weights / weights.sum(), repeat=mixture.dim)), axis=1)
    total = 0.0
    for pi, mean, cov in zip(mixture.weights, mixture.means, mixture.covariances, strict=True):
        total = total + pi * mass @ function(mean + grid @ np.linalg.cholesky(cov).T)
    return total


def attention_by_quadrature(mixture, alignment, z, V):
    """V E[x a(z, x)] / E[a(z, x)]."""
    top = expectation(mixture, lambda x: x * alignment(z, x)[:, None])
    return V @ top / expectation(mixture, lambda x: alignment(z, x))


@pytest.mark.claim("S2.empirical")
def test_softmax_attention_is_the_operator_on_the_empirical_measure(rng):
    prompt = rng.standard_normal((300, 3))
    queries, U, V = (
        rng.standard_normal((6, 3)),
        rng.standard_normal((3, 3)),
        rng.standard_normal((2, 3)),
    )
    output = softmax_attention(prompt, queries, U, V)
    for z, out in zip(queries, output, strict=True):
        weight = np.exp(prompt @ U @ z)
        np.testing.assert_allclose(
            out, V @ (weight[:, None] * prompt).mean(0) / weight.mean(), rtol=1e-12, atol=1e-13
        )


@pytest.mark.claim("S2.empirical")
@given(seeds)
def test_a_mixture_of_point_masses_is_a_finite_prompt(seed):
    """Weights of 2/L and 1/L: a token that the prompt holds twice."""
    rng = np.random.default_rng(seed)
    d, n_tokens = rng.integers(1, 6, size=2)
    tokens, queries = rng.standard_normal((n_tokens, d)), 2 * rng.standard_normal((4, d))
    U, V = rng.standard_normal((d, d)), rng.standard_normal((3, d))
    prompt = np.vstack([tokens, tokens[:1]])
    weights = np.ones(n_tokens)
    weights[0] = 2
    atoms = GaussianMixture(weights / weights.sum(), tokens, np.zeros((d, d)))
    np.testing.assert_allclose(
        population_attention(atoms, queries, U, V),
        softmax_attention(prompt, queries, U, V), rtol=1e-9, atol=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(
        population_linear_attention(atoms, queries, U, V),
        linear_attention(prompt, queries, U, V), rtol=1e-9, atol=1e-12,
    )  # fmt: skip


@pytest.mark.claim("S2.lln")
def test_finite_attention_converges_with_the_variance_that_the_delta_method_gives(rng):
    """L Cov -> V E[w^2 (x - m)(x - m)^T] V^T, w = exp(t.x - K(t)), m = grad K(t), t = U z."""
    mixture = random_mixture(rng, 2, 3)
    z, U, V = (
        np.array([0.6, -0.4]),
        np.array([[0.8, 0.3], [-0.2, 0.7]]),
        rng.standard_normal((2, 2)),
    )
    limit = population_attention(mixture, z, U, V)
    log_mean = np.log(expectation(mixture, lambda x: np.exp(x @ U @ z)))
    mean = attention_by_quadrature(mixture, lambda z, x: np.exp(x @ U @ z), z, np.eye(2))

    def scaled_square(x):
        centered = np.exp(x @ U @ z - log_mean)[:, None] * (x - mean) @ V.T
        return np.sum(centered**2, axis=1)

    expected = expectation(mixture, scaled_square)
    n_prompts = 2000
    for length in (256, 4096):
        x, _ = mixture.sample(n_prompts * length, rng)
        outputs = [softmax_attention(prompt, z, U, V) for prompt in x.reshape(n_prompts, length, 2)]
        squares = length * np.sum((np.array(outputs) - limit) ** 2, axis=1)
        error = squares.std() / np.sqrt(n_prompts)
        # the next term of the expansion is of relative order 1 / L
        assert abs(squares.mean() - expected) < 4 * error + 20 * expected / length


@pytest.mark.claim("S2.gaussian")
def test_on_one_gaussian_attention_is_affine(rng):
    gaussian = random_mixture(rng, 2, 1)
    queries, U, V = (
        rng.standard_normal((5, 2)),
        rng.standard_normal((2, 2)),
        rng.standard_normal((3, 2)),
    )
    output = population_attention(gaussian, queries, U, V)
    affine = (gaussian.means[0] + queries @ U.T @ gaussian.covariances[0]) @ V.T
    np.testing.assert_allclose(output, affine, rtol=1e-13, atol=1e-14)
    for z, out in zip(queries, output, strict=True):
        integral = attention_by_quadrature(gaussian, lambda z, x: np.exp(x @ U @ z), z, V)
        np.testing.assert_allclose(out, integral, rtol=1e-10, atol=1e-11)


@pytest.mark.claim("S2.gaussian.control")
def test_on_rademacher_tokens_attention_is_tanh_and_not_affine(rng):
    """The corners of the cube are the law of independent signs."""
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    queries, U = rng.standard_normal((200, 3)), rng.standard_normal((3, 3))
    output = softmax_attention(corners, queries, U, np.eye(3))
    np.testing.assert_allclose(output, np.tanh(queries @ U.T), atol=1e-14)
    design = np.column_stack([queries, np.ones(len(queries))])
    fitted = design @ np.linalg.lstsq(design, output)[0]
    assert np.sqrt(np.mean((output - fitted) ** 2)) > 0.1
    # same two moments, Gaussian: affine to rounding
    normal = population_attention(
        GaussianMixture([1], np.zeros((1, 3)), np.eye(3)), queries, U, np.eye(3)
    )
    fitted = design @ np.linalg.lstsq(design, normal)[0]
    np.testing.assert_allclose(fitted, normal, atol=1e-12)


@pytest.mark.claim("P2.1.general")
@pytest.mark.parametrize("n_components", [1, 2, 4])
def test_population_attention_is_the_integral(rng, n_components):
    mixture = random_mixture(rng, 2, n_components)
    queries, U, V = (
        rng.standard_normal((4, 2)),
        rng.standard_normal((2, 2)),
        rng.standard_normal((3, 2)),
    )
    for z in queries:
        integral = attention_by_quadrature(mixture, lambda z, x: np.exp(x @ U @ z), z, V)
        np.testing.assert_allclose(
            population_attention(mixture, z, U, V), integral, rtol=1e-9, atol=1e-10
        )


@pytest.mark.claim("P2.1.general")
@given(seeds, st.sampled_from([1e-3, 1.0, 1e2]))
def test_population_attention_is_gated_affine_experts(seed, size):
    """Proposition 2.1 as it is printed, evaluated in 60 digits."""
    rng = np.random.default_rng(seed)
    d, m = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    mixture = random_mixture(rng, d, m)
    z, U, V = (
        size * rng.standard_normal(d),
        rng.standard_normal((d, d)),
        rng.standard_normal((2, d)),
    )
    with mpmath.workdps(60):
        t = mpmath.matrix(U) * mpmath.matrix(z)
        logits, centers = [], []
        for pi, mean, cov in zip(mixture.weights, mixture.means, mixture.covariances, strict=True):
            mean, pushed = mpmath.matrix(mean), mpmath.matrix(cov) * t
            logits.append(mpmath.log(pi) + (mean.T * t)[0] + (t.T * pushed)[0] / 2)
            centers.append(mean + pushed)
        terms = [mpmath.exp(x - max(logits)) for x in logits]
        mixed = mpmath.matrix(d, 1)
        for term, center in zip(terms, centers, strict=True):
            mixed += term / sum(terms) * center
        expected = np.array([float(x) for x in mpmath.matrix(V) * mixed])
        # exponents are rounded; the experts differ by as much as the centers do
        rounding = np.finfo(float).eps * max(abs(float(x)) for x in [1, *logits])
        spread = max(float(mpmath.norm(c)) for c in centers) * np.abs(V).sum()
    output = population_attention(mixture, z, U, V)
    np.testing.assert_allclose(output, expected, atol=30 * rounding * spread)


@pytest.mark.claim("P2.1.shared")
@given(seeds)
def test_with_equal_covariances_the_quadratic_cancels(seed):
    rng = np.random.default_rng(seed)
    d, m = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    mixture = random_mixture(rng, d, m, shared=True)
    queries, U, V = (
        rng.standard_normal((5, d)),
        rng.standard_normal((d, d)),
        rng.standard_normal((2, d)),
    )
    tilts = queries @ U.T
    gates = softmax(np.log(mixture.weights) + tilts @ mixture.means.T, axis=1)
    expected = (tilts @ mixture.covariances[0] + gates @ mixture.means) @ V.T
    np.testing.assert_allclose(
        population_attention(mixture, queries, U, V), expected, rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(mixture.gates(tilts), gates, rtol=1e-10)


def test_with_unequal_covariances_it_does_not():
    """The control: same means and weights, and the linear gate alone is far off."""
    mixture = GaussianMixture([0.5, 0.5], [[1.0], [-1.0]], [[[0.2]], [[3.0]]])
    linear_gate = softmax([2.0, -2.0])
    assert abs(mixture.gates([2.0]) - linear_gate).max() > 0.5


GAUSSIAN_MOMENTS = {
    "RBF": (
        lambda z, x: np.exp(-0.5 * np.sum((x - z) ** 2, axis=-1)),
        # a product of Gaussians: N(x; m, C) N(x; z, I), normalized
        lambda z, m, C: (
            np.exp(-0.5 * (z - m) @ np.linalg.solve(C + np.eye(2), z - m))
            / np.sqrt(np.linalg.det(C + np.eye(2))),
            m + C @ np.linalg.solve(C + np.eye(2), z - m),
        ),
    ),
    "polynomial": (
        lambda z, x: 1 + (x @ z) ** 2,
        # E[1 + (x.z)^2], and E[x (x.z)^2] = m (s + q^2) + 2 q C z, q = m.z, s = z.C.z
        lambda z, m, C: (
            1 + z @ C @ z + (m @ z) ** 2,
            m + 2 * (m @ z) * C @ z / (1 + z @ C @ z + (m @ z) ** 2),
        ),
    ),
}


@pytest.mark.claim("PA.1")
@pytest.mark.parametrize("alignment", GAUSSIAN_MOMENTS)
def test_any_positive_alignment_mixes_the_components_attentions(rng, alignment):
    """The mixture's density on a grid against each component's closed form."""
    a, closed_form = GAUSSIAN_MOMENTS[alignment]
    mixture = random_mixture(rng, 2, 3).add_noise(0.2)
    axis = np.linspace(-12.0, 12.0, 241)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(mixture.log_density(grid)) * (axis[1] - axis[0]) ** 2
    for z in rng.standard_normal((4, 2)):
        weight = density * a(z, grid)
        on_mixture = weight @ grid / weight.sum()
        own = [
            closed_form(z, m, C) for m, C in zip(mixture.means, mixture.covariances, strict=True)
        ]
        mass = mixture.weights * [own_mass for own_mass, _ in own]
        combined = mass / mass.sum() @ [center for _, center in own]
        np.testing.assert_allclose(on_mixture, combined, rtol=1e-8, atol=1e-9)


@pytest.mark.claim("PA.1")
def test_dot_product_gates_are_the_components_shares_of_the_alignment(rng):
    mixture = random_mixture(rng, 2, 3)
    for t in rng.standard_normal((4, 2)):
        share = [
            pi * expectation(GaussianMixture([1], [m], C), lambda x, t=t: np.exp(x @ t))
            for pi, m, C in zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
        ]
        np.testing.assert_allclose(mixture.gates(t), share / np.sum(share), rtol=1e-9)


@pytest.mark.claim("PA.1")
def test_non_gaussian_components_are_mixed_too():
    """Two clouds of signs, at +3 and at -3: E_k[exp(t x)] = exp(+-3 t) cosh t."""
    prompt = np.array([[4.0], [2.0], [-2.0], [-4.0], [-2.0], [-4.0]])  # weights 1/3 and 2/3
    t = np.linspace(-2.0, 2.0, 9)
    shares = np.stack([1 / 3 * np.exp(3 * t), 2 / 3 * np.exp(-3 * t)]) * np.cosh(t)
    gates = shares / shares.sum(0)
    expected = gates[0] * (3 + np.tanh(t)) + gates[1] * (-3 + np.tanh(t))
    output = softmax_attention(prompt, t[:, None], [[1.0]], [[1.0]])
    np.testing.assert_allclose(output[:, 0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.claim("S2.select")
def test_where_one_gate_is_near_one_attention_is_that_components_own(rng):
    """The distance to the own map is at most 1 - a_k times the distance between the experts."""
    mixture = random_mixture(rng, 3, 3)
    U, V = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
    queries = 4 * rng.standard_normal((400, 3))
    output = population_attention(mixture, queries, U, V)
    own = np.stack(
        [
            population_attention(GaussianMixture([1], [m], C), queries, U, V)
            for m, C in zip(mixture.means, mixture.covariances, strict=True)
        ],
        axis=1,
    )
    gates = mixture.gates(queries @ U.T)
    selected = gates.argmax(1)
    assert set(selected) == {0, 1, 2}
    rows = np.arange(len(queries))
    distance = np.linalg.norm(output - own[rows, selected], axis=1)
    diameter = np.linalg.norm(own - own[rows, selected][:, None], axis=2).max(1)
    rest = 1 - gates[rows, selected]
    assert (distance <= rest * diameter + 1e-12 * diameter).all()
    sure = rest < 1e-9
    assert sure.sum() > 20
    np.testing.assert_allclose(output[sure], own[rows, selected][sure], rtol=1e-6, atol=1e-6)


@pytest.mark.claim("S2.linear")
def test_linear_attention_mixes_in_fixed_proportions(rng):
    mixture = random_mixture(rng, 3, 3)
    U, V, queries = (
        rng.standard_normal((3, 3)),
        rng.standard_normal((2, 3)),
        rng.standard_normal((5, 3)),
    )
    own = [
        population_linear_attention(GaussianMixture([1], [m], C), queries, U, V)
        for m, C in zip(mixture.means, mixture.covariances, strict=True)
    ]
    output = population_linear_attention(mixture, queries, U, V)
    np.testing.assert_allclose(output, np.tensordot(mixture.weights, own, axes=1), atol=1e-12)
    # doubling the query doubles the output: no query changes the proportions
    np.testing.assert_allclose(
        population_linear_attention(mixture, 2 * queries, U, V), 2 * output, atol=1e-12
    )
    assert np.ptp(mixture.gates(queries @ U.T), axis=0).max() > 0.1


@pytest.mark.claim("S2.linear")
def test_linear_attention_over_a_prompt_is_the_mean_over_its_tokens(rng):
    mixture = random_mixture(rng, 2, 2)
    U, V, z = rng.standard_normal((2, 2)), rng.standard_normal((2, 2)), rng.standard_normal(2)
    prompt, _ = mixture.sample(100_000, rng)
    terms = (prompt @ U @ z)[:, None] * prompt @ V.T
    output = linear_attention(prompt, z, U, V)
    np.testing.assert_allclose(output, terms.mean(0), rtol=1e-11, atol=1e-12)
    error = terms.std(0) / np.sqrt(len(prompt))
    assert (np.abs(output - population_linear_attention(mixture, z, U, V)) < 4.5 * error).all()


@pytest.mark.claim("S2.lln", "P2.1.general")
def test_finite_and_population_operators_agree(rng):
    """Five standard errors of the ratio estimator, from the prompt itself."""
    for _ in range(5):
        mixture = random_mixture(rng, 3, 3)
        U, V = 0.4 * rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
        z = rng.standard_normal(3)
        prompt, _ = mixture.sample(50_000, rng)
        weight = softmax(prompt @ U @ z)
        output = softmax_attention(prompt, z, U, V)
        error = np.sqrt(np.sum((weight[:, None] * (prompt @ V.T - output)) ** 2, axis=0))
        assert (np.abs(output - population_attention(mixture, z, U, V)) < 5 * error).all()


LENGTHS = [1, 2, 255, 256, 257, 511, 1025, 5000, 70_001]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("n_queries", [1, 3, 129])
def test_streaming_matches_the_plain_formula_at_any_length(rng, length, n_queries):
    d = 3
    prompt, queries = rng.standard_normal((length, d)), rng.standard_normal((n_queries, d))
    U, V = rng.standard_normal((d, d)), rng.standard_normal((2, d))
    some = rng.integers(0, n_queries, 3)
    np.testing.assert_allclose(
        softmax_attention(prompt, queries, U, V)[some],
        plain_softmax_attention(prompt, queries[some], U, V), rtol=1e-11, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("dim", [1, 2, 16, 70, 300])
def test_streaming_matches_the_plain_formula_in_any_dimension(rng, dim):
    prompt, queries = rng.standard_normal((700, dim)), rng.standard_normal((5, dim))
    U, V = rng.standard_normal((dim, dim)) / dim, rng.standard_normal((4, dim))
    np.testing.assert_allclose(
        softmax_attention(prompt, queries, U, V),
        plain_softmax_attention(prompt, queries, U, V), rtol=1e-11, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
@pytest.mark.parametrize("largest", [10.0, 1e3, 1e6])
def test_large_alignments_are_right_to_their_rounding(rng, order, largest):
    """Whatever the order in which the prompt shows its largest alignments."""
    length = 20_000
    logits = np.linspace(-largest, largest, length)
    logits[-4:] = largest - np.array([2.0, 1.0, 0.5, 0.0])  # several tokens share the weight
    if order == "falling":
        logits = logits[::-1]
    if order == "shuffled":
        logits = rng.permutation(logits)
    prompt = np.column_stack([logits, rng.standard_normal(length)])
    queries = np.array([[1.0, 0.0], [-1.0, 0.0], [0.5, 0.0], [0.0, 1.0]])
    # so many queries that the prompt takes tens of tiles, and the running maximum rises in most
    many = np.tile(queries, (32, 1))
    output = softmax_attention(prompt, many, np.eye(2), np.eye(2))
    expected = np.tile(plain_softmax_attention(prompt, queries, np.eye(2), np.eye(2)), (32, 1))
    np.testing.assert_allclose(output, expected, rtol=20 * largest * np.finfo(float).eps + 1e-12)


def test_alignments_of_a_million_against_high_precision(rng):
    prompt = np.round(rng.standard_normal((40, 2)) * 2**20) / 2**20
    prompt += [1000.0, -1000.0]
    z = np.array([700.0, 300.0])
    U, V = np.array([[1.0, 0.5], [-0.25, 1.0]]), np.eye(2)
    with mpmath.workdps(60):
        t = mpmath.matrix(U) * mpmath.matrix(z)
        logits = [x[0] * t[0] + x[1] * t[1] for x in mpmath.matrix(prompt).tolist()]
        terms = [mpmath.exp(x - max(logits)) for x in logits]
        expected = [float(mpmath.fdot(terms, prompt[:, j]) / sum(terms)) for j in range(2)]
        rounding = np.finfo(float).eps * float(max(abs(x) for x in logits))
    output = softmax_attention(prompt, z, U, V)
    np.testing.assert_allclose(output, expected, atol=20 * rounding)


def test_number_of_threads_changes_no_bit(rng):
    for length, n, d in [(30_000, 40, 3), (3000, 700, 16), (9000, 30, 80)]:
        prompt, queries = rng.standard_normal((length, d)), rng.standard_normal((n, d))
        U, V = rng.standard_normal((d, d)) / d, rng.standard_normal((d, d))
        mixture = random_mixture(rng, d, 3)
        outputs = []
        for threads in (1, 2, 3):
            with threadpool_limits(threads):
                outputs.append(softmax_attention(prompt, queries, U, V))
        np.testing.assert_array_equal(outputs[0], outputs[1])
        np.testing.assert_array_equal(outputs[0], outputs[2])
        tilts = np.tile(queries, (20, 1))
        with threadpool_limits(1):
            alone = mixture.tilted_mean(tilts)
        with threadpool_limits(2):
            np.testing.assert_array_equal(mixture.tilted_mean(tilts), alone)


def test_blas_has_its_threads_back_after_concurrent_calls(rng):
    prompt, queries = rng.standard_normal((20_000, 4)), rng.standard_normal((50, 4))

    def call(_):
        return softmax_attention(prompt, queries, np.eye(4), np.eye(4))

    with threadpool_limits(2):
        expected = call(None)
        with ThreadPoolExecutor(4) as pool:
            for output in pool.map(call, range(12)):
                np.testing.assert_array_equal(output, expected)
        blas = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
        assert set(blas) == {2}
        with pytest.raises(ValueError, match="overflow"):
            softmax_attention(1e200 * prompt, 1e200 * queries, np.eye(4), np.eye(4))
        assert [
            each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"
        ] == blas


@pytest.mark.parametrize(("length", "n"), [(200_000, 40), (40, 200_000), (3000, 3000)])
def test_memory_beyond_arguments_and_output_is_bounded(rng, length, n):
    """The matrix of weights alone would be 64 MB and more; two threads."""
    prompt, queries = rng.standard_normal((length, 4)), rng.standard_normal((n, 4))
    with threadpool_limits(2):
        tracemalloc.start()
        output = softmax_attention(prompt, queries, np.eye(4), np.eye(4))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak - output.nbytes < 20 * 2**20


@pytest.mark.parametrize("lead", [(), (0,), (1,), (4,), (2, 3), (2, 0)])
def test_leading_axes_are_kept(rng, lead):
    mixture, prompt = random_mixture(rng, 2, 2), rng.standard_normal((10, 2))
    queries, U, V = (
        rng.standard_normal((*lead, 2)),
        rng.standard_normal((2, 2)),
        rng.standard_normal((3, 2)),
    )
    for operator, source in [
        (softmax_attention, prompt), (linear_attention, prompt),
        (population_attention, mixture), (population_linear_attention, mixture),
    ]:  # fmt: skip
        output = operator(source, queries, U, V)
        assert output.shape == (*lead, 3)
        flat = queries.reshape(-1, 2)
        rows = np.array([operator(source, z, U, V) for z in flat]).reshape(output.shape)
        np.testing.assert_allclose(output, rows, rtol=1e-12, atol=1e-13)


def test_layout_and_type_of_the_arguments_do_not_matter(rng):
    prompt, queries = rng.integers(-3, 4, (30, 2)), rng.integers(-3, 4, (5, 2))
    U, V = [[1, 0], [1, 1]], [[1, 2]]
    expected = plain_softmax_attention(prompt * 1.0, queries * 1.0, np.array(U), np.array(V))
    for make in (np.asarray, np.ndarray.tolist, np.asfortranarray, np.float32):
        output = softmax_attention(make(prompt), make(queries), U, V)
        np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-13)
    strided = softmax_attention(np.repeat(prompt * 1.0, 2, axis=0)[::2], queries, U, V)
    np.testing.assert_allclose(strided, expected, rtol=1e-12, atol=1e-13)


@given(seeds)
def test_outputs_stay_in_the_convex_hull_of_the_tokens(seed):
    """No linear functional exceeds on an output its maximum over the tokens."""
    rng = np.random.default_rng(seed)
    d, length = int(rng.integers(1, 6)), int(rng.integers(1, 40))
    prompt, queries = rng.standard_normal((length, d)), 10 * rng.standard_normal((8, d))
    output = softmax_attention(prompt, queries, rng.standard_normal((d, d)), np.eye(d))
    directions = np.vstack([np.eye(d), -np.eye(d), rng.standard_normal((200, d))])
    assert (output @ directions.T <= (prompt @ directions.T).max(0) + 1e-12).all()


@given(seeds)
def test_translated_keys(seed):
    """Tokens moved by c: same weights, output moved by V c; so for the law."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 5))
    prompt, queries, c = (
        rng.standard_normal((20, d)),
        rng.standard_normal((6, d)),
        3 * rng.standard_normal(d),
    )
    U, V = rng.standard_normal((d, d)), rng.standard_normal((2, d))
    np.testing.assert_allclose(
        softmax_attention(prompt + c, queries, U, V),
        softmax_attention(prompt, queries, U, V) + V @ c, atol=1e-10,
    )  # fmt: skip
    mixture = random_mixture(rng, d, 3)
    moved = GaussianMixture(mixture.weights, mixture.means + c, mixture.covariances)
    np.testing.assert_allclose(
        population_attention(moved, queries, U, V),
        population_attention(mixture, queries, U, V) + V @ c, atol=1e-10,
    )  # fmt: skip


@given(seeds)
def test_rotated_tokens_and_queries(seed):
    """x, z, m -> Q x, Q z, Q m with Gamma, U, V -> Q Gamma Q^T, Q U Q^T, Q V Q^T rotates outputs."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 5))
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    prompt, queries = rng.standard_normal((20, d)), rng.standard_normal((6, d))
    U, V = rng.standard_normal((d, d)), rng.standard_normal((d, d))
    mixture = random_mixture(rng, d, 3)
    turned = GaussianMixture(mixture.weights, mixture.means @ Q.T, Q @ mixture.covariances @ Q.T)
    for operator, source, rotated in [
        (softmax_attention, prompt, prompt @ Q.T), (linear_attention, prompt, prompt @ Q.T),
        (population_attention, mixture, turned), (population_linear_attention, mixture, turned),
    ]:  # fmt: skip
        np.testing.assert_allclose(
            operator(rotated, queries @ Q.T, Q @ U @ Q.T, Q @ V @ Q.T),
            operator(source, queries, U, V) @ Q.T, atol=1e-10,
        )  # fmt: skip


@given(seeds)
def test_order_and_repetition_of_tokens_are_immaterial(seed):
    rng = np.random.default_rng(seed)
    prompt, queries = rng.standard_normal((30, 3)), rng.standard_normal((6, 3))
    U, V = rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
    output = softmax_attention(prompt, queries, U, V)
    for same in (rng.permutation(prompt), np.tile(prompt, (20, 1))):
        np.testing.assert_allclose(softmax_attention(same, queries, U, V), output, atol=1e-12)


@given(seeds)
def test_order_and_splitting_of_components_are_immaterial(seed):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 5))
    mixture = random_mixture(rng, d, 3)
    queries, U, V = (
        rng.standard_normal((6, d)),
        rng.standard_normal((d, d)),
        rng.standard_normal((2, d)),
    )
    order = rng.permutation([0, 1, 2, 2])
    share = np.array([1.0, 1.0, 0.5])
    same = GaussianMixture(
        (mixture.weights * share)[order], mixture.means[order], mixture.covariances[order]
    )
    for operator in (population_attention, population_linear_attention):
        np.testing.assert_allclose(
            operator(same, queries, U, V), operator(mixture, queries, U, V), atol=1e-11
        )


def test_heads_compose(rng):
    mixture, prompt = random_mixture(rng, 3, 2), rng.standard_normal((40, 3))
    queries = rng.standard_normal((2, 5, 3))
    U, V = rng.standard_normal((3, 3, 3)), rng.standard_normal((3, 3, 3))
    W_out = rng.standard_normal((2, 9))
    heads = [Head(u, v) for u, v in zip(U, V, strict=True)]
    for source, operator in [(mixture, population_attention), (prompt, softmax_attention)]:
        outputs = [operator(source, queries, u, v) for u, v in zip(U, V, strict=True)]
        np.testing.assert_array_equal(heads[0](source, queries), outputs[0])
        np.testing.assert_allclose(
            MultiHead(heads)(source, queries), outputs[0] + outputs[1] + outputs[2], atol=1e-13
        )
        residual = sum(
            (queries + out) @ W_out[:, 3 * h : 3 * h + 3].T for h, out in enumerate(outputs)
        )
        np.testing.assert_allclose(
            ResidualMultiHead(heads, W_out)(source, queries), residual, atol=1e-12
        )
    assert ResidualMultiHead(heads, W_out)(prompt.tolist(), [0, 0, 0]).shape == (2,)


@pytest.mark.parametrize("source", [None, [1.0, 2.0], [["a", "b"]]])
def test_head_names_its_source(source):
    head = Head(np.eye(2), np.eye(2))
    for layer in (head, MultiHead([head]), ResidualMultiHead([head], np.eye(2))):
        with pytest.raises(ValueError, match="source: expected"):
            layer(source, [1.0, 2.0])


def test_dimensions_of_heads():
    head = Head(np.eye(3), np.ones((2, 3)))
    assert (head.dim, head.dim_out) == (3, 2)
    assert repr(head) == "Head(dim=3, dim_out=2)"
    assert repr(MultiHead([head, head])) == "MultiHead(n_heads=2, dim=3, dim_out=2)"
    square = Head(np.eye(3), np.eye(3))
    residual = ResidualMultiHead([square], np.ones((5, 3)))
    assert repr(residual) == "ResidualMultiHead(n_heads=1, dim=3, dim_out=3, W_out=(5, 3))"
