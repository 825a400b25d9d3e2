"""Properties in the summaries of a table's snapshots, and the ancestry of ``main``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

WAP_ID = "wap.id"
STAGING_PREFIX = "tableflow-staging-"
"""Prefix of branches on which a batch of several snapshots is staged."""
SNAPSHOTS_PER_BATCH = 2
MAIN = "main"
CHECKPOINT_TAG = "tableflow"
"""Tag on the newest snapshot that carries offsets, so that no snapshot expiry can remove it."""

FIRST_OFFSETS = "topicberg.first-offsets"
"""Table property: where the topic's records begin for this table."""
FIRST_TOPIC_ID = "topicberg.first-topic-id"
"""Table property: the id of the topic whose offsets these are."""
TOPIC = "topicberg.topic"
TOPIC_ID = "topicberg.topic-id"
START_OFFSETS = "topicberg.start-offsets"
END_OFFSETS = "topicberg.end-offsets"
COMMITTED_AT_MS = "topicberg.committed-at-ms"
BATCH_SIZE = "topicberg.batch-size"
"""What the engine has learnt about the size of batches."""
READER = "topicberg.reader"
"""What read the batch: ``process``, a process of the engine, or ``spark``, tasks of Spark."""
KEY_DEFINITION = "topicberg.key-definition"
"""Which keys the batch took as equal, of an upsert table whose keys have a schema. Versions of
topicberg that compare the bytes of such keys write none."""
DATA_TTL_RUN = "topicberg.data-ttl-run"
"""Marks a snapshot that removed rows past the topic's data retention."""
ROWS_SKIPPED = "topicberg.rows-skipped"
KAFKA_TIMES = "topicberg.event-times-from-kafka"
"""Table property: records whose event time is missing or out of range, and that have Kafka's."""
"""Table property: records left out so far, because they could not be decoded."""
SOURCE_SNAPSHOTS = "topicberg.source-snapshots"
"""Of a derived table: JSON, source table → id of the snapshot that was read, or null."""


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the summary of a snapshot as plain strings, without ``operation``."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def operation_of(snapshot: Snapshot) -> Operation | None:
    return snapshot.summary.operation if snapshot.summary else None


def ancestry(table: Table, head: Snapshot | None = None) -> Iterator[Snapshot]:
    """Yield the snapshots of ``main`` (or up to ``head``), newest first, until an expired one."""
    snapshot = head or table.current_snapshot()
    while snapshot:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
