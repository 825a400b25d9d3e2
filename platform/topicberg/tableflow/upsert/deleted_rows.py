"""Which rows of a table's data files are deleted, by its delete files and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from topicberg.iceberg.manifests import identity
from topicberg.iceberg.position_deletes import Deletes, read_deletes
from topicberg.iceberg.vectors import read_vectors
from topicberg.tableflow.upsert.key_files import bits_of


class DeletedRows:
    """The deleted rows of a snapshot; what was read for one is kept for the next."""

    def __init__(self) -> None:
        self._deleted: dict[str, NDArray[np.uint8]] = {}  # by data file: a bit for each row
        self._read: set[str] = set()  # the delete files in _deleted
        # By data file: its vector's identity, and the same bits.
        self._vectors: dict[str, tuple[tuple[str, int | None], NDArray[np.uint8]]] = {}

    def read(self, table: Table, files: Iterable[DataFile]) -> None:
        """Read the delete files of a snapshot that the last one did not have."""
        deletes = Deletes.of(files)
        self._read_vectors(table, deletes.vectors)
        paths = {file.file_path for file in deletes.files}
        if not self._read <= paths:  # compacted, or the table was rolled back
            self._deleted, self._read = {}, set()
        for path in paths - self._read:
            for data_file, positions in read_deletes(table.io, path):
                known = self._deleted.get(data_file, np.empty(0, np.uint8))
                self._deleted[data_file] = _with_bits(known, positions)
            self._read.add(path)

    def _read_vectors(self, table: Table, vectors: Mapping[str, DataFile]) -> None:
        """Read the vectors that are new since the last snapshot."""
        known = self._vectors
        self._vectors = {
            path: known[path]
            for path, vector in vectors.items()
            if path in known and known[path][0] == identity(vector)
        }
        new = [vector for path, vector in vectors.items() if path not in self._vectors]
        for path, positions in read_vectors(table.io, new):
            bits = _with_bits(np.empty(0, np.uint8), positions)
            self._vectors[path] = identity(vectors[path]), bits

    def left(self, data_file: str, positions: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Return the places of the positions, ascending, that are not deleted."""
        _, deleted = self._vectors.get(data_file, (None, None))  # has all deletes of its data file
        if deleted is None:
            deleted = self._deleted.get(data_file)
        places = np.arange(len(positions))
        if deleted is None:
            return places
        last = np.searchsorted(positions, 8 * len(deleted))
        return np.concatenate([places[:last][~bits_of(deleted, positions[:last])], places[last:]])


def _with_bits(bits: NDArray[np.uint8], numbers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return a bitmap with the bits of these numbers; it may be changed in place."""
    needed = int(numbers.max(initial=0)) // 8 + 1
    if needed > len(bits):
        bits = np.pad(bits, (0, needed - len(bits)))
    np.bitwise_or.at(bits, numbers >> 3, np.uint8(1) << (numbers & 7).astype(np.uint8))
    return bits
