"""Protobuf schemas as columns, and what their records are."""

from __future__ import annotations

import itertools
import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from decoders import Decoders
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError
from reasons import reason

from topicberg.errors import TableflowError
from topicberg.formats import protobuf
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import format_of
from topicberg.formats.limits import MAX_FIELDS
from topicberg.formats.protobuf import protoc
from topicberg.formats.subjects import RegisteredSchema
from topicberg.tableflow.layout.layout import _with_dropped

HEAD = """
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
package shop;
"""
TAIL = """
enum Kind { NONE = 0; ONE = 1; }
message Line { int32 n = 1; }
message Nothing { }
"""


def registered(
    text: str, number: int = 1, references: tuple[tuple[str, str], ...] = ()
) -> RegisteredSchema:
    return RegisteredSchema(number, "PROTOBUF", text, references)


def proto(body: str, syntax: int = 3, number: int = 1) -> RegisteredSchema:
    tail = TAIL if syntax == 3 else "enum Kind { ONE = 1; TWO = 2; }"
    return registered(f'syntax = "proto{syntax}"; {HEAD} message Trade {{ {body} }} {tail}', number)


def columns(schema: RegisteredSchema, message: str | None = None) -> dict[str, str]:
    found = protobuf.fields("s", schema, itertools.count(1), message)
    assert not any(field.required for field in found)
    return {field.name: str(field.field_type) for field in found}


def pairing_of(
    writer: RegisteredSchema, latest: RegisteredSchema | None = None, message: str | None = None
) -> ResolvedSchema:
    """A writer in the table of the latest schema."""
    target = latest or writer
    fields = protobuf.fields("s", target, itertools.count(1), message)
    return ResolvedSchema(writer, target, fields, message)


def decode(
    payloads: Sequence[bytes],
    writer: RegisteredSchema,
    latest: RegisteredSchema | None = None,
    message: str | None = None,
) -> list[dict[str, Any] | None]:
    """Rows of the latest schema's table; None: the record is malformed."""
    return Decoders(protobuf, pairing_of(writer, latest, message)).decoded(payloads)


def one(schema: RegisteredSchema, data: bytes, **more: Any) -> dict[str, Any] | None:
    return decode([b"\x00" + data], schema, **more)[0]


DECIMAL = (
    "confluent.type.Decimal f = 1 [(confluent.field_meta) = {params: "
    '[{key: "precision", value: "9"}, {key: "scale", value: "2"}]}];'
)


@pytest.mark.parametrize(
    ("declared", "column"),
    [
        ("double", "double"),
        ("float", "float"),
        ("int32", "int"),
        ("sint32", "int"),
        ("sfixed32", "int"),
        ("int64", "long"),
        ("sint64", "long"),
        ("sfixed64", "long"),
        ("uint32", "long"),
        ("fixed32", "long"),
        ("uint64", "decimal(20, 0)"),
        ("fixed64", "decimal(20, 0)"),
        ("bool", "boolean"),
        ("string", "string"),
        ("bytes", "binary"),
        ("Kind", "string"),
        ("optional int32", "int"),
        ("repeated int32", "list<int>"),
        ("map<string, int64>", "map<string, long>"),
        ("map<int32, Line>", "map<int, struct<4: n: optional int>>"),
        ("Line", "struct<2: n: optional int>"),
        ("google.protobuf.Timestamp", "timestamptz"),
        ("google.type.Date", "date"),
        ("google.type.TimeOfDay", "long"),
        ("google.protobuf.Duration", "struct<2: seconds: optional long, 3: nanos: optional int>"),
        ("google.protobuf.Any", "struct<2: type_url: optional string, 3: value: optional binary>"),
        ("google.protobuf.DoubleValue", "double"),
        ("google.protobuf.FloatValue", "float"),
        ("google.protobuf.Int64Value", "long"),
        ("google.protobuf.UInt64Value", "decimal(20, 0)"),
        ("google.protobuf.Int32Value", "int"),
        ("google.protobuf.UInt32Value", "long"),
        ("google.protobuf.BoolValue", "boolean"),
        ("google.protobuf.StringValue", "string"),
        ("google.protobuf.BytesValue", "binary"),
    ],
)
def test_types(declared: str, column: str) -> None:
    assert columns(proto(f"{declared} f = 1;")) == {"f": column}


def test_decimals() -> None:
    assert columns(proto(DECIMAL)) == {"f": "decimal(9, 2)"}
    with pytest.raises(TableflowError, match=r"shop.Trade.f is a decimal without a precision"):
        columns(proto("confluent.type.Decimal f = 1;"))


def test_members_of_a_oneof_are_columns() -> None:
    assert columns(proto("oneof c { int32 a = 1; string b = 2; }")) == {"a": "int", "b": "string"}


def test_messages_without_fields_have_a_column_of_their_presence() -> None:
    body = "Nothing a = 1; repeated google.protobuf.Empty b = 2; map<int32, Nothing> c = 3;"
    found = columns(proto(f"{body} int32 d = 4;"))
    assert {name: re.sub(r"\d+: ", "", kind) for name, kind in found.items()} == {
        "a": "struct<is_present: optional boolean>",
        "b": "list<struct<is_present: optional boolean>>",
        "c": "map<int, struct<is_present: optional boolean>>",
        "d": "int",
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("Trade next = 1;", "s: field shop.Trade.next refers to shop.Trade"),
        ("message In { repeated Trade up = 1; } In in = 1;", "Trade.In.up refers to shop.Trade"),
        ("map<string, Trade> all = 1;", "value refers to shop.Trade"),
        ("google.protobuf.Struct any = 1;", "refers to google.protobuf.Struct"),
        ("int32 a = ;", "s is not Protobuf"),
    ],
)
def test_refused(body: str, reason: str) -> None:
    with pytest.raises(TableflowError) as error:
        columns(proto(body))
    assert reason in error.value.message


def test_reason_of_a_file_without_syntax_is_not_protocs_log() -> None:
    with pytest.raises(TableflowError) as error:
        protoc.compiled("a.proto", "message A {")
    assert error.value.message == (
        "1:12: Reached end of input in message definition (missing '}')."
    )


def test_references() -> None:
    line = 'syntax = "proto3"; package lib; message Line { int32 n = 1; }'
    text = 'syntax = "proto3"; import "lib/line.proto"; message T { lib.Line line = 1; }'
    schema = registered(text, references=(("lib/line.proto", line),))
    assert columns(schema) == {"line": "struct<2: n: optional int>"}
    assert one(schema, b"\x0a\x02\x08\x05") == {"line": {"n": 5}}
    with pytest.raises(TableflowError, match=r"lib/line\.proto"):
        columns(registered(text))
    with pytest.raises(TableflowError, match=r"not the name of a file"):
        columns(registered(text, references=(("../line.proto", line),)))


def test_format_of_the_schema() -> None:
    assert format_of(proto("int32 a = 1;")).identity(proto("int32 a = 1;")) == "shop.Trade"


# --- records ---


def test_an_empty_record_is_all_defaults() -> None:
    body = "int32 a = 1; optional int32 b = 2; string c = 3; Line d = 4; Kind e = 5;"
    schema = proto(f"{body} repeated int32 f = 6; map<string, string> g = 7;")
    empty: dict[str, Any] = {"a": 0, "b": None, "c": "", "d": None, "e": "NONE", "f": [], "g": {}}
    assert decode([b"\x00", b"\x02\x00", b""], schema) == [empty, empty, None]


@pytest.mark.parametrize(
    ("body", "data"),
    [
        ("int32 f = 1;", b"\x08"),
        ("int32 f = 1;", b"\x08\x80"),
        ("int32 f = 1;", b"\x08" + b"\x80" * 10 + b"\x01"),
        ("int32 f = 1;", b"\x0d\x00\x00\x00\x00"),  # fixed32
        ("int32 f = 1;", b"\x0e"),  # there is no wire type 6
        ("int32 f = 1;", b"\x00\x00"),  # nor a field 0
        ("int32 f = 1;", b"\x0c"),  # the end of a group that was not begun
        ("int32 f = 1;", b"\x13\x08\x01"),  # a group that does not end
        ("fixed64 f = 1;", b"\x09\x00\x00"),
        ("string f = 1;", b"\x0a\x05abc"),
        ("string f = 1;", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("string f = 1;", b"\x0a\xff\xff\xff\xff\x0f"),
        ("string f = 1;", b"\x0a\x02\xc3\x28"),
        ("string f = 1;", b"\x0a\x03\xed\xa0\x80"),  # a surrogate
        ("repeated string f = 1;", b"\x0a\x01a\x0a\x01\xff"),
        ("map<string, int32> f = 1;", b"\x0a\x03\x0a\x01\xff"),
        ("repeated int32 f = 1;", b"\x0a\x01\x80"),
        ("repeated fixed32 f = 1;", b"\x0a\x03\x00\x00\x00"),
        ("Line f = 1;", b"\x0a\x02\x08\x80"),
        ("google.protobuf.Timestamp f = 1;", b"\x0a\x08\x08\x80\x80\x80\x80\x80\x80\x01"),
        ("google.protobuf.Timestamp f = 1;", b"\x0a\x06\x10\x80\x94\xeb\xdc\x03"),
        ("google.type.Date f = 1;", b"\x0a\x00"),
        ("google.type.Date f = 1;", b"\x0a\x07\x08\xe5\x0f\x10\x02\x18\x1d"),  # 29 February 2021
        ("google.type.TimeOfDay f = 1;", b"\x0a\x02\x08\x19"),
        (DECIMAL, b"\x0a\x06\x0a\x04\x3b\x9a\xca\x00"),  # ten digits and scale 0
        (DECIMAL, b"\x0a\x05\x0a\x01\x01\x18\x03"),  # 0.001
    ],
)
def test_bad_records(body: str, data: bytes) -> None:
    good, bad = decode([b"\x00", b"\x00" + data], proto(body))
    assert good is not None
    assert bad is None


def test_numbers_without_a_name_stay_numbers() -> None:
    assert one(proto("Kind f = 1;"), b"\x08\x07") == {"f": "7"}


EDITION = 'edition = "2023"; option features.enum_type = CLOSED;'


@pytest.mark.parametrize("head", ['syntax = "proto2";', EDITION, 'syntax = "proto3";'])
def test_unknown_numbers_of_enums_are_as_googles(head: str) -> None:
    """In a closed enum they are unknown fields: a oneof keeps its member, a map its entry."""
    optional = "optional " if "proto2" in head else ""
    schema = registered(
        f"""{head} message Trade {{ oneof o {{ string s = 1; Kind k = 2; Deep deep = 3; }}
        repeated Kind list = 4; map<string, Kind> map = 5; {optional}Kind plain = 6; }}
        message Deep {{ oneof o {{ string s = 1; Kind k = 2; }} }}
        enum Kind {{ NONE = 0; ONE = 1; LESS = -1; }}"""
    )
    trade = message_factory.GetMessageClass(
        protoc.compiled("t.proto", schema.text).message_types_by_name["Trade"]
    )
    minus, wide = b"\xff" * 9 + b"\x01", b"\x81\x80\x80\x80\x10"  # -1; 2**32 + 1, which is 1
    pieces = [
        *(b"\x0a\x01x", b"\x10\x07", b"\x10\x01", b"\x10" + minus, b"\x10" + wide),
        *(b"\x1a\x03\x0a\x01x", b"\x1a\x02\x10\x07", b"\x1a\x02\x10\x01", b"\x1a\x00"),
        *(b"\x20\x07", b"\x20\x01", b"\x22\x03\x07\x01\x09", b"\x22\x00"),
        *(b"\x2a\x05\x0a\x01a\x10\x07", b"\x2a\x05\x0a\x01a\x10\x01", b"\x2a\x02\x10\x07"),
        *(b"\x2a\x07\x0a\x01a\x10\x07\x10\x01", b"\x2a\x07\x0a\x01a\x10\x01\x10\x07", b"\x2a\x00"),
        *(b"\x30\x07", b"\x30\x01"),
    ]
    records = [
        b"".join(chosen)
        for count in (1, 2, 3)
        for chosen in itertools.product(pieces, repeat=count)
    ]

    def held(message: Any, *names: str) -> dict[str, Any]:
        """What the table has of these fields."""
        have = {name: getattr(message, name) for name in names if message.HasField(name)}
        return {name: have.get(name) for name in names}

    def named(number: int | None) -> str | None:
        return (
            None if number is None else {0: "NONE", 1: "ONE", -1: "LESS"}.get(number, f"{number}")
        )

    def row(message: Any) -> dict[str, Any]:
        one = held(message, "s", "k", "deep")
        deep = one["deep"] and held(one["deep"], "s", "k")
        has_plain = "proto3" in head or message.HasField("plain")
        return {
            **one,
            "k": named(one["k"]),
            "deep": deep and {**deep, "k": named(deep["k"])},
            "list": list(map(named, message.list)),
            "map": {key: named(number) for key, number in message.map.items()},
            "plain": named(message.plain) if has_plain else None,
        }

    rows = decode([b"\x00" + data for data in records], schema)
    assert rows == [row(trade.FromString(data)) for data in records]


def test_required_closed_enum_needs_a_known_number() -> None:
    schema = proto("required Kind f = 1;", syntax=2)
    assert decode([b"\x00\x08\x02", b"\x00\x08\x07", b"\x00\x08\x02\x08\x07"], schema) == [
        {"f": "TWO"},
        None,
        {"f": "TWO"},
    ]
    found = reason(protobuf, b"\x00\x08\x07", pairing_of(schema))
    assert found == "field f (enum): its enum has no number 7"


def test_proto2() -> None:
    body = "required int32 a = 1; optional Kind b = 2; optional string c = 3 [default = 'x'];"
    schema = proto(f"{body} extensions 100 to 200;", syntax=2)
    assert one(schema, b"\x08\x01\xa0\x06\x01") == {"a": 1, "b": None, "c": "x"}
    assert one(schema, b"") is None  # lacks what is required


def test_message_indexes() -> None:
    text = """syntax = "proto3"; message A { int32 a = 1; }
    message B { int32 b = 1; message C { int32 c = 1; } message D { int32 d = 1; } }"""
    schema = registered(text)
    payloads = [b"\x00\x08\x01", b"\x02\x02\x08\x02", b"\x04\x02\x02\x08\x03", b"\x04\x02\x00"]
    assert decode(payloads, schema) == [{"a": 1}, None, None, None]
    assert decode(payloads, schema, message="B") == [None, {"b": 2}, None, None]
    assert decode(payloads, schema, message="B.D") == [None, None, {"d": 3}, None]
    with pytest.raises(TableflowError, match="no message X; there are A, B"):
        columns(schema, "X")


# --- schema evolution ---


def test_messages_are_found_by_name_before_place() -> None:
    old = registered('syntax = "proto3"; message A { int32 a = 1; } message B { int32 b = 1; }')
    new = registered('syntax = "proto3"; message B { int32 b = 1; } message A { int32 a = 1; }', 2)
    assert decode([b"\x02\x02\x08\x05", b"\x00\x08\x01"], old, new) == [{"b": 5}, None]


def test_fields_of_a_message_keep_their_numbers_when_its_own_changes() -> None:
    """A number that two fields exchange leaves each in the column of its name."""
    old = registered("""syntax = "proto3"; message T { I a = 1; int32 b = 2; map<int32, I> c = 3; }
        message I { int32 x = 1; }""")
    new = registered("""syntax = "proto3"; message T { int32 b = 1; I a = 2; map<int32, I> c = 4; }
        message I { int32 X = 1; }""", 2)  # fmt: skip
    data = b"\x0a\x02\x08\x07\x10\x05\x1a\x06\x08\x01\x12\x02\x08\x09"
    assert one(old, data, latest=new) == {"b": 5, "a": {"X": 7}, "c": {1: {"X": 9}}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("string a = 1;", "int32 a = 1;"),
        ("string a = 1;", "int32 b = 1;"),  # by its number it is b
        ("repeated int32 a = 1;", "int32 a = 1;"),
        ("int32 a = 1;", "repeated int32 a = 1;"),
        ("map<string, int32> a = 1;", "repeated Line a = 1;"),
        ("map<string, int32> a = 1;", "map<int32, int32> a = 1;"),
        ("map<string, Line> a = 1;", "map<string, int32> a = 1;"),
        ("Line a = 1;", "int32 a = 1;"),
        ("Kind a = 1;", "int32 a = 1;"),
        ("int32 a = 1;", "Kind a = 1;"),
        ("bool a = 1;", "int32 a = 1;"),
        ("double a = 1;", "float a = 1;"),
        ("google.protobuf.Timestamp a = 1;", "google.protobuf.Duration a = 1;"),
        ("google.protobuf.StringValue a = 1;", "int64 a = 1;"),
        ("Line a = 1;", "google.type.Date a = 1;"),
        ("int32 a = 1; int32 b = 2;", "int32 b = 1;"),  # of b there would be nothing left
    ],
)
def test_writer_that_does_not_fit_is_refused(old: str, new: str) -> None:
    named = r"shop\.Trade\.b " if "b = 2" in old else r"shop\.Trade\.a "
    with pytest.raises(TableflowError, match=rf"schema 1: field {named}"):
        decode([], proto(old), proto(new, number=2))


def test_writer_that_cannot_become_a_table_fills_nothing() -> None:
    latest = registered('syntax = "proto3"; message T { int32 a = 1; }', 2)
    writer = registered('syntax = "proto3"; message T { int32 id = 5; T again = 6; }')
    table = protobuf.fields("s", latest, itertools.count(1))
    with pytest.raises(TableflowError, match=r"schema 1: .*again"):
        format_of(writer).filled(ResolvedSchema(writer, latest, table))


@pytest.mark.parametrize(
    ("old", "new", "data", "row"),
    [
        ("string a = 1;", "int32 b = 1;", b"\x0a\x01x", {"a": "x", "b": None}),
        ("int64 a = 1;", "int32 b = 1;", b"\x08\x07", {"a": None, "b": 7}),
        ("I a = 1;", "J b = 1;", b"\x0a\x03\x0a\x01x", {"a": {"x": "x"}, "b": None}),
        (
            "repeated I a = 1;",
            "repeated J b = 1;",
            b"\x0a\x03\x0a\x01x",
            {"a": [{"x": "x"}], "b": None},
        ),
    ],
)
def test_values_that_do_not_fit_the_renamed_field_keep_their_column(
    old: str, new: str, data: bytes, row: dict[str, Any]
) -> None:
    inner = "message I { string x = 1; } message J { int32 x = 1; }"
    first = registered(f'syntax = "proto3"; message T {{ {old} }} {inner}')
    newest = registered(f'syntax = "proto3"; message T {{ {new} }} {inner}', 2)
    numbers = itertools.count(1)
    table = [*protobuf.fields("s", first, numbers), *protobuf.fields("s", newest, numbers)]
    pairing = ResolvedSchema(first, newest, table)
    assert Decoders(protobuf, pairing).decoded([b"\x00" + data]) == [row]
    # The engine decodes into the columns that are filled, alone.
    filled = [field for field in table if field.name in protobuf.filled(pairing)]
    expected = {field.name: row[field.name] for field in filled}
    assert [name for name, value in expected.items() if value] == list(expected)
    decoders = Decoders(protobuf, ResolvedSchema(first, newest, filled))
    assert decoders.decoded([b"\x00" + data]) == [expected]


WHOLE = (
    "confluent.type.Decimal a = 1 [(confluent.field_meta) = {params: "
    '[{key: "precision", value: "20"}, {key: "scale", value: "0"}]}];'
)


@pytest.mark.parametrize(
    ("old", "new", "data", "value"),
    [
        ("int64 a = 1;", "int32 a = 1;", b"\x08\x07", 7),
        ("int64 a = 1;", "int32 a = 1;", b"\x08\x80\x80\x80\x80\x08", None),
        ("uint64 a = 1;", "int64 a = 1;", b"\x08" + b"\xff" * 9 + b"\x01", None),
        ("uint32 a = 1;", "uint64 a = 1;", b"\x08\x07", Decimal(7)),
        ("int32 a = 1;", DECIMAL.replace("f =", "a ="), b"\x08\x07", Decimal("7.00")),
        ("int64 a = 1;", DECIMAL.replace("f =", "a ="), b"\x08\x80\xad\xe2\x04", None),
        ("repeated int64 a = 1;", "repeated int32 a = 1;", b"\x08\x07", [7]),
        (WHOLE, "int32 a = 1;", b"\x0a\x03\x0a\x01\xff", -1),
        (WHOLE, "int64 a = 1;", b"\x0a\x05\x0a\x01\x46\x18\x01", 7),
        (WHOLE, "int64 a = 1;", b"\x0a\x05\x0a\x01\x47\x18\x01", None),
        (WHOLE, "int32 a = 1;", b"\x0a\x07\x0a\x05\x00\x80\x00\x00\x00", None),
        ("google.type.TimeOfDay a = 1;", "int32 a = 1;", b"\x0a\x02\x18\x07", 7_000_000),
        ("google.type.TimeOfDay a = 1;", "int32 a = 1;", b"\x0a\x02\x08\x07", None),
        ("google.protobuf.Int64Value a = 1;", "int32 a = 1;", b"\x0a\x02\x08\x07", 7),
        ("bytes a = 1;", "string a = 1;", b"\x0a\x01x", "x"),
        ("bytes a = 1;", "string a = 1;", b"\x0a\x01\xff", None),
        ("string a = 1;", "bytes a = 1;", b"\x0a\x01x", b"x"),
    ],
)
def test_values_go_to_other_columns_if_they_fit(
    old: str, new: str, data: bytes, value: Any
) -> None:
    writer, latest = proto(old), proto(new, number=2)
    expected = None if value is None else {"a": value}
    assert one(writer, data, latest=latest) == expected


def test_default_that_its_column_cannot_hold_is_refused() -> None:
    with pytest.raises(TableflowError, match="has a default that its column"):
        decode(
            [],
            proto("optional int64 a = 1 [default = 5000000000];", syntax=2),
            proto("optional int32 a = 1;", syntax=2, number=2),
        )


# --- identity and reasons ---


def test_identity_is_the_full_name() -> None:
    schema = registered('syntax = "proto3"; package a.b; message X { message Y { } } message Z { }')
    assert (protobuf.identity(schema), protobuf.identity(schema, "X.Y")) == ("a.b.X", "a.b.X.Y")
    assert protobuf.identity(schema, "a.b.Z") == "a.b.Z"


@pytest.mark.parametrize(
    ("old", "is_renamed"),
    [
        ("message Old { int32 a = 1; }", True),
        ("message Other { int32 a = 1; }", False),  # the new version has it as well
    ],
)
def test_message_of_another_name_is_a_renamed_one_only(old: str, *, is_renamed: bool) -> None:
    head = 'syntax = "proto3";'
    writer = registered(f"{head} {old}")
    latest = registered(
        f"{head} message New {{ int32 a = 1; }} message Other {{ int32 a = 1; }}", 2
    )
    if is_renamed:
        assert one(writer, b"\x08\x05", latest=latest) == {"a": 5}
    else:
        with pytest.raises(TableflowError, match="schema 1 has no message New"):
            decode([], writer, latest)


def test_messages_that_multiply_are_refused() -> None:
    inner = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}\n" for n in range(40))
    text = f'syntax = "proto3"; {inner} message M40 {{ int32 x = 1; }}'
    with pytest.raises(TableflowError, match=f"more than {MAX_FIELDS} fields"):
        columns(registered(text))


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        ((("a", "x"), ("a/b", "y")), "cannot be written"),
        ((("a" * 300, "x"),), "cannot be written"),
        ((("a.proto", "// \ud800"),), "cannot be written"),
    ],
)
def test_unusable_files_are_refused(references: Any, reason: str) -> None:
    with pytest.raises(TableflowError, match=reason):
        columns(registered('syntax = "proto3"; message A { int32 a = 1; }', references=references))


@pytest.mark.parametrize(
    ("body", "data", "expected"),
    [
        (
            "string f = 1;",
            b"\x0a\x05abc",
            "the record ends at byte 6, within field f at byte 1: 5 ",
        ),
        ("int32 f = 1;", b"\x08\x80", "the record ends at byte 3, within field f at byte 1"),
        ("Line f = 1;", b"\x0a\x02\x08\x80", "field f ends at byte 5, within field f.n at byte 3"),
        ("int32 f = 1;", b"\x0d\x00\x00\x00\x00", "field f (int32): wire type 32-bit at byte 1"),
        (
            "string f = 1;",
            b"\x0a\x02\xc3\x28",
            "field f (string): value 0xc328 at byte 3 is not UTF-8",
        ),
        ("repeated int32 f = 1;", b"\x0a\x01\x80", "packed values at byte 3 end within a value"),
        (
            DECIMAL,
            b"\x0a\x06\x0a\x04\x3b\x9a\xca\x00",
            "(decimal(9,2)): value 1000000000 exceeds the",
        ),
        (DECIMAL, b"\x0a\x05\x0a\x01\x01\x18\x03", "value 0.001 exceeds the scale"),
        (
            "google.type.Date f = 1;",
            b"\x0a\x07\x08\xe5\x0f\x10\x02\x18\x1d",
            "value year: 2021, month: 2, day: 29 is not a date",
        ),
        (
            "map<string, google.type.Date> f = 1;",
            b"\x0a\x03\x0a\x01k",
            "value year: 0, month: 0, day: 0 is not a date",
        ),
        (
            "google.protobuf.Timestamp f = 1;",
            b"\x0a\x06\x10\x80\x94\xeb\xdc\x03",
            "seconds: 0, nanos: 1000000000 has nanos that are not between 0 and 999999999",
        ),
    ],
)
def test_reasons_name_field_type_and_value(body: str, data: bytes, expected: str) -> None:
    assert expected in str(reason(protobuf, b"\x00" + data, pairing_of(proto(body))))


def test_reasons_of_message_indexes() -> None:
    text = """syntax = "proto3"; package p; message A { int32 a = 1; }
    message B { int32 b = 1; message C { int32 c = 1; } }"""
    schema = registered(text)
    reasons = [
        str(reason(protobuf, payload, pairing_of(schema)))
        for payload in (b"\x04\x02\x00", b"\x02\x0e", b"", b"\x04\x02", b"\xff", b"\x82\x00\x00")
    ]
    assert "indexes [0] are encoded in more bytes than necessary" in reasons.pop()
    assert "[1, 0]: the record is a p.B.C, the table's message is p.A" in reasons[0]
    assert "[7]: the schema has no such message" in reasons[1]
    assert all("no message indexes at byte 0" in reason for reason in reasons[2:])


def test_long_list_is_read_beside_short_records() -> None:
    body = "repeated string f = 1; int32 a = 2;"
    long = message_factory.GetMessageClass(
        protoc.compiled("s.proto", proto(body).text).message_types_by_name["Trade"]
    )(f=["v"] * 50_000, a=1).SerializeToString()
    rows = decode([b"\x00\x10\x02"] * 100 + [b"\x00" + long], proto(body))
    assert rows[100] == {"f": ["v"] * 50_000, "a": 1}
    assert rows[0] == {"f": [], "a": 2}


def test_recursive_version_fills_no_columns() -> None:
    latest = registered('syntax = "proto3"; message Order { int32 id = 1; }')
    writer = registered('syntax = "proto3"; message Order { int32 id = 1; Order again = 2; }')
    with pytest.raises(TableflowError, match=r"contains itself|recursive"):
        protobuf.written(writer, latest)


LIBRARY = {
    "google.protobuf.Timestamp": "google/protobuf/timestamp.proto",
    "google.protobuf.StringValue": "google/protobuf/wrappers.proto",
    "google.protobuf.Int64Value": "google/protobuf/wrappers.proto",
    "google.type.Date": "google/type/date.proto",
    "google.type.TimeOfDay": "google/type/timeofday.proto",
    "confluent.type.Decimal": "confluent/type/decimal.proto",
}
KNOWN = {
    "google.protobuf.Timestamp": [
        "int64 seconds = 1;",
        "optional int64 seconds = 1; optional int32 nanos = 2;",
        "string seconds = 1; int32 nanos = 2;",
        "int64 seconds = 1; int32 nanos = 2; string zone = 3;",
        "",
    ],
    "google.type.Date": ["string year = 1; int32 month = 2; int32 day = 3;"],
    "google.type.TimeOfDay": ["int32 hours = 1; int32 minutes = 2; int32 seconds = 3;"],
    "google.protobuf.StringValue": ["string other = 1;", "repeated string value = 1;"],
    "google.protobuf.Int64Value": ["int64 value = 2;"],
    "confluent.type.Decimal": ["string value = 1; uint32 precision = 2; int32 scale = 3;"],
}


@pytest.mark.parametrize(
    ("name", "body"), [(name, body) for name, bodies in KNOWN.items() for body in bodies]
)
def test_known_message_with_other_fields_is_refused(name: str, body: str) -> None:
    package, _, short = name.rpartition(".")
    options = '[(confluent.field_meta) = {params: [{key: "precision", value: "9"}]}]'
    used = f"{name} f = 1 {options};" if short == "Decimal" else f"{name} f = 1;"
    file = f'syntax = "proto3"; package {package}; message {short} {{ {body} }}'
    imports = 'import "own.proto"; import "confluent/meta.proto";'
    text = f'syntax = "proto3"; {imports} message M {{ {used} }}'
    schema = registered(text, references=(("own.proto", file),))
    with pytest.raises(TableflowError, match=f"{name} is not defined as in its library"):
        protobuf.fields("s", schema, itertools.count(1))
    latest = registered(text.replace("own.proto", LIBRARY[name]), 2)
    columns = protobuf.fields("s", latest, itertools.count(1))
    with pytest.raises(TableflowError, match=f"{name} is not defined as in its library"):
        protobuf.reader(ResolvedSchema(schema, latest, columns))


def test_known_message_in_another_order_is_the_same() -> None:
    file = """syntax = "proto3"; package google.protobuf;
    message Timestamp { int32 nanos = 2; int64 seconds = 1; }"""
    text = 'syntax = "proto3"; import "own.proto"; message M { google.protobuf.Timestamp f = 1; }'
    assert decode(
        [b"\x00\x0a\x02\x08\x05"], registered(text, references=(("own.proto", file),))
    ) == [{"f": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)}]


EMPTY = """
syntax = "proto3";
message M {
  oneof what { Created created = 1; Deleted deleted = 2; }
  repeated Deleted many = 3;
  map<string, Deleted> by_name = 4;
}
message Created {}
message Deleted {}
"""


def test_message_that_gets_fields_keeps_the_rows_without_them() -> None:
    older = registered(EMPTY)
    newer = registered(EMPTY.replace("message Created {}", "message Created { int32 by = 7; }"))
    (merged,) = (
        one
        for one in _with_dropped(
            protobuf.fields("s", newer, itertools.count(1)),
            protobuf.fields("s", older, itertools.count(50)),
        )
        if one.name == "created"
    )
    assert [
        protobuf.record_decoder(ResolvedSchema(writer, newer, [merged]))(payload)["created"]
        for writer, payload in ((older, b"\0\x0a\0"), (newer, b"\0\x0a\2\x38\5"), (newer, b"\0"))
    ] == [{"by": None, "is_present": True}, {"by": 5, "is_present": None}, None]


def test_messages_without_fields_are_told_apart() -> None:
    decoders, there = Decoders(protobuf, pairing_of(registered(EMPTY))), {"is_present": True}
    nothing: dict[str, Any] = {"created": None, "deleted": None, "many": [], "by_name": {}}
    payloads = [b"\0", b"\0\x0a\0", b"\0\x12\0\x1a\0\x1a\0", b"\0\x22\x03\x0a\x01k"]
    assert decoders.decoded(payloads) == [
        nothing,
        nothing | {"created": there},
        nothing | {"deleted": there, "many": [there, there]},
        nothing | {"by_name": {"k": there}},
    ]
    assert all(decoders.accepted)


def test_program_has_defaults_that_are_not_finite() -> None:
    body = "optional double d = 1 [default = inf]; optional float f = 2 [default = -inf];"
    schema = registered(f'syntax = "proto2"; message M {{ {body} }}')
    decoders = Decoders(protobuf, pairing_of(schema))
    assert decoders.decoded([b"\x00"]) == [{"d": float("inf"), "f": -float("inf")}]
    assert decoders.accepted == [True]


@pytest.mark.parametrize("body", ["string f = 1;", "optional string f = 1;"])
def test_text_that_is_overridden_is_utf8_too(body: str) -> None:
    schema = proto(body)
    trade = message_factory.GetMessageClass(
        protoc.compiled("s.proto", schema.text).message_types_by_name["Trade"]
    )
    sound = b"\x0a\x01a\x0a\x02\xc3\xa9"
    records = [b"\x0a\x01\xff\x0a\x01a", b"\x0a\x01a\x0a\x01\xff\x0a\x01b"]
    assert decode([b"\x00" + one for one in (sound, *records)], schema) == [{"f": "é"}, None, None]
    for record in records:
        with pytest.raises(DecodeError):
            trade.FromString(record)
        found = reason(protobuf, b"\x00" + record, pairing_of(schema))
        assert str(found).startswith("field f (string): value 0xff at byte ")


def test_message_indexes_may_be_longer_than_a_record() -> None:
    depth = 30
    opened = "".join(f"message M{level} {{ " for level in range(depth))
    schema = registered(f'syntax = "proto3"; {opened} int32 a = 1; {"} " * depth}')
    prefix = bytes([2 * depth]) + bytes(depth)
    payloads = [prefix + b"\x08\x05", b"", b"\x00", prefix[:-1], prefix]
    name = ".".join(f"M{level}" for level in range(depth))
    assert decode(payloads, schema, message=name) == [{"a": 5}, None, None, None, {"a": 0}]


def test_references_of_any_name_are_read() -> None:
    """The schema has no name of its own: it is compiled under one that no reference has."""
    names = ["schema.proto", "topicberg/schema.proto", "topicberg/topicberg/schema.proto"]
    references = tuple(
        (name, f'syntax = "proto3"; message M{number} {{ int32 v = 1; }}')
        for number, name in enumerate(names)
    )
    imports = "".join(f'import "{name}"; ' for name in names)
    text = f'syntax = "proto3"; {imports}message Order {{ M0 a = 1; M1 b = 2; M2 c = 3; }}'
    schema = RegisteredSchema(1, "PROTOBUF", text, references)
    found = protobuf.fields("s", schema, itertools.count(1))
    assert [field.name for field in found] == ["a", "b", "c"]


def test_descriptors_in_base64_are_read_as_text_is() -> None:
    """As Confluent's client for Python registers schemas, if the registry keeps them so."""
    common = 'syntax = "proto3"; package shop; message Money { string currency = 1; }'
    text = (
        'syntax = "proto3"; package shop; import "shop/common.proto"; '
        'import "google/protobuf/timestamp.proto"; '
        "message Order { optional int64 id = 1; Money paid = 2; map<string, int32> n = 3; "
        "oneof how { google.protobuf.Timestamp at = 4; bool never = 5; } }"
    )

    def base64(name: str, text: str, *references: tuple[str, str]) -> str:
        proto = descriptor_pb2.FileDescriptorProto()
        protoc.compiled(name, text, references).CopyToProto(proto)
        return b64encode(proto.SerializeToString()).decode()

    reference = ("shop/common.proto", common)
    encoded = (reference[0], base64(*reference))
    written = RegisteredSchema(1, "PROTOBUF", text, (reference,))
    expected = protobuf.fields("s", written, itertools.count(1))
    for references in ((reference,), (encoded,)):
        schema = RegisteredSchema(
            1, "PROTOBUF", base64("shop/order.proto", text, reference), references
        )
        assert protobuf.fields("s", schema, itertools.count(1)) == expected
        assert protobuf.identity(schema) == protobuf.identity(written) == "shop.Order"


@pytest.mark.parametrize("text", ["aGVsbG8=", "AAAA", "message", "CgRhLnBy"])
def test_text_that_only_looks_like_base64_is_refused(text: str) -> None:
    with pytest.raises(TableflowError, match=r"is not Protobuf|defines no message"):
        protobuf.fields("s", RegisteredSchema(1, "PROTOBUF", text), itertools.count(1))
