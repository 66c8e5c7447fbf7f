"""What is refused, and whether the message says which argument, what was expected and what came."""

import copy
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

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
from mixattn._checks import as_array, as_covariance, as_integer, as_scalar, as_weights

I2 = np.eye(2)
TWO = GaussianMixture([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], I2)

NOT_REAL_NUMBERS = [
    None,
    "text",
    [["1", "2"]],
    [[1j, 0.0]],
    [[True, False]],
    [[object, 1.0]],
    np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]),
    [[1.0, 2.0], [3.0]],
    {"a": 1},
    np.array([["2026-01-01"]], dtype="datetime64[D]"),
]


@pytest.mark.parametrize("value", NOT_REAL_NUMBERS, ids=repr)
def test_as_array_refuses_what_is_not_real_numbers(value):
    with pytest.raises(ValueError, match=r"^x: expected real numbers of shape \(n, 2\), got "):
        as_array("x", value, ("n", 2))


def test_as_array_says_what_is_wrong_in_its_own_words():
    with pytest.raises(ValueError, match=r"got list \(rows of different lengths\)$"):
        as_array("x", [[1.0, 2.0], [3.0]], ("n", 2))
    with pytest.raises(ValueError, match=r"got list \(integers beyond 64 bits\)$"):
        as_array("x", [10**400, 1], ("n",))
    with pytest.raises(ValueError, match=r"^n: expected an integer <= 9223372036854775807, got 1"):
        as_integer("n", 10**30)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_as_array_refuses_and_counts_entries_that_are_not_finite(bad):
    with pytest.raises(ValueError, match="x: expected finite entries, got 2 NaN or infinite of 4"):
        as_array("x", [[1.0, bad], [bad, 0.0]], ("n", 2))


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(float).max, reason="no wider float")
def test_as_array_refuses_numbers_beyond_float64():
    with pytest.raises(ValueError, match="finite"):
        as_array("x", np.array([np.longdouble("1e4000")]), ("n",))


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        (("L", "d"), (3,), r"expected shape \(L, d\), got \(3,\)"),
        (("L", "d"), (0, 3), r"expected shape \(L, d\) with no empty axis, got \(0, 3\)"),
        ((None, 2), (4, 3), r"expected shape \(\.\.\., 2\), got \(4, 3\)"),
        ((None, 2), (), r"expected shape \(\.\.\., 2\), got \(\)"),
        ((2, 2), (2, 3), r"expected shape \(2, 2\), got \(2, 3\)"),
        (("M",), (1, 3), r"expected shape \(M,\), got \(1, 3\)"),
        ((), (1,), r"expected shape \(\), got \(1,\)"),
    ],
)
def test_as_array_says_the_expected_and_the_given_shape(shape, given, message):
    with pytest.raises(ValueError, match=message):
        as_array("x", np.zeros(given), shape)


def test_as_array_takes_lists_integers_and_other_real_types():
    for value in ([[1, 2]], ((1.0, 2.0),), np.array([[1, 2]], np.uint8), np.float32([[1, 2]])):
        result = as_array("x", value, (None, 2))
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, [[1.0, 2.0]])
    assert as_array("x", np.zeros((0, 2)), (None, 2)).shape == (0, 2)
    assert as_array("x", [], (None,)).shape == (0,)


def test_as_array_copies_only_when_asked():
    given = np.ones((3, 2))
    assert not np.shares_memory(as_array("x", given, ("L", 2)), given)
    assert np.shares_memory(as_array("x", given, ("L", 2), copy=False), given)


def test_the_finiteness_check_allocates_nothing_of_the_array_s_size():
    given = np.ones((500_000, 2))
    tracemalloc.start()
    as_array("x", given, ("L", 2), copy=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_as_scalar_bounds():
    assert as_scalar("v", 2, above=1, at_least=2, below=3) == 2.0
    for value, bounds, message in [
        (0.0, {"above": 0}, r"v: expected a number > 0, got 0\.0"),
        (-1.0, {"at_least": 0}, r"v: expected a number >= 0, got -1\.0"),
        (1.0, {"above": 0, "below": 1}, r"v: expected a number > 0 and < 1, got 1\.0"),
        ([1.0], {}, r"v: expected shape \(\), got \(1,\)"),
        (np.nan, {}, "v: expected finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            as_scalar("v", value, **bounds)


def test_as_integer_bounds():
    assert as_integer("n", np.int64(3)) == 3
    for value in (True, 1.0, "1", None):
        with pytest.raises(ValueError, match="n: expected an integer, got"):
            as_integer("n", value)
    with pytest.raises(ValueError, match="n: expected an integer >= 1, got 0"):
        as_integer("n", 0, at_least=1)


def test_as_weights():
    np.testing.assert_allclose(as_weights("w", [0.25, 0.75 + 5e-9]).sum(), 1.0, rtol=1e-15)
    for value, message in [
        ([-0.5, 1.5], "w: expected nonnegative weights, got a minimum of -0.5"),
        ([0.5, 0.6], "w: expected weights that sum to 1, got a sum of 1.1"),
        ([0.5, 0.5 + 2e-8], "w: expected weights that sum to 1"),
        ([1e308, 1e308], "w: expected weights that sum to 1, got a sum of inf"),
        ([], r"w: expected shape \(M,\) with no empty axis"),
    ]:
        with pytest.raises(ValueError, match=message):
            as_weights("w", value)


def test_as_covariance_admits_degenerate_matrices(rng):
    direction = rng.standard_normal(5)
    for matrix in (np.zeros((5, 5)), np.outer(direction, direction), 1e-300 * np.eye(5)):
        np.testing.assert_array_equal(as_covariance("C", matrix, 5), matrix)
    for scale in (1e-12, 1.0, 1e12):
        factor = rng.standard_normal((5, 2))
        as_covariance("C", scale * factor @ factor.T, 5)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 0.2], [0.1, 1.0]], "symmetric matrix, got an asymmetry of 0.1"),
        ([[0.0, 1e308], [-1e308, 0.0]], "symmetric matrix, got an asymmetry of inf"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive semidefinite matrix, got an eigenvalue of -1"),
        ([[1e-20, 0.0], [0.0, -1e-21]], "semidefinite matrix, got an eigenvalue of -1e-21"),
        (np.eye(3), r"expected shape \(2, 2\), got \(3, 3\)"),
    ],
)
def test_as_covariance_refuses(matrix, message):
    with pytest.raises(ValueError, match=message):
        as_covariance("C", matrix, 2)


def test_as_covariance_definite():
    as_covariance("C", np.diag([1.0, 1e-10]), 2, definite=True)
    for matrix in (np.diag([1.0, 0.0]), np.ones((2, 2)), np.zeros((2, 2))):
        with pytest.raises(ValueError, match="positive definite matrix, got a smallest eigenvalue"):
            as_covariance("C", matrix, 2, definite=True)


def test_symmetric_up_to_rounding_becomes_exactly_symmetric():
    matrix = np.array([[2.0, 0.5], [0.5 * (1 + 1e-15), 1.0]])
    result = as_covariance("C", matrix, 2)
    np.testing.assert_array_equal(result, result.T)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.5], [[0.0, 0.0]], I2), r"means: expected shape \(2, d\), got \(1, 2\)"),
        (([1.0], [0.0, 0.0], I2), r"means: expected shape \(1, d\), got \(2,\)"),
        (([1.0], np.zeros((1, 0)), np.zeros((0, 0))), "means: .* no empty axis"),
        (([1.0], [[0.0, np.nan]], I2), "means: expected finite entries"),
        (([0.7], [[0.0, 0.0]], I2), "weights: expected weights that sum to 1, got a sum of 0.7"),
        (([2.0, -1.0], I2, I2), "weights: expected nonnegative"),
        (
            ([0.5, 0.5], I2, np.eye(3)),
            r"covariances: expected shape \(2, 2\) \(shared\) or \(2, 2, 2\) .*got \(3, 3\)",
        ),
        (([0.5, 0.5], I2, I2[None]), r"covariances: .*got \(1, 2, 2\)"),
        (([0.5, 0.5], I2, [I2, [[1.0]]]), "covariances: expected real numbers"),
        (([0.5, 0.5], I2, [I2, -I2]), r"covariances\[1\]: expected a positive semidefinite"),
        (([0.5, 0.5], I2, [[1.0, 0.5], [0.0, 1.0]]), "covariances: expected a symmetric matrix"),
        (([0.5, 0.5], I2, np.inf * np.ones((2, 2))), "covariances: expected finite entries"),
        (([0.5, 0.5], I2, "full"), "covariances: expected real numbers"),
    ],
)
def test_gaussian_mixture_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(*arguments)


@pytest.mark.parametrize("method", ["cgf", "gates", "tilted_mean", "tilted_covariance"])
def test_tilts_of_the_wrong_kind_are_refused(method):
    call = getattr(TWO, method)
    with pytest.raises(ValueError, match=r"t: expected shape \(\.\.\., 2\), got \(3,\)"):
        call([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="t: expected finite entries, got 1 NaN or infinite of 2"):
        call([np.nan, 0.0])


@pytest.mark.parametrize("method", ["cgf", "gates", "tilted_mean", "tilted_covariance"])
def test_tilts_that_overflow_are_refused(method):
    mixture = GaussianMixture([0.5, 0.5], I2, [I2, 2 * I2])
    with pytest.raises(ValueError, match=r"t: expected a tilt whose exponent .* overflows"):
        getattr(mixture, method)([1e200, 0.0])


@pytest.mark.parametrize("method", ["log_density", "score", "posterior"])
def test_points_of_the_wrong_kind_are_refused(method):
    call = getattr(TWO, method)
    with pytest.raises(ValueError, match=r"x: expected shape \(\.\.\., 2\), got \(1, 3\)"):
        call([[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="x: expected points of finite log density"):
        call([1e200, 0.0])


@pytest.mark.parametrize("method", ["log_density", "score", "posterior"])
def test_no_density_without_positive_definite_covariances(method):
    mixture = GaussianMixture([0.5, 0.5], I2, [I2, np.ones((2, 2))])
    with pytest.raises(ValueError, match=r"component 1 is singular .* add noise first"):
        getattr(mixture, method)([0.0, 0.0])
    getattr(mixture.add_noise(0.1), method)([0.0, 0.0])


def test_sample_and_add_noise_refuse(rng):
    with pytest.raises(ValueError, match="n: expected an integer >= 0, got -1"):
        TWO.sample(-1, rng)
    with pytest.raises(
        ValueError, match=r"rng: expected a numpy\.random\.Generator, got RandomState"
    ):
        TWO.sample(1, np.random.RandomState(0))
    with pytest.raises(ValueError, match="variance: expected a number >= 0, got -1"):
        TWO.add_noise(-1.0)


FINITE = [softmax_attention, linear_attention]
POPULATION = [population_attention, population_linear_attention]
SOURCE = {
    softmax_attention: 2 * I2,
    linear_attention: 2 * I2,
    population_attention: TWO,
    population_linear_attention: TWO,
}


@pytest.mark.parametrize("operator", FINITE + POPULATION)
@pytest.mark.parametrize(
    ("queries", "U", "V", "message"),
    [
        ([0.0, 0.0, 0.0], I2, I2, r"queries: expected shape \(\.\.\., 2\), got \(3,\)"),
        (0.0, I2, I2, r"queries: expected shape \(\.\.\., 2\), got \(\)"),
        ([np.inf, 0.0], I2, I2, "queries: expected finite entries"),
        ([0.0, 0.0], np.eye(3), I2, r"U: expected shape \(2, 2\), got \(3, 3\)"),
        ([0.0, 0.0], I2, [1.0, 0.0], r"V: expected shape \(d_out, 2\), got \(2,\)"),
        ([0.0, 0.0], I2, np.zeros((0, 2)), r"V: .* no empty axis, got \(0, 2\)"),
        ([0.0, 0.0], 1j * I2, I2, "U: expected real numbers"),
        ([0.0, 0.0], I2, np.nan * I2, "V: expected finite entries"),
    ],
)
def test_operators_refuse(operator, queries, U, V, message):
    with pytest.raises(ValueError, match=message):
        operator(SOURCE[operator], queries, U, V)


@pytest.mark.parametrize("operator", FINITE)
def test_finite_operators_refuse_prompts(operator):
    for prompt, message in [
        ([1.0, 0.0], r"prompt: expected shape \(L, d\), got \(2,\)"),
        (np.zeros((0, 2)), r"prompt: .* no empty axis, got \(0, 2\)"),
        ([[np.nan, 0.0]], "prompt: expected finite entries"),
        (TWO, "prompt: expected real numbers .*GaussianMixture"),
    ]:
        with pytest.raises(ValueError, match=message):
            operator(prompt, [0.0, 0.0], I2, I2)


@pytest.mark.parametrize("operator", POPULATION)
def test_population_operators_refuse_prompts(operator):
    with pytest.raises(ValueError, match="mixture: expected a GaussianMixture, got ndarray"):
        operator(I2, [0.0, 0.0], I2, I2)


@pytest.mark.parametrize("operator", FINITE + POPULATION)
def test_overflow_is_an_error_and_never_a_warning(operator):
    with pytest.raises(ValueError, match="overflow"):
        operator(SOURCE[operator], [1e200, 1e200], 1e200 * I2, I2)
    with pytest.raises(ValueError, match="overflow"):
        operator(SOURCE[operator], [9.0, 9.0], 9 * I2, np.full((1, 2), 1.7e308))


def test_heads_refuse():
    for arguments, message in [
        ((np.ones((2, 3)), I2), r"U: expected a square matrix, got shape \(2, 3\)"),
        ((I2, np.eye(3)), r"V: expected shape \(d_out, 2\), got \(3, 3\)"),
        ((I2, None), "V: expected real numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            Head(*arguments)
    for heads, message in [
        ([], "heads: expected at least one Head, got none"),
        (Head(I2, I2), "heads: expected a sequence of Head, got Head"),
        (3, "heads: expected a sequence of Head, got int"),
        ([Head(I2, I2), I2], r"heads\[1\]: expected a Head, got ndarray"),
        ([Head(I2, I2), Head(I2, [[1.0, 0.0]])], "heads: expected one shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            MultiHead(heads)
        with pytest.raises(ValueError, match=message):
            ResidualMultiHead(heads, I2)
    with pytest.raises(ValueError, match=r"heads: expected V of shape \(2, 2\) .* got \(1, 2\)"):
        ResidualMultiHead([Head(I2, [[1.0, 0.0]])], I2)
    with pytest.raises(ValueError, match=r"W_out: expected shape \(d_out, 4\), got \(2, 2\)"):
        ResidualMultiHead([Head(I2, I2), Head(I2, I2)], I2)


def test_heads_may_come_from_a_generator():
    assert len(MultiHead(Head(k * I2, I2) for k in range(3)).heads) == 3


FROZEN = [
    TWO,
    Head(I2, I2),
    MultiHead([Head(I2, I2)]),
    ResidualMultiHead([Head(I2, I2)], I2),
]


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda each: type(each).__name__)
def test_objects_are_immutable_and_so_are_their_copies(frozen):
    for each in (
        frozen,
        copy.copy(frozen),
        copy.deepcopy(frozen),
        pickle.loads(pickle.dumps(frozen)),
    ):
        assert repr(each) == repr(frozen)
        assert len(repr(each)) < 80
        for name in type(frozen).__dataclass_fields__:
            with pytest.raises(AttributeError):
                setattr(each, name, None)
            value = getattr(each, name)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, getattr(frozen, name))
                with pytest.raises(ValueError, match="read-only"):
                    value[...] = 0.0


def test_objects_keep_their_own_copies():
    weights, means, covariances = np.array([0.5, 0.5]), np.eye(2), np.stack([np.eye(2)] * 2)
    mixture = GaussianMixture(weights, means, covariances)
    U, V = np.eye(2), np.eye(2)
    head = Head(U, V)
    before = head(mixture, [1.0, 2.0])
    for array in (weights, means, covariances, U, V):
        array[...] = 7.0
    np.testing.assert_array_equal(head(mixture, [1.0, 2.0]), before)


def test_arguments_are_left_as_they_were(rng):
    prompt, queries = rng.standard_normal((50, 2)), rng.standard_normal((7, 2))
    kept = prompt.copy(), queries.copy()
    softmax_attention(prompt, queries, I2, I2)
    population_attention(TWO, queries, I2, I2)
    np.testing.assert_array_equal(prompt, kept[0])
    np.testing.assert_array_equal(queries, kept[1])


def test_checks_survive_python_o():
    program = (
        "import mixattn\n"
        "try:\n    mixattn.GaussianMixture([0.5], [[0.0]], [[1.0]])\n"
        "except ValueError as error:\n    print('refused', __debug__, error)"
    )
    run = subprocess.run(
        [sys.executable, "-O", "-c", program],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"},
    )  # fmt: skip
    assert run.stdout.startswith("refused False weights: expected weights that sum to 1")
