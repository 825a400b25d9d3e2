"""The rows that changes leave, as data files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import discard
from topicberg.tableflow.batch.sizing import FILE_RECORDS, usual_tasks
from topicberg.tableflow.changelog.change_batch import ChangeBatch
from topicberg.tableflow.upsert.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.upsert.key_files import Keys
from topicberg.tableflow.values.arrays import whole

_ROWS_AT_ONCE = 131_072
"""Of the rows that are written."""


@dataclass(frozen=True)
class NewRows:
    """The rows that changes leave.

    ``places``: the change of each row, by its number in ``changes``, ascending. ``keys``: of the
    rows. ``origins``: for columns that lack values: from which change each row has the value; -1:
    ``fills`` has it, if any does. ``filled``: the numbers of the rows of ``fills``.
    """

    changes: ChangeBatch
    places: NDArray[np.intp]
    keys: Keys
    origins: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    fills: pa.Table | None = None
    filled: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))

    def parts(self, first: int, end: int) -> Iterator[tuple[dict[str, pa.Array], Keys]]:
        """Yield some rows, in parts, as columns of the table, and their keys.

        :param first: the number of the first row
        :param end: the number of the row after the last one
        """
        behind = 0  # changes
        for batch in self.changes.rows.to_batches(_ROWS_AT_ONCE):
            before, behind = behind, behind + len(batch)
            to = min(end, int(np.searchsorted(self.places, behind)))
            if to <= first:
                continue
            inside = slice(first, to)
            taken = batch.take(pa.array(self.places[inside] - before))
            columns = dict(zip(taken.schema.names, taken.columns, strict=True))
            for name, origin in self.origins.items():
                columns[name] = self._filled(name, columns[name], origin[inside], first)
            yield columns, self.keys.chosen(np.arange(first, to))
            first = to

    def _filled(self, name: str, own: pa.Array, origin: NDArray[np.intp], first: int) -> pa.Array:
        """Return a column with the values of other changes, and those of older rows."""
        column = self.changes.rows.column(name)
        values = [whole(column.take(pa.array(origin, mask=origin < 0))).cast(own.type)]
        chosen = np.arange(len(origin), dtype=np.int64)
        if self.fills is not None and (unknown := np.flatnonzero(origin < 0)).size:
            place = pc.index_in(pa.array(unknown + first), value_set=pa.array(self.filled))
            is_known = place.is_valid().to_numpy(zero_copy_only=False)
            known = whole(self.fills.column(name).take(place.drop_null())).cast(own.type)
            values.append(known)
            chosen[unknown[is_known]] = len(origin) + np.arange(len(known))
        return pa.concat_arrays(values).take(pa.array(chosen))


def write_rows(
    target: WriteTarget, io: FileIO, rows: NewRows, most: int, check: Callable[[], None]
) -> tuple[list[DataFile], BatchKeys]:
    """Write rows as data files, several at once; return these and their keys.

    :param most: how many threads write
    :param check: called now and then; raises if the batch is abandoned
    """
    per_task = FILE_RECORDS * usual_tasks(target.spec)
    count = max(1, round(len(rows.places) / per_task))
    writers = [DataFileWriter(target, io) for _ in range(count)]
    bounds = np.linspace(0, len(rows.places), count + 1).astype(int).tolist()

    def write(writer: DataFileWriter, inside: tuple[int, int]) -> BatchKeys:
        keys = WrittenKeys()
        with writer:
            for part, of_part in rows.parts(*inside):
                check()
                keys.add(of_part, np.arange(len(of_part.high)), writer.write(part, are_kept=True))
        return keys.all()

    try:
        with ThreadPoolExecutor(min(count, most)) as threads:
            keys = BatchKeys.joined(threads.map(write, writers, pairwise(bounds)))
    except BaseException:
        discard(io, [file for writer in writers for file in writer.files])
        raise
    return [file for writer in writers for file in writer.files], keys
