"""Exactly once: what a table says it holds, and the compare-and-set that publishes a batch.

A batch is written by Spark as a *staged* snapshot (Iceberg's write-audit-publish: the snapshot is
in the table's metadata, but no branch points to it), then published by one atomic commit of the
catalog that moves ``main`` from the snapshot the batch was planned on to the staged one.
Whoever comes second (another engine, a zombie of this one) is refused by the catalog; what was
staged is never seen by a reader and goes with the expiry of snapshots.

Sources: Iceberg spec, "Snapshot References"; Iceberg REST catalog OpenAPI, ``updateTable`` with
``assert-ref-snapshot-id``, ``set-snapshot-ref``; Iceberg's Spark configuration: ``spark.wap.id``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from topicberg.errors import CommitConflictError
from topicberg.tableflow.offsets import Batch, Offsets, dump_offsets, parse_offsets

if TYPE_CHECKING:
    from pyiceberg.table.update.snapshot import _SnapshotProducer

logger = logging.getLogger(__name__)

MAIN = "main"
CHECKPOINT_TAG = "tableflow"
"""Tag on the newest snapshot that carries offsets, so that no snapshot expiry can remove it."""

FIRST_OFFSETS = "topicberg.first-offsets"
"""Table property: where the topic's records begin for this table."""
TOPIC = "topicberg.topic"
TOPIC_ID = "topicberg.topic-id"
START_OFFSETS = "topicberg.start-offsets"
END_OFFSETS = "topicberg.end-offsets"
COMMITTED_AT_MS = "topicberg.committed-at-ms"
BATCH_SIZE = "topicberg.batch-size"
"""What the engine has learnt of how large a batch may be."""
DATA_TTL_RUN = "topicberg.data-ttl-run"
"""Marks a snapshot that removed rows past the topic's data retention."""
ROWS_SKIPPED = "topicberg.rows-skipped"
"""Table property: records left out so far, because they could not be decoded."""
SOURCE_SNAPSHOTS = "topicberg.source-snapshots"
"""Of a derived table: JSON, source table → id of the snapshot that was read, or null."""
WAP_ID = "wap.id"
STAGING_PREFIX = "tableflow-staging-"
"""Branches on which a batch of several snapshots is staged."""
SNAPSHOTS_PER_BATCH = 2


@dataclass(frozen=True)
class Committed:
    """Up to where the table holds its topic; no offsets: it holds nothing yet."""

    offsets: Offsets = field(default_factory=dict)
    topic_id: str | None = None
    at_ms: int | None = None
    """When the engine planned the batch."""
    batch_size: str | None = None
    """What it had learnt then, see :class:`topicberg.tableflow.sizing.BatchSize`."""


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """The summary of a snapshot as plain strings (``operation`` is apart in PyIceberg)."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def ancestry(table: Table, head: Snapshot | None = None) -> Iterator[Snapshot]:
    """The snapshots of ``main`` (or up to ``head``), newest first, as far as they are kept."""
    snapshot = head or table.current_snapshot()
    while snapshot:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def committed(table: Table, head: Snapshot | None = None) -> Committed:
    """What the newest snapshot with offsets says; compaction and other commits carry none.

    If somebody's expiry cut the line to it, the tag that no expiry removes still leads there.
    """
    snapshot: Snapshot | None = None
    for snapshot in ancestry(table, head):
        if END_OFFSETS in summary(snapshot):
            return _offsets_of(snapshot)
    tagged = table.snapshot_by_name(CHECKPOINT_TAG)
    if tagged is not None and snapshot is not None and snapshot.parent_snapshot_id is not None:
        return _offsets_of(tagged)
    return Committed()


def _offsets_of(snapshot: Snapshot) -> Committed:
    properties = summary(snapshot)
    at_ms = properties.get(COMMITTED_AT_MS)
    return Committed(
        offsets=parse_offsets(properties[END_OFFSETS]),
        topic_id=properties.get(TOPIC_ID),
        at_ms=int(at_ms) if at_ms else None,
        batch_size=properties.get(BATCH_SIZE),
    )


def snapshot_properties(
    topic: str, topic_id: str, batch: Batch, now_ms: int, learnt: str
) -> dict[str, str]:
    """What a batch's snapshot says of itself in its summary.

    :param learnt: see :class:`topicberg.tableflow.sizing.BatchSize`
    """
    return {
        TOPIC: topic,
        TOPIC_ID: topic_id,
        START_OFFSETS: dump_offsets(batch.start),
        END_OFFSETS: dump_offsets(batch.end),
        COMMITTED_AT_MS: str(now_ms),
        BATCH_SIZE: learnt,
    }


def staged_as(table: Table, wap_id: str) -> Snapshot | None:
    """The staged snapshot of a batch; None: its write did not come so far."""
    return next((s for s in table.metadata.snapshots if summary(s).get(WAP_ID) == wap_id), None)


def publish(
    table: Table,
    staged: Snapshot | None,
    planned_on: int | None,
    properties: Mapping[str, str] | None = None,
    branch: str | None = None,
    dropped: Collection[str] = (),
) -> Snapshot:
    """Make a staged snapshot the head of ``main`` if the head did not move since the planning.

    Not even back: an operator who rolled ``main`` back to an earlier snapshot did so on purpose.

    :param table: freshly loaded, so that it knows the staged snapshot
    :param staged: what :func:`staged_as` found, or the head of a staging branch
    :param planned_on: id of the head of ``main`` on which the batch was planned
    :param properties: table properties that change in the same commit
    :param branch: the staging branch, which goes in the same commit
    :param dropped: table properties that go in the same commit
    :returns: the published snapshot
    :raises CommitConflictError: another commit came first; nothing was published
    """
    name = ".".join(table.name())
    if staged is None:
        raise CommitConflictError(f"table {name}: the batch was not staged")
    head = table.current_snapshot()
    head_id = head.snapshot_id if head else None
    steps = 1 if branch is None else SNAPSHOTS_PER_BATCH
    if head_id != planned_on or not _lies_on(table, staged, head_id, steps):
        raise CommitConflictError(f"table {name}: another commit came before this batch")
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN, snapshot_id=head_id),
    )
    updates: list[TableUpdate] = [
        SetSnapshotRefUpdate.model_validate(
            {"ref-name": ref, "type": kind, "snapshot-id": staged.snapshot_id}
        )
        for ref, kind in (
            (MAIN, SnapshotRefType.BRANCH),
            (CHECKPOINT_TAG, SnapshotRefType.TAG),
        )
    ]
    updates += _property_updates(table, properties, dropped)
    if branch is not None:
        updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": branch}))
    try:
        table.catalog.commit_table(table, requirements, tuple(updates))
    except CommitFailedException as error:
        raise CommitConflictError(f"table {name}: another commit came before this batch") from error
    return staged


def commit_on_head(
    table: Table,
    change: _SnapshotProducer[Any],
    properties: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
) -> None:
    """Commit a snapshot on ``main`` if the head is still the one that ``table`` has.

    (A transaction of PyIceberg's would apply the change to whatever head there is then.)

    :param properties: table properties that change in the same commit
    :param dropped: table properties that go in the same commit
    :raises CommitConflictError: another commit came first; nothing was committed
    """
    updates, requirements = change._commit()
    more = _property_updates(table, properties, dropped)
    unchanged = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        table.catalog.commit_table(table, (unchanged, *requirements), (*updates, *more))
    except (CommitFailedException, RESTError) as error:
        # Not every catalog says that a snapshot came too late as the specification asks.
        head = table.current_snapshot()
        now = table.refresh().current_snapshot()
        if isinstance(error, RESTError) and now == head:
            raise
        name = ".".join(table.name())
        raise CommitConflictError(f"table {name}: another commit came first: {error}") from error


def _property_updates(
    table: Table, properties: Mapping[str, str] | None, dropped: Collection[str]
) -> list[TableUpdate]:
    updates: list[TableUpdate] = []
    if properties:
        updates.append(SetPropertiesUpdate(updates=dict(properties)))
    if removals := sorted(set(dropped) & table.properties.keys()):
        updates.append(RemovePropertiesUpdate(removals=removals))
    return updates


def _lies_on(table: Table, staged: Snapshot, head_id: int | None, steps: int) -> bool:
    """Whether ``staged`` was written on the head, with at most ``steps`` snapshots of its batch."""
    snapshot: Snapshot | None = staged
    for _ in range(steps):
        if snapshot is None:
            return False
        parent = snapshot.parent_snapshot_id
        if parent == head_id:
            return True
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return False
