"""Protobuf records by programs against the reference decoder. A program may refuse any record,
which the reference decoder then reads. What it accepts must be exactly what that one makes of it,
and what encoders write must be accepted."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import fuzz_protobuf
import pytest
from program_runner import NUMBER, ProgramRunner
from protobuf_family import ProtobufFamily
from shapes import difference

from topicberg.errors import TableflowError
from topicberg.formats import protobuf
from topicberg.formats.columnar.columns import Buffers, BuffersFullError
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.protobuf import protoc
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema


class Both(ProgramRunner):
    """The program of a schema, and its reference decoder."""

    def __init__(self, text: str, newest: str | None = None) -> None:
        """:param newest: the latest version, whose columns the table has"""
        writer = RegisteredSchema(NUMBER, "PROTOBUF", text)
        latest = writer if newest is None else RegisteredSchema(NUMBER + 1, "PROTOBUF", newest)
        super().__init__(cast("Format", protobuf), writer, latest, table=latest)
        self._decode = protobuf.record_decoder(ResolvedSchema(writer, latest, self.fields))

    def references(self, payloads: list[bytes]) -> list[dict[str, Any] | None]:
        """The rows of the reference decoder; None: the record is malformed."""
        decoded = [self._decoded(payload) for payload in payloads]
        stored: list[dict[str, Any]] = []
        self.buffers.clear()
        for values in (values for values in decoded if values is not None):
            try:
                self.buffers.append(values)
            except BuffersFullError:
                stored += self.rows_in_buffers()
                self.buffers.clear()
                self.buffers.append(values)
        rows = iter([*stored, *self.rows_in_buffers()])
        return [None if values is None else next(rows) for values in decoded]

    def _decoded(self, payload: bytes) -> Any:
        try:
            return self._decode(payload)
        except MalformedError:
            return None


def check(both: Both, payloads: list[bytes], seed: int) -> tuple[int, int]:
    """Compare the decoders; return how many records the program accepts, and how many the reference
    decoder does."""
    wanted = both.references(payloads)
    accepted = 0
    for payload, one, row in zip(payloads, wanted, both.row_of_each(payloads), strict=True):
        if row is None:
            continue
        accepted += 1
        assert one is not None, f"seed {seed}: {payload.hex()} is malformed"
        why = difference(one, row)
        assert why is None, f"seed {seed}: {payload.hex()}: {why}"
    return accepted, sum(one is not None for one in wanted)


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


def test_records_and_damaged_ones_are_refused_or_equal_the_reference() -> None:
    """In a table of their own version, and in one of a later version."""
    accepted, sound, accepted_damaged, total = Counter[bool](), Counter[bool](), 0, 0
    for seed in range(50):
        rng = random.Random(seed)
        family = ProtobufFamily(rng)
        version = family.first()
        payloads = [version.encode(rng, 0.1 * (number % 2)) for number in range(40)]
        hostile = [damaged(rng, one, rng.choice(payloads)) for one in payloads]
        for newest in (None, family.next(version, wild=True) or family.next(version, wild=True)):
            try:
                both = Both(version.text, newest.text if newest else None)
            except TableflowError:
                continue
            one, other = check(both, payloads, seed)
            accepted[newest is None] += one
            sound[newest is None] += other
            one, _ = check(both, hostile, seed)
            accepted_damaged, total = accepted_damaged + one, total + len(hostile)
    for is_own in (True, False):
        assert accepted[is_own] > 0.9 * sound[is_own] > 500
    assert 100 < accepted_damaged < total - 100


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


def test_every_kind_of_field_equals_the_reference() -> None:
    from google.protobuf import message_factory

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
    assert both.rows(payloads[:64]) == both.references(payloads[:64])
    hostile = [damaged(rng, one, rng.choice(payloads)) for one in payloads for _ in range(3)]
    accepted, sound = check(both, hostile, 4)
    assert 0 < accepted <= sound < len(hostile)
    both.rows([b"\2\0" + payloads[0][1:], b"\0"])


def test_records_with_groups_and_defaults_equal_the_reference() -> None:
    accepted = sound = 0
    for seed in range(2000, 2025):
        rng = random.Random(seed)
        sample = fuzz_protobuf.schema_and_records(rng)
        one, other = check(Both(sample.text), sample.payloads, seed)
        accepted, sound = accepted + one, sound + other
    assert accepted > 0.6 * sound > 120


def first_message(text: str) -> Any:
    from google.protobuf import message_factory

    file = protoc.compiled("first.proto", text)
    return message_factory.GetMessageClass(next(iter(file.message_types_by_name.values())))


def proto3(body: str, *imports: str) -> str:
    lines = [f'import "{name}";' for name in imports]
    return f'syntax = "proto3"; {" ".join(lines)} message M {{ {body} }}'


DECIMAL_FILES = ("confluent/meta.proto", "confluent/type/decimal.proto")


def meta(precision: int, scale: int) -> str:
    return (
        f'[(confluent.field_meta) = {{params: [{{key: "precision", value: "{precision}"}}, '
        f'{{key: "scale", value: "{scale}"}}]}}]'
    )


@pytest.mark.parametrize("kind", fuzz_protobuf.INTEGERS)
def test_whole_numbers_go_to_each_others_columns(kind: str) -> None:
    """Also to those of decimals, in lists, in maps, and as defaults."""
    low, high = fuzz_protobuf.INTEGERS[kind]
    decimals = ((3, 1), (20, 0), (20, 2), (38, 18), (38, 38), (9, 9))
    edges = {n + d for n in (0, 99, 2**31, -(2**31), 2**32, 2**63, 2**64) for d in (-1, 0, 1)}
    numbers = sorted(n for n in {*edges, low, high} if low <= n <= high)
    old, new, names = [], ["bool z = 999;"], []
    for at, column in enumerate((*fuzz_protobuf.INTEGERS, *decimals), 1):
        is_decimal = isinstance(column, tuple)
        kept = "confluent.type.Decimal" if is_decimal else column
        more = meta(*column) if isinstance(column, tuple) else ""
        # The value of a field that is missing has to fit, too.
        old += [f"{kind} a{at} = {at};", f"repeated {kind} b{at} = {100 + at};"]
        new += [f"{kept} a{at} = {at} {more};", f"repeated {kept} b{at} = {100 + at} {more};"]
        key = kind if is_decimal else column
        old.append(f"map<{kind}, {kind}> c{at} = {200 + at};")
        new.append(f"map<{key}, {kept}> c{at} = {200 + at} {more};")
        names.append(at)
    text = proto3(" ".join(old))
    make, both = first_message(text), Both(text, proto3(" ".join(new), *DECIMAL_FILES))
    for at in names:
        records = [make(**{f"a{at}": n}) for n in numbers]
        records += [make(**{f"b{at}": [n, 0], f"c{at}": {n: n, 1: 1}}) for n in numbers]
        payloads = [b"\0" + one.SerializeToString() for one in records]
        accepted, sound = check(both, payloads, at)
        assert accepted == sound > 0


class OfTable(Both):
    """Records in a table of another schema, whose columns a later version had."""

    def __init__(self, text: str, table: str) -> None:
        writer = RegisteredSchema(NUMBER, "PROTOBUF", text)
        of_table = RegisteredSchema(NUMBER + 1, "PROTOBUF", table)
        ProgramRunner.__init__(self, cast("Format", protobuf), writer, table=of_table)
        self._decode = protobuf.record_decoder(ResolvedSchema(writer, writer, self.fields))


def decimals(precision: int, scale: int) -> str:
    kind, more = "confluent.type.Decimal", meta(precision, scale)
    return proto3(
        f"{kind} a = 1 {more}; repeated {kind} b = 2 {more}; map<string, {kind}> c = 3 {more};",
        *DECIMAL_FILES,
    )


@pytest.mark.parametrize(
    ("precision", "scale"), [(1, 0), (9, 2), (18, 18), (20, 0), (38, 0), (38, 10), (38, 38)]
)
@pytest.mark.parametrize("column", ["the same", "decimal(38,0)", "decimal(12,4)", "int64", "int32"])
def test_decimals_of_every_scale_equal_the_reference(
    precision: int, scale: int, column: str
) -> None:
    rng, text = random.Random(precision + scale), decimals(precision, scale)
    make = first_message(text)
    others = {"decimal(38,0)": decimals(38, 0), "decimal(12,4)": decimals(12, 4)}
    if column.startswith("int"):
        if scale:
            return
        others[column] = proto3(
            f"{column} a = 1; repeated {column} b = 2; map<string, {column}> c = 3;"
        )
    both = OfTable(text, others[column]) if column in others else Both(text)

    def one() -> dict[str, Any]:
        digits = rng.choice((1, 5, 19, 20, 37, 38, 39, rng.randint(1, 40)))
        number = rng.choice((rng.randrange(10**digits), 10**digits, 10**digits - 1, 0, 7))
        number *= rng.choice((1, -1)) * 10 ** rng.choice((0, 0, 3, 20))
        size = number.bit_length() // 8 + 1 + rng.choice((0, 0, 0, 1))
        value = rng.choice((b"", number.to_bytes(size, "big", signed=True)))
        own = rng.choice((scale, scale, scale + 1, scale - 2, 0, 38, -38, 45, -(2**31), 2**31 - 1))
        return {"value": value, "precision": rng.choice((0, precision)), "scale": own}

    payloads = []
    for _ in range(300):
        record = {"a": one(), "b": [one()] if rng.random() < 0.1 else []}
        payloads.append(b"\0" + make(**record).SerializeToString())
    payloads.append(b"\0\x1a\x03\x0a\x01k")  # an entry without a value
    accepted, sound = check(both, payloads, 0)
    assert 0 < accepted <= sound
    assert accepted > 0.9 * sound - 3


KNOWN_TYPES = proto3(
    "google.type.Date a = 1; google.type.TimeOfDay b = 2; google.protobuf.Timestamp c = 3;",
    "google/type/date.proto",
    "google/type/timeofday.proto",
    "google/protobuf/timestamp.proto",
)


def test_dates_and_times_that_exist_are_accepted_only() -> None:
    make, rng, both = first_message(KNOWN_TYPES), random.Random(3), Both(KNOWN_TYPES)
    edge = (-1, 0, 1, 24, 28, 29, 30, 31, 59, 60, 61, 2**31 - 1, -(2**31))
    payloads = []
    for number in range(4_000):
        date = {
            "year": rng.choice((0, 1, 1900, 2000, 2023, 2024, 9999, 10_000)),
            "month": rng.choice((0, 1, 2, 2, 4, 12, 13)),
            "day": rng.choice((0, 1, 28, 29, 30, 31, 32)),
        }
        time = {
            "hours": rng.choice((0, 23, 24, 25, rng.choice(edge))),
            "minutes": rng.choice((0, 59, rng.choice(edge))),
            "seconds": rng.choice((0, 60, rng.choice(edge))),
            "nanos": rng.choice((0, 999_999_999, 10**9, -1)),
        }
        seconds = (-62_135_596_801, -62_135_596_800, 253_402_300_799, 253_402_300_800, 0, 2**62)
        instant = {"seconds": rng.choice(seconds), "nanos": time["nanos"]}
        kept = ({"a": date}, {"b": time}, {"c": instant})[number % 3]
        payloads.append(b"\0" + make(**kept).SerializeToString())
    accepted, sound = check(both, payloads, 0)
    assert accepted == sound > 300


def test_keys_that_repeat_are_left_to_the_reference_decoder() -> None:
    for key in fuzz_protobuf.MAP_KEYS:
        text = proto3(f"map<{key}, int32> a = 1;")
        make, both, rng = first_message(text), Both(text), random.Random(5)
        low, high = fuzz_protobuf.INTEGERS.get(key, (0, 1))
        for count in (1, 2, 16, 17, 300):
            keys = {rng.randint(low, high) for _ in range(count)}
            named: dict[Any, int] = {f"k{k}" if key == "string" else k: 1 for k in keys}
            if key == "bool":
                named = {bool(k): 1 for k in keys}
            data = make(a=named).SerializeToString()
            again = make(a=dict(list(named.items())[-1:])).SerializeToString()
            assert check(both, [b"\0" + data], 0) == (1, 1)
            assert check(both, [b"\0" + data + again], 0) == (0, 1)
            assert check(both, [b"\0" + again + data], 0) == (0, 1)


def test_entries_without_a_key_or_a_value_have_the_defaults() -> None:
    values = ["int32", "string", "double", "uint64", "I", "E", "google.protobuf.Timestamp"]
    values += ["google.type.TimeOfDay", "google.type.Date", "google.protobuf.UInt64Value"]
    fields = [f"map<int32, {value}> f{n} = {n};" for n, value in enumerate(values, 1)]
    text = proto3(
        " ".join(fields),
        "google/protobuf/timestamp.proto",
        "google/protobuf/wrappers.proto",
        "google/type/date.proto",
        "google/type/timeofday.proto",
    )
    text += """ enum E { ZERO = 0; } message Nothing { } message J { map<string, I> b = 1; }
        message I { int32 a = 1; string b = 2; repeated int32 c = 3; map<int32, int32> d = 4;
        Nothing e = 5; optional int32 f = 6; fixed64 g = 7; bool h = 8; E i = 9; }"""
    both = Both(text)
    entries = [
        bytes([n << 3 | 2, len(part)]) + part for n in range(1, 11) for part in (b"", b"\x08\7")
    ]
    payloads = [b"\0" + one for one in entries] + [b"\0" + b"".join(entries[:16])]
    accepted, sound = check(both, payloads, 0)
    assert accepted == sound == len(payloads) - 2  # a date has no default


def test_enums_have_names_and_numbers() -> None:
    for edition in ('syntax = "proto3";', 'syntax = "proto2";'):
        label = "optional" if "2" in edition else ""
        text = f"""{edition} message M {{ {label} E a = 1; repeated E b = 2; map<int32, E> c = 3; }}
            enum E {{ ZERO = 0; LESS = -7; BIG = 2147483647; }}"""
        both = Both(text)
        numbers = (0, -7, 2**31 - 1, 1, -1, 9, 10, -10, 12345, -(2**31), 2**31 - 2)
        payloads = []
        for number in numbers:
            one = fuzz_protobuf._varint(number % 2**64)
            payloads += [b"\0\x08" + one, b"\0\x10" + one]
            payloads.append(b"\0\x12" + bytes([len(one) + 1]) + one + b"\0")
            payloads.append(b"\0\x1a" + bytes([len(one) + 3]) + b"\x08\1\x10" + one)
        accepted, sound = check(both, payloads, 0)
        assert sound == len(payloads)
        assert accepted == (sound if "3" in edition else 12)


def test_fields_without_a_column_are_checked() -> None:
    old = proto3("int32 a = 1; repeated int32 b = 2; repeated double c = 3; repeated bool d = 4;")
    both = OfTable(old, proto3("int32 a = 1;"))
    bodies = [
        b"\x12\2\1\2",
        b"\x12\2\1\xff",
        b"\x12\0",
        b"\x1a\x08" + bytes(8),
        b"\x1a\7" + bytes(7),
    ]
    bodies += [b"\x22\3\1\1\1", b"\x22\1\x80", b"\x12\x0b" + b"\xff" * 11, b"\x12", b"\x10\5"]
    payloads = [b"\0\x08\7" + body for body in bodies]
    accepted, sound = check(both, payloads, 0)
    assert accepted == sound == 5


def test_a_record_with_a_group_is_left_to_the_reference_decoder() -> None:
    both = Both(
        'syntax = "proto2"; message M { optional int32 x = 9; '
        "optional group A = 1 { optional int32 b = 2; } "
        "repeated group B = 3 { optional int32 b = 2; } }"
    )
    assert check(both, [b"\0\x48\1"], 0) == (1, 1)
    group = [b"\0\x48\1\x0b\x10\5\x0c", b"\0\x1b\x10\5\x1c"]
    assert check(both, group, 0) == (0, 2)


def test_records_of_many_values_are_left_to_the_reference_decoder() -> None:
    """It has limits of them."""
    fields = " ".join(f"int32 f{n} = {n};" for n in range(1, 101))
    both = Both(f'syntax = "proto3"; message M {{ repeated I a = 1; }} message I {{ {fields} }}')
    both.buffers = Buffers(both.shape, 1, 1024 * 1024)
    item = b"\x0a\0"
    assert both.row(b"\0" + item * 15_000) is not None
    assert both.row(b"\0" + item * 45_000) is None
