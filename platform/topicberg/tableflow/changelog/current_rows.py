"""The rows of the table that a batch of a database's changes replaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

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
from topicberg.tableflow.changelog.changes import READ, key_columns
from topicberg.tableflow.changelog.fold_state import Order, is_repetition, order_of
from topicberg.tableflow.changelog.old_keys import OldKeys
from topicberg.tableflow.changelog.placeholders import toastable
from topicberg.tableflow.layout.meanings import columns_of
from topicberg.tableflow.layout.message_fields import MessageField
from topicberg.tableflow.layout.upsert_key import MetadataColumn
from topicberg.tableflow.upsert.keys import KeyIndex
from topicberg.tableflow.values.arrays import flags

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KeyedRows = tuple[FileRows, NDArray[np.intp]]
"""Rows of a data file, and the numbers of their keys among those that were looked up."""


@dataclass(frozen=True)
class FoldTarget:
    """The table of a topic with changes. ``head``: its snapshot before the batch.

    ``key``: the key of its records, whose fields are the columns ``keys``.
    """

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
        fields = [columns[name] for name in self.keys]
        return OldKeys.of(self.key, fields, self.types(self.keys))

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
        whole = np.ones(keys.num_rows, np.bool_)
        for column in keys.columns:
            whole &= column.is_valid().to_numpy(zero_copy_only=False)
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
        most = max(keys.max(initial=-1), self._keys.max(initial=-1))
        found = np.full(most + 1, -1, np.int64)
        found[self._keys] = np.arange(len(self._keys))
        return found[keys]

    def place(self, number: int) -> PartitionOffset:
        """Return partition and offset of one row."""
        columns = (self.target.order_columns[0], self.target.offset_column)
        partition, offset = (self.values.column(name)[number].as_py() for name in columns)
        return partition, offset

    def changes(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int | None, Any]]:
        """Yield time and position of the change of some rows."""
        rows = self.values.take(pa.array(numbers))
        _, times, positions = map(rows.column, self.target.order_columns)
        yield from zip(times.cast(pa.int64()).to_pylist(), positions.to_pylist(), strict=True)

    def maybe_newer(self, places: pa.Table, matches: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the numbers of the keys whose row may be of a newer change of the partition.

        Those of which :func:`.fold_state.is_repetition` is false are sorted out for all at once:
        a source has many changes in each millisecond.

        :param places: of the last change of each key: partition, operation, time and position
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
        found: dict[str, Any] = self.values.slice(number, 1).to_pylist()[0]
        _, micros, position = self.target.order_columns
        return found, order_of(_micros(found[micros]), found[position])

    def replaced_by(self, places: pa.Table) -> tuple[list[FileRows], list[PartitionOffset]]:
        """Return the rows that changes replace, and the changes that are older than their row.

        :param places: of the last change of each key: partition, offset, time and position
        """
        if not self.rows:
            return [], []
        matches = self.matches(np.arange(len(places)))
        partition, micros, position = (
            self.values.column(name) for name in self.target.order_columns
        )
        row_partitions = partition.to_numpy(zero_copy_only=False)
        new = places.column("partition").to_numpy(zero_copy_only=False)
        keeps = np.zeros(len(row_partitions), np.bool_)
        stale: list[PartitionOffset] = []
        has_row = matches >= 0
        moved = np.flatnonzero(has_row & (row_partitions[matches] != new))
        for number in moved:
            row = int(matches[number])
            if self.is_truncated[row]:
                continue
            change = order_of(
                places.column("m")[number].as_py(), places.column("p")[number].as_py()
            )
            old = order_of(_micros(micros[row].as_py()), position[row].as_py())
            if change is not None and old is None:
                raise TableflowError(
                    f"topic {self.target.topic}: a key has changes in the partitions "
                    f"{row_partitions[row]} and {new[number]}, without a position in the source",
                    hint="let the connector write to a topic of one partition",
                )
            if change is None or (old is not None and is_repetition(change, old)):
                keeps[row] = True
                stale.append((int(new[number]), places.column("offset")[number].as_py()))
        replaced, first = [], 0
        for of_file in self.rows:
            stay = keeps[first : first + len(of_file.positions)]
            first += len(of_file.positions)
            if not stay.all():
                replaced.append(FileRows(of_file.file, of_file.positions[~stay]))
        return replaced, stale


def together(first: Sequence[FileRows], other: Sequence[FileRows]) -> list[FileRows]:
    """Return the rows of both, each once."""
    found: dict[str, FileRows] = {}
    for each in (*first, *other):
        path = each.file.file_path
        if path in found:
            positions = np.union1d(found[path].positions, each.positions).astype(np.uint32)
            each = FileRows(each.file, positions)
        found[path] = each
    return list(found.values())


def _micros(value: datetime | None) -> int | None:
    """Return microseconds since 1970."""
    return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)
