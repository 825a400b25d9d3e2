"""Which hours of a table changed since a state of it, also when snapshots in between are expired.

Snapshots tell it exactly. When maintenance expires some, it notes in a table property which hours
they changed (:class:`Ledger`). What others expired is reconstructed from the data sequence numbers
of the files: rows that were added are in files with a higher number than that state had. Rows that
were removed leave no trace; unless all old files are still there, any hour may have changed.

Source: Iceberg spec, "Sequence Numbers". Rewritten files get the sequence number that the table had
when the rewrite began (``use-starting-sequence-number``), so rows never get a lower one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError
from pyiceberg.manifest import DataFileContent

from topicberg.iceberg.files import in_parallel
from topicberg.iceberg.hours import (
    EVERYTHING,
    FileHours,
    Hours,
    coarse,
    live_files_since,
    union,
    without,
)
from topicberg.iceberg.snapshots import changes_since, touched_hours
from topicberg.iceberg.summaries import ancestry, summary

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

LEDGER = "topicberg.expired-changes"
"""Table property: :class:`Ledger`."""
MAX_RANGES = 200
"""Of the ledger. Of more, those are forgotten that changed longest ago."""
SNAPSHOT_RANGES = 20
_TOTALS = ("total-data-files", "total-records", "total-files-size")


class Mark(BaseModel):
    """A state of a table, and what is left of it to go by when its snapshot is expired."""

    table: str
    """The table's UUID."""
    snapshot: int | None
    """None: it had none."""
    sequence: int
    at: int
    """When the snapshot was committed, in ms."""
    totals: tuple[int, ...] | None = None
    """Data files, records and bytes, as the snapshot's summary has them."""

    @staticmethod
    def of(table: Table, snapshot: Snapshot | None) -> Mark:
        uuid = table.metadata.table_uuid.hex
        if snapshot is None:
            return Mark(table=uuid, snapshot=None, sequence=0, at=table.metadata.last_updated_ms)
        facts = summary(snapshot)
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
    """Hours in which rows came or went."""

    hours: Hours
    sequence: int
    """The table's sequence number after it; 0: a change that a rollback undid."""
    since: int
    until: int
    """Between which times it was committed, in ms."""


@dataclass(frozen=True)
class Changed:
    """What changed since a mark."""

    changes: list[Change]
    everything: bool = False
    """Rows may be removed of any hour, also of hours that the table no longer holds."""
    rolled_back: bool = False
    """Some changes are that earlier ones were undone."""


def changed(table: Table, column: str, since: Mark | None) -> Changed:
    """Return which hours of ``column`` changed since a mark (None: ever), up to ``main``."""
    if since is None or since.table != table.metadata.table_uuid.hex:
        return _all(table, column)
    found = changes_since(table, since.snapshot)
    lost = expired_changes(table, column, since) if found.gap else Changed([])
    if lost.everything:
        return lost
    new = [
        Change(hours, snapshot.sequence_number or 0, snapshot.timestamp_ms, snapshot.timestamp_ms)
        for snapshot in found.new
        for hours in union(touched_hours(table, snapshot, column))
    ]
    undone = [
        Change(hours, 0, _moved_ms(table, since), _now_ms())
        for snapshot in found.undone
        for hours in union(touched_hours(table, snapshot, column))
    ]
    return Changed([*lost.changes, *undone, *new], rolled_back=bool(found.undone))


def expired_changes(table: Table, column: str, since: Mark | None) -> Changed:
    """Return what snapshots changed that are expired: between a mark and the oldest of ``main``.

    Perhaps also what later ones changed.
    """
    head = table.current_snapshot()
    if head is None or since is None or since.table != table.metadata.table_uuid.hex:
        return _all(table, column, since)
    oldest = list(ancestry(table))[-1]
    if (oldest.sequence_number or 0) <= since.sequence:  # the mark's snapshot was undone
        return _all(table, column, since)
    until = oldest.timestamp_ms
    ledger = Ledger.of(table)
    if ledger and ledger.tells(column, oldest, since):
        noted = [
            Change(Hours(start, stop), min(sequence, head.sequence_number or 0), since.at, until)
            for start, stop, sequence in ledger.hours
            if sequence > since.sequence
        ]
        return Changed(noted)
    if _totals(table, head, since.sequence) != since.totals:
        return _all(table, column, since)
    hours = FileHours(table, column)
    new = [
        Change(each, sequence, since.at, head.timestamp_ms)
        for file, sequence in live_files_since(table, head, since.sequence)
        for each in hours.of(file, head)
    ]
    return Changed(new)


def _all(table: Table, column: str, since: Mark | None = None) -> Changed:
    head, now = table.current_snapshot(), _now_ms()
    if head is None:
        return Changed([], everything=True)
    sequence, first = head.sequence_number or 0, since.at if since else now
    held = FileHours(table, column).held(head)
    changes = [Change(hours, sequence, first, now) for hours in held]
    return Changed(changes, everything=True)


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _totals(table: Table, head: Snapshot, sequence: int) -> tuple[int, ...]:
    """Return the totals of the files of a snapshot that were there at a sequence number.

    If they are those of the mark, every file of then is still there, and no row of it is removed
    but by deletes that came later.
    """
    files = records = size = 0
    for file, number in live_files_since(table, head, -1):
        if number <= sequence:
            size += file.file_size_in_bytes
            if file.content == DataFileContent.DATA:
                files += 1
                records += file.record_count
    return files, records, size


def _moved_ms(table: Table, since: Mark) -> int:
    """Return when ``main`` left the state of a mark, in ms; before, if that is not known."""
    log = table.metadata.snapshot_log
    for entry, following in reversed([*pairwise(log)]):
        if entry.snapshot_id == since.snapshot:
            return following.timestamp_ms
    return since.at


class Ledger(BaseModel):
    """Which hours expired snapshots changed."""

    column: str
    oldest: int
    """The snapshot of ``main`` that was the oldest one left; if it no longer is, others expired
    snapshots as well."""
    since: int
    """The changes after this sequence number are noted."""
    hours: list[tuple[int, int, int]] = []
    """First hour, end, and the sequence number of the last change; without overlaps."""

    @staticmethod
    def of(table: Table) -> Ledger | None:
        text = table.properties.get(LEDGER)
        try:
            return Ledger.model_validate_json(text) if text else None
        except ValidationError:  # of another version
            return None

    def tells(self, column: str, oldest: Snapshot, since: Mark) -> bool:
        """Whether all changes between a mark and the oldest snapshot of ``main`` are noted."""
        return (
            self.column == column
            and self.oldest == oldest.snapshot_id
            and self.since <= since.sequence
        )


def noted(table: Table, column: str, removed: frozenset[int]) -> Ledger:
    """Return the ledger for when snapshots are removed, with what ``main`` cannot tell any more.

    Beside the snapshots that ``main`` loses, all that are not part of it are noted, as if theirs
    was the next change: they were undone, or a tag keeps them beyond the end of ``main``.
    """
    line = list(ancestry(table))
    kept = next((n for n, each in enumerate(line) if each.snapshot_id in removed), len(line))
    ledger = Ledger.of(table)
    if ledger is None or ledger.column != column or ledger.oldest != line[-1].snapshot_id:
        ledger = Ledger(column=column, oldest=0, since=(line[-1].sequence_number or 1) - 1)
    of_main = {snapshot.snapshot_id for snapshot in line}
    beside = [each for each in table.metadata.snapshots if each.snapshot_id not in of_main]
    lost = [*reversed(line[kept:]), *beside]
    following = 1 + max(each.sequence_number or 0 for each in table.metadata.snapshots)
    touched = in_parallel(lambda each: _known_hours(table, each, column), lost)
    hours, since = ledger.hours, ledger.since
    for snapshot, ranges in zip(lost, touched, strict=True):
        sequence = snapshot.sequence_number or 0
        if snapshot.snapshot_id not in of_main:
            sequence = following
        hours = _overlaid(hours, coarse(ranges, SNAPSHOT_RANGES), sequence)
    while len(hours) > MAX_RANGES:
        since = max(since, min(sequence for *_, sequence in hours))
        hours = [each for each in hours if each[2] > since]
    return Ledger(
        column=column, oldest=line[min(kept, len(line)) - 1].snapshot_id, since=since, hours=hours
    )


def _known_hours(table: Table, snapshot: Snapshot, column: str) -> list[Hours]:
    try:
        return touched_hours(table, snapshot, column)
    except FileNotFoundError:  # somebody deleted its files, which must not keep it from expiring
        return [EVERYTHING]


def _overlaid(
    hours: Sequence[tuple[int, int, int]], newer: Iterable[Hours], sequence: int
) -> list[tuple[int, int, int]]:
    """Return the ranges with newer ones over them."""
    newer = union(newer)
    left = [
        (rest.start, rest.stop, number)
        for start, stop, number in hours
        for rest in _outside(Hours(start, stop), newer)
    ]
    found: list[tuple[int, int, int]] = []
    for start, stop, number in sorted([*left, *((h.start, h.stop, sequence) for h in newer)]):
        if found and found[-1][1:] == (start, number):
            found[-1] = found[-1][0], stop, number
        else:
            found.append((start, stop, number))
    return found


def _outside(hours: Hours, covered: Iterable[Hours]) -> list[Hours]:
    left = [hours]
    for each in covered:
        left = without(left, each)
    return left
