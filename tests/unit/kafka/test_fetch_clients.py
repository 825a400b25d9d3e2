"""Which client of Kafka fills the arrays."""

from __future__ import annotations

from typing import Any

import pytest
from clocks import Clock
from confluent_kafka import KafkaError

from topicberg.formats.columnar.program import NotCoveredError
from topicberg.kafka import fetch, librdkafka
from topicberg.kafka.records import READ_SECONDS, FetchError, Records


class Client:
    """Stands for the Python client."""

    def __init__(self, *_: Any) -> None:
        pass


def test_without_librdkafka_the_python_client_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise NotCoveredError("confluent-kafka is installed without librdkafka")

    for module in (fetch, librdkafka):
        monkeypatch.setattr(module, "library", missing)
    monkeypatch.setattr(fetch, "_ClientFetcher", Client)
    monkeypatch.setattr(fetch, "_warned", set())
    librdkafka.compile_gather()
    for _ in range(2):
        assert isinstance(fetch.fetcher({}, "orders", {0: (0, 1)}), Client)
    assert caplog.text.count("is installed without librdkafka") == 1


class Silent(fetch.Fetcher):
    """Gets no record, and an answer about the topic."""

    def __init__(self, clock: Clock, code: int) -> None:
        super().__init__({}, "orders")
        self.clock, self.code, self.asked = clock, code, 0

    def __exit__(self, *_: object) -> None: ...

    def _continues(self) -> bool:
        return True

    def _copy(self, _: Records) -> bool:
        self.clock.now += 1
        return False

    def _topic_error(self) -> KafkaError:
        self.asked += 1
        return KafkaError(self.code)


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 6),
        (KafkaError.LEADER_NOT_AVAILABLE, READ_SECONDS + 1),
    ],
)
def test_silent_topic_that_may_not_be_read_any_more_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, code: int, seconds: float
) -> None:
    """One without a leader, as its broker restarts, has the time that every batch has."""
    clock = Clock(monkeypatch)
    began, silent = clock.now, Silent(clock, code)
    with pytest.raises(FetchError) as failed:
        next(silent.fill(Records(1, 1)))
    assert (clock.now - began, silent.asked) == (seconds, 1)
    is_refused = code == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert (f"{failed.value.__cause__}".find("TOPIC_AUTHORIZATION_FAILED") >= 0) == is_refused


def test_silent_topic_of_a_client_that_cannot_start_has_its_time() -> None:
    """As without a token of its login: the batch's own client may still get the records."""
    silent = Silent.__new__(Silent)
    fetch.Fetcher.__init__(silent, {"group.id": "g", "no.such.property": 1}, "orders")
    assert fetch.Fetcher._topic_error(silent) is None
