"""Records of some offsets become data files.

They are read by librdkafka into arrays (:mod:`topicberg.kafka.fetch`), decoded into columns
(:mod:`.columns`), and written as Parquet (:mod:`topicberg.iceberg.data_files`). Changes that become
current rows stay in memory and are folded before anything is written.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile

from topicberg.errors import TopicbergError
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
from topicberg.topics.spec import PARTITION, RAW_KEY

EARLY = 1 / 3
"""The part of a task's records that may be read in vain, where new schemas are found."""


@dataclass(frozen=True)
class WrittenBatch:
    """What became of some records."""

    files: list[DataFile]
    records: int
    rejections: Rejections
    keys: BatchKeys | None = None
    """Of an upsert batch."""
    changes: ChangesRead | None = None
    """That are still to be folded; there are no files."""
    last_records: LastRecords = field(default_factory=dict)


@dataclass
class ChangesRead:
    """The changes of a batch that become current rows."""

    parts: list[ChangeBatch] = field(default_factory=list)
    lost: list[pa.Table] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: Iterable[ChangesRead | None]) -> Self:
        """:param parts: of which later ones have later records of a partition"""
        found = [part for part in parts if part is not None]
        changes = [one for part in found for one in part.parts]
        return cls(changes, [one for part in found for one in part.lost])

    def add(self, chunk: Chunk, columns: Mapping[str, pa.Array], keys: Keys) -> None:
        """Add a copy of the rows: the next ones overwrite them.

        :param columns: of the table
        :param keys: of the rows
        """
        assert chunk.facts is not None  # noqa: S101  they are changes
        assert chunk.missing is not None and chunk.lost is not None  # noqa: S101, PT018
        facts = copied(chunk.facts)
        for name, half in (("high", keys.high), ("low", keys.low)):
            facts = facts.append_column(name, pa.array(half))
        rows = copied(pa.table(dict(columns)))
        self.parts.append(ChangeBatch(rows, Facts(facts, chunk.missing)))
        self.lost.append(copied(chunk.lost))


def ingest(
    plan: ReadPlan, ranges: Ranges, check: Callable[[], None] = lambda: None
) -> WrittenBatch:
    """Write the records of some offsets as data files.

    If the plan is to suspend at a malformed record, there are no files when there is one. Nor are
    there if reading stopped early.

    :param check: called now and then; raises if the batch is abandoned
    :raises FetchError: Kafka does not return the records
    :raises DamagedRecordsError: what Kafka has cannot be read
    """
    target = plan.target
    io = load_file_io(dict(plan.files), target.location)
    total = sum(end - start for start, end in ranges.values())
    rows = min(MAX_ROWS, max(1, total))
    buffers = buffers_of(plan.decoded, rows)
    writer = DataFileWriter(target, io)
    keys = None if plan.upserts is None or plan.is_folded else WrittenKeys()
    rejections = Rejections(plan.error_mode)
    changes = ChangesRead() if plan.is_folded else None
    keys_of = _key_hasher(plan) if plan.is_folded else None
    count, last = 0, LastRecords()
    try:
        with fetcher(plan.kafka, plan.topic, ranges) as reader, writer:
            for records in reader.fill(Records(rows, MAX_BYTES)):
                count += records.count
                last |= last_records(records)
                for chunk in chunks(plan, records, buffers, rejections):
                    check()
                    if rejections.is_final:
                        break
                    columns = chunk.columns | absent_columns(chunk, target.schema.fields)
                    if changes is not None and keys_of is not None:
                        names = [column.name for column in target.schema.fields]
                        of_table = {name: columns[name] for name in names}
                        changes.add(chunk, of_table, keys_of(of_table))
                    elif keys is None:
                        writer.write(columns)
                    else:
                        _upsert(plan, columns, chunk.has_value, writer, keys)
                is_early = plan.stops_early and count <= total * EARLY
                rejections.is_partial = is_early and rejections.has_new_schemas
                if rejections.ends_reading:
                    break
    except BaseException:
        discard(io, writer.files)
        raise
    if rejections.ends_reading:
        discard(io, writer.files)
        return WrittenBatch([], count, rejections)
    of_keys = None if keys is None else keys.all()
    return WrittenBatch(writer.files, count, rejections, of_keys, changes, last)


def _key_hasher(plan: ReadPlan) -> Callable[[Mapping[str, pa.Array]], Keys]:
    """Return what hashes the keys of changes, given the columns of the table."""
    assert plan.upserts is not None and plan.changes is not None  # noqa: S101, PT018
    table, names = plan.upserts, plan.changes.keys
    types = key_types(plan.target.schema, names)
    return lambda columns: hash_values(table, [columns[name] for name in names], types)


def _upsert(
    plan: ReadPlan,
    columns: dict[str, pa.Array],
    has_value: NDArray[np.bool_],
    writer: DataFileWriter,
    keys: WrittenKeys,
) -> None:
    """Write the newest record of each key, unless it deletes its key."""
    assert plan.upserts is not None  # noqa: S101  see the caller
    key = plan.key
    partition = columns[plan.columns[PARTITION]]
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
        written = writer.write(taken, are_kept=True)
        keys.add(hashed, rows, written, times)


def joined(
    plan: ReadPlan, io: FileIO, outcomes: Sequence[WrittenBatch | Exception]
) -> WrittenBatch:
    """Return what several tasks together did.

    :param io: of the table
    :param outcomes: of :func:`outcome`; later ones are of later records of a partition
    :raises Exception: what a task raised; there are no files then
    """
    written = [each for each in outcomes if isinstance(each, WrittenBatch)]
    files = [file for each in written for file in each.files]
    if failed := next((each for each in outcomes if isinstance(each, Exception)), None):
        discard(io, files)
        raise failed
    rejections = Rejections.joined(plan.error_mode, (each.rejections for each in written))
    if rejections.ends_reading:
        discard(io, files)
        files = []
    keys = changes = None
    if plan.is_folded:
        changes = ChangesRead.joined(each.changes for each in written)
    elif plan.upserts is not None and not rejections.is_final:
        keys = BatchKeys.joined(each.keys for each in written if each.keys is not None)
    records = sum(each.records for each in written)
    last = {p: record for each in written for p, record in each.last_records.items()}
    return WrittenBatch(files, records, rejections, keys, changes, last)


def outcome(plan: ReadPlan, ranges: Ranges, memory: int) -> WrittenBatch | Exception:
    """Return what :func:`ingest` returned or raised, so that it can be sent to another process.

    :param memory: bytes that it may take
    """
    try:
        with limited(memory):
            return ingest(plan, ranges)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301  from this process
        except Exception:  # an error of a library that cannot be sent
            return TopicbergError(f"{type(error).__name__}: {error}")
        return error
