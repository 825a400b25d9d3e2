"""What maintenance decides by: a few numbers of each file, without an object for each.

Manifests never change, so the numbers of a manifest are kept in memory, up to :data:`KEPT_FILES`
files of all tables together (some 45 bytes each). What is due for a table of a million files is
then decided from its new manifests and a few operations on arrays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFileContent
from pyiceberg.types import PrimitiveType

from topicberg.iceberg.files import in_parallel, partition_of
from topicberg.iceberg.manifests import is_vector, read_entries

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

KEPT_FILES = 2_000_000

Partition = tuple[object, ...]


@dataclass(frozen=True)
class Files:
    """Numbers of some files: arrays of one length."""

    content: NDArray[np.int8]
    is_vector: NDArray[np.bool_]
    size: NDArray[np.int64]
    rows: NDArray[np.int64]
    partition: NDArray[np.int32]
    """The number of the file's partition in :attr:`partitions`."""
    lower: NDArray[np.int64]
    """The lower bound of one column, if :attr:`has_bounds`."""
    upper: NDArray[np.int64]
    has_bounds: NDArray[np.bool_]
    nulls: NDArray[np.int64]
    """The nulls of that column; -1: unknown."""
    partitions: Sequence[Partition]

    @classmethod
    def of(cls, files: Iterable[DataFile], column: NestedField | None = None) -> Self:
        """:param column: a column whose bounds are whole numbers, such as a timestamp"""
        partitions: dict[Partition, int] = {}
        rows = [
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
        content, vector, size, count, partition, lower, upper, known, nulls = (
            zip(*rows, strict=True) if rows else ((),) * 9
        )
        return cls(
            np.array(content, np.int8),
            np.array(vector, np.bool_),
            np.array(size, np.int64),
            np.array(count, np.int64),
            np.array(partition, np.int32),
            np.array(lower, np.int64),
            np.array(upper, np.int64),
            np.array(known, np.bool_),
            np.array(nulls, np.int64),
            tuple(partitions),
        )

    @classmethod
    def together(cls, parts: Sequence[Files]) -> Self:
        """Return the files of all parts."""
        partitions: dict[Partition, int] = {}
        numbers = []
        for part in parts:
            number = [partitions.setdefault(each, len(partitions)) for each in part.partitions]
            numbers.append(np.array(number, np.int32)[part.partition])
        held: list[Files] = [cls.of([]), *parts]
        return cls(
            content=np.concatenate([part.content for part in held]),
            is_vector=np.concatenate([part.is_vector for part in held]),
            size=np.concatenate([part.size for part in held]),
            rows=np.concatenate([part.rows for part in held]),
            partition=np.concatenate([np.empty(0, np.int32), *numbers]),
            lower=np.concatenate([part.lower for part in held]),
            upper=np.concatenate([part.upper for part in held]),
            has_bounds=np.concatenate([part.has_bounds for part in held]),
            nulls=np.concatenate([part.nulls for part in held]),
            partitions=tuple(partitions),
        )

    def __len__(self) -> int:
        return len(self.content)

    @property
    def is_data(self) -> NDArray[np.bool_]:
        return np.asarray(self.content == DataFileContent.DATA.value)

    @property
    def is_position_delete(self) -> NDArray[np.bool_]:
        """Whether it is a position delete file, or a deletion vector."""
        return np.asarray(self.content == DataFileContent.POSITION_DELETES.value)

    def by_partition(
        self, chosen: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return, for each partition, how many of the chosen files it has, and their bytes."""
        partition, number = self.partition[chosen], len(self.partitions)
        count = np.bincount(partition, minlength=number).astype(np.int64)
        size = np.bincount(partition, weights=self.size[chosen], minlength=number)
        return count, size.astype(np.float64)


def _bounds(file: DataFile, column: NestedField | None) -> tuple[int, int, bool, int]:
    if column is None:
        return 0, 0, False, -1
    assert isinstance(column.field_type, PrimitiveType)  # noqa: S101  a timestamp
    nulls = (file.null_value_counts or {}).get(column.field_id, -1)
    lower, upper = (
        (bounds or {}).get(column.field_id) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    if lower is None or upper is None:
        return 0, 0, False, nulls
    first, last = (int(from_bytes(column.field_type, bound)) for bound in (lower, upper))
    return first, last, True, nulls


class _Kept:
    """The files of manifests that were used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, int | None], Files] = OrderedDict()
        self._count = 0

    def get(self, key: tuple[str, int | None]) -> Files | None:
        with self._lock:
            if (found := self._files.get(key)) is not None:
                self._files.move_to_end(key)
            return found

    def put(self, key: tuple[str, int | None], files: Files) -> None:
        with self._lock:
            if key not in self._files:
                self._files[key] = files
                self._count += len(files)
            while self._count > KEPT_FILES:
                self._count -= len(self._files.popitem(last=False)[1])


_KEPT = _Kept()


def files_by_manifest(
    io: FileIO, manifests: Iterable[ManifestFile], column: NestedField | None = None
) -> list[tuple[ManifestFile, Files]]:
    """Return the live files of each manifest; only manifests that are not known are read."""

    def read(manifest: ManifestFile) -> Files:
        key = manifest.manifest_path, column.field_id if column else None
        found = _KEPT.get(key)
        if found is None:
            entries = read_entries(io, manifest)
            found = Files.of((entry.data_file for entry in entries), column)
            _KEPT.put(key, found)
        return found

    listed = list(manifests)
    return list(zip(listed, in_parallel(read, listed), strict=True))


def live(table: Table, column: NestedField | None = None) -> Files:
    """Return the files of the current snapshot.

    :param column: whose bounds are needed
    """
    head = table.current_snapshot()
    held = files_by_manifest(table.io, head.manifests(table.io) if head else (), column)
    return Files.together([files for _, files in held])
