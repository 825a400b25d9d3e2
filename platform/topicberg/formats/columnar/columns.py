"""The buffers that programs fill, and the Arrow columns that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg import types as T

from topicberg.formats.columnar.program import Place, Shape, Store

_SCALARS: dict[type[T.IcebergType], pa.DataType] = {
    T.BinaryType: pa.binary(),
    T.BooleanType: pa.bool_(),
    T.DateType: pa.date32(),
    T.DoubleType: pa.float64(),
    T.FloatType: pa.float32(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.StringType: pa.string(),
    T.TimestampType: pa.timestamp("us"),
    T.TimestamptzType: pa.timestamp("us", "UTC"),
}


class Buffers:
    """Memory for the values of some records; used again for the next ones.

    Memory that is not written to is reserved, but not used.
    """

    def __init__(self, shape: Shape, rows: int, size: int) -> None:
        """:param rows: records at most
        :param size: bytes of a column's texts at most
        """
        self.shape, self.rows, self.size = shape, rows, size
        slots = shape.slots
        items = max(rows, size // 4)
        self._values: list[NDArray[Any] | None] = [None] * slots
        self._valid: list[NDArray[np.uint8]] = []
        self._offsets: list[NDArray[np.int32] | None] = [None] * slots
        # Rows: addresses of values, of validity, of offsets.
        self.addresses = np.zeros((3, slots), np.int64)
        self.used = np.zeros(slots, np.int64)
        """Bytes of the texts of a slot."""
        self.counts = np.zeros(shape.domains, np.int64)
        """Values of a domain."""
        # Rows: bytes of the texts of a slot, values of a domain.
        self.rooms = np.zeros((2, max(slots, shape.domains)), np.int64)
        self.rooms[0] = size
        self.rooms[1] = items
        self.rooms[1, 0] = rows
        for place in shape.all:
            room = rows if place.domain == 0 else items
            valid = np.zeros(room + 1, np.uint8)
            self._valid.append(valid)
            self.addresses[1, place.slot] = valid.ctypes.data
            if place.store in (Store.TEXT, Store.ITEMS):
                offsets = np.zeros(room + 1, np.int32)
                self._offsets[place.slot] = offsets
                self.addresses[2, place.slot] = offsets.ctypes.data
            width = {Store.TEXT: size, Store.ITEMS: 0, Store.NONE: 0}.get(
                place.store, (room + 1) * int(place.store)
            )
            if width:
                values = np.empty(width + 16, np.uint8)
                self._values[place.slot] = values
                self.addresses[0, place.slot] = values.ctypes.data

    def clear(self) -> None:
        """Prepare for the next records."""
        for place in self.shape.all:
            self._valid[place.slot][: self.counts[place.domain] + 1] = 0
        self.used[:] = 0
        self.counts[:] = 0

    def arrays(self) -> list[pa.Array]:
        """Return the columns of the shape; they are views, valid until :meth:`clear`.

        :raises pyarrow.ArrowInvalid: text is not UTF-8
        """
        return [self._array(place) for place in self.shape.places]

    def _array(self, place: Place) -> pa.Array:
        count = int(self.counts[place.domain])
        valid = self._valid[place.slot][:count]
        nulls = count - int(np.count_nonzero(valid))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        kind = arrow_type(place.column)
        offsets, values = self._offsets[place.slot], self._values[place.slot]
        match place.store:
            case Store.NONE:
                children = [self._array(inner) for inner in place.inside]
                return pa.Array.from_buffers(kind, count, [bitmap], nulls, children=children)
            case Store.ITEMS:
                found = [bitmap, pa.py_buffer(offsets)]
                child = [self._array(place.inside[0])]
                return pa.Array.from_buffers(kind, count, found, nulls, children=child)
            case Store.TEXT:
                found = [bitmap, pa.py_buffer(offsets), pa.py_buffer(values)]
                array = pa.Array.from_buffers(kind, count, found, nulls)
                if isinstance(place.column, T.StringType):
                    array.validate(full=True)
                return array
        if isinstance(place.column, T.BooleanType):
            assert values is not None  # noqa: S101  it has a width
            values = np.packbits(values[:count], bitorder="little")
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(values)], nulls)


def arrow_type(column: T.IcebergType) -> pa.DataType:
    """Return the Arrow type of a column, as PyIceberg names the parts of nested types."""
    match column:
        case T.DecimalType():
            return pa.decimal128(column.precision, column.scale)
        case T.ListType():
            return pa.list_(pa.field("element", arrow_type(column.element_type)))
        case T.MapType():
            return pa.map_(arrow_type(column.key_type), arrow_type(column.value_type))
        case T.StructType():
            return pa.struct([(one.name, arrow_type(one.field_type)) for one in column.fields])
    return _SCALARS[type(column)]


def columns_of(arrays: Sequence[pa.Array], shape: Shape) -> dict[str, pa.Array]:
    return {place.name: array for place, array in zip(shape.places, arrays, strict=True)}
