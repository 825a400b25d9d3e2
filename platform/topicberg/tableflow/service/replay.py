"""Read the records again that were left out of a table: ``topicberg tableflow replay``.

A record is read from the log, while Kafka has it, else from its dead letter, and is decoded as in a
batch, with the schemas and the spec of now. Each chunk of records is one commit: it adds their rows
and says that these records do not wait any more (:mod:`.rejected.waiting`). So a replay that was
killed is continued by the next one. Its snapshot has the end offsets of the one before.

In an upsert table, no record replaces a later one of its key, or brings a deleted key back: see
:mod:`topicberg.tableflow.table.later_records`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any

from tenacity import wait_random

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, SpecError
from topicberg.errors.retry import conflicts, retry
from topicberg.formats.metadata import HEADERS
from topicberg.iceberg.files import discard
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import batch_end, messages
from topicberg.kafka.offsets import PartitionOffset
from topicberg.kafka.records import DamagedRecordsError, GivenRecord, headers_of
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import BatchPlan, TablePlan
from topicberg.tableflow.decode.columns import FORGOTTEN
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.reading import GivenRecords, WrittenBatch, joined
from topicberg.tableflow.rejected.deadletters import read_dead_letters
from topicberg.tableflow.rejected.rejections import Rejections, without_values
from topicberg.tableflow.rejected.waiting import Reason, Waiting
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.turns import turn
from topicberg.tableflow.table.batch_commit import Replayed, SchemasFoundError
from topicberg.tableflow.table.later_records import DELETED, SUPERSEDED, UNCERTAIN, LaterRecords
from topicberg.tableflow.values.forgotten import ForgottenKeys
from topicberg.tableflow.values.logs import ended_logs, log_number
from topicberg.tableflow.values.memory import ExhaustedError
from topicberg.tableflow.values.metadata import wrong_header
from topicberg.tableflow.values.offsets import Batch, OffsetSet
from topicberg.topics import TopicSpec

CHUNK_RECORDS, CHUNK_BYTES = 50_000, 64 * 1024 * 1024  # Of one commit.
ATTEMPTS, MOST_SPANS = 20, 100
GAP = 10_000  # Offsets without a record that waits, from which on they are not read.
INSERTED, ERASED, TRUNCATED, LOST, FAILED = (
    *("inserted", "forgotten", "truncated", "not in Kafka", "failed again"),
)
OUTCOMES = {
    INSERTED: "in the table now",
    SUPERSEDED: "a later record of the key was read",
    DELETED: "a later record deleted the key",
    ERASED: "the key, or a value, was forgotten",
    UNCERTAIN: "what came later of the key is not known any more",
    TRUNCATED: "the log has no such record any more, and the dead letter only a part of it",
    LOST: "neither the log nor the dead-letter topic has the record",
    FAILED: "still malformed; these keep waiting",
}
"""What becomes of a record; all but the last one are final."""
Finals = Mapping[str, OffsetSet]


@dataclass
class Replay:
    """What became of records."""

    counts: Counter[str] = field(default_factory=Counter)
    """By :data:`OUTCOMES`."""
    failed: Counter[str] = field(default_factory=Counter)
    """Those that failed again, by reason."""
    unrecorded: int = 0
    """Records that an earlier version skipped: which ones is not known."""


def replay(
    spec: TopicSpec,
    endpoints: Endpoints,
    config: Settings,
    *,
    reason: str = "",
    since_ms: int | None = None,
    is_dry: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Read the records again that were left out of a topic's table.

    :param reason: only those with this text in their reason
    :param since_ms: only those with this timestamp in Kafka, or a later one
    :param is_dry: whether nothing is committed
    :param report: called with how far it is
    :raises SpecError: the table has the current rows of a change log
    :raises TableflowError: the table, its schemas or the log are not as a batch needs them
    :raises CommitConflictError: others kept committing to the table
    """
    if spec.changelog is not None and spec.write_mode == "upsert":
        raise SpecError(
            f"topic {spec.name}: its table has the current rows of a database's table, which "
            "follow from all changes in their order: one that was left out is not applied later",
            hint="let the connector read these rows again with an incremental snapshot",
        )
    ingestor = Ingestor(spec, endpoints, config)
    try:
        return _Run(ingestor, since_ms, is_dry=is_dry, report=report).run(reason)
    finally:
        ingestor.close()


@dataclass(frozen=True)
class _Plan:
    """The table, and what waits, at a head of ``main``."""

    into: TablePlan
    log: kafka.TopicLog
    number: int
    """Of the log, see :mod:`topicberg.tableflow.values.logs`."""
    waiting: Waiting


class _Run:
    def __init__(
        self,
        ingestor: Ingestor,
        since_ms: int | None,
        *,
        is_dry: bool,
        report: Callable[[str], None],
    ) -> None:
        self._ingestor, self._table = ingestor, ingestor.tables[0]
        self._spec, self._endpoints = ingestor.spec, ingestor.endpoints
        self._since_ms, self._is_dry, self._report = since_ms, is_dry, report
        self._done, self._total, self._unreadable = Replay(), 0, OffsetSet()
        self._unrecorded = Waiting()  # Dead letters that an earlier version wrote.
        self._later: LaterRecords | None = None

    def run(self, reason: str) -> Replay:
        plan = self._plan()
        if plan.waiting.start:
            self._find_unrecorded(plan)
            self._complete(plan.waiting)
        self._done.unrecorded = plan.waiting.unrecorded
        left = {log: plan.waiting.of(log, reason) for log in plan.waiting.logs}
        self._total = sum(map(len, left.values()))
        own = left.get(plan.number, OffsetSet())
        if self._spec.write_mode == "upsert":
            first = dict(reversed(list(own)))
            where = self._spec, plan.into.table, self._endpoints, self._ingestor.config
            self._later = LaterRecords(*where, first, self._report)
        for records in _chunks(self._of_log(own, plan)):
            left[plan.number] -= OffsetSet.of(record.place for record in records)
            self._process(plan.number, records)
        if own:
            left[plan.number] -= self._unreadable
        if any(left.values()):
            self._process_dead_letters(left, plan.waiting.topic_ids)
        return self._done

    def _plan(self) -> _Plan:
        """Return the table as it is now, with the columns of the newest schemas."""
        log, now_ms = kafka.topic_log(self._endpoints, self._spec.name), int(time.time() * 1000)
        layout = self._ingestor.layouts(log)[0]
        into = self._table.plan(0, layout, log, now_ms, ({}, None))
        waiting = Waiting.load(into.table, into.head)
        self._complete(waiting)
        return _Plan(into, log, log_number(into.table, into.head), waiting)

    def _find_unrecorded(self, plan: _Plan) -> None:
        """Find the dead letters of the table that an earlier version wrote."""
        ended, start = ended_logs(plan.into.table, plan.into.head), plan.waiting.start
        topic_id = ended[0].topic_id if ended else plan.into.committed.topic_id
        for letter in read_dead_letters(self._spec, self._endpoints):
            partition, offset = letter.record.place
            is_own = (letter.log, letter.topic_id) == (0, topic_id)
            if is_own and offset < start.get(partition, 0) and not self._is_known(letter.record):
                reason = Reason(0, without_values(letter.reason))
                self._unrecorded.offsets.setdefault(reason, OffsetSet()).add(letter.record.place)
                self._unrecorded.since_ms.setdefault(reason, letter.at_ms)
                self._unrecorded.topic_ids[0] = letter.topic_id

    def _is_known(self, record: GivenRecord) -> bool:
        return any(record.place in offsets for offsets in self._unrecorded.offsets.values())

    def _complete(self, waiting: Waiting) -> None:
        """Add these dead letters to what waits, once."""
        if waiting.start and self._unrecorded.offsets:
            before = waiting.count
            for reason, offsets in self._unrecorded.offsets.items():
                added = {reason.text: offsets - waiting.of(0)}
                since_ms = self._unrecorded.since_ms[reason]
                waiting.add(0, self._unrecorded.topic_ids[0], added, since_ms)
            waiting.unrecorded = max(0, waiting.unrecorded + before - waiting.count)
            waiting.start = {}

    def _of_log(self, wanted: OffsetSet, plan: _Plan) -> Iterator[GivenRecord]:
        """Yield what the log still has."""
        name, column = self._spec.name, self._spec.metadata_column(HEADERS)
        for partition, start, end in _spans(wanted):
            start = max(start, plan.log.beginning.get(partition, 0))
            while start < end:
                try:
                    for message in messages(self._endpoints, name, {partition: (start, end)}):
                        place: PartitionOffset = partition, message.offset() or 0
                        start = place[1] + 1
                        if place not in wanted:
                            continue
                        if (headers := headers_of(message)) is None:
                            self._failed(OffsetSet.of([place]), wrong_header(column))
                            continue
                        pair: Any = message.key(), message.value()
                        yield GivenRecord(pair, place, message.timestamp(), headers)
                    break
                except DamagedRecordsError as error:
                    most = self._table.max_bytes
                    after = batch_end(self._endpoints, name, partition, error.offset, end, most)
                    span = OffsetSet.of((partition, offset) for offset in range(start, after))
                    self._failed(span & wanted, error.message)
                    start = after

    def _failed(self, offsets: OffsetSet, reason: str) -> None:
        """Note records that the client cannot read."""
        self._unreadable |= offsets
        self._count({FAILED: len(offsets)}, {without_values(reason): len(offsets)})

    def _process_dead_letters(
        self, left: Mapping[int, OffsetSet], topic_ids: Mapping[int, str]
    ) -> None:
        """Process what the log does not have."""
        for log, wanted in left.items():
            rest, cut = wanted, OffsetSet()
            whole = self._whole(log, topic_ids.get(log), wanted, cut) if wanted else iter(())
            for records in _chunks(whole):
                rest -= OffsetSet.of(record.place for record in records)
                self._process(log, records, is_in_log=False)
            if self._since_ms is None and rest:  # else their times are not known
                self._process(log, [], {TRUNCATED: rest & cut, LOST: rest - cut})

    def _whole(
        self, log: int, topic_id: str | None, wanted: OffsetSet, cut: OffsetSet
    ) -> Iterator[GivenRecord]:
        """Yield what dead letters have; ``cut`` gets those of which they have a part."""
        read = OffsetSet()
        for letter in read_dead_letters(self._spec, self._endpoints):
            place = letter.record.place
            is_own = (letter.log, letter.topic_id) == (log, topic_id)
            if is_own and place in wanted and place not in read:
                (read if letter.is_whole else cut).add(place)
                if letter.is_whole:
                    yield letter.record

    def _process(
        self,
        log: int,
        records: Sequence[GivenRecord],
        finals: Finals | None = None,
        *,
        is_in_log: bool = True,
    ) -> None:
        """Commit what becomes of records; ``finals``: of others, by outcome."""
        since_ms = self._since_ms
        left = [one for one in records if since_ms is None or one.time[1] >= since_ms]
        left.sort(key=lambda record: record.place)
        while left or finals:
            left = left[self._process_some(log, left, finals or {}, is_in_log=is_in_log) :]
            finals = None

    def _process_some(
        self, log: int, records: Sequence[GivenRecord], finals: Finals, *, is_in_log: bool
    ) -> int:
        """Commit what becomes of the first records; return how many these are."""
        name = ".".join(self._spec.table_identifier(self._ingestor.config))
        attempts = count()

        def attempt() -> int:
            # Of fewer records, the commit is more likely to come before those of an engine.
            size = max(1_000, len(records) >> next(attempts))
            self._ingestor.begin_batch()
            with turn(self._ingestor.config, name):
                self._commit(log, records[:size], finals, is_in_log=is_in_log)
            return size

        exhausted = CommitConflictError(
            f"table {name}: {ATTEMPTS} times in a row another commit came first",
            hint="run the command again: it continues where it stopped",
        )
        retried = conflicts(f"table {name}")(attempt)
        return retry(retried, ATTEMPTS, wait=wait_random(0, 1), exhausted=exhausted)

    def _commit(
        self, log: int, records: Sequence[GivenRecord], finals: Finals, *, is_in_log: bool
    ) -> None:
        plan = self._plan()
        waits = plan.waiting.of(log)  # of which another replay may have had some
        left = [record for record in records if record.place in waits]
        outcomes = self._decided(plan, log, left, is_in_log=is_in_log)
        decoded = [record for record in left if record.place not in outcomes]
        try:
            written = self._decoded(plan, log, decoded)
        except SchemasFoundError:
            self._commit(log, records, finals, is_in_log=is_in_log)
            return
        counts = Counter({outcome: len(offsets & waits) for outcome, offsets in finals.items()})
        counts.update(outcomes.values())
        failed = {text: offsets for (text, _), offsets in written.rejections.left_out.items()}
        counts[ERASED] += len(failed.pop(FORGOTTEN, ()))
        rows = inserted = len(decoded) - written.rejections.count
        if written.keys is not None:
            inserted = len(written.keys.newest()[0].high)
        counts.update({INSERTED: inserted, SUPERSEDED: rows - inserted})
        if self._is_dry or not self._record(plan.waiting, log, left, finals, failed):
            discard(plan.into.table.io, written.files)
        else:
            self._ingestor.limits.learn(plan.into.committed.batch_size)
            batch = BatchPlan(
                spec=self._spec,
                tables=(plan.into,),
                batch=Batch(plan.into.offsets, plan.into.offsets),
                size=None,
                topic_id=plan.log.topic_id,
                latest=plan.log.end,
                now_ms=int(time.time() * 1000),
                learnt=self._ingestor.limits.size.dump(),
                failing={},
                reader="process",
            )
            written = replace(written, rejections=Rejections("SKIP"))
            self._table.commit(batch, plan.into, written, Replayed(inserted, plan.waiting))
        counts[FAILED] += sum(map(len, failed.values()))
        self._count(counts, {text: len(offsets) for text, offsets in failed.items()})

    def _decided(
        self, plan: _Plan, log: int, records: Sequence[GivenRecord], *, is_in_log: bool
    ) -> dict[PartitionOffset, str]:
        """Return which records are not to be decoded, and their outcomes."""
        if self._later is None:
            return {}
        if log != plan.number:  # Offsets of logs do not compare.
            return dict.fromkeys((record.place for record in records), UNCERTAIN)
        into = plan.into
        self._later.read(plan.log.beginning, into.offsets, plan.waiting.of(log))
        which = {"is_in_log": is_in_log, "is_first_log": log == 0}
        return self._later.outcomes(into.table, into.head, records, **which)

    def _decoded(self, plan: _Plan, log: int, records: Sequence[GivenRecord]) -> WrittenBatch:
        """Write the rows of records.

        :raises SchemasFoundError: their schemas were looked up
        """
        key = [column.name for column in plan.into.layout.key.fields()]
        read_plan = replace(
            self._table.read_plan(plan.into),
            error_mode="SKIP",
            forgotten=ForgottenKeys.of(plan.into.table, key, log),
        )
        written = self._written(read_plan, records)
        try:
            self._table.committer.learn_schemas(written.rejections)
        except BaseException:
            discard(plan.into.table.io, written.files)
            raise
        return written

    def _written(self, plan: ReadPlan, records: Sequence[GivenRecord]) -> WrittenBatch:
        """Write the rows of records; one that takes more memory than there is is malformed."""
        if not records:
            return WrittenBatch([], 0, Rejections("SKIP"))
        try:
            given = [GivenRecords(records)]
            return self._ingestor.processes.ingest([plan], given, lambda: None)[0]
        except ExhaustedError as error:
            if len(records) == 1:
                rejections = Rejections("SKIP", count=1)
                rejections.left_out[error.message, None] = OffsetSet.of([records[0].place])
                return WrittenBatch([], 1, rejections)
        middle = len(records) // 2
        parts = (records[:middle], records[middle:])
        return joined([plan], [[self._written(plan, part)] for part in parts])[0]

    @staticmethod
    def _record(
        waiting: Waiting,
        log: int,
        records: Iterable[GivenRecord],
        finals: Finals,
        failed: Mapping[str, OffsetSet],
    ) -> bool:
        """Record what does not wait any more, and new reasons; return whether there are any."""
        read, own = OffsetSet.of(record.place for record in records), waiting.offsets
        again = OffsetSet()
        for offsets in failed.values():
            again |= offsets
        reasons = {text: own.get(Reason(log, text), OffsetSet()) for text in failed}
        has_changed = any(len(failed[text] - before) for text, before in reasons.items())
        since_ms = min((waiting.since_ms[each] for each in own if each.log == log), default=None)
        for offsets in (read, *finals.values()):
            has_changed |= bool((offsets - again) & waiting.of(log))
            waiting.remove(log, offsets)
        waiting.add(log, waiting.topic_ids.get(log, ""), failed, since_ms)
        return has_changed

    def _count(self, counts: Mapping[str, int], failed: Mapping[str, int]) -> None:
        self._done.counts.update(counts)
        self._done.failed.update(failed)
        self._report(f"{self._done.counts.total():,} of {self._total:,} records read again")


def _chunks(records: Iterator[GivenRecord]) -> Iterator[list[GivenRecord]]:
    """Yield records in parts, each of which is one commit."""
    some, size = list[GivenRecord](), 0
    for record in records:
        some.append(record)
        size += record.size
        if len(some) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _spans(wanted: OffsetSet) -> Iterator[tuple[int, int, int]]:
    """Yield partition, first offset, and offset after the last one, of what is read at once."""
    by_partition = dict[int, list[int]]()
    for partition, offset in wanted:
        by_partition.setdefault(partition, []).append(offset)
    for partition, offsets in by_partition.items():
        gap, start = max(GAP, (offsets[-1] - offsets[0]) // MOST_SPANS), offsets[0]
        for last, offset in pairwise(offsets):
            if offset - last > gap:
                yield partition, start, last + 1
                start = offset
        yield partition, start, offsets[-1] + 1
