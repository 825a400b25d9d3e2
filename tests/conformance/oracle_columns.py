"""Columns of a reference decoder, as the oracles have them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pyiceberg import types as T
from shapes import Shape

_SCALARS: dict[str, Any] = {
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "binary": T.BinaryType,
    "string": T.StringType,
    "date": T.DateType,
    "timestamptz": T.TimestamptzType,
    "timestamp": T.TimestampType,
}


def fields(shape: Shape, ids: Iterator[int] | None = None) -> list[T.NestedField]:
    """The columns of a struct's shape."""
    ids = ids or itertools.count(1)
    return [
        T.NestedField(next(ids), name, _type(child, ids), required=False)
        for name, child in shape.children.items()
    ]


def _type(shape: Shape, ids: Iterator[int]) -> T.IcebergType:
    match shape.kind:
        case "struct" | "union":
            return T.StructType(*fields(shape, ids))
        case "list":
            return T.ListType(next(ids), _type(shape.children["element"], ids), False)
        case "map":
            value = _type(shape.children["value"], ids)
            return T.MapType(next(ids), T.StringType(), next(ids), value, False)
        case "decimal":
            return T.DecimalType(shape.precision, shape.scale)
    kind: T.IcebergType = _SCALARS[shape.kind]()
    return kind
