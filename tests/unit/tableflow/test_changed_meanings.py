"""What the values of a column mean, when the schema of a topic changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from topicberg.errors import TableflowError
from topicberg.formats.connect import with_connect_types
from topicberg.formats.meanings import (
    EPOCH_MILLIS,
    JSON_TEXT,
    MICROS,
    MILLIS,
    NANOS,
    NULLS,
    meaning_of,
)
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings
from topicberg.tableflow.layout.layout import table_schema
from topicberg.tableflow.layout.meanings import MEANINGS, columns_of, followed, noted
from topicberg.tableflow.layout.message_fields import Layout, MessageField
from topicberg.tableflow.layout.writers import ForeignSchemas
from topicberg.tableflow.service.topic_table import message_decoders
from topicberg.tableflow.table.table import ensure_table
from topicberg.topics import TopicSpec

_AVRO: dict[str, Any] = {
    "ms": {"type": "int", "connect.name": "io.debezium.time.Time"},
    "us": {"type": "long", "connect.name": "io.debezium.time.MicroTime"},
    "ns": {"type": "long", "connect.name": "io.debezium.time.NanoTime"},
    "iso": {"type": "string", "connect.name": "io.debezium.time.IsoTime"},
    "int": "int",
    "long": "long",
}
_JSON: dict[str, Any] = {
    "ms": {"type": "integer", "title": "io.debezium.time.Time", "connect.type": "int32"},
    "us": {"type": "integer", "title": "io.debezium.time.MicroTime"},
    "ns": {"type": "integer", "title": "io.debezium.time.NanoTime"},
    "iso": {"type": "string", "title": "io.debezium.time.IsoTime"},
    "int": {"type": "integer", "connect.type": "int32"},
    "long": {"type": "integer"},
    "text": {"type": "string"},
    "json": {},
    "mixed": {"enum": ["a", "b", 1]},
    "null": {"type": "null"},
}
_FIELDS: dict[SchemaType, dict[str, Any]] = {"AVRO": _AVRO, "JSON": _JSON}
_WRAPPED: dict[str, dict[str, Any]] = {
    "plain": {"AVRO": lambda one: one, "JSON": lambda one: one},
    "list": {
        "AVRO": lambda one: {"type": "array", "items": one},
        "JSON": lambda one: {"type": "array", "items": one},
    },
    "map": {
        "AVRO": lambda one: {"type": "map", "values": one},
        "JSON": lambda one: {"type": "object", "additionalProperties": one or True},
    },
    "struct": {
        "AVRO": lambda one: {"type": "record", "name": "I", "fields": [{"name": "x", "type": one}]},
        "JSON": lambda one: {"type": "object", "properties": {"x": one}},
    },
    "union": {
        "AVRO": lambda one: ["boolean", one],
        "JSON": lambda one: {"oneOf": [{"type": "boolean"}, one]},
    },
}
_WRAPPED["structs"] = {
    kind: lambda one, kind=kind: _WRAPPED["list"][kind](_WRAPPED["struct"][kind](one))
    for kind in ("AVRO", "JSON")
}
MIXED_UNITS = [
    (kind, before, now)
    for kind in ("AVRO", "JSON")
    for before, now in (
        *(("ms", "us"), ("ms", "ns"), ("ms", "iso"), ("us", "ns"), ("iso", "ns")),
        *(("ns", "us"), ("int", "us"), ("ms", "long")),
    )
]


class Topic:
    """The versions of a topic's schema, and its table."""

    def __init__(self, catalog: SqlCatalog, config: Settings, kind: SchemaType) -> None:
        self.catalog, self.config, self.kind = catalog, config, kind
        self.versions: list[RegisteredSchema] = []
        form = {"format": kind.lower(), "file": "t.schema"}
        self.spec = TopicSpec.model_validate({"name": "t", "pipeline": "p", "schema": form})

    def register(self, field: Any, doc: str | None = None) -> Topic:
        if self.kind == "AVRO":
            fields = [{"name": "a", "type": field} | ({"doc": doc} if doc else {})]
            text = json.dumps({"type": "record", "name": "R", "fields": fields})
        else:
            described = {**field, "description": doc} if doc else field
            text = json.dumps({"type": "object", "properties": {"a": described}})
        schema = RegisteredSchema(len(self.versions) + 1, self.kind, text)
        self.versions.append(with_connect_types(schema))
        return self

    @property
    def layout(self) -> Layout:
        schemas = {schema.schema_id: schema for schema in self.versions}
        subject = Subject("t-value", schemas, self.versions[-1])
        return Layout(MessageField("key", None), MessageField("value", subject))

    def ensure(self) -> Table:
        layout = self.layout
        schema, older = table_schema(self.spec, layout), layout.older_columns()
        return ensure_table(self.catalog, self.spec, self.config, schema, older=older)

    def columns(self) -> StructType:
        return table_schema(self.spec, self.layout).as_struct()

    def meaning(self) -> str | None:
        """Return what is noted of the column, in the evolved table."""
        (column,) = (column for column in columns_of(self.ensure()) if column.name == "a")
        return meaning_of(column.doc).values

    def comment(self, text: str) -> None:
        """Edit the comment of the column as someone else does."""
        table = self.catalog.load_table(self.spec.table_identifier(self.config))
        with table.update_schema() as update:
            update.update_column("a", doc=text)

    def set_property(self, text: str) -> None:
        table = self.catalog.load_table(self.spec.table_identifier(self.config))
        with table.transaction() as transaction:
            transaction.set_properties({MEANINGS: text})


def noted_meanings(table: Table) -> dict[int, str | None]:
    return {number: meaning.values for number, meaning in noted(table).meanings.items()}


@pytest.fixture
def make_topic(new_project: Settings, tmp_path: Path) -> Any:
    warehouse = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    catalog = SqlCatalog("unit", **warehouse, **{LOCATIONS: "catalog"})
    return lambda kind: Topic(catalog, new_project, kind)


@pytest.mark.parametrize("wrap", list(_WRAPPED))
@pytest.mark.parametrize(("kind", "before", "now"), MIXED_UNITS)
def test_column_whose_unit_changes_is_refused(
    make_topic: Any, kind: SchemaType, before: str, now: str, wrap: str
) -> None:
    topic, wrapped = make_topic(kind), _WRAPPED[wrap][kind]
    columns = topic.register(wrapped(_FIELDS[kind][before])).columns()
    new = topic.register(wrapped(_FIELDS[kind][now])).columns()
    if wrap == "union" and now == "iso":  # a text is another member, which its records go to
        return
    with pytest.raises(ValueError, match=r"the column a.* is .*, the schema has"):
        followed(columns, new)


@pytest.mark.parametrize("wrap", ["plain", "list", "map", "struct", "structs"])
@pytest.mark.parametrize(
    ("before", "now"), [*(("text", "json"), ("json", "text"), ("text", "mixed"), ("mixed", "text"))]
)
def test_column_that_changes_between_text_and_json_text_is_refused(
    make_topic: Any, before: str, now: str, wrap: str
) -> None:
    topic, wrapped = make_topic("JSON"), _WRAPPED[wrap]["JSON"]
    columns = topic.register(wrapped(_JSON[before])).columns()
    new = topic.register(wrapped(_JSON[now])).columns()
    if wrap == "map" and "json" in (before, now):  # such a map is JSON text itself
        return
    with pytest.raises(ValueError, match=f"text.*{JSON_TEXT}|{JSON_TEXT}.* text"):
        followed(columns, new)


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [
        *(("AVRO", "us", "iso"), ("AVRO", "int", "ms"), ("AVRO", "ms", "int")),
        *(("AVRO", "int", "long"), ("AVRO", "long", "us"), ("AVRO", "us", "us")),
        *(("JSON", "iso", "us"), ("JSON", "int", "ms"), ("JSON", "long", "ns")),
        *(("JSON", "int", "long"), ("JSON", "mixed", "json"), ("JSON", "null", "text")),
        *(("JSON", "text", "null"), ("JSON", "null", "json"), ("JSON", "json", "null")),
    ],
)
def test_column_whose_meaning_does_not_change_goes_on(
    make_topic: Any, kind: SchemaType, before: str, now: str
) -> None:
    topic = make_topic(kind)
    columns = topic.register(_FIELDS[kind][before]).columns()
    followed(columns, topic.register(_FIELDS[kind][now]).columns())


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_column_keeps_its_unit_when_a_version_has_none(make_topic: Any, kind: SchemaType) -> None:
    """Otherwise a third version could bring another unit."""
    fields, topic = _FIELDS[kind], make_topic(kind)
    topic.register(fields["us"], "start").ensure()
    column = topic.register(fields["long"], "begin").ensure().schema().find_field("a")
    assert column.doc == f"begin; {MICROS}"
    topic.register(fields["ns"], "begin")
    with pytest.raises(TableflowError, match=f"is in {MICROS}, the schema has {NANOS}"):
        topic.ensure()


# --- comments that someone edits ---


def test_new_table_of_versions_that_differ_goes_on(make_topic: Any) -> None:
    topic = make_topic("JSON").register(_JSON["json"]).register(_JSON["text"])
    for _ in range(2):
        table = topic.ensure()
        assert table.schema().find_field("a").doc is None
    assert noted_meanings(table) == {}


@pytest.mark.parametrize(("kind", "name", "meaning"), [("JSON", "json", JSON_TEXT)] + [
    (kind, "us", MICROS) for kind in ("AVRO", "JSON")
])  # fmt: skip
@pytest.mark.parametrize("text", ["free notes", "", MILLIS, f"x; {NANOS}", JSON_TEXT])
def test_edited_comment_changes_no_meaning(
    make_topic: Any, kind: SchemaType, name: str, meaning: str, text: str
) -> None:
    topic = make_topic(kind).register(_FIELDS[kind][name])
    topic.ensure()
    topic.comment(text)
    assert topic.meaning() == meaning
    topic.register(_FIELDS[kind]["text" if name == "json" else "ns"])
    with pytest.raises(TableflowError, match="cannot follow the new schema: the column a"):
        topic.ensure()


def test_edited_comment_of_a_field_without_a_description_stays(make_topic: Any) -> None:
    topic = make_topic("JSON").register(_JSON["json"])
    topic.ensure()
    topic.comment("free notes")
    assert topic.ensure().schema().find_field("a").doc == "free notes"


def test_edited_comment_changes_no_decoded_value(make_topic: Any) -> None:
    """Records of an older version in another unit than the column's stay malformed."""
    topic = make_topic("JSON").register(_JSON["ns"]).register(_JSON["us"])
    topic.ensure()
    topic.register(_JSON["long"]).ensure()  # now only the table has the unit
    for text in ("free notes", NANOS):
        topic.comment(text)
        foreign = ForeignSchemas(cast("Any", None))
        decoders = message_decoders(topic.spec, topic.layout, topic.ensure(), {"value": foreign})
        assert f"in {NANOS}, its column in {MICROS}" in decoders["value"].refused[1]


def test_renamed_column_keeps_its_meaning(make_topic: Any) -> None:
    topic = make_topic("JSON").register(_JSON["json"])
    with topic.ensure().update_schema() as update:
        update.rename_column("a", "b")
    assert {one.name: one.doc for one in columns_of(topic.ensure()) if one.doc} == {
        "a": JSON_TEXT,
        "b": JSON_TEXT,
    }


@pytest.mark.parametrize(
    "text",
    [
        *("", "true", "{", "[]", "{}", "[" * 100_000),
        *('{"meanings": {}}', '{"last_id": 99}', '{"last_id": 99, "meanings": 2}'),
        *('{"last_id": 99, "meanings": {"1": 2}}', '{"last_id": 99, "meanings": {"1": "x"}}'),
        *('{"last_id": 99, "meanings": {"x": "y"}}', '{"last_id": 99, "meanings": {"1": ""}}'),
        *('{"last_id": "x", "meanings": {}}', '{"last_id": null, "meanings": {}}'),
        *('{"last_id": Infinity, "meanings": {}}', '{"last_id": 99, "meanings": {"1": []}}'),
    ],
)
def test_unreadable_property_is_noted_again(make_topic: Any, text: str) -> None:
    topic = make_topic("JSON").register(_JSON["json"])
    before = topic.ensure().properties[MEANINGS]
    topic.set_property(text)
    assert topic.ensure().properties[MEANINGS] == before


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("text", [MICROS, f"start; {EPOCH_MILLIS}", f"keys: {NANOS}"])
def test_description_that_is_a_unit_is_no_meaning(
    make_topic: Any, kind: SchemaType, text: str
) -> None:
    topic = make_topic(kind).register(_FIELDS[kind]["long"], text)
    assert noted_meanings(topic.ensure()) == {}
    topic.register(_FIELDS[kind]["long"], MILLIS)
    assert noted_meanings(topic.ensure()) == {}


# --- columns of nulls only ---


@pytest.mark.parametrize("wrap", ["plain", "list", "struct", "structs"])
@pytest.mark.parametrize("name", ["text", "json"])
@pytest.mark.parametrize("is_described", [False, True])
def test_nulls_become_either_text_and_back(
    make_topic: Any, name: str, wrap: str, is_described: bool
) -> None:
    topic, wrapped = make_topic("JSON"), _WRAPPED[wrap]["JSON"]
    doc = "d" if is_described else None
    for each in ("null", name, "null", name):
        table = topic.register(wrapped(_JSON[each]), doc).ensure()
        assert NULLS not in str(table.schema())
    assert [*noted_meanings(table).values()] == ([JSON_TEXT] if name == "json" else [])
    topic.register(wrapped(_JSON["text" if name == "json" else "json"]))
    with pytest.raises(TableflowError, match="cannot follow the new schema: the column a"):
        topic.ensure()


@pytest.mark.parametrize(("before", "now"), [("text", "json"), ("json", "text")])
def test_nulls_between_text_and_json_text_hide_no_contradiction(
    make_topic: Any, before: str, now: str
) -> None:
    topic = make_topic("JSON").register(_JSON[before])
    topic.register(_JSON["null"]).ensure()  # a new table, of both versions' records
    topic.register(_JSON[now])
    with pytest.raises(TableflowError, match="cannot follow the new schema: the column a"):
        topic.ensure()


@pytest.mark.parametrize(("older", "newest"), [("text", "json"), ("json", "text")])
def test_nulls_of_a_table_have_the_meaning_of_a_version_that_was_not_the_newest(
    make_topic: Any, older: str, newest: str
) -> None:
    topic = make_topic("JSON").register(_JSON["null"])
    topic.ensure()
    topic.register(_JSON[older]).register(_JSON["null"]).ensure()
    topic.register(_JSON[newest])
    with pytest.raises(TableflowError, match="cannot follow the new schema: the column a"):
        topic.ensure()


@pytest.mark.parametrize(("name", "is_followed"), [("text", True), ("json", False)])
def test_column_of_another_writer_means_what_its_comment_says(
    make_topic: Any, name: str, is_followed: bool
) -> None:
    topic = make_topic("JSON").register(_JSON["int"])
    table = topic.ensure()
    table.append(schema_to_pyarrow(table.schema()).empty_table())
    with table.update_schema() as update:
        update.add_column("b", StringType())
    schema = {"type": "object", "properties": {"a": _JSON["int"], "b": _JSON[name]}}
    topic.versions.append(with_connect_types(RegisteredSchema(2, "JSON", json.dumps(schema))))
    if is_followed:
        assert noted_meanings(topic.ensure()) == {}
        return
    with pytest.raises(TableflowError, match=f"the column b is text, .* {JSON_TEXT}"):
        topic.ensure()


# --- any columns ---

_DOCS = st.sampled_from([None, "d", MILLIS, MICROS, f"d; {NANOS}", JSON_TEXT])


@st.composite
def _structs(draw: st.DrawFn, depth: int = 2) -> StructType:
    names = draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1))
    return StructType(*(draw(_fields(name, depth)) for name in names))


@st.composite
def _fields(draw: st.DrawFn, name: str, depth: int) -> NestedField:
    kind: IcebergType = draw(st.sampled_from([IntegerType(), LongType(), StringType()]))
    if depth:
        match draw(st.sampled_from(["plain", "struct", "list", "map"])):
            case "struct":
                kind = draw(_structs(depth - 1))
            case "list":
                kind = ListType(1, draw(_fields("x", depth - 1)).field_type, False)
            case "map":
                kind = MapType(1, StringType(), 2, draw(_fields("x", depth - 1)).field_type, False)
    return NestedField(1, name, kind, False, draw(_DOCS))


@given(_structs())
def test_followed_by_the_same_columns_is_unchanged(columns: StructType) -> None:
    assert followed(columns, columns) == columns


@given(_structs(), _structs())
def test_followed_keeps_every_unit_of_the_table(existing: StructType, new: StructType) -> None:
    try:
        result = followed(existing, new)
    except ValueError:
        return
    by_name = {field.name: field for field in existing.fields}
    assert [field.name for field in result.fields] == [field.name for field in new.fields]
    for field in result.fields:
        if field.doc is not None and (held := by_name.get(field.name)) is not None:
            unit = meaning_of(held.doc).values
            assert unit is None or meaning_of(field.doc).values is not None
