"""The form of the committed chapters, and the code that makes it."""

import json
import symtable

import nbformat
import notebooks
import pytest
import refresh
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

CHAPTERS = notebooks.chapter_paths()


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return request.param


def test_chapter_is_in_the_committed_form(chapter):
    committed = chapter.read_text("utf-8")
    assert committed == refresh.text(refresh.normalize(notebooks.read(chapter))), (
        "run `make refresh`"
    )


def test_chapter_has_nothing_that_forbids_committing(chapter):
    assert refresh.problems(notebooks.read(chapter)) == []


def test_chapter_was_executed_in_order(chapter):
    cells = [cell for cell in notebooks.read(chapter).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_chapter_shows_the_outputs_of_its_own_code(chapter):
    notebook = notebooks.read(chapter)
    assert notebook.metadata.get("executed") == refresh.source_digest(notebook), (
        "the code has changed since the outputs were made: run `make refresh`"
    )


def test_visible_code_fits_its_box_and_a_screen(chapter):
    code = [cell for cell in notebooks.read(chapter).cells if cell.cell_type == "code"]
    visible = [
        cell
        for cell in code
        if not {"hide-input", "remove-cell", "remove-input"} & set(cell.metadata.get("tags", []))
    ]
    if chapter.stem not in {"intro", "tour"}:
        assert len(visible) > 5
    for cell in visible:
        lines = cell.source.splitlines()
        assert len(lines) <= 55, cell.id
        assert max(map(len, lines)) <= 90, cell.id
        assert not cell.source.startswith("check_claims("), f"{cell.id}: tag it hide-input"


def test_every_chapter_is_in_the_table_of_contents_in_order():
    toc = yaml.safe_load((notebooks.ROOT / "_toc.yml").read_text("utf-8"))
    listed = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    files = [f"book/{path.stem}" for path in CHAPTERS if path.stem[0].isdigit()]
    assert [name for name in listed if name in files] == files
    assert (toc["root"], listed[0]) == ("book/intro", "book/tour")


def html_output(text):
    return new_output("display_data", data={"text/html": text})


def live_figure(image):
    return (
        '<div class="explorable" data-kind="gates"><script type="application/json">{}</script>'
        f'<img alt="seen" src="data:image/webp;base64,{image}"></div>'
    )


def small_notebook(*sources):
    cells = [new_markdown_cell("# Title"), *(new_code_cell(source) for source in sources)]
    return new_notebook(cells=cells, metadata={"description": "A notebook for a test."})


@pytest.fixture
def book(tmp_path):
    """Folder in which a chapter finds what it needs."""
    (tmp_path / "data").mkdir()
    return tmp_path


def test_refresh_twice_changes_no_byte(book):
    path = book / "01_small.ipynb"
    source = "import ipywidgets\nprint('a')\nprint('b')\ndisplay(ipywidgets.IntSlider())\n1 + 1"
    notebook = small_notebook(source)
    notebook.metadata["widgets"] = {"state": {}}
    notebook.cells[1].metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    nbformat.write(notebook, path)
    assert refresh.refresh(path) == []
    first = path.read_bytes()
    assert refresh.refresh(path) == []
    assert path.read_bytes() == first
    stored = notebooks.read(path)
    assert set(stored.metadata) == {"description", "executed", "kernelspec", "language_info"}
    stream, widget, value = stored.cells[2].outputs
    assert stream.text == "a\nb\n"
    assert set(widget.data) == {"text/plain"}
    assert value.data["text/plain"] == "2"


def test_refresh_refuses_a_chapter_that_raises(book):
    path = book / "01_small.ipynb"
    nbformat.write(small_notebook("1 / 0"), path)
    before = path.read_bytes()
    (problem,) = refresh.refresh(path)
    assert problem.startswith("01_small.ipynb: ")
    assert "ZeroDivisionError" in problem
    assert path.read_bytes() == before


def test_code_changed_after_a_refresh_is_seen(book):
    path = book / "01_small.ipynb"
    nbformat.write(small_notebook("1 + 1"), path)
    assert refresh.refresh(path) == []
    notebook = notebooks.read(path)
    assert notebook.metadata.executed == refresh.source_digest(notebook)
    notebook.cells[0].source += "\n"  # a text does not count
    notebook.cells[-1].source = "1 + 2"
    assert notebook.metadata.executed != refresh.source_digest(refresh.normalize(notebook))


@pytest.mark.parametrize(
    ("source", "expected"),
    [("import os; os._exit(1)", "died"), ("import time; time.sleep(60)", "timed out")],
)
def test_a_chapter_that_cannot_be_run_is_named(book, monkeypatch, source, expected):
    monkeypatch.setattr(notebooks, "TIMEOUT", 3)
    path = book / "01_small.ipynb"
    nbformat.write(small_notebook(source), path)
    with pytest.raises(notebooks.ChapterError, match=r"(?s)^01_small\.ipynb: .*" + expected):
        notebooks.execute(path, widget_state=False)


def test_kernels_know_nothing_of_the_shell(book, tmp_path, monkeypatch):
    foreign = tmp_path / "foreign"
    (foreign / "mixattn").mkdir(parents=True)
    (foreign / "mixattn" / "__init__.py").write_text("raise ImportError('the wrong one')")
    kernel = foreign / "kernels" / "python3"
    kernel.mkdir(parents=True)
    broken = {"argv": ["/nonexistent"], "display_name": "x", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(broken))
    (foreign / "ipython_kernel_config.py").write_text("raise SystemExit('the wrong one')")
    for name in ("PYTHONPATH", "JUPYTER_PATH", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(foreign))
    for name, value in {"PYTHONWARNINGS": "error", "MPLBACKEND": "none"}.items():
        monkeypatch.setenv(name, value)
    path = book / "01_small.ipynb"
    source = "import sys, mixattn, matplotlib.pyplot\nprint(mixattn.__file__, sys.warnoptions)"
    nbformat.write(small_notebook(source), path)
    (output,) = notebooks.execute(path, widget_state=False).cells[-1].outputs
    assert output.text == f"{notebooks.ROOT}/src/mixattn/__init__.py []\n"


def test_a_chapter_away_from_the_book_says_what_to_do(tmp_path):
    path = tmp_path / "01_small.ipynb"
    nbformat.write(refresh.normalize(small_notebook("import companion")), path)
    with pytest.raises(notebooks.ChapterError, match=r"pip install -r requirements\.txt"):
        notebooks.execute(path, widget_state=False)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (new_output("stream", name="stderr", text="careful\nUserWarning: x\n"), "UserWarning: x"),
        (new_output("display_data", data={"image/png": "AAAA"}), "show_figure"),
        (new_output("display_data", data={"image/webp": "A" * 90_000}), "bytes, above 60000"),
        (html_output(f"<p>{'A' * 70_000}</p>"), "text/html output of 70007 bytes"),
        (html_output(live_figure("A" * 90_000)), "figure of 67500 bytes"),
        (html_output(live_figure("AAAA").replace("seen", "")), "without alt text"),
        (new_output("display_data", data={"image/webp": "AAAA"}), "without alt text"),
        (new_output("stream", text="<A object at 0x7f00deadbeef>"), "memory address"),
        (new_output("stream", text=f"{notebooks.ROOT}/src"), "this machine's path"),
        (new_output("error", ename="KeyError", evalue="", traceback=[]), "raises KeyError"),
    ],
)
def test_problems_are_named(output, expected):
    notebook = small_notebook("pass")
    notebook.cells[1].outputs = [output]
    found = refresh.problems(notebook)
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    "output",
    [
        html_output(live_figure("A" * 70_000)),
        new_output(
            "display_data",
            data={"image/webp": "AAAA", "image/png": "AAAA"},
            metadata={"image/webp": {"alt": "seen"}},
        ),
    ],
)
def test_a_live_figure_with_its_still_and_a_png_beside_a_webp_are_no_problem(output):
    notebook = small_notebook("pass")
    notebook.cells[1].outputs = [output]
    assert refresh.problems(notebook) == []


def test_key_follows_the_packages_and_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    module, chapter = tmp_path / "src" / "a.py", tmp_path / "01_x.ipynb"
    module.write_text("x = 1\n")
    chapter.write_text("{}")
    keys = [notebooks.content_key(chapter)]
    module.write_text("x = 2\n")
    keys.append(notebooks.content_key(chapter))
    chapter.write_text("{ }")
    keys.append(notebooks.content_key(chapter))
    # Scripts and styles of live figures change no output.
    (tmp_path / "src" / "figure.js").write_text("1")
    (tmp_path / "src" / "figure.css").write_text("a {}")
    assert len(set(keys)) == 3
    assert notebooks.content_key(chapter) == keys[-1]


def global_names(table):
    """Globals that a scope and the scopes inside it read."""
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return own.union(*map(global_names, table.get_children()))


def test_a_chapter_moves_and_no_later_cell_rebinds_what_an_explorer_draws_with(chapter):
    # with a kernel the explorer draws again after the last cell has run
    cells = [
        symtable.symtable(cell.source, cell.id, "exec")
        for cell in notebooks.read(chapter).cells
        if cell.cell_type == "code" and "colab" not in cell.metadata.get("tags", [])
    ]
    bound = [
        {name.get_name() for name in cell.get_symbols() if name.is_assigned()} for cell in cells
    ]
    explorers = [
        i
        for i, cell in enumerate(cells)
        if "explorer" in cell.get_identifiers()
        and "explorer" not in bound[i]
        and not cell.lookup("explorer").is_imported()
    ]
    live = any("companion.explorables" in cell.source for cell in notebooks.read(chapter).cells)
    assert explorers or live
    for at in explorers:
        functions = {
            scope.get_name(): scope for cell in cells[: at + 1] for scope in cell.get_children()
        }
        reached, queue = set(), {scope.get_name() for scope in cells[at].get_children()}
        while queue:
            reached |= queue
            queue = {
                name
                for known in queue & functions.keys()
                for name in global_names(functions[known])
            } - reached
        rebound = reached & set().union(*bound[at + 1 :])
        assert not rebound, f"{cells[at].get_name()}: {sorted(rebound)}"
