"""How values of :mod:`topicberg.formats.connect` are read, by the reference decoders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal

from pyiceberg.types import DateType, IcebergType, LongType, TimestampType, TimestamptzType

from topicberg.formats.time_text import DAY, date_time_micros

MAX_DECIMAL_BYTES, MAX_SCALE = 65_536, 20_000
"""Limits of a decimal that becomes text. PostgreSQL's longest numbers have 61,232 bytes, of which
16,383 digits are behind the point."""
INFINITE_NANOS = -(2**63), 2**63 - 1
_DAY = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_EXACT = Context(prec=200_000)
_SHORT_BITS = 4_096


@dataclass(frozen=True)
class Text:
    """A type whose values are text.

    ``completed``: what makes a time of RFC 3339 of a text that matches, in braces; None: it is one.
    ``unit``: microseconds of the stored value.
    """

    column: type[IcebergType]
    pattern: str
    what: str
    completed: str | None = None
    unit: int = 1


TEXTS = {
    "zoned-timestamp": Text(
        TimestamptzType, f"{_DAY}T{_TIME}{_ZONE}", "a time of the years 1 to 9999 with a zone"
    ),
    "iso-timestamp": Text(
        TimestampType, f"{_DAY}T{_TIME}Z?", "a time of the years 1 to 9999", "{}Z"
    ),
    "iso-date": Text(DateType, f"{_DAY}Z?", "a day of the years 1 to 9999", "{}T00:00:00Z", DAY),
    "iso-time": Text(LongType, f"{_TIME}Z?", "a time of day", "1970-01-01T{}Z"),
}


def parsed(kind: Text, text: str) -> int | None:
    """Return the stored value of a text, without what is beyond microseconds.

    None: the text is not one of the kind.
    """
    if not re.fullmatch(kind.pattern, text, re.ASCII):
        return None
    complete = kind.completed.format(text.removesuffix("Z")) if kind.completed else text
    micros = date_time_micros(complete)  # None: no such day, or beyond the years 1 to 9999
    return None if micros is None else micros // kind.unit


class DecimalLimitError(ValueError):
    """A decimal is beyond the limits. The text is the reason."""


def decimal_text(unscaled: bytes, scale: int) -> str:
    """Return a decimal as text, as :func:`unscaled_text` does.

    :raises DecimalLimitError: it is beyond the limits
    """
    if not unscaled:
        raise DecimalLimitError("a decimal has at least one byte")
    if len(unscaled) > MAX_DECIMAL_BYTES:
        raise DecimalLimitError(
            f"the decimal has {len(unscaled)} bytes, the limit is {MAX_DECIMAL_BYTES}"
        )
    if abs(scale) > MAX_SCALE:
        raise DecimalLimitError(f"the decimal has the scale {scale}, beyond {MAX_SCALE}")
    return unscaled_text(unscaled, scale)


def unscaled_text(unscaled: bytes, scale: int) -> str:
    """Return a decimal as text without an exponent, with as many digits as its scale."""
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = _exact(abs(number))
    return f"{_EXACT.scaleb(digits if number >= 0 else digits.copy_negate(), -scale):f}"


def _exact(number: int) -> Decimal:
    """Convert a number by halves, as Python takes a time that grows with the square of its size."""
    bits = number.bit_length()
    if bits <= _SHORT_BITS:
        return Decimal(number)
    half = bits >> 1
    high, low = _exact(number >> half), _exact(number & ((1 << half) - 1))
    return _EXACT.fma(high, _EXACT.power(2, half), low)
