"""Words of messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SUGGESTED = 30
"""Known names that are listed for one that is not known."""


def count(number: int, noun: str) -> str:
    """Return ``1 row`` or ``1,200 rows``: a number with its noun, whose plural has an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?``, the list of known names, or nothing."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    more = f" and {len(names) - _SUGGESTED} more" if len(names) > _SUGGESTED else ""
    return f"; there are {', '.join(names[:_SUGGESTED])}{more}" if names else ""
