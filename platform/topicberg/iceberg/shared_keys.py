"""Where the key file of a data file is shared: in the table's folder.

Writers share what they compute of a data file's keys (:mod:`.upsert.key_files`), so
another one need not compute it again. Losing such a file only costs time. The name of the folder
begins with an underscore: readers and Iceberg's procedure ``remove_orphan_files`` ignore it, as
they do Delta's log. Maintenance deletes a key file with its data file. The folder has the files
that list records which were left out too: snapshots name them, maintenance deletes the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg.files import delete_files, listed_files, place_of
from topicberg.iceberg.summaries import WAITING, summary

FOLDER = "_topicberg_keys"
SUFFIX = ".keys"


def file_name(data_file: str) -> str:
    """Return the name of the key file of a data file."""
    return hashlib.blake2b(place_of(data_file).encode(), digest_size=16).hexdigest() + SUFFIX


def key_folder(location: str) -> str:
    """Return the folder of a table's shared key files."""
    return f"{location.rstrip('/')}/{FOLDER}"


def shared_file(location: str, data_file: str) -> str:
    """Return the path of the shared key file of a data file of a table."""
    return f"{key_folder(location)}/{file_name(data_file)}"


def waiting_files(location: str, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the files of records that were left out, which these snapshots name."""
    names = (summary(snapshot).get(WAITING) for snapshot in snapshots)
    return {waiting_file(location, name) for name in names if name is not None}


def waiting_file(location: str, name: str) -> str:
    """Return the path of a file of records that were left out of a table."""
    return f"{key_folder(location)}/waiting-{name}.json"


def delete_shared(table: Table, data_files: Iterable[str]) -> None:
    """Delete the shared key files of data files that were deleted; most tables have none."""
    paths = [shared_file(table.location(), path) for path in data_files]
    if paths and table.io.new_input(key_folder(table.location())).exists():
        delete_files(table.io, paths)


def delete_all_shared(table: Table) -> None:
    """Delete all shared key files of a table that is to be deleted."""
    listed = listed_files(table.io, key_folder(table.location())) or ()
    delete_files(table.io, [path for path, _ in listed])
