"""The rows of the table that a batch of a database's changes replaces, or truncates delete.

A truncate deletes what came before it: in its own partition by the offset, and in the others by the
source's time and position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from topicberg.errors import TableflowError
from topicberg.formats.metadata import OFFSET, PARTITION, SOURCE_POSITION, SOURCE_TIMESTAMP
from topicberg.iceberg.position_deletes import FileRows, column_types, read_rows
from topicberg.kafka.offsets import PartitionOffset
from topicberg.tableflow.changelog.change_batch import Facts
from topicberg.tableflow.changelog.changes import READ, key_columns
from topicberg.tableflow.changelog.fold_state import (
    Deletion,
    Order,
    is_repetition,
    newest_truncates,
    order_of,
)
from topicberg.tableflow.changelog.old_keys import OldKeys
from topicberg.tableflow.changelog.placeholders import toastable
from topicberg.tableflow.layout.meanings import columns_of
from topicberg.tableflow.layout.message_fields import MessageField
from topicberg.tableflow.layout.upsert_key import MetadataColumn
from topicberg.tableflow.upsert.key_files import Keys
from topicberg.tableflow.upsert.keys import KeyIndex
from topicberg.tableflow.values.arrays import flags
from topicberg.tableflow.values.offsets import Batch

KeyedRows = tuple[FileRows, NDArray[np.intp]]
"""Rows of a data file, and the numbers of their keys among those that were looked up."""


@dataclass(frozen=True)
class FoldTarget:
    """The table of a topic with changes, before the batch; ``keys``: the columns of its ``key``."""

    topic: str
    metadata_column: MetadataColumn
    rows: Sequence[NestedField]
    """The columns of the table without the metadata columns."""
    table: Table
    head: Snapshot | None
    index: KeyIndex
    keys: Sequence[str]
    key: MessageField

    @cached_property
    def old_keys(self) -> OldKeys:
        """What reads the old keys of changes of the primary key."""
        columns = {column.name: column for column in columns_of(self.table)}
        return OldKeys.of(self.key, [columns[name] for name in self.keys], self.types(self.keys))

    @cached_property
    def toast(self) -> list[str]:
        """The columns whose values the connector may not have."""
        return [column.name for column in toastable(self.rows)]

    @property
    def order_columns(self) -> list[str]:
        """The columns of partition, source's time and source's position."""
        return [*map(self.metadata_column, (PARTITION, SOURCE_TIMESTAMP, SOURCE_POSITION))]

    @property
    def offset_column(self) -> str:
        return self.metadata_column(OFFSET)

    @property
    def key_columns(self) -> list[str]:
        """The names of the keys in a batch."""
        return key_columns(self.keys)

    def types(self, names: Sequence[str]) -> list[pa.DataType]:
        """Return the types of columns."""
        return column_types(self.table, names)

    def keyed_rows(self, keys: Keys, head: Snapshot | None = None) -> list[KeyedRows]:
        """Return the rows of the table, or of an earlier snapshot, that have sorted keys."""
        snapshot = head or self.head
        return self.index.keyed_rows(self.table, snapshot, keys) if snapshot else []

    def of_key(self, key: Sequence[Any]) -> pa.Table:
        """Return a table of one key."""
        pairs = zip(key, self.types(self.keys), strict=True)
        return pa.table([pa.array([one], kind) for one, kind in pairs], names=list(self.keys))

    def hash_of(self, key: Sequence[Any]) -> str | None:
        """Return the hash of one key; a key with a null has none."""
        return self.hashed(self.of_key(key)).get(0)

    def hashed(self, keys: pa.Table) -> dict[int, str]:
        """Return the hash of each key by its number; a key with a null has none."""
        if not keys.num_rows:
            return {}
        hashes = self.index.hasher.hashes(keys.columns)
        whole = np.all([flags(column.is_valid()) for column in keys.columns], axis=0)
        numbers = enumerate(hashes.position)
        return {int(key): hashes.text(number) for number, key in numbers if whole[key]}


class OldRows:
    """The rows of the table that have the keys of a batch."""

    def __init__(
        self,
        target: FoldTarget,
        keyed: Sequence[KeyedRows],
        toast: Sequence[str],
        truncated: Sequence[FileRows],
    ) -> None:
        self.target = target
        self.rows = [rows for rows, _ in keyed]
        self._keys = np.concatenate([np.empty(0, np.intp), *(keys for _, keys in keyed)])
        """The number of each row's key."""
        wanted = [*target.order_columns, target.offset_column, *toast]
        none = pa.schema(list(zip(wanted, target.types(wanted), strict=True))).empty_table()
        parts = [read_rows(target.table, of_file, wanted) for of_file in self.rows]
        self.values: pa.Table = pa.concat_tables([none, *parts])
        gone = {each.file.file_path: each.positions for each in truncated}
        self.is_truncated = np.concatenate(
            [np.isin(r.positions, gone.get(r.file.file_path, [])) for r in self.rows]
            or [np.empty(0, np.bool_)]
        )

    def matches(self, keys: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return, for each key, given by its number, the number of its row; -1: it has none."""
        found = np.full(max(keys.max(initial=-1), self._keys.max(initial=-1)) + 1, -1, np.int64)
        found[self._keys] = np.arange(len(self._keys))
        return found[keys]

    def place(self, number: int) -> PartitionOffset:
        """Return partition and offset of one row."""
        columns = (self.target.order_columns[0], self.target.offset_column)
        partition, offset = (self.values.column(name)[number].as_py() for name in columns)
        return partition, offset

    def changes(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int | None, Any]]:
        """Yield time and position of the change of some rows."""
        columns = self.values.select(self.target.order_columns[1:]).take(pa.array(numbers)).columns
        yield from zip(columns[0].cast(pa.int64()).to_pylist(), columns[1].to_pylist(), strict=True)

    def maybe_newer(self, places: pa.Table, matches: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the numbers of the keys whose row may be of a newer change of the partition.

        Those of which :func:`.fold_state.is_repetition` is false are sorted out for all at once:
        a source has many changes in each millisecond.

        :param matches: the number of the row of each key; -1: it has none
        """
        partition, times, position = map(self.values.column, self.target.order_columns)
        micros = pc.fill_null(times.cast(pa.int64()), -1).to_numpy()
        own_micros = pc.fill_null(places.column("m"), -1).to_numpy()
        is_change = flags(pc.not_equal(places.column("op"), READ))
        numbers: NDArray[np.intp] = np.flatnonzero(is_change & (matches >= 0))
        numbers = numbers[micros[matches[numbers]] >= own_micros[numbers]]
        rows, changes = matches[numbers], places.take(pa.array(numbers))
        partition, position = (column.take(pa.array(rows)) for column in (partition, position))
        may_be = flags(pc.equal(partition, changes.column("partition")))
        own_position = changes.column("p")
        if position.type == own_position.type:
            both_null = pc.and_(position.is_null(), own_position.is_null())
            is_same = flags(pc.coalesce(pc.equal(position, own_position), both_null))
            is_same &= micros[rows] == own_micros[numbers]
            may_be &= ~is_same & ~flags(pc.less(position, own_position))
        return numbers[may_be]

    def row(self, number: int) -> tuple[dict[str, Any], Order | None]:
        """Return the columns of one row, and its order."""
        ((micros, position),) = self.changes(np.array([number]))
        return self.values.slice(number, 1).to_pylist()[0], order_of(micros, position)

    def replaced_by(self, places: pa.Table) -> tuple[list[FileRows], list[PartitionOffset]]:
        """Return the rows that the last changes of keys replace, and the changes that are older."""
        if not self.rows:
            return [], []
        matches = self.matches(np.arange(len(places)))
        row_partitions = self.values.column(self.target.order_columns[0]).to_numpy()
        new = places.column("partition").to_numpy()
        keeps = np.zeros(len(row_partitions), np.bool_)
        stale: list[PartitionOffset] = []
        moved = np.flatnonzero((matches >= 0) & (row_partitions[matches] != new))
        for number in moved[~self.is_truncated[matches[moved]]]:
            row, place = int(matches[number]), places.slice(number, 1).to_pylist()[0]
            change, (_, old) = order_of(place["m"], place["p"]), self.row(row)
            if change is not None and old is None:
                raise TableflowError(
                    f"topic {self.target.topic}: a key has changes in the partitions "
                    f"{row_partitions[row]} and {new[number]}, without a position in the source",
                    hint="let the connector write to a topic of one partition",
                )
            if change is None or (old is not None and is_repetition(change, old)):
                keeps[row] = True
                stale.append((place["partition"], place["offset"]))
        ends = np.cumsum([len(of_file.positions) for of_file in self.rows])
        by_file = zip(self.rows, np.split(keeps, ends[:-1]), strict=True)
        replaced = [FileRows(r.file, r.positions[~stay]) for r, stay in by_file if not stay.all()]
        return replaced, stale


def together(first: Sequence[FileRows], other: Sequence[FileRows]) -> list[FileRows]:
    """Return the rows of both, each once."""
    found: dict[str, FileRows] = {}
    for rows in (*first, *other):
        known = found.setdefault(rows.file.file_path, rows)
        if known is not rows:
            positions = np.union1d(known.positions, rows.positions).astype(np.uint32)
            found[rows.file.file_path] = FileRows(rows.file, positions)
    return list(found.values())


@dataclass(frozen=True)
class Truncates:
    """The truncates that concern a batch: those of earlier batches, and ``new``, its own."""

    target: FoldTarget
    batch: Batch
    earlier: Sequence[Deletion]
    new: Sequence[Deletion]

    @classmethod
    def of(
        cls,
        target: FoldTarget,
        batch: Batch,
        earlier: Sequence[Deletion],
        facts: Facts,
        which: NDArray[np.bool_],
    ) -> Self:
        """:param which: the changes of the batch that are truncates"""
        places = np.flatnonzero(which)
        columns = (facts.values(name, places) for name in ("partition", "m", "p"))
        new = [
            Deletion(partition=partition, micros=m, position=p)
            for partition, m, p in zip(*columns, strict=True)
        ]
        return cls(target, batch, earlier, new)

    def __bool__(self) -> bool:
        return bool(self.earlier or self.new)

    @property
    def newest(self) -> list[Deletion]:
        """The newest ones, which are to be known after the batch."""
        return newest_truncates([*self.earlier, *self.new])

    def check_order(self, unordered: int) -> None:
        """:raises TableflowError: some changes have no order, and there are several partitions"""
        if len(self.batch.end) > 1 and unordered:
            raise TableflowError(
                f"topic {self.target.topic}: its table was truncated, and "
                f"{unordered} changes have no position in the source: whether changes of "
                "other partitions came before the truncate is not known",
                hint="let the connector write to a topic of one partition, or leave truncates out "
                "(skipped.operations=t)",
            )

    def precede(self, facts: Facts) -> NDArray[np.bool_]:
        """Return whether a change came before a truncate of this batch or an earlier one."""
        is_before = np.zeros(len(facts), np.bool_)
        for place in np.flatnonzero(facts.is_op("t")):
            own = facts.partition == facts.partition[place]
            is_before |= own & (facts.offset < facts.offset[place])
        for each in self.newest:
            is_earlier = _is_earlier(facts.column("m"), facts.column("p"), each, is_without=False)
            is_before |= (facts.partition != each.partition) & is_earlier
        return is_before

    def rows(self) -> list[FileRows]:
        """Return the table's rows that came before a truncate of this batch."""
        target = self.target
        if not self.new or target.head is None:
            return []
        rows = target.index.all_rows(target.table, target.head)
        columns = (read_rows(target.table, of_file, target.order_columns) for of_file in rows)
        by_file = zip(rows, map(self._came_before, columns), strict=True)
        return [FileRows(r.file, r.positions[gone]) for r, gone in by_file if gone.any()]

    def _came_before(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows, given by partition, time and position, came before a truncate."""
        partition, time_, position = rows.columns
        unordered = pc.and_(time_.is_null(), position.is_null())
        gone = pc.is_in(partition, pa.array({t.partition for t in self.new}, partition.type))
        for each in newest_truncates(self.new):
            other = pc.not_equal(partition, each.partition)
            if each.order is None or pc.any(pc.and_(other, unordered)).as_py():
                self.check_order(1)
            earlier = pa.array(_is_earlier(time_.cast(pa.int64()), position, each, is_without=True))
            gone = pc.or_(gone, pc.and_(other, earlier))
        return flags(gone)


def _is_earlier(
    micros: Any, position: Any, truncate: Deletion, *, is_without: bool
) -> NDArray[np.bool_]:
    """Return which times and positions, or no position, are before those of a truncate."""
    limit = -1 if truncate.micros is None else truncate.micros
    given = pc.fill_null(micros, -1)
    is_before = pc.less(given, limit)
    if truncate.position is not None:
        lower = pc.fill_null(pc.less(position, truncate.position), is_without)
        is_before = pc.or_(is_before, pc.and_(pc.equal(given, limit), lower))
    return flags(is_before)
