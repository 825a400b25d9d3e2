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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from topicberg import kafka
from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import CommitConflictError, TableflowError, TopicbergError
from topicberg.settings import Settings
from topicberg.spark import check_spark, new_session, quote
from topicberg.tableflow import commit, failures, upsert
from topicberg.tableflow.deadletters import DeadLetters
from topicberg.tableflow.keys import KeyIndex, key_folder
from topicberg.tableflow.layout import Layout, read_layout, table_schema
from topicberg.tableflow.offsets import Batch, Offsets, dump_offsets, parse_offsets, plan_batch
from topicberg.tableflow.rows import PROBLEM, ROW, decoded
from topicberg.tableflow.subjects import RegisteredSchema, SubjectReader
from topicberg.tableflow.table import ensure_table, start_again

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.observation import Observation

    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

MAX_RECORDS: dict[str, int] = {"append": 5_000_000, "upsert": 1_000_000}
"""Records of a batch at most, by write mode: those of an upsert are sorted by their keys."""
GROWTH = 1.1
"""How much larger the next batch may be after one that Spark did not survive as a whole."""
SMALL_BATCH = 100_000
"""Up to so many records one task, and so one file, is faster than one for every partition."""
CONFLICT_ATTEMPTS = 5
MAX_FOREIGN_SCHEMAS = 100
"""Schema ids that are asked for after one batch; broken records may name any."""

FIRST_OFFSETS = "topicberg.first-offsets"
"""Table property: where the topic's records begin for this table."""

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
    rows_skipped: int = 0
    """Records of the table's whole life that were left out."""
    bytes: int = 0
    """Of the files that the step added."""
    data_files: int = 0
    """Of the table, after the step."""


@dataclass(frozen=True)
class Staged:
    """A batch that is written, and not yet part of the table."""

    wap_id: str | None = None
    branch: str | None = None
    base: int | None = None
    """On a branch: the snapshot below it."""
    skipped: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    """Table properties that change with it."""

    def head(self, table: Table) -> Snapshot | None:
        if self.branch is not None:
            head = table.snapshot_by_name(self.branch)
            # Spark makes a branch anew that is gone (maintenance removes those that lie about), on
            # ``main`` and so without the batch's deletes.
            return head if head and head.parent_snapshot_id == self.base else None
        return commit.staged_as(table, self.wap_id) if self.wap_id else None


class UnknownSchemaError(TableflowError):
    """Records name schema ids that their subject does not have."""

    def __init__(self, message: str, schema_ids: frozenset[int]) -> None:
        super().__init__(message)
        self.schema_ids = schema_ids


class Ingestor:
    """Keeps one topic's table up to date; has a Spark session of its own; not thread-safe."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
        self.spec = spec
        self.endpoints = endpoints
        self.config = config
        self._catalog = endpoints.catalog(config)
        self._subjects = SubjectReader(endpoints.schema_registry_client())
        self._fitted: tuple[int | None, int | None] | None = None  # see Layout.fitted
        # Schemas of other subjects that records name; None: the registry does not have it either.
        self._foreign: dict[int, RegisteredSchema | None] = {}
        self._spark: SparkSession | None = None
        self._index: KeyIndex | None = None
        self._dead_letters: DeadLetters | None = None
        if spec.tableflow.error_handling.mode == "LOG":
            self._dead_letters = DeadLetters(spec, endpoints, config)
        self.max_records = MAX_RECORDS[spec.write_mode]
        self._survived = self._fitting = self.max_records

    def close(self) -> None:
        """Forget the Spark session and the table; the next step looks again."""
        session, self._spark, self._fitted = self._spark, None, None
        if session is not None:
            try:
                check_spark(self.endpoints.spark_connect)  # its client would try for a minute
                session.stop()
            except Exception as error:  # the server may be gone, and then so is the session
                logger.debug("topic %s: closing the Spark session: %s", self.spec.name, error)

    def table(self) -> Table:
        """The topic's table, created or evolved to the latest schemas."""
        with failures.explained(f"topic {self.spec.name}"):
            return self._table(read_layout(self.spec, self._subjects))

    def step(self) -> Commit:
        """Commit the next batch, if there is one.

        :raises TableflowError: the topic cannot go on; nothing was committed
        :raises CommitConflictError: others kept committing to the table
        :raises TopicbergError: a service does not answer, refuses or is full
        """
        for _ in range(CONFLICT_ATTEMPTS):
            try:
                with failures.explained(f"topic {self.spec.name}"):
                    return self._step()
            except CommitConflictError as conflict:
                logger.info("%s; planning the batch again", conflict.message)
                time.sleep(random.uniform(0, 1))  # noqa: S311  lets the other engine finish
            except UnknownSchemaError as unknown:
                if not self._look_up(unknown.schema_ids):
                    raise
        raise CommitConflictError(
            f"topic {self.spec.name}: {CONFLICT_ATTEMPTS} batches in a row met another commit",
            hint="is there a second engine for this topic?",
        )

    def _look_up(self, schema_ids: frozenset[int]) -> bool:
        """Ask the registry for schemas of other subjects; whether it had one that was not known."""
        new = {number: self._subjects.by_id(number) for number in schema_ids - set(self._foreign)}
        self._foreign |= new
        return any(schema is not None for schema in new.values())

    def _step(self) -> Commit:
        name = self.spec.name
        topic_id = kafka.topic_id(self.endpoints, name)
        layout = read_layout(self.spec, self._subjects)
        table = self._table(layout)
        head = table.current_snapshot()
        held = commit.committed(table, head)
        if held.topic_id is not None and held.topic_id != topic_id:
            raise TableflowError(
                f"topic {name} was deleted and created anew: the table holds topic id "
                f"{held.topic_id}, the broker has {topic_id}",
                hint=start_again(name),
            )
        latest = kafka.end_offsets(self.endpoints, name)
        beginning = kafka.beginning_offsets(self.endpoints, name)
        first = {**beginning, **self._first_offsets(table, held, beginning, latest)}
        batch = plan_batch(name, held.offsets or first, beginning, latest, self.max_records)
        backlog = batch.end != latest
        skipped = int(table.properties.get(commit.ROWS_SKIPPED, 0))
        if not batch.records:
            head_id = head.snapshot_id if head else None
            return Commit(
                records=0,
                snapshot_id=head_id,
                end_offsets=held.offsets or first,
                rows_skipped=skipped,
                data_files=_number(head, "total-data-files"),
            )
        properties = commit.snapshot_properties(name, topic_id, batch, int(time.time() * 1000))
        staged = self._stage(table, layout, batch, properties)
        changed = dict(staged.properties)
        if staged.skipped:
            changed[commit.ROWS_SKIPPED] = str(skipped + staged.skipped)
        fresh = self._catalog.load_table(table.name())
        snapshot = commit.publish(fresh, staged.head(fresh), held, changed, staged.branch)
        added = _number(snapshot, "added-files-size")
        self._adapt(batch, added)
        return Commit(
            records=batch.records,
            snapshot_id=snapshot.snapshot_id,
            end_offsets=batch.end,
            backlog=backlog,
            rows_skipped=skipped + staged.skipped,
            bytes=added,
            data_files=_number(snapshot, "total-data-files"),
        )

    def _first_offsets(
        self, table: Table, held: commit.Committed, beginning: Offsets, latest: Offsets
    ) -> Offsets:
        """Where the topic begins for this table: fixed in the table before the first commit.

        Else a table that starts at the latest offset would start later at every attempt.
        """
        position = self.spec.tableflow.start_position
        if position == "earliest" or held.offsets:
            return {}
        if (known := table.properties.get(FIRST_OFFSETS)) is not None:
            return {p: max(o, beginning.get(p, o)) for p, o in parse_offsets(known).items()}
        if position == "latest":
            first = latest
        else:
            found = kafka.offsets_at(self.endpoints, self.spec.name, position)
            first = {p: latest[p] if offset < 0 else offset for p, offset in found.items()}
        with table.transaction() as transaction:
            transaction.set_properties({FIRST_OFFSETS: dump_offsets(first)})
        return first

    def _table(self, layout: Layout) -> Table:
        if layout.fitted == self._fitted:
            return self._catalog.load_table(self.spec.table_identifier(self.config))
        schema = table_schema(self.spec, layout)
        table = ensure_table(self._catalog, self.spec, self.config, schema)
        self._fitted = layout.fitted
        return table

    def _adapt(self, batch: Batch, written: int) -> None:
        """Learn from the files how many records make ``commit_max_bytes``."""
        most = MAX_RECORDS[self.spec.write_mode]
        self._survived = min(int(self._survived * GROWTH), most)
        if written and batch.records > SMALL_BATCH:
            per_record = written / batch.records
            self._fitting = int(self.spec.tableflow.commit_max_bytes / per_record)
        self.max_records = max(SMALL_BATCH, min(self._survived, self._fitting))

    def _ask_for_less(self, batch: Batch) -> None:
        """Spark ended over this batch: it was killed, or the batch was too much for it."""
        self._survived = self.max_records = max(SMALL_BATCH, batch.records // 2)

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = new_session(self.endpoints.spark_connect)
            self._spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")  # repeated headers
            self._spark.conf.set("spark.sql.variant.allowDuplicateKeys", "true")  # of JSON objects
            self._spark.conf.set("spark.sql.caseSensitive", "true")
            # Kafka, too, through Spark's newer reader: the older one makes objects of every record.
            self._spark.conf.set("spark.sql.sources.useV1SourceList", "")
        return self._spark

    def _stage(
        self, table: Table, layout: Layout, batch: Batch, properties: dict[str, str]
    ) -> Staged:
        """Write the batch where no reader sees it.

        :raises UnknownSchemaError: records name schemas that have to be looked up first
        """
        from pyspark.errors import PySparkException

        spark = self._session()
        foreign = {number: schema for number, schema in self._foreign.items() if schema}
        try:
            records = _read_kafka(spark, self.endpoints, self.spec.name, batch)
            columns = spark.table(f"{CATALOG}.{quote(*table.name())}").schema
            frame = decoded(records, self.spec, layout, foreign, table, columns)
            if self.spec.tableflow.error_handling.mode == "SUSPEND":
                return self._write(spark, table, batch, _raising(frame), properties)
            frame, problems = _observed(frame)
            good = frame.filter(f"{PROBLEM} IS NULL")
            staged = self._write(spark, table, batch, good, properties)
            if not (skipped := problems.get["problems"]):
                return staged
            if self._look_up(frozenset(problems.get["schema_ids"])):
                raise CommitConflictError(f"topic {self.spec.name}: schemas of other subjects")
            logged: dict[str, str] = {}
            if self._dead_letters is not None:
                broken = frame.filter(f"{PROBLEM} IS NOT NULL")
                logged = self._dead_letters.write(table, properties[commit.TOPIC_ID], broken)
            return replace(staged, skipped=skipped, properties=logged)
        except PySparkException as error:
            self.close()
            if failures.spark_ended(error):
                self._ask_for_less(batch)
            raise self._explain(error) from error

    def _write(
        self,
        spark: SparkSession,
        table: Table,
        batch: Batch,
        frame: DataFrame,
        properties: dict[str, str],
    ) -> Staged:
        if batch.records <= SMALL_BATCH:
            frame = frame.coalesce(1)
        target = f"{CATALOG}.{quote(*table.name())}"
        if self.spec.write_mode == "append" or table.current_snapshot() is None:
            wap_id = uuid.uuid4().hex
            spark.conf.set("spark.wap.id", wap_id)
            if self.spec.write_mode == "upsert":
                frame = upsert.newest(frame, self.spec).filter("value IS NOT NULL")
            upsert.append(frame.select(f"{ROW}.*"), target, properties)
            return Staged(wap_id=wap_id)
        spark.conf.unset("spark.wap.id")
        index = self._key_index(table)
        branch, base = upsert.stage(
            spark, table, index, target, self.spec, frame, properties, batch.records
        )
        return Staged(branch=branch, base=base)

    def _key_index(self, table: Table) -> KeyIndex:
        if self._index is None or self._index.table_uuid != table.metadata.table_uuid:
            folder = key_folder(self.config, self.spec.name)
            self._index = KeyIndex(folder, table, upsert.key_columns(self.spec))
        return self._index

    def _explain(self, error: Exception) -> TopicbergError:
        """The reason of a failed job, in the user's terms."""
        name = self.spec.name
        match = _BAD_RECORD.search(str(error))
        if not match:
            return failures.explain(f"topic {name}", error)
        record = json.loads(match[1])
        place = f"topic {name}, partition {record['partition']}, offset {record['offset']}"
        message = f"{place}: {record['reason']}"
        if record["schema_id"] is not None:
            return UnknownSchemaError(
                f"{message}: {record['schema_id']}", frozenset([int(record["schema_id"])])
            )
        return TableflowError(
            message,
            hint="mend the producer, and "
            f"`topicberg tableflow enable {name} --error-handling LOG`: such records go to a "
            "dead-letter topic, and the topic goes on (SKIP: without them)",
        )


def _number(snapshot: Snapshot | None, key: str) -> int:
    return int(commit.summary(snapshot).get(key, 0)) if snapshot else 0


def _raising(frame: DataFrame) -> DataFrame:
    """The frame, whose job fails with :data:`BAD_RECORD` at the first problem.

    The row raises, and not a filter: Spark would push that below the decoding, and decode twice.
    """
    from pyspark.sql import functions as F

    fields = F.struct("partition", "offset", f"{PROBLEM}.reason", f"{PROBLEM}.schema_id")
    message = F.concat(F.lit(BAD_RECORD + " "), F.to_json(fields, {"ignoreNullFields": "false"}))
    sound = F.when(F.col(PROBLEM).isNull(), F.col(ROW)).otherwise(F.raise_error(message))
    return frame.withColumn(ROW, sound)


def _observed(frame: DataFrame) -> tuple[DataFrame, Observation]:
    """The frame, and what its job will have seen: ``problems``, ``schema_ids`` not known."""
    from pyspark.sql import functions as F
    from pyspark.sql.connect.observation import Observation

    seen = Observation(f"problems-{uuid.uuid4().hex}")
    ids = F.slice(F.collect_set(f"{PROBLEM}.schema_id"), 1, MAX_FOREIGN_SCHEMAS)
    counted = F.count(PROBLEM).alias("problems"), ids.alias("schema_ids")
    return frame.observe(seen, *counted), seen  # type: ignore[arg-type]


def _read_kafka(spark: SparkSession, endpoints: Endpoints, topic: str, batch: Batch) -> DataFrame:
    ranges = batch.ranges
    return (
        spark.read.format("kafka")
        .options(**endpoints.kafka_spark_options())
        .option("assign", json.dumps({topic: list(ranges)}))
        .option("startingOffsets", json.dumps({topic: {str(p): s for p, (s, _) in ranges.items()}}))
        .option("endingOffsets", json.dumps({topic: {str(p): e for p, (_, e) in ranges.items()}}))
        .options(**_KAFKA_READ)
        .load()
    )


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
                return replace(last, records=total)
    finally:
        ingestor.close()
