"""Defaults of Avro fields as constants of their columns."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pyiceberg import types as T

from topicberg.formats import sql
from topicberg.formats.avro_schema import NO_DEFAULT, Field, Type
from topicberg.formats.avro_values import DAYS, EXACT, INT, LONG, MAX_DECIMAL_BITS, MICROS, UNITS


def default(field: Field, column: T.IcebergType) -> str | None:
    """Return the constant of a field's default in a column; None if it is null or invalid."""
    if field.default is NO_DEFAULT:
        return None
    return _constant(field.type, field.default, column)


def _constant(kind: Type, value: Any, column: T.IcebergType) -> str | None:
    """Return the SQL of a default value; None if it is null, or the type does not allow it."""
    if kind.kind == "union":
        for index, branch in enumerate(kind.members):
            if not kind.has_members:
                constant = _constant(branch, value, column)
            elif isinstance(column, T.StructType):
                member = f"member{index}"
                target = next((one for one in column.fields if one.name == member), None)
                inner = _constant(branch, value, target.field_type) if target else None
                constant = inner and sql.row(column, {member: inner})
            else:
                return None
            if constant is not None:
                return constant
        return None
    constant = _plain_constant(kind, value, column)
    return None if constant is None else f"CAST({constant} AS {sql.spark_type(column)})"


def _plain_constant(kind: Type, value: Any, column: T.IcebergType) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match column:
        case T.BooleanType() if kind.kind == "boolean" and isinstance(value, bool):
            return str(value).lower()
        case T.IntegerType() | T.LongType() if kind.kind in ("int", "long") and is_number:
            return _whole_constant(value, *(INT if isinstance(column, T.IntegerType) else LONG))
        case T.FloatType() | T.DoubleType() if kind.kind in ("int", "long", "float", "double"):
            if is_number or value in ("NaN", "Infinity", "-Infinity"):
                return f"'{value}'"
        case T.StringType() if kind.kind == "enum" and value in kind.symbols:
            return sql.text(value)
        case T.StringType() if kind.kind == "string" and isinstance(value, str):
            return sql.text(value)
        case T.BinaryType() | T.StringType() if kind.kind in ("bytes", "fixed"):
            data = _latin(value)
            if data is None or (isinstance(column, T.StringType) and not _is_utf8(data)):
                return None
            return f"X'{data.hex()}'"
        case T.DecimalType() if kind.is_decimal:
            return _decimal_constant(_latin(value), kind.scale, column)
        case T.DateType() if kind.logical == "date" and is_number:
            days = _whole_constant(value, *DAYS)
            return days and f"date_from_unix_date({days})"
        case T.TimestamptzType() | T.TimestampType() if kind.logical and is_number:
            return _moment_constant(kind.logical, value, column)
        case T.ListType() if kind.inner and isinstance(value, list):
            items = [_constant(kind.inner, item, column.element_type) for item in value]
            return f"array({', '.join(item or 'NULL' for item in items)})"
        case T.MapType() if kind.inner and isinstance(value, dict):
            pairs = (
                f"{sql.text(key)}, {_constant(kind.inner, item, column.value_type) or 'NULL'}"
                for key, item in value.items()
            )
            return f"map({', '.join(pairs)})"
        case T.StructType() if kind.kind == "record" and isinstance(value, dict):
            fields = {field.name: field for field in kind.fields}
            constants = {
                one.name: constant
                for one in column.fields
                if (field := fields.get(one.name)) is not None
                and (given := value.get(field.name, field.default)) is not NO_DEFAULT
                and (constant := _constant(field.type, given, one.field_type)) is not None
            }
            return sql.row(column, constants)
    return None


def _whole_constant(value: Any, low: int, high: int) -> str | None:
    return f"{int(value)}L" if low <= value <= high and value == int(value) else None


def _decimal_constant(data: bytes | None, scale: int, column: T.DecimalType) -> str | None:
    number = int.from_bytes(data or b"", "big", signed=True)
    if not data or number.bit_length() > MAX_DECIMAL_BITS:
        return None
    value = Decimal(number).scaleb(-scale, EXACT)
    shifted = value.scaleb(column.scale, EXACT)
    if shifted.copy_abs() >= 10**column.precision or shifted != shifted.to_integral_value():
        return None  # Spark's cast fails, or rounds
    return f"'{value:f}'"


def _moment_constant(logical: str, value: Any, column: T.IcebergType) -> str | None:
    unit = UNITS.get(logical.rpartition("-")[2])
    if unit is None:
        return None
    micros = _whole_constant(value * unit, *MICROS)
    if isinstance(column, T.TimestamptzType) or micros is None:
        return micros and f"timestamp_micros({micros})"
    seconds = EXACT.scaleb(Decimal(int(value) * unit), -6)
    interval = f"make_dt_interval(0, 0, 0, CAST({seconds:f} AS decimal(18,6)))"
    return f"TIMESTAMP_NTZ'1970-01-01' + {interval}"


def _latin(value: Any) -> bytes | None:
    """Return the bytes that a default's text represents: one for each character."""
    try:
        return value.encode("latin-1") if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
