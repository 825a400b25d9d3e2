"""The threads of the engine's service: a few workers, and one that polls.

However many topics there are, one thread polls the ends of all logs (:class:`LogPoll`), and a few
workers commit batches. A topic gives up its worker after each batch (:class:`TurnQueue`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka.ends import EndReader
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.service.engine import spark_sessions
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.service.status import Unavailable, note_observation
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 5.0
POLL_SHARE = 0.04  # The share of a core that the poll may take: of many topics it is less frequent.
TICK_SECONDS = 0.25  # How often due topics are looked for between two polls.
ABANDON_SECONDS = 5.0  # How long a turn may take to end after it was abandoned.
INSPECTIONS_PER_SECOND = 2.0
"""How many topics without new records have a turn, to find changes that others made to their tables
or schemas."""
MIN_INSPECTION_SECONDS = 5.0
STATUSES_PER_SECOND = 50.0  # How many status files are written only because the lag changed.


def poll_seconds(used: float) -> float:
    """Return the time between two polls, given the CPU time of one."""
    return min(MAX_POLL_SECONDS, max(POLL_SECONDS, used / POLL_SHARE))


class Pool:
    """Ingests topics until it is stopped."""

    def __init__(self, endpoints: Endpoints, config: Settings, engine: str | None = None) -> None:
        """:param engine: the name of this engine, for the statuses of its topics"""
        sessions, registry = spark_sessions(endpoints, config), endpoints.schema_registry_client()
        self._engine, self._shared = engine, (endpoints, config, sessions, registry)
        self._logs = LogPoll(endpoints, config)
        self.queue = TurnQueue(config.engine_workers)
        targets = {f"tableflow-{number}": self._work for number in range(config.engine_workers)}
        targets["tableflow-poll"] = self._poll
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in targets.items()
        ]
        self._missing: tuple[Unavailable | None, Unavailable | None] = None, None
        self.polled_at = time.monotonic()  # When the thread that polls last worked.

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

    def wake(self, name: str, *, abandons: bool) -> None:
        """Let a topic have a turn now; ``abandons``: without a commit of the one that runs."""
        if abandons and (topic := self.queue.topics.get(name)) is not None:
            _abandon([topic])
        self.queue.wake(name)

    def add(self, spec: TopicSpec) -> None:
        """Ingest a topic by a spec from now on; the counters of an earlier spec continue."""

        def make(before: Ingestion | None) -> Ingestion:
            topic = Ingestion(spec, *self._shared, before, self._engine)
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


class LogPoll:
    """Reads the ends of all logs together, and lets each topic observe its own."""

    def __init__(self, endpoints: Endpoints, config: Settings) -> None:
        self._config, self._ends = config, EndReader(endpoints)
        self._transactions = ThreadPoolExecutor(1, "tableflow-transactions")
        self._requested: dict[str, Offsets] = {}  # By topic: the transactions whose times are read.

    def stop(self) -> None:
        """Read no more times of transactions."""
        self._transactions.shutdown(wait=False, cancel_futures=True)

    def observe(self, topics: Mapping[str, Ingestion]) -> None:
        """Let topics observe the ends of their logs, once it is known what their tables have."""
        held_offsets = {name: offsets for name, topic in topics.items() if (offsets := topic.held)}
        write_seconds = len(held_offsets) / STATUSES_PER_SECOND
        try:
            ends_by_topic = self._ends.read(held_offsets)
        except TopicbergError as error:
            ends_by_topic = dict.fromkeys(held_offsets, error)
        for name, ends in ends_by_topic.items():
            if new := topics[name].observe(ends, write_seconds):
                self._note_transactions(topics[name], new)
        failures = [isinstance(ends, TopicbergError) for ends in ends_by_topic.values()]
        if not failures or not all(failures):
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


class TurnQueue:
    """The topics of an engine, and which of them a worker takes next; safe to use from threads.

    The topic whose turn has been due for the longest is next. Turns that may take long (a backlog,
    a failure that is tried again, a topic's first turn) never have all workers.
    """

    def __init__(self, workers: int) -> None:
        self._topics: dict[str, Ingestion] = {}
        self._changed = threading.Condition()
        """Notified when a turn may be due, and when the turn of a stopped topic ends."""
        self._most_long_turns = max(1, workers - max(1, workers // 4))
        self._long_turns, self._is_paused = 0, False
        self.is_stopped = False  # Whether no turn begins any more.

    @property
    def topics(self) -> dict[str, Ingestion]:
        """The topics, by name; a copy."""
        with self._changed:
            return dict(self._topics)

    def stop(self) -> None:
        """Let no turn begin any more."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()

    def pause(self) -> list[Ingestion]:
        """Let no turn begin until :meth:`resume`; return the topics that have one."""
        with self._changed:
            self._is_paused = True
            return [topic for topic in self._topics.values() if topic.is_running]

    def resume(self) -> None:
        """Let turns begin again."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def put(self, name: str, make: Callable[[Ingestion | None], Ingestion]) -> None:
        """Add a topic; ``make`` returns it, given the one of that name, which it stops."""
        with self._changed:
            self._topics[name] = make(self._topics.get(name))
            self._changed.notify()

    def remove(self, names: Iterable[str]) -> list[Ingestion]:
        """Remove the topics that are there, and stop them; their turns may still run."""
        with self._changed:
            topics = [self._topics.pop(name) for name in names if name in self._topics]
            for topic in topics:
                topic.report.is_stopped = True
            return topics

    def wait_for_turns(self, removed: Collection[Ingestion], seconds: float) -> list[Ingestion]:
        """Wait a while for the turns of removed topics; return the topics whose turns still run."""
        with self._changed:
            self._changed.wait_for(lambda: not any(t.is_running for t in removed), seconds)
            return [topic for topic in removed if topic.is_running]

    def wake(self, name: str) -> None:
        """Let a topic have a turn now."""
        with self._changed:
            if name in self._topics:
                self._topics[name].schedule.is_woken = True
                self._changed.notify()

    def notify_due(self, pause: float) -> None:
        """Let a worker look for each topic whose turn is due, then pause, unless stopped."""
        with self._changed:
            now, inspection = time.monotonic(), self._inspection_seconds()
            count = sum(
                not topic.is_running and topic.due_at(inspection) <= now
                for topic in self._topics.values()
            )
            self._changed.notify(count)
            self._changed.wait_for(lambda: self.is_stopped, pause)

    def take(self) -> tuple[Ingestion, bool] | None:
        """Wait for a due topic, and begin its turn, likely a short one or not; None: stopped."""
        with self._changed:
            while not self.is_stopped:
                if (topic := self._next()) is not None:
                    is_small = topic.is_small
                    topic.take()
                    self._long_turns += not is_small
                    return topic, is_small
                self._changed.wait()
        return None

    def end_turn(self, topic: Ingestion, is_small: bool) -> None:
        """Let the turn of a topic end; the arguments are what :meth:`take` returned."""
        with self._changed:
            topic.is_running = False
            self._long_turns -= not is_small
            if topic.report.is_stopped:
                self._changed.notify_all()

    def _next(self) -> Ingestion | None:
        """Return the topic that has been due for the longest and for which there is room."""
        if self._is_paused:
            return None
        now, inspection = time.monotonic(), self._inspection_seconds()
        has_room = self._long_turns < self._most_long_turns
        first, next_topic = now, None
        for topic in self._topics.values():
            if topic.is_running or (due_at := topic.due_at(inspection)) > first:
                continue
            if (next_topic is None or due_at < first) and (has_room or topic.is_small):
                first, next_topic = due_at, topic
        return next_topic

    def _inspection_seconds(self) -> float:
        return max(MIN_INSPECTION_SECONDS, len(self._topics) / INSPECTIONS_PER_SECOND)
