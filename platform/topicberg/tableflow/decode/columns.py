"""Records as columns, without an object for each record.

Keys and values are decoded by programs into Arrow (:mod:`topicberg.formats.columnar`). A record
that a program refuses is decoded by the reference decoder of its format: it becomes a row like all
others, or is rejected with a reason (:mod:`topicberg.tableflow.rejected.rejections`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import MapType, NestedField

from topicberg.formats.columnar.columns import Buffers, BuffersFullError, arrow_type, columns_of
from topicberg.formats.columnar.decoding import Decoded, Rejected, decode
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
from topicberg.kafka.records import Records
from topicberg.tableflow.changelog.changes import (
    NEW_KEY,
    OLD_KEY,
    ChangePlan,
    key_columns,
    read_envelopes,
)
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.layout.event_time import event_times
from topicberg.tableflow.layout.inline_schemas import InlineSchemas
from topicberg.tableflow.layout.message_fields import KEY, VALUE
from topicberg.tableflow.layout.upsert_key import HASHED_KEY_BYTES, IDENTITY, NO_KEY, held_key
from topicberg.tableflow.layout.writers import MessageDecoder
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.values import metadata
from topicberg.tableflow.values.arrays import flags
from topicberg.tableflow.values.key_values import key_text

MAX_ROWS, MAX_BYTES = 131_072, 16 * 1024 * 1024
"""Records that are decoded at once, and so rows of a row group, and their bytes."""
_RESERVED_BYTES = 512 * 1024 * 1024
"""Address space for the values of all columns."""
_MAX_RECORD_BYTES = 1024 * 1024 * 1024
FORGOTTEN = "its key, or a value of it, was forgotten"
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
    """Return the buffers of keys and values, whose columns fit the reserved memory together."""
    shapes = {column: Shape(decoder.fields) for column, decoder in decoded.items()}
    columns = sum(len(shape.all) for shape in shapes.values())
    size = max(64 * 1024, min(MAX_BYTES, _RESERVED_BYTES // (8 * max(1, columns))))
    return {column: Buffers(shape, rows, size) for column, shape in shapes.items()}


def chunks(
    plan: ReadPlan, records: Records, buffers: Mapping[str, Buffers], rejections: Rejections
) -> Iterator[Chunk]:
    """Yield the rows of records in parts that fit the buffers; add the others to ``rejections``."""
    count = records.count  # the arrays may have room for more
    sent = {
        KEY: Payloads(records.keys, records.key_offsets[: count + 1], records.has_key[:count]),
        VALUE: Payloads(
            records.values, records.value_offsets[: count + 1], records.has_value[:count]
        ),
    }
    wrong_headers = _with_wrong_header(records)
    unreadable = _unreadable(plan, records, wrong_headers)
    for column in sorted(plan.text):
        unreadable = _not_text(column, sent[column]) | unreadable
    other_keys = _other_keys(records) if plan.is_folded else {}
    usual = dict(sent)
    for column, inline in plan.inline.items():
        usual[column], malformed = _inline(inline, records, sent[column])
        unreadable = malformed | unreadable
    headers = records.header_arrays() if records.header_ends[count] else None
    framed = {
        column: Payloads(*in_wire_format(decoder.framing, headers, *raw), raw.present)
        for column, decoder in plan.decoded.items()
        for raw in [usual[column]]
    }
    first = 0
    while first < count:
        # A record is rejected for one reason: that of Kafka's columns, the key or the value.
        reasons = {number: reason for number, reason in unreadable.items() if number >= first}
        decoded: dict[str, tuple[Mapping[str, pa.Array], list[int]]] = {}
        to = count
        for column in (KEY, VALUE):
            if (decoder := plan.decoded.get(column)) is None:
                continue
            message = framed[column].without(list(reasons)) if reasons else framed[column]
            reference = _reference(decoder, records, usual[column])
            done, columns = _message(decoder, buffers[column], message, reference, first, to)
            to = done.reached
            rejected = {rejection.record: rejection.reason for rejection in done.rejected}
            decoded[column] = columns, [*rejected]
            reasons |= rejected
        reasons = {number: reason for number, reason in reasons.items() if number < to}
        part = _Part(
            plan=plan,
            records=records,
            sent=sent,
            framed=framed,
            wrong_headers=wrong_headers,
            other_keys=other_keys,
            decoded=decoded,
            first=first,
            to=to,
            reasons=reasons,
        )
        chunk = part.rows(rejections) if plan.changes is None else part.changes(plan.changes)
        for number, reason in sorted(reasons.items()):
            rejections.add(records, number, reason)
        yield chunk
        first = to


@dataclass
class _Part:
    """Some of the records, which fit the buffers: from ``first`` up to, not including, ``to``."""

    plan: ReadPlan
    records: Records
    sent: Mapping[str, Payloads]
    """All keys and values, as they are in Kafka."""
    framed: Mapping[str, Payloads]
    """Those that are decoded, in the wire format, but for those that :func:`.in_wire_format` left
    out."""
    wrong_headers: Sequence[int]
    """See :func:`_with_wrong_header`."""
    other_keys: Mapping[str, Mapping[int, str]]
    """See :func:`_other_keys`."""
    decoded: Mapping[str, tuple[Mapping[str, pa.Array], list[int]]]
    """The columns of keys and values, and the numbers of records that their decoder rejected."""
    first: int
    to: int
    reasons: dict[int, MalformedError]
    """Why records are malformed, by their numbers; those that are found later are added."""
    is_row: NDArray[np.bool_] = field(init=False)
    """Which of these records are not malformed so far."""

    def __post_init__(self) -> None:
        self.is_row = np.ones(self.to - self.first, np.bool_)
        self.is_row[[number - self.first for number in self.reasons]] = False

    @property
    def numbers(self) -> NDArray[np.intp]:
        """The numbers of the records that are not malformed so far."""
        return self.first + np.flatnonzero(self.is_row)

    def rows(self, rejections: Rejections) -> Chunk:
        """Return the records that become rows."""
        plan, records = self.plan, self.records
        columns, keys = dict[str, Any](), dict[str, Any]()
        for column in (KEY, VALUE):  # the value's win
            columns |= self._raw(column)
            of_message = self._decoded(column)
            keys = dict(of_message) if column == KEY else keys
            if plan.key is not None and plan.key.is_decoded and column == KEY:
                # Before a field that key and value share becomes the value's.
                fields = [of_message[name] for name in plan.key.names]
                columns[IDENTITY] = key_text(fields, plan.key.shapes)
                for name in plan.key.hidden:
                    del of_message[name]
            if shared := of_message.keys() & columns.keys():
                ids = self._schema_ids(column)[self.is_row]
                for name in shared:
                    # The value's, if its schema has the field.
                    filled = [
                        n for n, names in plan.decoded[column].filled.items() if name in names
                    ]
                    own, is_own = of_message[name], pa.array(np.isin(ids, filled))
                    of_message[name] = pc.if_else(is_own, own, columns[name].cast(own.type))
            columns |= of_message
        columns |= self._metadata()
        wrong = untruncatable(plan.target, columns) | self._forgotten(keys, columns)
        if plan.event_time is not None:
            rows = self.numbers
            is_needed = records.has_value[rows] == 1
            times = event_times(plan.event_time, columns, records.times[rows], is_needed)
            columns[plan.columns[EVENT_TIME]] = times.column
            wrong = times.wrong | wrong
            rejections.kafka_times += len(set(times.replaced) - wrong.keys())
        if wrong:
            stays = self._rejected(wrong)
            columns = {name: _chosen(column, stays) for name, column in columns.items()}
        if plan.upserts is not None:
            columns[plan.columns[RAW_KEY]] = self._held_keys()
        return Chunk(columns, records.has_value[self.numbers] == 1)

    def changes(self, changes: ChangePlan) -> Chunk:
        """Return the records that are changes."""
        plan, records, rows = self.plan, self.records, self.numbers
        has_value = records.has_value[rows] == 1
        key_sizes = np.where(records.has_key[rows] == 1, np.diff(records.key_offsets)[rows], -1)
        keys, values = self._decoded(KEY), self._decoded(VALUE)
        read = read_envelopes(changes, keys, values, has_value, key_sizes)
        # A tombstone is not a change of a table that has all of them.
        is_change = has_value | changes.is_folded
        wrong = untruncatable(plan.target, read.columns) | self._forgotten(keys, read.columns)
        stays = self._rejected(wrong | read.wrong, is_change)
        columns = {name: _chosen(column, stays) for name, column in read.columns.items()}
        columns |= self._raw(KEY) | self._metadata()
        if not changes.is_folded:
            return Chunk(columns, has_value[stays])
        rows = rows[stays]
        times = records.times[rows]
        texts = {
            name: pa.array([known.get(row) for row in rows.tolist()], pa.string())
            if known
            else pa.nulls(len(rows), pa.string())
            for name, known in self.other_keys.items()
        }
        facts = pa.table(
            {
                "partition": records.partitions[rows],
                "offset": records.offsets[rows],
                "kafka_ms": pa.array(times, mask=times == metadata.NO_TIMESTAMP),
                **{name: _chosen(fact, stays) for name, fact in read.facts.items()},
                **texts,
                "has_key": records.has_key[rows] == 1,
            }
        )
        return Chunk(columns, has_value[stays], facts, read.missing[:, stays], self._lost(changes))

    def _rejected(
        self, wrong: Mapping[int, str], is_row: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Reject rows by their places; return which are left of those that are to be rows."""
        rows = self.numbers
        stays = np.ones(len(rows), np.bool_) if is_row is None else is_row.copy()
        stays[list(wrong)] = False
        self.reasons |= {int(rows[place]): MalformedError(why) for place, why in wrong.items()}
        self.is_row[rows[~stays] - self.first] = False
        return stays

    def _forgotten(
        self, keys: Mapping[str, pa.Array], columns: Mapping[str, pa.Array]
    ) -> dict[int, str]:
        """Return the rows of forgotten keys, and why they are rejected."""
        if (forgotten := self.plan.forgotten) is None:
            return {}
        if KEY not in self.plan.decoded:
            raw = _chosen(self.sent[KEY].part(self.first, self.to), self.is_row)
            keys = {KEY: raw.cast(pa.string()) if KEY in self.plan.text else raw}
        of_table = {field.name for field in self.plan.target.schema.fields}
        columns = {name: column for name, column in columns.items() if name in of_table}
        parts = (self.records.partitions[self.numbers], self.records.offsets[self.numbers])
        places = list(zip(*(part.tolist() for part in parts), strict=True))
        return dict.fromkeys(forgotten.rows({**columns, **keys}, places), FORGOTTEN)

    def _raw(self, column: str) -> dict[str, pa.Array]:
        """Return the keys, or the values, of the rows as they were sent, if they are a column."""
        if column not in self.plan.raw:
            return {}
        raw = _chosen(self.sent[column].part(self.first, self.to), self.is_row)
        return {column: raw.cast(pa.string()) if column in self.plan.text else raw}

    def _decoded(self, column: str) -> dict[str, pa.Array]:
        """Return the columns of the keys, or the values, of the rows."""
        arrays, left_out = self.decoded.get(column, ({}, []))
        wanted = self.is_row[self._is_there(left_out)]
        return {
            name: _chosen(array.slice(0, len(wanted)), wanted) for name, array in arrays.items()
        }

    def _is_there(self, left_out: Sequence[int]) -> NDArray[np.bool_]:
        """Return which of the records the decoder did not reject."""
        is_there = np.ones(self.to - self.first, np.bool_)
        is_there[[number - self.first for number in left_out if number < self.to]] = False
        return is_there

    def _lost(self, changes: ChangePlan) -> pa.Table:
        """Return the rejected records that have a key; see :class:`Chunk`."""
        records, (arrays, left_out) = self.records, self.decoded.get(KEY, ({}, []))
        lost = np.array([n for n in sorted(self.reasons) if records.has_key[n]], np.intp)
        columns = {"partition": records.partitions[lost], "offset": records.offsets[lost]}
        is_there, inside = self._is_there(left_out), lost - self.first
        taken = pa.array((np.cumsum(is_there) - 1)[inside], mask=~is_there[inside])
        kinds = {column.name: arrow_type(column.field_type) for column in changes.rows}
        keys = {
            key_column: arrays[name].take(taken).cast(kinds[name])
            if name in arrays
            else pa.nulls(len(lost), kinds[name])
            for name, key_column in zip(changes.keys, key_columns(changes.keys), strict=True)
        }
        return pa.table(columns | keys)

    def _schema_ids(self, column: str) -> NDArray[np.int64]:
        """Return the ids of schemas that keys or values name; -1: none."""
        decoder, first, to = self.plan.decoded[column], self.first, self.to
        data, offsets, present = self.framed[column]
        begin, sizes = offsets[first:to], np.diff(offsets[first : to + 1])
        ids = np.full(to - first, -1, np.int64)
        there = np.flatnonzero((present[first:to] == 1) & (sizes >= WIRE_BYTES))
        framed = data[begin[there, None] + np.arange(1, WIRE_BYTES)].astype(np.int64)
        ids[there] = framed @ np.array([2**24, 2**16, 2**8, 1], np.int64)
        for row in first + np.flatnonzero((present[first:to] == 1) & (sizes == 0)):
            header = header_of(column, self.records.raw_headers(int(row)) or ())
            record = decoder.framing.framed(self.sent[column].message(int(row)), header)
            if not isinstance(record, str):
                number = id_of(record.schema, decoder.framing.guids)
                ids[row - first] = -1 if number is None else number
        return ids

    def _held_keys(self) -> pa.Array:
        """Return the rows' keys as tables hold them; with a schema, they name it."""
        sent, key = self.sent[KEY], self.plan.key
        if key is None or not key.is_decoded:
            raw = _chosen(sent.part(self.first, self.to), self.is_row)
            if (pc.max(pc.binary_length(raw)).as_py() or 0) <= HASHED_KEY_BYTES:
                return raw
            return pa.array([*map(held_key, raw.to_pylist())], pa.binary())
        framing, message = self.plan.decoded[KEY].framing, self.framed[KEY]
        if framing.framing == "glue":
            return _chosen(sent.part(self.first, self.to), self.is_row)
        raw = message.part(self.first, self.to)
        is_empty = np.diff(message.offsets[self.first : self.to + 1]) == 0
        left_out = np.flatnonzero((message.present[self.first : self.to] == 1) & is_empty)
        if len(left_out):
            keys = raw.to_pylist()
            for place in left_out.tolist():
                number = self.first + place
                header = header_of(KEY, self.records.raw_headers(number) or ())
                keys[place] = framing.held(sent.message(number), header)
            raw = pa.array(keys, pa.binary())
        return _chosen(raw, self.is_row)

    def _metadata(self) -> dict[str, pa.Array]:
        """Return the metadata columns."""
        plan, records = self.plan, self.records
        rows = slice(self.first, self.to) if self.is_row.all() else self.numbers
        times = records.times[rows]
        count, has_time = len(times), times != metadata.NO_TIMESTAMP
        # Only a tombstone that deletes its key has another time here: it does not become a row.
        has_time &= (times >= metadata.FIRST_MS) & (times <= metadata.LAST_MS)
        micros = pa.array(
            np.where(has_time, times, 0) * 1000, mask=None if has_time.all() else ~has_time
        )
        of_broker = pa.array((records.time_types[rows] == 2).astype(np.int32))
        kinds = pa.array(["CREATE_TIME", "LOG_APPEND_TIME"])
        of_topic = pa.array(np.zeros(count, np.int32))
        values = {
            "topic": pa.DictionaryArray.from_arrays(of_topic, pa.array([plan.topic])),
            "partition": pa.array(records.partitions[rows]),
            HEADERS: self._headers(),
            "leader-epoch": pa.nulls(count, pa.int32()),
            "offset": pa.array(records.offsets[rows]),
            "timestamp": micros.cast(pa.timestamp("us", "UTC")),
            "timestamp-type": pa.DictionaryArray.from_arrays(of_broker, kinds),
        }
        return {plan.columns[name]: column for name, column in values.items()}

    def _headers(self) -> pa.Array:
        """Return the headers: of a table with a map, the last one of each name."""
        records, plan, first, to = self.records, self.plan, self.first, self.to
        pair = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
        is_map = isinstance(plan.target.schema.find_type(plan.columns[HEADERS]), MapType)
        kind = pa.map_(pa.string(), pa.binary()) if is_map else pa.list_(pa.struct(pair))
        ends = records.header_ends[first : to + 1]
        begin, end = int(ends[0]), int(ends[-1])
        if begin == end:
            return pa.nulls(np.count_nonzero(self.is_row), kind)
        # Names that are not UTF-8 are those of records that do not become rows: tombstones, too.
        is_read = self.is_row.copy()
        is_read[[number - first for number in self.wrong_headers if first <= number < to]] = False
        wanted = np.repeat(is_read, np.diff(ends))
        of_row = np.repeat(np.arange(to - first), np.diff(ends))
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
        sizes = np.bincount(of_row[wanted], minlength=to - first)[self.is_row]
        nulls = np.count_nonzero(sizes == 0)
        bitmap = pa.py_buffer(np.packbits(sizes > 0, bitorder="little")) if nulls else None
        buffers = [bitmap, pa.py_buffer(np.cumsum([0, *sizes], dtype=np.int32))]
        return pa.Array.from_buffers(kind, len(sizes), buffers, nulls, children=[entries])


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
        is_lower = flags(pc.less(column, pa.scalar(lowest, column.type)))
        reasons |= {
            place: f"the table is partitioned by {partition_field.transform} of {name}, and a "
            f"value below {lowest} is rounded down to one that no {kind} can hold: {column[place]}"
            for place in np.flatnonzero(is_lower).tolist()
        }
    return reasons


def _other_keys(records: Records) -> dict[str, dict[int, str]]:
    """Return the other keys of changes of the primary key, by fact and record; the first counts."""
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
    is_wrong = (times != metadata.NO_TIMESTAMP) & (
        (times < metadata.FIRST_MS) | (times > metadata.LAST_MS)
    )
    reasons = dict.fromkeys(wrong_headers, metadata.wrong_header(plan.columns[HEADERS])) | {
        int(number): metadata.out_of_range(plan.columns["timestamp"], int(times[number]))
        for number in np.flatnonzero(is_wrong)
    }
    if plan.upserts is not None or plan.changes is not None:
        # A tombstone deletes a row and does not become one.
        reasons = {number: why for number, why in reasons.items() if records.has_value[number]}
    if plan.upserts is not None and plan.changes is None:
        without_key = np.flatnonzero(records.has_key[: records.count] != 1)
        reasons = dict.fromkeys(without_key.tolist(), NO_KEY) | reasons
    return {number: MalformedError(why) for number, why in reasons.items()}


def _not_text(column: str, raw: Payloads) -> dict[int, MalformedError]:
    """Return why keys or values are not text."""
    with suppress(pa.ArrowInvalid):
        _binary(*raw).cast(pa.string())
        return {}
    return {
        record: MalformedError(reason)
        for record in np.flatnonzero(raw.present).tolist()
        if (reason := not_text(column, raw.message(record)))
    }


def _with_wrong_header(records: Records) -> list[int]:
    """Return the records with a header whose name is not UTF-8."""
    end = int(records.header_ends[records.count])
    begins = records.header_offsets[0, : end + 1]
    if records.headers[: begins[-1]].max(initial=0) < 0x80:
        return []
    names = (records.headers[begins[n] : begins[n + 1]].tobytes() for n in range(end))
    wrong = [number for number, name in enumerate(names) if not_text("", name)]
    places = np.searchsorted(records.header_ends[1 : records.count + 1], wrong, side="right")
    return sorted({*places.tolist()})


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


def _message(
    decoder: MessageDecoder,
    buffers: Buffers,
    message: Payloads,
    reference: Callable[[int], Mapping[str, Any]],
    first: int,
    to: int,
) -> tuple[Decoded, Mapping[str, pa.Array]]:
    """Return what became of keys or values, and the columns of those that were not rejected."""
    data, offsets, present = message
    buffers.clear()
    try:
        done = decode(decoder.programs, buffers, data, offsets[: to + 1], present, reference, first)
    except BuffersFullError:
        # One record that is larger than the buffers.
        done = Decoded(first + 1, [Rejected(first, MalformedError(TOO_LARGE))])
        is_full, size = True, 4 * buffers.size
        while is_full and size <= _MAX_RECORD_BYTES:
            buffers = Buffers(buffers.shape, 1, size)
            with suppress(BuffersFullError):
                alone = offsets[: first + 2]
                done = decode(None, buffers, data, alone, present, reference, first)
                is_full = False
            size *= 4
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
    message = Payloads(*held_in_wire_format(decoder.framing, data, offsets, present), present)

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
    nulls = len(present) - int(np.count_nonzero(present))
    bitmap = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    begins = pa.py_buffer((offsets - offsets[0]).astype(np.int32))
    buffers = [bitmap, begins, pa.py_buffer(data[offsets[0] : offsets[-1]])]
    return pa.Array.from_buffers(pa.binary(), len(present), buffers, nulls)


def absent_columns(chunk: Chunk, fields: Sequence[NestedField]) -> dict[str, pa.Array]:
    """Return the table's columns that the records have no value for: their defaults, or null."""
    return {
        field.name: unwritten_column(field, len(chunk.has_value))
        for field in fields
        if field.name not in chunk.columns
    }
