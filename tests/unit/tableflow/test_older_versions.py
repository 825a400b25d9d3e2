"""Columns of what only older versions of a schema have."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.schema import Schema

from topicberg.errors import TableflowError
from topicberg.formats.subjects import RegisteredSchema, SchemaType, Subject
from topicberg.settings import Settings
from topicberg.tableflow.layout.layout import table_schema
from topicberg.tableflow.layout.message_fields import Layout, MessageField
from topicberg.tableflow.table.table import ensure_table
from topicberg.topics import TopicSpec

Fields = dict[str, Any]
TIME = {"type": "int", "logicalType": "time-millis"}
MICROS = {"type": "long", "logicalType": "time-micros"}


def avro(**fields: Any) -> str:
    made = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": made})


def inner(**fields: Any) -> Fields:
    return cast("Fields", json.loads(avro(**fields))) | {"name": "Inner"}


def proto(body: str) -> str:
    return f'syntax = "proto3"; message Order {{ {body} }}'


def json_schema(**properties: str | Fields) -> str:
    typed = {n: {"type": one} if isinstance(one, str) else one for n, one in properties.items()}
    return json.dumps({"type": "object", "properties": typed})


def half(column: str, kind: SchemaType, versions: tuple[str, ...]) -> MessageField:
    schemas = {n: RegisteredSchema(n, kind, text) for n, text in enumerate(versions)}
    return MessageField(
        column, Subject("s", schemas, schemas[len(versions) - 1]) if versions else None
    )


def spec() -> TopicSpec:
    schema = {"format": "avro", "file": "t.avsc"}
    return TopicSpec.model_validate({"name": "t", "pipeline": "p", "schema": schema})


def columns(kind: SchemaType, *versions: str, keys: tuple[str, ...] = ()) -> dict[str, str]:
    layout = Layout(half("key", kind, keys), half("value", kind, versions))
    fields = table_schema(spec(), layout).fields
    own = (one for one in fields if not one.name.startswith("$$") and one.name != "key")
    return {one.name: re.sub(r"\d+: | optional", "", str(one.field_type)) for one in own}


def test_dropped_fields_have_columns_after_the_others() -> None:
    versions = avro(gone="int", id="long"), avro(id="long", also="string"), avro(id="long")
    assert list(columns("AVRO", *versions).items()) == [
        ("id", "long"),
        ("also", "string"),
        ("gone", "int"),
    ]


def test_dropped_fields_inside_of_others_have_columns() -> None:
    def order(**fields: Any) -> str:
        return avro(
            one=inner(**fields),
            many={"type": "array", "items": "Inner"},
            named={"type": "map", "values": "Inner"},
            maybe=["null", "Inner", "long"],
        )

    found = columns("AVRO", order(city="string", zip="int"), order(city="string"))
    assert found == columns("AVRO", order(city="string", zip="int"))


def test_dropped_json_properties_have_columns() -> None:
    old = json_schema(id="integer", zip="string", inner=json.loads(json_schema(a="string")))
    assert columns(
        "JSON", old, json_schema(id="integer", inner=json.loads(json_schema(b="string")))
    ) == {"id": "long", "inner": "struct<b: string, a: string>", "zip": "string"}


def test_renamed_protobuf_field_has_one_column() -> None:
    versions = proto("int32 a = 1; string gone = 2;"), proto("int32 b = 1; reserved 2;")
    assert columns("PROTOBUF", *versions) == {"b": "int", "gone": "string"}


def test_type_of_a_later_version_counts() -> None:
    assert columns("AVRO", avro(a="string", b="int"), avro(a="int")) == {"a": "int", "b": "int"}
    assert columns("AVRO", avro(orderID="int"), avro(orderId="int")) == {"orderId": "int"}


def test_version_without_a_table_has_no_columns() -> None:
    recursive = avro(next=["null", "Order"])
    assert columns("AVRO", recursive, '["string", "int"]', avro(a="int")) == {"a": "int"}


@pytest.mark.parametrize(
    ("text", "problem"), [("", "more than 1048576 characters"), ("[" * 5_000, None)]
)
def test_version_that_cannot_be_read_has_no_columns(text: str, problem: str | None) -> None:
    newest = RegisteredSchema(2, "AVRO", avro(a="int"))
    older = RegisteredSchema(1, "AVRO", text, problem=problem)
    value = MessageField("value", Subject("s", {1: older, 2: newest}, newest))
    fields = table_schema(spec(), Layout(half("key", "AVRO", ()), value)).fields
    assert [one.name for one in fields][:2] == ["key", "a"]


def test_key_comes_before_dropped_fields_of_values() -> None:
    values = avro(user_id="string", a="int"), avro(a="int")
    found = columns("AVRO", *values, keys=(avro(gone="int", user_id="long"), avro(user_id="long")))
    assert found == {"user_id": "long", "a": "int", "gone": "int"}


def test_column_in_milliseconds_keeps_its_unit(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("lake")
    catalog = InMemoryCatalog("c", warehouse=f"file://{folder}")
    config = Settings(project_root=folder)

    def schema(*versions: str) -> Schema:
        layout = Layout(half("key", "AVRO", ()), half("value", "AVRO", versions))
        return table_schema(spec(), layout)

    identifier = spec().table_identifier(config)
    catalog.create_namespace(identifier[0])
    catalog.create_table(identifier, schema(avro(at=TIME, inner=inner(at=TIME))))

    def evolve(text: str) -> None:
        ensure_table(catalog, spec(), config, schema(text))

    evolve(avro(at=["null", TIME]))
    for wrong in (avro(at=MICROS), avro(inner=inner(at=MICROS))):
        with pytest.raises(TableflowError, match=r"at is in milliseconds .* has microseconds"):
            evolve(wrong)
    evolve(avro(at="int"))


# --- dots in names ---


WHOLE = {"type": "integer"}


def properties(**kinds: Any) -> dict[str, Any]:
    return {"type": "object", "properties": kinds}


NESTED = properties(a=properties(b=WHOLE))
DOTTED = properties(**{"a.b": {"type": "string"}})
BOTH = properties(**{"a.b": {"type": "string"}, "a": properties(b=WHOLE)})
LIST = properties(**{"a.element": WHOLE, "a": {"type": "array", "items": WHOLE}})
MAP = properties(**{"a.value": WHOLE, "a": {"type": "object", "additionalProperties": WHOLE}})
INNER = properties(outer=BOTH)
HEADERS = properties(**{"$$headers.key": WHOLE})


def table_columns(*versions: dict[str, Any], key: MessageField | None = None) -> Schema:
    value = half("value", "JSON", tuple(map(json.dumps, versions)))
    return table_schema(spec(), Layout(key or half("key", "JSON", ()), value))


@pytest.mark.parametrize("schema", [BOTH, LIST, MAP, INNER, HEADERS])
def test_table_schema_of_two_columns_with_one_full_name_is_refused(schema: Any) -> None:
    with pytest.raises(TableflowError, match=r"two fields .* by the dot in its name") as caught:
        table_columns(schema)
    assert caught.value.hint


@pytest.mark.parametrize("versions", [(NESTED, DOTTED), (DOTTED, NESTED), (BOTH, NESTED)])
def test_table_schema_of_versions_with_one_full_name_is_refused(versions: Any) -> None:
    with pytest.raises(TableflowError, match=r"are a\.b in a table"):
        table_columns(*versions)


def test_table_schema_of_key_and_value_with_one_full_name_is_refused() -> None:
    with pytest.raises(TableflowError, match=r"are a\.b in a table"):
        table_columns(NESTED, key=half("key", "JSON", (json.dumps(DOTTED),)))


@pytest.mark.parametrize(("before", "now"), [(NESTED, DOTTED), (DOTTED, NESTED)])
def test_ensure_table_with_the_full_name_of_a_dropped_column_is_refused(
    tmp_path_factory: pytest.TempPathFactory, before: Any, now: Any
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    catalog, config = InMemoryCatalog("c", warehouse=f"file://{folder}"), Settings()
    identifier = spec().table_identifier(config)
    catalog.create_namespace(identifier[0])
    table = catalog.create_table(identifier, table_columns(before))
    ensure_table(catalog, spec(), config, table_columns(before))
    with pytest.raises(TableflowError, match=r"cannot follow the new schema: .* both a\.b"):
        ensure_table(catalog, spec(), config, table_columns(now))
    assert catalog.load_table(identifier).schema() == table.schema()
