"""The workloads of the ingest benchmark, as data, and the topics that have their records.

Small records: 6 fields, 31 bytes in Avro, 1,000 different values. Wide ones: 16 fields, about 512
bytes in Avro, a nested record, an array and a nullable field; ids, times and sequence numbers do
not repeat. The other shapes are small records with something added or replaced.
"""

from __future__ import annotations

import json
import math
import random
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
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
from topicberg.kafka import topics as kafka
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
    "map": {"type": "map", "values": "string"},
    "union": ["long", "double", "string"],
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}
_SQL = {
    "optional string": "coalesce({0}, '')",
    "strings": "array_join({0}, '~')",
    "map": "concat_ws('~', map_keys({0}), map_values({0}))",
    "union": "coalesce(cast({0}.member0 as string), cast({0}.member1 as string), {0}.member2)",
    "timestamp": "cast(unix_micros({0}) as string)",
}
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
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that older records lack."""

    @cached_property
    def avro(self) -> dict[str, Any]:
        """Avro's schema."""
        venue = [{"name": name, "type": kind} for name, kind in _VENUE.items()]
        kinds = _AVRO | {"venue": {"type": "record", "name": "Venue", "fields": venue}}
        fields = [{"name": n, "type": kinds.get(k, k)} for n, k in self.fields.items()]
        for one in fields:
            if one["name"] in self.defaults:
                one["default"] = self.defaults[one["name"]]
        return {"type": "record", "name": self.record, "fields": fields}

    @cached_property
    def json(self) -> dict[str, Any]:
        """JSON Schema."""
        venue = {name: _JSON[kind] for name, kind in _VENUE.items()}
        kinds = _JSON | {
            "optional string": _JSON["string"],
            "oneOf string": {"oneOf": [{"type": "null"}, _JSON["string"]]},
            "venue": {"type": "object", "title": "Venue", "properties": venue},
            "strings": {"type": "array", "items": _JSON["string"]},
            "map": {"type": "object", "additionalProperties": _JSON["string"]},
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
        kinds = self.fields
        given = {
            n: value for n, value in row.items() if value is not None or kinds[n] == "oneOf string"
        }
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
        values = {name: row.get(name, self.defaults.get(name)) for name in self.fields}
        maps = [name for name, kind in self.fields.items() if kind == "map"]
        values |= {name: [*values[name].keys(), *values[name].values()] for name in maps}
        return "|".join(map(_text, values.values()))

    @property
    def text_sql(self) -> str:
        """The same of a table's row, for Spark."""
        of_venue = ", '~', ".join(f"cast(venue.{name} as string)" for name in _VENUE)
        special = _SQL | {"oneOf string": _SQL["optional string"], "venue": f"concat({of_venue})"}
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


def _with_tags(number: int) -> dict[str, Any]:
    region = "eu" if number % 3 else "us"
    return _small(number) | {"tags": {"source": "web", "region": region, "kind": f"k{number % 5}"}}


def _with_union(number: int) -> dict[str, Any]:
    return _small(number) | {"price": (number, number + 0.5, f"n/a {number}")[number % 3]}


def _logical(number: int) -> dict[str, Any]:
    return _small(number) | {
        "quantity": Decimal(number * 7919).scaleb(-4),
        "price": date(2024, 1, 1) + timedelta(days=number % 700),
        "account": str(uuid.UUID(int=number * 0x9E3779B97F4A7C159E3779B97F4A7C15 % 2**128)),
        "userid": 1_760_000_000_000_000 + 1_234_567 * number,
    }


def _nullable(number: int) -> dict[str, Any]:
    return _with_tags(number) | {"account": f"ACC{number % 3}" if number % 2 else None}


def _small_with(fields: Mapping[str, str], row: Callable[[int], dict[str, Any]]) -> Shape:
    return Shape("small", "Trade", {**SMALL.fields, **fields}, row)


LOTS = {"venue": "XETR", "lots": 1}
WITH_LOTS = Shape(
    "small",
    "Trade",
    {**SMALL.fields, "venue": "string", "lots": "int"},
    lambda number: _small(number) | {"venue": f"V{number % 5}", "lots": number % 7},
    LOTS,
)
OLDER_VERSIONS = tuple(
    Shape(
        "small",
        "Trade",
        {**SMALL.fields, f"added{version}": "optional string"},
        lambda number, name=f"added{version}": _small(number) | {name: "x"},  # type: ignore[misc]
        {f"added{version}": None},
    )
    for version in range(9)
)
"""Each one adds a field that the next one drops; the latest version is :data:`SMALL`."""
DELETED = Shape("deleted", "TradeDeleted", {"id": "long"}, lambda number: {"id": number})
CHANGED = Shape("changed", "Value", {"id": "long", **SMALL.fields}, _small)
"""A row of a database whose changes are records; the id is that of the key."""
_ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", CHANGED.avro], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    *({"name": n, "type": "string"} for n in ("connector", "name", "db", "table")),
                    {"name": "ts_ms", "type": "long"},
                    {"name": "snapshot", "type": ["string", "null"], "default": "false"},
                    {"name": "txId", "type": ["null", "long"], "default": None},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
_KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}

Mutation = Callable[[bytes], bytes]
"""Makes a small record malformed: with its schema's id, which has five bytes."""
_cut: Mutation = lambda value: value[:-3]  # noqa: E731
_empty: Mutation = lambda value: value[:5]  # noqa: E731
_unframed: Mutation = lambda _: b"oops"  # noqa: E731
MALFORMED: dict[str, tuple[Mutation, ...]] = {
    "avro": (
        _cut,
        _empty,
        _unframed,
        lambda value: value[:5] + b"\xfe\x7f" + value[6:],  # the text is longer than the record
        lambda value: value[:5] + b"\x01" + value[6:],  # its size is negative
    ),
    "json": (
        _cut,
        _empty,
        _unframed,
        lambda value: value.replace(b'"quantity": ', b'"quantity": true, "more": '),
        lambda value: value.replace(b'"side": "', b'"side": "\xff'),  # not UTF-8
    ),
    "protobuf": (
        _cut,
        _unframed,
        lambda value: value[:6] + b"\x0a\xff\x7f" + value[8:],  # longer than the record
        lambda value: value[:6] + b"\x0f" + value[7:],  # there is no such wire type
        lambda value: value[:8] + b"\xff" + value[9:],  # not UTF-8
    ),
}


@dataclass(frozen=True)
class Workload:
    """A topic's records, and its settings."""

    name: str
    kind: str = "avro"
    """Format."""
    shapes: tuple[Shape, ...] = (SMALL,)
    """Versions of the schema, oldest first, which alternate record by record."""
    every: int = 0
    """One record in so many does not become a row; 0: none."""
    foreign: bool = False
    """That record is of another subject, else it is malformed."""
    framed: bool = True
    """Whether the records name their schema."""
    changes: bool = False
    """Debezium's; in write mode upsert, a row's creation and its update."""
    hours: int = 0
    """The records' times are spread over so many hours; 0: they are of now."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the topic's spec."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the producer."""
    flink: str = ""
    """Flink's decoder that was written for these records; empty: there is none."""

    @property
    def shape(self) -> Shape:
        return self.shapes[-1]

    @property
    def clean(self) -> str:
        """Name of the workload with records of the format in which all is as usual."""
        return f"{'wide' if self.shape is WIDE else 'small'}-{self.kind}"

    @property
    def is_upsert(self) -> bool:
        return self.spec.get("write_mode") == "upsert"


def _handling(mode: str) -> dict[str, Any]:
    # Each topic has a dead-letter topic of its own, in which nothing else is counted.
    target = {"target": f"benchmark_errors_{uuid.uuid4().hex[:6]}"} if mode == "LOG" else {}
    return {"tableflow": {"error_handling": {"mode": mode, **target}}}


def _malformed(kind: str, every: int, mode: str) -> Workload:
    name = f"{kind}-malformed-{every}-{mode.lower()}"
    flink = "small" if kind == "avro" and mode == "SKIP" else ""
    return Workload(name, kind, every=every, spec=_handling(mode), flink=flink)


def _partitioned(by: str) -> dict[str, Any]:
    return {"table": {"partitioning": [by]}}


TAGS = {"tags": "map"}
UNION = _small_with({"price": "union"}, _with_union)
LOGICAL = _small_with(
    {"quantity": "decimal", "price": "date", "account": "uuid", "userid": "timestamp"}, _logical
)
NULLABLE = _small_with({"account": "oneOf string", **TAGS}, _nullable)
DEBEZIUM = {"changelog": {"format": "debezium"}, "key": {"format": "avro", "file": "registry"}}
WORKLOADS = (
    Workload("small-avro", flink="small"),
    Workload("avro-zstd", producer={"compression.type": "zstd"}, flink="small"),
    Workload("avro-transactions", producer={"transactional.id": NAMESPACE}, flink="small"),
    _malformed("avro", 10_000, "SKIP"),
    _malformed("avro", 10_000, "LOG"),
    _malformed("avro", 1_000, "SKIP"),
    _malformed("avro", 1_000, "LOG"),
    _malformed("avro", 10, "SKIP"),
    Workload("avro-other-subject-1000", every=1_000, foreign=True, spec=_handling("SKIP")),
    Workload("avro-default-added", shapes=(SMALL, WITH_LOTS), flink="added"),
    Workload("avro-10-versions", shapes=(*OLDER_VERSIONS, SMALL), flink="small"),
    Workload("avro-union", shapes=(UNION,)),
    Workload("avro-map", shapes=(_small_with(TAGS, _with_tags),)),
    Workload("avro-logical-types", shapes=(LOGICAL,)),
    Workload("avro-unframed", framed=False),
    Workload("avro-bucket-8", spec=_partitioned("bucket[8](key)"), flink="small"),
    Workload("avro-hour-48", spec=_partitioned("hour($$timestamp)"), hours=48),
    Workload("debezium-append", shapes=(CHANGED,), changes=True, spec=DEBEZIUM),
    Workload(
        *("debezium-rows", "avro", (CHANGED,)),
        changes=True,
        spec={**DEBEZIUM, "write_mode": "upsert"},
    ),
    Workload("small-json", "json"),
    _malformed("json", 1_000, "SKIP"),
    _malformed("json", 1_000, "LOG"),
    Workload("json-unframed", "json", framed=False),
    Workload("json-oneof-map", "json", (NULLABLE,)),
    Workload("small-protobuf", "protobuf"),
    _malformed("protobuf", 1_000, "SKIP"),
    _malformed("protobuf", 1_000, "LOG"),
    Workload("wide-avro", shapes=(WIDE,), flink="wide"),
    Workload("wide-json", "json", (WIDE,)),
    Workload("wide-protobuf", "protobuf", (WIDE,)),
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

    @property
    def number_sql(self) -> str:
        """What computes a row's number."""
        if self.workload.changes:
            return "id"
        return "cast(substr(cast(key as string), 2) as bigint)"


CHECKED = 2**20
"""A checksum adds up the CRC-32 of each row's text, modulo this, times its number, modulo this."""
Produced = tuple[bytes, bytes, int]
"""Key, value, and time in milliseconds, 0: now."""


def fill_topic(endpoints: Endpoints, workload: Workload, records: int) -> Topic:
    """Create a topic and produce its records."""
    spec = create_topic(endpoints, workload.kind, framed=workload.framed, **workload.spec)
    crcs = np.empty(records, np.int64)
    """-1: no row"""
    made = _changes if workload.changes else _records
    sender = Sender(endpoints, spec.name, workload.producer)
    sender.send(made(endpoints, workload, spec, crcs))
    numbers, is_row = np.arange(records), crcs >= 0
    if workload.is_upsert:
        is_row &= numbers >= records // 2
        numbers %= records // 2
    crcs, numbers = crcs[is_row] % CHECKED, numbers[is_row] % CHECKED
    checksum = int((crcs * numbers).sum())
    rejected = 0 if workload.is_upsert else records - len(crcs)
    return Topic(workload, spec, records, sender.bytes, len(crcs), rejected, checksum)


def _records(
    endpoints: Endpoints, workload: Workload, spec: TopicSpec, crcs: Any
) -> Iterator[Produced]:
    """Yield the records.

    :param crcs: is filled with the CRC-32 of each row's text
    """
    kind, shapes, latest = workload.kind, workload.shapes, workload.shape
    prefixes = [_prefix(endpoints, spec.value_subject, one.schema(kind)) for one in shapes]
    encoders = [one.encoder(kind) for one in shapes]

    def made(number: int) -> tuple[bytes, int]:
        version = number % len(shapes)
        row = shapes[version].row(number)
        prefix = prefixes[version] if workload.framed else b""
        value = prefix + encoders[version](row)
        return value, zlib.crc32(latest.text(row).encode())

    known = [made(number) for number in range(_TEMPLATES)] if latest is not WIDE else []
    bad = MALFORMED[kind]
    if workload.foreign:
        prefix = _prefix(endpoints, f"{spec.name}-deleted", DELETED.schema(kind))
        other = prefix + DELETED.encoder(kind)({"id": 7})
        bad = (lambda _: other,)
    every, begin, step = workload.every, 0, 0.0
    if workload.hours:
        begin = int(time.time() - 3_600 * workload.hours) * 1_000
        step = 3_600_000 * workload.hours / len(crcs)
    for number in range(len(crcs)):
        value, crc = known[number % _TEMPLATES] if known else made(number)
        if every and number % every == every - 1:
            value, crc = bad[number // every % len(bad)](value), -1
        crcs[number] = crc
        yield f"k{number}".encode(), value, begin and begin + int(number * step)


def _changes(
    endpoints: Endpoints, workload: Workload, spec: TopicSpec, crcs: Any
) -> Iterator[Produced]:
    """Yield the changes of a table as Debezium writes them; see :func:`_records`. Every row is
    created; in write mode upsert, each is updated after all are there."""
    change = _change(endpoints, spec)
    created = len(crcs) // 2 if workload.is_upsert else len(crcs)
    for number in range(len(crcs)):
        row, op = number % created, "c" if number < created else "u"
        key, value, text = change(row, number, op)
        crcs[number] = zlib.crc32(f"{row}|{text}".encode())
        yield key, value, 0


def _change(endpoints: Endpoints, spec: TopicSpec) -> Callable[[int, int, str], Any]:
    """Return what encodes a change: id, number and operation → key, value, text of the row."""
    value = _prefix(endpoints, spec.value_subject, Schema(json.dumps(_ENVELOPE), "AVRO"))
    key = _prefix(endpoints, spec.key_subject, Schema(json.dumps(_KEY), "AVRO"))
    rows = [SMALL.row(number) for number in range(_TEMPLATES)]
    encode = SMALL.encoder("avro")
    known = [(encode(row), SMALL.text(row)) for row in rows]
    texts = ("postgresql", "shop", "shop", "trades")
    source = b"".join(_zigzag(len(text)) + text.encode() for text in texts)
    source += _zigzag(1_760_000_000_000) + b"\x00\x0afalse" + b"\x02" + _zigzag(700) + b"\x02"
    now = b"\x02" + _zigzag(1_760_000_000_001)

    def change(row: int, number: int, op: str) -> tuple[bytes, bytes, str]:
        fields, text = known[number % _TEMPLATES]
        found = _zigzag(row)
        image = b"\x02" + found + fields
        both = image + b"\x00" if op == "d" else b"\x00" + image
        end = _zigzag(number) + b"\x02" + op.encode() + now
        return key + found, value + both + source + end, text

    return change


def _zigzag(number: int) -> bytes:
    number, found = number << 1, bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


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
            if some[0][2]:  # a batch of messages has no times
                for key, value, time_ms in some:
                    kafka.produce(producer, self.topic, value, key, timestamp_ms=time_ms)
            else:
                messages = [{"key": key, "value": value} for key, value, _ in some]
                if producer.produce_batch(self.topic, messages) != len(messages):
                    refused = next(one for one in messages if "_error" in one)
                    raise RuntimeError(f"topic {self.topic}: {refused}")
            self.bytes += sum(len(value) for _, value, _ in some)
            if self._is_transactional:
                producer.commit_transaction(60)
            producer.poll(0)
        if left := producer.flush(120):
            raise RuntimeError(f"topic {self.topic}: Kafka did not take {left} records")


def create_topic(
    endpoints: Endpoints, kind: str, mode: str = "append", *, framed: bool = True, **more: Any
) -> TopicSpec:
    name = f"benchmark_{kind}_{uuid.uuid4().hex[:6]}"
    subject = {"framing": "none", "subject": f"{name}-value"}
    given = {
        "name": name,
        "pipeline": NAMESPACE,
        "schema": {"format": kind, **({"file": "from-the-registry"} if framed else subject)},
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
    sender.send((f"k{number}".encode(), value, 0) for number, value in values)


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, math.ceil(share * len(ascending)) - 1)]
