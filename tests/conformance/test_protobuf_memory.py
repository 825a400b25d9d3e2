"""Damaged records of Protobuf between guard pages: no byte beyond the record is read, none is
written beyond the room of the buffers.
"""

from __future__ import annotations

import random
from typing import Any

from fuzz_process import fuzz_all, fuzz_some, main, millions

_SCHEMAS = 40


def test_damaged_records_touch_no_other_memory() -> None:
    fuzz_some(__file__)


@millions
def test_millions_of_damaged_records_touch_no_other_memory() -> None:
    fuzz_all(__file__)


_SIZES = (b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff\xff\x03", b"\x80\x80\x80\x80\x08")
WORDS = [
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
    from fuzz_protobuf import fill, schema_and_records, versions
    from test_protobuf_programs import Both, first_message

    from topicberg.errors import TableflowError

    if number % 3 == 0:
        sample = schema_and_records(rng)
        return Both(sample.text), sample.payloads
    old, new = (DECIMALS, None) if number % 3 == 1 else versions(rng)
    try:
        both = Both(old, new)
    except TableflowError:  # the versions do not fit each other
        old, both = DECIMALS, Both(DECIMALS)
    message = first_message(old)
    payloads = [b"\0" + fill(rng, message()).SerializeToString() for _ in range(20)]
    if old == DECIMALS:  # numbers of an enum without names
        payloads += [b"\0\x2a\x0a" + rng.randbytes(10) for _ in range(5)]
    return both, payloads


def decode(number: int, rng: random.Random, count: int) -> int:
    """Decode damaged records of one program; return how many were accepted."""
    import guards
    from program_runner import PREFIX

    from topicberg.formats.columnar.columns import Buffers

    both, payloads = _sample(rng, number)
    buffers = guards.guard(Buffers(both.shape, 4, rng.choice((16, 48, 400, 4_000))))
    accepted: int = guards.fuzz(
        both._programs, buffers, [PREFIX + payload for payload in payloads], WORDS, count, number
    )
    return accepted


if __name__ == "__main__":
    main(_SCHEMAS, decode)
