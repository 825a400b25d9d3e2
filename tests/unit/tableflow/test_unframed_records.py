"""Records that do not name their schemas become rows like those that do."""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pytest
from fuzz_json import schema_and_records
from header_framing import NAMES
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of, readers_of, rows_of
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.types import StringType
from specs import Project

from topicberg.errors import SpecError, TableflowError
from topicberg.formats.framing import OWN_SCHEMA_ID, framed, wire_prefix
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.logins.catalog import LOCATIONS
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.tableflow.layout.waiting import unapplied
from topicberg.tableflow.table.table import ensure_table
from topicberg.topics import TopicSpec, check_topics

names = itertools.count()
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
PROTO = """syntax = "proto3";
message Other { string note = 1; }
message Order { message Line { int64 id = 1; string note = 2; } Line first = 1; }
"""
SLOW = settings(max_examples=30)


class Topic:
    """A topic of a project, without a stack; ``subjects``: what the registry has."""

    def __init__(self, project: Project, subjects: Any = None, **fields: Any) -> None:
        self.spec = TopicSpec.model_validate(
            {"name": "orders", "pipeline": "shop", "schema": {"format": "bytes"}, **fields}
        )
        self.layout: Layout = read_layout(self.spec, readers_of(subjects), project.config)
        catalog = InMemoryCatalog("test")
        catalog.create_namespace("n")
        self.table = catalog.create_table(f"n.t{next(names)}", table_schema(self.spec, self.layout))
        self.plan, _ = plan_of(self.spec, self.layout, self.table)

    def rows(
        self, records: Any, headers: Any = None
    ) -> tuple[list[dict[str, Any]], dict[int, str]]:
        return rows_of(self.plan, records, headers)

    def values(self, values: list[bytes], *columns: str) -> list[Any]:
        """Return the columns of records that are all rows."""
        found, rejected = self.rows([(None, one) for one in values])
        assert not rejected
        return [tuple(one[name] for name in columns) for one in found]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.schema("order.json", json.dumps(ORDER))
    made.schema("order.proto", PROTO)
    return made


def bare(kind: str, file: str, **more: Any) -> dict[str, Any]:
    return {"format": kind, "file": file, "framing": "none", **more}


class Registry:
    """A registry with versions of one subject."""

    def __init__(self, *texts: Any) -> None:
        self.versions = [
            RegisteredSchema(number, "JSON", json.dumps(text))
            for number, text in enumerate(texts, start=41)
        ]

    def read(self, name: str) -> Subject:
        return Subject(name, {one.schema_id: one for one in self.versions}, self.versions[-1])

    def version(self, _: str, version: int | None) -> RegisteredSchema:
        return self.versions[-1 if version is None else version - 1]


@SLOW
@given(st.integers(0, 2**32))
def test_plain_json_equals_framed_json(seed: int) -> None:
    """Records with a header, and those that begin like a prefix, are no exception."""
    rng = random.Random(seed)
    schema, records = schema_and_records(rng)
    text = json.dumps(schema)
    payloads = [json.dumps(one, ensure_ascii=rng.random() < 0.5).encode() for one in records]
    payloads += [one[: rng.randrange(len(one) + 1)] for one in payloads]
    payloads += [b"", b"\0\0\0\0\1{}", b"null", b"[]"]
    registered = Subject(
        "s", {9: RegisteredSchema(9, "JSON", text)}, RegisteredSchema(9, "JSON", text)
    )

    class Known:
        def read(self, _: str) -> Subject:
            return registered

    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.schema("s.json", text)
        plain = Topic(project, schema=bare("json", "s.json"))
        framed = Topic(project, Known(), schema={"format": "json", "file": "s.json"})
        assert plain.table.schema().as_struct() == framed.table.schema().as_struct()
        headers = [[(NAMES["value"], b"x")] if rng.random() < 0.3 else [] for _ in payloads]
        found, rejected = plain.rows([(None, one) for one in payloads], headers)
        expected = framed.rows([(None, wire_prefix(9) + one) for one in payloads])
    columns = framed.layout.value.fields()
    of_value = [{one.name: row[one.name] for one in columns} for row in expected[0]]
    assert [{one.name: row[one.name] for one in columns} for row in found] == of_value
    assert rejected == expected[1]
    assert len(found) + len(rejected) == len(payloads)


@SLOW
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text()), max_size=9))
def test_bare_avro_equals_what_fastavro_wrote(given_rows: list[tuple[int, str]]) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
    }
    parsed, values = fastavro.parse_schema(schema), []
    for number, note in given_rows:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, parsed, {"id": number, "note": note})
        values.append(buffer.getvalue())
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.schema("r.avsc", json.dumps(schema))
        topic = Topic(project, schema=bare("avro", "r.avsc"))
        assert topic.values(values, "id", "note") == given_rows
        _, rejected = topic.rows([(None, one + b"\0") for one in values])
        assert len(rejected) == len(values)


@pytest.mark.parametrize("message", ["Order.Line", "Other", "Order"])
def test_bare_protobuf_is_of_the_specs_message(project: Project, message: str) -> None:
    topic = Topic(project, schema=bare("protobuf", "order.proto", message=message))
    line = b"\x08\x07\x12\x01a"
    if message == "Order.Line":
        assert topic.values([line, b""], "id", "note") == [(7, "a"), (0, "")]
    elif message == "Other":
        assert topic.values([b"\x0a\x01b"], "note") == [("b",)]
    else:
        assert topic.values([b"\x0a\x05" + line], "first") == [({"id": 7, "note": "a"},)]


def test_subject_of_plain_records_gives_the_newest_or_a_fixed_version(project: Project) -> None:
    registry = Registry({"type": "object", "properties": {"id": {"type": "integer"}}}, ORDER)
    value, own = b'{"id": 7, "note": "a"}', {"format": "json", "framing": "none", "subject": "s"}
    newest = Topic(project, registry, schema=own)
    assert newest.values([value], "id", "note") == [(7, "a")]
    fixed = Topic(project, registry, schema=own | {"version": 1})
    assert "note" not in fixed.table.schema().column_names
    assert fixed.values([value], "id") == [(7,)]
    assert newest.layout.fitted != fixed.layout.fitted


def test_another_schema_file_is_another_layout(project: Project) -> None:
    topic = Topic(project, schema=bare("json", "order.json"))
    before = topic.layout.fitted
    assert read_layout(topic.spec, readers_of(), project.config).fitted == before
    more = ORDER["properties"] | {"more": {"type": "integer"}}  # type: ignore[operator]
    project.schema("order.json", json.dumps({"type": "object", "properties": more}))
    assert read_layout(topic.spec, readers_of(), project.config).fitted != before


def test_missing_schema_file_is_named(project: Project) -> None:
    with pytest.raises(SpecError, match=r"'none\.json' does not exist in schemas/"):
        Topic(project, schema=bare("json", "none.json"))


def test_union_without_framing_is_refused(project: Project) -> None:
    registry = Registry({"oneOf": [{"$ref": "a.json"}, {"$ref": "b.json"}]})
    with pytest.raises(TableflowError, match="a union of several types"):
        Topic(project, registry, schema={"format": "json", "framing": "none", "subject": "s"})


def test_header_framing_refuses_records_without_a_header(project: Project) -> None:
    topic = Topic(project, Registry(ORDER), schema={"format": "json", "framing": "header"})
    payload, name = b'{"id": 1}', NAMES["value"]
    records = [(None, payload), (None, wire_prefix(41) + payload), (None, payload), (None, None)]
    found, rejected = topic.rows(records, [[(name, wire_prefix(41))], [], [], []])
    assert [one["id"] for one in found] == [1, None]
    reason = "the value has no header __value_schema_id, which names its schema"
    assert rejected == {1: reason, 2: reason}


# --- keys ---


def test_plain_keys_upsert_by_their_decoded_values(project: Project) -> None:
    project.schema("value.json", json.dumps({"properties": {"n": {"type": "integer"}}}))
    topic = Topic(
        project,
        key=bare("json", "order.json"),
        schema=bare("json", "value.json"),
        write_mode="upsert",
    )
    keys = [b'{"id": 1, "note": "a"}', b'{"note":"a","id":1}', b'{"id": 1', b'{"id": 2}']
    found, rejected = topic.rows([(key, b'{"n": 5}') for key in keys])
    identities = [one["__topicberg_identity"] for one in found]
    assert identities[0] == identities[1] != identities[2]
    assert [one["$$raw-key"] for one in found] == [
        wire_prefix(OWN_SCHEMA_ID) + keys[number] for number in (0, 1, 3)
    ]
    assert list(rejected) == [2]
    assert rejected[2].startswith("the key: ")


# --- text and bytes ---


@SLOW
@given(
    st.lists(
        st.tuples(*[st.one_of(st.none(), st.binary(max_size=5), st.text().map(str.encode))] * 2),
        min_size=1,
        max_size=20,
    )
)
def test_text_is_what_python_decodes(records: list[tuple[bytes | None, bytes | None]]) -> None:
    def text(raw: bytes | None) -> Iterator[str | None]:
        try:
            yield None if raw is None else raw.decode()
        except UnicodeDecodeError:
            return

    with TemporaryDirectory() as folder:
        topic = Topic(Project(Path(folder)), key={"format": "string"}, schema={"format": "text"})
        found, rejected = topic.rows(records)
    expected = [(k, v) for key, value in records for k in text(key) for v in text(value)]
    assert [(one["key"], one["value"]) for one in found] == expected
    assert len(rejected) == len(records) - len(expected)
    assert set(rejected.values()) <= {
        "the key is not text in UTF-8",
        "the value is not text in UTF-8",
    }


def test_keys_that_become_text_are_refused_in_a_table_of_bytes(project: Project) -> None:
    fields: dict[str, Any] = {"name": "orders", "pipeline": "shop", "schema": {"format": "bytes"}}
    spec = TopicSpec.model_validate({**fields, "key": {"format": "string"}})
    earlier = TopicSpec.model_validate({**fields, "key": {"format": "bytes"}})
    catalog = InMemoryCatalog("test", **{LOCATIONS: "its own"})
    layouts = {
        one: read_layout(one_spec, readers_of(), project.config)
        for one, one_spec in (("now", spec), ("then", earlier))
    }
    schema = table_schema(spec, layouts["now"])
    assert isinstance(schema.find_field("key").field_type, StringType)
    records = [(b"a", b"1"), (b"\xff", b"2")]
    new = ensure_table(catalog, spec, project.config, schema)
    rows, rejected = rows_of(plan_of(spec, layouts["now"], new)[0], records)
    assert [row["key"] for row in rows] == ["a"]
    assert rejected == {1: "the key is not text in UTF-8"}
    catalog.drop_table(new.name())
    ensure_table(catalog, earlier, project.config, table_schema(earlier, layouts["then"]))
    with pytest.raises(TableflowError, match=r"cannot follow the new schema: .*key"):
        ensure_table(catalog, spec, project.config, schema)
    table = catalog.load_table(new.name())
    assert list(unapplied(table, TopicSpec.model_validate(fields))) == [], "the same column"
    assert [one.what for one in unapplied(new, earlier)] == [
        "its table was created with key.format string, the spec says bytes: rows before the change "
        "keep what they have"
    ]


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_unknown_fields_and_conversions_are_of_every_table(
    project: Project, write_mode: str
) -> None:
    more = {"unknown_fields": "keep", "conversions": {"id": "number_from_text"}}
    topic = Topic(
        project,
        schema=bare("json", "order.json", **more),
        key={"format": "string"},
        write_mode=write_mode,
    )
    values = [b'{"id": "7", "note": "n", "x": {"y": [1]}}', b'{"id": 8}', b'{"id": ""}', None]
    found, rejected = topic.rows([(b"k%d" % n, one) for n, one in enumerate(values)])
    names = ("key", "id", "note", "$$unknown-fields")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("k0", 7, "n", '{"x":{"y": [1]}}'),
        ("k1", 8, None, None),
        ("k3", None, None, None),
    ]
    assert rejected == {2: 'field id (long): a whole number expected, "" found'}


# --- specs ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"schema": {"format": "json", "framing": "none"}}, {"schema.file": "schema.subject"}),
        ({"schema": bare("json", "order.json", subject="s")}, {"schema.subject": "no effect"}),
        ({"schema": bare("json", "", subject="s")}, {"schema.subject": "no effect"}),
        ({"schema": bare("json", "order.json", version=2)}, {"schema.version": "no effect"}),
        (
            {"schema": bare("json", "order.json", compatibility="FULL")},
            {"schema.compatibility": "is not registered"},
        ),
        ({"schema": {"format": "text", "framing": "none"}}, {"schema.framing": "no schema"}),
        (
            {"schema": {"format": "avro", "file": "trades.avsc", "version": 2}},
            {"schema.version": "only for framing none"},
        ),
        (
            {"schema": bare("json", "order.json"), "generator": {"kind": "stock_trades"}},
            {"schema.framing": "topicberg writes the topic"},
        ),
        (
            {"schema": {"format": "avro", "file": "trades.avsc", "unknown_fields": "keep"}},
            {"schema.unknown_fields": "only for format json"},
        ),
        (
            {"schema": bare("json", "order.json", conversions={"idd": "number_from_text"})},
            {"schema.file": "the schema has no field idd"},
        ),
        (
            {"schema": bare("json", "order.json", conversions={"id": ["text_from_any"]})},
            {"schema.file": "text_from_any is for string"},
        ),
        (
            {"schema": bare("json", "order.json", conversions={"id": "number_from_any"})},
            {"schema.conversions.id.0": "number_from_text"},
        ),
        (
            {
                "schema": bare("json", "order.json", unknown_fields="keep"),
                "changelog": {"format": "debezium"},
            },
            {"schema.unknown_fields": "not for a changelog"},
        ),
        ({"schema": {"format": "json", "framing": "avro"}}, {"schema.framing": "'confluent'"}),
    ],
)
def test_wrong_spec_is_refused(
    project: Project, fields: dict[str, Any], expected: dict[str, str]
) -> None:
    project.topic({"name": "orders", "pipeline": "shop", **fields})
    found = {one.field: one.reason for one in check_topics(project.config)[1]}
    assert {name for name in expected if expected[name] not in found.get(name, "")} == set(), found


@pytest.mark.parametrize("external", [False, True])
def test_right_spec_knows_its_columns(project: Project, external: bool) -> None:
    document = {
        "name": "orders",
        "pipeline": "shop",
        "external": external,
        "schema": bare("json", "order.json"),
        "key": {"format": "string"},
        "table": {"partitioning": ["truncate[4](note)", "bucket[4](key)"]},
    }
    project.topic(document)
    (spec,), problems = check_topics(project.config)
    assert problems == []
    assert dict(list(spec.columns(project.config).items())[:3]) == {
        "key": "string",
        "id": "long",
        "note": "string",
    }
    assert list(spec.schema_files(project.config)) == []


def test_pattern_of_plain_topics_needs_no_subject(project: Project) -> None:
    from topicberg.topics.discovery import Discovery, FoundTopic, write_discovery

    own = bare("json", "order.json")
    project.topic({"topics": {"match": "dev.*", "defaults": {"schema": own}}}, "devices.yaml")
    write_discovery(project.config, Discovery(topics={"dev.a": FoundTopic(partitions=2)}))
    specs, problems = check_topics(project.config)
    assert problems == []
    (spec,) = specs
    assert (spec.value_schema.framing, spec.external) == ("none", True)
    assert spec.columns(project.config)["note"] == "string"


@pytest.mark.parametrize("compression", [b"\x00", b"\x05"])
def test_problem_of_a_glue_record_names_its_registry(compression: bytes) -> None:
    raw = b"\x03" + compression + uuid.uuid4().bytes + b"payload"
    assert "AWS Glue Schema Registry: set `schema.framing: glue`" in str(framed("value", raw, None))
    assert "Confluent's wire format" in str(framed("value", raw[:10], None))
