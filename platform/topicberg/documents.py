"""Where the site of the documentation is: published, or here, where the web server has it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from topicberg.settings import settings

ROUTE = "/topicberg/docs"
"""Path under which topicberg's web server serves the site."""
GRAPH = "/asset-groups"
"""Path of the graph of all assets in Dagster's UI."""
RUNBOOK = "operate.md#by-symptom"
"""The page that says what to do about an alert."""


@cache
def docs_folder() -> Path | None:
    """Return the folder of the site: in the wheel, or in a clone; None: it is not built."""
    package = Path(__file__).parent
    folders = (package / "docs", package.parents[1] / "site")
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


def address_of(page: str, server: str = "") -> str | None:
    """Return the address of a page of ``docs/``, such as ``tableflow.md#status``, on the web server
    or (empty) for its own pages; None: there is no site."""
    name, _, anchor = page.partition("#")
    name = "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"
    page = f"{name}#{anchor}" if anchor else name
    if docs_url := settings().docs_url:
        return f"{docs_url.rstrip('/')}/{page}"
    return f"{server.rstrip('/')}{ROUTE}/{page}" if docs_folder() else None
