"""Forget a key of a topic: find its rows in every table, write tombstones, erase, prove.

What is still to be read from Kafka is read first, by the running engine or by one in this process,
and so are the tombstones: no later batch brings a row back. Every step starts from the state of
Kafka and of the tables, so a run that was killed is completed by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, IcebergType, NestedField, StructType

from topicberg import kafka
from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import SpecError, TopicbergError
from topicberg.formats.framing import header_of
from topicberg.iceberg import delta, erasure
from topicberg.iceberg.erasure import Condition, Erased, Proof, Rows, RowsToErase
from topicberg.iceberg.erasure.matching import ColumnPath, columns
from topicberg.iceberg.tables import find_table
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow import keys
from topicberg.tableflow.engine import run_once
from topicberg.tableflow.forgetting.key import Key, described
from topicberg.tableflow.forgetting.records import (
    KafkaKey,
    KeyRecords,
    Matching,
    described_topic,
    matching_keys,
    records_of,
    write_tombstones,
)
from topicberg.tableflow.history import history_table, ingest_history
from topicberg.tableflow.layout import KEY, Layout, read_layout, table_schema
from topicberg.tableflow.skips import current_user
from topicberg.tableflow.turns import wait_for_turns
from topicberg.tableflow.upsert_key import held_key
from topicberg.tableflow.wait import POLL_SECONDS, noted_offsets, wait_for
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import dead_letter_spec
from topicberg.topics.spec import PARTITION, RAW_KEY
from topicberg.wording import suggestion

FORGOTTEN = "topicberg.forgotten."
"""Prefix of the table property of each erased key, followed by the key's digest."""
PATIENCE_SECONDS = 30.0
"""How much longer than its commit interval the engine may be silent."""
_SOURCE = "source_record"
_DEAD_TOPIC, _DEAD_KEY = (_SOURCE, "topic"), (_SOURCE, KEY)


class Forgotten(BaseModel):
    """The record of an erasure."""

    by: str
    at_ms: int
    rows: int
    reason: str


@dataclass(frozen=True)
class Uncovered:
    """Records that no table holds yet: if the key is among them, it comes back."""

    topic: str
    table: str
    first: Offsets
    """By partition: the first offset that the table does not hold."""
    reason: str


@dataclass(frozen=True)
class ErasureTarget:
    """A table that may hold rows of the key."""

    identifier: tuple[str, str]
    what: str
    time: str | None
    """The event time, by whose hours other tables are derived from this one."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Column of the key → column of this table, ``a.b`` in a struct."""
    chosen: tuple[Mapping[str, str], ...] = ()
    """The same, for other columns that the user says hold the key."""
    spec: TopicSpec | None = None
    """The topic's own table, which the engine writes."""
    is_dead_letters: bool = False
    topic: str | None = None
    """The topic that is read into it."""

    @property
    def name(self) -> str:
        return ".".join(self.identifier)


class Forgetting:
    """A key of a topic, and everything that may hold it."""

    def __init__(
        self,
        spec: TopicSpec,
        text: str,
        endpoints: Endpoints,
        config: Settings,
        reason: str = "not given",
        *,
        where: str | None = None,
    ) -> None:
        """:param spec: with the settings of later requests, as the engine uses it
        :param text: the key, as a user writes it; or the value of ``where``
        :param reason: for the record in the tables
        :param where: a column of the topic's table, by whose value rows are forgotten
        :raises SpecError: the text is not a key of the topic, or no column has the keys
        """
        self.spec, self.endpoints, self.config = spec, endpoints, config
        self._reason = reason
        self._catalog = endpoints.catalog(config)
        layout = read_layout(spec, schema_readers(endpoints, config), config)
        self.where = where
        self._raws: set[bytes] = set()
        """Raw keys of the key that are known."""
        if where is None:
            self.key = Key.parse(spec.name, layout.key.fields(), text)
            self._is_raw = layout.key.subject is None
            self._shadowed = self._is_raw and KEY in {each.name for each in layout.value.fields()}
            self._matching: Matching = matching_keys(spec, layout, self.key, endpoints)
        else:
            self.key = self._column(layout, where, text)
            self._is_raw = self._shadowed = False
            self._matching = lambda _: set()
        self.targets = self._of_topic()

    def _column(self, layout: Layout, where: str, text: str) -> Key:
        """Return the value of a column of the topic's table, as a key of one column."""
        table = find_table(self._catalog, self.spec.table_identifier(self.config))
        schema = table_schema(self.spec, layout) if table is None else table.schema()
        column = erasure.find_column(schema, where)
        if column is None:
            raise SpecError(
                f"the table of topic {self.spec.name} has no column {where}"
                f"{suggestion(where, schema.column_names)}",
                hint=f"write --where COLUMN=VALUE with one of {', '.join(schema.column_names)}",
            )
        field = NestedField(1, where, column[1], required=False)
        return Key.parse(self.spec.name, [field], text, "--where")

    def _of_topic(self) -> list[ErasureTarget]:
        """Return the tables of the topic; one that does not exist yet may read the key later."""
        spec, dead = self.spec, dead_letter_spec(self.spec)
        identifier, own = (
            spec.table_identifier(self.config),
            {f.name: f.name for f in self.key.fields},
        )
        kept = spec.name if spec.history else None
        targets = [
            ErasureTarget(
                identifier, "the topic's table", spec.event_time, own, spec=spec, topic=spec.name
            ),
            ErasureTarget(history_table(spec), "its history", spec.event_time, own, topic=kept),
        ]
        if dead.name != spec.name and self.where is None:
            description, identifier = "dead letters", dead.table_identifier(self.config)
            logs = dead.name if spec.tableflow.error_handling.mode == "LOG" else None
            targets.append(
                ErasureTarget(
                    identifier, description, dead.event_time, is_dead_letters=True, topic=logs
                )
            )
        return targets

    def table(self, target: ErasureTarget) -> Table | None:
        """Return a table, or None if there is none."""
        return find_table(self._catalog, target.identifier)

    # --- Kafka ---

    def records(self) -> KeyRecords:
        """Return what the topic has of the key; nothing if the topic was deleted.

        Of a value that is not the key: the records whose newest row has it. An older record of a
        key is Kafka's to compact, and a tombstone would delete the newest one.
        """
        row_keys = None if self.where is None else self._held_keys()
        matching = (
            self._matching
            if row_keys is None
            else partial(_with_keys, held={k for k, _ in row_keys})
        )
        try:
            records = records_of(self.endpoints, self.spec.name, matching)
        except kafka.NoSuchTopicError:
            return KeyRecords(self.spec.name, compacted=True)
        if row_keys is None:
            self._raws |= {raw for raw, _ in records.newest}
        else:
            newest = records.newest.items()
            records.newest = {
                place: is_end
                for place, is_end in newest
                if (held_key(place[0]), place[1]) in row_keys
            }
        return records

    @property
    def lacks_keys(self) -> bool:
        """Whether the records of a value cannot be found in Kafka: no column has the raw keys."""
        table = self.table(self.targets[0])
        raw_key = self.spec.metadata_column(RAW_KEY)
        return (
            self.where is not None
            and table is not None
            and raw_key not in table.schema().column_names
        )

    def _held_keys(self) -> set[tuple[bytes, int]]:
        """Return key, as the table holds it, and partition of the rows that have the value."""
        names = [self.spec.metadata_column(name) for name in (RAW_KEY, PARTITION)]
        if self.lacks_keys or (table_and_rows := self._held(self.targets[0])) is None:
            return set()
        table, rows = table_and_rows
        (column,) = rows.conditions[0]
        scan = table.scan(selected_fields=(*names, column[0])).to_arrow()
        some = scan.filter(pa.array(rows.among(scan)))
        raws, partitions = (some.column(name).to_pylist() for name in names)
        pairs = zip(raws, partitions, strict=True)
        return {(bytes(raw), partition) for raw, partition in pairs if raw is not None}

    def write_tombstones(self, records: KeyRecords) -> int:
        """Write the tombstones that a compacted topic lacks; return how many."""
        return write_tombstones(self.endpoints, records)

    def dead_letters(self) -> KeyRecords | None:
        """Return what the dead-letter topic has of the key, by its table; None: there is none."""
        target = next((each for each in self.targets if each.is_dead_letters), None)
        if target is None or (table_and_rows := self._held(target)) is None:
            return None
        table, rows = table_and_rows
        spec = dead_letter_spec(self.spec)
        try:
            records = described_topic(self.endpoints, spec.name)
        except kafka.NoSuchTopicError:
            return None
        partition, schema = spec.metadata_column(PARTITION), table.schema()
        if not records.compacted or not {KEY, partition} <= set(schema.column_names):
            return records
        for path in erasure.data_files(table):
            positions = rows.in_file(table.io, path)  # None: the file is deleted
            numbers = set() if positions is None else set(positions.tolist())
            for batch, first in (
                columns(table.io, path, schema, [KEY, partition]) if numbers else ()
            ):
                dead, where = (batch.column(name).to_pylist() for name in (KEY, partition))
                for number in numbers & set(range(first, first + batch.num_rows)):
                    if (raw := dead[number - first]) is not None:
                        records.newest[bytes(raw), where[number - first]] = False
        records.count = len(records.newest)
        return records

    def unread(self) -> list[Uncovered]:
        """Return the records that the tables do not hold yet."""
        return [
            Uncovered(target.topic, target.name, first, "they are not read yet")
            for target in self.targets
            if target.topic is not None and (first := self._lacks(target, target.topic))
        ]

    def drain(self, *, enabled: bool, patience: float | None = None) -> list[Uncovered]:
        """Let the tables read what their topics hold now; return what they cannot read.

        :param enabled: whether the engine materializes the topic
        :param patience: seconds without progress of a running engine after which this process
            reads; default: by the commit interval
        :raises TopicbergError: a batch that began earlier does not end
        """
        uncovered = []
        for target in self.targets:
            topic = target.topic
            if topic is None or not (first := self._lacks(target, topic)):
                continue
            if not enabled:
                uncovered.append(Uncovered(topic, target.name, first, "Tableflow is disabled"))
                continue
            try:
                self._read(target, patience)
            except TopicbergError as error:
                if first := self._lacks(target, topic):
                    uncovered.append(Uncovered(topic, target.name, first, error.message))
        for target in self.targets:
            self._wait_for_turns(target)
        return uncovered

    def _wait_for_turns(self, target: ErasureTarget) -> None:
        """Wait for batches with records that the table has by now: their files are deleted then.

        :raises TopicbergError: one is still running
        """
        patience = erasure.READERS_SECONDS
        if target.topic is not None and not wait_for_turns(self.config, target.name, patience):
            raise TopicbergError(
                f"table {target.name}: an engine has been writing a batch for {patience:.0f} s, "
                "and its files may hold the key",
                hint=f"run `topicberg tableflow status {target.topic}` to see what it does, and "
                "run the command again",
            )

    def _lacks(self, target: ErasureTarget, topic: str) -> Offsets:
        table = self.table(target)
        held = noted_offsets(table) if table is not None else {}
        try:
            log = kafka.topic_log(self.endpoints, topic)
        except kafka.NoSuchTopicError:
            return {}
        at = {p: held.get(p, log.beginning.get(p, 0)) for p in log.end}
        return {p: first for p, first in at.items() if first < log.end[p]}

    def _read(self, target: ErasureTarget, patience: float | None) -> None:
        if target.identifier == history_table(self.spec):
            ingest_history(self.spec, self.endpoints, self.config)
            return
        spec = dead_letter_spec(self.spec) if target.is_dead_letters else self.spec
        if patience is None:
            patience = spec.tableflow.commit_interval_seconds + PATIENCE_SECONDS
        end = kafka.end_offsets(self.endpoints, spec.name)
        table = self._created(target, patience)
        if table is None or not wait_for(table, end, patience):
            run_once(spec, self.endpoints, self.config)

    def _created(self, target: ErasureTarget, patience: float) -> Table | None:
        """Return a table, which the running engine may be about to create."""
        deadline = time.monotonic() + patience
        while (table := self.table(target)) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return table

    # --- tables ---

    def find(self, target: ErasureTarget) -> RowsToErase:
        """Return where a table holds rows of the key."""
        held = self._held(target)
        return RowsToErase() if held is None else erasure.find(*held)

    def erase(self, target: ErasureTarget) -> Erased:
        """Erase the rows of the key from a table; what is not there is left as it is."""
        if (table_and_rows := self._held(target)) is None:
            return Erased()
        (table, rows), spec = table_and_rows, target.spec

        def rebuild_delta() -> None:
            if spec is not None:
                delta.rebuild(table.refresh(), spec)

        done = erasure.erase(
            table,
            rows,
            time_column=target.time,
            note=lambda number: self._note(table, number),
            before_expiry=rebuild_delta,
        )
        if spec is not None:
            keys.forget_files(self.config, spec.name, table, done.replaced)
        return done

    def prove(self, target: ErasureTarget) -> Proof | None:
        """Read every file of a table; None: it does not exist, or cannot hold the key.

        :raises TopicbergError: a file holds a row of the key
        """
        if (table_and_rows := self._held(target)) is None:
            return None
        proof = erasure.prove(*table_and_rows)
        if proof.holders:
            raise TopicbergError(
                f"table {target.name}: {len(proof.holders)} of {proof.files} files hold the key, "
                "which another writer wrote meanwhile",
                hint="run the command again",
            )
        return proof

    def _note(self, table: Table, rows: int) -> dict[str, str]:
        name = FORGOTTEN + self.key.digest(table.metadata.table_uuid)
        try:
            before = Forgotten.model_validate_json(table.properties.get(name, ""))
        except ValidationError:
            before = Forgotten(by="", at_ms=0, rows=0, reason="")
        now = int(time.time() * 1000)
        done = Forgotten(by=current_user(), at_ms=now, rows=rows + before.rows, reason=self._reason)
        return {name: done.model_dump_json()}

    def _held(self, target: ErasureTarget) -> tuple[Table, Rows] | None:
        """Return a table and its rows of the key; None: it does not exist, or cannot hold it."""
        table = self.table(target)
        rows = None if table is None else self._rows(target, table)
        return None if table is None or rows is None else (table, rows)

    def _rows(self, target: ErasureTarget, table: Table) -> Rows | None:
        """Return which rows of a table are the key's; None: it cannot hold it."""
        schema = table.schema()
        if target.is_dead_letters:
            return self._dead_letters(table)
        conditions: list[Condition] = []
        raw_key = self.spec.metadata_column(RAW_KEY)
        conditions += self._chosen(target, schema)
        if raw_key in schema.column_names and (self._is_raw or self._raws):
            raws = set(self._raws)
            if self._is_raw:
                raws.add(self.key.raw())
            # Keys with a schema are held whole; earlier versions held the digest of a long one.
            stored_keys = {*raws, *map(held_key, raws)}
            conditions.append({(raw_key,): sorted(stored_keys)})
        if values := self._values(target, schema):
            conditions.append(values)
        if not conditions:
            raise SpecError(
                f"table {target.name} has no column with the keys of topic {self.spec.name}: "
                f"{described(self.key.fields)}",
                hint="the value has a field of that name, so rows of a key cannot be found",
            )
        return Rows(schema, tuple(conditions))

    def _values(self, target: ErasureTarget, schema: Schema) -> Condition | None:
        if self._shadowed:
            return None
        return self.condition(schema, target.names)

    def _chosen(self, target: ErasureTarget, schema: Schema) -> list[Condition]:
        found = (self.condition(schema, names) for names in target.chosen)
        return [condition for condition in found if condition is not None]

    def condition(self, schema: Schema, names: Mapping[str, str]) -> Condition | None:
        """Return which rows of a table have the key in some columns; None: it lacks one of them.

        :param names: column of the key → column of the table
        :raises SpecError: a column is of a type that the key's value is not
        """
        condition: dict[ColumnPath, tuple[Any]] = {}
        for name, text in names.items():
            if (column := erasure.find_column(schema, text)) is None:
                return None
            path, kind = column
            condition[path] = (self.key.value(name, kind),)
        return condition or None

    def _dead_letters(self, table: Table) -> Rows | None:
        """Return which dead letters are records of the key."""
        fields = {each.name: each.field_type for each in table.schema().fields}
        if not _has(fields.get(_SOURCE), KEY):
            return None  # another writer's table
        known: set[KafkaKey] = set()
        for path in erasure.data_files(table):
            try:
                for batch, _ in columns(table.io, path, table.schema(), [_SOURCE]):
                    if _SOURCE in batch.schema.names:
                        known |= {
                            KafkaKey(bytes(source[KEY]), header_of(KEY, source["headers"] or ()))
                            for source in batch.column(_SOURCE).to_pylist()
                            if source
                            and source["topic"] == self.spec.name
                            and source[KEY] is not None
                        }
            except FileNotFoundError:
                continue
        # They are kept: the proof looks for them after the erasure.
        self._raws |= {key.raw for key in self._matching(known)}
        if not self._raws:
            return None
        raws = sorted(self._raws)
        return Rows(table.schema(), ({_DEAD_TOPIC: (self.spec.name,), _DEAD_KEY: raws},))


def _with_keys(known: Collection[KafkaKey], held: set[bytes]) -> set[KafkaKey]:
    return {key for key in known if held_key(key.raw) in held}


def _has(kind: IcebergType | None, name: str) -> bool:
    return isinstance(kind, StructType) and any(
        each.name == name and isinstance(each.field_type, BinaryType) for each in kind.fields
    )
