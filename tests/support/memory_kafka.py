"""Kafka in this process: the clients of topicberg read logs that a test holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from topicberg.kafka import consumer, transactions
from topicberg.kafka import topics as kafka
from topicberg.logins.kafka import KafkaLogin

ADDRESS, LOGIN = "memory:9092", KafkaLogin(auth="none")


@dataclass
class Message:
    """A record as the Python client of Kafka has it."""

    own: tuple[bytes | None, bytes | None]
    place: tuple[int, int]
    own_headers: list[tuple[str, Any]]
    time_ms: int
    epoch: int = 0
    is_gone: bool = False
    """Whether Kafka has compacted it."""

    def __len__(self) -> int:
        """Return the size of the value, as the client does: a tombstone is false."""
        return len(self.own[1] or b"")

    def key(self) -> bytes | None:
        return self.own[0]

    def value(self) -> bytes | None:
        return self.own[1]

    def headers(self) -> list[tuple[str, Any]] | None:
        return self.own_headers or None

    def partition(self) -> int:
        return self.place[0]

    def offset(self) -> int:
        return self.place[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time_ms

    def leader_epoch(self) -> int:
        return self.epoch

    def __reduce__(self) -> Any:
        """Be sent to another process as a message of the client."""
        given = ("", *self.place, *self.own, self.own_headers, None, self.timestamp(), 0.0)
        return confluent_kafka.Message, (*given, self.epoch)

    def error(self) -> Any:
        """Return why there is no record, as instances of :class:`NoMessage` do."""
        return None


class NoMessage(Message):
    """What the client returns instead of a record."""

    def __init__(self, code: int, partition: int, offset: int) -> None:
        super().__init__((None, None), (partition, offset), [], 0)
        self.code = code

    def error(self) -> Any:
        return KafkaError(self.code)


@dataclass
class Log:
    """The log of one topic."""

    partitions: dict[int, list[Message]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """The epoch of the leader of each partition; 0 where there is none."""
    beginning: dict[int, int] = field(default_factory=dict)
    """The first offset of each partition; 0 where there is none."""
    kafka_settings: dict[str, str] = field(default_factory=lambda: {"cleanup.policy": "delete"})
    topic_id: str = "memory"
    compared: int = 0
    """How often single records were read, to compare the log with the table."""

    def produce(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, Any]] = (),
        time_ms: int = 1_700_000_000_000,
    ) -> None:
        log = self.partitions.setdefault(partition, [])
        place, epoch = (partition, len(log)), self.epochs.get(partition, 0)
        log.append(Message((key, value), place, list(headers), time_ms, epoch))

    @property
    def ends(self) -> dict[int, int]:
        return {partition: len(log) for partition, log in sorted(self.partitions.items())}

    def first(self, partition: int) -> int:
        return self.beginning.get(partition, 0)

    def events(self, place: TopicPartition) -> Iterator[Message]:
        """Yield what a consumer gets that begins at a place, with the event of its end."""
        partition, offset, epoch = place.partition, place.offset, place.leader_epoch
        log = self.partitions[partition]
        has_epoch = epoch is not None and epoch >= 0
        ended = has_epoch and len([m for m in log if m.epoch <= (epoch or 0)]) < offset
        self.compared += 1
        if ended or not self.first(partition) <= offset <= len(log):
            yield NoMessage(KafkaError._AUTO_OFFSET_RESET, partition, offset)
            return
        for each in log[offset:]:
            if not each.is_gone:
                yield each
        yield NoMessage(KafkaError._PARTITION_EOF, partition, len(log))


def topic_of(count: int = 1, records: int = 0, **settings: str) -> Log:
    """Return the log of a topic with so many partitions, each with so many records."""
    log = Log({partition: [] for partition in range(count)})
    log.kafka_settings |= settings
    for partition in range(count):
        for _ in range(records):
            log.produce(partition, None, b"")
    return log


@dataclass
class MemoryKafka:
    """A broker with these topics, as far as clients of topicberg ask it."""

    topics: dict[str, Log]
    failure: int | None = None
    """The code of the error that each request gets."""
    on_request: Callable[[], None] = lambda: None
    """Called by each request for something that a topic has."""
    on_close: Callable[[], None] = lambda: None
    """Called when a consumer ends."""

    @property
    def endpoints(self) -> Any:
        """The endpoints of a deployment with this broker and nothing else."""
        return SimpleNamespace(
            kafka_bootstrap=ADDRESS,
            kafka_login=LOGIN,
            kafka_listener=lambda *_: (ADDRESS, LOGIN),
            kafka_tuning=lambda _: {},
            kafka_config=dict,
        )

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
        """Be the Kafka of all endpoints until the test ends."""
        serve_clients(monkeypatch, self, self.consumer)
        monkeypatch.setattr(transactions, "Producer", lambda _: MemoryProducer(self))
        return self

    # What an AdminClient does.

    def poll(self, _: float) -> None: ...

    def list_topics(self, timeout: float) -> Any:
        if self.failure is not None:
            raise KafkaException(KafkaError(self.failure))
        found = {n: SimpleNamespace(partitions=t.ends, error=None) for n, t in self.topics.items()}
        return SimpleNamespace(topics=found)

    def describe_topics(self, names: Any, **_: Any) -> dict[str, Future[Any]]:
        return {name: self._done(self._described, name) for name in names.topic_names}

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {place: self._done(self._listed, place, which) for place, which in wanted.items()}

    def describe_configs(self, resources: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {one: self._done(self._configured, one.name) for one in resources}

    def create_partitions(self, grow: Any, **_: Any) -> dict[str, Future[Any]]:
        return {one.topic: self._done(self._grown, one) for one in grow}

    def incremental_alter_configs(self, resources: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {one: self._done(self._altered, one) for one in resources}

    def create_topics(self, new: Any, **_: Any) -> dict[str, Future[Any]]:
        for one in new:
            self.topics[one.topic] = topic_of(one.num_partitions)
        return {one.topic: self._done(lambda: None) for one in new}

    def _done(self, answer: Callable[..., object], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.on_request()
        try:
            if self.failure is not None:
                raise KafkaException(KafkaError(self.failure))
            future.set_result(answer(*given))
        except KafkaException as error:
            future.set_exception(error)
        return future

    def _topic(self, name: str) -> Log:
        if name not in self.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return self.topics[name]

    def _described(self, name: str) -> object:
        topic = self._topic(name)
        partitions = [SimpleNamespace(id=p, leader=SimpleNamespace(id=1)) for p in topic.ends]
        return SimpleNamespace(topic_id=topic.topic_id, partitions=partitions)

    def _listed(self, place: TopicPartition, which: Any) -> object:
        topic = self._topic(place.topic)
        log = topic.partitions[place.partition]
        if which is kafka.LATEST:
            offset = topic.ends[place.partition]
        elif which is kafka._EARLIEST:
            offset = topic.first(place.partition)
        else:
            first = topic.first(place.partition)
            there = (m for m in log if m.offset() >= first and not m.is_gone)
            later = (m.offset() for m in there if m.time_ms >= which._value)
            offset = next(later, -1)
        return SimpleNamespace(offset=offset, leader_epoch=topic.epochs.get(place.partition, 0))

    def _configured(self, name: str) -> object:
        found = self._topic(name).kafka_settings
        return {key: SimpleNamespace(value=value) for key, value in found.items()}

    def _grown(self, new: Any) -> None:
        topic = self._topic(new.topic)
        for partition in range(new.new_total_count):
            topic.partitions.setdefault(partition, [])

    def _altered(self, resource: Any) -> None:
        changes = {entry.name: entry.value for entry in resource.incremental_configs}
        self._topic(resource.name).kafka_settings |= changes

    def consumer(self, _: Mapping[str, Any]) -> _Consumer:
        return _Consumer(self)


class MemoryProducer:
    """Writes transactions, each to the first partitions of topics."""

    def __init__(self, broker: MemoryKafka) -> None:
        self._broker, self._open = broker, list[tuple[str, Any, Any]]()

    def init_transactions(self, _: float) -> None: ...

    def begin_transaction(self) -> None:
        self._open = []

    abort_transaction = init_transactions

    def poll(self, _: float) -> None: ...

    def produce(self, topic: str, value: Any, key: Any, **_: Any) -> None:
        self._open.append((topic, key, value))

    def commit_transaction(self, _: float) -> None:
        for topic, key, value in self._open:
            self._broker._topic(topic).produce(0, key, value)


class _Consumer:
    """Reads from some places, from each in turn."""

    def __init__(self, broker: MemoryKafka) -> None:
        self._broker = broker
        self._events: dict[int, Iterator[Message]] = {}

    def assign(self, places: list[TopicPartition]) -> None:
        self._events = {p.partition: self._broker._topic(p.topic).events(p) for p in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for place in places:
            self._events.pop(place.partition, None)

    def poll(self, _: float) -> Message | None:
        for partition, events in [*self._events.items()]:
            if (message := next(events, None)) is not None:
                self._events[partition] = self._events.pop(partition)  # it is the last one now
                return message
        return None

    def consume(self, most: int, _: float) -> list[Message]:
        found = (self.poll(0) for _ in range(most))
        return [one for one in found if one is not None]

    def close(self) -> None:
        self._broker.on_close()


def serve_clients(
    monkeypatch: pytest.MonkeyPatch,
    admin: Any,
    make_consumer: Callable[[Mapping[str, Any]], Any] | None = None,
) -> None:
    """Let these be the clients of Kafka until the test ends.

    :param make_consumer: called with the client's properties; None: nothing is read
    """
    account = SimpleNamespace(client=admin, error=None)
    monkeypatch.setattr(kafka, "_account_of", lambda *_: account)
    monkeypatch.setattr(consumer, "Consumer", make_consumer)
