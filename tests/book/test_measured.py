"""The fixture `measured`: what a test records is held to its bound and to the committed value."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = f"""\
[tool.pytest.ini_options]
pythonpath = ["{ROOT / "src"}"]
addopts = "--import-mode=importlib"
markers = ["claim(*ids): claims"]
"""

TEST = """\
import pytest
from companion import at_most

@pytest.mark.claim("P1")
@pytest.mark.parametrize("size", [1, 2])
def test_size(measured, size):
    measured("{name}", at_most("size", {value}, {bound}))
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "book").mkdir()
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    write(tmp_path)
    return tmp_path


def write(project, name="P1", value="size / 3", bound=1):
    text = TEST.format(name=name, value=value, bound=bound)
    (project / "tests" / "deep" / "test_it.py").write_text(text)


def run(project, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", *options]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def recorded(project):
    return json.loads((project / "book" / "measured.json").read_text("utf-8"))


def test_recording_then_comparing(project):
    assert "pytest TEST -n 0 --record-measured" in run(project).stdout
    assert run(project, "--record-measured").returncode == 0
    rows = recorded(project)
    assert list(rows) == [f"deep/test_it.py::test_size[{size}]" for size in (1, 2)]
    assert rows["deep/test_it.py::test_size[2]"] == [
        {"id": "P1", "check": "size", "expected": "≤ 1", "measured": "0.667", "holds": True}
    ]
    assert run(project).returncode == 0
    # a change below what is printed is none; another is
    write(project, value="size / 3.0001")
    assert run(project).returncode == 0
    write(project, value="size / 3.5")
    changed = run(project)
    assert changed.returncode == 1
    assert "measured rows changed" in changed.stdout


def test_a_row_that_fails_is_not_recorded(project):
    write(project, bound=0.5)
    failed = run(project, "--record-measured")
    assert failed.returncode == 1
    assert "P1: size: expected ≤ 0.5, measured 0.666" in failed.stdout
    assert recorded(project)["deep/test_it.py::test_size[2]"] == []


def test_a_test_that_is_not_marked_is_refused(project):
    write(project, name="P2")
    assert "mark the test with P2" in run(project).stdout
