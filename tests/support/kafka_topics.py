"""A topic of its own for one test, with a producer for it, and its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from pyiceberg.table import Table
from waiting import wait_until

from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.kafka.ends import EndReader, Ends
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.engine import run_once
from topicberg.topics import TopicSpec

Row = dict[str, Any]


def avro(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


ORDER = avro({"name": "id", "type": "long"}, {"name": "note", "type": "string"})


@dataclass
class Topic:
    """A topic of its own with a producer for it."""

    endpoints: Endpoints
    spec: TopicSpec
    config: Settings = field(default_factory=settings)

    def register(self, schema: dict[str, Any]) -> int:
        registry = self.endpoints.schema_registry_client()
        return registry.register_schema(self.spec.value_subject, Schema(json.dumps(schema), "AVRO"))

    def send(self, schema: dict[str, Any], rows: list[Row], **more: Any) -> None:
        prefix, parsed = wire_prefix(self.register(schema)), fastavro.parse_schema(schema)
        self.send_raw([prefix + encode(parsed, row) for row in rows], **more)

    def send_raw(
        self,
        values: Sequence[bytes | None],
        key: Callable[[int], bytes] | None = None,
        partition: int = -1,
        timestamp: Callable[[int], int] = lambda _: 0,
        headers: Sequence[tuple[str, bytes | None]] = (),
        **config: Any,
    ) -> None:
        """:param key: the key of the n-th record
        :param partition: -1: by the key, or any
        :param timestamp: of the n-th record, in milliseconds; 0: now
        :param headers: of each record
        :param config: of the producer, dots as underscores
        """
        more = {name.replace("_", "."): setting for name, setting in config.items()}
        producer = Producer({**self.endpoints.kafka_config(), "linger.ms": 50, **more})
        refused: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(
                        self.spec.name,
                        value,
                        key(number) if key else None,
                        partition,
                        on_delivery=delivered,
                        timestamp=timestamp(number),
                        headers=list(headers),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not refused, refused[0]

    def respec(self, **fields: Any) -> None:
        """Change the topic's spec."""
        self.spec = TopicSpec.model_validate({**self.spec.model_dump(by_alias=True), **fields})

    def wait_for_markers(self) -> None:
        """Wait until all that is committed can be read. The broker answers a commit before each
        partition has the transaction's marker."""
        name, reader = self.spec.name, EndReader(self.endpoints)
        nothing = dict.fromkeys(range(self.spec.partitions), 0)

        def is_stable() -> bool:
            ends = reader.read({name: nothing})[name]
            return isinstance(ends, Ends) and ends.high == ends.stable

        wait_until(is_stable, pause=0.02)

    def ingest(self) -> int:
        return run_once(self.spec, self.endpoints, self.config).records

    def table(self) -> Table:
        identifier = self.spec.table_identifier(self.config)
        return self.endpoints.catalog(self.config).load_table(identifier)

    def rows(self, *columns: str) -> list[Row]:
        arrow = self.table().scan(selected_fields=columns or ("*",)).to_arrow()
        return sorted(arrow.to_pylist(), key=lambda row: (row.get("id") is None, str(row)))


def encode(parsed: Any, row: Row) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, parsed, row)
    return buffer.getvalue()
