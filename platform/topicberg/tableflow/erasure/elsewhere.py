"""Data files that no snapshot has, in a folder beside the table's.

A property of the table may name a folder for its data files. Other tables may have theirs there
too: what is in it is never deleted, and files that another table of the catalog has do not count.

Source: Iceberg's "Configuration", ``write.data.path`` and the properties that it replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.table import Table

from topicberg.iceberg.files import in_parallel, listed_files, place_of, without
from topicberg.iceberg.maintenance.orphans import known_files
from topicberg.tableflow.erasure.matching import Rows

_PROPERTIES = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")


def data_folder(table: Table) -> str | None:
    """Return the folder for data files that is not in the table's own; None: there is none."""
    path = next((table.properties[name] for name in _PROPERTIES if name in table.properties), None)
    if path is None:
        return None
    inside = f"{place_of(table.location()).rstrip('/')}/"
    return None if f"{place_of(path).rstrip('/')}/".startswith(inside) else path.rstrip("/")


def holders_elsewhere(table: Table, rows: Rows) -> list[str]:
    """Return the paths of files in :func:`data_folder` with such rows that no metadata leads to.

    :raises TopicbergError: a file cannot be read
    """
    if (location := data_folder(table)) is None:
        return []
    # List first: files that are committed later are in the metadata that is read next.
    listed = _listing(table, location)
    paths = sorted(without(listed, known_files(table.refresh())))

    def has_rows(path: str) -> bool:
        try:
            positions = rows.in_file(table.io, path)
        except (pa.ArrowException, TypeError):  # its columns are those of another table
            return False
        return positions is not None and len(positions) > 0

    is_holder = in_parallel(has_rows, paths)
    holders = [path for path, holds in zip(paths, is_holder, strict=True) if holds]
    for other in _others(table, location) if holders else ():
        holders = without(holders, known_files(other))
    return holders


def _others(table: Table, location: str) -> Iterator[Table]:
    """Yield the other tables of the catalog whose data files may be in a folder."""
    folder = f"{place_of(location)}/"
    for namespace in table.catalog.list_namespaces():
        for name in table.catalog.list_tables(namespace):
            if name == table.name():
                continue
            # It may be dropped meanwhile, or not be a table of Iceberg.
            with suppress(NoSuchTableError, NoSuchIcebergTableError):
                other = table.catalog.load_table(name)
                place = f"{place_of(data_folder(other) or other.location()).rstrip('/')}/"
                if place.startswith(folder) or folder.startswith(place):
                    yield other


def _listing(table: Table, location: str) -> list[str]:
    """Return the Parquet files in a folder that are not in the table's own."""
    folder = f"{place_of(table.location()).rstrip('/')}/"
    # None: as for the table's own folder, whose listing says it.
    listed = listed_files(table.io, location) or ()
    return [
        path
        for path, _ in listed
        if path.endswith(".parquet") and not place_of(path).startswith(folder)
    ]
