"""Random Protobuf schemas with records of them, which Google's own library makes."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory

from topicberg.formats.protobuf import protoc

INTEGERS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, 2**64 - 1)),
}
SCALARS = (*INTEGERS, "float", "double", "bool", "string", "bytes")
MAP_KEYS = (*INTEGERS, "bool", "string")
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ["Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"]
}
KNOWN = (
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
    "google.type.Date",
    "google.type.TimeOfDay",
    *sorted(WRAPPERS),
)
DECIMAL = "confluent.type.Decimal"
IMPORTS = (
    "google/protobuf/timestamp.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/wrappers.proto",
    "google/type/date.proto",
    "google/type/timeofday.proto",
    "confluent/meta.proto",
    "confluent/type/decimal.proto",
)
UNKNOWN = b"\xf8\xff\x03\x01\xfa\xff\x03\x02hi\xfb\xff\x03\x08\x01\xfc\xff\x03"
"""Fields that no schema has: a varint, a string and a group."""
TEXTS = ("", "a", "naïve", "日本", "🦀 crab", "\x00\n\"'", "x" * 300)


@dataclass(frozen=True)
class Sample:
    """``payloads``: records behind the wire format's first five bytes."""

    text: str
    payloads: list[bytes]


def schema_and_records(rng: random.Random, records: int = 20) -> Sample:
    """A schema whose first message is the table, and records of it."""
    text = _Writer(rng).file()
    file = protoc.compiled("fuzz.proto", text)
    message = message_factory.GetMessageClass(next(iter(file.message_types_by_name.values())))
    payloads = []
    for _ in range(records):
        data = b"".join(
            fill(rng, message()).SerializeToString() for _ in range(2 if rng.random() < 0.1 else 1)
        )
        if rng.random() < 0.1:
            data += UNKNOWN
        while rng.random() < 0.3:
            data = with_enum_numbers(rng, message.DESCRIPTOR, data)
        payloads.append(rng.choice((b"\x00", b"\x02\x00")) + data)
    return Sample(text, payloads)


def with_enum_numbers(rng: random.Random, message: Any, data: bytes) -> bytes:
    """Return a record with numbers that are perhaps not of the enum, before or after the others."""
    enums = []
    for field in message.fields:
        entry = field.message_type and field.message_type.GetOptions().map_entry
        value = field.message_type.fields_by_name["value"] if entry else field
        if value.enum_type is not None:
            enums.append((field.number, value.number if entry else 0))
    if not enums:
        return data
    number, of_value = rng.choice(enums)
    numbers = [_varint(rng.choice((0, 1, 7, 2**31, 2**64 - 1, 2**32 + 1))) for _ in range(2)]
    if of_value:
        entry = b"".join(_varint(of_value << 3) + one for one in numbers[: rng.randint(1, 2)])
        more = _varint(number << 3 | 2) + _varint(len(entry)) + entry
    elif rng.random() < 0.3 and any(
        one.number == number and one.is_repeated for one in message.fields
    ):
        more = _varint(number << 3 | 2) + _varint(sum(map(len, numbers))) + b"".join(numbers)
    else:
        more = _varint(number << 3) + numbers[0]
    return rng.choice((data + more, more + data))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


class _Writer:
    """Writes one .proto file."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.proto2 = rng.random() < 0.3
        self.messages: list[str] = []  # messages that later ones may use

    def file(self) -> str:
        syntax = f'syntax = "proto{2 if self.proto2 else 3}";'
        imports = [f'import "{name}";' for name in IMPORTS]
        inner = [self.message(f"Inner{number}", 4) for number in range(self.rng.randint(0, 3))]
        root = self.message("Root", self.rng.choice((1, 5, 12, 30)))
        in_map = any(", Kind>" in message for message in (root, *inner))
        first = -3 if self.proto2 and not in_map else 0  # the values of a map begin with 0
        enum = f"enum Kind {{ NONE = {first}; ONE = 1; BIG = 2147483647; LESS = -1; }}"
        return "\n".join((syntax, "package fuzz.x;", *imports, root, enum, *inner))

    def message(self, name: str, most: int) -> str:
        rng, body = self.rng, []
        numbers = rng.sample((*range(1, 40), 1000, 15000), rng.randint(1, most))
        while numbers:
            label = rng.random()
            if label < 0.1 and len(numbers) > 1:
                members = [numbers.pop(), numbers.pop()]
                inside = " ".join(f"{self.type()} f{n} = {n};" for n in members)
                body.append(f"oneof choice{members[0]} {{ {inside} }}")
                continue
            number = numbers.pop()
            if label < 0.2:
                key = rng.choice(MAP_KEYS)
                body.append(f"map<{key}, {self.type()}> f{number} = {number};")
            elif label < 0.25:
                scale = rng.choice((0, 2, 9))
                params = f'{{key: "precision", value: "20"}}, {{key: "scale", value: "{scale}"}}'
                optional = "optional " if self.proto2 else ""
                body.append(
                    f"{optional}{DECIMAL} f{number} = {number} "
                    f"[(confluent.field_meta) = {{params: [{params}]}}];"
                )
            elif label < 0.45:
                kind, packed = self.type(), ""
                if kind in SCALARS and kind not in ("string", "bytes") and rng.random() < 0.5:
                    packed = f" [packed = {rng.choice(('true', 'false'))}]"
                body.append(f"repeated {kind} f{number} = {number}{packed};")
            elif self.proto2 and label < 0.5:
                body.append(
                    f"optional group G{name}{number} = {number} {{ optional int32 a = 1; }}"
                )
            elif self.proto2:
                word, kind, default = rng.choice(("optional", "required")), self.type(), ""
                if kind in INTEGERS and word == "optional" and rng.random() < 0.5:
                    default = " [default = 7]"
                body.append(f"{word} {kind} f{number} = {number}{default};")
            else:
                word = "optional " if label < 0.6 else ""
                body.append(f"{word}{self.type()} f{number} = {number};")
        self.messages.append(name)
        return f"message {name} {{ {' '.join(body)} }}"

    def type(self) -> str:
        dice = self.rng.random()
        if dice < 0.65:
            return self.rng.choice(SCALARS)
        if dice < 0.75:
            return "Kind"
        if dice < 0.9 or not self.messages:
            return self.rng.choice(KNOWN)
        return self.rng.choice(self.messages)


def fill(rng: random.Random, message: Any) -> Any:
    """Random values in a message, some of its fields not set."""
    present = rng.choice((0.0, 0.5, 0.9, 1.0))
    for field in message.DESCRIPTOR.fields:
        if rng.random() > present and not field.is_required:
            continue
        target = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            for _ in range(rng.randint(0, 4)):
                key = scalar(rng, field.message_type.fields_by_name["key"])
                if value.message_type:
                    fill_one(rng, value, target[key])
                else:
                    target[key] = scalar(rng, value)
        elif field.is_repeated:
            for _ in range(rng.choice((0, 1, 3, 40))):
                if field.message_type:
                    fill_one(rng, field, target.add())
                else:
                    target.append(scalar(rng, field))
        elif field.message_type:
            target.SetInParent()
            fill_one(rng, field, target)
        else:
            setattr(message, field.name, scalar(rng, field))
    return message


def fill_one(rng: random.Random, field: Any, message: Any) -> None:
    """A message that is a value of a field; a well-known one is valid."""
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            message.seconds = rng.choice((-62135596800, 253402300799, 0, rng.randrange(2**31)))
            message.nanos = rng.choice((0, 999_999_999, rng.randrange(10**9)))
        case "google.type.Date":
            day = dt.date.fromordinal(rng.randint(1, dt.date.max.toordinal()))
            message.year, message.month, message.day = day.year, day.month, day.day
        case "google.type.TimeOfDay":
            message.hours, message.minutes = rng.randrange(24), rng.randrange(60)
            message.seconds, message.nanos = rng.randrange(60), rng.randrange(10**9)
        case name if name == DECIMAL:
            number = rng.choice((0, -1, 10**11 - 1, rng.randrange(-(10**11), 10**11)))
            length = rng.choice((0, 3)) + (number.bit_length() // 8 + 1)
            message.value = number.to_bytes(length, "big", signed=True)
            message.scale = decimal_type(field)[1]
        case _:
            fill(rng, message)


def scalar(rng: random.Random, field: Any) -> Any:
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    kind = _kind(field)
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return rng.choice((0, 1, low, high, rng.randint(low, high), rng.randint(0, 200)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(TEXTS)
    if kind == "bytes":
        return rng.randbytes(rng.choice((0, 1, 20)))
    return rng.choice(
        (0.0, -0.0, 1.5, -2.25, float("inf"), float("nan"), 2.0 ** rng.randint(-9, 9))
    )


def decimal_type(field: Any) -> tuple[int, int]:
    from confluent_kafka.schema_registry.confluent import meta_pb2

    field_meta = meta_pb2.field_meta  # type: ignore[attr-defined]  # generated at run time
    params = field.GetOptions().Extensions[field_meta].params
    return int(params["precision"]), int(params["scale"])


def _kind(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
