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
from typing import TYPE_CHECKING

from topicberg.iceberg.files import delete_files

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table

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
    paths = [shared_file(table.location(), path) for path in data_files]
    if paths and _has_folder(table):
        delete_files(table.io, paths)


def delete_all_shared(table: Table) -> None:
    """Delete all shared key files of a table that is to be deleted."""
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if isinstance(table.io, PyArrowFileIO):
        files, folder, prefix = _place(table, table.io)
        found = files.get_file_info(FileSelector(folder, allow_not_found=True))
        delete_files(table.io, [prefix + info.path for info in found if info.is_file])


def _has_folder(table: Table) -> bool:
    from pyarrow.fs import FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(table.io, PyArrowFileIO):
        return True
    files, folder, _ = _place(table, table.io)
    return bool(files.get_file_info(folder).type == FileType.Directory)


def _place(table: Table, io: PyArrowFileIO) -> tuple[FileSystem, str, str]:
    """Return the file system, the folder in it, and what precedes its paths."""
    location = f"{table.location().rstrip('/')}/{FOLDER}"
    scheme, netloc, path = io.parse_location(location)
    return io.fs_by_scheme(scheme, netloc), path, location.removesuffix(path)
