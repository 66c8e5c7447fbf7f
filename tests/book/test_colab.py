"""Colab's first cell, and the copies of the chapters that know the repository."""

import sys
from types import ModuleType

import colab
import nbformat
import notebooks
import pytest
from IPython.core.interactiveshell import InteractiveShell

REPOSITORY = "https://github.com/owner/name@abc123"


@pytest.fixture
def installs(monkeypatch):
    """Run a cell as IPython does; return what it asks pip to install."""

    def run(source):
        asked = []
        shell = InteractiveShell()
        shell.register_magic_function(asked.append, "line", "pip")
        shell.run_cell(source).raise_error()
        return asked

    return run


def test_cell_does_nothing_elsewhere(installs):
    assert installs(notebooks.COLAB_CELL) == []


def test_cell_installs_the_package_in_colab(installs, monkeypatch, tmp_path):
    path = tmp_path / "01_small.ipynb"
    notebook = notebooks.normalize(nbformat.v4.new_notebook())
    nbformat.write(notebook, path)
    cell = nbformat.reads(colab.filled(path, REPOSITORY), 4).cells[0]
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert installs(cell.source) == [f'install --quiet "mixattn[book] @ git+{REPOSITORY}"']


def test_cell_asks_for_the_address_when_nobody_filled_it_in(installs, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr("builtins.input", lambda prompt: REPOSITORY)
    assert installs(notebooks.COLAB_CELL) == [f'install --quiet "mixattn[book] @ git+{REPOSITORY}"']


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
