import json
import os
from dataclasses import asdict
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from companion.claims import failure

hypothesis.settings.register_profile("book", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "book"))

MEASURED = Path(__file__).resolve().parents[1] / "book" / "measured.json"


def pytest_addoption(parser):
    parser.addoption(
        "--record-measured",
        action="store_true",
        help="write what tests measure into book/measured.json instead of comparing (with -n 0)",
    )


@pytest.fixture
def rng():
    return np.random.default_rng(20261011)


@pytest.fixture
def measured(request):
    """A function that holds a claim to a measured row, which the ledger page then shows.

    ``measured("S2.lln", within("log-log slope", slope, -0.55, -0.45))`` in a test that is marked
    with the claim. The rows are compared with the committed ones, as printed, so that the page
    cannot go stale.
    """
    claims = {name for mark in request.node.iter_markers("claim") for name in mark.args}
    rows = []

    def measure(claim_id, row):
        assert claim_id in claims, f"mark the test with {claim_id}"
        assert row.holds, f"{claim_id}: {failure(row)}"
        rows.append({"id": claim_id, **asdict(row)})

    yield measure
    name = request.node.nodeid.removeprefix("tests/")
    stored = json.loads(MEASURED.read_text("utf-8")) if MEASURED.exists() else {}
    if request.config.getoption("--record-measured"):
        assert not hasattr(request.config, "workerinput"), "record in one process: -n 0"
        recorded = dict(sorted((stored | {name: rows}).items()))
        text = json.dumps(recorded, indent=1, ensure_ascii=False)
        MEASURED.write_text(text + "\n", "utf-8")
    else:
        assert rows == stored.get(name), "measured rows changed: pytest TEST -n 0 --record-measured"
