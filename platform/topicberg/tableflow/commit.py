"""Exactly once: the offsets that a table records, and the compare-and-set that publishes a batch.

A batch is written by Spark as a *staged* snapshot (Iceberg's write-audit-publish: the snapshot is
in the table's metadata, but no branch points to it), then published by one atomic commit of the
catalog that moves ``main`` from the snapshot the batch was planned on to the staged one.
The catalog refuses the second of two commits (of another engine, or of an earlier process of this
one). Readers never see its staged snapshot, and snapshot expiry removes it.

Sources: Iceberg spec, "Snapshot References"; Iceberg REST catalog OpenAPI, ``updateTable`` with
``assert-ref-snapshot-id``, ``set-snapshot-ref``; Iceberg's Spark configuration: ``spark.wap.id``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from topicberg.errors import CommitConflictError, TableflowError
from topicberg.iceberg import summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import property_updates, set_ref
from topicberg.iceberg.position_deletes import FileRows, add_deletes
from topicberg.iceberg.summaries import CHECKPOINT_TAG, END_OFFSETS, MAIN, ancestry, summary
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.offsets import Batch

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


@dataclass(frozen=True)
class Committed:
    """Up to which offsets the table holds its topic; without offsets it holds nothing yet."""

    offsets: Offsets = field(default_factory=dict)
    topic_id: str | None = None
    at_ms: int | None = None
    """When the engine planned the batch."""
    batch_size: str | None = None
    """What the engine had learnt by then, see :class:`topicberg.tableflow.sizing.BatchSize`."""


def committed(table: Table, head: Snapshot | None = None) -> Committed:
    """Return what the newest snapshot with offsets records; compaction and others have none.

    If another tool's snapshot expiry removed the ancestors in between, a tag that no expiry
    removes still points to that snapshot.
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
    at_ms = properties.get(summaries.COMMITTED_AT_MS)
    return Committed(
        offsets=parse_offsets(properties[END_OFFSETS]),
        topic_id=properties.get(summaries.TOPIC_ID),
        at_ms=int(at_ms) if at_ms else None,
        batch_size=properties.get(summaries.BATCH_SIZE),
    )


def snapshot_properties(
    topic: str, topic_id: str, batch: Batch, now_ms: int, learnt: str
) -> dict[str, str]:
    """Return the summary properties of a batch's snapshot.

    :param learnt: see :class:`topicberg.tableflow.sizing.BatchSize`
    """
    return {
        summaries.TOPIC: topic,
        summaries.TOPIC_ID: topic_id,
        summaries.START_OFFSETS: dump_offsets(batch.start),
        END_OFFSETS: dump_offsets(batch.end),
        summaries.COMMITTED_AT_MS: str(now_ms),
        summaries.BATCH_SIZE: learnt,
    }


def staged_as(table: Table, wap_id: str) -> Snapshot | None:
    """Return the staged snapshot of a batch, or None if the write did not create it."""
    staged = (s for s in table.metadata.snapshots if summary(s).get(summaries.WAP_ID) == wap_id)
    return next(staged, None)


def publish(
    table: Table,
    staged: Snapshot | None,
    planned_on: int | None,
    properties: Mapping[str, str] | None = None,
    branch: str | None = None,
    dropped: Collection[str] = (),
) -> Snapshot:
    """Make a staged snapshot the head of ``main`` if the head did not move since the planning.

    A move backwards counts too: an operator who rolled ``main`` back did so on purpose.

    :param table: freshly loaded, so that it knows the staged snapshot
    :param staged: what :func:`staged_as` found, or the head of a staging branch
    :param planned_on: id of the head of ``main`` on which the batch was planned
    :param properties: table properties that change in the same commit
    :param branch: the staging branch, which the same commit removes
    :param dropped: table properties that the same commit removes
    :returns: the published snapshot
    :raises CommitConflictError: another commit came first; nothing was published
    """
    name = ".".join(table.name())
    if staged is None:
        raise CommitConflictError(f"table {name}: the batch was not staged")
    head = table.current_snapshot()
    head_id = head.snapshot_id if head else None
    if branch is None and head_id == staged.snapshot_id and len(table.metadata.snapshots) == 1:
        raise TableflowError(
            f"table {name}: the catalog published a staged snapshot and keeps no other one",
            hint="use a catalog that implements staged snapshots, tags and history, as Polaris, "
            "Glue, Unity and Iceberg's own do; Nessie does not. Nothing was written twice",
        )
    steps = 1 if branch is None else summaries.SNAPSHOTS_PER_BATCH
    if head_id != planned_on or not _lies_on(table, staged, head_id, steps):
        raise _overtaken(table)
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN, snapshot_id=head_id),
    )
    updates: list[TableUpdate] = [
        set_ref(MAIN, staged.snapshot_id, SnapshotRefType.BRANCH),
        set_ref(CHECKPOINT_TAG, staged.snapshot_id),
        *property_updates(table, properties, dropped),
    ]
    if branch is not None:
        updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": branch}))
    try:
        table.catalog.commit_table(table, requirements, tuple(updates))
    except CommitFailedException as error:
        raise _overtaken(table) from error
    return staged


def add_files(
    table: Table,
    planned_on: int | None,
    files: Collection[DataFile],
    replaced: Sequence[FileRows],
    properties: Mapping[str, str],
    changed: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
) -> Snapshot:
    """Publish a batch of data files in one commit if the head did not move since the planning.

    :param planned_on: id of the head of ``main`` on which the batch was planned. The table may
        know a newer one: a change of its properties returns what others committed as well
    :param replaced: rows that the batch deletes, of the table and of the new files
    :param properties: what :func:`snapshot_properties` returned
    :param changed: table properties that change in the same commit
    :param dropped: table properties that the same commit removes
    :returns: the published snapshot
    :raises CommitConflictError: another commit came first; nothing was published
    """
    head = table.current_snapshot()
    if (head.snapshot_id if head else None) != planned_on:
        raise _overtaken(table)
    operation = Operation.APPEND
    if replaced:
        operation = Operation.OVERWRITE if files else Operation.DELETE
    change = SnapshotChange(table, operation, properties=properties)
    change.add(files)
    if replaced:
        add_deletes(change, replaced)
    checkpoint = set_ref(CHECKPOINT_TAG, change.snapshot_id)
    return change.commit(changed, dropped, [checkpoint])


def _overtaken(table: Table) -> CommitConflictError:
    name = ".".join(table.name())
    return CommitConflictError(f"table {name}: another commit came before this batch")


def _lies_on(table: Table, staged: Snapshot, head_id: int | None, steps: int) -> bool:
    """Return whether ``staged`` is at most ``steps`` snapshots of its batch above the head."""
    above = islice(ancestry(table, staged), steps)
    return any(snapshot.parent_snapshot_id == head_id for snapshot in above)
