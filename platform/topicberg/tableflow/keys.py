"""Where the keys of an upsert table lie: what a batch replaces is looked up, not searched for.

Every data file of a table has a *key file* in the state directory: a hash of each row's key,
sorted, and the row's position. A data file never changes, so its key file is right for ever; one
that is missing is made again from the data file. Which rows are deleted already say the position
delete files of the snapshot. So nothing here can be out of step with the table, whoever commits to
it and whatever is killed.

Size: 20 bytes a row. Hash: 128 bits, SipHash twice, keyed by the table's UUID, which no producer
knows: nobody can make two keys that meet.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent

from topicberg.errors import TopicbergError
from topicberg.files import topic_file
from topicberg.settings import Settings
from topicberg.tableflow.maintenance.files import entries
from topicberg.tableflow.position_deletes import FileRows, read_deletes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_ROW_BYTES = 8 + 8 + 4
_ROWS_AT_ONCE = 200_000
_UNUSED_SECONDS = 3600.0
"""So long a key file stays without its data file: another process may be at another snapshot."""
# Multiplied by the partition: the golden ratio's 64 bits, which spread small numbers far.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Keys:
    """Hashes of keys, sorted by ``high``; ``position``: of each one's row."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    position: NDArray[np.uint32]

    def positions_of(self, wanted: Keys) -> NDArray[np.uint32]:
        """Positions, ascending, of the rows that have one of these keys."""
        first = np.searchsorted(self.high, wanted.high, side="left")
        count = np.searchsorted(self.high, wanted.high, side="right") - first
        asked = np.repeat(np.arange(len(count)), count)
        place = np.arange(len(asked)) - np.repeat(np.cumsum(count) - count, count) + first[asked]
        same = self.low[place] == wanted.low[asked]
        return np.sort(self.position[place[same]])


def key_folder(config: Settings, topic: str) -> Path:
    """Where the key files of a topic's table are."""
    return topic_file(config.state_dir / "tableflow" / "keys", topic).with_suffix("")


def forget(config: Settings, topic: str) -> None:
    """Remove the key files of a topic whose table is gone."""
    shutil.rmtree(key_folder(config, topic), ignore_errors=True)


class KeyIndex:
    """The keys of one table. Not thread-safe; any number of processes may share the folder.

    :param folder: of the topic; holds a folder for its table
    :param key_columns: names of the columns with the raw key and with Kafka's partition
    """

    def __init__(self, folder: Path, table: Table, key_columns: tuple[str, str]) -> None:
        self.table_uuid = table.metadata.table_uuid
        self._folder = folder / f"{self.table_uuid}-{self._probe()}"
        schema = table.schema()
        self._key_ids = tuple(schema.find_field(name).field_id for name in key_columns)
        self._files: dict[str, tuple[DataFile, ...]] = {}  # by manifest, which never changes
        self._deleted: dict[str, NDArray[np.uint32]] = {}  # by data file
        self._read: set[str] = set()  # the delete files in _deleted
        self._clean_at = 0.0
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for (
                other
            ) in folder.iterdir():  # of a table that the topic had before, or of other hashes
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
        except OSError as error:
            raise _unusable(self._folder, error) from error

    def rows_of(self, table: Table, head: Snapshot, keys: pa.Table) -> list[FileRows]:
        """The rows of a snapshot that have one of these keys and are not deleted.

        :param keys: two columns, the raw key and Kafka's partition; distinct; no nulls
        :raises TopicbergError: the state directory cannot be written
        """
        data, deletes = self._live(table, head)
        self._read_deletes(table, deletes)
        wanted = self._hashed(keys.column(0), keys.column(1))
        found = []
        for file in data:
            positions = self._keys_of(table, file).positions_of(wanted)
            if (gone := self._deleted.get(file.file_path)) is not None:
                positions = np.setdiff1d(positions, gone, assume_unique=True)
            if len(positions):
                found.append(FileRows(file, positions))
        self._clean(data)
        return found

    def _live(self, table: Table, head: Snapshot) -> tuple[list[DataFile], list[DataFile]]:
        """Data files and position delete files."""
        before, self._files = self._files, {}
        for manifest in head.manifests(table.io):
            path = manifest.manifest_path
            self._files[path] = (
                before[path]
                if path in before
                else tuple(entry.data_file for entry in entries(table.io, [manifest]))
            )
        files = [file for of_manifest in self._files.values() for file in of_manifest]
        return tuple(  # type: ignore[return-value]
            [file for file in files if file.content == content]
            for content in (DataFileContent.DATA, DataFileContent.POSITION_DELETES)
        )

    def _read_deletes(self, table: Table, files: Iterable[DataFile]) -> None:
        by_path = {file.file_path: file for file in files}
        if not self._read <= by_path.keys():  # compacted, or the table was rolled back
            self._deleted, self._read = {}, set()
        for path in by_path.keys() - self._read:
            for data_file, positions in read_deletes(table.io, path):
                known = self._deleted.get(data_file)
                self._deleted[data_file] = (
                    np.unique(positions) if known is None else np.union1d(known, positions)
                )
            self._read.add(path)

    def _keys_of(self, table: Table, file: DataFile) -> Keys:
        path = self._path(file)
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
        except (FileNotFoundError, ValueError):  # the latter: it is empty
            keys = self._made(table, file)
            _save(path, keys)
            return keys
        except OSError as error:
            raise _unusable(path, error) from error
        rows = len(content) // _ROW_BYTES
        high, low, position = np.split(content, [8 * rows, 16 * rows])
        return Keys(high.view(np.uint64), low.view(np.uint64), position.view(np.uint32))

    def _made(self, table: Table, file: DataFile) -> Keys:
        parts = [
            self._hashed(raw, partition, first)
            for first, raw, partition in _key_columns(table, file, self._key_ids)
        ]
        if not parts:
            return Keys(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))
        high, low, position = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("high", "low", "position")
        )
        order = np.argsort(high)
        return Keys(high[order], low[order], position[order])

    def _hashed(self, raw: Any, partition: Any, first: int = 0) -> Keys:
        """Of rows from position ``first`` on; those without a key are left out."""
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
        order = np.argsort(high)
        return Keys(high[order], low[order], position[order].astype(np.uint32))

    def _probe(self) -> str:
        """What becomes of a few keys: another library must not read key files that it hashes
        otherwise."""
        import pyarrow as pa

        keys = self._hashed(
            pa.array([b"", b"\x00", b"k" * 256], pa.binary()), pa.array([0, 1, 2], pa.int32())
        )
        parts = b"".join(part.tobytes() for part in (keys.high, keys.low, keys.position))
        return hashlib.blake2b(parts, digest_size=8).hexdigest()

    def _path(self, file: DataFile) -> Path:
        digest = hashlib.blake2b(file.file_path.encode(), digest_size=16).hexdigest()
        return self._folder / f"{digest}.keys"

    def _clean(self, data: Iterable[DataFile]) -> None:
        """Remove the key files of data files that are gone, now and then."""
        now = time.time()
        if now < self._clean_at:
            return
        self._clean_at = now + _UNUSED_SECONDS
        needed = {self._path(file) for file in data}
        for path in set(self._folder.iterdir()) - needed:
            if now - path.stat().st_mtime > _UNUSED_SECONDS:
                path.unlink(missing_ok=True)


def _key_columns(
    table: Table, file: DataFile, field_ids: tuple[int, ...]
) -> Iterator[tuple[int, Any, Any]]:
    """Position of the first row, raw keys, partitions; nothing if the file has no such columns."""
    import pyarrow.parquet as pq

    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        names = {
            int((field.metadata or {}).get(b"PARQUET:field_id", -1)): field.name
            for field in parquet.schema_arrow
        }
        if not names.keys() >= set(field_ids):
            return
        columns = [names[number] for number in field_ids]
        first = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
            yield first, batch.column(columns[0]), batch.column(columns[1])
            first += batch.num_rows


def _save(path: Path, keys: Keys) -> None:
    """Write a key file in one step.

    :raises TopicbergError: it cannot be written
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as stream:
                for part in (keys.high, keys.low, keys.position):
                    stream.write(part.data)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> TopicbergError:
    return TopicbergError(
        f"{path} cannot be written or read: {error.strerror}",
        hint="free some space there: an upsert table's keys take 20 bytes a row; nothing of the "
        "batch was committed, it is written again",
    )
