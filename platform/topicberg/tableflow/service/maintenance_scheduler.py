"""Maintenance as a part of the engine's service, in a thread beside its workers."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchTableError

from topicberg.endpoints import Endpoints
from topicberg.errors import TableFormatError, first_line
from topicberg.iceberg.maintenance.run import maintain
from topicberg.settings import Settings
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.service.pool import TurnQueue

logger = logging.getLogger(__name__)

WORKERS_PER_TABLE = 4
PAUSE_SECONDS = 60.0
QUIET_PAUSE_SECONDS = 900.0
"""Between two inspections of a table that did not change: small files are due after this time."""
IDLE_PAUSE_SECONDS = 3600.0
"""The same if it has not changed for as long: only old snapshots and rows may be due."""


@dataclass
class _Kept:
    """What is known of a table since its last maintenance; times are monotonic."""

    state: object
    at: float
    changed_at: float

    def is_due(self, state: object, now: float) -> bool:
        if state != self.state:
            return True
        is_quiet = now - self.changed_at < IDLE_PAUSE_SECONDS
        return now - self.at >= (QUIET_PAUSE_SECONDS if is_quiet else IDLE_PAUSE_SECONDS)


class MaintenanceScheduler:
    """Maintains a few tables at once: a quarter as many as the engine has workers.

    Most of the time of a table is waiting for the object store. Compactions take a share of Spark
    each.
    """

    def __init__(
        self, endpoints: Endpoints, config: Settings, queue: TurnQueue, ended: threading.Event
    ) -> None:
        """:param ended: set when the engine ends"""
        self._endpoints, self._config, self._queue, self._ended = endpoints, config, queue, ended
        self._kept = dict[str, _Kept]()

    def run(self) -> None:
        """Maintain tables until the engine has ended."""
        while not self._ended.wait(PAUSE_SECONDS):
            topics = self._queue.topics
            self._kept = {name: entry for name, entry in self._kept.items() if name in topics}
            workers = max(1, self._config.engine_workers // WORKERS_PER_TABLE)
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(self._maintain, topics.values()))

    def _maintain(self, topic: Ingestion) -> None:
        """Do what is due for a table, if it may have changed since the last time."""
        if self._ended.is_set():
            return
        name, now = topic.spec.name, time.monotonic()
        state = topic.spec, topic.report.status.snapshot_id
        before = self._kept.get(name)
        if before is not None and not before.is_due(state, now):
            return
        try:
            is_changed = maintain(topic.spec, self._endpoints, self._config).changed
        except NoSuchTableError:
            logger.debug("topic %s has no table yet", name)
            return
        except TableFormatError as error:  # it stays so until the table is another one
            logger.warning("topic %s: the table is not maintained: %s", name, error)
            is_changed = False
        except Exception as error:
            # If a service does not answer, what is due now is still due in a minute.
            kind, reason = type(error).__name__, first_line(error)
            logger.warning("topic %s: maintenance failed: %s: %s", name, kind, reason)
            return
        is_same = before is not None and before.state == state and not is_changed
        changed_at = before.changed_at if before is not None and is_same else now
        # After a change, more may be due.
        self._kept[name] = _Kept(None if is_changed else state, now, changed_at)
