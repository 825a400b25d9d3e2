"""Upsert: the newest record of each key replaces the row that the table has of it.

A batch becomes two snapshots on a staging branch, published together: position deletes for the
rows of every key in the batch, then the newest record of each key that is no tombstone. Position
deletes, since Snowflake reads equality deletes wrong in silence; and two simple statements rather
than one MERGE, whose outer join would shuffle the whole table for every batch.

Source: Confluent's "Write Modes with Tableflow": key and partition are the primary key.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from topicberg.spark import quote
from topicberg.tableflow.commit import STAGING_PREFIX
from topicberg.tableflow.layout import PARTITION, RAW_KEY
from topicberg.tableflow.rows import ROW

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

_BATCH_KEYS = "topicberg_batch_keys"
_HASH = "__topicberg_hash"
# So many keys, of 256 bytes at most, every executor can hold; by itself Spark does not know how few
# they are and sorts the whole table's keys.
BROADCAST_RECORDS = 300_000
# Every file of the table is opened once more by every batch to come.
FILE_RECORDS = 250_000


def newest(frame: DataFrame, spec: TopicSpec) -> DataFrame:
    """The record with the highest offset of each key; ``value`` is null where it deletes."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    raw_key = F.col(f"{ROW}.{quote(spec.metadata_column(RAW_KEY))}")
    of_key = Window.partitionBy("partition", raw_key).orderBy(F.desc("offset"))
    return frame.withColumn("__topicberg_age", F.row_number().over(of_key)).filter(
        "__topicberg_age = 1"
    )


def stage(
    spark: SparkSession,
    table: Table,
    target: str,
    spec: TopicSpec,
    frame: DataFrame,
    properties: Mapping[str, str],
    records: int,
) -> str:
    """Write a batch to a branch of its own.

    :param target: the table in Spark's SQL
    :param frame: Kafka's columns and the rows, good ones alone
    :param records: how many records of Kafka the batch has
    :returns: the branch
    """
    from pyspark.sql import functions as F

    head = table.current_snapshot()
    assert head is not None  # noqa: S101  an empty table has no row to replace
    branch = f"{STAGING_PREFIX}{uuid.uuid4().hex}"
    table.manage_snapshots().create_branch(head.snapshot_id, branch).commit()
    # Read and decoded once for both statements.
    batch = newest(frame, spec).select(ROW, "value").persist()
    keys = [spec.metadata_column(name) for name in (RAW_KEY, PARTITION)]
    try:
        spark.conf.set("spark.wap.branch", branch)
        of_batch = batch.selectExpr(
            f"{_hash(ROW, keys)} AS {_HASH}", *(f"{ROW}.{quote(key)}" for key in keys)
        )
        if records <= BROADCAST_RECORDS:
            of_batch = F.broadcast(of_batch)
        of_batch.createOrReplaceTempView(_BATCH_KEYS)
        # The whole table's keys are looked up by one number each, in less than half the time of
        # two columns; the bounds, which are no equality to join by, then compare them in full.
        same = " AND ".join(
            [f"{_hash('t', keys)} = b.{_HASH}"]
            + [f"t.{quote(key)} {bound} b.{quote(key)}" for key in keys for bound in ("<=", ">=")]
        )
        in_batch = f"EXISTS (SELECT 1 FROM {_BATCH_KEYS} b WHERE {same})"  # noqa: S608  quoted
        spark.sql(f"DELETE FROM {target} t WHERE {in_batch}")  # noqa: S608  quoted
        rows = batch.filter("value IS NOT NULL").select(f"{ROW}.*")
        append(rows.coalesce(max(1, records // FILE_RECORDS)), target, properties)
    except BaseException:
        _drop(table, branch)
        raise
    finally:
        spark.conf.unset("spark.wap.branch")
        batch.unpersist()
    return branch


def _hash(source: str, keys: Sequence[str]) -> str:
    return f"xxhash64({', '.join(f'{source}.{quote(key)}' for key in keys)})"


def _drop(table: Table, branch: str) -> None:
    try:
        table.refresh().manage_snapshots().remove_branch(branch).commit()
    except Exception as error:  # maintenance removes what stays behind
        logger.debug("branch %s stays behind: %s", branch, error)


def append(frame: DataFrame, target: str, properties: Mapping[str, str]) -> None:
    """Append to an Iceberg table, with properties for the snapshot's summary."""
    writer = frame.writeTo(target).option("check-nullability", "false")
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
