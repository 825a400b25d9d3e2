"""Upsert: the newest record of each key is its row, whatever order and batch it came in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from kafka_topics import ORDER, Row, Topic, avro, encode
from pyiceberg.manifest import DataFileContent

from resources import Snowflake
from topicberg import glue, snowflake
from topicberg.errors import TableflowError
from topicberg.query import Engine, run_query
from topicberg.tableflow.maintenance import Policy, maintain
from topicberg.tableflow.subjects import wire_prefix

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


def rows_by_key(topic: Topic) -> dict[bytes, Row]:
    rows = topic.rows("key", "id", "note")
    found = {row.pop("key"): row for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


def test_random_changes_in_many_batches(make_topic: Callable[..., Topic]) -> None:
    topic = upsert_topic(make_topic)
    rng = random.Random(7)
    changes: list[Change] = []
    for batch in range(5):
        some: list[Change] = [
            (
                f"k{rng.randrange(40)}".encode(),
                None if rng.random() < 0.25 else {"id": batch * 100 + i, "note": f"b{batch}"},
            )
            for i in range(60)
        ]
        produce(topic, some)
        changes += some
        topic.ingest()
        assert rows_by_key(topic) == newest(changes)
    assert topic.ingest() == 0
    table = topic.table()
    files = [task.file for task in table.scan().plan_files()]
    assert all(file.content == DataFileContent.DATA for file in files)
    deletes = table.inspect.delete_files().to_pylist()
    assert {file["content"] for file in deletes} == {DataFileContent.POSITION_DELETES}
    assert not [ref for ref in table.metadata.refs if ref.startswith("tableflow-staging")]


def engines_read(topic: Topic, columns: str) -> dict[str, list[tuple[Any, ...]]]:
    """What each engine reads from the topic's table, in the order of ``id``."""
    spec, config, endpoints = topic.spec, topic.config, topic.endpoints
    glue_table = config.cluster_id, spec.glue_name
    glue.register(endpoints.boto3("glue"), topic.table(), *glue_table)
    with Snowflake().connection() as connection:
        snowflake.sync(connection, config, spec.snowflake_name, glue_table)
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


def test_every_engine_reads_the_same_rows(make_topic: Callable[..., Topic]) -> None:
    """After an upsert, deletes, a new column and compaction."""
    topic = upsert_topic(make_topic)
    first: list[Change] = [(f"k{i}".encode(), {"id": i, "note": "old"}) for i in range(30)]
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
    policy = Policy(compact_after=timedelta(0))
    report = maintain(topic.spec, topic.endpoints, topic.config, policy)
    assert (report.before.data_files, report.after.data_files) == (3, 1)
    for engine, found in engines_read(topic, "id, note, more").items():
        assert found == wide, f"{engine}, after compaction"


def test_long_keys_are_hashed_and_null_keys_refused(make_topic: Callable[..., Topic]) -> None:
    topic = upsert_topic(make_topic)
    long_key = b"k" * 300
    produce(topic, [(long_key, {"id": 1, "note": "a"}), (b"s", {"id": 2, "note": "b"})])
    topic.ingest()
    produce(topic, [(long_key, {"id": 3, "note": "c"}), (b"s", None)])
    topic.ingest()
    (row,) = topic.rows("key", "id", "$$raw-key")
    assert (row["key"], row["id"], len(row["$$raw-key"])) == (long_key, 3, 32)
    topic.send(ORDER, [{"id": 4, "note": "no key"}])
    with pytest.raises(TableflowError, match="no key"):
        topic.ingest()


def test_fields_of_the_key_are_columns_and_the_values_win(
    make_topic: Callable[..., Topic],
) -> None:
    topic = make_topic(
        write_mode="upsert", key={"format": "avro", "file": "key.avsc"}, schema={"format": "avro"}
    )
    key_schema = avro({"name": "user", "type": "string"}, {"name": "id", "type": "int"})
    registry = topic.endpoints.schema_registry_client()
    from confluent_kafka.schema_registry import Schema

    key_id = registry.register_schema(
        topic.spec.key_subject, Schema(json.dumps(key_schema), "AVRO")
    )
    parsed = fastavro.parse_schema(key_schema)

    def key(user: str, number: int) -> bytes:
        return wire_prefix(key_id) + encode(parsed, {"user": user, "id": number})

    produce(topic, [(key("u", 1), {"id": 10, "note": "a"}), (key("v", 2), {"id": 20, "note": "b"})])
    topic.ingest()
    produce(topic, [(key("u", 1), {"id": 11, "note": "c"}), (key("v", 2), None)])
    topic.ingest()
    assert topic.rows("user", "id", "note") == [{"user": "u", "id": 11, "note": "c"}]
    assert "key" not in topic.table().schema().column_names


def test_the_mode_of_a_table_cannot_change(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "a"}])
    topic.ingest()
    topic.respec(write_mode="upsert")
    with pytest.raises(TableflowError, match="write mode append"):
        topic.ingest()


def test_the_names_of_metadata_columns_cannot_change(make_topic: Callable[..., Topic]) -> None:
    """The key of a row, too, is in a metadata column."""
    topic = upsert_topic(make_topic)
    produce(topic, [(b"k", {"id": 1, "note": "a"})])
    topic.ingest()
    topic.respec(tableflow={"metadata_column_naming_scheme": "PORTABLE"})
    with pytest.raises(TableflowError, match="metadata_column_naming_scheme"):
        topic.ingest()
