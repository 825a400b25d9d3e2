"""Records of some offsets become data files.

They are read by librdkafka into arrays (:mod:`topicberg.kafka.fetch`), decoded into columns
(:mod:`.columns`), and written as Parquet (:mod:`topicberg.iceberg.data_files`). Changes that become
current rows stay in memory and are folded before anything is written.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Self

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from numpy.typing import NDArray
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile

from topicberg.errors import TopicbergError
from topicberg.formats.metadata import PARTITION, RAW_KEY
from topicberg.iceberg.data_files import DataFileWriter, copied
from topicberg.iceberg.files import discard
from topicberg.kafka.fetch import fetcher
from topicberg.kafka.last_records import LastRecords, last_records
from topicberg.kafka.offsets import Ranges
from topicberg.kafka.records import Records
from topicberg.tableflow.changelog.change_batch import ChangeBatch, Facts
from topicberg.tableflow.decode.columns import (
    MAX_BYTES,
    MAX_ROWS,
    Chunk,
    absent_columns,
    buffers_of,
    chunks,
)
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.layout.upsert_key import IDENTITY
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.upsert.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.upsert.key_files import Keys, newest
from topicberg.tableflow.upsert.key_hashing import hash_keys, hash_values, key_types, times_of
from topicberg.tableflow.values.memory import limited

EARLY = 1 / 3
"""The part of a task's records that may be read in vain, where new schemas are found."""


@dataclass(frozen=True)
class WrittenBatch:
    """What became of some records, of one table."""

    files: list[DataFile]
    records: int
    rejections: Rejections
    keys: BatchKeys | None = None
    """Of an upsert batch."""
    changes: ChangesRead | None = None
    """That are still to be folded; there are no files."""
    last_records: LastRecords = field(default_factory=dict)


Outcome = list[WrittenBatch] | Exception


Source = Ranges | list[Message]
"""Offsets of a topic, or records that were read before, each partition's in order."""


@dataclass
class ChangesRead:
    """The changes of a batch that become current rows."""

    parts: list[ChangeBatch] = field(default_factory=list)
    lost: list[pa.Table] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: Iterable[ChangesRead | None]) -> Self:
        """:param parts: of which later ones have later records of a partition"""
        known = [part for part in parts if part is not None]
        changes = [*chain.from_iterable(part.parts for part in known)]
        return cls(changes, [*chain.from_iterable(part.lost for part in known)])

    def add(self, chunk: Chunk, columns: Mapping[str, pa.Array], keys: Keys) -> None:
        """Add a copy of the rows, as columns of the table: the next ones overwrite them."""
        facts, missing, lost = chunk.facts, chunk.missing, chunk.lost
        assert facts is not None and missing is not None and lost is not None  # noqa: S101, PT018
        facts = copied(facts)
        facts = facts.append_column("high", pa.array(keys.high))
        facts = facts.append_column("low", pa.array(keys.low))
        self.parts.append(ChangeBatch(copied(pa.table(dict(columns))), Facts(facts, missing)))
        self.lost.append(copied(lost))


class _TableFiles:
    """The files of one table."""

    def __init__(self, plan: ReadPlan, rows: int) -> None:
        """:param rows: of the largest part of the records"""
        self.plan, self.writer = plan, DataFileWriter(plan.target, _io(plan))
        self.rejections = Rejections(plan.error_mode)
        self._buffers = buffers_of(plan.decoded, rows)
        self._keys = None if plan.upserts is None or plan.is_folded else WrittenKeys()
        changes = plan.changes if plan.is_folded else None
        self._changes = ChangesRead() if changes else None
        self._key_types = key_types(plan.target.schema, changes.keys) if changes else []

    def write(self, records: Records, check: Callable[[], None]) -> None:
        plan, fields = self.plan, self.plan.target.schema.fields
        for chunk in chunks(plan, records, self._buffers, self.rejections):
            check()
            if self.rejections.is_final:
                break
            columns = chunk.columns | absent_columns(chunk, fields)
            if self._changes is not None and plan.changes is not None and plan.upserts is not None:
                of_table = {column.name: columns[column.name] for column in fields}
                key = [of_table[name] for name in plan.changes.keys]
                self._changes.add(chunk, of_table, hash_values(plan.upserts, key, self._key_types))
            elif self._keys is None:
                self.writer.write(columns)
            else:
                _upsert(plan, columns, chunk.has_value, self.writer, self._keys)

    def written(self, count: int, last: LastRecords) -> WrittenBatch:
        keys = None if self._keys is None else self._keys.all()
        return WrittenBatch(self.writer.files, count, self.rejections, keys, self._changes, last)


def ingest(
    plans: Sequence[ReadPlan], source: Source, check: Callable[[], None] = lambda: None
) -> list[WrittenBatch]:
    """Write the records of some offsets, which are read once, as data files of each table.

    If a plan is to suspend at a malformed record, there are no files when there is one. Nor are
    there if reading stopped early.

    :param plans: of one topic, one for each table
    :param check: called now and then; raises if the batch is abandoned
    :raises FetchError: Kafka does not return the records
    :raises DamagedRecordsError: what Kafka has cannot be read
    """
    sizes = [1] * len(source) if isinstance(source, list) else [e - s for s, e in source.values()]
    total = sum(sizes)
    rows = min(MAX_ROWS, max(1, total))
    tables = [_TableFiles(plan, rows) for plan in plans]
    count, last, ends_reading = 0, LastRecords(), False
    try:
        with ExitStack() as opened:
            for table in tables:
                opened.enter_context(table.writer)
            arrays = Records(rows, MAX_BYTES)
            if isinstance(source, list):
                filled = _filled(arrays, source)
            else:
                reader = opened.enter_context(fetcher(plans[0].kafka, plans[0].topic, source))
                filled = reader.fill(arrays)
            for records in filled:
                count += records.count
                last |= last_records(records)
                for table in tables:
                    table.write(records, check)
                    is_early = table.plan.stops_early and count <= total * EARLY
                    table.rejections.is_partial = is_early and table.rejections.has_new_schemas
                if ends_reading := any(table.rejections.ends_reading for table in tables):
                    break
    except BaseException:
        _discard(tables)
        raise
    if ends_reading:
        _discard(tables)
        return [WrittenBatch([], count, table.rejections) for table in tables]
    return [table.written(count, last) for table in tables]


def _filled(arrays: Records, left: list[Message]) -> Iterator[Records]:
    """Yield records in parts that fit the arrays."""
    while left:
        arrays.clear()
        if added := arrays.append(left):
            left = left[added:]
            yield arrays
        else:
            arrays.grow()


def _discard(tables: Sequence[_TableFiles]) -> None:
    for table in tables:
        discard(_io(table.plan), table.writer.files)


def _io(plan: ReadPlan) -> FileIO:
    return load_file_io(dict(plan.files), plan.target.location)


def _upsert(
    plan: ReadPlan,
    columns: dict[str, pa.Array],
    has_value: NDArray[np.bool_],
    writer: DataFileWriter,
    keys: WrittenKeys,
) -> None:
    """Write the newest record of each key, unless it deletes its key."""
    assert plan.upserts is not None  # noqa: S101  see the caller
    key, partition = plan.key, columns[plan.columns[PARTITION]]
    times = None
    if key is not None and key.is_decoded:
        hashed = hash_keys(plan.upserts, columns.pop(IDENTITY), partition, are_decoded=True)
        times = times_of(columns[key.time], columns[key.raw], key)
    else:
        hashed = hash_keys(plan.upserts, columns[plan.columns[RAW_KEY]], partition)
    kept = np.sort(newest(hashed.high, hashed.low))
    rows = kept[has_value[kept]]
    keys.add_deleted(hashed, kept[~has_value[kept]], times)
    if len(rows) == len(has_value):
        keys.add(hashed, rows, writer.write(columns), times)
    elif len(rows):
        chosen = pa.array(rows)
        taken = {name: column.take(chosen) for name, column in columns.items()}
        keys.add(hashed, rows, writer.write(taken, are_kept=True), times)


def joined(plans: Sequence[ReadPlan], outcomes: Sequence[Outcome]) -> list[WrittenBatch]:
    """Return what tasks, later ones of later records, did for each table, or raise their error."""
    done = [of_task for of_task in outcomes if not isinstance(of_task, Exception)]
    of_tables = [[of_task[number] for of_task in done] for number in range(len(plans))]
    failed = next((error for error in outcomes if isinstance(error, Exception)), None)
    whole = [] if failed is not None else [*map(_joined, plans, of_tables)]
    ends_reading = any(written.rejections.ends_reading for written in whole)
    if failed is not None or ends_reading:
        for plan, parts in zip(plans, of_tables, strict=True):
            if files := [file for part in parts for file in part.files]:
                discard(_io(plan), files)
    if failed is not None:
        raise failed
    return [replace(written, files=[]) for written in whole] if ends_reading else whole


def _joined(plan: ReadPlan, parts: Sequence[WrittenBatch]) -> WrittenBatch:
    """Return what several tasks together did for one table."""
    rejections = Rejections.joined(plan.error_mode, (part.rejections for part in parts))
    keys = changes = None
    if plan.is_folded:
        changes = ChangesRead.joined(part.changes for part in parts)
    elif plan.upserts is not None and not rejections.is_final:
        keys = BatchKeys.joined(part.keys for part in parts if part.keys is not None)
    files = [file for part in parts for file in part.files]
    last = {p: record for part in parts for p, record in part.last_records.items()}
    return WrittenBatch(files, sum(part.records for part in parts), rejections, keys, changes, last)


def outcome(plans: Sequence[ReadPlan], source: Source, memory: int) -> Outcome:
    """Return what :func:`ingest` did, or raised, in so many bytes, as another process gets it."""
    try:
        with limited(memory):
            return ingest(plans, source)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301  from this process
        except Exception:  # an error of a library that cannot be sent
            return TopicbergError(f"{type(error).__name__}: {error}")
        return error
