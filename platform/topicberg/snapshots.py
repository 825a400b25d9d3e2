"""What a snapshot did to its table, from metadata alone: no data file is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import PrimitiveType

from topicberg.tableflow.commit import END_OFFSETS, START_OFFSETS, ancestry, summary
from topicberg.tableflow.offsets import Offsets, parse_offsets

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
_HOUR_MICROSECONDS = 3_600_000_000


@dataclass(frozen=True)
class SnapshotReport:
    """One snapshot in numbers. Bytes and files are of data files; times are UTC."""

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
    start_offsets: Offsets
    end_offsets: Offsets


def report(snapshot: Snapshot) -> SnapshotReport:
    """The summary of a snapshot, in numbers; what it does not say is 0."""
    properties = summary(snapshot)

    def number(key: str) -> int:
        return int(properties.get(key, 0))

    return SnapshotReport(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.summary.operation.value if snapshot.summary else "unknown",
        committed_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        added_records=number("added-records"),
        deleted_records=number("deleted-records"),
        total_records=number("total-records"),
        added_files=number("added-data-files"),
        total_files=number("total-data-files"),
        added_bytes=number("added-files-size"),
        total_bytes=number("total-files-size"),
        start_offsets=parse_offsets(properties.get(START_OFFSETS, "{}")),
        end_offsets=parse_offsets(properties.get(END_OFFSETS, "{}")),
    )


def snapshots_since(table: Table, last: int | None, limit: int) -> list[Snapshot]:
    """The snapshots of ``main`` after ``last``, oldest first, at most ``limit`` of them.

    If ``last`` was expired, those that are kept; None: from the first one.
    """
    newer = list(takewhile(lambda snapshot: snapshot.snapshot_id != last, ancestry(table)))
    return newer[::-1][:limit]


def touched_hours(table: Table, snapshot: Snapshot, column: str) -> set[datetime]:
    """The hours (UTC) of ``column`` in which the snapshot added or removed rows.

    From the partition values if the table is partitioned by hour or day of the column, else from
    the files' bounds; a file without either touches no hour. Compaction changes no row.
    """
    if snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
        return set()
    hours: set[datetime] = set()
    for file, _ in _changed_files(table, snapshot):
        hours.update(_hours_of(table, file, column))
    return hours


def added_rows(table: Table, snapshot: Snapshot, column: str) -> dict[datetime, int]:
    """Rows that the snapshot added in each hour (UTC) of ``column``, by which it is partitioned."""
    rows: Counter[datetime] = Counter()
    for file, added in _changed_files(table, snapshot):
        if added:
            (hour,) = _hours_of(table, file, column)
            rows[hour] += file.record_count
    return dict(rows)


def _changed_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[DataFile, bool]]:
    """The data and delete files that the snapshot added (true) or removed (false)."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if entry.snapshot_id == snapshot.snapshot_id:
                yield entry.data_file, entry.status != ManifestEntryStatus.DELETED


def _hours_of(table: Table, file: DataFile, column: str) -> Iterator[datetime]:
    field = table.schema().find_field(column)
    spec = table.specs()[file.spec_id]
    for position, partition in enumerate(spec.fields):
        value = file.partition[position]
        if partition.source_id != field.field_id or value is None:
            continue
        if isinstance(partition.transform, HourTransform):
            yield EPOCH + value * HOUR
            return
        if isinstance(partition.transform, DayTransform):
            # PyIceberg gives a day as a date or as days since the epoch.
            days = value if isinstance(value, int) else (value - EPOCH.date()).days
            yield from (EPOCH + timedelta(days=days, hours=hour) for hour in range(24))
            return
    lower, upper = (
        (bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    if lower is None or upper is None:
        return
    assert isinstance(field.field_type, PrimitiveType)  # noqa: S101  only these have bounds
    first, last = (
        int(from_bytes(field.field_type, bound)) // _HOUR_MICROSECONDS for bound in (lower, upper)
    )
    yield from (EPOCH + hour * HOUR for hour in range(first, last + 1))
