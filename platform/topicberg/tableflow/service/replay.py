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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import pyarrow as pa
from confluent_kafka import Message
from tenacity import wait_random

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, SpecError, TableflowError
from topicberg.errors.retry import conflicts, retry
from topicberg.formats.metadata import OFFSET, PARTITION
from topicberg.iceberg.files import discard
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import readable_messages
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.kafka.records import headers_of, place_of
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import BatchPlan, TablePlan
from topicberg.tableflow.decode.columns import FORGOTTEN
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.decode.reading import WrittenBatch, joined
from topicberg.tableflow.rejected.deadletters import read_dead_letters
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.turns import turn
from topicberg.tableflow.table.batch_commit import SchemasFoundError
from topicberg.tableflow.table.later_records import SUPERSEDED, UNCERTAIN, LaterRecords, spans
from topicberg.tableflow.values.forgotten import ForgottenKeys
from topicberg.tableflow.values.logs import ended_logs
from topicberg.tableflow.values.memory import ExhaustedError
from topicberg.tableflow.values.offsets import Batch, OffsetSet
from topicberg.topics import TopicSpec

CHUNK_RECORDS, CHUNK_BYTES = 50_000, 64 * 1024 * 1024  # Of one commit.
ATTEMPTS = 20
EARLIER = "dead letters of an earlier version"
INSERTED = "inserted"
ERASED = "forgotten"
TRUNCATED = "truncated"
LOST = "not readable"
FAILED = "failed again"
OUTCOMES = {
    INSERTED: "in the table now",
    SUPERSEDED: "a later record of the key replaced or deleted it",
    ERASED: "the key, or a value, was forgotten",
    UNCERTAIN: "what came later of the key is not known any more",
    TRUNCATED: "waits: only a part of it, in a dead letter, can be read",
    LOST: "waits: neither the log nor the dead-letter topic has it, or it cannot be read",
    FAILED: "waits: still malformed",
}
"""What becomes of a record."""


@dataclass
class Replay:
    """What is replayed, how, and what became of it."""

    spec: TopicSpec
    endpoints: Endpoints
    config: Settings
    reason: str = ""  # Only records with this text in their reason.
    since_ms: int | None = None  # Only records with this timestamp in Kafka, or a later one.
    is_dry: bool = False  # Whether nothing is committed.
    report: Callable[[str], None] = lambda _: None
    """Called with how far it is."""
    counts: Counter[str] = field(default_factory=Counter)
    """Records by :data:`OUTCOMES`."""
    failed: Counter[str] = field(default_factory=Counter)
    """Those that failed again, by reason."""
    unrecorded: int = 0
    """Records that an earlier version skipped: which ones is not known."""

    def run(self) -> Replay:
        """Read the records again.

        :raises SpecError: the table has the current rows of a change log
        :raises TableflowError: the table, its schemas or the log are not as a batch needs them
        :raises CommitConflictError: others kept committing to the table
        """
        if self.spec.changes == "rows":
            raise SpecError(
                f"topic {self.spec.name}: its table has the current rows of a database's table, "
                "which follow from all changes in their order: none is applied later",
                hint="let the connector read these rows again with an incremental snapshot",
            )
        self._ingestor = Ingestor(self.spec, self.endpoints, self.config)
        self._table = self._ingestor.tables[0]
        self._earlier: OffsetSet | None = None  # Dead letters that no batch recorded.
        self._later: LaterRecords | None = None
        try:
            self._replay()
        finally:
            self._ingestor.close()
        return self

    def _replay(self) -> None:
        _, _, waiting = self._plan()
        self.unrecorded, self._log = waiting.unrecorded, waiting.log
        left = {log: waiting.of(log, self.reason) for log in waiting.topic_ids}
        own = left.setdefault(self._log, OffsetSet())
        self._total = sum(map(len, left.values()))
        for records in self._chunks(self._of_log(own)):
            left[self._log] -= OffsetSet.of(map(place_of, records))
            self._process(self._log, records)
        for log, wanted in left.items():
            rest, truncated = wanted, OffsetSet()
            letters = self._of_dead_letters(log, waiting.topic_ids.get(log), wanted, truncated)
            for records in self._chunks(letters) if wanted else ():
                rest -= OffsetSet.of(map(place_of, records))
                self._process(log, records)
            if rest and self.since_ms is None:  # else their times are not known
                lost = {TRUNCATED: len(rest & truncated), LOST: len(rest - truncated)}
                self._count(Counter(lost), {})

    def _plan(self) -> tuple[TablePlan, kafka.TopicLog, Waiting]:
        """Return the table with the columns of the newest schemas, its log, and what waits."""
        log, now_ms = kafka.topic_log(self.endpoints, self.spec.name), int(time.time() * 1000)
        layout = self._ingestor.layouts(log)[0]
        into = self._table.plan(0, layout, log, now_ms, ({}, None))
        waiting = Waiting.load(into.table, into.head)
        if waiting.start:
            ended = ended_logs(into.table, into.head)
            topic_id = ended[0].topic_id if ended else into.committed.topic_id
            if self._earlier is None:
                self._earlier = self._earlier_ones(into, topic_id, waiting.start)
            waiting.unrecorded = max(0, waiting.unrecorded - len(self._earlier))
            waiting.add(topic_id or "", {EARLIER: self._earlier}, log=0)
            waiting.start = {}
        return into, log, waiting

    def _earlier_ones(self, into: TablePlan, topic_id: str | None, ends: Offsets) -> OffsetSet:
        """Return the dead letters of records before some offsets that no row of the table is of."""
        letters = read_dead_letters(self.spec, self.endpoints, 0, topic_id)
        places = (place_of(record) for record, _ in letters)
        earlier = OffsetSet.of(place for place in places if place[1] < ends.get(place[0], 0))
        names = [self.spec.metadata_column(name) for name in (PARTITION, OFFSET)]
        for batch in into.table.scan(selected_fields=tuple(names)).to_arrow_batch_reader():
            rows = pa.Table.from_batches([batch]).select(names).drop_null()
            is_earlier = earlier.among(*(column.to_numpy() for column in rows.columns))
            columns = (column.to_pylist() for column in rows.filter(is_earlier).columns)
            earlier -= OffsetSet.of(zip(*columns, strict=True))
        return earlier

    def _of_log(self, wanted: OffsetSet) -> Iterator[Message]:
        """Yield what the log still has, and the client can read."""
        for message in readable_messages(self.endpoints, self.spec.name, spans(wanted), []):
            if place_of(message) in wanted and headers_of(message) is not None:
                yield message

    def _of_dead_letters(
        self, log: int, topic_id: str | None, wanted: OffsetSet, truncated: OffsetSet
    ) -> Iterator[Message]:
        """Yield what dead letters have; ``truncated`` gets those of which they have a part."""
        read = OffsetSet()
        for record, is_whole in read_dead_letters(self.spec, self.endpoints, log, topic_id):
            if (place := place_of(record)) in wanted and place not in read:
                (read if is_whole else truncated).add(place)
                if is_whole:
                    yield record

    def _process(self, log: int, records: list[Message]) -> None:
        """Commit what becomes of records."""
        name, attempts = ".".join(self.spec.table_identifier(self.config)), count()

        def attempt() -> int:
            # Of fewer records, the commit is more likely to come before those of an engine.
            size = max(1_000, len(records) >> next(attempts))
            self._ingestor.begin_batch()
            with turn(self.config, name):
                self._commit(log, records[:size])
            return size

        exhausted = CommitConflictError(
            f"table {name}: {ATTEMPTS} times in a row another commit came first",
            hint="run the command again: it continues where it stopped",
        )
        retried = conflicts(f"table {name}")(attempt)
        size = retry(retried, ATTEMPTS, wait=wait_random(0, 1), exhausted=exhausted)
        if rest := records[size:]:
            self._process(log, rest)

    def _commit(self, log: int, records: list[Message]) -> None:
        into, topic_log, waiting = self._plan()
        if waiting.log != self._log:  # The records that were read may be those of the next log.
            raise TableflowError(
                f"topic {self.spec.name}: its table has another log since the replay began",
                hint="run the command again",
            )
        before, left_out = waiting.dump(), waiting.of(log)
        # Another replay may have come first.
        left = [record for record in records if place_of(record) in left_out]
        decided = self._decided(into, log, waiting, left)
        key = [column.name for column in into.layout.key.fields()]
        forgotten = ForgottenKeys.of(into.table, key, log)
        program = replace(self._table.read_plan(into), error_mode="SKIP", forgotten=forgotten)
        written = self._written(program, [r for r in left if place_of(r) not in decided])
        try:
            self._table.committer.learn_schemas(written.rejections, left)
        except SchemasFoundError:
            discard(into.table.io, written.files)
            self._later = None  # It may have been read without them.
            self._commit(log, records)
            return
        failed = {why: offsets for (why, _), offsets in written.rejections.left_out.items()}
        outcomes = Counter(decided.values())
        outcomes[ERASED] = len(failed.pop(FORGOTTEN, ()))
        rows = inserted = written.records - written.rejections.count
        if written.keys is not None:
            inserted = len(written.keys.newest()[0].high)
        outcomes += Counter({INSERTED: inserted, SUPERSEDED: rows - inserted})
        since_ms = min(waiting.since_ms.values(), default=None)
        waiting.remove(log, OffsetSet.of(map(place_of, left)))
        waiting.add(waiting.topic_ids.get(log, ""), failed, since_ms, log)
        if self.is_dry or waiting.dump() == before:
            discard(into.table.io, written.files)
        else:
            self._ingestor.limits.learn(into.committed.batch_size)
            plan = BatchPlan(
                spec=self.spec,
                tables=(into,),
                batch=Batch(into.offsets, into.offsets),
                size=None,
                topic_id=topic_log.topic_id,
                latest=topic_log.end,
                now_ms=int(time.time() * 1000),
                learnt=self._ingestor.limits.size.dump(),
                failing={},
                reader="process",
            )
            rejections = Rejections("SKIP", kafka_times=written.rejections.kafka_times)
            written = replace(written, records=inserted, rejections=rejections, last_records={})
            self._table.commit(plan, into, written, waiting)
        outcomes[FAILED] = sum(map(len, failed.values()))
        self._count(outcomes, {text: len(offsets) for text, offsets in failed.items()})

    def _decided(
        self, into: TablePlan, log: int, waiting: Waiting, records: list[Message]
    ) -> Mapping[PartitionOffset, str]:
        """Return which records are not to be inserted, and why."""
        if self.spec.write_mode != "upsert":
            return {}
        if log != self._log:  # Offsets of logs do not compare.
            return dict.fromkeys(map(place_of, records), UNCERTAIN)
        if self._later is None or self._later.schemas != into.layout.schema_ids:
            self._later = LaterRecords(self.spec, into, self.endpoints, self.config, self.report)
        return self._later.outcomes(into, waiting.of(log), records)

    def _written(self, plan: ReadPlan, records: list[Message]) -> WrittenBatch:
        """Write the rows of records; one that takes more memory than there is is malformed."""
        rejections = Rejections("SKIP")
        if not records:
            return WrittenBatch([], 0, rejections)
        try:
            return self._ingestor.processes.ingest([plan], [records], lambda: None)[0]
        except ExhaustedError as error:
            if len(records) == 1:
                rejections.count = 1
                rejections.left_out[error.message, None] = OffsetSet.of(map(place_of, records))
                return WrittenBatch([], 1, rejections)
        middle = len(records) // 2
        parts = (records[:middle], records[middle:])
        return joined([plan], [[self._written(plan, part)] for part in parts])[0]

    def _count(self, counts: Counter[str], failed: Mapping[str, int]) -> None:
        self.counts += counts
        self.failed.update(failed)
        self.report(f"{self.counts.total():,} of {self._total:,} records read again")

    def _chunks(self, records: Iterator[Message]) -> Iterator[list[Message]]:
        """Yield records in parts, each of which is one commit, in the order of offsets."""
        some, size = list[Message](), 0
        for record in records:
            if self.since_ms is None or record.timestamp()[1] >= self.since_ms:
                some.append(record)
                headers = (part for _, part in headers_of(record) or ())
                size += sum(len(p or b"") for p in (record.key(), record.value(), *headers))
            if len(some) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                yield sorted(some, key=place_of)
                some, size = [], 0
        if some:
            yield sorted(some, key=place_of)
