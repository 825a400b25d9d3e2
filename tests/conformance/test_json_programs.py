"""JSON records by programs against the reference decoder, without a stack. A program may refuse any
record, which the reference decoder then decodes. What it accepts must be exactly that one's value,
and what producers usually write must be accepted."""

from __future__ import annotations

import itertools
import json
import random
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import pytest
import stored_values
from fuzz_json import random_object, random_schema, random_value, schema_and_records
from hostile_json import expected, hostile
from json_family import version
from program_runner import NUMBER, ProgramRunner
from seeds import some
from shapes import difference
from versions import Version

from topicberg.errors import TableflowError
from topicberg.formats import json as json_format
from topicberg.formats import json as json_schema
from topicberg.formats.columnar.columns import Buffers
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import JsonOptions, RegisteredSchema

DECIMAL = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"connect.decimal.precision": "9", "scale": "2"},
}
TIME = {"type": "string", "format": "date-time"}


class Decoder(ProgramRunner):
    def __init__(self, schema: Any, *, wrapped_as: str | None = None) -> None:
        registered = RegisteredSchema(
            NUMBER,
            "JSON",
            json.dumps(schema),
            wrapped_as=wrapped_as,
            options=JsonOptions(parses_times=True),
        )
        super().__init__(cast("Format", json_schema), registered)


def row(schema: Any, text: str | bytes) -> Any:
    """The value of the only property."""
    decoder = Decoder({"type": "object", "properties": {"f": schema}})
    found = decoder.row(text.encode() if isinstance(text, str) else text)
    return found and found["f"]


def covered(seed: int) -> tuple[Version, Decoder, random.Random] | None:
    """A schema of properties that have programs; None: there are none."""
    rng = random.Random(seed)
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for number in range(8):
        schema = random_schema(rng, 2, definitions)
        name = rng.choice(("id", f"p{number}", f"a longer name of a property {number}", "Ünï"))
        one = {"type": "object", "properties": {name: schema}, "definitions": definitions}
        try:
            Decoder(one)
        except (NotCoveredError, TableflowError):
            continue
        properties[name] = schema
    if not properties:
        return None
    root = {"type": "object", "properties": properties, "definitions": definitions}
    return version(root), Decoder(root), rng


def is_usual(value: Any) -> bool:
    """Whether numbers are as producers write them."""
    match value:
        case float():
            return not value.is_integer() and 1e-300 < abs(value) < 1e300
        case int():
            return value != -(2**63)
        case list():
            return all(map(is_usual, value))
        case dict():
            return all(map(is_usual, value.values()))
    return True


def text_of(rng: random.Random, value: Any) -> bytes:
    separators = rng.choice((None, (",", ":"), (" , ", " :\t")))
    text = json.dumps(
        value, ensure_ascii=False, separators=separators, indent=rng.choice((None, 1))
    )
    return text.encode()


@pytest.mark.parametrize("start", some(range(0, 90, 30)))
def test_usual_records_of_random_schemas_equal_the_reference(start: int) -> None:
    seen = refused = 0
    for seed in range(start, start + 30):
        found = covered(seed)
        if found is None:
            continue
        oracle, decoder, rng = found
        values = [random_value(rng, oracle.source, oracle.source) for _ in range(40)]
        payloads = [text_of(rng, value) for value in values if is_usual(value)]
        while payloads:
            rows = decoder.rows(payloads)
            for payload, one in zip(payloads, rows, strict=False):
                why = difference(expected(oracle, payload), one)
                assert why is None, f"seed {seed}: {payload!r}: {why}"
            seen += len(rows)
            refused += len(rows) < len(payloads)
            del payloads[: len(rows) + 1]
    assert seen > 300
    assert refused < seen / 5


@pytest.mark.parametrize("start", some(range(1000, 1060, 30)))
def test_hostile_records_are_refused_or_equal_the_reference(start: int) -> None:
    accepted = refused = 0
    for seed in range(start, start + 30):
        found = covered(seed)
        if found is None:
            continue
        oracle, decoder, rng = found
        for payload in itertools.chain(*(hostile(rng, oracle.source) for _ in range(25))):
            one = decoder.row(payload)
            accepted, refused = accepted + (one is not None), refused + (one is None)
            if one is None:
                continue
            wanted = expected(oracle, payload)
            assert wanted is not None, f"seed {seed}: {payload!r} is malformed"
            why = difference(wanted, one)
            assert why is None, f"seed {seed}: {payload!r}: {why}"
    assert min(accepted, refused) > 100


def test_doubles_are_correctly_rounded() -> None:
    rng = random.Random(5)
    texts = ["1.7976931348623157e308", "2.2250738585072014e-308", "9007199254740993.5", "1e23"]
    texts += ["8.41e21", "9.5e-22", "123456789012345678.5", "1152921504606846977e3"]
    for _ in range(20_000):
        texts.append(repr(struct.unpack("<d", rng.randbytes(8))[0]))
        texts.append(f"{rng.randrange(10 ** rng.randint(1, 19))}e{rng.randint(-300, 285)}")
        texts.append(f"{rng.randrange(10**6)}.{rng.randrange(10**9):09}")
    usual = [one for one in texts if "n" not in one and (2.3e-308 < abs(float(one)) < 1.8e308)]
    items = {"type": "array", "items": {"type": "number"}}
    decoder = Decoder({"type": "object", "properties": {"f": items}})
    payload = f'{{"f": [{",".join(usual)}]}}'.encode()
    decoder.buffers = Buffers(decoder.shape, 1, len(payload))
    (found,) = decoder.rows([payload])
    assert found["f"] == list(map(float, usual))


def test_floats_are_those_nearest_to_the_text() -> None:
    schema = {"type": "number", "connect.type": "float32"}
    for text in ("0.1", "-3.3999999e38", "16777217.5", "1.2345678e-38"):
        assert row(schema, f'{{"f": {text}}}') == np.float32(text)
    for text in ("3.5e38", "16777217", "1e-40", "1.000000059604644775"):  # halfway, subnormal
        assert row(schema, f'{{"f": {text}}}') is None


def test_times_equal_those_of_python() -> None:
    rng = random.Random(3)
    items = {"type": "object", "properties": {"f": {"type": "array", "items": TIME}}}
    first, last = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
    span = (last - first) // timedelta(microseconds=1)
    times = [first + timedelta(microseconds=rng.randrange(span)) for _ in range(3000)]
    times += [datetime(year, 2, 28, tzinfo=UTC) + timedelta(1) for year in range(2, 3000)]
    payload = json.dumps({"f": [one.isoformat() for one in times]}).encode()
    decoder = Decoder(items)
    decoder.buffers = Buffers(decoder.shape, 1, len(payload))
    assert decoder.rows([payload]) == [{"f": times}]


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3"]
)
def test_invalid_utf8_is_refused_anywhere(bad: bytes) -> None:
    kind = {"type": "integer"}
    assert row(kind, '{"f": 1, "é😀": "é😀", "x": [{"é": "é"}]}') == 1
    for text in (b'{"f": 1, "%s": 2}', b'{"f": 1, "x": "%s"}', b'{"f": 1, "x": {"%s": 2}}'):
        assert row(kind, text % bad) is None
    assert row({"type": "string"}, b'{"f": "%s"}' % bad) is None


@pytest.mark.parametrize(
    "rest",
    [
        *('"f": 1', '"f": null', r'"\u0066": 1', '"x": 01', '"x": [1,]', '"x": {1: 2}'),
        *('"x"', '"x": ', "x: 1", '"x": "\ud83d"', '"x": NaN', '"x": ' + "[" * 61 + "]" * 61),
    ],
)
def test_unusual_property_is_refused(rest: str) -> None:
    payload = f'{{"f": 7, {rest}}}'.encode(errors="surrogatepass")
    assert row({"type": "integer"}, payload) is None


def test_properties_that_are_not_declared_are_skipped() -> None:
    others = {"a": [1.5e-7, {"b": [], "c": {}}, True, None, False, "\U0001f600"], "g": -1, "ff": ""}
    for text in (json.dumps(others | {"f": 3}), json.dumps({"f": 3} | others, ensure_ascii=False)):
        assert row({"type": "integer"}, text) == 3


def test_order_of_properties_may_change_between_records() -> None:
    rng = random.Random(2)
    names = [f"property{number}" * rng.randint(1, 3) for number in range(30)]
    decoder = Decoder({"properties": {name: {"type": "integer"} for name in names}})
    records = [
        {name: rng.randrange(99) for name in rng.sample(names, rng.randint(0, 30))}
        for _ in range(60)
    ]
    found = decoder.rows([json.dumps(one).encode() for one in records])
    assert found == [dict.fromkeys(names) | one for one in records]


def test_value_that_is_not_an_object_is_the_property_it_is_wrapped_as() -> None:
    decoder = Decoder({"type": "object", "properties": {"k": {"type": "string"}}}, wrapped_as="k")
    assert decoder.rows([b'"a"', b" null ", b'""', b"5"]) == [{"k": "a"}, {"k": None}, {"k": ""}]


def test_many_undeclared_names_beside_many_properties_are_refused() -> None:
    """They would be compared with each other for minutes."""
    decoder = Decoder({"properties": {f"p{number}": {"type": "integer"} for number in range(3000)}})
    assert decoder.row(json.dumps({f"q{number}": 1 for number in range(20)}).encode()) is None
    assert decoder.row(json.dumps({"q": 1, "p2999": 5}).encode()) is not None


def test_full_buffers_end_before_a_record() -> None:
    decoder = Decoder({"properties": {"f": {"type": "string"}}})
    payload = json.dumps({"f": "x" * 30_000}).encode()
    assert len(decoder.rows([payload] * 5)) == 2
    assert decoder.rows([json.dumps({"f": "x" * 70_000}).encode()]) == []


def test_random_json_text_is_that_of_the_reference() -> None:
    schema = {"properties": {"f": {}, "g": {"type": "object"}, "h": {"type": "array"}}}
    decoder, rng = Decoder(schema), random.Random(9)
    writer = RegisteredSchema(1, "JSON", json.dumps(schema))
    decode = json_schema.record_decoder(ResolvedSchema(writer, writer, decoder.fields))

    def anything(depth: int) -> Any:
        names = "abé \uffee😀!"
        match rng.randrange(6 if depth < 4 else 4):
            case 0:
                return rng.choice((None, True, rng.randint(-(10**18), 10**18)))
            case 1:
                return round(rng.uniform(-1e5, 1e5), rng.randint(0, 6))
            case 2 | 3:
                return "".join(rng.choice('abcdefghé😀"\n') for _ in range(rng.randint(0, 12)))
            case 4:
                keys = ("".join(rng.choices(names, k=rng.randint(0, 4))) for _ in range(6))
                return {key: anything(depth + 1) for key in keys}
        return [anything(depth + 1) for _ in range(rng.randint(0, 4))]

    accepted = 0
    for _ in range(3_000):
        value = {"f": anything(0), "g": {"x": anything(1), "a": 1}, "h": [anything(1)]}
        payload = bytearray(text_of(rng, value))
        if rng.random() < 0.2:
            payload[rng.randrange(len(payload))] = rng.choice(b'{}[]",:\\0-. e\x80')
        found = decoder.row(bytes(payload))
        if found is not None:
            accepted += 1
            wanted = stored_values.row(decode(bytes(payload)), decoder.fields)
            assert found == wanted, payload
    assert accepted > 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("{}", []), ('{"a": 1, "b": null}', [("a", 1), ("b", None)]), ('{"": 1}', [("", 1)])),
        (r'{"\u00e9\"": 1}', [('é"', 1)]),
        *((text, None) for text in ('{"a": 1,}', '{"a": "x"}', '{"a"}', "[]", '{"a": 1, "a": 2}')),
        (json.dumps({f"k{n}": n for n in range(500)}), [(f"k{n}", n) for n in range(500)]),
    ],
)
def test_map_has_the_entries_of_the_object(text: str, expected: Any) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert row(schema, f'{{"f": {text}}}') == expected


def test_name_is_found_however_it_is_escaped() -> None:
    names = ('a"b', "\\", "é", "\n", "x" * 250, "😀" * 250)
    decoder = Decoder({"properties": {name: {"type": "integer"} for name in names}})
    record = {name: number for number, name in enumerate(names)}
    every = "".join(f"\\u{ord(character):04x}" for character in 'a"b')
    for text in (json.dumps(record), json.dumps(record, ensure_ascii=False)):
        assert decoder.row(text.encode()) == record
        assert decoder.row(text.replace(json.dumps('a"b'), f'"{every}"').encode()) == record
    assert decoder.row(b'{"a"b": 1}') is None
    assert decoder.row(b'{"\\u00e9": 1, "\xc3\xa9": 2}') is None
    assert decoder.row(json.dumps({"é" * 5_000: 1, "é": 2}).encode()) == dict.fromkeys(names) | {
        "é": 2
    }


A = {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]}
B = {"properties": {"kind": {"enum": ["b", 'c"']}, "y": {"type": "string"}}, "required": ["kind"]}
C = {"properties": {"y": {"type": "string"}, "z": {"type": "string"}}}


D = {"properties": {"d": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
E = {"properties": {"d": {"properties": {"b": {"type": "integer"}}}, "e": {"type": "string"}}}
D_OF_1 = {"connect_union_field_0": {"d": {"a": 1}}}


@pytest.mark.parametrize(
    ("members", "text", "expected"),
    [
        ([A, B], '{"x": 1, "kind": "a"}', {"connect_union_field_0": {"kind": "a", "x": 1}}),
        ([A, B], r'{"kind": "c\""}', {"connect_union_field_1": {"kind": 'c"', "y": None}}),
        ([A, B], '{"kind": null}', {"connect_union_field_0": {"kind": None, "x": None}}),
        ([A, C], '{"y": "q"}', {"connect_union_field_1": {"y": "q", "z": None}}),
        ([A, C], '{"kind": "a", "y": "q"}', None),
        ([A, B], '{"kind": "a", "y": "q"}', {"connect_union_field_0": {"kind": "a", "x": None}}),
        ([D, E], '{"d": {"a": 1}}', D_OF_1),
        ([D, E], '{"d": {"b": 1}}', None),
        ([D, E], '{"d": null}', {"connect_union_field_0": {"d": None}}),
        ([D, {**E, "required": ["e"]}], '{"d": {"a": 1, "x": 2}}', D_OF_1),
        ([C, B], '{"kind": "b", "y": "q"}', {"connect_union_field_1": {"kind": "b", "y": "q"}}),
        ([{"type": "string"}, A], '{"kind": "a"}', {"connect_union_field_1": {"kind": "a"}}),
        *(([A, B], text, None) for text in ('{"kind": "d"}', '{"x": 1}', "{}", "[]", "1")),
        ([A, B], '{"kind": "a", "x": "no"}', None),
        ([A, B], '{"kind": "a", "kind": "b"}', None),
        ([A, B], '{"kind": "a", "x": 1,}', None),
    ],
)
def test_union_of_objects_is_told_by_their_properties(
    members: list[Any], text: str, expected: Any
) -> None:
    found = row({"oneOf": members}, f'{{"f": {text}}}')
    if expected is None:
        assert found is None
        return
    (name,) = expected
    assert {one: value for one, value in found.items() if value is not None}.keys() == {name}
    assert expected[name].items() <= found[name].items()


def decimal(precision: int, scale: int) -> dict[str, Any]:
    parameters = {"connect.decimal.precision": str(precision), "scale": str(scale)}
    return {**DECIMAL, "connect.parameters": parameters}


@pytest.mark.parametrize(
    ("writer", "latest"),
    [
        *((decimal(4, 2), decimal(38, scale)) for scale in (0, 1, 2, 3, 20, 34)),
        *((decimal(38, scale), decimal(9, 2)) for scale in (0, 1, 3, 30, 38)),
        *(({"type": "integer"}, decimal(*kind)) for kind in ((38, 20), (5, 2), (38, 38))),
        ({"type": "integer"}, {"type": "number"}),
        ({"type": "integer", "connect.type": "int32"}, {"type": "integer"}),
    ],
)
def test_number_in_a_column_of_another_type_equals_the_reference(writer: Any, latest: Any) -> None:
    schemas = [
        RegisteredSchema(NUMBER + n, "JSON", json.dumps({"properties": {"f": one}}))
        for n, one in enumerate((writer, latest))
    ]
    runner = ProgramRunner(cast("Format", json_schema), schemas[0], schemas[1], table=schemas[1])
    decode = json_schema.record_decoder(ResolvedSchema(schemas[0], schemas[1], runner.fields))
    rng, seen = random.Random(6), 0
    for _ in range(2_000):
        digits = str(rng.randrange(10 ** rng.randint(1, 19)))
        point = rng.randint(0, len(digits))
        text = rng.choice(
            (
                f"{digits[:point] or '0'}.{digits[point:] or '0'}",
                f"-{digits}",
                f"{digits}e{rng.randint(-9, 9)}",
                f"{rng.randint(-999, 999)}.{rng.randint(0, 9)}00",
                json.dumps(b64encode(rng.randbytes(rng.randint(1, 16))).decode()),
                json.dumps(b64encode(bytes(rng.randint(0, 3)) + rng.randbytes(1)).decode()),
            )
        )
        record = f'{{"f": {text}}}'.encode()
        found = runner.row(record)
        try:
            wanted = stored_values.row(decode(record), runner.fields)
        except MalformedError:
            assert found is None, text
            continue
        assert found in (None, wanted), text
        seen += found is not None
    assert seen > 5


class Reference:
    """The reference decoder of a schema."""

    def __init__(self, schema: Any) -> None:
        writer = RegisteredSchema(1, "JSON", json.dumps(schema))
        self.fields = json_format.fields("test", writer, itertools.count(1))
        self._decode = json_format.record_decoder(ResolvedSchema(writer, writer, self.fields))

    def row(self, payload: bytes) -> dict[str, Any] | None:
        """The row of a record; None: it is malformed."""
        try:
            return stored_values.row(self._decode(payload), self.fields)
        except MalformedError:
            return None


def check(seed: int, oracle: Any, reference: Reference, payload: bytes) -> bool:
    """Whether there is a row, which is the oracle's."""
    found, wanted = reference.row(payload), expected(oracle, payload)
    assert (found is None) == (wanted is None), f"seed {seed}: {payload!r}: {wanted} or {found}"
    if found is None:
        return False
    why = difference(wanted, found)
    assert why is None, f"seed {seed}: {payload!r}: {why}"
    return True


@pytest.mark.parametrize("start", some(range(0, 200, 50)))
def test_records_of_random_schemas_equal_the_oracle(start: int) -> None:
    rows = 0
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        schema, records = schema_and_records(rng)
        oracle, reference = version(schema), Reference(schema)
        for record in records:
            text = json.dumps(record, ensure_ascii=rng.random() < 0.5)
            rows += check(seed, oracle, reference, text.encode())
    assert rows > 100


def choice(rng: random.Random, definitions: dict[str, Any]) -> dict[str, Any]:
    """A choice of members that differ below the first level."""
    members: list[Any] = [random_object(rng, 3, definitions) for _ in range(rng.randint(2, 3))]
    if rng.random() < 0.5:
        for number, member in enumerate(members):
            member["properties"]["Kind'"] = {"const": f"kind {number}"}
    for _ in range(rng.randint(1, 2)):
        match rng.choice(("object", "array", "map", "choice")):
            case "object":
                members = [{"type": "object", "properties": {"in": one}} for one in members]
            case "array":
                members = [{"type": "array", "items": one} for one in members]
            case "map":
                members = [{"type": "object", "additionalProperties": one} for one in members]
            case "choice":
                members = [{"anyOf": [one, {"type": "boolean"}]} for one in members]
                members = [{"type": "object", "properties": {"one": one}} for one in members]
    return {"anyOf": members}


@pytest.mark.parametrize("start", some(range(0, 120, 40)))
def test_records_of_nested_choices_equal_the_oracle(start: int) -> None:
    rows = 0
    for seed in range(start, start + 40):
        rng = random.Random(seed)
        definitions: dict[str, Any] = {}
        properties = {f"p{n}": choice(rng, definitions) for n in range(3)}
        schema = {"type": "object", "properties": properties, "definitions": definitions}
        oracle, reference = version(schema), Reference(schema)
        for _ in range(20):
            record = random_value(rng, schema, schema)
            rows += check(seed, oracle, reference, json.dumps(record).encode())
    assert rows > 500


@pytest.mark.parametrize("start", some(range(1000, 1120, 30)))
def test_hostile_records_equal_the_oracle(start: int) -> None:
    rows = malformed = 0
    for seed in range(start, start + 30):
        rng = random.Random(seed)
        definitions: dict[str, Any] = {}
        properties = {f"p{n}": random_schema(rng, 2, definitions) for n in range(6)}
        schema = {"type": "object", "properties": properties, "definitions": definitions}
        try:
            reference = Reference(schema)
        except TableflowError:
            continue
        oracle = version(schema)
        for payload in itertools.chain(*(hostile(rng, oracle.source) for _ in range(25))):
            if check(seed, oracle, reference, payload):
                rows += 1
            else:
                malformed += 1
    assert min(rows, malformed) > 100
