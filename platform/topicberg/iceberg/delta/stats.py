"""Statistics of a data file, from Iceberg's manifest to Delta's JSON.

Readers skip files by them, so a bound may be wide but never narrow. Iceberg's bounds of long
strings are truncated as Delta's may be: the lower one is a prefix, the upper one is rounded up.

Source: Delta's PROTOCOL.md, "Per-file Statistics".
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyiceberg import types as T
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile

from topicberg.iceberg.manifests import bounds_of
from topicberg.iceberg.names import name_in_files

_EPOCH = datetime(1970, 1, 1)
_Bound = int | float | str | Decimal
_Nested = dict[str, Any]


def statistics(file: DataFile, schema: T.StructType) -> str:
    """Return rows, bounds and nulls of the columns by their names in the file; not for lists."""
    lower, upper, nulls = _columns(file, schema)
    return to_json(
        {
            "numRecords": file.record_count,
            "minValues": lower,
            "maxValues": upper,
            "nullCount": nulls,
        }
    )


def to_json(value: Any) -> str:
    """Return JSON with decimals as numbers, which the standard library does not write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{to_json(value[key])}" for key in value) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


def _columns(file: DataFile, struct: T.StructType) -> tuple[_Nested, _Nested, _Nested]:
    lower: _Nested = {}
    upper: _Nested = {}
    nulls: _Nested = {}
    for field in struct.fields:
        name = name_in_files(field.name)
        if isinstance(field.field_type, T.StructType):
            inner = _columns(file, field.field_type)
            for outer, values in zip((lower, upper, nulls), inner, strict=True):
                if values:
                    outer[name] = values
        elif isinstance(field.field_type, T.PrimitiveType):
            count = (file.null_value_counts or {}).get(field.field_id)
            if count is not None:
                nulls[name] = count
            bounds = _bounds(file, field, field.field_type)
            if bounds is not None:
                lower[name], upper[name] = bounds
    return lower, upper, nulls


def _bounds(
    file: DataFile, field: T.NestedField, kind: T.PrimitiveType
) -> tuple[_Bound, _Bound] | None:
    """Return both bounds or none: some readers treat a file with one bound as damaged."""
    first, last = bounds_of(file, field.field_id)
    if first is None or last is None:
        return None
    nans = (file.nan_value_counts or {}).get(field.field_id)
    if isinstance(kind, (T.FloatType, T.DoubleType)) and nans != 0:
        return None  # Spark sorts NaN above all numbers; Iceberg's bounds exclude it
    try:
        ends = (first, 0), (last, 1)
        bounds: list[Any] = [_bound(kind, from_bytes(kind, raw), up) for raw, up in ends]
    except (OverflowError, ValueError):  # a year before 1 or after 9999; truncated text
        return None
    lower, upper = bounds
    return None if lower is None or upper is None or lower > upper else (lower, upper)


def _bound(kind: T.PrimitiveType, value: Any, up: int) -> _Bound | None:
    """:param up: 1: an upper bound between two milliseconds is rounded up to the later one"""
    if isinstance(kind, (T.IntegerType, T.LongType, T.StringType, T.DecimalType)):
        return value  # type: ignore[no-any-return]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return float(value) if math.isfinite(value) else None
    if isinstance(kind, T.DateType):
        return date.fromordinal(_EPOCH.toordinal() + value).isoformat()
    if isinstance(kind, (T.TimestampType, T.TimestamptzType)):
        milliseconds = -(-value // 1000) if up else value // 1000
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
        zone = "Z" if isinstance(kind, T.TimestamptzType) else ""
        return f"{moment.isoformat(timespec='milliseconds')}{zone}"
    return None
