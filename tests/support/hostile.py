"""Hostile schemas and records: what a producer, or the author of a schema, may send.

Everything is drawn from a seed, so an attack that succeeds can be repeated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from typing import Any, Literal

import fastavro

Kind = Literal["AVRO", "JSON", "PROTOBUF"]
SUBSTITUTION = "${env:SPARK_CONNECT_AUTHENTICATE_TOKEN}"
_INNER = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": ["int", "string"]}]}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "aliases": ["Purchase"],
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "parts", "type": {"type": "map", "values": "bytes"}, "default": {}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "default": "\u0001",
        },
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "default": "A"},
        {"name": "inner", "type": ["null", _INNER], "default": None, "doc": "d"},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ],
}
_POINT = {"type": "object", "properties": {"a": {"type": "integer", "connect.type": "int8"}}}
JSON: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "http://example.org/order.json",
    "title": "Order",
    "type": "object",
    "definitions": {"point": _POINT},
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["null", "string"], "pattern": "^a+$"},
        "any": {},
        "point": {"$ref": "#/definitions/point"},
        "either": {"oneOf": [{"type": "string"}, {"$ref": "#/definitions/point"}]},
        "price": {
            "type": "number",
            "title": "org.apache.kafka.connect.data.Decimal",
            "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        "list": {"type": "array", "items": {"type": "number"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "kind": {"enum": ["A", "B"]},
    },
}
PROTOBUF = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  repeated int32 numbers = 3;
  map<string, Inner> parts = 4;
  oneof choice { string text = 5; Inner inner = 6; }
  Kind kind = 7;
  google.protobuf.Timestamp at = 8;
  repeated Inner inners = 9;
  message Inner { int32 a = 1; bytes b = 2; }
  enum Kind { A = 0; B = 1; }
}
"""
SCHEMAS: dict[Kind, str] = {
    "AVRO": json.dumps(AVRO),
    "JSON": json.dumps(JSON),
    "PROTOBUF": PROTOBUF,
}


def varint(number: int) -> bytes:
    """Return a number as Protobuf writes it."""
    rest, encoded = number & 2**64 - 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def zigzag(number: int) -> bytes:
    """Return a long as Avro writes it."""
    return varint((number << 1) ^ (number >> 63))


def _avro(**values: Any) -> bytes:
    row = {"id": 7, "tags": ["a", "b"], "parts": {"k": b"v"}, "price": Decimal(1), "e": "A", "t": 0}
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(AVRO), {**row, **values})
    return buffer.getvalue()


VALID: dict[Kind, bytes] = {
    "AVRO": _avro(),
    "JSON": b'{"id":7,"note":"a","any":{"x":[1,null]},"either":{"a":1},"price":1.5,"list":[1,2.5],'
    b'"map":{"k":"v"},"kind":"A","point":{"a":1}}',
    "PROTOBUF": b"\x00\x08\x07\x12\x01a\x1a\x02\x01\x02\x22\x07\x0a\x01k\x12\x02\x08\x01\x2a\x01t"
    b"\x38\x01\x42\x02\x08\x05\x4a\x02\x08\x01",
}
CLAIMS = [2**24, 2**24 + 1, 2**31 - 9, 2**31, 2**40, 2**62, -(2**31), -(2**63)]


def _avro_records() -> Iterator[bytes]:
    for claim in CLAIMS:
        yield b"\x02" + zigzag(claim)  # items of an array
        yield b"\x02\x02" + zigzag(claim)  # characters of a string
        yield b"\x02\x00" + zigzag(claim)  # entries of a map
        yield b"\x02\x00\x02\x02k" + zigzag(claim)  # bytes
        yield b"\x02" + zigzag(-1) + zigzag(claim)  # the bytes of a block
        yield b"\x02" + zigzag(-1) + zigzag(claim) + b"\x02a\x00" + VALID["AVRO"][6:]
        yield b"\x02\x00\x00\x02\x01" + zigzag(claim)  # a symbol
        yield b"\x02\x00\x00\x02\x01\x00" + zigzag(claim)  # a branch
        yield b"\x02\x00\x00\x02\x01\x00\x00" + zigzag(claim)  # a timestamp
    yield b"\x02\x00\x00" + zigzag(500_000) + b"\x7f" * 500_000 + b"\x00\x00\x00"  # a decimal
    yield b"\xff" * 11
    yield b"\x02" + zigzag(10) + b"\x00" * 9  # the last item is missing


def _json_records() -> Iterator[bytes]:
    digits = b"1" * 100_000
    numbers = [digits, b"0." + digits, digits + b"e1", b"1." * 50_000 + b"e", b"9" * 309]
    numbers += [b"1e999999999", b"-1e-999999999", b"1e400", b"-0", b"NaN", b"Infinity"]
    for number in numbers:
        for name in (b"id", b"any", b"price"):
            yield b'{"%s":%s}' % (name, number)
        yield b'{"any":{"x":[1.5e3,"%s"]}}' % number
        yield b'{"either":%s,"list":[%s]}' % (number, number)
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        for depth in (998, 1_001, 100_000):
            yield b'{"any":' + opening * depth + b"1" + closing * depth + b"}"
            yield b'{"any":' + opening * depth
    yield b'{"id":1,"id":2,"any":1,"any":{},"either":"x","either":{"a":"x"}}'
    yield b'{"%s":1}' % (b"k" * 900_000)
    yield b'{"map":{%s}}' % b",".join(b'"k%d":"v"' % (n % 7) for n in range(50_000))
    yield b'{"note":"%s"}' % (b"\\\\" * 100_000)
    yield b'{"note":"%s"}' % (b'\\"' * 100_000)
    yield b'{"note":"%s"}' % (b"\\ud800" * 50_000)
    yield b'{"note":"\\ud800","any":"\\uDBFF\\uDFFF"}'
    yield b'{"%s":"%s","any":"%s"}' % ((SUBSTITUTION.encode(),) * 3)
    yield b'{"any":{"%s":{"%s":1}}}' % ((SUBSTITUTION.encode(),) * 2)
    yield b'{"price":"%s"}' % (b"AAAA" * 100_000)
    yield b'{"id":1}{"id":2}'
    yield b'{"id":1}],"ok":true,"r":[{"id":3}'
    yield b"\xef\xbb\xbf{}"
    yield b'{"note":"\xff\xfe"}'
    yield b'{"kind":"%s"}' % (b"<!channel>" * 100)


def _protobuf_records() -> Iterator[bytes]:
    for claim in (*CLAIMS, 2**32, 2**64 - 1):
        for tag in (b"\x12", b"\x1a", b"\x22", b"\x32", b"\x4a", b"\xfa\x01"):
            yield b"\x00" + tag + varint(claim)
            yield b"\x00" + tag + varint(claim) + b"\x01" * 20
        yield varint(claim) + b"\x02\x04"  # message indexes
        yield b"\x00\x42" + varint(11) + b"\x08" + varint(claim)  # a timestamp
        yield b"\x00\x08" + varint(claim) + b"\x38" + varint(claim)
    yield b"\x00\x08" + b"\xff" * 10 + b"\x01"  # a number of eleven bytes
    yield b"\x00" + b"\xff" * 30
    yield b"\x00" + b"\x53" * 50_000  # groups in groups
    yield b"\x00" + b"\x53" * 20_000 + b"\x54" * 20_000
    yield b"\x00" + b"\x53" + b"\x60\x01" * 20_000 + b"\x54"
    yield b"\x00\x00\x00"
    yield b"\x00\x0e\x01\x0f\x01"
    yield b"\x00\x1a\x03\x01\x02\x80"  # a packed number that ends too late
    yield b"\x00" + b"\x18\x01" * 100_000  # not packed
    yield b"\x00" + b"\x4a\x00" * 100_000  # empty messages
    yield b"\x00" + b"\x32\x02\x08\x01" * 50_000  # merged
    yield b"\x00" + (b"\x2a\x01a" + b"\x32\x00") * 20_000  # members of a oneof
    yield b"\x00" + b"\x22\x05\x0a\x01k\x12\x00" * 20_000  # one key of a map
    yield b"\x00\x12\x02\xff\xfe"


_RECORDS = {"AVRO": _avro_records, "JSON": _json_records, "PROTOBUF": _protobuf_records}


def records(kind: Kind, count: int, seed: int = 19) -> Iterator[bytes]:
    """Yield the records of the corpus, then ``count`` valid ones that are changed at random."""
    yield from _RECORDS[kind]()
    chance, valid = random.Random(f"{seed} {kind}"), VALID[kind]
    for _ in range(count):
        changed = bytearray(valid)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(changed))
            match chance.randrange(4):
                case 0:
                    changed[at] = chance.randrange(256)
                case 1:
                    changed[at : at + 1] = varint(chance.choice(CLAIMS))
                case 2:
                    del changed[at : at + chance.randint(1, 4)]
                    changed += b"\x00"
                case _:
                    other = chance.randrange(len(changed))
                    changed[at:at] = changed[min(at, other) : max(at, other)] * chance.randint(1, 9)
        yield bytes(changed)


_VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 1e308, float("inf"), float("nan"), 10**400, -(10**30), "", "\0"),
    *(SUBSTITUTION, "${system:user.home}", "a" * 50_000, "`';--", "\ud800", "\xff" * 70_000),
    *("a{99999999999999999999}", "(" * 5_000, "(a+)+$", "../../etc/passwd", "1" * 5_000, "é"),
    *("#", "#/definitions/point/properties/a/type/x", "#/x/99999999999999999999", "http://[::1"),
    *("http://127.0.0.1:1/remote.json", "file:///etc/passwd", "urn:x:%zz", "<!channel>", "\x1b[2J"),
    *([], {}, [[]], [{}], [1, 2], {"a": 1}, {"$ref": "#"}, {"type": "array", "items": "null"}),
    *("record", "null", "array", "int", "bytes", "Inner", "Order", "date-time", ["null"]),
    *({"type": "fixed", "name": "F", "size": 2**31 - 1}, {"type": "fixed", "name": "F", "size": 0}),
    {"type": "array", "items": {"type": "map", "values": "Order"}},
]
_KEYWORDS = [
    "$ref",
    "type",
    "items",
    "values",
    "name",
    "size",
    "symbols",
    "default",
    "properties",
    "allOf",
    "oneOf",
    "enum",
    "const",
    "$id",
    "id",
    "aliases",
    "pattern",
    "connect.index",
    "connect.type",
    "title",
    "namespace",
    "precision",
    "scale",
    "logicalType",
    "additionalProperties",
    "dependentSchemas",
    "dependencies",
    "if",
    "then",
    "$defs",
    "$anchor",
    "required",
    "prefixItems",
]
_TEXTS = [
    *(SUBSTITUTION, "\0", "{" * 300, "message X {", "}", " = 536870911;", " = 0;", "repeated"),
    *("99999999999999999999", 'import "../../x.proto";', 'import "/etc/passwd";', "\ud800"),
    *("a" * 5_000, "group G = 9 { }", "extensions 1 to max;", "reserved 1 to max;"),
    *(
        "map<string, map<int32,int32>> z = 9;",
        'import public "schema.proto";',
        "option (x) = 1;",
        "é",
    ),
]


def schemas(kind: Kind, count: int, seed: int = 19) -> Iterator[str]:
    """Yield schemas that are changed at random; most are not valid."""
    chance = random.Random(f"{seed} {kind}")
    for _ in range(count):
        if kind == "PROTOBUF":
            yield _changed_text(chance, PROTOBUF)
        else:
            yield json.dumps(_changed(chance, json.loads(SCHEMAS[kind])))


def _changed(chance: random.Random, schema: Any) -> Any:
    for _ in range(chance.randint(1, 3)):
        paths = [path for path in _paths(schema) if path]
        if not paths:
            return schema
        *inside, name = chance.choice(paths)
        parent, value = _at(schema, inside), json.loads(json.dumps(chance.choice(_VALUES)))
        match chance.randrange(8):
            case 0 if isinstance(parent, dict):
                parent[str(value)[:2_000]] = parent.pop(name)
            case 1 if isinstance(parent, dict):
                parent[chance.choice(_KEYWORDS)] = value
            case 2 if isinstance(parent, dict):
                del parent[name]
            case 3 if isinstance(parent, list):
                parent.append(value)
            case 4:
                parent[name] = json.loads(json.dumps(_at(schema, chance.choice(paths))))
            case _:
                parent[name] = value
    return schema


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = value.items() if isinstance(value, dict) else ()
    for name, inner in enumerate(value) if isinstance(value, list) else items:
        yield from _paths(inner, (*path, name))


def _at(value: Any, path: Any) -> Any:
    for name in path:
        value = value[name]
    return value


def _changed_text(chance: random.Random, text: str) -> str:
    for _ in range(chance.randint(1, 2)):
        start, end = sorted(chance.randrange(len(text)) for _ in range(2))
        match chance.randrange(4):
            case 0:
                text = text[:start] + text[min(end, start + 20) :]
            case 1:
                words = text.split(" ")
                words[chance.randrange(len(words))] = chance.choice(words)
                text = " ".join(words)
            case _:
                text = text[:start] + chance.choice(_TEXTS) + text[start:]
    return text
