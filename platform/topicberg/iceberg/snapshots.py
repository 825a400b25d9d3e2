"""What a snapshot did to its table, from metadata alone: no data file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import IntegerType

from topicberg.iceberg.hours import FileHours, Hours, microseconds, partition_hours
from topicberg.iceberg.summaries import DATA_TTL_RUN, END_OFFSETS, START_OFFSETS, ancestry, summary
from topicberg.kafka.offsets import Offsets, parse_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_SAMPLED_SNAPSHOTS = 20


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
    """Snapshots in between are expired: there may have been others, of either kind."""

    def __bool__(self) -> bool:
        return bool(self.new or self.undone or self.gap)


def changes_since(table: Table, last: int | None, head: Snapshot | None = None) -> Changes:
    """Return what happened since snapshot ``last`` (None: ever), up to ``head`` (None: ``main``).

    A snapshot of before the gap may still be known, by a tag for example.
    """
    line = list(ancestry(table, head))
    for place, snapshot in enumerate(line):
        if snapshot.snapshot_id == last:
            return Changes(line[:place][::-1], [])
    if last is None:
        return Changes(line[::-1], [], gap=not _is_whole(line))
    known = table.snapshot_by_id(last)
    undone = list(ancestry(table, known)) if known else []
    of_main = {snapshot.snapshot_id: place for place, snapshot in enumerate(line)}
    for place, snapshot in enumerate(undone):
        if (common := of_main.get(snapshot.snapshot_id)) is not None:
            return Changes(line[:common][::-1], undone[:place][::-1])
    if undone and _is_whole(line) and _is_whole(undone):  # the table was replaced
        return Changes(line[::-1], undone[::-1])
    return Changes(line[::-1], [], gap=True)


def _is_whole(line: list[Snapshot]) -> bool:
    """Whether a line, from new to old, goes back to the table's first snapshot.

    By its number: some catalogs take the parent from a snapshot when that expires.
    """
    return not line or (line[-1].sequence_number or 0) == 1


def touched_hours(table: Table, snapshot: Snapshot, column: str) -> list[Hours]:
    """Return the hours of ``column`` in which the snapshot added or removed rows, by file.

    Compaction changes no row, and rows past their retention take nothing from what was derived of
    them. See :mod:`topicberg.iceberg.hours`.
    """
    if snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
        return []
    if DATA_TTL_RUN in summary(snapshot):
        return []
    hours = FileHours(table, column)
    return [each for file, _ in changed_files(table, snapshot) for each in hours.of(file, snapshot)]


def held_hours(table: Table, column: str) -> list[Hours]:
    """The hours of ``column`` in which the current snapshot has data files."""
    head = table.current_snapshot()
    return FileHours(table, column).held(head) if head else []


def added_rows(table: Table, snapshot: Snapshot, column: str) -> dict[int, int]:
    """First hour of each partition that the snapshot added to → rows.

    :param column: the column by whose hour or day the table is partitioned
    """
    rows: dict[int, int] = {}
    of_file = FileHours(table, column)
    for file, added in changed_files(table, snapshot):
        if added:
            hours = of_file.of(file, snapshot)[0]
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
        microseconds(field, bound)
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
            hours = partition_hours(entry.data_file.partition[place], width)
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
