"""JSON records as rows: what each value becomes, and which records are malformed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from decoders import Decoders
from pyiceberg.types import BinaryType, NestedField
from reasons import reason

from topicberg.errors import TableflowError
from topicberg.formats import json as json_schema
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.json import fields
from topicberg.formats.json.syntax import Texts
from topicberg.formats.subjects import JsonOptions, RegisteredSchema

CONNECT = "org.apache.kafka.connect.data."


def registered(schema: Any, number: int = 1) -> RegisteredSchema:
    return RegisteredSchema(number, "JSON", json.dumps(schema))


def table(schema: Any) -> list[NestedField]:
    return fields("s", registered(schema), itertools.count(1))


def decoders_of(schema: Any) -> Decoders:
    writer = registered(schema)
    return Decoders(json_schema, ResolvedSchema(writer, writer, table(schema)))


def encoded(texts: Sequence[str | bytes]) -> list[bytes]:
    return [text if isinstance(text, bytes) else text.encode() for text in texts]


def rows(schema: Any, *texts: str | bytes) -> list[dict[str, Any] | None]:
    """The rows of records; None: a malformed one."""
    return decoders_of(schema).decoded(encoded(texts))


def test_text_of_a_value_after_repeated_names_is_its_own() -> None:
    repeated = b", ".join([rb'"a": {"x": "\u0041"}'] * 100)
    texts = Texts(b"[{" + repeated + b"}" + b', {"x": "B"}' * 60 + b"]")
    assert {texts.of("B", member, "x") for member in texts.value[1:]} == {'"B"'}


def typed(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **{name.replace("_", "."): value for name, value in more.items()}}


def decimal(precision: int) -> dict[str, Any]:
    parameters = {"scale": "2", "connect.decimal.precision": str(precision)}
    return typed("number", title=CONNECT + "Decimal", connect_parameters=parameters)


FIELDS: dict[str, Any] = {
    "long": typed("integer"),
    "int": typed("integer", connect_type="int32"),
    "text": typed("string"),
    "double": typed("number"),
    "float": typed("number", connect_type="float32"),
    "flag": typed("boolean"),
    "bytes": typed("string", connect_type="bytes"),
    "day": typed("integer", title=CONNECT + "Date"),
    "at": typed("integer", title=CONNECT + "Timestamp"),
    "local": typed("number", flink_type="timestamp"),
    "money": decimal(9),
    "much": decimal(38),
    "longs": typed("array", items=typed("integer")),
    "texts": typed("array", items=typed("string")),
    "inner": typed("object", properties={"x": typed("string"), "y": typed("integer")}),
    "map": typed("object", additionalProperties=typed("number")),
    "pairs": typed(
        "array",
        connect_type="map",
        items=typed("object", properties={"key": typed("integer"), "value": typed("string")}),
    ),
    "any": {},
    "object": typed("object"),
    "array": typed("array"),
    "null": typed("null"),
    "union": {
        "oneOf": [
            {"type": "null"},
            typed("string"),
            typed("integer"),
            typed("object", properties={"k": {"enum": ["A", "\x1f"]}, "v": {}}, required=["v"]),
            typed("object", properties={"k": typed("string"), "w": typed("array", items={})}),
        ]
    },
}
LONG_NUMBER = "123456789012345678901234567890123456789"
ANY_TEXT = '"Infinity 123456789012345678901234567890123456789"'
VALUES: list[tuple[str, Any]] = [
    ('{"long": 1.0}', 1),
    ('{"long": 1e3}', 1000),
    ('{"long": -9223372036854775808}', -(2**63)),
    ('{"int": 2147483647.0}', 2**31 - 1),
    ('{"text": "5"}', "5"),
    ('{"text": "true"}', "true"),
    ('{"text": "{}"}', "{}"),
    ('{"text": ""}', ""),
    ('{"text": "\\ud83d\\ude00 \\u0000"}', "😀 \0"),
    ('{"text": "\\\\ud83d"}', "\\ud83d"),
    ('{"text": "first", "text": "last"}', "last"),
    ('{"double": 1}', 1.0),
    ('{"bytes": ""}', b""),
    ('{"day": 2932896}', date.max),
    ('{"day": 19000.0}', date(2022, 1, 8)),
    ('{"at": -62135596800000}', datetime(1, 1, 1, tzinfo=UTC)),
    ('{"at": 1.7e12}', datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    ('{"local": -1}', datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    ('{"money": 12.340}', Decimal("12.34")),
    ('{"money": 1e3}', Decimal("1000.00")),
    ('{"money": "BNI="}', Decimal("12.34")),
    ('{"money": "/w=="}', Decimal("-0.01")),
    ('{"money": "AAAAAAAAAAAAAAAAAAAAAAAAAAAA"}', Decimal("0.00")),
    (
        '{"much": 123456789012345678901234567890123456.78}',
        Decimal("123456789012345678901234567890123456.78"),
    ),
    ('{"money": 1.234e1}', Decimal("12.34")),
    ('{"much": 1.5e35}', Decimal("150000000000000000000000000000000000.00")),
    ('{"map": {"a": 1, "b": 2, "a": 3}}', {"a": 3.0, "b": 2.0}),
    ('{"any": {"a": 1, "a": 2}}', '{"a": 1, "a": 2}'),
    ('{"any": 1.7976931348623157e+308}', "1.7976931348623157e+308"),
    ('{"any": 1e400}', "1e400"),
    (f'{{"any": [{LONG_NUMBER}]}}', f"[{LONG_NUMBER}]"),
    ('{"any": "Infinity 123456789012345678901234567890123456789"}', ANY_TEXT),
    ('{"longs": [1, 2.0, null]}', [1, 2, None]),
    ('{"texts": ["x", "1", null]}', ["x", "1", None]),
    ('{"inner": {"x": "1", "y": null, "z": 0}}', {"x": "1", "y": None}),
    ('{"map": {"": 1, "a.b": null}}', {"": 1.0, "a.b": None}),
    ('{"pairs": [{"key": 1.0, "value": "2"}]}', {1: "2"}),
    ('{"any": {"b": [1, "x"], "a": null}}', '{"b": [1, "x"], "a": null}'),
    ('{"any": "x"}', '"x"'),
    ('{"object": {"b": [1]}}', '{"b": [1]}'),
    ('{"array": [{"b": 1}, "x"]}', '[{"b": 1}, "x"]'),
    ('{"array": [[1], "x"]}', '[[1], "x"]'),
    ('{"union": "5"}', {"connect_union_field_0": "5"}),
    ('{"union": 5}', {"connect_union_field_1": 5}),
    ('{"union": {"v": 1}}', {"connect_union_field_2": {"k": None, "v": "1"}}),
    ('{"union": {"k": null, "v": 1}}', {"connect_union_field_2": {"k": None, "v": "1"}}),
    (r'{"union": {"k": "\u001f", "v": 1}}', {"connect_union_field_2": {"k": "\x1f", "v": "1"}}),
    ('{"union": {"k": "B", "v": 1}}', {"connect_union_field_3": {"k": "B", "w": None}}),
    *((f'{{"{name}": null}}', None) for name in FIELDS),
]  # fmt: skip
NOTHING = [
    '{"x": {"a": [1] , "b": []}}',
    '{"x": "],\\"y\\":["}',
    "{}",
    " {}\n",
    '{"Long": 1}',
    '{"other": {"long": "x"}}',
    '{"default": 1}',
]
WRONG: list[str | bytes] = [
    # More than the object.
    '{}],"x":[{}',
    '{"long": 1} ] , "x":[1',
    '{}],"r":[{"long": 1}',
    '],"r":[{"long": 1}',
    '{"long": 1}],"ok":true} more',
    '{"long": 1}],"ok":false,"x":[',
    "{}]}",
    "{}],",
    *(f'{{"long": {value}}}' for value in ('"1"', "1.5", "true", "[1]", "{}", '""')),
    '{"long": 9223372036854775808}',
    '{"long": 1e19}',
    '{"long": 01}',
    '{"long": 1, "long": "x"}',
    '{"int": 2147483648}',
    '{"int": 2147483648.0}',
    *(f'{{"text": {value}}}' for value in ("5", "-1.5e3", "true", "{}", '["x"]', "NaN", "'x'")),
    '{"text": "\\ud83d"}',
    '{"text": "\\uDE00\\uD83D"}',
    '{"text": "a\nb"}',
    '{"text": "\\x"}',
    b'{"text": "\xff"}',
    b'{"text": "\xed\xa0\xbd"}',
    b'{"text": "\xc0\x80"}',
    *(f'{{"double": {value}}}' for value in ("NaN", '"NaN"', "1e400", "-Infinity", '"1"', ".5")),
    '{"float": 1e39}',
    *(f'{{"flag": {value}}}' for value in ("1", '"true"', "TRUE")),
    *(f'{{"bytes": {value}}}' for value in ("5", '"?"', '"aGk"', "[104]")),
    *(f'{{"day": {value}}}' for value in ("2932897", "-719163", '"2024-01-01"', "0.5", "1e99")),
    *(f'{{"at": {value}}}' for value in ("253402300800000", "1e18", '"2024-01-01T00:00:00Z"')),
    '{"local": 9223372036854775807}',
    *(f'{{"money": {value}}}' for value in ("12.345", "12345678.00", "1e999999999", '"?"', "true")),
    '{"money": ""}',
    '{"much": 1e38}',
    '{"much": 123456789012345678901234567890123456.785}',
    '{"much": 1.23456789012345678901e5}',
    '{"money": 1e-30}',
    '{"money": "BNI"}',
    '{"long": 1e-19}',
    '{"long": 1.00000000000000000000001}',
    *(f'{{"object": {value}}}' for value in ("[]", '"{}"', "1", "true")),
    *(f'{{"array": {value}}}' for value in ("{}", '"[]"', "1", "false")),
    *(f'{{"null": {value}}}' for value in ("{}", "[]", '"n"', "0")),
    '{"longs": ["x"]}',
    '{"longs": 1}',
    '{"texts": ["x", 1]}',
    *(f'{{"inner": {value}}}' for value in ('{"x": 1}', '{"y": 1.5}', "[]", '""', "5")),
    '{"map": {"a": "x"}}',
    '{"map": {"a": 1e999}}',
    '{"pairs": [{"key": null, "value": "x"}]}',
    '{"pairs": [{"value": "x"}]}',
    '{"pairs": [{"key": 1, "value": 2}]}',
    '{"pairs": [{"key": 1.5, "value": "x"}]}',
    '{"pairs": {"1": "x"}}',
    '{"union": 5.5}',
    '{"union": []}',
    '{"union": {"k": 1}}',
    *("", " ", "null", "5", '"x"', "[]", '[{"long": 1}]', "{", "}", "x"),
    *('{"long": 1', '{"long"', '{"long": 1,}', '{"long": 1} x', '{"long": 1}{"long": 2}'),
    *('{"long": 1}, {"long": 2}', '{"long": 1}, "k": {}', '{"long": 1}}', '{"long": 1}]'),
    '\ufeff{"long": 1}',
    "{'long': 1}",
    "{long: 1}",
    '{"long": 1} // x',
    '{"other": ' + "[" * 2000 + "]" * 2000 + "}",
    b"\x00\x01\xfe\xff",
]


def test_values() -> None:
    decoders = decoders_of(typed("object", properties=FIELDS, required=["long"]))
    texts = [text for text, _ in VALUES] + NOTHING
    expected = [value for _, value in VALUES] + [None] * len(NOTHING)
    found_rows = decoders.decoded(encoded(texts))
    assert sum(decoders.accepted) > len(texts) / 2
    for text, value, row in zip(texts, expected, found_rows, strict=True):
        assert row is not None, text
        (name,) = json.loads(text.lower()) if text.strip() != "{}" else ["long"]
        found = row.pop(name, None)
        if name == "union" and value is not None:
            found = {member: one for member, one in found.items() if one is not None}
        assert found == value, text
        assert not any(one is not None for one in row.values()), text


def test_wrong_records() -> None:
    writer = registered(typed("object", properties=FIELDS))
    pairing = ResolvedSchema(writer, writer, fields("s", writer, itertools.count(1)))
    assert Decoders(json_schema, pairing).decoded(encoded(WRONG)) == [None] * len(WRONG)
    for payload in encoded(WRONG):
        assert reason(json_schema, payload, pairing), payload


def test_odd_names() -> None:
    names = ["a.b", "`", "'", '"', "\\", " ", "é", "$['x']", "ok", "r", "c", "text", "row", "__x"]
    schema = typed("object", properties={name: typed("integer") for name in names})
    inner = typed("object", properties={"in'\"`.": {**schema, "required": names}})
    record = dict.fromkeys(names, 1)
    either = typed("object", properties={"u": {"oneOf": [typed("boolean"), inner]}})
    assert rows(schema, json.dumps(record)) == [record]
    assert rows(inner, json.dumps({"in'\"`.": record})) == [{"in'\"`.": record}]
    (row,) = rows(either, json.dumps({"u": {"in'\"`.": record}}))
    assert row is not None
    assert row["u"]["connect_union_field_1"] == {"in'\"`.": record}


def test_several_event_types() -> None:
    """A union at the top: a column for each type."""
    bought = typed("object", properties={"item": typed("string")}, required=["item"])
    viewed = typed("object", properties={"url": typed("string")}, required=["url"])
    schema = {"oneOf": [bought, viewed]}
    assert rows(schema, '{"url": "5"}', '{"item": "x"}', '{"item": 5}', "{}", "1") == [
        {"connect_union_field_0": None, "connect_union_field_1": {"url": "5"}},
        {"connect_union_field_0": {"item": "x"}, "connect_union_field_1": None},
        *(None, None, None),
    ]


def test_older_writers() -> None:
    """Records of an older version in a table of a newer one."""
    old = typed(
        "object",
        properties={"n": typed("integer"), "s": typed("object", properties={"a": typed("string")})},
    )
    inner = typed("object", properties={"b": typed("integer"), "a": typed("string")})
    new = typed("object", properties={"more": typed("array"), "s": inner, "n": typed("number")})
    writer, payload = registered(old), b'{"n": 3, "s": {"a": "5", "b": "undeclared"}, "more": 1}'
    decoders = Decoders(json_schema, ResolvedSchema(writer, writer, table(new)))
    assert decoders.decoded([payload]) == [{"more": None, "s": {"b": None, "a": "5"}, "n": 3.0}]
    other = table(typed("object", properties={"s": {}}))
    with pytest.raises(TableflowError, match="schema 1: field s is a struct, its column a string"):
        json_schema.record_decoder(ResolvedSchema(writer, writer, other))


def test_values_that_a_narrower_column_cannot_hold() -> None:
    """Null never, and no failed cast: the record is malformed."""
    pairs: list[tuple[Any, Any, list[str], list[Any]]] = [
        (typed("integer"), decimal(9), ["1", "10000000"], [Decimal("1.00"), None]),
        (decimal(38), decimal(9), ["1.25", "12345678"], [Decimal("1.25"), None]),
        (typed("integer"), FIELDS["int"], ["7", "2147483648"], [7, None]),
        (typed("integer"), typed("number"), ["7", "9007199254740993"], [7.0, None]),
        (typed("integer"), typed("number"), [f"{-(2**63)}", f"{2**63 - 1}"], [-(2.0**63), None]),
        (typed("integer"), typed("number"), [f"{2**62}", f"{2**62 + 1}"], [2.0**62, None]),
        (typed("integer"), FIELDS["float"], ["7", "16777217"], [7.0, None]),
        (typed("integer"), FIELDS["float"], [f"{2**62}", f"{2**63 - 1}"], [2.0**62, None]),
    ]
    for number, (old, new, values, expected) in enumerate(pairs):
        writer, latest = registered({"properties": {"f": old}}), {"properties": {"f": new}}
        pairing = ResolvedSchema(writer, registered(latest, 2), table(latest))
        payloads = [f'{{"f": {text}}}'.encode() for text in values]
        found = Decoders(json_schema, pairing).decoded(payloads)
        assert [row and row["f"] for row in found] == expected, number


def test_columns_of_others() -> None:
    """The table has columns of the key and of Kafka, which a record's fields must not hide."""
    writer = registered(typed("object", properties={"a": typed("integer")}))
    columns = [
        NestedField(9, "key", BinaryType(), required=False),
        *fields("s", writer, itertools.count(1)),
    ]
    pairing, payload = ResolvedSchema(writer, writer, columns), b'{"a": 1, "key": "x"}'
    assert json_schema.record_decoder(pairing)(payload) == {"a": 1}
    assert Decoders(json_schema, pairing).decoded([payload]) == [{"key": None, "a": 1}]


def test_deep_and_wide() -> None:
    deep: dict[str, Any] = typed("array", items=typed("string"))
    value: Any = ["5"]
    for _ in range(25):
        deep, value = typed("object", properties={"x": deep}), {"x": value}
    assert rows(deep, json.dumps(value)) == [value]
    names = [f"f{n}" for n in range(300)]
    wide = typed("object", properties={name: typed("string") for name in names})
    assert rows(wide, json.dumps(dict.fromkeys(names, "5"))) == [dict.fromkeys(names, "5")]


# --- strings with format date-time as times ---

TIME = {"type": "string", "format": "date-time"}
GOOD_TIMES = {
    "2026-01-31T12:00:00Z": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "2026-01-31t12:00:00.5z": datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC),
    "2026-01-31T12:00:00.123456789+02:30": datetime(2026, 1, 31, 9, 30, 0, 123_456, tzinfo=UTC),
    "2026-03-08T02:30:00-05:00": datetime(2026, 3, 8, 7, 30, tzinfo=UTC),
    "2026-01-31T12:00:00-00:00": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "1969-12-31T23:59:59.9999999Z": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "0001-01-01T00:00:00Z": datetime(1, 1, 1, tzinfo=UTC),
    "9999-12-31T23:59:59.999999Z": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "1850-06-01T00:00:00+18:00": datetime(1850, 5, 31, 6, tzinfo=UTC),
    "2024-02-29T00:00:00Z": datetime(2024, 2, 29, tzinfo=UTC),
}
FAR_TIMES = {
    "2026-01-31T12:00:00+18:01": datetime(2026, 1, 30, 17, 59, tzinfo=UTC),
    "2026-01-31T12:00:00-23:59": datetime(2026, 2, 1, 11, 59, tzinfo=UTC),
}
"""Times with an offset of more than 18 hours."""
BAD_TIMES = (
    *("", "now", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00:00Z", "12:00:00Z"),
    *("2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-31T24:00:00Z"),
    *("2026-01-31T12:00:60Z", "2026-01-31T12:00:61Z", "2026-01-31T12:60:00Z"),
    *("2026-01-31T12:00:00.Z", "2026-01-31T12:00:00+2:00", "2026-01-31T12:00:00+0200"),
    *("2026-01-31T12:00:00+00:60", "2026-01-31T12:00:00+24:00"),
    *("0000-12-31T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"),
    *("2026-01-31T12:00:00Z\n", " 2026-01-31T12:00:00Z", "2026-01-31T12:00:00ZZ", "+2026-01-31"),
    *("٢٠٢٦-01-31T12:00:00Z", "2026-01-31T12:00:00Zulu", "10000-01-01T00:00:00Z"),
    *("20260131T120000Z", "2026-W05-6T12:00:00Z", "2026-1-31T12:00:00Z", "1769860800000"),
)


def timed(schema: Any, number: int = 1) -> RegisteredSchema:
    return replace(registered(schema, number), options=JsonOptions(parses_times=True))


def test_date_times_are_times_at_every_depth() -> None:
    properties = {
        "at": TIME,
        "inner": {"type": "object", "properties": {"at": {**TIME, "type": ["string", "null"]}}},
        "list": {"type": "array", "items": TIME},
        "map": {"type": "object", "additionalProperties": TIME},
        "union": {"oneOf": [TIME, {"type": "integer"}, {"type": "string"}]},
    }
    writer = timed({"type": "object", "properties": properties})
    target = fields("s", writer, itertools.count(1))
    texts, times = [*GOOD_TIMES, *FAR_TIMES, *BAD_TIMES], GOOD_TIMES | FAR_TIMES
    shapes: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
        "at": (lambda text: text, lambda row: row["at"]),
        "inner": (lambda text: {"at": text}, lambda row: row["inner"]["at"]),
        "list": (lambda text: [None, text], lambda row: row["list"][1]),
        "map": (lambda text: {"a": text}, lambda row: row["map"]["a"]),
        "union": (lambda text: text, lambda row: row["union"]["connect_union_field_0"]),
    }
    decoders = Decoders(json_schema, ResolvedSchema(writer, writer, target))
    for name, (make, get) in shapes.items():
        found = decoders.decoded([json.dumps({name: make(text)}).encode() for text in texts])
        for text, row in zip(texts, found, strict=True):
            if name == "union" and text not in times:  # it is the string then
                assert row is not None
                assert row["union"]["connect_union_field_2"] == text
            elif text in times:
                assert row is not None, (name, text)
                assert get(row) == times[text], (name, text)
            else:
                assert row is None, (name, text, row)
    number, none = decoders.decoded([b'{"at": 5}', b'{"at": null}'])
    assert number is None
    assert none == dict.fromkeys(properties)
    found_reason = reason(
        json_schema, b'{"inner": {"at": "now"}}', ResolvedSchema(writer, writer, target)
    )
    assert str(found_reason).startswith("field inner.at (timestamptz): a date-time of RFC 3339")
    assert '"now" found' in str(found_reason)


def test_date_times_stay_text_by_default() -> None:
    assert rows({"type": "object", "properties": {"at": TIME}}, '{"at": "now"}') == [{"at": "now"}]


def test_date_times_of_versions_follow_the_column() -> None:
    """A version without the format is read as the column is."""
    time, text = (
        {"type": "object", "properties": {"at": kind}} for kind in (TIME, {"type": "string"})
    )
    at, record = "2026-01-31T12:00:00Z", b'{"at": "2026-01-31T12:00:00Z"}'
    for writer, latest, expected in ((text, time, GOOD_TIMES[at]), (time, text, at)):
        newest = timed(latest, 2)
        target = fields("s", newest, itertools.count(1))
        decoders = Decoders(json_schema, ResolvedSchema(timed(writer), newest, target))
        assert decoders.decoded([record, b'{"at": 1}']) == [{"at": expected}, None]
