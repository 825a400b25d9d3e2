"""Data files without some of their rows, and the commit that replaces files by such files."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.types import NestedField

from topicberg.iceberg.erasure.matching import ROWS_AT_ONCE
from topicberg.iceberg.position_deletes import DeleteFilesChange

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.table import Table


def rewritten(table: Table, file: DataFile, dropped: NDArray[np.int64]) -> DataFile | None:
    """Write a data file again without some rows; return it, or None if no row is left.

    Columns, types and order are those of the file, and so is its partition.

    :param dropped: positions, ascending
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(dropped) >= file.record_count:
        return None
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-erased.parquet")
    codec = table.properties.get("write.parquet.compression-codec", "zstd")
    with table.io.new_input(file.file_path).open() as source:
        parquet, first = pq.ParquetFile(source), 0
        with (
            table.io.new_output(path).create() as target,
            pq.ParquetWriter(
                target,
                parquet.schema_arrow.remove_metadata(),
                compression="none" if codec == "uncompressed" else codec,
                store_schema=False,
                store_decimal_as_integer=True,  # as the Iceberg specification requires
            ) as writer,
        ):
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                stays = ~np.isin(np.arange(first, first + batch.num_rows), dropped)
                first += batch.num_rows
                if stays.any():
                    writer.write_batch(batch.filter(pa.array(stays)))
        arrow = parquet.schema_arrow
    return _described(table, file, path, writer.writer.metadata, arrow)


def _described(
    table: Table, file: DataFile, path: str, metadata: pq.FileMetaData, arrow: object
) -> DataFile:
    """Return a written file with its statistics, in place of another one."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        pyarrow_to_schema,
    )

    inside = pyarrow_to_schema(arrow)
    # The table's properties name its columns; the file may have other names and narrower types.
    names = {field.field_id: field.name for field in table.schema().fields}
    own = Schema(
        *(
            NestedField(f.field_id, names.get(f.field_id, f.name), f.field_type, required=False)
            for f in inside.fields
        )
    )
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=compute_statistics_plan(own, table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(inside),
    )
    found = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        file_size_in_bytes=len(table.io.new_input(path)),
        sort_order_id=file.sort_order_id,
        **statistics.to_serialized_dict(),
    )
    found.spec_id = file.spec_id
    return found


class ReplaceFiles(DeleteFilesChange):
    """A snapshot with some data files replaced; or, without any, one that names only live files.

    The manifests of the first record the replaced files, so that what is derived from their rows
    is found. Those of the second record nothing of files that are not part of the table any more.
    """

    def __init__(
        self,
        table: Table,
        files: Mapping[str, DataFile | None],
        operation: Operation,
        properties: Mapping[str, str],
    ) -> None:
        """:param files: path of a live data file → the one in its place; None: nothing"""
        super().__init__(
            operation, table.transaction(), table.io, snapshot_properties=dict(properties)
        )
        self._replaced = files
        self._content = ManifestContent.DATA
        for new in files.values():
            if new is not None:
                self.append_data_file(new)
        head = table.current_snapshot()
        self._held = [] if head is None else head.manifests(table.io)
        self._entries = {
            manifest.manifest_path: manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            for manifest in self._held
        }
        for entries in self._entries.values():
            for entry in entries:
                if entry.data_file.file_path in files and _is_live(entry):
                    self.delete_data_file(entry.data_file)

    def _manifests(self) -> list[ManifestFile]:
        found: list[ManifestFile] = []
        added: dict[int, list[ManifestEntry]] = defaultdict(list)
        removed: dict[int, list[ManifestEntry]] = defaultdict(list)
        for file in self._added_data_files:
            added[file.spec_id].append(ManifestEntry.from_args(data_file=file))
        for manifest in self._held:
            entries = self._entries[manifest.manifest_path]
            live = [entry for entry in entries if _is_live(entry)]
            gone = [entry for entry in live if entry.data_file.file_path in self._replaced]
            removed[manifest.partition_spec_id] += gone
            if not gone and (self._replaced or len(live) == len(entries)):
                if live:
                    found.append(manifest)
                continue
            if rest := [e for e in live if e.data_file.file_path not in self._replaced]:
                self._content = manifest.content
                found.append(self._written(manifest.partition_spec_id, rest, "existing"))
        self._content = ManifestContent.DATA
        for number in sorted({*added, *removed}):
            if added[number]:
                found.append(self._written(number, added[number], "add"))
            if removed[number]:
                found.append(self._written(number, removed[number], "delete"))
        return found

    def _written(self, spec_id: int, entries: list[ManifestEntry], how: str) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for entry in entries:
                getattr(writer, how)(entry)
        return writer.to_manifest_file()

    def new_manifest_writer(self, spec: object) -> ManifestWriter:
        if self._content == ManifestContent.DELETES:
            return super().new_manifest_writer(spec)  # type: ignore[arg-type]
        return _SnapshotProducer.new_manifest_writer(self, spec)  # type: ignore[arg-type]


def _is_live(entry: ManifestEntry) -> bool:
    return entry.status != ManifestEntryStatus.DELETED
