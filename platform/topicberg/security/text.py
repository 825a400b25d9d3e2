"""Escaping of text of producers, schema authors and vendors, for destinations that interpret it.

There is one function for each destination. Its result shows a reader the same words, without
effect: no link, mention, picture, control sequence or further line.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u2028\u2029"  # these are line breaks, too
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they change the reading order
    "\ud800-\udfff]"  # half surrogate pairs, which cannot be encoded
)


def terminal(text: str) -> str:
    """Return text with control characters as visible escapes, such as ``\\x1b``.

    Line breaks and tabs are kept.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return text as one line, with single spaces, without control characters."""
    return terminal(" ".join(text.split()))


def log(text: str) -> str:
    """Return a log message whose further lines are indented, so that none looks like an entry."""
    return terminal(text).replace("\n", "\n    ")


_SPAN = re.compile(r"(?<!`)`[^`\s](?:[^`\n]*[^`\s])?`(?!`)")
"""Code that the author of a message marked as such, e.g. a command."""
_ACTIVE = re.compile(r"[<>\[\]\\`*~|&$@^]|_{2}|(?<!\w)_|_(?!\w)|://|www\.", re.IGNORECASE)
"""Within a word: a link, a picture, HTML, an address, emphasis, a mention."""
_BLOCK = re.compile(r"#{1,6}|[-+=]+|\d{1,9}[.)]")
"""At the start of a line: a heading, a list, a rule."""
_PLAIN = re.compile(r"(?:[^\W_]|[ ,:+-]|(?<=\d)\.(?=\d))*")
"""Words, numbers and times: neither Markdown nor an address that becomes a link."""


def markdown_line(text: str) -> str:
    """Return a line of Markdown that shows the text; words with an effect become code. Commands in
    single backticks are kept."""
    line, shown, end = one_line(text), [], 0
    for span in _SPAN.finditer(line):
        before = line[end : span.start()]
        around = before.rpartition(" ")[2] + line[span.end() :].partition(" ")[0]
        # Else it is a part of a word.
        if not _ACTIVE.search(around) and not any(map(str.isalnum, around)):
            shown += [_words(before, first=not end), span[0]]
            end = span.end()
    return "".join([*shown, _words(line[end:], first=not end)])


BULLET = re.compile(r"\s*[-*]\s+(?=\S)")
"""The start of a line that is an item of a list."""


def markdown_lines(text: str) -> str:
    """Return Markdown that shows each line as a paragraph, and an item of a list with ``•``."""
    lines = (BULLET.sub("• ", line, 1) for line in text.splitlines() if line.strip())
    return "\n\n".join(map(markdown_line, lines))


def _words(text: str, *, first: bool) -> str:
    """:param first: the text begins the line"""
    return " ".join(
        code(word)
        if _ACTIVE.search(word) or (first and number == 0 and _BLOCK.fullmatch(word))
        else word
        for number, word in enumerate(text.split(" "))
    )


def markdown_cell(text: str) -> str:
    """Return the text for a cell of a Markdown table: as code, unless it is only words.

    ``|`` ends a cell even in code, so it has a backslash between two pieces of code.
    """
    text = re.sub(r"[\r\n]", " ", text)
    return text if _PLAIN.fullmatch(text) else "\\|".join(map(code, text.split("|")))


def code(text: str) -> str:
    """Return the text as Markdown's code, where no character is interpreted."""
    if not text.strip(" "):
        return text
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text[0] in " `" or text[-1] in " `" else ""  # a space on both sides is not shown
    return f"{fence}{pad}{text}{pad}{fence}"


def slack(text: str) -> str:
    """Return text for Slack's mrkdwn, where ``<…>`` is a link, a mention or a command.

    A block that is ``verbatim`` does not turn other words into links and mentions.
    Source: Slack, "Formatting text for app surfaces", escaping text.
    """
    return terminal(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def dot(text: str) -> str:
    """Return a quoted string of Graphviz's language."""
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
