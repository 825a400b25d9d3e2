"""Times of next records: a partition that has none is not one that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from topicberg.errors import UnreachableError
from topicberg.kafka import consumer
from topicberg.kafka.consumer import first_times

ENDPOINTS = cast("Any", None)


class Message:
    def __init__(self, partition: int, time: int = 0, error: int | None = None) -> None:
        self._partition, self._time, self._error = partition, time, error

    def partition(self) -> int:
        return self._partition

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


def arrive(monkeypatch: pytest.MonkeyPatch, *messages: Message) -> None:
    waiting = list(messages)

    class Consumer:
        def poll(self, seconds: float) -> Message | None:
            return waiting.pop(0) if waiting else None

    @contextmanager
    def connected(*_: Any, **__: Any) -> Iterator[Consumer]:
        yield Consumer()

    monkeypatch.setattr(consumer, "_consumer", connected)
    monkeypatch.setattr(consumer, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(consumer, "NEEDED_SECONDS", 0.05)


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
