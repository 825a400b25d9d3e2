"""How values of :mod:`topicberg.formats.connect` are read, by the reference decoders."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal

from pyiceberg.types import (
    DateType,
    IcebergType,
    LongType,
    TimestampType,
    TimestamptzType,
)

MAX_DECIMAL_BYTES, MAX_SCALE = 65_536, 20_000
"""Limits of a decimal that becomes text. PostgreSQL's longest numbers have 61,232 bytes, of which
16,383 digits are behind the point."""
INFINITE_NANOS = -(2**63), 2**63 - 1
_DAY = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"


_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
_EXACT = Context(prec=200_000)
_SHORT_BITS = 4_096


@dataclass(frozen=True)
class Text:
    """A type whose values are text. ``parse``: the stored value, of a text that matches."""

    column: type[IcebergType]
    pattern: str
    parse: Callable[[str], int]
    what: str


def _instant(text: str) -> int:
    return _micros(datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None))


def _local(text: str) -> int:
    return _micros(datetime.fromisoformat(text.removesuffix("Z")))


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _days(text: str) -> int:
    return date.fromisoformat(text.removesuffix("Z")).toordinal() - _EPOCH.toordinal()


TEXTS = {
    "zoned-timestamp": Text(
        TimestamptzType,
        f"{_DAY}T{_TIME}{_ZONE}",
        _instant,
        "a time of the years 1 to 9999 with a zone",
    ),
    "iso-timestamp": Text(
        TimestampType,
        f"{_DAY}T{_TIME}Z?",
        _local,
        "a time of the years 1 to 9999",
    ),
    "iso-date": Text(
        DateType,
        f"{_DAY}Z?",
        _days,
        "a day of the years 1 to 9999",
    ),
    "iso-time": Text(
        LongType,
        f"{_TIME}Z?",
        lambda text: _local(f"1970-01-01T{text}"),
        "a time of day",
    ),
}


def parsed(kind: Text, text: str) -> int | None:
    """Return the stored value of a text, without what is beyond microseconds.

    None: the text is not one of the kind.
    """
    if not re.fullmatch(kind.pattern, text, re.ASCII):
        return None
    try:
        return kind.parse(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text))
    except (ValueError, OverflowError):  # no such day, or beyond the years 1 to 9999
        return None


# --- decimals that no column of numbers can hold ---


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
