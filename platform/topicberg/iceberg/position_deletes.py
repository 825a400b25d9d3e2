"""Rows of data files by their positions: reading them, and deletes, after which they are no longer
part of a table.

In format version 2 they are position delete files: a row for each deleted row, with the data file's
path and the row's position in it, sorted by both. In version 3 they are deletion vectors, at most
one for each data file (:mod:`topicberg.iceberg.vectors`). A table that was upgraded keeps its
delete files until the next deletes: that commit replaces all of them by vectors, because rows of a
delete file that stays beside a vector are counted twice.

Source: Iceberg spec, "Position Delete Files" and "Deletion Vectors".
"""

from __future__ import annotations

import io
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.errors import TopicbergError
from topicberg.iceberg import commits, file_columns, manifests, summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.files import (
    exact_partition,
    live_files,
    names_by_id,
    partition_columns,
    partition_key,
    partition_of,
)
from topicberg.iceberg.vectors import read_vectors, write_vectors

_PATH, _POSITION = file_columns.DELETE_FIELDS
_NONE = np.empty(0, np.uint32)


@dataclass(frozen=True)
class FileRows:
    """Rows of a data file, by their positions, ascending."""

    file: DataFile
    positions: NDArray[np.uint32]


def column_types(table: Table, names: Sequence[str]) -> list[pa.DataType]:
    """Return the Arrow types of columns of a table."""
    arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return [arrow.field(name).type for name in names]


def read_rows(table: Table, rows: FileRows, names: Sequence[str]) -> pa.Table:
    """Return columns of some rows of a data file, with the types of the table."""
    types, schema = column_types(table, names), table.schema()
    fields = [schema.find_field(name) for name in names]
    with table.io.new_input(rows.file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        arrow = parquet.schema_arrow
        known = names_by_id(arrow)
        arrow_rows = _rows_at(
            parquet, rows.positions, [known[f.field_id] for f in fields if f.field_id in known]
        )
    columns = [
        file_columns.with_names_of(table.schema(), arrow_rows.column(name), arrow.field(name)).cast(
            kind
        )
        if (name := known.get(field.field_id)) is not None
        else pa.chunked_array([file_columns.missing_column(field, len(rows.positions))])
        for field, kind in zip(fields, types, strict=True)
    ]
    return pa.table(columns, names=list(names))


def _rows_at(parquet: Any, positions: NDArray[np.uint32], columns: Sequence[str]) -> pa.Table:
    """Return some rows of a file, given by ascending positions; reads only their row groups."""
    parts, first = [], 0
    for group in range(parquet.num_row_groups):
        last = first + parquet.metadata.row_group(group).num_rows
        inside = positions[(positions >= first) & (positions < last)]
        if len(inside):
            part = parquet.read_row_group(group, columns=list(columns))
            parts.append(part.take(pa.array(inside - first)))
        first = last
    return pa.concat_tables(parts)


def read_deletes(files: FileIO, path: str) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    """Yield each data file's path and its deleted positions, from a position delete file."""
    with files.new_input(path).open() as stream:
        deletes = pq.read_table(stream, columns=[_PATH, _POSITION], read_dictionary=[_PATH])
    if not deletes.num_rows:
        return
    paths = deletes.column(_PATH).unify_dictionaries().combine_chunks()
    positions = deletes.column(_POSITION).to_numpy().astype(np.uint32)
    number_of_path = paths.indices.to_numpy()
    order = np.argsort(number_of_path, kind="stable")
    numbers, starts = np.unique(number_of_path[order], return_index=True)
    for number, part in zip(numbers, np.split(positions[order], starts[1:]), strict=True):
        yield paths.dictionary[int(number)].as_py(), part


@dataclass(frozen=True)
class Deletes:
    """The deletes of a snapshot: at most one vector a data file, and position delete files."""

    vectors: dict[str, DataFile]  # By the paths of their data files.
    files: list[DataFile]

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> Deletes:
        """:raises TopicbergError: a data file has several vectors, so readers fail or disagree"""
        deletes = [file for file in files if file.content == DataFileContent.POSITION_DELETES]
        vectors = dict[str, DataFile]()
        for file in filter(manifests.is_vector, deletes):
            path = manifests.referenced_file(file)
            if manifests.identity(vectors.setdefault(path, file)) != manifests.identity(file):
                raise TopicbergError(
                    f"data file {path} has two deletion vectors, {vectors[path].file_path} and "
                    f"{file.file_path}: another writer added one without the deletes of the other",
                    hint="roll the table back to a snapshot before it (rollback_to_snapshot), and "
                    "delete the rows again with a writer that merges vectors",
                )
        return cls(vectors, [file for file in deletes if not manifests.is_vector(file)])


def live_rows(table: Table) -> int:
    """Return the rows of the current snapshot that are not deleted by position."""
    files = list(live_files(table))
    rows = {f.file_path: f.record_count for f in files if f.content == DataFileContent.DATA}
    deletes = Deletes.of(files)
    counts = {path: v.record_count for path, v in deletes.vectors.items() if path in rows}
    # A vector has all deletes of its data file; a delete file may name deleted data files.
    deleted = _positions(table.io, deletes.files, rows.keys() - deletes.vectors.keys())
    counts |= {path: len(np.unique(positions)) for path, positions in deleted.items()}
    return sum(rows.values()) - sum(counts.values())


def deleted_positions(
    files: FileIO, deletes: Deletes, paths: Collection[str]
) -> dict[str, NDArray[np.uint32]]:
    """Return the deleted positions of these data files, ascending."""
    named = _positions(files, deletes.files, paths)
    found = {path: np.unique(positions) for path, positions in named.items()}
    vectors = [vector for path, vector in deletes.vectors.items() if path in paths]
    for path, positions in read_vectors(files, vectors):
        found[path] = np.union1d(found[path], positions) if path in found else positions
    return found


def _positions(
    files: FileIO, deletes: Iterable[DataFile], paths: Collection[str]
) -> dict[str, NDArray[np.uint32]]:
    """Return the positions that position delete files have of these data files."""
    parts = defaultdict[str, list[NDArray[np.uint32]]](list)
    for path, positions in chain.from_iterable(read_deletes(files, f.file_path) for f in deletes):
        if path in paths:
            parts[path].append(positions)
    return {path: np.concatenate(arrays) for path, arrays in parts.items()}


def delete_rows(
    table: Table, rows: Sequence[FileRows], properties: Mapping[str, str], dropped: Collection[str]
) -> None:
    """Commit a snapshot of ``main`` without these rows.

    :param table: freshly loaded; its head has the rows
    :param properties: table properties, also added to the snapshot's summary
    :param dropped: table properties that the same commit removes
    :raises CommitConflictError: another commit came in between
    """
    change = SnapshotChange(table, Operation.DELETE, properties=properties)
    add_deletes(change, rows)
    change.commit(properties, dropped)


def trim_deletes(table: Table) -> int:
    """Remove deletes of deleted data files, and in format version 3 all position delete files.

    Otherwise the totals of all later snapshots count rows as deleted that do not exist, or twice.
    Files in a partition that is not theirs (see :func:`misplaced_files`) are moved to their own.
    The first snapshot after an upgrade is committed in any case: Snowflake needs it.

    :returns: how many delete files and vectors were replaced or removed
    :raises CommitConflictError: another commit came in between
    """
    change = SnapshotChange(table, Operation.REPLACE, properties={summaries.TRIMMED: "true"})
    corrected = change.correct_partitions()
    data = {file.file_path: file for file in change.files(ManifestContent.DATA)}
    deletes = Deletes.of(change.files(ManifestContent.DELETES))
    vectors = deletes.vectors.items()
    kept = [FileRows(data[path], _NONE) for path, v in vectors if _is_elsewhere(v, path, data)]
    if table.format_version > 2:  # vectors replace the delete files
        stale = [*(vector for path, vector in vectors if path not in data), *deletes.files]
    else:
        stale = [
            file
            for file in deletes.files
            if any(
                path not in data or _is_elsewhere(file, path, data)
                for path, _ in read_deletes(table.io, file.file_path)
            )
        ]
        by_path = _positions(table.io, stale, data.keys())
        kept = [FileRows(data[path], np.unique(positions)) for path, positions in by_path.items()]
    add_deletes(change, kept)
    change.remove(stale)
    if stale or kept or corrected or commits.lacks_snapshot(table):
        change.commit()
    return len(stale)


def misplaced_files(table: Table) -> int:
    """Return how many files are in a partition of floats or doubles that is not theirs. Of a data
    file, its bounds say which one is; a delete file has to be where its data files are, or Spark
    does not apply it."""
    fields = ((field.transform, field.kind) for field in partition_columns(table))
    if not {("identity", "float"), ("identity", "double")}.intersection(fields):
        return 0
    specs, files, misplaced = table.specs(), list(live_files(table)), 0
    data = dict[str, DataFile]()
    near: dict[tuple[object, ...], set[tuple[object, ...]]] = defaultdict(set)
    for file in files:
        if file.content == DataFileContent.DATA:
            if (partition := exact_partition(file, specs[file.spec_id])) is not None:
                manifests.set_partition(file, partition)
                misplaced += 1
            data[file.file_path] = file
            near[_rounded(file)].add(partition_of(file))
    deletes = Deletes.of(files)
    misplaced += sum(_is_elsewhere(v, path, data) for path, v in deletes.vectors.items())
    for file in deletes.files:
        if near[_rounded(file)] - {partition_of(file)}:
            paths = (path for path, _ in read_deletes(table.io, file.file_path))
            misplaced += any(_is_elsewhere(file, path, data) for path in paths)
    return misplaced


def _is_elsewhere(deletes: DataFile, path: str, data: Mapping[str, DataFile]) -> bool:
    """Return whether deletes are in another partition than the data file of this path."""
    return path in data and partition_of(data[path]) != partition_of(deletes)


def _rounded(file: DataFile) -> tuple[object, ...]:
    """Return the partition with floats for doubles, as PyIceberg reads it."""
    with np.errstate(over="ignore"):
        values = (file.partition[place] for place in range(len(file.partition)))
        rounded = [float(np.float32(v)) if isinstance(v, float) else v for v in values]
    return file.spec_id, *partition_key(rounded)


def add_deletes(change: SnapshotChange, rows: Sequence[FileRows]) -> None:
    """Add the deletes of rows to a change; the rows may be of files that it adds. In format version
    3, vectors replace all position delete files, and earlier vectors of the same data files."""
    table = change.table
    change.deleted_from += (each.file for each in rows)
    if table.format_version == 2:  # a delete file applies to its own partition only
        groups = defaultdict[object, list[FileRows]](list)
        for of_file in sorted(rows, key=lambda of_file: of_file.file.file_path):
            groups[partition_of(of_file.file)].append(of_file)
        change.add(_written(table, group) for group in groups.values())
        return
    deletes = Deletes.of(change.files(ManifestContent.DELETES))
    data = {each.file.file_path: each.file for each in rows}
    if deletes.files:  # once after an upgrade
        data |= {file.file_path: file for file in change.files(ManifestContent.DATA)}
        change.remove(deletes.files)
    deleted = deleted_positions(table.io, deletes, data.keys())
    for each in rows:
        path = each.file.file_path
        deleted[path] = np.union1d(deleted.get(path, _NONE), each.positions)
    change.remove(vector for path, vector in deletes.vectors.items() if path in deleted)
    if deleted:
        change.add(write_vectors(table, [(data[path], deleted[path]) for path in sorted(deleted)]))


def _written(table: Table, rows: Sequence[FileRows]) -> DataFile:
    """Write the delete file of one partition; return it."""
    paths = [of_file.file.file_path for of_file in rows]
    counts = [len(of_file.positions) for of_file in rows]
    positions = np.concatenate([of_file.positions for of_file in rows]).astype(np.int64)
    numbers = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    columns = [pa.DictionaryArray.from_arrays(numbers, paths), pa.array(positions)]
    schema = pa.schema(
        pa.field(name, column.type, False, {"PARQUET:field_id": str(number)})
        for (name, number), column in zip(file_columns.DELETE_FIELDS.items(), columns, strict=True)
    )
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), buffer, compression="zstd", store_schema=False)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.parquet")
    with table.io.new_output(path).create() as stream:
        stream.write(buffer.getvalue())
    return manifests.new_file(
        rows[0].file.spec_id,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=rows[0].file.partition,
        record_count=len(positions),
        file_size_in_bytes=buffer.getbuffer().nbytes,
        lower_bounds=_bounds(min(paths), positions.min()),
        upper_bounds=_bounds(max(paths), positions.max()),
    )


def _bounds(path: str, position: np.int64) -> dict[int, bytes]:
    values = path.encode(), position.astype("<i8").tobytes()
    return dict(zip(file_columns.DELETE_FIELDS.values(), values, strict=True))
