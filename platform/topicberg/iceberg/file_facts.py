"""What maintenance decides by: a few numbers of each file, without an object for each.

Manifests never change, so the numbers of a manifest are kept in memory, up to :data:`KEPT_FILES`
files of all tables together (some 45 bytes each). What is due for a table of a million files is
then decided from its new manifests and a few operations on arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from topicberg.iceberg.files import head_manifests, in_parallel, partition_of
from topicberg.iceberg.hours import time_bounds
from topicberg.iceberg.manifests import is_vector, read_entries

KEPT_FILES = 2_000_000

Partition = tuple[object, ...]

_NUMBERS = np.dtype(
    [
        ("content", np.int8),
        ("is_vector", np.bool_),
        ("size", np.int64),
        ("rows", np.int64),
        ("partition", np.int32),  # the number of the file's partition in Files.partitions
        ("lower", np.int64),  # the bounds of one column, if has_bounds
        ("upper", np.int64),
        ("has_bounds", np.bool_),
        ("nulls", np.int64),  # of that column; -1: unknown
    ]
)


@dataclass(frozen=True)
class Files:
    """Numbers of some files."""

    numbers: NDArray[np.void]  # One record of :data:`_NUMBERS` for each file.
    partitions: Sequence[Partition]

    @classmethod
    def of(cls, files: Iterable[DataFile], column: NestedField | None = None) -> Self:
        """:param column: a column whose bounds are whole numbers, such as a timestamp"""
        partitions: dict[Partition, int] = {}
        records = [
            (
                file.content.value,
                is_vector(file),
                file.file_size_in_bytes,
                file.record_count,
                partitions.setdefault(partition_of(file), len(partitions)),
                *_bounds(file, column),
            )
            for file in files
        ]
        return cls(np.array(records, _NUMBERS), tuple(partitions))

    @classmethod
    def together(cls, parts: Sequence[Files]) -> Self:
        """Return the files of all parts."""
        partitions: dict[Partition, int] = {}
        renumbered = [np.empty(0, np.int32)]
        for part in parts:
            number = [partitions.setdefault(values, len(partitions)) for values in part.partitions]
            renumbered.append(np.array(number, np.int32)[part["partition"]])
        numbers = np.concatenate([np.empty(0, _NUMBERS), *(part.numbers for part in parts)])
        numbers["partition"] = np.concatenate(renumbered)
        return cls(numbers, tuple(partitions))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one number of each file, by its name in :data:`_NUMBERS`."""
        return self.numbers[name]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def is_data(self) -> NDArray[np.bool_]:
        return np.asarray(self["content"] == DataFileContent.DATA.value)

    def is_data_below(self, size: int) -> NDArray[np.bool_]:
        """Return whether it is a data file of fewer bytes; vectors have the size of their file."""
        return self.is_data & (self["size"] < size)

    @property
    def is_position_delete(self) -> NDArray[np.bool_]:
        """Whether it is a position delete file, or a deletion vector."""
        return np.asarray(self["content"] == DataFileContent.POSITION_DELETES.value)

    def by_partition(
        self, chosen: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return, for each partition, how many of the chosen files it has, and their bytes."""
        partition, number = self["partition"][chosen], len(self.partitions)
        count = np.bincount(partition, minlength=number).astype(np.int64)
        size = np.bincount(partition, weights=self["size"][chosen], minlength=number)
        return count, size.astype(np.float64)


def _bounds(file: DataFile, column: NestedField | None) -> tuple[int, int, bool, int]:
    if column is None:
        return 0, 0, False, -1
    nulls = (file.null_value_counts or {}).get(column.field_id, -1)
    bounds = time_bounds(file, column)
    return (0, 0, False, nulls) if bounds is None else (*bounds, True, nulls)


@cached(
    LRUCache(KEPT_FILES, getsizeof=len),
    key=lambda _, manifest, column: (manifest.manifest_path, column.field_id if column else None),
    lock=threading.Lock(),
)
def _files(io: FileIO, manifest: ManifestFile, column: NestedField | None) -> Files:
    return Files.of((entry.data_file for entry in read_entries(io, manifest)), column)


def files_by_manifest(
    io: FileIO, manifests: Iterable[ManifestFile], column: NestedField | None = None
) -> list[tuple[ManifestFile, Files]]:
    """Return the live files of each manifest; only manifests that are not known are read."""
    listed = list(manifests)
    read = in_parallel(lambda manifest: _files(io, manifest, column), listed)
    return list(zip(listed, read, strict=True))


def live(table: Table, column: NestedField | None = None) -> Files:
    """Return the files of the current snapshot, with the bounds of a column."""
    read = files_by_manifest(table.io, head_manifests(table), column)
    return Files.together([files for _, files in read])
