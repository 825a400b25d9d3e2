"""What becomes of a batch that was read: its changes folded, its files committed, its counts.

The records that did not become rows are treated first, as the topic's error mode says: a batch is
committed only when each of its records is in the table, or is known to be left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import cast, get_args

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from topicberg.endpoints import Endpoints
from topicberg.iceberg import summaries
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import discard
from topicberg.kafka.last_records import dump_last_records
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import BatchPlan, Commit, Reader, TablePlan
from topicberg.tableflow.batch.sizing import FILE_RECORDS, usual_tasks
from topicberg.tableflow.changelog.change_batch import ChangeBatch, NewRows
from topicberg.tableflow.changelog.changes import key_names
from topicberg.tableflow.changelog.current_rows import FoldTarget
from topicberg.tableflow.changelog.fold_state import STATE, FoldState, Order
from topicberg.tableflow.changelog.folding import Folded, Folding
from topicberg.tableflow.changelog.old_values import BatchProgress
from topicberg.tableflow.decode.reading import ChangesRead, WrittenBatch
from topicberg.tableflow.layout.framing import Framing
from topicberg.tableflow.layout.layout import row_columns
from topicberg.tableflow.layout.writers import ForeignSchemas, named_schemas
from topicberg.tableflow.rejected.deadletters import LeftOut
from topicberg.tableflow.rejected.rejections import Rejections, without_values
from topicberg.tableflow.rejected.waiting import SKIPPED, Waiting
from topicberg.tableflow.table.topic_keys import TopicKeys
from topicberg.tableflow.upsert import tombstones
from topicberg.tableflow.upsert.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.upsert.key_hashing import KeyState
from topicberg.tableflow.values import commit, skips
from topicberg.tableflow.values.logs import ended_logs
from topicberg.tableflow.values.offsets import OffsetSet
from topicberg.topics import TopicSpec
from topicberg.wording import count

logger = logging.getLogger(__name__)


class SchemasFoundError(Exception):
    """Records name schemas that were unknown and have been looked up: decode the batch again."""


class BatchCommitter:
    """Commits the batches of one topic."""

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        keys: TopicKeys,
        foreign: Mapping[str, ForeignSchemas],
        framing: Framing | None,
        check: Callable[[], None],
    ) -> None:
        """:param framing: brings records into the wire format; ``check`` raises to end the batch"""
        self._spec, self._config = spec, config
        self._keys, self._foreign, self._framing = keys, foreign, framing
        self._check, self._left_out = check, LeftOut(spec, endpoints, config, check)
        self._progress: BatchProgress | None = None
        self._unread: dict[int, Order] = {}

    def begin_attempt(self) -> None:
        """Forget how far an attempt before has read."""
        self._unread = {}

    def end_at(self, ends: Mapping[int, int]) -> None:
        """Note what the batch that was folded last has behind an earlier end."""
        if self._progress is not None:
            self._progress.end_at(ends)

    def commit(
        self,
        plan: BatchPlan,
        into: TablePlan,
        written: WrittenBatch,
        waiting: Waiting | None = None,
    ) -> Commit:
        """Commit the data files of a batch for one of its tables.

        :param waiting: what is still left out after a replay of records; the batch has no offsets
        :raises BatchCutError: only an earlier part of the batch can be committed now
        :raises TableflowError: the topic stops before a change that cannot be applied (SUSPEND)
        """
        table, batch = into.table, plan.batch
        folded: Folded | None = None
        try:
            if written.changes is not None and written.changes.parts:
                folded = self._fold(plan, into, written.changes)
                target, most = WriteTarget.of(table), self._config.engine_processes
                files, keys = write_rows(target, table.io, folded.rows, most, self._check)
                written = replace(written, files=files, keys=keys)
            changed = into.missed.of(batch, lambda: written.records, caught_up=not plan.backlog)
            rejected = written.rejections.count + (len(folded.refused) if folded else 0)
            is_logged = self._spec.tableflow.error_handling.mode == "LOG"
            dead_lettered = rejected + len(plan.failing.keys() & batch.skipped) if is_logged else 0
            left_out, counts = rejected + len(batch.skipped), dict[str, int]()
            if left_out:
                counts[summaries.ROWS_SKIPPED] = left_out
            if kafka_times := written.rejections.kafka_times:
                logger.warning(
                    "topic %s: %s without a usable event time have Kafka's time",
                    *(self._spec.name, count(kafka_times, "record")),
                )
                counts[summaries.KAFKA_TIMES] = kafka_times
            if waiting is not None:
                counts[summaries.ROWS_REPLAYED] = written.records
            changed |= {
                name: str(int(table.properties.get(name, 0)) + number)
                for name, number in counts.items()
            }
            replaced = folded.replaced if folded else self._keys.replaced(into, written)
            changed |= self._keys.changed_properties(into, plan.now_ms)
            noted = into.missed.noted(changed)
            if self._spec.changes == "rows":
                state = folded.state if folded else FoldState.of(table, into.head)
                reached = {"offsets": dict(batch.end), "log": into.committed.log}
                state = state.model_copy(update=reached)
                noted |= state.noted()
                changed[STATE] = state.model_dump_json()
            noted |= waiting.write(table) if waiting else self._waiting(plan, into, written)
            self._check()
        except BaseException:
            discard(table.io, written.files)
            raise
        last = {**into.committed.last_records, **written.last_records}
        noted |= plan.properties | self._keys.summary(into)
        noted[summaries.LAST_RECORDS] = dump_last_records(last, batch.end)
        if number := into.committed.log:
            noted[summaries.LOG] = str(number)
        dropped, time = skips.committed(table, batch.end, last), self._spec.event_time
        snapshot = commit.add_files(
            table, into.planned_on, written.files, replaced, noted, changed, dropped, time
        )
        self._keys.keep(into, written, is_last=not plan.backlog)
        return replace(
            result(plan, table, snapshot, changed),
            records_read=written.records,
            records_skipped=left_out - dead_lettered,
            records_dead_lettered=dead_lettered,
        )

    def _waiting(self, plan: BatchPlan, into: TablePlan, written: WrittenBatch) -> dict[str, str]:
        """Return what the summary has of the records that were left out so far."""
        reasons = {text: offsets for (text, _), offsets in written.rejections.left_out.items()}
        for place in plan.batch.skipped:
            skip = plan.failing.get(place)
            why = SKIPPED if skip is None else without_values(skip.reason)
            reasons[why] = reasons.get(why, OffsetSet()) | OffsetSet.of([place])
        if self._spec.changes == "rows" or not reasons:
            name = into.committed.waiting
            return {} if name is None else {summaries.WAITING: name}
        waiting = Waiting.load(into.table, into.head)
        waiting.add(plan.topic_id, reasons)
        return waiting.write(into.table)

    def handle_rejected(self, plan: BatchPlan, table: Table, rejections: Rejections) -> None:
        """Treat records that did not become rows as the topic's error mode says.

        This comes before the first commit of a batch, which has no files if a table has to wait.

        :raises SchemasFoundError: their schemas were looked up: decode the batch again
        :raises TableflowError: the topic stops before the first of them (SUSPEND)
        """
        self.learn_schemas(rejections)
        self._left_out.malformed(plan, table, rejections)
        self._left_out.failing(plan, table)

    def learn_schemas(
        self, rejections: Rejections, records: Sequence[Message] | None = None
    ) -> None:
        """Look up the schemas that rejected records name, or have.

        :param records: all that were decoded; None: those of a batch, which the log has
        :raises SchemasFoundError: some were found: decode the records again
        """
        named = named_schemas(sorted(rejections.unknown))
        # Of the keys and of the values.
        learnt = [foreign.look_up(named) for foreign in {*self._foreign.values()}]
        if self._framing is not None and rejections.inline:
            learnt.append(self._framing.look_up(rejections.inline.values(), records))
        if any(learnt) or rejections.is_partial:
            raise SchemasFoundError("records name, or have, schemas that were not known")
        rejections.name_missing({of: foreign.missing for of, foreign in self._foreign.items()})

    def _fold(self, plan: BatchPlan, into: TablePlan, read: ChangesRead) -> Folded:
        """Return what a batch of changes makes of the current rows."""
        table, batch, key = into.table, plan.batch, into.layout.key
        head, keys, name = table.current_snapshot(), key_names(into.layout), self._spec.name
        may_move = key.subject is not None and len(key.subject.schemas) > 1
        may_move |= FoldState.of(table, head).has_fewer_partitions(len(batch.end))
        index = self._keys.of_changes(table, keys)
        rows, columns = row_columns(self._spec, table.schema().fields), self._spec.metadata_column
        target = FoldTarget(name, columns, rows, table, head, index, keys, key)
        self._progress = BatchProgress(batch, plan.latest, self._unread, may_move)
        changes, lost = ChangeBatch.joined(read.parts), pa.concat_tables(read.lost)
        folded = Folding(target, self._progress, changes, lost).fold()
        if folded.repeated:
            repeated = count(len(folded.repeated), "repeated change")
            logger.info("topic %s: left out %s of deleted rows", name, repeated)
        self._left_out.refused(plan, table, folded.refused)
        return folded


def write_rows(
    target: WriteTarget, io: FileIO, rows: NewRows, most: int, check: Callable[[], None]
) -> tuple[list[DataFile], BatchKeys]:
    """Write rows as data files, by so many threads; return these and their keys, unless checked."""
    per_task = FILE_RECORDS * usual_tasks(target.spec)
    count = max(1, round(len(rows.places) / per_task))
    writers = [DataFileWriter(target, io) for _ in range(count)]
    bounds = np.linspace(0, len(rows.places), count + 1).astype(int).tolist()

    def write(writer: DataFileWriter, inside: tuple[int, int]) -> BatchKeys:
        keys = WrittenKeys()
        with writer:
            for part, of_part in rows.parts(*inside):
                check()
                keys.add(of_part, np.arange(len(of_part.high)), writer.write(part, are_kept=True))
        return keys.all()

    try:
        with ThreadPoolExecutor(min(count, most)) as threads:
            keys = BatchKeys.joined(threads.map(write, writers, pairwise(bounds)))
    except BaseException:
        discard(io, [file for writer in writers for file in writer.files])
        raise
    return [file for writer in writers for file in writer.files], keys


def result(
    plan: BatchPlan, table: Table, head: Snapshot | None, changed: Mapping[str, str]
) -> Commit:
    """Return what a step did; ``head``: of the batch, or what the table has without one."""
    properties = {**table.properties, **changed}
    return Commit(
        records=plan.batch.records,
        snapshot_id=head.snapshot_id if head else None,
        end_offsets=plan.batch.end,
        backlog=plan.backlog,
        rows=_number(head, "added-records"),
        rows_skipped=int(properties.get(summaries.ROWS_SKIPPED, 0)),
        rows_replayed=int(properties.get(summaries.ROWS_REPLAYED, 0)),
        bytes=_number(head, "added-files-size"),
        files=_number(head, "added-data-files"),
        data_files=_number(head, "total-data-files"),
        skip_requests=list(skips.requested(table).values()),
        logs=ended_logs(table, head),
        missed_deletes=tombstones.missed(properties),
        keys=KeyState.load(properties),
        reader=plan.reader if plan.batch.records else _reader_of(head),
    )


def _number(snapshot: Snapshot | None, key: str) -> int:
    return int(summaries.summary(snapshot).get(key, 0)) if snapshot else 0


def _reader_of(head: Snapshot | None) -> Reader | None:
    """Return what read the batch of a snapshot; None: it is not of a batch, or not known."""
    found = summaries.summary(head).get(summaries.READER) if head else None
    return cast("Reader", found) if found in get_args(Reader) else None
