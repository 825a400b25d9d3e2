"""An upsert view of a topic's table: for every value of some columns, the newest record.

It is a table of its own, so that every engine reads it. Only records that are new since its last
refresh are read, and merged into it. If the topic's table lost rows other than by its retention, or
the keys or the order are others, the view is computed again and replaced. Records are ordered by
event time, then by partition and offset, so the result does not depend on the order of their
arrival.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topicberg.errors import CommitConflictError
from topicberg.errors.retry import conflicts, retry
from topicberg.iceberg import read_tags, snapshots, summaries, tables
from topicberg.spark import quote
from topicberg.transforms import derived, spark_tables, windows
from topicberg.transforms.derivation import TableName
from topicberg.transforms.target import ensure_table, optional
from topicberg.version import IN_SUMMARY

_PROPERTY = "spark.sql.iceberg.snapshot-property."
DEFINITION = "topicberg.upsert-view"  # Snapshot summary, JSON: keys and order of the view.


@dataclass(frozen=True)
class UpsertView:
    """``keys``: columns of which each value has one row; ``order``: defines the newest record."""

    source: TableName
    target: TableName
    keys: tuple[str, ...]
    order: tuple[str, ...]
    format_version: int = 2  # Iceberg's format version of a new table.

    @property
    def name(self) -> str:
        return ".".join(self.target)

    @property
    def definition(self) -> str:
        """What its rows depend on, as :data:`DEFINITION`."""
        return json.dumps({"keys": sorted(self.keys), "order": self.order})


def refresh(spark: SparkSession, catalog: Catalog, view: UpsertView) -> Table:
    """Update the view to its source's head; raise a CommitConflictError if others keep writing."""

    def attempt() -> Table:
        before, source = tables.find_table(catalog, view.target), catalog.load_table(view.source)
        columns, version = optional(source.schema().as_arrow()), view.format_version
        target = ensure_table(catalog, view.target, columns, None, version, before)
        head = source.current_snapshot()
        base, is_same = merged(target, view.source), defined_alike(target, view)
        if is_same and (head.snapshot_id if head else None) == base:
            return target
        note = IN_SUMMARY | {
            summaries.SOURCE_SNAPSHOTS: json.dumps(
                {".".join(view.source): head and head.snapshot_id}
            ),
            DEFINITION: view.definition,
        }
        new = None
        try:
            with conflicts(f"table {view.name}"), read_tags.reading([source], view.name):
                new = _new_records(spark, view, source, base, head) if is_same else None
                if new is None:
                    _replace(spark, view, source, target, note)
                else:
                    _merge(spark, view, new, note)
        except Exception as error:
            # Only the head is protected while it is read: earlier snapshots may have expired.
            may_expire = new is not None and not isinstance(error, CommitConflictError)
            if may_expire and snapshots.changes_since(source.refresh(), base, head).gap:
                raise CommitConflictError(f"table {view.name}: snapshots expired") from error
            raise
        return target.refresh()

    exhausted = CommitConflictError(
        f"table {view.name}: {derived.ATTEMPTS} attempts conflicted with another writer",
        hint="materialize it again when the other run has ended",
    )
    return retry(attempt, derived.ATTEMPTS, exhausted=exhausted)


def merged(target: Table, source: tuple[str, ...]) -> int | None:
    """Return the source's snapshot that the view holds; compaction does not record one."""
    _, read = next(windows.computations(target), (None, {}))
    return read.get(".".join(source))


def defined_alike(target: Table, view: UpsertView) -> bool:
    """Return whether a table was computed by the keys and the order of a view."""
    newest = next(windows.computations(target), None)
    return newest is None or summaries.summary(newest[0]).get(DEFINITION) == view.definition


def _new_records(
    spark: SparkSession, view: UpsertView, source: Table, base: int | None, head: Snapshot | None
) -> DataFrame | None:
    """Return the newest records of each key among those since ``base``; None: read all of them."""
    changes = snapshots.changes_since(source, base, head)
    is_known = not changes.gap and not changes.rolled_back
    if head is None or base is None or not is_known or not all(map(_appends_only, changes.new)):
        return None
    reader = spark.read.option("start-snapshot-id", str(base))
    reader = reader.option("end-snapshot-id", str(head.snapshot_id))
    return _newest(reader.table(spark_tables.name_in_spark(source)), view)


def _appends_only(snapshot: Snapshot) -> bool:
    """Return whether it appends rows or removes only expired ones, which stay in the view."""
    appends = summaries.operation_of(snapshot) in (Operation.APPEND, Operation.REPLACE)
    return appends or summaries.DATA_TTL_RUN in summaries.summary(snapshot)


def _newest(rows: DataFrame, view: UpsertView) -> DataFrame:
    order = F.struct(*(F.col(quote(column)) for column in view.order))
    record = F.struct(*(F.col(quote(column)) for column in rows.columns))
    keys = [F.col(quote(column)) for column in view.keys]
    return rows.groupBy(*keys).agg(F.max_by(record, order).alias("record")).select("record.*")


def _replace(
    spark: SparkSession, view: UpsertView, source: Table, target: Table, note: dict[str, str]
) -> None:
    rows = spark_tables.rows_at_head(spark, source)
    spark_tables.overwrite(_newest(rows, view), target, F.lit(True), note)


def _merge(spark: SparkSession, view: UpsertView, new: DataFrame, note: dict[str, str]) -> None:
    """Merge the records; of two with one key the newer one stays, so repeating it is harmless."""
    name = f"topicberg_new_records_{uuid.uuid4().hex}"
    new.createOrReplaceTempView(name)
    same = " AND ".join(f"old.{quote(key)} <=> new.{quote(key)}" for key in view.keys)

    def order(of: str) -> str:
        return "struct(" + ", ".join(f"{of}.{quote(column)}" for column in view.order) + ")"

    for key, value in note.items():
        spark.conf.set(f"{_PROPERTY}{key}", value)
    try:
        spark.sql(
            f"MERGE INTO {spark_tables.spark_name(view.target)} old USING {name} new ON {same} "
            f"WHEN MATCHED AND {order('new')} > {order('old')} THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        for key in note:
            spark.conf.unset(f"{_PROPERTY}{key}")
        spark.catalog.dropTempView(name)
