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
from topicberg.iceberg.read_tags import reading
from topicberg.iceberg.snapshots import changes_since
from topicberg.iceberg.summaries import DATA_TTL_RUN, SOURCE_SNAPSHOTS, operation_of, summary
from topicberg.iceberg.tables import find_table
from topicberg.spark import quote
from topicberg.transforms.derivation import TableName
from topicberg.transforms.derived import ATTEMPTS
from topicberg.transforms.spark_tables import name_in_spark, rows_at_head, serializable, spark_name
from topicberg.transforms.target import ensure_table, optional
from topicberg.transforms.windows import computations
from topicberg.version import IN_SUMMARY

_PROPERTY = "spark.sql.iceberg.snapshot-property."
_NEW = "topicberg_new_records"
DEFINITION = "topicberg.upsert-view"
"""Snapshot summary, JSON: the keys and the order by which the view was computed."""


@dataclass(frozen=True)
class UpsertView:
    """``keys``: columns of which each value has one row; ``order``: defines the newest record."""

    source: TableName
    target: TableName
    keys: tuple[str, ...]
    order: tuple[str, ...]
    format_version: int = 2
    """Iceberg's format version of a new table."""

    @property
    def name(self) -> str:
        return ".".join(self.target)

    @property
    def definition(self) -> str:
        """What its rows depend on, as :data:`DEFINITION`."""
        return json.dumps({"keys": sorted(self.keys), "order": self.order})


def refresh(spark: SparkSession, catalog: Catalog, view: UpsertView) -> Table:
    """Update the view to the newest snapshot of its source.

    :raises CommitConflictError: other writers kept changing it
    """

    def attempt() -> Table:
        before = find_table(catalog, view.target)
        source = catalog.load_table(view.source)
        columns = optional(source.schema().as_arrow())
        version = view.format_version
        target = ensure_table(catalog, view.target, columns, None, version, before)
        head = source.current_snapshot()
        base = merged(target, view.source)
        is_same = defined_alike(target, view)
        if is_same and (head.snapshot_id if head else None) == base:
            return target
        note = IN_SUMMARY | {
            SOURCE_SNAPSHOTS: json.dumps({".".join(view.source): head and head.snapshot_id}),
            DEFINITION: view.definition,
        }
        incremental = False
        try:
            with conflicts(f"table {view.name}"), reading([source], view.name):
                new = _new_records(spark, view, source, base, head) if is_same else None
                incremental = new is not None
                if new is None:
                    _replace(spark, view, source, target, note)
                else:
                    _merge(spark, view, new, note)
        except CommitConflictError:
            raise
        except Exception as error:
            # Only the head is protected while it is read: earlier snapshots may have expired.
            if incremental and changes_since(source.refresh(), base, head).gap:
                raise CommitConflictError(f"table {view.name}: snapshots expired") from error
            raise
        return target.refresh()

    exhausted = CommitConflictError(
        f"table {view.name}: {ATTEMPTS} attempts conflicted with another writer",
        hint="materialize it again when the other run has ended",
    )
    return retry(attempt, ATTEMPTS, exhausted=exhausted)


def merged(target: Table, source: tuple[str, ...]) -> int | None:
    """Return the source's snapshot that the view holds; compaction does not record one."""
    _, read = next(computations(target), (None, {}))
    return read.get(".".join(source))


def defined_alike(target: Table, view: UpsertView) -> bool:
    """Return whether a table was computed by the keys and the order of a view."""
    newest = next(computations(target), None)
    return newest is None or summary(newest[0]).get(DEFINITION) == view.definition


def _new_records(
    spark: SparkSession, view: UpsertView, source: Table, base: int | None, head: Snapshot | None
) -> DataFrame | None:
    """Return the newest records of each key among those since ``base``; None: read all of them."""
    changes = changes_since(source, base, head)
    if head is None or base is None or changes.gap or changes.rolled_back:
        return None
    if not all(_appends_only(snapshot) for snapshot in changes.new):
        return None
    rows = (
        spark.read.option("start-snapshot-id", str(base))
        .option("end-snapshot-id", str(head.snapshot_id))
        .table(name_in_spark(source))
    )
    return _newest(rows, view)


def _appends_only(snapshot: Snapshot) -> bool:
    """Return whether it appends rows or removes only expired ones, which stay in the view."""
    appends = operation_of(snapshot) in (Operation.APPEND, Operation.REPLACE)
    return appends or DATA_TTL_RUN in summary(snapshot)


def _newest(rows: DataFrame, view: UpsertView) -> DataFrame:
    order = F.struct(*(F.col(quote(column)) for column in view.order))
    record = F.struct(*(F.col(quote(column)) for column in rows.columns))
    keys = [F.col(quote(column)) for column in view.keys]
    found = rows.groupBy(*keys).agg(F.max_by(record, order).alias("record"))
    return found.select("record.*")


def _replace(
    spark: SparkSession, view: UpsertView, source: Table, target: Table, note: dict[str, str]
) -> None:
    before = target.current_snapshot()
    assert before is not None  # noqa: S101  see ensure_table
    rows = _newest(rows_at_head(spark, source), view)
    writer = serializable(rows.writeTo(spark_name(view.target)), before.snapshot_id, note)
    writer.overwrite(F.lit(True))


def _merge(spark: SparkSession, view: UpsertView, new: DataFrame, note: dict[str, str]) -> None:
    """Merge the records; of two with one key the newer one stays, so repeating it is harmless."""
    name = f"{_NEW}_{uuid.uuid4().hex}"
    new.createOrReplaceTempView(name)
    same = " AND ".join(f"old.{quote(key)} <=> new.{quote(key)}" for key in view.keys)

    def order(of: str) -> str:
        return "struct(" + ", ".join(f"{of}.{quote(column)}" for column in view.order) + ")"

    for key, value in note.items():
        spark.conf.set(f"{_PROPERTY}{key}", value)
    try:
        spark.sql(
            f"MERGE INTO {spark_name(view.target)} old USING {name} new ON {same} "
            f"WHEN MATCHED AND {order('new')} > {order('old')} THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        for key in note:
            spark.conf.unset(f"{_PROPERTY}{key}")
        spark.catalog.dropTempView(name)
