"""Records that name their schemas in AWS Glue become rows like those of Confluent's registry."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from uuid import UUID, uuid4

import fastavro
import pyarrow as pa
import pytest
from fuzz_json import schema_and_records
from glue_records import GlueRegistry, glue_record
from plans import plan_of, readers_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog
from strict_aws import strict_aws

from topicberg.errors import TableflowError
from topicberg.formats.framing import wire_prefix
from topicberg.formats.glue import GlueReader
from topicberg.formats.protobuf import message_of_record
from topicberg.formats.protobuf.schema import file_of, glue_index, glue_messages
from topicberg.formats.subjects import RegisteredSchema
from topicberg.tableflow.decode.raw_keys import RawKeys
from topicberg.tableflow.layout.layout import foreign_schemas, read_layout, table_schema
from topicberg.tableflow.layout.message_fields import KEY, Layout
from topicberg.tableflow.layout.waiting import KEY_FRAMING, check_table
from topicberg.tableflow.layout.writers import MessageDecoder, named_schemas
from topicberg.tableflow.upsert.key_hashing import times_of
from topicberg.topics import TopicSpec

names = itertools.count()
PROTO = """syntax = "proto3"; package shop;
message Order { message Line { int64 id = 1; } map<string, int64> counts = 1; int64 id = 2;
  Line line = 3; }
message Another { int64 id = 1; }
"""
NESTED = 'syntax = "proto3"; message B { message C {} message A { message D {} } }'


@pytest.fixture(scope="module")
def registry() -> Iterator[GlueRegistry]:
    with strict_aws() as account:
        yield GlueRegistry(account)


@pytest.fixture
def name() -> str:
    return f"orders{next(names)}"


class Topic:
    """A topic whose schemas are in AWS Glue; the registry is read as an engine does it."""

    def __init__(self, name: str, reader: GlueReader, **fields: Any) -> None:
        self.spec = TopicSpec.model_validate({"name": name, "pipeline": "shop", **fields})
        self.readers = readers_of(glue=reader)
        self.foreign = foreign_schemas(self.spec, self.readers)
        self.layout: Layout = read_layout(self.spec, self.readers)
        catalog = InMemoryCatalog("test")
        catalog.create_namespace("n")
        self.table = catalog.create_table(f"n.t{next(names)}", table_schema(self.spec, self.layout))

    def rows(self, records: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
        """Return rows and reasons, after one look at what records name and is not known."""
        while True:
            self.layout = read_layout(self.spec, self.readers)
            plan, _ = plan_of(self.spec, self.layout, self.table, self.foreign)
            _, reasons = rows_of(plan, records)
            unknown = {
                reason.split()[5].strip(",") for reason in reasons.values() if "looked up" in reason
            }
            wanted = named_schemas(one.replace("-", "") for one in unknown)
            found = [one.look_up(wanted) for one in {*self.foreign.values()}]
            if not wanted or not any(found):
                plan, _ = plan_of(self.spec, self.layout, self.table, self.foreign)
                return rows_of(plan, records)

    def values(self, values: list[bytes], *columns: str) -> list[Any]:
        found, rejected = self.rows([(None, one) for one in values])
        assert not rejected
        return [tuple(one[name] for name in columns) for one in found]


def glue(kind: str, **more: Any) -> dict[str, Any]:
    return {"format": kind, "framing": "glue", **more}


def avro(*fields: str, name: str = "Order") -> dict[str, Any]:
    columns = [{"name": one, "type": ["null", "long"], "default": None} for one in fields]
    return {"type": "record", "name": name, "fields": columns}


def encoded(schema: Any, value: Any) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


@pytest.fixture
def only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the reference decoder reads a record")

    monkeypatch.setattr(MessageDecoder, "decode", refuse)


JSON = {"type": "object", "title": "Order", "properties": {"id": {"type": "integer"}}}


@pytest.mark.usefixtures("only_compiled")
def test_compressed_records_are_compiled_after_they_are_decompressed(
    registry: GlueRegistry, name: str
) -> None:
    version = registry.register(name, "avro", json.dumps(avro("id")))
    topic = Topic(name, registry.reader(), schema=glue("avro"))
    raws = [
        glue_record(version, encoded(avro("id"), {"id": number}), is_compressed=number % 3 == 0)
        for number in range(100)
    ]
    assert topic.values(raws, "id") == [(number,) for number in range(100)]


def test_random_json_equals_that_of_confluents_registry(registry: GlueRegistry, name: str) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        schema, records = schema_and_records(rng)
        payloads = [json.dumps(one).encode() for one in records]
        payloads += [one[: rng.randrange(len(one) + 1)] for one in payloads]
        version = registry.register(f"{name}{seed}", "json", json.dumps(schema))
        topic = Topic(f"{name}{seed}", registry.reader(), schema=glue("json"))
        packed = [glue_record(version, one, is_compressed=rng.random() < 0.5) for one in payloads]
        rows, reasons = topic.rows([(None, one) for one in packed])

        subject = topic.layout.value.subject

        class Confluent:
            def read(self, _: str, subject: Any = subject) -> Any:
                return subject

        spec = TopicSpec.model_validate(
            {"name": f"{name}{seed}", "pipeline": "shop", "schema": {"format": "json"}}
        )
        plan, _ = plan_of(spec, read_layout(spec, readers_of(Confluent())), topic.table)
        assert (rows, reasons) == rows_of(plan, [(None, wire_prefix(1) + one) for one in payloads])


def test_version_of_another_schema_needs_the_same_name(registry: GlueRegistry, name: str) -> None:
    registry.register(name, "avro", json.dumps(avro("id")))
    same = registry.register(f"{name}-same", "avro", json.dumps(avro("id")))
    unlike = registry.register(f"{name}-unlike", "avro", json.dumps(avro("id", name="Payment")))
    json_type = registry.register(f"{name}-json", "json", json.dumps(JSON))
    topic = Topic(name, registry.reader(), schema=glue("avro"))
    unknown, payload = uuid4(), encoded(avro("id"), {"id": 7})
    versions = [same, unlike, json_type, unknown]
    rows, reasons = topic.rows([(None, glue_record(one, payload)) for one in versions])
    assert [row["id"] for row in rows] == [7]
    assert reasons == {
        1: f"the value names schema version {unlike}, which is Payment, of another subject; the "
        "records of this topic are Order",
        2: f"the value names schema version {json_type}, which is of type JSON; the table is of "
        "AVRO",
        3: f"the value names schema version {unknown}, which AWS Glue Schema Registry does not "
        "have",
    }


def test_malformed_records_group_by_their_reasons(registry: GlueRegistry, name: str) -> None:
    version = registry.register(name, "avro", json.dumps(avro("id")))
    topic = Topic(name, registry.reader(), schema=glue("avro"))
    good, packed = glue_record(version, encoded(avro("id"), {"id": 1})), b"\3\5" + version.bytes
    bad = [
        b"",
        b"x",
        b"yy" * 20,
        wire_prefix(1),
        packed + b"yy",
        packed + b"zzz",
        b"\3\1" + good[2:],
    ]
    rows, reasons = topic.rows([(None, one) for one in [*bad, good]])
    assert [row["id"] for row in rows] == [1]
    assert len(reasons) == len(bad)
    assert len({*reasons.values()}) == 5
    assert not any(char.isdigit() for char in reasons[4])


def test_bomb_is_malformed_beside_others(
    registry: GlueRegistry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from topicberg.formats import framing

    monkeypatch.setattr(framing.decompressed, "__defaults__", (2**20,))
    version = registry.register(name, "json", json.dumps(JSON))
    topic = Topic(name, registry.reader(), schema=glue("json"))
    bomb = glue_record(version, b" " * 100_000_000 + b"{}", is_compressed=True)
    good = glue_record(version, b'{"id": 4}', is_compressed=True)
    rows, reasons = topic.rows([(None, good), (None, bomb), (None, bomb), (None, good)])
    assert [row["id"] for row in rows] == [4, 4]
    assert {*reasons.values()} == {
        "the payload of the value has more than 1 MiB when it is decompressed"
    }


# --- Protobuf ---


def test_messages_are_counted_as_aws_does() -> None:
    """The example of ``MessageIndexFinder``, and the entries of maps."""
    file = file_of("s", RegisteredSchema(1, "PROTOBUF", NESTED))
    assert [one.full_name for one in glue_messages(file)] == ["B", "B.A", "B.A.D", "B.C"]
    file = file_of("s", RegisteredSchema(1, "PROTOBUF", PROTO))
    found = [one.full_name for one in glue_messages(file)]
    assert found == ["shop.Another", "shop.Order", "shop.Order.CountsEntry", "shop.Order.Line"]
    many = "".join(f"message M{number:03} {{}}\n" for number in range(400))
    file = file_of("s", RegisteredSchema(1, "PROTOBUF", f'syntax = "proto3";\n{many}'))
    assert glue_index(file.message_types_by_name["M300"]) == b"\xac\x02"  # no zig-zag


def test_other_message_of_the_file_is_the_reason(registry: GlueRegistry, name: str) -> None:
    version = registry.register(name, "protobuf", PROTO)
    topic = Topic(name, registry.reader(), schema=glue("protobuf"))
    raws = [glue_record(version, one) for one in (b"\0\x08\x01", b"\x09", b"\x81\0", b"", b"\xff")]
    _, reasons = topic.rows([(None, one) for one in raws])
    assert reasons[0] == (
        "message index 0: the record is a shop.Another, the table's message is shop.Order"
    )
    assert reasons[1] == "message index 9: the schema has no such message"
    assert reasons[2] == "message index 1 is encoded in more bytes than necessary"
    assert "the record has no message index" in reasons[3]
    assert "the record has no message index" in reasons[4]
    writer = RegisteredSchema(1, "PROTOBUF", PROTO, has_glue_index=True)
    found = message_of_record(b"\1\x10\x07", writer)
    assert (found.message.name, found.begin) == ("Order", 1)


# --- keys ---


def upserts(registry: GlueRegistry, name: str) -> tuple[Topic, UUID]:
    version = registry.register(f"{name}-key", "avro", json.dumps(avro("k", name="K")))
    return upsert_topic(registry, name), version


def upsert_topic(registry: GlueRegistry, name: str) -> Topic:
    """Return the topic as a new reader of the registry sees it."""
    return Topic(
        name,
        registry.reader(),
        schema={"format": "text"},
        key=glue("avro", subject=f"{name}-key"),
        write_mode="upsert",
    )


def test_keys_are_held_as_they_were_sent_and_read_again(registry: GlueRegistry, name: str) -> None:
    topic, version = upserts(registry, name)
    payloads = [encoded(avro("k", name="K"), {"k": number}) for number in range(4)]
    sent = [
        glue_record(version, one, is_compressed=place == 2) for place, one in enumerate(payloads)
    ]
    rows, reasons = topic.rows([(one, b"v") for one in sent])
    assert not reasons
    assert [row["$$raw-key"] for row in rows] == sent
    assert [row["k"] for row in rows] == [0, 1, 2, 3]
    _, key = plan_of(topic.spec, topic.layout, topic.table, topic.foreign)
    assert key is not None
    # Another process knows none of the ids by which this one decoded the keys.
    readers = readers_of(glue=registry.reader())
    layout = read_layout(topic.spec, readers)
    read = RawKeys(layout.key, key, foreign_schemas(topic.spec, readers)[KEY])
    texts = read.texts(pa.array([*sent, None, b"other", sent[1]], pa.binary())).to_pylist()
    assert texts == [row["__topicberg_identity"] for row in rows] + [None, None, texts[1]]


def test_keys_of_another_schema_are_read_again(registry: GlueRegistry, name: str) -> None:
    topic, version = upserts(registry, name)
    same = registry.register(f"{name}-same", "avro", json.dumps(avro("k", name="K")))
    payload = encoded(avro("k", name="K"), {"k": 3})
    rows, _ = topic.rows([(glue_record(one, payload), b"v") for one in (version, same)])
    assert rows[0]["__topicberg_identity"] == rows[1]["__topicberg_identity"]
    _, key = plan_of(topic.spec, topic.layout, topic.table, topic.foreign)
    assert key is not None
    readers = readers_of(glue=registry.reader())
    layout = read_layout(topic.spec, readers)
    read = RawKeys(layout.key, key, foreign_schemas(topic.spec, readers)[KEY])
    held = pa.array([row["$$raw-key"] for row in rows], pa.binary())
    assert len({*read.texts(held).to_pylist()}) == 1


def test_newer_version_of_a_key_is_newer_within_a_millisecond(
    registry: GlueRegistry, name: str
) -> None:
    _, first = upserts(registry, name)
    second = registry.register(f"{name}-key", "avro", json.dumps(avro("k", "more", name="K")))
    again = upsert_topic(registry, name)
    _, key = plan_of(again.spec, again.layout, again.table, again.foreign)
    assert key is not None
    raw = pa.array([glue_record(one, b"x") for one in (first, second, uuid4())], pa.binary())
    assert times_of(pa.array([1000, 1000, 1000]), raw, key).tolist() == [1001, 1002, 1000]


def test_keys_of_a_table_keep_their_framing(registry: GlueRegistry, name: str) -> None:
    topic, _ = upserts(registry, name)
    with topic.table.transaction() as change:
        change.set_properties({"topicberg.write-mode": "upsert", KEY_FRAMING: "glue"})
    check_table(topic.table, topic.spec)
    document = topic.spec.model_dump(by_alias=True, mode="json")
    document["key"] = {"format": "avro", "subject": "k"}
    other = TopicSpec.model_validate(document)
    with pytest.raises(TableflowError, match=r"have key.framing glue, the spec says confluent"):
        check_table(topic.table, other)


def test_compressed_payload_is_not_decompressed_before_its_schema_is_known(
    registry: GlueRegistry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register(name, "json", json.dumps(JSON))
    topic = Topic(name, registry.reader(), schema=glue("json"))
    monkeypatch.setattr(zlib, "decompressobj", None)
    _, reasons = topic.rows([(None, glue_record(uuid4(), b"{}", is_compressed=True))])
    assert "which AWS Glue Schema Registry does not have" in reasons[0]
