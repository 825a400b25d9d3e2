"""Messages of a schema and the columns that they become, and Protobuf's wire format.

Follows https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

PRESENT = "is_present"  # The field of a message that has no fields: Parquet has no empty struct.
MAX_TEXT_BYTES = 256 * 1024 * 1024
"""The most bytes of the texts of a record that it does not have itself: names of enums, and
defaults. It is malformed beyond that."""
MAX_TAG = 2**32 - 1
MAX_VARINT = 10
FIXED = {"fixed32": 4, "sfixed32": 4, "float": 4, "fixed64": 8, "sfixed64": 8, "double": 8}
"""The bytes of values of fixed size, by the kind of field."""
VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)


@dataclass(frozen=True)
class WireField:
    """A field of a message, and the column that it becomes.

    ``name``, ``kind``: from the .proto file; ``message`` and ``group`` have a :class:`Message`,
    ``enum`` has ``symbols``, and if it is a closed one, other numbers are unknown fields
    (``is_closed``).
    ``column``: its place in the row; None: it has no column, and is skipped.
    ``type``: of the column, or of a list's elements. ``absent``: the value in a record that lacks
    the field; None is null; for a message True: an empty one. ``oneof``: index of the oneof.
    ``special``: the well-known type of its message.
    """

    name: str
    number: int
    kind: str
    column: int | None
    type: pa.DataType
    repeated: bool = False
    is_map: bool = False
    required: bool = False
    absent: Any = None
    oneof: int | None = None
    message: Any = None
    symbols: Mapping[int, str] = field(default_factory=dict)
    is_closed: bool = False
    special: str | None = None


@dataclass(frozen=True)
class Message:
    """A message's fields, and the columns that it becomes, some of which may have no field."""

    fields: tuple[WireField, ...]
    names: tuple[str, ...]


def varint(data: Any, position: int, stop: int) -> tuple[int, int] | None:
    """Return value and end; None if it is truncated or too long."""
    value = 0
    for place in range(min(MAX_VARINT, stop - position)):
        byte = data[position + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & (2**64 - 1), position + place + 1
    return None


def group_end(data: Any, position: int, stop: int, number: int) -> tuple[int, int] | None:
    """Return where a group's content ends and where the group ends; None: nowhere."""
    open_groups = [number]
    while position < stop:
        if (tag := varint(data, position, stop)) is None or not 8 <= tag[0] <= MAX_TAG:
            return None
        before, position, wire = position, tag[1], tag[0] & 7
        if wire == GROUP:
            open_groups.append(tag[0] >> 3)
        elif wire == END_GROUP:
            if open_groups.pop() != tag[0] >> 3:
                return None
            if not open_groups:
                return before, position
        elif (content := _content(data, position, stop, wire)) is not None:
            position = content[1]
        else:
            return None
    return None


def _content(data: Any, position: int, stop: int, wire: int) -> tuple[int, int] | None:
    """Return begin, or the value of a varint, and end of what is not a group; None: malformed."""
    if wire == VARINT:
        return varint(data, position, stop)
    fixed = {FIXED64: (8, position), FIXED32: (4, position)}
    length = varint(data, position, stop) if wire == LENGTH else fixed.get(wire)
    return None if length is None or sum(length) > stop else (length[1], sum(length))


_WIRE_TYPES = {
    **{kind: FIXED32 if size == 4 else FIXED64 for kind, size in FIXED.items()},
    **dict.fromkeys(("message", "string", "bytes"), LENGTH),
    "group": GROUP,
}


def wire_type(kind: str) -> int:
    """Return the wire type of a field's kind."""
    return _WIRE_TYPES.get(kind, VARINT)


def packable(field: WireField) -> bool:
    """Return whether several values of a field may be in one piece."""
    return field.repeated and field.kind not in ("message", "group", "string", "bytes")
