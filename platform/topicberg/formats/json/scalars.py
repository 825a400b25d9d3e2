"""How values without inner ones are read: from parsed JSON to stored values."""

from __future__ import annotations

import binascii
import math
import re
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from pyiceberg import types as T

from topicberg.formats.connect import (
    MAX_DECIMAL_BYTES,
    TEXTS,
    DecimalLimitError,
    decimal_text,
    parsed,
    unscaled_text,
)
from topicberg.formats.json.columns import Kind
from topicberg.formats.json.plan import OTHER_NUMBERS, RANGES, SCALARS, JsonPlan
from topicberg.formats.json.syntax import Number, abbreviated, plain
from topicberg.formats.reasons import field_at
from topicberg.formats.time_text import date_time_micros

Read = Callable[[Any], Any]
"""Returns the stored value of a JSON value that is not null.

:raises MisfitError: the value does not fit
"""
_MIME_BASE64 = re.compile(
    r"(?:[\0- ]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))*[\0- ]*"
)
_EXPECTED: dict[Kind, str] = {
    **{kind: one.expected for kind, one in SCALARS.items()},
    "list": "an array",
    "map": "an object",
    "entries": "an array of objects with key and value",
    "struct": "an object",
}
_ROUNDED = 800  # Digits that decide how a number is rounded to a float, and more.
_MAX_BITS = 128  # Of the unscaled value of a decimal, and more.


class ScalarMisfitError(Exception):
    """A value does not fit its column. ``path``: the names and places that lead to it, backward."""

    def __init__(self, column: object, before: str, value: Any = ..., after: str = "") -> None:
        self.column, self.before, self.value, self.after = column, before, value, after
        self.path: list[str] = []

    def __str__(self) -> str:
        shown = "" if self.value is ... else abbreviated(self.value)
        problem = f"{self.before}{shown}{self.after}"
        if not self.path:
            return f"the record: {problem}"
        path = "".join(reversed(self.path)).removeprefix(".")
        return f"{field_at(path, self.column)}: {problem}"


def unexpected_in(plan: JsonPlan) -> Callable[[Any], ScalarMisfitError]:
    """Return what makes the error for a value of another type."""
    column, before = plan.column, f"{_EXPECTED.get(plan.kind, 'a value')} expected, "
    return lambda value: ScalarMisfitError(column, before, value, " found")


def scalar(plan: JsonPlan, *, in_union: bool) -> Read:
    """Return what reads a value, more strictly as a member of a union."""
    match plan.kind:
        case "string":
            return _typed(plan, str)
        case "boolean":
            return _typed(plan, bool)
        case "binary":
            return _typed(plan, str, _base64 if in_union else _mime_base64)
        case "date-time":
            return _typed(plan, str, date_time_micros)
        case "float" | "double" | "any-float" | "any-double":
            return _floating(plan, in_union)
        case "decimal":
            return _decimal(plan)
        case "decimal-text":
            return _decimal_text(plan)
        case "variable-decimal":
            return _variable_decimal(plan)
        case kind if kind in RANGES:
            return _whole(plan)
    return _typed(plan, str, partial(parsed, TEXTS[plan.kind]))


def _typed(plan: JsonPlan, kind: type, convert: Callable[[Any], Any] = lambda value: value) -> Read:
    """:param convert: returns the stored value of a value of the type; None: it has none"""
    unexpected = unexpected_in(plan)

    def read(value: Any) -> Any:
        stored = convert(value) if type(value) is kind else None
        if stored is None:
            raise unexpected(value)
        return stored

    return read


def _mime_base64(text: str) -> bytes | None:
    """Return the bytes of base64, which may have white space; None: it is not that."""
    decoded = _base64(text)
    is_spaced = decoded is None and _MIME_BASE64.fullmatch(text)
    return binascii.a2b_base64(text) if is_spaced else decoded


def _base64(value: Any) -> bytes | None:
    """Return the bytes of base64 without white space; None: it is not that."""
    if type(value) is not str:
        return None
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        return None


def _whole(plan: JsonPlan) -> Read:
    kind, column, unexpected = plan.kind, plan.column, unexpected_in(plan)
    low, high = RANGES[kind]
    is_moment = kind in ("date", "timestamp", "timestamptz", "timestamp-micros")
    outside = " is not between the years 1 and 9999" if is_moment else " exceeds the range"
    stored = _stored_whole(kind, column)

    def read(value: Any) -> Any:
        if (number := whole_number(value)) is None:
            raise unexpected(value)
        if not low <= number <= high:
            raise ScalarMisfitError(column, "value ", value, outside)
        column_value = number if stored is None else stored(number)
        if column_value is None:
            raise ScalarMisfitError(column, "value ", value, " exceeds the column's range")
        return column_value

    return read


def _stored_whole(kind: Kind, column: T.IcebergType) -> Callable[[int], Any] | None:
    """Return what converts a whole number to a column's value; None: it is the number. It returns
    None for a number that the column cannot hold exactly."""
    match column:
        case T.DecimalType():
            limit, factor = 10 ** (column.precision - column.scale), 10**column.scale
            return lambda number: number * factor if -limit < number < limit else None
        case T.IntegerType():
            return lambda number: number if -(2**31) <= number < 2**31 else None
        case T.FloatType():
            return lambda number: exact if int(exact := _float32(float(number))) == number else None
        case T.DoubleType():
            return lambda number: exact if int(exact := float(number)) == number else None
    match kind:
        case "timestamp" | "timestamptz":
            return lambda number: number * 1000
        case "timestamp-nanos":
            return lambda number: number // 1000
    return None


def whole_number(value: Any) -> int | None:
    """Return the whole number that a value is; None: it is none. One that is beyond all ranges has
    another value, which is beyond them too."""
    if type(value) is not Number:
        return value if type(value) is int else None
    digits, exponent = value.parts()
    if exponent < 0:
        return None
    magnitude = int(digits or 0) * 10**exponent if 0 <= len(digits) + exponent < 60 else 10**60
    return -magnitude if value.startswith("-") else magnitude


def _floating(plan: JsonPlan, in_union: bool) -> Read:
    column, unexpected = plan.column, unexpected_in(plan)
    is_float = plan.kind.endswith("float")
    others = OTHER_NUMBERS if plan.kind.startswith("any-") else {}

    def read(value: Any) -> Any:
        if type(value) is str and value in others:
            return others[value]
        if type(value) is not int and type(value) is not Number:
            raise unexpected(value)
        try:
            number = _nearest_float(value) if is_float else float(value)
        except OverflowError:
            number = math.inf
        if abs(number) == math.inf:
            raise ScalarMisfitError(column, "value ", value, " exceeds the range")
        return number + 0.0 if in_union else number  # a negative zero is zero there

    return read


def _float32(number: float) -> float:
    """:raises OverflowError: it is too large"""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _nearest_float(value: int | Number) -> float:
    """Return the float that is nearest to a number, or raise OverflowError. The nearest double, if
    it is halfway between two floats, does not say which one that is."""
    wide = float(value)
    nearest = _float32(wide)
    mantissa, _ = math.frexp(wide)
    if nearest == wide or not (mantissa * 2**25).is_integer():
        return nearest
    exact = Fraction(value) if isinstance(value, int) else _fraction(value)
    return min(nearest, _float32(2 * wide - nearest), key=lambda near: abs(exact - Fraction(near)))


def _fraction(number: Number) -> Fraction:
    digits, exponent = number.parts()
    if len(digits) > _ROUNDED:
        digits, exponent = f"{digits[:_ROUNDED]}1", exponent + len(digits) - _ROUNDED - 1
    magnitude = int(digits or 0) * Fraction(10) ** exponent
    return -magnitude if number.startswith("-") else magnitude


def _decimal(plan: JsonPlan) -> Read:
    """Return what reads a number, or base64 of Connect's bytes: the unscaled value, big-endian."""
    own = T.DecimalType(plan.node.precision, plan.node.scale)
    column, unexpected = plan.column, unexpected_in(plan)
    kinds = (own,) if own == column else (own, column)

    def read(value: Any) -> Any:
        number = Number(value) if type(value) is int else value
        if type(value) is str and (unscaled := _base64(value)):
            if int.from_bytes(unscaled, "big", signed=True).bit_length() > _MAX_BITS:
                raise ScalarMisfitError(own, "value ", value, " exceeds the precision")
            number = Number(unscaled_text(unscaled, own.scale))
            value = Number(plain(number))
        if type(number) is not Number:
            raise unexpected(value)
        digits, exponent = number.parts()
        for kind in kinds:
            if len(digits) + exponent > kind.precision - kind.scale:
                raise ScalarMisfitError(kind, "value ", value, " exceeds the precision")
            if -exponent > kind.scale:
                raise ScalarMisfitError(kind, "value ", value, " exceeds the scale")
        magnitude = int(digits or 0) * 10 ** (exponent + column.scale)
        return -magnitude if number.startswith("-") else magnitude

    return read


def _decimal_text(plan: JsonPlan) -> Read:
    """Return what reads all digits of a number, or of Connect's bytes."""
    column, scale = plan.column, plan.node.scale

    def read(value: Any) -> Any:
        if type(value) is int or type(value) is Number:
            number = Number(value)
            digits, exponent = number.parts()
            if len(digits) + exponent > 2 * MAX_DECIMAL_BYTES:
                raise ScalarMisfitError(column, "value ", value, " has too many digits")
            if -exponent > scale:
                raise ScalarMisfitError(column, "value ", value, " exceeds the scale")
            return plain(number, scale)
        return _all_digits(value, value, scale, plan)

    return read


def _variable_decimal(plan: JsonPlan) -> Read:
    """Return what reads all digits of Debezium's object of a scale and an unscaled value."""
    unexpected = unexpected_in(plan)

    def read(value: Any) -> Any:
        if (scale := whole_number(value.get("scale") if type(value) is dict else None)) is None:
            raise unexpected(value)
        return _all_digits(value, value.get("value"), scale, plan)

    return read


def _all_digits(value: Any, encoded: Any, scale: int, plan: JsonPlan) -> str:
    """Return a decimal as text; ``encoded`` is base64 of its unscaled bytes."""
    if (unscaled := _base64(encoded)) is None:
        raise unexpected_in(plan)(value)
    try:
        return decimal_text(unscaled, scale)
    except DecimalLimitError as error:
        raise ScalarMisfitError(plan.column, str(error)) from None
