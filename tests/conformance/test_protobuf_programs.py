"""Protobuf records by programs against the decoder of arrays, which Spark's path uses.

A program may refuse any record, which Spark's path then decodes. What it accepts must be exactly
what the other decoder makes of it, and what encoders write must be accepted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest
from program_runner import NUMBER, PREFIX, ProgramRunner
from protobuf_family import ProtobufFamily
from shapes import difference

from topicberg.errors import TableflowError
from topicberg.formats import DECODED, Format, Pairing, protobuf
from topicberg.formats.columnar.program import NotCoveredError
from topicberg.formats.subjects import RegisteredSchema


class Both(ProgramRunner):
    """The program of a schema, and its decoder of arrays."""

    def __init__(self, text: str) -> None:
        registered = RegisteredSchema(NUMBER, "PROTOBUF", text)
        super().__init__(cast("Format", protobuf), registered)
        self.of_arrays = protobuf.of_arrays(Pairing(registered, registered, self.fields))

    def expected(self, payloads: list[bytes]) -> list[dict[str, Any] | None]:
        """The rows of the other decoder; None: the record is malformed."""
        found = self.of_arrays(pa.array([PREFIX + payload for payload in payloads], pa.binary()))
        return [row if row.pop(DECODED) else None for row in found.to_pylist()]


@dataclass
class Case:
    both: Both
    encode: Any
    rng: random.Random


def case(seed: int) -> Case | None:
    rng = random.Random(seed)
    version = ProtobufFamily(rng).first()
    try:
        return Case(Both(version.text), version.encode, rng)
    except (NotCoveredError, TableflowError):
        return None


def check(both: Both, payloads: list[bytes], seed: int) -> tuple[int, int]:
    """Compare both decoders; return how many records the program accepts, and how many the other
    one does.
    """
    wanted = both.expected(payloads)
    accepted = 0
    for payload, one in zip(payloads, wanted, strict=True):
        row = both.row(payload)
        if row is None:
            continue
        accepted += 1
        assert one is not None, f"seed {seed}: {payload.hex()} is malformed"
        why = difference(one, row)
        assert why is None, f"seed {seed}: {payload.hex()}: {why}"
    return accepted, sum(one is not None for one in wanted)


def test_records_of_random_schemas_equal_those_of_arrays() -> None:
    accepted = sound = 0
    for seed in range(40):
        if (found := case(seed)) is None:
            continue
        payloads = [found.encode(found.rng, 0.0) for _ in range(30)]
        one, other = check(found.both, payloads, seed)
        accepted, sound = accepted + one, sound + other
    assert sound > 300
    assert accepted > 0.9 * sound


def damaged(rng: random.Random, payload: bytes, other: bytes) -> bytes:
    changed = bytearray(payload)
    place = rng.randrange(len(changed) + 1)
    match rng.randrange(6):
        case 0 if place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        case 1:
            del changed[place:]
        case 2:
            changed[place:place] = rng.randbytes(rng.randint(1, 3))
        case 3:  # fields that occur twice, messages that merge
            changed += other[1:]
        case 4:
            changed += bytes((rng.randrange(256), rng.randrange(4), rng.randrange(256)))
        case _:
            changed[place:place] = b"\xff" * rng.randint(1, 10)
    return bytes(changed)


def test_damaged_records_are_refused_or_equal_those_of_arrays() -> None:
    accepted = total = 0
    for seed in range(1000, 1060):
        if (found := case(seed)) is None:
            continue
        rng = found.rng
        payloads = [found.encode(rng, 0.1) for _ in range(60)]
        payloads = [damaged(rng, one, rng.choice(payloads)) for one in payloads]
        one, _ = check(found.both, payloads, seed)
        accepted, total = accepted + one, total + len(payloads)
    assert 50 < accepted < total - 50


EVERY = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message All {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6;
  fixed32 g = 7; fixed64 h = 8; sfixed32 i = 9; sfixed64 j = 10; float k = 11; double l = 12;
  bool m = 13; string n = 14; bytes o = 15; Color p = 16;
  optional int32 q = 17; optional string r = 18;
  repeated sint64 s = 19; repeated double t = 20; repeated bool u = 21; repeated Color v = 22;
  repeated string w = 23; Inner x = 24; repeated Inner y = 25;
  google.protobuf.Timestamp z = 26; google.protobuf.Int64Value aa = 27;
  repeated google.protobuf.StringValue ab = 28;
  oneof either { int32 ac = 29; string ad = 30; Inner ae = 31; }
  enum Color { NONE = 0; RED = 5; BLUE = -3; }
  message Inner { string name = 1; repeated int32 many = 2; Inner2 deep = 3; }
  message Inner2 { repeated Inner3 items = 1; double far = 2000; }
  message Inner3 { bytes data = 1; }
}
"""


def test_every_kind_of_field_equals_that_of_arrays() -> None:
    from google.protobuf import message_factory

    from topicberg.formats import protoc

    both, rng = Both(EVERY), random.Random(4)
    file = protoc.compiled("every.proto", EVERY)
    make = message_factory.GetMessageClass(file.message_types_by_name["All"])

    def whole(bits: int, *, signed: bool = True) -> int:
        low = -(2 ** (bits - 1)) if signed else 0
        high = 2 ** (bits - signed) - 1
        return rng.choice((0, low, high, rng.randint(low, high), rng.randrange(300)))

    def inner() -> dict[str, Any]:
        deep = {"items": [{"data": b"x"}] * rng.randrange(3), "far": rng.random()}
        chosen = {
            "name": "ü" * rng.randrange(3),
            "many": [whole(32) for _ in range(rng.randrange(4))],
        }
        return chosen | ({"deep": deep} if rng.random() < 0.5 else {})

    def several(value: Any) -> list[Any]:
        return [value() for _ in range(rng.randrange(4))]

    def color() -> int:
        return rng.choice((0, 5, -3))

    payloads: list[bytes] = []
    for _ in range(400):
        record: dict[str, Any] = {
            **{name: whole(32) for name in "aeiq"},
            **{name: whole(64) for name in ("b", "f", "j", "aa")},
            **{name: whole(32, signed=False) for name in "cg"},
            **{name: whole(64, signed=False) for name in "dh"},
            **{"k": rng.choice((0.5, -0.0, 1e9)), "l": rng.gauss(0, 1), "m": rng.random() < 0.5},
            **{"n": rng.choice(("", "text", "é" * 50)), "o": rng.randbytes(3), "p": color()},
            **{"r": "", "s": several(lambda: whole(64)), "t": several(rng.random)},
            **{"u": several(lambda: rng.random() < 0.5), "v": several(color)},
            **{"w": several(lambda: "w"), "x": inner(), "y": several(inner)},
            **{"z": {"seconds": rng.randint(-(10**9), 10**9), "nanos": rng.randrange(10**9)}},
            **{"ab": several(lambda: rng.choice(("", "a"))), "ad": "one of them"},
        }
        wrapped = {"aa": {"value": record["aa"]}, "ab": [{"value": one} for one in record["ab"]]}
        kept = {name: one for name, one in (record | wrapped).items() if rng.random() < 0.8}
        payloads.append(b"\0" + make(**kept).SerializeToString())
    accepted, sound = check(both, payloads, 4)
    assert accepted == sound == len(payloads)
    assert both.rows(payloads[:64]) == both.expected(payloads[:64])
    hostile = [damaged(rng, one, rng.choice(payloads)) for one in payloads for _ in range(3)]
    accepted, sound = check(both, hostile, 4)
    assert 0 < accepted <= sound < len(hostile)
    both.rows([b"\2\0" + payloads[0][1:], b"\0"])


def test_maps_and_groups_have_no_program() -> None:
    for body in ("map<string, int32> a = 1;", "optional group A = 1 { optional int32 b = 2; }"):
        with pytest.raises(NotCoveredError):
            Both(f'syntax = "proto2"; message M {{ optional int32 x = 9; {body} }}')
