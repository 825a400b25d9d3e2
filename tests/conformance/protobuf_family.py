"""Protobuf for the random histories: a file as data, its changes, and its text."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace
from typing import Any

import fuzz_protobuf
from protobuf_oracle import FIRST_MESSAGE, ProtobufSchema
from shapes import Malformed, Refused
from versions import Decoded, Version

_LIKE = {
    "int32": ("int64", "sint32", "uint32", "bool"),
    "sint32": ("sint64",),
    "uint32": ("uint64", "int64"),
    "int64": ("int32", "uint64"),
    "fixed32": ("sfixed32",),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
    "Kind": ("int32",),
}


_IMPORTS = {
    "google/protobuf/timestamp.proto": {"google.protobuf.Timestamp"},
    "google/protobuf/duration.proto": {"google.protobuf.Duration"},
    "google/protobuf/wrappers.proto": fuzz_protobuf.WRAPPERS,
    "google/type/date.proto": {"google.type.Date"},
    "google/type/timeofday.proto": {"google.type.TimeOfDay"},
    "confluent/meta.proto": {fuzz_protobuf.DECIMAL},
    "confluent/type/decimal.proto": {fuzz_protobuf.DECIMAL},
}


@dataclass
class Field:
    """:param label: nothing, optional, required, repeated, or the type of a map's keys"""

    name: str
    number: int
    kind: str
    label: str = ""
    oneof: str = ""
    scale: int = -1


@dataclass
class Message:
    name: str
    fields: list[Field]


@dataclass
class File:
    """The first message is the record."""

    proto2: bool
    messages: list[Message]
    symbols: dict[str, int] = field(default_factory=lambda: {"NONE": 0, "ONE": 1, "LESS": -1})

    def text(self) -> str:
        kinds = {one.kind for message in self.messages for one in message.fields}
        imports = [f'import "{name}";' for name, used in _IMPORTS.items() if kinds & used]
        symbols = " ".join(f"{name} = {number};" for name, number in self.symbols.items())
        lines = [f'syntax = "proto{2 if self.proto2 else 3}";', "package shop;", *imports]
        lines += [self._message(one) for one in self.messages]
        return "\n".join([*lines, f"enum Kind {{ {symbols} }}"])

    def _message(self, message: Message) -> str:
        plain = [self._field(one) for one in message.fields if not one.oneof]
        for name in dict.fromkeys(one.oneof for one in message.fields if one.oneof):
            inside = " ".join(self._field(one) for one in message.fields if one.oneof == name)
            plain.append(f"oneof {name} {{ {inside} }}")
        return f"message {message.name} {{ {' '.join(plain)} }}"

    def _field(self, one: Field) -> str:
        kind, label, options = one.kind, one.label, ""
        if label in fuzz_protobuf.MAP_KEYS:
            kind, label = f"map<{label}, {kind}>", ""
        elif self.proto2 and not label and not one.oneof:
            label = "optional"
        if one.scale >= 0:
            options = (
                ' [(confluent.field_meta) = {params: [{key: "precision", value: "20"}, '
                f'{{key: "scale", value: "{one.scale}"}}]}}]'
            )
        return f"{label} {kind} {one.name} = {one.number}{options};".strip()


class ProtobufFamily:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._numbers = 0

    def first(self) -> Version:
        file = File(self.rng.random() < 0.3, [Message("Order", [])])
        for number in range(self.rng.randint(0, 3)):
            file.messages.append(Message(f"Inner{number}", []))
        for place in reversed(range(len(file.messages))):
            for _ in range(self.rng.randint(3, 8) if place == 0 else self.rng.randint(1, 4)):
                file.messages[place].fields.append(self._field(file, place))
        return version(file)

    def next(self, version_: Version, *, wild: bool) -> Version | None:
        file = copy.deepcopy(version_.source)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            self._change(file, wild=wild)
        if file == version_.source:
            return None
        try:
            return version(file)
        except ValueError:
            return None

    def repaired(self, version_: Version) -> Version:
        file = copy.deepcopy(version_.source)
        self._numbers += 1
        number = 10_000 + self._numbers
        file.messages[0].fields.append(Field(f"repair{number}", number, "string"))
        return version(file)

    def foreign(self, version_: Version) -> list[Version]:
        own: File = version_.source
        wider, other, misfit = (copy.deepcopy(own) for _ in range(3))
        wider.messages[0].fields.append(Field("foreign_extra", 20_000, "string"))
        other.messages[0].name = "OrderDeleted"
        first = misfit.messages[0].fields[0]
        misfit.messages[0].fields[0] = Field(first.name, first.number, "bool", "int32")
        again = [Field("id", 1, "int32"), Field("again", 2, "Order")]
        recursive = File(False, [Message("Order", again)])
        every = [version(one) for one in (wider, other, misfit, recursive)]
        return self.rng.sample(every, 3)

    def key(self, version_: Version) -> Version:
        fields = [Field("key_id", 1, "int64"), Field("key_text", 2, "string")]
        shared = self.rng.choice(version_.source.messages[0].fields)
        if shared.kind in ("int32", "int64", "string", "bool") and not shared.label:
            fields.append(Field(shared.name, 3, shared.kind))
        return version(File(False, [Message("Key", fields)]))

    def next_key(self, version_: Version) -> Version:
        file, rng = copy.deepcopy(version_.source), self.rng
        fields = file.messages[0].fields
        self._numbers += 1
        match rng.choice(("add", "rename", "order", "symbol")):
            case "add":
                number = 30_000 + self._numbers
                fields.append(Field(f"more{number}", number, "string", "optional"))
            case "rename":
                rng.choice(fields[:2]).name += "_r"
            case "order":
                fields.reverse()
                file.symbols[f"ORDER{self._numbers}"] = 1000 + self._numbers
            case "symbol":
                file.symbols[f"SYMBOL{self._numbers}"] = 1000 + self._numbers
        return version(file)

    def spelled(self, version_: Version, key: dict[str, Any]) -> bytes:
        rng = self.rng
        numbers = {"key_id": 1, "key_text": 2}
        parts = []
        for name, value in key.items():
            number = numbers.get(name, 3)
            if not value and rng.random() < 0.5:
                continue  # what is not there has the default
            if isinstance(value, str):
                text = value.encode()
                parts.append(_varint(8 * number + 2) + _varint(len(text)) + text)
            else:
                parts.append(_varint(8 * number) + _varint(value % 2**64))
        rng.shuffle(parts)
        if rng.random() < 0.2:
            parts.append(fuzz_protobuf.UNKNOWN)
        return rng.choice(FIRST_MESSAGE) + b"".join(parts)

    def _field(self, file: File, place: int) -> Field:
        self._numbers += 1
        number = self._numbers if self.rng.random() < 0.9 else self._numbers + 1000
        one = Field(f"f{number}", number, self._kind(file, place))
        rest = [inner for inner in file.messages[place].fields if inner.oneof]
        match self.rng.randint(0, 11):
            case 0:
                one.label = self.rng.choice(fuzz_protobuf.MAP_KEYS)
            case 1 | 2:
                one.label = "repeated"
            case 3:
                one.label = "optional"
            case 4 if file.proto2:
                one.label = "required"
            case 5:
                return replace(one, kind=fuzz_protobuf.DECIMAL, scale=self.rng.choice((0, 2, 9)))
            case 6 | 7:
                one.oneof = rest[0].oneof if rest and self.rng.random() < 0.7 else f"choice{number}"
        return one

    def _kind(self, file: File, place: int) -> str:
        """Of messages, later ones only: none contains itself."""
        dice, later = self.rng.random(), file.messages[place + 1 :]
        if dice < 0.65:
            return self.rng.choice(fuzz_protobuf.SCALARS)
        if dice < 0.75:
            return "Kind"
        if dice < 0.85 or not later:
            return self.rng.choice(fuzz_protobuf.KNOWN)
        return self.rng.choice(later).name

    def _change(self, file: File, *, wild: bool) -> None:
        rng = self.rng
        place = rng.randrange(len(file.messages))
        fields = file.messages[place].fields
        changes = ["add", "add", "drop", "rename", "retype", "label", "symbol", "shuffle"]
        change = rng.choice(changes + (["replace", "recase", "swap"] if wild else []))
        one = rng.choice(fields)
        if change == "add":
            fields.append(self._field(file, place))
        elif change == "drop" and len(fields) > 1:
            fields.remove(one)
        elif change == "rename":
            one.name += "_r"
        elif change == "retype":
            one.kind = rng.choice(_LIKE.get(one.kind, (one.kind,)))
        elif change == "label" and not one.oneof and one.label in ("", "optional", "repeated"):
            one.label = rng.choice(("", "optional", "repeated" if wild else one.label))
        elif change == "symbol":
            self._change_symbols(file)
        elif change == "shuffle":
            rng.shuffle(fields)
        elif change == "replace":
            one.kind, one.scale, one.label = self._kind(file, place), -1, ""
        elif change == "recase":
            one.name = one.name.upper()
        elif change == "swap" and len(fields) > 1:
            other = rng.choice(fields)
            one.number, other.number = other.number, one.number

    def _change_symbols(self, file: File) -> None:
        name, number = self.rng.choice(list(file.symbols.items()))
        if self.rng.random() < 0.5:
            fresh = max(file.symbols.values()) + 1
            file.symbols[f"N{fresh}"] = fresh
        elif number != 0:
            del file.symbols[name]
            if self.rng.random() < 0.5:
                file.symbols[f"{name}_R"] = number


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def version(file: File) -> Version:
    text = file.text()
    schema = ProtobufSchema(text)
    try:
        shape = schema.shape
    except Refused:
        shape = None

    def encode(rng: random.Random, odd: float) -> bytes:
        message = schema.message()
        if shape is not None:
            fuzz_protobuf.fill(rng, message)
        if odd and rng.random() < odd:
            _spoil(rng, message)
        data = message.SerializePartialToString()
        if rng.random() < 0.05:
            data += fuzz_protobuf.UNKNOWN
        if rng.random() < 0.1:
            data = fuzz_protobuf.with_enum_numbers(rng, schema.descriptor, data)
        return rng.choice(FIRST_MESSAGE) + data

    def decode(payload: bytes) -> Decoded:
        for prefix in sorted(FIRST_MESSAGE, key=len, reverse=True):
            if payload.startswith(prefix):
                value, clear = schema.decode(payload[len(prefix) :])
                return Decoded(value, canonical=clear)
        raise Malformed("another message of the file")

    name = f"shop.{file.messages[0].name}"
    return Version(text, "PROTOBUF", shape, name, encode, decode, file)


def _spoil(rng: random.Random, message: Any) -> None:
    """Give a field a value that no column has, if there is a field for one."""
    for one, value in message.ListFields():
        if one.message_type is None or one.is_repeated:
            continue
        match one.message_type.full_name:
            case "google.protobuf.Timestamp":
                value.seconds = rng.choice((2**62, -(2**62), 253402300800))
            case "google.type.Date":
                value.month = rng.choice((0, 13))
            case "google.type.TimeOfDay":
                value.hours = rng.choice((24, -1))
            case fuzz_protobuf.DECIMAL:
                value.value = b"\x7f" * 12
