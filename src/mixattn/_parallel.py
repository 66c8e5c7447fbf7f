"""Threads over independent tasks, each with a single-threaded BLAS to itself.

NumPy's BLAS threads matrix products only. Where an exponential costs as much as the product before
it, it pays to run whole tasks side by side instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

OrderedMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

# Multiply-adds: below the first BLAS itself stays on one thread; a thread with less than the
# second would cost more to start than it saves.
_SMALL_WORK = 2**18
_WORK_PER_THREAD = 2**22


@contextmanager
def thread_map(work: int) -> Iterator[OrderedMap]:
    """Yield a `map` that runs its tasks on threads and keeps their order.

    It uses as many threads as BLAS would, so that what limits BLAS (OMP_NUM_THREADS, threadpoolctl)
    limits it too, and fewer where `work`, the multiply-adds of all tasks, is small. How many there
    are changes no result.
    """
    if work <= _SMALL_WORK:
        yield map
        return
    with single_threaded_blas() as n_threads:
        n_workers = min(n_threads, 1 + work // _WORK_PER_THREAD)
        if n_workers == 1:
            yield map
        else:
            with ThreadPoolExecutor(n_workers) as pool:
                yield pool.map


def slices(length: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `step` that cover ``range(length)``."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


class _Holders:
    """Who holds BLAS at one thread: its thread count is the process's, not a thread's."""

    lock = threading.Lock()
    count = 0
    limiter: Any = None


def _forget_holders() -> None:
    """Start over in a forked child: the parent's other threads, which held BLAS, are not there."""
    if _Holders.count:
        _Holders.limiter.restore_original_limits()
    _Holders.lock, _Holders.count = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_holders)


@contextmanager
def single_threaded_blas() -> Iterator[int]:
    """Hold BLAS at one thread and yield how many it had.

    Of several holders at a time, the first lowers the count and the last restores it.
    """
    with _Holders.lock:
        libraries = _blas().lib_controllers
        n_threads = min((lib.num_threads for lib in libraries), default=os.cpu_count() or 1)
        if _Holders.count == 0:
            _Holders.limiter = _blas().limit(limits=1)
        _Holders.count += 1
    try:
        yield n_threads
    finally:
        with _Holders.lock:
            _Holders.count -= 1
            if _Holders.count == 0:
                _Holders.limiter.restore_original_limits()
