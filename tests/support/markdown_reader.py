"""Markdown as its reader sees it."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

MARKDOWN = MarkdownIt("gfm-like", {"html": True, "linkify": False}).enable("table")


def shown(markdown: str) -> str:
    """What a reader of Markdown shows; there is nothing but words and code."""
    words = []
    for token in MARKDOWN.parse(markdown):
        assert token.type in ("paragraph_open", "inline", "paragraph_close"), (token, markdown)
        for child in token.children or []:
            assert child.type in ("text", "code_inline"), (child, markdown)
            if child.type == "text":  # of which a reader would make links
                assert not re.search(r"://|www\.|@", child.content, re.IGNORECASE), markdown
            words.append(child.content)
    return "".join(words)
