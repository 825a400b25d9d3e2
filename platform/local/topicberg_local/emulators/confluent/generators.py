"""What the connectors do: a generator for each that runs, none for one that is paused or gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from topicberg.errors import TopicbergError
from topicberg_local.datagen import runner
from topicberg_local.datagen.status import ALIVE, read_status
from topicberg_local.emulators.confluent.account import CONNECTOR, Account
from topicberg_local.emulators.process import Worker
from topicberg_local.emulators.store import Stored

logger = logging.getLogger(__name__)
RETRY_SECONDS = 5.0
"""A generator that ended, or did not start, is started again after so long."""


class Generators(Worker):
    """Looks after the generators of all connectors; they outlive it, and it finds them again."""

    def __init__(self, account: Account, denied: Callable[[Stored], str]) -> None:
        """:param denied: returns why a connector may not write; empty: it may"""
        super().__init__("generators")
        self._account, self._denied = account, denied
        self._changing = threading.Lock()
        self._not_before: dict[str, float] = {}
        """Topic → when its generator may be started, by the monotonic clock."""
        self._alive: set[str] = set()

    def wake(self) -> None:
        """There is something to do."""
        self._not_before.clear()
        self._alive.clear()
        super().wake()

    def end(self, connector: Stored) -> None:
        """End the generator of a connector that wants none any more; raises TopicbergError."""
        topic = connector.properties["topic"]
        with self._changing:
            status = read_status(self._account.config, topic)
            if status is not None and status.state in ALIVE:
                runner.stop(self._account.config, topic)

    def look(self) -> None:
        connectors: list[Stored] = []
        with suppress(TopicbergError):  # the stack is not up yet
            self._account.endpoints()
            connectors = self._account.store.all(CONNECTOR)
        for connector in connectors:
            try:
                self._look_after(connector)
            except TopicbergError as error:
                logger.warning("connector %s: %s", connector.name[1], error)
                self._tell(connector, error.message)
            except Exception:
                logger.exception("connector %s", connector.name[1])

    def _look_after(self, connector: Stored) -> None:
        topic = connector.properties["topic"]
        with self._changing:
            now = self._account.store.get(CONNECTOR, connector.name)  # as it is under the lock
            if now is None or now.properties["paused"] or now.properties["topic"] != topic:
                return
            if self._denied(now):
                return
            status = read_status(self._account.config, topic)
            if status is not None and status.state in ALIVE:
                self._alive.add(topic)
                return
            if topic in self._alive:  # it has just ended: perhaps the whole stack is being stopped
                self._alive.remove(topic)
                self._not_before[topic] = time.monotonic() + RETRY_SECONDS
            if time.monotonic() < self._not_before.get(topic, 0.0):
                return
            self._not_before[topic] = time.monotonic() + RETRY_SECONDS
            config = now.properties["config"]
            # Datagen's default; a task waits a random part of it after each record.
            interval = int(config.get("max.interval", 1000))
            runner.start(self._account.config, topic, 2000 / interval * int(config["tasks.max"]))
        self._tell(connector, "")

    def _tell(self, connector: Stored, trace: str) -> None:
        """Keep why a connector fails, for its status."""
        with self._account.changing:
            now = self._account.store.get(CONNECTOR, connector.name)
            if now is not None and now.properties["trace"] != trace:
                now.properties["trace"] = trace
                self._account.store.put(now)
