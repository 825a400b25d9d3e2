"""What JSON records are, why they are malformed, and which columns their values go to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from decoders import Decoders
from growth import ratio, seconds
from reasons import reason

from topicberg.errors import TableflowError
from topicberg.formats import json as json_schema
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.json.plan import JsonPlan
from topicberg.formats.limits import MAX_FIELDS
from topicberg.formats.subjects import JsonOptions, RegisteredSchema

CONNECT = "org.apache.kafka.connect.data."
TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
FLAG: dict[str, Any] = {"type": "boolean"}
NUMBER: dict[str, Any] = {"type": "number"}


def registered(schema: Any, number: int = 1) -> RegisteredSchema:
    return RegisteredSchema(number, "JSON", json.dumps(schema))


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {"type": "number", "title": f"{CONNECT}Decimal", "connect.parameters": parameters}


def plan(writer: Any, latest: Any) -> JsonPlan:
    """How the writer's records go to the table of the latest schema."""
    newest = registered(latest, 2)
    columns = json_schema.fields("s", newest, itertools.count(1))
    return json_schema._plan(ResolvedSchema(registered(writer), newest, columns))


def explain(schema: Any, record: str | bytes, key: str | None = None) -> str | None:
    """Why a record is malformed; None: it is not. The compiled decoder agrees."""
    writer = RegisteredSchema(1, "JSON", json.dumps(schema), wrapped_as=key)
    payload = record if isinstance(record, bytes) else record.encode()
    pairing = ResolvedSchema(writer, writer, json_schema.fields("s", writer, itertools.count(1)))
    found = reason(json_schema, payload, pairing)
    assert (found is None) == (Decoders(json_schema, pairing).decoded([payload]) != [None])
    return found


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (decimal(4, 2), "1234.5", "field f (decimal(4,2)): value 1234.5 exceeds the precision"),
        (decimal(4, 2), "0.001", "field f (decimal(4,2)): value 0.001 exceeds the scale"),
        (decimal(4, 2), '"JxA="', "field f (decimal(4,2)): value 100 exceeds the precision"),
        (decimal(38, 0), "1.234567890123456789e3", "exceeds the scale"),
        (decimal(4, 2), '"AAAAAAAAAAAAAAAAAAAAAAABhqA="', "value 1000 exceeds the precision"),
        (decimal(38, 0), '""', "a number, or base64"),
        (WHOLE, '"5"', 'field f (long): a whole number expected, "5" found'),
        (WHOLE, "9223372036854775808", "value 9223372036854775808 exceeds the range"),
        (WHOLE, "1e-19", "a whole number expected, 1e-19 found"),
        (NUMBER, "1e400", "field f (double): value 1e400 exceeds the range"),
        ({**WHOLE, "title": f"{CONNECT}Date"}, "2932897", "is not between the years 1 and 9999"),
        ({"type": "array", "items": TEXT}, '["a", 1]', "field f[1] (string): a string expected, 1"),
        (properties(x=FLAG), '{"x": 1}', "field f.x (boolean): true or false expected, 1 found"),
        ({"type": "object", "additionalProperties": FLAG}, '{"k": 0}', "field f[k] (boolean)"),
        ({"oneOf": [TEXT, WHOLE]}, "1.5", "field f (struct): value 1.5 is none of its 2 types"),
        ({"type": "object"}, '"no"', 'field f (string): an object expected, "no" found'),
        ({"type": "array"}, "{}", "field f (string): an array expected, {} found"),
        ({"type": "null"}, "1", "field f (string): null expected, 1 found"),
        ({"type": ["object", "array"]}, "1", "f (string): an object or an array expected, 1 found"),
        (WHOLE, "1" * 5_000, "exceeds the range"),
        (NUMBER, "1" * 5_000, "exceeds the range"),
    ],
)
def test_explain_invalid_value_names_path_type_and_value(
    schema: Any, value: str, expected: str
) -> None:
    assert expected in str(explain(properties(f=schema), f'{{"f": {value}}}'))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("", "it is empty and ends at byte 0"),
        ('{"f": "é', "it ends at byte 9"),
        ('{"f": 1} x', 'byte 9: Extra data, found "x"'),
        ('{"f": NaN}', "NaN is not a value"),
        (b'{"f": "\xff"}', "not UTF-8 at byte 7: 0xff227d"),
        ('{"f": "\\ud83d"}', "\\ud83d, which is half of a character"),
        ("[" * 1_001 + "]" * 1_001, "too many nested arrays and objects"),
        ("5", "the record: an object expected, 5 found"),
    ],
)
def test_explain_malformed_record_names_the_place(record: str | bytes, expected: str) -> None:
    assert expected in str(explain(properties(f=WHOLE), record))


def test_explain_sound_record_gives_no_reason() -> None:
    assert explain(properties(f=WHOLE), '{"f": 1}') is None


def value(schema: Any, text: str) -> Any:
    """The stored value of the only property."""
    whole = registered(properties(f=schema))
    columns = json_schema.fields("s", whole, itertools.count(1))
    pairing, payload = ResolvedSchema(whole, whole, columns), f'{{"f": {text}}}'.encode()
    assert Decoders(json_schema, pairing).decoded([payload]) != [None]
    return json_schema.record_decoder(pairing)(payload)["f"]


SINGLE = {"type": "number", "connect.type": "float32"}


BYTES = {"type": "string", "connect.type": "bytes"}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (WHOLE, f"1{'0' * 5_000}e-5000", 1),
        (WHOLE, f"0.{'0' * 5_000}1e5001", 1),
        (NUMBER, "1e-99999999999999999999999", 0.0),
        (NUMBER, f"0.{'1' * 5_000}", 1 / 9),
        (SINGLE, "1.000000059604644775390625", 1.0),  # halfway between two floats
        (SINGLE, "1.0000000596046447753906250000000001", 1 + 2**-23),
        (SINGLE, "7.1e-46", 2.0**-149),
        (decimal(4, 2), '"/////////////////////////wA="', -256),
        (BYTES, '"aGlo\\r\\naGk="', b"hihhi"),
        *(({}, text, text) for text in ("[1, -0 ,-0.0]", "[1e400]", f"[1{'0' * 5_000}]")),
        *(
            ({}, text, text)
            for text in ('{"\\u0041": "\\/\\u001f\\\\u001f"}', "[" * 900 + "]" * 900)
        ),
    ],
)
def test_record_decoder_unusual_value_is_what_its_text_says(
    schema: Any, text: str, expected: Any
) -> None:
    assert value(schema, f" {text}\t") == expected


@pytest.mark.parametrize(
    ("members", "text", "place"),
    [
        ([{**TEXT, "format": "date-time"}, TEXT], '"2026-01-31T12:00:00+24:00"', 1),
        ([{**TEXT, "format": "date-time"}, TEXT], '"2026-01-31T12:00:00+23:59"', 0),
        ([decimal(9, 2), TEXT], f'"{"A" * 28}"', 1),
        ([WHOLE, NUMBER], "1.2345678901234567e15", 1),
        ([WHOLE, NUMBER], "1.2345678901234567e18", 0),
        ([decimal(38, 2), NUMBER], "1.0000000000000000e3", 0),
    ],
)
def test_record_decoder_union_value_is_of_the_first_member_that_takes_it(
    members: list[Any], text: str, place: int
) -> None:
    schema = RegisteredSchema(
        1,
        "JSON",
        json.dumps(properties(f={"oneOf": members})),
        options=JsonOptions(parses_times=True),
    )
    columns = json_schema.fields("s", schema, itertools.count(1))
    decode = json_schema.record_decoder(ResolvedSchema(schema, schema, columns))
    found = decode(f'{{"f": {text}}}'.encode())["f"]
    assert [name for name, value in found.items() if value is not None] == [
        f"connect_union_field_{place}"
    ]


def member_of(members: list[Any], text: str) -> tuple[int, Any]:
    """The member that a value of a union is, by both decoders, and its stored value."""
    found = value({"oneOf": members}, text)
    ((name, stored),) = ((name, stored) for name, stored in found.items() if stored is not None)
    return int(name.removeprefix("connect_union_field_")), stored


@pytest.mark.parametrize(
    ("members", "text", "expected"),
    [
        ([decimal(10, 2), TEXT], '"abcd"', (1, "abcd")),
        ([decimal(10, 2), TEXT], "1.25", (0, 125)),
        ([TEXT, decimal(10, 2)], '"AQ=="', (0, "AQ==")),
        ([decimal(10, 2), {**TEXT, "enum": ["abcd"]}], '"abcd"', (1, "abcd")),
        ([decimal(10, 2), {**TEXT, "enum": ["abcd"]}], '"AQ=="', (0, 1)),
        ([decimal(10, 2), WHOLE], '"AQ=="', (0, 1)),
        ([decimal(10, 2), BYTES], '"AQ=="', (1, b"\1")),
    ],
)
def test_record_decoder_text_is_a_decimal_if_no_member_takes_text(
    members: list[Any], text: str, expected: tuple[int, Any]
) -> None:
    assert member_of(members, text) == expected


def closed(*required: str, **schemas: Any) -> dict[str, Any]:
    return {**properties(**schemas), "required": [*required], "additionalProperties": False}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


OF_A, OF_B = closed("a", a=WHOLE), closed("b", b=WHOLE)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([closed("d", d=OF_A), closed("d", d=OF_B)], '{"d": {"b": 1}}'),
        ([properties(d=properties(a=WHOLE)), properties(d=properties(b=WHOLE))], '{"d": {"b": 1}}'),
        ([array(OF_A), array(OF_B)], '[{"b": 1}]'),
        ([array(closed(a=WHOLE)), array(closed(b=WHOLE))], '[{}, {"b": 1}]'),
        ([mapped(OF_A), mapped(OF_B)], '{"k": {"b": 1}}'),
        ([OF_A, mapped(WHOLE)], '{"b": 1}'),
        (
            [closed(d={"oneOf": [OF_A, TEXT]}), closed(d={"oneOf": [OF_B, WHOLE]})],
            '{"d": {"b": 1}}',
        ),
        ([{"oneOf": [OF_A, TEXT]}, {"oneOf": [OF_B, WHOLE]}], '{"b": 1}'),
        (
            [properties(m=properties(t={"const": t}), id=WHOLE) for t in ("created", "deleted")],
            '{"m": {"t": "deleted"}, "id": 1}',
        ),
        ([properties(v={"const": v}) for v in (1.1, 1.2)], '{"v": 1.2}'),
        ([properties(v={"const": v}) for v in (1.0, 2.0)], '{"v": 2}'),
        ([properties(v={"const": v}) for v in (1.0, 2.0)], '{"v": 20e-1}'),
        ([properties(v={**NUMBER, "enum": [v]}) for v in (1, 2)], '{"v": 2.0}'),
        ([properties(v={**WHOLE, "enum": [v]}) for v in (1, 2)], '{"v": 2.0}'),
        ([properties(v={**WHOLE, "enum": [v]}) for v in (1, 2)], '{"v": 20e-1}'),
        ([properties(v={"const": v}) for v in (2**60, 2**60 + 1)], f'{{"v": {2**60 + 1}}}'),
        ([properties(v={"enum": values}) for values in (["a", 1], ["b", 2])], '{"v": "b"}'),
        ([properties(v={"enum": values}) for values in (["a", 1], ["b", 2])], '{"v": 2}'),
        ([properties(v={"const": v}) for v in (True, False)], '{"v": false}'),
        ([properties(v={"const": v}) for v in ([1, {"x": 1}], [1, {"x": 2}])], '{"v":[1,{"x":2}]}'),
        ([properties(v={"const": v}) for v in ({"x": 1}, {"x": True})], '{"v": {"x": true}}'),
        ([properties(t=array({"const": t})) for t in "xy"], '{"t": ["y"]}'),
        ([{**NUMBER, "enum": [1.5]}, {**WHOLE, "enum": [7]}], "7"),
        ([closed(p=decimal(9, 2)), closed(p=TEXT)], '{"p": "abcd"}'),
        ([closed(p=array(decimal(9, 2))), closed(p=array(TEXT))], '{"p": ["abcd"]}'),
        ([closed(a=WHOLE), properties(c=WHOLE)], '{"a": 1, "b": 1}'),
        ([properties(a=TEXT), properties(a=TEXT, b=TEXT)], '{"a": "", "b": "", "c": ""}'),
        ([{"type": "object", "additionalProperties": False}, OF_A], '{"a": 1}'),
    ],
)
def test_record_decoder_union_has_the_member_that_loses_nothing(
    members: list[Any], text: str
) -> None:
    assert (member_of(members, text)[0], member_of(members[::-1], text)[0]) == (1, 0)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([closed("d", d=closed("a", "x", a=WHOLE)), closed(e=TEXT)], '{"d": {"a": 1}}'),
        ([properties(d={**NUMBER, "const": 1.5}), closed(e=TEXT)], '{"d": 2.5}'),
        ([properties(a=TEXT), properties(b=TEXT)], '{"c": 1}'),
        ([properties(a=TEXT), properties(b=TEXT)], '{"a": "", "b": ""}'),
        ([closed(p=decimal(9, 2)), closed(p=WHOLE)], '{"p": "AQ=="}'),
    ],
)
def test_record_decoder_union_without_an_exact_member_has_the_one_that_it_had(
    members: list[Any], text: str
) -> None:
    assert member_of(members, text)[0] == 0


def test_record_decoder_deep_record_is_a_row_whatever_calls_it() -> None:
    def called(depth: int) -> Any:
        return called(depth - 1) if depth else value({}, "[" * 999 + "]" * 999)

    assert called(600) == "[" * 999 + "]" * 999


def test_explain_key_that_is_not_an_object_names_its_column() -> None:
    schema = properties(key=WHOLE)
    found = str(explain(schema, b'1,"x":2', key="key"))
    assert found.endswith('byte 1: Extra data, found ",\\"x\\":2"')
    assert str(explain(schema, b'"x"', key="key")).startswith("field key (long)")
    assert explain(schema, b"5", key="key") is None


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({**properties(a=TEXT), "title": "Order", "$id": "http://x/o"}, "Order"),
        ({**properties(a=TEXT), "$id": "http://x/o.json#"}, "http://x/o.json"),
        (
            {
                **properties(a=TEXT),
                "id": "http://x/o",
                "$schema": "http://json-schema.org/draft-04/schema#",
            },
            "http://x/o",
        ),
        ({**properties(a=TEXT), "id": "http://x/o"}, None),
        ({"$ref": "#/definitions/o", "definitions": {"o": {"title": "Order"}}}, "Order"),
        (properties(title=TEXT), None),
        ({"allOf": [{"title": "Order"}]}, None),
        (True, None),
    ],
)
def test_identity_is_title_or_id_of_the_root(schema: Any, expected: str | None) -> None:
    assert json_schema.identity(registered(schema)) == expected


A, B, C = properties(a=TEXT, x=WHOLE), properties(b=TEXT), properties(c=FLAG)


def places(writer: list[Any], latest: list[Any]) -> list[str | None]:
    """The place of each member of the writer's union, by its number."""
    found = plan(properties(u={"oneOf": writer}), properties(u={"oneOf": latest}))
    return [
        member.place and member.place.removeprefix("connect_union_field_")
        for member in found.children["u"].members
    ]


@pytest.mark.parametrize(
    ("writer", "latest", "expected"),
    [
        ([TEXT, WHOLE], [TEXT, WHOLE], ["0", "1"]),
        ([TEXT, WHOLE], [TEXT, FLAG, WHOLE], ["0", "2"]),
        ([A, B], [C, A, B], ["1", "2"]),
        ([A, B], [B, A], ["1", "0"]),
        ([A, B, TEXT], [B, TEXT], [None, "0", "1"]),
        ([A, B], [properties(b=TEXT, more=TEXT), properties(a=TEXT)], ["1", "0"]),
        ([{**A, "title": "P"}, {**B, "title": "Q"}], [{**C, "title": "Q"}, TEXT], [None, "0"]),
        ([WHOLE], [TEXT, WHOLE], ["1"]),
        ([WHOLE, TEXT], [TEXT], [None, ""]),
    ],
)
def test_union_members_keep_their_columns(
    writer: list[Any], latest: list[Any], expected: list[str | None]
) -> None:
    assert places(writer, latest) == expected


@pytest.mark.parametrize(
    ("writer", "latest"),
    [
        (TEXT, WHOLE),
        (NUMBER, WHOLE),
        (A, TEXT),
        (TEXT, A),
        ({"type": "array", "items": TEXT}, TEXT),
        ({"type": "array", "items": TEXT}, {"type": "array", "items": WHOLE}),
        ({"type": "object", "additionalProperties": TEXT}, A),
        (FLAG, {"oneOf": [TEXT, WHOLE]}),
        ({"oneOf": [TEXT, FLAG]}, A),
    ],
)
def test_plan_other_type_is_refused(writer: Any, latest: Any) -> None:
    with pytest.raises(TableflowError, match=r"schema 1: field f"):
        plan(properties(f=writer), properties(f=latest))


def test_map_of_text_keys_in_a_column_of_others_is_refused() -> None:
    pairs = {"type": "array", "connect.type": "map", "items": properties(key=WHOLE, value=TEXT)}
    with pytest.raises(TableflowError, match=r"field f is a map, its column a map<long, string>"):
        plan(properties(f={"type": "object", "additionalProperties": TEXT}), properties(f=pairs))


def test_properties_of_branches_are_columns() -> None:
    schema = {
        **properties(kind=TEXT),
        "if": properties(kind={"const": "a"}),
        "then": properties(x=TEXT),
        "else": properties(x=WHOLE, y=WHOLE),
        "dependentSchemas": {"kind": properties(z=TEXT)},
    }
    found = json_schema.fields("s", registered(schema), itertools.count(1))
    assert [(field.name, type(field.field_type).__name__) for field in found] == [
        ("x", "StructType"),
        ("y", "LongType"),
        ("z", "StringType"),
        ("kind", "StringType"),
    ]


def test_map_with_keys_of_objects_is_a_list() -> None:
    pairs = {"type": "array", "connect.type": "map", "items": properties(key=A, value=TEXT)}
    (found,) = json_schema.fields("s", registered(properties(f=pairs)), itertools.count(1))
    assert str(found.field_type).startswith("list<struct<")


def test_references_that_multiply_are_refused() -> None:
    definitions: dict[str, Any] = {"d0": TEXT}
    for n in range(1, 40):
        inner = {"$ref": f"#/definitions/d{n - 1}"}
        definitions[f"d{n}"] = properties(a=inner, b=inner)
    schema = {**properties(f={"$ref": "#/definitions/d39"}), "definitions": definitions}
    with pytest.raises(TableflowError, match=f"more than {MAX_FIELDS} fields"):
        json_schema.fields("s", registered(schema), itertools.count(1))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (properties(**{"\ud83d": TEXT}), "text that is not valid Unicode"),
        (properties(a={"const": "\ud83d"}), "text that is not valid Unicode"),
        (properties(a={"$ref": "http://[x"}), "refers to http://"),
    ],
)
def test_unusable_schemas_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(TableflowError, match=reason):
        json_schema.fields("s", registered(schema), itertools.count(1))


@pytest.mark.parametrize("anything", [{}, {"description": "any layout"}])
def test_choice_of_anything_has_no_constants(anything: Any) -> None:
    schema = properties(f={"anyOf": [anything, {"enum": ["header", "footer"]}]})
    assert [explain(schema, f'{{"f": {value}}}') for value in ('"v1"', "1", "[]")] == [None] * 3
    (column,) = json_schema.fields("s", registered(schema), itertools.count(1))
    assert str(column.field_type) == "string"


# Schemas and values of a size. A time of schema times value grows 256 times where the size does 16.
SIZED: dict[str, Callable[[int], tuple[Any, str]]] = {
    "constants": lambda size: (
        array({"oneOf": [{"enum": [f"symbol{n}" for n in range(size)]}, properties(a=WHOLE)]}),
        json.dumps(["symbol1"] * size),
    ),
    "repeated names": lambda size: (
        properties(**{f"p{n}": TEXT for n in range(size)}),
        '{"x": 1' + ',"x": 1' * (10 * size) + "}",
    ),
    "a long key": lambda size: (
        {"type": "object", "additionalProperties": array(TEXT)},
        json.dumps({"k" * (100 * size): [""] * (10 * size)}),
    ),
}


@pytest.mark.parametrize("name", SIZED)
def test_record_is_explained_in_a_time_of_its_own_length(name: str) -> None:
    def explaining(size: int) -> Callable[[], None]:
        kind, value = SIZED[name](size)
        schema, record = registered(properties(f=kind, z=TEXT)), f'{{"f": {value}, "z": 1}}'
        pairing = ResolvedSchema(
            schema, schema, json_schema.fields("s", schema, itertools.count(1))
        )

        def explained() -> None:
            assert str(reason(json_schema, record.encode(), pairing)).startswith("field z (string)")

        return explained

    assert ratio(explaining(8_000), explaining(500)) < 80


def test_long_key_is_shortened_in_the_reason() -> None:
    schema = properties(f={"type": "object", "additionalProperties": WHOLE})
    found = str(explain(schema, f'{{"f": {{"{"k" * 100_000}": "x"}}}}'))
    assert found.startswith("field f[kkk")
    assert len(found) < 200


def test_large_value_is_shortened_in_the_reason() -> None:
    schema, values = properties(f={"oneOf": [WHOLE, FLAG]}), ",".join(["[1,2]"] * 100)
    found, text = explain(schema, f'{{"f": {{"a": [{values}]}}}}'), f'{{"a":[{values}]}}'
    assert found == f"field f (struct): value {text[:80]}… is none of its 2 types"


def test_search_in_unions_of_unions_ends() -> None:
    lists: Any = WHOLE
    for number in (0, 1):
        choices = [{"title": f"t{number}{n}", "type": "array", "items": lists} for n in range(60)]
        lists = {"oneOf": choices}
    schema = registered(properties(f=lists))
    pairing = ResolvedSchema(schema, schema, json_schema.fields("s", schema, itertools.count(1)))
    record = f'{{"f": [[{"1," * 5_000}"x"]]}}'.encode()
    reason(json_schema, b"{}", pairing)  # what is read of the schema is remembered
    reasons: list[str | None] = []
    assert seconds(lambda: reasons.append(reason(json_schema, record, pairing))) < 20
    assert "too many values for the unions" in str(reasons[0])


def test_constant_with_a_control_code_is_compared_by_its_value() -> None:
    schema = properties(f={"oneOf": [{"const": "\x1f"}, WHOLE]})
    assert explain(schema, r'{"f": "\u001f"}') is None
    assert explain(schema, r'{"f": "\u001e"}') is not None
