"""The index of an upsert table's keys: the rows that a batch replaces are looked up, not scanned.

Every data file of a table has a *key file* (:mod:`topicberg.tableflow.key_files`) in the state
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

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent

from topicberg.files import topic_file
from topicberg.formats.framing import WIRE_BYTES
from topicberg.iceberg.file_columns import with_names_of
from topicberg.iceberg.file_rows import read_rows
from topicberg.iceberg.files import entries_by_manifest, in_parallel, names_by_id
from topicberg.iceberg.manifests import identity
from topicberg.iceberg.position_deletes import Deletes, FileRows, read_deletes
from topicberg.iceberg.shared_keys import delete_shared, file_name, shared_file
from topicberg.iceberg.vectors import read_vectors
from topicberg.settings import Settings
from topicberg.tableflow import key_files
from topicberg.tableflow.arrays import whole
from topicberg.tableflow.key_files import (
    HeldKeys,
    Keys,
    Seal,
    bits_of,
    in_order,
    merged,
    newest_of_partitions,
    same_key,
    unusable,
    with_partition,
)
from topicberg.tableflow.key_values import key_text

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from topicberg.tableflow.upsert_key import UpsertKey

logger = logging.getLogger(__name__)

SHARED_ROWS = 10_000
"""Key files of fewer rows are not shared: reading the data file takes as long."""
_ROWS_AT_ONCE = 200_000
_DECODED_VERSION = 1
"""Increase it with any change of :mod:`topicberg.tableflow.key_values`."""
_RANGE_ROWS = 4_000_000
"""Rows of a table whose keys are compared with each other at once."""
NO_TIME = np.iinfo(np.int64).min
"""The time of a record without one."""
DecodeKeys = Callable[[Any], Any]
"""Returns the texts of raw keys; null: a key cannot be decoded. Both are Arrow arrays."""
_UNUSED_SECONDS = 3600.0
"""The minimum age of a key file that is deleted: another process may have just created it."""
# The partition is multiplied by the golden ratio's 64 bits, which spread small numbers far.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def key_folder(config: Settings, topic: str) -> Path:
    """Return the folder of the key files of a topic's table."""
    return topic_file(config.state_dir / "tableflow" / "keys", topic).with_suffix("")


def forget(config: Settings, topic: str) -> None:
    """Remove the key files of a topic whose table was deleted."""
    shutil.rmtree(key_folder(config, topic), ignore_errors=True)


def forget_files(config: Settings, topic: str, table: Table, paths: Collection[str]) -> None:
    """Remove the key files of data files that were deleted, here and where they are shared."""
    delete_shared(table, paths)
    for path in paths:
        for found in key_folder(config, topic).glob(f"*/{file_name(path)}"):
            found.unlink(missing_ok=True)


def no_decoder(raw: Any) -> Any:
    """Decode no key: for tables whose index does not need it."""
    raise AssertionError(f"{len(raw)} keys are not decoded")


def index_of(
    config: Settings,
    topic: str,
    table: Table,
    key: UpsertKey,
    decode: DecodeKeys,
    known: KeyIndex | None = None,
) -> KeyIndex:
    """Return the index of an upsert table without a change log.

    :param known: the index of before, which is kept if it is of the same keys
    """
    columns = key.names if key.is_decoded else (key.raw, key.partition)
    decoded = key if key.is_decoded else None
    if known is not None and known.of == (table.metadata.table_uuid, columns, decoded):
        known.decode = decode
        return known
    return KeyIndex(key_folder(config, topic), table, columns, key=decoded, decode=decode)


class KeyIndex:
    """The keys of one table. Not thread-safe; any number of processes may share the folder.

    :param folder: of the topic; holds a folder for its table
    :param key_columns: names of the columns with the raw key and with Kafka's partition; or those
        of a decoded key
    :param is_decoded: whether the keys are decoded: equal values are equal keys, whatever the bytes
        and the partition
    """

    def __init__(
        self,
        folder: Path,
        table: Table,
        key_columns: Sequence[str],
        *,
        is_decoded: bool = False,
        key: UpsertKey | None = None,
        decode: DecodeKeys = no_decoder,
    ) -> None:
        """:param key: of an upsert table whose keys are decoded
        :param decode: decodes the raw keys of such a table, if its columns do not have the keys
        """
        self.table_uuid = table.metadata.table_uuid
        self.of = (self.table_uuid, tuple(key_columns), key)
        self.key, self.decode = key, decode
        schema = table.schema()
        self._key_ids = tuple(
            schema.find_field(name).field_id for name in (() if key else key_columns)
        )
        self._key_types = _arrow_types(schema, key_columns) if is_decoded else None
        self._format = f"{self.table_uuid}-{self._probe()}"
        self._folder = folder / self._format
        self._shares = True
        self._unshared: dict[str, DataFile] = {}  # by path; see share()
        self._files: dict[str, tuple[DataFile, ...]] = {}  # by manifest; manifests never change
        self._deleted: dict[str, NDArray[np.uint8]] = {}  # by data file: a bit for each row
        self._read: set[str] = set()  # the delete files in _deleted
        # By data file: its vector's identity, and the same bits.
        self._vectors: dict[str, tuple[tuple[str, int | None], NDArray[np.uint8]]] = {}
        self._clean_at = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for other in folder.iterdir():
                of_an_old_table = not other.name.startswith(str(self.table_uuid))
                if of_an_old_table or (other != self._folder and _is_old(other)):
                    shutil.rmtree(other, ignore_errors=True)
        except OSError as error:
            raise unusable(self._folder, error) from error

    def rows_of(self, table: Table, head: Snapshot, keys: pa.Table) -> list[FileRows]:
        """Return the rows of a snapshot that have one of these keys and are not deleted.

        :param keys: the key columns; distinct; raw keys have no nulls
        :raises TopicbergError: the state directory cannot be written
        """
        return self.rows_with(table, head, merged([self.hashes(keys.columns)]))

    def rows_with(self, table: Table, head: Snapshot, keys: Keys) -> list[FileRows]:
        """Return the rows of a snapshot that have one of these keys and are not deleted.

        :param keys: sorted, see :func:`merged`
        :raises TopicbergError: the state directory cannot be written
        """
        return self._rows(table, head, lambda held: held.positions_of(keys))

    def all_rows(self, table: Table, head: Snapshot) -> list[FileRows]:
        """Return all rows of a snapshot that are not deleted.

        :raises TopicbergError: the state directory cannot be written
        """
        return self._rows(table, head, lambda held: np.sort(held.position))

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
        assert self.key is not None  # noqa: S101  the keys are decoded
        stale = np.zeros(len(keys.high), np.bool_)
        matches: dict[str, tuple[NDArray[np.intp], NDArray[np.uint64]]] = {}
        file_path = ""

        def choose(held: HeldKeys) -> NDArray[np.uint32]:
            places, rows = held.matches(keys)
            order = np.argsort(held.position[rows])
            places, rows = places[order], rows[order]
            matches[file_path] = places, held.low[rows]
            return held.position[rows]

        def note(path: str) -> None:
            nonlocal file_path
            file_path = path

        replaced = []
        for of_file, chosen in self._chosen_rows(table, head, choose, note):
            places, low = (part[chosen] for part in matches[of_file.file.file_path])
            stays = np.zeros(len(places), np.bool_)
            is_moved = low != keys.low[places]
            if is_moved.any():
                moved = np.flatnonzero(is_moved)
                rows = FileRows(of_file.file, of_file.positions[moved])
                held_times = self._times(table, rows)
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
        """Return the rows of a snapshot whose decoded key a newer row has.

        They are there if keys became equal: the table was written when raw keys were compared, or
        by an older version of the key's schema.

        :raises TopicbergError: the state directory cannot be written
        """
        assert self.key is not None  # noqa: S101  the keys are decoded
        files: list[DataFile] = []
        parts: list[Keys] = []

        def choose(held: HeldKeys) -> NDArray[np.uint32]:
            parts.append(held)
            return np.sort(held.position)

        live = {}
        paths: list[str] = []
        for of_file, _ in self._chosen_rows(table, head, choose, paths.append):
            live[of_file.file.file_path] = of_file
        files = [live[path].file for path in paths if path in live]
        held = [(live[path], part) for path, part in zip(paths, parts, strict=True) if path in live]
        found: dict[int, list[NDArray[np.uint32]]] = {}
        for numbers, keys in _in_ranges(held):
            for number, positions in self._repeated(table, files, numbers, keys).items():
                found.setdefault(number, []).append(positions)
        return [
            FileRows(files[number], np.sort(np.concatenate(positions)))
            for number, positions in sorted(found.items())
        ]

    def _repeated(
        self, table: Table, files: Sequence[DataFile], numbers: NDArray[np.int32], keys: Keys
    ) -> dict[int, NDArray[np.uint32]]:
        """Return, by file, the rows of keys that have a newer row.

        :param numbers: of the files of the keys
        """
        ordered = in_order(keys.high, keys.low)
        same = same_key(ordered)
        repeated = np.append(same, False) | np.append(False, same)
        places = ordered.position[repeated[: len(ordered.high)]]
        if not len(places):
            return {}
        times, offsets = np.empty(len(keys.high), np.int64), np.empty(len(keys.high), np.int64)
        for number in np.unique(numbers[places]):
            of_file = places[numbers[places] == number]
            of_file = of_file[np.argsort(keys.position[of_file])]
            rows = FileRows(files[number], keys.position[of_file])
            assert self.key is not None  # noqa: S101  see the caller
            names = [self.key.time, self.key.raw, self.key.offset]
            micros, raw, offset = read_rows(table, rows, names).columns
            times[of_file] = times_of(micros, raw, self.key)
            offsets[of_file] = offset.combine_chunks().fill_null(-1).to_numpy()
        high, low = keys.high[places], keys.low[places]
        # Of one partition, the higher offset; of several, as between records.
        order = np.lexsort((offsets[places], low, high))
        places = places[order]
        one = Keys(keys.high[places], keys.low[places], np.arange(len(places), dtype=np.uint32))
        is_newest = newest_of_partitions(one, times[places])
        gone = places[~is_newest]
        return {
            int(number): keys.position[gone[numbers[gone] == number]]
            for number in np.unique(numbers[gone])
        }

    def _times(self, table: Table, rows: FileRows) -> NDArray[np.int64]:
        assert self.key is not None  # noqa: S101  the keys are decoded
        micros, raw = read_rows(table, rows, [self.key.time, self.key.raw]).columns
        return times_of(micros, raw, self.key)

    def hashes(self, columns: Sequence[Any], first: int = 0) -> Keys:
        """Return the keys of rows, given their key columns; see :meth:`hashed`."""
        if self._key_types is None:
            return self.hashed(columns[0], columns[1], first)
        import pyarrow as pa

        raw = _one_text(columns, self._key_types)
        return hash_keys(self.table_uuid, raw, pa.array(np.zeros(len(raw), np.int32)), first)

    def rows_without(self, table: Table, head: Snapshot, kept: Keys) -> list[FileRows]:
        """Return the rows of a snapshot that have none of these keys and are not deleted.

        :param kept: sorted, see :func:`merged`
        :raises TopicbergError: the state directory cannot be written
        """

        def others(held: HeldKeys) -> NDArray[np.uint32]:
            if self.key is None:
                return np.setdiff1d(held.position, held.positions_of(kept))
            return np.setdiff1d(held.position, held.position[held.matches(kept)[1]])

        return self._rows(table, head, others)

    def _rows(
        self, table: Table, head: Snapshot, choose: Callable[[HeldKeys], NDArray[np.uint32]]
    ) -> list[FileRows]:
        return [rows for rows, _ in self._chosen_rows(table, head, choose)]

    def _chosen_rows(
        self,
        table: Table,
        head: Snapshot,
        choose: Callable[[HeldKeys], NDArray[np.uint32]],
        begin: Callable[[str], None] = lambda _: None,
    ) -> list[tuple[FileRows, NDArray[np.intp]]]:
        """Return the chosen rows that are not deleted, and their places among the chosen ones.

        :param choose: returns positions, ascending
        :param begin: called with the path of the file whose rows are chosen next
        """
        files = self._live(table, head)
        data = [file for file in files if file.content == DataFileContent.DATA]
        self._unshared = {one.file_path: one for one in data if one.file_path in self._unshared}
        self._read_deletes(table, files)
        self._fetch(table, data)
        found = []
        for file in data:
            begin(file.file_path)
            positions = choose(self._keys_of(table, file))
            places = self._not_deleted(file.file_path, positions)
            if len(places):
                found.append((FileRows(file, positions[places]), places))
        self._clean(data)
        return found

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

    def _read_deletes(self, table: Table, files: Iterable[DataFile]) -> None:
        deletes = Deletes.of(files)
        self._read_vectors(table, deletes.vectors)
        paths = {file.file_path for file in deletes.files}
        if not self._read <= paths:  # compacted, or the table was rolled back
            self._deleted, self._read = {}, set()
        for path in paths - self._read:
            for data_file, positions in read_deletes(table.io, path):
                known = self._deleted.get(data_file, np.empty(0, np.uint8))
                self._deleted[data_file] = _with_bits(known, positions)
            self._read.add(path)

    def _read_vectors(self, table: Table, vectors: Mapping[str, DataFile]) -> None:
        """Read the vectors that are new since the last snapshot."""
        known = self._vectors
        self._vectors = {
            path: known[path]
            for path, vector in vectors.items()
            if path in known and known[path][0] == identity(vector)
        }
        new = [vector for path, vector in vectors.items() if path not in self._vectors]
        for path, positions in read_vectors(table.io, new):
            bits = _with_bits(np.empty(0, np.uint8), positions)
            self._vectors[path] = identity(vectors[path]), bits

    def _not_deleted(self, data_file: str, positions: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Return the places of the positions, ascending, that are not deleted."""
        _, deleted = self._vectors.get(data_file, (None, None))  # has all deletes of its data file
        if deleted is None:
            deleted = self._deleted.get(data_file)
        places = np.arange(len(positions))
        if deleted is None:
            return places
        last = np.searchsorted(positions, 8 * len(deleted))
        return np.concatenate([places[:last][~bits_of(deleted, positions[:last])], places[last:]])

    def _fetch(self, table: Table, data: Iterable[DataFile]) -> None:
        """Copy key files that others share."""
        absent = [file for file in data if _is_shared(file) and not self._path(file).exists()]
        list(in_parallel(lambda file: self._download(table, file), absent))

    def _download(self, table: Table, file: DataFile) -> None:
        shared = shared_file(table.location(), file.file_path)
        try:
            key_files.download(table.io, shared, self._path(file), self._seal(file))
        except OSError as error:  # it is computed instead
            logger.debug("%s cannot be read: %s", shared, error)

    def _upload(self, table: Table, file: DataFile) -> None:
        shared = shared_file(table.location(), file.file_path)
        try:
            key_files.upload(table.io, self._path(file), shared)
        except OSError as error:
            logger.warning(
                "%s cannot be written, so another engine would compute the key files of this table "
                "again: %s",
                shared,
                error,
            )
            self._shares = False

    def _keys_of(self, table: Table, file: DataFile) -> HeldKeys:
        path = self._path(file)
        if (held := key_files.read(path)) is not None:
            return held
        if self.key is not None:
            texts = _key_texts(table, file, self.key, self.decode)
            keys = HeldKeys.of(merged([self.hashed(*each) for each in texts]))
        else:
            columns = _key_columns(table, file, self._key_ids, self._key_types)
            keys = HeldKeys.of(merged([self.hashes(*each) for each in columns]))
        self.hold(file, keys)
        return keys

    def hold(self, file: DataFile, keys: HeldKeys) -> None:
        """Keep the keys of a new data file, so that it is not read for them.

        :raises TopicbergError: the state directory cannot be written
        """
        key_files.write(self._path(file), keys, self._seal(file))
        if _is_shared(file):
            self._unshared[file.file_path] = file

    def share(self, table: Table) -> None:
        """Copy the key files that were written since the last time to the table's folder.

        An engine that takes over before computes them from the data files.
        """
        while self._shares and self._unshared:
            self._upload(table, self._unshared.popitem()[1])

    def _seal(self, file: DataFile) -> Seal:
        return Seal(self._format, file.file_path)

    def hashed(self, raw: Any, partition: Any, first: int = 0) -> Keys:
        """Return the keys of rows from position ``first`` on, in order, without null keys.

        :param raw: raw keys, or the texts of decoded ones
        """
        hash_rows = hash_keys if self.key is None else hash_decoded
        return hash_rows(self.table_uuid, raw, partition, first)

    def hashed_raw(self, raw: Any, partition: Any) -> Keys:
        """Return the keys of records, given their raw keys; without those that are malformed.

        :param raw: of keys without a schema: as tables hold them
        """
        if self.key is None:
            return self.hashed(raw, partition)
        if not len(raw):
            return merged([])
        text = self.decode(raw)
        rows = np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))
        found = self.hashed(text.take(rows), partition.take(rows))
        return Keys(found.high, found.low, rows[found.position].astype(np.uint32))

    @property
    def definition(self) -> str:
        """What the keys are, and how they are hashed: it differs if other keys are equal."""
        return self._format.removeprefix(f"{self.table_uuid}-")

    def _probe(self) -> str:
        """Return a digest of the key format: key files of another format are not read."""
        import pyarrow as pa

        keys = self.hashed(
            pa.array([b"", b"\x00", b"k" * 256], pa.binary()), pa.array([0, 1, 2], pa.int32())
        )
        content = b"".join(part.tobytes() for part in (keys.high, keys.low, keys.position))
        content += repr((key_files.FORMAT, self._key_ids)).encode()
        if self._key_types is not None:
            content += repr(list(map(str, self._key_types))).encode()
            if any(map(_is_floating, self._key_types)):
                content += b"-0.0 is 0.0"
        if self.key is not None:
            content += repr((_DECODED_VERSION, self.key.definition)).encode()
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def _path(self, file: DataFile) -> Path:
        return self._folder / file_name(file.file_path)

    def _clean(self, data: Iterable[DataFile]) -> None:
        """Remove the key files of deleted data files, at most once per :data:`_UNUSED_SECONDS`."""
        now = time.time()
        if now < self._clean_at:
            return
        self._clean_at = now + _UNUSED_SECONDS
        needed = {self._path(file) for file in data}
        with suppress(OSError):  # another process cleans too; the next call retries
            for path in set(self._folder.iterdir()) - needed:
                if _is_old(path):
                    path.unlink(missing_ok=True)


def hash_keys(table_uuid: UUID, raw: Any, partition: Any, first: int = 0) -> Keys:
    """Return the keys of rows, given the Arrow arrays of raw keys and partitions.

    They are in the order of the rows, without those whose key is null.

    :param first: position of the first row
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from topicberg.tableflow.key_hash import hashes

    has_key = pc.and_(raw.is_valid(), partition.is_valid())
    keys = whole(raw.filter(has_key).cast(pa.binary()))
    spread = partition.filter(has_key).to_numpy(zero_copy_only=False).astype(np.uint64) * _SPREAD
    secret = table_uuid.hex.encode()
    high, low = (hashes(keys, part) for part in (secret[:16], secret[16:]))
    high ^= spread
    position = np.flatnonzero(has_key.to_numpy(zero_copy_only=False)) + first
    return Keys(high, low, position.astype(np.uint32))


def hash_decoded(table_uuid: UUID, text: Any, partition: Any, first: int = 0) -> Keys:
    """Return the keys of rows, given the texts of decoded keys; see :func:`hash_keys`."""
    import pyarrow as pa

    text, partition = whole(text), whole(partition)
    is_there = partition.is_valid()
    nowhere = pa.array(np.zeros(len(text), np.int32))
    found = hash_keys(table_uuid, text.filter(is_there), nowhere.filter(is_there))
    rows = np.flatnonzero(is_there.to_numpy(zero_copy_only=False)) + first
    partitions = partition.filter(is_there).to_numpy(zero_copy_only=False)
    low = with_partition(found.low, partitions[found.position])
    return Keys(found.high, low, rows[found.position].astype(np.uint32))


def times_of(times: Any, raw: Any, key: UpsertKey) -> NDArray[np.int64]:
    """Return what orders records of a decoded key in several partitions.

    These are microseconds since 1970. Kafka's times are milliseconds, so the last three digits are
    free: they are the version of the key's schema, which is newer in the newer one of two records
    of one millisecond. A record without a time is older than all others.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    times, raw = whole(times), whole(raw)
    found: NDArray[np.int64] = times.cast(pa.int64()).fill_null(NO_TIME).to_numpy().copy()
    if len(key.versions) > 1:
        named = pc.fill_null(pc.binary_slice(raw, 1, WIRE_BYTES), b"")
        prefixes = [number.to_bytes(WIRE_BYTES - 1, "big") for number in key.versions]
        version = pc.index_in(named, pa.array(prefixes, named.type)).fill_null(-1).to_numpy()
        found[found != NO_TIME] += 1 + version[found != NO_TIME]
    return found


def _in_ranges(
    held: Sequence[tuple[FileRows, Keys]],
) -> Iterator[tuple[NDArray[np.int32], Keys]]:
    """Yield the live keys of files in ranges of their hashes, with the numbers of their files."""
    total = sum(len(keys.high) for _, keys in held)
    count = max(1, -(-total // _RANGE_ROWS))
    limits = [(number << 64) // count for number in range(1, count)]
    bounds = [
        [0, *np.searchsorted(keys.high, np.array(limits, np.uint64)), len(keys.high)]
        for _, keys in held
    ]
    is_live = []
    for rows, keys in held:
        live = np.zeros(int(keys.position.max(initial=0)) + 1, np.bool_)
        live[rows.positions] = True
        is_live.append(live)
    for number in range(count):
        parts, numbers = [], []
        for place, (_, keys) in enumerate(held):
            inside = slice(bounds[place][number], bounds[place][number + 1])
            stays = is_live[place][keys.position[inside]]
            one = Keys(
                keys.high[inside][stays], keys.low[inside][stays], keys.position[inside][stays]
            )
            parts.append(one)
            numbers.append(np.full(len(one.high), place, np.int32))
        if parts:
            yield (
                np.concatenate(numbers),
                Keys(
                    np.concatenate([part.high for part in parts]),
                    np.concatenate([part.low for part in parts]),
                    np.concatenate([part.position for part in parts]),
                ),
            )


def _is_floating(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind))


def _is_shared(file: DataFile) -> bool:
    """Return whether its keys take longer to compute than to copy."""
    return file.record_count >= SHARED_ROWS


def _with_bits(bits: NDArray[np.uint8], numbers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return a bitmap with the bits of these numbers; it may be changed in place."""
    needed = int(numbers.max(initial=0)) // 8 + 1
    if needed > len(bits):
        bits = np.pad(bits, (0, needed - len(bits)))
    np.bitwise_or.at(bits, numbers >> 3, np.uint8(1) << (numbers & 7).astype(np.uint8))
    return bits


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _UNUSED_SECONDS


def _arrow_types(schema: Schema, names: Sequence[str]) -> list[pa.DataType]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    return [arrow.field(name).type for name in names]


def _one_text(columns: Sequence[Any], types: Sequence[pa.DataType]) -> Any:
    """Return one binary value for each row: equal if and only if the values of all columns are.

    :param types: of the columns in the table; files may have narrower ones
    """
    import pyarrow.compute as pc

    return key_text([pc.cast(one, kind) for one, kind in zip(columns, types, strict=True)])


def _key_columns(
    table: Table,
    file: DataFile,
    field_ids: tuple[int, ...],
    decoded: Sequence[pa.DataType] | None = None,
) -> Iterator[tuple[list[Any], int]]:
    """Yield the key columns of some rows, and the position of the first one.

    Raw keys: yields nothing if the file has no such columns. A column of a decoded key that the
    file does not have is null.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        schema, arrow = table.schema(), parquet.schema_arrow
        names = names_by_id(arrow)
        if decoded is None and not names.keys() >= set(field_ids):
            return
        columns = [names[number] for number in field_ids if number in names]
        first = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
            found = [
                with_names_of(schema, batch.column(names[number]), arrow.field(names[number]))
                if number in names
                else pa.nulls(batch.num_rows, (decoded or ())[place])
                for place, number in enumerate(field_ids)
            ]
            yield found, first
            first += batch.num_rows


def _key_texts(
    table: Table, file: DataFile, key: UpsertKey, decode: DecodeKeys
) -> Iterator[tuple[Any, Any, int]]:
    """Yield the texts of the decoded keys of some rows, their partitions, and the first position.

    Rows that others wrote, without a partition, have no key.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = table.schema()
    fields = {name: schema.find_field(name).field_id for name in (*key.names, key.partition)}
    raw_id = schema.find_field(key.raw).field_id
    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        arrow = parquet.schema_arrow
        names = names_by_id(arrow)
        if fields[key.partition] not in names:
            return
        ids = [*fields.values(), *(() if key.is_in_columns else (raw_id,))]
        columns = [names[number] for number in ids if number in names]
        first = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
            nothing = pa.nulls(batch.num_rows)
            held = {
                name: with_names_of(schema, batch.column(names[number]), arrow.field(names[number]))
                if number in names
                else nothing
                for name, number in fields.items()
            }
            text = key_text([held[name] for name in key.names], key.shapes)
            if not key.is_in_columns and raw_id in names:
                # The columns may have the value's fields. They are for keys that cannot be decoded
                # any more: earlier versions of topicberg kept only the SHA-256 of a long key.
                text = pc.coalesce(decode(batch.column(names[raw_id])), text)
            yield text, held[key.partition], first
            first += batch.num_rows
