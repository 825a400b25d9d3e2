"""Words of messages."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return ``1 row`` or ``1,200 rows``: a number with its noun, whose plural has an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
