"""One topic into its table: plan a batch, let Spark stage it, publish it.

Every step starts from what the table says it holds, so that a step which failed or was killed at
any point is simply done again.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topicberg import kafka
from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import CommitConflictError, TableflowError, TopicbergError
from topicberg.settings import Settings
from topicberg.spark import new_session, quote
from topicberg.tableflow import avro, commit
from topicberg.tableflow.offsets import Batch, Offsets, plan_batch
from topicberg.tableflow.subjects import Subject, SubjectReader, wire_prefix
from topicberg.tableflow.table import KEY, ensure_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

MAX_RECORDS = 5_000_000
"""Records of a batch until the size of the topic's records is known."""
SMALL_BATCH = 100_000
"""Up to so many records one task, and so one file, is faster than one for every partition."""
CONFLICT_ATTEMPTS = 5

BAD_RECORD = "topicberg-bad-record"
_BAD_RECORD = re.compile(BAD_RECORD + r" (\{.*?\})")

# The Kafka client's defaults fetch 500 records at a time, which bounds the whole ingest, and wait
# half a second for more at the end of every partition, which bounds a small batch.
_KAFKA_READ = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.receive.buffer.bytes": str(1024 * 1024),
    "failOnDataLoss": "true",
    "includeHeaders": "true",
}


@dataclass(frozen=True)
class Commit:
    """What one step did. ``records``: offsets committed, 0 when there was nothing to do."""

    records: int
    snapshot_id: int | None
    end_offsets: Offsets
    backlog: bool = False


class UnknownSchemaError(TableflowError):
    """A record names a schema id that its subject does not have."""

    def __init__(self, message: str, schema_id: int) -> None:
        super().__init__(message)
        self.schema_id = schema_id


class Ingestor:
    """Keeps one topic's table up to date; has a Spark session of its own; not thread-safe."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
        """
        :raises TableflowError: the spec asks for what this engine does not do
        """
        _refuse_unsupported(spec)
        self.spec = spec
        self.endpoints = endpoints
        self.config = config
        self._catalog = endpoints.catalog(config)
        self._subjects = SubjectReader(endpoints.schema_registry_client())
        self._fitted: str | None = None  # the schema that the table was last made to fit
        self._foreign: dict[int, str] = {}  # schemas of other subjects that records name
        self._spark: SparkSession | None = None
        self.max_records = MAX_RECORDS

    def close(self) -> None:
        """Forget the Spark session and the table; the next step looks again."""
        session, self._spark, self._fitted = self._spark, None, None
        if session is not None:
            try:
                session.stop()
            except Exception as error:  # the server may be gone, and then so is the session
                logger.debug("topic %s: closing the Spark session: %s", self.spec.name, error)

    def table(self) -> Table:
        """The topic's table, created or evolved to the subject's latest schema."""
        return self._table(self._subjects.read(self.spec.value_subject))

    def step(self) -> Commit:
        """Commit the next batch, if there is one.

        :raises TableflowError: the topic cannot go on; nothing was committed
        :raises CommitConflictError: others kept committing to the table
        """
        for _ in range(CONFLICT_ATTEMPTS):
            try:
                return self._step()
            except CommitConflictError as conflict:
                logger.info("%s; planning the batch again", conflict.message)
                time.sleep(random.uniform(0, 1))  # noqa: S311  lets the other engine finish
            except UnknownSchemaError as unknown:
                schema = self._subjects.by_id(unknown.schema_id)
                if schema is None or unknown.schema_id in self._foreign:
                    raise
                self._foreign[unknown.schema_id] = schema
        raise CommitConflictError(
            f"topic {self.spec.name}: {CONFLICT_ATTEMPTS} batches in a row met another commit",
            hint="is there a second engine for this topic?",
        )

    def _step(self) -> Commit:
        name = self.spec.name
        topic_id = kafka.topic_id(self.endpoints, name)
        subject = self._subjects.read(self.spec.value_subject)
        table = self._table(subject)
        head = table.current_snapshot()
        held = commit.committed(table, head)
        if held.topic_id is not None and held.topic_id != topic_id:
            raise TableflowError(
                f"topic {name} was deleted and created anew: the table holds topic id "
                f"{held.topic_id}, the broker has {topic_id}",
                hint="disable Tableflow for the topic and drop its table to start again",
            )
        latest = kafka.end_offsets(self.endpoints, name)
        beginning = kafka.beginning_offsets(self.endpoints, name)
        batch = plan_batch(name, held.offsets, beginning, latest, self.max_records)
        backlog = batch.end != latest
        if not batch.records:
            return Commit(0, head.snapshot_id if head else None, held.offsets)
        wap_id = uuid.uuid4().hex
        properties = commit.snapshot_properties(name, topic_id, batch, int(time.time() * 1000))
        self._stage(table, subject, batch, wap_id, properties)
        snapshot = commit.publish(table.refresh(), wap_id, held)
        self._adapt(batch, commit.summary(snapshot))
        return Commit(batch.records, snapshot.snapshot_id, batch.end, backlog)

    def _table(self, subject: Subject) -> Table:
        if subject.latest == self._fitted:
            return self._catalog.load_table(self.spec.table_identifier(self.config))
        table = ensure_table(self._catalog, self.spec, self.config, subject.latest)
        self._fitted = subject.latest
        return table

    def _adapt(self, batch: Batch, summary: Mapping[str, str]) -> None:
        """Learn from the files how many records make ``commit_max_bytes``."""
        written = int(summary.get("added-files-size", 0))
        if written and batch.records > SMALL_BATCH:
            per_record = written / batch.records
            limit = int(self.spec.tableflow.commit_max_bytes / per_record)
            self.max_records = max(SMALL_BATCH, min(limit, MAX_RECORDS))

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = new_session(self.endpoints.spark_connect)
            self._spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")  # repeated headers
        return self._spark

    def _stage(
        self, table: Table, subject: Subject, batch: Batch, wap_id: str, properties: dict[str, str]
    ) -> None:
        from pyspark.errors import PySparkException

        spark = self._session()
        try:
            spark.conf.set("spark.wap.id", wap_id)
            frame = self._decoded(spark, table, subject, batch)
            if batch.records <= SMALL_BATCH:
                frame = frame.coalesce(1)
            writer = frame.writeTo(f"{CATALOG}.{quote(*table.name())}")
            for key, value in properties.items():
                writer = writer.option(f"snapshot-property.{key}", value)
            writer.append()
        except PySparkException as error:
            self.close()
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> TopicbergError:
        """The reason of a failed job, in the user's terms."""
        match = _BAD_RECORD.search(str(error))
        if not match:
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = lines[0] if lines else type(error).__name__
            return TopicbergError(f"topic {self.spec.name}: Spark failed: {reason}")
        record = json.loads(match[1])
        place = (
            f"topic {self.spec.name}, partition {record['partition']}, offset {record['offset']}"
        )
        if record["schema_id"] is not None:
            return UnknownSchemaError(
                f"{place}: subject {self.spec.value_subject} has no schema {record['schema_id']}",
                int(record["schema_id"]),
            )
        return TableflowError(
            f"{place}: {record['reason']}",
            hint="mend the producer; tableflow.error_handling.mode: SKIP leaves such records out",
        )

    def _decoded(
        self, spark: SparkSession, table: Table, subject: Subject, batch: Batch
    ) -> DataFrame:
        """The batch as rows of the table, in the order of its columns."""
        from pyspark.sql import functions as F

        records = _read_kafka(spark, self.endpoints, self.spec.name, batch)
        value, problem = _decode_value({**self._foreign, **subject.schemas}, subject.latest)
        records = records.withColumn("record", value)
        if self.spec.tableflow.error_handling.mode == "SKIP":
            records = records.filter(problem.isNull())
            offset = F.col("offset")
        else:
            offset = F.when(problem.isNotNull(), F.raise_error(problem)).otherwise(F.col("offset"))
        known: dict[str, Column] = {
            KEY: F.col("key"),
            **{
                self.spec.metadata_column(name): column
                for name, column in {
                    "topic": F.lit(self.spec.name),
                    "partition": F.col("partition"),
                    "headers": F.map_from_entries("headers"),
                    "offset": offset,
                    "timestamp": F.col("timestamp"),
                    "timestamp-type": F.when(
                        F.col("timestampType") == 1, "LOG_APPEND_TIME"
                    ).otherwise("CREATE_TIME"),
                }.items()
            },
        }
        for field in json.loads(subject.latest)["fields"]:
            known[field["name"]] = F.col("record").getField(field["name"])
        columns = spark.table(f"{CATALOG}.{quote(*table.name())}").schema
        return records.select(
            *(
                known.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name)
                for column in columns
            )
        )


def _refuse_unsupported(spec: TopicSpec) -> None:
    """Better no table than another one than the spec asks for."""
    asked = {
        f"schema.format: {spec.value_schema.format}": spec.value_schema.format != "avro",
        f"write_mode: {spec.write_mode}": spec.write_mode != "append",
        "tableflow.error_handling.mode: LOG": spec.tableflow.error_handling.mode == "LOG",
        "tableflow.data_retention_ms": spec.tableflow.data_retention_ms is not None,
    }
    refused = [field for field, unsupported in asked.items() if unsupported]
    if refused:
        raise TableflowError(
            f"topic {spec.name}: the Tableflow engine does not support {', '.join(refused)}",
            hint="it appends Avro records; set `tableflow.enabled: false` for this topic",
        )


def _read_kafka(spark: SparkSession, endpoints: Endpoints, topic: str, batch: Batch) -> DataFrame:
    ranges = batch.ranges
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", endpoints.kafka_bootstrap)
        .option("assign", json.dumps({topic: list(ranges)}))
        .option("startingOffsets", json.dumps({topic: {str(p): s for p, (s, _) in ranges.items()}}))
        .option("endingOffsets", json.dumps({topic: {str(p): e for p, (_, e) in ranges.items()}}))
        .options(**_KAFKA_READ)
        .load()
    )


def _decode_value(schemas: dict[int, str], latest: str) -> tuple[Column, Column]:
    """The decoded record, and what is wrong with it: null, or a message for :data:`BAD_RECORD`.

    A record without a value (a tombstone) is a row whose fields are null.
    """
    from pyspark.sql import functions as F

    raw = F.col("value")
    prefix, payload = F.substring(raw, 1, 5), F.substring(raw, 6, 2**31 - 1)
    reader = avro.reader_schema(latest)
    known = F.lit(False)
    value: Column | None = None
    for schema_id, writer in schemas.items():
        is_written_so = prefix == F.lit(wire_prefix(schema_id))
        known = known | is_written_so
        decoded = avro.decode(payload, writer, reader)
        value = (
            F.when(is_written_so, decoded) if value is None else value.when(is_written_so, decoded)
        )
    assert value is not None  # noqa: S101  a subject has at least one version

    def message(reason: str, schema_id: Column) -> Column:
        fields = F.struct(
            "partition", "offset", F.lit(reason).alias("reason"), schema_id.alias("schema_id")
        )
        return F.concat(F.lit(BAD_RECORD + " "), F.to_json(fields, {"ignoreNullFields": "false"}))

    none = F.lit(None).cast("long")
    named = F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long")
    problem = (
        F.when(raw.isNull(), None)
        .when(
            (F.length(raw) < 5) | (F.substring(raw, 1, 1) != F.lit(b"\x00")),
            message("the value is not in Confluent's wire format (magic byte 0, schema id)", none),
        )
        .when(~known, message("its schema id is not in the subject", named))
        .when(
            F.col("record").getField(avro.DECODED).isNull(),
            message("the value does not fit its schema", none),
        )
    )
    return value, problem


def run_once(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> Commit:
    """Commit everything that the topic holds now.

    :returns: the last commit, with the records of all of them
    """
    target = kafka.end_offsets(endpoints, spec.name)
    ingestor = Ingestor(spec, endpoints, config)
    total = 0
    try:
        while True:
            last = ingestor.step()
            total += last.records
            if all(last.end_offsets.get(p, 0) >= offset for p, offset in target.items()):
                return Commit(total, last.snapshot_id, last.end_offsets)
    finally:
        ingestor.close()
