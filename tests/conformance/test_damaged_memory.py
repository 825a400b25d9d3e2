"""Damaged records between guard pages: no byte beyond the record is read, and none is written
beyond the room of the buffers.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from fuzz_process import fuzz_all, fuzz_some, main, millions

each_format = pytest.mark.parametrize("format_", ["avro", "json", "protobuf"])


@each_format
def test_damaged_records_touch_no_other_memory(format_: str) -> None:
    fuzz_some(__file__, format_)


@millions
@each_format
def test_millions_of_damaged_records_touch_no_other_memory(format_: str) -> None:
    fuzz_all(__file__, format_)


def _number(value: int) -> bytes:
    bits, data = (value << 1) ^ (value >> 63), bytearray()
    while bits > 0x7F:
        data.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*data, bits])


_AVRO_WORDS = [
    *map(_number, (-1, 1, 15, 16, 17, 63, 64, 65, 2**31, -(2**31) - 1, 2**62, 2**63 - 1)),
    _number(-(2**63)),
    b"\x80\x00",
    b"\xff" * 10,
    b"\xff" * 9 + b"\x01",
]


def avro(number: int, rng: random.Random, count: int) -> int:
    """Decode damaged records of one program; return how many were accepted."""
    from guards import fuzz, guard
    from test_avro_programs import CONNECT, Compiled, compiled, connect_record
    from test_avro_records import histories

    from topicberg.formats.columnar.columns import Buffers
    from topicberg.formats.framing import wire_prefix

    if number % 10:
        (table,) = histories(number, 1)
        it = compiled(table)
        pool = [
            wire_prefix(writer) + version.encode(rng, 0.1)
            for writer, version in enumerate(table.versions)
            for _ in range(20)
        ]
    else:
        it = Compiled.of_one_version(CONNECT)
        pool = [wire_prefix(1) + connect_record(rng) for _ in range(20)]
    buffers = guard(Buffers(it.shape, 4, rng.choice((48, 200, 1_000))))
    accepted: int = fuzz(it.programs, buffers, pool, _AVRO_WORDS, count, number)
    return accepted


_JSON_WORDS = [
    *(b'"', b"\\", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b'\\"', b"\xf0\x9f\x98\x80", b"\xff"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'{"":', b'"a":1,', b" \t\n", b"\0", b"null", b"true"),
    *(b"1e3", b"1.0", b"-0", b"1e999", b"123456789012345678901234567890", b"0.0000000001", b"-"),
    *(b'"QUI="', b'"QR=="', b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=", b"2024-02-29T23:59:59.5Z"),
    *(b'{"key":1}', b'{"key":"a","value":null},', b"x" * 40, b"[[[[[[[[", b'{"a":{"a":{"a":'),
]


def _covered(rng: random.Random) -> tuple[Any, Any]:
    """A schema and its program."""
    from fuzz_json import random_schema
    from test_json_programs import TIME, Decoder

    from topicberg.errors import TableflowError
    from topicberg.formats.columnar.program import NotCoveredError

    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {"time": TIME}
    for number in range(8):
        name = rng.choice((f"p{number}", f'"{number}\\', f"é{number}" * 20))
        schema = random_schema(rng, 1, definitions)
        try:
            Decoder({"properties": {name: schema}, "definitions": definitions})
        except (NotCoveredError, TableflowError):
            continue
        properties[name] = schema
    root = {"type": "object", "properties": properties, "definitions": definitions}
    return root, Decoder(root)


def json_(number: int, rng: random.Random, count: int) -> int:
    """Decode damaged records of one program; return how many were accepted."""
    import guards
    from fuzz_json import random_value
    from hostile_json import hostile
    from program_runner import PREFIX

    from topicberg.formats.columnar.columns import Buffers

    root, decoder = _covered(rng)
    values = [random_value(rng, root, root) for _ in range(20)]
    texts = [json.dumps(one, ensure_ascii=rng.random() < 0.5).encode() for one in values]
    texts += [text for _ in range(5) for text in hostile(rng, root)]
    # Strings are copied, and base64 decoded, in words: see topicberg.formats.columnar.columns.
    size = rng.choice((48, 400, 4_000))
    buffers = guards.guard(Buffers(decoder.shape, 4, size), slack=16)
    accepted: int = guards.fuzz(
        decoder._programs, buffers, [PREFIX + text for text in texts], _JSON_WORDS, count, number
    )
    return accepted


_SIZES = (b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff\xff\x03", b"\x80\x80\x80\x80\x08")
_PROTOBUF_WORDS = [
    *_SIZES,
    *(b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80\x80", b"\xff" * 40),
    *(
        b"\x08\x01",
        b"\x0a\x00",
        b"\x12\x02\x08\x01",
        b"\x1a\x03\x0a\x01k",
        b"\x10\xff\xff\xff\xff\x0f",
    ),
    *(b"\x0b\x0c", b"\x0d" + bytes(4), b"\x09" + bytes(8), b"\x0a\x10" + b"\x80" * 16),
    *(bytes([number << 3 | wire]) for number in (1, 2, 3, 7) for wire in range(6)),
]
DECIMALS = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
message M {
  confluent.type.Decimal a = 1 [(confluent.field_meta) =
    {params: [{key: "precision", value: "20"}, {key: "scale", value: "4"}]}];
  repeated confluent.type.Decimal b = 2 [(confluent.field_meta) =
    {params: [{key: "precision", value: "38"}, {key: "scale", value: "38"}]}];
  map<uint64, bytes> c = 3;
  map<string, I> d = 4;
  repeated E e = 5;
}
message I {
  confluent.type.Decimal a = 1 [(confluent.field_meta) =
    {params: [{key: "precision", value: "38"}, {key: "scale", value: "0"}]}];
}
enum E { ZERO = 0; LESS = -7; BIG = 2147483647; }
"""


def _sample(rng: random.Random, number: int) -> tuple[Any, list[bytes]]:
    """The program of a schema, perhaps for the table of a later one, and records."""
    from fuzz_protobuf import fill, schema_and_records
    from protobuf_family import ProtobufFamily
    from test_protobuf_programs import Both, first_message

    from topicberg.errors import TableflowError

    if number % 3 == 0:
        sample = schema_and_records(rng)
        return Both(sample.text), sample.payloads
    if number % 3 == 2:
        family = ProtobufFamily(rng)
        old = family.first()
        new = family.next(old, wild=True)
        with suppress(TableflowError):  # the versions may not fit each other
            both = Both(old.text, new.text if new else None)
            return both, [old.encode(rng, 0.1) for _ in range(20)]
    both, message = Both(DECIMALS), first_message(DECIMALS)
    payloads = [b"\0" + fill(rng, message()).SerializeToString() for _ in range(20)]
    # Numbers of an enum without names.
    return both, payloads + [b"\0\x2a\x0a" + rng.randbytes(10) for _ in range(5)]


def protobuf(number: int, rng: random.Random, count: int) -> int:
    """Decode damaged records of one program; return how many were accepted."""
    import guards
    from program_runner import PREFIX

    from topicberg.formats.columnar.columns import Buffers

    both, payloads = _sample(rng, number)
    buffers = guards.guard(Buffers(both.shape, 4, rng.choice((16, 48, 400, 4_000))))
    accepted: int = guards.fuzz(
        both._programs,
        buffers,
        [PREFIX + payload for payload in payloads],
        _PROTOBUF_WORDS,
        count,
        number,
    )
    return accepted


if __name__ == "__main__":
    main({"avro": (100, avro), "json": (100, json_), "protobuf": (40, protobuf)})
