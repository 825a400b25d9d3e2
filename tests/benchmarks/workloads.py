"""The records of the ingest benchmark: small and wide ones, in three formats, in topics.

Small: 6 fields, 31 bytes in Avro, 1,000 different values. Wide: 16 fields, about 512 bytes in Avro,
a nested record, an array and a nullable field; ids, times and sequence numbers do not repeat.
"""

from __future__ import annotations

import json
import math
import random
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema

from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.formats.subjects import wire_prefix
from topicberg.settings import Settings
from topicberg.topics import TopicSpec

PARTITIONS = 6
NAMESPACE = "benchmark"
FORMATS = ("avro", "json", "protobuf")
_TEMPLATES = 1_000
"""Different records, apart from the fields that do not repeat."""
_VENUE: dict[str, str] = {
    "name": "string",
    "country": "string",
    "latency": "double",
    "priority": "int",
}
_JSON: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "connect.type": "int32"},
    "long": {"type": "integer", "connect.type": "int64"},
    "double": {"type": "number", "connect.type": "float64"},
    "boolean": {"type": "boolean"},
}
_PROTO = {"int": "int32", "long": "int64", "boolean": "bool"}
_WORDS = (
    *("limit", "order", "good", "till", "cancelled", "partial", "fill", "allowed", "hidden"),
    *("quantity", "iceberg", "pegged", "market", "on", "close", "auction", "dark", "pool"),
    *("smart", "routing", "best", "execution", "settlement", "custody", "clearing", "desk"),
)


@dataclass(frozen=True)
class Shape:
    """What a record looks like."""

    name: str
    record: str
    """The name of the record's type."""
    fields: Mapping[str, str]
    """Name → Avro's type, or ``optional string``, ``venue``, ``strings``."""
    row: Callable[[int], dict[str, Any]]

    @cached_property
    def avro(self) -> dict[str, Any]:
        """Avro's schema."""
        venue = [{"name": name, "type": kind} for name, kind in _VENUE.items()]
        special: dict[str, Any] = {
            "optional string": ["null", "string"],
            "venue": {"type": "record", "name": "Venue", "fields": venue},
            "strings": {"type": "array", "items": "string"},
        }
        fields = [{"name": n, "type": special.get(k, k)} for n, k in self.fields.items()]
        return {"type": "record", "name": self.record, "fields": fields}

    @cached_property
    def json(self) -> dict[str, Any]:
        """JSON Schema."""
        venue = {name: _JSON[kind] for name, kind in _VENUE.items()}
        kinds = _JSON | {
            "optional string": _JSON["string"],
            "venue": {"type": "object", "title": "Venue", "properties": venue},
            "strings": {"type": "array", "items": _JSON["string"]},
        }
        properties = {name: kinds[kind] for name, kind in self.fields.items()}
        return {"type": "object", "title": self.record, "properties": properties}

    @cached_property
    def proto(self) -> str:
        """Protobuf's schema."""
        special = {"venue": "Venue", "strings": "repeated string"}
        lines = [
            f"  {special.get(kind, _PROTO.get(kind, kind))} {name} = {number};"
            for number, (name, kind) in enumerate(self.fields.items(), 1)
        ]
        if "venue" in self.fields.values():
            lines.append("  message Venue {")
            lines += [
                f"    {_PROTO.get(kind, kind)} {name} = {number};"
                for number, (name, kind) in enumerate(_VENUE.items(), 1)
            ]
            lines.append("  }")
        return "\n".join(['syntax = "proto3";', f"message {self.record} {{", *lines, "}"]) + "\n"

    def schema(self, kind: str) -> Schema:
        texts = {"avro": json.dumps(self.avro), "json": json.dumps(self.json)}
        return Schema(texts.get(kind, self.proto), kind.upper())

    def encoder(self, kind: str) -> Callable[[dict[str, Any]], bytes]:
        """Return what encodes a row, without the schema's id."""
        return {"avro": self._to_avro, "json": _to_json, "protobuf": self._to_proto}[kind]

    @cached_property
    def parsed(self) -> Any:
        """Avro's schema, as fastavro's functions need it."""
        return fastavro.parse_schema(json.loads(json.dumps(self.avro)))

    def _to_avro(self, row: dict[str, Any]) -> bytes:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, self.parsed, row)
        return buffer.getvalue()

    @cached_property
    def _message(self) -> Any:
        from google.protobuf import message_factory

        from topicberg.formats import protoc

        file = protoc.compiled(f"{self.name}.proto", self.proto)
        return message_factory.GetMessageClass(file.message_types_by_name[self.record])

    def _to_proto(self, row: dict[str, Any]) -> bytes:
        given = {name: value for name, value in row.items() if value is not None}
        return b"\x00" + bytes(self._message(**given).SerializeToString())

    def text(self, row: Mapping[str, Any]) -> str:
        """Return a row's values as the text whose CRC-32 the checksum adds up."""
        return "|".join(_text(row[name]) for name in self.fields)

    @property
    def text_sql(self) -> str:
        """The same of a table's row, for Spark."""
        of_venue = ", '~', ".join(f"cast(venue.{name} as string)" for name in _VENUE)
        special = {
            "optional string": "coalesce({0}, '')",
            "venue": f"concat({of_venue})",
            "strings": "array_join({0}, '~')",
        }
        texts = [special.get(k, "cast({0} as string)").format(n) for n, k in self.fields.items()]
        return f"concat_ws('|', {', '.join(texts)})"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "~".join(map(_text, value.values() if isinstance(value, dict) else value))
    return "" if value is None else str(value)


def _to_json(row: dict[str, Any]) -> bytes:
    return json.dumps({n: value for n, value in row.items() if value is not None}).encode()


def trade(number: int) -> dict[str, Any]:
    return {
        "side": "BUY" if number % 2 else "SELL",
        "quantity": number % 5000,
        "symbol": f"ZT{number % 7}ZT",
        "price": number % 1000,
        "account": f"ACC{number % 3}",
        "userid": f"User_{number % 9}",
    }


def _small(number: int) -> dict[str, Any]:
    return trade(number % _TEMPLATES)


@cache
def _template(number: int) -> dict[str, Any]:
    words = random.Random(number)
    return {
        "order_id": "",
        "account": f"ACC{number % 250:05}",
        "symbol": f"SYM{number % 90}.US",
        "side": "BUY" if number % 2 else "SELL",
        "quantity": number * 7 % 5000,
        "price": number % 640 + 0.25,
        "amount": number * 1_000_003,
        "is_margin": number % 5 == 0,
        "created": 0,
        "sequence": 0,
        "trader": f"trader-{number % 60:03}@desk{number % 12}.example.com",
        "description": " ".join(words.choices(_WORDS, k=22)),
        "remarks": " ".join(words.choices(_WORDS, k=26)),
        "comment": None if number % 3 else words.choice(_WORDS),
        "venue": {
            "name": f"Exchange {number % 14}",
            "country": ("US", "DE", "GB", "JP")[number % 4],
            "latency": number % 40 + 0.5,
            "priority": number % 10,
        },
        "tags": [words.choice(_WORDS) for _ in range(5)],
    }


def _wide(number: int) -> dict[str, Any]:
    return _template(number % _TEMPLATES) | {
        "order_id": f"{number * 0x9E3779B97F4A7C15 & (2**64 - 1):016x}-{number:012}",
        "created": 1_760_000_000_000 + 13 * number,
        "sequence": number,
    }


SMALL = Shape(
    "small",
    "Trade",
    {
        "side": "string",
        "quantity": "int",
        "symbol": "string",
        "price": "int",
        "account": "string",
        "userid": "string",
    },
    _small,
)
WIDE = Shape(
    "wide",
    "Order",
    {
        "order_id": "string",
        "account": "string",
        "symbol": "string",
        "side": "string",
        "quantity": "int",
        "price": "double",
        "amount": "long",
        "is_margin": "boolean",
        "created": "long",
        "sequence": "long",
        "trader": "string",
        "description": "string",
        "remarks": "string",
        "comment": "optional string",
        "venue": "venue",
        "tags": "strings",
    },
    _wide,
)


@dataclass(frozen=True)
class Topic:
    """A topic with a record for each number from 0; keys ``k<number>``."""

    spec: TopicSpec
    shape: Shape
    kind: str
    records: int
    bytes: int
    """Of all values, with their schema ids."""
    checksum: int
    """The sum of the CRC-32 of each record's key and values, as text."""
    checksum_of_values: int


def fill_topic(endpoints: Endpoints, shape: Shape, kind: str, records: int) -> Topic:
    """Create a topic and produce its records."""
    spec = create_topic(endpoints, kind)
    produced = checksum = of_values = 0
    prefix, encode = _prefix(endpoints, spec, shape, kind), shape.encoder(kind)
    templates = [shape.row(number) for number in range(_TEMPLATES)] if shape is SMALL else []
    known = [(prefix + encode(row), shape.text(row)) for row in templates]

    def values() -> Iterator[tuple[int, bytes]]:
        nonlocal produced, checksum, of_values
        for number in range(records):
            if known:
                value, text = known[number % _TEMPLATES]
            else:
                row = shape.row(number)
                value, text = prefix + encode(row), shape.text(row)
            produced += len(value)
            checksum += zlib.crc32(f"k{number}|{text}".encode())
            of_values += zlib.crc32(text.encode())
            yield number, value

    _send(endpoints, spec, values())
    return Topic(spec, shape, kind, records, produced, checksum, of_values)


def create_topic(endpoints: Endpoints, kind: str, mode: str = "append") -> TopicSpec:
    name = f"benchmark_{kind}_{uuid.uuid4().hex[:6]}"
    spec = TopicSpec.model_validate(
        {
            "name": name,
            "pipeline": NAMESPACE,
            "schema": {"format": kind, "file": "from-the-registry"},
            "key": {"format": "string"},
            "partitions": PARTITIONS,
            "write_mode": mode,
        }
    )
    admin = endpoints.kafka_admin()  # kept: its futures die with it
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)
    return spec


def drop(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    """Drop a topic's table, with its files."""
    endpoints.catalog(config).purge_table(spec.table_identifier(config))


def make_topic(endpoints: Endpoints, kind: str, numbers: range, mode: str = "append") -> TopicSpec:
    """Create a topic with a small record for each number; keys ``k<number>``."""
    spec = create_topic(endpoints, kind, mode)
    produce(endpoints, spec, kind, numbers)
    return spec


def produce(endpoints: Endpoints, spec: TopicSpec, kind: str, numbers: Iterable[int]) -> None:
    """Produce a small record for each number."""
    prefix, encode = _prefix(endpoints, spec, SMALL, kind), SMALL.encoder(kind)
    values = [prefix + encode(trade(number)) for number in range(_TEMPLATES)]
    _send(endpoints, spec, ((number, values[number % _TEMPLATES]) for number in numbers))


def _prefix(endpoints: Endpoints, spec: TopicSpec, shape: Shape, kind: str) -> bytes:
    registry = endpoints.schema_registry_client()
    return wire_prefix(registry.register_schema(spec.value_subject, shape.schema(kind)))


def _send(endpoints: Endpoints, spec: TopicSpec, values: Iterable[tuple[int, bytes]]) -> None:
    producer = Producer({**endpoints.kafka_config(), "linger.ms": 50, "compression.type": "lz4"})
    for number, value in values:
        kafka.produce(producer, spec.name, value, f"k{number}".encode(), lambda *_: None)
    producer.flush(120)


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, math.ceil(share * len(ascending)) - 1)]
