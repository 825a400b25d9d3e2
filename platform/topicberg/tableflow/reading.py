"""The records of a batch as a DataFrame, read by Spark's Kafka source or, if it fails, by a client.

Spark's source is fast, but it cannot represent every timestamp: it multiplies milliseconds by 1,000
(``long overflow``), and changes times before the Gregorian calendar. One such record fails a whole
batch. The client reads everything that is in Kafka, about ten times slower.

Both return Kafka's columns as Spark names them (``timestamp`` is null for a record without one) and
two more: :data:`TIMESTAMP_MS` and :data:`UNREADABLE`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from topicberg.endpoints import Endpoints
from topicberg.kafka import consumer
from topicberg.spark import F
from topicberg.tableflow.offsets import Batch
from topicberg.tableflow.sizing import SMALL_BYTES

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession

    from topicberg.topics import TopicSpec

TIMESTAMP_MS = "__topicberg_timestamp_ms"
"""The timestamp as it is in Kafka."""
UNREADABLE = "__topicberg_unreadable"
"""Why the record itself, whatever its key and value are, cannot become a row; or null."""
NO_TIMESTAMP = -1
"""Kafka's number for a record that has no timestamp, such as one of an old message format."""
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999, which every query engine supports."""
OUT_OF_SPARKS_RANGE = "topicberg: a timestamp that Spark's Kafka source may have changed"

# Before 1900, local times of the JVM's zone differ from UTC by odd seconds, which Spark corrects.
_SPARK_FIRST = datetime.datetime(1900, 1, 2, tzinfo=datetime.UTC)
_SPARK_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)

# The Kafka client's defaults fetch 500 records at a time, which limits the throughput of the
# ingest, and wait half a second for more at the end of every partition, which delays small batches.
MAX_POLL_RECORDS = 20_000
FEW_RECORDS, FEW_POLL_RECORDS, UNKNOWN_POLL_RECORDS = 1_000, 50, 500
"""Records that the consumer holds at once: fewer if they are large, if the batch is small, and if
their size is not known. A batch in Kafka may be ten thousand times as large when decompressed."""
FEW_BYTES = 512 * 1024
"""The most bytes of a batch of few records that the client reads. Spark would keep what is larger
than its ``spark.sql.session.localRelationCacheThreshold`` as long as the session lives."""
_OPTIONS = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.receive.buffer.bytes": str(1024 * 1024),
    "failOnDataLoss": "true",
    "includeHeaders": "true",
}

_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        (TIMESTAMP_MS, pa.int64()),
        (UNREADABLE, pa.string()),
    ]
)


def read_by_spark(
    spark: SparkSession, endpoints: Endpoints, spec: TopicSpec, batch: Batch, size: float | None
) -> DataFrame:
    """Return the batch; its job fails at a record whose timestamp Spark cannot represent.

    :param size: average size of its records in bytes; None: not known
    """
    topic, ranges = spec.name, batch.ranges
    records = (
        spark.read.format("kafka")
        .options(**endpoints.kafka_spark_options())
        .option("assign", json.dumps({topic: list(ranges)}))
        .option("startingOffsets", json.dumps({topic: {str(p): s for p, (s, _) in ranges.items()}}))
        .option("endingOffsets", json.dumps({topic: {str(p): e for p, (_, e) in ranges.items()}}))
        .options(**_OPTIONS)
        .option("kafka.max.poll.records", str(_poll_records(batch.records, size)))
        .load()
    )
    time = F.col("timestamp")
    is_safe = time.between(F.lit(_SPARK_FIRST), F.lit(_SPARK_LAST))
    none = F.timestamp_millis(F.lit(NO_TIMESTAMP))
    return records.withColumns(
        {
            "timestamp": F.when(time != none, time),
            TIMESTAMP_MS: F.unix_millis(time),
            UNREADABLE: F.when(~is_safe, F.raise_error(OUT_OF_SPARKS_RANGE).cast("string")),
        }
    )


def _poll_records(records: int, size: float | None) -> int:
    if size is None:
        return FEW_POLL_RECORDS if records <= FEW_RECORDS else UNKNOWN_POLL_RECORDS
    return max(1, min(MAX_POLL_RECORDS, int(SMALL_BYTES / max(size, 1))))


def read_few(
    spark: SparkSession, endpoints: Endpoints, spec: TopicSpec, batch: Batch
) -> DataFrame | None:
    """Return a batch of few records, read by the client; None: it is for Spark to read.

    Spark's source opens two connections for each batch, of its driver and of its task, which cost
    more than to read, decode and write a few records.

    :raises DamagedRecordsError: the client cannot read a record
    :raises UnreachableError: Kafka does not answer
    """
    found: list[Message] = []
    size = 0
    for message in consumer.messages(endpoints, spec.name, batch.ranges, is_committed=True):
        found.append(message)
        size += len(message.value() or b"") + len(message.key() or b"")
        if size > FEW_BYTES:
            return None
    records = _table([raw_record(message, spec) for message in found])
    return _frame(spark, records) if records.nbytes <= FEW_BYTES else None  # headers count too


def read_by_client(
    spark: SparkSession, endpoints: Endpoints, spec: TopicSpec, batch: Batch
) -> tuple[DataFrame, Batch]:
    """Return the first part of the batch, up to some megabytes; and the batch that it is.

    :raises DamagedRecordsError: the client cannot read its first record either
    :raises UnreachableError: Kafka does not answer
    """
    found: list[Message] = []
    size, is_whole = 0, True
    try:
        for message in consumer.messages(endpoints, spec.name, batch.ranges, is_committed=True):
            found.append(message)
            size += len(message.value() or b"") + len(message.key() or b"") + 100
            if size > SMALL_BYTES:
                is_whole = False
                break
    except consumer.DamagedRecordsError:
        if not found:
            raise
        is_whole = False
    if not is_whole:
        reached = {p: start for p, (start, _) in batch.ranges.items()}
        reached |= {m.partition() or 0: (m.offset() or 0) + 1 for m in found}
        batch = batch.until(reached)
    return _frame(spark, _table([raw_record(message, spec) for message in found])), batch


def raw_record(message: Message, spec: TopicSpec) -> dict[str, Any]:
    """Return one record with the columns that both readers return."""
    kind, milliseconds = message.timestamp()
    reason = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    if milliseconds != NO_TIMESTAMP and not FIRST_MS <= milliseconds <= LAST_MS:
        column = spec.metadata_column("timestamp")
        reason = (
            f"field {column} (timestamptz): value {milliseconds} is not between the years 1 and "
            "9999, in milliseconds since 1970"
        )
    try:
        headers = message.headers()  # type: ignore[assignment]
    except (SystemError, UnicodeError):
        reason = reason or f"field {spec.metadata_column('headers')} (map): a name is not UTF-8"
    usable = reason is None and milliseconds != NO_TIMESTAMP
    return {
        "key": message.key(),
        "value": message.value(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": milliseconds * 1000 if usable else None,
        "timestampType": kind - 1,  # the client starts at "not available" = 0, Spark at -1
        "headers": [{"key": k, "value": v} for k, v in headers] if headers else None,
        TIMESTAMP_MS: milliseconds,
        UNREADABLE: reason,
    }


def without_value(spark: SparkSession) -> DataFrame:
    """Return a record without value, which no topic contains: a test of whether Spark works."""
    columns = dict.fromkeys(_SCHEMA.names)
    record = {**columns, "key": b"", "partition": 0, "offset": 0, "timestampType": 0}
    return _frame(spark, _table([record]))


def _frame(spark: SparkSession, records: pa.Table) -> DataFrame:
    """Return records for Spark, also if there are none: a batch may hold only the markers of
    transactions, or records of aborted ones.
    """
    # Spark infers no columns from an empty table.
    return spark.createDataFrame(records) if records.num_rows else without_value(spark).limit(0)


def _table(records: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(records, schema=_SCHEMA)
