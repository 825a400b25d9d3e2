"""Where the pages of ``docs/`` are: published, or in the package, which the web server serves."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from topicberg.settings import settings

ROUTE = "/topicberg/docs"
"""Path under which topicberg's web server serves the pages."""
GRAPH = "/asset-groups"
"""Path of the graph of all assets in Dagster's UI."""
RUNBOOK = "operate.md#by-symptom"
"""The page that says what to do about an alert."""


@cache
def docs_folder() -> Path | None:
    """Return the folder of the pages: in the wheel, or in a clone; None: there is none."""
    package = Path(__file__).parent
    places = (package / "docs", package.parents[1] / "docs")
    return next((place for place in places if (place / "operate.md").is_file()), None)


def address_of(page: str, server: str = "") -> str | None:
    """Return the address of a page, such as ``tableflow.md#status``; None: there is none.

    :param server: the address of Dagster's web server; empty: the address is for its own pages
    """
    if docs_url := settings().docs_url:
        return f"{docs_url.rstrip('/')}/{page}"
    return f"{server.rstrip('/')}{ROUTE}/{page}" if docs_folder() else None
