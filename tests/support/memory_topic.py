"""A topic, its registry and its table in this process: the engine's steps without a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from format_versions import assert_summary_has_hours
from memory_kafka import Log, MemoryKafka
from pyiceberg.catalog.sql import SqlCatalog

from topicberg.kafka.offsets import Ranges
from topicberg.kafka.records import Records
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings
from topicberg.tableflow.decode import reading
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.service import engine
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.topics import TopicSpec


class MemoryTopic(Log):
    """What the engine reads, and what it writes to."""

    def __init__(self, spec: TopicSpec, folder: Path, registry: Any) -> None:
        super().__init__()
        self.spec, self.folder, self.registry = spec, folder, registry
        self.kafka = MemoryKafka({spec.name: self})
        self.processes: Any = SimpleNamespace(ingest=_ingest_here)
        """Decode the records of batches; each engine that is made from now on uses them."""
        self.catalog = SqlCatalog(
            "memory",
            uri=f"sqlite:///{self.folder}/catalog.db",
            warehouse=f"file://{self.folder}/warehouse",
            **{LOCATIONS: "its own"},
        )
        self.config = Settings(state_dir=self.folder / "state")
        self.endpoints: Any = SimpleNamespace(
            **vars(self.kafka.endpoints),
            catalog=lambda _: self.catalog,
            schema_registry_client=lambda: self.registry,
            spark_connect="",
        )

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
        table = self.catalog.load_table(self.spec.table_identifier(self.config))
        assert_summary_has_hours(table, self.spec.event_time)
        rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return rows


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
    plans: Sequence[ReadPlan], parts: Sequence[Ranges], check: Callable[[], None]
) -> list[reading.WrittenBatch]:
    return reading.joined(plans, [reading.ingest(plans, ranges, check) for ranges in parts])


def read_all(ingestor: Ingestor) -> None:
    """Commit batches until none has records."""
    while ingestor.step().records:
        pass


def serve(topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine read this topic, and nothing else, until the test ends."""
    wait_ready()
    monkeypatch.setattr(engine, "shared", lambda *_: topic.processes)
    topic.kafka.serve(monkeypatch)
    monkeypatch.setattr(reading, "fetcher", lambda _, __, ranges: _Reader(topic, ranges))
