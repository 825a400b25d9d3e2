"""The placeholder that Debezium writes instead of a value that the connector did not have.

It is written as text, as bytes, as a list of one text, of one bytes, of one UUID, or of its bytes
(as numbers, times or truth values), and as a map (hstore) or its JSON.

Source: Debezium's class ``UnchangedToastedPlaceholder``.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from topicberg.tableflow.arrays import flags

_EPOCH = datetime(1970, 1, 1)


def toastable(fields: Iterable[NestedField]) -> list[NestedField]:
    """Return the columns whose values the connector may not have."""
    return [one for one in fields if _is_toastable(one.field_type)]


def _is_toastable(kind: IcebergType) -> bool:
    match kind:
        case StringType() | BinaryType():
            return True
        case ListType(element_type=element):
            return isinstance(element, PrimitiveType)
        case MapType(key_type=StringType(), value_type=StringType()):
            return True
    return False


def is_placeholder(values: pa.Array, kind: IcebergType, placeholder: str) -> NDArray[np.bool_]:
    """Return which values of a column are the placeholder."""
    match kind:
        case StringType():
            pair = json.dumps({placeholder: placeholder}, separators=(",", ":"))
            is_same = pc.is_in(values, pa.array([placeholder, pair], values.type))
        case BinaryType():
            is_same = pc.equal(values, pa.scalar(placeholder.encode(), values.type))
        case ListType(element_type=element):
            lists = _lists(placeholder.encode(), element, values.type.value_type)
            return _among(values, lists)
        case _:
            return _among(values, [[(placeholder, placeholder)]])
    return flags(is_same)


def _among(values: pa.Array, wanted: list[list[Any]]) -> NDArray[np.bool_]:
    """Return which lists or maps are one of some; only those of the same size are compared."""
    sizes = np.diff(values.offsets.to_numpy(zero_copy_only=False))
    is_there = values.is_valid().to_numpy(zero_copy_only=False)
    alike = np.flatnonzero(is_there & np.isin(sizes, [len(one) for one in wanted]))
    found = np.zeros(len(values), np.bool_)
    if len(alike):
        given = values.take(pa.array(alike)).to_pylist()
        found[alike] = [one in wanted for one in given]
    return found


def _lists(raw: bytes, element: IcebergType, kind: pa.DataType) -> list[list[Any]]:
    """Return the lists that are the placeholder, as Python has values of an Arrow type."""
    return [pa.array(one).cast(kind).to_pylist() for one in _as_elements(raw, element)]


def _as_elements(raw: bytes, element: IcebergType) -> list[list[Any]]:
    numbers = [byte - 256 if byte > 127 else byte for byte in raw]  # Java's bytes
    match element:
        case StringType():
            named = uuid.UUID(bytes=hashlib.md5(raw).digest(), version=3)  # noqa: S324  as Java's
            # Decimals whose scale varies are numbers as text.
            return [[raw.decode()], [str(named)], [str(number) for number in numbers]]
        case BinaryType():
            return [[raw]]
        case DateType():
            return [[_EPOCH.date() + timedelta(days=number) for number in numbers]]
        case TimestampType() | TimestamptzType():
            # In microseconds, milliseconds and nanoseconds.
            return [
                [_EPOCH + timedelta(microseconds=number * factor // 1000) for number in numbers]
                for factor in (1_000, 1_000_000, 1)
            ]
        case DecimalType(precision=precision, scale=scale):
            values = [Decimal((int(number < 0), _digits(number), -scale)) for number in numbers]
            # Else the column cannot have it: such a record is malformed.
            return (
                [values]
                if all(len(value.as_tuple().digits) <= precision for value in values)
                else []
            )
        case BooleanType():
            return [[number != 0 for number in numbers]]
    return [numbers]


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))
