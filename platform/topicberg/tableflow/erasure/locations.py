"""Where the rows to erase are: in files of the head, of history, and in those without a snapshot.

A file is tainted if it has such rows, or if it is deleted, so that nothing says what it had; a
snapshot is tainted if its manifests name such a file, and has to expire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, compress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table

from topicberg.errors import TopicbergError
from topicberg.iceberg.files import (
    entries_by_manifest,
    in_parallel,
    listed_files,
    live_files,
    manifests,
    place_of,
    without,
)
from topicberg.iceberg.maintenance.expiry import Expirable
from topicberg.iceberg.maintenance.orphans import known_files, listing
from topicberg.iceberg.position_deletes import Deletes, deleted_positions
from topicberg.iceberg.summaries import MAIN
from topicberg.tableflow.erasure.matching import Rows, columns, is_data
from topicberg.tableflow.erasure.rewriting import check_format, check_rewritable, is_parquet
from topicberg.wording import count

_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)
_MAX_SHOWN = 5
_FOLDERS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties of a table that name a folder for its data files, which may be beside its own. Other
tables may have theirs there too: what is in it is never deleted, and files that another table of
the catalog has do not count.

Source: Iceberg's "Configuration", ``write.data.path`` and the properties that it replaced."""


@dataclass(frozen=True)
class Found:
    """Which files of a table were read, and where the rows to erase are."""

    rows: int = 0  # Rows of the head.
    live: int = 0  # Data files of the head that have such rows, deleted ones included.
    history: int = 0  # Data files that only other snapshots have.
    outside: tuple[str, ...] = ()  # Files in the table's folder that no snapshot has.
    elsewhere: tuple[str, ...] = ()  # The same, in another folder that the table writes to.
    expired: int = 0  # Snapshots that have to expire.
    refs: tuple[str, ...] = ()  # Branches and tags that have to be removed.
    files: int = 0  # Files that were read, of all snapshots and of the folder.
    unreachable: int = 0  # Of these files: those that only the folder has.
    snapshots: int = 0  # Snapshots whose files were read.

    @property
    def holders(self) -> int:
        """The number of files with such rows."""
        return self.live + self.history + len(self.outside) + len(self.elsewhere)


def find(table: Table, rows: Rows) -> Found:
    """Load a table again, read all of its files and return where the rows are."""
    return RowLocations(table, rows).find()


def prove(table: Table, rows: Rows) -> Found:
    """Do :func:`find`, which starts from nothing that the erasure found.

    :raises TopicbergError: a file cannot be read, or has such rows
    """
    report, name = find(table, rows), ".".join(table.name())
    if report.elsewhere:
        names = ", ".join(path.rpartition("/")[2] for path in report.elsewhere[:_MAX_SHOWN])
        more = ", …" if len(report.elsewhere) > _MAX_SHOWN else ""
        raise TopicbergError(
            f"table {name}: no snapshot has {count(len(report.elsewhere), 'file')} of its data "
            f"folder {data_folder(table)}, in which rows are left: {names}{more}",
            hint="delete these files if no other table has them, and run the command again",
        )
    if report.holders:
        raise TopicbergError(
            f"table {name}: {report.holders} of {report.files} files hold the key, which another "
            "writer wrote meanwhile",
            hint="run the command again",
        )
    return report


def file_batches(table: Table, wanted: Collection[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield columns, where a file has them, of all files with rows: of snapshots, and others."""
    locations = RowLocations(table.refresh(), Rows(table.schema(), ()))
    listed = [path for path, _ in listing(table) if is_data(path)]
    named = locations.named_files()
    for path in (*named, *without(listed, named)):
        try:
            for batch, _ in columns(table.io, path, table.schema(), wanted):
                yield path, batch
        except FileNotFoundError:  # manifests also name files that are deleted
            continue


class RowLocations:
    """The positions of the rows in the files of a table; each file and manifest is read once.

    The answers are about the state of the table that was loaded last.
    """

    def __init__(self, table: Table, rows: Rows) -> None:
        self._table, self._rows = table, rows
        self._positions: dict[str, NDArray[np.int64] | None] = {}
        """Path of a file that was read → positions; None: it is deleted. Files never change."""
        self._named_files: dict[str, list[str]] = {}
        """Path of a manifest → the files with rows that it names. Manifests never change."""

    def find(self) -> Found:
        """Load the table again, read all of its files and return where the rows are."""
        self._table.refresh()
        head = list(live_files(self._table))
        check_rewritable(self._table, head)
        named = self.named_files()
        self.read(named)
        live = [file.file_path for file in head if self.has_rows(file.file_path)]
        # A file that was removed is in no snapshot, but a manifest may still name it.
        outside = without(filter(is_data, self.unreachable()), named)
        report = Found(
            live=len(live),
            history=sum(map(self.has_rows, named.keys() - set(live))),
            outside=tuple(filter(self.has_rows, outside)),
            elsewhere=tuple(holders_elsewhere(self._table, self._rows)),
            files=len(named) + len(outside),
            unreachable=len(outside),
            snapshots=len(self._table.metadata.snapshots),
        )
        if not report.holders:
            return report
        deleted, expired = self.deleted(head), self.expirable()
        return replace(
            report,
            rows=sum(len(np.setdiff1d(self.positions(path), deleted[path])) for path in live),
            expired=len(expired.snapshots) + self.is_head_tainted(),
            refs=tuple(sorted(expired.refs)),
        )

    def named_files(self) -> dict[str, None]:
        """Return the paths of the files that all snapshots name, also of removed ones."""
        manifest_files = manifests(self._table.io, self._table.metadata.snapshots)
        return dict.fromkeys(chain.from_iterable(self._named_by(manifest_files).values()))

    def read(self, paths: Iterable[str]) -> None:
        """Read the files that are not known yet."""
        unknown = [path for path in dict.fromkeys(paths) if path not in self._positions]
        positions = in_parallel(lambda path: self._rows.in_file(self._table.io, path), unknown)
        self._positions |= zip(unknown, positions, strict=True)

    def positions(self, path: str) -> NDArray[np.int64]:
        """Return the positions of the rows in a file that was read; none if it is deleted."""
        positions = self._positions.get(path)
        return _NOTHING if positions is None else positions

    def has_rows(self, path: str) -> bool:
        """Return whether a file that was read has such rows, deleted ones included."""
        return len(self.positions(path)) > 0

    def is_tainted(self, path: str) -> bool:
        """Return whether a file that was read has such rows, or is deleted."""
        positions = self._positions.get(path, _NOTHING)
        return positions is None or len(positions) > 0

    def tainted_files(self) -> set[str]:
        """Return the paths of all files that were read and are tainted."""
        return {path for path in self._positions if self.is_tainted(path)}

    def deleted(self, files: Iterable[DataFile]) -> dict[str, NDArray[np.uint32]]:
        """Return each file of a snapshot with such rows → its positions that deletes delete."""
        paths = {path for path in self._positions if self.has_rows(path)}
        deleted = deleted_positions(self._table.io, Deletes.of(files), paths)
        return {path: deleted.get(path, np.empty(0, np.uint32)) for path in paths}

    def unreachable(self) -> list[str]:
        """Read the files of the folder that no metadata leads to; return them and manifests."""
        # List first: files that are committed later are in the metadata that is read next.
        listed = [path for path, _ in listing(self._table)]
        unreachable = without(listed, known_files(self._table.refresh()))
        self.read(filter(is_data, unreachable))
        return unreachable

    def is_head_tainted(self) -> bool:
        """Return whether the head names a tainted file."""
        return self._table.metadata.current_snapshot_id in self.tainted_snapshots()

    def tainted_snapshots(self) -> set[int]:
        """Return the snapshots that name a tainted file, which is read if it is not known yet."""
        tainted_by_manifest, tainted = dict[str, bool](), set[int]()
        for snapshot in self._table.metadata.snapshots:
            manifest_files = {m.manifest_path: m for m in snapshot.manifests(self._table.io)}
            for manifest, paths in self._named_by(manifest_files).items():
                if manifest not in tainted_by_manifest:
                    self.read(paths)
                    tainted_by_manifest[manifest] = any(map(self.is_tainted, paths))
                if tainted_by_manifest[manifest]:
                    tainted.add(snapshot.snapshot_id)
        return tainted

    def expirable(self) -> Expirable:
        """Return all tainted snapshots but the head, and the refs that lead to them."""
        tainted, refs = self.tainted_snapshots(), self._table.metadata.refs
        names = {name for name, ref in refs.items() if name != MAIN and ref.snapshot_id in tainted}
        head = self._table.metadata.current_snapshot_id
        return Expirable(frozenset(tainted - {head}), frozenset(names))

    def _named_by(self, manifest_files: Mapping[str, ManifestFile]) -> dict[str, list[str]]:
        """Return manifest → path of each file that it names, also of removed ones."""
        new = [m for path, m in manifest_files.items() if path not in self._named_files]
        for path, entries in entries_by_manifest(self._table.io, new, discard_deleted=False):
            files = [entry.data_file for entry in entries]
            for file in files:
                check_format(self._table, file)
            self._named_files[path] = [file.file_path for file in files if is_parquet(file)]
        return {path: self._named_files[path] for path in manifest_files}


def data_folder(table: Table) -> str | None:
    """Return the folder for data files that is not in the table's own; None: there is none."""
    path = next((table.properties[name] for name in _FOLDERS if name in table.properties), None)
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
    own = f"{place_of(table.location()).rstrip('/')}/"
    # List first: files that are committed later are in the metadata that is read next. If PyArrow
    # cannot list the folder, the listing of the table's own says so.
    files = (path for path, _ in listed_files(table.io, location) or ())
    listed = [p for p in files if p.endswith(".parquet") and not place_of(p).startswith(own)]
    paths = sorted(without(listed, known_files(table.refresh())))

    def has_rows(path: str) -> bool:
        try:
            positions = rows.in_file(table.io, path)
        except (pa.ArrowException, TypeError):  # its columns are those of another table
            return False
        return positions is not None and len(positions) > 0

    holders = [*compress(paths, in_parallel(has_rows, paths))]
    for other in _others(table, location) if holders else ():
        holders = without(holders, known_files(other))
    return holders


def _others(table: Table, location: str) -> Iterator[Table]:
    """Yield the other tables of the catalog whose data files may be in a folder."""
    folder = f"{place_of(location)}/"
    for namespace in table.catalog.list_namespaces():
        for name in {*table.catalog.list_tables(namespace)} - {table.name()}:
            # It may be dropped meanwhile, or not be a table of Iceberg.
            with suppress(NoSuchTableError, NoSuchIcebergTableError):
                other = table.catalog.load_table(name)
                place = f"{place_of(data_folder(other) or other.location()).rstrip('/')}/"
                if place.startswith(folder) or folder.startswith(place):
                    yield other
