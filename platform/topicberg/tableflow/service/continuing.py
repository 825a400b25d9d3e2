"""Let a table go on with another log: compare its end with that log, and record the decision.

What is compared is the last record of each partition that the table has (:mod:`.last_records`), by
time and content, at its own offset and, by the time index, at others. That it is there does not
prove that the log is a copy: other records may have been written before it. So the newest rows of
the partition have to be there as well, and no record before it may be later than they are.

The decision is one commit: an empty snapshot whose summary begins the next log
(:mod:`topicberg.tableflow.values.logs`). A batch that was planned before it is refused.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, SpecError
from topicberg.errors.retry import retry
from topicberg.formats.metadata import OFFSET, PARTITION
from topicberg.iceberg import summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import set_ref
from topicberg.iceberg.hours import SUMMARY as HOURS
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.last_records import LastRecord, LastRecords, dump_last_records
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.changelog.fold_state import STATE, FoldState
from topicberg.tableflow.service.log_check import shown_time
from topicberg.tableflow.upsert.tombstones import CURRENT_OFFSETS, DeleteWatch
from topicberg.tableflow.values import logs, skips
from topicberg.tableflow.values.commit import Committed, committed
from topicberg.topics import TopicSpec
from topicberg.wording import count, listed

ATTEMPTS = 10
TAIL_ROWS, TAIL_RECORDS = 1_000, 5_000
"""Offsets of a partition whose rows are compared, and of its log at most."""


@dataclass(frozen=True)
class Position:
    """Where the log of a partition goes on after what the table has of it."""

    partition: int
    end: int | None
    """The first offset of the former log that the table lacks; None: it has nothing of it."""
    record: LastRecord | None
    """The last one that the table has, if it is known."""
    log: tuple[int, int] | None
    """The first offset and the end of the log; None: it has no such partition."""
    at: int = 0
    """The first offset that the table lacks; what it seems to be, if that is not proved."""
    why: str = "the log has no such partition"
    is_proved: bool = False
    is_same: bool = False
    """Whether nothing is to be decided: the log is the one of before, without a gap."""


@dataclass(frozen=True)
class Comparison:
    """A table and the log of its topic."""

    state: Committed
    log: kafka.TopicLog
    positions: list[Position]

    @property
    def is_same(self) -> bool:
        """Whether the table goes on by itself."""
        return all(position.is_same for position in self.positions)

    @property
    def proposed(self) -> Offsets | None:
        """Where the table goes on without a loss or a repetition; None: that cannot be proved."""
        is_proved = all(position.is_proved for position in self.positions)
        return {each.partition: each.at for each in self.positions} if is_proved else None


def compare(
    spec: TopicSpec, table: Table, endpoints: Endpoints, report: Callable[[int], None]
) -> Comparison:
    """Compare what a table has with the log of its topic.

    :param report: called while the log is searched, with how many offsets were searched
    :raises TopicbergError: Kafka does not answer, or the topic does not exist
    """
    state, log = committed(table, table.current_snapshot()), kafka.topic_log(endpoints, spec.name)
    other, is_same_topic = logs.OtherLog.load(table), state.topic_id in (None, log.topic_id)
    doubted = {*other.partitions} if other else set[int]()
    last = {p: record for p, record in state.last_records.items() if p in log.end}
    # The epochs of another topic's leaders say nothing of these.
    asked = last if is_same_topic else {p: r._replace(epoch=-1) for p, r in last.items()}
    asked = {p: record for p, record in asked.items() if record.offset < log.end[p]}
    there = consumer.find_records(endpoints, spec.name, asked, log.beginning)
    positions, unknown = dict[int, Position](), dict[int, Position]()
    for p in sorted(log.end.keys() | state.offsets.keys()):
        end, record, its_log = state.offsets.get(p), last.get(p), None
        if p in log.end:
            its_log = log.beginning[p], log.end[p]
        position = Position(p, end, record, its_log)
        if its_log is None:
            positions[p] = position
        elif not end:
            same = is_same_topic and its_log[0] == 0
            why = "the table has nothing of it"
            positions[p] = replace(position, at=its_log[0], why=why, is_proved=True, is_same=same)
        elif is_same_topic and _is_same(position, there, doubted):
            positions[p] = _of_same(position, end, there)
        else:
            unknown[p] = position
    found = _Search(spec, table, endpoints, state, log, report).find(
        unknown, there, same=is_same_topic
    )
    return Comparison(state, log, [each for _, each in sorted((positions | found).items())])


def _is_same(position: Position, there: Mapping[int, LastRecord | None], doubted: set[int]) -> bool:
    """Return whether a partition of the same topic has the log of before, as the engine judges."""
    p, record, (_, end) = position.partition, position.record, position.log or (0, 0)
    if (position.end or 0) > end:
        return False
    if record is not None and p in there:
        other = there[p]
        return other is not None and other.is_same(record)
    return p not in doubted


def _of_same(position: Position, end: int, there: Mapping[int, LastRecord | None]) -> Position:
    first = position.log[0] if position.log else 0
    why = "the table's last record is there"
    if end < first:
        why = f"{count(first - end, 'record')} after the table's end were deleted"
    elif there.get(position.partition) is None:
        why = "the same topic; the table's last record was compacted or deleted"
    return replace(position, at=max(end, first), why=why, is_proved=True, is_same=end >= first)


@dataclass(frozen=True)
class _Search:
    spec: TopicSpec
    table: Table
    endpoints: Endpoints
    state: Committed
    log: kafka.TopicLog
    report: Callable[[int], None]

    def find(
        self, unknown: Mapping[int, Position], there: Mapping[int, LastRecord | None], *, same: bool
    ) -> dict[int, Position]:
        """Return where partitions go on whose log is another one."""
        topic, log = self.spec.name, self.log
        records = {p: each.record for p, each in unknown.items() if each.record is not None}
        cut = {p: r for p, r in records.items() if same and r.epoch >= 0}
        ends = consumer.common_ends(self.endpoints, topic, cut, log.beginning) if cut else {}
        own = {
            p: [record.offset]
            for p, record in records.items()
            if p not in ends and (other := there.get(p)) is not None and other.is_copy(record)
        }
        left = {p: record for p, record in records.items() if p not in {*ends, *own}}
        copies = consumer.find_copies(self.endpoints, topic, left, log, self.report) | own
        later = self._later({p: record.time_ms for p, record in records.items()})
        found = dict[int, Position]()
        for p, position in unknown.items():
            if p in ends:
                found[p] = self._of_cut(position, ends[p])
            elif (offsets := copies.get(p)) is None:
                why = "the table's last record is not known"
                found[p] = replace(position, at=log.end[p], why=why)
            elif len(offsets) == 1:
                found[p] = self._of_copy(position, offsets[0])
            else:
                why = "the table's last record is not in the log"
                if offsets:
                    why = f"it is at the offsets {listed([*map(str, offsets)], 3)}"
                found[p] = replace(position, at=later[p], why=why)
        return found

    def _later(self, times: Mapping[int, int]) -> Offsets:
        """Return the first offset after a time, of each partition."""
        after = {p: max(0, time_ms + 1) for p, time_ms in times.items()}
        at = kafka.offsets_at(self.endpoints, self.spec.name, after)
        return {p: self.log.end[p] if offset < 0 else offset for p, offset in at.items()}

    def _of_cut(self, position: Position, at: int) -> Position:
        """Return the position in a log that was cut at an offset and has grown again."""
        p, first = position.partition, self.log.beginning[position.partition]
        log, rows = dict(self._records(p, at)), self._rows(p, at)
        both = {offset for offset, _ in rows} & log.keys()
        # Rows of former logs may have the same offsets.
        is_other = both != {offset for offset, time_ms in rows if log.get(offset) == time_ms}
        if is_other or not (both or (not log and at - first <= TAIL_RECORDS)):
            why = f"by leader epochs, it was cut at offset {at}, but the rows before do not show it"
            return replace(position, at=at, why=why)
        why = f"cut at offset {at}: it has not what the table has from there to {position.end}"
        return replace(position, at=at, why=why, is_proved=True)

    def _of_copy(self, position: Position, offset: int) -> Position:
        """Return the position after the only copy of the table's last record."""
        p, record = position.partition, position.record
        assert record is not None  # noqa: S101  it was found
        position = replace(position, at=offset + 1)
        why = f"the table's last record is at offset {offset}"
        times = Counter(time_ms for _, time_ms in self._rows(p, record.offset + 1))
        if self.state.log:  # of former logs, other rows may have these times
            times = Counter({*times})
        newest = max([record.time_ms, *times])
        if (other := self._later({p: newest})[p]) <= offset:
            return replace(position, why=f"{why}, but later ones before it, as at {other}")
        log = [time_ms for _, time_ms in self._records(p, offset + 1)]
        if any(time_ms > log[0] for time_ms in times - Counter(log)):
            return replace(position, why=f"{why}, but not all records of the rows before it")
        return replace(position, why=why, is_proved=True)

    def _records(self, partition: int, end: int) -> list[tuple[int, int]]:
        """Return offset and time of the last records before an offset."""
        ranges = {partition: (max(self.log.beginning[partition], end - TAIL_RECORDS), end)}
        read = consumer.messages(self.endpoints, self.spec.name, ranges)
        return [(message.offset() or 0, message.timestamp()[1]) for message in read]

    def _rows(self, partition: int, end: int) -> list[tuple[int, int]]:
        """Return offset and time of the table's rows of the last records before an offset."""
        names = [self.spec.metadata_column(name) for name in (PARTITION, OFFSET, "timestamp")]
        first = GreaterThanOrEqual(names[1], max(0, end - TAIL_ROWS))
        rows = self.table.scan(
            And(EqualTo(names[0], partition), first, LessThan(names[1], end)), tuple(names)
        )
        offsets, times = rows.to_arrow().select(names[1:]).drop_null().columns
        micros = times.cast("int64").to_pylist()
        return [*zip(offsets.to_pylist(), (time_us // 1_000 for time_us in micros), strict=True)]


def choose(
    spec: TopicSpec, comparison: Comparison, endpoints: Endpoints, since: str | None
) -> tuple[Offsets, str] | None:
    """Return where the table goes on, and what that is; None: a user has to say it.

    :param since: ``beginning``, ``end``, a time, or a file with offsets; None: what is proposed
    :raises SpecError: it is none of these, or the log has no such offset
    """
    log = comparison.log
    match since:
        case None:
            proposed = comparison.proposed
            return (proposed, "after the table's last records") if proposed is not None else None
        case "beginning":
            return dict(log.beginning), "from the beginning of the log"
        case "end":
            return dict(log.end), "from the end of the log"
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
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    at = kafka.offsets_at(endpoints, spec.name, max(0, int(moment.timestamp() * 1000)))
    starts = {p: end if at.get(p, -1) < 0 else at[p] for p, end in log.end.items()}
    return starts, f"from {moment.astimezone(UTC).isoformat()} on"


def _of_file(path: Path, log: kafka.TopicLog) -> Offsets:
    try:
        offsets = parse_offsets(json.dumps(yaml.safe_load(path.read_text())))
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise SpecError(
            f"{path}: it does not have an offset for each partition",
            hint='write it as YAML or JSON, such as {"0": 1200, "1": 1185}',
        ) from error
    if offsets.keys() != log.end.keys():
        raise SpecError(
            f"{path} has the partitions {sorted(offsets)}, the topic has {sorted(log.end)}",
            hint="give the offset of each partition of the topic",
        )
    for p, offset in sorted(offsets.items()):
        if not log.beginning[p] <= offset <= log.end[p]:
            raise SpecError(
                f"{path}: offset {offset} of partition {p} is not in the log, which has "
                f"{log.beginning[p]} to {log.end[p]}",
                hint="give an offset of the log, or its end",
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
    """Let a table go on with another log, in one commit.

    :raises CommitConflictError: the table or the log has changed since the comparison
    """
    changed = CommitConflictError(
        f"topic {spec.name}: its table or its log has changed since they were compared",
        hint="run the command again; nothing was changed",
    )

    def attempt() -> None:
        state = committed(table.refresh(), table.current_snapshot())
        now, before = kafka.topic_log(endpoints, spec.name), comparison.log
        is_there = all(now.beginning.get(p, offset + 1) <= offset for p, offset in starts.items())
        if state != comparison.state or now.end.keys() != starts.keys() or not is_there:
            raise changed
        if (now.topic_id, now.epochs) != (before.topic_id, before.epochs):
            raise changed
        last = consumer.last_before(endpoints, spec.name, starts, now.beginning)
        _commit(spec, table, comparison, starts, decision, last)

    retry(attempt, ATTEMPTS, exhausted=changed)


def _commit(
    spec: TopicSpec,
    table: Table,
    comparison: Comparison,
    starts: Offsets,
    decision: str,
    last: LastRecords,
) -> None:
    state, known, now_ms = comparison.state, logs.decisions(table), int(time.time() * 1000)
    head, newest = table.current_snapshot(), summaries.checkpoint(table)
    number = len(known) + 1
    ended = logs.EndedLog(
        log=state.log,
        topic_id=state.topic_id,
        ends=state.offsets,
        at_ms=now_ms,
        by=skips.current_user(),
        decision=decision,
    )
    own = summaries.summary(newest).items() if newest else ()
    of_batch = (HOURS, STATE)
    noted = {k: v for k, v in own if k.startswith(summaries.OWN) and k not in of_batch} | {
        summaries.LOG: str(number),
        summaries.TOPIC_ID: comparison.log.topic_id,
        summaries.END_OFFSETS: dump_offsets(starts),
        summaries.LAST_RECORDS: dump_last_records(last, starts),
    }
    if summaries.CURRENT_AT_MS in noted:  # how old the table is does not depend on its log
        noted |= DeleteWatch(lambda: None, table, state, now_ms).noted({})
    changed = {logs.LOGS: logs.dump([*known, ended])}
    if STATE in table.properties:
        fold = FoldState.of(table, head).continued(
            number, state.offsets, starts, is_proved=comparison.proposed == starts
        )
        noted, changed = noted | fold.noted(), {**changed, STATE: fold.model_dump_json()}
    failing = [key for key in table.properties if key.startswith(skips.FAILING)]
    change = SnapshotChange(table, Operation.APPEND, properties=noted)
    change.time = spec.event_time
    tag = set_ref(summaries.CHECKPOINT_TAG, change.snapshot_id)
    dropped = [logs.OTHER_LOG, CURRENT_OFFSETS, summaries.CURRENT_AT_MS, *failing]
    change.commit(changed, dropped, [tag])


COLUMNS = ("partition", "table", "log", "goes on at", "lost", "repeats", "compared")


def described(
    spec: TopicSpec, comparison: Comparison, endpoints: Endpoints, starts: Offsets | None
) -> Iterator[tuple[str, ...]]:
    """Yield what :data:`COLUMNS` has of each partition.

    :param starts: where the table goes on; None: not known yet
    """
    starts = starts or {}
    times = consumer.first_times(endpoints, spec.name, starts)
    for each in comparison.positions:
        p, about = each.partition, "" if each.is_proved else "about "
        start, log = (
            starts.get(p),
            "none" if each.log is None else f"{each.log[0]} to {each.log[1]}",
        )
        there = "nothing" if not each.end else f"to {each.end}"
        if each.record is not None:
            there = f"{there}, {shown_time(each.record.time_ms)}"
        counts = ("", "", "")
        if start is not None:
            place = f"{start}, {shown_time(times[p])}" if p in times else f"{start}"
            lost, repeats = max(0, start - each.at), max(0, each.at - start)
            counts = (place, *(f"{about if n else ''}{n:,}" for n in (lost, repeats)))
        yield str(p), there, log, *counts, each.why


def warnings(
    spec: TopicSpec, table: Table, comparison: Comparison, starts: Offsets | None
) -> Iterator[str]:
    """Yield what the counts do not show; see :func:`described`."""
    missing = [str(each.partition) for each in comparison.positions if each.log is None]
    if missing:
        yield (
            f"Kafka does not have the partitions {listed(missing, 5)}: what they had after the "
            "table's end cannot be read"
        )
    if not comparison.is_same and comparison.proposed is None:
        yield (
            "that the log goes on after the table's end is not proved: records that the former "
            "log had after it may be missing, and counts are by time or offset"
        )
    forgotten = any(key.startswith("topicberg.forgotten.") for key in table.properties)
    if forgotten and starts != comparison.proposed:
        yield "records that repeat may be of keys that were forgotten: forget these keys again"
    is_moved = len(comparison.log.end) != len(comparison.state.offsets)
    if spec.write_mode == "append":
        if starts and any(starts.get(p.partition, p.at) < p.at for p in comparison.positions):
            yield "a record that repeats is another row"
        return
    yield "rows of keys that the log does not have stay"
    if is_moved and spec.changelog is None and not spec.key.has_schema:
        yield (
            "the number of partitions is another one, and a key has a row in each partition where "
            f"it was: run `topicberg tableflow reread {spec.name}` once the table has read all, to "
            "delete the rows of keys that the log does not have there"
        )
