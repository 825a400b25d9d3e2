"""The keys of an upsert batch: which of its records are the newest ones of their keys.

A batch is read in chunks, by several tasks. Of each chunk only the newest record of each key is
written. A record of a later chunk may replace one that is written by then: its row is deleted by
position, in the snapshot that adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from topicberg.iceberg.data_files import Placed
from topicberg.tableflow.upsert.key_files import HeldKeys, Keys, in_order


class Run(NamedTuple):
    """Records whose rows follow each other in a file."""

    path: str | None
    """None: the records delete their keys."""
    first: int
    """Position of the first row."""
    length: int


@dataclass(frozen=True)
class BatchKeys:
    """Hashes of keys, those of one key in the order of its records, and where their rows are."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    runs: Sequence[Run]
    times: NDArray[np.int64] | None = None
    """Of the records, if their keys are decoded: a key may have records in several partitions."""

    @classmethod
    def joined(cls, parts: Iterable[BatchKeys]) -> Self:
        """:param parts: of which later ones have later records of a key in a partition"""
        all_parts, empty = list(parts), np.empty(0, np.uint64)
        high = np.concatenate([empty, *(part.high for part in all_parts)])
        low = np.concatenate([empty, *(part.low for part in all_parts)])
        times = [part.times for part in all_parts if part.times is not None]
        runs = [run for part in all_parts for run in part.runs]
        return cls(high, low, runs, np.concatenate(times) if times else None)

    def newest(self) -> tuple[Keys, dict[str, NDArray[np.uint32]]]:
        """Return the keys, sorted, and for each file the rows that a later record replaces."""
        keys, times = self._sorted, self.times
        is_newest = keys.is_last() if times is None else keys.is_newest(times)
        return keys.chosen(is_newest), self.rows_of(keys.chosen(~is_newest))

    def rows_of(self, keys: Keys) -> dict[str, NDArray[np.uint32]]:
        """Return, by file, the rows of some of these records."""
        return {path: np.sort(found.position) for path, found in self._by_file(keys)}

    def of_files(self) -> Iterator[tuple[str, HeldKeys]]:
        """Yield each file's path, and the keys of all its rows."""
        for path, keys in self._by_file(self._sorted):
            yield path, HeldKeys.of(keys)

    @cached_property
    def _sorted(self) -> Keys:
        return in_order(self.high, self.low)

    def _by_file(self, keys: Keys) -> Iterator[tuple[str, Keys]]:
        """Yield each file's path, and the keys of its rows among these records, in their order."""
        if not len(keys.high):
            return
        paths = {run.path: number for number, run in enumerate(self.runs) if run.path is not None}
        counts = [run.length for run in self.runs]
        numbers = [paths[run.path] if run.path is not None else -1 for run in self.runs]
        file = np.repeat(np.array(numbers, np.int32), counts)[keys.position]
        starts = np.cumsum(counts, dtype=np.int64) - counts
        firsts = np.repeat(np.array([run.first for run in self.runs], np.int64) - starts, counts)
        position = (keys.position + firsts[keys.position]).astype(np.uint32)
        for path, number in paths.items():
            inside = np.flatnonzero(file == number)
            if len(inside):
                yield path, Keys(keys.high, keys.low, position).chosen(inside)


class WrittenKeys:
    """Collects the keys of the chunks that one task reads."""

    def __init__(self) -> None:
        self._parts: list[BatchKeys] = []

    def add(
        self,
        keys: Keys,
        rows: NDArray[np.intp],
        placed: Iterable[Placed],
        times: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a chunk's written records, where they are, and the times of all decoded keys."""
        for placement in placed:
            of_file = rows if placement.rows is None else rows[placement.rows]
            self._add(keys, of_file, Run(placement.path, placement.first, len(of_file)), times)

    def add_deleted(
        self, keys: Keys, places: NDArray[np.intp], times: NDArray[np.int64] | None = None
    ) -> None:
        """Add the records of a chunk that delete their keys."""
        if len(places):
            self._add(keys, places, Run(None, 0, len(places)), times)

    def _add(
        self, keys: Keys, places: NDArray[np.intp], run: Run, times: NDArray[np.int64] | None
    ) -> None:
        of_places = None if times is None else times[places]
        self._parts.append(BatchKeys(keys.high[places], keys.low[places], [run], of_places))

    def all(self) -> BatchKeys:
        return BatchKeys.joined(self._parts)
