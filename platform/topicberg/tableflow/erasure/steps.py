"""Erase rows from a table: from its head, its history, and the files in its folder.

1. Every data file of the head that has such rows, deleted ones included, is replaced by a file
   without them. Manifests record the replaced files, for what is derived from the table.
2. A snapshot follows whose manifests name live files only: the bounds of a replaced file may be
   values of an erased row. It carries what the engine resumes from.
3. Every snapshot expires that names a file with such rows, or one that cannot be read any more, and
   so do the branches and tags that lead to it. What derived tables have to compute again is
   recorded as for any other expiry (:mod:`topicberg.iceberg.changes`).
4. Files in the folder that no metadata leads to are deleted if they have such rows.

Each commit is refused if another one came first. Every step starts from the table's state, so an
erasure that was killed is completed by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from typing import Any

import fastavro
import numpy as np
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from tenacity import wait_random

from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.errors.retry import conflicts, retry
from topicberg.iceberg import clocks, commits, position_deletes, read_tags, snapshots, summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.files import delete_files, entries
from topicberg.iceberg.hours import Hours
from topicberg.iceberg.maintenance.expiry import Expirable, remove
from topicberg.iceberg.manifests import read_manifests
from topicberg.tableflow.erasure.locations import RowLocations
from topicberg.tableflow.erasure.matching import Rows, is_data
from topicberg.tableflow.erasure.rewriting import check_rewritable, is_parquet, rewritten

ATTEMPTS = 20
ROUNDS = 10  # How often another writer may bring a snapshot back that has to expire.
COMMIT_SECONDS = 5.0
"""Replaced files are committed after this time: a later commit of the engine would refuse them."""
READERS_SECONDS = 120.0  # How long readers of a snapshot that has to expire are waited for.
PUBLISHED = ("published-", "publishing-")
"""Prefixes of the tags on what a published topic holds: without them it cannot continue."""


class PinnedError(TopicbergError):
    """A snapshot with rows to erase is what a published topic continues from."""


@dataclass
class Erased:
    """What was done."""

    rows: int = 0
    files_rewritten: int = 0
    snapshots_expired: int = 0
    files_deleted: int = 0
    refs: list[str] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)  # Data files that were replaced or deleted.
    readers: list[str] = field(default_factory=list)
    """Tags of those that were reading such rows, and did not end: they may write them again."""
    hours: list[Hours] = field(default_factory=list)  # Hours (event time) with erased rows.


@dataclass
class Erasure:
    """The four steps, each of which is repeated when another writer's commit came first."""

    table: Table
    rows: Rows
    time_column: str | None = None  # By whose hours other tables are derived from this one.
    note: Callable[[int], Mapping[str, str]] = lambda rows: {}
    """Returns the table properties to set, given the number of rows that are erased."""
    before_expiry: Callable[[], None] = lambda: None
    """Called when the head is without the rows, and files of history still exist."""
    patience: float = READERS_SECONDS  # Seconds to wait for readers of snapshots that expire.

    def __post_init__(self) -> None:
        self.locations = RowLocations(self.table, self.rows)
        self.name, self.done = ".".join(self.table.name()), Erased()
        self._written: dict[tuple[str, bytes], DataFile | None] = {}
        """Path of a replaced file and the positions that were dropped → the new file."""

    def erase(self) -> Erased:
        """Erase the rows.

        :raises PinnedError: the head is without the rows; a topic has to be published first
        :raises CommitConflictError: others kept committing to the table
        :raises TableflowError: the table was rolled back to a state whose offsets are not known
        :raises TopicbergError: a file cannot be read or rewritten
        """
        if not self.locations.find().holders:
            return self.done
        self._carried()  # may raise an error, before anything changes
        for _ in range(ROUNDS):
            while self._retried(self._replace):
                pass
            self._retried(lambda: position_deletes.trim_deletes(self.table.refresh()))
            self._retried(self._clean)
            self.before_expiry()
            if self._retried(self._expire):
                break
        else:
            raise CommitConflictError(
                f"table {self.name}: other writers kept committing files with rows to erase",
                hint="run the command again",
            )
        self._sweep()
        return self.done

    def _retried(self, work: Callable[[], Any]) -> Any:
        attempt = conflicts(f"table {self.name}")(work)
        exhausted = CommitConflictError(
            f"table {self.name}: {ATTEMPTS} times in a row another commit came first",
            hint="run the command again: it continues where it stopped",
        )
        return retry(attempt, ATTEMPTS, wait=wait_random(0, 1), exhausted=exhausted)

    def _replace(self) -> bool:
        """Replace files of the head that have rows to erase; return False if there are none."""
        snapshot = self.table.refresh().current_snapshot()
        manifest_files = read_manifests(self.table.io, snapshot) if snapshot else []
        head_entries = list(entries(self.table.io, manifest_files))
        head = [entry.data_file for entry in head_entries]
        check_rewritable(self.table, head)
        self.locations.read(file.file_path for file in head if is_parquet(file))
        by_path = {entry.data_file.file_path: entry for entry in head_entries}
        files = {path: entry for path, entry in by_path.items() if self.locations.has_rows(path)}
        if not files:
            return False
        deleted, until = self.locations.deleted(head), time.monotonic() + COMMIT_SECONDS
        replaced, rows = dict[str, DataFile | None](), 0
        for path, entry in files.items():
            positions = self.locations.positions(path)
            dropped = np.union1d(positions, deleted[path])
            known = path, dropped.tobytes()
            if known not in self._written:
                self._written[known] = rewritten(self.table, entry, dropped)
            replaced[path] = self._written[known]
            rows += len(np.setdiff1d(positions, deleted[path]))
            if time.monotonic() > until:
                break
        # Without a row that readers see, nothing changes for what is derived from the table.
        operation = Operation.OVERWRITE if rows else Operation.REPLACE
        change = SnapshotChange(self.table, operation, properties={summaries.ERASURE: "true"})
        change.time = self.time_column
        change.remove(files[path].data_file for path in replaced)
        change.add(file for file in replaced.values() if file is not None)
        written = change.commit(self.note(rows))
        if rows and self.time_column and self.time_column in self.table.schema().column_names:
            self.done.hours += snapshots.affected_hours(
                self.table.refresh(), written, self.time_column
            )
        self.done.rows += rows
        self.done.files_rewritten += len(replaced)
        self.done.replaced |= replaced.keys()
        return True

    def _clean(self) -> None:
        """Commit a head that names live files only, and has what the engine resumes from."""
        head = self.table.refresh().current_snapshot()
        if head is None:
            return
        tainted, carried = self.locations.tainted_snapshots(), self._carried()
        if head.snapshot_id not in tainted and not carried.keys() & tainted:
            return
        properties = {
            key: value
            for snapshot in carried.values()
            for key, value in summaries.summary(snapshot).items()
            if key.startswith(summaries.OWN)
        }
        has_offsets = summaries.END_OFFSETS in properties
        change = SnapshotChange(self.table, Operation.REPLACE, properties=properties)
        change.forgets_removed = True
        tag = commits.set_ref(summaries.CHECKPOINT_TAG, change.snapshot_id)
        change.commit(more=[tag] if has_offsets else ())

    def _carried(self) -> dict[int, Any]:
        """Return the snapshots that say where the engine, and what computes the table, resume.

        :raises TableflowError: the table was rolled back to a state whose offsets are not known
        """
        line = summaries.ancestry(self.table)
        computed = (each for each in line if summaries.SOURCE_SNAPSHOTS in summaries.summary(each))
        newest = (summaries.checkpoint(self.table), next(computed, None))
        return {each.snapshot_id: each for each in newest if each is not None}

    def _expire(self) -> bool:
        """Expire what names erased files; return False if the head does."""
        expired = self._without_readers()
        if self.locations.is_head_tainted():
            return False
        if not expired:
            return True
        if pinned := sorted(name for name in expired.refs if name.startswith(PUBLISHED)):
            topics = sorted({name.partition("-")[2] for name in pinned})
            raise PinnedError(
                f"table {self.name}: the topic {', '.join(topics)} is published from a snapshot "
                "that has rows to erase",
                hint=f"materialize kafka/{topics[0]}, and run the command again",
            )
        self.done.files_deleted += remove(self.table, expired, self.time_column, self.note(0))
        self.done.snapshots_expired += len(expired.snapshots)
        self.done.refs += sorted(expired.refs)
        self.done.replaced |= self.locations.tainted_files()
        return True

    def _without_readers(self) -> Expirable:
        """Return what has to expire, after the readers of it ended."""
        deadline = time.monotonic() + self.patience
        while True:
            self.table.refresh()
            expired = self.locations.expirable()
            now_ms = int(clocks.current_time(self.table).timestamp() * 1000)
            others = expired.refs.difference(read_tags.stale_tags(self.table, now_ms))
            readers = [name for name in others if name.startswith(read_tags.PREFIX)]
            if not readers or time.monotonic() > deadline:
                self.done.readers += readers
                return expired
            time.sleep(1)

    def _sweep(self) -> None:
        """Delete unreachable files with rows to erase, and manifests that name such files."""
        unreachable = self.locations.unreachable()
        data = {path for path in unreachable if self.locations.has_rows(path)}
        content = {path: _avro(self.table, path) for path in unreachable if path.endswith(".avro")}
        named = {
            path: [record["data_file"]["file_path"] for record in records]
            for path, records in content.items()
            if records and "data_file" in records[0]
        }
        self.locations.read(filter(is_data, chain.from_iterable(named.values())))
        bad = {path for path, files in named.items() if any(map(self.locations.is_tainted, files))}
        members = {path: {r.get("manifest_path") for r in content[path]} for path in content}
        lists = {path for path, manifests in members.items() if manifests & bad}
        # Data files last: what a killed run leaves is then found by what it holds.
        for paths in (lists, bad, data):
            self.done.files_deleted += delete_files(self.table.io, paths)
        self.done.replaced |= data


def _avro(table: Table, path: str) -> list[dict[str, Any]]:
    """Return the records of a manifest, or of a list of manifests; none if it is deleted."""
    try:
        with table.io.new_input(path).open() as stream:
            records: Any = fastavro.reader(BytesIO(stream.read()))
            return [dict(each) for each in records]
    except (FileNotFoundError, ValueError, EOFError):  # it is being written
        return []
