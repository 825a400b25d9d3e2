"""How long a topic's table keeps rows: as the spec says, but no shorter than a user agreed to.

Saving a spec deletes nothing: a shorter retention waits for `topicberg tableflow maintain`.
"""

from __future__ import annotations

from datetime import timedelta

from pyiceberg.table import Table

from topicberg.iceberg.maintenance.conflicts import retried
from topicberg.topics import TopicSpec

AGREED = "topicberg.data-retention-ms"
"""Table property: what the spec said when the table was created, or a command agreed to later. A
table of 1.0.0 lacks it, and is kept as its spec says."""
EVER = 10**12 * 3
"""Milliseconds; a longer time is not a valid timedelta."""


def data_retention(table: Table, spec: TopicSpec) -> timedelta | None:
    """Return the age from which rows are deleted, or None: they are kept for ever."""
    kept = max(_wanted(spec), _agreed(table, spec))
    return None if kept == EVER else timedelta(milliseconds=kept)


def is_shorter(spec: TopicSpec, table: Table) -> bool:
    """Return whether the spec deletes rows that the table was to keep."""
    return _wanted(spec) < _agreed(table, spec)


def described(spec: TopicSpec) -> str:
    """Return how long the spec keeps rows."""
    return f"{_wanted(spec) / 86_400_000:,.4g} days"


def agreed(spec: TopicSpec) -> dict[str, str]:
    """Return the property of a table whose rows may be deleted at the age that the spec says."""
    return {AGREED: str(_wanted(spec))}


def agree(table: Table, spec: TopicSpec) -> None:
    """Let rows be deleted at the age that the spec says from now on.

    :raises CommitConflictError: others kept committing to the table
    """

    def attempt() -> None:
        with table.refresh().transaction() as transaction:
            transaction.set_properties(agreed(spec))

    retried(".".join(table.name()), attempt)


def follow_longer(table: Table, spec: TopicSpec) -> None:
    """Note a longer retention, so that the former one would be a shorter one again."""
    if _wanted(spec) > _agreed(table, spec) or AGREED not in table.properties:
        agree(table, spec)


def _wanted(spec: TopicSpec) -> int:
    return min(spec.tableflow.data_retention_ms or EVER, EVER)


def _agreed(table: Table, spec: TopicSpec) -> int:
    text = table.properties.get(AGREED, str(_wanted(spec)))
    return min(int(text), EVER) if text.isascii() and text.isdigit() else EVER
