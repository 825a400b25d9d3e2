"""The hours of event time that the files of a table hold.

They are read from metadata: partition values, then the bounds in manifests. A position delete
changes the hours of the data files that it names. A file without these counts for every hour, as
Iceberg keeps no bounds beyond a table's first 100 columns: too many hours are computed again, never
too few. Summaries of topicberg's snapshots have them, so that the manifests are not opened.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import accumulate, chain, pairwise
from typing import cast

from cachetools import LRUCache, cached
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import DateType, NestedField, PrimitiveType, TimestampType, TimestamptzType

from topicberg.iceberg.files import entries, in_parallel
from topicberg.iceberg.manifests import bounds_of, is_vector, read_entries, referenced_file
from topicberg.iceberg.summaries import is_own, summary

HOUR_MICROSECONDS = 3_600_000_000
_EPOCH = date(1970, 1, 1)
PARTITION_HOURS: dict[object, int] = {HourTransform: 1, DayTransform: 24}
"""Transform of a column of times → the hours of a partition."""
SUMMARY = "topicberg.hours"
"""Snapshot summary, JSON: field id of the event time → the hours in which rows are added or
deleted: the first one since 1970, then the lengths of the range, of the gap after it, and so on."""
MAX_SUMMARY_RANGES = 300
"""A snapshot with more has no such summary: every commit writes those of all snapshots."""
_TIMES = (DateType, TimestampType, TimestamptzType)

Hours = range  # Since 1970 (UTC). Numbers: a producer's wrong clock may write the year 57000.

BEFORE_EVERYTHING = -(2**62)
NO_TIME = Hours(BEFORE_EVERYTHING, BEFORE_EVERYTHING + 1)
"""The hour of rows without a time, which sorts before all others."""
EVERYTHING = Hours(BEFORE_EVERYTHING, -BEFORE_EVERYTHING)


def union(ranges: Iterable[Hours]) -> list[Hours]:
    """Return the same hours in as few ranges as possible, ascending."""
    found = list[Hours]()
    for hours in sorted(ranges, key=lambda each: each.start):
        if found and hours.start <= found[-1].stop:
            found[-1] = Hours(found[-1].start, max(found[-1].stop, hours.stop))
        elif hours:
            found.append(hours)
    return found


def coarse(ranges: Iterable[Hours], limit: int) -> list[Hours]:
    """Return at most ``limit`` ranges with all of these hours; the narrowest gaps are filled."""
    found = union(ranges)
    if len(found) <= limit:
        return found
    gaps = sorted(range(1, len(found)), key=lambda n: found[n - 1].stop - found[n].start)
    cuts = [0, *sorted(gaps[: limit - 1]), len(found)]
    return [Hours(found[first].start, found[end - 1].stop) for first, end in pairwise(cuts)]


def without(ranges: Iterable[Hours], removed: Hours) -> list[Hours]:
    """Return the hours of the ranges that are not in ``removed``."""
    held = list(ranges)
    before = [Hours(hours.start, min(hours.stop, removed.start)) for hours in held]
    after = [Hours(max(hours.start, removed.stop), hours.stop) for hours in held]
    return union(part for part in before + after if part)


def gaps(ranges: Iterable[Hours]) -> list[Hours]:
    """Return all hours that are not in the ranges."""
    bounds = (bound for hours in union(ranges) for bound in (hours.start, hours.stop))
    ends = [EVERYTHING.start, *bounds, EVERYTHING.stop]
    return union(Hours(*pair) for pair in zip(ends[::2], ends[1::2], strict=True))


def common(ranges: Iterable[Hours], others: Iterable[Hours]) -> list[Hours]:
    """Return the hours that are in both, in as few ranges as possible."""
    found, first, second = list[Hours](), union(ranges), union(others)
    while first and second:
        hours = Hours(max(first[0].start, second[0].start), min(first[0].stop, second[0].stop))
        found += [hours] if hours else []
        (first if first[0].stop < second[0].stop else second).pop(0)
    return found


class FileHours:
    """The hours of one column in the files of a table."""

    def __init__(self, table: Table, column: str) -> None:
        self._table, self._field = table, table.schema().find_field(column)

    def of(self, file: DataFile, snapshot: Snapshot) -> list[Hours]:
        """Return the hours in which a file of a snapshot holds or deletes rows."""
        if file.content == DataFileContent.DATA:
            return self._of_data(file)
        if hours := self._of_partition(file):
            return hours
        if is_vector(file):
            return self._of_named({referenced_file(file)}, snapshot)
        if (
            file.content == DataFileContent.POSITION_DELETES
            and file.file_format == FileFormat.PARQUET
        ):
            return self._of_named(_named_files(self._table.io, file), snapshot)
        return self._of_named(None, snapshot)  # an equality delete may affect every data file

    def of_all(self, files: Iterable[DataFile], snapshot: Snapshot) -> list[Hours]:
        """Return the hours in which any of some files of a snapshot holds or deletes rows."""
        ranges, vectors = list[Hours](), set[str]()
        for file in files:
            if is_vector(file) and not self._of_partition(file):
                vectors.add(referenced_file(file))  # the manifests are read once for all
            else:
                ranges += self.of(file, snapshot)
        return union(ranges + (self._of_named(vectors, snapshot) if vectors else []))

    def held(self, snapshot: Snapshot) -> list[Hours]:
        """Return the hours of all data files of a snapshot."""
        return self._of_named(None, snapshot)

    def summarize(self, data_files: Iterable[DataFile]) -> dict[str, str]:
        """Return the summary of a snapshot that changes rows of these files, if it is short."""
        hours = union(chain.from_iterable(map(self._of_data, data_files)))
        if len(hours) > MAX_SUMMARY_RANGES or not isinstance(self._field.field_type, _TIMES):
            return {}
        bounds = [0, *chain.from_iterable((each.start, each.stop) for each in hours)]
        lengths = {self._field.field_id: [stop - start for start, stop in pairwise(bounds)]}
        return {SUMMARY: json.dumps(lengths, separators=(",", ":"))}

    def summarized(self, snapshot: Snapshot) -> list[Hours] | None:
        """Return the hours in the summary of a snapshot; None: its manifests say which."""
        text = summary(snapshot).get(SUMMARY) if is_own(snapshot) else None
        lengths = json.loads(text or "{}").get(str(self._field.field_id))
        if lengths is None:
            return None
        bounds = [*accumulate(lengths)]
        return [Hours(*each) for each in zip(bounds[::2], bounds[1::2], strict=True)]

    def _of_data(self, file: DataFile) -> list[Hours]:
        return self._of_partition(file) or self._of_bounds(file)

    def _of_partition(self, file: DataFile) -> list[Hours]:
        for place, partition in enumerate(self._table.specs()[file.spec_id].fields):
            width = PARTITION_HOURS.get(type(partition.transform))
            if width is not None and partition.source_id == self._field.field_id:
                return [partition_hours(file.partition[place], width)]
        return []

    def _of_bounds(self, file: DataFile) -> list[Hours]:
        """Return the hours by the manifest's bounds; all of them: the manifest has none."""
        nulls = (file.null_value_counts or {}).get(self._field.field_id)
        bounds = time_bounds(file, self._field)
        if bounds is None:
            return [NO_TIME] if nulls is not None and nulls == file.record_count else [EVERYTHING]
        width = 24 if isinstance(self._field.field_type, DateType) else 1  # hours of a value
        first, last = (bound // HOUR_MICROSECONDS for bound in bounds)
        return [*([] if nulls == 0 else [NO_TIME]), Hours(first, last + width)]

    def _of_named(self, paths: set[str] | None, snapshot: Snapshot) -> list[Hours]:
        """Return the hours of data files of a snapshot: those with these paths, or all."""
        ranges, waiting = list[Hours](), None if paths is None else set(paths)
        manifests = snapshot.manifests(self._table.io)
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        for known in in_parallel(self._manifest, data):
            for path in known if waiting is None else waiting & known.keys():
                ranges += known[path]
            if waiting is not None:
                waiting -= known.keys()
                if not waiting:
                    break
        return union(ranges)

    # Manifests never change, and a sensor reads the same ones at every tick.
    @cached(
        LRUCache(100_000, getsizeof=len),
        key=lambda self, manifest: (manifest.manifest_path, self._field.field_id),
        lock=threading.Lock(),
    )
    def _manifest(self, manifest: ManifestFile) -> dict[str, list[Hours]]:
        """Return path → hours of the live data files of a manifest."""
        files = [entry.data_file for entry in read_entries(self._table.io, manifest)]
        return {file.file_path: self._of_data(file) for file in files}


def _named_files(io: FileIO, deletes: DataFile) -> set[str] | None:
    """Return the paths of data files that a position delete file names; None: it is deleted."""
    import pyarrow.parquet as pq

    try:
        with io.new_input(deletes.file_path).open() as stream:
            named = pq.read_table(stream, columns=["file_path"], read_dictionary=["file_path"])
    except FileNotFoundError:
        return None
    return {path for path in named.column(0).unique().to_pylist() if path is not None}


def partition_hours(value: int | date | None, width: int) -> Hours:
    """Return the hours of a partition: hours or days since 1970; PyIceberg gives some dates."""
    if value is None:
        return NO_TIME
    number = value if isinstance(value, int) else (value - _EPOCH).days
    return Hours(number * width, (number + 1) * width)


def time_bounds(file: DataFile, field: NestedField) -> tuple[int, int] | None:
    """Return the bounds of a column of dates or times in a file, as microseconds since 1970. None:
    the file's metadata has none, or a lower one above the upper one, as some writers' do
    (ClickHouse/ClickHouse#116499)."""
    lower, upper = bounds_of(file, field.field_id)
    if lower is None or upper is None:
        return None
    kind = cast("PrimitiveType", field.field_type)  # only these have bounds
    unit = 24 * HOUR_MICROSECONDS if isinstance(kind, DateType) else 1
    first, last = (int(from_bytes(kind, bound)) * unit for bound in (lower, upper))
    return (first, last) if first <= last else None


def live_files_since(
    table: Table, snapshot: Snapshot, newer_than: int
) -> Iterator[tuple[DataFile, int]]:
    """Yield the files of a snapshot whose data sequence number is above one, with that number.
    Manifests that were completely written before that number are not opened."""
    manifests = [m for m in snapshot.manifests(table.io) if m.sequence_number > newer_than]
    for entry in entries(table.io, manifests):
        if (number := entry.sequence_number or 0) > newer_than:
            yield entry.data_file, number
