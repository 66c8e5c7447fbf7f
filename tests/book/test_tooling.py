"""What `make` and continuous integration rest on: counted stages, clean environment, line ends."""

import os
import re
import shutil
import subprocess

import pytest
import run_tests
from notebooks import ROOT


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "", (1, 0, 0)),  # lint: no test, one check
        (1, "E501 line too long\n", (0, 1, 0)),
        (0, "....\n4 passed in 0.12s\n", (4, 0, 0)),
        (1, "4 passed, 1 failed, 2 errors, 3 skipped in 75.30s (0:01:15)\n", (4, 3, 3)),
        (1, "===== 2 failed, 1 passed, 4 warnings in 1.00s =====\n", (1, 2, 0)),
        (0, "4 passed in 0.12s\n3 passed, 1 deselected in 2s\n", (7, 0, 0)),
        (5, "no tests ran in 0.01s\n", (0, 1, 0)),  # nothing collected
        (2, "4 passed in 0.12s\ncoverage is low\n", (4, 1, 0)),  # what follows the tests failed
        (3, "INTERNALERROR> KeyError\n", (0, 1, 0)),
    ],
)
def test_outcomes_are_counted(code, output, expected):
    found = run_tests.counts(code, output)
    assert (found["passed"], found["failed"], found["skipped"]) == expected


def run_stages(tmp_path, monkeypatch, capsys, *stages, **recipes):
    """Run stages of a small Makefile; return the exit status and what was printed."""
    rules = "".join(f"{name}:\n\t@{recipe}\n" for name, recipe in recipes.items())
    (tmp_path / "Makefile").write_text(rules)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    return run_tests.main(stages), capsys.readouterr().out


SKIP = "echo 'SKIPPED tests/a.py::test_x - no browser'; echo '2 passed, 1 skipped in 0.1s'"


def test_one_line_a_stage_and_the_sum_alone_on_the_last(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("REQUIRE_BROWSER", raising=False)
    status, text = run_stages(
        tmp_path, monkeypatch, capsys, "lint", "site", lint="echo noise", site=SKIP
    )
    lines = text.splitlines()
    assert status == 0
    assert re.fullmatch(r"lint +\d+\.\d s  1 passed", lines[0])
    assert re.fullmatch(r"site +\d+\.\d s  2 passed, 1 skipped", lines[1])
    assert lines[2:] == [
        "    SKIPPED tests/a.py::test_x - no browser",
        "3 passed, 0 failed, 1 skipped",
    ]


def test_a_failure_shows_its_output_and_the_other_stages_run(tmp_path, monkeypatch, capsys):
    status, text = run_stages(
        tmp_path, monkeypatch, capsys, "lint", "site", lint="echo why; false", site="true"
    )
    assert status == 1
    assert "why\n" in text
    assert text.endswith("1 passed, 1 failed, 0 skipped\n")


def test_a_skipped_test_fails_where_all_must_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REQUIRE_BROWSER", "1")
    status, text = run_stages(tmp_path, monkeypatch, capsys, "site", site=SKIP)
    assert status == 1
    assert "SKIPPED tests/a.py::test_x" in text
    assert text.endswith("2 passed, 1 failed, 0 skipped\n")


def test_a_run_without_a_test_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("REQUIRE_BROWSER", raising=False)
    status, _ = run_stages(tmp_path, monkeypatch, capsys, "site", site="echo '1 skipped in 0.1s'")
    assert status == 1


def test_every_stage_has_a_recipe():
    stages = re.findall(r"^(?:CHECKS|STAGES) := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert len(stages) == 2
    for name in " ".join(stages).split():
        done = subprocess.run(
            ["make", "--dry-run", "-o", ".venv/.installed", name], cwd=ROOT, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), name


def test_recipes_do_not_see_the_shell_of_other_work(tmp_path):
    (tmp_path / "show.mk").write_text(f"include {ROOT}/Makefile\nshow:\n\t@env\n")
    foreign = dict.fromkeys(
        ["PYTHONPATH", "PYTHONWARNINGS", "JUPYTER_PATH", "MPLBACKEND", "PYTEST_ADDOPTS"], "x"
    )
    done = subprocess.run(
        ["make", "--no-print-directory", "-f", tmp_path / "show.mk", "show"],
        cwd=ROOT,
        env=os.environ | foreign,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert foreign.keys() & seen.keys() == {"PYTHONPATH"}
    assert seen["PYTHONPATH"] == f"{ROOT}/src"


def test_scripts_keep_their_line_ends_in_any_checkout(tmp_path):
    names = [".ci/run", ".binder/postBuild", "Makefile"]
    for name in [".gitattributes", *names]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def git(*arguments):
        options = ["-c", "core.autocrlf=true", "-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", *options, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    for name in names:
        (tmp_path / name).unlink()
    git("checkout", "--", ".")
    for name in names:
        assert b"\r" not in (tmp_path / name).read_bytes(), name
