"""What the engine knows of the next batch, where it begins and may end, and what one step did."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.iceberg import summaries
from topicberg.iceberg.tables import find_table
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import first_times
from topicberg.kafka.offsets import Offsets, PartitionOffset, dump_offsets, parse_offsets
from topicberg.settings import Settings
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.tableflow.upsert import tombstones
from topicberg.tableflow.upsert.key_hashing import KeyState
from topicberg.tableflow.values import commit, skips
from topicberg.tableflow.values.logs import EndedLog
from topicberg.tableflow.values.offsets import Batch, plan_batch
from topicberg.topics import TopicSpec, requests
from topicberg.wording import count

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
    rows_replayed: int = 0
    """How many of them became rows since."""
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
    """All requests to skip a record of the log that the table is read from."""
    logs: list[EndedLog] = field(default_factory=list)
    """The logs that it was read from before."""
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
        return commit.snapshot_properties(
            self.spec.name, self.topic_id, self.batch, self.now_ms, self.learnt
        ) | {summaries.READER: self.reader}


def due(tables: Sequence[TablePlan], beginning: Offsets) -> tuple[tuple[TablePlan, ...], Offsets]:
    """Return the tables that the next batch fills, and by partition where it ends at the latest.

    All of them lack the same records. When the engine ended between two commits of a batch, some
    tables are behind. They get the records that the others have before any table gets more.
    """
    offsets = [{**beginning, **table.offsets} for table in tables]
    ends = {p: max(other.get(p, 0) for other in offsets) for of_table in offsets for p in of_table}
    behind = next((of_table for of_table in offsets if of_table != ends), None)
    if behind is None:
        return tuple(tables), {}
    pairs = zip(tables, offsets, strict=True)
    return tuple(table for table, of_table in pairs if of_table == behind), ends


def still_failing(
    spec: TopicSpec, config: Settings, table: Table, start: Offsets
) -> dict[PartitionOffset, skips.Skip]:
    """Return the records that fail by themselves, of those that are still to come."""
    request = requests.read_request(config, spec.name)
    resumed_ms = request.resumed_at * 1000 if request else 0
    # What failed before a user resumed the topic is tried again.
    return skips.places((s for s in skips.failing(table) if s.at_ms >= resumed_ms), start)


def check_suspended(
    spec: TopicSpec,
    batch: Batch,
    failing: Mapping[PartitionOffset, skips.Skip],
    requested: Collection[PartitionOffset],
) -> None:
    """:raises TableflowError: the topic stops before a failing record that no user skips"""
    left = sorted((batch.skipped & failing.keys()).difference(requested))
    if left and spec.tableflow.error_handling.mode == "SUSPEND":
        name, (partition, offset), known = spec.name, left[0], failing[left[0]]
        problem = "the record cannot be decoded"
        if others := known.records[-1] - offset:
            problem = f"it and the next {count(others, 'record')} cannot be read"
        raise TableflowError(
            f"topic {name}, partition {partition}, offset {offset}: {problem}: {known.reason}",
            hint=f"run `topicberg tableflow skip {name} {partition} {offset}` to skip "
            f"{'these records' if others else 'the record'}, or `topicberg tableflow resume "
            f"{name}` to try again",
        )


def check_kept(
    catalog: Catalog, spec: TopicSpec, config: Settings, beginning: Offsets, held_ms: int
) -> None:
    """Check that a topic that had a table has it, or that Kafka still has all records.

    :param held_ms: when the table was seen last, or got its last records
    :raises TableflowError: the table is gone, and a new one would lack what it held
    """
    first = next(((p, offset) for p, offset in sorted(beginning.items()) if offset), None)
    if first is None:
        return
    request, identifier = requests.read_request(config, spec.name), spec.table_identifier(config)
    if request is not None and request.dropped_at * 1000 > held_ms:
        return
    table, name = find_table(catalog, identifier), ".".join(identifier)
    if table is not None and commit.committed(table, table.current_snapshot()).offsets:
        return
    raise TableflowError(
        f"topic {spec.name}: it had a table, but {name} does not exist or is empty, and topicberg "
        f"did not drop it. Kafka no longer has the records before offset {first[1]} of partition "
        f"{first[0]}: a new table would lack what the table had of them",
        hint=f"if someone dropped it, register its newest metadata file as {name} again; if the "
        "catalog or the namespace changed, set the former one; or run `topicberg tableflow "
        f"continue {spec.name} --from beginning` to go on without these records, in a new table",
    )


def first_offsets(
    spec: TopicSpec,
    endpoints: Endpoints,
    table: Table,
    committed: commit.Committed,
    log: kafka.TopicLog,
) -> Offsets:
    """Return the start offsets, fixed in the table: the latest ones grow with every attempt."""
    position = spec.tableflow.start_position
    if position == "earliest" or committed.offsets:
        return {}
    known = table.properties.get(summaries.FIRST_OFFSETS)
    if known is not None and table.properties.get(summaries.FIRST_TOPIC_ID) == log.topic_id:
        oldest = log.beginning if summaries.FIRST_ADOPTED in table.properties else {}
        return {p: max(first, oldest.get(p, first)) for p, first in parse_offsets(known).items()}
    if position == "latest":
        # All records of a topic that was created again are later than the start.
        first = log.end if known is None else log.beginning
    else:
        offsets = kafka.offsets_at(endpoints, spec.name, position)
        first = {p: log.end[p] if offset < 0 else offset for p, offset in offsets.items()}
    note = {summaries.FIRST_OFFSETS: dump_offsets(first), summaries.FIRST_TOPIC_ID: log.topic_id}
    with table.transaction() as transaction:
        transaction.set_properties(note)
    return first


def adopt_start(table: Table, own: Table) -> None:
    """Let an empty table begin where the topic's own table did, with what Kafka still has."""
    if commit.committed(table, table.current_snapshot()).offsets:
        return
    keys = (summaries.FIRST_OFFSETS, summaries.FIRST_TOPIC_ID)
    note = {key: own.properties[key] for key in keys if key in own.properties}
    begun = commit.committed(own, own.current_snapshot())
    if not note and begun.offsets:  # it began with the earliest records
        note = {summaries.FIRST_OFFSETS: dump_offsets({})}
        note |= {summaries.FIRST_TOPIC_ID: begun.topic_id} if begun.topic_id else {}
    note |= {summaries.FIRST_ADOPTED: "true"} if note else {}
    if not note.items() <= table.properties.items():
        with table.transaction() as transaction:
            transaction.set_properties(note)


def in_time_order(
    topic: str,
    endpoints: Endpoints,
    batch: Batch,
    log: kafka.TopicLog,
    skip: set[PartitionOffset],
    limit: int,
) -> Batch:
    """Return the part of a batch whose records are older than all that it leaves for later.

    A key that has records in several partitions is deleted by the newest one only if that one
    is not read before the others. Of equal times, the lower partition comes first.

    :raises UnreachableError: the next record of a partition cannot be read now
    """
    latest = log.end
    left = {p: end for p, end in batch.end.items() if end < latest[p]}
    if not left or len(latest) < 2:
        return batch
    times = first_times(endpoints, topic, left, is_needed=True)
    first = min((time_ for time_ in times.values() if time_ >= 0), default=None)
    if first is None:
        return batch
    older_part = batch.until(_ends_before(topic, endpoints, batch, first))
    if older_part.records:
        return older_part
    through = _ends_before(topic, endpoints, batch, first + 1)
    for p, start in sorted(batch.start.items()):
        end = min(through.get(p, latest[p]), latest[p], start + limit)
        if end > start:
            return plan_batch(batch.start, log.beginning, {**batch.start, p: end}, limit, skip)
    return batch  # the times of a partition go back


def _ends_before(topic: str, endpoints: Endpoints, batch: Batch, time_ms: int) -> Offsets:
    """Return the first offset at a time or later, of each partition that has one."""
    later = kafka.offsets_at(endpoints, topic, time_ms)
    return {p: max(s, later[p]) for p, s in batch.start.items() if later.get(p, -1) >= 0}
