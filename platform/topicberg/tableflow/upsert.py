"""Upsert by Spark: the newest record of each key replaces the table's row of that key.

A batch becomes two snapshots on a staging branch, published together: position deletes for the
rows of every key in the batch, then the newest record of each key that is not a tombstone. They are
position deletes because Snowflake silently misreads equality deletes; the rows are looked up in
:mod:`topicberg.tableflow.keys`, so that a batch costs what it changes, not what the table holds.

Source: Confluent's "Write Modes with Tableflow": key and partition are the primary key.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from topicberg.endpoints import CATALOG
from topicberg.iceberg.position_deletes import FileRows, stage_deletes
from topicberg.iceberg.summaries import STAGING_PREFIX
from topicberg.spark import F, Window, quote
from topicberg.tableflow.rows import ROW
from topicberg.topics.spec import PARTITION, RAW_KEY

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

FILE_RECORDS = 250_000
"""Large files: in every file of the table, all later batches look up their keys."""


def sql_name(table: Table) -> str:
    """Return the table's name in Spark's SQL."""
    return f"{CATALOG}.{quote(*table.name())}"


def newest(frame: DataFrame, spec: TopicSpec) -> DataFrame:
    """Return the record with the highest offset of each key; ``value`` is null where it deletes."""
    raw_key = F.col(f"{ROW}.{quote(spec.metadata_column(RAW_KEY))}")
    of_key = Window.partitionBy("partition", raw_key).orderBy(F.desc("offset"))
    return frame.withColumn("__topicberg_age", F.row_number().over(of_key)).filter(
        "__topicberg_age = 1"
    )


def key_columns(spec: TopicSpec) -> tuple[str, str]:
    """Return the columns of the primary key: the raw key and Kafka's partition."""
    return spec.metadata_column(RAW_KEY), spec.metadata_column(PARTITION)


def replace(
    spark: SparkSession,
    table: Table,
    replaced: Sequence[FileRows],
    rows: DataFrame,
    properties: Mapping[str, str],
) -> tuple[str, int]:
    """Write, to a branch of its own, a snapshot without some rows and one with new rows.

    :param replaced: rows of the head of ``main``
    :returns: the branch, and the snapshot on which the batch's rows must lie: that of its deletes
    :raises CommitConflictError: another commit came in between
    """
    head = table.current_snapshot()
    assert head is not None  # noqa: S101  an empty table has no row to replace
    branch, base = f"{STAGING_PREFIX}{uuid.uuid4().hex}", head.snapshot_id
    try:
        if replaced:
            base = stage_deletes(table, head, replaced, branch)
        else:
            table.manage_snapshots().create_branch(head.snapshot_id, branch).commit()
        spark.conf.set("spark.wap.branch", branch)
        append(rows, table, properties)
    except BaseException:
        _drop(table, branch)
        raise
    finally:
        spark.conf.unset("spark.wap.branch")
    return branch, base


def _drop(table: Table, branch: str) -> None:
    try:
        table.refresh().manage_snapshots().remove_branch(branch).commit()
    except Exception as error:  # maintenance removes the branch
        logger.debug("branch %s cannot be removed now: %s", branch, error)


def append(frame: DataFrame, table: Table, properties: Mapping[str, str]) -> None:
    """Append to an Iceberg table, with properties for the snapshot's summary."""
    writer = frame.writeTo(sql_name(table)).option("check-nullability", "false")
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
