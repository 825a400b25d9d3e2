"""Avro types as columns of a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topicberg.errors import TableflowError
from topicberg.tableflow.avro import value_fields
from topicberg.tableflow.table import partition_spec, table_schema
from topicberg.topics import TopicSpec


def topic(**fields: Any) -> TopicSpec:
    return TopicSpec.model_validate(
        {"name": "t", "pipeline": "p", "schema": {"format": "avro", "file": "t.avsc"}, **fields}
    )


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "namespace": "a.b", "fields": fields})


@pytest.mark.parametrize(
    ("avro", "column"),
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
    ],
)
def test_types(avro: Any, column: str) -> None:
    (field,) = value_fields("s", record({"name": "f", "type": avro}))
    assert str(field.field_type) == column
    assert not field.required


def test_named_types_are_reused() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    first, second = value_fields(
        "s", record({"name": "a", "type": enum}, {"name": "b", "type": ["null", "a.b.E"]})
    )
    assert first.field_type == second.field_type


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record({"name": "next", "type": ["null", "R"]}), "recursive"),
        (record({"name": "x", "type": "Missing"}), "unknown type"),
        ('"string"', "no record"),
        (record({"name": "$$offset", "type": "long"}), "metadata column"),
    ],
)
def test_refused(schema: str, reason: str) -> None:
    with pytest.raises(TableflowError) as error:
        table_schema(topic(), schema)
    assert reason in str(error.value)


def test_columns_of_a_table() -> None:
    schema = table_schema(topic(), record({"name": "side", "type": "string"}))
    assert schema.column_names[:2] == ["key", "side"]
    assert len(set(schema.field_ids)) == len(schema.field_ids)
    portable = topic(tableflow={"metadata_column_naming_scheme": "PORTABLE"})
    columns = table_schema(portable, record({"name": "side", "type": "string"})).column_names
    assert "cflt_metadata_leader_epoch" in columns


def test_partition_spec() -> None:
    spec = topic(table={"partitioning": ["hour($$timestamp)", "bucket[8](key)", "side"]})
    schema = table_schema(spec, record({"name": "side", "type": "string"}))
    fields = partition_spec(schema, spec.table.partition_fields).fields
    assert [str(field.transform) for field in fields] == ["hour", "bucket[8]", "identity"]
