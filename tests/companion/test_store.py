"""Stored data: the same text for the same content, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from companion.store import as_text, read_data, rounded, stamp, write_data

CONTENT = {
    "parameters": {"means": [[3.0, 0.0], [0.0, 3.0]], "name": "a {b} [c], d"},
    "runs": [{"seed": 0, "end": 1e-20, "curve": [1, 2.5]}, {"seed": 1, "deep": {"x": [1e5]}}],
}


def test_what_is_written_is_read(tmp_path):
    path = write_data("a_set", CONTENT, tmp_path / "data")
    assert path == tmp_path / "data" / "a_set.json"
    assert read_data("a_set", tmp_path / "data") == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["a_set.json"]
    first = path.read_bytes()
    write_data("a_set", read_data("a_set", tmp_path / "data"), tmp_path / "data")
    assert path.read_bytes() == first


def test_flat_lists_and_runs_stand_on_one_line():
    text = as_text(CONTENT)
    assert '{ "seed": 0, "end": 1e-20, "curve": [ 1, 2.5 ] }' in text
    assert "\n   [ 3.0, 0.0 ]," in text
    assert json.loads(text) == CONTENT


def test_chapters_find_their_sets_beside_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data("one", CONTENT, "data")
    assert read_data("one") == CONTENT
    with pytest.raises(ValueError, match=r"no stored set 'two' in data; there are: one"):
        read_data("two")


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_data("bad", {"x": float("nan")}, tmp_path)
    assert list(tmp_path.iterdir()) == [] or not (tmp_path / "bad.json").exists()
    for value in (np.inf, [1.0, np.nan]):
        with pytest.raises(ValueError, match="finite"):
            rounded(value)


def test_rounding_keeps_significant_digits():
    assert rounded(np.pi, 3) == 3.14
    assert rounded(np.array([[1.23456789e-20, -12345.6789], [0.0, 1.0]]), 4) == [
        [1.235e-20, -12350.0],
        [0.0, 1.0],
    ]
    assert rounded([3, np.int64(4)]) == [3, 4]
    assert isinstance(rounded(np.float64(0.5)), float)


def test_stamp_says_how_and_with_what_but_not_when_or_where():
    made = stamp("make data NAME=x", seed=3, grid=[1, 2])
    assert list(made) == ["made_by", "versions", "parameters"]
    assert set(made["versions"]) == {"python", "numpy", "scipy", "mixattn"}
    assert made["parameters"] == {"seed": 3, "grid": [1, 2]}
    text = json.dumps(made)
    assert str(Path.cwd()) not in text
    assert not re.search(r"20\d\d-\d\d", text)
