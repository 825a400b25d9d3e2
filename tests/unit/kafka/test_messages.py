"""Exactly some records, read by the Kafka client."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from memory_kafka import Log, MemoryKafka, serve_clients

from topicberg.errors import UnreachableError
from topicberg.kafka import consumer

ENDPOINTS = MemoryKafka({}).endpoints


class Message:
    """A record, or the event that a partition is read to its end."""

    def __init__(self, offset: int, value: bytes | None = b"v", *, is_end: bool = False) -> None:
        self._offset, self._value, self._is_end = offset, value, is_end

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def headers(self) -> None: ...

    def error(self) -> Any:
        return KafkaError(KafkaError._PARTITION_EOF) if self._is_end else None


class Client:
    """A consumer that returns these messages, a list for each wait."""

    def __init__(self, *polls: list[Message]) -> None:
        self.polls, self.arrived = list(polls), list[Message]()

    def assign(self, _: object) -> None: ...

    def close(self) -> None: ...

    def poll(self, _: float) -> Message | None:
        assert not self.arrived
        self.arrived = self.polls.pop(0) if self.polls else []
        return self.arrived.pop(0) if self.arrived else None

    def consume(self, most: int, seconds: float) -> list[Message]:
        assert seconds == 0
        found, self.arrived = self.arrived[:most], self.arrived[most:]
        return found

    def incremental_unassign(self, _: object) -> None: ...


@pytest.mark.parametrize("may_end_early", [False, True])
def test_end_before_a_committed_range_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, may_end_early: bool
) -> None:
    """A new leader of a partition learns late up to where its records are committed."""
    early, late = Message(1, is_end=True), Message(3, is_end=True)
    client = Client([Message(0), early], [], [Message(1)], [late])
    serve_clients(monkeypatch, MemoryKafka({"t": Log()}), lambda _: client)
    found = consumer.messages(ENDPOINTS, "t", {0: (0, 3)}, may_end_early=may_end_early)
    assert [message.offset() for message in found] == ([0] if may_end_early else [0, 1])


def test_end_that_stays_before_a_committed_range_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client([Message(1, is_end=True)])
    serve_clients(monkeypatch, MemoryKafka({"t": Log()}), lambda _: client)
    found = consumer.messages(ENDPOINTS, "t", {0: (1, 2)}, 0.01)
    with pytest.raises(UnreachableError, match="no record within"):
        list(found)
