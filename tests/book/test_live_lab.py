"""A chapter in a real JupyterLab: its figure lives, Python reads it, boxes and references are rendered."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import nbformat
import numpy as np
import pytest
from live_kinds import assert_equal_to_package
from notebooks import kernel_environment
from playwright.sync_api import TimeoutError, expect
from test_live_browser import CHROMIUM, FLAGS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: install it or set CHROMIUM"
    ),
]
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
FIGURE = """\
from companion import use_style
from companion.explorables.selection_map import selection_map
from mixattn import GaussianMixture

use_style()
pair = GaussianMixture([0.5, 0.5], [[1.6, 0.4], [-1.4, -0.6]], [[[0.4, 0], [0, 0.4]], [[1, 0], [0, 1]]])
figure = selection_map(pair, query=[0.9, 1.1])
figure"""
TEXT = """\
The query stands at <span class="live-map-z">(0.90, 1.10)</span>.

```{prf:theorem} A box
:label: box
:nonumber:

Every $x$ equals itself.
```
"""
READ = "import json; print('STATE', json.dumps(figure.state)); print('DERIVED', json.dumps(figure.derived))"
MOVE = "figure.state = figure.state | {'query': [0.0, 0.5]}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Address of a JupyterLab on a folder with one notebook; nothing of the user's settings."""
    folder = tmp_path_factory.mktemp("lab")
    cells = [
        nbformat.v4.new_markdown_cell(TEXT),
        *(nbformat.v4.new_code_cell(source) for source in (FIGURE, READ, MOVE, READ)),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)
    nbformat.write(notebook, folder / "figure.ipynb")
    environment = kernel_environment() | {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
    }
    options = [
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--port=0",
        "--IdentityProvider.token=",
    ]
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options, f"--notebook-dir={folder}"],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
    )
    try:
        yield wait_for_address(folder / "log", server)
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def wait_for_address(log, server):
    for _ in range(600):
        found = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text("utf-8"))
        if found:
            with urlopen(found.group() + "api") as answer:
                assert json.load(answer)["version"]
            return found.group()
        assert server.poll() is None, log.read_text("utf-8")
        time.sleep(0.1)
    pytest.fail(f"JupyterLab does not answer:\n{log.read_text('utf-8')}")


@pytest.fixture(scope="module")
def page(lab):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(
            viewport={"width": 1280, "height": 1400}, reduced_motion="reduce"
        )
        opened = context.new_page()
        for attempt in range(3):
            try:
                drive(opened, f"{lab}lab/tree/figure.ipynb?reset")
                break
            except (AssertionError, TimeoutError):
                # on a busy machine a Lab that starts may lose a key or a message of its kernel
                if attempt == 2:
                    raise
        yield opened
        browser.close()


def drive(page, address):
    """Open the notebook, run its cells, and move the figure by keys between them."""
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    ready = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
    page.wait_for_selector(ready, state="attached", timeout=60_000)
    for index in (1, 2, 3, 4):
        run(page, index)
        if index == 1:
            page.wait_for_selector(".mx-handle", timeout=30_000)
            page.locator(".mx-handle input").first.focus()
            page.keyboard.press("ArrowRight")
            page.keyboard.press("b")  # a shortcut of the notebook's, not for the figure
            page.wait_for_timeout(800)


def cell(page, index):
    return page.locator(".jp-Notebook .jp-Cell").nth(index)


def run(page, index):
    """Run a cell and wait for its end; a busy Lab may miss the keys, so they are pressed again."""
    prompt = cell(page, index).locator(".jp-InputPrompt")
    for _ in range(6):
        cell(page, index).locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        try:
            expect(prompt).not_to_have_text("[ ]:", timeout=10_000)
            break
        except AssertionError:
            continue
    expect(prompt).to_have_text(re.compile(r"^\[\d+\]:$"), timeout=60_000)
    page.wait_for_timeout(600)


def printed(page, index):
    text = cell(page, index).locator(".jp-OutputArea-output").first.inner_text()
    return [
        json.loads(re.search(rf"^{name} (.*)$", text, re.M).group(1))
        for name in ("STATE", "DERIVED")
    ]


def test_python_reads_what_the_keyboard_moved(page):
    state, derived = printed(page, 2)
    assert not np.allclose(
        state["means"] + [state["query"]], [[1.6, 0.4], [-1.4, -0.6], [0.9, 1.1]]
    )
    assert_equal_to_package("selection_map", state, derived)
    assert page.locator(".jp-Notebook .jp-Cell").count() == 5


def test_the_figure_follows_python(page):
    state, derived = printed(page, 4)
    assert state["query"] == [0.0, 0.5]
    assert_equal_to_package("selection_map", state, derived)
    assert page.locator(".live-map-z").inner_text() == "(0.00, 0.50)"


def test_boxes_and_formulas_of_the_text_are_rendered(page):
    box = cell(page, 0)
    assert "prf:theorem" not in box.inner_text()
    assert "A box" in box.inner_text()
