"""One topic in the engine's service: what the service observes of it, and what a turn does.

The service observes the ends of all topics together (:meth:`Ingestion.observe`). A topic gets a
turn when it has records and its interval has passed or a batch is full, when something about the
topic changed, when a failure is to be tried again, and now and then to find what others changed in
its table or its schemas.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka.schema_registry import SchemaRegistryClient
from pyiceberg.table import Table

from topicberg.clients.lineage import TopicLineage
from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError, TopicbergError, UnreachableError, safe
from topicberg.errors.meaning import explain
from topicberg.iceberg import delta
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.ends import Ends
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import Commit
from topicberg.tableflow.batch.sizing import SMALL_RECORDS
from topicberg.tableflow.decode.sessions import Sessions
from topicberg.tableflow.service.engine import AbandonedError, Ingestor
from topicberg.tableflow.service.status import FailingFormat, OpenTransaction
from topicberg.tableflow.service.status_report import StatusReport
from topicberg.tableflow.service.turn_schedule import LogWatch, TurnSchedule
from topicberg.topics import TopicSpec, check_topics, requests
from topicberg.topics.spec import metadata_description

logger = logging.getLogger(__name__)

SUSPENDED_RETRY_SECONDS = 30.0
"""How often a suspended topic is tried again: once the cause is fixed, it resumes by itself. A
paused one looks as often whether it is resumed, if the request was not noticed."""


class Ingestion:
    """A topic of the service. Turns are not concurrent; all else may be called by other threads."""

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        sessions: Sessions,
        registry: SchemaRegistryClient | None = None,
        before: Ingestion | None = None,
        engine: str | None = None,
    ) -> None:
        """:param before: the ingestion that this one replaces, which is stopped
        :param engine: the name of this engine
        """
        self.spec = spec
        self.is_running = False  # Whether a worker has the topic; only the queue changes it.
        report = before.report if before is not None else None
        self.report: StatusReport = StatusReport(spec, config, report, engine)
        self.log = LogWatch()
        self.schedule = TurnSchedule(spec, self.log)
        self._endpoints, self._config = endpoints, config
        self._shared = sessions, registry
        self._ingestor: Ingestor | None = None
        self._abandoned = threading.Event()
        self._lineage: TopicLineage | None = None

    def take(self) -> None:
        """Begin a turn, which a worker then runs."""
        self.is_running = True
        self._abandoned.clear()

    def abandon(self) -> None:
        """Let the running turn end without a commit: the topic is paused, or another engine's."""
        self._abandoned.set()
        if (ingestor := self._ingestor) is not None:
            ingestor.interrupt()

    @property
    def held(self) -> Offsets | None:
        """The first offset of each partition that the table lacks; None: not known yet."""
        if (ingestor := self._ingestor) is None and not self.report.status.paused:
            return None
        return self.report.status.end_offsets or (ingestor and ingestor.start) or None

    @property
    def is_small(self) -> bool:
        """Whether the next turn is likely to be short: it delays other topics little."""
        offsets = self.report.status.end_offsets
        return self.schedule.retry_at is None and self.log.readable(offsets) <= SMALL_RECORDS

    def due_at(self, inspection_seconds: float) -> float:
        """Return when (monotonic) a turn is due, without new records after some seconds."""
        full = self._ingestor.limits.size.limit if self._ingestor is not None else None
        return self.schedule.due_at(inspection_seconds, self.report.status.end_offsets, full)

    def observe(self, ends: Ends | TopicbergError, write_seconds: float = 0.0) -> Offsets:
        """Take note of the ends of the topic's log.

        :param write_seconds: the least time between two writes of a status whose lag changes
        :returns: partition → first offset of a transaction whose age is not known yet; see
            :meth:`note_transactions`
        """
        with self.report.lock:
            if isinstance(ends, TopicbergError):
                if self.is_running:
                    self.report.note_unreadable(ends)
                elif self.schedule.retry_at is None:
                    logger.warning("topic %s: %s", self.spec.name, ends)
                    self._postpone(ends)
                return {}
            self.report.note_readable()
            self.log.ends = ends
            status = self.report.status
            if not (offsets := self.held):
                return {}
            lag = self.log.lag(offsets)
            if self._ingestor is not None and not any(lag.values()):
                self._ingestor.current_offsets = offsets
                self._ingestor.current_ms = int(time.time() * 1000)
            transactions, new = self.log.open_transactions(status.open_transactions)
            self.report.note_log(lag, transactions, write_seconds)
            return new

    def note_transactions(self, new: Offsets) -> None:
        """Report transactions that do not end, with the times of their first records.

        :raises TopicbergError: Kafka refuses to return the records
        """
        times = consumer.first_times(self._endpoints, self.spec.name, new)
        now_ms = int(time.time() * 1000)
        with self.report.lock:
            transactions = dict(self.report.status.open_transactions)
            for partition, offset in new.items():
                if self.log.is_stuck(partition, offset):  # else it has ended meanwhile
                    since_ms = min(times.get(partition, now_ms), now_ms)
                    transactions[partition] = OpenTransaction(offset=offset, since_ms=since_ms)
                    message = "topic %s, partition %d: a transaction has been open since offset %d"
                    logger.warning(message, self.spec.name, partition, offset)
            self.report.update(open_transactions=transactions)

    def turn(self) -> None:
        """Commit the next batch, if there is one; a failure suspends the topic or is retried."""
        self.schedule.is_woken = False
        paused = self.report.status.paused
        if pause := requests.paused_by(self._config, self.spec.name, unreadable=paused):
            self.report.note_pause(pause)
            self.schedule.retry_at = time.monotonic() + SUSPENDED_RETRY_SECONDS
            return
        if paused:
            self.report.update(paused=None)
        ends, began_ms = self.log.ends, int(time.time() * 1000)
        try:
            commit = self._step()
            with self.report.lock:
                self.log.note_turn(ends, is_exhausted=not (commit.records or commit.backlog))
                self.schedule.succeed()
        except AbandonedError as error:
            logger.info("%s", error.message)
            self.schedule.retry_at = 0.0
        except TableflowError as error:
            logger.error("topic %s is suspended: %s", self.spec.name, error)
            self.report.note_failure(error, suspended=True)
            self.schedule.retry_at = time.monotonic() + SUSPENDED_RETRY_SECONDS
        except Exception as error:
            # Whatever failed (Spark, broker, catalog or store), the next turn starts from the
            # offsets that the table holds.
            if not isinstance(error, TopicbergError):
                error = explain(f"topic {self.spec.name}", error)
            logger.warning("%s; trying again", error)
            if self._ingestor is not None:
                self._ingestor.forget()
            # Who waited for an answer has committed nothing since the turn began.
            self._postpone(error, began_ms if isinstance(error, UnreachableError) else None)
        finally:
            self.schedule.inspected_at = time.monotonic()

    def _step(self) -> Commit:
        if (ingestor := self._ingestor) is None:
            where, held_ms = (self._endpoints, self._config), self.report.status.committed_at_ms
            _ensure_topic(self.spec, *where)
            ingestor = Ingestor(self.spec, *where, *self._shared, self._abandoned, held_ms)
            ingestor.report_progress = lambda text: self.report.update(activity=text)
            if held_ms is None:
                ingestor.table()
            self._ingestor = ingestor
        commit = ingestor.step()
        if commit.records or self.report.status.phase != "RUNNING" or self.report.differs(commit):
            self._after_commit(commit, ingestor)
        if commit.records:
            self.schedule.committed_at = time.monotonic()
        return commit

    def _after_commit(self, commit: Commit, ingestor: Ingestor) -> None:
        if commit.records:
            message = "topic %s: committed %d rows in snapshot %s"
            logger.info(message, self.spec.name, commit.rows, commit.snapshot_id)
        with self.report.lock:
            self.report.note_commit(commit, self.log.lag(commit.end_offsets))
        self.report.update(failing_table_formats=sync_delta(self.spec, ingestor.table))
        if commit.records:
            self._report_lineage(commit, ingestor)

    def _report_lineage(self, commit: Commit, ingestor: Ingestor) -> None:
        """Report a commit to the receiver of lineage, if there is one; nothing of it may fail."""
        try:
            if self._lineage is None:
                self._lineage = TopicLineage(self.spec.name, self._endpoints.kafka_bootstrap)
            if self._lineage.is_due(commit.rows, commit.bytes):
                table = ingestor.table()
                names = (field.name for field in table.schema().fields)
                self._lineage.report(table, [n for n in names if metadata_description(n) is None])
        except Exception as error:  # the batch is committed
            logger.warning("topic %s: its lineage is not reported: %s", self.spec.name, safe(error))

    def _postpone(self, error: Exception, began_ms: int | None = None) -> None:
        """Report a failure that may pass, which began now or then, and try again after a while."""
        if isinstance(error, kafka.NoSuchTopicError) and self.report.status.end_offsets:
            name = self.spec.name
            error = TopicbergError(
                f"topic {name} was deleted; its table has the records that were committed",
                hint=f"to keep the table as it is, run `topicberg tableflow disable {name}`; to go "
                f"on with it, create the topic, then run `topicberg tableflow continue {name}`",
            )
        self.report.note_failure(error, suspended=False, began_ms=began_ms)
        self.schedule.postpone()


def _ensure_topic(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
    """Create the topic if it is missing; if it differs from its spec, ingest it as it is. Neither
    an external topic is created nor one without a spec: how many partitions is not known."""
    is_described = spec.value_schema.file is not None
    if spec.external or not (
        is_described or spec.name in {s.name for s in check_topics(config)[0]}
    ):
        return
    try:
        kafka.ensure_topic(spec, endpoints, config)
    except TopicbergError as error:
        logger.warning("topic %s: %s", spec.name, error)


def sync_delta(spec: TopicSpec, load_table: Callable[[], Table]) -> list[FailingFormat]:
    """Update the Delta log, if the topic has one; its failure does not stop Iceberg.

    :returns: Delta, if it failed
    :raises TopicbergError: the table cannot be read, which is not a failure of Delta
    """
    if "DELTA" not in spec.tableflow.table_formats:
        return []
    table = load_table()
    try:
        delta.sync(table, spec)
    except TopicbergError as error:
        logger.warning("topic %s: %s", spec.name, error)
        return [FailingFormat(format="DELTA", error_message=str(error))]
    return []
