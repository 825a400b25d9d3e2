"""Where the rows to erase are: in files of the head, of history, and in those without a snapshot.

A file is tainted if it has such rows, or if it is deleted, so that nothing says what it had; a
snapshot is tainted if its manifests name such a file, and has to expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table

from topicberg.iceberg.erasure.elsewhere import holders_elsewhere
from topicberg.iceberg.erasure.matching import Rows, is_data
from topicberg.iceberg.erasure.proof import all_files
from topicberg.iceberg.erasure.rewriting import check_rewritable
from topicberg.iceberg.files import (
    entries_by_manifest,
    in_parallel,
    live_files,
    manifests,
    place_of,
    without,
)
from topicberg.iceberg.maintenance.expiry import Expirable
from topicberg.iceberg.maintenance.orphans import known_files, listing
from topicberg.iceberg.position_deletes import Deletes, deleted_positions
from topicberg.iceberg.summaries import MAIN

_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class RowsToErase:
    """Where the rows to erase are."""

    rows: int = 0
    """Rows of the head."""
    live: int = 0
    """Data files of the head that have such rows, deleted ones included."""
    history: int = 0
    """Data files that only other snapshots have."""
    unreachable: int = 0
    """Files in the folder, or where the table's data files are written, that no snapshot has."""
    snapshots: int = 0
    """Snapshots that have to expire."""
    refs: tuple[str, ...] = ()
    """Branches and tags that have to be removed."""

    def __bool__(self) -> bool:
        return bool(self.live or self.history or self.unreachable)


def find(table: Table, rows: Rows) -> RowsToErase:
    """Return where the rows are; nothing is changed."""
    return RowLocations(table, rows).find()


def data_files(table: Table) -> list[str]:
    """Return the paths of all files with rows: those of all snapshots, and others in the folder."""
    manifest_files = manifests(table.refresh().io, table.metadata.snapshots).values()
    named = {place_of(file.file_path): file.file_path for file in all_files(table, manifest_files)}
    listed = {place_of(path): path for path, _ in listing(table)}
    return [path for path in (named | listed).values() if is_data(path)]


class RowLocations:
    """The positions of the rows in the files of a table; each file and manifest is read once.

    The answers are about the state of the table that was loaded last.
    """

    def __init__(self, table: Table, rows: Rows) -> None:
        self._table, self._rows = table, rows
        self._positions: dict[str, NDArray[np.int64] | None] = {}
        """Path of a file that was read → positions; None: it is deleted. Files never change."""
        self._named_files: dict[str, list[str]] = {}
        """Path of a manifest → the files that it names. Manifests never change."""

    def find(self) -> RowsToErase:
        """Load the table again, read all of its files and return where the rows are."""
        self._table.refresh()
        head = list(live_files(self._table))
        check_rewritable(self._table, head)
        manifest_files = manifests(self._table.io, self._table.metadata.snapshots)
        named = dict.fromkeys(chain.from_iterable(self._paths_by_manifest(manifest_files).values()))
        self.read(named)
        live = [file.file_path for file in head if self.has_rows(file.file_path)]
        history = [path for path in named.keys() - set(live) if self.has_rows(path)]
        outside = [path for path in self.unreachable() if self.has_rows(path)]
        outside += holders_elsewhere(self._table, self._rows)
        if not (live or history or outside):
            return RowsToErase()
        deleted, expired = self.deleted(head), self.expirable()
        return RowsToErase(
            rows=sum(len(np.setdiff1d(self.positions(path), deleted[path])) for path in live),
            live=len(live),
            history=len(history),
            unreachable=len(outside),
            snapshots=len(expired.snapshots) + self.is_head_tainted(),
            refs=tuple(sorted(expired.refs)),
        )

    # --- files ---

    def read(self, paths: Iterable[str]) -> None:
        """Read the files that are not known yet."""
        unknown = [p for p in dict.fromkeys(paths) if p not in self._positions and is_data(p)]
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
        """Return each file that has such rows → its positions that delete files delete.

        :param files: of a snapshot, with its delete files
        """
        paths = {path for path in self._positions if self.has_rows(path)}
        deleted = deleted_positions(self._table.io, Deletes.of(files), paths)
        return {path: deleted.get(path, np.empty(0, np.uint32)) for path in paths}

    def unreachable(self) -> list[str]:
        """Read the files of the folder that no metadata leads to; return them and manifests."""
        # List first: files that are committed later are in the metadata that is read next.
        listed = [path for path, _ in listing(self._table)]
        unreachable = without(listed, known_files(self._table.refresh()))
        self.read(unreachable)
        return unreachable

    # --- snapshots ---

    def is_head_tainted(self) -> bool:
        """Return whether the head names a tainted file."""
        return self._table.metadata.current_snapshot_id in self.tainted_snapshots()

    def tainted_snapshots(self) -> set[int]:
        """Return the snapshots that name a tainted file, which is read if it is not known yet."""
        tainted_by_manifest: dict[str, bool] = {}
        tainted = set()
        for snapshot in self._table.metadata.snapshots:
            manifest_files = {m.manifest_path: m for m in snapshot.manifests(self._table.io)}
            for manifest, paths in self._paths_by_manifest(manifest_files).items():
                if manifest not in tainted_by_manifest:
                    self.read(paths)
                    tainted_by_manifest[manifest] = any(map(self.is_tainted, paths))
                if tainted_by_manifest[manifest]:
                    tainted.add(snapshot.snapshot_id)
        return tainted

    def expirable(self) -> Expirable:
        """Return all tainted snapshots but the head, and the refs that lead to them."""
        tainted = self.tainted_snapshots()
        refs = self._table.metadata.refs
        gone = {name for name, ref in refs.items() if name != MAIN and ref.snapshot_id in tainted}
        head = self._table.metadata.current_snapshot_id
        return Expirable(frozenset(tainted - {head}), frozenset(gone))

    def _paths_by_manifest(
        self, manifest_files: Mapping[str, ManifestFile]
    ) -> dict[str, list[str]]:
        """Return manifest → path of each file that it names, also of removed ones."""
        new = [
            manifest for path, manifest in manifest_files.items() if path not in self._named_files
        ]
        for path, entries in entries_by_manifest(self._table.io, new, discard_deleted=False):
            self._named_files[path] = [entry.data_file.file_path for entry in entries]
        return {path: self._named_files[path] for path in manifest_files}
