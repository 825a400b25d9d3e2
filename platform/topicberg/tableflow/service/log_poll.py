"""The poll that finds what the logs of all topics of an engine have beyond their tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka.ends import EndReader
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.service.status import note_observation

logger = logging.getLogger(__name__)

STATUSES_PER_SECOND = 50.0
"""How many status files are written only because the lag changed."""


class LogPoll:
    """Reads the ends of all logs together, and lets each topic observe its own."""

    def __init__(self, endpoints: Endpoints, config: Settings) -> None:
        self._config = config
        self._ends = EndReader(endpoints)
        self._transactions = ThreadPoolExecutor(1, "tableflow-transactions")
        self._requested: dict[str, Offsets] = {}
        """By topic: the transactions whose times are being read."""

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
