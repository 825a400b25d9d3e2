"""Batches of a topic, read by processes of the engine and by tasks of Spark."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fastavro
import numpy as np
import pytest
from confluent_kafka import Producer
from kafka_topics import Row, Topic, avro, encode

from topicberg.errors import TopicbergError
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg import files, shared_keys
from topicberg.iceberg.summaries import READER, summary
from topicberg.kafka import fetch
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import find_records
from topicberg.kafka.records import Records
from topicberg.tableflow.batch import sizing
from topicberg.tableflow.decode import reading, sessions
from topicberg.tableflow.decode.columns import MAX_ROWS
from topicberg.tableflow.decode.plan import CONSUMER
from topicberg.tableflow.service import engine
from topicberg.tableflow.service.engine import run_once
from topicberg.tableflow.upsert import keys as upsert_keys
from topicberg.tableflow.upsert.keys import KeyIndex
from topicberg.tableflow.values.commit import committed

pytestmark = pytest.mark.integration

NESTED = avro(
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"]},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    },
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
    {
        "name": "lines",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Line",
                "fields": [
                    {"name": "sku", "type": "string"},
                    {"name": "counts", "type": {"type": "array", "items": ["null", "int"]}},
                ],
            },
        },
    },
    {"name": "either", "type": ["null", "long", "string"]},
)
KEPT = {"retention.ms": "-1"}
"""Kafka deletes old records, by their timestamps, within minutes."""


def make_row(rng: random.Random, number: int) -> Row:
    return {
        "id": number,
        "note": rng.choice((None, "", "ü🙂", "x" * rng.randrange(40))),
        "price": rng.randrange(-99_999, 99_999).to_bytes(4, "big", signed=True),
        "at": rng.randrange(10**12, 2 * 10**12),
        "kind": rng.choice(("NEW", "OLD")),
        "lines": [
            {"sku": f"s{rng.randrange(9)}", "counts": rng.choice(([], [1, None, -7]))}
            for _ in range(rng.randrange(4))
        ],
        "either": rng.choice((None, rng.randrange(2**40), "text")),
    }


def reader(topic: Topic) -> str:
    """Return what read the newest batch."""
    head = topic.table().current_snapshot()
    assert head is not None
    return summary(head)[READER]


def by_spark(topic: Topic) -> list[Row]:
    """Return the rows of another table of the topic, of which Spark read each batch."""
    ingest_by_spark(topic)
    return in_order(topic)


def ingest_by_spark(topic: Topic) -> None:
    topic.endpoints.catalog(topic.config).purge_table(topic.spec.table_identifier(topic.config))
    tableflow = topic.spec.tableflow.model_copy(update={"engine": "spark"})
    run_once(topic.spec.model_copy(update={"tableflow": tableflow}), topic.endpoints, topic.config)
    assert reader(topic) == "spark"


def in_order(topic: Topic) -> list[Row]:
    rows = topic.table().scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["$$partition"], row["$$offset"]))


def produce(topic: Topic, values: list[bytes | None], seed: int) -> None:
    """Records with headers or none, keys or none, old timestamps, and aborted transactions."""
    rng = random.Random(seed)
    producer = Producer(
        {**topic.endpoints.kafka_config(), "transactional.id": uuid.uuid4().hex, "linger.ms": 5}
    )
    producer.init_transactions(30)
    sent = 0
    while sent < len(values):
        producer.begin_transaction()
        aborts = rng.random() < 0.3
        for value in values[sent : sent + 100]:
            headers: Any = [("trace", b"1"), ("ü", None)] if rng.random() < 0.3 else None
            producer.produce(
                topic.spec.name,
                value,
                rng.choice((None, b"", rng.randbytes(5))),
                partition=rng.randrange(topic.spec.partitions),
                headers=headers,
                timestamp=rng.choice((1, 1_700_000_000_123, 1_500_000_000_000)),
            )
        if aborts:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            sent += 100
    topic.wait_for_markers()


def test_avro_is_the_same_by_both(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(KEPT, table={"partitioning": ["day($$timestamp)", "kind"]})
    prefix, parsed = wire_prefix(topic.register(NESTED)), fastavro.parse_schema(NESTED)
    rng = random.Random(7)
    values: list[bytes | None] = [
        None if n % 50 == 0 else prefix + encode(parsed, make_row(rng, n)) for n in range(700)
    ]
    produce(topic, values, 8)
    topic.ingest()
    assert reader(topic) == "process"
    found = in_order(topic)
    assert len(found) == 700
    assert found == by_spark(topic)


def test_rows_that_wait_for_their_file_keep_their_values(make_topic: Callable[..., Topic]) -> None:
    """So many partitions that no file is begun, then parts of a batch of one partition each."""
    schema = avro(
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    )
    topic = make_topic(KEPT, table={"partitioning": ["hour(at)"]})
    hours = [n if n < 70 else 70 + n // MAX_ROWS for n in range(3 * MAX_ROWS)]
    rows = [{"id": n, "at": hour * 3_600_000} for n, hour in enumerate(hours)]
    topic.send(schema, rows, partition=0)
    for ingest in (Topic.ingest, ingest_by_spark):
        ingest(topic)
        found = topic.table().scan(selected_fields=("id", "at", "$$offset")).to_arrow()
        found = found.sort_by("$$offset")
        assert np.array_equal(found.column("id"), np.arange(len(hours)))
        assert np.array_equal(np.asarray(found.column("at").cast("int64")) // 3_600_000_000, hours)


def test_tasks_of_spark_read_parts_of_a_batch(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(KEPT)
    prefix, parsed = wire_prefix(topic.register(NESTED)), fastavro.parse_schema(NESTED)
    rng = random.Random(9)
    values: list[bytes | None] = [prefix + encode(parsed, make_row(rng, n)) for n in range(2_000)]
    produce(topic, values, 10)
    monkeypatch.setattr("topicberg.tableflow.service.engine.small", lambda _: 100)
    monkeypatch.setattr(sessions, "FILE_RECORDS", 500)
    topic.ingest()
    assert reader(topic) == "spark"
    found = in_order(topic)
    assert [row["id"] for row in sorted(found, key=lambda row: row["id"])] == list(range(2_000))
    assert int(summary(topic.table().current_snapshot())["added-data-files"]) >= 3  # type: ignore[arg-type]
    held = committed(topic.table())
    begin = dict.fromkeys(held.offsets, 0)
    last = find_records(topic.endpoints, topic.spec.name, held.last_records, begin, held.offsets)
    assert last == held.last_records, "as the Python client reads it"
    ends = {p: record.offset + 2 for p, record in held.last_records.items()}
    assert ends == held.offsets, "the marker of the transaction is after it"


@pytest.mark.parametrize(
    ("kind", "given", "without_value"),
    [
        ("long", 7, None),
        ("bytes", b"v", b"raw"),
        pytest.param("string", "v", None, marks=pytest.mark.slow),
    ],
)
def test_field_named_key_is_the_values(
    make_topic: Callable[..., Topic], kind: str, given: Any, without_value: bytes | None
) -> None:
    """The keys have no schema; a column of their type has them in records without the field."""
    topic = make_topic(KEPT)
    schema = avro({"name": "id", "type": "long"}, {"name": "key", "type": ["null", kind]})
    prefix, parsed = wire_prefix(topic.register(schema)), fastavro.parse_schema(schema)
    rows = [{"id": 0, "key": given}, {"id": 1, "key": None}]
    values = [*(prefix + encode(parsed, row) for row in rows), None]
    topic.send_raw(values, lambda _: b"raw", partition=0)
    topic.ingest()
    assert reader(topic) == "process"
    found = in_order(topic)
    assert [(row["id"], row["key"]) for row in found] == [
        (0, given),
        (1, None),
        (None, without_value),
    ]
    assert found == by_spark(topic)


@pytest.mark.parametrize(("partitioning", "version"), [([], 2), (["kind"], 3)])
def test_upserts_are_the_same_by_both(
    make_topic: Callable[..., Topic], partitioning: list[str], version: int
) -> None:
    table = {"partitioning": partitioning, "format_version": version}
    topic = make_topic(KEPT, write_mode="upsert", table=table)
    prefix, parsed = wire_prefix(topic.register(NESTED)), fastavro.parse_schema(NESTED)
    rng, keys = random.Random(version), [b"", b"k" * 300, *(f"key {n}".encode() for n in range(60))]
    newest: dict[tuple[bytes, int], int | None] = {}
    for batch in range(4):
        producer = Producer(topic.endpoints.kafka_config())
        for number in range(batch * 1_000, batch * 1_000 + (300 if batch else 150)):
            key, partition = rng.choice(keys), rng.randrange(topic.spec.partitions)
            row = None if rng.random() < 0.1 else make_row(rng, number)
            value = None if row is None else prefix + encode(parsed, row)
            producer.produce(topic.spec.name, value, key, partition=partition)
            newest[key, partition] = None if row is None else number
        producer.flush(30)
        topic.ingest()
    assert len(topic.table().snapshots()) == 4
    found = in_order(topic)
    assert sorted(row["id"] for row in found) == sorted(n for n in newest.values() if n is not None)
    assert found == by_spark(topic)


@pytest.mark.parametrize("by", ["spark", "process"])
def test_parts_of_an_upsert_batch_replace_each_other(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Tasks read parts of a partition; records of a later part are newer."""
    topic = make_topic(KEPT, write_mode="upsert")
    prefix, parsed = wire_prefix(topic.register(NESTED)), fastavro.parse_schema(NESTED)
    rng = random.Random(3)
    monkeypatch.setattr(sessions, "FILE_RECORDS", 100)
    monkeypatch.setattr(engine, "small", lambda _: 10 if by == "spark" else 10_000)
    for first in (0, 600):
        producer = Producer(topic.endpoints.kafka_config())
        for number in range(first, first + 600):
            value = prefix + encode(parsed, make_row(rng, number))
            producer.produce(topic.spec.name, value, f"key {number % 130}".encode())
        producer.flush(30)
        topic.ingest()
    assert len(topic.table().snapshots()) == 2
    found = in_order(topic)
    assert sorted(row["id"] for row in found) == list(range(1_070, 1_200))
    assert reader(topic) == by


def test_key_files_are_shared_once_no_records_wait(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(KEPT, write_mode="upsert", partitions=1)
    prefix, parsed = wire_prefix(topic.register(NESTED)), fastavro.parse_schema(NESTED)
    monkeypatch.setattr(upsert_keys, "SHARED_ROWS", 1)
    monkeypatch.setattr(sizing, "MAX_RECORDS", {"append": 10, "upsert": 10})
    producer, rng = Producer(topic.endpoints.kafka_config()), random.Random(4)
    for number in range(30):
        value = prefix + encode(parsed, make_row(rng, number))
        producer.produce(topic.spec.name, value, f"key {number}".encode(), partition=0)
    producer.flush(30)
    ingestor, shared = engine.Ingestor(topic.spec, topic.endpoints, topic.config), list[int]()
    for backlog in (True, True, False):
        assert ingestor.step().backlog is backlog
        ingestor.close()  # waits for the key files
        table = topic.table()
        found = files.listed_files(table.io, shared_keys.key_folder(table.location()))
        assert found is not None
        shared.append(len(found))
    assert shared == [0, 0, 3]
    assert len(in_order(topic)) == 30


def test_files_of_a_batch_whose_keys_are_not_found_are_deleted(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E.g. the disk of the key files is full: each attempt would leave files behind."""
    topic = make_topic(KEPT, write_mode="upsert")
    prefix, parsed = wire_prefix(topic.register(NESTED)), fastavro.parse_schema(NESTED)
    written: list[reading.WrittenBatch] = []

    def fails(*_: object) -> None:
        raise TopicbergError("the disk is full")

    def ingest(plans: Any, parts: Any, check: Any) -> list[reading.WrittenBatch]:
        (ranges,) = parts
        done = reading.ingest(plans, ranges, check)
        written.extend(done)
        return done

    for number in range(2):
        producer = Producer(topic.endpoints.kafka_config())
        value = prefix + encode(parsed, make_row(random.Random(number), number))
        producer.produce(topic.spec.name, value, b"key", partition=0)
        producer.flush(30)
        if number:
            with monkeypatch.context() as patch:
                patch.setattr(KeyIndex, "rows_with", fails)
                patch.setattr(engine, "shared", lambda *_: SimpleNamespace(ingest=ingest))
                with pytest.raises(TopicbergError, match="the disk is full"):
                    topic.ingest()
        topic.ingest()
    (lost,) = (file.file_path for one in written for file in one.files)
    assert not topic.table().io.new_input(lost).exists()
    assert [row["id"] for row in in_order(topic)] == [1]


def _read(topic: Topic, config: dict[str, Any], ends: dict[int, int]) -> list[dict[str, Any]]:
    found = []
    ranges = {partition: (0, end) for partition, end in ends.items()}
    with fetch.fetcher(config, topic.spec.name, ranges) as reader:
        for records in reader.fill(Records(7, 4_096)):  # several parts
            found += [records.raw(number) for number in range(records.count)]
    return sorted(found, key=lambda one: (one["partition"], one["offset"]))


def test_python_client_fills_the_arrays_of_compiled_code(
    make_topic: Callable[..., Topic],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def missing() -> None:
        raise NotCoveredError("confluent-kafka is installed without librdkafka")

    topic = make_topic(KEPT, partitions=2)
    config = topic.endpoints.kafka_config()
    producer = Producer({**config, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions()
    for number in range(60):
        if number % 20 == 0:
            producer.begin_transaction()
        producer.produce(
            topic.spec.name,
            None if number % 5 == 0 else b"v" * (number * 30),
            None if number % 7 == 0 else f"k{number}".encode(),
            number % 2,
            timestamp=1_000 + number,
            headers=[("a", b"1"), ("a", None), ("ü", b"x" * number)] if number % 3 == 0 else None,
        )
        if number % 20 == 19:
            if number == 39:
                producer.flush()  # else they may not have been sent
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    topic.wait_for_markers()
    ends = kafka.end_offsets(topic.endpoints, topic.spec.name)
    given = {**topic.endpoints.kafka_tuning("consumer"), **config, **CONSUMER}
    compiled = _read(topic, given, ends)
    fetch._warned.clear()
    monkeypatch.setattr(fetch, "library", missing)
    by_client = _read(topic, given, ends)
    assert len(compiled) == 40
    assert by_client == compiled
    assert "the Python client, more slowly" in caplog.text
    assert any(one["headers"] and one["headers"][1]["value"] is None for one in compiled)
