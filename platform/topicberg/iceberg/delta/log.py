"""The Delta log of a table as files: its newest version, one more version, its checkpoints.

A version is one file, written only if it is absent, so that only one of two writers succeeds. Every
version that topicberg writes records in its commitInfo the Iceberg snapshot and the schema that it
reflects: the newest file is enough to find where to resume.

Source: Delta's PROTOCOL.md, "Delta Log Entries", "Checkpoints", "Last Checkpoint File".
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyiceberg.io.fsspec import FsspecFileIO

from topicberg.errors import CommitConflictError, TableflowError
from topicberg.extensions import of_extra
from topicberg.iceberg.delta.schema import Action

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from fsspec import AbstractFileSystem
    from pyiceberg.table import Table

LOG_FOLDER = "_delta_log"
CHECKPOINT_EVERY = 20  # Versions between checkpoints: readers read at most so many small files.
_TAKEN = (errno.EBUSY, errno.EEXIST)
MARK = "topicberg"  # The key in commitInfo under which a version records what it reflects.


@dataclass(frozen=True)
class DeltaVersion:
    """One version of a Delta table."""

    version: int
    snapshot_id: int | None  # The Iceberg snapshot whose rows it has; None: there was none yet.
    definition: str  # Digest of its protocol and metaData.


class DeltaLog:
    """``_delta_log`` under a table's location, through the file system of the table."""

    def __init__(self, table: Table) -> None:
        self.location = table.location().rstrip("/")
        self.folder = f"{self.location}/{LOG_FOLDER}"
        self.checkpoint: int | None = None  # newest() has found it
        self._properties = table.io.properties
        scheme = self.location.partition("://")[0] if "://" in self.location else "file"
        # PyArrow's S3 client, the table's FileIO, cannot put an object only if it is absent.
        self._files: AbstractFileSystem = FsspecFileIO(self._properties).get_fs(scheme)

    def newest(self) -> DeltaVersion | None:
        """Return the newest version, or None if there is no log yet.

        :raises TableflowError: the log is damaged, or another writer wrote the newest version
        """
        pointer = self._read("_last_checkpoint")
        self.checkpoint = json.loads(pointer)["version"] if pointer else None
        version = self.checkpoint or 0
        if (newest := self._read(_name(version))) is None:
            if self.checkpoint is None and not self._has_versions():
                return None
            raise TableflowError(
                f"the Delta log {self.folder} has lost version {version}",
                hint=f"remove {self.folder}: it is written again, no data is lost",
            )
        while following := self._read(_name(version + 1)):
            version, newest = version + 1, following
        return self._mark(version, newest)

    def write(self, actions: Sequence[Action], mark: DeltaVersion) -> None:
        """Write a version.

        :param actions: the first one is the commitInfo
        :raises CommitConflictError: that version exists already; nothing was written
        """
        reflected = {"snapshotId": mark.snapshot_id, "definition": mark.definition}
        actions[0]["commitInfo"][MARK] = reflected
        content = "".join(f"{json.dumps(action)}\n" for action in actions).encode()
        path = f"{self.folder}/{_name(mark.version)}"
        try:
            if "file" in self._files.protocol:
                self._files.makedirs(self.folder, exist_ok=True)
                with self._files.open(path, "xb") as file:
                    file.write(content)
            else:
                self._files.pipe_file(path, content, mode="create")
        except OSError as error:
            # s3fs has no exception of its own for a refused If-None-Match.
            is_refused = error.errno in _TAKEN or "PreconditionFailed" in repr(error)
            if isinstance(error, FileExistsError) or is_refused:
                raise CommitConflictError(f"{path} exists: another writer was faster") from error
            raise

    def write_checkpoint(self) -> None:
        """Write the whole log as one file; then delete logs older than the retention."""
        table = self._open()
        table.create_checkpoint()
        table.cleanup_metadata()

    def remove(self) -> None:
        """Delete the log; the data files stay."""
        with suppress(FileNotFoundError):
            self._files.rm(self.folder, recursive=True)
        self._files.invalidate_cache()

    def live_paths(self) -> set[str]:
        """Return the paths of the newest version's data files, with percent-encoding removed."""
        return {unquote(path) for path in self._open().get_add_actions()["path"].to_pylist()}

    def _open(self) -> DeltaTable:
        with of_extra("delta"):
            from deltalake import DeltaTable

        return DeltaTable(self.location, storage_options=storage_options(self._properties))

    def _read(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(f"{self.folder}/{name}"))
        except FileNotFoundError:
            return None

    def _has_versions(self) -> bool:
        try:
            return bool(self._files.ls(self.folder, detail=False, refresh=True))
        except FileNotFoundError:
            return False

    def _mark(self, version: int, content: bytes) -> DeltaVersion:
        # All lines: of a version that a full disk cut off, the last one is damaged.
        actions = list(map(json.loads, content.splitlines()))
        infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
        commit_info: dict[str, Any] = next(infos, {})
        if (mark := commit_info.get(MARK)) is None:
            raise TableflowError(
                f"version {version} of the Delta log {self.folder} is another writer's: its "
                f"operation is {commit_info.get('operation', 'unknown')}",
                hint="remove the _delta_log folder, which is then written again; only topicberg "
                "may write to this table",
            )
        return DeltaVersion(version, mark["snapshotId"], mark["definition"])


def storage_options(properties: dict[str, Any]) -> dict[str, str]:
    """Return the options that ``deltalake`` needs to reach the same store as PyIceberg's FileIO."""
    names = {
        "s3.endpoint": "AWS_ENDPOINT_URL",
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.session-token": "AWS_SESSION_TOKEN",
        "s3.region": "AWS_REGION",
    }
    options = {name: str(properties[key]) for key, name in names.items() if properties.get(key)}
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    return options


def _name(version: int) -> str:
    return f"{version:020}.json"
