"""The reference decoder of Avro: the bytes of a record become stored values, or a reason.

:func:`record_decoder` makes a function for each node of a resolved schema, once; then these read
the values of a record one after another. All of them take a :class:`ByteCursor`, and raise
:class:`InvalidError` where a value is wrong. Functions around them add the path to it.

Source: Avro's specification, "Binary Encoding". Every spelling of a number of at most ten bytes and
64 bits is read. A value without a column is skipped, whatever it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from pyiceberg import types as T

from topicberg.formats.avro import resolution
from topicberg.formats.avro.defaults import EXACT, MAX_DECIMAL_BITS
from topicberg.formats.avro.schema import Type
from topicberg.formats.connect import INFINITE_NANOS, DecimalLimitError, decimal_text, parsed
from topicberg.formats.contract import RecordDecoder
from topicberg.formats.reasons import MalformedError, field_at, shortened, type_name

_WORD, _MAX_BYTES = 64, 10  # Bits of a number, and bytes that encode it.
_BYTES = {"boolean": 1, "float": 4, "double": 8}


class InvalidError(Exception):
    """A value is invalid. ``path`` and ``kind`` are its place, as far as it is known."""

    def __init__(self, problem: str, kind: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.kind, self.path = problem, kind, ""

    def inside(self, path: str, kind: str) -> InvalidError:
        """Add what is around the value: the end of its path, and its type."""
        self.path, self.kind = path + self.path, self.kind or kind
        return self

    @property
    def reason(self) -> str:
        return f"{field_at(self.path.removeprefix('.'), self.kind)}: {self.problem}"


class ByteCursor:
    """The bytes of a record, read from the first to the last."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        begin, end = self.at, self.at + count
        if count < 0 or end > len(self.data):
            raise self.too_short(f"{count} byte{'' if count == 1 else 's'}")
        self.at = end
        return self.data[begin:end]

    def number(self) -> int:
        """Read a zig-zag varint."""
        data, start = self.data, self.at
        bits = shift = 0
        for byte in data[start : start + _MAX_BYTES]:
            if byte < 0x80:
                bits |= byte << shift
                if bits >> _WORD:
                    break
                self.at = start + shift // 7 + 1
                return (bits >> 1) ^ -(bits & 1)
            bits |= (byte & 0x7F) << shift
            shift += 7
        if len(data) - start < _MAX_BYTES:
            self.at = len(data)
            raise self.too_short("1 byte")
        raise InvalidError(
            f"the bytes up to byte {start + _MAX_BYTES} are not a number of {_WORD} bits"
        )

    def bytes(self) -> bytes:
        """Read bytes after their length."""
        return self.take(self.number())

    def text(self) -> str:
        data = self.bytes()
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidError(
                f"value {shortened(str(data))} is not UTF-8 at its byte {error.start}"
            ) from None

    def index(self, count: int, of: str, kind: str | None = None) -> int:
        """Read the index of a branch or a symbol."""
        index = self.number()
        if 0 <= index < count:
            return index
        name = "branch" if of == "union" else "symbol"
        raise InvalidError(f"there is no {name} {index}, the {of} has {count}", kind)

    def block(self) -> int:
        """Read how many items of an array or a map follow; 0: none. Each has a byte at least."""
        count = self.number()
        if count < 0:
            self.number()  # of bytes
            count = -count
        if count > len(self.data) - self.at:
            raise self.too_short(f"{count} items")
        return count

    def items(self) -> Iterator[None]:
        while count := self.block():
            for _ in range(count):
                yield

    def too_short(self, expected: str) -> InvalidError:
        return InvalidError(
            f"{expected} expected at byte {self.at}, but the record ends at byte {len(self.data)}"
        )


Read = Callable[[ByteCursor], Any]


class Reader(NamedTuple):
    """How a value is read. ``kind``: its type in a reason."""

    kind: str
    read: Read


def record_decoder(row: resolution.Row, schema_id: int) -> RecordDecoder:
    """Return how records of a schema are decoded; rows share the objects of their defaults."""
    read = _fields(row, dict(row.defaults))

    def decode(payload: bytes) -> dict[str, Any]:
        cursor = ByteCursor(payload)
        try:
            values: dict[str, Any] = read(cursor)
            if cursor.at == len(payload):
                return values
            reason = (
                f"the record ends at byte {cursor.at}, but there are {len(payload)} bytes: it was "
                f"written with another schema than {schema_id}"
            )
        except InvalidError as error:
            reason = error.reason
        raise MalformedError(reason)  # not within the handler: a chain of exceptions is slow

    return decode


def _reader(node: resolution.Node) -> Reader:
    match node:
        case resolution.AvroScalar():
            return Reader(type_name(node.column), _SCALARS[node.form](node))
        case resolution.Skipped():
            label = type_name(node.column) if node.column is not None else str(node.type)
            return Reader(label, lambda cursor: skip(cursor, node.type))
        case resolution.Unfit():
            return Reader(type_name(node.column), _unfit(node))
        case resolution.Choice():
            return Reader("union", _choice(node))
        case resolution.AvroMember():
            return _member(node)
        case resolution.Items():
            return Reader(type_name(node.column), _items(node))
        case resolution.Entries():
            return Reader(type_name(node.column), _entries(node))
        case resolution.Row():
            names = [field.name for field in node.column.fields]
            values = {**dict.fromkeys(names), **node.defaults}
            return Reader(type_name(node.column), _fields(node, values))


def _fields(row: resolution.Row, values: dict[str, Any]) -> Read:
    """:param values: those of columns that the writer lacks"""
    parts = [(name, column, *_reader(node)) for name, column, node in row.parts]

    def read(cursor: ByteCursor) -> dict[str, Any]:
        column_values = values.copy()
        for name, column, kind, read_field in parts:
            try:
                value = read_field(cursor)
            except InvalidError as error:
                raise error.inside(f".{name}", kind) from None
            if column is not None:
                column_values[column] = value
        return column_values

    return read


def _items(node: resolution.Items) -> Read:
    kind, read_item = _reader(node.inner)

    def read(cursor: ByteCursor) -> list[Any]:
        items: list[Any] = []
        for _ in cursor.items():
            try:
                items.append(read_item(cursor))
            except InvalidError as error:
                raise error.inside(f"[{len(items)}]", kind) from None
        return items

    return read


def _entries(node: resolution.Entries) -> Read:
    """Return how a map is read; of a key that is there twice, the last value counts."""
    kind, read_value = _reader(node.inner)

    def read(cursor: ByteCursor) -> list[tuple[str, Any]]:
        entries: dict[str, Any] = {}
        for _ in cursor.items():
            try:
                key = cursor.text()
            except InvalidError as error:
                raise error.inside("", "key of a map") from None
            try:
                entries[key] = read_value(cursor)
            except InvalidError as error:
                raise error.inside(f"[{shortened(key)}]", kind) from None
        return list(entries.items())

    return read


def _choice(node: resolution.Choice) -> Read:
    branches = [None if branch is None else _reader(branch) for branch in node.branches]

    def read(cursor: ByteCursor) -> Any:
        branch = branches[cursor.index(len(branches), "union", "union")]
        if branch is None:
            return None
        try:
            return branch.read(cursor)
        except InvalidError as error:
            raise error.inside("", branch.kind) from None

    return read


def _member(node: resolution.AvroMember) -> Reader:
    kind, read_inner = _reader(node.inner)
    members: dict[str, Any] = dict.fromkeys(field.name for field in node.column.fields)
    return Reader(kind, lambda cursor: {**members, node.name: read_inner(cursor)})


def _unfit(node: resolution.Unfit) -> Read:
    def read(cursor: ByteCursor) -> None:
        raise InvalidError(f"a value of the type {node.type} does not fit")

    return read


def skip(cursor: ByteCursor, kind: Type) -> None:
    """Read a value without a column, which may be nested as deeply as the record is long."""
    # The last one is next. Numbers: the items of an array or a map that are left in its block.
    following: list[tuple[Type, int]] = [(kind, 0)]
    try:
        while following:
            kind, left = following.pop()
            match kind.kind:
                case "boolean" | "float" | "double":
                    cursor.take(_BYTES[kind.kind])
                case "fixed":
                    cursor.take(kind.size)
                case "int" | "long" | "enum":
                    cursor.number()
                case "bytes" | "string":
                    cursor.bytes()
                case "record":
                    following += [(field.type, 0) for field in reversed(kind.fields)]
                case "union":
                    index = cursor.index(len(kind.branches), "union", "union")
                    following.append((kind.branches[index], 0))
                case "array" | "map":
                    if left := left or cursor.block():
                        if kind.kind == "map":
                            cursor.bytes()
                        following += [(kind, left - 1), (kind.inner, 0)]
    except InvalidError as error:
        raise error.inside("", str(kind)) from None


def _boolean(node: resolution.AvroScalar) -> Read:
    def read(cursor: ByteCursor) -> bool:
        (byte,) = cursor.take(1)
        if byte > 1:
            raise InvalidError(f"value {byte} is neither 0 nor 1")
        return byte == 1

    return read


def _whole(node: resolution.AvroScalar) -> Read:
    (low, high), factor, problem = node.bounds, node.factor, node.problem

    def read(cursor: ByteCursor) -> int:
        number = cursor.number()
        if low <= number <= high:
            return number * factor
        raise InvalidError(f"value {number} {problem}")

    return read


def _nearest(node: resolution.AvroScalar) -> Read:
    whole = _whole(node)
    if isinstance(node.column, T.DoubleType):
        return lambda cursor: float(whole(cursor))
    return lambda cursor: float(np.int64(whole(cursor)).astype(np.float32))


def _ieee(node: resolution.AvroScalar) -> Read:
    code = struct.Struct("<f" if node.form is resolution.Form.FLOAT else "<d")
    return lambda cursor: code.unpack(cursor.take(code.size))[0]


def _enum(node: resolution.AvroScalar) -> Read:
    return lambda cursor: node.symbols[cursor.index(len(node.symbols), "enum")]


def _binary(node: resolution.AvroScalar) -> Read:
    size = node.size
    return ByteCursor.bytes if size is None else lambda cursor: cursor.take(size)


def _decimal(node: resolution.AvroScalar) -> Read:
    column: T.DecimalType = node.column
    read_bytes, shift, limit = _binary(node), column.scale - node.scale, 10**column.precision

    def read(cursor: ByteCursor) -> int:
        if not (data := read_bytes(cursor)):
            raise InvalidError("a decimal has at least one byte")
        unscaled = int.from_bytes(data, "big", signed=True)
        if unscaled.bit_length() > MAX_DECIMAL_BITS:
            raise InvalidError(f"the value has {len(data)} bytes, exceeds the precision")
        number: int
        number, rest = divmod(abs(unscaled) * 10 ** max(shift, 0), 10 ** max(-shift, 0))
        if rest or number >= limit:
            problem = "precision" if number >= limit else "scale"
            value = Decimal(unscaled).scaleb(-node.scale, EXACT)
            raise InvalidError(f"value {shortened(str(value))} exceeds the {problem}")
        return int(-number if unscaled < 0 else number)

    return read


def _connect_text(node: resolution.AvroScalar) -> Read:
    def read(cursor: ByteCursor) -> int:
        content = cursor.text()
        if (value := parsed(node.text, content)) is not None:
            return value
        raise InvalidError(f'value "{shortened(content)}" is not {node.text.what}')

    return read


def _nanos(node: resolution.AvroScalar) -> Read:
    def read(cursor: ByteCursor) -> int:
        if (number := cursor.number()) in INFINITE_NANOS:
            raise InvalidError(f"value {number} (nanoseconds) is infinite")
        return number // 1_000

    return read


def _variable_decimal(node: resolution.AvroScalar) -> Read:
    def read(cursor: ByteCursor) -> str:
        parts: dict[str, Any] = {
            name: cursor.number() if name == "scale" else cursor.bytes() for name in node.symbols
        }
        return _unscaled(parts["value"], parts["scale"])

    return read


def _unscaled(data: bytes, scale: int) -> str:
    try:
        return decimal_text(data, scale)
    except DecimalLimitError as error:
        raise InvalidError(str(error)) from None


_SCALARS: dict[resolution.Form, Callable[[resolution.AvroScalar], Read]] = {
    resolution.Form.BOOLEAN: _boolean,
    resolution.Form.WHOLE: _whole,
    resolution.Form.NEAREST: _nearest,
    resolution.Form.FLOAT: _ieee,
    resolution.Form.DOUBLE: _ieee,
    resolution.Form.TEXT: lambda _: ByteCursor.text,
    resolution.Form.BINARY: _binary,
    resolution.Form.ENUM: _enum,
    resolution.Form.DECIMAL: _decimal,
    resolution.Form.CONNECT_TEXT: _connect_text,
    resolution.Form.NANOS: _nanos,
    resolution.Form.DECIMAL_TEXT: lambda node: lambda cursor: _unscaled(cursor.bytes(), node.scale),
    resolution.Form.VARIABLE_DECIMAL: _variable_decimal,
}
