"""Position deletes: rows of data files that are no longer part of a table.

Source: Iceberg spec, "Position Delete Files": a row for each deleted row, with the data file's path
and the row's position in it, sorted by both; in a manifest of its own kind. PyIceberg reads them;
its writer of manifests supports only data files, so it is extended here.
"""

from __future__ import annotations

import io
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import (
    Operation,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT

from topicberg.iceberg.commits import commit_on_head
from topicberg.iceberg.files import live_files, partition_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_PATH, _POSITION = "file_path", "pos"
_FIELD_IDS = {_PATH: 2147483546, _POSITION: 2147483545}
"""Reserved by the Iceberg spec."""


@dataclass(frozen=True)
class FileRows:
    """Rows of a data file, by their positions, ascending."""

    file: DataFile
    positions: NDArray[np.uint32]


def read_deletes(files: FileIO, path: str) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    """Yield each data file's path and its deleted positions, from a position delete file."""
    import pyarrow.parquet as pq

    with files.new_input(path).open() as stream:
        deletes = pq.read_table(
            stream, columns=[_PATH, _POSITION], read_dictionary=[_PATH]
        ).combine_chunks()
    if not deletes.num_rows:
        return
    paths = deletes.column(_PATH).unify_dictionaries().combine_chunks()
    positions = deletes.column(_POSITION).to_numpy().astype(np.uint32)
    number_of_path = paths.indices.to_numpy()
    order = np.argsort(number_of_path, kind="stable")
    numbers, starts = np.unique(number_of_path[order], return_index=True)
    for number, part in zip(numbers, np.split(positions[order], starts[1:]), strict=True):
        yield paths.dictionary[int(number)].as_py(), part


def live_rows(table: Table) -> int:
    """Return the rows of the current snapshot that are not deleted by position."""
    files = list(live_files(table))
    if _has_vectors(files):
        return table.scan().count()
    rows = {f.file_path: f.record_count for f in files if f.content == DataFileContent.DATA}
    deleted: dict[str, list[NDArray[np.uint32]]] = defaultdict(list)
    for file in files:
        if file.content == DataFileContent.POSITION_DELETES:
            for path, positions in read_deletes(table.io, file.file_path):
                if path in rows:  # a delete file may name deleted data files
                    deleted[path].append(positions)
    counts = (len(np.unique(np.concatenate(parts))) for parts in deleted.values())
    return sum(rows.values()) - sum(counts)


def _has_vectors(files: Iterable[DataFile]) -> bool:
    """Return whether another writer wrote deletion vectors, which are of Iceberg's format 3."""
    return any(file.file_format == FileFormat.PUFFIN for file in files)


def stage_deletes(table: Table, head: Snapshot, rows: Sequence[FileRows], branch: str) -> int:
    """Commit a snapshot without these rows to a new branch.

    It writes one delete file for every partition that has such rows: later readers open each.

    :param head: the head of ``main``, the snapshot's parent, which has the rows
    :returns: the snapshot's id
    :raises CommitConflictError: another commit came in between
    """
    snapshot = DeleteFilesChange(Operation.DELETE, table.transaction(), table.io, branch=branch)
    snapshot._parent_snapshot_id = head.snapshot_id  # the branch does not exist yet
    _add(table, snapshot, rows)
    commit_on_head(table, snapshot)
    return snapshot.snapshot_id


def delete_rows(
    table: Table, rows: Sequence[FileRows], properties: Mapping[str, str], dropped: Collection[str]
) -> None:
    """Commit a snapshot of ``main`` without these rows.

    :param table: freshly loaded; its head has the rows
    :param properties: table properties, also added to the snapshot's summary
    :param dropped: table properties that the same commit removes
    :raises CommitConflictError: another commit came in between
    """
    snapshot = DeleteFilesChange(
        Operation.DELETE,
        table.transaction(),
        table.io,
        snapshot_properties=dict(properties),
    )
    _add(table, snapshot, rows)
    commit_on_head(table, snapshot, properties, dropped)


def trim_deletes(table: Table) -> int:
    """Remove rows of deleted data files from delete files.

    Otherwise the totals of all later snapshots count rows as deleted that do not exist.

    :returns: how many delete files were replaced
    :raises CommitConflictError: another commit came in between
    """
    head = table.current_snapshot()
    if head is None:
        return 0
    files = list(live_files(table))
    if _has_vectors(files):
        return 0
    data = {file.file_path: file for file in files if file.content == DataFileContent.DATA}
    seen: dict[str, list[NDArray[np.uint32]]] = defaultdict(list)
    stale = []
    for file in files:
        if file.content == DataFileContent.POSITION_DELETES:
            named = dict(read_deletes(table.io, file.file_path))
            if named.keys() <= data.keys():
                continue
            stale.append(file)
            for path in named.keys() & data.keys():
                seen[path].append(named[path])
    if not stale:
        return 0
    rows = [FileRows(data[path], np.unique(np.concatenate(parts))) for path, parts in seen.items()]
    snapshot = DeleteFilesChange(Operation.REPLACE, table.transaction(), table.io)
    for file in stale:
        snapshot.delete_data_file(file)
    _add(table, snapshot, rows)
    commit_on_head(table, snapshot)
    return len(stale)


def _add(table: Table, snapshot: DeleteFilesChange, rows: Iterable[FileRows]) -> None:
    for of_partition in _by_partition(rows):
        snapshot.append_data_file(_written(table, of_partition))


def _by_partition(rows: Iterable[FileRows]) -> list[list[FileRows]]:
    """Return the rows grouped by partition: a delete file applies to its own partition only."""
    groups: dict[tuple[object, ...], list[FileRows]] = defaultdict(list)
    for of_file in sorted(rows, key=lambda of_file: of_file.file.file_path):
        groups[partition_of(of_file.file)].append(of_file)
    return list(groups.values())


def _written(table: Table, rows: Sequence[FileRows]) -> DataFile:
    """Write the delete file of one partition; return it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [of_file.file.file_path for of_file in rows]
    counts = [len(of_file.positions) for of_file in rows]
    positions = np.concatenate([of_file.positions for of_file in rows]).astype(np.int64)
    numbers = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    schema = pa.schema(
        [
            pa.field(name, kind, False, {"PARQUET:field_id": str(_FIELD_IDS[name])})
            for name, kind in (
                (_PATH, pa.dictionary(pa.int32(), pa.string())),
                (_POSITION, pa.int64()),
            )
        ]
    )
    columns = [pa.DictionaryArray.from_arrays(numbers, paths), pa.array(positions)]
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), buffer, compression="zstd", store_schema=False)
    name = f"{uuid.uuid4()}-deletes.parquet"
    path = table.location_provider().new_data_location(name)
    with table.io.new_output(path).create() as stream:
        stream.write(buffer.getvalue())
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=rows[0].file.partition,
        record_count=len(positions),
        file_size_in_bytes=buffer.getbuffer().nbytes,
        lower_bounds=_bounds(min(paths), positions.min()),
        upper_bounds=_bounds(max(paths), positions.max()),
    )
    deletes.spec_id = rows[0].file.spec_id
    return deletes


def _bounds(path: str, position: np.int64) -> dict[int, bytes]:
    return {
        _FIELD_IDS[_PATH]: path.encode(),
        _FIELD_IDS[_POSITION]: position.astype("<i8").tobytes(),
    }


class _DeleteManifestWriter(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class DeleteFilesChange(_FastAppendFiles):
    """A snapshot that adds and removes delete files, of any of the table's partition specs."""

    def _manifests(self) -> list[ManifestFile]:
        def spec_id(file: DataFile) -> int:
            return file.spec_id

        written = []
        for number, files in groupby(sorted(self._added_data_files, key=spec_id), spec_id):
            with self.new_manifest_writer(self.spec(number)) as writer:
                for file in files:
                    writer.add(ManifestEntry.from_args(data_file=file))
            written.append(writer.to_manifest_file())
        return written + [self._without_removed(each) for each in self._existing_manifests()]

    def _without_removed(self, manifest: ManifestFile) -> ManifestFile:
        removed = {file.file_path for file in self._deleted_data_files}
        if manifest.content != ManifestContent.DELETES or not removed:
            return manifest
        entries = manifest.fetch_manifest_entry(self._io)
        if not any(entry.data_file.file_path in removed for entry in entries):
            return manifest
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in entries:
                if entry.data_file.file_path in removed:
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return _DeleteManifestWriter(
            spec=spec,
            schema=self.schema(),
            output_file=self.new_manifest_output(),
            snapshot_id=self._snapshot_id,
            avro_compression=self._compression,
        )

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        collector = SnapshotSummaryCollector()
        for file in self._added_data_files:
            collector.add_file(file, self.schema(), self.spec(file.spec_id))
        for file in self._deleted_data_files:
            collector.remove_file(file, self.schema(), self.spec(file.spec_id))
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or 0)
        changed = Summary(operation=Operation.DELETE, **collector.build(), **snapshot_properties)
        # PyIceberg computes totals only for some operations.
        summary = update_snapshot_summaries(changed, parent.summary if parent else None)
        return Summary(operation=self._operation, **summary.additional_properties)
