"""Shared by the book's tests: the modules that build it, and the built site."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
sys.path[:0] = [str(ROOT / "book" / "_ext"), str(ROOT / "tools"), str(HERE)]


@pytest.fixture(scope="session")
def site() -> Path:
    """Folder of the built site."""
    folder = ROOT / "_build" / "html"
    if not (folder / "index.html").exists():
        pytest.fail("there is no built site: run `make book` first")
    return folder
