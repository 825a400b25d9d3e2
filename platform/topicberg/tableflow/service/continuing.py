"""Let a table go on with another log: compare its end with that log, and record the decision.

What is compared is the last record of each partition that the table has (:mod:`.last_records`), by
time and content, at its own offset and, by the time index, at others. That it is there does not
prove that the log is a copy: other records may have been written before it. So the newest rows of
the partition have to be there as well, and no record before it may be later than they are.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import yaml
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
from topicberg.tableflow.changelog.fold_state import STATE, FoldState
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service.log_check import shown_time
from topicberg.tableflow.upsert.tombstones import CURRENT_OFFSETS, DeleteWatch
from topicberg.tableflow.values import logs, skips
from topicberg.tableflow.values.commit import Committed, committed
from topicberg.tableflow.values.forgotten import FORGOTTEN
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
class Comparison:
    """A table and the log of its topic."""

    state: Committed
    log: kafka.TopicLog
    positions: dict[int, Position]

    @property
    def missing(self) -> list[int]:
        """The partitions that the table has, and the topic has not."""
        return sorted(self.state.offsets.keys() - self.log.end.keys())

    @property
    def is_same(self) -> bool:
        """Whether the table goes on by itself."""
        return not self.missing and all(each.is_same for each in self.positions.values())

    @property
    def proposed(self) -> Offsets | None:
        """Where the table goes on with all that the log has, once; None: that is not proved."""
        is_proved = all(each.is_proved for each in self.positions.values())
        starts = {p: each.at for p, each in self.positions.items()}
        return starts if is_proved and not self.missing else None


def compare(
    spec: TopicSpec, table: Table, endpoints: Endpoints, report: Callable[[int], None]
) -> Comparison:
    """Compare what a table has with the log of its topic.

    :param report: called while the log is searched, with how many offsets were searched
    :raises TopicbergError: Kafka does not answer, or the topic does not exist
    """
    (state, _, is_known), log = _state(spec, table), kafka.topic_log(endpoints, spec.name)
    search = _Search(spec, table, endpoints, state, log)
    positions = search.find(report) if is_known else {p: search.of_rows(p) for p in log.end}
    return Comparison(state, log, positions)


def _state(spec: TopicSpec, table: Table) -> tuple[Committed, Snapshot | None, bool]:
    """Return what a table has, the newest snapshot with offsets, and whether these are known.

    After a rollback to a state without them, the rows show how much there is, at least.
    """
    try:
        head = table.current_snapshot()
        return committed(table, head), summaries.checkpoint(table, head), True
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
    topic_id, log = later.get(summaries.TOPIC_ID), int(later.get(summaries.LOG, 0))
    return Committed(ends, topic_id, log, current_at_ms=newest_ms), newest, False


@dataclass(frozen=True)
class _Search:
    spec: TopicSpec
    table: Table
    endpoints: Endpoints
    state: Committed
    log: kafka.TopicLog

    def find(self, report: Callable[[int], None]) -> dict[int, Position]:
        """Return the position of each partition that the topic has."""
        topic, log, where = self.spec.name, self.log, self.endpoints
        # The epochs of another topic's leaders say nothing of these.
        last = {
            p: record if self._is_same_topic else record._replace(epoch=-1)
            for p, record in self.state.last_records.items()
            if p in log.end
        }
        near = {p: record for p, record in last.items() if record.offset < log.end[p]}
        there = consumer.find_records(where, topic, near, log.beginning)
        positions = {p: self._known(p, last.get(p), there) for p in log.end}
        lost = {p: record for p, record in last.items() if positions[p] is None}
        cut = {p: record for p, record in lost.items() if record.epoch >= 0}
        copies = {
            p: [record.offset]
            for p, record in lost.items()
            if p not in cut and (other := there.get(p)) is not None and other.is_copy(record)
        }
        left = {p: record for p, record in lost.items() if p not in cut and p not in copies}
        copies |= consumer.find_copies(where, topic, left, log, report)
        ends = consumer.common_ends(where, topic, cut, log.beginning)
        work = {p: partial(self._of_cut, p, end) for p, end in ends.items()}
        work |= {p: partial(self._of_copies, p, lost[p], places) for p, places in copies.items()}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            compared = pool.map(lambda compare: compare(), work.values())
            positions |= zip(work, compared, strict=True)
        unknown = "the table's last record is not known"
        return {p: each or Position(log.end[p], unknown) for p, each in positions.items()}

    def of_rows(self, p: int) -> Position:
        """Return the position after the rows of a table whose offsets are not known."""
        end, first = self.state.offsets.get(p, 0), self.log.beginning[p]
        at = min(max(end, first), self.log.end[p])
        is_proved = self._is_same_topic and at >= end and self._of_cut(p, at).is_proved
        # Rows after those that are left may have been forgotten.
        is_proved &= not any(key.startswith(FORGOTTEN) for key in self.table.properties)
        why = f"the table's offsets are not known; its rows end at {end}"
        why += ", as the log shows" if is_proved else ", which the log does not prove"
        return Position(at, why, is_proved, deleted=max(0, first - end))

    @property
    def _is_same_topic(self) -> bool:
        return self.state.topic_id in (None, self.log.topic_id)

    def _known(
        self, p: int, record: LastRecord | None, there: Mapping[int, LastRecord | None]
    ) -> Position | None:
        """Return the position in the log of before, as the engine judges; None: it is another."""
        end, first, other = self.state.offsets.get(p), self.log.beginning[p], there.get(p)
        if not end:
            is_same = self._is_same_topic and not first
            return Position(first, "the table has nothing of it", True, is_same)
        known = logs.OtherLog.load(self.table)
        is_same = known is None or p not in known.partitions
        if p in there and record is not None:
            is_same = other is not None and other.is_same(record)
        if not (is_same and self._is_same_topic) or end > self.log.end[p]:
            return None
        deleted = max(0, first - end)
        why = "the table's last record is " + ("there" if other else "compacted or deleted")
        if deleted:
            why = f"{count(deleted, 'record')} after the table's end were deleted"
        return Position(end + deleted, why, True, not deleted, deleted)

    def _after(self, p: int, time_ms: int) -> int:
        """Return the first offset after a time."""
        offset = kafka.offsets_at(self.endpoints, self.spec.name, {p: max(0, time_ms + 1)})[p]
        return self.log.end[p] if offset < 0 else offset

    def _of_cut(self, p: int, cut: int) -> Position:
        """Return the position in a log that was cut at an offset and has grown again."""
        log, rows = dict(self._records(p, cut)), self._rows(p, cut)
        both = {offset for offset, _ in rows} & log.keys()
        # Rows of former logs may have the same offsets.
        is_other = both != {offset for offset, time_ms in rows if log.get(offset) == time_ms}
        if is_other or not (both or (not log and cut - self.log.beginning[p] <= TAIL_RECORDS)):
            why = "it was cut there by leader epochs, but the rows before do not show it"
            return Position(cut, why)
        end = self.state.offsets[p]
        return Position(cut, f"cut there: it lacks what the table has from {cut} to {end}", True)

    def _of_copies(self, p: int, record: LastRecord, offsets: Sequence[int]) -> Position:
        """Return the position after the copy of the table's last record."""
        places = f"at offset {listed([*map(str, offsets)], 3)}" if offsets else "not in the log"
        why = f"the table's last record is {places}"
        if len(offsets) != 1:
            return Position(self._after(p, record.time_ms), why)
        (offset,) = offsets
        times = Counter(time_ms for _, time_ms in self._rows(p, record.offset + 1))
        if self.state.log:  # of former logs, other rows may have these times
            times = Counter({*times})
        newest, log = max([record.time_ms, *times]), self._records(p, offset + 1)
        # What is there may be the marker of a transaction.
        later = self._records(p, min(self._after(p, newest) + TAIL_RECORDS, offset + 1))
        if others := [place for place, time_ms in (*later, *log) if time_ms > newest]:
            return Position(offset + 1, f"{why}, but later ones before it, as at {others[0]}")
        missing = times - Counter(time_ms for _, time_ms in log)
        if any(time_ms > log[0][1] for time_ms in missing):
            return Position(offset + 1, f"{why}, but not all records of the rows before it")
        return Position(offset + 1, why, True)

    def _records(self, p: int, end: int) -> list[tuple[int, int]]:
        """Return offset and time of the last records before an offset."""
        ranges = {p: (max(self.log.beginning[p], end - TAIL_RECORDS), end)}
        read = consumer.messages(self.endpoints, self.spec.name, ranges)
        return [(message.offset() or 0, message.timestamp()[1]) for message in read]

    def _rows(self, p: int, end: int) -> list[tuple[int, int]]:
        """Return offset and time of the table's rows of the last records before an offset."""
        names = [self.spec.metadata_column(name) for name in (PARTITION, OFFSET, "timestamp")]
        near = And(
            EqualTo(term=names[0], value=p),
            GreaterThanOrEqual(term=names[1], value=max(0, end - TAIL_ROWS)),
            LessThan(term=names[1], value=end),
        )
        rows = self.table.scan(near, tuple(names)).to_arrow()
        offsets, times = rows.select(names[1:]).drop_null().columns
        milliseconds = (micros // 1_000 for micros in times.cast("int64").to_pylist())
        return [*zip(offsets.to_pylist(), milliseconds, strict=True)]


def choose(
    spec: TopicSpec, comparison: Comparison, endpoints: Endpoints, since: str | None
) -> tuple[Offsets | None, str]:
    """Return where the table goes on, and what that is; None: a user has to say it.

    :param since: ``beginning``, ``end``, a time, or a file with offsets; None: what is proposed
    :raises SpecError: it is none of these, or the log has no such offset
    """
    log = comparison.log
    if since is None:
        return comparison.proposed, "after the table's last records"
    if since in ("beginning", "end"):
        return dict(getattr(log, since)), f"from the {since} of the log"
    if (path := Path(since)).is_file():
        return _of_file(path, log), f"from the offsets in {path.name}"
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        raise SpecError(
            f"topic {spec.name}: {since!r} is neither a time nor a file",
            hint="give `beginning`, `end`, a time such as 2026-01-31T12:00:05Z, or a YAML or JSON "
            "file that has the first offset of each partition",
        ) from None
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    first = kafka.offsets_at(endpoints, spec.name, max(0, int(moment.timestamp() * 1000)))
    starts = {p: end if first.get(p, -1) < 0 else first[p] for p, end in log.end.items()}
    return starts, f"from {moment.isoformat()} on"


def _of_file(path: Path, log: kafka.TopicLog) -> Offsets:
    try:
        offsets = parse_offsets(json.dumps(yaml.safe_load(path.read_text())))
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):
        offsets = {}
    known = {p: (log.beginning[p], end) for p, end in log.end.items()}
    wrong = sorted(p for p, (first, end) in known.items() if not first <= offsets.get(p, -1) <= end)
    if wrong or offsets.keys() != known.keys():
        ranges = [f"{p}: {first} to {end}" for p, (first, end) in known.items()]
        raise SpecError(
            f"{path} does not have an offset of the log for each partition",
            hint=f"write them as YAML or JSON; the log has {listed(ranges, 5)}",
        )
    return offsets


def go_on(
    spec: TopicSpec,
    table: Table,
    endpoints: Endpoints,
    comparison: Comparison,
    starts: Offsets,
    decision: str,
) -> None:
    """Let a table go on with another log, in one commit: an empty snapshot that begins that log.

    :raises TopicbergError: the table or the log has changed since the comparison
    """
    changed = TopicbergError(
        f"topic {spec.name}: its table or its log has changed since they were compared",
        hint="run the command again; nothing was changed",
    )

    def attempt() -> None:
        state, newest, is_known = _state(spec, table.refresh())
        now, before = kafka.topic_log(endpoints, spec.name), comparison.log
        is_there = all(now.beginning.get(p, offset + 1) <= offset for p, offset in starts.items())
        is_same_log = (now.topic_id, now.epochs) == (before.topic_id, before.epochs)
        if state != comparison.state or not is_there or not is_same_log:
            raise changed
        known, now_ms = logs.decisions(table), int(time.time() * 1000)
        number = 1 + max([state.log, *(ended.next for ended in known)])
        ended = logs.EndedLog(
            log=state.log,
            next=number,
            topic_id=state.topic_id,
            ends=state.offsets,
            at_ms=now_ms,
            by=skips.current_user(),
            decision=decision,
        )
        noted = {
            key: value
            for key, value in (summaries.summary(newest) if newest else {}).items()
            if key.startswith(summaries.OWN) and key not in (HOURS, STATE)
        }
        if summaries.CURRENT_AT_MS in noted:  # how old the table is does not depend on its log
            noted |= DeleteWatch(lambda: None, table, state, now_ms).noted({})
        properties = {logs.LOGS: logs.dump([*known, ended])}
        if STATE in table.properties:
            fold = FoldState.of(table, newest)
            if not is_known:
                line = {each.snapshot_id for each in summaries.ancestry(table)}
                fold = FoldState.load(table.properties).rolled_back(line)
            fold = fold.continued(
                number, state.offsets, starts, is_proved=comparison.proposed == starts
            )
            noted |= fold.noted()
            properties[STATE] = fold.model_dump_json()
        skipped = int(table.properties.get(summaries.ROWS_SKIPPED, 0))
        waiting = Waiting.load(table) if is_known else Waiting(unrecorded=skipped)
        if waiting.start or not is_known:  # the next log has other offsets
            noted |= waiting.write(table)
        last = consumer.last_before(endpoints, spec.name, starts, now.beginning)
        noted[summaries.LOG], noted[summaries.TOPIC_ID] = str(number), now.topic_id
        noted[summaries.END_OFFSETS] = dump_offsets(starts)
        noted[summaries.LAST_RECORDS] = dump_last_records(last, starts)
        change = SnapshotChange(table, Operation.APPEND, properties=noted)
        change.time = spec.event_time
        failing = [key for key in table.properties if key.startswith(skips.FAILING)]
        dropped = [logs.OTHER_LOG, CURRENT_OFFSETS, summaries.CURRENT_AT_MS, *failing]
        tag = set_ref(summaries.CHECKPOINT_TAG, change.snapshot_id)
        change.commit(properties, dropped, [tag])

    retry(attempt, ATTEMPTS, exhausted=changed)


def described(
    spec: TopicSpec, comparison: Comparison, endpoints: Endpoints, starts: Offsets
) -> Iterator[tuple[str, ...]]:
    """Yield what :data:`COLUMNS` has of each partition; ``starts``: if they are chosen."""
    state, log = comparison.state, comparison.log
    times = consumer.first_times(endpoints, spec.name, starts)
    for p, each in comparison.positions.items():
        record, start = state.last_records.get(p), starts.get(p)
        table = [f"to {state.offsets.get(p, 0)}", *([shown_time(record.time_ms)] if record else ())]
        counts = ["", "", ""]
        if start is not None:
            counts[0] = ", ".join([str(start), *([shown_time(times[p])] if p in times else ())])
            changes = each.deleted + max(0, start - each.at), max(0, each.at - start)
            counts[1:] = [f"{'' if each.is_proved else 'about '}{number:,}" for number in changes]
        yield str(p), ", ".join(table), f"{log.beginning[p]} to {log.end[p]}", *counts, each.why


def warnings(
    spec: TopicSpec, table: Table, comparison: Comparison, starts: Offsets
) -> Iterator[str]:
    """Yield what the counts of :func:`described` do not show."""
    positions, missing = comparison.positions, [*map(str, comparison.missing)]
    if missing:
        yield f"the topic lacks the partitions {listed(missing, 5)}: what they had later is lost"
    if comparison.proposed is None:
        yield (
            "that the log goes on after the table's end is not proved: records that the former "
            "log had after it may be lost, and counts are by time or offset"
        )
    if spec.write_mode == "upsert":
        yield "rows of keys that the log does not have stay"
    is_moved = bool(missing) or len(positions) > len(comparison.state.offsets)
    if is_moved and spec.write_mode == "upsert" and not (spec.changelog or spec.key.has_schema):
        yield (
            "a key has a row in each partition where it was: run `topicberg tableflow reread "
            f"{spec.name}` once the table has read all, to delete those that the topic lacks"
        )
    if starts and all(s >= positions[p].at and positions[p].is_proved for p, s in starts.items()):
        return
    if spec.write_mode == "append":
        yield "a record that repeats is another row"
    if any(key.startswith(FORGOTTEN) for key in table.properties):
        yield "records that repeat may be of keys that were forgotten: forget these keys again"
