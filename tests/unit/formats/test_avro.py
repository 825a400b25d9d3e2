"""Avro types as columns of a table."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from pyiceberg.types import NestedField

from topicberg.errors import TableflowError
from topicberg.formats import avro
from topicberg.formats.avro.schema import parse
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.iceberg.table import partition_spec
from topicberg.tableflow.layout.layout import table_schema
from topicberg.tableflow.layout.message_fields import Layout, MessageField
from topicberg.topics import TopicSpec


def topic(**fields: Any) -> TopicSpec:
    return TopicSpec.model_validate(
        {"name": "t", "pipeline": "p", "schema": {"format": "avro", "file": "t.avsc"}, **fields}
    )


def registered(text: str, *references: tuple[str, str]) -> RegisteredSchema:
    return RegisteredSchema(1, "AVRO", text, references)


def value_fields(text: str, *references: tuple[str, str]) -> list[NestedField]:
    return avro.fields("s", registered(text, *references), itertools.count(1))


def layout(value: str, key: str | None = None) -> Layout:
    def half(column: str, text: str) -> MessageField:
        return MessageField(column, Subject("s", {}, registered(text)))

    return Layout(half("key", key) if key else MessageField("key", None), half("value", value))


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "namespace": "a.b", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "long"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9, 2)"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamptz"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamptz"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "long", "logicalType": "time-micros"}, "long"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        (
            {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 9},
            "decimal(9, 0)",
        ),
        ({"type": {"type": "int", "logicalType": "date"}}, "date"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp"),
        (["null", "int"], "int"),
        (["int", "long"], "long"),
        (["null", "float", "double"], "double"),
        ({"type": "array", "items": "string"}, "list<string>"),
        ({"type": "map", "values": ["null", "long"]}, "map<string, long>"),
        (
            {"type": "record", "name": "N", "fields": [{"name": "x", "type": "int"}]},
            "struct<2: x: optional int>",
        ),
        (
            ["null", "string", "int"],
            "struct<2: member0: optional string, 3: member1: optional int>",
        ),
        (
            [{"type": "int", "logicalType": "date"}, "long"],
            "struct<2: member0: optional date, 3: member1: optional long>",
        ),
        ([{"type": "int"}, "long"], "long"),
    ],
)
def test_types(kind: Any, column: str) -> None:
    (field,) = value_fields(record({"name": "f", "type": kind}))
    assert str(field.field_type) == column
    assert not field.required


def test_named_types_are_reused() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    first, second = value_fields(
        record({"name": "a", "type": enum}, {"name": "b", "type": ["null", "a.b.E"]})
    )
    assert first.field_type == second.field_type


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record({"name": "next", "type": ["null", "R"]}), "recursive"),
        (record({"name": "x", "type": "Missing"}), "not defined"),
        ('"string"', "not a record but string"),
        (record({"name": "f", "type": {"type": "array", "items": "null"}}), "no bytes"),
        (record({"name": "$$offset", "type": "long"}), "metadata column"),
        (record({"name": "_Deleted", "type": "boolean"}), "_Deleted has the name of"),
    ],
)
def test_refused(schema: str, reason: str) -> None:
    with pytest.raises(TableflowError) as error:
        table_schema(topic(), layout(schema))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "kind", ['"bytes"', '{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}']
)
def test_key_that_serializers_write_in_two_ways_is_refused(kind: str) -> None:
    """Confluent's for Java writes no length before it: the bytes 02 64 could be two, or one."""
    key = avro.as_record(registered(kind), "key")
    with pytest.raises(TableflowError, match="with or without their length") as told:
        avro.fields("the key", key, itertools.count(1))
    assert "`key: {format: bytes}`" in str(told.value.hint)
    nullable = avro.as_record(registered('["null", "bytes"]'), "key")
    with pytest.raises(TableflowError, match="not a record"):
        avro.fields("the key", nullable, itertools.count(1))


def test_columns_of_a_table() -> None:
    schema = table_schema(topic(), layout(record({"name": "side", "type": "string"})))
    assert schema.column_names[:2] == ["key", "side"]
    assert len(set(schema.field_ids)) == len(schema.field_ids)
    portable = topic(tableflow={"metadata_column_naming_scheme": "PORTABLE"})
    columns = table_schema(
        portable, layout(record({"name": "side", "type": "string"}))
    ).column_names
    assert "cflt_metadata_leader_epoch" in columns


def test_partition_spec() -> None:
    spec = topic(table={"partitioning": ["hour($$timestamp)", "bucket[8](key)", "side"]})
    schema = table_schema(spec, layout(record({"name": "side", "type": "string"})))
    fields = partition_spec(schema, spec.table.partition_fields).fields
    assert [str(field.transform) for field in fields] == ["hour", "bucket[8]", "identity"]


def test_a_referenced_type_is_defined_where_it_is_first_used() -> None:
    fields = [{"name": "amount", "type": "long"}, {"name": "currency", "type": "m.Currency"}]
    money = {"type": "record", "name": "Money", "namespace": "m", "fields": fields}
    currency = {"type": "enum", "name": "Currency", "namespace": "m", "symbols": ["EUR"]}
    text = record(
        {"name": "price", "type": "m.Money"}, {"name": "tax", "type": ["null", "m.Money"]}
    )
    references = (("m.Currency", json.dumps(currency)), ("m.Money", json.dumps(money)))
    price, tax = value_fields(text, *references)
    assert [f.name for f in price.field_type.fields] == ["amount", "currency"]  # type: ignore[attr-defined]
    assert str(tax.field_type).replace("5", "2").replace("6", "3") == str(price.field_type)
    resolved = parse("s", registered(text, *references))
    assert resolved.fields[1].type.members == (resolved.fields[0].type,)


def test_equal_short_names_in_two_namespaces_are_two_types() -> None:
    def inner(namespace: str, kind: str) -> dict[str, Any]:
        fields = [{"name": "x", "type": kind}]
        return {"type": "record", "name": "Inner", "namespace": namespace, "fields": fields}

    one, other, again = value_fields(
        record(
            {"name": "one", "type": inner("n1", "int")},
            {"name": "other", "type": inner("n2", "string")},
            {"name": "again", "type": "n1.Inner"},
        )
    )
    kinds = [str(f.field_type.fields[0].field_type) for f in (one, other, again)]  # type: ignore[attr-defined]
    assert kinds == ["int", "string", "int"]


def test_null_field_has_no_column_and_empty_record_is_refused() -> None:
    for nothing in ("null", {"type": "null"}, ["null"]):
        assert value_fields(record({"name": "nothing", "type": nothing})) == []
    with pytest.raises(TableflowError, match="without fields"):
        value_fields(record({"name": "e", "type": {"type": "record", "name": "E", "fields": []}}))
    too_precise = {"type": "bytes", "logicalType": "decimal", "precision": 39}
    with pytest.raises(TableflowError, match="precision 39 and scale 0"):
        value_fields(record({"name": "d", "type": too_precise}))


def test_key_fields_come_first_and_the_values_win() -> None:
    key = record({"name": "id", "type": "int"}, {"name": "side", "type": "int"})
    value = record({"name": "side", "type": "string"})
    schema = table_schema(topic(), layout(value, key))
    assert schema.column_names[:2] == ["id", "side"]
    assert str(schema.find_type("side")) == "string"


def test_an_upsert_table_keeps_the_key_as_it_was_sent() -> None:
    value = layout(record({"name": "side", "type": "string"}))
    assert "$$raw-key" in table_schema(topic(write_mode="upsert"), value).column_names
    assert "$$raw-key" not in table_schema(topic(), value).column_names


def test_names_that_differ_in_case_only_are_refused() -> None:
    twins = [{"name": "id", "type": "int"}, {"name": "Id", "type": "int"}]
    with pytest.raises(TableflowError, match="id and Id differ only in case"):
        table_schema(topic(), layout(record(*twins)))
    nested = {"type": "array", "items": {"type": "record", "name": "N", "fields": twins}}
    with pytest.raises(TableflowError, match=r"f\.id and f\.Id"):
        table_schema(topic(), layout(record({"name": "f", "type": nested})))
