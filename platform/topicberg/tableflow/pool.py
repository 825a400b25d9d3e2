"""The workers of the engine's service, and the poll that finds which topics they have to work on.

However many topics there are, one thread polls the ends of all logs, and a few workers commit
batches. The topic whose turn has been due for the longest is next, and it gives up its worker after
each batch. Turns that may take long (a backlog, a failure that is tried again, a topic's first
turn) never have all workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka.ends import EndReader
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.ingestion import Ingestion
from topicberg.tableflow.sessions import Sessions
from topicberg.tableflow.status import Unavailable, note_observation
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 5.0
POLL_SHARE = 0.04
"""The share of a core that the poll may take: with a thousand topics it is less frequent."""
TICK_SECONDS = 0.25
"""How often due topics are looked for between two polls."""
INSPECTIONS_PER_SECOND = 2.0
"""How many topics without new records have a turn, to find changes that others made to their tables
or schemas."""
MIN_INSPECTION_SECONDS = 5.0
ABANDON_SECONDS = 5.0
"""How long a turn may take to end after it was abandoned."""
STATUSES_PER_SECOND = 50.0
"""How many status files are written only because the lag changed."""


def poll_seconds(used: float) -> float:
    """Return the time between two polls, given the CPU time of one."""
    return min(MAX_POLL_SECONDS, max(POLL_SECONDS, used / POLL_SHARE))


class Pool:
    """Ingests topics until it is stopped."""

    def __init__(self, endpoints: Endpoints, config: Settings, engine: str | None = None) -> None:
        """:param engine: the name of this engine, for the statuses of its topics"""
        self._endpoints = endpoints
        self._config = config
        self._engine = engine
        workers = config.engine_workers
        self._most_long_turns = max(1, workers - max(1, workers // 4))
        self._sessions = Sessions(endpoints, config)
        self._registry = endpoints.schema_registry_client()
        self._ends = EndReader(endpoints)
        self._topics: dict[str, Ingestion] = {}
        self._changed = threading.Condition()
        self._long_turns = 0
        self._is_stopped = False
        self._is_paused = False
        targets = {f"tableflow-{number}": self._work for number in range(workers)}
        targets["tableflow-poll"] = self._poll
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in targets.items()
        ]
        self._transactions = ThreadPoolExecutor(1, "tableflow-transactions")
        self._requested: dict[str, Offsets] = {}
        self._missing: tuple[Unavailable | None, Unavailable | None] = None, None
        self.polled_at = time.monotonic()
        """When the thread that polls last worked."""

    @property
    def topics(self) -> dict[str, Ingestion]:
        """The topics, by name; a copy."""
        with self._changed:
            return dict(self._topics)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """Begin no more turns; wait a while for those that run, then abandon them."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._transactions.shutdown(wait=False, cancel_futures=True)
        self._wait(seconds)
        self._abandon(list(self.topics.values()))
        self._wait(ABANDON_SECONDS)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def pause(self) -> None:
        """Begin no more turns until :meth:`resume`, and abandon those that run."""
        with self._changed:
            self._is_paused = True
            running = [topic for topic in self._topics.values() if topic.is_running]
        self._abandon(running)

    def resume(self) -> None:
        """Begin turns again."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def give_up(self, names: Iterable[str], seconds: float) -> None:
        """Leave topics to another engine, when this returns.

        :param seconds: how long turns that run may take before they are abandoned
        """
        with self._changed:
            topics = [self._topics.pop(name) for name in names if name in self._topics]
            for topic in topics:
                topic.report.is_stopped = True
            self._changed.wait_for(lambda: not any(t.is_running for t in topics), seconds)
            running = [topic for topic in topics if topic.is_running]
        self._abandon(running)
        with self._changed:
            self._changed.wait_for(lambda: not any(t.is_running for t in running), ABANDON_SECONDS)
        for topic in topics:
            topic.report.give_up()

    @staticmethod
    def _abandon(topics: Iterable[Ingestion]) -> None:
        for topic in topics:
            if topic.is_running:
                logger.info("topic %s: the running batch is abandoned", topic.spec.name)
                topic.abandon()

    def add(self, spec: TopicSpec) -> None:
        """Ingest a topic by a spec from now on; the counters of an earlier spec continue."""
        with self._changed:
            if (before := self._topics.get(spec.name)) is not None:
                before.report.is_stopped = True
            counters = before.report.status.counters() if before is not None else None
            shared = self._endpoints, self._config, self._sessions, self._registry
            topic = Ingestion(spec, *shared, counters, self._engine)
            self._topics[spec.name] = topic
            if any(self._missing):
                topic.report.miss(*self._missing)
            self._changed.notify()

    def remove(self, name: str, seconds: float) -> None:
        """Stop to ingest a topic, and wait a while for its turn if it has one."""
        with self._changed:
            if (topic := self._topics.pop(name, None)) is None:
                return  # it was given up meanwhile
            topic.report.is_stopped = True
            self._changed.wait_for(lambda: not topic.is_running, seconds)

    def wake(self, name: str) -> None:
        """Let a topic have a turn now."""
        with self._changed:
            if name in self._topics:
                self._topics[name].schedule.is_woken = True
                self._changed.notify()

    @property
    def missing(self) -> Unavailable | None:
        """The service that does not answer, of those without which nothing is committed."""
        return self._missing[0]

    def miss(self, service: Unavailable | None, spark: Unavailable | None) -> None:
        """Let the statuses say which services do not answer; None: they do."""
        if (service, spark) == (None, None) == self._missing:
            return
        with self._changed:
            self._missing = service, spark
            topics = list(self._topics.values())
        for topic in topics:
            topic.report.miss(service, spark)

    # --- the poll ---

    def _poll(self) -> None:
        due = time.monotonic()
        while not self._is_stopped:
            self.polled_at = time.monotonic()
            if (now := time.monotonic()) >= due:
                used = time.thread_time()
                try:
                    self._observe()
                except Exception:  # the next poll may succeed
                    logger.exception("the ends of the topics are not known")
                due = now + poll_seconds(time.thread_time() - used)
            with self._changed:
                now, wait = time.monotonic(), self._inspection_seconds()
                count = sum(
                    not topic.is_running and topic.due_at(wait) <= now
                    for topic in self._topics.values()
                )
                self._changed.notify(count)
                self._changed.wait_for(lambda: self._is_stopped, TICK_SECONDS)

    def _observe(self) -> None:
        topics = self.topics
        held_offsets = {name: offsets for name, topic in topics.items() if (offsets := topic.held)}
        write_seconds = len(held_offsets) / STATUSES_PER_SECOND
        try:
            ends_by_topic = self._ends.read(held_offsets)
        except TopicbergError as error:
            ends_by_topic = dict.fromkeys(held_offsets, error)
        for name, ends in ends_by_topic.items():
            if new := topics[name].observe(ends, write_seconds):
                self._note_transactions(topics[name], new)
        if not ends_by_topic or any(
            not isinstance(ends, TopicbergError) for ends in ends_by_topic.values()
        ):
            note_observation(self._config)

    def _note_transactions(self, topic: Ingestion, new: Offsets) -> None:
        """Read the times of transactions in another thread: it takes seconds."""
        if self._requested.get(topic.spec.name) == new:
            return
        self._requested[topic.spec.name] = new

        def note() -> None:
            try:
                topic.note_transactions(new)
            except TopicbergError as error:
                logger.warning("topic %s: %s", topic.spec.name, error)
            finally:
                self._requested.pop(topic.spec.name, None)

        self._transactions.submit(note)

    def _inspection_seconds(self) -> float:
        return max(MIN_INSPECTION_SECONDS, len(self._topics) / INSPECTIONS_PER_SECOND)

    # --- the workers ---

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            topic, is_small = taken
            try:
                topic.turn()
            except BaseException:  # a turn handles its failures; the worker must not end
                logger.exception("topic %s: unexpected failure", topic.spec.name)
            with self._changed:
                topic.is_running = False
                self._long_turns -= not is_small
                if topic.report.is_stopped:
                    self._changed.notify_all()

    def _take(self) -> tuple[Ingestion, bool] | None:
        """Wait for a topic whose turn is due; None: the pool is stopped."""
        with self._changed:
            while not self._is_stopped:
                topic = self._next()
                if topic is not None:
                    is_small = topic.is_small
                    topic.take()
                    self._long_turns += not is_small
                    return topic, is_small
                self._changed.wait()
        return None

    def _next(self) -> Ingestion | None:
        """Return the topic that has been due for the longest and for which there is room."""
        if self._is_paused:
            return None
        now, wait = time.monotonic(), self._inspection_seconds()
        has_room = self._long_turns < self._most_long_turns
        first, next_topic = now, None
        for topic in self._topics.values():
            if topic.is_running or (due_at := topic.due_at(wait)) > first:
                continue
            if (next_topic is None or due_at < first) and (has_room or topic.is_small):
                first, next_topic = due_at, topic
        return next_topic
