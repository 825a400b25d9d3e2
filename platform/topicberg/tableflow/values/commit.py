"""Exactly once: the offsets that a table records, and the compare-and-set that publishes a batch.

The data files of a batch become a snapshot by one atomic commit of the catalog, which moves
``main`` from the snapshot that the batch was planned on. The catalog refuses the second of two
commits (of another engine, or of an earlier process of this one). Readers never see its files.

Sources: Iceberg spec, "Snapshot References"; Iceberg REST catalog OpenAPI, ``updateTable`` with
``assert-ref-snapshot-id``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from topicberg.errors import CommitConflictError
from topicberg.iceberg import summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import set_ref
from topicberg.iceberg.files import discard
from topicberg.iceberg.position_deletes import FileRows, add_deletes
from topicberg.iceberg.summaries import CHECKPOINT_TAG, END_OFFSETS, checkpoint, summary
from topicberg.kafka.last_records import LastRecords, parse_last_records
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.values.offsets import Batch


@dataclass(frozen=True)
class Committed:
    """Up to which offsets the table holds its topic; without offsets it holds nothing yet."""

    offsets: Offsets = field(default_factory=dict)
    topic_id: str | None = None
    log: int = 0
    """The number of the log, see :mod:`.logs`."""
    at_ms: int | None = None
    """When the engine planned the batch."""
    batch_size: str | None = None
    """What the engine had learnt by then, see :class:`.batch.sizing.BatchSize`."""
    key_definition: str | None = None
    """See :data:`topicberg.iceberg.summaries.KEY_DEFINITION`."""
    current_at_ms: int | None = None
    """See :data:`topicberg.iceberg.summaries.CURRENT_AT_MS`."""
    last_records: LastRecords = field(default_factory=dict)
    """By which the log is recognized."""
    waiting: str | None = None
    """See :data:`topicberg.iceberg.summaries.WAITING`."""


def committed(table: Table, head: Snapshot | None = None) -> Committed:
    """Return what the newest snapshot with offsets records; compaction and others have none.

    :raises TableflowError: the table was rolled back to a state whose offsets are not known
    """
    snapshot = checkpoint(table, head)
    if snapshot is None:
        return Committed()
    properties = summary(snapshot)
    at_ms = properties.get(summaries.COMMITTED_AT_MS)
    current_at_ms = properties.get(summaries.CURRENT_AT_MS)
    offsets = parse_offsets(properties[END_OFFSETS])
    return Committed(
        offsets=offsets,
        topic_id=properties.get(summaries.TOPIC_ID),
        log=int(properties.get(summaries.LOG, 0)),
        at_ms=int(at_ms) if at_ms else None,
        batch_size=properties.get(summaries.BATCH_SIZE),
        key_definition=properties.get(summaries.KEY_DEFINITION),
        current_at_ms=int(current_at_ms) if current_at_ms else None,
        last_records=parse_last_records(properties.get(summaries.LAST_RECORDS), offsets),
        waiting=properties.get(summaries.WAITING),
    )


def snapshot_properties(
    topic: str, topic_id: str, batch: Batch, now_ms: int, learnt: str
) -> dict[str, str]:
    """Return the summary properties of a batch's snapshot.

    :param learnt: see :class:`topicberg.tableflow.batch.sizing.BatchSize`
    """
    return {
        summaries.TOPIC: topic,
        summaries.TOPIC_ID: topic_id,
        END_OFFSETS: dump_offsets(batch.end),
        summaries.COMMITTED_AT_MS: str(now_ms),
        summaries.BATCH_SIZE: learnt,
    }


def add_files(
    table: Table,
    planned_on: int | None,
    files: Collection[DataFile],
    replaced: Sequence[FileRows],
    properties: Mapping[str, str],
    changed: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
    time: str | None = None,
) -> Snapshot:
    """Publish a batch of data files in one commit if the head did not move since the planning.

    :param planned_on: id of the head of ``main`` on which the batch was planned. The table may
        know a newer one: a change of its properties returns what others committed as well
    :param replaced: rows that the batch deletes, of the table and of the new files
    :param properties: what :func:`snapshot_properties` returned
    :param changed: table properties that change in the same commit
    :param dropped: table properties that the same commit removes
    :param time: the column by whose hours other tables are derived from this one
    :returns: the published snapshot
    :raises CommitConflictError: another commit came first; nothing was published, and the files are
        deleted
    """
    head = table.current_snapshot()
    if (head.snapshot_id if head else None) != planned_on:
        discard(table.io, files)
        name = ".".join(table.name())
        raise CommitConflictError(f"table {name}: another commit came before this batch")
    operation = Operation.APPEND
    if replaced:
        operation = Operation.OVERWRITE if files else Operation.DELETE
    change = SnapshotChange(table, operation, properties=properties)
    change.time = time
    change.add(files)
    if replaced:
        add_deletes(change, replaced)
    tag = set_ref(CHECKPOINT_TAG, change.snapshot_id)
    try:
        return change.commit(changed, dropped, [tag])
    except CommitConflictError:
        if change.is_refused:
            discard(table.io, files)
        raise
