"""Defaults of Avro fields as stored values of their columns."""

from __future__ import annotations

from contextlib import suppress
from decimal import Context, Decimal
from typing import Any

import numpy as np
from pyiceberg import types as T

from topicberg.formats.avro.schema import NO_DEFAULT, AvroField, Type
from topicberg.formats.bounds import DAYS, INT, LONG, MICROS
from topicberg.formats.connect import INFINITE_NANOS, TEXTS, DecimalLimitError, decimal_text, parsed

UNITS = {"millis": 1_000, "micros": 1}  # Microseconds of a unit of a timestamp.
MAX_DECIMAL_BITS = 256
"""Larger numbers exceed every precision and scale. To convert them to decimals takes a time that
grows with the square of their bytes: minutes for a megabyte."""
EXACT = Context(prec=10_000)


def default(field: AvroField, column: T.IcebergType) -> Any:
    """Return the stored value of a field's default; None if it is null or invalid."""
    return None if field.default is NO_DEFAULT else _value(field.type, field.default, column)


def _value(kind: Type, value: Any, column: T.IcebergType) -> Any:
    """Return the stored value; None if it is null, or the type does not allow it."""
    if kind.kind != "union":
        return _plain(kind, value, column)
    for index, branch in enumerate(kind.members):
        stored = None
        if not kind.has_members:
            stored = _value(branch, value, column)
        elif isinstance(column, T.StructType):
            members = {field.name: field for field in column.fields}
            if (member := members.get(f"member{index}")) is not None:
                inner = _value(branch, value, member.field_type)
                stored = None if inner is None else {**dict.fromkeys(members), member.name: inner}
        if stored is not None:
            return stored
    return None


def _plain(kind: Type, value: Any, column: T.IcebergType) -> Any:
    if (kind.logical or "").startswith("topicberg."):
        return _connect(kind, value, column)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match column:
        case T.BooleanType() if kind.kind == "boolean" and isinstance(value, bool):
            return value
        case T.IntegerType() | T.LongType() if kind.kind in ("int", "long") and is_number:
            return _whole(value, *(INT if isinstance(column, T.IntegerType) else LONG))
        case T.FloatType() | T.DoubleType() if kind.kind in ("int", "long", "float", "double"):
            if is_number or value in ("NaN", "Infinity", "-Infinity"):
                return _nearest(value, column)
        case T.StringType() if kind.kind == "enum" and value in kind.symbols:
            return value
        case T.StringType() if kind.kind == "string" and isinstance(value, str):
            return value
        case T.StringType() if kind.kind in ("bytes", "fixed"):
            return _text(_latin(value))
        case T.BinaryType() if kind.kind in ("bytes", "fixed"):
            return _latin(value)
        case T.DecimalType() if kind.is_decimal:
            return _unscaled(_latin(value), kind.scale, column)
        case T.DateType() if kind.logical == "date" and is_number:
            return _whole(value, *DAYS)
        case T.TimestamptzType() | T.TimestampType() if kind.logical and is_number:
            unit = UNITS.get(kind.logical.rpartition("-")[2])
            return unit and _whole(value * unit, *MICROS)
        case T.ListType() if kind.inner and isinstance(value, list):
            return [_value(kind.inner, item, column.element_type) for item in value]
        case T.MapType() if kind.inner and isinstance(value, dict):
            inner = kind.inner
            return [
                (key, _value(inner, entry_value, column.value_type))
                for key, entry_value in value.items()
            ]
        case T.StructType() if kind.kind == "record" and isinstance(value, dict):
            fields = {field.name: field for field in kind.fields}
            return {
                column_field.name: _value(field.type, given, column_field.field_type)
                if (field := fields.get(column_field.name)) is not None
                and (given := value.get(field.name, field.default)) is not NO_DEFAULT
                else None
                for column_field in column.fields
            }
    return None


def _connect(kind: Type, value: Any, column: T.IcebergType) -> Any:
    """Return the stored value of a type of :mod:`topicberg.formats.connect`."""
    logical = (kind.logical or "").removeprefix("topicberg.")
    if (text := TEXTS.get(logical)) is not None:
        if not isinstance(value, str):
            return None
        if isinstance(column, T.StringType):
            return value
        return parsed(text, value) if isinstance(column, text.column) else None
    match logical, column:
        case "nano-timestamp", T.TimestampType() if type(value) in (int, float):
            nanos = _whole(value, *LONG)
            return None if nanos is None or nanos in INFINITE_NANOS else nanos // 1_000
        case "decimal", T.StringType():
            return _decimal_text(_latin(value), kind.scale)
        case "variable-decimal", T.StringType() if isinstance(value, dict):
            given = {field.name: field.default for field in kind.fields} | value
            return _decimal_text(_latin(given.get("value")), given.get("scale"))
    return None


def _decimal_text(unscaled: bytes | None, scale: Any) -> str | None:
    """Return a decimal as text; None: it is none, or exceeds the limits of records."""
    if unscaled is not None and type(scale) is int:
        with suppress(DecimalLimitError):
            return decimal_text(unscaled, scale)
    return None


def _whole(value: float, low: int, high: int) -> int | None:
    return int(value) if low <= value <= high and value == int(value) else None


def _nearest(value: Any, column: T.IcebergType) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    if isinstance(column, T.DoubleType):
        return number
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _unscaled(data: bytes | None, scale: int, column: T.DecimalType) -> int | None:
    number = int.from_bytes(data or b"", "big", signed=True)
    if not data or number.bit_length() > MAX_DECIMAL_BITS:
        return None
    shifted = Decimal(number).scaleb(column.scale - scale, EXACT)
    if shifted.copy_abs() >= 10**column.precision or shifted != shifted.to_integral_value():
        return None
    return int(shifted)


def _latin(value: Any) -> bytes | None:
    """Return the bytes that a default's text represents: one for each character."""
    try:
        return value.encode("latin-1") if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
