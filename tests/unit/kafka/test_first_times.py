"""First records at offsets: a partition that has none is not one that does not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from clocks import Clock
from confluent_kafka import KafkaError, TopicPartition
from memory_kafka import Log, MemoryKafka, serve_clients

from topicberg.errors import UnreachableError
from topicberg.kafka.consumer import batch_end, first_times

ENDPOINTS = MemoryKafka({}).endpoints


class Message:
    def __init__(
        self, partition: int, time: int = 0, error: int | None = None, offset: int = 0
    ) -> None:
        self._partition, self._time, self._error, self._offset = partition, time, error, offset

    def __len__(self) -> int:
        """Return the size of the value, as the client does: a tombstone is false."""
        return 0

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Client:
    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def close(self) -> None: ...


def connect(monkeypatch: pytest.MonkeyPatch, client: object) -> list[dict[str, Any]]:
    """Return the properties of each client that is made."""
    made: list[dict[str, Any]] = []

    def connected(properties: Mapping[str, Any]) -> object:
        made.append({**properties})
        return client

    serve_clients(monkeypatch, MemoryKafka({"orders": Log()}), connected)
    return made


def arrive(monkeypatch: pytest.MonkeyPatch, *messages: Message) -> None:
    waiting, clock = list(messages), Clock(monkeypatch)

    class Consumer(Client):
        def poll(self, seconds: float) -> Message | None:
            clock.now += seconds
            return waiting.pop(0) if waiting else None

    connect(monkeypatch, Consumer())


@pytest.mark.parametrize("code", [KafkaError._PARTITION_EOF, KafkaError._BAD_MSG])
def test_partition_without_a_readable_record_is_left_out(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    arrive(monkeypatch, Message(0, 7), Message(0, 8), Message(1, error=code))
    assert first_times(ENDPOINTS, "orders", {0: 3, 1: 5}, is_needed=True) == {0: 7}


@pytest.mark.parametrize(
    "messages",
    [
        [Message(0, 7)],
        [Message(0, 7), Message(1, error=KafkaError.NOT_LEADER_FOR_PARTITION)],
        [Message(0, 7), Message(1, error=KafkaError._ALL_BROKERS_DOWN)],
    ],
)
def test_partition_that_does_not_answer_is_an_error_where_its_time_is_needed(
    monkeypatch: pytest.MonkeyPatch, messages: list[Message]
) -> None:
    arrive(monkeypatch, *messages)
    with pytest.raises(UnreachableError, match="partition 1 cannot be read"):
        first_times(ENDPOINTS, "orders", {0: 3, 1: 5}, is_needed=True)
    arrive(monkeypatch, *messages)
    assert first_times(ENDPOINTS, "orders", {0: 3, 1: 5}) == {0: 7}


class Batches(Client):
    """Batches from these offsets on, of which some are unreadable."""

    def __init__(self, starts: list[int], unreadable: set[int]) -> None:
        self._starts, self._unreadable, self._offset = starts, unreadable, 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._offset = partitions[0].offset

    def poll(self, _: float) -> Message:
        start = max(start for start in self._starts if start <= self._offset)
        if start in self._unreadable:
            return Message(0, error=KafkaError._BAD_COMPRESSION, offset=start)
        return Message(0, offset=self._offset)


def test_batch_end_of_unreadable_batches_is_where_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = connect(monkeypatch, Batches([0, 1, 16, 31], {1, 16}))
    ends = [batch_end(ENDPOINTS, "orders", 0, at, 40, 2**27) for at in (0, 1, 5, 16, 31)]
    assert ends == [1, 16, 16, 31, 32]
    assert [client["receive.message.max.bytes"] for client in made] == [2**27] * 5
