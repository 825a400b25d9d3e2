"""The types of Kafka Connect and Debezium, which Avro's and JSON's own types do not show.

Connect's Avro converters write the name of such a type beside the type of its bytes, as
``connect.name``. :func:`with_connect_types` replaces it by a logical type: one of Avro's where
there is one, else one of topicberg, which reference decoders read by the functions below. Its JSON
Schema converters write the name as ``title``, which :mod:`.json.columns` reads. Only topics with a
change log are read this way.

Source: Debezium's documentation of its PostgreSQL connector, "Data type mappings".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

from pyiceberg.types import DateType, IcebergType, LongType, TimestampType, TimestamptzType

from topicberg.formats.bounds import MAX_PRECISION
from topicberg.formats.subjects import RegisteredSchema
from topicberg.formats.time_text import DAY, date_time_micros

LOGICAL_TYPES = {
    "io.debezium.time.Date": ("int", "date"),
    "io.debezium.time.Timestamp": ("long", "local-timestamp-millis"),
    "io.debezium.time.MicroTimestamp": ("long", "local-timestamp-micros"),
    "io.debezium.time.NanoTimestamp": ("long", "topicberg.nano-timestamp"),
    "io.debezium.time.ZonedTimestamp": ("string", "topicberg.zoned-timestamp"),
    "io.debezium.time.Time": ("int", "time-millis"),
    "io.debezium.time.MicroTime": ("long", "time-micros"),
    "io.debezium.time.IsoDate": ("string", "topicberg.iso-date"),
    "io.debezium.time.IsoTimestamp": ("string", "topicberg.iso-timestamp"),
    "io.debezium.time.IsoTime": ("string", "topicberg.iso-time"),
    "io.debezium.data.VariableScaleDecimal": ("record", "topicberg.variable-decimal"),
    "org.apache.kafka.connect.data.Date": ("int", "date"),
    "org.apache.kafka.connect.data.Time": ("int", "time-millis"),
    "org.apache.kafka.connect.data.Timestamp": ("long", "timestamp-millis"),
}


def with_connect_types(schema: RegisteredSchema) -> RegisteredSchema:
    """Return a schema whose Connect types are logical types, or as it is if it cannot be read."""
    match schema.schema_type:
        case "AVRO":
            return _rewritten(schema)
        case "JSON":
            return replace(schema, has_connect_types=True)
    return schema


@lru_cache(maxsize=256)
def _rewritten(schema: RegisteredSchema) -> RegisteredSchema:
    try:
        text = json.dumps(_typed(json.loads(schema.text)))
        references = tuple(
            (name, json.dumps(_typed(json.loads(reference))))
            for name, reference in schema.references
        )
    except (ValueError, RecursionError):
        return schema
    return replace(schema, text=text, references=references)


def _typed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_typed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    typed = {
        key: _typed(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
    }
    kind, logical = LOGICAL_TYPES.get(str(schema.get("connect.name")), (None, None))
    if kind is not None and schema.get("type") == kind:
        typed["logicalType"] = logical
    elif schema.get("logicalType") == "decimal" and schema.get("type") == "bytes":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int):
            # PostgreSQL's numeric(3,5) has three digits, the fifth behind the point is the last.
            typed["precision"] = max(precision, scale)
            if typed["precision"] > MAX_PRECISION:
                typed["logicalType"] = "topicberg.decimal"
    return typed


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
    """Return the stored value of a text, without what is beyond microseconds; None: it has none."""
    if not re.fullmatch(kind.pattern, text, re.ASCII):
        return None
    complete = kind.completed.format(text.removesuffix("Z")) if kind.completed else text
    micros = date_time_micros(complete)  # None: no such day, or beyond the years 1 to 9999
    return None if micros is None else micros // kind.unit


class DecimalLimitError(ValueError):
    """A decimal is beyond the limits. The text is the reason."""


def decimal_text(unscaled: bytes, scale: int) -> str:
    """Return a decimal as :func:`unscaled_text` does, or raise DecimalLimitError."""
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
