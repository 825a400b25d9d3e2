"""Where the key file of a data file is shared: in the table's folder.

Writers share what they compute of a data file's keys (:mod:`topicberg.tableflow.key_files`), so
another one need not compute it again. Losing such a file only costs time. The name of the folder
begins with an underscore: readers and Iceberg's procedure ``remove_orphan_files`` ignore it, as
they do Delta's log. Maintenance deletes a key file with its data file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from pyiceberg.table import Table

from topicberg.iceberg.files import delete_files, folder

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//)?")

FOLDER = "_topicberg_keys"
SUFFIX = ".keys"


def place_of(path: str) -> str:
    """Return a path without its scheme: s3, s3a and s3n are equivalent."""
    return _SCHEME.sub("", path)


def file_name(data_file: str) -> str:
    """Return the name of the key file of a data file."""
    return hashlib.blake2b(place_of(data_file).encode(), digest_size=16).hexdigest() + SUFFIX


def shared_file(location: str, data_file: str) -> str:
    """Return the path of the shared key file of a data file.

    :param location: of the table
    """
    return f"{location.rstrip('/')}/{FOLDER}/{file_name(data_file)}"


def delete_shared(table: Table, data_files: Iterable[str]) -> None:
    """Delete the shared key files of data files that were deleted; most tables have none."""
    from pyarrow.fs import FileType

    paths = [shared_file(table.location(), path) for path in data_files]
    if not paths:
        return
    place = folder(table, FOLDER)
    if place is None or place[0].get_file_info(place[1]).type == FileType.Directory:
        delete_files(table.io, paths)


def delete_all_shared(table: Table) -> None:
    """Delete all shared key files of a table that is to be deleted."""
    from pyarrow.fs import FileSelector

    if (place := folder(table, FOLDER)) is not None:
        files, path, prefix = place
        found = files.get_file_info(FileSelector(path, allow_not_found=True))
        delete_files(table.io, [prefix + info.path for info in found if info.is_file])
