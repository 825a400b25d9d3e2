"""The proof of an erasure: every file of a table is read, and none holds a row that was erased.

It starts from nothing that the erasure found: it loads the table again, reads all manifests that
its metadata leads to, lists the table's folder, and reads the files of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, FileFormat, ManifestFile
from pyiceberg.table import Table

from topicberg.errors import TopicbergError
from topicberg.iceberg.erasure.elsewhere import data_folder, holders_elsewhere
from topicberg.iceberg.erasure.matching import Rows, is_data
from topicberg.iceberg.files import entries_by_manifest, in_parallel, manifests, place_of
from topicberg.iceberg.maintenance.orphans import listing
from topicberg.wording import count

_MAX_SHOWN = 5


@dataclass(frozen=True)
class Proof:
    """What was read, and which files hold rows that should be erased: none."""

    snapshots: int
    manifests: int
    files: int
    unreachable: int
    """Of the files: those that only the folder has."""
    holders: tuple[str, ...]


def prove(table: Table, rows: Rows) -> Proof:
    """Read every file that the metadata reaches or that is in the table's folder.

    :raises TopicbergError: a file cannot be read; or one beside the table's folder has such rows
    """
    _prove_elsewhere(table, rows)
    table.refresh()
    snapshots = table.metadata.snapshots
    manifest_files = manifests(table.io, snapshots)
    reached = {place_of(file.file_path): file for file in all_files(table, manifest_files.values())}
    for file in reached.values():
        check_format(table, file)
    paths = {p: f.file_path for p, f in reached.items() if f.file_format == FileFormat.PARQUET}
    listed = {place_of(path): path for path, _ in listing(table) if is_data(path)}
    everything = [*(paths | listed).values()]
    matches = in_parallel(lambda path: rows.in_file(table.io, path), everything)
    holders = [
        p
        for p, positions in zip(everything, matches, strict=True)
        if positions is not None and len(positions)
    ]
    return Proof(
        snapshots=len(snapshots),
        manifests=len(manifest_files),
        files=len(everything),
        unreachable=len(listed.keys() - paths.keys()),
        holders=tuple(sorted(holders)),
    )


def _prove_elsewhere(table: Table, rows: Rows) -> None:
    if not (holders := holders_elsewhere(table, rows)):
        return
    names = ", ".join(path.rpartition("/")[2] for path in holders[:_MAX_SHOWN])
    more = ", …" if len(holders) > _MAX_SHOWN else ""
    raise TopicbergError(
        f"table {'.'.join(table.name())}: no snapshot has {count(len(holders), 'file')} of its "
        f"data folder {data_folder(table)}, in which rows are left: {names}{more}",
        hint="delete these files if no other table has them, and run the command again",
    )


def all_files(table: Table, manifests: Iterable[ManifestFile]) -> list[DataFile]:
    """Return the files that manifests name, those that were removed included."""
    read = entries_by_manifest(table.io, manifests, discard_deleted=False)
    return [entry.data_file for _, entries in read for entry in entries]


def check_format(table: Table, file: DataFile) -> None:
    """Check that the rows of a file can be read.

    :raises TopicbergError: its format is not supported
    """
    if file.file_format not in (FileFormat.PARQUET, FileFormat.PUFFIN):
        raise TopicbergError(
            f"table {'.'.join(table.name())}: the file {file.file_path} is "
            f"{file.file_format.value}, and rows can be erased from Parquet only",
            hint="rewrite the table's files as Parquet, and run the command again",
        )
