"""The index of an upsert table's keys: the rows that a batch replaces are looked up, not scanned.

Every data file of a table has a *key file* (:mod:`.upsert.key_files`) in the state
directory: a hash of each row's key, sorted, and the row's position. A data file never changes, so
its key file stays valid. A missing key file is copied from the table's folder, where the writer
that computed it shares it, and computed from the data file if it is not there either, or damaged.
Which rows are deleted already is read from the snapshot's delete files. So the index always agrees
with the table, whoever commits to it and whatever is killed.

Hash: 128 bits, SipHash twice, keyed by the table's UUID. No producer knows the UUID, so no producer
can construct two keys whose hashes collide. A decoded key of an upsert table has 112 bits, and 16
of the row's partition: equal keys are found in all partitions, and a row of another one is known
without reading it.

What each part costs:

- a batch: for each data file a tenth of a millisecond, and one bit for each of its keys (1.3 ns);
  for each row that it replaces, one place of one key file;
- the state directory and the table's folder: 22 bytes a row;
- memory: a bit a row of the files with deleted rows. Key files are mapped;
- an engine that takes over the topic: one copy of the key files.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.files import topic_file
from topicberg.iceberg.files import entries_by_manifest, in_parallel
from topicberg.iceberg.manifests import identity
from topicberg.iceberg.position_deletes import Deletes, FileRows, read_deletes, read_rows
from topicberg.iceberg.shared_keys import delete_shared, file_name, shared_file
from topicberg.iceberg.vectors import read_vectors
from topicberg.tableflow.upsert import key_files
from topicberg.tableflow.upsert.key_files import HeldKeys, Keys, Seal, in_order, unusable
from topicberg.tableflow.upsert.key_hashing import KeyHasher, times_of
from topicberg.tableflow.values.logs import log_number

logger = logging.getLogger(__name__)

SHARED_ROWS = 10_000
"""Key files of fewer rows are not shared: reading the data file takes as long."""
_UNUSED_SECONDS = 3600.0
"""The minimum age of a key file that is deleted: another process may have just created it."""
_RANGE_ROWS = 4_000_000
"""Rows of a table whose keys are compared with each other at once."""
_Chosen = tuple[NDArray[Any], ...]


def key_folder(state_dir: Path, topic: str) -> Path:
    """Return the folder of the key files of a topic's table, in the state directory."""
    return topic_file(state_dir / "tableflow" / "keys", topic).with_suffix("")


def forget(state_dir: Path, topic: str) -> None:
    """Remove the key files of a topic whose table was deleted."""
    shutil.rmtree(key_folder(state_dir, topic), ignore_errors=True)


def forget_files(state_dir: Path, topic: str, table: Table, paths: Collection[str]) -> None:
    """Remove the key files of data files that were deleted, here and where they are shared."""
    delete_shared(table, paths)
    for path in paths:
        for found in key_folder(state_dir, topic).glob(f"*/{file_name(path)}"):
            found.unlink(missing_ok=True)


def index_of(
    state_dir: Path, topic: str, hasher: KeyHasher, known: KeyIndex | None = None
) -> KeyIndex:
    """Return the index of a table: the known one, if it is of the same keys."""
    if known is not None and known.hasher.of == hasher.of:
        known.hasher.decode = hasher.decode
        return known
    return KeyIndex(key_folder(state_dir, topic), hasher)


class KeyIndex:
    """The keys of one table. Not thread-safe; any number of processes may share the folder."""

    def __init__(self, folder: Path, hasher: KeyHasher) -> None:
        """:param folder: of the topic; holds a folder for its table"""
        self.hasher, self.store = hasher, KeyStore(folder, hasher)
        self._deleted = DeletedRows()
        self._files: dict[str, tuple[DataFile, ...]] = {}  # by manifest; manifests never change

    def keyed_rows(
        self, table: Table, head: Snapshot, keys: Keys
    ) -> list[tuple[FileRows, NDArray[np.intp]]]:
        """Return the live rows that have one of these sorted keys, and the places of their keys.

        Decoded keys are equal in all partitions.
        """
        are_decoded = self.hasher.key is not None

        def choose(file_keys: HeldKeys) -> _Chosen:
            wanted, rows = file_keys.equal(keys, are_decoded=are_decoded)
            order = np.argsort(file_keys.position[rows])
            return file_keys.position[rows[order]], wanted[order]

        return [(of_file, wanted) for of_file, wanted in self._chosen_rows(table, head, choose)]

    def rows_with(self, table: Table, head: Snapshot, keys: Keys) -> list[FileRows]:
        """Return the live rows of a snapshot that have one of these sorted keys."""
        return self._rows(table, head, lambda places: places.positions_of(keys))

    def all_rows(self, table: Table, head: Snapshot) -> list[FileRows]:
        """Return all live rows of a snapshot."""
        return self._rows(table, head, lambda places: np.sort(places.position))

    def rows_without(self, table: Table, head: Snapshot, kept: Keys) -> list[FileRows]:
        """Return the live rows of a snapshot that have none of these sorted keys."""

        def others(file_keys: HeldKeys) -> NDArray[np.uint32]:
            stay = file_keys.positions_of(kept, are_decoded=self.hasher.key is not None)
            return np.setdiff1d(file_keys.position, stay)

        return self._rows(table, head, others)

    def older_rows(
        self, table: Table, head: Snapshot, keys: Keys, times: NDArray[np.int64]
    ) -> tuple[list[FileRows], NDArray[np.bool_]]:
        """Return the rows of a snapshot that the newest records of decoded keys, sorted, replace.

        Also return which of the records are older than a row of their key, which is of another
        partition: they change nothing.

        :param times: of the records, at the places of the keys
        """
        assert self.hasher.key is not None  # noqa: S101  the keys are decoded
        stale, replaced = np.zeros(len(keys.high), np.bool_), []

        def choose(file_keys: HeldKeys) -> _Chosen:
            places, rows = file_keys.equal(keys, are_decoded=True)
            order = np.argsort(file_keys.position[rows])
            return file_keys.position[rows[order]], places[order], file_keys.low[rows[order]]

        for of_file, places, low in self._chosen_rows(table, head, choose):
            stays, is_moved = np.zeros(len(places), np.bool_), low != keys.low[places]
            if is_moved.any():
                moved = np.flatnonzero(is_moved)
                rows = FileRows(of_file.file, of_file.positions[moved])
                names = [self.hasher.key.time, self.hasher.key.raw]
                micros, raw = read_rows(table, rows, names).columns
                held_times = times_of(micros, raw, self.hasher.key)
                own_times = times[keys.position[places[moved]]]
                # As in Keys.is_newest: the higher partition if the times are equal.
                is_newer = (held_times > own_times) | (
                    (held_times == own_times) & (low[moved] > keys.low[places[moved]])
                )
                stays[moved[is_newer]] = True
                stale[places[moved[is_newer]]] = True
            if not stays.all():
                replaced.append(FileRows(of_file.file, of_file.positions[~stays]))
        return replaced, stale

    def repeated_rows(self, table: Table, head: Snapshot) -> list[FileRows]:
        """Return the rows of a snapshot whose key a newer row has.

        They are there if keys became equal: the table was written when raw keys were compared, or
        by an older version of the key's schema. Or another writer brought replaced rows back.
        """
        chosen_rows = self._chosen_rows(table, head, lambda keys: (np.sort(keys.position),))
        rows_and_keys = [(rows, self.store.keys_of(table, rows.file)) for rows, *_ in chosen_rows]
        files = [rows.file for rows, _ in rows_and_keys]
        by_file: dict[int, list[NDArray[np.uint32]]] = {}
        for numbers, keys in _in_ranges(rows_and_keys):
            for number, positions in self._repeated(table, files, numbers, keys).items():
                by_file.setdefault(number, []).append(positions)
        return [
            FileRows(files[number], np.sort(np.concatenate(positions)))
            for number, positions in sorted(by_file.items())
        ]

    def _repeated(
        self, table: Table, files: Sequence[DataFile], numbers: NDArray[np.int32], keys: Keys
    ) -> dict[int, NDArray[np.uint32]]:
        """Return, by file, the rows of keys with a newer row; ``numbers``: of the files of keys."""
        ordered, key = in_order(keys.high, keys.low), self.hasher.key
        same = ~ordered.is_last()[:-1] if key is None else ordered.is_same()
        repeated = np.append(same, False) | np.append(False, same)
        places = ordered.position[repeated[: len(ordered.high)]]
        if not len(places):
            return {}
        times, offsets = np.empty(len(keys.high), np.int64), np.empty(len(keys.high), np.int64)
        for number in np.unique(numbers[places]):
            of_file = places[numbers[places] == number]
            of_file = of_file[np.argsort(keys.position[of_file])]
            rows = FileRows(files[number], keys.position[of_file])
            names = [self.hasher.offset, self.hasher.time, *([] if key is None else [key.raw])]
            column, time, *raw = read_rows(table, rows, names).columns
            if key is not None:
                times[of_file] = times_of(time, raw[0], key)
            else:
                times[of_file] = time.cast("int64").combine_chunks().fill_null(-1).to_numpy()
            offsets[of_file] = column.combine_chunks().fill_null(-1).to_numpy()
        high, low = keys.high[places], keys.low[places]
        # Of one partition, the higher offset; of several logs, the later time; of several
        # partitions, as between records.
        order = [offsets[places], times[places]] if log_number(table) else [offsets[places]]
        places = places[np.lexsort((*order, low, high))]
        repeated_keys = Keys(
            keys.high[places], keys.low[places], np.arange(len(places), dtype=np.uint32)
        )
        # Without a schema, equal keys are of one partition.
        is_newest = (
            repeated_keys.is_last() if key is None else repeated_keys.is_newest(times[places])
        )
        gone = places[~is_newest]
        return {
            int(number): keys.position[gone[numbers[gone] == number]]
            for number in np.unique(numbers[gone])
        }

    def _rows(
        self, table: Table, head: Snapshot, choose: Callable[[HeldKeys], NDArray[np.uint32]]
    ) -> list[FileRows]:
        return [rows for rows, *_ in self._chosen_rows(table, head, lambda held: (choose(held),))]

    def _chosen_rows(
        self, table: Table, head: Snapshot, choose: Callable[[HeldKeys], _Chosen]
    ) -> Iterator[Any]:
        """Yield the chosen live rows of each file, and other arrays that were chosen with them."""
        files = self._live(table, head)
        data = [file for file in files if file.content == DataFileContent.DATA]
        self._deleted.read(table, files)
        self.store.fetch(table, data)
        for file in data:
            positions, *others = choose(self.store.keys_of(table, file))
            places = self._deleted.left(file.file_path, positions)
            if len(places):
                yield FileRows(file, positions[places]), *(other[places] for other in others)
        self.store.clean(data)

    def _live(self, table: Table, head: Snapshot) -> list[DataFile]:
        """Return the data files and delete files of the snapshot."""
        manifests = {manifest.manifest_path: manifest for manifest in head.manifests(table.io)}
        new = [manifest for path, manifest in manifests.items() if path not in self._files]
        known = self._files | {
            path: tuple(entry.data_file for entry in listed)
            for path, listed in entries_by_manifest(table.io, new)
        }
        self._files = {path: known[path] for path in manifests}
        return [file for of_manifest in self._files.values() for file in of_manifest]


def _in_ranges(
    rows_and_keys: Sequence[tuple[FileRows, Keys]],
) -> Iterator[tuple[NDArray[np.int32], Keys]]:
    """Yield the live keys of files in ranges of their hashes, with the numbers of their files."""
    total = sum(len(keys.high) for _, keys in rows_and_keys)
    count = max(1, -(-total // _RANGE_ROWS))
    limits = [(number << 64) // count for number in range(1, count)]
    bounds = [
        [0, *np.searchsorted(keys.high, np.array(limits, np.uint64)), len(keys.high)]
        for _, keys in rows_and_keys
    ]
    is_live = [
        np.zeros(int(keys.position.max(initial=0)) + 1, np.bool_) for _, keys in rows_and_keys
    ]
    for (rows, _), live in zip(rows_and_keys, is_live, strict=True):
        live[rows.positions] = True
    for number in range(count):
        of_files = zip(rows_and_keys, bounds, strict=True)
        inside = [keys.chosen(slice(*bound[number : number + 2])) for (_, keys), bound in of_files]
        parts = [
            keys.chosen(live[keys.position]) for keys, live in zip(inside, is_live, strict=True)
        ]
        sizes = np.array([len(part.high) for part in parts], np.intp)
        yield np.repeat(np.arange(len(parts), dtype=np.int32), sizes), Keys.joined(parts)


class DeletedRows:
    """The deleted rows of a snapshot; what was read for one is kept for the next."""

    def __init__(self) -> None:
        self._deleted: dict[str, NDArray[np.uint8]] = {}  # by data file: a bit for each row
        self._read: set[str] = set()  # the delete files in _deleted
        # By data file: its vector's identity, and the same bits.
        self._vectors: dict[str, tuple[tuple[str, int | None], NDArray[np.uint8]]] = {}

    def read(self, table: Table, files: Iterable[DataFile]) -> None:
        """Read the delete files of a snapshot that the last one did not have."""
        deletes, known = Deletes.of(files), self._vectors
        self._vectors = {
            path: known[path]
            for path, vector in deletes.vectors.items()
            if path in known and known[path][0] == identity(vector)
        }
        new = [vector for path, vector in deletes.vectors.items() if path not in self._vectors]
        for path, positions in read_vectors(table.io, new):
            bits = _with_bits(np.empty(0, np.uint8), positions)
            self._vectors[path] = identity(deletes.vectors[path]), bits
        paths = {file.file_path for file in deletes.files}
        if not self._read <= paths:  # compacted, or the table was rolled back
            self._deleted, self._read = {}, set()
        for path in paths - self._read:
            for data_file, positions in read_deletes(table.io, path):
                bits = self._deleted.get(data_file, np.empty(0, np.uint8))
                self._deleted[data_file] = _with_bits(bits, positions)
            self._read.add(path)

    def left(self, data_file: str, positions: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Return the places of the positions, ascending, that are not deleted."""
        _, deleted = self._vectors.get(data_file, (None, None))  # has all deletes of its data file
        if deleted is None:
            deleted = self._deleted.get(data_file)
        places = np.arange(len(positions))
        if deleted is None:
            return places
        last = np.searchsorted(positions, 8 * len(deleted))
        return np.concatenate(
            [places[:last][~key_files.bits_of(deleted, positions[:last])], places[last:]]
        )


def _with_bits(bits: NDArray[np.uint8], numbers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return a bitmap with the bits of these numbers; it may be changed in place."""
    needed = int(numbers.max(initial=0)) // 8 + 1
    if needed > len(bits):
        bits = np.pad(bits, (0, needed - len(bits)))
    np.bitwise_or.at(bits, numbers >> 3, np.uint8(1) << (numbers & 7).astype(np.uint8))
    return bits


class KeyStore:
    """Key files by data file. Not thread-safe; any number of processes may share the folder."""

    def __init__(self, folder: Path, hasher: KeyHasher) -> None:
        """:param folder: of the topic; holds a folder for its table. Errors are TopicbergError."""
        self._hasher, self._format = hasher, f"{hasher.table_uuid}-{hasher.definition}"
        self._folder, self._shares = folder / self._format, True
        self._unshared: dict[str, DataFile] = {}  # by path; see share()
        self._clean_at = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for other in folder.iterdir():
                of_an_old_table = not other.name.startswith(str(hasher.table_uuid))
                if of_an_old_table or (other != self._folder and _is_old(other)):
                    shutil.rmtree(other, ignore_errors=True)
        except OSError as error:
            raise unusable(self._folder, error) from error

    def fetch(self, table: Table, data: Sequence[DataFile]) -> None:
        """Copy key files that others share; forget those of data files that were removed."""
        self._unshared = {one.file_path: one for one in data if one.file_path in self._unshared}
        absent = [file for file in data if _is_shared(file) and not self.path(file).exists()]
        list(in_parallel(lambda file: self._download(table, file), absent))

    def keys_of(self, table: Table, file: DataFile) -> HeldKeys:
        """Return the keys of a data file, which is read if it has no key file, or raise."""
        if (held := key_files.read(self.path(file))) is not None:
            return held
        keys = self._hasher.of_file(table, file)
        self.hold(file, keys)
        return keys

    def hold(self, file: DataFile, keys: HeldKeys) -> None:
        """Keep the keys of a new data file, so that it is not read for them."""
        key_files.write(self.path(file), keys, self.seal(file))
        if _is_shared(file):
            self._unshared[file.file_path] = file

    def share(self, table: Table) -> None:
        """Copy the key files that were written since the last time to the table's folder.

        An engine that takes over before computes them from the data files.
        """
        while self._shares and self._unshared:
            self.upload(table, self._unshared.popitem()[1])

    def clean(self, data: Iterable[DataFile]) -> None:
        """Remove the key files of deleted data files, at most once per :data:`_UNUSED_SECONDS`."""
        now = time.time()
        if now < self._clean_at:
            return
        self._clean_at = now + _UNUSED_SECONDS
        with suppress(OSError):  # another process cleans too; the next call retries
            for path in set(self._folder.iterdir()) - {self.path(file) for file in data}:
                if _is_old(path):
                    path.unlink(missing_ok=True)

    def path(self, file: DataFile) -> Path:
        return self._folder / file_name(file.file_path)

    def seal(self, file: DataFile) -> Seal:
        return Seal(self._format, file.file_path)

    def _download(self, table: Table, file: DataFile) -> None:
        shared = shared_file(table.location(), file.file_path)
        try:
            key_files.download(table.io, shared, self.path(file), self.seal(file))
        except OSError as error:  # it is computed instead
            logger.debug("%s cannot be read: %s", shared, error)

    def upload(self, table: Table, file: DataFile) -> None:
        shared = shared_file(table.location(), file.file_path)
        try:
            key_files.upload(table.io, self.path(file), shared)
        except OSError as error:
            logger.warning(
                "%s cannot be written, so another engine would compute the key files of this table "
                "again: %s",
                shared,
                error,
            )
            self._shares = False


def _is_shared(file: DataFile) -> bool:
    """Return whether its keys take longer to compute than to copy."""
    return file.record_count >= SHARED_ROWS


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _UNUSED_SECONDS
