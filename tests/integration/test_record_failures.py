"""Records that cannot be decoded: suspend, skip, or log to the dead-letter topic, each one once."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import pytest
import requests
from confluent_kafka import TopicPartition
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from kafka_topics import ORDER, Topic, avro
from waiting import wait_until

from topicberg.errors import CommitConflictError, TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.iceberg import summaries
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.tableflow.layout.writers import MISSING_SECONDS
from topicberg.tableflow.rejected.deadletters import DeadLetters
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.replay import Replay
from topicberg.tableflow.values import commit, skips
from topicberg.topics.deadletters import dead_letter_spec

pytestmark = pytest.mark.integration

DATES = avro(
    {"name": "id", "type": "long"},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "default": "\x00",
    },
)


def malformed(topic: Topic) -> list[bytes]:
    """A record of each kind that has no place in the table."""
    prefix = wire_prefix(topic.register(DATES))
    return [
        b"",
        b"\x01no magic byte",
        b"\x00\x00\x00",
        wire_prefix(2_000_000_000) + b"\x02\x00\x00",
        prefix,
        prefix + b"\x02\x02",  # ends within the date
        prefix + b"\x02\x00\x10\x01",  # eight bytes of decimal promised, one there
        prefix + b"\x02\x02\xfe\xff\xff\xff\x0f\x02\x01",  # a day in the year 5 881 580
        prefix + b"\x02\x00\x10\x7f\xff\xff\xff\xff\xff\xff\xff",  # more digits than 5
    ]


def good(topic: Topic, *numbers: int) -> None:
    topic.send(DATES, [{"id": n, "day": None, "price": b"\x01"} for n in numbers])


@pytest.fixture
def dates(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Topic:
    return make_topic(tableflow={"error_handling": request.param})


@pytest.mark.parametrize("dates", [{"mode": "SKIP"}], indirect=True)
def test_skip_counts_what_it_leaves_out(dates: Topic) -> None:
    good(dates, 1)
    dates.send_raw(malformed(dates))
    good(dates, 2)
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1, 2]
    dates.send_raw([b"again"])
    dates.ingest()
    assert int(dates.table().properties[summaries.ROWS_SKIPPED]) == len(malformed(dates)) + 1


@pytest.mark.parametrize("number", [0, 3, 7])
def test_suspend_names_the_record(make_topic: Callable[..., Topic], number: int) -> None:
    topic = make_topic()
    good(topic, 1)
    topic.send_raw([malformed(topic)[number]])
    with pytest.raises(TableflowError, match=rf"topic {topic.spec.name}, partition \d, offset \d+"):
        topic.ingest()
    assert topic.table().current_snapshot() is None


def dead_letters(topic: Topic) -> list[dict[str, Any]]:
    """The rows of the dead-letter topic's own table."""
    errors = Topic(topic.endpoints, dead_letter_spec(topic.spec), topic.config)
    errors.ingest()
    return [
        row
        for row in errors.rows("error_message", "source_record")
        if row["source_record"]["topic"] == topic.spec.name
    ]


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "orders_errors"}], indirect=True)
def test_log_keeps_each_broken_record_once(dates: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = malformed(dates)
    good(dates, 1)
    dates.send_raw(broken[:4])
    dates.ingest()
    dates.send_raw(broken[4:])
    good(dates, 2)

    class Killed(BaseException):
        """The engine dies between the dead letters and the commit."""

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(commit, "add_files", die)
        with pytest.raises(Killed):
            dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1]
    dates.send_raw([b"later"])  # the next batch is another one
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1, 2]
    broken.append(b"later")
    logged = dead_letters(dates)
    assert sorted(row["source_record"]["value"] for row in logged) == sorted(broken)
    assert all(row["error_message"] for row in logged)
    assert int(dates.table().properties[summaries.ROWS_SKIPPED]) == len(broken)


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "replayed_errors"}], indirect=True)
def test_replay_reads_what_the_log_has_then_the_dead_letters(dates: Topic) -> None:
    good(dates, 1)
    dates.ingest()
    name, before = dates.spec.name, kafka.end_offsets(dates.endpoints, dates.spec.name)
    good(dates, 2)
    ends = kafka.end_offsets(dates.endpoints, name)
    (place,) = before.items() - ends.items()
    assert skips.request(dates.table(), dates.endpoints, name, place, "not given")
    dates.send_raw(broken := malformed(dates))
    dates.ingest()
    assert [row["id"] for row in dates.rows("id")] == [1]
    for is_in_log in (True, False):
        done = Replay(dates.spec, dates.endpoints, dates.config).run()
        assert done.counts == Counter({"inserted": int(is_in_log), "failed again": len(broken)})
        assert [row["id"] for row in dates.rows("id")] == [1, 2]
        ends = kafka.end_offsets(dates.endpoints, name)
        places = [TopicPartition(name, p, offset) for p, offset in ends.items()]
        for deleted in (
            kafka.admin_client(dates.endpoints, writes=True).delete_records(places).values()
        ):
            deleted.result()


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "again_errors"}], indirect=True)
def test_new_table_and_new_topic_log_their_own_dead_letters(
    dates: Topic, make_topic: Callable[..., Topic]
) -> None:
    """Also those of an engine that runs while the table, or the topic, is created again."""
    other = make_topic()
    for topic in (dates, other):
        good(topic, 1)
        topic.ingest()
    dates.send_raw([b"bad"])
    ends = kafka.end_offsets(dates.endpoints, dates.spec.name)
    letters = DeadLetters(dates.spec, dates.endpoints, dates.config)
    bad = [
        record
        for partition, end in ends.items()
        if end and (record := letters.record((partition, end - 1), "why"))["value"] == b"bad"
    ]
    assert len(bad) == 1
    for table, topic_id, logged in (
        (dates.table(), "first", 1),
        (dates.table(), "first", 1),
        (other.table(), "first", 2),
        (other.table(), "second", 3),
    ):
        letters.write(table, topic_id, {}, bad)
        wait_until(partial(has_entries, dates, logged), 20)
        assert len(entries(dates)) == logged


def has_entries(topic: Topic, number: int) -> bool:
    return len(entries(topic)) >= number


def entries(topic: Topic) -> list[dict[str, Any]]:
    """What is in the dead-letter topic itself, of committed transactions."""
    target = dead_letter_spec(topic.spec).name
    first = kafka.beginning_offsets(topic.endpoints, target)
    end = kafka.end_offsets(topic.endpoints, target)
    registry = topic.endpoints.schema_registry_client()
    found: list[dict[str, Any]] = []
    for message in messages(topic.endpoints, target, {p: (first[p], end[p]) for p in end}):
        value = message.value() or b""
        if value[:1] != b"\x00":
            continue
        schema: Any = json.loads(registry.get_schema(int.from_bytes(value[1:5])).schema_str or "")
        entry: Any = fastavro.schemaless_reader(BytesIO(value[5:]), schema, None)
        found += [entry] if "source_record" in entry else []
    return found


def test_dead_letters_fit_a_target_of_others(make_topic: Callable[..., Topic]) -> None:
    """It is compacted, takes small records, has a schema of its own, and is flooded."""
    room = 20_000
    target = make_topic({"cleanup.policy": "compact", "max.message.bytes": str(room)})
    target.send(ORDER, [{"id": 1, "note": "of others"}], key=lambda _: b"k")
    target.send_raw([b"x"] * 100_000, key=lambda number: b"%d" % number, batch_size=10_000)
    topic = make_topic(
        {"message.timestamp.after.max.ms": str(2**63 - 1)},
        schema={"format": "avro"},
        tableflow={"error_handling": {"mode": "LOG", "target": target.spec.name}},
    )
    good(topic, 1)
    largest = b"\x01" + b"v" * 8_388_000
    topic.send_raw([largest], message_max_bytes=9_000_000)
    topic.send_raw([b"\x01late"], timestamp=lambda _: 1_700_000_000_000_000_000)
    topic.send_raw([b"\x01key"], key=lambda _: b"k" * 50_000)
    good(topic, 2)
    assert topic.ingest() == 5
    assert [row["id"] for row in topic.rows("id")] == [1, 2]
    by_size = sorted(entries(topic), key=lambda entry: len(entry["source_record"]["value"]))
    key, late, large = by_size
    assert late["error_details"]["timestamp"] == "1700000000000000000"
    assert "truncated" not in late["error_details"]
    assert key["error_details"]["key_bytes"] == "50000"
    assert len(key["source_record"]["key"]) > room / 2
    assert large["error_details"]["value_bytes"] == str(len(largest))
    value = large["source_record"]["value"]
    assert room / 2 < len(value) < room
    assert largest.startswith(value)
    # The subject of the others is as it was.
    assert topic.endpoints.schema_registry_client().get_versions(target.spec.value_subject) == [1]


@pytest.mark.parametrize("dates", [{"mode": "LOG", "target": "engines_errors"}], indirect=True)
def test_two_engines_log_each_record_once(dates: Topic) -> None:
    good(dates, 0)
    stop = threading.Event()
    failures: list[Exception] = []

    def engine() -> None:
        ingestor = Ingestor(dates.spec, dates.endpoints, dates.config)
        while not stop.is_set():
            try:
                ingestor.step()
            except CommitConflictError:  # the other one was always faster
                continue
            except Exception as error:  # collected for the assertion below
                failures.append(error)
        ingestor.close()

    engines = [threading.Thread(target=engine) for _ in range(2)]
    for thread in engines:
        thread.start()
    broken = [b"broken %d" % number for number in range(300)]
    for number in range(0, 300, 50):
        good(dates, number + 1)
        dates.send_raw(broken[number : number + 50])
        time.sleep(1)
    deadline = time.monotonic() + 150
    while len(dates.rows("id")) < 7 and time.monotonic() < deadline:
        time.sleep(1)
    stop.set()
    for thread in engines:
        thread.join()
    dates.ingest()
    assert not failures
    assert len(dates.rows("id")) == 7
    mine = [e for e in entries(dates) if e["source_record"]["topic"] == dates.spec.name]
    assert sorted(entry["source_record"]["value"] for entry in mine) == sorted(broken)
    assert int(dates.table().properties[summaries.ROWS_SKIPPED]) == 300


FOREIGN: list[tuple[Any, bytes]] = [
    ({**ORDER, "name": "OrderDeleted"}, b"\x04\x02b"),
    ("string", b"\x02b"),
    (avro({"name": "next", "type": ["null", "Order"]}), b"\x00"),
    (avro({"name": "id", "type": "string"}), b"\x02b"),
    (avro({"name": "id", "type": {"type": "map", "values": "long"}}), b"\x00"),
]
"""Schemas of another subject, and a record that each one has written."""


def register(topic: Topic, schema: Any, kind: str = "AVRO") -> bytes:
    """Register a schema in another subject; the prefix of its records."""
    answer = requests.post(
        f"{topic.endpoints.schema_registry}/subjects/other-{uuid.uuid4().hex}/versions",
        json={"schema": json.dumps(schema), "schemaType": kind},
        timeout=30,
    )
    assert answer.ok, answer.text
    return wire_prefix(answer.json()["id"])


@pytest.fixture
def foreign(make_topic: Callable[..., Topic], request: pytest.FixtureRequest) -> Topic:
    """A topic with two good records, and foreign ones between them."""
    topic = make_topic(tableflow={"error_handling": {"mode": getattr(request, "param", "SKIP")}})
    topic.send(ORDER, [{"id": 1, "note": "a"}], partition=0)
    topic.send_raw([register(topic, schema) + record for schema, record in FOREIGN], partition=0)
    topic.send_raw(
        [register(topic, {"type": "object", "title": "Order", "properties": {}}, "JSON") + b"{}"]
    )
    topic.send(ORDER, [{"id": 2, "note": "b"}], partition=0)
    return topic


def test_foreign_types_skip_counts_them(foreign: Topic) -> None:
    foreign.ingest()
    assert [row["id"] for row in foreign.rows("id")] == [1, 2]
    assert int(foreign.table().properties[summaries.ROWS_SKIPPED]) == len(FOREIGN) + 1


@pytest.mark.parametrize("foreign", ["SUSPEND"], indirect=True)
def test_foreign_type_suspend_names_schema(foreign: Topic) -> None:
    with pytest.raises(TableflowError, match=r"names schema \d+, which "):
        foreign.ingest()


@pytest.mark.alone  # the next id of a schema is its own
def test_unknown_schema_registered_later_resumes(
    make_topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, schema = make_topic(), {**ORDER, "namespace": f"later{uuid.uuid4().hex[:6]}"}
    topic.send(schema, [{"id": 1, "note": "a"}])
    wider = {**schema, "fields": [*ORDER["fields"], {"name": "more", "type": "int"}]}
    number = int.from_bytes(register(topic, "int")[1:], "big") + 1  # the next id, most likely
    topic.send_raw([wire_prefix(number) + b"\x04\x02b\x0e"])
    ingestor = Ingestor(topic.spec, topic.endpoints, topic.config)
    try:
        with pytest.raises(TableflowError, match=f"names schema {number}, which the schema regis"):
            ingestor.step()
        while (found := int.from_bytes(register(topic, wider)[1:], "big")) < number:
            wider["doc"] = f"{found}"
        assert found == number
        foreign = ingestor._foreign["value"]
        clock = foreign._now
        monkeypatch.setattr(foreign, "_now", lambda: clock() + MISSING_SECONDS)
        assert ingestor.step().records == 2
    finally:
        ingestor.close()
    assert [row["id"] for row in topic.rows("id")] == [1, 2]


def test_protobuf_as_confluents_client_for_python_writes_it(
    make_topic: Callable[..., Topic],
) -> None:
    """It registers descriptors in Base64, and each import as a subject of its own."""
    topic = make_topic(schema={"format": "protobuf"}, key={"format": "none"})
    unique = f"m{uuid.uuid4().hex[:8]}"
    common = FileDescriptorProto(name=f"{unique}.proto", package=unique, syntax="proto3")
    common.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    file = FileDescriptorProto(
        name=f"{unique}/order.proto",
        package="shop",
        syntax="proto3",
        dependency=[common.name, TIMESTAMP.name],
    )
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    for number, (name, kind) in enumerate(
        [("paid", f".{unique}.Money"), ("at", ".google.protobuf.Timestamp")], 2
    ):
        order.field.add(name=name, number=number, type=11, type_name=kind, label=1)
    pool = DescriptorPool()
    pool.AddSerializedFile(TIMESTAMP.serialized_pb)
    pool.Add(common)
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    registry = topic.endpoints.schema_registry_client()
    serialize = ProtobufSerializer(message, registry, {"use.deprecated.format": False})
    record = message(id=7)
    record.paid.cents = 995
    record.at.FromSeconds(1_700_000_000)
    topic.send_raw([serialize(record, SerializationContext(topic.spec.name, MessageField.VALUE))])
    topic.ingest()
    (row,) = topic.rows("id", "paid", "at")
    assert (row["id"], row["paid"]) == (7, {"cents": 995})
    assert row["at"] == datetime.fromtimestamp(1_700_000_000, UTC)
