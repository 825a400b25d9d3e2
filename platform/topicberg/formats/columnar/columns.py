"""The buffers that programs fill, and the Arrow columns that they become."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg import types as T

from topicberg.formats.columnar.program import Shape, Slot, Store
from topicberg.formats.columnar.records import is_nearly_full, undo

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
_PACKED: dict[type[T.IcebergType], struct.Struct] = {
    T.BooleanType: struct.Struct("<?"),
    T.DateType: struct.Struct("<i"),
    T.DoubleType: struct.Struct("<d"),
    T.FloatType: struct.Struct("<f"),
    T.IntegerType: struct.Struct("<i"),
    T.LongType: struct.Struct("<q"),
    T.TimestampType: struct.Struct("<q"),
    T.TimestamptzType: struct.Struct("<q"),
}
"""How a stored value (see :data:`..contract.RecordDecoder`) is written into a buffer."""


_OFFSETS = {Store.TEXT: 1, Store.ITEMS: 2}
"""Stores with offsets: of bytes, and of the values of another domain."""


class BuffersFullError(Exception):
    """A row does not fit into the buffers."""


class Buffers:
    """Memory for the values of some records, used again for the next ones.

    Memory that is not written to is reserved, but not used.
    """

    def __init__(self, shape: Shape, rows: int, size: int) -> None:
        """:param rows: records at most
        :param size: bytes of a column's texts at most
        """
        self.shape, self.rows, self.size = shape, rows, size
        slots, items = shape.slots, max(rows, size // 4)
        self._values: list[NDArray[Any] | None] = [None] * slots
        self._valid: list[NDArray[np.uint8]] = []
        self._offsets: list[NDArray[np.int32] | None] = [None] * slots
        # Rows: addresses of values, of validity, of offsets.
        self.addresses, self.used = np.zeros((3, slots), np.int64), np.zeros(slots, np.int64)
        """Bytes of the texts of a slot."""
        self.counts = np.zeros(shape.domains, np.int64)
        """Values of a domain."""
        # Rows: bytes of the texts of a slot, values of a domain.
        self.rooms = np.full((2, max(slots, shape.domains)), [[size], [items]], np.int64)
        self.rooms[1, 0] = rows
        for place in shape.all:
            room = (rows if place.domain == 0 else items) + 1
            self._valid.append(valid := np.zeros(room, np.uint8))
            self.addresses[1, place.slot] = valid.ctypes.data
            if place.store in _OFFSETS:
                offsets = self._offsets[place.slot] = np.zeros(room, np.int32)
                self.addresses[2, place.slot] = offsets.ctypes.data
            sizes = {Store.TEXT: size, Store.ITEMS: 0, Store.NONE: 0}
            if width := sizes.get(place.store, room * int(place.store)):
                values = self._values[place.slot] = np.empty(width + 16, np.uint8)
                self.addresses[0, place.slot] = values.ctypes.data
        listed = [(p.slot, p.domain, _OFFSETS.get(p.store, 0), p.items) for p in shape.all]
        self._places = np.array(listed, np.int64).reshape(-1, 4)
        self.starts, self.ends = shape.ends()
        """See :meth:`.program.Shape.ends`."""

    @property
    def tables(self) -> tuple[NDArray[np.int64], ...]:
        """What :func:`.records.tables` takes."""
        return self.addresses, self.used, self.counts, self.rooms, self.starts, self.ends

    def clear(self) -> None:
        """Prepare for the next records."""
        for place in self.shape.all:
            self._valid[place.slot][: self.counts[place.domain] + 1] = 0
        self.used[:] = 0
        self.counts[:] = 0

    def undo(self) -> None:
        """Forget what was read of a record that did not end."""
        undo(self._places, self.addresses, self.used, self.counts)

    @property
    def is_nearly_full(self) -> bool:
        """Whether a record of usual size may not fit any more."""
        return bool(is_nearly_full(self.used, self.counts, self.rooms))

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row of stored values; a column that it lacks is null.

        :raises BuffersFullError: it does not fit; the buffers are as before
        """
        try:
            for place in self.shape.places:
                self._put(place, row.get(place.name))
        except BuffersFullError:
            self.undo()
            raise
        self._end_value(0)

    def _put(self, place: Slot, value: Any) -> None:
        row = int(self.counts[place.domain])
        if row >= self.rooms[1, place.domain]:
            raise BuffersFullError
        if value is None:
            return
        slot = place.slot
        self._valid[slot][row] = 1
        values = self._values[slot]
        match place.store:
            case Store.NONE:
                for inner in place.inside:
                    self._put(inner, value.get(inner.name))
                return
            case Store.ITEMS:
                for item in value:
                    parts = (item,) if len(place.inside) == 1 else item
                    for inner, part in zip(place.inside, parts, strict=True):
                        self._put(inner, part)
                    self._end_value(place.items)
                return
        assert values is not None  # noqa: S101  all other stores have a width
        if place.store == Store.TEXT:
            text = value.encode() if isinstance(value, str) else value
            begin = int(self.used[slot])
            if begin + len(text) > self.rooms[0, slot]:
                raise BuffersFullError
            values[begin : begin + len(text)] = np.frombuffer(text, np.uint8)
            self.used[slot] += len(text)
        elif isinstance(place.column, T.DecimalType):
            packed = value.to_bytes(16, "little", signed=True)
            values[16 * row : 16 * row + 16] = np.frombuffer(packed, np.uint8)
        else:
            _PACKED[type(place.column)].pack_into(values.data, int(place.store) * row, value)

    def _end_value(self, domain: int) -> None:
        """Write where the texts and lists of a value end."""
        row = int(self.counts[domain])
        for slot, items in self.ends[self.starts[domain] : self.starts[domain + 1]]:
            offsets = self._offsets[slot]
            assert offsets is not None  # noqa: S101  see Shape.ends
            offsets[row + 1] = self.used[slot] if items < 0 else self.counts[items]
        self.counts[domain] += 1

    def arrays(self) -> list[pa.Array]:
        """Return the columns of the shape; they are views, valid until :meth:`clear`."""
        return [self._array(place) for place in self.shape.places]

    def _array(self, place: Slot) -> pa.Array:
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
                buffers = [bitmap, pa.py_buffer(offsets)]
                child = _items([self._array(inner) for inner in place.inside])
                return pa.Array.from_buffers(kind, count, buffers, nulls, children=[child])
            case Store.TEXT:
                buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(values)]
                return pa.Array.from_buffers(kind, count, buffers, nulls)
        if isinstance(place.column, T.BooleanType):
            assert values is not None  # noqa: S101  it has a width
            values = np.packbits(values[:count], bitorder="little")
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(values)], nulls)


def _items(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the items of lists, or the entries of maps."""
    if len(parts) == 1:
        return parts[0]
    keys, values = parts
    fields = [pa.field("key", keys.type, nullable=False), pa.field("value", values.type)]
    return pa.StructArray.from_arrays([keys, values], fields=fields)


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
            return pa.struct(
                [(field.name, arrow_type(field.field_type)) for field in column.fields]
            )
    return _SCALARS[type(column)]


def columns_of(arrays: Sequence[pa.Array], shape: Shape) -> dict[str, pa.Array]:
    return dict(zip((place.name for place in shape.places), arrays, strict=True))
