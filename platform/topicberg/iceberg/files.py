"""The files of a table, from its metadata."""

from __future__ import annotations

import logging
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from topicberg.iceberg.manifests import bounds_of, read_entries

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_THREADS = 8
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//)?")

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the results of the work on each item, in order; requests to a store overlap."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def live_files(table: Table) -> Iterator[DataFile]:
    """Yield data and delete files of the current snapshot."""
    return (entry.data_file for entry in entries(table.io, head_manifests(table)))


def head_manifests(table: Table) -> list[ManifestFile]:
    """Return the manifests of the current snapshot; none if there is no snapshot."""
    head = table.current_snapshot()
    return head.manifests(table.io) if head else []


def manifests(io: FileIO, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """Return path → manifest, of all these snapshots together."""
    lists = in_parallel(lambda snapshot: snapshot.manifests(io), snapshots)
    return {m.manifest_path: m for manifest_list in lists for m in manifest_list}


def entries_by_manifest(
    io: FileIO, manifests: Iterable[ManifestFile], *, discard_deleted: bool = True
) -> Iterator[tuple[str, list[ManifestEntry]]]:
    """Yield the path of each manifest and its entries, those of removed files left out or not."""
    listed = list(manifests)
    read = in_parallel(partial(read_entries, io, discard_deleted=discard_deleted), listed)
    yield from zip((manifest.manifest_path for manifest in listed), read, strict=True)


def entries(io: FileIO, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
    """Yield the entries of manifests, without those of removed files."""
    return (entry for _, read in entries_by_manifest(io, manifests) for entry in read)


def partition_of(file: DataFile) -> tuple[object, ...]:
    """Return the partition spec and what tells its partitions apart, to group files by."""
    values = file.partition
    return file.spec_id, *partition_key(values[place] for place in range(len(values)))


def partition_key(values: Iterable[object]) -> tuple[object, ...]:
    """Return what tells partitions apart: as in Iceberg, -0.0 and 0.0 are two, and NaN is one.

    A reader takes the value of an identity partition from the metadata, so rows of one value that
    were put into the partition of the other would change. https://iceberg.apache.org/spec/#sorting
    """
    return tuple(("float", repr(value)) if isinstance(value, float) else value for value in values)


class PartitionColumn(NamedTuple):
    """A field of a partition spec and the column that it is computed from."""

    spec_id: int
    place: int
    transform: str  # Without its ``[n]``.
    kind: str  # The column's type, without its precision.


def partition_columns(table: Table) -> Iterator[PartitionColumn]:
    """Yield the fields of all partition specs whose columns a schema of the table has."""
    kinds = {n: f for schema in table.schemas().values() for n, f in index_by_id(schema).items()}
    for spec in table.specs().values():
        for place, field in enumerate(spec.fields):
            if (column := kinds.get(field.source_id)) is not None:
                names = str(field.transform).partition("[")[0], str(column.field_type)
                yield PartitionColumn(spec.spec_id, place, names[0], names[1].partition("(")[0])


def exact_partition(file: DataFile, spec: PartitionSpec) -> Record | None:
    """Return the partition that the bounds of a data file say; None: it is the file's.

    All rows of a file have the value of an identity partition, so both bounds are that value. The
    partition of -0.0 is that of 0.0. A reader takes the value from the manifest, so a wrong one
    changes rows, and compaction writes it into files. PyIceberg up to 0.12 reads doubles as floats:
    whoever rewrites manifests with it leaves 0.10000000149 for 0.1, and infinity for 1e300.
    """
    values = [file.partition[place] for place in range(len(file.partition))]
    exact = list(values)
    for place, field in enumerate(spec.fields):
        if isinstance(values[place], float) and isinstance(field.transform, IdentityTransform):
            lower, upper = (_number(bound) for bound in bounds_of(file, field.source_id))
            if lower is not None and lower == upper:
                exact[place] = lower + 0.0
    return None if partition_key(exact) == partition_key(values) else Record(*exact)


def _number(bound: bytes | None) -> float | None:
    """Return a bound of a float, or of a double: that of a file may be the narrower one."""
    return float(*struct.unpack("<f" if len(bound) == 4 else "<d", bound)) if bound else None


def names_in_file(arrow: pa.Schema, fields: Mapping[int, str]) -> dict[str, str]:
    """Return the name of a column in a Parquet file → its name in the table.

    :param fields: id → name of columns of the table; those that the file does not have are left out
    """
    if names := names_by_id(arrow):
        return {name: fields[number] for number, name in names.items() if number in fields}
    # Another program than Iceberg wrote it.
    return {name: name for name in arrow.names if name in fields.values()}


def names_by_id(arrow: pa.Schema) -> dict[int, str]:
    """Return the ids of the columns of a Parquet file, and their names in it."""
    return {number: field.name for field in arrow if (number := field_id(field)) is not None}


def field_id(field: pa.Field) -> int | None:
    """Return the id of a field of a Parquet file, of whatever depth; None: it has none."""
    text = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if text is None else int(text)


def listed_files(io: FileIO, folder: str) -> list[tuple[str, float]] | None:
    """Return path and time of the last change of all files in a folder, at any depth.

    :returns: times in seconds since 1970, infinite if unknown; None: PyArrow does not access it
    """
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        return None
    scheme, netloc, path = PyArrowFileIO.parse_location(folder)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    infos = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
    prefix = folder.removesuffix(path)
    return [
        (prefix + info.path, info.mtime.timestamp() if info.mtime else math.inf)
        for info in infos
        if info.is_file
    ]


def place_of(path: str) -> str:
    """Return a path without its scheme: s3, s3a and s3n are equivalent."""
    return _SCHEME.sub("", path)


def without(paths: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the paths of files that none of the others leads to, whatever their schemes."""
    left = {place_of(path): path for path in paths}
    for path in others:
        left.pop(place_of(path), None)
    return [*left.values()]


def may_delete(table: Table) -> bool:
    """Return whether files that the table no longer has may be deleted. With the property
    ``gc.enabled: false``, other tables or branches of the catalog may have them. Nessie sets it."""
    return bool(table.properties.get("gc.enabled", "true").lower() == "true")


def delete_files(io: FileIO, paths: Iterable[str]) -> int:
    """Delete files that still exist; return the number of paths."""

    def delete(path: str) -> None:
        with suppress(FileNotFoundError):
            io.delete(path)

    return len(list(in_parallel(delete, paths)))


def discard(io: FileIO, files: Iterable[DataFile]) -> None:
    """Delete files that are never committed; what cannot be deleted is left to maintenance."""
    discard_paths(io, [file.file_path for file in files])


def discard_paths(io: FileIO, paths: Sequence[str]) -> None:
    """Do :func:`discard` by the paths of files."""
    try:
        delete_files(io, paths)
    except Exception as error:
        logger.debug("%s cannot be deleted now: %s", ", ".join(paths), error)
