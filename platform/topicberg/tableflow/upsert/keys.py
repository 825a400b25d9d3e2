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

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.files import topic_file
from topicberg.iceberg.files import entries_by_manifest
from topicberg.iceberg.position_deletes import FileRows, read_rows
from topicberg.iceberg.shared_keys import delete_shared, file_name
from topicberg.tableflow.upsert.deleted_rows import DeletedRows
from topicberg.tableflow.upsert.key_files import (
    HeldKeys,
    Keys,
    in_order,
    is_last,
    newest_of_partitions,
    same_key,
)
from topicberg.tableflow.upsert.key_hashing import KeyHasher, times_of
from topicberg.tableflow.upsert.key_store import KeyStore

_RANGE_ROWS = 4_000_000
"""Rows of a table whose keys are compared with each other at once."""


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
    """Return the index of a table.

    :param known: the index of before, which is kept if it is of the same keys
    """
    if known is not None and known.hasher.of == hasher.of:
        known.hasher.decode = hasher.decode
        return known
    return KeyIndex(key_folder(state_dir, topic), hasher)


class KeyIndex:
    """The keys of one table. Not thread-safe; any number of processes may share the folder."""

    def __init__(self, folder: Path, hasher: KeyHasher) -> None:
        """:param folder: of the topic; holds a folder for its table"""
        self.hasher = hasher
        self.store = KeyStore(folder, hasher)
        self._deleted = DeletedRows()
        self._files: dict[str, tuple[DataFile, ...]] = {}  # by manifest; manifests never change

    def keyed_rows(
        self, table: Table, head: Snapshot, keys: Keys
    ) -> list[tuple[FileRows, NDArray[np.intp]]]:
        """Return the rows of a snapshot that have one of these keys and are not deleted.

        :param keys: sorted, see :func:`merged`
        :returns: with the place in ``keys`` of each row
        :raises TopicbergError: the state directory cannot be written
        """
        wanted = np.empty(0, np.intp)

        def choose(file_keys: HeldKeys) -> NDArray[np.uint32]:
            nonlocal wanted
            wanted, rows = file_keys.equal(keys)
            order = np.argsort(file_keys.position[rows])
            wanted = wanted[order]
            return file_keys.position[rows[order]]

        chosen_rows = self._chosen_rows(table, head, choose)
        return [(of_file, wanted[chosen]) for of_file, chosen in chosen_rows]

    def rows_with(self, table: Table, head: Snapshot, keys: Keys) -> list[FileRows]:
        """Return the rows of a snapshot that have one of these keys and are not deleted.

        :param keys: sorted, see :func:`merged`
        :raises TopicbergError: the state directory cannot be written
        """
        return self._rows(table, head, lambda places: places.positions_of(keys))

    def all_rows(self, table: Table, head: Snapshot) -> list[FileRows]:
        """Return all rows of a snapshot that are not deleted.

        :raises TopicbergError: the state directory cannot be written
        """
        return self._rows(table, head, lambda places: np.sort(places.position))

    def rows_without(self, table: Table, head: Snapshot, kept: Keys) -> list[FileRows]:
        """Return the rows of a snapshot that have none of these keys and are not deleted.

        :param kept: sorted, see :func:`merged`
        :raises TopicbergError: the state directory cannot be written
        """

        def others(file_keys: HeldKeys) -> NDArray[np.uint32]:
            are_decoded = self.hasher.key is not None
            stay = file_keys.positions_of(kept, are_decoded=are_decoded)
            return np.setdiff1d(file_keys.position, stay)

        return self._rows(table, head, others)

    def older_rows(
        self, table: Table, head: Snapshot, keys: Keys, times: NDArray[np.int64]
    ) -> tuple[list[FileRows], NDArray[np.bool_]]:
        """Return the rows of a snapshot that records of decoded keys replace.

        Also return which of the records are older than a row of their key, which is of another
        partition: they change nothing.

        :param keys: sorted; the newest record of each key
        :param times: of the records, at the places of the keys
        :raises TopicbergError: the state directory cannot be written
        """
        assert self.hasher.key is not None  # noqa: S101  the keys are decoded
        stale = np.zeros(len(keys.high), np.bool_)
        matches: tuple[NDArray[np.intp], NDArray[np.uint64]]

        def choose(file_keys: HeldKeys) -> NDArray[np.uint32]:
            nonlocal matches
            places, rows = file_keys.equal(keys, are_decoded=True)
            order = np.argsort(file_keys.position[rows])
            places, rows = places[order], rows[order]
            matches = places, file_keys.low[rows]
            return file_keys.position[rows]

        replaced = []
        for of_file, chosen in self._chosen_rows(table, head, choose):
            places, low = (part[chosen] for part in matches)
            stays = np.zeros(len(places), np.bool_)
            is_moved = low != keys.low[places]
            if is_moved.any():
                moved = np.flatnonzero(is_moved)
                rows = FileRows(of_file.file, of_file.positions[moved])
                names = [self.hasher.key.time, self.hasher.key.raw]
                micros, raw = read_rows(table, rows, names).columns
                held_times = times_of(micros, raw, self.hasher.key)
                own_times = times[keys.position[places[moved]]]
                # As in newest_of_partitions: the higher partition if the times are equal.
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

        :raises TopicbergError: the state directory cannot be written
        """
        of_file: Keys

        def choose(file_keys: HeldKeys) -> NDArray[np.uint32]:
            nonlocal of_file
            of_file = file_keys
            return np.sort(file_keys.position)

        rows_and_keys = [(rows, of_file) for rows, _ in self._chosen_rows(table, head, choose)]
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
        """Return, by file, the rows of keys that have a newer row.

        :param numbers: of the files of the keys
        """
        ordered = in_order(keys.high, keys.low)
        key = self.hasher.key
        same = ~is_last(ordered)[:-1] if key is None else same_key(ordered)
        repeated = np.append(same, False) | np.append(False, same)
        places = ordered.position[repeated[: len(ordered.high)]]
        if not len(places):
            return {}
        times, offsets = np.empty(len(keys.high), np.int64), np.empty(len(keys.high), np.int64)
        for number in np.unique(numbers[places]):
            of_file = places[numbers[places] == number]
            of_file = of_file[np.argsort(keys.position[of_file])]
            rows = FileRows(files[number], keys.position[of_file])
            names = [self.hasher.offset, *([] if key is None else (key.time, key.raw))]
            column, *of_time = read_rows(table, rows, names).columns
            times[of_file] = 0 if key is None else times_of(of_time[0], of_time[1], key)
            offsets[of_file] = column.combine_chunks().fill_null(-1).to_numpy()
        high, low = keys.high[places], keys.low[places]
        # Of one partition, the higher offset; of several, as between records.
        order = np.lexsort((offsets[places], low, high))
        places = places[order]
        repeated_keys = Keys(
            keys.high[places], keys.low[places], np.arange(len(places), dtype=np.uint32)
        )
        # Without a schema, equal keys are of one partition.
        is_newest = (
            is_last(repeated_keys)
            if key is None
            else newest_of_partitions(repeated_keys, times[places])
        )
        gone = places[~is_newest]
        return {
            int(number): keys.position[gone[numbers[gone] == number]]
            for number in np.unique(numbers[gone])
        }

    def _rows(
        self, table: Table, head: Snapshot, choose: Callable[[HeldKeys], NDArray[np.uint32]]
    ) -> list[FileRows]:
        return [rows for rows, _ in self._chosen_rows(table, head, choose)]

    def _chosen_rows(
        self, table: Table, head: Snapshot, choose: Callable[[HeldKeys], NDArray[np.uint32]]
    ) -> Iterator[tuple[FileRows, NDArray[np.intp]]]:
        """Yield the chosen rows that are not deleted, and their places among the chosen ones.

        :param choose: returns positions, ascending; called for the next file after each yield
        """
        files = self._live(table, head)
        data = [file for file in files if file.content == DataFileContent.DATA]
        self._deleted.read(table, files)
        self.store.fetch(table, data)
        for file in data:
            positions = choose(self.store.keys_of(table, file))
            places = self._deleted.left(file.file_path, positions)
            if len(places):
                yield FileRows(file, positions[places]), places
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
    is_live = []
    for rows, keys in rows_and_keys:
        live = np.zeros(int(keys.position.max(initial=0)) + 1, np.bool_)
        live[rows.positions] = True
        is_live.append(live)
    for number in range(count):
        parts = []
        for (_, keys), live, bound in zip(rows_and_keys, is_live, bounds, strict=True):
            inside = keys.chosen(slice(bound[number], bound[number + 1]))
            parts.append(inside.chosen(live[inside.position]))
        sizes = np.array([len(part.high) for part in parts], np.intp)
        yield np.repeat(np.arange(len(parts), dtype=np.int32), sizes), Keys.joined(parts)
