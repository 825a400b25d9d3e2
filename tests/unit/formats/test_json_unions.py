"""Members of JSON unions for random schemas and records, as jsonschema sees them."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from typing import Any

from decoders import Decoders
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from topicberg.formats import json as json_schema
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.subjects import RegisteredSchema

Schema = dict[str, Any]
UNION_FIELD = "connect_union_field_"
DECIMAL: Schema = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
}
CONSTANTS: tuple[Any, ...] = ("k", "l", True, 1, 2, 1.5, 2.0, [1], [2], {"x": 1}, {"x": 2})
SCALARS: tuple[Schema, ...] = (
    {"type": "integer"},
    {"type": "string"},
    {"type": "boolean"},
    {"type": "number"},
    DECIMAL,
    {"enum": ["k", "l"]},
    *({"const": constant} for constant in CONSTANTS),
)
MIXED = st.sampled_from(({"enum": ["m", 1]}, {"enum": ["n", 2]}))
"""Without a type of their own: they are no member, but a part of one."""
NAMES = st.lists(st.sampled_from("abc"), min_size=1, unique=True)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    names = draw(NAMES)
    schema: Schema = {"type": "object", "properties": {name: draw(inner) for name in names}}
    schema["required"] = draw(st.lists(st.sampled_from(names), unique=True))
    return {**schema, "additionalProperties": False} if draw(st.booleans()) else schema


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    part = st.one_of(inner, MIXED)
    return st.one_of(
        objects(part),
        st.builds(lambda items: {"type": "array", "items": items}, part),
        st.builds(lambda values: {"type": "object", "additionalProperties": values}, part),
        choices(inner),
    )


def choices(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    members = st.lists(st.one_of(inner, objects(inner)), min_size=2, max_size=3)
    return members.map(lambda schemas: {"anyOf": schemas})


TYPES = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=8)
SCHEMAS = choices(TYPES)
EVENTS = objects(TYPES)
RECORDS = st.lists(st.one_of(EVENTS, choices(EVENTS)), min_size=2, max_size=3).map(
    lambda schemas: {"anyOf": schemas}
)
"""Choices of objects, and of choices of them."""


def value_of(draw: st.DrawFn, schema: Schema) -> Any:
    """A value that a schema allows, without null and properties that are not declared."""
    if "anyOf" in schema:
        return value_of(draw, draw(st.sampled_from(schema["anyOf"])))
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from(schema.get("enum", [schema.get("const")])))
    match schema["type"]:
        case "integer":
            return draw(st.sampled_from((0, 1, 2, -5)))
        case "string":
            return draw(st.sampled_from(("", "k", "abcd", "x")))
        case "boolean":
            return draw(st.booleans())
        case "number":
            return draw(st.sampled_from((1.5, 2, -0.25)))
        case "array":
            return [value_of(draw, schema["items"]) for _ in range(draw(st.integers(0, 2)))]
    if "properties" not in schema:
        names = draw(st.lists(st.sampled_from("abxy"), max_size=2, unique=True))
        return {name: value_of(draw, schema["additionalProperties"]) for name in names}
    return {
        name: value_of(draw, inner)
        for name, inner in schema["properties"].items()
        if name in schema["required"] or draw(st.booleans())
    }


def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with nulls, or more or fewer properties, somewhere in it."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.sampled_from((None, 1, "k", [], {}, {"a": 1})))
    if isinstance(value, list):
        return [changed(draw, inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {name: changed(draw, inner) for name, inner in value.items() if draw(st.integers(0, 7))}
    return kept if draw(st.integers(0, 4)) else {**kept, draw(st.sampled_from("abcz")): 1}


@st.composite
def cases(
    draw: st.DrawFn, schemas: st.SearchStrategy[Schema], is_valid: bool
) -> tuple[Schema, list[Any]]:
    schema = draw(schemas)
    values = [value_of(draw, schema) for _ in range(3)]
    return schema, values if is_valid else [changed(draw, value) for value in values]


def rows(schema: Schema, values: list[Any]) -> list[Any]:
    """The rows of records, on which both decoders agree; None: a record is malformed."""
    writer = RegisteredSchema(1, "JSON", json.dumps(schema))
    pairing = ResolvedSchema(writer, writer, json_schema.fields("s", writer, itertools.count(1)))
    return Decoders(json_schema, pairing).decoded([json.dumps(value).encode() for value in values])


def within(case: tuple[Schema, list[Any]]) -> tuple[Schema, list[Any]]:
    """Records with a value as their property, and their schema."""
    schema, values = case
    return {"type": "object", "properties": {"f": schema}}, [{"f": value} for value in values]


def restored(schema: Schema, stored: Any, value: Any) -> Any:
    """The value that a stored one was; each member on the way allows what it is set for.

    :param value: what the record has at this place
    """
    if "anyOf" in schema:
        if not (isinstance(stored, dict) and any(name.startswith(UNION_FIELD) for name in stored)):
            return restored(schema["anyOf"][0], stored, value)  # all members are one type
        ((name, inner),) = ((name, one) for name, one in stored.items() if one is not None)
        member = schema["anyOf"][int(name.removeprefix(UNION_FIELD))]
        assert Draft7Validator(member).is_valid(value), (member, value)
        return restored(member, inner, value)
    if "const" in schema or "enum" in schema:
        constants = schema.get("enum", [schema.get("const")])
        kinds = {type(constant) for constant in constants}
        return json.loads(stored) if len(kinds) > 1 or kinds & {list, dict} else stored
    if schema["type"] == "array":
        return [restored(schema["items"], *pair) for pair in zip(stored, value, strict=True)]
    if schema["type"] != "object":
        return stored
    inner_of = schema.get("properties", dict.fromkeys(stored, schema.get("additionalProperties")))
    return {
        name: restored(inner_of[name], inner, value[name])
        for name, inner in stored.items()
        if inner is not None
    }


def plain(value: Any) -> str:
    """A value as text, in which equal numbers are equal."""
    match value:
        case dict():
            return str({name: plain(value[name]) for name in sorted(value)})
        case list():
            return str([plain(inner) for inner in value])
        case bool() | str():
            return repr(value)
    return repr(float(value) if isinstance(value, int | Decimal) else value)


@given(st.one_of(cases(SCHEMAS, True).map(within), cases(RECORDS, True)))
def test_valid_value_loses_nothing_and_has_a_member_that_allows_it(
    case: tuple[Schema, list[Any]],
) -> None:
    schema, values = case
    for value, row in zip(values, rows(schema, values), strict=True):
        assert plain(restored(schema, row, value)) == plain(value)


@given(st.one_of(cases(SCHEMAS, False).map(within), cases(RECORDS, False)))
def test_any_value_is_the_same_by_both_decoders(case: tuple[Schema, list[Any]]) -> None:
    rows(*case)
