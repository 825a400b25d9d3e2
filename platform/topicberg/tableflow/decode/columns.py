"""Records as columns, without an object for each record.

Keys and values are decoded by programs into Arrow (:mod:`topicberg.formats.columnar`). A record
that a program refuses is decoded by the reference decoder of its format: it becomes a row like all
others, or is rejected with a reason (:mod:`topicberg.tableflow.rejected.rejections`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import MapType

from topicberg.formats.columnar.columns import Buffers, BuffersFullError, arrow_type, columns_of
from topicberg.formats.columnar.framing import (
    held_in_wire_format,
    in_wire_format,
    named_headers,
    schema_headers,
)
from topicberg.formats.columnar.program import NotCoveredError, Shape
from topicberg.formats.framing import WIRE_BYTES, header_of, id_of
from topicberg.formats.metadata import EVENT_TIME, HEADERS, RAW_KEY
from topicberg.formats.reasons import MalformedError, not_text
from topicberg.iceberg.data_files import WriteTarget, lowest_truncated, source_column
from topicberg.iceberg.file_columns import unwritten_column
from topicberg.tableflow.changelog.changes import (
    NEW_KEY,
    OLD_KEY,
    ChangePlan,
    key_columns,
    read_envelopes,
)
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.layout.event_time import event_times
from topicberg.tableflow.layout.message_fields import KEY, VALUE
from topicberg.tableflow.layout.upsert_key import HASHED_KEY_BYTES, IDENTITY, NO_KEY, held_key
from topicberg.tableflow.layout.writers import MessageDecoder
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.values.arrays import flags
from topicberg.tableflow.values.key_values import key_text
from topicberg.tableflow.values.metadata import (
    FIRST_MS,
    LAST_MS,
    NO_TIMESTAMP,
    out_of_range,
    wrong_header,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.types import NestedField

    from topicberg.formats.columnar.decoding import Decoded
    from topicberg.kafka.records import Records
    from topicberg.tableflow.layout.inline_schemas import InlineSchemas

MAX_ROWS, MAX_BYTES = 131_072, 16 * 1024 * 1024
"""Records that are decoded at once, and so rows of a row group, and their bytes."""
_RESERVED_BYTES = 512 * 1024 * 1024
"""Address space for the values of all columns."""
_MAX_RECORD_BYTES = 1024 * 1024 * 1024
TOO_LARGE = "the record has too many values for a row"


@dataclass(frozen=True)
class Chunk:
    """Rows as columns."""

    columns: dict[str, pa.Array]
    has_value: NDArray[np.bool_]
    """Whether the record of a row has a value."""
    facts: pa.Table | None = None
    """Of changes; see :class:`.change_batch.Facts`."""
    missing: NDArray[np.bool_] | None = None
    """Of changes: see :class:`.changes.Envelopes`."""
    lost: pa.Table | None = None
    """The rejected changes that have a key: partition, offset, and the columns of the key."""


def buffers_of(decoded: Mapping[str, MessageDecoder], rows: int) -> dict[str, Buffers]:
    shapes = {column: Shape(decoder.fields) for column, decoder in decoded.items()}
    size = _text_bytes(shapes.values())
    return {column: Buffers(shape, rows, size) for column, shape in shapes.items()}


def _text_bytes(shapes: Iterable[Shape]) -> int:
    """Return the bytes of a column's texts at once, so that all columns together fit."""
    columns = sum(len(shape.all) for shape in shapes)
    return max(64 * 1024, min(MAX_BYTES, _RESERVED_BYTES // (8 * max(1, columns))))


def chunks(
    plan: ReadPlan, records: Records, buffers: Mapping[str, Buffers], rejections: Rejections
) -> Iterator[Chunk]:
    """Yield the rows of records in parts that fit the buffers.

    A record that does not become a row is added to ``rejections``.
    """
    messages = {KEY: _payloads(records, KEY), VALUE: _payloads(records, VALUE)}
    wrong_headers = _with_wrong_header(records)
    unreadable = _unreadable(plan, records, wrong_headers)
    for column in sorted(plan.text):
        unreadable = _not_text(column, messages[column]) | unreadable
    other_keys = _other_keys(records) if plan.is_folded else {}
    usual = dict(messages)
    for column, inline in plan.inline.items():
        usual[column], malformed = _inline(inline, records, messages[column])
        unreadable = malformed | unreadable
    framed = {
        column: _framed(decoder, records, usual[column]) for column, decoder in plan.decoded.items()
    }
    first, count = 0, records.count
    while first < count:
        # A record is rejected for one reason: that of Kafka's columns, the key or the value.
        reasons = {number: reason for number, reason in unreadable.items() if number >= first}
        decoded_columns: dict[str, tuple[Mapping[str, pa.Array], list[int]]] = {}
        to = count
        for column in (KEY, VALUE):
            if (decoder := plan.decoded.get(column)) is None:
                continue
            message = framed[column]
            if reasons:
                message = message.without(list(reasons))
            reference = _reference(decoder, records, usual[column])
            done, columns = _message(decoder, buffers[column], message, reference, first, to)
            to = done.reached
            left_out = [rejection.record for rejection in done.rejected]
            decoded_columns[column] = columns, left_out
            reasons |= {rejection.record: rejection.reason for rejection in done.rejected}
        reasons = {number: reason for number, reason in reasons.items() if number < to}
        is_row = np.ones(to - first, np.bool_)
        is_row[[number - first for number in reasons]] = False
        if plan.changes is not None:
            known = plan, plan.changes, records, wrong_headers, other_keys
            chunk = _changes(*known, decoded_columns, first, is_row, reasons)
            for number, reason in sorted(reasons.items()):
                rejections.add(records, number, reason)
            yield chunk
            first = to
            continue
        columns = dict[str, Any]()
        for column, sent in messages.items():  # the value's win
            if column in plan.raw:
                raw = _chosen(sent.part(first, to), is_row)
                columns[column] = raw.cast(pa.string()) if column in plan.text else raw
            if column not in decoded_columns:
                continue
            of_message = _of_rows(*decoded_columns[column], first, is_row)
            if plan.key is not None and plan.key.is_decoded and column == KEY:
                # Before a field that key and value share becomes the value's.
                fields = [of_message[name] for name in plan.key.names]
                columns[IDENTITY] = key_text(fields, plan.key.shapes)
                for name in plan.key.hidden:
                    del of_message[name]
            if shared := of_message.keys() & columns.keys():
                decoder = plan.decoded[column]
                ids = _schema_ids(decoder, records, framed[column], first, to)[is_row]
                for name in shared:
                    of_message[name] = _merged(decoder, name, ids, of_message[name], columns[name])
            columns |= of_message
        columns |= _metadata(plan, records, wrong_headers, first, to, is_row)
        wrong = untruncatable(plan.target, columns)
        if plan.event_time is not None:
            rows = first + np.flatnonzero(is_row)
            is_needed = records.has_value[rows] == 1
            times = event_times(plan.event_time, columns, records.times[rows], is_needed)
            columns[plan.columns[EVENT_TIME]] = times.column
            wrong = times.wrong | wrong
            rejections.kafka_times += len(set(times.replaced) - wrong.keys())
        if wrong:
            rows = first + np.flatnonzero(is_row)
            reasons |= {int(rows[place]): MalformedError(why) for place, why in wrong.items()}
            stays = np.ones(len(rows), np.bool_)
            stays[list(wrong)] = False
            columns = {name: _chosen(column, stays) for name, column in columns.items()}
            is_row = is_row.copy()
            is_row[rows[~stays] - first] = False
        if plan.upserts is not None:
            if plan.key is not None and plan.key.is_decoded:
                raw = _named_keys(plan.decoded[KEY], records, framed[KEY], first, to)
                raw = _chosen(raw, is_row)
            else:
                raw = _held_keys(_chosen(messages[KEY].part(first, to), is_row))
            columns[plan.columns[RAW_KEY]] = raw
        for number, reason in sorted(reasons.items()):
            rejections.add(records, number, reason)
        yield Chunk(columns, (records.has_value[first:to] == 1)[is_row])
        first = to


def untruncatable(target: WriteTarget, columns: Mapping[str, pa.Array]) -> dict[int, str]:
    """Return the rows with a value that the partitions of the table have no place for, and why."""
    reasons: dict[int, str] = {}
    for partition_field in target.spec.fields:
        if not isinstance(partition_field.transform, TruncateTransform):
            continue
        kind = target.schema.find_type(partition_field.source_id)
        if (lowest := lowest_truncated(kind, partition_field.transform.width)) is None:
            continue
        try:
            column = source_column(target.schema, partition_field.source_id, columns)
        except KeyError:  # the records have no such field
            continue
        name = target.schema.find_column_name(partition_field.source_id)
        for place in np.flatnonzero(flags(pc.less(column, pa.scalar(lowest, column.type)))):
            reasons[int(place)] = (
                f"the table is partitioned by {partition_field.transform} of {name}, and a "
                f"value below {lowest} is rounded down to one that no {kind} can hold: "
                f"{column[int(place)]}"
            )
    return reasons


def _of_rows(
    arrays: Mapping[str, pa.Array], left_out: Sequence[int], first: int, is_row: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """Return the columns of keys or values for some records.

    :param arrays: with a row for each record but those that are left out
    :param left_out: the numbers of records that the decoder rejected
    :param first: the number of the first record
    """
    wanted = is_row[_is_there(left_out, first, len(is_row))]
    return {name: _chosen(array.slice(0, len(wanted)), wanted) for name, array in arrays.items()}


def _is_there(left_out: Sequence[int], first: int, count: int) -> NDArray[np.bool_]:
    """Return which of some records the decoder did not reject."""
    found = np.ones(count, np.bool_)
    found[[at - first for at in left_out if at < first + count]] = False
    return found


def _changes(
    plan: ReadPlan,
    changes: ChangePlan,
    records: Records,
    wrong_headers: Sequence[int],
    other_keys: Mapping[str, Mapping[int, str]],
    decoded_columns: Mapping[str, tuple[Mapping[str, pa.Array], list[int]]],
    first: int,
    is_row: NDArray[np.bool_],
    reasons: dict[int, MalformedError],
) -> Chunk:
    """Return the changes of some records.

    :param wrong_headers: see :func:`_with_wrong_header`
    :param other_keys: see :func:`_other_keys`
    :param decoded_columns: the columns of keys and values, and the records that their decoder
        rejected
    :param first: the number of the first record
    :param is_row: which records are not malformed so far
    :param reasons: why records are malformed; those that are no changes are added
    """
    to = first + len(is_row)
    rows = first + np.flatnonzero(is_row)
    parts = {
        column: _of_rows(*decoded, first, is_row) for column, decoded in decoded_columns.items()
    }
    has_value = records.has_value[rows] == 1
    key_sizes = np.where(records.has_key[rows] == 1, np.diff(records.key_offsets)[rows], -1)
    given = parts.get(KEY, {}), parts[VALUE]
    read = read_envelopes(changes, *given, has_value, key_sizes)
    stays = np.ones(len(rows), np.bool_)
    for place, reason in (untruncatable(plan.target, read.columns) | read.wrong).items():
        reasons[int(rows[place])] = MalformedError(reason)
        stays[place] = False
    if not changes.is_folded:
        stays &= has_value  # a tombstone is not a change
    is_row = is_row.copy()
    is_row[rows[~stays] - first] = False
    columns = {name: _chosen(column, stays) for name, column in read.columns.items()}
    if KEY in plan.raw:
        raw = _chosen(_payloads(records, KEY).part(first, to), is_row)
        columns[KEY] = raw.cast(pa.string()) if KEY in plan.text else raw
    columns |= _metadata(plan, records, wrong_headers, first, to, is_row)
    rows = rows[stays]
    if not changes.is_folded:
        return Chunk(columns, has_value[stays])
    facts = {name: _chosen(fact, stays) for name, fact in read.facts.items()}
    table = _facts(records, rows, facts, other_keys)
    lost = _lost(changes, records, decoded_columns.get(KEY), first, to, reasons)
    return Chunk(columns, has_value[stays], table, read.missing[:, stays], lost)


def _facts(
    records: Records,
    rows: NDArray[np.intp],
    facts: Mapping[str, pa.Array],
    other_keys: Mapping[str, Mapping[int, str]],
) -> pa.Table:
    """Return what is known of the changes at some records."""
    times = records.times[rows]
    texts = {
        name: pa.array([known.get(row) for row in rows.tolist()], pa.string())
        if known
        else pa.nulls(len(rows), pa.string())
        for name, known in other_keys.items()
    }
    return pa.table(
        {
            "partition": pa.array(records.partitions[rows]),
            "offset": pa.array(records.offsets[rows]),
            "kafka_ms": pa.array(times, mask=times == NO_TIMESTAMP),
            **facts,
            **texts,
            "has_key": pa.array(records.has_key[rows] == 1),
        }
    )


def _other_keys(records: Records) -> dict[str, dict[int, str]]:
    """Return the other keys of changes of the primary key, by fact and by record.

    Of several headers with the name, the first one counts.
    """
    other_keys: dict[str, dict[int, str]] = {"old_key": {}, "new_key": {}}
    if not records.header_ends[records.count]:
        return other_keys
    headers = records.header_arrays()
    for texts, name in zip(other_keys.values(), (OLD_KEY, NEW_KEY), strict=True):
        numbers = named_headers(headers, name.encode())
        numbers = numbers[headers.has_value[numbers] == 1]
        rows = np.searchsorted(headers.ends[1:], numbers, side="right")
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            begin, end = headers.value_offsets[number : number + 2]
            texts.setdefault(row, headers.values[begin:end].tobytes().decode(errors="replace"))
    return other_keys


def _lost(
    changes: ChangePlan,
    records: Records,
    keys: tuple[Mapping[str, pa.Array], list[int]] | None,
    first: int,
    to: int,
    reasons: Mapping[int, MalformedError],
) -> pa.Table:
    """Return the rejected records that have a key; see :class:`Chunk`."""
    arrays, left_out = keys or ({}, [])
    lost = np.array([number for number in sorted(reasons) if records.has_key[number]], np.intp)
    columns = {
        "partition": pa.array(records.partitions[lost]),
        "offset": pa.array(records.offsets[lost]),
    }
    is_there = _is_there(left_out, first, to - first)
    place = np.cumsum(is_there) - 1
    inside = lost - first
    taken = pa.array(place[inside], mask=~is_there[inside])
    kinds = {column.name: arrow_type(column.field_type) for column in changes.rows}
    for name, key_column in zip(changes.keys, key_columns(changes.keys), strict=True):
        columns[key_column] = (
            arrays[name].take(taken).cast(kinds[name])
            if name in arrays
            else pa.nulls(len(lost), kinds[name])
        )
    return pa.table(columns)


def _inline(
    inline: InlineSchemas, records: Records, raw: Payloads
) -> tuple[Payloads, dict[int, MalformedError]]:
    """Return keys or values in the wire format, and why some of them cannot be."""
    wanted = raw.present == 1
    if records.header_ends[records.count]:
        _, named = schema_headers(records.header_arrays(), inline.side)
        wanted[named] = False
    data, offsets, malformed = inline.in_wire_format(raw.data, raw.offsets, wanted)
    return Payloads(data, offsets, raw.present), malformed


def _unreadable(
    plan: ReadPlan, records: Records, wrong_headers: Sequence[int]
) -> dict[int, MalformedError]:
    """Return the records that cannot become rows, whatever their keys and values are."""
    times = records.times[: records.count]
    reasons = {
        int(number): MalformedError(out_of_range(plan.columns["timestamp"], int(times[number])))
        for number in np.flatnonzero(
            (times != NO_TIMESTAMP) & ((times < FIRST_MS) | (times > LAST_MS))
        )
    }
    for number in wrong_headers:
        reasons.setdefault(number, MalformedError(wrong_header(plan.columns[HEADERS])))
    if plan.upserts is None and plan.changes is None:
        return reasons
    has_key, has_value = (
        present[: records.count] == 1 for present in (records.has_key, records.has_value)
    )
    # A tombstone deletes a row and does not become one.
    reasons = {number: reason for number, reason in reasons.items() if has_value[number]}
    if plan.changes is not None:
        return reasons
    for place in np.flatnonzero(~has_key):
        reasons.setdefault(int(place), MalformedError(NO_KEY))
    return reasons


def _not_text(column: str, raw: Payloads) -> dict[int, MalformedError]:
    """Return why keys or values are not text."""
    with suppress(pa.ArrowInvalid):
        _binary(*raw).cast(pa.string())
        return {}
    reasons = dict[int, MalformedError]()
    for record in np.flatnonzero(raw.present):
        if reason := not_text(column, raw.message(int(record))):
            reasons[int(record)] = MalformedError(reason)
    return reasons


def _with_wrong_header(records: Records) -> list[int]:
    """Return the records with a header whose name is not UTF-8."""
    end = int(records.header_ends[records.count])
    begins = records.header_offsets[0, : end + 1]
    if records.headers[: begins[-1]].max(initial=0) < 0x80:
        return []
    wrong = []
    for number in range(end):
        try:
            records.headers[begins[number] : begins[number + 1]].tobytes().decode()
        except UnicodeDecodeError:
            wrong.append(number)
    places = np.searchsorted(records.header_ends[1 : records.count + 1], wrong, side="right")
    return sorted({int(place) for place in places})


def _chosen(column: pa.Array, is_row: NDArray[np.bool_]) -> pa.Array:
    return column if is_row.all() else column.filter(pa.array(is_row))


class Payloads(NamedTuple):
    """The bytes of keys or values, where each begins, and which of them there are."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    present: NDArray[np.uint8]

    def message(self, number: int) -> bytes:
        """Return one of them."""
        return self.data[self.offsets[number] : self.offsets[number + 1]].tobytes()

    def part(self, first: int, to: int) -> pa.Array:
        """Return some of them as a column."""
        return _binary(self.data, self.offsets[first : to + 1], self.present[first:to])

    def without(self, records: list[int]) -> Payloads:
        """Return the same, without the bytes of some records."""
        present = self.present.copy()
        present[records] = 0
        return self._replace(present=present)


def _payloads(records: Records, side: str) -> Payloads:
    """Return the keys or the values of records; their arrays may have room for more."""
    count = records.count
    if side == KEY:
        return Payloads(records.keys, records.key_offsets[: count + 1], records.has_key[:count])
    return Payloads(records.values, records.value_offsets[: count + 1], records.has_value[:count])


def _framed(decoder: MessageDecoder, records: Records, raw: Payloads) -> Payloads:
    """Return keys or values in the wire format, whatever names their schemas."""
    data, offsets, present = raw
    headers = records.header_arrays() if records.header_ends[records.count] else None
    data, offsets = in_wire_format(decoder.framing, headers, data, offsets, present)
    return Payloads(data, offsets, present)


def _reference(
    decoder: MessageDecoder, records: Records, raw: Payloads
) -> Callable[[int], Mapping[str, Any]]:
    """Return what decodes one of some records, as it is in Kafka."""

    has_headers = records.header_ends[records.count] > 0

    def decode(record: int) -> Mapping[str, Any]:
        headers = (records.raw_headers(record) if has_headers else None) or ()
        header = header_of(decoder.column, headers) if headers else None
        return decoder.decode(raw.message(record), header)

    return decode


def _schema_ids(
    decoder: MessageDecoder, records: Records, message: Payloads, first: int, to: int
) -> NDArray[np.int64]:
    """Return the ids of schemas that keys or values name; -1: none.

    :param message: in the wire format, without those that :func:`.in_wire_format` left out
    """
    data, offsets, present = message
    begin, sizes = offsets[first:to], np.diff(offsets[first : to + 1])
    ids = np.full(to - first, -1, np.int64)
    there = np.flatnonzero((present[first:to] == 1) & (sizes >= WIRE_BYTES))
    framed = data[begin[there, None] + np.arange(1, WIRE_BYTES)].astype(np.int64)
    ids[there] = framed @ np.array([2**24, 2**16, 2**8, 1], np.int64)
    raw = _payloads(records, decoder.column)
    for row in first + np.flatnonzero((present[first:to] == 1) & (sizes == 0)):
        header = header_of(decoder.column, records.raw_headers(int(row)) or ())
        record = decoder.framing.framed(raw.message(int(row)), header)
        if not isinstance(record, str):
            number = id_of(record.schema, decoder.framing.guids)
            ids[row - first] = -1 if number is None else number
    return ids


def _merged(
    decoder: MessageDecoder, name: str, ids: NDArray[np.int64], own: pa.Array, other: pa.Array
) -> pa.Array:
    """Return a column of both key and value: the value's, if its schema has the field."""
    filled = [number for number, names in decoder.filled.items() if name in names]
    return pc.if_else(pa.array(np.isin(ids, filled)), own, other.cast(own.type))


def _named_keys(
    decoder: MessageDecoder, records: Records, message: Payloads, first: int, to: int
) -> pa.Array:
    """Return keys with a schema as tables hold them: they name it, as the index decodes them again.

    :param message: in the wire format, without those that :func:`.in_wire_format` left out
    """
    sent = _payloads(records, KEY)
    if decoder.framing.framing == "glue":
        return sent.part(first, to)
    raw = message.part(first, to)
    is_empty = np.diff(message.offsets[first : to + 1]) == 0
    left_out = np.flatnonzero((message.present[first:to] == 1) & is_empty)
    if not len(left_out):
        return raw
    keys = raw.to_pylist()
    for place in left_out.tolist():
        number = first + place
        header = header_of(KEY, records.raw_headers(number) or ())
        keys[place] = decoder.framing.held(sent.message(number), header)
    return pa.array(keys, pa.binary())


def _held_keys(raw: pa.Array) -> pa.Array:
    """Return raw keys as tables hold them."""
    if (pc.max(pc.binary_length(raw)).as_py() or 0) <= HASHED_KEY_BYTES:
        return raw
    return pa.array([held_key(key) for key in raw.to_pylist()], pa.binary())


def _message(
    decoder: MessageDecoder,
    buffers: Buffers,
    message: Payloads,
    reference: Callable[[int], Mapping[str, Any]],
    first: int,
    to: int,
) -> tuple[Decoded, Mapping[str, pa.Array]]:
    """Return what became of keys or values, and the columns of those that were not rejected."""
    from topicberg.formats.columnar.decoding import Decoded, Rejected, decode

    data, offsets, present = message
    buffers.clear()
    rest = present, reference, first
    try:
        done = decode(decoder.programs, buffers, data, offsets[: to + 1], *rest)
    except BuffersFullError:
        # One record that is larger than the buffers.
        size = 4 * buffers.size
        while True:
            try:
                buffers = Buffers(buffers.shape, 1, size)
                done = decode(None, buffers, data, offsets[: first + 2], *rest)
                break
            except BuffersFullError:
                size *= 4
                if size > _MAX_RECORD_BYTES:
                    done = Decoded(first + 1, [Rejected(first, MalformedError(TOO_LARGE))])
                    break
    return done, columns_of(buffers.arrays(), buffers.shape)


def decode_raw(
    decoder: MessageDecoder, raw: pa.Array
) -> Iterator[tuple[NDArray[np.intp], Mapping[str, pa.Array]]]:
    """Yield parts of keys or values, as tables hold them: their places, and their columns.

    The columns are valid until the next part. What is null or malformed is left out.
    """
    raw = raw.filter(raw.is_valid()) if raw.null_count else raw
    raw = raw.cast(pa.binary())  # others write files with 64-bit offsets
    count = len(raw)
    _, begins, content = raw.buffers()
    offsets = np.frombuffer(begins, np.int32)[raw.offset : raw.offset + count + 1].astype(np.int64)
    data = np.frombuffer(content or b"", np.uint8)[offsets[0] : offsets[-1]]
    # Compiled code has arrays that can be written.
    data, offsets, present = data.copy(), offsets - offsets[0], np.ones(count, np.uint8)
    data, offsets = held_in_wire_format(decoder.framing, data, offsets, present)
    message = Payloads(data, offsets, present)

    def reference(number: int) -> Mapping[str, Any]:
        try:
            return decoder.decode_held(raw[number].as_py())
        except NotCoveredError as error:
            raise MalformedError(str(error)) from None

    first = 0
    buffers = buffers_of({decoder.column: decoder}, min(MAX_ROWS, max(1, count)))[decoder.column]
    while first < count:
        done, columns = _message(decoder, buffers, message, reference, first, count)
        rejected = [rejection.record for rejection in done.rejected]
        yield np.setdiff1d(np.arange(first, done.reached), rejected), columns
        first = done.reached


def _binary(data: Any, offsets: Any, present: Any) -> pa.Array:
    begin, end = int(offsets[0]), int(offsets[-1])
    nulls = len(present) - int(np.count_nonzero(present))
    bitmap = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    found = [
        bitmap,
        pa.py_buffer((offsets - begin).astype(np.int32)),
        pa.py_buffer(data[begin:end]),
    ]
    return pa.Array.from_buffers(pa.binary(), len(present), found, nulls)


def _metadata(
    plan: ReadPlan,
    records: Records,
    wrong_headers: Sequence[int],
    first: int,
    to: int,
    is_row: NDArray[np.bool_],
) -> dict[str, pa.Array]:
    """Return the metadata columns."""
    rows = slice(first, to) if is_row.all() else first + np.flatnonzero(is_row)
    times = records.times[rows]
    count, has_time = len(times), times != NO_TIMESTAMP
    # Only a tombstone that deletes its key has another time here: it does not become a row.
    has_time &= (times >= FIRST_MS) & (times <= LAST_MS)
    micros = pa.array(
        np.where(has_time, times, 0) * 1000, mask=None if has_time.all() else ~has_time
    )
    of_broker = records.time_types[rows] == 2
    kinds = pa.array(["CREATE_TIME", "LOG_APPEND_TIME"])
    values = {
        "topic": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(count, np.int32)), pa.array([plan.topic])
        ),
        "partition": pa.array(records.partitions[rows]),
        HEADERS: _headers(plan, records, wrong_headers, first, to, is_row),
        "leader-epoch": pa.nulls(count, pa.int32()),
        "offset": pa.array(records.offsets[rows]),
        "timestamp": micros.cast(pa.timestamp("us", "UTC")),
        "timestamp-type": pa.DictionaryArray.from_arrays(
            pa.array(of_broker.astype(np.int32)), kinds
        ),
    }
    return {plan.columns[name]: column for name, column in values.items()}


def _headers(
    plan: ReadPlan,
    records: Records,
    wrong_headers: Sequence[int],
    first: int,
    to: int,
    is_row: NDArray[np.bool_],
) -> pa.Array:
    """Return the headers: of a table with a map, the last one of each name."""
    pair = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
    is_map = isinstance(plan.target.schema.find_type(plan.columns[HEADERS]), MapType)
    kind = pa.map_(pa.string(), pa.binary()) if is_map else pa.list_(pa.struct(pair))
    ends = records.header_ends[first : to + 1]
    begin, end = int(ends[0]), int(ends[-1])
    if begin == end:
        return pa.nulls(np.count_nonzero(is_row), kind)
    counts = np.diff(ends)
    # Names that are not UTF-8 are those of records that do not become rows: tombstones, too.
    is_read = is_row.copy()
    is_read[[number - first for number in wrong_headers if first <= number < to]] = False
    wanted = np.repeat(is_read, counts)
    if is_map:
        wanted &= records.is_repeated_header[begin:end] == 0
    names, values = (records.header_offsets[part, begin : end + 1] for part in (0, 1))
    keys = pa.Array.from_buffers(
        pa.binary(), end - begin, [None, pa.py_buffer(names), pa.py_buffer(records.headers)]
    )
    data = records.headers[records.size :]
    items = _binary(data, values.astype(np.int64), records.has_header_value[begin:end])
    entries = pa.StructArray.from_arrays(
        [_chosen(keys, wanted).cast(pa.string()), _chosen(items, wanted)], fields=pair
    )
    of_row = np.repeat(np.arange(to - first), counts)[wanted]
    sizes = np.bincount(of_row, minlength=to - first)[is_row]
    offsets = np.cumsum([0, *sizes], dtype=np.int32)
    is_null = sizes == 0
    bitmap = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    buffers = [bitmap, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(
        kind, len(sizes), buffers, int(np.count_nonzero(is_null)), children=[entries]
    )


def absent_columns(chunk: Chunk, fields: Sequence[NestedField]) -> dict[str, pa.Array]:
    """Return the table's columns that the records have no value for: their defaults, or null."""
    return {
        field.name: unwritten_column(field, len(chunk.has_value))
        for field in fields
        if field.name not in chunk.columns
    }
