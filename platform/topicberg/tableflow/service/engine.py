"""One topic into its table: plan a batch, write its data files, commit them.

Small batches are read by processes of the engine (:mod:`.decode.processes`), large ones
by tasks of Spark; both do the same (:mod:`topicberg.tableflow.decode.reading`).

Every step starts from the offsets that the table holds, so a step that failed or was killed at any
point is run again. A batch that exhausts the memory of a process is divided until only the failing
record is left, see :mod:`topicberg.tableflow.service.record_search`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event

from confluent_kafka.schema_registry import SchemaRegistryClient
from pyiceberg.table import Table
from tenacity import wait_random

from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.errors.meaning import explain, is_of_service, means
from topicberg.errors.retry import conflicts, retry
from topicberg.errors.table import ENDED, FULL
from topicberg.iceberg.files import discard
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import Offsets, PartitionOffset, Ranges
from topicberg.kafka.records import DamagedRecordsError
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import (
    BatchPlan,
    Commit,
    Reader,
    check_suspended,
    due,
    in_time_order,
    still_failing,
)
from topicberg.tableflow.batch.sizing import BatchLimits, small, usual_tasks
from topicberg.tableflow.changelog.old_values import BatchCutError
from topicberg.tableflow.decode.plan import ONE_BATCH
from topicberg.tableflow.decode.processes import ProcessEndedError, shared
from topicberg.tableflow.decode.reading import WrittenBatch
from topicberg.tableflow.decode.sessions import Sessions, SparkTurn, ingest_by_spark, split
from topicberg.tableflow.layout.framing import framing
from topicberg.tableflow.layout.layout import foreign_schemas, read_layout
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.service.record_search import Isolation, RecordSearch, discard_written
from topicberg.tableflow.service.topic_table import BatchTable
from topicberg.tableflow.service.turns import turn
from topicberg.tableflow.table.batch_commit import SchemasFoundError, result
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.compiling import ready
from topicberg.tableflow.values.memory import ExhaustedError
from topicberg.tableflow.values.offsets import Batch
from topicberg.topics import TopicSpec
from topicberg.topics.requests import require_unpaused
from topicberg.wording import count

logger = logging.getLogger(__name__)

CONFLICT_ATTEMPTS = 5


class AbandonedError(TopicbergError):
    """The topic was paused or left to another engine while a batch ran, which is not committed."""


class BatchFailedError(TopicbergError):
    """A batch cannot be decoded, perhaps due to a record; the search for it has begun."""


class PartReadError(Exception):
    """A part of a batch that failed was read, but not committed."""


class LogMovedError(Exception):
    """A partition has another leader since the batch was planned, and may have another log."""


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
        held_ms: int | None = None,
    ) -> None:
        """:param sessions: of Spark, which other topics use as well; None: sessions of its own
        :param registry: a client that other topics use as well; None: one of its own
        :param abandoned: set when a running step must not commit any more
        :param held_ms: when the topic was known to have a table with records; None: never
        """
        self.spec, self.endpoints, self.config = spec, endpoints, config
        self.limits = BatchLimits(spec, endpoints)
        registry = registry or endpoints.schema_registry_client()
        self._readers = schema_readers(endpoints, config, registry)
        self._framing = framing(spec, endpoints, registry)
        sessions = sessions or spark_sessions(endpoints, config)
        self._spark = SparkTurn(sessions, endpoints.spark_connect)
        self._foreign = foreign_schemas(spec, self._readers)
        self._abandoned = abandoned or Event()
        table = BatchTable(
            spec,
            endpoints,
            config,
            foreign=self._foreign,
            framing=self._framing,
            check=self._check_abandoned,
            held_ms=held_ms,
        )
        self.tables: tuple[BatchTable, ...] = (table,)  # Which each batch fills: a topic has one.
        self._memory = config.engine_process_memory_mb * 1024**2
        self.processes = shared(config.engine_processes, self._memory)
        self._search = RecordSearch(spec, self.processes)
        self._logs: list[int] = []  # The numbers of the logs that the tables are read from.
        self._stops_early = True  # Whether a batch that names new schemas is begun again at once.
        self.report_progress: Callable[[str], None] = lambda _: None
        """Called with what a step does that takes long."""
        self.start: Offsets = {}  # Where the last planned batch starts; empty: not known yet.
        self.current_offsets: Offsets = {}
        self.current_ms: int | None = None
        """When the topic was last seen to have no record after ``current_offsets``."""

    def close(self) -> None:
        """Discard the sessions that only this topic uses, and what is known of the table."""
        self._discard(others=True)
        for table in self.tables:
            table.keys.wait()

    def _discard(self, *, others: bool) -> None:
        """Discard the session of this step, and what is known of the table."""
        self.forget()
        self._spark.discard(others=others)

    def forget(self) -> None:
        """Read everything about the tables and their schemas again in the next step."""
        for table in self.tables:
            table.loader.forget()

    def table(self) -> Table:
        """Return the topic's table, created or evolved to the latest schemas."""
        with self.tables[0].loader.explained(self.endpoints):
            return self.tables[0].loader.load(self.layouts()[0])

    def layouts(self, log: kafka.TopicLog | None = None) -> list[Layout]:
        """Return the columns by the newest schemas, those that records carry included."""
        if self._framing is not None:
            log = log or kafka.topic_log(self.endpoints, self.spec.name)
            self._framing.learn_from(log.beginning, log.end)
        return [read_layout(table.spec, self._readers, self.config) for table in self.tables]

    def step(self) -> Commit:
        """Commit the next batch, if there is one.

        :raises TableflowError: the topic is suspended; nothing was committed
        :raises CommitConflictError: others kept committing to the table
        :raises TopicbergError: a service does not answer, refuses or is full
        """
        self.begin_batch()
        exhausted = CommitConflictError(
            f"topic {self.spec.name}: {CONFLICT_ATTEMPTS} batches in a row met another commit",
            hint="check whether a second engine runs for this topic",
        )
        try:
            with turn(self.config, ".".join(self.spec.table_identifier(self.config))):
                attempt, wait = conflicts(f"topic {self.spec.name}")(self._attempt), wait_random()
                # The wait lets the other engine finish.
                return retry(attempt, CONFLICT_ATTEMPTS, wait=wait, exhausted=exhausted)
        except BaseException as error:
            for table in self.tables:
                table.log_check.forget()
            if not isinstance(error, TopicbergError):  # else the session is as good as before
                self._discard(others=False)
            raise
        finally:
            self._spark.give_back()

    def begin_batch(self) -> None:
        """Allow the lookups of schemas of another batch."""
        for schemas in (*self._foreign.values(), self._framing):
            if schemas is not None:
                schemas.begin_batch()

    def _attempt(self) -> Commit:
        self._stops_early = True
        self.limits.begin_attempt()
        self._search.begin_attempt()
        for table in self.tables:
            table.committer.begin_attempt()
        while True:
            try:
                with self.tables[0].loader.explained(self.endpoints):
                    return self._step()
            except SchemasFoundError as found:
                logger.info("topic %s: %s", self.spec.name, found)
                self._stops_early = False
            except BatchCutError as cut:
                self.limits.end_at(cut.ends)
                for table in self.tables:
                    table.committer.end_at(cut.ends)
            except BatchFailedError as failed:
                logger.warning("%s; reading the batch in parts", failed.message)
                self._report_search()
            except LogMovedError as moved:
                logger.info("topic %s: %s", self.spec.name, moved)
            except PartReadError:
                logger.debug("topic %s: read a part of the batch that failed", self.spec.name)
                self._report_search()

    def _report_search(self) -> None:
        if (search := self._search.active) is not None:
            left = count(sum(end - start for start, end in search.rest.values()), "offset")
            self.report_progress(
                f"a batch is read in parts, to find the records at which it fails; {left} left: "
                f"{search.reason}"
            )

    def _step(self) -> Commit:
        name = self.spec.name
        self._check_abandoned()
        # First of all, so that the schemas read afterwards cover all of these records.
        log = kafka.topic_log(self.endpoints, name)
        now_ms, current = int(time.time() * 1000), (self.current_offsets, self.current_ms)
        layouts = zip(self.tables, self.layouts(log), strict=True)
        tables = [
            table.plan(number, layout, log, now_ms, current)
            for number, (table, layout) in enumerate(layouts)
        ]
        if (numbers := [into.committed.log for into in tables]) != self._logs:
            self._logs = numbers  # What was learnt of a former log has its offsets.
            self.limits.begin_attempt()
            self._search.begin_attempt()
        filled, ends = due(tables, log.beginning)
        self.limits.end_at(ends)
        offsets = filled[0].offsets
        self.limits.learn(filled[0].committed.batch_size)
        self.start = start = {**log.beginning, **offsets}
        failing, requested = dict[PartitionOffset, skips.Skip](), set[PartitionOffset]()
        for into in tables:
            failing |= still_failing(self.spec, self.config, into.table, start)
            requested |= skips.places(skips.requested(into.table).values(), start).keys()
        skip = {*requested, *failing}
        search = self._search.active
        part = None if search is None else (search.start, search.next_ends())
        batch, size = self.limits.next_batch(offsets, log, skip, part)
        if search is not None and not batch.records:  # the log ends earlier
            self._search.isolation = None
            raise PartReadError
        if search is None:
            check_suspended(self.spec, batch, failing, requested)
            if any(self.tables[f.number].keys.has_decoded(f.layout, f.table) for f in filled):
                limit = self.limits.size.limit
                batch = in_time_order(name, self.endpoints, batch, log, skip, limit)
        plan = BatchPlan(
            spec=self.spec,
            tables=filled,
            batch=batch,
            size=size,
            topic_id=log.topic_id,
            latest=log.end,
            now_ms=now_ms,
            learnt=self.limits.size.dump(),
            failing=failing,
            reader=self._reader(batch, size),
        )
        if not batch.records:
            return self._nothing_new(plan)
        written = self._written(plan)
        if search is not None:
            discard_written(plan, written)
            search.succeed(batch.end)
            self._end_search(search)
            raise PartReadError
        done = self._commit(plan, written, log)
        self.limits.size = self.limits.size.committed(batch.records, size, done.bytes)
        return done

    def _nothing_new(self, plan: BatchPlan) -> Commit:
        """Return what a step without records did."""
        for into in plan.tables:
            into.missed.nothing_new()
        first = plan.tables[0]
        left, offsets = self.tables[first.number].unproven(plan.batch), first.offsets
        done = result(plan, first.table, first.head, {})
        return replace(done, unproven=left, end_offsets=offsets, backlog=False, rows=0, bytes=0)

    def _commit(self, plan: BatchPlan, written: list[WrittenBatch], log: kafka.TopicLog) -> Commit:
        """Commit a batch to each of its tables; return what the first commit did."""
        left, commits = list(zip(plan.tables, written, strict=True)), list[Commit]()
        try:
            self._check_abandoned()
            if self.tables[0].log_check.has_changed(log, plan.batch.ranges):
                raise LogMovedError("a partition has another leader; planning the batch again")
            for into, part in left:
                committer = self.tables[into.number].committer
                committer.handle_rejected(plan, into.table, part.rejections)
            while left:
                into, part = left.pop(0)  # whose files the commit deletes if it is refused
                commits.append(self.tables[into.number].commit(plan, into, part))
        except BaseException:
            for into, part in left:
                discard(into.table.io, part.files)
            raise
        return commits[0]

    def _reader(self, batch: Batch, size: float | None) -> Reader:
        """Return what reads a batch; raise an error if it has to be Spark, whose workers cannot."""
        is_auto = self.spec.tableflow.engine == "auto"
        is_small = is_auto and (self.spec.changes == "rows" or batch.records <= small(size))
        if is_small or self._search.isolation is not None or not batch.ranges:
            return "process"
        if (lack := self._spark.workers_lack()) is None:
            return "spark"
        if is_auto:
            return "process"
        raise TopicbergError(f"topic {self.spec.name}: {lack.message}", hint=lack.hint)

    def _written(self, plan: BatchPlan) -> list[WrittenBatch]:
        """Write the data files of a batch for each table, or read the changes that are folded.

        :raises BatchFailedError: a part of the batch has to be read next
        :raises TopicbergError: they cannot be read or written now
        """
        from pyspark.errors import PySparkException

        batch, mode = plan.batch, self.spec.tableflow.error_handling.mode
        if not batch.ranges:
            return [WrittenBatch([], 0, Rejections(mode)) for _ in plan.tables]
        try:
            return self._read(plan, batch.ranges)
        except DamagedRecordsError as error:
            first, end = batch.ranges.get(error.partition, (0, 0))
            if not first <= error.offset < end:  # the same batch would be read again
                raise
            self.report_progress(f"looks for the end of a batch of records: {error.message}")
            name, place = self.spec.name, (error.partition, error.offset)
            end, max_bytes = plan.latest[error.partition], self.tables[0].max_bytes
            after = consumer.batch_end(self.endpoints, name, *place, end, max_bytes)
            for into in plan.tables:
                skips.note_failing(into.table, into.committed.log, place, error.message, after)
            raise BatchFailedError(f"topic {self.spec.name}: {error.message}") from None
        except ExhaustedError as error:
            is_certain = not isinstance(error, ProcessEndedError)
            raise self._searched(plan, error.message, is_certain=is_certain) from None
        except PySparkException as error:
            self._check_abandoned()
            self._discard(others=means(error, ENDED))
            reason = explain(f"topic {self.spec.name}", error)
            if is_of_service(error):
                raise reason from error
            raise self._searched(plan, reason.message, is_certain=False) from error
        except OSError as error:
            if means(error, FULL):
                self.limits.size = self.limits.size.out_of_space(batch.records, plan.size)
            raise

    def _read(self, plan: BatchPlan, ranges: Ranges) -> list[WrittenBatch]:
        """:raises ExhaustedError: it takes more memory than there is"""
        stops_early = self._stops_early and self._search.isolation is None
        if not ready.is_set():
            self.report_progress("prepares the decoders: the first time, that takes some minutes")
        plans = (self.tables[into.number].read_plan(into) for into in plan.tables)
        programs = [replace(each, stops_early=stops_early) for each in plans]
        if sum(end - start for start, end in ranges.values()) == 1:
            programs[0] = replace(programs[0], kafka={**programs[0].kafka, **ONE_BATCH})
        usual = min(usual_tasks(into.table.spec()) for into in plan.tables)
        if plan.reader == "process":
            is_folded = all(program.is_folded for program in programs)
            parts = split(ranges, plan.size, 1 if is_folded else usual)
            return self.processes.ingest(programs, parts, self._check_abandoned)
        parts = split(ranges, plan.size, usual)
        return ingest_by_spark(self._spark.session(), programs, parts, self._memory)

    def _searched(self, plan: BatchPlan, reason: str, *, is_certain: bool) -> BatchFailedError:
        """Search for the records at which a batch fails; return what to raise."""
        search = self._search.failed(plan, reason, self._read, is_certain=is_certain)
        if search is not None:
            self._end_search(search)
        prefix = f"topic {self.spec.name}: "
        return BatchFailedError(prefix + reason.removeprefix(prefix))

    def _end_search(self, search: Isolation) -> None:
        """If all of the batch was searched, let the next one have what was read, and no more."""
        if search.rest:
            return
        self.begin_batch()
        self.limits.end_at(search.start)
        if search.blamed:
            self._search.isolation = None
        elif not search.of_spark:  # all of it at once is too much
            self.limits.size = self.limits.size.exhausted(search.records)

    def interrupt(self) -> None:
        """End the jobs of the running step; may be called by another thread."""
        self._spark.interrupt()

    def _check_abandoned(self) -> None:
        """:raises AbandonedError: the topic belongs to another engine, or is paused"""
        if self._abandoned.is_set():
            raise AbandonedError(
                f"topic {self.spec.name}: the running batch was abandoned, as the topic was paused "
                "or belongs to another engine"
            )


def spark_sessions(endpoints: Endpoints, config: Settings) -> Sessions:
    """Return sessions of the deployment's Spark, which topics share."""
    memory = config.engine_process_memory_mb * 1024**2
    return Sessions(endpoints.spark_connect, lambda: endpoints.spark_session(config), memory)


def run_once(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> Commit:
    """Commit all that the topic holds now; return the last commit, with the rows of all.

    :raises TopicbergError: the topic is paused, or it cannot be read
    """
    target = kafka.end_offsets(endpoints, spec.name)
    ingestor = Ingestor(spec, endpoints, config)
    records = rows = 0
    try:
        while True:
            require_unpaused(config, spec.name)
            last = ingestor.step()
            records, rows = records + last.records, rows + last.rows
            if all(last.end_offsets.get(p, 0) >= offset for p, offset in target.items()):
                return replace(last, records=records, rows=rows)
    finally:
        ingestor.close()
