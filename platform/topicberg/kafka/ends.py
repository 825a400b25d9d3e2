"""The ends of many topics' logs, read by as many requests as those of one topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.kafka.offsets import Offsets
from topicberg.kafka.topics import LATEST, TIMEOUT_SECONDS, admin_client, no_leader, results_of

DESCRIBE_SECONDS = 5.0
"""How long the partitions and the id of a topic are not read again, unless a request fails."""


@dataclass(frozen=True)
class Ends:
    """The ends of one topic's log, by partition."""

    topic_id: str
    high: Offsets  # After the last record, including open transactions.
    stable: Offsets  # After the last record that a read_committed consumer may read.


@dataclass(frozen=True)
class _Described:
    topic_id: str
    places: tuple[TopicPartition, ...]


class EndReader:
    """Reads the ends of topics, and remembers their partitions between two reads."""

    def __init__(self, endpoints: Endpoints, now: Callable[[], float] = time.monotonic) -> None:
        self._endpoints, self._now, self._describe_at = endpoints, now, 0.0
        self._described: dict[str, _Described | TopicbergError] = {}

    def read(self, committed: Mapping[str, Offsets]) -> dict[str, Ends | TopicbergError]:
        """Return the ends of topics, or why they are not known: one request to each broker.

        A second request reads where transactions hold records back, only of the topics that have
        records after ``committed``: topic → partition → first offset that is not needed.
        """
        try:
            return self._read(committed)
        except UnreachableError:
            self._describe_at = 0.0
            raise

    def _read(self, committed: Mapping[str, Offsets]) -> dict[str, Ends | TopicbergError]:
        if self._now() >= self._describe_at or not self._described.keys() >= committed.keys():
            self._describe(committed)
        known = {
            topic: description
            for topic in committed
            if isinstance(description := self._described.get(topic), _Described)
        }
        high = self._list(known, IsolationLevel.READ_UNCOMMITTED)
        waiting = {
            topic: known[topic]
            for topic, ends in high.items()
            if isinstance(ends, dict) and ends != committed[topic]
        }
        stable = self._list(waiting, IsolationLevel.READ_COMMITTED)
        ends_by_topic: dict[str, Ends | TopicbergError] = {}
        for topic in committed:
            description, ends = self._described[topic], high.get(topic)
            match description, ends, stable.get(topic, ends):
                case TopicbergError(), _, _:
                    ends_by_topic[topic] = description
                case _Described(topic_id=topic_id), dict(), dict() as readable:
                    ends_by_topic[topic] = Ends(topic_id, ends, readable)
                case (_, TopicbergError() as failed, _) | (_, _, TopicbergError() as failed):
                    ends_by_topic[topic], self._describe_at = failed, 0.0
        return ends_by_topic

    def _describe(self, topics: Collection[str]) -> None:
        self._described = {}
        if not topics:
            return
        futures = admin_client(self._endpoints).describe_topics(
            TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS
        )
        for topic, described in results_of(futures, self._endpoints, "describe topic {}"):
            if isinstance(described, TopicbergError):
                self._described[topic] = described
            # A request for the ends waits for all leaders: without this, one topic delays all.
            elif any(p.leader is None or p.leader.id < 0 for p in described.partitions):
                self._described[topic] = no_leader(f"describe topic {topic}")
            else:
                numbers = sorted(partition.id for partition in described.partitions)
                places = tuple(TopicPartition(topic, number) for number in numbers)
                self._described[topic] = _Described(str(described.topic_id), places)
        failed = any(isinstance(known, TopicbergError) for known in self._described.values())
        self._describe_at = self._now() + (1.0 if failed else DESCRIBE_SECONDS)

    def _list(
        self, topics: Mapping[str, _Described], level: IsolationLevel
    ) -> dict[str, Offsets | TopicbergError]:
        wanted = {place: LATEST for described in topics.values() for place in described.places}
        if not wanted:
            return {}
        futures = admin_client(self._endpoints).list_offsets(
            wanted, isolation_level=level, request_timeout=TIMEOUT_SECONDS
        )
        offsets_by_topic: dict[str, Offsets | TopicbergError] = {topic: {} for topic in topics}
        for place, end in results_of(futures, self._endpoints, "list the offsets of {}"):
            ends = offsets_by_topic[place.topic]
            if isinstance(ends, dict) and isinstance(end, TopicbergError):
                offsets_by_topic[place.topic] = end
            elif isinstance(ends, dict) and not isinstance(end, TopicbergError):
                ends[place.partition] = end.offset
        return offsets_by_topic
