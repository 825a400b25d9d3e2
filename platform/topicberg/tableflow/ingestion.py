"""One topic in the engine's service: when its next turn is due, what a turn does, and its status.

The service observes the ends of all topics together (:meth:`Ingestion.observe`). A topic gets a
turn when it has records and its interval has passed or a batch is full, when something about the
topic changed, when a failure is to be tried again, and now and then to find what others changed in
its table or its schemas.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import zlib

from confluent_kafka.schema_registry import SchemaRegistryClient

from topicberg import kafka
from topicberg.clients.lineage import TopicLineage
from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError, TopicbergError, UnreachableError, safe
from topicberg.iceberg import delta
from topicberg.kafka.consumer import first_times
from topicberg.kafka.ends import Ends
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow import failures
from topicberg.tableflow.batch_plan import Commit
from topicberg.tableflow.engine import AbandonedError, Ingestor
from topicberg.tableflow.sessions import Sessions
from topicberg.tableflow.sizing import SMALL_RECORDS
from topicberg.tableflow.status import (
    FailingFormat,
    OpenTransaction,
    TopicStatus,
    Unavailable,
    give_up_status,
    read_status,
    write_status,
)
from topicberg.topics import TopicSpec, check_topics
from topicberg.topics.spec import metadata_description

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 15.0
SUSPENDED_RETRY_SECONDS = 30.0
"""How often a suspended topic is tried again: once the cause is fixed, it resumes by itself."""
PENDING_SECONDS = 30.0
"""A topic whose turns have failed for longer is FAILED; it is tried again all the same."""
OPEN_SECONDS = 10.0
"""A transaction that has been open for less time is not reported."""


def has_failed(since_ms: int, now_ms: int) -> bool:
    """Return whether failures since a time make a topic FAILED."""
    return now_ms - since_ms >= PENDING_SECONDS * 1000


class Ingestion:
    """A topic of the service. Turns are not concurrent; all else may be called by other threads."""

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        sessions: Sessions,
        registry: SchemaRegistryClient | None = None,
        counters: dict[str, int] | None = None,
        engine: str | None = None,
    ) -> None:
        """:param counters: of the ingestion that this one replaces, by their names
        :param engine: the name of this engine
        """
        self.spec = spec
        self.is_running = False
        """Whether a worker has the topic; only the service changes it."""
        self.is_stopped = False
        self._endpoints = endpoints
        self._config = config
        self._sessions = sessions
        self._registry = registry
        self._ingestor: Ingestor | None = None
        self._abandoned = threading.Event()
        self._backoff = FIRST_BACKOFF_SECONDS
        self._retry_at: float | None = 0.0
        """When to try again; None: the last turn succeeded."""
        self._committed_at = -math.inf
        self._phase = zlib.crc32(spec.name.encode()) / 1000
        """In seconds; it counts modulo the commit interval."""
        self._inspected_at = 0.0
        self._is_woken = False
        self._ends: Ends | None = None
        self._ended: Ends | None = None
        """The ends at which a turn found nothing to read."""
        self._topic_id: str | None = None
        self._stuck: dict[int, tuple[int, float]] = {}
        self._lock = threading.RLock()
        committed_at_ms = read_status(config, spec.name).committed_at_ms
        self.status = TopicStatus(
            topic=spec.name,
            committed_at_ms=committed_at_ms,
            engine=engine,
            write_mode=spec.write_mode.upper(),
            error_handling=spec.tableflow.error_handling.mode,
            **{"counting_since_ms": int(time.time() * 1000), **(counters or {})},
        )
        self._held_ms = committed_at_ms
        self._lineage: TopicLineage | None = None
        self._unavailable: Unavailable | None = None
        self._unread_since_ms: int | None = None
        self._unreadable: Unavailable | None = None
        """Why the ends of the log cannot be read while a turn waits for records of it."""
        self._written = self.status
        self._written_at = -math.inf

    @property
    def shown(self) -> TopicStatus:
        """The status, as users see it."""
        missing = self._unavailable or self._unreadable
        return self.status if missing is None else self.status.without(missing)

    def miss(self, service: Unavailable | None, spark: Unavailable | None) -> None:
        """Show that a service does not answer.

        :param spark: Spark, which only topics that wait for a large batch may need
        """
        with self._lock:
            self._unavailable = service or (spark if any(self.status.lag.values()) else None)
            self._write()

    def wake(self) -> None:
        """Let the next turn be due now."""
        self._is_woken = True

    def take(self) -> None:
        """Begin a turn, which a worker then runs."""
        self.is_running = True
        self._abandoned.clear()

    def abandon(self) -> None:
        """Let the running turn end without a commit: the topic belongs to another engine."""
        self._abandoned.set()
        if (ingestor := self._ingestor) is not None:
            ingestor.interrupt()

    def give_up(self) -> None:
        """Write that this engine does not have the topic any more, unless another one took it."""
        with self._lock:
            self.is_stopped = True
            give_up_status(self._config, self.status)

    # --- when a turn is due ---

    @property
    def held(self) -> Offsets | None:
        """The first offset of each partition that the table lacks; None: not known yet."""
        return (self.status.end_offsets or None) if self._ingestor is not None else None

    @property
    def is_small(self) -> bool:
        """Whether the next turn is likely to be short: it delays other topics little."""
        return self._retry_at is None and self._readable() <= SMALL_RECORDS

    def due_at(self, inspection_seconds: float) -> float:
        """Return the time (monotonic) from which a turn is due.

        :param inspection_seconds: after which a topic without new records has a turn
        """
        if self._is_woken:
            return 0.0
        if self._retry_at is not None:
            return self._retry_at
        ingestor, inspection = self._ingestor, self._inspected_at + inspection_seconds
        if ingestor is None or self._has_changed():
            return self._inspected_at
        if not (readable := self._readable()):
            return inspection
        if readable >= ingestor.max_records:
            return self._inspected_at
        return max(self._next_commit(), self._inspected_at)

    def _next_commit(self) -> float:
        """Return when records that are too few for a batch are committed: at most an interval after
        the last commit ended.

        Each topic has a phase of its own, to which its commits move: those of topics whose records
        arrived at the same time would otherwise be due at the same time for ever.
        """
        interval = self.spec.tableflow.commit_interval_seconds
        if math.isinf(self._committed_at):
            return self._committed_at
        until_phase = (self._phase - self._committed_at) % interval
        is_far = until_phase >= interval / 2  # else two commits would be close to each other
        return self._committed_at + (until_phase if is_far else interval / 2)

    def _readable(self) -> int:
        """Return how many records wait, as far as is known."""
        ends = self._ends
        if ends is None or ends == self._ended:
            return 0
        held = self.status.end_offsets
        return sum(max(0, end - held.get(p, 0)) for p, end in ends.stable.items())

    def _has_changed(self) -> bool:
        """Return whether the log is not the one that the table holds: a turn finds what it is."""
        ends = self._ends
        if ends is None or ends == self._ended:
            return False
        if self._topic_id is not None and ends.topic_id != self._topic_id:
            return True
        return any(ends.high.get(p, -1) < offset for p, offset in self.status.end_offsets.items())

    # --- what the service observes ---

    def observe(self, ends: Ends | TopicbergError, write_seconds: float = 0.0) -> Offsets:
        """Take note of the ends of the topic's log.

        :param write_seconds: the least time between two writes of a status whose lag changes
        :returns: partition → first offset of a transaction whose age is not known yet; see
            :meth:`note_transactions`
        """
        with self._lock:
            if isinstance(ends, TopicbergError):
                if self.is_running:
                    self._note_unreadable(ends)
                elif self._retry_at is None:
                    logger.warning("topic %s: %s", self.spec.name, ends)
                    self._postpone(ends)
                return {}
            self._unread_since_ms = self._unreadable = None
            self._ends = ends
            end_offsets = self.status.end_offsets
            if not end_offsets:
                return {}
            lag = {p: max(0, end - end_offsets.get(p, 0)) for p, end in ends.high.items()}
            if self._ingestor is not None and not any(lag.values()):
                self._ingestor.current_offsets = end_offsets
                self._ingestor.current_ms = int(time.time() * 1000)
            stable = ends.stable
            stuck = {p: stable[p] for p, end in ends.high.items() if stable.get(p, end) < end}
            transactions, new = self._open_transactions(stuck)
            if (lag, transactions) != (self.status.lag, self.status.open_transactions):
                changes = {"lag": lag, "open_transactions": transactions}
                self.status = self.status.model_copy(update=changes)
            if self.status is self._written:
                return new
            if transactions or time.monotonic() - self._written_at >= write_seconds:
                self._write()
            return new

    def _note_unreadable(self, error: TopicbergError) -> None:
        """Show, from the second poll that fails on, why the turn that runs gets no records.

        It waits for a minute before it fails, and then says no more than that none came.
        """
        if self._unread_since_ms is None:
            self._unread_since_ms = int(time.time() * 1000)
            return
        self._unreadable = Unavailable(str(error), self._unread_since_ms)
        self._write()

    def _open_transactions(self, stuck: Offsets) -> tuple[dict[int, OpenTransaction], Offsets]:
        """Return the known transactions that hold records back, and the new ones among them.

        New ones have been open for :data:`OPEN_SECONDS`.

        :param stuck: partition → first offset that consumers cannot read
        """
        now = time.monotonic()
        self._stuck = {
            p: self._stuck[p] if self._stuck.get(p, (None,))[0] == offset else (offset, now)
            for p, offset in stuck.items()
        }
        known = self.status.open_transactions
        transactions = {
            p: known[p] for p, o in stuck.items() if p in known and known[p].offset == o
        }
        new = {
            p: offset
            for p, (offset, since) in self._stuck.items()
            if p not in transactions and now - since >= OPEN_SECONDS
        }
        return transactions, new

    def note_transactions(self, new: Offsets) -> None:
        """Report transactions that do not end, with the times of their first records.

        :raises TopicbergError: Kafka refuses to return the records
        """
        times = first_times(self._endpoints, self.spec.name, new)
        now_ms = int(time.time() * 1000)
        with self._lock:
            transactions = dict(self.status.open_transactions)
            for partition, offset in new.items():
                if self._stuck.get(partition, (None,))[0] != offset:
                    continue  # it has ended meanwhile
                since_ms = min(times.get(partition, now_ms), now_ms)
                transactions[partition] = OpenTransaction(offset=offset, since_ms=since_ms)
                logger.warning(
                    "topic %s, partition %d: a transaction has been open since offset %d",
                    *(self.spec.name, partition, offset),
                )
            self._report(open_transactions=transactions)

    # --- a turn ---

    def turn(self) -> None:
        """Commit the next batch, if there is one; a failure suspends the topic or is retried."""
        self._is_woken = False
        ends, began_ms = self._ends, int(time.time() * 1000)
        try:
            commit = self._step()
            with self._lock:
                self._topic_id = ends.topic_id if ends else None
                self._ended = None if commit.records or commit.backlog else ends
                self._retry_at, self._backoff = None, FIRST_BACKOFF_SECONDS
        except AbandonedError as error:
            logger.info("%s", error.message)
            self._retry_at = 0.0
        except TableflowError as error:
            logger.error("topic %s is suspended: %s", self.spec.name, error)
            self._failed(phase="FAILED", suspended=True, error_message=str(error))
            self._retry_at = time.monotonic() + SUSPENDED_RETRY_SECONDS
        except Exception as error:
            # Whatever failed (Spark, broker, catalog or store), the next turn starts from the
            # offsets that the table holds.
            if not isinstance(error, TopicbergError):
                error = failures.explain(f"topic {self.spec.name}", error)
            is_unanswered = isinstance(error, UnreachableError)
            if is_unanswered:
                error = self._missing_bucket() or error
            logger.warning("%s; trying again", error)
            if self._ingestor is not None:
                self._ingestor.forget()
            # Who waited for an answer has committed nothing since the turn began.
            self._postpone(error, began_ms if is_unanswered else None)
        finally:
            self._inspected_at = time.monotonic()

    def _step(self) -> Commit:
        ingestor = self._ingestor
        if ingestor is None:
            self._ensure_topic()
            shared = self._endpoints, self._config, self._sessions, self._registry
            ingestor = Ingestor(self.spec, *shared, self._abandoned, self._held_ms)
            if self._held_ms is None:
                ingestor.table()
            self._ingestor = ingestor
        commit = ingestor.step()
        if commit.records or self.status.phase != "RUNNING" or self._differs(commit):
            self._committed(commit)
            self._sync_delta(ingestor)
            self._report_lineage(commit, ingestor)
        if commit.records:
            self._committed_at = time.monotonic()
        return commit

    def _missing_bucket(self) -> TopicbergError | None:
        """Return the error of a table's bucket that does not exist: who reads it may be silent."""
        location = self._ingestor.location if self._ingestor is not None else None
        if location is None:
            return None
        subject = f"topic {self.spec.name}"
        return failures.missing_bucket(subject, location, self._endpoints, self._config)

    def _ensure_topic(self) -> None:
        """Create the topic if it is missing; if it differs from its spec, ingest it as it is.

        A topic without a spec is not created: its number of partitions is not known. An external
        topic is not either.
        """
        if self.spec.external:
            return
        described = self.spec.value_schema.file is not None
        if not described and self.spec.name not in {s.name for s in check_topics(self._config)[0]}:
            return
        try:
            kafka.ensure_topic(self.spec, self._endpoints, self._config)
        except TopicbergError as error:
            logger.warning("topic %s: %s", self.spec.name, error)

    def _differs(self, commit: Commit) -> bool:
        """Return whether the table differs from the status although there are no new records."""
        fields = ("end_offsets", "rows_skipped", "skip_requests", "missed_deletes", "keys")
        return any(getattr(commit, name) != getattr(self.status, name) for name in fields)

    def _report_lineage(self, commit: Commit, ingestor: Ingestor) -> None:
        """Report a commit to the receiver of lineage, if there is one; nothing of it may fail."""
        if not commit.records:
            return
        try:
            if self._lineage is None:
                self._lineage = TopicLineage(self.spec.name, self._endpoints.kafka_bootstrap)
            if not self._lineage.is_due(commit.rows, commit.bytes):
                return
            table = ingestor.table()
            names = [each.name for each in table.schema().fields]
            of_record = [name for name in names if metadata_description(name) is None]
            self._lineage.report(table, of_record)
        except Exception as error:  # the batch is committed
            logger.warning("topic %s: its lineage is not reported: %s", self.spec.name, safe(error))

    def _sync_delta(self, ingestor: Ingestor) -> None:
        """Update the Delta log, if the topic has one; its failure does not stop Iceberg.

        :raises TopicbergError: the table cannot be read, which is not a failure of Delta
        """
        failing: list[FailingFormat] = []
        if "DELTA" in self.spec.tableflow.table_formats:
            table = ingestor.table()
            try:
                delta.sync(table, self.spec)
            except TopicbergError as error:
                logger.warning("topic %s: %s", self.spec.name, error)
                failing.append(FailingFormat(format="DELTA", error_message=str(error)))
        self._report(failing_table_formats=failing)

    def _committed(self, commit: Commit) -> None:
        if commit.records:
            logger.info(
                "topic %s: committed %d rows in snapshot %s",
                *(self.spec.name, commit.rows, commit.snapshot_id),
            )
        now_ms = int(time.time() * 1000)
        with self._lock:
            status, ends = self.status, self._ends
            end_offsets, high = commit.end_offsets, ends.high if ends else {}
            self._report(
                phase="RUNNING",
                suspended=False,
                error_message=None,
                failing_since_ms=None,
                snapshot_id=commit.snapshot_id,
                end_offsets=end_offsets,
                lag={p: max(0, end - end_offsets.get(p, 0)) for p, end in high.items()},
                rows_committed=status.rows_committed + commit.rows,
                rows_skipped=commit.rows_skipped,
                records_read=status.records_read + commit.records_read,
                records_skipped=status.records_skipped + commit.records_skipped,
                records_dead_lettered=status.records_dead_lettered + commit.records_dead_lettered,
                skip_requests=commit.skip_requests,
                missed_deletes=commit.missed_deletes,
                keys=commit.keys,
                reader=commit.reader or status.reader,
                bytes_committed=status.bytes_committed + commit.bytes,
                data_files=commit.data_files,
                commits=status.commits + bool(commit.records),
                committed_at_ms=now_ms if commit.records else status.committed_at_ms,
            )

    def _postpone(self, error: Exception, began_ms: int | None = None) -> None:
        """Report a failure that may pass, and try again after a wait that doubles each time.

        :param began_ms: when it began; None: now
        """
        if isinstance(error, kafka.NoSuchTopicError) and self.status.end_offsets:
            error = _deleted(self.spec.name)
        self._failed(began_ms, phase="PENDING", suspended=False, error_message=str(error))
        self._retry_at = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, MAX_BACKOFF_SECONDS)

    def _failed(self, began_ms: int | None = None, **changes: object) -> None:
        with self._lock:
            now_ms = int(time.time() * 1000)
            since = self.status.failing_since_ms or began_ms or now_ms
            if has_failed(since, now_ms):
                changes["phase"] = "FAILED"
            self._report(**changes, failures=self.status.failures + 1, failing_since_ms=since)

    def _report(self, **changes: object) -> None:
        with self._lock:
            self.status = self.status.model_copy(update=changes)
            self._write()

    def _write(self) -> None:
        with self._lock:
            shown = self.shown
            if self.is_stopped or shown == self._written:
                return
            try:
                write_status(self._config, shown)
            except OSError as error:  # e.g. a full disk; the next report writes it
                logger.warning("topic %s: the status cannot be written: %s", self.spec.name, error)
            else:
                self._written, self._written_at = shown, time.monotonic()


def _deleted(topic: str) -> TopicbergError:
    """Return the error of a topic that does not exist any more, and whose table has its records."""
    return TopicbergError(
        f"topic {topic} was deleted; its table has the records that were committed",
        hint=f"to keep the table as it is, run `topicberg tableflow disable {topic}`; to start "
        "again, create the topic and drop the table",
    )
