"""The poll of many topics' ends: what is requested, and what one broken topic does to others."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from memory_kafka import serve_clients

from topicberg.errors import TopicbergError, UnreachableError
from topicberg.kafka import ends
from topicberg.kafka.ends import EndReader, Ends
from topicberg.kafka.topics import NoLeaderError, NoSuchTopicError
from topicberg.logins.kafka import KafkaLogin


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def refused(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class Broker:
    """A broker whose topics are given: name → ends of the partitions, or an error."""

    def __init__(self, **topics: list[Any]) -> None:
        self.topics: dict[str, list[Any]] = dict(topics)
        self.open: dict[str, int] = {}
        """Topics whose first partition a transaction holds back at this offset."""
        self.leaderless: set[str] = set()
        self.described: list[list[str]] = []
        self.listed: list[list[str]] = []

    def poll(self, _: float) -> None: ...

    def describe_topics(self, names: Any, **_: Any) -> dict[str, Future[Any]]:
        requested = sorted(names.topic_names)
        self.described.append(requested)
        return {name: self._describe(name) for name in requested}

    def _describe(self, name: str) -> Future[Any]:
        if name not in self.topics:
            return done(refused(KafkaError.UNKNOWN_TOPIC_OR_PART))
        leader = None if name in self.leaderless else SimpleNamespace(id=1)
        numbers = range(len(self.topics[name]))
        partitions = [SimpleNamespace(id=number, leader=leader) for number in numbers]
        return done(SimpleNamespace(topic_id=f"id of {name}", partitions=partitions))

    def list_offsets(self, wanted: Any, isolation_level: Any, **_: Any) -> dict[Any, Future[Any]]:
        self.listed.append(sorted({place.topic for place in wanted}))
        found = {}
        for place in wanted:
            end = self.topics.get(place.topic, [refused(KafkaError.UNKNOWN_TOPIC_OR_PART)] * 9)
            result = end[place.partition]
            if isolation_level.name == "READ_COMMITTED" and place.partition == 0:
                result = self.open.get(place.topic, result)
            is_error = isinstance(result, Exception)
            found[place] = done(result if is_error else SimpleNamespace(offset=result))
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker(idle=[3, 4], busy=[7])
    serve_clients(monkeypatch, broker)
    return broker


HELD = {"idle": {0: 3, 1: 4}, "busy": {0: 5}}
ADDRESS, LOGIN = "127.0.0.1:1", KafkaLogin()
ENDPOINTS = cast(
    "Any",
    SimpleNamespace(
        kafka_bootstrap=ADDRESS, kafka_login=LOGIN, kafka_listener=lambda: (ADDRESS, LOGIN)
    ),
)


def test_ends_cost_one_request_while_nothing_waits(broker: Broker) -> None:
    clock = [0.0]
    reader, held = EndReader(ENDPOINTS, lambda: clock[0]), {"idle": HELD["idle"]}
    for _ in range(3):
        assert reader.read(held) == {"idle": Ends("id of idle", {0: 3, 1: 4}, {0: 3, 1: 4})}
    assert (broker.described, broker.listed) == ([["idle"]], [["idle"]] * 3)
    reader.read(HELD)  # a new topic is described at once
    assert broker.described[1:] == [["busy", "idle"]]
    clock[0] += ends.DESCRIBE_SECONDS
    reader.read(HELD)
    assert len(broker.described) == 3


def test_ends_of_waiting_topics_are_the_stable_ones(broker: Broker) -> None:
    broker.open = {"busy": 6, "idle": 1}
    found = EndReader(ENDPOINTS).read(HELD)
    assert broker.listed == [["busy", "idle"], ["busy"]]
    assert found["busy"] == Ends("id of busy", {0: 7}, {0: 6})
    assert found["idle"] == Ends("id of idle", {0: 3, 1: 4}, {0: 3, 1: 4})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NoSuchTopicError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, NoLeaderError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicbergError),
    ],
)
def test_ends_of_one_topic_fail_beside_others(
    broker: Broker, code: int, kind: type[Exception]
) -> None:
    reader = EndReader(ENDPOINTS)
    reader.read(HELD)
    broker.topics["busy"] = [refused(code)]
    found = reader.read(HELD)
    assert isinstance(found["busy"], kind)
    assert str(pickle.loads(pickle.dumps(found["busy"]))) == str(found["busy"])
    assert isinstance(found["idle"], Ends)
    broker.topics["busy"] = [8, 0]
    assert reader.read(HELD)["busy"] == Ends("id of busy", {0: 8, 1: 0}, {0: 8, 1: 0})


def test_ends_are_not_listed_without_a_leader(broker: Broker) -> None:
    """The client would wait for the leader, and all topics with it."""
    broker.leaderless = {"busy"}
    del broker.topics["idle"]
    found = EndReader(ENDPOINTS).read(HELD)
    assert isinstance(found["busy"], NoLeaderError)
    assert isinstance(found["idle"], NoSuchTopicError)
    assert broker.listed == []


def test_ends_of_a_silent_broker_are_one_error(broker: Broker) -> None:
    reader = EndReader(ENDPOINTS)
    reader.read(HELD)
    broker.topics["busy"] = [refused(KafkaError._TRANSPORT)]
    with pytest.raises(UnreachableError):
        reader.read(HELD)
    broker.topics["busy"] = [7]
    reader.read(HELD)
    assert len(broker.described) == 2
