"""How values of :mod:`topicberg.formats.connect` are read, by Spark and to find the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pyiceberg.types import (
    DateType,
    IcebergType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from topicberg.formats import avro_values as values
from topicberg.formats import sql
from topicberg.formats.avro_schema import Type
from topicberg.formats.avro_values import Check, Cursor, Reading
from topicberg.formats.reasons import MalformedError, field_at, shortened

MAX_DECIMAL_BYTES, MAX_SCALE = 65_536, 20_000
"""Limits of a decimal that becomes text. PostgreSQL's longest numbers have 61,232 bytes, of which
16,383 digits are behind the point."""
INFINITE_NANOS = -(2**63), 2**63 - 1
_DAY = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
_ZONE = r"(?:Z|[+-][0-9]{2}:[0-9]{2})"


@dataclass(frozen=True)
class Text:
    """A type whose values are text. ``convert``: SQL; ``parse``: the same in Python."""

    column: type[IcebergType]
    pattern: str
    convert: str
    parse: Callable[[str], object]
    what: str


def _instant(text: str) -> object:
    found = datetime.fromisoformat(text).astimezone(UTC)
    return found.replace(tzinfo=None)


TEXTS = {
    "zoned-timestamp": Text(
        TimestamptzType,
        f"{_DAY}T{_TIME}{_ZONE}",
        "try_cast({} AS timestamp)",
        _instant,
        "a time of the years 1 to 9999 with a zone",
    ),
    "iso-timestamp": Text(
        TimestampType,
        f"{_DAY}T{_TIME}Z?",
        "try_cast(trim(TRAILING 'Z' FROM {}) AS timestamp_ntz)",
        lambda text: datetime.fromisoformat(text.removesuffix("Z")),
        "a time of the years 1 to 9999",
    ),
    "iso-date": Text(
        DateType,
        f"{_DAY}Z?",
        "try_cast(trim(TRAILING 'Z' FROM {}) AS date)",
        lambda text: date.fromisoformat(text.removesuffix("Z")),
        "a day of the years 1 to 9999",
    ),
    "iso-time": Text(
        LongType,
        f"{_TIME}Z?",
        "unix_micros(try_cast(concat('1970-01-01T', trim(TRAILING 'Z' FROM {}), 'Z') "
        "AS timestamp))",
        lambda text: datetime.fromisoformat(f"1970-01-01T{text.removesuffix('Z')}"),
        "a time of day",
    ),
}


def reading(writer: Type, name: str, column: IcebergType) -> Reading | None:
    """Return how a value becomes one of the column; None: no value of the type fits it.

    :param name: a name for a type that needs one
    """
    text = TEXTS.get((writer.logical or "").removeprefix("topicberg."))
    if text is not None:
        if isinstance(column, StringType):
            return values.string(column)
        return _text(text, column) if isinstance(column, text.column) else None
    match writer.logical, column:
        case "topicberg.nano-timestamp", TimestampType():
            return _nanos(column)
        case "topicberg.decimal", StringType():
            return _decimal(writer, column)
        case "topicberg.variable-decimal", StringType():
            return _variable_decimal(writer, name, column)
    return None


def _wrong_if(convert: Callable[[str], str]) -> Check:
    """Return the check of values that cannot be converted."""

    def one(raw: str) -> str:
        return f"({raw} IS NOT NULL AND {convert(raw)} IS NULL)"

    return Check(one, lambda raw: sql.some(raw, one))


def _text(kind: Text, column: IcebergType) -> Reading:
    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        found = values.utf8(cursor.text(where), where)
        if not is_text(kind, found):
            raise MalformedError(f'{where}: value "{shortened(found)}" is not {kind.what}')

    def convert(raw: str) -> str:
        return text_value(kind, raw)

    return Reading("string", "string", scan, convert, (_wrong_if(convert),))


def is_text(kind: Text, found: str) -> bool:
    """Return whether a text is one of the kind."""
    try:
        if re.fullmatch(kind.pattern, found, re.ASCII):
            kind.parse(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", found))
            return True
    except (ValueError, OverflowError):
        pass
    return False


def text_value(kind: Text, raw: str) -> str:
    """Return SQL of the column's value of a text; null if it is not one of the kind."""
    value = kind.convert.replace("{}", raw)
    if kind.column is TimestamptzType:
        first, last = "TIMESTAMP'0001-01-01 00:00:00Z'", "TIMESTAMP'9999-12-31 23:59:59.999999Z'"
        value = f"CASE WHEN {value} BETWEEN {first} AND {last} THEN {value} END"
    pattern = sql.text(f"^{kind.pattern}\\z")
    return f"if({raw} RLIKE {pattern}, {value}, NULL)"


def _nanos(column: IcebergType) -> Reading:
    """Return the reading of nanoseconds; digits beyond microseconds are dropped.

    Debezium writes an infinite time as the largest or the smallest number.
    """

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        value = cursor.number(where)
        if value in INFINITE_NANOS:
            raise MalformedError(f"{where}: value {value} (nanoseconds) is infinite")

    low, high = INFINITE_NANOS
    infinite = Check(
        lambda x: f"{x} IN ({high}, {_long(low)})",
        lambda x: f"array_contains({x}, {high}) OR array_contains({x}, {_long(low)})",
    )
    return Reading("long", "long", scan, nanos_value, (infinite,))


def nanos_value(raw: str) -> str:
    """Return SQL of the timestamp of nanoseconds since 1970."""
    epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
    seconds, rest = f"floor({raw} / 1000000000.0BD)", f"pmod({raw}, 1000000000) div 1000"
    # make_interval has no 64-bit part, so days, seconds and microseconds are added.
    days = f"CAST(CAST({seconds} AS bigint) div 86400 AS int)"
    left = f"CAST({seconds} AS bigint) % 86400"
    interval = (
        f"make_dt_interval({days}, 0, 0, CAST({left} AS decimal(18,6)) "
        f"+ CAST({rest} AS decimal(18,6)) / 1000000)"
    )
    return f"({epoch} + {interval})"


def _long(number: int) -> str:
    return f"CAST('{number}' AS bigint)"


# --- decimals that no column of numbers can hold ---


def _decimal(writer: Type, column: IcebergType) -> Reading | None:
    scale = writer.scale
    if type(scale) is not int or not -MAX_SCALE <= scale <= MAX_SCALE:
        return None

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        check_decimal(cursor.text(where), scale, where)

    def convert(raw: str) -> str:
        return decimal_text(raw, str(scale))

    return Reading("bytes", "bytes", scan, convert, (_wrong_if(lambda raw: _checked(raw, "0")),))


def _variable_decimal(writer: Type, name: str, column: IcebergType) -> Reading | None:
    """Return the reading of Debezium's record of a scale and an unscaled value."""
    kinds = {field.name: field.type.kind for field in writer.fields}
    if kinds != {"scale": "int", "value": "bytes"}:
        return None
    fields = [
        {"name": field.name, "type": "long" if field.name == "scale" else "bytes"}
        for field in writer.fields
    ]

    def scan(cursor: Cursor, path: str) -> None:
        where = field_at(path, column)
        found: dict[str, Any] = {}
        for field in writer.fields:
            read = cursor.number if field.name == "scale" else cursor.text
            found[field.name] = read(where)
        check_decimal(found["value"], found["scale"], where)

    def convert(raw: str) -> str:
        return decimal_text(f"{raw}.value", f"CAST({raw}.scale AS int)", raw)

    wire = {"type": "record", "name": name, "fields": fields}
    check = _wrong_if(lambda raw: _checked(f"{raw}.value", f"{raw}.scale"))
    return Reading(wire, wire, scan, convert, (check,))


def check_decimal(unscaled: bytes, scale: int, where: str) -> None:
    """:raises MalformedError: the decimal is beyond the limits"""
    if not unscaled:
        raise MalformedError(f"{where}: a decimal has at least one byte")
    if len(unscaled) > MAX_DECIMAL_BYTES:
        raise MalformedError(
            f"{where}: the decimal has {len(unscaled)} bytes, the limit is {MAX_DECIMAL_BYTES}"
        )
    if abs(scale) > MAX_SCALE:
        raise MalformedError(f"{where}: the decimal has the scale {scale}, beyond {MAX_SCALE}")


def _checked(unscaled: str, scale: str) -> str:
    """Return SQL that is null for a decimal beyond the limits."""
    fits = f"length({unscaled}) BETWEEN 1 AND {MAX_DECIMAL_BYTES} AND abs({scale}) <= {MAX_SCALE}"
    return f"if({fits}, true, NULL)"


def decimal_text(unscaled: str, scale: str, whole: str | None = None) -> str:
    """Return SQL of a decimal as text without an exponent, with as many digits as its scale.

    :param unscaled: SQL of its bytes, two's complement, the first byte first
    :param whole: SQL that is null if there is no decimal
    """

    def scaled(of: str) -> str:
        padded = f"lpad({of}.d, greatest(length({of}.d), {of}.s + 1), '0')"
        point = f"concat(left({padded}, length({padded}) - {of}.s), '.', right({padded}, {of}.s))"
        zeros = f"if({of}.d = '0', '0', concat({of}.d, repeat('0', -{of}.s)))"
        text = f"CASE WHEN {of}.s > 0 THEN {point} WHEN {of}.s = 0 THEN {of}.d ELSE {zeros} END"
        return f"concat(if({of}.n, '-', ''), {text})"

    is_negative = f"conv(substr(hex({unscaled}), 1, 2), 16, 10) >= 128"
    parts = sql.struct([("n", is_negative), ("d", _digits(unscaled, is_negative)), ("s", scale)])
    text = f"{sql.each(f'array({parts})', scaled)}[0]"
    valid = _checked(unscaled, scale)
    return f"if({whole or unscaled} IS NOT NULL AND {valid}, {text}, NULL)"


def _digits(unscaled: str, is_negative: str) -> str:
    """Return SQL of the digits of a number's absolute value.

    Up to seven bytes are a long. Spark has no longer integers but Scala's, which read hexadecimal
    text; that of a negative number's absolute value is the inverse of its bytes, plus one.
    """
    number = f"CAST(conv(hex({unscaled}), 16, 10) AS bigint)"
    complement = f"shiftleft(1L, 8 * length({unscaled})) - {number}"
    short = f"CAST(if({is_negative}, {complement}, {number}) AS string)"
    inverse = f"translate(hex({unscaled}), '0123456789ABCDEF', 'FEDCBA9876543210')"
    start = f"trim(TRAILING 'F' FROM {inverse})"
    increased = f"translate(right({start}, 1), '0123456789ABCDE', '123456789ABCDEF')"
    zeros = f"repeat('0', length({inverse}) - length({start}))"
    positive = f"concat(left({start}, length({start}) - 1), {increased}, {zeros})"
    text = f"if({is_negative}, {positive}, hex({unscaled}))"
    long = f"java_method('scala.math.BigInt', 'apply', {text}, 16)"
    return f"if(length({unscaled}) <= 7, {short}, {long})"
