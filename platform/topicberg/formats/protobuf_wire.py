"""Decodes Protobuf records to Arrow, a batch at a time by column: a loop over records is too slow.

Runs on Spark's workers, where only numpy and pyarrow are available: Spark needs them itself.
Each round advances every record by one field. A round's results are places in the batch's bytes,
and a column is built from its places at once. The last few records of a batch, which have more
fields than the others, are walked one by one.

Follows https://protobuf.dev/programming-guides/encoding: unknown fields are ignored, the last value
of a singular field wins, messages merge, repeated scalars are packed or not. A closed enum's number
without a name is an unknown field, as in https://protobuf.dev/programming-guides/enum; in a map, so
is the whole entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ONE_BY_ONE = 16
"""Up to so many records are walked one by one: a round costs the same for one as for hundreds."""
PART_BYTES = 32 * 1024 * 1024
"""Records that are decoded at once: their places may take two hundred times as much memory. A part
that exceeds the worker's memory is decoded in halves."""
PART_MEMORY, BATCH_MEMORY = 256 * 1024 * 1024, 1024 * 1024 * 1024
"""Memory limit of the rows of a part, and so of one record, which is malformed beyond it; and of a
batch of Spark's, which is read again in smaller ones."""
_PADDING = 64  # zeros after the batch, because a truncated number at its end is read beyond it
_MAX_TAG = 2**32 - 1
_MAX_VARINT = 10
_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)
_MICROS = 1_000_000
_EXACT = Context(prec=80)

_FIXED: dict[str, tuple[str, int]] = {
    "fixed32": ("<u4", 4),
    "sfixed32": ("<i4", 4),
    "float": ("<f4", 4),
    "fixed64": ("<u8", 8),
    "sfixed64": ("<i8", 8),
    "double": ("<f8", 8),
}


@dataclass(frozen=True)
class Field:
    """A field of a message, and the column that it becomes.

    ``name``, ``kind``: from the .proto file; ``message`` and ``group`` have a ``message``, ``enum``
    has ``symbols``, and if it is a closed one, other numbers are unknown fields (``is_closed``).
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
    message: Message | None = None
    symbols: Mapping[int, str] | None = None
    is_closed: bool = False
    special: str | None = None


@dataclass(frozen=True)
class Message:
    """A message's fields, and the columns that it becomes, some of which may have no field."""

    fields: tuple[Field, ...]
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]


class _Places(NamedTuple):
    """Occurrences of one field. ``begin``: where it begins, or the value of a varint."""

    row: Any
    step: Any
    begin: Any
    end: Any

    def at(self, chosen: Any) -> _Places:
        return _Places(*(values[chosen] for values in self))


class _Batch:
    """The bytes of a batch."""

    def __init__(self, data: Any) -> None:
        self.bytes = data
        self.left = PART_MEMORY

    def expand(self, size: int) -> None:
        """Count text that the records do not have themselves: names of enums, and defaults.

        :raises MemoryError: it needs more memory than a part may
        """
        self.left -= size
        if self.left < 0:
            raise MemoryError

    def append(self, more: list[bytes]) -> Any:
        """Append bytes to the batch; return where each of them begins."""
        lengths = np.array([len(piece) for piece in more], np.int64)
        begins = len(self.bytes) + np.concatenate(([0], np.cumsum(lengths)[:-1]))
        added = np.frombuffer(b"".join(more) + bytes(_PADDING), np.uint8)
        self.bytes = np.concatenate((self.bytes, added))
        return begins

    def fixed(self, begin: Any, dtype: str, width: int) -> Any:
        return self.bytes[begin[:, None] + np.arange(width)].view(dtype).reshape(-1)

    def varints(self, begin: Any, stop: Any) -> tuple[Any, Any, Any]:
        """Return the values, where they end, and which of them are complete."""
        if not len(begin):
            return np.zeros(0, np.uint64), begin, np.zeros(0, bool)
        byte = self.bytes[begin]
        value = (byte & 0x7F).astype(np.uint64)
        end = begin + 1
        going = np.flatnonzero(byte >= 0x80)
        for place in range(1, _MAX_VARINT):
            if not going.size:
                break
            byte = self.bytes[begin[going] + place]
            value[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            end[going] += 1
            going = going[byte >= 0x80]
        whole = end <= stop
        whole[going] = False
        return value, end, whole


def decode(payload: Any, message: Message, prefixes: tuple[bytes, ...], decoded: str) -> Any:
    """Return the rows of a message, and in column ``decoded`` whether the record is one.

    :param payload: binary array; null stays null
    :param prefixes: the message indexes of the wire format that name this message
    """
    if isinstance(payload, pa.ChunkedArray):
        payload = payload.combine_chunks()
    parts: list[Any] = []
    size = 0
    for part in _parts(payload):
        for rows in _in_memory(part, message, prefixes, decoded):
            size += rows.nbytes
            if size > BATCH_MEMORY:
                raise MemoryError(f"the rows of {len(payload)} records need too much memory")
            parts.append(rows)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _parts(payload: Any) -> list[Any]:
    """Return the records in parts of limited size, or of one record."""
    count = len(payload)
    if payload.nbytes <= PART_BYTES or count < 2:
        return [payload]
    offsets = np.frombuffer(payload.buffers()[1], np.int32)[payload.offset :][: count + 1]
    cuts = [0]
    while cuts[-1] < count:
        limit = int(offsets[cuts[-1]]) + PART_BYTES
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(offsets, limit, "right")) - 1))
    return [payload.slice(start, end - start) for start, end in pairwise(cuts)]


def _in_memory(
    payload: Any, message: Message, prefixes: tuple[bytes, ...], decoded: str
) -> list[Any]:
    """Return the rows in parts that fit into memory; a record that does not fit is malformed."""
    count = len(payload)
    try:
        rows = _decode(payload, message, prefixes, decoded)
        if rows.nbytes <= PART_MEMORY:
            return [rows]
    except (MemoryError, pa.ArrowException):  # e.g. text of more than Arrow's offsets can address
        pass
    if count > 1:
        halves = payload.slice(0, count // 2), payload.slice(count // 2)
        return [rows for half in halves for rows in _in_memory(half, message, prefixes, decoded)]
    columns = [pa.nulls(count, kind) for kind in message.types]
    return [pa.StructArray.from_arrays([*columns, pa.array([False])], [*message.names, decoded])]


def _decode(payload: Any, message: Message, prefixes: tuple[bytes, ...], decoded: str) -> Any:
    count = len(payload)
    offsets = np.frombuffer(payload.buffers()[1], np.int32)[payload.offset :][: count + 1]
    offsets = offsets.astype(np.int64)
    data = payload.buffers()[2]
    stored = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    first, last = (offsets[0], offsets[-1]) if count else (0, 0)
    padding = np.zeros(max(_PADDING, *map(len, prefixes)), np.uint8)
    batch = _Batch(np.concatenate((stored[first:last], padding)))
    begin, stop = offsets[:-1] - first, offsets[1:] - first
    null = np.asarray(payload.is_null())
    longest = np.zeros(count, np.int64)
    for prefix in prefixes:
        width = len(prefix)
        same = batch.fixed(begin, "u1", width).reshape(-1, width) == np.frombuffer(prefix, np.uint8)
        fits = same.all(axis=1) & (begin + width <= stop)
        longest = np.where(fits, width, longest)
    bad = (longest == 0) | null
    columns, broken = _columns(batch, message, np.where(bad, stop, begin + longest), stop)
    names = [*message.names, decoded]
    return pa.StructArray.from_arrays(
        [*columns, pa.array(~(bad | broken))], names, mask=pa.array(null)
    )


def _columns(batch: _Batch, message: Message, begin: Any, stop: Any) -> tuple[list[Any], Any]:
    """Return the columns of the messages at these places, and which of them are malformed."""
    count = len(begin)
    if count * len(message.names) * 8 > PART_MEMORY:  # empty elements have columns, too
        raise MemoryError
    places, bad = _walk(batch, message, begin, stop)
    for field in message.fields:
        if field.is_closed:
            found = places[field.number]
            places[field.number] = found.at(_is_known(field, found.begin))
    _keep_one_of(message, places, count)
    columns: list[Any] = [None] * len(message.names)
    for field in message.fields:
        found = places[field.number]
        if field.column is None:
            if field.required:
                bad |= np.bincount(found.row, minlength=count) == 0
            continue
        make = _repeated if field.repeated else _singular
        columns[field.column] = make(batch, field, found, bad)
    for index, kind in enumerate(message.types):
        if columns[index] is None:
            columns[index] = pa.nulls(count, kind)
    return columns, bad


def _walk(batch: _Batch, message: Message, begin: Any, stop: Any) -> tuple[dict[int, _Places], Any]:
    """Return where the message's fields are, by number, and which records are malformed."""
    bad = np.zeros(len(begin), bool)
    known = {field.number: field for field in message.fields}
    found: dict[int, list[_Places]] = {number: [] for number in known}

    def keep(rows: Any, step: Any, number: Any, wire: Any, first: Any, end: Any) -> None:
        if not len(rows):
            return
        if (number == number[0]).all():
            groups: list[tuple[int, Any]] = [(int(number[0]), slice(None))]
        else:
            order = np.argsort(number, kind="stable")
            numbers, starts = np.unique(number[order], return_index=True)
            chosen = np.split(order, starts[1:])
            groups = list(zip(numbers.tolist(), chosen, strict=True))
        for one, members in groups:
            if one not in known:
                continue
            field, here = known[one], _Places(rows, step, first, end).at(members)
            usual = _wire_type(field.kind)
            fits = wire[members] == usual
            if not fits.all():
                packed = wire[members] == _LENGTH if _packable(field) else ~fits & False
                bad[here.row[~fits & ~packed]] = True
                if packed.any():
                    found[one].append(_unpack(batch, field, here.at(packed), bad))
                here = here.at(fits)
            found[one].append(here)

    rows = np.flatnonzero(begin < stop)
    at, end = begin[rows], stop[rows]
    step = 0
    while rows.size > ONE_BY_ONE:
        tag, at, whole = batch.varints(at, end)
        number, wire = (tag >> np.uint64(3)).astype(np.int64), (tag & np.uint64(7)).astype(np.int8)
        whole &= (number > 0) & (tag <= _MAX_TAG)
        first, after = at.astype(np.uint64), at.copy()
        value_end = at.copy()
        for kind in np.flatnonzero(np.bincount(wire, minlength=8)):
            of_kind = wire == kind
            chosen = slice(None) if of_kind.all() else np.flatnonzero(of_kind)
            here, limit = at[chosen], end[chosen]
            if kind == _VARINT:
                first[chosen], after[chosen], fine = batch.varints(here, limit)
            elif kind in (_FIXED64, _FIXED32):
                after[chosen] = here + (8 if kind == _FIXED64 else 4)
                fine = after[chosen] <= limit
            elif kind == _LENGTH:
                length, start, fine = batch.varints(here, limit)
                fine &= length <= (limit - np.minimum(start, limit)).astype(np.uint64)
                first[chosen] = start.astype(np.uint64)
                after[chosen] = start + np.where(fine, length, 0).astype(np.int64)
            elif kind == _GROUP:
                data = memoryview(batch.bytes)
                ends = [
                    _group_end(data, *place)
                    for place in zip(
                        here.tolist(), limit.tolist(), number[chosen].tolist(), strict=True
                    )
                ]
                fine = np.array([found_end is not None for found_end in ends])
                pairs = np.array([one or (0, 0) for one in ends], np.int64).reshape(-1, 2)
                value_end[chosen], after[chosen] = pairs[:, 0], pairs[:, 1]
            else:
                fine = np.zeros(len(here), bool)
            whole[chosen] &= fine
            if kind != _GROUP:
                value_end[chosen] = after[chosen]
        bad[rows[~whole]] = True
        if not whole.all():
            rows, number, wire, end = rows[whole], number[whole], wire[whole], end[whole]
            first, value_end, after = first[whole], value_end[whole], after[whole]
        keep(rows, np.full(rows.size, step), number, wire, first, value_end)
        going = after < end
        rows, at, end = (
            (rows, after, end) if going.all() else (rows[going], after[going], end[going])
        )
        step += 1

    data = memoryview(batch.bytes)
    for row, place, limit in zip(rows.tolist(), at.tolist(), end.tolist(), strict=True):
        walked = _walk_one(data, place, limit)
        if walked is None:
            bad[row] = True
            continue
        number, wire, first, after = (np.frombuffer(values, values.typecode) for values in walked)
        rows_of_one = np.full(len(number), row)
        keep(rows_of_one, step + np.arange(len(number)), number, wire, first, after)
    return {number: _concatenate(parts) for number, parts in found.items()}, bad


def _concatenate(parts: list[_Places]) -> _Places:
    """Return all places, sorted by row, and in a row by their place in its bytes."""
    if not parts:
        none = np.zeros(0, np.int64)
        return _Places(none, none, np.zeros(0, np.uint64), none)
    if len(parts) == 1:
        return parts[0]
    together = _Places(*(np.concatenate(values) for values in zip(*parts, strict=True)))
    return together.at(np.lexsort((together.step, together.row)))


def _walk_one(data: Any, at: int, stop: int) -> tuple[array[int], ...] | None:
    """Return number, wire type, begin or value, and end of one record's fields; None: malformed.

    Arrays of numbers: a record may have a field every two bytes.
    """
    numbers, wires, values, ends = found = array("q"), array("b"), array("Q"), array("q")
    while at < stop:
        tag = _varint(data, at, stop)
        if tag is None or not 8 <= tag[0] <= _MAX_TAG:
            return None
        number, wire, at = tag[0] >> 3, tag[0] & 7, tag[1]
        if wire == _GROUP:
            group = _group_end(data, at, stop, number)
            if group is None:
                return None
            value, (end, after) = at, group
        else:
            content = _content(data, at, stop, wire)
            if content is None:
                return None
            value, end = content
            after = end
        numbers.append(number)
        wires.append(wire)
        values.append(value)
        ends.append(end)
        at = after
    return found


def _varint(data: Any, at: int, stop: int) -> tuple[int, int] | None:
    """Return value and end; None if it is truncated or too long."""
    value = 0
    for place in range(min(_MAX_VARINT, stop - at)):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & (2**64 - 1), at + place + 1
    return None


def _group_end(data: Any, at: int, stop: int, number: int) -> tuple[int, int] | None:
    """Return where a group's content ends and where the group ends; None: nowhere."""
    open_groups = [number]
    while at < stop:
        tag = _varint(data, at, stop)
        if tag is None or not 8 <= tag[0] <= _MAX_TAG:
            return None
        before, at, wire = at, tag[1], tag[0] & 7
        if wire == _GROUP:
            open_groups.append(tag[0] >> 3)
        elif wire == _END_GROUP:
            if open_groups.pop() != tag[0] >> 3:
                return None
            if not open_groups:
                return before, at
        else:
            content = _content(data, at, stop, wire)
            if content is None:
                return None
            at = content[1]
    return None


def _content(data: Any, at: int, stop: int, wire: int) -> tuple[int, int] | None:
    """Return begin, or the value of a varint, and end of what is not a group; None: malformed."""
    if wire == _VARINT:
        return _varint(data, at, stop)
    length = {_FIXED64: (8, at), _FIXED32: (4, at)}.get(wire)
    if wire == _LENGTH:
        length = _varint(data, at, stop)
    if length is None or sum(length) > stop:
        return None
    return length[1], sum(length)


def _wire_type(kind: str) -> int:
    if kind in _FIXED:
        return _FIXED32 if _FIXED[kind][1] == 4 else _FIXED64
    if kind == "group":
        return _GROUP
    return _LENGTH if kind in ("message", "string", "bytes") else _VARINT


def _packable(field: Field) -> bool:
    return field.repeated and field.kind not in ("message", "group", "string", "bytes")


def _unpack(batch: _Batch, field: Field, packed: _Places, bad: Any) -> _Places:
    """Return the values of packed fields, as if they were not packed."""
    begin = packed.begin.astype(np.int64)
    length = packed.end - begin
    if field.kind in _FIXED:
        width = _FIXED[field.kind][1]
        fine = length % width == 0
        bad[packed.row[~fine]] = True
        packed, begin, length = packed.at(fine), begin[fine], length[fine]
        counts = length // width
        firsts = np.cumsum(counts) - counts
        value = np.repeat(begin - firsts * width, counts) + np.arange(counts.sum()) * width
        end = value + width
        value = value.astype(np.uint64)
    else:
        fine = (length == 0) | (batch.bytes[np.maximum(packed.end - 1, 0)] < 0x80)
        bad[packed.row[~fine]] = True
        packed, begin, length = packed.at(fine), begin[fine], length[fine]
        offsets = np.cumsum(length) - length
        places = np.repeat(begin - offsets, length) + np.arange(length.sum())
        last = batch.bytes[places] < 0x80
        ends_before = np.concatenate(([0], np.cumsum(last)))
        counts = ends_before[offsets + length] - ends_before[offsets]
        end = places[last] + 1
        first = np.concatenate(([True], last[:-1])) if len(last) else last
        value, found, whole = batch.varints(places[first], end)
        bad[np.repeat(packed.row, counts)[~whole | (found != end)]] = True
    return _Places(np.repeat(packed.row, counts), np.repeat(packed.step, counts), value, end)


def _keep_one_of(message: Message, places: dict[int, _Places], count: int) -> None:
    """Let a member of a oneof clear the earlier values of the others."""
    members: dict[int, list[int]] = {}
    for field in message.fields:
        if field.oneof is not None and len(places[field.number].row):
            members.setdefault(field.oneof, []).append(field.number)
    for numbers in members.values():
        if len(numbers) < 2:
            continue
        # Of each record, the last step, its member, and the last step of all other members.
        best, owner, second = np.full(count, -1), np.full(count, -1), np.full(count, -1)
        for number in numbers:
            last = np.full(count, -1)
            np.maximum.at(last, places[number].row, places[number].step)
            higher = last > best
            second = np.where(higher, best, np.maximum(second, last))
            owner[higher], best = number, np.where(higher, last, best)
        for number in numbers:
            others = np.where(owner == number, second, best)
            cleared = others[places[number].row] > places[number].step
            if cleared.any():
                places[number] = places[number].at(~cleared)


def _singular(batch: _Batch, field: Field, found: _Places, bad: Any) -> Any:
    """Return a column of one value per row; the last value is used, messages merge."""
    count = len(bad)
    chosen = np.full(count, -1)
    chosen[found.row] = np.arange(len(found.row))
    present = chosen >= 0
    if field.required:
        bad |= ~present
    is_repeated = len(found.row) > present.sum()
    if field.kind == "string" and is_repeated:  # also earlier values are UTF-8
        _, broken = _text(_slices(batch, found.begin.astype(np.int64), found.end))
        bad[found.row[broken]] = True
    if field.message is not None and is_repeated:
        found = _merged(batch, found)
        chosen[found.row] = np.arange(len(found.row))
    if field.message is not None and field.absent:
        rows = np.arange(count)
        zero = np.where(present, chosen, 0)
        begin = np.where(present, found.begin[zero], 0) if len(found.row) else rows * 0
        end = np.where(present, found.end[zero], 0) if len(found.row) else rows * 0
        found = _Places(rows, rows * 0, begin, end)
    else:
        found = found.at(chosen[present])
    values, broken = _values(batch, field, found)
    bad[found.row[broken]] = True
    if len(found.row) != count:
        takes = np.cumsum(present) - 1
        values = values.take(pa.array(takes, mask=~present))
        if field.absent is not None:
            if isinstance(field.absent, str | bytes):
                batch.expand((count - len(found.row)) * len(field.absent))
            values = pc.fill_null(values, pa.scalar(field.absent, values.type))
    return values


def _merged(batch: _Batch, found: _Places) -> _Places:
    """Return one place per row: concatenated bytes of messages are the merged message."""
    rows, firsts = np.unique(found.row, return_index=True)
    lasts = np.append(firsts[1:], len(found.row)) - 1
    begin, end = found.begin[firsts].copy(), found.end[firsts].copy()
    several = np.flatnonzero(lasts > firsts)
    pieces = [
        b"".join(
            batch.bytes[int(found.begin[index]) : int(found.end[index])].tobytes()
            for index in range(firsts[row], lasts[row] + 1)
        )
        for row in several
    ]
    starts = batch.append(pieces)
    begin[several] = starts
    end[several] = starts + [len(piece) for piece in pieces]
    return _Places(rows, found.step[lasts], begin, end)


def _repeated(batch: _Batch, field: Field, found: _Places, bad: Any) -> Any:
    """Return a column of lists or maps."""
    values, broken = _values(batch, field, found)
    rows = found.row
    bad[rows[broken]] = True
    if field.is_map:
        broken |= _unknown_entries(batch, field, found)
    if broken.any():  # an invalid key cannot be in a map
        values, rows = values.filter(pa.array(~broken)), rows[~broken]
    if field.is_map and len(rows):
        codes = values.field(0).dictionary_encode().indices.to_numpy().astype(np.int64)
        pairs = rows * (int(codes.max()) + 1) + codes
        _, backwards = np.unique(pairs[::-1], return_index=True)
        if len(backwards) < len(pairs):  # the last value of a key is used
            kept = np.sort(len(pairs) - 1 - backwards)
            values, rows = values.take(pa.array(kept)), rows[kept]
    counts = np.bincount(rows, minlength=len(bad))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    if field.is_map:
        return pa.MapArray.from_arrays(offsets, values.field(0), values.field(1), type=field.type)
    return pa.ListArray.from_arrays(offsets, values, type=field.type)


def _unknown_entries(batch: _Batch, field: Field, found: _Places) -> Any:
    """Return which entries of a map are unknown fields, because of a closed enum's number."""
    unknown = np.zeros(len(found.row), bool)
    entry = field.message
    if entry is not None and any(one.is_closed for one in entry.fields):
        places, _ = _walk(batch, entry, found.begin.astype(np.int64), found.end)
        for one in entry.fields:
            if one.is_closed:
                values = places[one.number]
                unknown[values.row[~_is_known(one, values.begin)]] = True
    return unknown


def _values(batch: _Batch, field: Field, found: _Places) -> tuple[Any, Any]:
    """Return the values at these places, in the column's or element's type; and the malformed."""
    kind = field.type.value_type if field.repeated and not field.is_map else field.type
    bad = np.zeros(len(found.row), bool)
    values: Any
    if field.message is not None:
        message = field.message
        begin = found.begin.astype(np.int64)
        columns, bad = _columns(batch, message, begin, found.end)
        if field.special is not None:
            values, broken = _SPECIAL[field.special](columns, kind)
            bad = bad | broken
        else:
            values = pa.StructArray.from_arrays(columns, message.names)
    elif field.kind in ("string", "bytes"):
        values = _slices(batch, found.begin.astype(np.int64), found.end)
        if field.kind == "string":
            values, bad = _text(values)
    elif field.kind in _FIXED:
        values = pa.array(batch.fixed(found.begin.astype(np.int64), *_FIXED[field.kind]))
    elif field.kind == "enum":
        values = _enum(batch, _integer("int32", found.begin), field.symbols or {})
    else:
        values = pa.array(_integer(field.kind, found.begin))
    if values.type != kind and not field.is_map:
        values, misfits = _as_column(values, kind)
        bad = bad | misfits
    return values, bad


def _as_column(values: Any, kind: Any) -> tuple[Any, Any]:
    """Return the values in the type of the column, and which of them it cannot hold."""
    if pa.types.is_string(kind):
        return _text(values)
    bad = np.zeros(len(values), bool)
    try:
        return values.cast(kind), bad
    except pa.ArrowInvalid:  # integers in a column of fewer digits
        numbers = values.to_numpy()
        bad = _outside(kind, numbers.tolist())
        fitting = pa.array(np.where(bad, 0, numbers).astype(numbers.dtype))
        return fitting.cast(pa.decimal128(38, 0)).cast(kind), bad


def _outside(kind: Any, numbers: list[int]) -> Any:
    """Return which numbers a column of integers or decimals cannot hold."""
    if pa.types.is_decimal(kind):
        high = 10 ** (kind.precision - kind.scale) - 1
        low = -high
    else:
        bounds = np.iinfo(kind.to_pandas_dtype())
        low, high = int(bounds.min), int(bounds.max)
    return np.array([not low <= number <= high for number in numbers], bool)


def _integer(kind: str, value: Any) -> Any:
    low = (value & np.uint64(_MAX_TAG)).astype(np.uint32)
    match kind:
        case "int32":
            return low.view(np.int32)
        case "uint32":
            return low
        case "sint32":
            return (low >> np.uint32(1)).view(np.int32) ^ -(low & np.uint32(1)).view(np.int32)
        case "int64":
            return value.view(np.int64)
        case "sint64":
            return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
        case "bool":
            return value != 0
        case _:
            return value


def _is_known(field: Field, values: Any) -> Any:
    """Return which values of an enum have a name."""
    return np.isin(_integer("int32", values), np.array(list(field.symbols or ()), np.int32))


def _enum(batch: _Batch, numbers: Any, symbols: Mapping[int, str]) -> Any:
    """Return the names; a number without a name stays a number, as in Protobuf's JSON."""
    distinct, codes = np.unique(numbers, return_inverse=True)
    names = [symbols.get(number, str(number)) for number in distinct.tolist()]
    batch.expand(int(np.array(list(map(len, names)), np.int64)[codes].sum()))
    return pa.array(names, pa.string()).take(pa.array(codes))


def _slices(batch: _Batch, begin: Any, end: Any) -> Any:
    """Return binary values: every second one of those that are bounded by all begins and ends."""
    if not len(begin):
        return pa.array([], pa.binary())
    order = None
    if (begin[1:] < end[:-1]).any():
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    bounds = np.zeros(2 * len(begin) + 1, np.int32)
    bounds[1::2], bounds[2::2] = begin, end
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(batch.bytes)]
    values = pa.Array.from_buffers(pa.binary(), 2 * len(begin), buffers)
    places = np.arange(1, 2 * len(begin), 2)
    if order is not None:
        ordered = np.empty_like(places)
        ordered[order] = places
        places = ordered
    return values.take(pa.array(places))


def _text(values: Any) -> tuple[Any, Any]:
    bad = np.zeros(len(values), bool)
    try:
        return values.cast(pa.string()), bad
    except pa.ArrowInvalid:  # some are not UTF-8
        texts: list[str | None] = []
        for index, value in enumerate(values.to_pylist()):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError:
                texts.append(None)
                bad[index] = True
        return pa.array(texts, pa.string()), bad


def _timestamp(columns: list[Any], _: Any) -> tuple[Any, Any]:
    """Return a timestamp of the years 1 to 9999, as the type's documentation requires."""
    seconds, nanos = (column.to_numpy() for column in columns)
    bad = (seconds < -62135596800) | (seconds > 253402300799) | (nanos < 0) | (nanos > 999999999)
    micros = np.where(bad, 0, seconds) * _MICROS + nanos // 1000
    return pa.array(micros).view(pa.timestamp("us", "UTC")), bad


def _date(columns: list[Any], _: Any) -> tuple[Any, Any]:
    """Return a date; one that lacks its year, month or day is malformed."""
    year, month, day = (column.to_numpy() for column in columns)
    bad = (year < 1) | (year > 9999) | (month < 1) | (month > 12) | (day < 1) | (day > 31)
    months = (np.where(bad, 1970, year).astype(np.int64) - 1970) * 12 + np.where(bad, 1, month) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    days = first + np.where(bad, 0, day - 1).astype("timedelta64[D]")
    bad |= days.astype("datetime64[M]") != first.astype("datetime64[M]")
    return pa.array(days.astype(np.int64).astype(np.int32)).view(pa.date32()), bad


def _time(columns: list[Any], _: Any) -> tuple[Any, Any]:
    """Return microseconds of the day; 24:00:00 and a leap second are times of a day."""
    hours, minutes, seconds, nanos = (column.to_numpy().astype(np.int64) for column in columns)
    bad = (hours < 0) | (minutes < 0) | (seconds < 0) | (nanos < 0)
    bad |= (minutes > 59) | (seconds > 60) | (nanos > 999999999)
    total = ((hours * 60 + minutes) * 60 + seconds) * _MICROS + nanos // 1000
    bad |= (hours > 24) | ((hours == 24) & (total > 86400 * _MICROS))
    return pa.array(total), bad


def _decimal(columns: list[Any], kind: Any) -> tuple[Any, Any]:
    """Return unscaled big-endian value and scale; inexact values are malformed."""
    if pa.types.is_integer(kind):  # a later version has whole numbers
        wide, bad = _decimal(columns, pa.decimal128(38, 0))
        held = [0 if value is None else int(value) for value in wide.to_pylist()]
        bad |= _outside(kind, held)
        fitting = [0 if no else value for value, no in zip(held, bad, strict=True)]
        return pa.array(fitting, kind), bad
    values: list[Decimal | None] = []
    for unscaled, scale in zip(columns[0].to_pylist(), columns[1].to_pylist(), strict=True):
        number = int.from_bytes(unscaled, "big", signed=True)
        shift, rest = kind.scale - scale if number else 0, 0
        fits = abs(shift) <= 100
        if fits and shift < 0:
            number, rest = divmod(number, 10**-shift)
        elif fits:
            number *= 10**shift
        fits = fits and not rest and abs(number) < 10**kind.precision
        values.append(Decimal(number).scaleb(-kind.scale, _EXACT) if fits else None)
    bad = np.array([value is None for value in values], bool)
    return pa.array(values, kind), bad


_SPECIAL: dict[str, Callable[[list[Any], Any], tuple[Any, Any]]] = {
    "timestamp": _timestamp,
    "date": _date,
    "time": _time,
    "decimal": _decimal,
    "wrapper": lambda columns, _: (columns[0], np.zeros(len(columns[0]), bool)),
}
