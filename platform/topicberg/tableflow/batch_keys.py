"""The keys of an upsert batch: which of its records are the newest ones of their keys.

A batch is read in chunks, by several tasks. Of each chunk only the newest record of each key is
written. A record of a later chunk may replace one that is written by then: its row is deleted by
position, in the snapshot that adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from topicberg.iceberg.data_files import Placed
from topicberg.tableflow.key_files import HeldKeys, Keys, in_order, is_last


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

    @classmethod
    def joined(cls, parts: Iterable[BatchKeys]) -> Self:
        """:param parts: of which later ones have later records of a key"""
        found = list(parts)
        empty = np.empty(0, np.uint64)
        high, low = (
            np.concatenate([empty, *(getattr(part, name) for part in found)])
            for name in ("high", "low")
        )
        return cls(high, low, [run for part in found for run in part.runs])

    def dump(self) -> dict[str, Any]:
        """Return it for Arrow."""
        runs = [run._asdict() for run in self.runs]
        return {"high": self.high.tobytes(), "low": self.low.tobytes(), "runs": runs}

    @classmethod
    def load(cls, dumped: dict[str, Any]) -> Self:
        high, low = (np.frombuffer(dumped[name], np.uint64) for name in ("high", "low"))
        return cls(high, low, [Run(**run) for run in dumped["runs"]])

    def newest(self) -> tuple[Keys, dict[str, NDArray[np.uint32]]]:
        """Return the keys, sorted, and for each file the rows that a later record replaces."""
        last = is_last(self._sorted)
        replaced = self._by_file(_chosen(self._sorted, ~last))
        rows = {path: np.sort(keys.position) for path, keys in replaced}
        return _chosen(self._sorted, last), rows

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
                yield path, _chosen(Keys(keys.high, keys.low, position), inside)


def _chosen(keys: Keys, which: NDArray[np.bool_] | NDArray[np.intp]) -> Keys:
    return Keys(keys.high[which], keys.low[which], keys.position[which])


class WrittenKeys:
    """Collects the keys of the chunks that one task reads."""

    def __init__(self) -> None:
        self._parts: list[BatchKeys] = []

    def add(self, keys: Keys, rows: NDArray[np.intp], placed: Iterable[Placed]) -> None:
        """Add the records of a chunk that were written.

        :param rows: their places in the chunk
        :param placed: where they are
        """
        for one in placed:
            of_file = rows if one.rows is None else rows[one.rows]
            self._add(keys, of_file, Run(one.path, one.first, len(of_file)))

    def add_deleted(self, keys: Keys, places: NDArray[np.intp]) -> None:
        """Add the records of a chunk that delete their keys."""
        if len(places):
            self._add(keys, places, Run(None, 0, len(places)))

    def _add(self, keys: Keys, places: NDArray[np.intp], run: Run) -> None:
        self._parts.append(BatchKeys(keys.high[places], keys.low[places], [run]))

    def all(self) -> BatchKeys:
        return BatchKeys.joined(self._parts)
