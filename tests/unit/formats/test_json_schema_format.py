"""JSON Schemas as columns of a table."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from fuzz_json import schema_and_records
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from topicberg.errors import TableflowError
from topicberg.formats.json import fields, is_union
from topicberg.formats.subjects import RegisteredSchema

CONNECT = "org.apache.kafka.connect.data."
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
ORDER = {"type": "object", "properties": {"a": TEXT, "b": WHOLE}}
REQUIRED = [{"required": ["a"]}, {"required": ["b"]}]
DRAFT_04 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def columns(schema: Any, **references: Any) -> list[NestedField]:
    named = tuple((name, json.dumps(text)) for name, text in references.items())
    return fields("s", RegisteredSchema(1, "JSON", json.dumps(schema), named), itertools.count(1))


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


def column(schema: Any, **more: Any) -> str:
    (found,) = columns({**properties(f=schema), **more})
    assert not found.required
    return str(found.field_type)


def connect(kind: str, connect_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.type": connect_type, **more}


def logical(kind: str, title: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "title": CONNECT + title, **more}


def decimal(**parameters: str) -> dict[str, Any]:
    return connect(
        "number", "bytes", title=CONNECT + "Decimal", **{"connect.parameters": parameters}
    )


def patterned(others: Any, *values: Any) -> dict[str, Any]:
    """An object whose values are of a type by their names."""
    patterns = {f"^{number}": value for number, value in enumerate(values)}
    return {"type": "object", "patternProperties": patterns, "additionalProperties": others}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, "string"),
        ({"type": "string", "format": "date-time"}, "string"),
        (WHOLE, "long"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        (connect("integer", "int8"), "int"),
        (connect("integer", "int16"), "int"),
        (connect("integer", "int32"), "int"),
        (connect("integer", "int64"), "long"),
        (connect("number", "int32"), "int"),
        (connect("number", "float32"), "float"),
        (connect("number", "float64"), "double"),
        (connect("string", "bytes"), "binary"),
        (logical("integer", "Date"), "date"),
        (connect("integer", "int32", title=CONNECT + "Time"), "int"),
        (logical("integer", "Timestamp"), "timestamptz"),
        (connect("number", "int64", **{"flink.type": "timestamp"}), "timestamp"),
        (decimal(scale="2", **{"connect.decimal.precision": "9"}), "decimal(9, 2)"),
        (decimal(scale="4"), "decimal(38, 4)"),
        ({"type": "array", "items": TEXT}, "list<string>"),
        (connect("array", "map", items=properties(key=WHOLE, value=TEXT)), "map<long, string>"),
        ({"type": "object", "additionalProperties": WHOLE}, "map<string, long>"),
        (connect("object", "map", additionalProperties=WHOLE), "map<string, long>"),
        (properties(a=TEXT, b=WHOLE), "struct<2: a: optional string, 3: b: optional long>"),
        ({"enum": ["A", "B"]}, "string"),
        ({"type": "string", "enum": ["A", "B"]}, "string"),
        ({"const": "A"}, "string"),
        ({"enum": [1, 2, None]}, "long"),
        ({"type": ["null", "integer"]}, "long"),
        ({"type": ["integer", "number"]}, "double"),
        ({"oneOf": [{"type": "null"}, TEXT]}, "string"),
        ({"anyOf": [WHOLE, {"type": "null"}]}, "long"),
        ({"oneOf": [{"type": "null"}, logical("integer", "Date")]}, "date"),
        (
            {"oneOf": [{"type": "null"}, TEXT, WHOLE]},
            "struct<2: connect_union_field_0: optional string, "
            "3: connect_union_field_1: optional long>",
        ),
        (
            {"type": ["string", "boolean"]},
            "struct<2: connect_union_field_0: optional string, "
            "3: connect_union_field_1: optional boolean>",
        ),
        ({"anyOf": [{"type": "string", "format": "ipv4"}, TEXT]}, "string"),
        ({"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": -3}]}, "long"),
        ({"allOf": [WHOLE, {"minimum": 3}]}, "long"),
        ({"allOf": [{"type": "number"}, WHOLE]}, "long"),
        ({"allOf": [{"type": ["number", "null"], "minimum": 3}, {"type": ["integer"]}]}, "long"),
        ({"allOf": [{"type": "number"}, {"type": ["integer", "number"]}]}, "double"),
        ({"type": "number", "anyOf": [{"type": "integer"}, {"type": "null"}]}, "long"),
        (
            {"allOf": [{"type": ["number", "string"]}, {"type": ["integer", "string"]}]},
            "struct<2: connect_union_field_0: optional long, "
            "3: connect_union_field_1: optional string>",
        ),
        (
            {"allOf": [properties(a=TEXT), properties(b=WHOLE)]},
            "struct<2: a: optional string, 3: b: optional long>",
        ),
        (
            {**properties(a=TEXT), "oneOf": [properties(b=TEXT), {"required": ["a"]}]},
            "struct<2: b: optional string, 3: a: optional string>",
        ),
        (
            properties(a={**TEXT, "connect.index": 1}, b={**WHOLE, "connect.index": 0}),
            "struct<2: b: optional long, 3: a: optional string>",
        ),
        (patterned(WHOLE, {**WHOLE, "description": "n"}, False), "map<string, long>"),
        (patterned({"enum": ["a"]}, TEXT), "map<string, string>"),
        (
            patterned(ORDER, ORDER),
            "map<string, struct<4: a: optional string, 5: b: optional long>>",
        ),
        # without a type in a table: JSON text
        (patterned(TEXT, WHOLE), "string"),
        (patterned({"type": ["string", "boolean"]}, TEXT), "string"),
        (patterned(TEXT, {"$ref": "#"}), "string"),
        ({}, "string"),
        (True, "string"),
        ({"type": "null"}, "string"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": False}, "string"),
        ({"type": "array"}, "string"),
        ({"type": "array", "items": [TEXT, WHOLE]}, "string"),
        ({"type": "array", "prefixItems": [TEXT], "items": WHOLE}, "string"),
        ({"enum": ["A", 1]}, "string"),
        # implied, not declared
        ({"properties": {"a": TEXT}}, "struct<2: a: optional string>"),
        ({"items": TEXT}, "list<string>"),
        ({"maxLength": 3}, "string"),
        ({"minimum": 0}, "double"),
    ],
)
def test_types(schema: Any, expected: str) -> None:
    assert column(schema) == expected


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/definitions/a", {"definitions": {"a": WHOLE}}),
        ("#/$defs/a", {**DRAFT_2020, "$defs": {"a": WHOLE}}),
        ("#/definitions/a", {**DRAFT_04, "definitions": {"a": WHOLE}}),
        ("#a", {"definitions": {"a": {**WHOLE, "$id": "#a"}}}),
        ("#a", {**DRAFT_2020, "$defs": {"a": {**WHOLE, "$anchor": "a"}}}),
        (
            "http://x/y/a.json",
            {"$id": "http://x/z.json", "definitions": {"a": {**WHOLE, "$id": "y/a.json"}}},
        ),
        ("#/definitions/b", {"definitions": {"a": WHOLE, "b": {"$ref": "#/definitions/a"}}}),
    ],
)
def test_references_in_the_schema(reference: str, more: dict[str, Any]) -> None:
    assert column({"$ref": reference}, **more) == "long"
    assert column({"oneOf": [{"type": "null"}, {"$ref": reference}]}, **more) == "long"


@pytest.mark.parametrize(
    ("root", "inner", "reference"),
    [
        ("http://x/root.json", "sub/a.json", "sub/a.json"),
        ("http://x/root.json", "sub/a.json", "#/definitions/a"),
        ("http://x/root.json", "http://y/sub/a.json", "http://y/sub/a.json"),
        ("http://x/p/q/root.json", "../a.json", "../a.json"),
    ],
)
def test_references_inside_of_a_schema_with_its_own_id(
    root: str, inner: str, reference: str
) -> None:
    own = {"properties": {"v": {"$ref": "#/definitions/i"}, "w": {"$ref": "b.json"}}}
    a = {"$id": inner, "definitions": {"i": WHOLE}, **own}
    b = {"$id": inner.replace("a.json", "b.json"), "type": "boolean"}
    wrong = {"$id": "sub/sub/b.json", **TEXT}
    found = column(
        {"$ref": reference}, **{"$id": root, "definitions": {"a": a, "b": b, "wrong": wrong}}
    )
    assert found == "struct<2: v: optional long, 3: w: optional boolean>"


def test_references_to_other_schemas() -> None:
    money = {"definitions": {"money": {"type": "number", "$comment": "euros"}}}
    line = {**properties(price={"$ref": "money.json#/definitions/money"}), "$id": "http://x/line"}
    order = properties(line={"$ref": "line.json"}, total={"$ref": "money.json#/definitions/money"})
    for more in ({}, {"$id": "http://y/order.json"}):
        found = columns({**order, **more}, **{"money.json": money, "line.json": line})
        assert [str(field.field_type) for field in found] == [
            "struct<2: price: optional double>",
            "double",
        ]


@pytest.mark.parametrize(("constant", "count"), [(1, 2), (1.0, 2), (1.5, 3)])
def test_branches_with_the_same_constant_are_one_type(constant: float, count: int) -> None:
    branches: list[Any] = [{"type": "number", "const": 1}, {"type": "number", "const": constant}]
    branches.append({"type": "string"})
    schema = {"type": "object", "properties": {"k": {"type": "string"}}}
    named, _ = columns({**schema, "oneOf": [{"properties": {"a": each}} for each in branches]})
    assert str(named.field_type).count("connect_union_field_") == count


def test_a_union_at_the_top_is_columns() -> None:
    found = columns({"oneOf": [properties(a=TEXT), properties(b=WHOLE)]})
    assert [(field.name, str(field.field_type)) for field in found] == [
        ("connect_union_field_0", "struct<2: a: optional string>"),
        ("connect_union_field_1", "struct<4: b: optional long>"),
    ]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"oneOf": [properties(a=TEXT), properties(b=WHOLE)]}, True),
        ({"oneOf": [{"type": "null"}, properties(a=TEXT), {"$ref": "#"}]}, True),
        ({"oneOf": [properties(a=TEXT), {"required": ["b"]}]}, False),
        ({"allOf": [properties(a=TEXT)], "anyOf": REQUIRED}, False),
        ({"$ref": "#/definitions/a", "definitions": {"a": ORDER}, "anyOf": REQUIRED}, False),
        ({**ORDER, "anyOf": REQUIRED}, False),
        ({"oneOf": [{"type": ["null"]}, properties(a=TEXT)]}, False),
        ({"type": "object", "anyOf": REQUIRED}, True),
    ],
)
def test_is_union_schema_of_columns_is_none(schema: Any, expected: bool) -> None:
    assert is_union(RegisteredSchema(1, "JSON", json.dumps(schema))) == expected


def test_descriptions_are_docs() -> None:
    assert columns(properties(a={**TEXT, "description": "of a"}))[0].doc == "of a"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (TEXT, "is not an object with properties"),
        ({"type": "array", "items": properties(a=TEXT)}, "is not an object with properties"),
        ({"type": "object", "additionalProperties": TEXT}, "is not an object with properties"),
        (properties(a={"$ref": "#"}), "field a contains itself"),
        (properties(a=properties(b={"type": "array", "items": {"$ref": "#"}})), "field a.b"),
        ({**properties(a={"$ref": "#/$defs/a"}), "$defs": {"a": {"$ref": "#/$defs/a"}}}, "itself"),
        (properties(a={"$ref": "other.json"}), "field a refers to other.json"),
        (properties(a={"$ref": "#/definitions/a"}), "refers to #/definitions/a"),
        (properties(a=TEXT, A=TEXT), "field A differs from a only in case"),
        (properties(x=properties(é=TEXT, É=TEXT)), "field x.É differs from x.é only in case"),
        (properties(**{"": TEXT}), "without a name"),
        (properties(a=decimal(scale="5", **{"connect.decimal.precision": "3"})), "field a"),
        (properties(a=decimal(scale="x")), "field a is a decimal"),
    ],
)
def test_refused(schema: Any, reason: str) -> None:
    with pytest.raises(TableflowError) as error:
        columns(schema)
    assert "s:" in error.value.message
    assert reason in error.value.message
    assert error.value.hint


def test_not_json() -> None:
    with pytest.raises(TableflowError, match="not JSON"):
        fields("s", RegisteredSchema(1, "JSON", "{"), itertools.count(1))


@given(st.integers(0, 2**32))
def test_random_schemas_have_columns(seed: int) -> None:
    """Every property a column, every id used once; the records are what the schema says."""
    schema, records = schema_and_records(random.Random(seed))
    ids = itertools.count(1)
    found = fields("s", RegisteredSchema(1, "JSON", json.dumps(schema)), ids)
    assert {field.name for field in found} == set(schema["properties"])
    assert sorted(Schema(*found).field_ids) == list(range(1, next(ids)))
    validator = validator_for(schema)(schema)
    for record in records:
        validator.validate(record)
