"""Maintenance as a part of the engine's service: a thread beside its workers."""

from __future__ import annotations

import logging
import threading

from pyiceberg.exceptions import NoSuchTableError

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.maintenance.run import maintain
from topicberg.settings import Settings
from topicberg.tableflow.control import usable_topics

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0


class Keeper(threading.Thread):
    """Maintains one topic after the other, so that it takes one job's share of Spark."""

    def __init__(self, endpoints: Endpoints, config: Settings) -> None:
        super().__init__(name="tableflow-maintenance", daemon=True)
        self._endpoints = endpoints
        self._config = config
        self._stop_requested = threading.Event()

    def stop(self) -> None:
        self._stop_requested.set()

    def run(self) -> None:
        while not self._stop_requested.wait(PAUSE_SECONDS):
            try:
                topics = list(usable_topics(self._config)[0].values())
            except TopicbergError as error:  # the service reports it
                logger.debug("%s", error)
                continue
            for spec in topics:
                if self._stop_requested.is_set():
                    return
                try:
                    maintain(spec, self._endpoints, self._config)
                except NoSuchTableError:
                    logger.debug("topic %s has no table yet", spec.name)
                except Exception as error:
                    # If a service does not answer, what is due now is still due in a minute.
                    lines = str(error).strip().splitlines()
                    reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
                    logger.warning("topic %s: maintenance failed: %s", spec.name, reason)
