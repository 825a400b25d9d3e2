"""The engine against the real stack: exactly once, whatever is killed; schemas; broken records."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema

from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, TableflowError
from topicberg.settings import Settings, settings
from topicberg.tableflow import commit
from topicberg.tableflow.engine import Ingestor, run_once
from topicberg.tableflow.subjects import wire_prefix
from topicberg.topics import TopicSpec

pytestmark = pytest.mark.integration

Row = dict[str, Any]


def avro(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


ORDER = avro({"name": "id", "type": "long"}, {"name": "note", "type": "string"})


@dataclass
class Topic:
    """A topic of its own with a producer for it."""

    endpoints: Endpoints
    spec: TopicSpec
    config: Settings = field(default_factory=settings)

    def register(self, schema: dict[str, Any]) -> int:
        registry = self.endpoints.schema_registry_client()
        return registry.register_schema(self.spec.value_subject, Schema(json.dumps(schema), "AVRO"))

    def send(self, schema: dict[str, Any], rows: list[Row], **more: Any) -> None:
        prefix = wire_prefix(self.register(schema))
        parsed = fastavro.parse_schema(schema)
        self.send_raw([prefix + encode(parsed, row) for row in rows], **more)

    def send_raw(
        self, values: list[bytes | None], key: Callable[[int], bytes] | None = None
    ) -> None:
        producer = Producer({**self.endpoints.kafka_config(), "linger.ms": 50})
        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(self.spec.name, value, key(number) if key else None)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def ingest(self) -> int:
        return run_once(self.spec, self.endpoints, self.config).records

    def rows(self, *columns: str) -> list[Row]:
        identifier = self.spec.table_identifier(self.config)
        table = self.endpoints.catalog(self.config).load_table(identifier)
        arrow = table.scan(selected_fields=columns or ("*",)).to_arrow()
        return sorted(arrow.to_pylist(), key=lambda row: (row.get("id") is None, str(row)))


def encode(parsed: Any, row: Row) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, parsed, row)
    return buffer.getvalue()


@pytest.fixture
def make_topic(stack: Endpoints) -> Iterator[Callable[..., Topic]]:
    made: list[str] = []
    admin = stack.kafka_admin()

    def make(**fields: Any) -> Topic:
        name = f"orders_{uuid.uuid4().hex[:8]}"
        spec = TopicSpec.model_validate(
            {
                "name": name,
                "pipeline": "shop",
                "schema": {"format": "avro", "file": "stock_trades.avsc"},
                "partitions": 3,
                **fields,
            }
        )
        admin.create_topics([NewTopic(name, num_partitions=3)])[name].result(30)
        made.append(name)
        return Topic(stack, spec)

    yield make
    for future in admin.delete_topics(made).values() if made else ():
        future.result(30)


def test_every_record_once_and_nothing_twice(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    expected: list[Row] = []
    for start in (0, 500):
        rows = [{"id": i, "note": f"n{i}"} for i in range(start, start + 500)]
        topic.send(ORDER, rows, key=lambda number: str(number).encode())
        expected += rows
        assert topic.ingest() == 500
    assert topic.ingest() == 0
    assert sorted(topic.rows("id", "note"), key=lambda row: row["id"]) == expected


def test_several_writer_schemas_in_one_batch(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    wider = avro(
        *ORDER["fields"],
        {"name": "amount", "type": ["null", "double"], "default": None},
    )
    dropped = avro(*ORDER["fields"][:1], wider["fields"][2])
    topic.send(ORDER, [{"id": 1, "note": "a"}])
    topic.send(wider, [{"id": 2, "note": "b", "amount": 2.5}])
    assert topic.ingest() == 2
    topic.send(dropped, [{"id": 3, "amount": 3.5}])
    topic.send(ORDER, [{"id": 4, "note": "d"}])
    assert topic.ingest() == 2
    assert topic.rows("id", "note", "amount") == [
        {"id": 1, "note": "a", "amount": None},
        {"id": 2, "note": "b", "amount": 2.5},
        {"id": 3, "note": None, "amount": 3.5},
        # The column `note` is no field of the latest schema any more.
        {"id": 4, "note": None, "amount": None},
    ]


def test_a_tombstone_is_a_row_without_values(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "a"}])
    topic.send_raw([None], key=lambda _: b"k")
    assert topic.ingest() == 2
    assert topic.rows("key", "id") == [{"key": None, "id": 1}, {"key": b"k", "id": None}]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"\x01 no magic byte", "wire format"),
        (b"\x00\x00", "wire format"),
        (wire_prefix(2_000_000_000) + b"x", "has no schema 2000000000"),
        (None, "does not fit its schema"),
    ],
)
def test_a_broken_record_suspends_and_skip_leaves_it_out(
    make_topic: Callable[..., Topic], broken: bytes | None, reason: str
) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "a"}])
    topic.send_raw([wire_prefix(topic.register(ORDER)) + b"\x02\xff" if broken is None else broken])
    topic.send(ORDER, [{"id": 2, "note": "b"}])
    with pytest.raises(TableflowError, match=reason) as error:
        topic.ingest()
    assert topic.spec.name in str(error.value)
    assert topic.rows("id") == []
    skipping = {"mode": "SKIP"}
    topic.spec = TopicSpec.model_validate(
        {**topic.spec.model_dump(by_alias=True), "tableflow": {"error_handling": skipping}}
    )
    topic.ingest()
    assert topic.rows("id") == [{"id": 1}, {"id": 2}]


def test_two_engines_on_one_topic(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": -1, "note": ""}])
    topic.ingest()
    stop = threading.Event()
    failures: list[Exception] = []

    def engine() -> None:
        ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
        while not stop.is_set():
            try:
                ingestor.step()
            except CommitConflictError:  # the other one was always faster: the service tries again
                continue
            except Exception as error:  # collected for the assertion below
                failures.append(error)
        ingestor.close()

    engines = [threading.Thread(target=engine) for _ in range(2)]
    for thread in engines:
        thread.start()
    for start in range(0, 5000, 500):
        topic.send(ORDER, [{"id": i, "note": "x"} for i in range(start, start + 500)])
        time.sleep(0.5)
    deadline = time.monotonic() + 120
    while len(topic.rows("id")) < 5001 and time.monotonic() < deadline:
        time.sleep(1)
    stop.set()
    for thread in engines:
        thread.join()
    assert not failures
    assert sorted(row["id"] for row in topic.rows("id")) == list(range(-1, 5000))


def test_a_topic_that_was_created_anew_is_refused(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    topic.send(ORDER, [{"id": i, "note": "x"} for i in range(20)])
    topic.ingest()
    admin = topic.endpoints.kafka_admin()
    admin.delete_topics([topic.spec.name])[topic.spec.name].result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            kafka.topic_id(topic.endpoints, topic.spec.name)
            time.sleep(0.2)
        except kafka.NoSuchTopicError:
            break
    admin.create_topics([NewTopic(topic.spec.name, num_partitions=3)])[topic.spec.name].result(30)
    with pytest.raises(TableflowError, match="created anew"):
        topic.ingest()
    assert len(topic.rows("id")) == 20


def test_aborted_transactions_never_appear(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    prefix, parsed = wire_prefix(topic.register(ORDER)), fastavro.parse_schema(ORDER)
    producer = Producer({**topic.endpoints.kafka_config(), "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for i in range(10):
            value = prefix + encode(parsed, {"id": number * 10 + i, "note": ""})
            producer.produce(topic.spec.name, value)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    topic.ingest()
    assert [row["id"] for row in topic.rows("id")] != []
    assert sorted(row["id"] for row in topic.rows("id")) == [*range(10), *range(20, 30)]


def test_offsets_survive_other_commits(make_topic: Callable[..., Topic]) -> None:
    """A commit without offsets (compaction, a delete) does not make the engine read again."""
    topic = make_topic()
    topic.send(ORDER, [{"id": i, "note": "x"} for i in range(10)])
    topic.ingest()
    table = topic.endpoints.catalog(topic.config).load_table(topic.spec.table_identifier())
    table.delete("id < 5")
    topic.send(ORDER, [{"id": i, "note": "x"} for i in range(10, 20)])
    assert topic.ingest() == 10
    assert sorted(row["id"] for row in topic.rows("id")) == list(range(5, 20))
    assert commit.CHECKPOINT_TAG in table.refresh().metadata.refs
