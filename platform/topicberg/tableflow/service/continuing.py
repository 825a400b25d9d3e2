"""Let a table go on with another log: compare its end with that log, and record the decision.

What is compared is the last record of each partition that the table has (:mod:`.last_records`), by
time and content, at its own offset and, by the time index, at others. That it is there does not
prove that the log is a copy: other records may have been written before it. So the newest rows of
the partition have to be there as well, and no record before it that the table lacks.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import yaml
from confluent_kafka import Message
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError, TableflowError, TopicbergError
from topicberg.errors.retry import retry
from topicberg.formats.metadata import OFFSET, PARTITION
from topicberg.iceberg import summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import set_ref
from topicberg.iceberg.hours import SUMMARY as HOURS
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.last_records import LastRecord, dump_last_records
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.batch.batch_plan import first_offsets
from topicberg.tableflow.changelog.fold_state import STATE, FoldState
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service.log_check import current_records, shown_time
from topicberg.tableflow.upsert.tombstones import CURRENT_OFFSETS, DeleteWatch
from topicberg.tableflow.values import logs, skips
from topicberg.tableflow.values.commit import Committed, committed
from topicberg.tableflow.values.forgotten import FORGOTTEN
from topicberg.tableflow.values.offsets import OffsetSet
from topicberg.topics import TopicSpec
from topicberg.wording import count, listed

COLUMNS = ("partition", "table", "log", "goes on at", "lost", "repeats", "compared")
ATTEMPTS, AT_ONCE = 10, 8
TAIL_ROWS, TAIL_RECORDS = 200, 2_000
"""Offsets of a partition whose rows are compared, and of its log at most."""


class Position(NamedTuple):
    """Where the log of a partition goes on after what the table has of it."""

    at: int
    """The first offset that the table lacks; what it seems to be, if that is not proved."""
    why: str
    is_proved: bool = False
    is_same: bool = False
    """Whether nothing is to be decided: the log is the one of before, without a gap."""
    deleted: int = 0  # Offsets before ``at`` that the table lacks, and the log as well.


@dataclass(frozen=True)
class _Ends:
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
        work |= {p: partial(self._of_copies, p, moved[p], found) for p, found in copies.items()}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            compared = pool.map(lambda compare: compare(), work.values())
            positions |= zip(work, compared, strict=True)
        unknown = "the table's last record is not known"
        return {p: found or Position(log.end[p], unknown) for p, found in positions.items()}

    def of_rows(self, p: int) -> Position:
        """Return the position after the rows of a table whose offsets are not known."""
        end, first = self.state.offsets.get(p, 0), self.log.beginning[p]
        at = min(max(end, first), self.log.end[p])
        # Rows after those that are left may have been forgotten.
        is_proved = not (self._has_forgotten or at < end or self._difference(p, at, at))
        is_proved &= self._is_same_topic
        why = f"the table's offsets are not known; its rows end at {end}"
        why += ", as the log shows" if is_proved else ", which the log does not prove"
        return Position(at, why, is_proved, deleted=max(0, first - end))

    @property
    def _is_same_topic(self) -> bool:
        return self.state.topic_id in (None, self.log.topic_id)

    @property
    def _has_forgotten(self) -> bool:
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
        # Other records may have the time of the last one.
        lost = {*self._rows(p, cut, end)} - {record.time_ms}
        for message in self._records(p, min(cut + TAIL_RECORDS, self.log.end[p])):
            again = message.timestamp()[1] in lost or consumer.record_of(message).is_copy(record)
            if again and (message.offset() or 0) >= cut and self.spec.write_mode == "append":
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
        at = offsets[0] + 1
        problem = self._difference(p, record.offset + 1, at, record.time_ms)
        return Position(at, f"{why}, but the log has {problem}" if problem else why, not problem)

    def _difference(self, p: int, table_end: int, at: int, copied_ms: int | None = None) -> str:
        """Return what shows that the log before an offset is not that of the rows before another.

        :param copied_ms: the time of the last record, if the log has a copy of it before the offset
        """
        log, rows = self._records(p, at), Counter(self._rows(p, 0, table_end))
        if not log and at - self.log.beginning[p] <= TAIL_RECORDS:
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
        near = self._records(p, min(self._after(p, max(times)) + TAIL_RECORDS, at))
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


@dataclass(frozen=True)
class Comparison(_Ends):
    """A table and the log of its topic."""

    positions: dict[int, Position]

    @property
    def missing(self) -> list[int]:
        """The partitions that the table has, and the topic has not."""
        return sorted(self.state.offsets.keys() - self.log.end.keys())

    @property
    def is_same(self) -> bool:
        """Whether the table goes on by itself."""
        return not self.missing and all(found.is_same for found in self.positions.values())

    @property
    def proposed(self) -> Offsets | None:
        """Where the table goes on with all that the log has, once; None: that is not proved."""
        is_proved = all(found.is_proved for found in self.positions.values())
        starts = {p: found.at for p, found in self.positions.items()}
        return starts if is_proved and not self.missing else None

    def choose(self, since: str | None) -> tuple[Offsets | None, str]:
        """Return where the table goes on, and what that is; None: a user has to say it.

        :param since: ``beginning``, ``end``, a time, or a file with offsets; None: as proposed
        :raises SpecError: it is none of these, or the log has no such offset
        """
        log = self.log
        if since is None:
            return self.proposed, "after the table's last records"
        if since in ("beginning", "end"):
            return dict(getattr(log, since)), f"from the {since} of the log"
        if (path := Path(since)).is_file():
            try:
                offsets = parse_offsets(json.dumps(yaml.safe_load(path.read_text())))
            except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):
                offsets = {}
            in_log = all(
                log.beginning[p] <= offsets.get(p, -1) <= end for p, end in log.end.items()
            )
            if in_log and offsets.keys() == log.end.keys():
                return offsets, f"from the offsets in {path.name}"
            ranges = [f"{p}: {log.beginning[p]} to {end}" for p, end in log.end.items()]
            raise SpecError(
                f"{path} does not have an offset of the log for each partition",
                hint=f"write them as YAML or JSON; the log has {listed(ranges, 5)}",
            )
        try:
            moment = datetime.fromisoformat(since)
        except ValueError:
            raise SpecError(
                f"topic {self.spec.name}: {since!r} is neither a time nor a file",
                hint="give `beginning`, `end`, a time such as 2026-01-31T12:00:05Z, or a YAML or "
                "JSON file that has the first offset of each partition",
            ) from None
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        time_ms = max(0, int(moment.timestamp() * 1000))
        first = kafka.offsets_at(self.endpoints, self.spec.name, time_ms)
        starts = {p: end if first.get(p, -1) < 0 else first[p] for p, end in log.end.items()}
        return starts, f"from {moment.isoformat()} on"

    def described(self, starts: Offsets) -> Iterator[tuple[str, ...]]:
        """Yield what :data:`COLUMNS` has of each partition; ``starts``: if they are chosen."""
        times = consumer.first_times(self.endpoints, self.spec.name, starts)
        for p, position in self.positions.items():
            table, counts = f"to {self.state.offsets.get(p, 0)}", ["", "", ""]
            if (record := self.state.last_records.get(p)) is not None:
                table += f", {shown_time(record.time_ms)}"
            if (start := starts.get(p)) is not None:
                counts[0] = f"{start}, {shown_time(times[p])}" if p in times else str(start)
                lost = position.deleted + max(0, start - position.at)
                about = "" if position.is_proved else "about "
                counts[1:] = f"{about}{lost:,}", f"{about}{max(0, position.at - start):,}"
            log = f"{self.log.beginning[p]} to {self.log.end[p]}"
            yield str(p), table, log, *counts, position.why

    def warnings(self, starts: Offsets) -> Iterator[str]:
        """Yield what the counts of :meth:`described` do not show."""
        spec, positions, missing = self.spec, self.positions, [*map(str, self.missing)]
        if missing:
            yield f"the topic lacks partitions {listed(missing, 5)}: what they had later is lost"
        if self.proposed is None:
            yield (
                "that the log goes on after the table's end is not proved: records that the former "
                "log had after it may be lost, and counts are by time or offset"
            )
        if spec.write_mode == "upsert":
            yield "rows of records that the log lacks stay, until their keys have later ones"
        is_moved = bool(missing) or len(positions) > len(self.state.offsets)
        if is_moved and spec.write_mode == "upsert" and not (spec.changelog or spec.key.has_schema):
            yield (
                "a key has a row in each partition where it was: run `topicberg tableflow reread "
                f"{spec.name}` once the table has read all, to delete those that the topic lacks"
            )
        if not starts or any(
            start < positions[p].at or not positions[p].is_proved for p, start in starts.items()
        ):
            if spec.write_mode == "append":
                yield "a record that repeats is another row"
            if self._has_forgotten:
                yield "records that repeat may be of keys that were forgotten: forget these again"

    def go_on(self, starts: Offsets, decision: str) -> None:
        """Let the table go on with the log, in one commit: an empty snapshot that begins that log.

        :raises TopicbergError: the table or the log has changed since the comparison
        """
        changed = TopicbergError(
            f"topic {self.spec.name}: its table or its log has changed since they were compared",
            hint="run the command again; nothing was changed",
        )
        retry(partial(self._commit, starts, decision, changed), ATTEMPTS, exhausted=changed)

    def _commit(self, starts: Offsets, decision: str, changed: TopicbergError) -> None:
        table, before, now_ms = self.table.refresh(), self.log, int(time.time() * 1000)
        last = consumer.last_before(self.endpoints, self.spec.name, starts, before.beginning)
        log = kafka.topic_log(self.endpoints, self.spec.name)
        state, newest, is_known = _state(self.spec, table, self.endpoints, log)
        is_there = all(log.beginning.get(p, offset + 1) <= offset for p, offset in starts.items())
        is_same_log = (log.topic_id, log.epochs) == (before.topic_id, before.epochs)
        if state != self.state or not is_there or not is_same_log:
            raise changed
        decisions = logs.decisions(table)
        number = 1 + max([state.log, *(ended.next for ended in decisions)])
        ended = logs.EndedLog(
            log=state.log,
            next=number,
            topic_id=state.topic_id,
            ends=state.offsets,
            at_ms=now_ms,
            by=skips.current_user(),
            decision=decision,
        )
        recorded = {
            key: value
            for key, value in (summaries.summary(newest) if newest else {}).items()
            if key.startswith(summaries.OWN) and key not in (HOURS, STATE)
        }
        if summaries.CURRENT_AT_MS in recorded:  # how old the table is does not depend on its log
            recorded |= DeleteWatch(lambda: None, table, state, now_ms).noted({})
        properties = {logs.LOGS: logs.dump([*decisions, ended])}
        if STATE in table.properties:
            fold = FoldState.of(table, newest)
            if not is_known:
                line = {snapshot.snapshot_id for snapshot in summaries.ancestry(table)}
                fold = FoldState.load(table.properties).rolled_back(line)
            is_proved = self.proposed == starts
            fold = fold.continued(number, state.offsets, starts, is_proved=is_proved)
            recorded |= fold.noted()
            properties[STATE] = fold.model_dump_json()
        skipped = int(table.properties.get(summaries.ROWS_SKIPPED, 0))
        waiting = Waiting.load(table) if is_known else Waiting(unrecorded=skipped)
        if waiting.start or not is_known:  # the next log has other offsets
            recorded |= waiting.write(table)
        recorded |= {
            summaries.LOG: str(number),
            summaries.TOPIC_ID: log.topic_id,
            summaries.END_OFFSETS: dump_offsets(starts),
            summaries.LAST_RECORDS: dump_last_records(last, starts),
        }
        change = SnapshotChange(table, Operation.APPEND, properties=recorded)
        change.time = self.spec.event_time
        failing = [key for key in table.properties if key.startswith(skips.FAILING)]
        dropped = [logs.OTHER_LOG, CURRENT_OFFSETS, summaries.CURRENT_AT_MS, *failing]
        tag = set_ref(summaries.CHECKPOINT_TAG, change.snapshot_id)
        change.commit(properties, dropped, [tag])


def compare(
    spec: TopicSpec, table: Table, endpoints: Endpoints, report: Callable[[int], None]
) -> Comparison:
    """Compare what a table has with the log of its topic.

    :param report: called while the log is searched, with how many offsets were searched
    :raises TopicbergError: Kafka does not answer, or the topic does not exist
    """
    log = kafka.topic_log(endpoints, spec.name)
    state, _, is_known = _state(spec, table, endpoints, log)
    ends = _Ends(spec, table, endpoints, state, log)
    positions = ends.find(report) if is_known else {p: ends.of_rows(p) for p in log.end}
    return Comparison(spec, table, endpoints, state, log, positions)


def _state(
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
