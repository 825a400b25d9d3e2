"""The columnar path: records become data files without an object for each record.

A batch is read by librdkafka into arrays (:mod:`topicberg.kafka.fetch`), decoded by programs into
Arrow (:mod:`topicberg.formats.columnar`), and written as Parquet
(:mod:`topicberg.iceberg.data_files`): a small batch in this process, a large one by tasks of Spark.
The files are returned and committed in one snapshot.

The path has no semantics of its own. A program exists only where its result is the one of the
format's Spark expression, and everything else raises :class:`NotCoveredError`: a schema, a
malformed record, an error of Kafka. Nothing is committed then, and Spark's path reads the batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from topicberg.errors import TableflowError, TopicbergError
from topicberg.formats import DECODED, Format, Pairing, format_of
from topicberg.formats.columnar.program import Code, NotCoveredError, Programs, Shape
from topicberg.formats.subjects import WIRE_BYTES
from topicberg.iceberg.data_files import (
    DataFileWriter,
    Target,
    UnsupportedWriteError,
    dump_file,
    load_file,
)
from topicberg.tableflow.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.key_files import newest
from topicberg.tableflow.keys import hash_keys
from topicberg.tableflow.layout import KEY, VALUE, Half, Layout, holds_raw_key
from topicberg.tableflow.reading import FIRST_MS, LAST_MS, NO_TIMESTAMP
from topicberg.tableflow.rows import HASHED_KEY_BYTES, check_names, held_key
from topicberg.topics.spec import PARTITION, RAW_KEY

if TYPE_CHECKING:
    from uuid import UUID

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField
    from pyspark.sql import SparkSession

    from topicberg.endpoints import Endpoints
    from topicberg.formats.columnar.columns import Buffers
    from topicberg.kafka.fetch import Records
    from topicberg.kafka.offsets import Ranges
    from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)
Found = TypeVar("Found")

TASK_RECORDS, TASK_BYTES = 500_000, 128 * 1024 * 1024
"""What one task of Spark reads."""
MAX_TASKS = 256
MIN_RUN = 1_000
"""The fewest records of one writer in a row that are decoded as an array."""
MAX_PAUSE = 63
"""The most batches that Spark decodes before the columnar path is tried again."""
_ROWS, _BYTES = 131_072, 16 * 1024 * 1024
"""Records that are decoded at once, and so rows of a row group, and their bytes."""
_RESERVED_BYTES = 512 * 1024 * 1024
"""Address space for the values of all columns."""
_FILE_RATIO = 4
"""Bytes of rows in memory for a byte of their file, about."""
CONSUMER: dict[str, object] = {
    "log_level": 2,
    "group.id": "topicberg",  # required by librdkafka
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "check.crcs": True,
    "receive.message.max.bytes": 256 * 1024 * 1024,  # also of a batch when decompressed
    "fetch.wait.max.ms": 20,
    # What is read ahead beyond the last record is in vain.
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.queue.backoff.ms": 10,  # the default, a second, is longer than most batches
}
"""Properties of librdkafka for reading a batch."""


@dataclass(frozen=True, repr=False)
class Plan:
    """How records become data files; it is sent to tasks. It holds logins, so it has no repr."""

    topic: str
    target: Target
    files: Mapping[str, Any]
    """Properties of the table's object store."""
    kafka: Mapping[str, Any]
    """Properties of librdkafka."""
    decoded: Mapping[str, Decoder]
    """For ``key`` and ``value``; absent: it is not decoded."""
    columns: Mapping[str, str]
    """The names of metadata columns."""
    upserts: UUID | None = None
    """The table, if only the newest record of each key is a row."""


@dataclass(frozen=True)
class Written:
    """What became of some records."""

    files: list[DataFile]
    records: int
    keys: BatchKeys | None = None
    """Of an upsert batch."""


class Columnar:
    """The columnar path of one topic: its programs, and whether the next batch tries it."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, *, is_used: bool = True) -> None:
        self._is_used = is_used and spec.changelog is None
        self._spec, self._endpoints = spec, endpoints
        self._key: object = None
        self._found: Mapping[str, Decoder] | Exception | None = None
        self._pause = self._paused = 0

    def plan(self, layout: Layout, table: Table) -> Plan | None:
        """Return how the next batch becomes files; None: by Spark's path."""
        if not self._is_used or not is_ready():
            return None
        if self._paused:
            self._paused -= 1
            return None
        ids = [half.subject and sorted(half.subject.schemas) for half in (layout.key, layout.value)]
        about = table.metadata
        key = layout.fitted, ids, about.table_uuid, about.current_schema_id, about.default_spec_id
        if key != self._key:
            self._key = key
            try:
                self._found = programs(self._spec, layout, table)
            except (NotCoveredError, TableflowError) as error:  # Spark's path says what is wrong
                self._found = error
                logger.info("topic %s is decoded by Spark: %s", self._spec.name, error)
        if not isinstance(self._found, Mapping):
            return None
        kafka = {**self._endpoints.kafka_tuning("consumer"), **self._endpoints.kafka_config()}
        names = {name: self._spec.metadata_column(name) for name in (*_METADATA, RAW_KEY)}
        upserts = about.table_uuid if self._spec.write_mode == "upsert" else None
        try:
            target, files = Target.of(table), dict(table.io.properties)
        except UnsupportedWriteError:
            return None
        return Plan(self._spec.name, target, files, kafka | CONSUMER, self._found, names, upserts)

    def succeeded(self) -> None:
        self._pause = 0

    def failed(self, reason: object) -> None:
        """Leave the next batches to Spark: twice as many each time."""
        name, is_usual = self._spec.name, isinstance(reason, NotCoveredError)
        level = logging.INFO if is_usual else logging.WARNING
        logger.log(level, "topic %s: Spark decodes this batch: %s", name, reason)
        self._pause = min(MAX_PAUSE, 2 * self._pause + 1)
        self._paused = self._pause


@dataclass(frozen=True)
class Decoder:
    """How a key or a value is decoded: by programs, else by functions of the arrays of a writer."""

    fields: tuple[NestedField, ...]
    programs: Programs | None = None
    functions: Mapping[int, Callable[[pa.Array], pa.Array]] = field(default_factory=dict)
    """By the ids of their writers' schemas."""


def programs(spec: TopicSpec, layout: Layout, table: Table) -> dict[str, Decoder]:
    """Return how the key, the value, or both are decoded.

    :raises NotCoveredError: it takes Spark
    """
    taken = {spec.metadata_column(name) for name in (*_METADATA, RAW_KEY)}
    fields, decoded = table.schema().fields, dict[str, Decoder]()
    if layout.value.subject is None:
        taken.add(VALUE)
    of_key: set[str] = set()
    if layout.key.subject is not None:
        decoded[KEY] = _programs(layout.key, [one for one in fields if one.name not in taken])
        of_key = {one.name for one in decoded[KEY].fields}
    elif holds_raw_key(layout, fields):
        of_key = {KEY}
    if layout.value.subject is not None:
        _check_apart(layout, of_key)
        taken |= of_key
        decoded[VALUE] = _programs(layout.value, [one for one in fields if one.name not in taken])
    return decoded


_METADATA = (
    *("topic", "partition", "headers", "leader-epoch"),
    *("offset", "timestamp", "timestamp-type"),
)


def _programs(half: Half, fields: Sequence[NestedField]) -> Decoder:
    """Return the columns that the schemas of a half fill, and the programs of these schemas.

    :raises NotCoveredError: the latest schema has no program
    """
    assert half.subject is not None  # noqa: S101  it is decoded
    latest = half.subject.latest
    names: set[str] = set()
    for writer in half.subject.schemas.values():
        if writer.schema_type == latest.schema_type:
            try:
                names |= format_of(writer).written(writer, latest, half.message)
            except (TableflowError, ValueError, KeyError, TypeError, RecursionError):
                continue
    of_half = tuple(one for one in fields if one.name in names)
    functions: dict[int, Callable[[pa.Array], pa.Array]] = {}
    if latest.schema_type == "PROTOBUF":
        from topicberg.formats.protobuf import of_arrays

        functions = _of_writers(half, of_half, lambda _, pairing: of_arrays(pairing))
    try:
        return Decoder(of_half, _compiled_programs(half, of_half), functions)
    except NotCoveredError:
        if not functions:
            raise
        return Decoder(of_half, functions=functions)


def _compiled_programs(half: Half, fields: Sequence[NestedField]) -> Programs:
    """:raises NotCoveredError: the latest schema has no program"""
    assert half.subject is not None  # noqa: S101  see the caller
    code, places = Code(), {one.name: one for one in Shape(fields).places}

    def program(it: Format, pairing: Pairing) -> int:
        begin = code.mark()
        try:
            it.program(code, places, pairing)
        except Exception:
            code.reset(begin)
            raise
        return begin[0]

    starts = _of_writers(half, fields, program)
    return Programs.of(code, list(starts.items()), half.subject.latest.schema_type)


def _of_writers(
    half: Half, fields: Sequence[NestedField], find: Callable[[Format, Pairing], Found]
) -> dict[int, Found]:
    """Return what decodes the records of each version, by its id.

    :param find: of a format, and the schema and the table
    :raises NotCoveredError: nothing decodes those of the latest one
    """
    assert half.subject is not None  # noqa: S101  see the caller
    latest, found = half.subject.latest, dict[int, Found]()
    for number, writer in half.subject.schemas.items():
        if writer.schema_type != latest.schema_type:
            continue
        it = format_of(writer)
        try:
            check_names(writer, it.written(writer, latest, half.message), fields)
            found[number] = find(it, Pairing(writer, latest, fields, half.message))
        except (
            *(NotCoveredError, TableflowError, ValueError),
            *(KeyError, TypeError, RecursionError),
        ) as error:
            if number == latest.schema_id:
                raise NotCoveredError(f"schema {number} is not covered: {error}") from error
    if latest.schema_id not in found:
        raise NotCoveredError(f"schema {latest.schema_id} is not covered")
    return found


def _check_apart(layout: Layout, key: set[str]) -> None:
    """:raises NotCoveredError: the value has a field of the key's name"""
    value = layout.value
    assert value.subject is not None  # noqa: S101  see the caller
    for writer in value.subject.schemas.values():
        if writer.schema_type == value.subject.latest.schema_type:
            written = format_of(writer).written(writer, value.subject.latest, value.message)
            if shared := key & written:
                raise NotCoveredError(f"key and value have the field {min(shared)}")


# --- one range of records ---


def ingest(plan: Plan, ranges: Ranges, check: Callable[[], None] = lambda: None) -> Written:
    """Write the records of some offsets as data files.

    :param check: called now and then; raises if the batch is abandoned
    :raises NotCoveredError: a record or an error is for Spark's path; files that were written
        meanwhile are deleted
    """
    from pyiceberg.io import load_file_io

    from topicberg.formats.columnar.columns import Buffers
    from topicberg.kafka.fetch import Fetcher, Records

    target = plan.target
    io = load_file_io(dict(plan.files), target.location)
    shapes = {half: Shape(one.fields) for half, one in plan.decoded.items() if one.programs}
    size = _text_bytes(shapes.values())
    rows = min(_ROWS, max(1, sum(end - start for start, end in ranges.values())))
    buffers = {half: Buffers(shape, rows, size) for half, shape in shapes.items()}
    most = int(target.properties.get("write.target-file-size-bytes", 128 * 1024 * 1024))
    writer = DataFileWriter(target, io, most * _FILE_RATIO)
    keys = None if plan.upserts is None else WrittenKeys()
    count = 0
    try:
        with Fetcher(plan.kafka, plan.topic, ranges) as fetcher, writer:
            for records in fetcher.fill(Records(rows, _BYTES)):
                check()
                count += records.count
                for columns, has_value in _decoded(plan, records, buffers):
                    columns |= _missing(columns, target.schema.fields)
                    if keys is None:
                        writer.write(columns)
                    else:
                        _upsert(plan, columns, has_value, writer, keys)
    except UnsupportedWriteError as error:
        delete(io, writer.files)
        raise NotCoveredError(error.message) from None
    except BaseException:
        delete(io, writer.files)
        raise
    return Written(writer.files, count, None if keys is None else keys.all())


def _upsert(
    plan: Plan,
    columns: dict[str, pa.Array],
    has_value: NDArray[np.bool_],
    writer: DataFileWriter,
    keys: WrittenKeys,
) -> None:
    """Write the newest record of each key, unless it deletes its key."""
    import numpy as np
    import pyarrow as pa

    assert plan.upserts is not None  # noqa: S101  see the caller
    hashed = hash_keys(
        plan.upserts, *(columns[plan.columns[name]] for name in (RAW_KEY, PARTITION))
    )
    kept = np.sort(newest(hashed.high, hashed.low))
    rows = kept[has_value[kept]]
    keys.add_deleted(hashed, kept[~has_value[kept]])
    if len(rows) == len(has_value):
        keys.add(hashed, rows, writer.write(columns))
    elif len(rows):
        chosen = pa.array(rows)
        written = writer.write({name: column.take(chosen) for name, column in columns.items()})
        keys.add(hashed, rows, written)


def delete(io: Any, files: Sequence[DataFile]) -> None:
    """Delete files that were never committed; what cannot be deleted is left to maintenance."""
    for file in files:
        try:
            io.delete(file.file_path)
        except Exception as error:
            logger.debug("%s cannot be deleted now: %s", file.file_path, error)


def _text_bytes(shapes: Iterable[Shape]) -> int:
    """Return the bytes of a column's texts at once, so that all columns together fit."""
    columns = sum(len(shape.all) for shape in shapes)
    return max(64 * 1024, min(_BYTES, _RESERVED_BYTES // (8 * max(1, columns))))


def _decoded(
    plan: Plan, records: Records, buffers: Mapping[str, Any]
) -> Iterator[tuple[dict[str, pa.Array], NDArray[np.bool_]]]:
    """Yield records as columns, and which have a value, in parts that fit the buffers.

    :raises NotCoveredError: a record is for Spark's path
    """
    halves = {
        KEY: (records.keys, records.key_offsets, records.has_key),
        VALUE: (records.values, records.value_offsets, records.has_value),
    }
    first, count = 0, records.count
    while first < count:
        to = count
        columns: dict[str, pa.Array] = {}
        for half in sorted(plan.decoded, reverse=True):  # the value first: it is the larger one
            reached, found = _half(
                plan.decoded[half], buffers.get(half), half, *halves[half], first, to
            )
            if reached == first or (reached < to and columns):
                place = records.partitions[reached], records.offsets[reached]
                raise NotCoveredError(f"the {half} at partition {place[0]}, offset {place[1]}")
            to, columns = reached, columns | found
        for half, (data, offsets, present) in halves.items():
            if half not in plan.decoded and half not in columns:
                columns[half] = _binary(data, offsets[first : to + 1], present[first:to])
        columns |= _metadata(plan, records, first, to)
        if plan.upserts is not None:
            keys, offsets, present = halves[KEY]
            raw = _binary(keys, offsets[first : to + 1], present[first:to])
            columns[plan.columns[RAW_KEY]] = _held_keys(raw)
        yield columns, records.has_value[first:to] == 1
        first = to


def _held_keys(raw: pa.Array) -> pa.Array:
    """Return raw keys as tables hold them.

    :raises NotCoveredError: a record has no key
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if raw.null_count:
        raise NotCoveredError("a record has no key to upsert by")
    if (pc.max(pc.binary_length(raw)).as_py() or 0) <= HASHED_KEY_BYTES:
        return raw
    return pa.array([held_key(key) for key in raw.to_pylist()], pa.binary())


def _half(
    decoder: Decoder,
    buffers: Buffers | None,
    half: str,
    data: Any,
    offsets: Any,
    present: Any,
    first: int,
    to: int,
) -> tuple[int, dict[str, pa.Array]]:
    """Return the record that is not decoded, and the columns of those before it.

    :param buffers: for programs
    :raises NotCoveredError: a record is for Spark's path
    """
    import pyarrow as pa

    from topicberg.formats.columnar.columns import columns_of
    from topicberg.formats.columnar.decoding import decode

    if decoder.programs is None or buffers is None:
        return _by_function(decoder, data, offsets, present, first, to)
    buffers.clear()
    reached = decode(decoder.programs, buffers, data, offsets[: to + 1], present, first)
    if reached == first and decoder.functions:  # the record is unusual
        return _by_function(decoder, data, offsets, present, first, to)
    try:
        return reached, columns_of(buffers.arrays(), buffers.shape)
    except pa.ArrowInvalid as error:
        raise NotCoveredError(f"the {half} of a record: {error}") from None


def _by_function(
    decoder: Decoder, data: Any, offsets: Any, present: Any, first: int, to: int
) -> tuple[int, dict[str, pa.Array]]:
    """Return the first records of one writer, as columns, and the record after them.

    :raises NotCoveredError: a record is malformed, or writers alternate
    """
    import numpy as np
    import pyarrow.compute as pc

    begin, sizes = offsets[first:to], np.diff(offsets[first : to + 1])
    there = present[first:to] == 1
    if (sizes[there] < WIRE_BYTES).any():
        return first, {}
    places = np.where(there, begin, 0)
    framed = data[places[:, None] + np.arange(WIRE_BYTES)].astype(np.int64) if len(data) else begin
    weights = np.array([2**32, 2**24, 2**16, 2**8, 1], np.int64)
    numbers = np.where(there, framed @ weights, -1)
    written = np.flatnonzero(there)
    number = int(numbers[written[0]]) if len(written) else -1
    others = written[numbers[written] != number]
    reached = first + int(others[0]) if len(others) else to
    if reached < to and reached - first < MIN_RUN:
        raise NotCoveredError("records of several versions alternate")
    function = decoder.functions.get(number) or next(iter(decoder.functions.values()))
    if number >= 0 and number not in decoder.functions:
        return first, {}
    rows = function(_binary(data, offsets[first : reached + 1], present[first:reached]))
    is_decoded = pc.fill_null(rows.field(DECODED), False).to_numpy(zero_copy_only=False)
    if not is_decoded[there[: reached - first]].all():
        return first, {}
    names = [one.name for one in rows.type]
    columns = dict(zip(names, rows.flatten(), strict=True))
    del columns[DECODED]
    return reached, columns


def _binary(data: Any, offsets: Any, present: Any) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    begin, end = int(offsets[0]), int(offsets[-1])
    nulls = len(present) - int(np.count_nonzero(present))
    bitmap = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    found = [
        bitmap,
        pa.py_buffer((offsets - begin).astype(np.int32)),
        pa.py_buffer(data[begin:end]),
    ]
    return pa.Array.from_buffers(pa.binary(), len(present), found, nulls)


def _metadata(plan: Plan, records: Records, first: int, to: int) -> dict[str, pa.Array]:
    """Return the metadata columns; see :func:`topicberg.tableflow.rows.metadata_values`.

    :raises NotCoveredError: a timestamp or a header cannot be represented
    """
    import numpy as np
    import pyarrow as pa

    count, times = to - first, records.times[first:to]
    has_time = times != NO_TIMESTAMP
    if ((times < FIRST_MS) | (times > LAST_MS))[has_time].any():
        raise NotCoveredError("a timestamp is not between the years 1 and 9999")
    micros = pa.array(times * 1000, mask=None if has_time.all() else ~has_time)
    of_broker = records.time_types[first:to] == 2
    kinds = pa.array(["CREATE_TIME", "LOG_APPEND_TIME"])
    values = {
        "topic": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(count, np.int32)), pa.array([plan.topic])
        ),
        "partition": pa.array(records.partitions[first:to]),
        "headers": _headers(records, first, to),
        "leader-epoch": pa.nulls(count, pa.int32()),
        "offset": pa.array(records.offsets[first:to]),
        "timestamp": micros.cast(pa.timestamp("us", "UTC")),
        "timestamp-type": pa.DictionaryArray.from_arrays(
            pa.array(of_broker.astype(np.int32)), kinds
        ),
    }
    return {plan.columns[name]: column for name, column in values.items()}


def _headers(records: Records, first: int, to: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    kind = pa.map_(pa.string(), pa.binary())
    ends = records.header_ends[first : to + 1]
    begin, end = int(ends[0]), int(ends[-1])
    if begin == end:
        return pa.nulls(to - first, kind)
    names, values = (records.header_offsets[half, begin : end + 1] for half in (0, 1))
    keys = pa.Array.from_buffers(
        pa.string(), end - begin, [None, pa.py_buffer(names), pa.py_buffer(records.headers)]
    )
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raise NotCoveredError("the name of a header is not UTF-8") from None
    data = records.headers[records.size :]
    items = _binary(data, values.astype(np.int64), records.has_header_value[begin:end])
    offsets = ends - begin
    is_null = np.diff(ends) == 0
    bitmap = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    entries = pa.StructArray.from_arrays(
        [keys, items],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())],
    )
    found = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(
        kind, to - first, found, int(np.count_nonzero(is_null)), children=[entries]
    )


def _missing(columns: Mapping[str, pa.Array], fields: Sequence[NestedField]) -> dict[str, pa.Array]:
    """Return the table's columns that the records have no value for."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    count = len(next(iter(columns.values())))
    found: dict[str, pa.Array] = {}
    for one in fields:
        if one.name not in columns:
            kind = schema_to_pyarrow(Schema(one), include_field_ids=False).field(0).type
            found[one.name] = pa.nulls(count, kind)
    return found


# --- tasks of Spark ---


@dataclass(frozen=True, repr=False)
class Task:
    """What each task of Spark does: one part of the ranges, whose number is its input."""

    plan: Plan
    parts: Sequence[Ranges] = field(default_factory=tuple)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    done = ingest(self.plan, self.parts[number])
                    row = {
                        "files": [dump_file(one, self.plan.target) for one in done.files],
                        "records": done.records,
                        "keys": done.keys and done.keys.dump(),
                    }
                except NotCoveredError as error:
                    row = {"problem": str(error)}
                yield pa.RecordBatch.from_pylist([row], schema=_result())


def _result() -> pa.Schema:
    import pyarrow as pa

    run = [("path", pa.string()), ("first", pa.int64()), ("length", pa.int64())]
    keys = [("high", pa.binary()), ("low", pa.binary()), ("runs", pa.list_(pa.struct(run)))]
    return pa.schema(
        [
            ("files", pa.list_(pa.string())),
            ("records", pa.int64()),
            ("keys", pa.struct(keys)),
            ("problem", pa.string()),
        ]
    )


def ingest_by_spark(
    spark: SparkSession, plan: Plan, table: Table, ranges: Ranges, size: float | None
) -> Written:
    """Write the records as data files by tasks of Spark.

    :param size: average bytes of a record; None: not known
    :raises NotCoveredError: see :func:`ingest`
    :raises PySparkException: a task failed
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    parts = split(ranges, size)
    numbers = spark.range(0, len(parts), 1, len(parts))
    done = numbers.mapInArrow(Task(plan, parts), from_arrow_schema(_result()))
    found = done.toArrow().to_pylist()
    files = [load_file(text, plan.target) for row in found for text in row["files"] or ()]
    if problem := next((row["problem"] for row in found if row["problem"]), None):
        delete(table.io, files)
        raise NotCoveredError(problem)
    keys = None
    if plan.upserts is not None:
        keys = BatchKeys.joined(BatchKeys.load(row["keys"]) for row in found)
    return Written(files, sum(row["records"] for row in found), keys)


def split(ranges: Ranges, size: float | None) -> list[Ranges]:
    """Return parts of about the same number of offsets."""
    total = sum(end - start for start, end in ranges.values())
    wanted = max(total / TASK_RECORDS, total * (size or 0) / TASK_BYTES)
    count = max(1, min(MAX_TASKS, round(wanted)))
    most = -(-total // count)
    parts: list[dict[int, tuple[int, int]]] = [{}]
    room = most
    for partition, (start, end) in ranges.items():
        while start < end:
            if not room:
                parts.append({})
                room = most
            till = min(end, start + room)
            parts[-1][partition] = start, till
            room -= till - start
            start = till
    return list(parts)


# --- whether the code is compiled ---

_compiled = threading.Event()
_failed: list[str] = []


@cache
def _compiler() -> threading.Thread:
    thread = threading.Thread(target=compile_all, name="compile", daemon=True)
    thread.start()
    return thread


def is_ready() -> bool:
    """Return whether batches can be read without waiting for a compiler, which starts otherwise."""
    if not _compiled.is_set():
        _compiler()
    return _compiled.is_set() and not _failed


def compile_all() -> None:
    """Compile what executes programs, or load it from disk: about 15 s, or half a second."""
    try:
        from topicberg.formats.columnar.check import check
        from topicberg.kafka.fetch import compile_gather
        from topicberg.tableflow.key_hash import compile_hashes
        from topicberg.tableflow.key_lookup import compile_lookup

        check()
        compile_gather()
        compile_hashes()
        compile_lookup()
    except Exception as error:
        _failed.append(str(error))
        logger.warning("batches are decoded by Spark only: %s", error)
    finally:
        _compiled.set()


def wait_ready() -> None:
    """Wait for the compiler.

    :raises TopicbergError: the code cannot be compiled
    """
    _compiler().join()
    if _failed:
        raise TopicbergError(f"the decoder cannot be compiled: {_failed[0]}")
