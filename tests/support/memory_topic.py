"""A topic, its registry and its table in this process: the engine's steps without a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO

from topicberg import kafka
from topicberg.kafka import last_records
from topicberg.kafka.offsets import Ranges
from topicberg.kafka.records import Records
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings
from topicberg.tableflow import batch_start, engine, framing, reading
from topicberg.tableflow.compiling import wait_ready
from topicberg.tableflow.engine import Ingestor
from topicberg.tableflow.plan import ReadPlan
from topicberg.topics import TopicSpec


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

    def error(self) -> Any:
        """Return why there is no record, as instances of :class:`NoMessage` do."""
        return None


class NoMessage(Message):
    """What the client returns instead of a record."""

    def __init__(self, code: int) -> None:
        self.code = code

    def error(self) -> Any:
        return KafkaError(self.code)


@dataclass
class MemoryTopic:
    """What the engine reads, and what it writes to."""

    spec: TopicSpec
    folder: Path
    registry: Any
    partitions: dict[int, list[Message]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """The epoch of the leader of each partition; 0 where there is none."""
    beginning: dict[int, int] = field(default_factory=dict)
    """The first offset of each partition; 0 where there is none."""
    compared: int = 0
    """Records that were read to compare the log with the table."""

    def __post_init__(self) -> None:
        self.catalog = SqlCatalog(
            "memory",
            uri=f"sqlite:///{self.folder}/catalog.db",
            warehouse=f"file://{self.folder}/warehouse",
            **{LOCATIONS: "its own"},
        )
        self.config = Settings(state_dir=self.folder / "state")
        self.endpoints: Any = SimpleNamespace(
            catalog=lambda _: self.catalog,
            schema_registry_client=lambda: self.registry,
            kafka_tuning=lambda _: {},
            kafka_config=dict,
            spark_connect="",
        )

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

    def ingestor(self) -> Ingestor:
        return Ingestor(self.spec, self.endpoints, self.config)

    def interrupted(self, work: Callable[[], object]) -> Ingestor:
        """Return a second engine: ``work`` is done when its first commit is on its way."""
        todo = [work]

        class Catalog(SqlCatalog):
            def commit_table(self, *given: Any) -> Any:
                for each in todo[:]:
                    todo.clear()
                    each()
                return super().commit_table(*given)

        catalog = Catalog("memory", **self.catalog.properties)
        endpoints = SimpleNamespace(**{**vars(self.endpoints), "catalog": lambda _: catalog})
        return Ingestor(self.spec, cast("Any", endpoints), self.config)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            self.catalog.load_table(self.spec.table_identifier(self.config))
            .scan()
            .to_arrow()
            .to_pylist()
        )
        return found

    def log(self, _: object, __: str) -> kafka.TopicLog:
        beginning = {p: self.beginning.get(p, 0) for p in self.ends}
        epochs = {p: self.epochs.get(p, 0) for p in self.ends}
        return kafka.TopicLog("memory", beginning, self.ends, epochs)

    def times(
        self, _: object, __: str, offsets: Mapping[int, int], *, is_needed: bool
    ) -> dict[int, int]:
        assert is_needed
        return {p: self.partitions[p][offset].time_ms for p, offset in offsets.items()}

    def first_messages(
        self,
        _: object,
        __: str,
        offsets: Mapping[int, int],
        epochs: Mapping[int, int] | None = None,
        *,
        is_needed: bool,
    ) -> dict[int, Message]:
        """Return what :func:`topicberg.kafka.consumer.first_messages` does."""
        assert is_needed
        self.compared += len(offsets)
        first = {}
        for p, offset in offsets.items():
            log = self.partitions[p]
            left = [one for one in log[offset:] if not one.is_gone]
            ended = epochs is not None and len([m for m in log if m.epoch <= epochs[p]]) < offset
            first[p] = left[0] if left else NoMessage(KafkaError._PARTITION_EOF)
            if ended or not self.beginning.get(p, 0) <= offset <= len(log):
                first[p] = NoMessage(KafkaError._AUTO_OFFSET_RESET)
        return first

    def messages(self, _: object, __: str, ranges: Mapping[int, tuple[int, int]]) -> list[Message]:
        """Return what :func:`topicberg.kafka.consumer.messages` does."""
        return [m for p, (start, end) in ranges.items() for m in self.partitions[p][start:end]]

    def offsets_at(self, _: object, __: str, time_ms: int) -> dict[int, int]:
        return {
            p: next((n for n, one in enumerate(log) if one.time_ms >= time_ms), -1)
            for p, log in self.partitions.items()
        }


class _Reader:
    """Reads a topic in memory as :func:`topicberg.kafka.fetch.fetcher` does."""

    def __init__(self, topic: MemoryTopic, ranges: Mapping[int, tuple[int, int]]) -> None:
        self.messages = [
            one
            for p, (start, end) in ranges.items()
            for one in topic.partitions[p][start:end]
            if not one.is_gone
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fill(self, records: Records) -> Iterator[Records]:
        left = cast("Any", self.messages)
        while left:
            records.clear()
            left = left[records.append(left) :]
            yield records


def memory_topic(folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> MemoryTopic:
    """Return a topic without records; the engine reads nothing else until the test ends."""
    given = {"name": "shop.customers", "pipeline": "shop", "external": True, **spec}
    topic = MemoryTopic(TopicSpec.model_validate(given), folder, mock_registry(folder))
    serve(topic, monkeypatch)
    return topic


def text_topic(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    """Return a topic of text, with the records ``a`` and ``b``."""
    topic = memory_topic(folder, monkeypatch, schema={"format": "text"})
    topic.endpoints.kafka_bootstrap = "broker:9092"
    for value in (b"a", b"b"):
        topic.produce(0, None, value)
    return topic


def mock_registry(folder: Path) -> Any:
    """Return a registry without schemas, which this process has for the folder."""
    return SchemaRegistryClient.new_client({"url": f"mock://{folder.name}"})


def _ingest_here(
    plan: ReadPlan, io: FileIO, parts: Sequence[Ranges], check: Callable[[], None]
) -> reading.WrittenBatch:
    return reading.joined(plan, io, [reading.ingest(plan, ranges, check) for ranges in parts])


def serve(topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine read this topic, and nothing else, until the test ends."""
    wait_ready()
    monkeypatch.setattr(engine, "shared", lambda *_: SimpleNamespace(ingest=_ingest_here))
    monkeypatch.setattr(kafka, "topic_log", topic.log)
    monkeypatch.setattr(kafka, "beginning_offsets", lambda *given: topic.log(*given).beginning)
    monkeypatch.setattr(kafka, "topic_config", lambda *_: {"cleanup.policy": "delete"})
    monkeypatch.setattr(kafka, "offsets_at", topic.offsets_at)
    monkeypatch.setattr(batch_start, "first_times", topic.times)
    monkeypatch.setattr(framing, "messages", topic.messages)
    monkeypatch.setattr(last_records, "first_messages", topic.first_messages)
    monkeypatch.setattr(reading, "fetcher", lambda _, __, ranges: _Reader(topic, ranges))
