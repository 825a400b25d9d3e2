"""One topic into its table: plan a batch, write its data files, commit them.

Small batches are read by processes of the engine (:mod:`topicberg.tableflow.processes`), large ones
by tasks of Spark; both do the same (:mod:`topicberg.tableflow.reading`).

Every step starts from the offsets that the table holds, so a step that failed or was killed at any
point is run again. A batch that exhausts the memory of a process is divided until only the failing
record is left, see :mod:`topicberg.tableflow.isolation`.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np
import pyarrow as pa
from tenacity import wait_random

from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, TableflowError, TopicbergError
from topicberg.formats.subjects import SubjectReader
from topicberg.iceberg import summaries
from topicberg.iceberg.data_files import DataFileWriter
from topicberg.iceberg.data_files import Target as WriteTarget
from topicberg.iceberg.files import discard
from topicberg.iceberg.position_deletes import FileRows
from topicberg.iceberg.versions import require_written
from topicberg.kafka.consumer import DamagedRecordsError, first_times, record_bytes
from topicberg.kafka.offsets import Offsets, Place, Ranges, dump_offsets, parse_offsets
from topicberg.retry import conflicts, retry_conflicts
from topicberg.settings import Settings
from topicberg.spark import check_spark
from topicberg.tableflow import commit, failures, skips, tombstones
from topicberg.tableflow.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.change_batch import Changes
from topicberg.tableflow.changes import key_names
from topicberg.tableflow.current_rows import Target, together
from topicberg.tableflow.deadletters import DeadLetters
from topicberg.tableflow.fold_state import Order, State
from topicberg.tableflow.folding import Folded, Folding, NewRows
from topicberg.tableflow.foreign import foreign_schemas, named_schemas
from topicberg.tableflow.framing import framing
from topicberg.tableflow.isolation import Isolation
from topicberg.tableflow.key_state import KEYS, KeyState
from topicberg.tableflow.keys import KeyIndex, index_of, key_folder
from topicberg.tableflow.layout import KEY, Layout, read_layout, table_schema
from topicberg.tableflow.memory import ExhaustedError
from topicberg.tableflow.offsets import Batch, plan_batch
from topicberg.tableflow.old_values import BatchCutError, Progress
from topicberg.tableflow.plan import Planner
from topicberg.tableflow.processes import ProcessEndedError, shared
from topicberg.tableflow.raw_keys import RawKeys
from topicberg.tableflow.reading import ChangesRead, Written
from topicberg.tableflow.rejections import Rejections
from topicberg.tableflow.sessions import Sessions
from topicberg.tableflow.sizing import SMALL_RECORDS, BatchSize, small
from topicberg.tableflow.table import ensure_table
from topicberg.tableflow.tasks import ingest_by_spark
from topicberg.tableflow.turns import turn
from topicberg.tableflow.upsert_key import UpsertKey, upsert_key
from topicberg.tableflow.waiting import start_again
from topicberg.topics import requests
from topicberg.wording import count

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import SparkSession

    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

MAX_RECORDS: dict[str, int] = {"append": 5_000_000, "upsert": 3_000_000}
"""The most records of a batch, by write mode: the keys of an upsert are held in memory."""
SAMPLED_RECORDS = 1_000
"""The size of larger batches is sampled before they are read."""
PARTS = 16
"""Parts of a batch that failed."""
CONFLICT_ATTEMPTS = 5
MOST_SEARCHES = 3
"""Searches of an attempt: then the topic gives way to others, and continues."""
CONTROLS = 3
"""Other records that fail as well before it is said that all do."""


Reader = Literal["process", "spark"]


@dataclass(frozen=True)
class Commit:
    """What one step did."""

    records: int
    """Offsets committed, those of skipped records, transactions and gaps included. 0: no batch."""
    snapshot_id: int | None
    end_offsets: Offsets
    backlog: bool = False
    rows: int = 0
    """Rows that the step added to the table."""
    rows_skipped: int = 0
    """Records that were left out since the table was created."""
    bytes: int = 0
    """Size of the files that the step added."""
    data_files: int = 0
    """Data files of the table after the step."""
    skip_requests: list[skips.Skip] = field(default_factory=list)
    """All requests to skip a record since the table was created."""
    missed_deletes: tombstones.Missed | None = None
    reader: Reader | None = None
    """What read the newest batch."""
    keys: KeyState | None = None
    """How the keys of an upsert table are compared, if they have a schema."""


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
    key_definition: str | None
    """Which keys the newest batch of the table took as equal; None: keys of the same bytes."""
    failing: Mapping[Place, skips.Skip]
    """Records that fail by themselves."""
    reader: Reader
    """What reads it."""

    @property
    def planned_on(self) -> int | None:
        """The id of the head of ``main`` whose offsets the batch starts from."""
        return self.head.snapshot_id if self.head else None

    @property
    def backlog(self) -> bool:
        """Whether records are left for later batches."""
        return self.batch.end != self.latest

    @property
    def properties(self) -> dict[str, str]:
        """The summary of the batch's snapshot."""
        given = self.spec.name, self.topic_id, self.batch, self.now_ms, self.learnt
        return commit.snapshot_properties(*given) | {summaries.READER: self.reader}


class SchemasFoundError(Exception):
    """Records name schemas that were unknown and have been looked up: decode the batch again."""


class AbandonedError(TopicbergError):
    """The engine gave up the topic while a batch was running; it was not committed."""


class BatchFailedError(TopicbergError):
    """A batch cannot be decoded, perhaps due to a record; the search for it has begun."""


class PartReadError(Exception):
    """A part of a batch that failed was read, but not committed."""


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
        self._fitted: tuple[object, object] | None = None  # see Layout.fitted
        self._foreign = foreign_schemas(spec, self._subjects)
        self._spark: SparkSession | None = None
        self._abandoned = abandoned or Event()
        self._tag = f"topicberg-{uuid.uuid4().hex}"
        """Of this topic's jobs in Spark."""
        self._index: KeyIndex | None = None
        self._key: tuple[object, UpsertKey] | None = None
        self._removed = 0
        """Rows that the batch removes because a newer row has their key."""
        self._keeping: Thread | None = None
        """Writes and shares key files after a batch."""
        self._dead_letters: DeadLetters | None = None
        if spec.tableflow.error_handling.mode == "LOG":
            self._dead_letters = DeadLetters(spec, endpoints, config)
        self._most = MAX_RECORDS[spec.write_mode]
        self._size = BatchSize.of(self._most, spec.tableflow.commit_max_bytes)
        self._knows_size = False
        self._memory = config.engine_process_memory_mb * 1024**2
        self._processes = shared(config.engine_processes, self._memory)
        self._planner = Planner(spec, endpoints)
        self._isolation: Isolation | None = None
        """The search for the records at which a batch fails; one that found none stays until the
        batch is committed."""
        self._searches = 0
        """In this attempt."""
        self._log_end: Offsets = {}
        self._progress: Progress | None = None
        self._unread: dict[int, Order] = {}
        self._stops_early = True
        """Whether a batch is begun again as soon as its first records name new schemas."""
        self._ends: dict[int, int] = {}
        """Where batches of an attempt have to end, by partition: see :class:`BatchCutError`; and
        how far a search has read."""
        self.current_offsets: Offsets = {}
        self.current_ms: int | None = None
        """When the topic was last seen to have no record after ``current_offsets``."""

    @property
    def max_records(self) -> int:
        """How many records suffice to start the next batch."""
        return self._size.limit

    def close(self) -> None:
        """Discard the sessions that only this topic uses, and what is known of the table."""
        self._discard(others=True)
        self._await_keys()

    def forget(self) -> None:
        """Read everything about the table and its schemas again in the next step."""
        self._fitted = None

    def _discard(self, *, others: bool) -> None:
        """Discard the session of this step."""
        session, self._spark = self._spark, None
        self.forget()
        self._sessions.discard(session, others=others)

    def table(self) -> Table:
        """Return the topic's table, created or evolved to the latest schemas."""
        with failures.explained(f"topic {self.spec.name}"):
            return self._table(read_layout(self.spec, self._subjects, self.config))

    def step(self) -> Commit:
        """Commit the next batch, if there is one.

        :raises TableflowError: the topic is suspended; nothing was committed
        :raises CommitConflictError: others kept committing to the table
        :raises TopicbergError: a service does not answer, refuses or is full
        """
        self._begin_batch()
        exhausted = CommitConflictError(
            f"topic {self.spec.name}: {CONFLICT_ATTEMPTS} batches in a row met another commit",
            hint="check whether a second engine runs for this topic",
        )
        try:
            with turn(self.config, ".".join(self.spec.table_identifier(self.config))):
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
            session, self._spark = self._spark, None
            if session is not None:
                session.clearTags()
                self._sessions.give_back(session)

    def _begin_batch(self) -> None:
        """Allow the lookups of schemas of another batch."""
        for foreign in self._foreign.values():
            foreign.begin_batch()
        if self._framing is not None:
            self._framing.begin_batch()

    def _end_at(self, ends: Mapping[int, int]) -> None:
        """Let the batches of this attempt end earlier; each is smaller than the one before."""
        self._ends |= {p: min(end, self._ends.get(p, end)) for p, end in ends.items()}

    def _attempt(self) -> Commit:
        self._unread, self._stops_early, self._ends = {}, True, {}
        self._isolation, self._searches = None, 0
        while True:
            try:
                with failures.explained(f"topic {self.spec.name}"):
                    return self._step()
            except SchemasFoundError as found:
                logger.info("topic %s: %s", self.spec.name, found)
                self._stops_early = False
            except BatchCutError as cut:
                self._end_at(cut.ends)
                if self._progress is not None:
                    self._progress.end_at(cut.ends)
            except BatchFailedError as failed:
                logger.warning("%s; reading the batch in parts", failed.message)
            except PartReadError:
                logger.debug("topic %s: read a part of the batch that failed", self.spec.name)

    def _step(self) -> Commit:
        name = self.spec.name
        self._check_abandoned()
        # First of all, so that the schemas read afterwards cover all of these records.
        log = kafka.topic_log(self.endpoints, name)
        topic_id, beginning, latest = log.topic_id, log.beginning, log.end
        self._log_end = latest
        if self._framing is not None:
            self._framing.learn_from(beginning, latest)
        layout = read_layout(self.spec, self._subjects, self.config)
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
        failing = self._failing(table, start)
        requested = skips.requested(table).keys()
        skip = {*requested, *failing}
        batch, size = self._plan(held.offsets or first, beginning, latest, skip)
        if self._searching is not None and not batch.records:  # the log ends earlier than it did
            self._isolation = None
            raise PartReadError
        if self._searching is None:
            self._check_suspended(batch, failing, requested)
            if self._has_decoded_keys(layout, table):
                batch = self._in_time_order(batch, beginning, latest, skip)
        seen_ms = self.current_ms if held.offsets == self.current_offsets else None
        missed = tombstones.Watch(self.spec, self.endpoints, table, held, now_ms, seen_ms)
        known = topic_id, latest, now_ms, self._size.dump(), missed, held.key_definition
        reader = self._reader(batch, size)
        plan = Plan(self.spec, table, head, layout, batch, size, *known, failing, reader)
        if not batch.records:
            missed.nothing_new()
            done = self._result(plan, head, {})
            ends = held.offsets or first
            return replace(done, end_offsets=ends, backlog=False, rows=0, bytes=0)
        written = self._written(plan)
        if (search := self._searching) is not None:
            discard(table.io, written.files)
            search.succeed(batch.end)
            self._end_search(search)
            raise PartReadError
        return self._add(plan, written)

    def _committed(
        self, plan: Plan, snapshot: Snapshot, changed: Mapping[str, str], written: Written
    ) -> Commit:
        """Learn from a batch that was committed."""
        self._keep_keys(plan, written)
        done = self._result(plan, snapshot, changed)
        self._size = self._size.committed(plan.batch.records, plan.size, done.bytes)
        return done

    def _result(self, plan: Plan, head: Snapshot | None, changed: Mapping[str, str]) -> Commit:
        """:param changed: table properties that changed with the batch"""
        properties = {**plan.table.properties, **changed}
        return Commit(
            records=plan.batch.records,
            snapshot_id=head.snapshot_id if head else None,
            end_offsets=plan.batch.end,
            backlog=plan.backlog,
            rows=_number(head, "added-records"),
            rows_skipped=_skipped(properties),
            bytes=_number(head, "added-files-size"),
            data_files=_number(head, "total-data-files"),
            skip_requests=list(skips.requested(plan.table).values()),
            missed_deletes=tombstones.missed(properties),
            keys=KeyState.load(properties),
            reader=plan.reader if plan.batch.records else _reader_of(head),
        )

    def _reader(self, batch: Batch, size: float | None) -> Reader:
        """Return what reads a batch: see :class:`topicberg.topics.spec.TableflowSpec`.

        :raises TopicbergError: it has to be Spark, and Spark's workers cannot
        """
        is_auto = self.spec.tableflow.engine == "auto"
        is_folded = self.spec.changelog is not None and self.spec.write_mode == "upsert"
        if is_auto and (is_folded or batch.records <= small(size)):
            return "process"
        if self._isolation is not None or not batch.ranges:
            return "process"
        try:
            lack = self._sessions.check_workers(self._session())
        except TopicbergError:
            self._discard(others=True)
            raise
        if lack is None:
            return "spark"
        if is_auto:
            return "process"
        raise TopicbergError(f"topic {self.spec.name}: {lack.message}", hint=lack.hint)

    def _written(self, plan: Plan) -> Written:
        """Write the data files of a batch, or read the changes that are folded.

        :raises BatchFailedError: a part of the batch has to be read next
        :raises TopicbergError: they cannot be read or written now
        """
        from pyspark.errors import PySparkException

        batch, table = plan.batch, plan.table
        if not batch.ranges:
            return Written([], 0, Rejections(self.spec.tableflow.error_handling.mode))
        try:
            return self._read(plan, batch.ranges)
        except DamagedRecordsError as error:
            first, end = batch.ranges.get(error.partition, (0, 0))
            if not first <= error.offset < end:  # the same batch would be read again
                raise
            skips.note_failing(table, (error.partition, error.offset), error.message)
            raise BatchFailedError(f"topic {self.spec.name}: {error.message}") from None
        except ExhaustedError as error:
            is_certain = not isinstance(error, ProcessEndedError)
            raise self._search(plan, error.message, is_certain=is_certain) from None
        except PySparkException as error:
            self._check_abandoned()
            self._discard(others=failures.is_ended(error))
            reason = failures.explain(f"topic {self.spec.name}", error)
            if failures.is_of_service(error):
                raise reason from error
            raise self._search(plan, reason.message, is_certain=False) from error
        except OSError as error:
            if failures.is_full(error):
                self._size = self._size.out_of_space(batch.records, plan.size)
            raise

    def _read(self, plan: Plan, ranges: Ranges) -> Written:
        """:raises ExhaustedError: it takes more memory than there is"""
        table, key = plan.table, self._upsert_key(plan.layout, plan.table)
        program = self._planner.plan(plan.layout, table, self._foreign, key, self._framing)
        program = replace(program, stops_early=self._stops_early and self._isolation is None)
        if plan.reader == "process":
            return self._processes.ingest(program, ranges, self._check_abandoned)
        given = program, table, ranges, plan.size, self._memory
        return ingest_by_spark(self._session(), *given)

    @property
    def _searching(self) -> Isolation | None:
        """The search for the records at which a batch fails, while it continues."""
        search = self._isolation
        return search if search is not None and search.rest else None

    def _search(self, plan: Plan, reason: str, *, is_certain: bool) -> BatchFailedError:
        """Begin, or go on, to search for the records at which a batch fails.

        :param is_certain: whether it fails at that record at each attempt
        :raises TopicbergError: processes fail whatever they read
        """
        what = reason.removeprefix(f"topic {self.spec.name}: ")
        search = self._searching
        if search is None:
            self._searches += 1
            if self._searches > MOST_SEARCHES:  # others have a turn before it continues
                raise TopicbergError(
                    reason,
                    hint="records that fail are still searched; the engine continues",
                )
            of_spark = plan.reader == "spark"
            search = Isolation(plan.batch.start, plan.batch.end, of_spark=of_spark)
            self._isolation = search
        if plan.reader == "process":
            search.fail(plan.batch.ranges, is_certain=is_certain)
        if (culprit := search.culprit) is not None:
            self._prove(plan, search, culprit)  # else no record is to blame
            logger.warning(
                "topic %s, partition %d, offset %d: the record fails by itself: %s",
                *(self.spec.name, *culprit, what),
            )
            skips.note_failing(plan.table, culprit, what)
            search.blame(culprit)
            if self.spec.tableflow.error_handling.mode == "SUSPEND":  # it stops here anyway
                search.until = search.start
            self._end_search(search)
        return BatchFailedError(f"topic {self.spec.name}: {what}")

    def _prove(self, plan: Plan, search: Isolation, culprit: Place) -> None:
        """Check that processes can decode other records than one that fails by itself.

        :raises TopicbergError: they fail whatever they read
        """
        self._processes.check()
        failures = 0
        for partition, offset in search.controls(culprit) if not search.is_proven else ():
            try:
                written = self._read(plan, {partition: (offset, offset + 1)})
            except (ExhaustedError, DamagedRecordsError):
                failures += 1
                continue
            discard(plan.table.io, written.files)
            search.is_proven = True
            return
        if failures >= CONTROLS:
            raise TopicbergError(
                f"topic {self.spec.name}: the processes of the engine can decode none of its "
                f"records: tried {failures + 1} of them",
                hint="give them more memory, see TOPICBERG_ENGINE_PROCESS_MEMORY_MB; the engine "
                "tries again",
            )

    def _end_search(self, search: Isolation) -> None:
        """If all of the batch was searched, let the next one have what was read, and no more."""
        if search.rest:
            return
        self._begin_batch()
        self._end_at(search.start)
        if search.blamed:
            self._isolation = None
        elif not search.of_spark:  # all of it at once is too much
            self._size = self._size.exhausted(search.records)

    def _add(self, plan: Plan, written: Written) -> Commit:
        """Commit the data files of a batch."""
        table, batch = plan.table, plan.batch
        refused = 0
        folded: dict[str, str] = {}
        replaced: list[FileRows] | None = None
        try:
            self._handle_rejected(plan, written.rejections)
            self._log_failing(plan)
            if written.changes is not None and written.changes.parts:
                found = self._fold(plan, written.changes)
                refused, folded, replaced = len(found.refused), found.properties, found.replaced
                files, keys = self._files_of(plan, found.rows)
                written = replace(written, files=files, keys=keys)
            changed = plan.missed.of(batch, lambda: written.records, caught_up=not plan.backlog)
            if left_out := written.rejections.count + refused + len(batch.skipped):
                changed[summaries.ROWS_SKIPPED] = str(_skipped(table.properties) + left_out)
            if kafka_times := written.rejections.kafka_times:
                logger.warning(
                    "topic %s: %s without a usable event time have Kafka's time",
                    *(self.spec.name, count(kafka_times, "record")),
                )
                known = int(table.properties.get(summaries.KAFKA_TIMES, 0))
                changed[summaries.KAFKA_TIMES] = str(known + kafka_times)
            replaced = self._replaced(plan, written) if replaced is None else replaced
            changed |= self._note_keys(plan) | folded
            self._check_abandoned()
        except BaseException:
            discard(table.io, written.files)
            raise
        dropped, summary = skips.committed(table, batch.end), self._summary(plan)
        snapshot = commit.add_files(
            table, plan.planned_on, written.files, replaced, summary, changed, dropped
        )
        return self._committed(plan, snapshot, changed, written)

    def _handle_rejected(self, plan: Plan, rejections: Rejections) -> None:
        """Treat malformed records as the topic's error mode says.

        :raises SchemasFoundError: their schemas were looked up: decode the batch again
        :raises TableflowError: the topic stops before the first of them (SUSPEND)
        """
        found = self._look_up_foreign(sorted(rejections.unknown))
        if self._framing is not None and rejections.inline:
            found |= self._framing.look_up(rejections.inline.values())
        if found or rejections.is_partial:
            raise SchemasFoundError("records name, or have, schemas that were not known")
        rejections.name_missing(self._foreign)
        if rejections.first is None:
            return
        place, reason, _ = rejections.first
        if rejections.is_final:
            raise self._malformed(place, reason)
        self._check_abandoned()
        if self._dead_letters is not None:
            known = plan.table, plan.topic_id, plan.batch.start
            self._dead_letters.write(*known, rejections.records)
        else:
            logger.warning(
                "topic %s: skipped %s; the first one, partition %d, offset %d: %s",
                *(self.spec.name, count(rejections.count, "record"), *place, reason),
            )

    def _log_failing(self, plan: Plan) -> None:
        """Log the records that fail by themselves, and are left out now (LOG)."""
        if (letters := self._dead_letters) is None:
            return
        lost = sorted(plan.failing.keys() & plan.batch.skipped)
        if lost:
            found = [letters.record(place, plan.failing[place].reason) for place in lost]
            letters.write(plan.table, plan.topic_id, plan.batch.start, found)

    def _replaced(self, plan: Plan, written: Written) -> list[FileRows]:
        """Return the rows that a batch replaces, of the table and of its own files."""
        if written.keys is None:
            return []
        table, head = plan.table, plan.table.current_snapshot()
        keys, own = written.keys.newest()
        index = self._upsert_index(plan.layout, table)
        found: list[FileRows] = []
        if head is not None and index.key is not None:
            times = written.keys.times
            times = np.empty(0, np.int64) if times is None else times  # without records
            found, stale = index.older_rows(table, head, keys, times)
            found = together(found, self._repeated(plan))
            for path, positions in written.keys.rows_of(keys.chosen(stale)).items():
                own[path] = np.union1d(own.get(path, positions), positions).astype(np.uint32)
        elif head is not None:
            found = index.rows_with(table, head, keys)
        return found + [
            FileRows(file, own[file.file_path]) for file in written.files if file.file_path in own
        ]

    def _repeated(self, plan: Plan) -> list[FileRows]:
        """Return the rows whose key a newer row has, if other keys are equal than before."""
        table, head = plan.table, plan.table.current_snapshot()
        index = self._upsert_index(plan.layout, table)
        if head is None or plan.key_definition == index.definition:
            return []
        found = index.repeated_rows(table, head)
        self._removed = sum(len(rows.positions) for rows in found)
        return found

    def _note_keys(self, plan: Plan) -> dict[str, str]:
        """Return the table property that says how the keys are compared, if it changes."""
        key = self._upsert_key(plan.layout, plan.table)
        if key is None or not key.is_decoded:
            return {}
        index, removed = self._upsert_index(plan.layout, plan.table), self._removed
        self._removed = 0
        if plan.key_definition == index.definition:
            return {}
        is_rebuilt = plan.table.current_snapshot() is not None
        rebuilt_at_ms = plan.now_ms if is_rebuilt else None
        return {
            KEYS: KeyState(
                columns=list(key.names),
                rebuilt_at_ms=rebuilt_at_ms,
                rows_removed=removed,
            ).model_dump_json()
        }

    def _summary(self, plan: Plan) -> dict[str, str]:
        """Return the summary of a batch's snapshot."""
        key = self._upsert_key(plan.layout, plan.table)
        if key is None or not key.is_decoded:
            return plan.properties
        definition = self._upsert_index(plan.layout, plan.table).definition
        return plan.properties | {summaries.KEY_DEFINITION: definition}

    def _keep_keys(self, plan: Plan, written: Written) -> None:
        """Keep the keys of new files while the next batch is read; after the last one, share them.

        Sharing takes as long as writing them, which records that wait do not have to wait for.
        """
        self._await_keys()
        table, keys = plan.table, written.keys
        index = self._index
        if keys is not None and self.spec.changelog is None:
            index = self._upsert_index(plan.layout, table)
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
        cut = self._ends
        start = {p: held.get(p, beginning[p]) for p in latest}
        latest = {p: min(end, max(start[p], cut.get(p, end))) for p, end in latest.items()}
        if (search := self._searching) is not None:
            first = {**start, **search.start}
            first = {p: min(first[p], latest[p]) for p in latest}
            ends = {p: min(e, latest[p]) for p, e in search.next_ends(SMALL_RECORDS, PARTS).items()}
            return plan_batch(name, first, beginning, {**first, **ends}, sys.maxsize, skip), None
        batch = plan_batch(name, held, beginning, latest, self._size.limit, skip)
        if batch.records <= SAMPLED_RECORDS:
            return batch, None
        sizes = record_bytes(self.endpoints, name, batch.ranges)
        only_files = self.spec.changelog is None  # the keys of changes are read into this process
        fitting, size = self._size.fit(sizes, batch.records, is_compressed=only_files)
        return plan_batch(name, held, beginning, batch.end, fitting, skip), size

    def _has_decoded_keys(self, layout: Layout, table: Table) -> bool:
        key = self._upsert_key(layout, table)
        return key is not None and key.is_decoded

    def _in_time_order(
        self, batch: Batch, beginning: Offsets, latest: Offsets, skip: set[Place]
    ) -> Batch:
        """Return the part of a batch whose records are older than all that it leaves for later.

        A key that has records in several partitions is deleted by the newest one only if that one
        is not read before the others. Of equal times, the lower partition comes first.

        :raises UnreachableError: the next record of a partition cannot be read now
        """
        left = {p: end for p, end in batch.end.items() if end < latest[p]}
        if not left or len(latest) < 2:
            return batch
        times = first_times(self.endpoints, self.spec.name, left, is_needed=True)
        if not (known := {p: time_ for p, time_ in times.items() if time_ >= 0}):
            return batch
        first = min(known.values())
        found = batch.until(self._ends_before(batch, first))
        if found.records:
            return found
        through, limit = self._ends_before(batch, first + 1), self._size.limit
        for p, start in sorted(batch.start.items()):
            end = min(through.get(p, latest[p]), latest[p], start + limit)
            if end > start:
                ends = {**batch.start, p: end}
                return plan_batch(self.spec.name, batch.start, beginning, ends, limit, skip)
        return batch  # the times of a partition go back

    def _ends_before(self, batch: Batch, time_ms: int) -> Offsets:
        """Return the first offset at a time or later, of each partition that has one."""
        later = kafka.offsets_at(self.endpoints, self.spec.name, time_ms)
        return {p: max(s, later[p]) for p, s in batch.start.items() if later.get(p, -1) >= 0}

    def _failing(self, table: Table, start: Offsets) -> dict[Place, skips.Skip]:
        """Return the records that fail by themselves, of those that are still to come."""
        request = requests.read_request(self.config, self.spec.name)
        resumed_ms = request.resumed_at * 1000 if request else 0
        return {
            place: known
            for place, known in skips.failing(table).items()
            if known.offset >= start.get(known.partition, 0)
            and known.at_ms >= resumed_ms  # else it is tried again
        }

    def _check_suspended(
        self, batch: Batch, failing: Mapping[Place, skips.Skip], requested: Collection[Place]
    ) -> None:
        """:raises TableflowError: the topic stops before a record that fails by itself (SUSPEND)

        :param requested: records that users requested to skip
        """
        left = sorted((batch.skipped & failing.keys()).difference(requested))
        if left and self.spec.tableflow.error_handling.mode == "SUSPEND":
            name, (partition, offset) = self.spec.name, left[0]
            raise TableflowError(
                f"topic {name}, partition {partition}, offset {offset}: the record cannot be "
                f"decoded: {failing[left[0]].reason}",
                hint=f"run `topicberg tableflow skip {name} {partition} {offset}` to leave the "
                f"record out, or `topicberg tableflow resume {name}` to try it again",
            )

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

    def _look_up_foreign(self, named: Iterable[str]) -> bool:
        """Look up schemas in the contexts of the keys and of the values."""
        schemas = named_schemas(named)
        found = [foreign.look_up(schemas) for foreign in {*self._foreign.values()}]
        return any(found)

    def _fold(self, plan: Plan, read: ChangesRead) -> Folded:
        """Return what a batch of changes makes of the current rows."""
        table, batch = plan.table, plan.batch
        head, keys = table.current_snapshot(), key_names(plan.layout)
        subject = plan.layout.key.subject
        may_move = subject is not None and len(subject.schemas) > 1
        may_move |= State.load(table.properties).has_fewer_partitions(len(batch.end))
        target = Target(self.spec, table, head, self._key_index(table, keys), keys)
        progress = Progress(batch, self._log_end, self._unread, may_move)
        self._progress = progress
        changes = Changes.joined(read.parts)
        folded = Folding(target, progress, changes, pa.concat_tables(read.lost)).fold()
        if folded.repeated:
            found = count(len(folded.repeated), "repeated change")
            logger.info("topic %s: left out %s of deleted rows", self.spec.name, found)
        self._refuse(plan, folded.refused)
        return folded

    def _files_of(self, plan: Plan, rows: NewRows) -> tuple[list[DataFile], BatchKeys]:
        """Write rows as data files; return these and their keys."""
        target, keys = WriteTarget.of(plan.table), WrittenKeys()
        with DataFileWriter(target, plan.table.io) as writer:
            for part, of_part in rows.parts():
                self._check_abandoned()
                keys.add(of_part, np.arange(len(of_part.high)), writer.write(part))
        return writer.files, keys.all()

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

    def _key_index(self, table: Table, decoded: Sequence[str]) -> KeyIndex:
        """Return the index of a change log.

        :param decoded: the columns of the key
        """
        self._await_keys()
        folder = key_folder(self.config, self.spec.name)
        if self._index is None or self._index.of != (
            (table.metadata.table_uuid, tuple(decoded), None)
        ):
            self._index = KeyIndex(folder, table, decoded, is_decoded=True)
        return self._index

    def _upsert_key(self, layout: Layout, table: Table) -> UpsertKey | None:
        """Return the key of an upsert table without a change log."""
        if self.spec.write_mode != "upsert" or self.spec.changelog is not None:
            return None
        known = layout.schema_ids, table.metadata.table_uuid, table.metadata.current_schema_id
        if self._key is None or self._key[0] != known:
            self._key = known, upsert_key(self.spec, layout, table.schema().fields)
        return self._key[1]

    def _upsert_index(self, layout: Layout, table: Table) -> KeyIndex:
        self._await_keys()
        key = self._upsert_key(layout, table)
        assert key is not None  # noqa: S101  the table is upserted
        self._index = index_of(
            self.config,
            self.spec.name,
            table,
            key,
            RawKeys(layout.key, key, self._foreign[KEY]).texts,
            self._index,
        )
        return self._index

    def _malformed(self, place: Place, reason: str) -> TableflowError:
        """Return the error of a topic that stops before a malformed record."""
        name, (partition, offset) = self.spec.name, place
        return TableflowError(
            f"topic {name}, partition {partition}, offset {offset}: {reason}",
            hint=f"fix the producer, or run `topicberg tableflow enable {name} --error-handling "
            "LOG` to send such records to a dead-letter topic (SKIP leaves them out)",
        )


def _number(snapshot: Snapshot | None, key: str) -> int:
    return int(summaries.summary(snapshot).get(key, 0)) if snapshot else 0


def _reader_of(head: Snapshot | None) -> Reader | None:
    """Return what read the batch of a snapshot; None: it is not of a batch, or not known."""
    found = summaries.summary(head).get(summaries.READER) if head else None
    return cast("Reader", found) if found in get_args(Reader) else None


def _skipped(properties: Mapping[str, str]) -> int:
    """Return how many records were left out since the table was created."""
    return int(properties.get(summaries.ROWS_SKIPPED, 0))


def run_once(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> Commit:
    """Commit all that the topic holds now; return the last commit, with the rows of all."""
    target = kafka.end_offsets(endpoints, spec.name)
    ingestor = Ingestor(spec, endpoints, config)
    records = rows = 0
    try:
        while True:
            last = ingestor.step()
            records, rows = records + last.records, rows + last.rows
            if all(last.end_offsets.get(p, 0) >= offset for p, offset in target.items()):
                return replace(last, records=records, rows=rows)
    finally:
        ingestor.close()
