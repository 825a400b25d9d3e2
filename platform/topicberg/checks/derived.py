"""What holds for a derived table: it was computed of what its sources hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation

from topicberg.checks.finding import Finding, age, from_ms, good
from topicberg.derived import SOURCE_SNAPSHOTS
from topicberg.snapshots import changes_since
from topicberg.tableflow.commit import ancestry, summary

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

ALLOWED_MINUTES = 30
"""How late a table may be whose topic's spec says nothing."""


def check_up_to_date(
    table: Table,
    sources: Mapping[str, Table],
    allowed_minutes: int,
    now: datetime,
    mend: Callable[[Mapping[str, Sequence[Snapshot]]], str],
) -> Finding:
    """Whether the last computation has read everything that its sources held some time ago.

    :param sources: by their names, with the namespace
    :param mend: the command for what is missing: source → snapshots that were not read
    """
    read = read_snapshots(table)
    missing = {name: _unread(source, read.get(name)) for name, source in sources.items()}
    missing = {name: snapshots for name, snapshots in missing.items() if snapshots}
    if not missing:
        return good("everything that its sources hold was read")
    oldest = min(from_ms(snapshots[0].timestamp_ms) for snapshots in missing.values())
    seconds = (now - oldest).total_seconds()
    count = sum(map(len, missing.values()))
    said = f"{count:,} snapshots of {', '.join(missing)} were not read yet, the oldest for "
    facts = {"unread_snapshots": count}
    if seconds <= allowed_minutes * 60:
        return good(said + age(seconds), **facts)
    return Finding(
        passed=False,
        what=f"the table is late: {said}{age(seconds)}; {allowed_minutes} min are allowed",
        mend=mend(missing),
        since=oldest,
        facts=facts,
    )


def read_snapshots(table: Table) -> dict[str, int | None]:
    """Source → the snapshot that the last computation read."""
    for snapshot in ancestry(table):
        if text := summary(snapshot).get(SOURCE_SNAPSHOTS):
            found: dict[str, int | None] = json.loads(text)
            return found
    return {}


def _unread(source: Table, last: int | None) -> list[Snapshot]:
    return [
        snapshot
        for snapshot in changes_since(source, last).new
        if not (snapshot.summary and snapshot.summary.operation == Operation.REPLACE)
    ]
