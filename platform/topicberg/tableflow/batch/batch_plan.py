"""What the engine knows of the next batch, and what one step did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg import summaries
from topicberg.kafka.last_records import LastRecords
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.tableflow.layout.layout import Layout
from topicberg.tableflow.upsert import tombstones
from topicberg.tableflow.upsert.key_state import KeyState
from topicberg.tableflow.values import commit, skips
from topicberg.tableflow.values.offsets import Batch
from topicberg.topics import TopicSpec

Reader = Literal["process", "spark"]


@dataclass(frozen=True)
class Commit:
    """What one step did."""

    records: int
    """Offsets committed, those of skipped records, transactions and gaps included. 0: no batch."""
    snapshot_id: int | None
    end_offsets: Offsets
    backlog: bool = False
    rows: int = 0
    """Rows that the step added to the table."""
    rows_skipped: int = 0
    """Records that were left out since the table was created."""
    records_read: int = 0
    """Records that the batch read."""
    records_skipped: int = 0
    """Of these, and of those that a user requested to skip: left out without a dead letter."""
    records_dead_lettered: int = 0
    """Of these: left out, and in the dead-letter topic."""
    bytes: int = 0
    """Size of the files that the step added."""
    files: int = 0
    """Data files that the step added."""
    data_files: int = 0
    """Data files of the table after the step."""
    skip_requests: list[skips.Skip] = field(default_factory=list)
    """All requests to skip a record since the table was created."""
    unproven: Offsets = field(default_factory=dict)
    """See :class:`topicberg.tableflow.service.log_check.LogCheck`."""
    missed_deletes: tombstones.Missed | None = None
    reader: Reader | None = None
    """What read the newest batch."""
    keys: KeyState | None = None
    """How the keys of an upsert table are compared, if they have a schema."""


@dataclass(frozen=True)
class BatchPlan:
    """The next batch, and what it was planned on."""

    spec: TopicSpec
    table: Table
    head: Snapshot | None
    layout: Layout
    batch: Batch
    size: float | None
    """Average bytes of its records in Kafka; None: not known."""
    topic_id: str
    latest: Offsets
    """Where the log ended."""
    now_ms: int
    learnt: str
    """See :class:`topicberg.tableflow.batch.sizing.BatchSize`."""
    missed: tombstones.DeleteWatch
    key_definition: str | None
    """Which keys the newest batch of the table took as equal; None: keys of the same bytes."""
    failing: Mapping[PartitionOffset, skips.Skip]
    """Records that fail by themselves."""
    reader: Reader
    """What reads it."""
    last_records: LastRecords
    """Of the batches before."""

    @property
    def planned_on(self) -> int | None:
        """The id of the head of ``main`` whose offsets the batch starts from."""
        return self.head.snapshot_id if self.head else None

    @property
    def backlog(self) -> bool:
        """Whether records are left for later batches."""
        return self.batch.end != self.latest

    @property
    def properties(self) -> dict[str, str]:
        """The summary of the batch's snapshot."""
        given = self.spec.name, self.topic_id, self.batch, self.now_ms, self.learnt
        return commit.snapshot_properties(*given) | {summaries.READER: self.reader}
