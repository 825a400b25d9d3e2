"""The placeholder that Debezium writes instead of a value that the connector did not have.

It is written as text, as bytes, as a list of one text, of one bytes, of one UUID, or of its bytes
(as numbers, times or truth values), and as a map (hstore) or its JSON. A JSON Schema without types
leaves bytes in base64, and has a column of the JSON text of all of these.

Source: Debezium's class ``UnchangedToastedPlaceholder``.
"""

from __future__ import annotations

import base64
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
from pyiceberg import types as T

from topicberg.formats.json.syntax import Number, rendered
from topicberg.tableflow.values.arrays import flags

_EPOCH = datetime(1970, 1, 1)


def toastable(fields: Iterable[T.NestedField]) -> list[T.NestedField]:
    """Return the columns whose values the connector may not have."""
    return [one for one in fields if _is_toastable(one.field_type)]


def _is_toastable(kind: T.IcebergType) -> bool:
    match kind:
        case (
            T.StringType()
            | T.BinaryType()
            | T.ListType(element_type=T.PrimitiveType())
            | T.MapType(key_type=T.StringType(), value_type=T.StringType())
        ):
            return True
    return False


def is_placeholder(values: pa.Array, kind: T.IcebergType, placeholder: str) -> NDArray[np.bool_]:
    """Return which values of a column are the placeholder."""
    match kind:
        case T.StringType():
            texts = _texts(placeholder)
            others = [{placeholder: placeholder}, *_untyped_lists(placeholder.encode())]
            texts += map(rendered, [*texts, *others])
            is_same = pc.is_in(values, pa.array(texts, values.type))
        case T.BinaryType():
            is_same = pc.equal(values, pa.scalar(placeholder.encode(), values.type))
        case T.ListType(element_type=element):
            lists = _as_elements(placeholder.encode(), element)
            # As Python has values of the column's type.
            wanted = [pa.array(items).cast(values.type.value_type).to_pylist() for items in lists]
            return _among(values, wanted)
        case _:
            return _among(values, [[(placeholder, placeholder)]])
    return flags(is_same)


def _texts(placeholder: str) -> list[str]:
    """Return the placeholder as text: its own, a map's, and that of bytes."""
    pair = json.dumps({placeholder: placeholder}, separators=(",", ":"))
    return [placeholder, pair, _base64(placeholder.encode())]


def _untyped_lists(raw: bytes) -> list[list[Any]]:
    """Return the placeholder as the lists that JSON has of it."""
    numbers, decimals = _numbers(raw), [_base64(bytes([byte])) for byte in raw]
    return [
        [raw.decode()],
        [_base64(raw)],
        # The UUID that Java makes of bytes (``UUID.nameUUIDFromBytes``).
        [str(uuid.UUID(bytes=hashlib.md5(raw).digest(), version=3))],  # noqa: S324
        numbers,
        [Number(f"{number}.0") for number in numbers],
        [number != 0 for number in numbers],
        decimals,
        [{"scale": 0, "value": decimal} for decimal in decimals],
    ]


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _numbers(raw: bytes) -> list[int]:
    """Return bytes as Java's, which have a sign."""
    return [byte - 256 if byte > 127 else byte for byte in raw]


def _among(values: pa.Array, wanted: list[list[Any]]) -> NDArray[np.bool_]:
    """Return which lists or maps are one of some; only those of the same size are compared."""
    sizes = np.diff(values.offsets.to_numpy(zero_copy_only=False))
    is_alike = np.isin(sizes, [len(items) for items in wanted]) & flags(values.is_valid())
    alike, found = np.flatnonzero(is_alike), np.zeros(len(values), np.bool_)
    found[alike] = [items in wanted for items in values.take(pa.array(alike)).to_pylist()]
    return found


def _as_elements(raw: bytes, element: T.IcebergType) -> list[list[Any]]:
    """Return the lists that are the placeholder, for a type of elements."""
    numbers = _numbers(raw)
    match element:
        case T.StringType():
            lists = _untyped_lists(raw)
            return [
                *(items for items in lists if all(type(item) is str for item in items)),
                # Decimals whose scale varies are numbers as text.
                [str(number) for number in numbers],
                *([rendered(item) for item in items] for items in lists),
            ]
        case T.BinaryType():
            return [[raw]]
        case T.DateType():
            return [[_EPOCH.date() + timedelta(days=number) for number in numbers]]
        case T.TimestampType() | T.TimestamptzType():
            # In microseconds, milliseconds and nanoseconds.
            return [
                [_EPOCH + timedelta(microseconds=number * factor // 1000) for number in numbers]
                for factor in (1_000, 1_000_000, 1)
            ]
        case T.DecimalType(precision=precision, scale=scale):
            values = [Decimal(number).scaleb(-scale) for number in numbers]
            # Else the column cannot have it: such a record is malformed.
            fits = all(len(value.as_tuple().digits) <= precision for value in values)
            return [values] if fits else []
        case T.BooleanType():
            return [[number != 0 for number in numbers]]
    return [numbers]
