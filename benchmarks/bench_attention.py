"""Speed and memory of the attention operators, as ratios measured in one run.

    python -m pip install -r benchmarks/requirements.txt
    python benchmarks/bench_attention.py

Each row times the two sides in turns, so that a busy machine slows both, and prints the ratio of
their medians and of their minima. CPU time is that of all threads.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_info

from mixattn import GaussianMixture, population_attention, softmax_attention

MIB = 2**20
SHAPES = [(100_000, 256, 16), (1_000_000, 64, 2), (10_000, 1_000, 16)]


@dataclass(frozen=True)
class Timing:
    """Wall-clock and CPU seconds of several runs."""

    wall: list[float]
    cpu: list[float]

    @property
    def median(self) -> float:
        """Median wall-clock seconds."""
        return statistics.median(self.wall)


def time_in_turns(*functions: Callable[[], object], repeats: int) -> list[Timing]:
    timings = [Timing([], []) for _ in functions]
    for function in functions:
        function()  # pages touched, threads started
    for _ in range(repeats):
        for function, timing in zip(functions, timings, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            function()
            timing.wall.append(time.perf_counter() - wall)
            timing.cpu.append(time.process_time() - cpu)
    return timings


def show_ratio(label: str, ours: Timing, other: Timing, unit: str = "") -> None:
    print(
        f"  {label:<38}{1e3 * ours.median:>9.1f}{1e3 * other.median:>11.1f}"
        f"{ours.median / other.median:>10.2f}{min(ours.wall) / min(other.wall):>9.2f}"
        f"{min(ours.cpu) / min(other.cpu):>9.2f}{unit}"
    )


def show_header(title: str, other: str) -> None:
    print(f"\n{title}")
    print(f"  {'':<38}{'mixattn':>9}{other:>11}{'ratio of':>10}{'of':>9}{'of CPU':>9}")
    print(f"  {'':<38}{'ms':>9}{'ms':>11}{'medians':>10}{'minima':>9}{'time':>9}")


def plain_softmax_attention(prompt, queries, U, V):
    """Evaluate the textbook formula, with the whole (n, L) matrix of weights."""
    logits = queries @ U.T @ prompt.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ prompt @ V.T


def fastest_sdpa(torch, prompt, queries, U, V) -> tuple[Callable[[], object], int]:
    """scaled_dot_product_attention with the queries split over the number of heads that suits it."""
    tokens, tilts = torch.from_numpy(prompt), torch.from_numpy(queries @ U.T)
    values = torch.from_numpy(V.T.copy())

    def with_heads(heads: int) -> Callable[[], object]:
        keys = tokens.expand(1, heads, *tokens.shape)
        split = tilts.reshape(1, heads, -1, tilts.shape[1])
        return lambda: (
            torch.nn.functional.scaled_dot_product_attention(split, keys, keys, scale=1.0) @ values
        )

    candidates = {heads: with_heads(heads) for heads in (1, 2, 4)}
    timings = time_in_turns(*candidates.values(), repeats=2)
    heads = min(zip(timings, candidates, strict=True), key=lambda pair: min(pair[0].wall))[1]
    return candidates[heads], heads


def random_case(rng, length, n, dim):
    prompt, queries = rng.standard_normal((length, dim)), rng.standard_normal((n, dim))
    U, V = rng.standard_normal((dim, dim)) / np.sqrt(dim), rng.standard_normal((dim, dim))
    return prompt, queries, U, V


def compare_with_sdpa(rng) -> None:
    try:
        import torch
    except ImportError:
        print("\nPyTorch is not installed: the comparison with it is left out.")
        return
    n_threads = max(each["num_threads"] for each in threadpool_info())
    torch.set_num_threads(n_threads)
    show_header(
        f"softmax_attention against PyTorch {torch.__version__} SDPA, float64, {n_threads} threads",
        "SDPA",
    )
    for shape in SHAPES:
        case = random_case(rng, *shape)
        sdpa, heads = fastest_sdpa(torch, *case)
        ours, other = time_in_turns(lambda c=case: softmax_attention(*c), sdpa, repeats=9)
        error = np.abs(softmax_attention(*case) - sdpa().numpy().reshape(shape[1], -1)).max()
        label = "L {:,}, n {:,}, d {}".format(*shape)
        show_ratio(label, ours, other, f"   target <= 1.5   (heads {heads}, gap {error:.0e})")


def compare_with_plain_numpy(rng) -> None:
    show_header("softmax_attention against the plain NumPy formula", "NumPy")
    for shape in SHAPES:
        case = random_case(rng, *shape)
        ours, other = time_in_turns(
            lambda c=case: softmax_attention(*c),
            lambda c=case: plain_softmax_attention(*c),
            repeats=3,
        )
        target = "   target <= 0.33" if shape[0] == 1_000_000 else ""
        show_ratio("L {:,}, n {:,}, d {}".format(*shape), ours, other, target)


MEMORY_SHAPES = [*SHAPES, (4_000_000, 64, 4), (2_000, 1_000_000, 4)]


def measure_memory() -> None:
    print("\nPeak memory beyond arguments and output, of a fresh process (target: under 64 MiB)")
    for shape in MEMORY_SHAPES:
        arguments = [sys.executable, __file__, "--memory", *map(str, shape)]
        run = subprocess.run(arguments, capture_output=True, text=True, check=True)
        weights = 8 * shape[0] * shape[1] / MIB
        label = "L {:,}, n {:,}, d {}".format(*shape)
        print(f"  {label:<38}{float(run.stdout):>9.1f} MiB   (all weights: {weights:,.0f} MiB)")


def peak_beyond_arguments(length: int, n: int, dim: int) -> float:
    """MiB that one call adds to the process's peak, less its output."""
    # A new process starts with its parent's peak: rise above that, so that what comes next counts.
    ballast = np.ones(256 * MIB // 8)
    case = random_case(np.random.default_rng(0), length, n, dim)
    softmax_attention(case[0][:10], case[1][:10], *case[2:])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    output = softmax_attention(*case)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    del ballast
    return (added - output.nbytes) / MIB


def plain_population_attention(mixture, z, U, V):
    """Proposition 2.1 for one query, as it is printed."""
    tilt = U @ z
    pushed = mixture.covariances @ tilt
    logits = np.log(mixture.weights) + mixture.means @ tilt + 0.5 * pushed @ tilt
    gates = np.exp(logits - logits.max())
    return V @ (gates / gates.sum() @ (mixture.means + pushed))


def compare_population(rng) -> None:
    n, n_components, dim, n_plain = 100_000, 8, 16, 1_000
    factors = rng.standard_normal((n_components, dim, dim)) / dim
    mixture = GaussianMixture(
        np.full(n_components, 1 / n_components),
        rng.standard_normal((n_components, dim)) / 2,
        factors @ factors.swapaxes(1, 2) + 0.25 * np.eye(dim),
    )
    queries = rng.standard_normal((n, dim))
    U, V = rng.standard_normal((dim, dim)) / dim, np.eye(dim)
    exact = population_attention(mixture, queries, U, V)

    ours, loop = time_in_turns(
        lambda: population_attention(mixture, queries, U, V),
        lambda: [plain_population_attention(mixture, z, U, V) for z in queries[:n_plain]],
        repeats=5,
    )
    plain = Timing([t * n / n_plain for t in loop.wall], [t * n / n_plain for t in loop.cpu])
    title = f"population_attention, n {n:,}, M {n_components}, d {dim}"
    show_header(f"{title}, against one query at a time", "loop")
    show_ratio(f"loop timed on {n_plain:,} queries, scaled up", ours, plain)

    length, n_finite = 50_000, 256
    prompt, _ = mixture.sample(length, rng)
    few = queries[:n_finite]
    (finite,) = time_in_turns(lambda: softmax_attention(prompt, few, U, V), repeats=3)
    error = np.sqrt(np.mean((softmax_attention(prompt, few, U, V) - exact[:n_finite]) ** 2))
    print(f"\n{title}, against attention over a sampled prompt")
    print(
        f"  over {length:,} tokens, {n_finite} queries: {1e3 * finite.median:.0f} ms, error {error:.1e}"
    )
    print("  longer prompts extrapolated: time grows like L, the error falls like 1 / sqrt(L)")
    print(f"  {'error':>9}{'tokens':>12}{'hours for all queries':>24}{'population, s':>16}")
    for accuracy in (1e-3, 1e-6, 1e-9):
        needed = length * (error / accuracy) ** 2
        hours = finite.median * needed / length * n / n_finite / 3600
        print(f"  {accuracy:>9.0e}{needed:>12.0e}{hours:>24.2g}{ours.median:>16.3f}")


def describe_machine() -> None:
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} CPUs")
    for each in threadpool_info():
        details = (each["internal_api"], each["version"], each.get("architecture"))
        print(f"  {' '.join(filter(None, details))}: {each['num_threads']} threads")
    settings = {k: v for k, v in os.environ.items() if k.startswith(("OPENBLAS_", "OMP_", "MKL_"))}
    print(f"  environment: {settings or 'no OPENBLAS_, OMP_ or MKL_ variable set'}")


def main() -> None:
    if "--memory" in sys.argv:
        print(peak_beyond_arguments(*map(int, sys.argv[2:])))
        return
    rng = np.random.default_rng(0)
    describe_machine()
    measure_memory()  # first, while this process is small
    compare_with_sdpa(rng)
    compare_with_plain_numpy(rng)
    compare_population(rng)


if __name__ == "__main__":
    main()
