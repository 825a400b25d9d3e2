"""One topic into its table: plan a batch, let Spark stage it, publish it.

Every step starts from the offsets that the table holds, so a step that failed or was killed at any
point is run again. A batch that Spark cannot compute is divided until only the failing record
is left, see :mod:`topicberg.tableflow.isolation`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tenacity import wait_random

from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, TableflowError, TopicbergError, UnreachableError
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.formats.subjects import SubjectReader
from topicberg.iceberg import summaries
from topicberg.iceberg.position_deletes import FileRows
from topicberg.iceberg.versions import require_written
from topicberg.kafka.consumer import DamagedRecordsError, messages, record_bytes
from topicberg.kafka.offsets import Offsets, Place, dump_offsets, parse_offsets
from topicberg.retry import conflicts, retry_conflicts
from topicberg.settings import Settings
from topicberg.spark import F, check_spark, quote
from topicberg.tableflow import commit, failures, skips, tombstones, upsert
from topicberg.tableflow.changes import CHANGE, decode_changes, key_names
from topicberg.tableflow.columnar import Columnar, Written, delete, ingest, ingest_by_spark
from topicberg.tableflow.current_rows import Target
from topicberg.tableflow.deadletters import DeadLetters, logged_records
from topicberg.tableflow.fold_state import Order, State
from topicberg.tableflow.folding import Folding
from topicberg.tableflow.foreign import MAX_LOOKUPS, ForeignSchemas
from topicberg.tableflow.framing import framing
from topicberg.tableflow.isolation import Isolation
from topicberg.tableflow.keys import KeyIndex, key_folder
from topicberg.tableflow.layout import KEY, VALUE, Layout, read_layout, table_schema
from topicberg.tableflow.offsets import Batch, plan_batch
from topicberg.tableflow.old_values import BatchCutError, Progress
from topicberg.tableflow.reading import (
    FEW_RECORDS,
    OUT_OF_SPARKS_RANGE,
    read_by_client,
    read_by_spark,
    read_few,
    without_value,
)
from topicberg.tableflow.rows import PROBLEM, ROW, Decoder, Decoding, Types, decode
from topicberg.tableflow.sessions import Sessions
from topicberg.tableflow.sizing import SMALL_RECORDS, BatchSize, small
from topicberg.tableflow.table import ensure_table, start_again
from topicberg.tableflow.turns import Turn, Turns
from topicberg.topics import requests
from topicberg.wording import count

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.types import StructType

    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

MAX_RECORDS: dict[str, int] = {"append": 5_000_000, "upsert": 3_000_000}
"""The most records of a batch, by write mode: the keys of an upsert are held in memory."""
SAMPLED_RECORDS = 1_000
"""The size of larger batches is sampled before they are read."""
DEATHS = 3
"""How often in a row a topic exhausts Spark's memory by itself before each further attempt waits
as long as a suspended topic does: other topics need Spark meanwhile."""
CAREFUL_BATCHES, MAX_CAREFUL_BATCHES = 8, 1_024
"""How many small batches the client reads after Spark ran out of memory; doubled each time."""
PARTS = 16
"""Parts of a batch that exhausted Spark's memory: more than for other failures, to fail less."""
CONFLICT_ATTEMPTS = 5

BAD_RECORD = "topicberg-bad-record"
_BAD_RECORD = re.compile(BAD_RECORD + r" (\{.*?\})")

# Failures of Spark's Kafka source at records that only the client can read: no record is to blame.
_ONLY_BY_CLIENT = re.compile(rf"{OUT_OF_SPARKS_RANGE}|ArithmeticException: long overflow")


@dataclass(frozen=True)
class Commit:
    """What one step did. ``records``: offsets committed, 0 if there was nothing to do."""

    records: int
    snapshot_id: int | None
    end_offsets: Offsets
    backlog: bool = False
    rows_skipped: int = 0
    """Records that were left out since the table was created."""
    bytes: int = 0
    """Size of the files that the step added."""
    data_files: int = 0
    """Data files of the table after the step."""
    skip_requests: list[skips.Skip] = field(default_factory=list)
    """All requests to skip a record since the table was created."""
    missed_deletes: tombstones.Missed | None = None


@dataclass(frozen=True)
class Plan:
    """The next batch, and what it was planned on."""

    spec: TopicSpec
    table: Table
    head: Snapshot | None
    layout: Layout
    batch: Batch
    size: float | None
    """Average bytes of its records in Kafka; None: not known."""
    topic_id: str
    latest: Offsets
    """Where the log ended."""
    now_ms: int
    learnt: str
    """See :class:`topicberg.tableflow.sizing.BatchSize`."""
    missed: tombstones.Watch

    @property
    def planned_on(self) -> int | None:
        """The id of the head of ``main`` whose offsets the batch starts from."""
        return self.head.snapshot_id if self.head else None

    @property
    def is_small(self) -> bool:
        return self.batch.records <= small(self.size)

    @property
    def backlog(self) -> bool:
        """Whether records are left for later batches."""
        return self.batch.end != self.latest

    @property
    def properties(self) -> dict[str, str]:
        """The summary of the batch's snapshot."""
        given = self.spec.name, self.topic_id, self.batch, self.now_ms, self.learnt
        return commit.snapshot_properties(*given)


@dataclass(frozen=True)
class Staged:
    """A batch that is written, and not yet part of the table."""

    wap_id: str | None = None
    branch: str | None = None
    base: int | None = None
    """On a branch: the snapshot that it starts from."""
    skipped: int = 0
    changed: Mapping[str, str] = field(default_factory=dict)
    """Table properties that change with the batch."""

    def head(self, table: Table) -> Snapshot | None:
        if self.branch is not None:
            head = table.snapshot_by_name(self.branch)
            # Spark recreates a branch that is missing (maintenance removes abandoned ones) from
            # ``main``, and so without the batch's deletes.
            return head if head and head.parent_snapshot_id == self.base else None
        return commit.staged_as(table, self.wap_id) if self.wap_id else None


_BY_SPARK = Written([], 0)
"""What is known of the files that Spark writes: their keys are computed when they are needed."""


class SchemasFoundError(Exception):
    """Records name schemas that were unknown and are now found: decode the batch again."""


class AbandonedError(TopicbergError):
    """The engine gave up the topic while a batch was running; it was not committed."""


class BatchFailedError(TopicbergError):
    """Spark cannot compute a batch, perhaps due to a record; the search for it has begun."""


_turns = Turns()


class Ingestor:
    """Keeps one topic's table up to date; not thread-safe."""

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        sessions: Sessions | None = None,
        registry: SchemaRegistryClient | None = None,
        abandoned: Event | None = None,
    ) -> None:
        """:param sessions: of Spark, which other topics use as well; None: sessions of its own
        :param registry: a client that other topics use as well; None: one of its own
        :param abandoned: set when a running step must not commit any more
        """
        self.spec = spec
        self.endpoints = endpoints
        self.config = config
        self._catalog = endpoints.catalog(config)
        registry = registry or endpoints.schema_registry_client()
        self._subjects = SubjectReader(registry)
        self._framing = framing(spec, endpoints, registry)
        self._sessions = sessions or Sessions(endpoints, config)
        self._fitted: tuple[int | None, int | None] | None = None  # see Layout.fitted
        self._columns: tuple[tuple[object, int], StructType] | None = None
        self._types: Types = {}
        self._foreign = ForeignSchemas(self._subjects)
        self._decoding: Decoding | None = None
        self._spark: SparkSession | None = None
        self._abandoned = abandoned or Event()
        self._tag = f"topicberg-{uuid.uuid4().hex}"
        """Of this topic's jobs in Spark."""
        self._index: KeyIndex | None = None
        self._keeping: Thread | None = None
        """Writes and shares key files after a batch."""
        self._dead_letters: DeadLetters | None = None
        if spec.tableflow.error_handling.mode == "LOG":
            self._dead_letters = DeadLetters(spec, endpoints, config)
        self._most = MAX_RECORDS[spec.write_mode]
        self._size = BatchSize.of(self._most, spec.tableflow.commit_max_bytes)
        self._knows_size = False
        self._deaths = 0
        self._is_suspect = False
        """Spark ended during the last attempt, perhaps due to another topic."""
        self._caution = CAREFUL_BATCHES
        self._careful = 0
        self._turn = Turn(is_exclusive=False)
        self._columnar = Columnar(spec, endpoints, is_used=config.engine_decoder == "columnar")
        self._isolation: Isolation | None = None
        self._is_damaged = False
        """Whether the client could not read the first record of the batch that Spark reads."""
        self._log_end: Offsets = {}
        self._passed: dict[int, Order] = {}
        self._ends: dict[int, int] = {}
        """Where the next batch has to end, by partition; see :class:`BatchCutError`."""
        self.current_offsets: Offsets = {}
        self.current_ms: int | None = None
        """When the topic was last seen to have no record after ``current_offsets``."""

    @property
    def max_records(self) -> int:
        """How many records suffice to start the next batch; a search for a record does not wait."""
        return self._size.limit if self._isolation is None else 1

    @property
    def is_isolating(self) -> bool:
        """Whether parts of a failed batch are read, to find a record that fails by itself."""
        return self._isolation is not None

    def close(self) -> None:
        """Discard the sessions that only this topic uses, and what is known of the table."""
        self._discard(others=True)
        self._await_keys()

    def forget(self) -> None:
        """Read everything about the table and its schemas again in the next step."""
        self._fitted, self._columns = None, None
        self._types.clear()

    def _discard(self, *, others: bool) -> None:
        """Discard the session of this step."""
        session, self._spark = self._spark, None
        self.forget()
        self._sessions.discard(session, others=others)

    def table(self) -> Table:
        """Return the topic's table, created or evolved to the latest schemas."""
        with failures.explained(f"topic {self.spec.name}"):
            return self._table(read_layout(self.spec, self._subjects))

    def step(self) -> Commit:
        """Commit the next batch, if there is one.

        :raises TableflowError: the topic is suspended; nothing was committed
        :raises CommitConflictError: others kept committing to the table
        :raises TopicbergError: a service does not answer, refuses or is full
        """
        self._foreign.begin_batch()
        exhausted = CommitConflictError(
            f"topic {self.spec.name}: {CONFLICT_ATTEMPTS} batches in a row met another commit",
            hint="check whether a second engine runs for this topic",
        )
        try:
            # The wait lets the other engine finish.
            return retry_conflicts(
                conflicts(f"topic {self.spec.name}")(self._attempt),
                CONFLICT_ATTEMPTS,
                wait=wait_random(0, 1),
                exhausted=exhausted,
            )
        except TopicbergError:
            raise  # the session is as good as before, or discarded already
        except BaseException:
            self._discard(others=False)
            raise
        finally:
            session, self._spark, self._decoding = self._spark, None, None
            if session is not None:
                session.clearTags()
                self._sessions.give_back(session)

    def _attempt(self) -> Commit:
        ends: dict[int, int] = {}  # together, so that each attempt is smaller than the one before
        self._passed = {}
        while True:
            try:
                with failures.explained(f"topic {self.spec.name}"):
                    return self._step()
            except SchemasFoundError as found:
                logger.info("topic %s: %s", self.spec.name, found)
            except BatchCutError as cut:
                ends |= {p: min(end, ends.get(p, end)) for p, end in cut.ends.items()}
                self._ends = dict(ends)
            except BatchFailedError as failed:
                logger.warning("%s; reading a smaller part of the batch", failed.message)

    def _step(self) -> Commit:
        name = self.spec.name
        self._check_abandoned()
        # First of all, so that the schemas read afterwards cover all of these records.
        log = kafka.topic_log(self.endpoints, name)
        topic_id, beginning, latest = log.topic_id, log.beginning, log.end
        self._log_end = latest
        if self._framing is not None:
            self._framing.learn_from(beginning, latest)
        layout = read_layout(self.spec, self._subjects)
        table = self._table(layout)
        head = table.current_snapshot()
        held = commit.committed(table, head)
        if held.topic_id is not None and held.topic_id != topic_id:
            raise TableflowError(
                f"topic {name} was deleted and recreated: the table holds topic id "
                f"{held.topic_id}, the broker has {topic_id}",
                hint=start_again(name),
            )
        now_ms = int(time.time() * 1000)
        first = {**beginning, **self._first_offsets(table, held, log)}
        start = {**beginning, **(held.offsets or first)}
        if not self._knows_size:
            learnt, most = held.batch_size, self.spec.tableflow.commit_max_bytes
            self._size, self._knows_size = BatchSize.of(self._most, most, learnt), True
        if self._isolation is not None:
            self._prove(table, layout, self._isolation)
        failing = self._failing(table, start)
        skip = {*skips.requested(table), *([failing.place] if failing else [])}
        batch, size = self._plan(held.offsets or first, beginning, latest, skip)
        seen_ms = self.current_ms if held.offsets == self.current_offsets else None
        missed = tombstones.Watch(self.spec, self.endpoints, table, held, now_ms, seen_ms)
        known = topic_id, latest, now_ms, self._size.dump(), missed
        plan = Plan(self.spec, table, head, layout, batch, size, *known)
        if not batch.records:
            self._is_suspect = False
            missed.nothing_new()
            done = self._result(plan, head, {})
            return replace(done, end_offsets=held.offsets or first, backlog=False, bytes=0)
        # Without Spark, no turn is needed.
        if plan.is_small and (written := self._written(plan)) is not None:
            return self._add(plan, written)
        with _turns.take(exclusive=self._is_suspect or self._is_searching) as self._turn:
            self._check_abandoned()
            if not plan.is_small and (written := self._written(plan)) is not None:
                return self._add(plan, written)
            with self._spark_errors(plan):
                records, batch = self._read(batch, size)
                plan = replace(plan, batch=batch)
            with self._spark_errors(plan):
                changed = missed.of(batch, records.count, caught_up=not plan.backlog)
                staged = self._stage(plan, records)
        self._check_abandoned()
        if self._dead_letters is not None and failing and failing.place in batch.skipped:
            lost = self._dead_letters.record(failing.place, failing.reason)
            self._dead_letters.write(table, topic_id, batch.start, [lost])
        changed |= staged.changed
        if left_out := staged.skipped + len(batch.skipped):
            changed[summaries.ROWS_SKIPPED] = str(_skipped(table.properties) + left_out)
        fresh = self._catalog.load_table(table.name())
        self._check_abandoned()
        snapshot = commit.publish(
            fresh,
            staged.head(fresh),
            plan.planned_on,
            changed,
            staged.branch,
            dropped=skips.committed(table, batch.end),
        )
        return self._committed(plan, snapshot, changed)

    def _committed(
        self,
        plan: Plan,
        snapshot: Snapshot,
        changed: Mapping[str, str],
        written: Written = _BY_SPARK,
    ) -> Commit:
        """Learn from a batch that was committed."""
        self._keep_keys(plan, written)
        done = self._result(plan, snapshot, changed)
        self._size = self._size.committed(plan.batch.records, plan.size, done.bytes)
        self._is_suspect, self._careful = False, max(0, self._careful - 1)
        if self._isolation is None:
            self._deaths = 0
        return done

    def _result(self, plan: Plan, head: Snapshot | None, changed: Mapping[str, str]) -> Commit:
        """:param changed: table properties that changed with the batch"""
        properties = {**plan.table.properties, **changed}
        return Commit(
            records=plan.batch.records,
            snapshot_id=head.snapshot_id if head else None,
            end_offsets=plan.batch.end,
            backlog=plan.backlog,
            rows_skipped=_skipped(properties),
            bytes=_number(head, "added-files-size"),
            data_files=_number(head, "total-data-files"),
            skip_requests=list(skips.requested(plan.table).values()),
            missed_deletes=tombstones.missed(properties),
        )

    def _written(self, plan: Plan) -> Written | None:
        """Write the data files of a batch by the columnar path; None: Spark's path reads it."""
        batch, table = plan.batch, plan.table
        if self._isolation is not None or self._reads_little or batch.skipped or not batch.ranges:
            return None
        if (program := self._columnar.plan(plan.layout, table)) is None:
            return None
        try:
            if plan.is_small:  # in this process, without Spark
                written = ingest(program, batch.ranges, self._check_abandoned)
            else:
                spark = self._session()
                written = ingest_by_spark(spark, program, table, batch.ranges, plan.size)
        except AbandonedError:
            raise
        except NotCoveredError as reason:
            self._columnar.failed(reason)
            return None
        except Exception as error:  # Spark's path reports it if it is not of this path only
            self._check_abandoned()
            self._discard(others=False)
            self._columnar.failed(error)
            return None
        self._columnar.succeeded()
        return written

    def _add(self, plan: Plan, written: Written) -> Commit:
        """Commit the data files of a batch."""
        table, batch = plan.table, plan.batch
        try:
            changed = plan.missed.of(batch, lambda: written.records, caught_up=not plan.backlog)
            replaced = self._replaced(table, written)
        except BaseException:
            delete(table.io, written.files)
            raise
        self._check_abandoned()
        dropped, summary = skips.committed(table, batch.end), plan.properties
        snapshot = commit.add_files(
            table, plan.planned_on, written.files, replaced, summary, changed, dropped
        )
        return self._committed(plan, snapshot, changed, written)

    def _replaced(self, table: Table, written: Written) -> list[FileRows]:
        """Return the rows that a batch replaces, of the table and of its own files."""
        if written.keys is None:
            return []
        keys, own = written.keys.newest()
        head = table.current_snapshot()
        found = self._key_index(table).rows_with(table, head, keys) if head else []
        return found + [
            FileRows(file, own[file.file_path]) for file in written.files if file.file_path in own
        ]

    def _keep_keys(self, plan: Plan, written: Written) -> None:
        """Keep the keys of new files while the next batch is read; after the last one, share them.

        Sharing takes as long as writing them, which records that wait do not have to wait for.
        """
        self._await_keys()
        table, keys = plan.table, written.keys
        index = self._index if keys is None else self._key_index(table)
        if index is None:
            return
        of_path = {one.file_path: one for one in written.files}

        def keep() -> None:
            try:
                for path, held in keys.of_files() if keys is not None else ():
                    index.hold(of_path[path], held)
                if not plan.backlog:
                    index.share(table)
            except Exception as error:  # they are computed when they are needed
                logger.warning("topic %s: key files are not written: %s", self.spec.name, error)

        self._keeping = Thread(target=keep, name="keys", daemon=True)
        self._keeping.start()

    def _await_keys(self) -> None:
        if self._keeping is not None:
            self._keeping.join()

    def _plan(
        self, held: Offsets, beginning: Offsets, latest: Offsets, skip: set[Place]
    ) -> tuple[Batch, float | None]:
        """Return the next batch, and the average size of its records in Kafka, if known."""
        name = self.spec.name
        cut, self._ends = self._ends, {}
        latest = {p: min(end, cut.get(p, end)) for p, end in latest.items()} if cut else latest
        if self._isolation is not None:
            start = {p: held.get(p, beginning[p]) for p in latest}
            ends = self._isolation.next_ends(
                start, SMALL_RECORDS, PARTS if self._is_searching else 2
            )
            if ends is not None:
                ends = {p: min(ends[p], latest[p]) for p in latest}
                return plan_batch(name, held, beginning, ends, sys.maxsize, skip), None
            self._isolation = None
        limit = min(self._size.limit, SMALL_RECORDS) if self._reads_little else self._size.limit
        batch = plan_batch(name, held, beginning, latest, limit, skip)
        if batch.records <= SAMPLED_RECORDS:
            return batch, None
        sizes = record_bytes(self.endpoints, name, batch.ranges)
        only_files = self.spec.changelog is None  # the keys of changes are read into this process
        fitting, size = self._size.fit(sizes, batch.records, is_compressed=only_files)
        return plan_batch(name, held, beginning, batch.end, fitting, skip), size

    @property
    def _is_searching(self) -> bool:
        """Whether the engine searches for a record that exhausts Spark's memory."""
        return self._isolation is not None and self._deaths > 0

    @property
    def _reads_little(self) -> bool:
        """Whether batches are of some megabytes, whatever the records are."""
        return self._is_suspect or self._careful > 0

    def _read(self, batch: Batch, size: float | None) -> tuple[DataFrame, Batch]:
        """Return the records of the batch, or of its first part, and the batch that was read."""
        spark, self._is_damaged = self._session(), False
        if self._isolation is None and batch.ranges and not self._reads_little:
            if batch.records <= FEW_RECORDS:
                try:
                    found = read_few(spark, self.endpoints, self.spec, batch)
                except DamagedRecordsError as error:
                    self._is_suspect = True  # Spark may need more memory than it has
                    raise BatchFailedError(error.message) from None
                if found is not None:
                    return found, batch
            return read_by_spark(spark, self.endpoints, self.spec, batch, size), batch
        try:
            records, batch = read_by_client(spark, self.endpoints, self.spec, batch)
        except DamagedRecordsError as error:
            logger.info("%s; reading it with Spark", error.message)
            self._is_damaged = True
            single = {**batch.start, error.partition: error.offset + 1}
            batch = batch.until({p: min(end, batch.end[p]) for p, end in single.items()})
            records = read_by_spark(spark, self.endpoints, self.spec, batch, size)
        return records, batch

    def _failing(self, table: Table, start: Offsets) -> skips.Skip | None:
        """Return the record that is known to fail by itself, unless the table is already past it.

        :raises TableflowError: the topic stops before such a record (SUSPEND)
        """
        known = skips.failing(table)
        if known is None or known.offset < start.get(known.partition, 0):
            return None
        request = requests.read_request(self.config, self.spec.name)
        if request is not None and request.resumed_at * 1000 > known.at_ms:
            return None  # it is tried again
        suspends = self.spec.tableflow.error_handling.mode == "SUSPEND"
        if suspends and known.place not in skips.requested(table):
            name, partition, offset = self.spec.name, known.partition, known.offset
            raise TableflowError(
                f"topic {name}, partition {partition}, offset {offset}: Spark fails at this "
                f"record, and works without it: {known.reason}",
                hint=f"run `topicberg tableflow skip {name} {partition} {offset}` to leave the "
                f"record out, or `topicberg tableflow resume {name}` to try it again",
            )
        return known

    def _prove(self, table: Table, layout: Layout, search: Isolation) -> None:
        """Check whether the services work without the failing part; if so, blame its record.

        :raises TopicbergError: they do not work, so no record is to blame
        """
        if search.unchecked:
            try:
                self._check_services(table, layout)
            except UnreachableError:
                raise  # Spark is restarting
            except Exception:
                self._isolation = None
                raise
            search.unchecked = False
        if (culprit := search.culprit) is not None:
            self._isolation = None
            skips.note_failing(table, culprit, search.reason)

    def _check_services(self, table: Table, layout: Layout) -> None:
        """Write a row as a batch does; it is staged, dropped and never published."""
        from pyspark.errors import PySparkException

        spark, wap_id = self._session(), uuid.uuid4().hex
        spark.conf.set("spark.wap.id", wap_id)
        try:
            columns = spark.table(upsert.sql_name(table)).schema
            frame = self._decoded(without_value(spark), layout, table, columns).frame
            upsert.append(frame.select(f"{ROW}.*"), table, {})
        except PySparkException as error:
            self._discard(others=failures.blame(error) == "memory")
            raise failures.explain(f"topic {self.spec.name}", error) from error
        staged = commit.staged_as(table.refresh(), wap_id)
        if staged is not None:
            table.maintenance.expire_snapshots().by_id(staged.snapshot_id).commit()

    def _first_offsets(self, table: Table, held: commit.Committed, log: kafka.TopicLog) -> Offsets:
        """Return the topic's start offsets, fixed in the table before the first commit.

        Otherwise a table that starts at the latest offset would start later at every attempt.
        """
        position = self.spec.tableflow.start_position
        if position == "earliest" or held.offsets:
            return {}
        known = table.properties.get(summaries.FIRST_OFFSETS)
        # Earlier versions of topicberg noted no id.
        known_id = table.properties.get(summaries.FIRST_TOPIC_ID, log.topic_id)
        if known is not None and known_id == log.topic_id:
            return {p: max(o, log.beginning.get(p, o)) for p, o in parse_offsets(known).items()}
        if position == "latest":
            # All records of a topic that was created again are later than the start.
            first = log.end if known is None else log.beginning
        else:
            found = kafka.offsets_at(self.endpoints, self.spec.name, position)
            first = {p: log.end[p] if offset < 0 else offset for p, offset in found.items()}
        note = {
            summaries.FIRST_OFFSETS: dump_offsets(first),
            summaries.FIRST_TOPIC_ID: log.topic_id,
        }
        with table.transaction() as transaction:
            transaction.set_properties(note)
        return first

    def _table(self, layout: Layout) -> Table:
        if layout.fitted == self._fitted:
            table = self._catalog.load_table(self.spec.table_identifier(self.config))
        else:
            schema = table_schema(self.spec, layout)
            table = ensure_table(self._catalog, self.spec, self.config, schema)
            self._fitted = layout.fitted
        if self.spec.write_mode == "upsert":  # position deletes are written by topicberg
            require_written(table)
        return table

    @contextmanager
    def _spark_errors(self, plan: Plan) -> Iterator[None]:
        """Adapt the size of the next batch to the failure of this one.

        :raises BatchFailedError: a part of the batch has to be read next
        :raises TopicbergError: what failed
        """
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            if self._abandoned.is_set():  # the job was interrupted
                self._discard(others=False)
            self._check_abandoned()
            reason = self._explain(error)
            is_record = isinstance(reason, TableflowError | SchemasFoundError)
            if not is_record:  # else the session is as good as before
                self._discard(others=failures.blame(error) == "memory")
            if isinstance(reason, TopicbergError) and not is_record:
                reason = self._learn(plan.batch, plan.size, error, reason)
            raise reason from error

    def _learn(
        self, batch: Batch, size: float | None, error: PySparkException, reason: TopicbergError
    ) -> TopicbergError:
        """Make the next batch smaller, or begin to search for the failing record."""
        blame = failures.blame(error)
        if blame == "space":
            self._size = self._size.out_of_space(batch.records, size)
        elif blame == "memory":
            self._size = self._size.out_of_memory(batch.records, size)
            self._is_suspect = True
            if not self._turn.is_exclusive:
                return reason  # another topic may be the reason
            self._deaths += 1
            self._careful = self._caution
            self._caution = min(2 * self._caution, MAX_CAREFUL_BATCHES)
        if blame not in ("memory", "batch"):
            return reason
        what = reason.message.removeprefix(f"topic {self.spec.name}: ")
        is_certain = blame == "memory" and self._is_damaged
        if self._isolation is not None:
            self._isolation.fail(batch.ranges, what, is_certain=is_certain)
        else:
            proven = _ONLY_BY_CLIENT.search(str(error)) is not None
            self._isolation = Isolation(batch.end, what, unchecked=not proven)
            if blame == "memory":
                self._isolation.fail(batch.ranges, what, is_certain=is_certain)
        if blame == "batch":
            return BatchFailedError(reason.message)
        if self._deaths < DEATHS:
            return reason
        places = ", ".join(f"{p}: {s} to {e - 1}" for p, (s, e) in batch.ranges.items())
        return TableflowError(
            f"topic {self.spec.name} exhausted Spark's memory {self._deaths} times in a row, the "
            f"last time with the records {places} (by partition): {what}",
            hint="wait: the engine searches for the record, with pauses for the other topics; or "
            "run `topicberg tableflow skip` to leave out a record that you know",
        )

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._sessions.take()
            self._spark.addTag(self._tag)
        return self._spark

    def interrupt(self) -> None:
        """End the jobs of the running step; may be called by another thread."""
        if (session := self._spark) is not None:
            Thread(target=self._interrupt, args=(session,), daemon=True).start()

    def _interrupt(self, session: SparkSession) -> None:
        with suppress(Exception):  # the jobs end by themselves
            check_spark(self.endpoints.spark_connect)  # Spark's client would retry for a minute
            session.interruptTag(self._tag)

    def _check_abandoned(self) -> None:
        """:raises AbandonedError: the topic belongs to another engine"""
        if self._abandoned.is_set():
            raise AbandonedError(
                f"topic {self.spec.name}: the running batch was abandoned, as another engine takes "
                "the topic"
            )

    def _stage(self, plan: Plan, records: DataFrame) -> Staged:
        """Write the batch as a staged snapshot, which no reader sees.

        :raises SchemasFoundError: records name schemas that were not known
        """
        columns = self._columns_of(self._session(), plan.table)
        self._decoding = decoding = self._decoded(records, plan.layout, plan.table, columns)
        frame = decoding.frame
        if self.spec.tableflow.error_handling.mode == "SUSPEND":
            return self._write(plan, _raising(frame))
        observed, observation = _observed(frame)
        is_folded = self.spec.changelog is not None and self.spec.write_mode == "upsert"
        # Folding has to know of which rows a change is left out.
        good = observed if is_folded else observed.filter(f"{PROBLEM} IS NULL")
        staged = self._write(plan, good)
        seen = _seen(frame, observation)
        if not (skipped := seen["problems"]):
            return staged
        if self._look_up(frame, seen["schema_ids"]):
            raise SchemasFoundError("records name, or have, schemas that were not known")
        self._check_abandoned()
        if self._dead_letters is not None:
            malformed = logged_records(decoding)
            self._dead_letters.write(plan.table, plan.topic_id, plan.batch.start, malformed)
        else:
            first = json.loads(seen["first"])
            place = first["partition"], first["offset"]
            logger.warning(
                "topic %s: skipped %d records; the first one, partition %d, offset %d: %s",
                *(self.spec.name, skipped, *place, self._reason(place, first)),
            )
        return replace(staged, skipped=staged.skipped + skipped)

    def _decoded(
        self, records: DataFrame, layout: Layout, table: Table, columns: StructType
    ) -> Decoding:
        """Decode a batch."""
        known = table.schema().fields, columns, self._types, self._framing
        batch = Decoder(records, self.spec, layout, self._foreign, *known)
        return decode(batch) if self.spec.changelog is None else decode_changes(batch)

    def _look_up(self, frame: DataFrame, schema_ids: Sequence[int]) -> bool:
        """Look up unknown schemas of a batch; return whether one was found.

        :param schema_ids: ids of the registry; below zero: schemas that are in the records
        """
        found = self._foreign.look_up(one for one in schema_ids if one >= 0)
        inside = [one for one in schema_ids if one < 0]
        if self._framing is None or not inside:
            return found
        number = F.col(f"{PROBLEM}.schema_id")
        of_each = frame.filter(number.isin(inside)).groupBy(number)
        places = of_each.agg(F.min(F.struct("partition", "offset")).alias("at")).collect()
        return self._framing.look_up(tuple(row["at"]) for row in places) or found

    def _columns_of(self, spark: SparkSession, table: Table) -> StructType:
        """Return the columns of the table as Spark has them."""
        key = (table.metadata.table_uuid, table.metadata.current_schema_id)
        if self._columns is None or self._columns[0] != key:
            self._types.clear()
            self._columns = key, spark.table(upsert.sql_name(table)).schema
        return self._columns[1]

    def _write(self, plan: Plan, frame: DataFrame) -> Staged:
        if plan.is_small:
            frame = frame.coalesce(1)
        if self.spec.changelog is not None:
            if self.spec.write_mode == "upsert":
                return self._fold(plan, frame)
            frame = frame.filter("value IS NOT NULL")  # a tombstone is not a change
        if self.spec.write_mode == "append":
            return self._staged(plan, frame.select(f"{ROW}.*"), None)
        frame = upsert.newest(frame, self.spec)
        if (head := plan.table.current_snapshot()) is None:
            rows = frame.filter("value IS NOT NULL").select(f"{ROW}.*")
            return self._staged(plan, rows, None)
        # Persist the batch: it is used for its keys and for its rows, but read and decoded once.
        batch = frame.select(ROW, "value").persist()
        try:
            names = (f"{ROW}.{quote(name)}" for name in upsert.key_columns(self.spec))
            keys = batch.select(*names).toArrow()
            replaced = self._key_index(plan.table).rows_of(plan.table, head, keys)
            rows = batch.filter("value IS NOT NULL").select(f"{ROW}.*")
            return self._staged(plan, rows, replaced)
        finally:
            batch.unpersist()

    def _staged(self, plan: Plan, rows: DataFrame, replaced: Sequence[FileRows] | None) -> Staged:
        """Write rows as a staged snapshot.

        :param replaced: rows of the table to delete, in a snapshot below, on a branch of its own;
            None: the table is appended to
        """
        spark, table = self._session(), plan.table
        if replaced is None:
            wap_id = uuid.uuid4().hex
            spark.conf.set("spark.wap.id", wap_id)
            upsert.append(rows, table, plan.properties)
            return Staged(wap_id=wap_id)
        spark.conf.unset("spark.wap.id")
        files = max(1, plan.batch.records // upsert.FILE_RECORDS)
        rows = rows.coalesce(files)
        branch, base = upsert.replace(spark, table, replaced, rows, plan.properties)
        return Staged(branch=branch, base=base)

    def _fold(self, plan: Plan, frame: DataFrame) -> Staged:
        """Write what a batch of changes makes of the current rows."""
        table, batch = plan.table, plan.batch
        head, keys = table.current_snapshot(), key_names(plan.layout)
        subject = plan.layout.key.subject
        may_move = subject is not None and len(subject.schemas) > 1
        may_move |= State.load(table.properties).has_fewer_partitions(len(batch.end))
        # Of key and value, only whether they are null is needed after the decoding.
        columns = ("partition", "offset", "timestamp", ROW, CHANGE)
        is_null = ("key IS NULL AS no_key", "value IS NULL AS no_value")
        left_out = f"{PROBLEM} IS NOT NULL AS left_out"
        persisted = frame.selectExpr(*columns, *is_null, left_out).persist()
        rows = Target(self.spec, table, head, self._key_index(table, keys), keys)
        progress = Progress(batch, self._log_end, self._passed, may_move)
        folding = Folding(self._session(), rows, progress, persisted)
        try:
            folded = folding.fold()
            if folded.repeated:
                found = count(len(folded.repeated), "repeated change")
                logger.info("topic %s: left out %s of deleted rows", self.spec.name, found)
            self._refuse(plan, folded.refused)
            replaced = None if head is None else folded.replaced
            done = self._staged(plan, folded.rows, replaced)
            return replace(done, skipped=len(folded.refused), changed=folded.properties)
        finally:
            folding.close()
            persisted.unpersist()

    def _refuse(self, plan: Plan, refused: Mapping[Place, str]) -> None:
        """Treat changes that cannot be applied like malformed records.

        :raises TableflowError: the topic stops before the first of them (SUSPEND)
        """
        if not refused:
            return
        self._check_abandoned()
        name = self.spec.name
        (partition, offset), reason = min(refused.items())
        if self.spec.tableflow.error_handling.mode == "SUSPEND":
            raise TableflowError(
                f"topic {name}, partition {partition}, offset {offset}: {reason}",
                hint="set REPLICA IDENTITY FULL in the source and let Debezium read the row again "
                f"with an incremental snapshot; or run `topicberg tableflow skip {name} "
                f"{partition} {offset}`",
            )
        if self._dead_letters is not None:
            lost = [self._dead_letters.record(*each) for each in sorted(refused.items())]
            self._dead_letters.write(plan.table, plan.topic_id, plan.batch.start, lost)
        else:
            first = f"partition {partition}, offset {offset}: {reason}"
            logger.warning(
                "topic %s: skipped %d changes; the first one: %s", name, len(refused), first
            )

    def _key_index(self, table: Table, decoded: Sequence[str] = ()) -> KeyIndex:
        """:param decoded: the columns of a decoded key; none: keys are raw"""
        self._await_keys()
        columns = tuple(decoded) or upsert.key_columns(self.spec)
        uuid_ = table.metadata.table_uuid
        if self._index is None or self._index.of != (uuid_, columns):
            folder = key_folder(self.config, self.spec.name)
            self._index = KeyIndex(folder, table, columns, is_decoded=bool(decoded))
        return self._index

    def _explain(self, error: Exception) -> Exception:
        """Return the reason of a failed job, in the user's terms."""
        name = self.spec.name
        if not (match := _BAD_RECORD.search(str(error))):
            return failures.explain(f"topic {name}", error)
        problem = json.loads(match[1])
        number = problem["schema_id"]
        place = partition, offset = problem["partition"], problem["offset"]
        if number is not None and number >= 0 and self._foreign.look_up([number]):
            return SchemasFoundError(f"a record names schema {number} of another subject")
        is_inside = number is not None and number < 0
        if is_inside and self._framing and self._framing.look_up([place]):
            return SchemasFoundError("a record has a schema that was not known")
        reason = self._reason(place, problem)
        return TableflowError(
            f"topic {name}, partition {partition}, offset {offset}: {reason}",
            hint=f"fix the producer, or run `topicberg tableflow enable {name} --error-handling "
            "LOG` to send such records to a dead-letter topic (SKIP leaves them out)",
        )

    def _reason(self, place: Place, problem: Mapping[str, Any]) -> str:
        """Return why a record is malformed, from its bytes if Kafka still has them."""
        partition, offset = place
        ranges = {partition: (offset, offset + 1)}
        try:
            for message in messages(self.endpoints, self.spec.name, ranges):
                record = {KEY: message.key(), VALUE: message.value(), PROBLEM: problem}
                if self._decoding is not None:
                    return self._decoding.reason(record)
        except TopicbergError as error:
            logger.info("topic %s: a malformed record is not read again: %s", self.spec.name, error)
        return str(problem["reason"])


def _number(snapshot: Snapshot | None, key: str) -> int:
    return int(summaries.summary(snapshot).get(key, 0)) if snapshot else 0


def _skipped(properties: Mapping[str, str]) -> int:
    """Return how many records were left out since the table was created."""
    return int(properties.get(summaries.ROWS_SKIPPED, 0))


def _raising(frame: DataFrame) -> DataFrame:
    """Return the frame, whose job fails with :data:`BAD_RECORD` at the first problem.

    The row raises, not a filter: Spark would push a filter below the decoding, and decode twice.
    """
    message = F.concat(F.lit(BAD_RECORD + " "), _place())
    sound = F.when(F.col(PROBLEM).isNull(), F.col(ROW)).otherwise(F.raise_error(message))
    return frame.withColumn(ROW, sound)


def _place() -> Column:
    """Return the place and the problem of a record, as JSON."""
    fields = F.struct("partition", "offset", f"{PROBLEM}.reason", f"{PROBLEM}.schema_id")
    return F.to_json(fields, {"ignoreNullFields": "false"})


def _observed(frame: DataFrame) -> tuple[DataFrame, Observation]:
    """Return the frame, and the observation that its job fills: see :func:`_counts`."""
    from pyspark.sql.connect.observation import Observation

    seen = Observation(f"problems-{uuid.uuid4().hex}")
    return frame.observe(seen, *_counts()), seen  # type: ignore[arg-type]


def _counts() -> tuple[Column, ...]:
    """Return number of malformed records, unknown schema ids, and the first problem."""
    ids = F.slice(F.collect_set(f"{PROBLEM}.schema_id"), 1, MAX_LOOKUPS)
    first = F.min(F.when(F.col(PROBLEM).isNotNull(), _place()))
    return F.count(PROBLEM).alias("problems"), ids.alias("schema_ids"), first.alias("first")


def _seen(frame: DataFrame, observation: Observation) -> dict[str, Any]:
    """Return what the job of a frame observed."""
    # A busy server may answer without it: it waits only a tenth of a second for its own events.
    return observation.get or frame.agg(*_counts()).collect()[0].asDict()


def run_once(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> Commit:
    """Commit all that the topic holds now; return the last commit, with the records of all."""
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
