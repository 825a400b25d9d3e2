"""Find where the log of a topic continues after what the table has of it.

What is compared is the last record of each partition that the table has (:mod:`.last_records`), by
time and content, at its own offset and, by the time index, at others. That it is there does not
prove that the log is a copy: other records may have been written before it. So the newest rows of
the partition have to be there as well, and no record before it that the table lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Message
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.formats.metadata import OFFSET, PARTITION
from topicberg.iceberg import summaries
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.last_records import LastRecord
from topicberg.tableflow.batch.batch_plan import first_offsets
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service.log_check import current_records
from topicberg.tableflow.values import logs
from topicberg.tableflow.values.commit import Committed, committed
from topicberg.tableflow.values.forgotten import FORGOTTEN
from topicberg.tableflow.values.offsets import OffsetSet
from topicberg.topics import TopicSpec
from topicberg.wording import count, listed

AT_ONCE = 8  # How many partitions are compared at once.
TAIL_ROWS, TAIL_RECORDS = 200, 2_000
"""Offsets of a partition whose rows are compared, and of its log at most."""


class Position(NamedTuple):
    """Where the log of a partition continues after what the table has of it."""

    at: int
    """The first offset that the table lacks; what it seems to be, if that is not proved."""
    why: str
    is_proved: bool = False
    is_same: bool = False
    """Whether nothing is to be decided: the log is the one of before, without a gap."""
    deleted: int = 0  # Offsets before ``at`` that the table lacks, and the log as well.


@dataclass(frozen=True)
class LogComparison:
    """The ends of a table and of the log of its topic."""

    spec: TopicSpec
    table: Table
    endpoints: Endpoints
    state: Committed
    log: kafka.TopicLog

    def find(self, report: Callable[[int], None]) -> dict[int, Position]:
        """Return the position of each partition that the topic has."""
        topic, log, endpoints, ends = self.spec.name, self.log, self.endpoints, self.state.offsets
        last = {p: record for p, record in self.state.last_records.items() if p in log.end}
        is_same = self._is_same_topic
        near = {p: r for p, r in last.items() if is_same and r.offset < log.end[p]}
        current = current_records(self.table, endpoints, topic, near, log.beginning, ends)
        positions = {p: self._known(p, last.get(p), current) for p in log.end}
        lost = {p: record for p, record in last.items() if positions[p] is None}
        # The epochs of another topic's leaders say nothing of these.
        cut = {p: record for p, record in lost.items() if is_same and record.epoch >= 0}
        moved = {p: record for p, record in lost.items() if p not in cut}
        common = consumer.common_ends(endpoints, topic, cut, log.beginning, ends)
        copies = consumer.find_copies(endpoints, topic, moved, log, report)
        work = {p: partial(self._of_cut, p, cut[p], end) for p, end in common.items()}
        work |= {p: partial(self._of_copies, p, moved[p], offsets) for p, offsets in copies.items()}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            compared = pool.map(lambda compare: compare(), work.values())
            positions |= zip(work, compared, strict=True)
        unknown = "the table's last record is not known"
        return {p: known or Position(log.end[p], unknown) for p, known in positions.items()}

    def of_rows(self, p: int) -> Position:
        """Return the position after the rows of a table whose offsets are not known."""
        end, first = self.state.offsets.get(p, 0), self.log.beginning[p]
        at = min(max(end, first), self.log.end[p])
        # Rows after those that are left may have been forgotten.
        is_proved = not (self.has_forgotten or at < end or self._difference(p, at, at))
        is_proved &= self._is_same_topic
        why = f"the table's offsets are not known; its rows end at {end}"
        why += ", as the log shows" if is_proved else ", which the log does not prove"
        return Position(at, why, is_proved, deleted=max(0, first - end))

    @property
    def _is_same_topic(self) -> bool:
        return self.state.topic_id in (None, self.log.topic_id)

    @property
    def has_forgotten(self) -> bool:
        """Whether keys of the table were forgotten."""
        return any(key.startswith(FORGOTTEN) for key in self.table.properties)

    @cached_property
    def _skipped(self) -> OffsetSet:
        """The records of the table's log that were left out."""
        return Waiting.load(self.table).of(self.state.log)

    def _known(
        self, p: int, record: LastRecord | None, current: Mapping[int, LastRecord | None]
    ) -> Position | None:
        """Return the position in the log of before, as the engine judges; None: it is another."""
        first = self.log.beginning[p]
        end = self.state.offsets.get(p, 0 if self.state.offsets else first)
        other_log = logs.OtherLog.load(self.table)
        is_same = self._is_same_topic and end <= self.log.end[p]
        if record is not None and p in current:
            is_same &= (other := current[p]) is not None and other.is_same(record)
        elif other_log is not None and end:
            is_same &= p not in other_log.partitions
        if not is_same and self.state.offsets.get(p):
            return None
        deleted = max(0, first - end)
        why = "the table's last record is " + ("there" if p in current else "compacted or deleted")
        if deleted:
            why = f"{count(deleted, 'record')} after the table's end were deleted"
        elif not self.state.offsets.get(p):
            why = "the table has nothing of it"
        return Position(end + deleted, why, True, is_same and not deleted, deleted)

    def _of_cut(self, p: int, record: LastRecord, cut: int) -> Position:
        """Return the position in a log that was cut at an offset and has grown again."""
        end = self.state.offsets[p]
        why = f"cut there: it lacks what the table has from {cut} to {end}"
        if problem := self._difference(p, cut, cut):
            return Position(cut, f"{why}, but the log has {problem}")
        if self.spec.write_mode == "upsert":
            return Position(cut, why, True)
        # Other records may have the time of the last one.
        lost = {*self._rows(p, cut, end)} - {record.time_ms}
        for message in self._records(p, min(cut + TAIL_RECORDS, self.log.end[p])):
            again = message.timestamp()[1] in lost or consumer.record_of(message).is_copy(record)
            if again and (message.offset() or 0) >= cut:
                return Position(cut, f"{why}, and these again, as at {message.offset()}")
        return Position(cut, why, True)

    def _of_copies(self, p: int, record: LastRecord, offsets: Sequence[int]) -> Position:
        """Return the position after the copy of the table's last record."""
        if record.offset in offsets:  # as in a log with the same offsets
            offsets = [record.offset]
        places = f"at offset {listed([*map(str, offsets)], 3)}" if offsets else "not in the log"
        why = f"the table's last record is {places}"
        if len(offsets) != 1:
            return Position(self._after(p, record.time_ms), why)
        end = offsets[0] + 1
        problem = self._difference(p, record.offset + 1, end, record.time_ms)
        return Position(end, f"{why}, but the log has {problem}" if problem else why, not problem)

    def _difference(self, p: int, table_end: int, end: int, copied_ms: int | None = None) -> str:
        """Return what shows that the log before an offset is not that of the rows before another.

        :param copied_ms: the time of the last record, if the log has a copy of it before the offset
        """
        log, rows = self._records(p, end), Counter(self._rows(p, 0, table_end))
        if not log and end - self.log.beginning[p] <= TAIL_RECORDS:
            return ""
        times = Counter({*rows}) if self.state.log else rows  # Rows of former logs are among them.
        if copied_ms is not None:
            times[copied_ms] = max(1, times[copied_ms])
        if not (log and times):
            return "no record to compare before it"
        missing = times - Counter(message.timestamp()[1] for message in log)
        if any(time_ms > log[0].timestamp()[1] for time_ms in missing):
            return "not all records of the rows before it"
        # What is at an offset may be the marker of a transaction.
        near = self._records(p, min(self._after(p, max(times)) + TAIL_RECORDS, end))
        others = [message for message in (*near, *log) if message.timestamp()[1] > max(times)]
        if copied_ms is not None:
            others += self._unread(p, table_end, log, times)
        return f"others before it, as at {others[0].offset()}" if others else ""

    def _unread(
        self, p: int, table_end: int, log: Sequence[Message], times: Mapping[int, int]
    ) -> list[Message]:
        """Return the records of a log whose rows the table would have if it had read them."""
        is_upsert = self.spec.write_mode == "upsert"
        if self.spec.changelog is not None or (is_upsert and self.spec.key.has_schema):
            return []  # Rows are not of single records, or those of other partitions replace them.
        older = [n for n, message in enumerate(log) if message.timestamp()[1] <= min(times)]
        newest = {
            message.key() if is_upsert else message.offset(): message
            for message in log[max(older, default=-1) + 1 :]
        }
        unread = [
            message
            for message in newest.values()
            if message.timestamp()[1] not in times and not (is_upsert and message.value() is None)
        ]
        compared = ((p, offset) for offset in range(max(0, table_end - TAIL_ROWS), table_end))
        return unread if len(unread) > len(self._skipped & OffsetSet.of(compared)) else []

    def _after(self, p: int, time_ms: int) -> int:
        """Return the first offset after a time."""
        offset = kafka.offsets_at(self.endpoints, self.spec.name, {p: max(0, time_ms + 1)})[p]
        return self.log.end[p] if offset < 0 else offset

    def _records(self, p: int, end: int) -> list[Message]:
        """Return the last records before an offset."""
        ranges = {p: (max(self.log.beginning[p], end - TAIL_RECORDS), end)}
        return [*consumer.messages(self.endpoints, self.spec.name, ranges)]

    def _rows(self, p: int, first: int, end: int) -> list[int]:
        """Return the times of the table's rows of the last offsets before one, in milliseconds."""
        names = [self.spec.metadata_column(name) for name in (PARTITION, OFFSET, "timestamp")]
        near = And(
            EqualTo(term=names[0], value=p),
            GreaterThanOrEqual(term=names[1], value=max(first, end - TAIL_ROWS)),
            LessThan(term=names[1], value=end),
        )
        times = self.table.scan(near, (names[2],)).to_arrow().column(names[2]).drop_null()
        return [micros // 1_000 for micros in times.cast("int64").to_pylist()]


def table_state(
    spec: TopicSpec, table: Table, endpoints: Endpoints, log: kafka.TopicLog
) -> tuple[Committed, Snapshot | None, bool]:
    """Return what a table has, the newest snapshot with offsets, and whether these are known.

    After a rollback to a state without them, the rows show how much there is, at least.
    """
    try:
        head = table.current_snapshot()
        state = committed(table, head)
        if table.properties.get(summaries.FIRST_TOPIC_ID) == log.topic_id and not state.offsets:
            state = replace(state, offsets=first_offsets(spec, endpoints, table, state, log))
        return state, summaries.checkpoint(table, head), True
    except TableflowError:
        newest = table.snapshot_by_name(summaries.CHECKPOINT_TAG)
    ends, newest_ms = dict[int, int](), 0
    names = [spec.metadata_column(name) for name in (PARTITION, OFFSET, "timestamp")]
    for batch in table.scan(selected_fields=tuple(names)).to_arrow_batch_reader():
        rows = pa.Table.from_batches([batch]).select(names).drop_null()
        most = rows.group_by(names[0]).aggregate([(name, "max") for name in names[1:]])
        columns = (names[0], *(f"{name}_max" for name in names[1:]))
        values = (most[column].cast("int64").to_pylist() for column in columns)
        for p, offset, micros in zip(*values, strict=True):
            ends[p], newest_ms = max(offset + 1, ends.get(p, 0)), max(newest_ms, micros // 1_000)
    later = summaries.summary(newest) if newest else {}
    topic_id, number = later.get(summaries.TOPIC_ID), int(later.get(summaries.LOG, 0))
    return Committed(ends, topic_id, number, current_at_ms=newest_ms), newest, False
