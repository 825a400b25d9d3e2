"""Make a table equal to its topic again.

If other writers replaced its rows as they were earlier, ``main`` is set to the snapshot before
their commits (:mod:`topicberg.tableflow.table.foreign_commits`), from where the engine continues.

Of an upsert table, rows of keys that the topic lacks are deleted, and rows whose key a newer row
has. A table that has read every record differs from its topic only by deletes that it missed (see
:mod:`.upsert.tombstones`). So the topic's keys are read from its beginning, without
their values, and the rows of all other keys are deleted by one commit on ``main``, beside a running
engine.

A key is kept if the topic has a record of it, or a tombstone that the table has yet to read. The
topic is read to its end, not only to the table's offsets: if Kafka compacts a record meanwhile,
there is a later record of its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from numpy.typing import NDArray
from pydantic import BaseModel
from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import CommitConflictError, SpecError, TableflowError
from topicberg.errors.retry import retry
from topicberg.formats.framing import header_of
from topicberg.iceberg.position_deletes import delete_rows
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.kafka.offsets import Offsets
from topicberg.kafka.records import headers_of, place_of
from topicberg.settings import Settings
from topicberg.tableflow.changelog.current_rows import together
from topicberg.tableflow.decode.raw_keys import KeyFraming, RawKeys
from topicberg.tableflow.layout.layout import foreign_schemas, read_layout
from topicberg.tableflow.layout.message_fields import KEY
from topicberg.tableflow.layout.upsert_key import UpsertKey, held_key, raw_key, upsert_key
from topicberg.tableflow.layout.waiting import check_identity
from topicberg.tableflow.table.foreign_commits import changed_by_others, restore
from topicberg.tableflow.upsert import key_files, tombstones
from topicberg.tableflow.upsert.key_hashing import DecodeKeys, KeyHasher, no_decoder, times_of
from topicberg.tableflow.upsert.keys import KeyIndex, index_of
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.logs import check_log
from topicberg.tableflow.values.skips import current_user
from topicberg.topics import TopicSpec
from topicberg.wording import count

REREAD = "topicberg.reread"
"""Table property: who last did it, when, and how many rows were deleted."""
ATTEMPTS = 20
CHUNK = 500_000
"""After so many records, only the newest of each key are kept in memory."""

Record = tuple[bytes, int, int, bool, int]
"""Raw key, partition, offset, whether it is a tombstone, and the time in milliseconds."""
RECORD = np.dtype(
    [
        *(("high", "u8"), ("low", "u8"), ("partition", "i4"), ("offset", "i8")),
        *(("deletes", "?"), ("time", "i8")),
    ]
)
"""A record without its value; its key as in :class:`Keys`."""


class Reread(BaseModel):
    """The result of a reread."""

    by: str
    at_ms: int
    records: int = 0
    rows: int = 0
    restored: int | None = None
    """The snapshot before the commits of others, to which ``main`` was set."""


def described(records: Sequence[Record], index: KeyIndex) -> NDArray[Any]:
    """Return an array of :data:`RECORD`; records whose key is malformed have no row."""
    described = np.empty(len(records), RECORD)
    listed, described["partition"], described["offset"], described["deletes"], times = zip(
        *records, strict=True
    )
    raw, partition = pa.array(listed, pa.binary()), np.ascontiguousarray(described["partition"])
    described["time"] = 0
    if index.hasher.key is not None:
        micros = [None if time < 0 else 1_000 * time for time in times]
        described["time"] = times_of(pa.array(micros, pa.int64()), raw, index.hasher.key)
    keys = index.hasher.hashed_raw(raw, pa.array(partition))
    described = described[keys.position]
    described["high"], described["low"] = keys.high, keys.low
    return described


def newest(earlier: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
    """Return the last record of each key, of ``earlier`` and ``more``, which were read later."""
    both = np.concatenate([earlier, more])
    return np.asarray(both[key_files.newest(both["high"], both["low"])])


def _kept(records: NDArray[Any], offsets: Offsets, *, is_decoded: bool) -> key_files.Keys:
    """Return the keys whose rows stay in a table that holds the topic up to these offsets."""
    if is_decoded:
        keys = key_files.in_order(records["high"], records["low"])
        is_newest = keys.is_newest(np.ascontiguousarray(records["time"]))
        records = records[keys.position[is_newest]]
    ends = np.zeros(max([int(records["partition"].max(initial=-1)), *offsets]) + 1, np.int64)
    ends[[*offsets]] = [*offsets.values()]
    stay = records[~records["deletes"] | (records["offset"] >= ends[records["partition"]])]
    return key_files.merged(
        [key_files.Keys(stay["high"], stay["low"], np.zeros(len(stay), np.uint32))]
    )


def require_upsert(spec: TopicSpec) -> None:
    """:raises SpecError: the topic's table cannot miss deletes: it is not in write mode upsert"""
    if spec.changelog is not None:
        raise SpecError(
            f"topic {spec.name}: its records are changes of a database's table, whose deletes are "
            "records as well",
            hint="let Debezium read the table again with an incremental snapshot if you miss any",
        )
    if not spec.is_compacted:
        raise SpecError(
            f"topic {spec.name}: its table is in write mode append, which has a row for each "
            "record and misses no deletes",
            hint="do nothing: only upsert tables can miss deletes",
        )


def reread(spec: TopicSpec, table: Table, endpoints: Endpoints, config: Settings) -> Reread:
    """Undo what others did to the rows; of an upsert table, delete what the topic does not have.

    :raises SpecError: no other writer changed the rows, and the table is not in write mode upsert
        or has changes of a database; or it was not written by this engine
    :raises TableflowError: the table was read from another log; a column that identifies rows was
        dropped or renamed; or keys of the topic cannot be decoded without their schemas, so that
        their rows would be deleted
    :raises CommitConflictError: others kept committing to the table
    """
    restored = _restored(table.refresh(), spec)
    if restored is None or spec.is_compacted:
        return _deleted(spec, table, endpoints, config, restored)
    return Reread(by=current_user(), at_ms=int(time.time() * 1000), restored=restored)


def _restored(table: Table, spec: TopicSpec) -> int | None:
    """Undo the commits of others that changed rows; return the snapshot before them, if any."""

    def attempt() -> int | None:
        changed = next(changed_by_others(table.refresh(), spec), None)
        if changed is None:
            return None
        restore(table, changed)
        table.refresh()
        return changed.before.snapshot_id

    return retry(attempt, ATTEMPTS)


def _deleted(
    spec: TopicSpec, table: Table, endpoints: Endpoints, config: Settings, restored: int | None
) -> Reread:
    """Delete the rows that the topic does not have, in one commit."""
    require_upsert(spec)
    check_identity(table, spec)
    key, decode, framing = key_of(spec, table, endpoints)
    index = index_of(config.state_dir, spec.name, KeyHasher.of_upserts(table, key, decode))
    started_ms, records = int(time.time() * 1000), 0
    keys, reached = np.empty(0, RECORD), kafka.beginning_offsets(endpoints, spec.name)

    def read() -> None:
        """Read what the topic has by now."""
        nonlocal keys, records, reached
        end = kafka.end_offsets(endpoints, spec.name)
        ranges = {p: (reached.get(p, 0), end[p]) for p in end}
        unread = messages(endpoints, spec.name, ranges)
        for some, of_keys in described_records(unread, framing, index):
            keys, records = newest(keys, of_keys), records + some
        reached = end

    def attempt() -> Reread:
        head = table.refresh().current_snapshot()
        check_log(spec.name, table, kafka.topic_id(endpoints, spec.name))
        read()  # after the refresh: the rows of the head are of records that the topic has by now
        if head is None:
            return Reread(by=current_user(), at_ms=started_ms, records=records)
        offsets = committed(table, head).offsets
        kept = _kept(keys, offsets, is_decoded=key.is_decoded)
        rows = together(index.rows_without(table, head, kept), index.repeated_rows(table, head))
        gone = sum(len(of_file.positions) for of_file in rows)
        if gone:
            check_schemas(spec.name, framing, "rows of such keys would be deleted")
        done = Reread(
            by=current_user(), at_ms=started_ms, records=records, rows=gone, restored=restored
        )
        note = {REREAD: done.model_dump_json(), **tombstones.current(offsets, started_ms)}
        delete_rows(table, rows, note, dropped=[tombstones.MISSED])
        return done

    exhausted = CommitConflictError(
        f"topic {spec.name}: {ATTEMPTS} times in a row another commit came first",
        hint="run the command again; nothing was changed",
    )
    read()  # takes long; an attempt reads only what came meanwhile
    return retry(attempt, ATTEMPTS, exhausted=exhausted)


def check_schemas(topic: str, framing: KeyFraming | None, problem: str) -> None:
    """:raises TableflowError: records had keys of unknown schemas, which is a problem"""
    if framing is None or not framing.unknown:
        return
    (schema, why), *others = framing.unknown.items()
    more = f", and of {count(len(others), 'other schema')}" if others else ""
    raise TableflowError(
        f"topic {topic}: records have keys of schema {schema}, {why}{more}; {problem}; nothing was "
        "changed",
        hint="register these schemas again with their ids, or delete these records from the topic",
    )


def key_of(
    spec: TopicSpec, table: Table, endpoints: Endpoints
) -> tuple[UpsertKey, DecodeKeys, KeyFraming | None]:
    """Return the key of the table; if it is decoded, by what, and what frames those of records."""
    if not spec.key.has_schema:
        return raw_key(spec.metadata_column), no_decoder, None
    readers = schema_readers(endpoints)
    layout = read_layout(spec, readers)
    key = upsert_key(spec.metadata_column, layout, table.schema().fields)
    if not key.is_decoded:
        return key, no_decoder, None
    foreign = foreign_schemas(spec, readers)[KEY]
    return key, RawKeys(layout.key, key, foreign).texts, KeyFraming(layout.key, foreign)


def described_records(
    read: Iterable[Message], framing: KeyFraming | None, index: KeyIndex
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield how many records were read, and :func:`described` ones."""
    unread = records_of(read, framing)
    while some := list(islice(unread, CHUNK)):
        yield len(some), described(some, index)


def records_of(read: Iterable[Message], framing: KeyFraming | None) -> Iterator[Record]:
    """Yield records, with keys as tables hold them; those that cannot be decoded, as they are.

    :param framing: of keys that are decoded
    """
    for message in read:
        if (key := message.key()) is not None:
            key_bytes, time_ms = held_key(key), 0
            if framing is not None:
                time_ms = message.timestamp()[1]
                decoded = framing.held(key, header_of(KEY, headers_of(message) or ()))
                key_bytes = key if decoded is None else decoded
            yield key_bytes, *place_of(message), message.value() is None, time_ms
