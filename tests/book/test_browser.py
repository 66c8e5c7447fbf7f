"""The built site in Chromium, with every other machine out of reach.

Needs Chromium: at /usr/bin/chromium, or where the environment variable CHROMIUM says.
"""

import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import assets
import pytest
from notebooks import ROOT

SITE = ROOT / "_build" / "html"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in (SITE / "book").glob("*.html"))
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 900}
#: Complaints of third-party code about itself that no reader meets.
HARMLESS = ("strictTypes",)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: install it or set CHROMIUM"
    ),
]


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves without a log."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Loopback address at which the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=site))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, address):
    """Open a page and wait until it stands; what went wrong is kept in `page.trouble`."""
    contexts = []

    def open_page(path, viewport=WIDE, scheme="light", base=None):
        context = chromium.new_context(
            viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.trouble = []
        here = base or address

        def keep(kind, text):
            if not any(harmless in text for harmless in HARMLESS):
                page.trouble.append(f"{kind}: {text}")

        def request(route):
            url = route.request.url
            if url.startswith(("data:", "blob:", here)):
                route.continue_()
            else:
                keep("request", url)
                route.abort()

        page.route("**/*", request)
        page.on(
            "console", lambda m: keep(m.type, m.text) if m.type in {"error", "warning"} else None
        )
        page.on("pageerror", lambda error: keep("exception", str(error)))
        page.on(
            "response", lambda r: keep("status", f"{r.status} {r.url}") if r.status >= 400 else None
        )
        page.goto(f"{here}/{path}")
        page.evaluate("() => window.MathJax?.startup?.promise")
        views = page.locator('script[type="application/vnd.jupyter.widget-view+json"]').count()
        if views:
            page.wait_for_function(
                f"document.querySelectorAll('.widget-subarea').length >= {views}"
            )
            page.wait_for_selector(".jupyter-widgets")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(params=PAGES)
def path(request):
    return request.param


def test_page_asks_no_other_machine_and_raises_no_error(visit, path):
    page = visit(path)
    assert page.trouble == []
    # Formulas are typeset, and none of them is an error.
    assert page.locator("mjx-merror, mjx-container [data-mjx-error]").count() == 0
    formulas = page.locator("article .math").count()
    assert (page.locator("article mjx-container").count() > 0) == (formulas > 0)


def test_nothing_but_boxes_scrolls_sideways_on_a_phone(visit, path):
    page = visit(path, PHONE)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], page.evaluate(
        """() => [...document.querySelectorAll("article *")]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("pre, .table-scroll"))
        .slice(0, 5).map(e => e.outerHTML.slice(0, 120))"""
    )
    # What scrolls sideways can be reached and moved with the keyboard.
    unreachable = page.evaluate(
        """() => [...document.querySelectorAll("article *")].filter(e => {
            const style = getComputedStyle(e);
            return ["auto", "scroll"].includes(style.overflowX) && e.scrollWidth > e.clientWidth + 1
                && e.tabIndex < 0 && !e.querySelector("a, button, [tabindex]");
        }).map(e => e.outerHTML.slice(0, 120))"""
    )
    assert unreachable == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(visit, path, scheme):
    viewport = WIDE if scheme == "light" else PHONE
    page = visit(path, viewport, scheme)
    page.evaluate(assets.member("axe-core", "axe.min.js").decode("utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        f"{found['id']}: {node['html'][:200]} {node['any'][0]['message'] if node['any'] else ''}"
        for found in result["violations"]
        if found["impact"] in {"serious", "critical"}
        for node in found["nodes"]
    ]
    assert serious == []


def test_dark_mode_switches_and_keeps_figures_light(visit):
    page = visit("book/intro.html", scheme="light")
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "light"
    button = page.locator("button.theme-switch-button").first
    for _ in range(3):
        button.click()
        if page.evaluate(theme) == "dark":
            break
    assert page.evaluate(theme) == "dark"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in background[4:-1].split(",")) < 60


def explorer_pages():
    """Pages with at least one explorer."""
    mark = "application/vnd.jupyter.widget-view+json"
    return [path for path in PAGES if mark in (SITE / path).read_text("utf-8")]


@pytest.mark.parametrize("way", ["http", "file"])
@pytest.mark.parametrize("path", explorer_pages())
def test_every_explorer_moves_by_keyboard_with_no_kernel(visit, path, way):
    page = visit(path, base=None if way == "http" else SITE.as_uri())
    explorers = page.locator(".explorer")
    assert explorers.count() > 0
    for number in range(explorers.count()):
        explorer = explorers.nth(number)
        for slider in explorer.locator(".noUi-handle:visible").all():
            frame = explorer.locator("img:visible")
            before = frame.get_attribute("src"), frame.get_attribute("alt")
            slider.focus()
            page.keyboard.press("ArrowRight")
            page.wait_for_function(
                "([image, old]) => image.getAttribute('src') !== old || !image.checkVisibility()",
                arg=[frame.element_handle(), before[0]],
            )
            after = frame.get_attribute("src"), frame.get_attribute("alt")
            assert after[0] != before[0]
            assert after[1]
            assert after[1] != before[1]
            assert slider.get_attribute("aria-label")
    assert page.trouble == []
