"""Files in a table's folder that its metadata does not contain, left by a killed writer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

from pyarrow.fs import FileSelector, FileType
from pyiceberg.table import Table

from topicberg.errors import TopicbergError
from topicberg.iceberg.delta.log import LOG_FOLDER
from topicberg.iceberg.files import delete_files, entries, folder, manifests
from topicberg.iceberg.shared_keys import FOLDER as KEYS_FOLDER
from topicberg.iceberg.shared_keys import place_of, shared_file


def remove_orphans(table: Table, age: timedelta, now: float | None = None) -> int:
    """Delete files older than ``age`` that no snapshot has, staged ones included; return how many.

    :param now: seconds since 1970; default: the current time
    """
    oldest = (time.time() if now is None else now) - age.total_seconds()
    # List first: files that are committed later are in the metadata that is read next.
    listed = {place_of(path): path for path, modified in listing(table) if modified < oldest}
    if not listed:
        return 0
    has_keys = any(f"/{KEYS_FOLDER}/" in place for place in listed)
    for path in known_files(table.refresh()):
        listed.pop(place_of(path), None)
        if has_keys:
            listed.pop(place_of(shared_file(table.location(), path)), None)
    return delete_files(table.io, listed.values())


def listing(table: Table) -> Iterator[tuple[str, float]]:
    """Yield path and time of the last change (seconds since 1970) of everything in the folder."""
    if (place := folder(table)) is None:
        raise TopicbergError(
            f"table {'.'.join(table.name())}: its file system cannot be listed",
            hint="configure the catalog to return py-io-impl: pyiceberg.io.pyarrow.PyArrowFileIO",
        )
    files, path, prefix = place
    for info in files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
        if f"/{LOG_FOLDER}/" in info.path:  # Delta's own files, which its log cleans up
            continue
        if info.type == FileType.File and info.mtime is not None:
            yield prefix + info.path, info.mtime.timestamp()


def known_files(table: Table) -> Iterator[str]:
    """Yield the paths of all files that the table's metadata leads to."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    statistics = *metadata.statistics, *metadata.partition_statistics
    yield from (file.statistics_path for file in statistics)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)
    manifest_files = manifests(table.io, metadata.snapshots)
    yield from manifest_files
    yield from (entry.data_file.file_path for entry in entries(table.io, manifest_files.values()))
