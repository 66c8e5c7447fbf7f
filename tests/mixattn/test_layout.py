"""The house: imports go one way, and every public name says what it takes and gives."""

import ast
import inspect
import sys
from pathlib import Path

import pytest

import mixattn

SRC = Path(mixattn.__file__).parent
# A file may import from its own floor and from those before it; rooms of one floor are in one set,
# and the two wings never import each other.
FLOORS = [
    {"_checks"},
    {"_parallel"},
    {"_tiles"},
    {"integrals.rules", "integrals.logistic", "integrals.gates"},
    {"mixture", "descent"},
    {"integrals.expectation", "attention", "finite_prompt"},
    {"classification", "denoising"},
]
FILES = [path for path in sorted(SRC.rglob("*.py")) if path.stem != "__init__"]


def room(module):
    name = module.removeprefix("mixattn.")
    return name.split(".")[0] if name.startswith(("classification", "denoising")) else name


def floor(name):
    [number] = [i for i, rooms in enumerate(FLOORS) if name in rooms]
    return number


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_go_one_way(path):
    here = room(".".join(path.relative_to(SRC).with_suffix("").parts))
    for module in imported(path):
        if module.startswith("mixattn."):
            there = room(module)
            assert there == here or floor(there) <= floor(here), module
            assert {here, there} != {"classification", "denoising"}, module
        else:
            allowed = {"numpy", "scipy", "threadpoolctl", *sys.stdlib_module_names}
            assert module.split(".")[0] in allowed, module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lines_fit(path):
    assert max(map(len, path.read_text("utf-8").splitlines())) <= 100


@pytest.mark.parametrize("name", mixattn.__all__)
def test_public_functions_say_what_they_take_and_give(name):
    thing = getattr(mixattn, name)
    if not inspect.isfunction(thing):
        assert thing.__doc__
        return
    for heading in ("Parameters", "Returns", "Raises"):
        assert f"{heading}\n    -----" in thing.__doc__, heading
