"""Words of messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence, Set

_SUGGESTED = 30
"""Known names that are listed for one that is not known."""


def count(number: int, noun: str) -> str:
    """Return ``1 row`` or ``1,200 rows``: a number with its noun, whose plural has an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?``, the list of known names, or nothing."""
    names = sorted(known) if isinstance(known, Set) else list(known)
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"; did you mean {close[0]}?"
    return f"; there are {listed(names, _SUGGESTED)}" if names else ""


def listed(names: Sequence[str], most: int) -> str:
    """Return ``a, b and 3 more``: the first names, where there are more than ``most``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
