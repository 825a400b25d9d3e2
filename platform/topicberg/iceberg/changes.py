"""The hours of a table that changed since a state of it, even if snapshots since are expired.

Snapshots record it exactly. When maintenance expires some, it records in a table property which
hours they changed (:class:`Ledger`). What other tools expired is reconstructed from the data
sequence numbers of the files: added rows are in files with a higher number than that state had.
Removed rows leave no trace; unless all old files still exist, any hour may have changed.

Source: Iceberg spec, "Sequence Numbers". Rewritten files get the sequence number that the table had
when the rewrite began (``use-starting-sequence-number``), so rows never get a lower one.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise

from pydantic import BaseModel
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg import manifests, snapshots, summaries
from topicberg.iceberg.files import in_parallel
from topicberg.iceberg.hours import EVERYTHING, FileHours, Hours, coarse, live_files_since, without

LEDGER = "topicberg.expired-changes"  # Table property: JSON of :class:`Ledger`, compressed.
MAX_RANGES = 3000
"""Ranges of the ledger: beyond them, those that changed longest ago are dropped, and of a snapshot
the narrowest gaps count as changed as well. So many are some 16 KB."""
_TOTALS = ("total-data-files", "total-records", "total-files-size")


class Mark(BaseModel):
    """A state of a table, with what identifies it after its snapshot is expired."""

    table: str  # The table's UUID.
    snapshot: int | None  # None: the table had no snapshot.
    sequence: int
    at: int  # When the snapshot was committed, in ms.
    totals: tuple[int, ...] | None = None  # Data files, records and bytes, by the summary.

    @staticmethod
    def of(table: Table, snapshot: Snapshot | None) -> Mark:
        uuid = table.metadata.table_uuid.hex
        if snapshot is None:
            return Mark(table=uuid, snapshot=None, sequence=0, at=table.metadata.last_updated_ms)
        facts = summaries.summary(snapshot)
        totals = tuple(int(facts[name]) for name in _TOTALS if name in facts)
        return Mark(
            table=uuid,
            snapshot=snapshot.snapshot_id,
            sequence=snapshot.sequence_number or 0,
            at=snapshot.timestamp_ms,
            totals=totals if len(totals) == len(_TOTALS) else None,
        )


@dataclass(frozen=True)
class Change:
    """Hours in which rows were added or removed."""

    hours: Hours
    sequence: int  # The table's sequence number after the change; 0: a rollback reverted a change.
    since: int
    until: int  # The times in ms between which it was committed.


@dataclass(frozen=True)
class Changed:
    """The changes since a mark."""

    changes: list[Change]
    everything: bool = False
    """Rows may have been removed from any hour, also from hours that the table no longer holds."""
    rolled_back: bool = False  # Some changes are reversals of earlier ones.


def changed(table: Table, column: str, since: Mark | None) -> Changed:
    """Return which hours of ``column`` changed since a mark (None: ever), up to ``main``."""
    if since is None or since.table != table.metadata.table_uuid.hex:
        return _all(table, column)
    changes = snapshots.changes_since(table, since.snapshot)
    lost = _expired_changes(table, column, since) if changes.gap else Changed([])
    if lost.everything:
        return lost
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    new = [
        Change(hours, snapshot.sequence_number or 0, snapshot.timestamp_ms, snapshot.timestamp_ms)
        for snapshot in changes.new
        for hours in snapshots.affected_hours(table, snapshot, column)
    ]
    rolled_back = [
        Change(hours, 0, _moved_ms(table, since), now_ms)
        for snapshot in changes.rolled_back
        for hours in snapshots.affected_hours(table, snapshot, column)
    ]
    return Changed([*lost.changes, *rolled_back, *new], rolled_back=bool(changes.rolled_back))


def _expired_changes(table: Table, column: str, since: Mark) -> Changed:
    """Return the changes of snapshots that expired since a mark, and perhaps of later ones."""
    line, ledger = list(summaries.ancestry(table)), Ledger.of(table)
    if not line or (line[-1].sequence_number or 0) <= since.sequence:
        return _all(table, column, since)  # the mark's snapshot was rolled back
    head, oldest = line[0], line[-1]
    is_of = ledger is not None and (ledger.column, ledger.oldest) == (column, oldest.snapshot_id)
    if ledger and is_of and ledger.since <= since.sequence:  # all changes in between are recorded
        newest, until = head.sequence_number or 0, oldest.timestamp_ms
        changes = [(Hours(a, b), min(n, newest)) for a, b, n in ledger.hours if n > since.sequence]
    elif _totals(table, head, since.sequence) == since.totals:
        files, hours = live_files_since(table, head, since.sequence), FileHours(table, column)
        changes = [(each, number) for file, number in files for each in hours.of(file, head)]
        until = head.timestamp_ms
    else:
        return _all(table, column, since)
    return Changed([Change(*change, since.at, until) for change in changes])


def _all(table: Table, column: str, since: Mark | None = None) -> Changed:
    head, now_ms = table.current_snapshot(), int(datetime.now(UTC).timestamp() * 1000)
    sequence = (head.sequence_number or 0) if head else 0
    begin, hours = since.at if since else now_ms, snapshots.held_hours(table, column)
    return Changed([Change(each, sequence, begin, now_ms) for each in hours], everything=True)


def _totals(table: Table, head: Snapshot, sequence: int) -> tuple[int, ...]:
    """Return the totals of the files of a snapshot that existed at a sequence number. If they equal
    the mark's, every file of that time still exists, and rows were removed from them only by later
    deletes."""
    files = [file for file, number in live_files_since(table, head, -1) if number <= sequence]
    rows = [file.record_count for file in files if file.content == DataFileContent.DATA]
    return len(rows), sum(rows), sum(map(manifests.size_of, files))


def _moved_ms(table: Table, since: Mark) -> int:
    """Return when ``main`` left the state of a mark, in ms; earlier, if that is not known."""
    moves = reversed([*pairwise(table.metadata.snapshot_log)])
    times = (after.timestamp_ms for entry, after in moves if entry.snapshot_id == since.snapshot)
    return next(times, since.at)


class Ledger(BaseModel):
    """The hours that expired snapshots changed."""

    column: str
    oldest: int
    """The oldest remaining snapshot of ``main``; if it is another one now, another tool expired
    snapshots as well."""
    since: int  # Changes after this sequence number are recorded.
    hours: list[tuple[int, int, int]] = []
    """First hour, end, and the sequence number of the last change; without overlaps."""

    @staticmethod
    def of(table: Table) -> Ledger | None:
        text = table.properties.get(LEDGER)
        try:
            return Ledger.model_validate_json(zlib.decompress(b64decode(text))) if text else None
        except (ValueError, zlib.error):  # of another version
            return None


def noted(table: Table, column: str, removed: frozenset[int]) -> str:
    """Return the text of the ledger with what ``main`` no longer records without some snapshots.
    Beside the snapshots that ``main`` loses, all that are not part of it are recorded as the next
    change: they were rolled back, or a tag keeps them beyond the end of ``main``."""
    line = list(summaries.ancestry(table))
    kept = next((n for n, each in enumerate(line) if each.snapshot_id in removed), len(line))
    ledger = Ledger.of(table)
    if ledger is None or ledger.column != column or ledger.oldest != line[-1].snapshot_id:
        ledger = Ledger(column=column, oldest=0, since=(line[-1].sequence_number or 1) - 1)
    of_main = {snapshot.snapshot_id for snapshot in line}
    beside = [each for each in table.metadata.snapshots if each.snapshot_id not in of_main]
    lost = [*reversed(line[kept:]), *beside]
    following = 1 + max(each.sequence_number or 0 for each in table.metadata.snapshots)

    def known_hours(snapshot: Snapshot) -> list[Hours]:
        try:
            return snapshots.affected_hours(table, snapshot, column)
        except FileNotFoundError:  # its files were deleted, which must not prevent its expiry
            return [EVERYTHING]

    hours, since = ledger.hours, ledger.since
    for snapshot, ranges in zip(lost, in_parallel(known_hours, lost), strict=True):
        sequence = snapshot.sequence_number or 0 if snapshot.snapshot_id in of_main else following
        hours = _overlaid(hours, coarse(ranges, MAX_RANGES), sequence)
    while len(hours) > MAX_RANGES:
        since = max(since, min(sequence for *_, sequence in hours))
        hours = [each for each in hours if each[2] > since]
    oldest = line[min(kept, len(line)) - 1].snapshot_id
    noted = Ledger(column=column, oldest=oldest, since=since, hours=hours)
    return b64encode(zlib.compress(noted.model_dump_json().encode())).decode()


def _overlaid(
    hours: Sequence[tuple[int, int, int]], newer: Sequence[Hours], sequence: int
) -> list[tuple[int, int, int]]:
    """Return the ranges, with newer ones (ascending and apart) in place of what they overlap."""
    starts, ranges = [each.start for each in newer], list[tuple[int, int, int]]()
    left = [(each.start, each.stop, sequence) for each in newer]
    for start, stop, number in hours:
        others = newer[max(0, bisect_right(starts, start) - 1) : bisect_left(starts, stop)]
        rest = reduce(without, others, [Hours(start, stop)])
        left += ((each.start, each.stop, number) for each in rest)
    for start, stop, number in sorted(left):
        if ranges and ranges[-1][1:] == (start, number):
            ranges[-1] = ranges[-1][0], stop, number
        else:
            ranges.append((start, stop, number))
    return ranges
