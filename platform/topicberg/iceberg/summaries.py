"""Properties in the summaries of a table's snapshots, and the ancestry of ``main``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from topicberg.errors import TableflowError

WAP_ID = "wap.id"
STAGING_PREFIX = "tableflow-staging-"
"""Prefix of branches on which a batch of several snapshots is staged."""
SNAPSHOTS_PER_BATCH = 2
MAIN = "main"
CHECKPOINT_TAG = "tableflow"
"""Tag on the newest snapshot that carries offsets, so that no snapshot expiry can remove it."""

FIRST_OFFSETS = "topicberg.first-offsets"  # Table property: where the topic begins for this table.
FIRST_TOPIC_ID = "topicberg.first-topic-id"  # Table property: the topic whose offsets these are.
FIRST_ADOPTED = "topicberg.first-offsets-adopted"
"""Table property: they are those of another table, and Kafka may no longer have the records."""
TOPIC = "topicberg.topic"
TOPIC_ID = "topicberg.topic-id"
END_OFFSETS = "topicberg.end-offsets"
LOG = "topicberg.log"  # Number of the log whose offsets these are: see `tableflow.values.logs`.
LAST_RECORDS = "topicberg.last-records"
"""The last record of each partition: see :mod:`topicberg.kafka.last_records`."""
COMMITTED_AT_MS = "topicberg.committed-at-ms"
CURRENT_AT_MS = "topicberg.current-at-ms"
"""Of an upsert table: when it held everything that its topic did, for the last time before or with
a batch. As a table property: for the last time of all."""
BATCH_SIZE = "topicberg.batch-size"  # What the engine has learnt about the size of batches.
READER = "topicberg.reader"
"""What read the batch: ``process``, a process of the engine, or ``spark``, tasks of Spark."""
KEY_DEFINITION = "topicberg.key-definition"
"""Which keys the batch took as equal, of an upsert table whose keys have a schema."""
DATA_TTL_RUN = "topicberg.data-ttl-run"  # Marks a snapshot that removed rows past their retention.
ROWS_SKIPPED = "topicberg.rows-skipped"
"""Table property: records left out so far, because they could not be decoded."""
WAITING = "topicberg.waiting-records"
"""Which file has the records that were left out: see :mod:`topicberg.tableflow.rejected.waiting`.
"""
ROWS_REPLAYED = "topicberg.rows-replayed"  # Table property: how many of them became rows since.
KAFKA_TIMES = "topicberg.event-times-from-kafka"
"""Table property: records whose event time is missing or out of range, and that have Kafka's."""
SOURCE_SNAPSHOTS = "topicberg.source-snapshots"
"""Of a derived table: JSON, source table → id of the snapshot that was read, or null."""
PICKED_FROM = "source-snapshot-id"
"""Of a snapshot that has the files of another one, which no ancestor is.

Source: Iceberg, ``cherrypick_snapshot`` and ``publish_changes`` (``CherryPickOperation``)."""
ERASURE = "topicberg.erasure"  # Marks a snapshot that rewrote files without the rows of an erasure.
TRIMMED = "topicberg.deletes-trimmed"  # Marks a snapshot of the same rows with fewer delete files.
OWN = "topicberg."  # What topicberg's properties begin with.


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the summary of a snapshot as plain strings, without ``operation``."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def operation_of(snapshot: Snapshot) -> Operation | None:
    return snapshot.summary.operation if snapshot.summary else None


def is_own(snapshot: Snapshot) -> bool:
    """Return whether topicberg committed a snapshot."""
    properties = summary(snapshot)
    return PICKED_FROM not in properties and any(key.startswith(OWN) for key in properties)


def ancestry(table: Table, head: Snapshot | None = None) -> Iterator[Snapshot]:
    """Yield the snapshots of ``main`` (or up to ``head``), newest first, until an expired one."""
    yield from ancestors_of(head or table.current_snapshot(), table.metadata)


def checkpoint(table: Table, head: Snapshot | None = None) -> Snapshot | None:
    """Return the newest snapshot with offsets in the ancestry of ``main`` (or of ``head``).

    If another tool's snapshot expiry removed the ancestors in between, a tag that no expiry
    removes still points to that snapshot. After a rollback the tag may point to a snapshot that is
    not an ancestor, so it counts only if it is older than every ancestor that is left.

    :returns: None: no ancestor has offsets
    :raises TableflowError: an expired ancestor may have had offsets, and which is not known
    """
    oldest: Snapshot | None = None
    for oldest in ancestry(table, head):
        if END_OFFSETS in summary(oldest) and PICKED_FROM not in summary(oldest):
            return oldest
    tagged = table.snapshot_by_name(CHECKPOINT_TAG)
    if oldest is None or tagged is None or _is_first(oldest):
        return None
    if (tagged.sequence_number or 0) < (oldest.sequence_number or 0):
        return tagged
    name = ".".join(table.name())
    raise TableflowError(
        f"table {name} was rolled back to a state whose offsets are not known: its snapshot "
        f"{oldest.snapshot_id} has none, the snapshots before it have expired, and the batch "
        f"{tagged.snapshot_id} came later",
        hint="set `main` to a snapshot that has `topicberg.end-offsets` in its summary, such as "
        f"that of the tag `{CHECKPOINT_TAG}`, or run `topicberg tableflow continue "
        f"{summary(tagged).get(TOPIC, 'TOPIC')}`: it compares the rows with the log",
    )


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether a snapshot has no parent, rather than one that has expired. Some catalogs
    remove the id of an expired parent. Then the rows that the snapshot has from before show that
    there was one; a table that another tool replaced begins again with an append."""
    if snapshot.parent_snapshot_id is not None:
        return False
    if snapshot.sequence_number == 1:
        return True
    rows, is_append = summary(snapshot), operation_of(snapshot) == Operation.APPEND
    return is_append and rows.get("total-records") == rows.get("added-records", "0")
