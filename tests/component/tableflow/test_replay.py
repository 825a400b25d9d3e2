"""Records that were left out, read again: each is inserted once, and none revives what is gone."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError
from debezium import struct
from kafka_topics import encode
from memory_kafka import NoMessage, topic_of
from memory_topic import MemoryTopic, memory_topic, read_all
from pyiceberg.catalog.sql import SqlCatalog
from replaced_logs import continue_table, replace_topic
from seeds import some

from topicberg.checks.topic import check_skipped
from topicberg.cli import tableflow as command
from topicberg.errors import SpecError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.commits import move_main
from topicberg.iceberg.maintenance.orphans import known_files
from topicberg.iceberg.shared_keys import waiting_files
from topicberg.kafka.offsets import PartitionOffset
from topicberg.settings import Settings
from topicberg.tableflow.decode.processes import Processes
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service import replay as module
from topicberg.tableflow.service.history import find_history, ingest_history
from topicberg.tableflow.service.replay import Replay
from topicberg.tableflow.table import batch_commit, later_records
from topicberg.tableflow.values import skips
from topicberg.tableflow.values.logs import log_number
from topicberg.topics import TopicSpec

SEEDS = range(int(os.environ.get("TOPICBERG_TEST_HISTORIES", "6")))
KEY_FIELD = {"name": "id", "type": "string"}
ROW = {"type": "record", "name": "Row", "fields": [KEY_FIELD, {"name": "n", "type": "long"}]}
SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
CHANGE = {"before": ["null", ROW], "after": ["null", "Row"], "source": SOURCE, "op": "string"}
FIELDS = [{"name": name, "type": kind} for name, kind in CHANGE.items()]
LATE = 5  # The id of the schema that is registered later.
FORMATS = ("AVRO", "JSON", "PROTOBUF", "plain", "changes")
KINDS = {"plain": "JSON", "changes": "AVRO"}
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
    "changes": json.dumps({"type": "record", "name": "Envelope", "fields": FIELDS}),
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
        kind = KINDS.get(self.format, self.format)
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
        row = {"id": "k", "n": n}
        if self.format == "changes":
            row = {"before": None, "after": row, "source": {"lsn": n}, "op": "c"}
        payload = {
            "AVRO": lambda: encode(fastavro.parse_schema(json.loads(SCHEMAS[self.format])), row),
            "JSON": lambda: b'{"n": %d}' % n,
            "PROTOBUF": lambda: b"\x00\x08" + bytes([n]),
        }[KINDS.get(self.format, self.format)]()
        return wire_prefix(LATE if kind == "late" else self.number) + payload

    def send(self) -> None:
        kinds = ["good", "late", "late", "bad", *(["delete"] if self.is_upsert else [])]
        key, n, kind = self.rng.randrange(4), len(self.sent) % 100, self.rng.choice(kinds)
        partition = key % 2
        log = self.topic.partitions[partition]
        self.sent[partition, len(log)] = Sent(key, n, kind)
        self.topic.produce(partition, self.key(key), self.value(n, kind), time_ms=len(self.sent))

    def step(self) -> None:
        read_all(self.engine)

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
                other = Schema(text, KINDS.get(self.format, self.format))
                number = self.topic.registry.register_schema("other-value", other)
        self.is_fixed = True
        self.engine = self.topic.ingestor()

    def replay(self, **options: Any) -> Replay:
        topic = self.topic
        return Replay(topic.spec, topic.endpoints, topic.config, **options).run()

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
        with suppress(Killed):
            self.replay()
        endpoints.catalog = own

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
        Forgetting(rows, targets, self.topic.endpoints, self.topic.config).erase(targets[0])
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
    kind = given.pop("format", rng.choice(FORMATS))
    mode = given.pop("mode", rng.choice(("SKIP", "LOG")))
    section = {"format": KINDS.get(kind, kind).lower()}
    section |= {"framing": "none"} if kind == "plain" else {}
    if kind == "changes":
        given |= {"changelog": {"format": "debezium"}, "write_mode": "append"}
    if kind == "changes" or (seed and rng.random() < 0.5):
        given["key"] = {"format": "avro"}
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


@pytest.mark.parametrize("seed", some(SEEDS))
def test_replay_of_random_histories_inserts_each_record_once_and_revives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    history = history_of(tmp_path, monkeypatch, seed)
    monkeypatch.setattr(module, "CHUNK_RECORDS", history.rng.choice([2, 5, 50]))
    monkeypatch.setattr(later_records, "MOST_UNUSED", history.rng.choice([1, 10_000]))
    monkeypatch.setattr(module, "wait_random", lambda *_: 0)
    for _ in range(4):
        history.send()
    history.step()
    actions: list[Any] = [
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
    assert inserted(history.replay()) == 0
    history.check()
    history.send()
    history.step()


def inserted(done: Replay) -> int:
    return done.counts["inserted"]


def late_history(
    folder: Path, patch: pytest.MonkeyPatch, kinds: str, keys: Any = 1, **given: Any
) -> History:
    """Return a topic whose table has read these records: Good, Late or Delete."""
    given = {"format": "AVRO", "mode": "SKIP", "write_mode": "append"} | given
    history = history_of(folder, patch, 0, **given)
    names = {"G": "good", "L": "late", "D": "delete"}
    for number, kind in enumerate(kinds):
        key, value = history.key(2 + number % keys), history.value(number, names[kind])
        history.topic.produce(0, key, value, time_ms=number)
    history.step()
    return history


def numbers(history: History) -> list[int]:
    return sorted((row.get("after") or row)["n"] for row in history.topic.rows())


def test_replay_after_a_rollback_inserts_again_what_the_snapshot_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = late_history(tmp_path, monkeypatch, "GLL", key={"format": "none"})
    before = history.engine.table().current_snapshot()
    assert before is not None
    history.fix()
    assert inserted(history.replay(since_ms=2)) == 1
    table = history.engine.table()
    named = waiting_files(table.location(), table.metadata.snapshots)
    assert len(named) == 2
    assert named <= set(known_files(table))
    table.catalog.commit_table(table, (), (move_main(table, before.snapshot_id),))
    assert numbers(history) == [0]
    assert inserted(history.replay()) == 2
    history.step()
    assert numbers(history) == [0, 1, 2]
    assert inserted(history.replay()) == 0


def test_check_of_skipped_rows_shows_reasons_until_they_are_replayed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    as_settings: Callable[[Settings], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    history = late_history(tmp_path, monkeypatch, "GLL")
    opened = history.topic.spec, history.engine.table(), history.topic.endpoints
    monkeypatch.setattr(command, "_open", lambda _: opened)
    as_settings(history.topic.config)
    finding = check_skipped(history.topic.spec, history.engine.table())
    assert "the value names schema 5, which" in finding.what
    assert finding.what.endswith(": 2")
    assert "`topicberg tableflow replay shop.customers`" in (finding.remediation or "")
    assert finding.since is not None
    history.fix()
    assert inserted(history.replay(reason="another")) == 0
    command.replay("shop.customers", reason="schema 5", dry_run=True)
    assert "nothing was changed" in (said := capsys.readouterr()).out
    assert "2 of 2 records read again" in said.err
    command.replay("shop.customers", since=datetime.fromisoformat("1969-12-31T23:00-09:00"))
    assert "no such record waits" in capsys.readouterr().out
    assert inserted(history.replay(reason="schema 5")) == 2
    command.replay("shop.customers")
    assert "no record waits" in capsys.readouterr().out
    assert check_skipped(history.topic.spec, history.engine.table()).passed
    assert history.engine.step().rows_replayed == 2


@pytest.mark.parametrize("is_recreated", [True, False])
def test_dead_letters_of_an_earlier_version_are_replayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_recreated: bool
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(batch_commit.BatchCommitter, "_waiting", lambda *_: {})
        history = late_history(tmp_path, monkeypatch, "LGL", mode="LOG")
    letters = history.topic.kafka.topics["error_log"]
    for message in [*letters.partitions[0]]:
        letters.produce(0, *message.own)
    if is_recreated:
        topic = recreated(history, [])
        continue_table(topic.spec, history.engine.table(), topic.endpoints, "beginning")
    history.topic.produce(0, history.key(2), history.value(3, "late"))
    history.step()
    history.topic.beginning[0] = 1
    history.topic.processes = Processes(1, 1024**3)
    history.fix()
    assert inserted(history.replay(is_dry=True)) == inserted(history.replay()) == 3
    assert inserted(history.replay()) == 0
    assert numbers(history) == [0, 1, 2, 3]


def test_replay_learns_what_another_one_applies_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_RECORDS", 1)
    history = late_history(tmp_path, monkeypatch, "", write_mode="upsert")
    topic = history.topic
    for number in range(2):
        topic.produce(0, history.key(number), history.value(number, "late"))
    topic.produce(0, history.key(1), history.value(2, "good"))
    assert skips.request(history.engine.table(), topic.endpoints, topic.spec.name, (0, 2), "why")
    history.step()
    history.fix()

    def apply_the_last_one(said: str) -> None:
        if said.startswith("1 of 3"):
            history.replay(reason="a user skipped")

    assert history.replay(report=apply_the_last_one).counts["superseded"] == 1
    assert numbers(history) == [0, 2]


@pytest.mark.parametrize("is_compacted", [True, False])
def test_record_that_kafka_deletes_during_a_replay_is_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_compacted: bool
) -> None:
    history = late_history(tmp_path, monkeypatch, "LD", write_mode="upsert")
    history.fix()

    class Slow(Replay):
        def _process(self, *given: Any, **options: Any) -> None:
            for message in history.topic.partitions[0]:  # after it was read
                message.is_gone = is_compacted
            history.topic.beginning[0] = 0 if is_compacted else 2
            super()._process(*given, **options)

    topic = history.topic
    done = Slow(topic.spec, topic.endpoints, topic.config).run()
    assert done.counts == {"uncertain": 1}
    assert numbers(history) == []


def test_record_that_only_a_truncated_dead_letter_has_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = history_of(tmp_path, monkeypatch, 0, format="JSON", mode="LOG", write_mode="append")
    history.topic.kafka.topics["error_log"] = topic_of(1, 0, **{"max.message.bytes": "2000"})
    for size in (10, 5_000):
        text = b'{"n": 1, "m": "%s"}' % (b"x" * size)
        history.topic.produce(0, None, wire_prefix(LATE) + text)
    history.step()
    history.topic.beginning[0] = 2
    history.fix()
    done = history.replay()
    assert (inserted(done), done.counts["truncated"]) == (1, 1)
    assert Waiting.load(history.engine.table()).count == 1


@pytest.mark.parametrize(
    ("kinds", "lost", "outcome", "rows"),
    [
        ("GL", 0, "inserted", [1]),
        ("LG", 0, "superseded", [1]),
        ("LD", 0, "superseded", []),
        ("GLL", 0, "superseded", [2]),
        ("GL", 2, "inserted", [1]),
        ("LG", 2, "superseded", [1]),
        ("LD", 2, "uncertain", []),
        ("L", 1, "uncertain", []),
    ],
)
def test_replay_in_an_upsert_table_keeps_what_came_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: str,
    lost: int,
    outcome: str,
    rows: list[int],
) -> None:
    history = late_history(tmp_path, monkeypatch, kinds, mode="LOG", write_mode="upsert")
    history.topic.beginning[0] = lost
    history.fix()
    assert history.replay().counts[outcome] == 1
    assert numbers(history) == rows


def test_key_with_records_in_several_partitions_is_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"write_mode": "upsert", "key": {"format": "avro"}}
    history = late_history(tmp_path, monkeypatch, "L", **given)
    history.topic.produce(1, history.key(2), history.value(7, "good"), time_ms=0)
    history.step()
    history.fix()
    assert history.replay().counts["uncertain"] == 1
    assert numbers(history) == [7]


def test_value_that_was_forgotten_is_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = late_history(tmp_path, monkeypatch, "GLL", key={"format": "none"})
    spec, endpoints, config = history.topic.spec, history.topic.endpoints, history.topic.config
    rows = KeyRows.parse(spec, "1", endpoints, config, where="n")
    forgetting = Forgetting(rows, topic_targets(spec, config, rows.key), endpoints, config)
    forgetting.remember()
    history.fix()
    done = history.replay()
    assert (inserted(done), done.counts["forgotten"]) == (1, 1)
    history.topic.produce(0, None, history.value(1, "good"))
    history.step()
    assert numbers(history) == [0, 1, 2]


def test_record_that_a_user_skipped_is_replayed_and_of_two_replays_one_inserts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = late_history(tmp_path, monkeypatch, "GL")
    topic = history.topic
    topic.produce(0, None, history.value(2, "good"))
    assert skips.request(history.engine.table(), topic.endpoints, topic.spec.name, (0, 2), "why")
    history.step()
    history.fix()
    results = list[Replay]()
    other = topic.interrupted(lambda: results.append(history.replay()))
    done = Replay(topic.spec, other.endpoints, topic.config).run()
    assert (inserted(results[0]), inserted(done)) == (2, 0)
    assert numbers(history) == [0, 1, 2]


def test_replay_in_an_upsert_table_is_not_stopped_by_what_stays_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"write_mode": "upsert", "key": {"format": "avro"}}
    history = late_history(tmp_path, monkeypatch, "GL", **given)
    history.topic.produce(0, wire_prefix(77) + b"\x04k2", history.value(2, "good"))
    history.topic.partitions[0].append(NoMessage(KafkaError._BAD_MSG, 0, 3))
    history.step()
    history.fix()
    assert history.replay().counts == {"inserted": 1, "failed again": 1, "not readable": 1}
    assert numbers(history) == [1]
    head = history.engine.table().current_snapshot()
    assert history.replay().counts == {"failed again": 1, "not readable": 1}
    assert history.engine.table().current_snapshot() == head


def test_key_that_a_skipped_tombstone_deletes_is_not_revived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = late_history(tmp_path, monkeypatch, "L", write_mode="upsert")
    topic = history.topic
    topic.produce(0, history.key(2), None)
    assert skips.request(history.engine.table(), topic.endpoints, topic.spec.name, (0, 1), "why")
    history.step()
    history.fix()
    assert history.replay(reason="schema 5").counts == {"superseded": 1}


def test_record_that_is_not_in_kafka_waits_until_its_dead_letter_topic_is_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = late_history(tmp_path, monkeypatch, "GLL", mode="LOG")
    (topic := history.topic).beginning[0], spec = 3, history.topic.spec
    history.fix()
    handling = {"error_handling": {"mode": "LOG", "target": "renamed"}}
    topic.spec = TopicSpec.model_validate({**spec.model_dump(by_alias=True), "tableflow": handling})
    assert history.replay().counts == {"not readable": 2}
    topic.spec = spec
    assert inserted(history.replay()) == 2


def test_records_that_kafka_deletes_before_they_are_read_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = late_history(tmp_path, monkeypatch, "LLL")
    history.fix()
    history.topic.kafka.on_close = lambda: history.topic.beginning.update({0: 1})
    assert history.replay().counts == {"inserted": 2, "not readable": 1}


def test_records_with_their_own_schemas_are_replayed_from_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = memory_topic(
        tmp_path,
        monkeypatch,
        schema={"format": "json", "file": "from-the-registry"},
        changelog={"format": "debezium"},
        write_mode="append",
        tableflow={"error_handling": {"mode": "LOG"}},
    )
    row = struct(n="int32")
    for number, after in enumerate([row, struct(n="int32", more="int32")]):
        schema = struct(before=after, after=after, source=row, op="string")
        value = {"before": None, "after": {"n": number}, "source": {"n": number}, "op": "c"}
        topic.produce(0, b"k", json.dumps({"schema": schema, "payload": value}).encode())
    register = topic.registry.register_schema

    def refuse(subject: str, schema: Schema) -> Any:
        if "more" in str(schema.schema_str):
            raise SchemaRegistryError(409, 409, "incompatible")
        return register(subject, schema)

    with monkeypatch.context() as before:
        before.setattr(topic.registry, "register_schema", refuse)
        read_all(topic.ingestor())
    topic.beginning[0] = 2  # both are in the dead-letter topic, or the table, only
    done = Replay(topic.spec, topic.endpoints, topic.config).run()
    assert done.counts == {"inserted": 1}
    assert sorted(row["after"]["n"] for row in topic.rows()) == [0, 1]


def test_dead_letters_of_an_earlier_table_are_not_replayed_into_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(batch_commit.BatchCommitter, "_waiting", lambda *_: {})
        history = late_history(tmp_path, monkeypatch, "GLL", mode="LOG")
        history.topic.produce(0, history.key(2), history.value(3, "bad"))
        history.topic.catalog.drop_table(history.engine.table().name())
        history.fix()
        history.step()
    assert history.replay().counts == {"failed again": 1}
    assert numbers(history) == [0, 1, 2]


def test_history_of_an_upsert_topic_gets_every_record_that_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"write_mode": "upsert", "key": {"format": "avro"}, "history": True}
    history = late_history(tmp_path, monkeypatch, "GLLL", mode="LOG", **given)
    topic = history.topic
    of_topic = topic.spec, topic.endpoints, topic.config
    for n in (4, 5):
        topic.produce(0, history.key(n), history.value(n, "late"))
    history.step()
    ingest_history(*of_topic)
    topic.beginning[0] = 2  # what is before is in dead letters only
    rows = KeyRows.parse(topic.spec, "k5", topic.endpoints, topic.config)
    targets = topic_targets(topic.spec, topic.config, rows.key)
    Forgetting(rows, targets, topic.endpoints, topic.config).remember()
    history.fix()
    for _ in range(2):
        found = find_history(*of_topic)
        assert found is not None
        table, spec = found
        Replay(spec, topic.endpoints, topic.config).run()
        history.replay()
    assert sorted(table.refresh().scan().to_arrow()["n"].to_pylist()) == [0, 1, 2, 3, 4]
    assert numbers(history) == [3, 4]


def test_replay_of_folded_changes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"changelog": {"format": "debezium"}, "key": {"format": "avro"}}
    topic = memory_topic(
        tmp_path, monkeypatch, schema={"format": "avro"}, write_mode="upsert", **given
    )
    with pytest.raises(SpecError, match="follow from all changes in their order"):
        Replay(topic.spec, topic.endpoints, topic.config).run()


def recreated(history: History, kinds: list[str], keys: int = 1) -> MemoryTopic:
    """Create a topic again, with as many records as it has: those of later numbers."""
    replace_topic(history.topic, {0: [], 1: []})
    for number, kind in enumerate(kinds, len(kinds)):
        history.topic.produce(0, history.key(2 + number % keys), history.value(number, kind))
    return history.topic


def killed(topic: MemoryTopic, work: Callable[[], object], seconds: float) -> bool:
    """Work in another process, which ends by SIGKILL after a time; return whether it did so."""

    def work_alone() -> None:
        topic.catalog = SqlCatalog("memory", **topic.catalog.properties)  # no shared connection
        work()

    process = multiprocessing.get_context("fork").Process(target=work_alone)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("seed", some(range(int(os.environ.get("TOPICBERG_TEST_KILLS", "6")))))
def test_commands_and_engine_that_are_killed_insert_each_record_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    as_settings: Callable[[Settings], None],
    seed: int,
) -> None:
    rng = random.Random(seed)
    given = ({}, {"write_mode": "upsert"}, {"format": "changes"})[seed % 3]
    history = late_history(tmp_path, monkeypatch, "GLLGL", 4, mode="LOG", **given)
    topic = recreated(history, ["late", "good", "late", "late", "good"], 4)
    as_settings(topic.config)
    monkeypatch.setattr(module, "CHUNK_RECORDS", 2)
    opened = lambda *_, **__: (topic.spec, topic.ingestor().table(), topic.endpoints)  # noqa: E731
    monkeypatch.setattr(command, "_open", opened)

    def go_on() -> None:
        if not log_number(topic.ingestor().table()):
            command.continue_("shop.customers", "beginning", yes=True)

    def ingest() -> None:
        history.engine = topic.ingestor()
        history.step()

    for work in (go_on, ingest, lambda: command.replay("shop.customers")):
        limit = 0.2
        while limit < 9 and killed(topic, work, rng.uniform(0, limit)):
            limit *= 1.5
        work()
        if work is ingest:
            history.fix()
    expected = range(6 if history.is_upsert else 0, 10)
    assert numbers(history) == [*expected]
    assert sorted(row["$$offset"] for row in topic.rows()) == sorted(n % 5 for n in expected)
    assert not history.replay().counts


@pytest.mark.slow
@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_many_dead_letters_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_mode: str
) -> None:
    history = history_of(tmp_path, monkeypatch, 0, format="AVRO", mode="LOG", write_mode=write_mode)
    for number in range(100_000):
        history.topic.produce(number % 2, b"%d" % number, history.value(number, "late"))
    history.step()
    history.topic.beginning[0] = 50_000
    history.topic.processes = Processes(1, 1024**3)
    history.fix()
    start = time.monotonic()
    done = history.replay()
    print(f"{time.monotonic() - start:.1f} s")  # noqa: T201
    assert done.counts["inserted"] == (100_000 if write_mode == "append" else 50_000)
