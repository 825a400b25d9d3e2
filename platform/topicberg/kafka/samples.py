"""A bounded sample of a topic: its oldest and newest records, and some between."""

from __future__ import annotations

from confluent_kafka import Message

from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages

RECORDS = 3_000
"""Offsets that are read at most, of all partitions together."""
_SPOTS = 3


def sampled_messages(topic: str, endpoints: Endpoints, records: int = RECORDS) -> list[Message]:
    """Return records of all partitions by their timestamps, the newest one last.

    :param records: offsets that are read at most; one record of each place of each partition is
        read anyway
    :raises NoSuchTopicError: there is no such topic
    :raises TopicbergError: Kafka does not answer
    """
    begin, end = kafka.beginning_offsets(endpoints, topic), kafka.end_offsets(endpoints, topic)
    size = max(1, records // (_SPOTS * max(1, len(end))))
    sampled: dict[tuple[int, int], Message] = {}
    for spot in range(_SPOTS):
        ranges = {
            p: _range(begin.get(p, 0), last, size, spot)
            for p, last in end.items()
            if last > begin.get(p, 0)
        }
        for message in messages(endpoints, topic, ranges):
            sampled[message.partition() or 0, message.offset() or 0] = message
    return sorted(
        sampled.values(), key=lambda message: (message.timestamp()[1], message.offset() or 0)
    )


def _range(first: int, last: int, size: int, spot: int) -> tuple[int, int]:
    """Return offsets of a partition: at its beginning, in its middle, or at its end."""
    start = first + (max(0, last - first - size) * spot) // (_SPOTS - 1)
    return start, min(last, start + size)
