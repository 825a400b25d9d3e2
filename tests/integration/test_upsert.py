"""Upsert: the newest record of each key is its row, whatever order, batch and bytes it came in."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from kafka_topics import ORDER, Row, Topic, avro, encode

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.tables import sync
from topicberg.checks.topic import check_deletes
from topicberg.errors import SpecError, TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg.maintenance import MaintenancePolicy, maintain
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.orchestration.resources import Snowflake
from topicberg.query import Engine, run_query
from topicberg.tableflow.table.reread import REREAD, Reread, reread
from topicberg.tableflow.upsert.key_hashing import KeyState
from topicberg.tableflow.upsert.keys import key_folder

pytestmark = pytest.mark.integration

Change = tuple[bytes, Row | None]


def upsert_topic(make_topic: Callable[..., Topic], **fields: Any) -> Topic:
    return make_topic(write_mode="upsert", key={"format": "string"}, **fields)


def produce(topic: Topic, changes: list[Change], **schemas: int) -> None:
    """Rows (None: a tombstone) by key, in order; equal keys go to equal partitions."""
    prefix, parsed = wire_prefix(topic.register(ORDER)), fastavro.parse_schema(ORDER)
    producer = Producer({**topic.endpoints.kafka_config(), "linger.ms": 20})
    for key, row in changes:
        value = None if row is None else prefix + encode(parsed, row)
        producer.produce(topic.spec.name, value, key)
    assert producer.flush(60) == 0


def newest(changes: list[Change]) -> dict[bytes, Row]:
    last = dict(changes)
    return {key: row for key, row in last.items() if row is not None}


def engines_read(topic: Topic, columns: str) -> dict[str, list[tuple[Any, ...]]]:
    """What each engine reads from the topic's table, in the order of ``id``."""
    spec, config, endpoints = topic.spec, topic.config, topic.endpoints
    glue_table = config.cluster_id, spec.glue_name
    glue.register(endpoints.boto3("glue"), topic.table(), *glue_table)
    with Snowflake().connection() as connection:
        sync(connection, config, spec.snowflake_name, glue_table, topic.table().location())
    names: dict[Engine, str] = {
        "duckdb": f'lake."{config.cluster_id}".{spec.name}',
        "spark": f"lake.`{config.cluster_id}`.{spec.name}",
        "snowflake": spec.snowflake_name,
    }
    read: dict[str, list[tuple[Any, ...]]] = {}
    for engine, name in names.items():
        query = f"SELECT {columns} FROM {name} ORDER BY id"
        read[engine] = [tuple(row) for row in run_query(query, engine, endpoints, config).rows]
    wanted = columns.split(", ")
    read["pyiceberg"] = sorted(tuple(row[name] for name in wanted) for row in topic.rows(*wanted))
    return read


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_engine_reads_the_same_rows(make_topic: Callable[..., Topic], version: int) -> None:
    """After an upsert, deletes, a new column and compaction."""
    topic = upsert_topic(make_topic, table={"format_version": version})
    first: list[Change] = [
        (f"k{i}".encode(), {"id": i, "note": note}) for note in ("older", "old") for i in range(30)
    ]
    second: list[Change] = [
        (f"k{i}".encode(), None if i % 3 == 0 else {"id": i, "note": "new"}) for i in range(10)
    ]
    for changes in (first, second):
        produce(topic, changes)
        topic.ingest()
    rows = sorted((row["id"], row["note"]) for row in newest(first + second).values())
    for engine, found in engines_read(topic, "id, note").items():
        assert found == rows, engine
    more = {"name": "more", "type": ["null", "string"], "default": None}
    late = {"id": 29, "note": "late", "more": "added"}
    topic.send(avro(*ORDER["fields"], more), [late], key=lambda _: b"k29")
    topic.ingest()
    wide = [(i, note, None) for i, note in rows if i != 29] + [(29, "late", "added")]
    for engine, found in engines_read(topic, "id, note, more").items():
        assert found == wide, engine
    policy = MaintenancePolicy(compact_after=timedelta(0))
    report = maintain(topic.spec, topic.endpoints, topic.config, policy)
    assert (report.before.data_files, report.after.data_files) == (3, 1)
    for engine, found in engines_read(topic, "id, note, more").items():
        assert found == wide, f"{engine}, after compaction"


COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "100",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.0001",
}


def tombstones(topic: Topic) -> int:
    """How many the log still has."""
    first = kafka.beginning_offsets(topic.endpoints, topic.spec.name)
    end = kafka.end_offsets(topic.endpoints, topic.spec.name)
    ranges = {p: (first[p], end[p]) for p in end}
    return sum(m.value() is None for m in messages(topic.endpoints, topic.spec.name, ranges))


def test_long_keys_are_hashed_and_null_keys_refused(make_topic: Callable[..., Topic]) -> None:
    topic, long_key = upsert_topic(make_topic), b"k" * 300
    produce(topic, [(long_key, {"id": 1, "note": "a"}), (b"s", {"id": 2, "note": "b"})])
    topic.ingest()
    produce(topic, [(long_key, {"id": 3, "note": "c"}), (b"s", None)])
    topic.ingest()
    (row,) = topic.rows("key", "id", "$$raw-key")
    assert (row["key"], row["id"], len(row["$$raw-key"])) == (long_key.decode(), 3, 32)
    topic.send(ORDER, [{"id": 4, "note": "no key"}])
    with pytest.raises(TableflowError, match="no key"):
        topic.ingest()


@pytest.mark.slow
def test_missed_deletes_are_detected_and_applied(make_topic: Callable[..., Topic]) -> None:
    """Kafka's cleaner removes tombstones while the engine is away."""
    topic = make_topic(COMPACTED, write_mode="upsert", key={"format": "string"})
    long_key = b"k" * 300
    rows: list[Change] = [(f"k{i}".encode(), {"id": i, "note": ""}) for i in range(30)]
    produce(topic, [*rows, (long_key, {"id": 100, "note": ""})])
    topic.ingest()
    assert check_deletes(topic.spec, topic.table()).passed
    produce(topic, [*((key, None) for key, _ in rows[:10]), (long_key, None)])
    for _ in range(60):  # a segment is rolled by the next record, the cleaner runs every 15 s
        produce(topic, [(f"other{i}".encode(), {"id": 1000 + i, "note": ""}) for i in range(9)])
        if not tombstones(topic):
            break
        time.sleep(3)
    assert tombstones(topic) == 0
    topic.ingest()
    others = [1000 + i for i in range(9)]
    assert sorted(row["id"] for row in topic.rows("id")) == [*range(30), 100, *others]
    finding = check_deletes(topic.spec, topic.table())
    assert not finding.passed
    assert f"`topicberg tableflow reread {topic.spec.name}`" in (finding.remediation or "")
    produce(topic, [(b"k29", None), (b"new", {"id": 2000, "note": ""})])  # not read yet
    done = reread(topic.spec, topic.table(), topic.endpoints, topic.config)
    assert done.rows == 11
    assert sorted(row["id"] for row in topic.rows("id")) == [*range(10, 30), *others]
    assert check_deletes(topic.spec, topic.table()).passed
    assert Reread.model_validate_json(topic.table().properties[REREAD]) == done
    topic.ingest()
    assert sorted(row["id"] for row in topic.rows("id")) == [*range(10, 29), *others, 2000]
    assert reread(topic.spec, topic.table(), topic.endpoints, topic.config).rows == 0
    topic.respec(write_mode="append")
    with pytest.raises(SpecError, match="misses no deletes"):
        reread(topic.spec, topic.table(), topic.endpoints, topic.config)


COLOURS = ["red", "green"]


def key_schema(version: int) -> dict[str, Any]:
    """Versions by which equal keys have equal values, and other bytes."""
    id_: dict[str, Any] = {"name": "user", "type": "int"}
    colour = {"type": "enum", "name": "Colour", "symbols": [*COLOURS]}
    fields: list[dict[str, Any]] = [id_, {"name": "colour", "type": colour}]
    if version >= 1:
        id_["default"] = 0
    if version >= 2:
        id_["doc"] = "the user"
    if version >= 3:
        colour["symbols"] = [*COLOURS, "blue"]
    if version >= 4:
        id_["type"] = "long"
    if version >= 5:
        fields.insert(0, {"name": "region", "type": "string", "default": "eu"})
    if version >= 6:
        id_ |= {"name": "user_id", "aliases": ["user"]}
    return {"type": "record", "name": "Key", "fields": fields}


class Keyed:
    """A topic whose keys have many versions of a schema."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.value_schema = avro(
            {"name": "user", "type": "int"}, {"name": "note", "type": "string"}
        )
        self.value_prefix = wire_prefix(topic.register(self.value_schema))
        self.registry = topic.endpoints.schema_registry_client()
        self.registry.set_compatibility(topic.spec.key_subject, "NONE")
        self.keys: dict[int, tuple[bytes, Any]] = {}
        self.producer = Producer({**topic.endpoints.kafka_config(), "linger.ms": 20})

    def register(self, version: int) -> None:
        schema = key_schema(version)
        number = self.registry.register_schema(
            self.topic.spec.key_subject, Schema(json.dumps(schema), "AVRO")
        )
        self.keys[version] = wire_prefix(number), fastavro.parse_schema(schema)

    def send(self, version: int, user: int, colour: str, note: str | None) -> None:
        """To the partition that the bytes of the key are in."""
        if version not in self.keys:
            self.register(version)
        prefix, parsed = self.keys[version]
        row: Row = {"user": user, "user_id": user, "colour": colour, "region": "eu"}
        key, parsed_value = prefix + encode(parsed, row), fastavro.parse_schema(self.value_schema)
        body = {"user": 1000 + user, "note": note}
        value = None if note is None else self.value_prefix + encode(parsed_value, body)
        self.producer.produce(self.topic.spec.name, value, key)

    def ingest(self) -> dict[int, str]:
        """Return the notes by user."""
        assert self.producer.flush(60) == 0
        self.topic.ingest()
        rows = self.topic.rows("user", "note")
        found = {row["user"] - 1000: row["note"] for row in rows}
        assert len(found) == len(rows), "a key has two rows"
        return found


def test_a_new_version_of_the_key_is_the_same_key(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(write_mode="upsert", key={"format": "avro", "file": "key.avsc"})
    keyed = Keyed(topic)
    expected: dict[int, str] = {}
    for version in range(7):
        for user in (3, 4, 10 + version):
            keyed.send(version, user, "green", f"v{version}")
            expected[user] = f"v{version}"
        assert keyed.ingest() == expected, version
    folder = key_folder(topic.config.state_dir, topic.spec.name)
    keyed.send(0, 3, "green", None)  # by the oldest version
    del expected[3]
    shutil.rmtree(folder)
    assert keyed.ingest() == expected
    maintain(
        topic.spec, topic.endpoints, topic.config, MaintenancePolicy(compact_after=timedelta(0))
    )
    shutil.rmtree(folder)
    for version, user in ((2, 4), (6, 10), (0, 15)):
        keyed.send(version, user, "green", "late")
        expected[user] = "late"
    keyed.send(6, 4, "green", None)  # of one millisecond perhaps, and of another partition
    del expected[4]
    assert keyed.ingest() == expected
    state = KeyState.load(topic.table().properties)
    assert (state.columns, state.rows_removed) == (["region", "user_id", "colour"], 0)
