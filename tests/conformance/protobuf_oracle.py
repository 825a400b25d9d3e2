"""What a table shows of a Protobuf record, by Google's library and the documented mapping."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_tools import protoc
from shapes import Malformed, Refused, Shape, Value

SCALARS = {
    "double": "double",
    "float": "float",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "int"),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), "long"),
}
KNOWN = {
    "google.protobuf.Timestamp": Shape("timestamptz"),
    "google.type.Date": Shape("date"),
    "google.type.TimeOfDay": Shape("long"),
    "google.protobuf.DoubleValue": Shape("double"),
    "google.protobuf.FloatValue": Shape("float"),
    "google.protobuf.Int64Value": Shape("long"),
    "google.protobuf.UInt64Value": Shape("decimal", precision=20),
    "google.protobuf.Int32Value": Shape("int"),
    "google.protobuf.UInt32Value": Shape("long"),
    "google.protobuf.BoolValue": Shape("boolean"),
    "google.protobuf.StringValue": Shape("string"),
    "google.protobuf.BytesValue": Shape("binary"),
}
_FIELD_META: Any = vars(meta_pb2)["field_meta"]  # generated at run time
_PROTOC = threading.Lock()
DECIMAL = "confluent.type.Decimal"
FIRST_MESSAGE = (b"\x00", b"\x02\x00")
"""The message indexes of a file's first message, as producers write them."""


PRESENT = "is_present"
"""The field of a message without fields."""


class ProtobufSchema:
    """The first message of a file, or a named one."""

    def __init__(
        self, text: str, message: str | None = None, files: Iterable[tuple[str, str]] = ()
    ) -> None:
        file = _compiled(text, tuple(files))
        messages = file.message_types_by_name
        self.descriptor = messages[message] if message else next(iter(messages.values()))
        self.message = message_factory.GetMessageClass(self.descriptor)

    @property
    def shape(self) -> Shape:
        """:raises Refused: it has no table"""
        return self._struct(self.descriptor, ())

    def decode(self, data: bytes) -> tuple[Value, bool]:
        """A record as a value of :attr:`shape`, and whether the rules leave nothing open.

        :raises Malformed: it is no such message, or a value has no column
        """
        try:
            message = self.message.FromString(data)
            if not message.IsInitialized():
                raise Malformed("a required field is missing")
            # Of proto2, text that is not UTF-8 is found when it is read.
            return self._row(message, ""), _is_clear(message)
        except (DecodeError, UnicodeDecodeError) as error:
            raise Malformed(str(error)) from None

    def _struct(self, message: Any, above: tuple[str, ...]) -> Shape:
        if message.full_name in above:
            raise Refused(f"{message.full_name} is recursive")
        above = (*above, message.full_name)
        children = {}
        for one in message.fields:
            shape = self._column(one, above)
            if shape is not None:
                children[one.name] = shape
        numbers = {one.name: one.number for one in message.fields if one.name in children}
        return Shape("struct", children, numbers=numbers)

    def _column(self, field: Any, above: tuple[str, ...]) -> Shape | None:
        if is_map(field):
            key, value = field.message_type.fields
            shapes = self._single(key, above), self._single(value, above)
            if shapes[0] is None or shapes[1] is None:
                return None
            return Shape("map", {"key": shapes[0], "value": shapes[1]})
        single = self._single(field, above)
        if single is None or not field.is_repeated:
            return single
        return Shape("list", {"element": single})

    def _single(self, field: Any, above: tuple[str, ...]) -> Shape | None:
        message = field.message_type
        if message is None:
            kind = kind_of(field)
            unsigned = Shape("decimal", precision=20)
            return unsigned if kind in ("uint64", "fixed64") else Shape(SCALARS[kind])
        if message.full_name == DECIMAL:
            precision, scale = self._decimal(field)
            return Shape("decimal", precision=precision, scale=scale)
        if message.full_name in KNOWN:
            return KNOWN[message.full_name]
        shape = self._struct(message, above)
        return shape if shape.children else Shape("struct", {PRESENT: Shape("boolean")})

    def _decimal(self, field: Any) -> tuple[int, int]:
        facts = field.GetOptions().Extensions[_FIELD_META].params
        if "precision" not in facts:
            raise Refused(f"{field.full_name} is a decimal without a precision")
        return int(facts["precision"]), int(facts["scale"])

    def _row(self, message: Any, path: str) -> dict[str, Value]:
        if path and not message.DESCRIPTOR.fields:
            return {PRESENT: True}
        return {
            one.name: self._of_field(message, one, f"{path}.{one.name}".lstrip("."))
            for one in message.DESCRIPTOR.fields
            if one.message_type is None or self._column(one, ()) is not None
        }

    def _of_field(self, message: Any, field: Any, path: str) -> Value:
        held = getattr(message, field.name)
        if is_map(field):
            key, value = field.message_type.fields
            return {
                self._value(key, one, path): self._value(value, held[one], path)
                for one in list(held)
            }
        if field.is_repeated:
            return [self._value(field, one, path) for one in held]
        if field.has_presence and not field.has_default_value and not message.HasField(field.name):
            return None
        return self._value(field, held, path)

    def _value(self, field: Any, value: Any, path: str) -> Value:
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return str(value) if known is None else known.name
        if field.message_type is None and kind_of(field) == "string" and isinstance(value, bytes):
            # Of proto2, Google's library returns text in maps that is not UTF-8 as bytes.
            raise Malformed("text is not UTF-8", path)
        if field.message_type is None:
            return Decimal(value) if kind_of(field) in ("uint64", "fixed64") else value
        match field.message_type.full_name:
            case "google.protobuf.Timestamp":
                return _timestamp(value, path)
            case "google.type.Date":
                try:
                    return date(value.year, value.month, value.day)
                except ValueError as error:
                    raise Malformed(str(error), path) from None
            case "google.type.TimeOfDay":
                return _time_of_day(value, path)
            case name if name == DECIMAL:
                number = int.from_bytes(value.value, "big", signed=True)
                precision, scale = self._decimal(field)
                shift = scale - value.scale if number else 0
                if abs(shift) > 100:
                    raise Malformed(f"a scale of {value.scale}", path)
                whole, rest = divmod(number * 10 ** max(shift, 0), 10 ** max(-shift, 0))
                if rest or abs(whole) >= 10**precision:
                    raise Malformed(f"{number} of scale {value.scale} is not in the column", path)
                return Decimal((whole < 0, tuple(map(int, str(abs(whole)))), -scale))
            case name if name in KNOWN:  # wrappers
                return self._value(field.message_type.fields[0], value.value, path)
        return self._row(value, path)


_VARINT, _LENGTH_DELIMITED = 0, 2


def _timestamp(value: Any, path: str) -> datetime:
    if not 0 <= value.nanos < 10**9:
        raise Malformed(f"{value.nanos} nanoseconds", path)
    try:
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        return epoch + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError:
        raise Malformed("outside of the years 1 to 9999", path) from None


def _time_of_day(value: Any, path: str) -> int:
    hours, minutes, seconds = value.hours, value.minutes, value.seconds
    is_end = (hours, minutes, seconds, value.nanos) == (24, 0, 0, 0)
    if not is_end and not (0 <= hours < 24 and 0 <= minutes < 60 and 0 <= seconds <= 60):
        raise Malformed("no time of day", path)
    if not 0 <= value.nanos < 10**9:
        raise Malformed(f"{value.nanos} nanoseconds", path)
    return int(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + value.nanos // 1000)


def _is_clear(message: Any) -> bool:
    """Whether no entry of a map was read as an unknown field.

    Google's library does that with a field of another wire type, with a closed enum's number
    without a name, and (not so in Java) with an entry of a map that has an unknown field.

    :raises Malformed: a field is of another wire type
    """
    declared = message.DESCRIPTOR.fields_by_number
    clear = True
    for one in UnknownFieldSet(message):
        if field := declared.get(one.field_number):
            is_entry = is_map(field) and one.wire_type == _LENGTH_DELIMITED
            is_number = field.enum_type is not None and one.wire_type == _VARINT
            if not is_number and not is_entry:
                raise Malformed("another wire type", field.name)
            clear &= is_number
    for field, value in message.ListFields():
        inner: Iterable[Any] = ()
        if is_map(field):
            inner = value.values() if field.message_type.fields[1].message_type else ()
        elif field.message_type is not None:
            inner = value if field.is_repeated else (value,)
        for one in inner:
            clear &= _is_clear(one)
    return clear


def message_path(message: Any) -> bytes:
    """The message indexes that a record of a top-level message begins with."""
    index = [one.name for one in message.file.message_types_by_name.values()].index(message.name)
    return b"\x00" if index == 0 else b"\x02" + bytes(_encoded(index * 2))


def _encoded(number: int) -> list[int]:
    return [number] if number < 0x80 else [number & 0x7F | 0x80, *_encoded(number >> 7)]


def is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def kind_of(field: Any) -> str:
    name: str = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


@cache
def _compiled(text: str, others: tuple[tuple[str, str], ...]) -> Any:
    """The descriptor of a file, in a pool of its own."""
    site = Path(str(files("grpc_tools"))).parent
    with tempfile.TemporaryDirectory() as folder, _PROTOC:
        out, confluent = Path(folder, "out"), Path(folder, "confluent.bin")
        confluent.write_bytes(_confluent_files())
        for name, contents in (("main.proto", text), *others):
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents)
        includes = [f"-I{one}" for one in (folder, site / "grpc_tools" / "_proto", site)]
        known = f"--descriptor_set_in={confluent}"
        wanted = f"--descriptor_set_out={out}"
        code = protoc.main(["protoc", *includes, known, "--include_imports", wanted, "main.proto"])
        if code:
            raise ValueError(f"protoc refuses {text}")
        every = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for one in every.file:
        pool.Add(one)
    return pool.FindFileByName("main.proto")


def _confluent_files() -> bytes:
    """Confluent's own files, which come compiled with its client."""
    found = descriptor_pb2.FileDescriptorSet()
    for one in (descriptor_pb2.DESCRIPTOR, meta_pb2.DESCRIPTOR, decimal_pb2.DESCRIPTOR):
        one.CopyToProto(found.file.add())
    return bytes(found.SerializeToString())
