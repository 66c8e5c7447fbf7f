"""Colab's first cell, and the copies of the chapters that know the repository."""

import sys
from types import ModuleType

import colab
import nbformat
import notebooks
import pytest
import refresh
from IPython.core.interactiveshell import InteractiveShell

REPOSITORY = "https://github.com/owner/name@abc123"


STEPS = [
    "git clone --quiet https://github.com/owner/name /content/mixattn-book",
    "cd -q /content/mixattn-book/book",
    "git checkout --quiet abc123",
    'pip install --quiet "..[book]"',
]


@pytest.fixture
def commands():
    """Run a cell as IPython does; return what it would do to the machine, in order."""

    def run(source):
        asked = []
        shell = InteractiveShell()
        for magic in ("cd", "pip"):
            shell.register_magic_function(
                lambda line, magic=magic: asked.append(f"{magic} {line}"), "line", magic
            )
        shell.system = lambda line: asked.append(shell.var_expand(line, depth=1))
        shell.run_cell(source).raise_error()
        return asked

    return run


@pytest.fixture
def in_colab(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr("sys.path", [*sys.path])


def test_cell_does_nothing_in_the_book(commands, monkeypatch):
    monkeypatch.chdir(notebooks.ROOT / "book")
    assert commands(refresh.FIRST_CELL) == []


@pytest.mark.parametrize("missing", ["package", "data"])
def test_cell_says_elsewhere_what_to_do(commands, monkeypatch, missing):
    if missing == "package":
        monkeypatch.chdir(notebooks.ROOT / "book")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    else:
        monkeypatch.chdir(notebooks.ROOT)
    with pytest.raises(RuntimeError, match="get its repository"):
        commands(refresh.FIRST_CELL)


@pytest.mark.usefixtures("in_colab")
def test_cell_brings_the_package_and_the_data_in_colab(commands, tmp_path):
    path = tmp_path / "01_small.ipynb"
    notebook = refresh.normalize(nbformat.v4.new_notebook())
    nbformat.write(notebook, path)
    cell = nbformat.reads(colab.filled(path, REPOSITORY), 4).cells[0]
    assert commands(cell.source) == STEPS
    assert sys.path[0] == "/content/mixattn-book/src"


@pytest.mark.usefixtures("in_colab")
def test_cell_asks_for_the_address_when_nobody_filled_it_in(commands, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: REPOSITORY)
    assert commands(refresh.FIRST_CELL) == STEPS


def test_copies_differ_from_the_chapters_in_one_line(tmp_path):
    colab.main(REPOSITORY, tmp_path)
    for chapter in notebooks.chapter_paths():
        old = chapter.read_text("utf-8").splitlines()
        new = (tmp_path / "book" / chapter.name).read_text("utf-8").splitlines()
        (changed,) = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
        assert REPOSITORY in changed[1]


def test_a_notebook_without_the_cell_is_refused(tmp_path):
    path = tmp_path / "01_small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), path)
    with pytest.raises(ValueError, match="make refresh"):
        colab.filled(path, REPOSITORY)
