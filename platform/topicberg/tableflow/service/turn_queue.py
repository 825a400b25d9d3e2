"""The topics of an engine, and which of them a worker takes next.

The topic whose turn has been due for the longest is next. Turns that may take long (a backlog, a
failure that is tried again, a topic's first turn) never have all workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from topicberg.tableflow.service.ingestion import Ingestion

INSPECTIONS_PER_SECOND = 2.0
"""How many topics without new records have a turn, to find changes that others made to their tables
or schemas."""
MIN_INSPECTION_SECONDS = 5.0


class TurnQueue:
    """Safe to use from several threads."""

    def __init__(self, workers: int) -> None:
        self._topics: dict[str, Ingestion] = {}
        self._changed = threading.Condition()
        """Notified when a turn may be due, and when the turn of a stopped topic ends."""
        self._most_long_turns = max(1, workers - max(1, workers // 4))
        self._long_turns = 0
        self._is_paused = False
        self.is_stopped = False
        """Whether no turn begins any more."""

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
        """Add a topic, instead of one of the same name.

        :param make: returns it, given the one that it replaces, which it stops
        """
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
        """Let a worker look for each topic whose turn is due, then wait.

        :param pause: seconds to wait, unless the queue is stopped
        """
        with self._changed:
            now, inspection = time.monotonic(), self._inspection_seconds()
            count = sum(
                not topic.is_running and topic.due_at(inspection) <= now
                for topic in self._topics.values()
            )
            self._changed.notify(count)
            self._changed.wait_for(lambda: self.is_stopped, pause)

    def take(self) -> tuple[Ingestion, bool] | None:
        """Wait for a topic whose turn is due, and begin the turn; None: the queue is stopped.

        :returns: the topic, and whether its turn is likely to be short
        """
        with self._changed:
            while not self.is_stopped:
                topic = self._next()
                if topic is not None:
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
