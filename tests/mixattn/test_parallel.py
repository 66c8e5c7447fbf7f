"""Threads and forks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mixattn

FORK_WHILE_THREADS_RUN = """
import os, signal, threading, time
import numpy as np
from mixattn import _parallel, softmax_attention
rng = np.random.default_rng(0)
prompt, queries = rng.standard_normal((20_000, 8)), rng.standard_normal((64, 8))
eye = np.eye(8)
expected = softmax_attention(prompt, queries, eye, eye)
# the worst moment to fork: another thread holds the lock, and BLAS is held at one thread
with _parallel.single_threaded_blas():
    held = threading.Event()
    def hold():
        with _parallel._Holders.lock:
            held.set()
            time.sleep(1.0)
    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        same = np.array_equal(softmax_attention(prompt, queries, eye, eye), expected)
        os._exit(0 if same and _parallel._Holders.count == 0 else 1)
    _, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_during_a_threaded_call_computes_the_same():
    command = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_THREADS_RUN]
    environment = {**os.environ, "PYTHONPATH": str(Path(mixattn.__file__).parent.parent)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
