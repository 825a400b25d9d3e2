"""Values that a spec lets a field have besides those of its type, in both decoders."""

from __future__ import annotations

import itertools
import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from decoders import Decoders
from hypothesis import given, settings
from hypothesis import strategies as st

from topicberg.errors import SpecError
from topicberg.formats import json as json_schema
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import JsonOptions, RegisteredSchema
from topicberg.topics.columns import file_columns

NAMES = ("number_from_text", "null_from_empty")
DECIMAL = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"connect.decimal.precision": "20", "scale": "2"},
}
TIME = {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"}
PROPERTIES: dict[str, Any] = {
    "whole": {"type": "integer"},
    "small": {"type": "integer", "connect.type": "int32"},
    "number": {"type": "number"},
    "decimal": DECIMAL,
    "text": {"type": "string"},
    "empty": {"type": "string"},
    "at": {"type": "string", "format": "date-time"},
    "ms": TIME,
    "flag": {"type": "boolean"},
    "lines": {
        "type": "array",
        "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "tags": {"type": "array", "items": {"type": "number"}},
    "by.name": {"type": "object", "additionalProperties": {"type": "integer"}},
}
CONVERSIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    *((name, NAMES) for name in ("whole", "small", "number", "decimal", "tags", "by.name")),
    ("lines.n", ("number_from_text",)),
    ("text", ("text_from_any",)),
    ("empty", ("null_from_empty",)),
    ("at", ("epoch_from_text", "null_from_empty")),
    ("ms", ("epoch_from_text",)),
    ("flag", ("null_from_empty",)),
)
OF = dict(CONVERSIONS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.integers(-99, 99).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-99, max_value=99).map(
        str
    ),
    st.sampled_from(["1e3", "1E-2", "-0", "0.10", "1e400", "2.50e1", "12345678901234567890.5"]),
)
texts = st.one_of(
    numbers,
    st.sampled_from(["", " ", "1 ", "01", "+1", ".5", "1.", "NaN", "Infinity", "0x1", "null"]),
    st.sampled_from(["2026-01-31T12:00:00Z", "2026-01-31T12:00:00", "1767225600000", "1e12"]),
    st.text(max_size=4),
).map(json.dumps)
values = st.one_of(
    numbers, texts, st.sampled_from(["null", "true", "false", "[]", "{}", "[1, 2]", '{"a": "é"}'])
)


class MalformedValueError(Exception):
    """A value that its column cannot have."""


def number_of(text: str) -> Any:
    """Return the number that JSON has of the text of a value, or of what the text says."""
    value = json.loads(text, parse_float=Decimal)
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=Decimal, parse_constant=lambda _: None)
        except ValueError:
            raise MalformedValueError from None
        if json.loads(text) != json.loads(text).strip(" \t\r\n"):
            raise MalformedValueError
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise MalformedValueError
    return value


def expected(name: str, text: str) -> Any:
    """Return what a column has of the JSON text of a value.

    :raises MalformedValueError: it has nothing
    """
    value = json.loads(text)
    if value is None or (value == "" and "null_from_empty" in OF[name]):
        return None
    match name:
        case "text":
            return value if isinstance(value, str) else ("json", value)
        case "empty":
            if isinstance(value, str):
                return value
        case "flag":
            if isinstance(value, bool):
                return value
        case "at" | "ms":
            return moment(name, value)
        case "whole" | "small":
            number = number_of(text)
            bits = 63 if name == "whole" else 31
            if number == int(number) and -(2**bits) <= number < 2**bits:
                return int(number)
        case "number":
            if abs(found := float(number_of(text))) < math.inf:
                return found
        case "decimal":
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                number = Decimal(number_of(text))
                if number == 0 or (abs(number) < 10**18 and number * 100 == int(number * 100)):
                    return number
    raise MalformedValueError


def moment(name: str, value: Any) -> datetime:
    if isinstance(value, str):
        if "T" in value:
            try:
                found = datetime.fromisoformat(value)
            except ValueError:
                raise MalformedValueError from None
            if found.tzinfo is not None:
                return found
        else:
            name, value = "ms", number_of(json.dumps(value))
    elif isinstance(value, float) and name == "ms" and value.is_integer():
        value = int(value)
    if name == "ms" and type(value) is int:
        try:
            return EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            pass
    raise MalformedValueError


def decoders(
    properties: dict[str, Any], conversions: Any = (), unknown_as: str | None = None
) -> Decoders:
    schema = json.dumps({"type": "object", "properties": properties})
    options = JsonOptions(True, unknown_as, tuple(conversions))
    writer = RegisteredSchema(1, "JSON", schema, options=options)
    fields = json_schema.fields("test", writer, itertools.count(1))
    return Decoders(json_schema, ResolvedSchema(writer, writer, fields))


ALL = decoders(PROPERTIES, CONVERSIONS)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OF.keys() - {"lines.n", "tags", "by.name"})), values),
        min_size=1,
        max_size=4,
    )
)
def test_value_is_what_its_conversions_say(given_values: list[tuple[str, str]]) -> None:
    records, wanted = list[bytes](), list[tuple[Any, ...]]()
    for name, text in given_values:
        records.append(f'{{"{name}": {text}}}'.encode())
        try:
            wanted.append((expected(name, text),))
        except MalformedValueError:
            wanted.append(())
    for (name, text), row, one in zip(given_values, ALL.decoded(records), wanted, strict=True):
        if not one:
            assert row is None, (name, text)
        else:
            assert row is not None, (name, text)
            found, (value,) = row[name], one
            if isinstance(value, tuple):
                assert json.loads(found) == value[1], (name, text)
            else:
                assert (type(found), found) == (type(value), value), (name, text)


def test_conversion_of_items_is_of_each_of_them() -> None:
    record = {"lines": [{"n": "1"}, {"n": 2}], "tags": ["", "0.5", 2], "by.name": {"a": "7"}}
    (row,) = ALL.decoded([json.dumps(record).encode()])
    assert row is not None
    assert (row["lines"], row["tags"]) == ([{"n": 1}, {"n": 2}], [None, 0.5, 2.0])
    assert row["by.name"] == {"a": 7}


def test_usual_conversions_need_no_reference_decoder() -> None:
    """Numbers in text, and empty text, are read by the program."""
    record = {"whole": "12", "number": "1.5", "empty": "", "tags": ["3"], "decimal": "0.10"}
    ALL.decoded([json.dumps(record).encode()])
    assert ALL.accepted == [True]


def test_other_values_stay_malformed_with_what_was_expected() -> None:
    schema = json.dumps({"type": "object", "properties": PROPERTIES})
    writer = RegisteredSchema(1, "JSON", schema, options=JsonOptions(True, None, CONVERSIONS))
    decode = json_schema.record_decoder(
        ResolvedSchema(writer, writer, json_schema.fields("test", writer, itertools.count(1)))
    )
    for record, reason in (
        ('{"whole": "1.5"}', "field whole (long): a whole number expected, 1.5 found"),
        ('{"whole": "many"}', 'field whole (long): a whole number expected, "many" found'),
        ('{"whole": true}', "field whole (long): a whole number expected, true found"),
        ('{"lines": [{"n": ""}]}', 'field lines[0].n (long): a whole number expected, "" found'),
        ('{"at": 5}', "field at (timestamptz): a date-time of RFC 3339"),
    ):
        with pytest.raises(MalformedError) as error:
            decode(record.encode())
        assert str(error.value).startswith(reason), error.value


@pytest.mark.parametrize(
    ("conversions", "reason"),
    [
        ({"wole": ("number_from_text",)}, "the schema has no field wole"),
        ({"lines": ("number_from_text",)}, "lines is a struct, and number_from_text is for"),
        ({"text": ("number_from_text",)}, "text is a string, and number_from_text is for decimal,"),
        ({"whole": ("text_from_any",)}, "whole is a long, and text_from_any is for string"),
    ],
)
def test_conversion_of_another_type_is_refused(conversions: Any, reason: str) -> None:
    schema = json.dumps({"type": "object", "properties": PROPERTIES})
    options = JsonOptions(True, None, tuple(conversions.items()))
    with pytest.raises(SpecError, match=reason):
        file_columns("s.json", schema, "json", None, options)


NESTED: dict[str, Any] = {
    "a": {"type": "integer"},
    "o": {
        "type": "object",
        "properties": {
            "b": {"type": "integer"},
            "p": {"type": "object", "properties": {"c": {"type": "string"}}},
        },
    },
    "l": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "integer"}}}},
    "m": {
        "type": "object",
        "additionalProperties": {"type": "object", "properties": {"e": {"type": "integer"}}},
    },
    "j": {},
}
KEPT = decoders(NESTED, (), "$$unknown-fields")
others = st.dictionaries(
    st.sampled_from(["x", "y.z", "", "A", "$$unknown-fields", "é", "d", "c"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=4,
    ),
    max_size=2,
)


def objects(known: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Objects with some of their fields, and some that the schema does not name."""
    own = st.fixed_dictionaries({}, optional=known)
    return st.tuples(own, others).map(lambda both: {**both[1], **both[0]})


small = st.integers(-9, 9)
records_with_others = objects(
    {
        "a": small,
        "o": objects({"b": small, "p": objects({"c": st.text(max_size=2)})}),
        "l": st.lists(objects({"d": small}), max_size=3),
        "m": st.dictionaries(st.text(max_size=2), objects({"e": small}), max_size=2),
        "j": others,
    }
).map(lambda record: {name: one for name, one in record.items() if name not in ("d", "c")} | {})


def unnamed(value: Any, schema: dict[str, Any]) -> Any:
    """Return what of a value a schema does not name; None: nothing."""
    if isinstance(value, list) and "items" in schema:
        found = [unnamed(one, schema["items"]) for one in value]
        return found if any(one is not None for one in found) else None
    if not isinstance(value, dict) or not schema:
        return None
    rest = {}
    for name, one in value.items():
        inner = schema.get("additionalProperties", schema.get("properties", {}).get(name))
        if inner is None:
            rest[name] = one
        elif (more := unnamed(one, inner)) is not None:
            rest[name] = more
    return rest or None


@settings(max_examples=100)
@given(st.lists(records_with_others, min_size=1, max_size=4))
def test_what_the_schema_does_not_name_is_kept_where_it_is(records: list[dict[str, Any]]) -> None:
    payloads, plain = [json.dumps(one).encode() for one in records], decoders(NESTED)
    for record, row, own in zip(
        records, KEPT.decoded(payloads), plain.decoded(payloads), strict=True
    ):
        if row is None:
            # A field of an object may have, by chance, a value of another type.
            assert own is None
            continue
        text = row.pop("$$unknown-fields")
        wanted = unnamed(record, {"type": "object", "properties": NESTED})
        assert (None if text is None else json.loads(text)) == wanted
        assert row == own


def test_others_of_the_record_itself_need_no_reference_decoder() -> None:
    records = [{"a": 1, "o": {"b": 2}}, {"a": 1, "x": [2, {"b": None, "a": "é"}]}, {"o": {"x": 2}}]
    KEPT.decoded([json.dumps(one, ensure_ascii=False).encode() for one in records])
    assert KEPT.accepted == [True, True, False]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"$$unknown-fields": {}}, "the schema has a field \\$\\$unknown-fields"),
        (
            {"v": {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "string"}]}},
            "field v is an object of one of several types",
        ),
    ],
)
def test_schema_whose_unknown_fields_have_no_column_is_refused(
    properties: dict[str, Any], reason: str
) -> None:
    schema = json.dumps({"type": "object", "properties": properties})
    with pytest.raises(SpecError, match=reason):
        file_columns("s.json", schema, "json", None, JsonOptions(False, "$$unknown-fields"))
