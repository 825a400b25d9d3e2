"""The key files of one table, in the state directory and where its writers share them."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from topicberg.iceberg.files import in_parallel
from topicberg.iceberg.shared_keys import file_name, shared_file
from topicberg.tableflow.upsert import key_files
from topicberg.tableflow.upsert.key_files import HeldKeys, Seal, unusable
from topicberg.tableflow.upsert.key_hashing import KeyHasher

logger = logging.getLogger(__name__)

SHARED_ROWS = 10_000
"""Key files of fewer rows are not shared: reading the data file takes as long."""
_UNUSED_SECONDS = 3600.0
"""The minimum age of a key file that is deleted: another process may have just created it."""


class KeyStore:
    """Key files by data file. Not thread-safe; any number of processes may share the folder."""

    def __init__(self, folder: Path, hasher: KeyHasher) -> None:
        """:param folder: of the topic; holds a folder for its table
        :raises TopicbergError: it cannot be written
        """
        self._hasher = hasher
        self._format = f"{hasher.table_uuid}-{hasher.definition}"
        self._folder = folder / self._format
        self._shares = True
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
        """Return the keys of a data file, which is read if it has no key file.

        :raises TopicbergError: the state directory cannot be written
        """
        if (held := key_files.read(self.path(file))) is not None:
            return held
        keys = self._hasher.of_file(table, file)
        self.hold(file, keys)
        return keys

    def hold(self, file: DataFile, keys: HeldKeys) -> None:
        """Keep the keys of a new data file, so that it is not read for them.

        :raises TopicbergError: the state directory cannot be written
        """
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
        needed = {self.path(file) for file in data}
        with suppress(OSError):  # another process cleans too; the next call retries
            for path in set(self._folder.iterdir()) - needed:
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
