"""The Delta log of a table as files: its newest version, one more version, its checkpoints.

A version is one file, put only if it is absent, so that of two writers one comes second. Every
version that topicberg writes says in its commitInfo which Iceberg snapshot the table is at then,
and which schema it has: the newest file alone tells where to go on.

Source: Delta's PROTOCOL.md, "Delta Log Entries", "Checkpoints", "Last Checkpoint File".
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyiceberg.io.fsspec import FsspecFileIO

from topicberg.errors import TableflowError
from topicberg.iceberg.delta.schema import Action

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from fsspec import AbstractFileSystem
    from pyiceberg.table import Table

LOG_FOLDER = "_delta_log"
CHECKPOINT_EVERY = 20
"""Versions. A reader, and the next sync, reads so many small files at most."""
MARK = "topicberg"
"""The key in commitInfo of what a version reflects."""


@dataclass(frozen=True)
class DeltaVersion:
    """One version of a Delta table."""

    version: int
    snapshot_id: int | None
    """The Iceberg snapshot whose rows it has; None: the table had none yet."""
    definition: str
    """Digest of its protocol and metaData."""


class VersionTakenError(Exception):
    """Somebody else wrote that version first."""


class DeltaLog:
    """``_delta_log`` under a table's location, through the file system of the table."""

    def __init__(self, table: Table) -> None:
        self.location = table.location().rstrip("/")
        self.folder = f"{self.location}/{LOG_FOLDER}"
        self.checkpoint: int | None = None  # the last one, as far as newest() saw
        self._properties = table.io.properties
        scheme = self.location.partition("://")[0] if "://" in self.location else "file"
        # PyArrow's S3 client, the FileIO of the table, cannot put an object only if it is absent.
        self._files: AbstractFileSystem = FsspecFileIO(self._properties).get_fs(scheme)

    def newest(self) -> DeltaVersion | None:
        """The newest version; None: there is no log yet.

        :raises TableflowError: the log is damaged, or another writer wrote the newest version
        """
        pointer = self._read("_last_checkpoint")
        self.checkpoint = json.loads(pointer)["version"] if pointer else None
        version = self.checkpoint or 0
        newest = self._read(_name(version))
        if newest is None:
            if self.checkpoint is None and not self._has_versions():
                return None
            raise TableflowError(
                f"the Delta log {self.folder} has lost version {version}",
                hint=f"remove {self.folder}: it is written anew, no data is lost",
            )
        while following := self._read(_name(version + 1)):
            version, newest = version + 1, following
        return self._mark(version, newest)

    def write(self, version: int, actions: Sequence[Action], mark: DeltaVersion) -> None:
        """
        :param actions: the first one is the commitInfo
        :raises VersionTakenError: there is that version already; nothing was written
        """
        commit_info, *rest = actions
        commit_info["commitInfo"][MARK] = {
            "snapshotId": mark.snapshot_id,
            "definition": mark.definition,
        }
        lines = "".join(f"{json.dumps(action)}\n" for action in (commit_info, *rest))
        self._create(f"{self.folder}/{_name(version)}", lines.encode())

    def write_checkpoint(self) -> None:
        """One file that says what the whole log says; then logs older than the retention go."""
        table = self._open()
        table.create_checkpoint()
        table.cleanup_metadata()

    def live_paths(self) -> set[str]:
        """Paths of the newest version's data files as the log has them, but not percent-encoded."""
        return {unquote(path) for path in self._open().get_add_actions()["path"].to_pylist()}

    def _open(self) -> DeltaTable:
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

    def _create(self, path: str, content: bytes) -> None:
        try:
            if "file" in self._files.protocol:
                self._files.makedirs(self.folder, exist_ok=True)
                with self._files.open(path, "xb") as file:
                    file.write(content)
            else:
                self._files.pipe_file(path, content, mode="create")
        except FileExistsError:
            raise VersionTakenError(path) from None
        except OSError as error:
            # s3fs has no word of its own for the refusal of If-None-Match.
            if error.errno in (errno.EBUSY, errno.EEXIST) or "PreconditionFailed" in repr(error):
                raise VersionTakenError(path) from error
            raise

    def _mark(self, version: int, content: bytes) -> DeltaVersion:
        commit_info: dict[str, Any] = {}
        for line in content.splitlines():
            commit_info = json.loads(line).get("commitInfo", commit_info)
        mark = commit_info.get(MARK)
        if mark is None:
            raise TableflowError(
                f"version {version} of the Delta log {self.folder} is not of topicberg: its "
                f"operation is {commit_info.get('operation', 'unknown')}",
                hint="only topicberg may write to this table; remove the _delta_log folder, it is "
                "written anew",
            )
        return DeltaVersion(version, mark["snapshotId"], mark["definition"])


def storage_options(properties: dict[str, Any]) -> dict[str, str]:
    """Of PyIceberg's FileIO properties, what ``deltalake`` needs to reach the same store."""
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
