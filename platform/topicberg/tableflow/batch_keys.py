"""The keys of an upsert batch: which of its records are the newest ones of their keys.

A batch is read in chunks, by several tasks. Of each chunk only the newest record of each key is
written. A record of a later chunk may replace one that is written by then: its row is deleted by
position, in the snapshot that adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from topicberg.iceberg.data_files import Placed
from topicberg.tableflow.key_files import HeldKeys, Keys

KEY_ARRAYS = {
    "high": np.uint64,
    "low": np.uint64,
    "offset": np.int64,
    "file": np.int32,
    "position": np.uint32,
}
"""The arrays of :class:`BatchKeys`, and their types."""
DELETED = -1
"""In place of a file: the record deletes its key."""


@dataclass(frozen=True)
class BatchKeys:
    """Records of a batch in arrays: the hashes of their keys, their offsets and their rows."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    offset: NDArray[np.int64]
    file: NDArray[np.int32]
    """Which of ``paths`` has the row; :data:`DELETED`: none."""
    position: NDArray[np.uint32]
    paths: tuple[str, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[BatchKeys]) -> Self:
        columns: dict[str, list[Any]] = {
            name: [np.empty(0, kind)] for name, kind in KEY_ARRAYS.items()
        }
        paths: list[str] = []
        for part in parts:
            for name, column in columns.items():
                column.append(getattr(part, name))
            columns["file"][-1] = np.where(part.file >= 0, part.file + len(paths), DELETED)
            paths += part.paths
        joined = {
            name: np.concatenate(each, dtype=KEY_ARRAYS[name]) for name, each in columns.items()
        }
        return cls(**joined, paths=tuple(paths))

    def dump(self) -> dict[str, Any]:
        """Return it for Arrow: the bytes of each array, and the paths."""
        return {name: getattr(self, name).tobytes() for name in KEY_ARRAYS} | {"paths": self.paths}

    @classmethod
    def load(cls, dumped: dict[str, Any]) -> Self:
        arrays = {name: np.frombuffer(dumped[name], kind) for name, kind in KEY_ARRAYS.items()}
        return cls(**arrays, paths=tuple(dumped["paths"]))

    def newest(self) -> tuple[Keys, dict[str, NDArray[np.uint32]]]:
        """Return the keys, sorted, and for each file the rows that a later record replaces."""
        order, last = newest(self.high, self.low, self.offset)
        kept, replaced = order[last], order[~last]
        return self._keys(kept), {
            path: np.sort(keys.position) for path, keys in self._by_file(replaced)
        }

    def of_files(self) -> Iterator[tuple[str, HeldKeys]]:
        """Yield each file's path, and the keys of all its rows."""
        for path, keys in self._by_file(np.argsort(self.high, kind="stable")):
            yield path, HeldKeys.of(keys)

    def _by_file(self, places: NDArray[np.intp]) -> Iterator[tuple[str, Keys]]:
        for number, path in enumerate(self.paths):
            inside = places[self.file[places] == number]
            if len(inside):
                yield path, self._keys(inside)

    def _keys(self, places: NDArray[np.intp]) -> Keys:
        return Keys(self.high[places], self.low[places], self.position[places])


def newest(
    high: NDArray[np.uint64], low: NDArray[np.uint64], offset: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the places of all records by key and offset, and which are the last ones of their key.

    :returns: the places, in the order of ``high``
    """
    order = np.argsort(high)
    repeated = high[order][1:] == high[order][:-1]
    if repeated.any():
        within = np.append(repeated, False) | np.append(False, repeated)
        some = order[within]
        order[within] = some[np.lexsort((offset[some], low[some], high[some]))]
    sorted_high, sorted_low = high[order], low[order]
    last = (sorted_high[1:] != sorted_high[:-1]) | (sorted_low[1:] != sorted_low[:-1])
    return order, np.append(last, True)[: len(order)]


class WrittenKeys:
    """Collects the keys of the chunks that one task reads."""

    def __init__(self) -> None:
        self._columns = _empty()
        self._numbers: dict[str, int] = {}

    def add(
        self,
        keys: Keys,
        offset: NDArray[np.int64],
        rows: NDArray[np.intp],
        placed: Iterable[Placed],
    ) -> None:
        """Add the records of a chunk that were written.

        :param rows: their places in the chunk
        :param placed: where they are
        """
        for one in placed:
            of_file = rows if one.rows is None else rows[one.rows]
            number = self._numbers.setdefault(one.path, len(self._numbers))
            position = np.arange(one.first, one.first + len(of_file), dtype=np.uint32)
            self._add(keys, offset, of_file, number, position)

    def add_deleted(self, keys: Keys, offset: NDArray[np.int64], places: NDArray[np.intp]) -> None:
        """Add the records of a chunk that delete their keys."""
        self._add(keys, offset, places, DELETED, np.zeros(len(places), np.uint32))

    def _add(
        self,
        keys: Keys,
        offset: NDArray[np.int64],
        places: NDArray[np.intp],
        number: int,
        position: NDArray[np.uint32],
    ) -> None:
        file = np.full(len(places), number, np.int32)
        new = keys.high[places], keys.low[places], offset[places], file, position
        for column, values in zip(self._columns.values(), new, strict=True):
            column.append(values)

    def all(self) -> BatchKeys:
        return BatchKeys(**_concatenated(self._columns), paths=tuple(self._numbers))


def _empty() -> dict[str, list[Any]]:
    return {name: [np.empty(0, kind)] for name, kind in KEY_ARRAYS.items()}


def _concatenated(columns: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: np.concatenate(parts) for name, parts in columns.items()}
