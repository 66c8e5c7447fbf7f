"""What depends on where the book is published: buttons, absolute addresses, the site map.

The addresses come from the environment (the deploy workflow sets them) or else from `_config.yml`:

    MIXATTN_REPOSITORY_URL  or  repository: url   a GitHub repository, https://github.com/OWNER/NAME
    MIXATTN_SITE_URL        or  html: baseurl     the site's address, ending in "/"

Where an address is not known, what needs it is left out: the site has no dead link.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError

REPOSITORY = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")
LAUNCHERS = {
    "notebook_interface": "jupyterlab",
    "binderhub_url": "https://mybinder.org",
    "colab_url": "https://colab.research.google.com",
}
#: Branch of the chapters' copies that know the repository, made by tools/colab.py in the deploy
#: workflow.
COLAB_BRANCH = "colab"


def configure(app: Sphinx, config: Config) -> None:
    """Turn on what the known addresses make possible."""
    theme = config.html_theme_options
    repository = os.environ.get("MIXATTN_REPOSITORY_URL") or theme.get("repository_url") or ""
    repository = repository.removesuffix("/").removesuffix(".git")
    site = os.environ.get("MIXATTN_SITE_URL") or config.html_baseurl or ""

    theme["repository_url"] = repository
    if repository:
        if not REPOSITORY.fullmatch(repository):
            raise ConfigError(
                f"the repository's address is https://github.com/OWNER/NAME, not {repository!r}"
            )
        theme["launch_buttons"] = LAUNCHERS
        theme.update(use_repository_button=True, use_issues_button=True, use_edit_page_button=True)
    if site:
        config.html_baseurl = config.ogp_site_url = site.removesuffix("/") + "/"


def adjust_buttons(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Point Colab at the copies that know the repository, and name the issue button for readers."""
    groups = context.get("header_buttons", [])
    for button in [button for group in groups for button in group.get("buttons", [])]:
        if button["text"] == "Colab":
            branch = app.config.html_theme_options["repository_branch"]
            button["url"] = button["url"].replace(f"/blob/{branch}/", f"/blob/{COLAB_BRANCH}/")
        if button.get("label") == "source-issues-button":
            button["text"] = "Report an error"


def write_sitemap(app: Sphinx, exception: Exception | None) -> None:
    """List every page's address for search engines."""
    if exception or not app.config.html_baseurl:
        return
    pages = sorted(app.builder.get_target_uri(name) for name in app.env.found_docs)
    entries = [
        f"  <url><loc>{escape(app.config.html_baseurl + page)}</loc></url>" for page in pages
    ]
    head = '<?xml version="1.0" encoding="utf-8"?>'
    opening = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    text = "\n".join([head, opening, *entries, "</urlset>", ""])
    Path(app.outdir, "sitemap.xml").write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", configure)
    app.connect("html-page-context", adjust_buttons, priority=900)
    app.connect("build-finished", write_sitemap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
