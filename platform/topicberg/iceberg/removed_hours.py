"""The hours of event time of which the data TTL has removed rows from a topic's table.

The TTL removes rows by Kafka's time, whatever their event time is. What was derived from these
hours must not be computed again. They are noted in a property of the table before the rows are
removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyiceberg.table import Table

from topicberg.iceberg.hours import Hours, coarse

REMOVED_HOURS = "topicberg.data-ttl-hours"
"""Table property, JSON: pairs of the first hour of a range and the first one after it."""
MAX_RANGES = 200
"""Beyond it, the hours of the narrowest gaps count as well."""


def removed_hours(table: Table) -> list[Hours]:
    """Return the hours of which rows are removed, or about to be."""
    ranges = json.loads(table.properties.get(REMOVED_HOURS, "[]"))
    return [Hours(start, stop) for start, stop in ranges]


def note_removed(table: Table, hours: Iterable[Hours]) -> None:
    """Note that rows of some hours are about to be removed."""
    known = removed_hours(table)
    ranges = coarse([*known, *hours], MAX_RANGES)
    if ranges == known:
        return
    text = json.dumps([[each.start, each.stop] for each in ranges])
    with table.transaction() as transaction:
        transaction.set_properties({REMOVED_HOURS: text})
