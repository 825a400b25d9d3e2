"""A derived table: for a window of event time, exactly the result of its function on its sources.

What the function gets for a partition never depends on the window that a run computes: it is called
for each partition separately or, with a lookback or a lookahead, for each part of a grid that is as
wide as these. Which rows it may return for the rows of a partition is checked for each partition.
So a range may be divided into runs in any way.

Writing a window replaces it, so writing it twice changes nothing. Of two concurrent writers, the
one that read the newer sources wins: each records the head of the target *before* it reads the
sources, and Iceberg refuses an overwrite of a window in which others wrote since that head. A
writer that is refused computes again.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.exceptions import (
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation

from topicberg.endpoints import CATALOG
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours, union
from topicberg.iceberg.names import partition_field_name
from topicberg.iceberg.read_tags import reading
from topicberg.iceberg.snapshots import added_rows, held_hours
from topicberg.iceberg.summaries import SOURCE_SNAPSHOTS, ancestry, summary
from topicberg.iceberg.tables import attached_catalog, find_table
from topicberg.project_code import OF_DRIVER
from topicberg.retry import conflicts, retry_conflicts
from topicberg.spark import missing_module, quote
from topicberg.tableflow.table import bounds_kept, check_types, keep_bounds
from topicberg.transforms.unread import READ, SourceTable, after, unread
from topicberg.transforms.versions import computed_by, outdated, recorded
from topicberg.transforms.windows import FOREVER, WINDOW, Window

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql.types import DataType

logger = logging.getLogger(__name__)

WRITE_ID = "topicberg.write-id"
ATTEMPTS = 5
AT_ONCE = 48
"""Parts of a window that one job of Spark computes, and one commit replaces."""
_HOURS = {"hour": 1, "day": 24}
"""Iceberg transform of the event time → hours of a partition."""
_TRANSFORMS = ("hour", "day", "month", "year")
"""Iceberg's transforms of a time, the shortest first."""
_OUTSIDE = "topicberg-outside-of-the-window"
_REFUSED = re.compile(rf"{_OUTSIDE} (\S+) <([^>]*)>")
RETENTION_MARGIN = timedelta(hours=1)
"""A requested window is computed within this time; later it may be past its retention."""
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

Transform = Callable[..., "DataFrame"]
"""The user's function: a DataFrame for each source in, rows of the derived table out."""

TableName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class Source:
    """A table that is read: the window of its event time, or as a whole."""

    table: TableName
    time: str | None
    """None: it is read as a whole, and its changes trigger nothing."""
    whole: bool = False
    kept: timedelta | None = None
    """Its data retention; None: for ever."""

    @property
    def name(self) -> str:
        return ".".join(self.table)


@dataclass(frozen=True)
class Derivation:
    """How a table is derived from its sources."""

    sources: tuple[Source, ...]
    target: TableName
    transform: Transform
    target_time: str
    """The event time in the target, by which a window is replaced."""
    lookback: timedelta | None = None
    """How far before the window the sources are read; None: the function gets only the window."""
    lookahead: timedelta | None = None
    """How far after the window the sources are read."""
    partitioned_by: str = "hour"
    """Iceberg transform of ``target_time``; windows begin and end with its partitions."""
    first: datetime | None = None
    """When the first partition begins; it also has everything before."""
    format_version: int = 2
    """Iceberg's format version of a new table."""
    version: str | None = None
    """Of the function and its settings; None: it is not recorded."""
    descriptions: tuple[tuple[str, str], ...] = ()
    """Columns and what the table says of them; others have the sources' descriptions."""

    @property
    def name(self) -> str:
        return ".".join(self.target)

    def reach(self, source: Source) -> timedelta:
        """Return how far after an hour that changed in a source the table changes.

        For a source that is read as a whole, this is not known.
        """
        return FOREVER if source.whole else self.back

    @property
    def back(self) -> timedelta:
        """The lookback in whole partitions: what follows from their rows is checked in these."""
        return self._whole(self.lookback)

    @property
    def ahead(self) -> timedelta:
        """The lookahead in whole partitions."""
        return self._whole(self.lookahead)

    def _whole(self, duration: timedelta | None) -> timedelta:
        if duration is None or duration == FOREVER:
            return duration or timedelta()
        partition = timedelta(hours=self.hours)
        return ceil(duration / partition) * partition

    @property
    def hours(self) -> int:
        """The hours of a partition."""
        return _HOURS[self.partitioned_by]

    def calls(self, window: Window) -> list[Call]:
        """Return the calls of the function that compute a window."""
        back, ahead = self.back, self.ahead
        if FOREVER in (back, ahead):
            return [Call(window, None)]
        found = list[Call]()
        step = max(self.hours, max(back, ahead) // timedelta(hours=1))
        for part in window.cut(self.hours, self.first):
            block = part.around(step)
            read = Window(block.start - back if block.start else None, block.end + ahead)
            if found and found[-1].read == read:
                part = Window(found.pop().window.start, part.end)
            found.append(Call(part, read))
        return found

    def partitions(self, window: Window) -> Iterator[Window]:
        """Yield the partitions of a window; of the first one, what lies before it separately."""
        for part in window.cut(self.hours, self.first):
            if part.start is None and self.first and self.first < part.end:
                yield Window(None, self.first)
                yield Window(self.first, part.end)
            else:
                yield part

    def placed(self, partition: Window) -> Window:
        """Return where the rows may be that follow from a source's rows of a partition.

        Those of before the first partition change no other one.
        """
        back, ahead = self.back, self.ahead
        if partition.start is None and partition.end == self.first:
            return Window(None, self.first + timedelta(hours=self.hours))
        if partition.start == self.first:
            ahead = FOREVER
        start = None if partition.start is None or ahead == FOREVER else partition.start - ahead
        return Window(start, partition.end + (timedelta() if back == FOREVER else back))

    def source_tables(self, find: Callable[[TableName], Table | None]) -> dict[str, SourceTable]:
        """Return the sources that exist and have an event time, by their names."""
        return {
            each.name: SourceTable(
                found,
                each.time,
                self.reach(each),
                timedelta() if each.whole else self.ahead,
                each.whole,
            )
            for each in self.sources
            if each.time is not None and (found := find(each.table)) is not None
        }

    def first_hour(self, now: datetime) -> int:
        """Return the first hour since 1970 that may be computed again without a request.

        Earlier hours are past the data retention of a source, or about to be: computing them again
        would remove what was computed from rows that are deleted since.
        """
        kept = [each.kept for each in self.sources if each.kept is not None and not each.whole]
        if not kept:
            return BEFORE_EVERYTHING
        back = self.lookback if self.lookback and self.lookback != FOREVER else timedelta()
        first = now - min(kept) + back + RETENTION_MARGIN
        return -int(-first.timestamp() // 3600)


class Call(NamedTuple):
    """A call of the function: the window that is kept of its result, and what it reads."""

    window: Window
    read: Window | None
    """None: everything."""


@dataclass(frozen=True)
class Written:
    """A window that was written.

    ``rows_by_hour``: first hour of a partition (since 1970) → rows. ``sources``: table → snapshot
    that was read. There is no snapshot if no source has one yet; nothing was written then.
    """

    rows: int = 0
    rows_by_hour: Mapping[int, int] | None = None
    snapshot_id: int | None = None
    sources: Mapping[str, int | None] | None = None

    def followed_by(self, other: Written) -> Written:
        """Return both as one, of which the other was written later."""
        rows = Counter(self.rows_by_hour or {})
        rows.update(other.rows_by_hour or {})
        return Written(
            rows=self.rows + other.rows,
            rows_by_hour=rows,
            snapshot_id=other.snapshot_id or self.snapshot_id,
            sources=other.sources or self.sources,
        )


def write_window(
    spark: SparkSession, catalog: Catalog, derivation: Derivation, window: Window
) -> Written:
    """Compute a window from the heads of the sources and replace it in the target.

    A long window is replaced in several commits, of whole partitions each.

    :raises TopicbergError: a source does not exist, or the function lost the time column or returns
        rows where no run would look for them
    :raises CommitConflictError: other writers kept changing the same window
    """
    first, *others = _portions(catalog, derivation, window)
    try:
        written = _write(spark, catalog, derivation, first)
        for portion in others:
            written = written.followed_by(_write(spark, catalog, derivation, portion))
    except TopicbergError:
        raise
    except Exception as error:
        if module := missing_module(str(error)):
            raise lacking(f"table {derivation.name}", module) from error
        raise
    return written


def lacking(what: str, module: str) -> TopicbergError:
    """Return the error of a function whose module the workers of Spark cannot import.

    :param what: names the table
    """
    if module.partition(".")[0] in OF_DRIVER:
        hint = (
            "move what runs on the workers into a module of the project that does not import "
            f"{', '.join(sorted(OF_DRIVER))}"
        )
    else:
        hint = (
            f"install {module} for the Python of the workers; for EMR Serverless, add it to "
            "`dependencies` in pyproject.toml, then run `topicberg deploy create`. A module of the "
            "project must be in a package that its pipelines import: see docs/project.md"
        )
    return TopicbergError(f"{what}: the workers of Spark have no module {module}", hint=hint)


def _portions(catalog: Catalog, derivation: Derivation, window: Window) -> list[Window]:
    """Return the parts of a window that are computed by a job of Spark each."""
    calls = derivation.calls(window)
    if len(calls) <= AT_ONCE:
        return [window]
    held = _held(derivation, _load(catalog, derivation))
    found, start, number = list[Window](), window.start, 0
    for call in calls:
        if number == AT_ONCE:
            found.append(Window(start, call.window.start or call.window.end))
            start, number = call.window.start, 0
        number += _meets(held, call.read)
    return [*found, Window(start, window.end)]


def _write(
    spark: SparkSession, catalog: Catalog, derivation: Derivation, window: Window
) -> Written:
    partition = derivation.target_time, derivation.partitioned_by

    def attempt() -> Written:
        before = find_table(catalog, derivation.target)
        sources = _load(catalog, derivation)
        # Another thread creates and removes the tags: each takes as long as what is done meanwhile.
        with (
            conflicts(f"table {derivation.name}"),
            ExitStack() as tags,
            ThreadPoolExecutor(1) as beside,
        ):
            tagged = beside.submit(tags.enter_context, reading(sources.values(), derivation.name))
            try:
                computed, columns = _computed(spark, derivation, sources, window)
            finally:
                tagged.result()  # where a source's snapshot is expired, this error is the reason
            table = ensure_table(
                catalog, derivation.target, columns, partition, derivation.format_version, before
            )
            if not any(map(_head, sources.values())) and not _has_rows(table):
                return Written()
            names = [field.name for field in table.schema().fields]
            unused = [name for name in names if name not in columns.names]
            summary_ = summary_of(derivation, table, sources, window, unused)
            properties = {**summary_, WRITE_ID: uuid.uuid4().hex}
            try:
                _overwrite(spark, table, derivation, window, computed, properties)
            except Exception as error:
                if refused := _REFUSED.search(str(error)):
                    raise _misplaced(derivation, *refused.groups()) from error
                raise
            beside.submit(tags.close)
            written = _written(derivation, window, table, sources, properties[WRITE_ID])
            _drop_unused(derivation, table, unused)
            return written

    exhausted = CommitConflictError(
        f"table {derivation.name}: {ATTEMPTS} attempts conflicted with another writer of {window}",
        hint="materialize the partitions again when the other run has ended",
    )
    return retry_conflicts(attempt, ATTEMPTS, exhausted=exhausted)


def _written(
    derivation: Derivation,
    window: Window,
    table: Table,
    sources: Mapping[str, Table],
    write_id: str,
) -> Written:
    """Return what a commit wrote.

    :param table: as it was before
    """
    snapshot = next(
        one for one in ancestry(table.refresh()) if summary(one).get(WRITE_ID) == write_id
    )
    rows = int(summary(snapshot).get("added-records", 0))
    if len(window.hours) == 1:  # then no partition is shorter
        by_hour = {window.hours.start: rows} if rows else {}
    else:
        by_hour = added_rows(table, snapshot, derivation.target_time)
    return Written(
        rows=rows,
        rows_by_hour=by_hour,
        snapshot_id=snapshot.snapshot_id,
        sources={name: _head(each) for name, each in sources.items()},
    )


def _drop_unused(derivation: Derivation, table: Table, unused: Sequence[str]) -> None:
    """Drop columns that the function no longer returns, once no row has another version's value."""
    if not unused or derivation.version is None:
        return
    held = held_hours(table, derivation.target_time)
    for hours in outdated(computed_by(table), derivation.version):
        if any(each.start < hours.stop and hours.start < each.stop for each in held):
            return
    with table.update_schema() as update:
        for name in unused:
            update.delete_column(name)
    logger.info(
        "table %s: dropped %s, which its function no longer returns",
        derivation.name,
        ", ".join(unused),
    )


def read_window(
    spark: SparkSession, table: TableName, time: str, window: Window | None
) -> DataFrame:
    """Return the rows of a table in a window of its event time, as of now; no window: all rows."""
    frame = spark.read.table(spark_name(table))
    if window is None:
        return frame
    return frame.filter(window.condition(time, frame.schema[time].dataType))


def summary_of(
    derivation: Derivation,
    target: Table,
    sources: Mapping[str, Table],
    window: Window,
    unused: Sequence[str] = (),
) -> dict[str, str]:
    """Return the summary properties of a snapshot that computes a window of the sources' heads.

    :param unused: columns of the target that the function does not return
    """
    tables = derivation.source_tables(lambda name: sources[".".join(name)])
    first_hour = derivation.first_hour(datetime.now(UTC))
    read = unread(target, derivation.target_time, tables, first_hour)
    version = derivation.version
    versions = recorded(computed_by(target), version, window, unused) if version else {}
    return {
        **versions,
        SOURCE_SNAPSHOTS: json.dumps({name: _head(table) for name, table in sources.items()}),
        WINDOW: str(window),
        READ: after(read, window),
    }


def _load(catalog: Catalog, derivation: Derivation) -> dict[str, Table]:
    """Return the sources by their names.

    :raises TopicbergError: one does not exist
    """
    tables: dict[str, Table] = {}
    for source in derivation.sources:
        if (found := find_table(catalog, source.table)) is None:
            raise TopicbergError(
                f"table {derivation.name}: its source {source.name} does not exist yet",
                hint="materialize the Iceberg asset of the source first",
            )
        tables[source.name] = found
    return tables


def _head(table: Table) -> int | None:
    head = table.current_snapshot()
    return head.snapshot_id if head else None


def _has_rows(table: Table) -> bool:
    head = table.current_snapshot()
    return head is not None and int(summary(head).get("total-records", 0)) > 0


def _computed(
    spark: SparkSession, derivation: Derivation, sources: Mapping[str, Table], window: Window
) -> tuple[DataFrame, pa.Schema]:
    """Return the rows of a window, and the columns that the function returns.

    :raises TopicbergError: no run would look for some of the rows where they are
    """
    calls, parts = derivation.calls(window), [*derivation.partitions(window)]
    if len(parts) > 1:
        held = _held(derivation, sources)
        calls = [call for call in calls if _meets(held, call.read)] or calls[-1:]
        parts = [part for part in parts if _meets(held, part)]
    frames = {
        source.name: rows_at_head(spark, sources[source.name]) for source in derivation.sources
    }

    def result(read: Window | None) -> DataFrame:
        return derivation.transform(
            *(
                _rows(source, frames[source.name], sources[source.name], read)
                for source in derivation.sources
            )
        )

    results = [result(call.read) for call in calls]
    schema, time = results[0].schema, derivation.target_time  # a request to Spark
    if time not in schema.names:
        raise TopicbergError(
            f"table {derivation.name}: its function returns no column {time}",
            hint=f"name the event-time column: the function returns {', '.join(schema.names)}",
        )
    kind = schema[time].dataType
    pairs = [(each, call.window) for each, call in zip(results, calls, strict=True)]
    if derivation.lookback or derivation.lookahead:
        _check_places(derivation, result, kind, parts)
        rows = [each.filter(part.condition(time, kind)) for each, part in pairs]
    else:
        rows = [_refusing(each, time, kind, part) for each, part in pairs]
    columns = optional(described(results[0], derivation.descriptions))
    return reduce(lambda one, other: one.unionByName(other), rows), columns


def _held(derivation: Derivation, sources: Mapping[str, Table]) -> list[Hours] | None:
    """Return the hours in which the sources have rows; None: not known of all."""
    windowed = [source for source in derivation.sources if not source.whole]
    if not all(source.time for source in windowed):
        return None
    return union(
        hours
        for source in windowed
        if source.time
        for hours in held_hours(sources[source.name], source.time)
    )


def _meets(held: list[Hours] | None, window: Window | None) -> bool:
    """Return whether there may be rows in a window."""
    if held is None or window is None:
        return True
    hours = window.hours
    return any(each.start < hours.stop and hours.start < each.stop for each in held)


def _refusing(computed: DataFrame, time: str, kind: DataType, window: Window) -> DataFrame:
    """Return all rows; those outside of a window end the job, and the error says where they are."""
    from pyspark.sql import functions as F

    where = F.coalesce(F.col(quote(time)).cast("string"), F.lit("null"))
    refused = F.raise_error(F.concat(F.lit(f"{_OUTSIDE} {window} <"), where, F.lit(">")))
    inside = window.condition(time, kind)
    return computed.withColumn(time, F.when(inside, F.col(quote(time))).otherwise(refused))


def _check_places(
    derivation: Derivation,
    result: Callable[[Window], DataFrame],
    kind: DataType,
    partitions: Sequence[Window],
) -> None:
    """Check of some partitions that their rows become rows only where the declaration says.

    Else the runs of other partitions would have to find them, and these do not read that far.

    :param kind: the type of the event time
    """
    from pyspark.sql import functions as F

    time = derivation.target_time

    def misplaced(partition: Window) -> DataFrame:
        allowed = derivation.placed(partition).condition(time, kind)
        return (
            result(partition)
            .filter(~F.coalesce(allowed, F.lit(False)))
            .select(
                F.lit(str(partition)).alias("partition"),
                F.coalesce(F.col(quote(time)).cast("string"), F.lit("null")).alias("time"),
            )
        )

    for begin in range(0, len(partitions), AT_ONCE):
        frames = map(misplaced, partitions[begin : begin + AT_ONCE])
        for row in reduce(lambda one, other: one.union(other), frames).limit(1).collect():
            raise _misplaced(derivation, row["partition"], row["time"])


def described(frame: DataFrame, descriptions: Iterable[tuple[str, str]] = ()) -> pa.Schema:
    """Return a frame's columns, with the descriptions of the sources' columns that it keeps.

    :param descriptions: columns and their own descriptions
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import PYARROW_FIELD_DOC_KEY
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = frame.schema
    comments = {one.name: (one.metadata or {}).get("comment") for one in columns}
    comments |= dict(descriptions)
    return pa.schema(
        [
            field.with_metadata({PYARROW_FIELD_DOC_KEY: comment})
            if (comment := comments[field.name])
            else field
            for field in to_arrow_schema(columns)
        ]
    )


def optional(columns: pa.Schema) -> pa.Schema:
    """Return the columns, each of which may be null."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in columns])


def ensure_table(
    catalog: Catalog,
    name: TableName,
    columns: pa.Schema,
    partition: tuple[str, str] | None = None,
    format_version: int = 2,
    before: Table | None = None,
) -> Table:
    """Create or evolve a table so that it has these columns and at least one snapshot.

    Without rows the snapshot is empty; the first overwrite is validated against it.

    :param partition: column and Iceberg transform
    :param format_version: of a new table
    :param before: the table as it was before its sources were loaded; None: there was none
    :raises CommitConflictError: another run wrote since then, maybe from newer sources
    :raises TopicbergError: a column cannot have its new type, or the partitions are longer
    """
    head, table = _head(before) if before else None, before or find_table(catalog, name)
    if table is None:
        table = _create(catalog, name, columns, partition, format_version)
    else:
        _evolve(table, columns)
        if partition:
            _check_partition(table, *partition)
            keep_bounds(table, partition[:1])
    if table.current_snapshot() is None:  # new, or the run that created it was killed
        with suppress(CommitConflictError):  # another run was faster
            SnapshotChange(table, Operation.APPEND).commit()
        table.refresh()
    if _head(table) != head and (head is not None or _has_rows(table)):
        raise CommitConflictError(f"table {'.'.join(name)}: another run wrote to it")
    return table


def _check_partition(table: Table, column: str, transform: str) -> None:
    """Check that windows of a transform can be replaced in the files of a table.

    A file may have the rows of a whole partition. Partitions may be shorter than windows, not
    longer; another partition spec of the table would not change files that exist.
    """
    source = table.schema().find_field(column).field_id
    found = {str(each.transform) for each in table.spec().fields if each.source_id == source}
    others = [
        table.schema().find_column_name(each.source_id)
        for each in table.spec().fields
        if str(each.transform) in _TRANSFORMS and each.source_id != source
    ]
    if others and not found:
        raise TopicbergError(
            f"table {'.'.join(table.name())} is partitioned by its event time {others[0]}, and its "
            f"event time is now {column}: no run would replace the rows that it has",
            hint=f"name the event time {others[0]} again, or drop the table and backfill it",
        )
    longer = {*_TRANSFORMS[_TRANSFORMS.index(transform) + 1 :]}
    if found and found <= longer:
        raise TopicbergError(
            f"table {'.'.join(table.name())} is partitioned by {', '.join(sorted(found))} of "
            f"{column}, and cannot be computed by {transform}: a file may have rows of several",
            hint="set the granularity to what it was, or drop the table and backfill it",
        )


def _evolve(table: Table, columns: pa.Schema) -> None:
    new = table.catalog._convert_schema_if_needed(columns)
    if _same_columns(new, table.schema()):
        return
    try:
        check_types(table.schema().as_struct(), new.as_struct())
        with table.update_schema() as update:
            update.union_by_name(new)
    except (ValidationError, ValueError, TypeError) as error:
        name = ".".join(table.name())
        raise TopicbergError(
            f"table {name} cannot have the columns that are computed for it: {error}",
            hint="give the changed column another name, or drop the table and backfill it",
        ) from error


def _same_columns(one: Schema, other: Schema) -> bool:
    """Whatever their ids are: an update of a schema takes time also if it changes nothing."""
    from pyiceberg.schema import assign_fresh_schema_ids

    first, second = (assign_fresh_schema_ids(each).as_struct() for each in (one, other))
    return first == second


def _create(
    catalog: Catalog,
    name: TableName,
    columns: pa.Schema,
    partition: tuple[str, str] | None,
    format_version: int,
) -> Table:
    """Create the table with one request: AWS Glue refuses staged creation and requires a location.

    https://docs.aws.amazon.com/glue/latest/dg/iceberg-rest-apis.html, "CreateTable"
    """
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.transforms import parse_transform

    from topicberg.clients.catalog import TABLES, ensure_namespace
    from topicberg.logins.catalog import LOCATIONS

    ensure_namespace(catalog, name[0])
    schema = assign_fresh_schema_ids(catalog._convert_schema_if_needed(columns))
    spec = PartitionSpec()
    if partition:
        column, transform = partition
        source = schema.find_field(column).field_id
        field_name = partition_field_name(column, transform, schema.column_names)
        field = PartitionField(source, 1000, parse_transform(transform), field_name)
        spec = PartitionSpec(field)
    properties = {
        "format-version": str(format_version),
        **_PROPERTIES,
        **bounds_kept(partition[:1] if partition else ()),
    }
    # Like a topic's table, it gets a location of its own, never that of a table that was dropped.
    location = None
    if LOCATIONS not in catalog.properties:
        location = f"{catalog.properties[TABLES]}{name[0]}/v1/{uuid.uuid4()}"
    with suppress(TableAlreadyExistsError):  # another run was faster
        return catalog.create_table(
            name, schema, location=location, partition_spec=spec, properties=properties
        )
    return catalog.load_table(name)


def _overwrite(
    spark: SparkSession,
    table: Table,
    derivation: Derivation,
    window: Window,
    computed: DataFrame,
    properties: dict[str, str],
) -> None:
    """:param computed: the rows of the window"""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    time, target = derivation.target_time, spark_name(derivation.target)
    # Other columns are of an earlier version of the function.
    names = [field.name for field in table.schema().fields]
    earlier = set(names) - set(computed.columns)
    columns = spark.table(target).schema if earlier else StructType()
    frame = computed.select(
        *(
            F.lit(None).cast(columns[name].dataType).alias(name)
            if name in earlier
            else F.col(quote(name))
            for name in names
        )
    )
    head = table.current_snapshot()
    assert head is not None  # noqa: S101  see ensure_table
    writer = serializable(frame.writeTo(target), head.snapshot_id, properties)
    writer.overwrite(window.condition(time, time_type(table, time)))


def serializable(
    writer: DataFrameWriterV2, validated_from: int, properties: Mapping[str, str]
) -> DataFrameWriterV2:
    """Return a writer whose commit is refused if others wrote the same rows since a snapshot.

    :param properties: added to the summary of its snapshot
    """
    options = {
        "isolation-level": "serializable",
        "validate-from-snapshot-id": str(validated_from),
        **{f"snapshot-property.{key}": value for key, value in properties.items()},
    }
    for key, value in options.items():
        writer = writer.option(key, value)
    return writer


def _rows(source: Source, frame: DataFrame, table: Table, window: Window | None) -> DataFrame:
    """Return the rows of a source that a call reads.

    :param frame: all rows
    """
    if source.time is None or source.whole or window is None:
        return frame
    return frame.filter(window.condition(source.time, time_type(table, source.time)))


def rows_at_head(spark: SparkSession, table: Table) -> DataFrame:
    """Return the rows of the snapshot that was loaded, with the newest columns of the table.

    A read of a snapshot has its own columns; those that were added since are null.
    """
    name, head = name_in_spark(table), table.current_snapshot()
    if head is None:
        return spark.read.table(name).limit(0)
    frame = spark.read.option("versionAsOf", str(head.snapshot_id)).table(name)
    if head.schema_id == table.metadata.current_schema_id:
        return frame
    return frame.to(spark.read.table(name).schema)


def time_type(table: Table, column: str) -> DataType:
    """Return the type in Spark of a column of a table, without a request to Spark."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyspark.sql.pandas.types import from_arrow_type

    kind = schema_to_pyarrow(table.schema().find_type(column))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def _misplaced(derivation: Derivation, partition: str, time: str) -> TopicbergError:
    """Return the error of a row that no run would find.

    :param partition: the window of the rows of the sources that it follows from
    :param time: of the row, in UTC
    """
    source, column = Window.parse(partition), derivation.target_time
    allowed = derivation.placed(source)
    start, end = (f"{at:%Y-%m-%d %H:%M}" if at else "" for at in (allowed.start, allowed.end))
    expected = f"from {start} to before {end}" if start else f"before {end}"
    of_source = f"before {source.end:%Y-%m-%d %H:%M}"
    if source.start:
        of_source = f"{source.start:%Y-%m-%d %H:%M} to {source.end:%Y-%m-%d %H:%M}"
    if time == "null":
        return TopicbergError(
            f"table {derivation.name}: for the rows {of_source} of its sources, its function "
            f"returns a row without a {column}; expected is a time {expected}",
            hint=f"leave out rows without a {column} in the function, or use another time for them",
        )
    return TopicbergError(
        f"table {derivation.name}: for the rows {of_source} of its sources, its function returns a "
        f"row with the {column} {time}; expected is a time {expected} (UTC)",
        hint=f"return the event time of the sources in {column}, "
        + _declaration(derivation, source, time),
    )


def _declaration(derivation: Derivation, source: Window, time: str) -> str:
    """Return what would allow a row, as text."""
    try:
        at = datetime.fromisoformat(time).replace(tzinfo=UTC)
    except ValueError:  # Python's years are those of four digits
        return "and leave out rows with such a time"
    hour = timedelta(hours=1)
    if at >= derivation.placed(source).end:
        if source.start is None and source.end == derivation.first:
            return "or set an earlier `derived_partitions.start` in the spec of the topic"
        start = source.start or source.end - timedelta(hours=derivation.hours)
        back = ceil((at - start) / hour)
        return (
            "or declare in `@derived_table` how much later it may be: "
            f"`lookback=timedelta(hours={back})`, or more"
        )
    ahead = ceil((source.end - at) / hour)
    return (
        "or declare in `@derived_table` how much earlier it may be: "
        f"`lookahead=timedelta(hours={ahead})`, or more, or `lookahead=FOREVER`, which reads the "
        "sources as a whole"
    )


def spark_name(table: TableName) -> str:
    """Return the name in Spark SQL of a table that topicberg writes."""
    return f"{CATALOG}.{quote(*table)}"


def name_in_spark(table: Table) -> str:
    """Return the name in Spark SQL of any table, also of one in the topics' own catalog."""
    return f"{attached_catalog(table)}.{quote(*table.name())}"
