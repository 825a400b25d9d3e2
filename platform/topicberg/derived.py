"""A derived table: for a window of event time, exactly what its function makes of the source.

Writing a window replaces it, so writing it twice changes nothing, and two writers at once leave
what one of them alone would have left: Iceberg refuses the second, which then computes again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError

from topicberg.endpoints import CATALOG
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.snapshots import added_rows
from topicberg.spark import quote
from topicberg.tableflow.commit import ancestry, summary

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

SOURCE_SNAPSHOT = "topicberg.source-snapshot-id"
SOURCE_TABLE = "topicberg.source-table"
WINDOW = "topicberg.window"
WRITE_ID = "topicberg.write-id"
ATTEMPTS = 5
_CONFLICTS = ("ValidationException", "CommitFailedException")
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

Transform = Callable[["DataFrame"], "DataFrame"]
"""The user's function: rows of the source in, rows of the derived table out."""


@dataclass(frozen=True)
class Window:
    """Event times from ``start`` up to, not including, ``end``; no ``start``: everything before."""

    start: datetime | None
    end: datetime

    def condition(self, column: str) -> Column:
        from pyspark.sql import functions as F

        time = F.col(quote(column))
        before_end = time < F.lit(self.end)
        return before_end if self.start is None else (time >= F.lit(self.start)) & before_end

    def __str__(self) -> str:
        return f"{self.start.isoformat() if self.start else ''}/{self.end.isoformat()}"


@dataclass(frozen=True)
class Written:
    """A window as it was written: rows in it, and the source's snapshot it was computed from.

    None: the source has no snapshot yet, and nothing was written.
    """

    rows: int
    rows_by_hour: Mapping[datetime, int]
    snapshot_id: int | None
    source_snapshot_id: int | None


def write_window(
    spark: SparkSession,
    catalog: Catalog,
    source: tuple[str, str],
    target: tuple[str, str],
    transform: Transform,
    window: Window,
    source_time: str,
    target_time: str,
) -> Written:
    """Compute a window from the head of the source and replace it in the target.

    :param source_time: event-time column of the source, by which the window is read
    :param target_time: the same column in the target, by which the window is replaced
    :raises TopicbergError: the function lost the time column
    :raises CommitConflictError: other writers kept changing the same window
    """
    for attempt in range(ATTEMPTS):
        head = catalog.load_table(source).current_snapshot()
        rows = _read(spark, source, head).filter(window.condition(source_time))
        frame = transform(rows)
        if target_time not in frame.columns:
            raise TopicbergError(
                f"table {'.'.join(target)}: its function returns no column {target_time}",
                hint=f"it returns {', '.join(frame.columns)}; name the event-time column",
            )
        table = _ensure(catalog, target, frame, target_time)
        if head is None:
            return Written(0, {}, None, None)
        properties = {
            SOURCE_TABLE: ".".join(source),
            SOURCE_SNAPSHOT: str(head.snapshot_id),
            WINDOW: str(window),
            WRITE_ID: uuid.uuid4().hex,
        }
        try:
            _overwrite(frame, table, window.condition(target_time), properties)
        except Exception as error:
            if not any(conflict in str(error) for conflict in _CONFLICTS):
                raise
            logger.info("table %s: conflict, attempt %d", ".".join(target), attempt + 1)
            continue
        written = next(
            snapshot
            for snapshot in ancestry(table.refresh())
            if summary(snapshot).get(WRITE_ID) == properties[WRITE_ID]
        )
        added = int(summary(written).get("added-records", 0))
        hours = added_rows(table, written, target_time)
        return Written(added, hours, written.snapshot_id, head.snapshot_id)
    raise CommitConflictError(
        f"table {'.'.join(target)}: {ATTEMPTS} attempts met another writer of {window}",
        hint="materialize the partitions again when the other run is done",
    )


def _read(spark: SparkSession, source: tuple[str, str], head: Snapshot | None) -> DataFrame:
    reader = spark.read
    if head is not None:
        reader = reader.option("versionAsOf", str(head.snapshot_id))
    return reader.table(f"{CATALOG}.{quote(*source)}")


def _ensure(catalog: Catalog, target: tuple[str, str], frame: DataFrame, time: str) -> Table:
    """The target, created from the columns of the frame if it does not exist."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        return catalog.load_table(target)
    except NoSuchTableError:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(target[0])
        writer = frame.limit(0).writeTo(f"{CATALOG}.{quote(*target)}").using("iceberg")
        # As the topics' tables: a place of its own, never that of a table which was dropped.
        place = f"{catalog.properties['warehouse']}{target[0]}/v1/{uuid.uuid4()}"
        for key, value in {**_PROPERTIES, "location": place}.items():
            writer = writer.tableProperty(key, value)
        try:
            writer.partitionedBy(F.partitioning.hours(F.col(quote(time)))).create()
        except AnalysisException as error:
            if "ALREADY_EXISTS" not in str(error):  # another run was faster
                raise
        return catalog.load_table(target)


def _overwrite(
    frame: DataFrame, table: Table, condition: Column, properties: dict[str, str]
) -> None:
    writer = frame.writeTo(f"{CATALOG}.{quote(*table.name())}")
    options = {f"snapshot-property.{key}": value for key, value in properties.items()}
    options["isolation-level"] = "serializable"
    if head := table.current_snapshot():
        options["validate-from-snapshot-id"] = str(head.snapshot_id)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.overwrite(condition)
