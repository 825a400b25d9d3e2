"""How values of Avro's simple types are read: by Spark, and in Python to find the reason.

Spark silently reads a value out of range as another one: an int as its low 32 bits, a boolean of
5 as false, a decimal of up to 18 digits as its low 64 bits. So these are read as a wider type that
has the same bytes, and checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any, Literal

from pyiceberg import types as T

from topicberg.formats import sql
from topicberg.formats.avro_schema import Type
from topicberg.formats.columnar.program import AvroOp, Code, Emit, NotCoveredError, Place, Skip
from topicberg.formats.reasons import MalformedError, field_at, shortened
from topicberg.spark import quote

MAX_PRECISION = 38
MAX_DECIMAL_BITS = 256
"""Larger numbers exceed every precision and scale. To convert them to decimals takes a time that
grows with the square of their bytes: minutes for a megabyte."""
DAYS = -719_162, 2_932_896
"""0001-01-01 to 9999-12-31, since 1970."""
MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
UNITS = {"millis": 1_000, "micros": 1}
EXACT = Context(prec=10_000)
INT = -(2**31), 2**31 - 1
LONG = -(2**63), 2**63 - 1
MAX_INT_BYTES = 5
"""What Avro's reader skips as an int."""
_BOUNDS = {"int": INT, "long": LONG}


class Cursor:
    """The bytes of a record, read from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> bytes:
        if not 0 <= count <= self.left:
            raise self.too_short(f"{count} byte{'' if count == 1 else 's'}", what)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, what: str) -> int:
        """Read a zig-zag varint."""
        bits = 0
        for shift in range(0, 70, 7):
            byte = self.take(1, what)[0]
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                bits &= 2**64 - 1
                return (bits >> 1) ^ -(bits & 1)
        raise MalformedError(f"{what}: the bytes up to byte {self.at} are not a number")

    def int_number(self, what: str) -> int:
        """Read the number of an int, of a branch or of a symbol, in the bytes that Avro reads."""
        begin, number = self.at, self.number(what)
        if self.at - begin > MAX_INT_BYTES:
            raise MalformedError(
                f"{what}: the number at byte {begin} has more than {MAX_INT_BYTES} bytes"
            )
        return number

    def text(self, what: str) -> bytes:
        """Read bytes after their length."""
        return self.take(self.number(what), what)

    def blocks(self, what: str, item: Callable[[int], None]) -> None:
        """Call ``item`` for each item of an array or a map."""
        read = 0
        while count := self.number(what):
            if count < 0:
                self.number(what)  # of bytes
                count = -count
            if count > self.left:
                raise self.too_short(f"{count} items", what)
            for index in range(read, read + count):
                item(index)
            read += count

    def too_short(self, expected: str, what: str) -> MalformedError:
        return MalformedError(
            f"{what}: {expected} expected at byte {self.at}, but the record ends at byte "
            f"{len(self.data)}"
        )


Scan = Callable[[Cursor, str], None]
"""Reads a value at a path.

:raises MalformedError: there is no value, or none that the column can hold
"""
Step = tuple[Literal["field"], str] | tuple[Literal["items", "keys", "values"]]


@dataclass(frozen=True)
class Check:
    """The check of values at a place within a column's values.

    The values within an array are collected into an array: Spark compiles no code for the body of a
    lambda, which then takes many times as long.

    ``one``: whether a value is wrong, as SQL. ``many``: whether one of an array of values is wrong.
    """

    one: Callable[[str], str]
    many: Callable[[str], str]
    steps: tuple[Step, ...] = ()

    def inside(self, *steps: Step) -> Check:
        return Check(self.one, self.many, (*steps, *self.steps))

    def sql(self, raw: str) -> str:
        """Return the SQL of whether the value of a column is wrong; null if there is no value."""
        is_array = False
        for step in self.steps:
            if step[0] == "field":
                raw = f"{raw}.{quote(step[1])}"  # for an array of structs, this is an array
                continue
            if step[0] != "items":  # of a map
                of_map = _part_of_map(step[0])
                raw = sql.each(raw, of_map) if is_array else of_map(raw)
            raw = f"flatten(array_compact({raw}))" if is_array else raw
            is_array = True
        return self.many(raw) if is_array else self.one(raw)


def _part_of_map(part: str) -> Callable[[str], str]:
    return lambda raw: f"map_{part}({raw})"


def between(low: object, high: object) -> Check:
    """Return the check of a range; its bounds are SQL."""
    return Check(
        lambda x: f"{x} NOT BETWEEN {low} AND {high}",
        lambda x: f"array_min({x}) < {low} OR array_max({x}) > {high}",
    )


UTF8 = Check(
    lambda x: f"NOT is_valid_utf8({x})", lambda x: f"NOT is_valid_utf8(array_join({x}, ','))"
)


@dataclass(frozen=True)
class Reading:
    """How values of a writer's type become values of a column."""

    wire: Any
    """The layout of the bytes, as an Avro schema."""
    read: Any
    """The Avro schema that resolves ``wire`` to what is read."""
    scan: Scan
    sql: Callable[[str], str] | None = None
    """The SQL of the column's value, from the SQL of what was read; None: the same."""
    checks: tuple[Check, ...] = ()
    """The checks of what was read."""
    is_cast: bool = False
    """``sql`` is a cast to the column's type, so one cast of a whole array does the same."""
    emit: Emit | None = None
    """The same as instructions; None: there are none."""

    def program(self, code: Code, place: Place) -> None:
        """:raises NotCoveredError: the values have no instructions"""
        if self.emit is None:
            raise NotCoveredError(f"the column {place.name} is read by Spark only")
        self.emit(code, place)

    def value(self, raw: str) -> str:
        return raw if self.sql is None else self.sql(raw)


def operation(kind: AvroOp, *arguments: int) -> Emit:
    """Return how one instruction reads a value."""

    def emit(code: Code, place: Place) -> None:
        code.emit(kind, place, *arguments)

    return emit


def cast(column: T.IcebergType) -> Callable[[str], str]:
    kind = sql.spark_type(column)
    return lambda raw: f"try_cast({raw} AS {kind})"


def utf8(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(
            f"{where}: value {shortened(str(data))} is not UTF-8 at its byte {error.start}"
        ) from None


def _within(value: int, bounds: tuple[int, int], where: str, problem: str) -> None:
    if not bounds[0] <= value <= bounds[1]:
        raise MalformedError(f"{where}: value {value} {problem}")


def boolean(column: T.IcebergType) -> Reading:
    """Return a reading of the bytes 0 and 1, which as numbers (varints) are 0 and -1."""

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        _within(cursor.take(1, where)[0], (0, 1), where, "is neither 0 nor 1")

    emit = operation(AvroOp.BOOLEAN)
    return Reading("long", "long", scan, cast(column), (between(-1, 0),), is_cast=True, emit=emit)


def whole(column: T.IcebergType, kind: str) -> Reading:
    """Return a reading of numbers of the writer's kind, int or long."""
    bounds = _BOUNDS[kind]

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        _within(cursor.number(where), bounds, where, "is out of range")

    checks = (between(*bounds),) if kind == "int" else ()
    if isinstance(column, T.LongType):
        emit = operation(AvroOp.LONG, *bounds, 1)
        return Reading("long", "long", scan, checks=checks, emit=emit)
    emit = operation(AvroOp.INT, *bounds)
    return Reading("long", "long", scan, cast(column), checks, is_cast=True, emit=emit)


def floating(column: T.IcebergType, kind: str) -> Reading:
    """Return a reading that promotes integers as Avro does, to the nearest float or double."""
    is_double = isinstance(column, T.DoubleType)
    if kind in _BOUNDS:
        near = AvroOp.NEAREST_DOUBLE if is_double else AvroOp.NEAREST_FLOAT
        emit = operation(near, *_BOUNDS[kind])
        found = whole(column, kind)
        if kind == "long":
            return Reading("long", str(column), found.scan, emit=emit)
        return replace(found, emit=emit)
    size = struct.calcsize(kind[0])

    def scan(cursor: Cursor, path: str) -> None:
        cursor.take(size, field_at(path, column))

    same = AvroOp.DOUBLE if is_double else AvroOp.FLOAT
    is_wider = is_double and kind == "float"
    return Reading(kind, str(column), scan, emit=operation(AvroOp.WIDER if is_wider else same))


def string(column: T.IcebergType) -> Reading:
    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        utf8(cursor.text(where), where)

    return Reading("string", "string", scan, checks=(UTF8,), emit=operation(AvroOp.TEXT))


def enum(writer: Type, name: str, column: T.IcebergType) -> Reading:
    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        number = cursor.int_number(where)
        if not 0 <= number < len(writer.symbols):
            raise MalformedError(
                f"{where}: there is no symbol {number}, the enum has {len(writer.symbols)}"
            )

    def emit(code: Code, place: Place) -> None:
        first = code.text([symbol.encode() for symbol in writer.symbols])
        code.emit(AvroOp.ENUM, place, len(writer.symbols), first)

    wire = {"type": "enum", "name": name, "symbols": list(writer.symbols)}
    return Reading(wire, wire, scan, emit=emit)


def binary(writer: Type, name: str, column: T.IcebergType) -> Reading:
    def scan(cursor: Cursor, path: str) -> None:
        _bytes(cursor, writer, field_at(path, column))

    if writer.kind != "fixed":
        return Reading("bytes", "bytes", scan, emit=operation(AvroOp.TEXT))
    wire = {"type": "fixed", "name": name, "size": writer.size}
    return Reading(wire, wire, scan, emit=operation(AvroOp.FIXED, writer.size))


def _bytes(cursor: Cursor, writer: Type, where: str) -> bytes:
    return cursor.take(writer.size, where) if writer.kind == "fixed" else cursor.text(where)


def decimal(writer: Type, name: str, scale: int, column: T.DecimalType) -> Reading | None:
    """Return a reading with as many digits as the bytes can have, checked against the column's."""
    digits = min(MAX_PRECISION, writer.digits)
    if scale > digits:
        return None
    bytes_ = binary(writer, name, column).wire
    read = {"logicalType": "decimal", "precision": digits, "scale": scale}
    read = {**bytes_, **read} if writer.kind == "fixed" else {"type": "bytes", **read}
    source = T.DecimalType(digits, scale)
    limit = Decimal(10) ** min(column.precision - column.scale, digits - scale)

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        data = _bytes(cursor, writer, where)
        if not data:
            raise MalformedError(f"{where}: a decimal has at least one byte")
        number = int.from_bytes(data, "big", signed=True)
        if number.bit_length() > MAX_DECIMAL_BITS:
            raise MalformedError(f"{where}: the value has {len(data)} bytes, exceeds the precision")
        value = Decimal(number).scaleb(-scale, EXACT)
        if value.copy_abs() >= limit:
            raise MalformedError(f"{where}: value {shortened(str(value))} exceeds the precision")
        if value != EXACT.quantize(value, Decimal(1).scaleb(-column.scale)):
            raise MalformedError(f"{where}: value {shortened(str(value))} exceeds the scale")

    emit: Emit | None = None
    if scale == column.scale:
        size = writer.size if writer.kind == "fixed" else -1
        most = int(limit.scaleb(scale, EXACT))
        high, low = most >> 64, most & (2**64 - 1)
        emit = operation(AvroOp.DECIMAL, size, high, low - 2**64 if low >= 2**63 else low)
    if source == column:
        return Reading(bytes_, read, scan, emit=emit)
    checks: tuple[Check, ...] = ()
    if scale > column.scale:
        checks = (_inexact(source, column),)
    elif column.precision - column.scale < digits - scale:
        largest = f"{EXACT.subtract(limit, Decimal(1).scaleb(-scale)):f}"
        kind = sql.spark_type(source)
        checks = (between(f"CAST('-{largest}' AS {kind})", f"CAST('{largest}' AS {kind})"),)
    return Reading(bytes_, read, scan, cast(column), checks, is_cast=True, emit=emit)


def _inexact(source: T.DecimalType, column: T.DecimalType) -> Check:
    """Return the check of decimals whose last digits the column cannot hold."""

    def one(raw: str) -> str:
        return f"coalesce({cast(source)(cast(column)(raw))} <> {raw}, {raw} IS NOT NULL)"

    return Check(one, lambda raw: sql.some(raw, one))


def date(column: T.IcebergType) -> Reading:
    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        _within(cursor.number(where), DAYS, where, "is not a day of the years 1 to 9999")

    def convert(raw: str) -> str:
        return f"date_from_unix_date({cast(T.IntegerType())(raw)})"

    emit = operation(AvroOp.INT, *DAYS)
    return Reading("long", "long", scan, convert, (between(*DAYS),), emit=emit)


def timestamp(column: T.IcebergType, kind: str, meaning: str) -> Reading | None:
    """Return a reading of numbers of the writer's kind, int or long.

    :param meaning: the logical type; None is returned if it is not of the column's kind
    """
    is_local = isinstance(column, T.TimestampType)
    place, _, unit = meaning.rpartition("timestamp-")
    if unit not in UNITS or place != ("local-" if is_local else ""):
        return None
    years = (bound // UNITS[unit] for bound in MICROS)
    low, high = INT if kind == "int" else years

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        number = cursor.number(where)
        problem = "out of range" if kind == "int" else "not of the years 1 to 9999"
        _within(number, (low, high), where, f"({meaning}) is {problem}")

    def end(number: int) -> str:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=number * UNITS[unit])
        return f"TIMESTAMP_NTZ'{moment}'" if is_local else f"TIMESTAMP'{moment}Z'"

    read = {"type": "long", "logicalType": meaning}
    emit = operation(AvroOp.LONG, low, high, UNITS[unit])
    return Reading("long", read, scan, checks=(between(end(low), end(high)),), emit=emit)


def scan_branches(scans: Sequence[Scan | None]) -> Scan:
    """Return how a union is read; a scan of None: null."""

    def scan(cursor: Cursor, path: str) -> None:
        if (branch := scans[_branch(cursor, path, len(scans))]) is not None:
            branch(cursor, path)

    return scan


def _branch(cursor: Cursor, path: str, count: int) -> int:
    """Read which branch of a union follows."""
    where = f"field {path} (union)"
    index = cursor.int_number(where)
    if not 0 <= index < count:
        raise MalformedError(f"{where}: there is no branch {index}, the union has {count}")
    return index


def scan_of(kind: Type) -> Scan:
    """Return how a type is read whose values have no column."""

    def scan(cursor: Cursor, path: str) -> None:
        if kind.kind == "union":
            branch = kind.branches[_branch(cursor, path, len(kind.branches))]
            return scan_of(branch)(cursor, path)
        where = field_at(path, kind)
        match kind.kind:
            case "boolean" | "float" | "double" | "fixed":
                cursor.take(least_bytes(kind), where)
            case "long":
                cursor.number(where)
            case "int" | "enum":
                cursor.int_number(where)
            case "bytes" | "string":
                cursor.text(where)
            case "record":
                for field in kind.fields:
                    scan_of(field.type)(cursor, f"{path}.{field.name}")
            case "array" | "map":
                assert kind.inner is not None  # noqa: S101  it has one
                each = scan_of(kind.inner)

                def item(index: int) -> None:
                    if kind.kind == "map":
                        cursor.text(where)
                    each(cursor, f"{path}[{index}]")

                cursor.blocks(where, item)
        return None

    return scan


# --- instructions for what has no column, and for unions and arrays ---


def branches(code: Code, branches: Sequence[Skip | None]) -> None:
    """Append the instructions of a union; a branch of None: null."""
    union = code.emit(AvroOp.UNION, None, len(branches), len(code.targets))
    first = len(code.targets)
    code.targets += [0] * len(branches)
    jumps: list[int] = []
    for number, branch in enumerate(branches):
        code.targets[first + number] = code.at
        if branch is not None:
            branch(code)
        jumps.append(code.emit(AvroOp.JUMP, None))
    assert code.instructions[union][4] == first  # noqa: S101  nested unions come later
    for jump in jumps:
        code.instructions[jump][3] = code.at


def items(code: Code, place: Place | None, writer: Type, item: Skip) -> None:
    """Append the instructions of an array.

    :raises NotCoveredError: items may have no bytes, so a few bytes may claim any number of them
    """
    assert writer.inner is not None  # noqa: S101  it is an array or a map
    if writer.kind == "array" and not least_bytes(writer.inner):
        raise NotCoveredError(f"items of {writer} may have no bytes")
    array = code.emit(AvroOp.ARRAY, place, place.items if place else -1)
    code.instructions[array][4] = code.at
    item(code)
    code.instructions.append([int(AvroOp.ITEM), -1, place.items if place else 0, 0, 0, 0])
    code.instructions[array][5] = code.at


def least_bytes(kind: Type, depth: int = 0) -> int:
    """Return how many bytes a value has at least."""
    if depth > MAX_PROGRAM_DEPTH:
        return 0
    match kind.kind:
        case "null":
            return 0
        case "float" | "double":
            return struct.calcsize(kind.kind[0])
        case "fixed":
            return kind.size
        case "record":
            return sum(least_bytes(field.type, depth + 1) for field in kind.fields)
    return 1


MAX_PROGRAM_DEPTH = 12
"""Nested types of a value that programs skip or read."""


def skip(code: Code, kind: Type, depth: int = 0) -> None:
    """Append the instructions that skip a value without a column.

    :raises NotCoveredError: the type is recursive, or nested too deeply
    """
    if depth > MAX_PROGRAM_DEPTH:
        raise NotCoveredError(f"{kind} is nested too deeply")
    match kind.kind:
        case "boolean" | "float" | "double" | "fixed":
            code.emit(AvroOp.SKIP_BYTES, None, least_bytes(kind))
        case "int" | "long":
            code.emit(AvroOp.SKIP_NUMBER, None, *(INT if kind.kind == "int" else LONG))
        case "enum":
            code.emit(AvroOp.SKIP_ENUM, None, len(kind.symbols))
        case "bytes" | "string":
            code.emit(AvroOp.SKIP_TEXT, None)
        case "record":
            for field in kind.fields:
                skip(code, field.type, depth + 1)
        case "array" | "map":

            def item(code: Code) -> None:
                if kind.kind == "map":
                    code.emit(AvroOp.SKIP_TEXT, None)
                assert kind.inner is not None  # noqa: S101  it has one
                skip(code, kind.inner, depth + 1)

            items(code, None, kind, item)
        case "union":
            inner = [
                None if one.kind == "null" else partial(skip, kind=one, depth=depth + 1)
                for one in kind.branches
            ]
            branches(code, inner)
