"""A derived table: for a window of event time, exactly what its function makes of its sources.

Writing a window replaces it, so writing it twice changes nothing, and of two writers at once the
one that read the newer sources wins: each remembers the head of the target *before* it looks at the
sources, and Iceberg refuses an overwrite of a window in which others wrote since that head. Who is
refused computes again.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)

from topicberg.endpoints import CATALOG
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.snapshots import BEFORE_EVERYTHING, Hours, added_rows
from topicberg.spark import quote
from topicberg.tableflow.commit import ancestry, summary

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

logger = logging.getLogger(__name__)

SOURCE_SNAPSHOTS = "topicberg.source-snapshots"
"""JSON: source table → id of the snapshot that was read, null for a table that had none."""
WINDOW = "topicberg.window"
WRITE_ID = "topicberg.write-id"
ATTEMPTS = 5
_CONFLICTS = ("ValidationException", "CommitFailedException")
_OUTSIDE = "topicberg-outside-of-the-window"
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

Transform = Callable[..., "DataFrame"]
"""The user's function: a DataFrame for each source in, rows of the derived table out."""

FOREVER = timedelta.max
"""A lookback over everything that was before."""


def reached(hours: Hours, lookback: timedelta, now: datetime) -> Hours:
    """A touched hour range with what looks back at it; ``now``: when it was touched, or later."""
    if lookback == FOREVER:
        return Hours(hours.start, max(hours.stop, int(now.timestamp()) // 3600 + 1))
    return Hours(hours.start, hours.stop + ceil(lookback / timedelta(hours=1)))


TableName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class Window:
    """Event times from ``start`` up to, not including, ``end``.

    No ``start``: everything before ``end``, and the rows that have no time at all.
    """

    start: datetime | None
    end: datetime

    def condition(self, column: str, kind: DataType) -> Column:
        """:param kind: the column's type; a literal of another one would hinder pruning"""
        from pyspark.sql import functions as F

        time = F.col(quote(column))
        before_end = time < F.lit(self.end).cast(kind)
        if self.start is None:
            return before_end | time.isNull()
        return (time >= F.lit(self.start).cast(kind)) & before_end

    def back(self, lookback: timedelta) -> Window:
        """The window with what lies before it."""
        if self.start is None or lookback == FOREVER:
            return Window(None, self.end)
        return Window(self.start - lookback, self.end)

    @property
    def hours(self) -> Hours:
        """Windows begin and end with an hour."""
        start = int(self.start.timestamp()) // 3600 if self.start else BEFORE_EVERYTHING
        return Hours(start, int(self.end.timestamp()) // 3600)

    def __str__(self) -> str:
        return f"{self.start.isoformat() if self.start else ''}/{self.end.isoformat()}"

    @staticmethod
    def parse(text: str) -> Window:
        """The other way round.

        :raises ValueError: it is no window
        """
        start, _, end = text.partition("/")
        return Window(datetime.fromisoformat(start) if start else None, datetime.fromisoformat(end))


@dataclass(frozen=True)
class Source:
    """A table that is read; without ``time`` as a whole, else the window of this event time."""

    table: TableName
    time: str | None


@dataclass(frozen=True)
class Derivation:
    """How a table comes from its sources."""

    sources: tuple[Source, ...]
    target: TableName
    transform: Transform
    target_time: str
    """The event time in the target, by which a window is replaced."""
    lookback: timedelta | None = None
    """How far before the window the sources are read; None: the function sees the window alone."""
    partitioned_by: str = "hour"
    """Iceberg transform of ``target_time``; windows begin and end with its partitions."""

    @property
    def name(self) -> str:
        return ".".join(self.target)


@dataclass(frozen=True)
class Written:
    """A window as it was written.

    ``rows_by_hour``: first hour of a partition (since 1970) → rows. ``sources``: table → snapshot
    that was read. There is no snapshot if no source has one yet; nothing was written then.
    """

    rows: int = 0
    rows_by_hour: Mapping[int, int] | None = None
    snapshot_id: int | None = None
    sources: Mapping[str, int | None] | None = None


def computations(table: Table) -> Iterator[tuple[Snapshot, dict[str, int | None]]]:
    """Snapshots that were computed, from the newest on: source → the snapshot that was read."""
    for snapshot in ancestry(table):
        if text := summary(snapshot).get(SOURCE_SNAPSHOTS):
            yield snapshot, json.loads(text)


def write_window(
    spark: SparkSession, catalog: Catalog, derivation: Derivation, window: Window
) -> Written:
    """Compute a window from the heads of the sources and replace it in the target.

    :raises TopicbergError: a source does not exist, or the function lost or changed the time column
    :raises CommitConflictError: other writers kept changing the same window
    """
    _heads(catalog, derivation)
    columns = _columns(spark, derivation)
    for attempt in range(ATTEMPTS):
        partition = derivation.target_time, derivation.partitioned_by
        table = ensure_table(catalog, derivation.target, columns, partition)
        heads = _heads(catalog, derivation)
        if not any(heads.values()):
            return Written()
        properties = {
            SOURCE_SNAPSHOTS: json.dumps(heads),
            WINDOW: str(window),
            WRITE_ID: uuid.uuid4().hex,
        }
        try:
            _overwrite(spark, table, derivation, window, heads, properties)
        except Exception as error:
            if _OUTSIDE in str(error):
                raise _time_changed(derivation) from error
            if not is_conflict(error):
                raise
            logger.info("table %s: conflict, attempt %d", derivation.name, attempt + 1)
            continue
        written = next(
            snapshot
            for snapshot in ancestry(table.refresh())
            if summary(snapshot).get(WRITE_ID) == properties[WRITE_ID]
        )
        return Written(
            rows=int(summary(written).get("added-records", 0)),
            rows_by_hour=added_rows(table, written, derivation.target_time),
            snapshot_id=written.snapshot_id,
            sources=heads,
        )
    raise CommitConflictError(
        f"table {derivation.name}: {ATTEMPTS} attempts met another writer of {window}",
        hint="materialize the partitions again when the other run is done",
    )


def read_window(
    spark: SparkSession, table: TableName, time: str, window: Window | None
) -> DataFrame:
    """The rows of a table in a window of its event time, as of now; without a window all rows."""
    frame = spark.read.table(spark_name(table))
    if window is None:
        return frame
    return frame.filter(window.condition(time, frame.schema[time].dataType))


def _heads(catalog: Catalog, derivation: Derivation) -> dict[str, int | None]:
    """Source table → id of its newest snapshot."""
    heads: dict[str, int | None] = {}
    for source in derivation.sources:
        name = ".".join(source.table)
        try:
            head = catalog.load_table(source.table).current_snapshot()
        except NoSuchTableError:
            raise TopicbergError(
                f"table {derivation.name}: its source {name} does not exist yet",
                hint="materialize the Iceberg asset of the source first",
            ) from None
        heads[name] = head.snapshot_id if head else None
    return heads


def _columns(spark: SparkSession, derivation: Derivation) -> pa.Schema:
    """The columns that the function returns, all of them optional."""
    frames = [spark.read.table(spark_name(source.table)) for source in derivation.sources]
    schema = derivation.transform(*frames).limit(0).toArrow().schema
    if derivation.target_time not in schema.names:
        raise TopicbergError(
            f"table {derivation.name}: its function returns no column {derivation.target_time}",
            hint=f"it returns {', '.join(schema.names)}; name the event-time column",
        )
    return optional(schema)


def optional(columns: pa.Schema) -> pa.Schema:
    """The columns, each of which may be null."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in columns])


def ensure_table(
    catalog: Catalog,
    name: TableName,
    columns: pa.Schema,
    partition: tuple[str, str] | None = None,
) -> Table:
    """A table with these columns, created or evolved; it always has a snapshot.

    A new one has an empty snapshot, which the first overwrite can be validated against.

    :param partition: column and Iceberg transform
    :raises TopicbergError: a column cannot have the type that it should have now
    """
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return _create(catalog, name, columns, partition)
    try:
        with table.update_schema() as update:
            update.union_by_name(columns)
    except (ValidationError, ValueError, TypeError) as error:
        raise TopicbergError(
            f"table {'.'.join(name)} cannot have the columns that are computed for it: {error}",
            hint="give the changed column another name, or drop the table and backfill it",
        ) from error
    return table


def _create(
    catalog: Catalog,
    name: TableName,
    columns: pa.Schema,
    partition: tuple[str, str] | None,
) -> Table:
    from pyiceberg.transforms import parse_transform

    from topicberg.catalog import TABLES

    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(name[0])
    # As the topics' tables: a place of its own, never that of a table which was dropped.
    place = f"{catalog.properties[TABLES]}{name[0]}/v1/{uuid.uuid4()}"
    with (
        suppress(TableAlreadyExistsError),  # another run was faster
        catalog.create_table_transaction(
            name, schema=columns, location=place, properties=_PROPERTIES
        ) as creation,
    ):
        if partition:
            column, transform = partition
            with creation.update_spec() as spec:
                spec.add_field(column, parse_transform(transform), f"{column}_{transform}")
        creation.append(columns.empty_table())
    return catalog.load_table(name)


def is_conflict(error: Exception) -> bool:
    """Whether Spark says that another commit came first; it names the cause in its text alone."""
    return any(conflict in str(error) for conflict in _CONFLICTS)


def _overwrite(
    spark: SparkSession,
    table: Table,
    derivation: Derivation,
    window: Window,
    heads: Mapping[str, int | None],
    properties: dict[str, str],
) -> None:
    from pyspark.sql import functions as F

    read = window.back(derivation.lookback) if derivation.lookback else window
    frame = derivation.transform(
        *(
            _rows(spark, source, heads[".".join(source.table)], read)
            for source in derivation.sources
        )
    )
    columns = spark.table(spark_name(derivation.target)).schema
    time = derivation.target_time
    inside = window.condition(time, columns[time].dataType)
    if derivation.lookback:
        frame = frame.filter(inside)
    else:
        moved = F.raise_error(F.lit(_OUTSIDE))
        frame = frame.withColumn(time, F.when(inside, F.col(quote(time))).otherwise(moved))
    present = set(frame.columns)
    frame = frame.select(
        *(
            F.col(quote(column.name))
            if column.name in present  # the others are of an earlier version of the function
            else F.lit(None).cast(column.dataType).alias(column.name)
            for column in columns
        )
    )
    head = table.current_snapshot()
    assert head is not None  # noqa: S101  see ensure_table
    options = {
        "isolation-level": "serializable",
        "validate-from-snapshot-id": str(head.snapshot_id),
        **{f"snapshot-property.{key}": value for key, value in properties.items()},
    }
    writer = frame.writeTo(spark_name(derivation.target))
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.overwrite(inside)


def _rows(spark: SparkSession, source: Source, head: int | None, window: Window) -> DataFrame:
    """What a window shows of a source, as of one snapshot."""
    if head is None:
        return spark.read.table(spark_name(source.table)).limit(0)
    frame = spark.read.option("versionAsOf", str(head)).table(spark_name(source.table))
    if source.time is None:
        return frame
    return frame.filter(window.condition(source.time, frame.schema[source.time].dataType))


def _time_changed(derivation: Derivation) -> TopicbergError:
    return TopicbergError(
        f"table {derivation.name}: its function returns rows outside of the window it was given",
        hint=f"{derivation.target_time} must carry the event time of the source as it is",
    )


def spark_name(table: TableName) -> str:
    """The table in Spark SQL."""
    return f"{CATALOG}.{quote(*table)}"
