"""What a snapshot did to its table, from metadata alone: no data file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import DateType, IntegerType, NestedField, PrimitiveType

from topicberg.tableflow.commit import (
    DATA_TTL_RUN,
    END_OFFSETS,
    START_OFFSETS,
    ancestry,
    summary,
)
from topicberg.tableflow.files import live_files
from topicberg.tableflow.offsets import Offsets, parse_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_HOUR_MICROSECONDS = 3_600_000_000
_SAMPLED_SNAPSHOTS = 20
_EPOCH = date(1970, 1, 1)

Hours = range
"""Hours since 1970 (UTC). Numbers, since a producer's wrong clock may write the year 57000."""

BEFORE_EVERYTHING = -(2**62)
_NO_TIME = Hours(BEFORE_EVERYTHING, BEFORE_EVERYTHING + 1)


@dataclass(frozen=True)
class SnapshotReport:
    """One snapshot in numbers. Bytes and files are of data files; times are UTC.

    Records are those that a reader sees: without the ones that are deleted by position.
    """

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
        deleted_records=number("deleted-records")
        + number("added-position-deletes")
        - number("removed-position-deletes"),
        total_records=number("total-records") - number("total-position-deletes"),
        added_files=number("added-data-files"),
        total_files=number("total-data-files"),
        added_bytes=number("added-files-size"),
        total_bytes=number("total-files-size"),
        start_offsets=parse_offsets(properties.get(START_OFFSETS, "{}")),
        end_offsets=parse_offsets(properties.get(END_OFFSETS, "{}")),
    )


@dataclass(frozen=True)
class Changes:
    """What became of ``main`` since a snapshot; each list from old to new."""

    new: list[Snapshot]
    undone: list[Snapshot]
    """Snapshots that a rollback took out of the history of ``main``."""
    gap: bool = False
    """That snapshot is not known any more, so snapshots may be missing before the first one."""

    def __bool__(self) -> bool:
        return bool(self.new or self.undone)


def changes_since(table: Table, last: int | None, head: Snapshot | None = None) -> Changes:
    """Everything since snapshot ``last`` (None: the first one), up to ``head`` (None: ``main``)."""
    line = takewhile(lambda snapshot: snapshot.snapshot_id != last, ancestry(table, head))
    newer = list(line)[::-1]
    if last is None or not newer or newer[0].parent_snapshot_id == last:
        return Changes(newer, [])
    old = table.snapshot_by_id(last)
    if old is None:
        return Changes(newer, [], gap=True)
    kept = {snapshot.snapshot_id for snapshot in newer}
    undone = list(takewhile(lambda s: s.snapshot_id not in kept, ancestry(table, old)))[::-1]
    known = {snapshot.snapshot_id for snapshot in ancestry(table, old)}
    return Changes([s for s in newer if s.snapshot_id not in known], undone)


def touched_hours(table: Table, snapshot: Snapshot, column: str) -> list[Hours]:
    """The hours of ``column`` in which the snapshot added or removed rows, one range a file.

    From the partition values if the table is partitioned by hour or day of the column, else from
    the files' bounds; a file that says neither may have touched every hour until its commit. Rows
    without a time belong before all others. Compaction changes no row, and rows past their
    retention take nothing from what was derived of them.
    """
    if snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
        return []
    if DATA_TTL_RUN in summary(snapshot):
        return []
    committed = snapshot.timestamp_ms * 1000 // _HOUR_MICROSECONDS
    anything = Hours(BEFORE_EVERYTHING, committed + 1)
    return [
        hours
        for file, _ in changed_files(table, snapshot)
        for hours in _hours_of(table, file, column) or [anything]
    ]


def held_hours(table: Table, column: str) -> Iterator[Hours]:
    """The hours of ``column`` in which the table has rows, one range or more a file.

    As of :func:`touched_hours`, but of all data files of the current snapshot.
    """
    committed = table.metadata.last_updated_ms * 1000 // _HOUR_MICROSECONDS
    for file in live_files(table):
        if file.content == DataFileContent.DATA:
            yield from _hours_of(table, file, column) or [Hours(BEFORE_EVERYTHING, committed + 1)]


def added_rows(table: Table, snapshot: Snapshot, column: str) -> dict[int, int]:
    """First hour of each partition that the snapshot added to → rows.

    :param column: the column by whose hour or day the table is partitioned
    """
    rows: dict[int, int] = {}
    for file, added in changed_files(table, snapshot):
        if added:
            hours = _hours_of(table, file, column)[0]
            rows[hours.start] = rows.get(hours.start, 0) + file.record_count
    return rows


def oldest_record(table: Table, snapshot: Snapshot, column: str) -> datetime | None:
    """The earliest ``column`` of the rows that the snapshot added; None: the files do not say."""
    bounds = _bounds(table, snapshot, column, lambda file: file.lower_bounds)
    return _as_time(min(bounds)) if bounds else None


def newest_record(table: Table, column: str) -> datetime | None:
    """The latest ``column`` of the rows that came last; None: there are none, or files do not say.

    Compaction is passed over: its files may hold old rows alone.
    """
    for snapshot in ancestry(table):
        if snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
            continue
        if bounds := _bounds(table, snapshot, column, lambda file: file.upper_bounds):
            return _as_time(max(bounds))
    return None


def _bounds(
    table: Table,
    snapshot: Snapshot,
    column: str,
    of: Callable[[DataFile], Mapping[int, bytes] | None],
) -> list[int]:
    """Microseconds since 1970: a bound of ``column`` in each file that the snapshot added."""
    field = table.schema().find_field(column)
    return [
        _as_microseconds(field, bound)
        for file, added in changed_files(table, snapshot)
        if added and (bound := (of(file) or {}).get(field.field_id)) is not None
    ]


def _as_time(microseconds: int) -> datetime | None:
    """None: a time that Python does not have."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def rows_by_partition(table: Table, first: int) -> tuple[dict[int, int], int] | None:
    """First hour (since 1970) of each partition of time → rows in its files; hours a partition.

    None: the table is not partitioned by the hour or the day of a column. Manifests that have
    nothing but partitions before hour ``first`` are not opened.
    """
    head = table.current_snapshot()
    place, width = _time_partition(table.spec())
    if place is None:
        return None
    rows: dict[int, int] = {}
    for manifest in head.manifests(table.io) if head else ():
        if (
            manifest.content != ManifestContent.DATA
            or manifest.partition_spec_id != table.spec().spec_id
        ):
            continue
        upper = manifest.partitions[place].upper_bound if manifest.partitions else None
        if upper is not None and int(from_bytes(IntegerType(), upper)) * width < first:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            hours = _partition_hours(entry.data_file.partition[place], width)
            if hours.start >= first:
                rows[hours.start] = rows.get(hours.start, 0) + entry.data_file.record_count
    return rows, width


def _time_partition(spec: PartitionSpec) -> tuple[int | None, int]:
    """Place of the first field by hour or day, and hours of a partition."""
    for place, field in enumerate(spec.fields):
        if isinstance(field.transform, HourTransform | DayTransform):
            return place, 1 if isinstance(field.transform, HourTransform) else 24
    return None, 1


def newest_rows(table: Table, limit: int) -> pa.Table | None:
    """A few rows of the newest file, without planning a scan of the table."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask

    removed: set[str] = set()
    for snapshot in islice(ancestry(table), _SAMPLED_SNAPSHOTS):
        files = list(changed_files(table, snapshot))
        removed |= {file.file_path for file, added in files if not added}
        for file, added in files:
            if added and file.content == DataFileContent.DATA and file.file_path not in removed:
                scan = ArrowScan(
                    table.metadata, table.io, table.schema(), AlwaysTrue(), limit=limit
                )
                return scan.to_table([FileScanTask(file)])
    return None


def changed_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[DataFile, bool]]:
    """The data and delete files that the snapshot added (true) or removed (false)."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if entry.snapshot_id == snapshot.snapshot_id:
                yield entry.data_file, entry.status != ManifestEntryStatus.DELETED


def _hours_of(table: Table, file: DataFile, column: str) -> list[Hours]:
    """Empty: the metadata does not say."""
    field = table.schema().find_field(column)
    for position, partition in enumerate(table.specs()[file.spec_id].fields):
        if partition.source_id == field.field_id:
            if isinstance(partition.transform, HourTransform):
                return [_partition_hours(file.partition[position], 1)]
            if isinstance(partition.transform, DayTransform):
                return [_partition_hours(file.partition[position], 24)]
    hours = []
    nulls = (file.null_value_counts or {}).get(field.field_id, 0)
    lower, upper = (
        (bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    if lower is not None and upper is not None:
        first, last = (
            _as_microseconds(field, bound) // _HOUR_MICROSECONDS for bound in (lower, upper)
        )
        hours.append(Hours(first, last + 1))
    if nulls and (hours or nulls == file.record_count):
        hours.append(_NO_TIME)
    return hours


def _partition_hours(value: int | date | None, width: int) -> Hours:
    """:param value: hours or days since 1970; PyIceberg gives some days as dates"""
    if value is None:
        return _NO_TIME
    number = value if isinstance(value, int) else (value - _EPOCH).days
    return Hours(number * width, (number + 1) * width)


def _as_microseconds(field: NestedField, bound: bytes) -> int:
    assert isinstance(field.field_type, PrimitiveType)  # noqa: S101  only these have bounds
    value = int(from_bytes(field.field_type, bound))
    return value * 24 * _HOUR_MICROSECONDS if isinstance(field.field_type, DateType) else value
