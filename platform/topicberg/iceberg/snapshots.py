"""What a snapshot did to its table, from metadata only: no data file is read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cachetools import LRUCache, cached
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import IntegerType

from topicberg.iceberg import files, manifests, summaries
from topicberg.iceberg.hours import PARTITION_HOURS, FileHours, Hours, partition_hours, time_bounds
from topicberg.kafka.offsets import Offsets, parse_offsets


@dataclass(frozen=True)
class SnapshotReport:
    """One snapshot in numbers. Bytes and files are of data files; times are UTC. Records are those
    that a reader sees, without those that are deleted by position."""

    snapshot_id: int
    operation: str
    committed_at: datetime
    added_records: int
    deleted_records: int
    total_records: int
    added_files: int
    total_files: int
    added_bytes: int
    total_bytes: int
    end_offsets: Offsets
    reader: str | None  # See :data:`topicberg.iceberg.summaries.READER`.


def report(snapshot: Snapshot) -> SnapshotReport:
    """Return the summary of a snapshot, in numbers; 0 if it does not have them."""
    properties = summaries.summary(snapshot)

    def number(key: str) -> int:
        return int(properties.get(key, 0))

    return SnapshotReport(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.summary.operation.value if snapshot.summary else "unknown",
        committed_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        added_records=number("added-records"),
        deleted_records=number("deleted-records")
        + number("added-position-deletes")
        - number("removed-position-deletes"),
        total_records=number("total-records") - number("total-position-deletes"),
        added_files=number("added-data-files"),
        total_files=number("total-data-files"),
        added_bytes=number("added-files-size"),
        total_bytes=number("total-files-size"),
        end_offsets=parse_offsets(properties.get(summaries.END_OFFSETS, "{}")),
        reader=properties.get(summaries.READER),
    )


@dataclass(frozen=True)
class SnapshotChanges:
    """The changes of ``main`` since a snapshot; each list from old to new."""

    new: list[Snapshot]
    rolled_back: list[Snapshot]  # Snapshots that a rollback removed from the history of ``main``.
    gap: bool = False  # Snapshots in between are expired: others may have been new or rolled back.


def changes_rows(snapshot: Snapshot) -> bool:
    """Return whether a snapshot adds or changes rows, or a user deletes some. What follows from a
    table keeps rows that are past their retention, so these do not count."""
    facts = summaries.summary(snapshot)
    if summaries.operation_of(snapshot) == Operation.REPLACE or summaries.DATA_TTL_RUN in facts:
        return False
    kinds = ("added-records", "deleted-records", "added-delete-files")
    return any(int(facts.get(kind, 0)) for kind in kinds)


def changes_since(table: Table, last: int | None, head: Snapshot | None = None) -> SnapshotChanges:
    """Return the changes since snapshot ``last`` (None: ever), up to ``head`` (None: ``main``). A
    snapshot from before the gap may still exist, by a tag for example."""
    line, rolled_back = list(summaries.ancestry(table, head)), list[Snapshot]()
    if last is None:
        return SnapshotChanges(line[::-1], [], gap=not _is_whole(line))
    known = table.snapshot_by_id(last)
    of_main = {snapshot.snapshot_id: place for place, snapshot in enumerate(line)}
    for snapshot in summaries.ancestry(table, known) if known else ():
        if (place := of_main.get(snapshot.snapshot_id)) is not None:
            return SnapshotChanges(line[:place][::-1], rolled_back[::-1])
        rolled_back.append(snapshot)
    if rolled_back and _is_whole(line) and _is_whole(rolled_back):  # the table was replaced
        return SnapshotChanges(line[::-1], rolled_back[::-1])
    return SnapshotChanges(line[::-1], [], gap=True)


def _is_whole(line: list[Snapshot]) -> bool:
    """Return whether a line, from new to old, goes back to the table's first snapshot. It compares
    the sequence number: some catalogs remove a snapshot's parent when that expires."""
    return not line or (line[-1].sequence_number or 0) == 1


# A snapshot never changes, and a tick of the sensor needs its hours for each derived table.
@cached(
    LRUCache(100_000, getsizeof=lambda hours: len(hours) + 1),
    key=lambda table, snapshot, column: (
        table.metadata.table_uuid,
        table.metadata.current_schema_id,
        snapshot.snapshot_id,
        column,
    ),
    lock=threading.Lock(),
)
def affected_hours(table: Table, snapshot: Snapshot, column: str) -> list[Hours]:
    """Return the hours of ``column`` in which the snapshot added or removed rows, by file.
    Compaction changes no row, and deleting rows past their retention does not change what was
    derived from them. See :mod:`topicberg.iceberg.hours`."""
    rewrites = summaries.operation_of(snapshot) == Operation.REPLACE
    if rewrites or summaries.DATA_TTL_RUN in summaries.summary(snapshot):
        return []
    file_hours = FileHours(table, column)
    if (summarized := file_hours.summarized(snapshot)) is not None:
        return summarized
    return file_hours.of_all((file for file, _ in changed_files(table, snapshot)), snapshot)


def held_hours(table: Table, column: str) -> list[Hours]:
    """Return the hours of ``column`` in which the current snapshot has data files."""
    head = table.current_snapshot()
    return FileHours(table, column).held(head) if head else []


def added_rows(table: Table, snapshot: Snapshot, column: str) -> dict[int, int]:
    """Return first hour of each time partition that the snapshot added rows to → rows."""
    rows, of_file = Counter[int](), FileHours(table, column)
    for file, added in changed_files(table, snapshot):
        if added:
            rows[of_file.of(file, snapshot)[0].start] += file.record_count
    return rows


def oldest_record(table: Table, snapshot: Snapshot, column: str) -> datetime | None:
    """Return the earliest ``column`` of the added rows, or None if the files have no bounds."""
    bounds = _bounds(table, snapshot, column)
    return _as_time(min(lower for lower, _ in bounds)) if bounds else None


def newest_record(table: Table, column: str) -> datetime | None:
    """Return the latest ``column`` of the newest rows, compacted ones excepted, if it is known."""
    for snapshot in summaries.ancestry(table):
        rewrites = summaries.operation_of(snapshot) == Operation.REPLACE
        if not rewrites and (bounds := _bounds(table, snapshot, column)):
            return _as_time(max(upper for _, upper in bounds))
    return None


def _bounds(table: Table, snapshot: Snapshot, column: str) -> list[tuple[int, int]]:
    """Return the bounds of ``column`` in the files that the snapshot added, as µs since 1970."""
    field = table.schema().find_field(column)
    bounds = (time_bounds(file, field) for file, added in changed_files(table, snapshot) if added)
    return [of_file for of_file in bounds if of_file is not None]


def _as_time(microseconds: int) -> datetime | None:
    """Return a time, or None if Python cannot represent it."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def rows_by_partition(table: Table, first: int) -> tuple[dict[int, int], int] | None:
    """Return first hour (since 1970) of each time partition → its rows; and hours per partition.
    None: the table is not partitioned by the hour or the day of a column. Manifests with only
    partitions before hour ``first`` are not opened."""
    widths = [PARTITION_HOURS.get(type(field.transform)) for field in table.spec().fields]
    place, width = next(((n, hours) for n, hours in enumerate(widths) if hours), (0, 0))
    if not width:
        return None
    rows = Counter[int]()
    for manifest in files.head_manifests(table):
        is_data = manifest.content == ManifestContent.DATA
        if not is_data or manifest.partition_spec_id != table.spec().spec_id:
            continue
        upper = manifest.partitions[place].upper_bound if manifest.partitions else None
        if upper is not None and int(from_bytes(IntegerType(), upper)) * width < first:
            continue
        for file in (entry.data_file for entry in manifests.read_entries(table.io, manifest)):
            hours = partition_hours(file.partition[place], width)
            if hours.start >= first:
                rows[hours.start] += file.record_count
    return rows, width


def changed_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[DataFile, bool]]:
    """Yield the data and delete files that the snapshot added (true) or removed (false)."""
    number = snapshot.snapshot_id
    for manifest in (m for m in snapshot.manifests(table.io) if m.added_snapshot_id == number):
        for entry in manifests.read_entries(table.io, manifest, discard_deleted=False):
            if entry.snapshot_id == number:
                yield entry.data_file, entry.status != ManifestEntryStatus.DELETED
