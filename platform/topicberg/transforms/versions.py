"""Which version of its function computed the hours of a derived table.

Every snapshot that was computed records the version that computed its window, and those of all
hours (:data:`COMPUTED_BY`), so that it does not matter which snapshots expire.

A version is that of the code, a point, and a digest of what else decides which rows are read. Of
hours that were computed as a part of the first partition, ``@`` and its first hour follow: where
the partitions begin earlier since, these hours are in partitions of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from pyiceberg.table import Table

from topicberg.iceberg.hours import BEFORE_EVERYTHING, EVERYTHING, Hours
from topicberg.iceberg.summaries import summary
from topicberg.transforms.windows import WINDOW, Window, computations

VERSION = "topicberg.function-version"  # Snapshot summary: the version that computed the window.
COMPUTED_BY = "topicberg.computed-by"
"""Snapshot summary, JSON: pairs of a first hour and the version that computed from there on."""
FIRST_PARTITION = "topicberg.first-partition"
"""Snapshot summary, JSON: the hours of the first partition, which the window holds as well."""
UNUSED_COLUMNS = "topicberg.unused-columns"
"""Snapshot summary, JSON: columns of the table that its function no longer returns."""
UNKNOWN = ""  # The version of what an unknown function computed.
MAX_RANGES = 300

Versions = list[tuple[int, str]]
"""First hours, ascending, and the version from each on; the first hour is before everything."""


def computed_by(table: Table | None) -> Versions:
    """Return which version computed which hours; empty: none is recorded."""
    windows = list(_windows(table)) if table else []
    versions = windows[0][1] if windows else []
    for parts, _ in reversed(windows):  # other writers may have written meanwhile
        for hours, version in parts:
            versions = _overlaid(versions, hours, version)
    return versions


def outdated(versions: Versions, version: str | None, first: Hours | None = None) -> list[Hours]:
    """Return the hours that another version computed, given the first partition."""
    if version is None or not versions:
        return []
    ends = [*(start for start, _ in versions[1:]), EVERYTHING.stop]
    return [
        Hours(start, end)
        for (start, each), end in zip(versions, ends, strict=True)
        for computed, _, began in [each.partition("@")]
        if computed != version or (began and first and int(began) > first.start)
    ]


def unused_columns(table: Table | None) -> list[str]:
    """Return the columns that the newest run found, and its function did not return."""
    if table is None or (newest := next(computations(table), None)) is None:
        return []
    names = json.loads(summary(newest[0]).get(UNUSED_COLUMNS, "[]"))
    return [name for name in names if name in table.schema().column_names]


def recorded(
    before: Versions,
    version: str,
    windows: Sequence[Window],
    unused: Sequence[str],
    first: Hours | None = None,
) -> dict[str, str]:
    """Return the properties of a snapshot that computes some windows.

    :param before: the versions before it
    :param unused: columns of the table that the function does not return
    :param first: the first partition
    """
    versions = before or [(BEFORE_EVERYTHING, UNKNOWN if unused else version)]
    for hours, name in _parts(windows, version, first):
        versions = _overlaid(versions, hours, name)
    began = first if first and windows[0].start is None else None
    return {
        VERSION: version,
        COMPUTED_BY: json.dumps(_coarse(versions)),
        **({FIRST_PARTITION: json.dumps([began.start, began.stop])} if began else {}),
        **({UNUSED_COLUMNS: json.dumps([*unused])} if unused else {}),
    }


def _parts(windows: Sequence[Window], version: str, first: Hours | None) -> list[tuple[Hours, str]]:
    """Return the parts of computed windows, and the version of each."""
    parts = list[tuple[Hours, str]]()
    for hours in (window.hours for window in windows):
        start = hours.start
        if first is not None and start == BEFORE_EVERYTHING:
            start = min(first.stop, hours.stop)
            parts.append((Hours(hours.start, start), f"{version}@{first.start}"))
        if start < hours.stop:
            parts.append((Hours(start, hours.stop), version))
    return parts


def _windows(table: Table) -> Iterator[tuple[list[tuple[Hours, str]], Versions]]:
    """Yield computed windows, the newest first: parts and their version, and all versions."""
    for snapshot, _ in computations(table):
        facts = summary(snapshot)
        if (version := facts.get(VERSION)) and (windows := facts.get(WINDOW)):
            versions = [(start, name) for start, name in json.loads(facts[COMPUTED_BY])]
            given = json.loads(facts.get(FIRST_PARTITION, "null"))
            first = Hours(*given) if given else None
            yield _parts(Window.parse_all(windows), version, first), versions


def _overlaid(versions: Versions, hours: Hours, version: str) -> Versions:
    """Return the versions, with another one for some hours."""
    after = [start_version for start, start_version in versions if start <= hours.stop][-1]
    before = [entry for entry in versions if entry[0] < hours.start]
    later = [entry for entry in versions if entry[0] > hours.stop]
    return _joined([*before, (hours.start, version), (hours.stop, after), *later])


def _joined(versions: Versions) -> Versions:
    return [next(same) for _, same in groupby(versions, key=itemgetter(1))]


def _coarse(versions: Versions) -> Versions:
    """Return at most :data:`MAX_RANGES`; the versions of the shortest ones become unknown."""
    while len(versions) > MAX_RANGES:
        inner = range(1, len(versions) - 1)
        shortest = min(inner, key=lambda n: versions[n + 1][0] - versions[n][0])
        for number in (shortest - 1, shortest):
            versions[number] = versions[number][0], UNKNOWN
        versions = _joined(versions)
    return versions
