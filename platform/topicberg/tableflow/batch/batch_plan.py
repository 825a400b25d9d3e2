"""What the engine knows of the next batch, and what one step did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.iceberg import summaries
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.tableflow.layout.message_fields import Layout
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
class TablePlan:
    """A table that a batch fills, as it was when the batch was planned."""

    number: int
    """Its place among the tables of the topic."""
    table: Table
    head: Snapshot | None
    layout: Layout
    committed: commit.Committed
    offsets: Offsets
    """The first ones that it lacks."""
    missed: tombstones.DeleteWatch

    @property
    def planned_on(self) -> int | None:
        """The id of the head of ``main`` whose offsets the batch starts from."""
        return self.head.snapshot_id if self.head else None


@dataclass(frozen=True)
class BatchPlan:
    """The next batch: its ranges, once, and the tables that it fills. Each has its own commit."""

    spec: TopicSpec
    tables: tuple[TablePlan, ...]
    batch: Batch
    size: float | None
    """Average bytes of its records in Kafka; None: not known."""
    topic_id: str
    latest: Offsets
    """Where the log ended."""
    now_ms: int
    learnt: str
    """See :class:`topicberg.tableflow.batch.sizing.BatchSize`."""
    failing: Mapping[PartitionOffset, skips.Skip]
    """Records that fail by themselves."""
    reader: Reader
    """What reads it."""

    @property
    def backlog(self) -> bool:
        """Whether records are left for later batches."""
        return self.batch.end != self.latest

    @property
    def properties(self) -> dict[str, str]:
        """The summary of the batch's snapshots."""
        given = self.spec.name, self.topic_id, self.batch, self.now_ms, self.learnt
        return commit.snapshot_properties(*given) | {summaries.READER: self.reader}


def due(tables: Sequence[TablePlan], beginning: Offsets) -> tuple[tuple[TablePlan, ...], Offsets]:
    """Return the tables that the next batch fills, and where it has to end at the latest.

    All of them lack the same records. When the engine ended between two commits of a batch, some
    tables are behind. They get the records that the others have before any table gets more.

    :param beginning: the first offsets that Kafka has
    :returns: and partition → offset; none: the batch may end anywhere
    """
    offsets = [{**beginning, **each.offsets} for each in tables]
    ends = {p: max(each.get(p, 0) for each in offsets) for each in offsets for p in each}
    behind = [number for number, each in enumerate(offsets) if each != ends]
    if not behind:
        return tuple(tables), {}
    of_first = offsets[behind[0]]
    return tuple(tables[number] for number in behind if offsets[number] == of_first), ends
