"""Captured records of Debezium, and the rows that they must become; see tests/data/debezium."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from kafka_topics import Topic, encode

from topicberg.formats.framing import WIRE_BYTES, wire_prefix
from topicberg.tableflow.changelog import old_values

DATA = Path(__file__).resolve().parents[1] / "data" / "debezium"
UNAVAILABLE = "__debezium_unavailable_value"


def folding_waits(
    patch: pytest.MonkeyPatch, patience_ms: int = 10**15, certain_ms: int = 10**15
) -> None:
    """Set how long a batch waits for changes that may come, until the test or the context ends.

    :param patience_ms: how long the topic waits for what a change needs
    :param certain_ms: after which Kafka has all records that are older
    """
    patch.setattr(old_values, "PATIENCE_MS", patience_ms)
    patch.setattr(old_values, "CERTAIN_MS", certain_ms)


def struct(**fields: Any) -> dict[str, Any]:
    """Return a schema of Kafka Connect; ``fields``: names of types, or schemas."""
    own = [
        {**({"type": kind} if isinstance(kind, str) else kind), "field": name, "optional": True}
        for name, kind in fields.items()
    ]
    return {"type": "struct", "fields": own, "optional": False}


@dataclass(frozen=True)
class Captured:
    """A record as it was in Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, str], ...]
    key: bytes | None
    value: bytes | None

    @property
    def envelope(self) -> dict[str, Any] | None:
        return decoded(self.value)

    @property
    def order(self) -> tuple[int, int]:
        """The order in the source; a tombstone has none."""
        source = (self.envelope or {}).get("source", {})
        return source.get("ts_us", -1), source.get("lsn", -1)


@cache
def schemas() -> dict[int, Any]:
    found = json.loads((DATA / "schemas.json").read_text())
    return {int(number): schema for number, schema in found.items()}


@cache
def captured(topic: str) -> tuple[Captured, ...]:
    """Return the captured records of a topic, by partition and offset."""
    found = []
    for line in (DATA / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.pop("topic") == topic:
            for half in ("key", "value"):
                record[half] = None if record[half] is None else bytes.fromhex(record[half])
            headers = tuple((name, text) for name, text in record.pop("headers"))
            found.append(Captured(topic=topic, headers=headers, **record))
    return tuple(sorted(found, key=lambda one: (one.partition, one.offset)))


@cache
def _parsed(number: int) -> Any:
    return fastavro.parse_schema(json.loads(json.dumps(schemas()[number])))


def decoded(raw: bytes | None) -> Any:
    """Return what Avro's own types say of a captured key or value."""
    if raw is None:
        return None
    number = int.from_bytes(raw[1:WIRE_BYTES], "big")
    return fastavro.schemaless_reader(BytesIO(raw[WIRE_BYTES:]), _parsed(number))


class Replay:
    """Sends captured records to a topic of its own, whose registry has other ids."""

    def __init__(self, topic: Topic, records: Iterable[Captured]) -> None:
        self.topic = topic
        registry = topic.endpoints.schema_registry_client()
        self._ids: dict[int, int] = {}
        halves = (("key", topic.spec.key_subject), ("value", topic.spec.value_subject))
        for record in sorted(records, key=lambda one: one.order):
            for half, subject in halves:
                raw = getattr(record, half)
                if raw is None:
                    continue
                number = int.from_bytes(raw[1:WIRE_BYTES], "big")
                if number not in self._ids:
                    text = json.dumps(schemas()[number])
                    self._ids[number] = registry.register_schema(subject, Schema(text, "AVRO"))

    def send(self, records: Iterable[Captured], partition: int | None = None) -> None:
        """:param partition: of all of them; default: their own"""
        producer = Producer({**self.topic.endpoints.kafka_config(), "linger.ms": 5})
        for one in records:
            producer.produce(
                self.topic.spec.name,
                self._renumbered(one.value),
                self._renumbered(one.key),
                one.partition if partition is None else partition,
                headers=[(name, text.encode()) for name, text in one.headers],
            )
        assert producer.flush(60) == 0

    def _renumbered(self, raw: bytes | None) -> bytes | None:
        if raw is None:
            return None
        return wire_prefix(self._ids[int.from_bytes(raw[1:WIRE_BYTES], "big")]) + raw[WIRE_BYTES:]


@cache
def captured_json(topic: str) -> tuple[Captured, ...]:
    """Return the captured JSON records of a topic, by partition and offset."""
    schemas = json.loads((DATA / "connect_schemas.json").read_text())
    compact = [json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in schemas]
    found = []
    for line in (DATA / "json_records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.pop("topic") != topic:
            continue
        for half in ("key", "value"):
            text = record[half]
            if text is not None and (number := re.match(r'\{"schema":#(\d+)', text)):
                text = '{"schema":' + compact[int(number[1])] + text[number.end() :]
            record[half] = None if text is None else text.encode()
        headers = tuple((name, text) for name, text in record.pop("headers"))
        found.append(Captured(topic=topic, headers=headers, **record))
    return tuple(sorted(found, key=lambda one: (one.partition, one.offset)))


def send_captured(topic: Topic, records: Iterable[Captured]) -> None:
    """Send captured records as they were."""
    producer = Producer({**topic.endpoints.kafka_config(), "linger.ms": 5})
    for one in records:
        headers: list[tuple[str, str | bytes | None]] = [(n, t.encode()) for n, t in one.headers]
        producer.produce(topic.spec.name, one.value, one.key, one.partition, headers=headers)
    assert producer.flush(60) == 0


ROW_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "v", "type": ["null", "int"], "default": None},
    {"name": "big", "type": ["null", "string"], "default": None},
]
KEY_SCHEMAS = [
    {"type": "record", "name": "Key", "fields": [{"name": "id", "type": kind}]}
    for kind in ("int", "long")
]
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": ["null", {"type": "record", "name": "Value", "fields": ROW_FIELDS}],
            "default": None,
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "ts_ms", "type": "long"},
                    {"name": "snapshot", "type": ["string", "null"], "default": "false"},
                    {"name": "ts_us", "type": ["null", "long"], "default": None},
                    {"name": "txId", "type": ["null", "long"], "default": None},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


@dataclass(frozen=True)
class Event:
    """A record of the source's connector. ``op`` None: a tombstone."""

    partition: int
    key: int | None
    op: str | None
    lsn: int
    after: dict[str, Any] | None = None
    old_key: int | None = None
    new_key: int | None = None
    key_schema: int = 0
    """Of the :data:`KEY_SCHEMAS`."""
    is_malformed: bool = False
    ms: int | None = None
    """The time in the source; None: by the position."""

    @property
    def headers(self) -> list[tuple[str, str | bytes | None]]:
        pairs = (("__debezium.oldkey", self.old_key), ("__debezium.newkey", self.new_key))
        return [(name, json.dumps({"id": key}).encode()) for name, key in pairs if key is not None]


class Source:
    """A database's table with random changes, and the records that a connector writes of them."""

    def __init__(self, rng: random.Random, unchanged: float = 0.6) -> None:
        """:param unchanged: how often a change leaves the large value as it is"""
        self.rng, self.keys, self.partitions = rng, 8, 3
        self.unchanged = unchanged
        self.rows: dict[int, dict[str, Any]] = {}
        self.events: list[Event] = []
        self.lsn = 1_000
        self.key_schema = 0

    def change_key_schema(self) -> None:
        """Let keys move to other partitions, as they do when their bytes change."""
        self.key_schema = 1

    def restart(self) -> None:
        """Let the connector write some of the last records again."""
        self.events += self.events[-self.rng.randint(1, 12) :]

    def change(self, truncates: float = 0.03) -> None:
        """Do one change of the table, perhaps none."""
        self.lsn += self.rng.randint(1, 5)
        key = self.rng.randrange(self.keys)
        if self.rng.random() < truncates:
            self.rows.clear()
            self._add(Event(self.rng.randrange(self.partitions), None, "t", self.lsn))
        elif key not in self.rows:
            row = {"id": key, "v": self.lsn, "big": self._big()}
            self._live("c", row)
        elif (draw := self.rng.random()) < 0.2:
            self._delete(key)
            del self.rows[key]
        elif draw < 0.4:
            self._move(key)
        else:
            unchanged = self.rng.random() < self.unchanged
            row = {**self.rows[key], "v": self.lsn}
            if not unchanged:
                row["big"] = self._big()
            self._live("u", row, unchanged=unchanged)

    def _big(self) -> str:
        return f"big{self.lsn}"

    def _partition(self, key: int) -> int:
        return (key * 7 + 1 + self.key_schema) % self.partitions

    def _add(self, event: Event) -> None:
        self.events.append(replace(event, key_schema=self.key_schema))

    def _live(
        self, op: str, row: dict[str, Any], *, unchanged: bool = False, old: int | None = None
    ) -> None:
        key = row["id"]
        self.rows[key] = row
        after = {**row, "big": UNAVAILABLE} if unchanged else row
        self._add(Event(self._partition(key), key, op, self.lsn, after, old_key=old))

    def _delete(self, key: int, new: int | None = None) -> None:
        self._add(Event(self._partition(key), key, "d", self.lsn, new_key=new))
        self._add(Event(self._partition(key), key, None, self.lsn, new_key=new))

    def _move(self, key: int) -> None:
        free = [one for one in range(self.keys) if one not in self.rows]
        if not free:
            return
        new = self.rng.choice(free)
        row = {**self.rows.pop(key), "id": new, "v": self.lsn}
        unchanged = self.rng.random() < self.unchanged
        if not unchanged:
            row["big"] = self._big()
        self._delete(key, new)
        self._live("c", row, unchanged=unchanged, old=key)

    def damage(self, share: float) -> None:
        """Make some changes malformed."""
        self.events = [
            replace(e, is_malformed=e.op in ("c", "u") and self.rng.random() < share)
            for e in self.events
        ]

    def rows_without_malformed(self) -> tuple[dict[int, dict[str, Any]], int]:
        """Return the rows, and the number of changes that cannot be applied. No value is older than
        one that a malformed change may have had."""
        rows: dict[int, dict[str, Any]] = {}
        lost: set[int] = set()
        moved: dict[int, tuple[dict[str, Any] | None, bool]] = {}
        count = 0
        for event in self.events:
            key = event.key
            if event.op == "t":
                rows.clear()
            if key is None or event.op in (None, "t"):
                continue
            if event.op == "d":
                moved[event.lsn] = rows.pop(key, None), key in lost
                lost.discard(key)
                continue
            before = rows.get(key), key in lost
            if event.old_key is not None:
                before = moved[event.lsn]
            assert event.after is not None
            row = dict(event.after)
            if row["big"] == UNAVAILABLE and before[0] is not None and not before[1]:
                row["big"] = before[0]["big"]
            if event.is_malformed or row["big"] == UNAVAILABLE:
                lost.add(key)
                count += 1
            else:
                rows[key] = row
                lost.discard(key)
        return rows, count

    def batches(self, count: int) -> list[list[Event]]:
        """Return the records in batches, in any interleaving that keeps each partition's order."""
        queues = {p: [e for e in self.events if e.partition == p] for p in range(self.partitions)}
        found = []
        for number in range(count):
            batch = []
            for queue in queues.values():
                size = self.rng.randint(0, 2 * len(self.events) // (count * self.partitions) + 1)
                size = len(queue) if number == count - 1 else size
                batch += queue[:size]
                del queue[:size]
            found.append(batch)
        return found


class SourceTopic:
    """Writes the records of a :class:`Source` to a topic."""

    def __init__(
        self,
        topic: Topic,
        envelope: dict[str, Any] | None = None,
        position: Callable[[int], dict[str, Any]] = lambda lsn: {"lsn": lsn, "txId": 1},
    ) -> None:
        """:param position: what the source of an event says of its place in the log"""
        self.topic, self.position = topic, position
        registry = topic.endpoints.schema_registry_client()
        self.envelope = fastavro.parse_schema(json.loads(json.dumps(envelope or ENVELOPE)))
        text = json.dumps(envelope or ENVELOPE)
        self.value_id = registry.register_schema(topic.spec.value_subject, Schema(text, "AVRO"))
        self.keys: list[tuple[int, Any]] = []

    def _key(self, event: Event) -> bytes:
        while len(self.keys) <= event.key_schema:
            text = json.dumps(KEY_SCHEMAS[len(self.keys)])
            registry = self.topic.endpoints.schema_registry_client()
            number = registry.register_schema(self.topic.spec.key_subject, Schema(text, "AVRO"))
            self.keys.append((number, fastavro.parse_schema(json.loads(text))))
        number, schema = self.keys[event.key_schema]
        return wire_prefix(number) + encode(schema, {"id": event.key})

    def records(
        self, events: Iterable[Event]
    ) -> Iterator[tuple[Event, bytes | None, bytes | None]]:
        """Yield events with the keys and values of their records."""
        for event in events:
            key = value = None
            if event.key is not None:
                key = self._key(event)
            if event.op is not None:
                ms = event.lsn if event.ms is None else event.ms
                source: dict[str, Any] = {"ts_ms": ms, "ts_us": ms * 1_000, "snapshot": "false"}
                source |= self.position(event.lsn)
                op = "?" if event.is_malformed else event.op
                record = {"before": None, "after": event.after, "source": source, "op": op}
                value = wire_prefix(self.value_id) + encode(self.envelope, record)
            yield event, key, value

    def send(self, events: Iterable[Event]) -> None:
        producer = Producer({**self.topic.endpoints.kafka_config(), "linger.ms": 5})
        for event, key, value in self.records(events):
            producer.produce(
                self.topic.spec.name, value, key, event.partition, headers=event.headers
            )
        assert producer.flush(60) == 0
