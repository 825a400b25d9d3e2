"""Forget a key of a topic: find its rows in every table, write tombstones, erase, prove.

What is still to be read from Kafka is read first, by the running engine or by one in this process
(:mod:`topicberg.tableflow.erasure.catch_up`), and so are the tombstones: no later batch brings a
row back. Every step starts from the state of Kafka and of the tables, so a run that was killed is
completed by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.endpoints import Endpoints
from topicberg.errors.retry import retry
from topicberg.formats.metadata import PARTITION, RAW_KEY
from topicberg.iceberg import delta, tables
from topicberg.iceberg.change import SnapshotChange
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings
from topicberg.tableflow.erasure.locations import Found, file_batches, find, prove
from topicberg.tableflow.erasure.records import KafkaKey, KeyRecords, described_topic, records_of
from topicberg.tableflow.erasure.rows import ErasureTarget, KeyRows
from topicberg.tableflow.erasure.steps import ATTEMPTS, Erased, Erasure
from topicberg.tableflow.layout import message_fields, upsert_key
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.table.foreign_commits import ForeignWatch
from topicberg.tableflow.upsert import keys
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.forgotten import FORGOTTEN, MOST_PARTITIONS, Forgotten
from topicberg.tableflow.values.logs import log_number
from topicberg.tableflow.values.skips import current_user
from topicberg.topics.deadletters import dead_letter_spec


@dataclass(frozen=True)
class Forgetting:
    """A key of a topic, in Kafka and in everything that may hold it."""

    key_rows: KeyRows
    targets: Sequence[ErasureTarget]  # The topic's table is the first.
    endpoints: Endpoints
    config: Settings
    reason: str = "not given"  # For the record in the tables.

    def records(self) -> KeyRecords:
        """Return what the topic has of the key; nothing if the topic was deleted."""
        name = self.key_rows.spec.name
        try:
            if self.key_rows.where is not None:
                return self._records_of_value()
            records = records_of(self.endpoints, name, self.key_rows.matching)
        except kafka.NoSuchTopicError:
            return KeyRecords(name, compacted=True)
        self.key_rows.raw_keys |= {raw for raw, _ in records.newest}
        return records

    def _records_of_value(self) -> KeyRecords:
        """Return the records whose newest row has the value. An older record of a key is Kafka's to
        compact, and a tombstone would delete the newest one."""
        places = self._places_of_rows()
        stored_keys = {key for key, _ in places}

        def matching(known: Collection[KafkaKey]) -> set[KafkaKey]:
            return {key for key in known if upsert_key.held_key(key.raw) in stored_keys}

        records = records_of(self.endpoints, self.key_rows.spec.name, matching)
        records.newest = {
            (raw, partition): is_tombstone
            for (raw, partition), is_tombstone in records.newest.items()
            if (upsert_key.held_key(raw), partition) in places
        }
        return records

    def _places_of_rows(self) -> set[tuple[bytes, int]]:
        """Return key, as the table holds it, and partition of the rows that have the value."""
        names = [self.key_rows.spec.metadata_column(name) for name in (RAW_KEY, PARTITION)]
        table_and_rows = None if self.lacks_keys else self.key_rows.of_table(self.targets[0])
        if table_and_rows is None:
            return set()
        table, rows = table_and_rows
        (column,) = rows.conditions[0]
        scan = table.scan(selected_fields=(*names, column[0])).to_arrow()
        some = scan.filter(pa.array(rows.among(scan)))
        raws, partitions = (some.column(name).to_pylist() for name in names)
        pairs = zip(raws, partitions, strict=True)
        return {(bytes(raw), partition) for raw, partition in pairs if raw is not None}

    @property
    def lacks_keys(self) -> bool:
        """Whether the records of a value cannot be found in Kafka: no column has the raw keys."""
        if self.key_rows.where is None:
            return False
        table = tables.find_table(self.key_rows.catalog, self.targets[0].identifier)
        raw_key = self.key_rows.spec.metadata_column(RAW_KEY)
        return table is not None and raw_key not in table.schema().column_names

    def dead_letters(self) -> KeyRecords | None:
        """Return what the dead-letter topic has of the key, by its table; None: there is none."""
        target = next((each for each in self.targets if each.is_dead_letters), None)
        if target is None or (table_and_rows := self.key_rows.of_table(target)) is None:
            return None
        table, rows = table_and_rows
        spec = dead_letter_spec(self.key_rows.spec)
        try:
            records = described_topic(self.endpoints, spec.name)
        except kafka.NoSuchTopicError:
            return None
        partition, schema = spec.metadata_column(PARTITION), table.schema()
        if not records.compacted or not {message_fields.KEY, partition} <= set(schema.column_names):
            return records
        names = [message_fields.KEY, partition]
        for _, batch in file_batches(table, {*names, *rows.columns()}):
            if set(names) <= set(batch.schema.names):
                some = batch.filter(pa.array(rows.among(batch)))
                dead = zip(*(some.column(name).to_pylist() for name in names), strict=True)
                records.newest |= {(bytes(raw), p): False for raw, p in dead if raw is not None}
        records.count = len(records.newest)
        return records

    def find(self, target: ErasureTarget) -> Found:
        """Return where a table holds rows of the key."""
        return find(*pair) if (pair := self.key_rows.of_table(target)) else Found()

    def erase(self, target: ErasureTarget) -> Erased:
        """Erase the rows of the key from a table; what is not there is left as it is.

        :raises TableflowError: other writers changed rows of the topic's table. An erasure ends
            what the engine compares them with
        """
        if (table_and_rows := self.key_rows.of_table(target)) is None:
            return Erased()
        (table, rows), spec = table_and_rows, target.spec
        if spec is not None:
            ForeignWatch(spec, self.config).check(table)

        def rebuild_delta() -> None:
            if spec is not None:
                delta.rebuild(table.refresh(), spec)

        done = Erasure(table, rows, target.time, partial(self._note, table), rebuild_delta).erase()
        if spec is not None:
            keys.forget_files(self.config.state_dir, spec.name, table, done.replaced)
        if not done.rows:
            self._remember(table)
        return done

    def remember(self) -> None:
        """Record the erasure in the tables for which a replay may find records of the key."""
        for target in self.targets:
            if (table := tables.find_table(self.key_rows.catalog, target.identifier)) is not None:
                self._remember(table)

    def _remember(self, table: Table) -> None:
        def attempt() -> None:
            # A replay that was planned before is refused.
            SnapshotChange(table.refresh(), Operation.APPEND).commit(self._note(table, 0))

        if Waiting.load(table).count:
            retry(attempt, ATTEMPTS)

    def prove(self, target: ErasureTarget) -> Found | None:
        """Read all of a table, or raise: it has the key; None: it cannot have it."""
        return prove(*pair) if (pair := self.key_rows.of_table(target)) else None

    def _note(self, table: Table, rows: int) -> dict[str, str]:
        name = FORGOTTEN + self.key_rows.key.digest(table.metadata.table_uuid)
        rows += Forgotten.load(table.properties.get(name, "")).rows
        now = int(time.time() * 1000)
        by, log = current_user(), log_number(table)
        done = Forgotten(by=by, at_ms=now, rows=rows, reason=self.reason, log=log)
        offsets = committed(table, table.current_snapshot()).offsets
        done.offsets = offsets if len(offsets) <= MOST_PARTITIONS else None
        return {name: done.model_dump_json()}
