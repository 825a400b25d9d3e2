"""Files in a table's folder that its metadata does not contain, left by a killed writer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain

from pyiceberg.table import Table

from topicberg.errors import TopicbergError
from topicberg.iceberg import files, shared_keys
from topicberg.iceberg.delta.log import LOG_FOLDER

_OF_OTHERS = re.compile(rf"/[._](?!{shared_keys.FOLDER[1:]}/)[^/=]*/|/version-hint\.text$")
"""Files in a table's folder that other tools keep there, such as the metadata of another format.
Iceberg's procedure ``remove_orphan_files`` does not delete them either, nor partitions' folders."""


def remove_orphans(table: Table, age: timedelta, now: float | None = None) -> int:
    """Delete files older than ``age`` that no snapshot has, staged ones included; return how many.

    :param now: seconds since 1970; default: the current time
    """
    oldest = (time.time() if now is None else now) - age.total_seconds()
    location = table.location().rstrip("/")
    # List first: files that are committed later are in the metadata that is read next.
    listed = [
        path
        for path, modified in listing(table)
        if modified < oldest and not _OF_OTHERS.search(path.removeprefix(location))
    ]
    if not listed:
        return 0
    paths = known_files(table.refresh())
    if any(f"/{shared_keys.FOLDER}/" in path for path in listed):
        paths = chain.from_iterable(
            (path, shared_keys.shared_file(location, path)) for path in paths
        )
    return files.delete_files(table.io, files.without(listed, paths))


def listing(table: Table) -> list[tuple[str, float]]:
    """Return path and time of the last change (seconds since 1970) of everything in the folder."""
    listed = files.listed_files(table.io, table.location().rstrip("/"))
    if listed is None:
        raise TopicbergError(
            f"table {'.'.join(table.name())}: its file system cannot be listed",
            hint="configure the catalog to return py-io-impl: pyiceberg.io.pyarrow.PyArrowFileIO",
        )
    # Delta cleans up its own files.
    return [file for file in listed if f"/{LOG_FOLDER}/" not in file[0]]


def known_files(table: Table) -> Iterator[str]:
    """Yield the paths of all files that the table's metadata leads to."""
    metadata = table.metadata
    yield from (
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)),
        *(snapshot.manifest_list for snapshot in metadata.snapshots),
        *shared_keys.waiting_files(table.location(), metadata.snapshots),
    )
    manifest_files = files.manifests(table.io, metadata.snapshots)
    yield from manifest_files
    yield from (
        entry.data_file.file_path for entry in files.entries(table.io, manifest_files.values())
    )
