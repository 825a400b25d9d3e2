"""Manifests and manifest lists of the format versions 2 and 3.

PyIceberg reads none of the fields that version 3 added, and writes none of its manifests. Here
every file is read with them (None in version 2): the id of its first row, and where a deletion
vector is. Partition values of doubles are exact, which PyIceberg reads as floats.

Source: Iceberg spec, "Manifests", "Manifest Lists", "First Row ID Inheritance" and "First Row ID
Assignment".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from topicberg.errors import TopicbergError

Version = Literal[2, 3]
NEWEST: Version = 3

_PLACES = {field.name: place for place, field in enumerate(DATA_FILE_TYPE[NEWEST].fields)}
_FIRST_ROW_ID = _PLACES["first_row_id"]
_OF_MANIFEST = len(MANIFEST_LIST_FILE_SCHEMAS[NEWEST].fields) - 1
"""The place of ``first_row_id`` in a manifest list's entry."""


def new_file(spec_id: int, **fields: Any) -> DataFile:
    """Return the metadata of a new file; see the Iceberg spec, "Data File Fields"."""
    file = DataFile.from_args(NEWEST, **fields)
    file.spec_id = spec_id
    return file


def set_partition(file: DataFile, partition: Record) -> None:
    """Change the partition that the metadata of a file says."""
    file[_PLACES["partition"]] = partition


def referenced_file(vector: DataFile) -> str:
    """Return the path of the data file whose rows a deletion vector deletes.

    :raises TopicbergError: its metadata does not say it, as the specification requires
    """
    path: str | None = vector[_PLACES["referenced_data_file"]]
    if path is None:
        raise TopicbergError(
            f"file {vector.file_path}: the metadata of a deletion vector names no data file",
            hint="roll the table back to a snapshot before it, and report it to who wrote it",
        )
    return path


def first_row_id(file: DataFile) -> int | None:
    """Return the id of the first row of a data file; None: it has none."""
    return cast("int | None", file[_FIRST_ROW_ID])


def content_range(file: DataFile) -> tuple[int, int]:
    """Return offset and length of a deletion vector in its file."""
    return file[_PLACES["content_offset"]], file[_PLACES["content_size_in_bytes"]]


def is_vector(file: DataFile) -> bool:
    """Return whether it is a deletion vector: one of several in its file."""
    return (
        file.content == DataFileContent.POSITION_DELETES and file.file_format == FileFormat.PUFFIN
    )


def bounds_of(file: DataFile, field_id: int) -> tuple[bytes | None, bytes | None]:
    """Return the lower and the upper bound of a column; None: the file's metadata has none."""
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return lower.get(field_id), upper.get(field_id)


def size_of(file: DataFile) -> int:
    """Return the bytes of a file; of a deletion vector, those of the vector."""
    return content_range(file)[1] if is_vector(file) else file.file_size_in_bytes


def identity(file: DataFile) -> tuple[str, int | None]:
    """Return what identifies a file; many deletion vectors have one path."""
    return file.file_path, file[_PLACES["content_offset"]]


def read_manifests(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the manifests of a snapshot, with the ids of their first rows."""
    with AvroFile[ManifestFile](
        io.new_input(snapshot.manifest_list),
        MANIFEST_LIST_FILE_SCHEMAS[NEWEST],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        return list(reader)


class _ExactDoubles:
    """PyIceberg's compiled decoder, but for doubles: up to 0.12 it reads 0.1 as the nearest float.
    The methods of the compiled decoder are attributes, so they are called without a detour."""

    def __init__(self, decoder: BinaryDecoder) -> None:
        for name in dir(decoder):
            if name.startswith(("read", "skip", "tell")):
                setattr(self, name, getattr(decoder, name))
        self.read_double = lambda: STRUCT_DOUBLE.unpack(decoder.read(STRUCT_DOUBLE.size))[0]


class _EntriesFile(AvroFile[ManifestEntry]):
    """A manifest whose doubles are read exactly."""

    def _read_block(self) -> int:
        records = super()._read_block()
        if self.block is not None:
            exact = _ExactDoubles(self.block.block_decoder)
            self.block.block_decoder = cast("BinaryDecoder", exact)
        return records


def read_entries(
    io: FileIO, manifest: ManifestFile, *, discard_deleted: bool = True
) -> list[ManifestEntry]:
    """Return the entries of a manifest; one of :func:`read_manifests` has the ids of first rows."""
    with _EntriesFile(
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[NEWEST],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        entries = [
            _inherited(entry, manifest)
            for entry in reader
            if not discard_deleted or entry.status != ManifestEntryStatus.DELETED
        ]
    next_id = manifest[_OF_MANIFEST] if len(manifest) > _OF_MANIFEST else None
    if next_id is not None and manifest.content == ManifestContent.DATA:
        for entry in entries:
            file = entry.data_file
            if entry.status != ManifestEntryStatus.DELETED and file[_FIRST_ROW_ID] is None:
                file[_FIRST_ROW_ID] = next_id
                next_id += file.record_count
    return entries


def _inherited(entry: ManifestEntry, manifest: ManifestFile) -> ManifestEntry:
    """Return an entry with what is its manifest's (the spec's "Sequence Number Inheritance")."""
    if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
        entry.snapshot_id = manifest.added_snapshot_id
    if manifest.sequence_number == 0 or entry.status == ManifestEntryStatus.ADDED:
        for name in ("sequence_number", "file_sequence_number"):
            if getattr(entry, name) is None:
                setattr(entry, name, manifest.sequence_number)
    entry.data_file.spec_id = manifest.partition_spec_id
    return entry


def read_schema(io: FileIO, manifest: ManifestFile) -> Schema:
    """Return the schema with whose types the partitions of a manifest were written."""
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path), MANIFEST_ENTRY_SCHEMAS[NEWEST]
    ) as reader:
        return Schema.model_validate_json(reader.header.meta["schema"])


class ManifestWriter(ManifestWriterV2):
    """Writes a manifest of data files or of delete files, in either version."""

    def __init__(self, version: Version, content: ManifestContent, *arguments: Any) -> None:
        """:param arguments: spec, schema, output, id of the snapshot, compression"""
        super().__init__(*arguments)
        self._version, self._content = version, content

    @property
    def version(self) -> Version:
        return self._version

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": self._content.name.lower()}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(NEWEST),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class _ListWriter(ManifestListWriterV2):
    """A manifest list of either version."""

    def __init__(self, version: Version, first_row_id: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._format_version = version
        self._meta["format-version"] = str(version)
        if version == NEWEST:
            self._meta["first-row-id"] = str(first_row_id)

    def __enter__(self) -> _ListWriter:
        self._writer = AvroOutputFile[ManifestFile](
            output_file=self._output_file,
            record_schema=MANIFEST_LIST_FILE_SCHEMAS[NEWEST],
            file_schema=MANIFEST_LIST_FILE_SCHEMAS[self._format_version],
            schema_name="manifest_file",
            metadata=self._meta,
        )
        self._writer.__enter__()
        return self


def write_manifest_list(
    version: Version, manifests: Iterable[ManifestFile], first_row_id: int, **arguments: Any
) -> int:
    """Write the manifest list of a new snapshot; return how many row ids it assigns.

    :param first_row_id: the table's next row id; data manifests that have none begin from there on
    :param arguments: those of PyIceberg's writer of manifest lists
    """
    next_id, listed = first_row_id, []
    for manifest in manifests:
        fields = [*(manifest[place] for place in range(len(manifest))), None][: _OF_MANIFEST + 1]
        is_data = manifest.content == ManifestContent.DATA
        if version == NEWEST and is_data and fields[_OF_MANIFEST] is None:
            fields[_OF_MANIFEST] = next_id
            next_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        listed.append(ManifestFile(*fields))
    with _ListWriter(version, first_row_id, **arguments) as writer:
        writer.add_manifests(listed)
    return next_id - first_row_id
