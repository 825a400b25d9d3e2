"""Topics that an earlier version wrote to tables, and what is sent to them after the upgrade.

``tests/data/upgrade/make.py`` sends the records of BEFORE and PENDING with the code of the earlier
version, which this module must not import; ``tests/integration/test_upgrade.py`` sends those of
AFTER. What was sent to the stored topics must not be changed without making them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema

Row = dict[str, Any]
PARTITIONS = 2
BEGIN_MS = 1_767_312_000_000
"""2026-01-02, the time of the first record."""
MINUTE_MS = 60_000
BAD = b"\x01bad"
"""Is no value of any format."""
LONG_TIME_MS = 10 * 365 * 86_400_000
LASTING = {"retention.ms": "-1"}
"""Configuration of topics: the stored records are older with every day."""


# --- schemas and bytes ---


def _avro(name: str, *fields: Row) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def _json(title: str, properties: Row, required: Iterable[str]) -> str:
    kind = {"type": "object", "title": title, "additionalProperties": False}
    return json.dumps({**kind, "properties": properties, "required": list(required)})


_ID, _NOTE = {"name": "id", "type": "long"}, {"name": "note", "type": "string"}
_AMOUNT = {"name": "amount", "type": ["null", "int"], "default": None}
_PROTO = 'syntax = "proto3"; message {} {{ {} }}'
_JSON_VALUE = {"id": {"type": "integer"}, "note": {"type": "string"}}

VALUES = {
    "avro": (_avro("Visit", _ID, _NOTE), _avro("Visit", _ID, _NOTE, _AMOUNT)),
    "json": (
        _json("Visit", _JSON_VALUE, ["id", "note"]),
        _json("Visit", {**_JSON_VALUE, "amount": {"type": "integer"}}, ["id", "note"]),
    ),
    "protobuf": (
        _PROTO.format("Visit", "int64 id = 1; string note = 2;"),
        _PROTO.format("Visit", "int64 id = 1; string note = 2; optional int32 amount = 3;"),
    ),
}
"""Two versions of the values by format."""
_ACCOUNT = {"name": "account", "type": "long"}
KEYS = {
    "avro": (_avro("Key", _ID), _avro("Key", {**_ID, "doc": "the number of the visit"})),
    "json": (
        _json("Key", {"account": {"type": "integer"}}, ["account"]),
        _json("Key", {"account": {"type": "integer", "description": "a number"}}, ["account"]),
    ),
    "protobuf": (
        _PROTO.format("Key", "int64 account = 1;"),
        _PROTO.format("Key", "int64 account = 1; int32 region = 2;"),
    ),
}
"""Two versions of the keys by format: the same keys have other bytes. Avro's is called as a field
of the value."""


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _payload(kind: str, schema: str, row: Row) -> bytes:
    if kind == "avro":
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(schema)), row)
        return buffer.getvalue()
    if kind == "json":
        return json.dumps({name: one for name, one in row.items() if one is not None}).encode()
    found = b"\0"  # the first message type of the file
    for name, one in row.items():
        number = {"id": 1, "account": 1, "note": 2, "amount": 3}[name]
        if isinstance(one, str):
            found += bytes([number << 3 | 2]) + _varint(len(one)) + one.encode()
        elif one:
            found += bytes([number << 3]) + _varint(one)
    return found


# --- records ---


@dataclass(frozen=True)
class Record:
    """``value``: a row, bytes that are no record, or a tombstone. Versions count from 1."""

    minute: int
    value: Row | bytes | None
    version: int = 1
    key: int | None = None
    key_version: int = 1
    partition: int = 0


@dataclass(frozen=True)
class UpgradeTopic:
    """A topic of the fixture, and its records."""

    name: str
    kind: str = "avro"
    """The format of the values."""
    key_kind: str | None = None
    """The format of the keys; ``string``: no schema; None: there are none."""
    mode: str = "SUSPEND"
    table: Row = field(default_factory=dict)
    before: tuple[tuple[Record, ...], ...] = ()
    """Batches that the earlier version committed."""
    pending: tuple[Record, ...] = ()
    """Records that it did not commit."""
    after: tuple[Record, ...] = ()
    more: Row = field(default_factory=dict)
    """More fields of the spec."""
    has_spec: bool = True
    """Whether there is a file for it only."""
    is_killed: bool = False
    """Whether the earlier version was killed before the commit of a batch."""

    @property
    def is_upsert(self) -> bool:
        return self.key_kind is not None

    @property
    def document(self) -> Row:
        """The spec."""
        return {
            "pipeline": "upgrade",
            "schema": {"format": self.kind},
            "key": {"format": self.key_kind or "none"},
            "partitions": PARTITIONS,
            "external": True,
            "write_mode": "upsert" if self.is_upsert else "append",
            "tableflow": {
                "commit_interval_seconds": 1,
                "retention_ms": LONG_TIME_MS,
                "error_handling": {"mode": self.mode},
            },
            "table": self.table,
            **self.more,
        }

    @property
    def sent(self) -> list[Record]:
        """All records of the earlier version."""
        return [*(one for batch in self.before for one in batch), *self.pending]

    def rows(self, records: Iterable[Record]) -> list[Row]:
        """Return the rows that a table has after some records, in the order of their ids."""
        found: dict[Any, Row] = {}
        for number, record in enumerate(records):
            key = record.key if self.is_upsert else number
            if record.value is None:
                found.pop(key, None)
            elif isinstance(record.value, dict):
                found[key] = {"amount": None, **record.value}
        return sorted(found.values(), key=lambda row: (row["id"], row["note"]))

    def malformed(self, records: Iterable[Record]) -> int:
        return sum(isinstance(one.value, bytes) for one in records)


def _visits(first: int, count: int, version: int, bad: int = 1) -> tuple[Record, ...]:
    """Return records of append topics: ``count`` rows, and ``bad`` ones between them."""
    rows = [
        Record(n, _visit(n, version), version, partition=n % PARTITIONS)
        for n in range(first, first + count)
    ]
    wrong = [Record(first, BAD, partition=n % PARTITIONS) for n in range(bad)]
    return (*rows[:2], *wrong, *rows[2:])


def _visit(number: int, version: int) -> Row:
    row: Row = {"id": number, "note": f"note {number}"}
    # None and 0 are different values.
    return row if version == 1 else {**row, "amount": number if number % 3 else None}


def _account(
    minute: int, key: int, version: int = 1, key_version: int = 1, *, gone: bool = False
) -> Record:
    value = None if gone else {"id": key, "note": f"at {minute}"}
    if value is not None and version == 2:
        value["amount"] = minute
    # The partition follows from the bytes of a key.
    at = (key + key_version - 1) % PARTITIONS
    return Record(minute, value, version, key, key_version, at)


_UPSERTED = (
    tuple(_account(n, n) for n in range(8)),
    (_account(10, 0, 2), _account(11, 1), _account(12, 5, gone=True)),
)
_PENDING = (_account(20, 7, 2), _account(21, 9, 2))
_UPSERTED_AFTER = (
    *(_account(30, 0, 2), _account(31, 1, gone=True), _account(32, 5, 2), _account(33, 8, 2)),
    *(_account(34, 9, gone=True), _account(35, 4, 1)),
)
_OTHER_KEYS = (_account(13, 3, 2, 2), _account(14, 4, 2, 2), _account(15, 2, gone=True))
"""The earlier version had rows of both versions of the keys 3 and 4."""
_OTHER_KEYS_AFTER = (
    _account(36, 3, key_version=2, gone=True),
    _account(37, 6, 2, 2),
    _account(38, 2, 2, 2),
    _account(39, 4, 2, 2),
)

TABLES: dict[str, Row] = {
    "SKIP": {"format_version": 2, "partitioning": ["hour($$timestamp)"]},
    "LOG": {"format_version": 3},
}
BUCKETS: Row = {"format_version": 3, "partitioning": ["bucket[4](id)"]}
APPENDED = tuple(
    UpgradeTopic(
        f"visits_{kind}_{mode.lower()}",
        kind,
        mode=mode,
        table=BUCKETS if kind == "protobuf" else table,
        before=(_visits(0, 6, 1), (*_visits(10, 6, 2), *_visits(20, 2, 1, bad=0))),
        pending=_visits(30, 5, 2, bad=2),
        after=(*_visits(40, 5, 2), *_visits(50, 3, 1)),
        is_killed=kind != "protobuf",
    )
    for kind in ("avro", "json", "protobuf")
    for mode, table in TABLES.items()
)
UPSERTED = tuple(
    UpgradeTopic(
        f"accounts_{kind}_{version}",
        "avro" if kind == "string" else kind,
        kind,
        table={"format_version": version, "partitioning": list(partitioning)},
        before=(_UPSERTED[0], (*_UPSERTED[1], *(() if kind == "string" else _OTHER_KEYS))),
        pending=_PENDING,
        after=(*_UPSERTED_AFTER, *(() if kind == "string" else _OTHER_KEYS_AFTER)),
        is_killed=version == 2,
        more={"history": kind == "string"},
    )
    for kind, version, partitioning in (
        ("avro", 2, ()),
        ("avro", 3, ("bucket[4](id)",)),
        ("json", 3, ("truncate[4](note)",)),
        ("protobuf", 2, ("hour($$timestamp)",)),
        ("string", 2, ("bucket[2](id)",)),
        ("string", 3, ()),
    )
)
WITHOUT_SPEC = tuple(
    UpgradeTopic(
        f"{way}{rest}",
        key_kind=key_kind,
        before=(_UPSERTED[0] if key_kind else _visits(0, 4, 1, bad=0),),
        pending=_PENDING if key_kind else _visits(10, 2, 2, bad=0),
        after=_UPSERTED_AFTER if key_kind else _visits(20, 2, 2, bad=0),
        has_spec=False,
    )
    for way in ("requested.", "found.")
    for rest, key_kind in (("rows", None), ("keys", "string"))
)
"""Topics that are enabled by a command, and by a pattern."""
PATTERN = {
    "topics": {"match": "found.*", "defaults": {"tableflow": {"commit_interval_seconds": 1}}}
}
STUCK = UpgradeTopic(
    "stuck",
    before=(_visits(0, 3, 1, bad=0),),
    pending=_visits(10, 4, 1),
    after=_visits(20, 3, 1, bad=0),
)
"""Suspended at a malformed record, which a user has requested to skip since."""
TOPICS = (*APPENDED, *UPSERTED, *WITHOUT_SPEC, STUCK)
CHANGES = {
    "changes_log": ("append", {"format_version": 2}),
    "changes_rows_2": ("upsert", {"format_version": 2}),
    "changes_rows_3": ("upsert", {"format_version": 3, "partitioning": ["bucket[3](id)"]}),
}
"""Change logs of a :class:`debezium.Source`: write mode and table."""
CHANGES_PARTITIONS = 3
TRADES = "stock_trades"
"""A topic of the reference project, of which tables are derived."""
DERIVED = ("stock_trades_with_totals", "stock_total_trades")
FORGOTTEN, FORGETTING = 0, 3
"""Keys of ``accounts_string_3``: one that was forgotten, one whose erasure was killed."""


def later(topic: UpgradeTopic, number: int, *, other_bytes: bool = False) -> tuple[Record, ...]:
    """Return records of a later round.

    :param number: of the round, from 1 on
    :param other_bytes: whether a key has other bytes than in the round before
    """
    first = 100 * number
    if not topic.is_upsert:
        return _visits(first, 4, 2, bad=0 if topic.mode == "SUSPEND" else 1)
    version = 2 if other_bytes and topic.key_kind != "string" else 1
    return (
        _account(first, 8, 2, version),
        _account(first + 1, 7, 2),
        _account(first + 2, first, 2),
        _account(first + 3, first - 100, gone=True),
    )


def changes_document(name: str) -> Row:
    """Return the spec of a change log."""
    mode, table = CHANGES[name]
    tableflow = {"commit_interval_seconds": 1, "retention_ms": LONG_TIME_MS}
    return {
        "pipeline": "upgrade",
        "schema": {"format": "avro"},
        "key": {"format": "avro"},
        "partitions": CHANGES_PARTITIONS,
        "external": True,
        "write_mode": mode,
        "changelog": {"format": "debezium"},
        "tableflow": tableflow,
        "table": table,
    }


def trades(first_minute: int, count: int) -> Iterator[tuple[int, Row]]:
    """Yield trades, one a minute, with their times in milliseconds."""
    for minute in range(first_minute, first_minute + count):
        trade = {"side": "BUY", "quantity": 1 + minute, "symbol": "ZVV", "price": 10}
        yield BEGIN_MS + minute * MINUTE_MS, {**trade, "account": "ABC123", "userid": "User_1"}


class Encoder:
    """Encodes records with the ids that the registry has."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self._prefixes: dict[tuple[str, str], bytes] = {}

    def pair(self, topic: UpgradeTopic, record: Record) -> tuple[bytes | None, bytes | None]:
        """Return the key and the value of a record."""
        key = None if record.key is None else self._key(topic, record)
        if not isinstance(record.value, dict):
            return key, record.value
        schema = VALUES[topic.kind][record.version - 1]
        return key, self.encoded(f"{topic.name}-value", topic.kind, schema, record.value)

    def _key(self, topic: UpgradeTopic, record: Record) -> bytes:
        if topic.key_kind == "string":
            return f"user {record.key}".encode()
        assert topic.key_kind is not None
        schema = KEYS[topic.key_kind][record.key_version - 1]
        row = {"id" if topic.key_kind == "avro" else "account": record.key}
        return self.encoded(f"{topic.name}-key", topic.key_kind, schema, row)

    def encoded(self, subject: str, kind: str, schema: str, row: Row) -> bytes:
        known = subject, schema
        if known not in self._prefixes:
            text = Schema(schema, kind.upper())
            number = self._registry.register_schema(subject, text)
            self._prefixes[known] = b"\0" + number.to_bytes(4, "big")
        return self._prefixes[known] + _payload(kind, schema, row)


class Sender:
    """Sends records with the ids that the registry has."""

    def __init__(self, kafka_config: Row, registry: Any) -> None:
        self._producer = Producer({**kafka_config, "linger.ms": 5})
        self._encoder = Encoder(registry)

    def send(self, topic: UpgradeTopic, records: Iterable[Record]) -> None:
        for record in records:
            key, value = self._encoder.pair(topic, record)
            at_ms = BEGIN_MS + record.minute * MINUTE_MS
            self._producer.produce(topic.name, value, key, record.partition, timestamp=at_ms)
        assert self._producer.flush(60) == 0

    def send_trades(self, schema: str, rows: Iterable[tuple[int, Row]]) -> None:
        for at_ms, row in rows:
            value = self._encoder.encoded(f"{TRADES}-value", "avro", schema, row)
            self._producer.produce(TRADES, value, b"ZVV", 0, timestamp=at_ms)
        assert self._producer.flush(60) == 0
