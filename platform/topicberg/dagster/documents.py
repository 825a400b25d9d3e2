"""The pages of ``docs/`` in Dagster's web server: assets and alerts link to them."""

from __future__ import annotations

import html
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from topicberg.documents import ROUTE, docs_folder

if TYPE_CHECKING:
    from starlette.requests import Request

_PICTURES = (".png", ".svg")
_STYLE = (
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 sans-serif}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .6rem}"
    "pre{background:#f4f4f4;padding:.8rem;overflow:auto}img{max-width:100%}"
)


def route() -> Route:
    """Return the route of the pages."""
    return Route(f"{ROUTE}/{{page:path}}", _serve, methods=["GET"])


async def _serve(request: Request) -> Response:
    return await run_in_threadpool(_page, request.path_params["page"])


def _page(page: str) -> Response:
    folder = docs_folder()
    path = (folder / page).resolve() if folder else None
    if not (folder and path and path.is_relative_to(folder.resolve()) and path.is_file()):
        return PlainTextResponse("not found", 404)
    if path.suffix == ".md":
        return HTMLResponse(rendered(path))
    if path.suffix in _PICTURES:
        return FileResponse(path)
    return PlainTextResponse(path.read_text(encoding="utf-8"))


def rendered(path: Path) -> str:
    """Return a page as HTML, whose headings have the anchors that GitHub gives them."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", _anchor(inline.content))
    title = html.escape(path.stem)
    body = markdown.renderer.render(tokens, markdown.options, {})
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{_STYLE}</style>{body}"
    )


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
