"""Records that were left out, read again: each is inserted once, and none revives what is gone."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from kafka_topics import encode
from memory_topic import MemoryTopic, memory_topic
from pyiceberg.catalog.sql import SqlCatalog

from topicberg.formats.framing import wire_prefix
from topicberg.kafka.offsets import PartitionOffset
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
from topicberg.tableflow.service import replay as module
from topicberg.tableflow.service.replay import Replay, replay

SEEDS = range(int(os.environ.get("TOPICBERG_TEST_HISTORIES", "6")))
KEY_FIELD = {"name": "id", "type": "string"}
LATE = 5  # The id of the schema that is registered later.
FORMATS = ("AVRO", "JSON", "PROTOBUF", "plain")
SCHEMAS = {
    "AVRO": json.dumps(
        {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "long"}]}
    ),
    "JSON": json.dumps(
        {"type": "object", "title": "Item", "properties": {"n": {"type": "integer"}}}
    ),
    "plain": json.dumps(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    ),
    "PROTOBUF": 'syntax = "proto3"; message Item { int64 n = 1; }',
}


class Killed(BaseException):
    """The process ends."""


@dataclass
class Sent:
    """A record, and what is known of it."""

    key: int
    n: int
    kind: str
    """good, late: its schema is registered later, bad, or delete."""
    is_forgotten: bool = False


@dataclass
class History:
    """A topic, its engine, and what was sent."""

    topic: MemoryTopic
    rng: random.Random
    format: str
    mode: str
    sent: dict[PartitionOffset, Sent] = field(default_factory=dict)
    is_fixed: bool = False
    key_number: int = 0
    lost: set[PartitionOffset] = field(default_factory=set)
    """Not in the log any more when a replay could have read them."""

    def __post_init__(self) -> None:
        self.engine = self.topic.ingestor()
        kind = "JSON" if self.format == "plain" else self.format
        subject, schema = self.topic.spec.value_subject, SCHEMAS[self.format]
        self.number = self.topic.registry.register_schema(subject, Schema(schema, kind))
        if self.topic.spec.key.has_schema:
            key = json.dumps({"type": "record", "name": "Key", "fields": [KEY_FIELD]})
            subject, own = f"{self.topic.spec.name}-key", Schema(key, "AVRO")
            self.key_number = self.topic.registry.register_schema(subject, own)

    @property
    def is_upsert(self) -> bool:
        return self.topic.spec.write_mode == "upsert"

    def key(self, key: int) -> bytes:
        text = b"k%d" % key
        return wire_prefix(self.key_number) + b"\x04" + text if self.key_number else text

    def value(self, n: int, kind: str) -> bytes | None:
        if kind == "delete":
            return None
        if kind == "bad":
            return b"\xff{garbage"
        if self.format == "plain":  # the field is required at first
            return b'{"n": %d}' % n if kind == "good" else b'{"m": %d}' % n
        payload = {
            "AVRO": lambda: encode(fastavro.parse_schema(json.loads(SCHEMAS["AVRO"])), {"n": n}),
            "JSON": lambda: b'{"n": %d}' % n,
            "PROTOBUF": lambda: b"\x00\x08" + bytes([n]),
        }[self.format]()
        return wire_prefix(LATE if kind == "late" else self.number) + payload

    def send(self) -> None:
        kinds = ["good", "late", "late", "bad", *(["delete"] if self.is_upsert else [])]
        key, n, kind = self.rng.randrange(4), len(self.sent) % 100, self.rng.choice(kinds)
        partition = key % 2
        log = self.topic.partitions[partition]
        self.sent[partition, len(log)] = Sent(key, n, kind)
        self.topic.produce(partition, self.key(key), self.value(n, kind), time_ms=len(self.sent))

    def step(self) -> None:
        while self.engine.step().records:
            pass

    def fix(self) -> None:
        """Register the schema by which late records were written."""
        if not self.is_fixed and self.format == "plain":
            schema = SCHEMAS["plain"].replace(', "required": ["n"]', "")
            self.topic.registry.register_schema(
                self.topic.spec.value_subject, Schema(schema, "JSON")
            )
        elif not self.is_fixed:
            number = 0
            while number < LATE:  # the registry numbers them
                text = SCHEMAS[self.format].replace("}", " " * number + " }", 1)
                other = Schema(text, self.format)
                number = self.topic.registry.register_schema("other-value", other)
        self.is_fixed = True
        self.engine = self.topic.ingestor()

    def replay(self, **options: Any) -> Replay:
        return replay(self.topic.spec, self.topic.endpoints, self.topic.config, **options)

    def replay_disturbed(self) -> None:
        """Replay while an engine commits, or until the process is killed."""
        kill, when = self.rng.random() < 0.5, self.rng.randrange(3)
        history, before = self, self.rng.random() < 0.5

        class Catalog(SqlCatalog):
            commits = 0

            def commit_table(self, *given: Any) -> Any:
                Catalog.commits += 1
                if Catalog.commits - 1 == when and not kill:
                    history.send()
                    history.step()
                if Catalog.commits - 1 == when and kill and before:
                    raise Killed
                done = super().commit_table(*given)
                if Catalog.commits - 1 == when and kill:
                    raise Killed
                return done

        catalog = Catalog("memory", **self.topic.catalog.properties)
        endpoints, own = self.topic.endpoints, self.topic.endpoints.catalog
        endpoints.catalog = lambda _: catalog
        engine_catalog = self.engine
        try:
            with suppress(Killed):
                self.replay()
        finally:
            endpoints.catalog = own
        assert engine_catalog is self.engine

    def compact(self) -> None:
        """Let Kafka remove the records of which there are later ones of their keys."""
        for partition, log in self.topic.partitions.items():
            newest = {message.key(): message.offset() for message in log}
            for message in log[:-1]:
                if message.offset() != newest[message.key()]:
                    message.is_gone = True
                    self.lost.add((partition, message.offset()))

    def retain(self) -> None:
        """Let Kafka delete the records that the table has passed, or some of them."""
        self.step()
        for partition, log in self.topic.partitions.items():
            first = self.rng.randrange(self.topic.first(partition), len(log) + 1)
            self.topic.beginning[partition] = first
            self.lost |= {(partition, offset) for offset in range(first)}

    def forget(self) -> None:
        key = self.rng.randrange(4)
        self.step()
        if self.is_upsert:
            partition = key % 2
            self.sent[partition, len(self.topic.partitions[partition])] = Sent(key, 0, "delete")
            self.topic.produce(partition, self.key(key), None, time_ms=len(self.sent))
            self.step()
        rows = KeyRows.parse(self.topic.spec, f"k{key}", self.topic.endpoints, self.topic.config)
        targets = topic_targets(self.topic.spec, self.topic.config, rows.key)
        table = self.engine.table()
        forgetting = Forgetting(rows, targets, self.topic.endpoints, self.topic.config)
        if forgetting.erase(targets[0]).rows or forgetting._note(table, 0):
            with table.refresh().transaction() as transaction:
                transaction.set_properties(forgetting._note(table, 0))
        for place, sent in self.sent.items():
            if sent.key == key and place[1] < len(self.topic.partitions[place[0]]):
                sent.is_forgotten = True

    def is_certain(self, place: PartitionOffset, sent: Sent) -> bool | None:
        """Return whether a record becomes a row in the end; None: it may."""
        if sent.kind == "good" and not sent.is_forgotten:
            return True
        if sent.kind != "late" or sent.is_forgotten or not self.is_fixed:
            return False
        if place not in self.lost or (self.mode == "LOG" and not self.is_upsert):
            return True
        return None  # It may have been read before, or of its key not enough is known.

    def check(self) -> None:
        """Check the rows after everything was read that can be."""
        rows = self.topic.rows()
        places = [(row["$$partition"], row["$$offset"]) for row in rows]
        assert len(places) == len(set(places))
        if not self.is_upsert:
            for place, sent in self.sent.items():
                certain = self.is_certain(place, sent)
                assert certain in (None, place in places), (place, sent)
            return
        held = {self.sent[place].key: place for place in places}
        assert len(held) == len(places)
        for key in range(4):
            allowed = list[PartitionOffset | None]()
            of_key = [(p, s) for p, s in self.sent.items() if s.key == key]
            for place, sent in reversed(of_key):
                if sent.kind == "delete":
                    allowed.append(None)
                    break
                certain = self.is_certain(place, sent)
                if certain is not False:
                    allowed.append(place)
                if certain:
                    break
            else:
                allowed.append(None)
            assert held.get(key) in allowed, (key, held.get(key), allowed, of_key)


def history_of(folder: Path, patch: pytest.MonkeyPatch, seed: int, **given: Any) -> History:
    rng = random.Random(seed)
    kind, mode = (
        given.pop("format", rng.choice(FORMATS)),
        given.pop("mode", rng.choice(("SKIP", "LOG"))),
    )
    section = {"format": "json", "framing": "none"} if kind == "plain" else {"format": kind.lower()}
    if rng.random() < 0.5:
        given.setdefault("key", {"format": "avro"})
    topic = memory_topic(
        folder,
        patch,
        schema=section,
        write_mode=given.pop("write_mode", rng.choice(["append", "upsert"])),
        tableflow={"error_handling": {"mode": mode}},
        **given,
    )
    topic.partitions |= {0: [], 1: []}
    return History(topic, rng, kind, mode)


@pytest.mark.parametrize("seed", SEEDS)
def test_replay_of_random_histories_inserts_each_record_once_and_revives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    history = history_of(tmp_path, monkeypatch, seed)
    monkeypatch.setattr(module, "CHUNK_RECORDS", history.rng.choice([2, 5, 50]))
    monkeypatch.setattr(module, "GAP", history.rng.choice([1, 10_000]))
    monkeypatch.setattr(module, "wait_random", lambda *_: 0)
    for _ in range(4):
        history.send()
    history.step()
    actions: list[Callable[[], Any]] = [
        *[history.send] * 12,
        *[history.step] * 3,
        *[history.replay, history.replay_disturbed] * 2,
        lambda: history.replay(is_dry=True),
        history.fix,
        history.forget,
        *([history.compact] if history.is_upsert else []),
        history.retain,
    ]
    for _ in range(40):
        history.rng.choice(actions)()
    history.step()
    history.fix()
    expected = history.replay(is_dry=True)
    assert history.replay().counts == expected.counts
    assert history.replay().counts.keys() <= {"failed again", *history.replay().counts}
    history.check()
    history.send()
    history.step()
