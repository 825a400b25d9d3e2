"""The workloads of the ingest benchmark, as data, and the topics that have their records.

Small records: 6 fields, 31 bytes in Avro, 1,000 different values. Wide ones: 16 fields, about 512
bytes in Avro, a nested record, an array and a nullable field; ids, times and sequence numbers do
not repeat.
"""

from __future__ import annotations

import json
import math
import random
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from io import BytesIO
from itertools import islice
from typing import Any

import fastavro
import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema

from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.settings import Settings
from topicberg.topics import TopicSpec

PARTITIONS = 6
NAMESPACE = "benchmark"
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
_AVRO: dict[str, Any] = {
    "optional string": ["null", "string"],
    "strings": {"type": "array", "items": "string"},
}
_SQL = {"optional string": "coalesce({0}, '')", "strings": "array_join({0}, '~')"}
"""What makes a column's value the text that a checksum is computed of; default: a cast."""
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
    """Name → Avro's type, ``venue``, or one of the types above."""
    row: Callable[[int], dict[str, Any]]

    @cached_property
    def avro(self) -> dict[str, Any]:
        """Avro's schema."""
        venue = [{"name": name, "type": kind} for name, kind in _VENUE.items()]
        kinds = _AVRO | {"venue": {"type": "record", "name": "Venue", "fields": venue}}
        fields = [{"name": n, "type": kinds.get(k, k)} for n, k in self.fields.items()]
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
        text = self.proto if kind == "protobuf" else json.dumps(getattr(self, kind))
        return Schema(text, kind.upper())

    def encoder(self, kind: str) -> Callable[[dict[str, Any]], bytes]:
        """Return what encodes a row, without the schema's id."""
        return {"avro": self._to_avro, "json": self._to_json, "protobuf": self._to_proto}[kind]

    @cached_property
    def parsed(self) -> Any:
        """Avro's schema, as fastavro's functions need it."""
        return fastavro.parse_schema(json.loads(json.dumps(self.avro)))

    def _to_json(self, row: dict[str, Any]) -> bytes:
        given = {name: value for name, value in row.items() if value is not None}
        return json.dumps(given).encode()

    def _to_avro(self, row: dict[str, Any]) -> bytes:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, self.parsed, row)
        return buffer.getvalue()

    @cached_property
    def _message(self) -> Any:
        from google.protobuf import message_factory

        from topicberg.formats.protobuf import protoc

        file = protoc.compiled(f"{self.name}.proto", self.proto)
        return message_factory.GetMessageClass(file.message_types_by_name[self.record])

    def _to_proto(self, row: dict[str, Any]) -> bytes:
        given = {name: value for name, value in row.items() if value is not None}
        return b"\x00" + bytes(self._message(**given).SerializeToString())

    def text(self, row: Mapping[str, Any]) -> str:
        """Return a row's values as the text that the checksum is computed of."""
        return "|".join(_text(row[name]) for name in self.fields)

    @property
    def text_sql(self) -> str:
        """The same of a table's row, for Spark."""
        of_venue = ", '~', ".join(f"cast(venue.{name} as string)" for name in _VENUE)
        special = _SQL | {"venue": f"concat({of_venue})"}
        texts = [special.get(k, "cast({0} as string)").format(n) for n, k in self.fields.items()]
        return f"concat_ws('|', {', '.join(texts)})"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "~".join(map(_text, value.values() if isinstance(value, dict) else value))
    return "" if value is None else str(value)


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


Mutation = Callable[[bytes], bytes]
"""Makes a small record malformed: with its schema's id, which has five bytes."""
MALFORMED: tuple[Mutation, ...] = (
    lambda value: value[:-3],
    lambda value: value[:5],
    lambda _: b"oops",
    lambda value: value[:5] + b"\xfe\x7f" + value[6:],  # the text is longer than the record
    lambda value: value[:5] + b"\x01" + value[6:],  # its size is negative
)
"""Of small records in Avro."""


@dataclass(frozen=True)
class Workload:
    """A topic's records, and its settings."""

    name: str
    kind: str = "avro"
    """Format."""
    shape: Shape = SMALL
    every: int = 0
    """One record in so many is malformed; 0: none."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the topic's spec."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the producer."""
    flink: str = ""
    """Flink's decoder that was written for these records; empty: there is none."""

    @property
    def clean(self) -> str:
        """Name of the workload with records of the format in which all is as usual."""
        return f"{'wide' if self.shape is WIDE else 'small'}-{self.kind}"


def _handling(mode: str) -> dict[str, Any]:
    # Each topic has a dead-letter topic of its own, in which nothing else is counted.
    target = {"target": f"benchmark_errors_{uuid.uuid4().hex[:6]}"} if mode == "LOG" else {}
    return {"tableflow": {"error_handling": {"mode": mode, **target}}}


def _malformed(every: int, mode: str) -> Workload:
    name = f"avro-malformed-{every}-{mode.lower()}"
    flink = "small" if mode == "SKIP" else ""
    return Workload(name, every=every, spec=_handling(mode), flink=flink)


WORKLOADS = (
    Workload("small-avro", flink="small"),
    Workload("avro-zstd", producer={"compression.type": "zstd"}, flink="small"),
    Workload("avro-transactions", producer={"transactional.id": NAMESPACE}, flink="small"),
    _malformed(1_000, "SKIP"),
    _malformed(1_000, "LOG"),
    _malformed(10, "SKIP"),
    Workload("small-json", "json"),
    Workload("small-protobuf", "protobuf"),
    Workload("wide-avro", shape=WIDE, flink="wide"),
    Workload("wide-json", "json", WIDE),
    Workload("wide-protobuf", "protobuf", WIDE),
)
"""Those of the same format follow each other."""


@dataclass(frozen=True)
class Topic:
    """A topic with a record for each number from 0."""

    workload: Workload
    spec: TopicSpec
    records: int
    bytes: int
    """Of all values, with their schema ids."""
    rows: int
    rejected: int
    """Records that do not become rows."""
    checksum: int
    """Of the number and the values of each row, see :data:`CHECKED`."""

    @property
    def shape(self) -> Shape:
        return self.workload.shape


CHECKED = 2**20
"""A checksum adds up the CRC-32 of each row's text, modulo this, times its number, modulo this."""
Produced = tuple[bytes, bytes]
"""Key and value."""


def fill_topic(endpoints: Endpoints, workload: Workload, records: int) -> Topic:
    """Create a topic and produce its records."""
    spec = create_topic(endpoints, workload.kind, **workload.spec)
    crcs = np.empty(records, np.int64)
    """-1: no row"""
    sender = Sender(endpoints, spec.name, workload.producer)
    sender.send(_records(endpoints, workload, spec, crcs))
    numbers = np.arange(records)[is_row := crcs >= 0] % CHECKED
    checksum = int((crcs[is_row] % CHECKED * numbers).sum())
    return Topic(
        workload, spec, records, sender.bytes, len(numbers), records - len(numbers), checksum
    )


def _records(
    endpoints: Endpoints, workload: Workload, spec: TopicSpec, crcs: Any
) -> Iterator[Produced]:
    """Yield the records.

    :param crcs: is filled with the CRC-32 of each row's text
    """
    shape, every = workload.shape, workload.every
    prefix = _prefix(endpoints, spec.value_subject, shape.schema(workload.kind))
    encode = shape.encoder(workload.kind)

    def made(number: int) -> tuple[bytes, int]:
        row = shape.row(number)
        return prefix + encode(row), zlib.crc32(shape.text(row).encode())

    known = [made(number) for number in range(_TEMPLATES)] if shape is not WIDE else []
    for number in range(len(crcs)):
        value, crc = known[number % _TEMPLATES] if known else made(number)
        if every and number % every == every - 1:
            value, crc = MALFORMED[number // every % len(MALFORMED)](value), -1
        crcs[number] = crc
        yield f"k{number}".encode(), value


class Sender:
    """Produces records to a topic, many at once."""

    AT_ONCE, WAITING = 10_000, 300_000

    def __init__(
        self, endpoints: Endpoints, topic: str, properties: Mapping[str, Any] | None = None
    ) -> None:
        self.topic, self.bytes = topic, 0
        self._is_transactional = "transactional.id" in (properties or {})
        self._producer = Producer(
            {
                **endpoints.kafka_config(),
                "linger.ms": 50,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 2 * self.WAITING,
                "queue.buffering.max.kbytes": 1024 * 1024,
                **(properties or {}),
            }
        )
        if self._is_transactional:
            self._producer.init_transactions(60)

    def send(self, records: Iterator[Produced]) -> None:
        """:raises RuntimeError: Kafka does not take them"""
        producer = self._producer
        while some := list(islice(records, self.AT_ONCE)):
            while len(producer) > self.WAITING:
                producer.poll(0.01)
            if self._is_transactional:
                producer.begin_transaction()
            messages = [{"key": key, "value": value} for key, value in some]
            if producer.produce_batch(self.topic, messages) != len(messages):
                refused = next(one for one in messages if "_error" in one)
                raise RuntimeError(f"topic {self.topic}: {refused}")
            self.bytes += sum(len(value) for _, value in some)
            if self._is_transactional:
                producer.commit_transaction(60)
            producer.poll(0)
        if left := producer.flush(120):
            raise RuntimeError(f"topic {self.topic}: Kafka did not take {left} records")


def create_topic(endpoints: Endpoints, kind: str, mode: str = "append", **more: Any) -> TopicSpec:
    name = f"benchmark_{kind}_{uuid.uuid4().hex[:6]}"
    given = {
        "name": name,
        "pipeline": NAMESPACE,
        "schema": {"format": kind, "file": "from-the-registry"},
        "key": {"format": "string"},
        "partitions": PARTITIONS,
        "write_mode": mode,
    }
    spec = TopicSpec.model_validate(given | more)
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
    prefix = _prefix(endpoints, spec.value_subject, SMALL.schema(kind))
    encode = SMALL.encoder(kind)
    values = [prefix + encode(trade(number)) for number in range(_TEMPLATES)]
    _send(endpoints, spec, ((number, values[number % _TEMPLATES]) for number in numbers))


def _prefix(endpoints: Endpoints, subject: str, schema: Schema) -> bytes:
    return wire_prefix(endpoints.schema_registry_client().register_schema(subject, schema))


def _send(endpoints: Endpoints, spec: TopicSpec, values: Iterable[tuple[int, bytes]]) -> None:
    sender = Sender(endpoints, spec.name)
    sender.send((f"k{number}".encode(), value) for number, value in values)


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, math.ceil(share * len(ascending)) - 1)]
