"""The index of an upsert table's keys: the rows that a batch replaces are looked up, not scanned.

Every data file of a table has a *key file* in the state directory: a hash of each row's key,
sorted, and the row's position. A data file never changes, so its key file stays valid; a missing
key file is created again from the data file. Which rows are deleted already is read from the
snapshot's position delete files. So the index always agrees with the table, whoever commits to it
and whatever is killed.

Size: 20 bytes a row. Hash: 128 bits, SipHash twice, keyed by the table's UUID. No producer knows
the UUID, so no producer can construct two keys whose hashes collide.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent

from topicberg.errors import TopicbergError
from topicberg.files import replacing, topic_file
from topicberg.iceberg.files import entries_by_manifest
from topicberg.iceberg.manifests import identity
from topicberg.iceberg.position_deletes import Deletes, FileRows, read_deletes
from topicberg.iceberg.vectors import read_vectors
from topicberg.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_ROW_BYTES = 8 + 8 + 4
_TRAILER_BYTES = 8
"""The number of rows comes last, so a truncated key file has another number there."""
_FORMAT = 1
"""Increase it with any change of the content of key files."""
_ROWS_AT_ONCE = 200_000
_UNUSED_SECONDS = 3600.0
"""The minimum age of a key file that is deleted: another process may have just created it."""
# The partition is multiplied by the golden ratio's 64 bits, which spread small numbers far.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Keys:
    """Hashes of keys; ``position``: of the row of each key."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    position: NDArray[np.uint32]

    def text(self, number: int) -> str:
        """Return one hash as 32 hexadecimal digits."""
        return f"{int(self.high[number]):016x}{int(self.low[number]):016x}"

    def positions_of(self, keys: Keys) -> NDArray[np.uint32]:
        """Return the positions, ascending, of the rows that have one of these keys.

        Both must be sorted.
        """
        if len(self.high) < len(keys.high):
            place, match = _meeting(self.high, keys.high)
        else:
            match, place = _meeting(keys.high, self.high)
        same = self.low[place] == keys.low[match]
        return np.sort(self.position[place[same]])


def merged(parts: Sequence[Keys]) -> Keys:
    """Return all keys of the parts, sorted."""
    empty = Keys(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))
    high, low, position = (
        np.concatenate([getattr(part, name) for part in (empty, *parts)])
        for name in ("high", "low", "position")
    )
    order = np.argsort(high)
    return Keys(high[order], low[order], position[order])


def _meeting(
    few: NDArray[np.uint64], many: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of all pairs of equal numbers, in both.

    :param many: sorted
    """
    first = np.searchsorted(many, few, side="left")
    count = np.searchsorted(many, few, side="right") - first
    of_few = np.repeat(np.arange(len(few)), count)
    nth = np.arange(len(of_few)) - np.repeat(np.cumsum(count) - count, count)
    return of_few, first[of_few] + nth


def key_folder(config: Settings, topic: str) -> Path:
    """Return the folder of the key files of a topic's table."""
    return topic_file(config.state_dir / "tableflow" / "keys", topic).with_suffix("")


def forget(config: Settings, topic: str) -> None:
    """Remove the key files of a topic whose table was deleted."""
    shutil.rmtree(key_folder(config, topic), ignore_errors=True)


def forget_files(config: Settings, topic: str, paths: Iterable[str]) -> None:
    """Remove the key files of data files that were deleted."""
    for path in paths:
        for found in key_folder(config, topic).glob(f"*/{_file_name(path)}"):
            found.unlink(missing_ok=True)


def _file_name(path: str) -> str:
    return f"{hashlib.blake2b(path.encode(), digest_size=16).hexdigest()}.keys"


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
        self._folder = folder / f"{self.table_uuid}-{self._probe()}"
        self._files: dict[str, tuple[DataFile, ...]] = {}  # by manifest; manifests never change
        self._deleted: dict[str, NDArray[np.bool_]] = {}  # by data file, if it has deleted rows
        self._read: set[str] = set()  # the delete files in _deleted
        # By data file: its vector's identity, and the positions in it.
        self._vectors: dict[str, tuple[tuple[str, int | None], NDArray[np.uint32]]] = {}
        self._clean_at = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for other in folder.iterdir():
                of_an_old_table = not other.name.startswith(str(self.table_uuid))
                if of_an_old_table or (other != self._folder and _is_old(other)):
                    shutil.rmtree(other, ignore_errors=True)
        except OSError as error:
            raise _unusable(self._folder, error) from error

    def rows_of(self, table: Table, head: Snapshot, keys: pa.Table) -> list[FileRows]:
        """Return the rows of a snapshot that have one of these keys and are not deleted.

        :param keys: the key columns; distinct; raw keys have no nulls
        :raises TopicbergError: the state directory cannot be written
        """
        hashes = merged([self.hashes(keys.columns)])
        return self._rows(table, head, lambda held: held.positions_of(hashes))

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

        def others(held: Keys) -> NDArray[np.uint32]:
            return np.setdiff1d(held.position, held.positions_of(kept))

        return self._rows(table, head, others)

    def _rows(
        self, table: Table, head: Snapshot, choose: Callable[[Keys], NDArray[np.uint32]]
    ) -> list[FileRows]:
        files = self._live(table, head)
        data = [file for file in files if file.content == DataFileContent.DATA]
        self._read_deletes(table, files)
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
                known = self._deleted.get(data_file, np.empty(0, np.bool_))
                rows = int(positions.max()) + 1
                if rows > len(known):
                    known = np.pad(known, (0, rows - len(known)))
                known[positions] = True
                self._deleted[data_file] = known
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
            self._vectors[path] = identity(vectors[path]), positions

    def _not_deleted(self, data_file: str, positions: NDArray[np.uint32]) -> NDArray[np.uint32]:
        if data_file in self._vectors:  # it has all deletes of its data file
            return np.setdiff1d(positions, self._vectors[data_file][1], assume_unique=True)
        deleted = self._deleted.get(data_file)
        if deleted is None:
            return positions
        last = np.searchsorted(positions, len(deleted))
        inside = positions[:last]
        return np.concatenate([inside[~deleted[inside]], positions[last:]])

    def _keys_of(self, table: Table, file: DataFile) -> Keys:
        path = self._path(file)
        content: NDArray[np.uint8]
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
        except (FileNotFoundError, ValueError):  # ValueError: the file is empty
            content = np.empty(0, np.uint8)
        except OSError as error:
            raise _unusable(path, error) from error
        rows, rest = divmod(len(content) - _TRAILER_BYTES, _ROW_BYTES)
        if rest or content[-_TRAILER_BYTES:].view(np.uint64)[0] != rows:
            columns = _key_columns(table, file, self._key_ids, self._key_types)
            keys = merged([self.hashes(*each) for each in columns])
            _save(path, keys)
            return keys
        high, low, position, _ = np.split(content, [8 * rows, 16 * rows, _ROW_BYTES * rows])
        return Keys(high.view(np.uint64), low.view(np.uint64), position.view(np.uint32))

    def hashed(self, raw: Any, partition: Any, first: int = 0) -> Keys:
        """Return the keys of rows from position ``first`` on, in order, without null keys."""
        import pandas as pd
        import pyarrow.compute as pc

        has_key = pc.and_(raw.is_valid(), partition.is_valid())
        keys = raw.filter(has_key).to_numpy(zero_copy_only=False)
        spread = partition.filter(has_key).to_numpy(zero_copy_only=False).astype(np.uint64)
        spread = spread * _SPREAD
        secret = self.table_uuid.hex
        high, low = (
            pd.util.hash_array(keys, hash_key=part, categorize=False)
            for part in (secret[:16], secret[16:])
        )
        high ^= spread
        position = np.flatnonzero(has_key.to_numpy(zero_copy_only=False)) + first
        return Keys(high, low, position.astype(np.uint32))

    def _probe(self) -> str:
        """Return a digest of the key format: key files of another format are not read."""
        import pyarrow as pa

        keys = self.hashed(
            pa.array([b"", b"\x00", b"k" * 256], pa.binary()), pa.array([0, 1, 2], pa.int32())
        )
        content = b"".join(part.tobytes() for part in (keys.high, keys.low, keys.position))
        content += repr((_FORMAT, self._key_ids)).encode()
        if self._key_types is not None:
            content += repr(list(map(str, self._key_types))).encode()
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def _path(self, file: DataFile) -> Path:
        return self._folder / _file_name(file.file_path)

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


def _save(path: Path, keys: Keys) -> None:
    """Write a key file in one step.

    :raises TopicbergError: it cannot be written
    """
    try:
        with replacing(path) as stream:
            for part in (keys.high, keys.low, keys.position):
                stream.write(part.data)
            stream.write(np.uint64(len(keys.high)).tobytes())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> TopicbergError:
    return TopicbergError(
        f"{path} cannot be written or read: {error.strerror}",
        hint="make the folder writable and free some space: an upsert table's keys take 20 bytes a "
        "row there; nothing of the batch was committed, the engine writes it again",
    )
