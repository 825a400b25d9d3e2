"""The threads of the engine's service: a few workers, and one that polls.

However many topics there are, one thread polls the ends of all logs (:mod:`.log_poll`), and a few
workers commit batches. A topic gives up its worker after each batch (:mod:`.turn_queue`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from topicberg.endpoints import Endpoints
from topicberg.settings import Settings
from topicberg.tableflow.service.engine import spark_sessions
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.service.log_poll import LogPoll
from topicberg.tableflow.service.status import Unavailable
from topicberg.tableflow.service.turn_queue import TurnQueue
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 5.0
POLL_SHARE = 0.04
"""The share of a core that the poll may take: with a thousand topics it is less frequent."""
TICK_SECONDS = 0.25
"""How often due topics are looked for between two polls."""
ABANDON_SECONDS = 5.0
"""How long a turn may take to end after it was abandoned."""


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
        self._sessions = spark_sessions(endpoints, config)
        self._registry = endpoints.schema_registry_client()
        self._logs = LogPoll(endpoints, config)
        self.queue = TurnQueue(config.engine_workers)
        targets = {f"tableflow-{number}": self._work for number in range(config.engine_workers)}
        targets["tableflow-poll"] = self._poll
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in targets.items()
        ]
        self._missing: tuple[Unavailable | None, Unavailable | None] = None, None
        self.polled_at = time.monotonic()
        """When the thread that polls last worked."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """Begin no more turns; wait a while for those that run, then abandon them."""
        self.queue.stop()
        self._logs.stop()
        self._wait(seconds)
        _abandon(self.queue.topics.values())
        self._wait(ABANDON_SECONDS)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def pause(self) -> None:
        """Begin no more turns until the queue resumes, and abandon those that run."""
        _abandon(self.queue.pause())

    def add(self, spec: TopicSpec) -> None:
        """Ingest a topic by a spec from now on; the counters of an earlier spec continue."""

        def make(before: Ingestion | None) -> Ingestion:
            topic = Ingestion(
                spec,
                self._endpoints,
                self._config,
                self._sessions,
                self._registry,
                before,
                self._engine,
            )
            if any(self._missing):
                topic.report.miss(*self._missing)
            return topic

        self.queue.put(spec.name, make)

    def remove(self, name: str, seconds: float) -> None:
        """Stop to ingest a topic, and wait a while for its turn if it has one."""
        self.queue.wait_for_turns(self.queue.remove([name]), seconds)

    def give_up(self, names: Iterable[str], seconds: float) -> None:
        """Leave topics to another engine, when this returns.

        :param seconds: how long turns that run may take before they are abandoned
        """
        topics = self.queue.remove(names)
        running = self.queue.wait_for_turns(topics, seconds)
        _abandon(running)
        self.queue.wait_for_turns(running, ABANDON_SECONDS)
        for topic in topics:
            topic.report.give_up()

    @property
    def missing(self) -> Unavailable | None:
        """The service that does not answer, of those without which nothing is committed."""
        return self._missing[0]

    def miss(self, service: Unavailable | None, spark: Unavailable | None) -> None:
        """Let the statuses say which services do not answer; None: they do."""
        if (service, spark) == (None, None) == self._missing:
            return
        is_back = self._missing[0] is not None and service is None
        self._missing = service, spark  # before the topics are read: one that is added has it
        for name, topic in self.queue.topics.items():
            topic.report.miss(service, spark)
            if is_back:
                self.queue.wake(name)

    def _poll(self) -> None:
        due = time.monotonic()
        while not self.queue.is_stopped:
            self.polled_at = time.monotonic()
            if (now := time.monotonic()) >= due:
                used = time.thread_time()
                try:
                    self._logs.observe(self.queue.topics)
                except Exception:  # the next poll may succeed
                    logger.exception("the ends of the topics are not known")
                due = now + poll_seconds(time.thread_time() - used)
            self.queue.notify_due(TICK_SECONDS)

    def _work(self) -> None:
        while (taken := self.queue.take()) is not None:
            topic, is_small = taken
            try:
                topic.turn()
            except BaseException:  # a turn handles its failures; the worker must not end
                logger.exception("topic %s: unexpected failure", topic.spec.name)
            self.queue.end_turn(topic, is_small)


def _abandon(topics: Iterable[Ingestion]) -> None:
    for topic in topics:
        if topic.is_running:
            logger.info("topic %s: the running batch is abandoned", topic.spec.name)
            topic.abandon()
