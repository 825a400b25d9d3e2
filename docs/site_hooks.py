"""Hooks of MkDocs: the site has pages of the repository's root, and headings GitHub's anchors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def slug(heading: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings GitHub's anchors, so that a link is right in both."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are beside ``docs/``."""
    from mkdocs.structure.files import File

    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links of pages of ``docs/`` lead to those pages."""
    up = page.file.src_uri.count("/")
    names = "|".join(re.escape(name) for name in PAGES)
    return re.sub(rf"\]\((?:\.\./){{{up + 1}}}({names})", rf"]({'../' * up}\1", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Delete what no page of this site loads: source maps, and other languages of the search."""
    site = Path(config["site_dir"])
    unused = (*site.rglob("*.map"), *site.glob("assets/javascripts/lunr/**/*.js"))
    for path in unused:
        path.unlink()
