"""The index of an upsert table's keys: the rows that a batch replaces are looked up, not scanned.

Every data file of a table has a *key file* (:mod:`topicberg.tableflow.key_files`) in the state
directory: a hash of each row's key, sorted, and the row's position. A data file never changes, so
its key file stays valid. A missing key file is copied from the table's folder, where the writer
that computed it shares it, and computed from the data file if it is not there either, or damaged.
Which rows are deleted already is read from the snapshot's delete files. So the index always agrees
with the table, whoever commits to it and whatever is killed.

Hash: 128 bits, SipHash twice, keyed by the table's UUID. No producer knows the UUID, so no producer
can construct two keys whose hashes collide.

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
from topicberg.iceberg.files import entries_by_manifest, in_parallel
from topicberg.iceberg.manifests import identity
from topicberg.iceberg.position_deletes import Deletes, FileRows, read_deletes
from topicberg.iceberg.shared_keys import delete_shared, file_name, shared_file
from topicberg.iceberg.vectors import read_vectors
from topicberg.settings import Settings
from topicberg.tableflow import key_files
from topicberg.tableflow.key_files import HeldKeys, Keys, Seal, bits_of, merged, unusable

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger(__name__)

SHARED_ROWS = 10_000
"""Key files of fewer rows are not shared: reading the data file takes as long."""
_ROWS_AT_ONCE = 200_000
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


class KeyIndex:
    """The keys of one table. Not thread-safe; any number of processes may share the folder.

    :param folder: of the topic; holds a folder for its table
    :param key_columns: names of the columns with the raw key and with Kafka's partition; or those
        of a decoded key
    :param is_decoded: whether the keys are decoded: equal values are equal keys, whatever the bytes
        and the partition
    """

    def __init__(
        self, folder: Path, table: Table, key_columns: Sequence[str], *, is_decoded: bool = False
    ) -> None:
        self.table_uuid = table.metadata.table_uuid
        self.of = (self.table_uuid, tuple(key_columns))
        schema = table.schema()
        self._key_ids = tuple(schema.find_field(name).field_id for name in key_columns)
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

    def hashes(self, columns: Sequence[Any], first: int = 0) -> Keys:
        """Return the keys of rows, given their key columns; see :meth:`hashed`."""
        if self._key_types is None:
            return self.hashed(columns[0], columns[1], first)
        import pyarrow as pa

        raw = _one_text(columns, self._key_types)
        return self.hashed(raw, pa.array(np.zeros(len(raw), np.int32)), first)

    def rows_without(self, table: Table, head: Snapshot, kept: Keys) -> list[FileRows]:
        """Return the rows of a snapshot that have none of these keys and are not deleted.

        :param kept: sorted, see :func:`merged`
        :raises TopicbergError: the state directory cannot be written
        """

        def others(held: HeldKeys) -> NDArray[np.uint32]:
            return np.setdiff1d(held.position, held.positions_of(kept))

        return self._rows(table, head, others)

    def _rows(
        self, table: Table, head: Snapshot, choose: Callable[[HeldKeys], NDArray[np.uint32]]
    ) -> list[FileRows]:
        files = self._live(table, head)
        data = [file for file in files if file.content == DataFileContent.DATA]
        self._unshared = {one.file_path: one for one in data if one.file_path in self._unshared}
        self._read_deletes(table, files)
        self._fetch(table, data)
        found = []
        for file in data:
            positions = choose(self._keys_of(table, file))
            positions = self._not_deleted(file.file_path, positions)
            if len(positions):
                found.append(FileRows(file, positions))
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

    def _not_deleted(self, data_file: str, positions: NDArray[np.uint32]) -> NDArray[np.uint32]:
        _, deleted = self._vectors.get(data_file, (None, None))  # has all deletes of its data file
        if deleted is None:
            deleted = self._deleted.get(data_file)
        if deleted is None:
            return positions
        last = np.searchsorted(positions, 8 * len(deleted))
        inside = positions[:last]
        return np.concatenate([inside[~bits_of(deleted, inside)], positions[last:]])

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
        """Return the keys of rows from position ``first`` on, in order, without null keys."""
        return hash_keys(self.table_uuid, raw, partition, first)

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
    keys = raw.filter(has_key).cast(pa.binary())
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    spread = partition.filter(has_key).to_numpy(zero_copy_only=False).astype(np.uint64) * _SPREAD
    secret = table_uuid.hex.encode()
    high, low = (hashes(keys, part) for part in (secret[:16], secret[16:]))
    high ^= spread
    position = np.flatnonzero(has_key.to_numpy(zero_copy_only=False)) + first
    return Keys(high, low, position.astype(np.uint32))


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
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for column, kind in zip(columns, types, strict=True):
        values = pc.cast(column, kind)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if pa.types.is_temporal(kind):
            values = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        if not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
            values = values.cast(pa.string())
        values = values.cast(pa.binary())
        size = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
        text = pc.binary_join_element_wise(size, values, b":")
        parts.append(pc.fill_null(text, b"-"))
    return pc.binary_join_element_wise(*parts, b",")


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
        names = {
            int((field.metadata or {}).get(b"PARQUET:field_id", -1)): field.name
            for field in parquet.schema_arrow
        }
        if decoded is None and not names.keys() >= set(field_ids):
            return
        columns = [names[number] for number in field_ids if number in names]
        first = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
            found = [
                batch.column(names[number])
                if number in names
                else pa.nulls(batch.num_rows, (decoded or ())[place])
                for place, number in enumerate(field_ids)
            ]
            yield found, first
            first += batch.num_rows
