"""Commits of other writers to a topic's table: whether they left its rows as they were.

A writer that replaces files as of an older snapshot brings back rows that batches since deleted,
doubles rows that they replaced, or loses rows that they added. Iceberg's procedures on Spark refuse
such a commit; other tools commit it. So the rows before and after the commits of others are
compared by what identifies a row of every topic's table: the partition and the offset of its
record.

The comparison starts at the last snapshot of topicberg, so it has the same result until the engine
commits again: the topic stays suspended until a user acts, however often the engine restarts.

Source: Iceberg spec, "Scan Planning": which deletes apply to a data file.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, takewhile

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

from topicberg.errors import TableflowError
from topicberg.errors.retry import conflicts
from topicberg.formats.metadata import OFFSET, PARTITION
from topicberg.iceberg import summaries
from topicberg.iceberg.commits import move_main
from topicberg.iceberg.files import entries, manifests
from topicberg.iceberg.manifests import identity, is_vector, referenced_file
from topicberg.iceberg.position_deletes import FileRows, read_deletes, read_rows
from topicberg.iceberg.vectors import read_vectors
from topicberg.settings import Settings
from topicberg.tableflow.layout.waiting import start_again
from topicberg.tableflow.values.logs import log_number
from topicberg.topics import TopicSpec, requests
from topicberg.wording import count, listed

logger = logging.getLogger(__name__)

REPORTED = "topicberg.foreign-rows"
"""Table property: the last of the snapshots that suspended the topic, and since when (ms)."""
_ROWS_AT_ONCE = 20_000_000
"""Rows that are compared at once: each takes 8 bytes, and as much again to sort."""
_WRITERS = ("engine-name", "app-name", "app-id", "spark.app.id", "trino_query_id", "flink.job-id")
"""What writers say of themselves in the summary of a snapshot."""
_NAMED = 3
_OFFSET_BITS = np.uint64(44)
"""Of a row's identity; the other bits are its partition."""
_Place = tuple[str, int]
"""Path and data sequence number of a file: an older delete does not apply to a file that is added
again."""


@dataclass(frozen=True)
class ForeignCommits:
    """Successive snapshots of other writers that changed rows in a way that no writer should."""

    before: Snapshot
    """The last snapshot of topicberg before them."""
    snapshots: Sequence[Snapshot]
    """From old to new."""
    added: int
    """Rows that ``before`` does not have, or has once less."""
    missing: int
    """Rows that are missing, other than by a statement that deletes rows."""
    writer: str

    @property
    def what(self) -> str:
        """The snapshots, their writer, and what they did."""
        names = [
            f"{snapshot.snapshot_id} ({operation.value if operation else 'unknown'})"
            for snapshot in self.snapshots
            for operation in [summaries.operation_of(snapshot)]
        ]
        at_ms = max(snapshot.timestamp_ms for snapshot in self.snapshots)
        moment = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
        changed = [
            f"brought back or doubled {count(self.added, 'row')}" if self.added else "",
            f"lost {count(self.missing, 'row')}" if self.missing else "",
        ]
        return (
            f"snapshot{'s' if len(names) > 1 else ''} {listed(names, _NAMED)} of {moment}, written "
            f"by {self.writer}, {' and '.join(filter(None, changed))} of snapshot "
            f"{self.before.snapshot_id}"
        )

    def accepted(self, spec: TopicSpec) -> str:
        """Return which rows stay wrong if a user accepts these commits, and how to repair them."""
        command = f"`topicberg tableflow reread {spec.name}`"
        later = start_again(spec.name)
        if spec.is_compacted:
            later = f"{command} deletes rows that are not the newest of a key of the topic"
            later += ", but brings back none that is lost" if self.missing else ""
        return (
            f"the rows of its table stay as they are now: {self.what}. Until the engine's next "
            f"commit, {command} still sets the table to the snapshot before. After it, {later}"
        )


class ForeignWatch:
    """Compares the rows of one topic's table before and after the commits of others."""

    def __init__(self, spec: TopicSpec, config: Settings) -> None:
        self._spec, self._config = spec, config
        self._compared: tuple[object, Sequence[ForeignCommits]] | None = None

    def check(self, table: Table) -> None:
        """:raises TableflowError: commits of others changed rows, and no user accepted that"""
        state = table.metadata.table_uuid, table.metadata.current_snapshot_id
        if self._compared is None or self._compared[0] != state:
            self._compared = state, [*changed_by_others(table, self._spec)]
        if not self._compared[1]:
            return
        # A user who resumed the topic before all of them were reported has not accepted them.
        name, changed = self._spec.name, self._compared[1][0]
        newest = self._compared[1][-1].snapshots[-1].snapshot_id
        snapshot, _, at_ms = table.properties.get(REPORTED, "").partition(" ")
        if snapshot != str(newest):
            with table.transaction() as transaction:
                transaction.set_properties({REPORTED: f"{newest} {time.time() * 1000:.0f}"})
        else:
            request = requests.read_request(self._config, name)
            if request is not None and request.resumed_at * 1000 > int(at_ms):
                return
        raise TableflowError(
            f"topic {name}: another writer replaced rows of the table as they were earlier: "
            f"{changed.what}",
            hint=f"run `topicberg tableflow reread {name}` to set the table to snapshot "
            f"{changed.before.snapshot_id} and go on with the topic from there, or `topicberg "
            f"tableflow resume {name}` to accept these rows; compact the table with Iceberg's "
            "procedures on Spark, which refuse such commits",
        )


def changed_by_others(table: Table, spec: TopicSpec) -> Iterator[ForeignCommits]:
    """Yield the commits of others since the last batch that changed rows, from old to new.

    Rows that a writer only deleted are not among them, nor rows without a partition and an offset,
    which users may have added.

    :raises TableflowError: the table was rolled back to a state whose offsets are not known
    """
    before = summaries.checkpoint(table)
    known = before.snapshot_id if before is not None else None
    newest_first = summaries.ancestry(table)
    line = [*takewhile(lambda snapshot: snapshot.snapshot_id != known, newest_first)][::-1]
    if before is None:
        # Behind expired snapshots, rows that replaced all others look like those of a new table.
        before = table.snapshot_by_name(summaries.CHECKPOINT_TAG)
        first = line[0].sequence_number or 0 if line else 0
        if before is None or (before.sequence_number or 0) >= first:
            return
    for is_ours, group in groupby(line, _is_trusted):
        snapshots = list(group)
        if not is_ours and (changed := _compare(table, spec, before, snapshots)) is not None:
            yield changed
        before = snapshots[-1]


def restore(table: Table, changed: ForeignCommits) -> None:
    """Set ``main`` to the snapshot before others' commits, or raise CommitConflictError."""
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=summaries.MAIN, snapshot_id=table.metadata.current_snapshot_id),
    )
    move = move_main(table, changed.before.snapshot_id)
    with conflicts(f"table {'.'.join(table.name())}"):
        table.catalog.commit_table(table, requirements, (move,))


def _is_trusted(snapshot: Snapshot) -> bool:
    """Return whether a snapshot is topicberg's, or a compaction by Iceberg's procedures on Spark.
    They refuse to replace files whose rows were deleted meanwhile. Others use Iceberg's Java
    library, and let it compare with the wrong snapshot (StarRocks/starrocks#77709)."""
    properties = summaries.summary(snapshot)
    if summaries.PICKED_FROM in properties:
        return False
    is_replaced = summaries.operation_of(snapshot) == Operation.REPLACE
    return summaries.is_own(snapshot) or (is_replaced and properties.get("engine-name") == "spark")


class _Files:
    """The Parquet files of a snapshot and their deletes; Iceberg's Java library writes others."""

    def __init__(self, table: Table, snapshot: Snapshot) -> None:
        self._io = table.io
        self.data: dict[_Place, DataFile] = {}
        self.times = Counter[_Place]()
        """How often each data file is listed: readers read it as often."""
        self.deletes: dict[tuple[str, int | None], tuple[DataFile, int]] = {}
        for entry in entries(table.io, manifests(table.io, [snapshot]).values()):
            file = entry.data_file
            if file.file_format == FileFormat.PARQUET and file.content == DataFileContent.DATA:
                place = file.file_path, entry.sequence_number or 0
                self.data[place] = file
                self.times[place] += 1
            elif file.content == DataFileContent.POSITION_DELETES:
                self.deletes[identity(file)] = file, entry.sequence_number or 0

    def named(self, deletes: Iterable[tuple[str, int | None]]) -> set[str]:
        """Return the paths of the data files of which these deletes delete rows."""
        files = [self.deletes[key][0] for key in deletes]
        paths = {referenced_file(file) for file in files if is_vector(file)}
        others = (read_deletes(self._io, file.file_path) for file in files if not is_vector(file))
        return paths.union(path for of_file in others for path, _ in of_file)

    def live(self, places: Sequence[_Place]) -> list[FileRows]:
        """Return the rows of data files that readers see; a file as often as it is listed."""
        paths = {path for path, _ in places}
        deleted: dict[str, list[tuple[int, NDArray[np.uint32]]]] = defaultdict(list)
        for file, sequence in self.deletes.values():
            if not is_vector(file):
                by_path = read_deletes(self._io, file.file_path)
            elif referenced_file(file) in paths:
                by_path = read_vectors(self._io, [file])
            else:
                continue
            for path, positions in by_path:
                if path in paths:
                    deleted[path].append((sequence, positions))
        rows = list[FileRows]()
        for path, sequence in places:
            file = self.data[path, sequence]
            parts = [positions for of, positions in deleted[path] if of >= sequence]
            gone = np.concatenate([np.empty(0, np.uint32), *parts])
            left = np.setdiff1d(np.arange(file.record_count, dtype=np.uint32), gone)
            rows += [FileRows(file, left)] * self.times[path, sequence]
        return rows


def _compare(
    table: Table, spec: TopicSpec, before: Snapshot, snapshots: Sequence[Snapshot]
) -> ForeignCommits | None:
    """Return what successive snapshots of others did to the rows, if no writer should do it."""
    old, new = _Files(table, before), _Files(table, snapshots[-1])
    if new.times <= old.times and old.deletes.keys() <= new.deletes.keys():
        return None  # rows were deleted, and nothing else
    renamed = old.named(old.deletes.keys() - new.deletes.keys())
    renamed |= new.named(new.deletes.keys() - old.deletes.keys())
    affected = [
        [
            place
            for place in files.data
            if old.times[place] != new.times[place] or place[0] in renamed
        ]
        for files in (old, new)
    ]
    added, missing, are_newest = _difference(
        table, spec, old.live(affected[0]), new.live(affected[1])
    )
    # A statement that deletes rows appends none.
    are_newest |= Operation.APPEND in map(summaries.operation_of, snapshots)
    if not added and not (missing and are_newest):
        if missing:
            logger.warning(
                "topic %s: snapshot %d of another writer deleted %s",
                *(spec.name, snapshots[-1].snapshot_id, count(missing, "row")),
            )
        return None
    written = [new.data[place] for place in affected[1] if place not in old.data]
    return ForeignCommits(before, snapshots, added, missing, _writer(table, snapshots, written))


def _difference(
    table: Table, spec: TopicSpec, old: Sequence[FileRows], new: Sequence[FileRows]
) -> tuple[int, int, bool]:
    """Return how many rows were added, how many are missing, and whether those are the newest ones.
    They are if others were kept, and each missing row is after all kept ones of its partition: then
    the rows are those of an earlier snapshot."""
    parts = 1 + sum(len(rows.positions) for rows in (*old, *new)) // _ROWS_AT_ONCE
    added = missing = 0
    kept_to, missing_from = dict[int, int](), dict[int, int]()
    for part in range(parts):
        before, after = (_identities(table, spec, rows, part, parts) for rows in (old, new))
        values, places = np.unique(np.concatenate([before, after]), return_inverse=True)
        counts = [
            np.bincount(some, minlength=len(values))
            for some in (places[: len(before)], places[len(before) :])
        ]
        added += int(np.maximum(counts[1] - counts[0], 0).sum())
        missing += int(np.maximum(counts[0] - counts[1], 0).sum())
        for partition, newest in _first(values[counts[1] > 0][::-1]):
            kept_to[partition] = max(newest, kept_to.get(partition, newest))
        for partition, oldest in _first(values[counts[1] == 0]):
            missing_from[partition] = min(oldest, missing_from.get(partition, oldest))
    are_newest = all(kept_to.get(p, -1) < first for p, first in missing_from.items())
    return added, missing, bool(kept_to) and are_newest


def _first(values: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Return each partition and the first of its identities."""
    partitions, first = np.unique(values >> _OFFSET_BITS, return_index=True)
    return zip(partitions.tolist(), values[first].tolist(), strict=True)


def _identities(
    table: Table, spec: TopicSpec, rows: Sequence[FileRows], part: int, parts: int
) -> NDArray[np.uint64]:
    """Return the identities of one part of the rows. Those of several logs are of partition and
    time: a later log may have the same offsets, and lower ones."""
    has_logs = log_number(table) > 0
    names = [spec.metadata_column(n) for n in (PARTITION, "timestamp" if has_logs else OFFSET)]
    identities = [np.empty(0, np.uint64)]
    for of_file in rows:
        if not len(of_file.positions):
            continue
        columns = read_rows(table, of_file, names).drop_null()
        partition, place = (column.cast("int64").to_numpy() for column in columns.columns)
        partition, offset = partition.astype(np.uint64), place.astype(np.uint64)
        if has_logs:
            offset = np.clip(place // 1_000, 0, 2 ** int(_OFFSET_BITS) - 1).astype(np.uint64)
        values = (partition << _OFFSET_BITS) + offset
        identities.append(values[offset % np.uint64(parts) == part])
    return np.concatenate(identities)


def _writer(table: Table, snapshots: Sequence[Snapshot], written: Sequence[DataFile]) -> str:
    """Return who wrote snapshots: what they say, and else which library wrote their files."""
    facts = [summaries.summary(snapshot) for snapshot in snapshots]
    declared = [f"{key} {each[key]}" for each in facts for key in _WRITERS if key in each]
    if declared:
        return listed(list(dict.fromkeys(declared)), _NAMED)
    for file in written[:1]:
        with table.io.new_input(file.file_path).open() as stream:
            return (
                f"a writer without a name (files by {pq.ParquetFile(stream).metadata.created_by})"
            )
    return "a writer without a name"
