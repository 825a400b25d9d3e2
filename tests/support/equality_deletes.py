"""A table with equality deletes, which PyIceberg itself does not write."""

from __future__ import annotations

import json

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def with_equality_deletes(table: Table, summary: dict[str, str]) -> str:
    """Return a metadata file of the table whose last snapshot has an equality delete.

    :param summary: of that snapshot
    """
    folder, snapshot = f"{table.location()}/metadata", table.current_snapshot()
    output = table.io.new_output(f"{folder}/deletes.avro")
    with _DeleteManifest(
        table.spec(), table.schema(), output, snapshot.snapshot_id, "deflate"
    ) as writer:
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=f"{table.location()}/data/deletes.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=10,
            equality_ids=[1],
        )
        added = ManifestEntryStatus.ADDED
        writer.add_entry(
            ManifestEntry.from_args(
                status=added, snapshot_id=snapshot.snapshot_id, sequence_number=1, data_file=file
            )
        )
    lists = table.io.new_output(f"{folder}/snap-deletes.avro")
    with write_manifest_list(2, lists, snapshot.snapshot_id, None, 1, "deflate") as manifest_list:
        manifest_list.add_manifests([*snapshot.manifests(table.io), writer.to_manifest_file()])
    content = json.loads(table.metadata.model_dump_json())
    content["snapshots"][-1] |= {"manifest-list": lists.location, "summary": summary}
    target = table.io.new_output(f"{folder}/99999-deletes.metadata.json")
    with target.create(overwrite=True) as stream:
        stream.write(json.dumps(content).encode())
    return target.location
