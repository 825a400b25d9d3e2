"""A random history of one topic: versions registered, records sent, its table read again.
Everything follows from the seed, and from which versions the registry accepts."""

from __future__ import annotations

import json
import random
import re
import struct
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
from avro_family import AvroFamily
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_registry import Registry, running, split, with_registry
from header_framing import NAMES, RecordHeaders, moved
from json_family import JsonFamily
from judge import WIRE_BYTES, Judge, Outcome, Row, Side, stored_key, wire
from protobuf_family import ProtobufFamily
from shapes import Refused, Shape, difference, extended
from versions import Family, Version, some_keys

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.iceberg.summaries import ROWS_SKIPPED
from topicberg.query import run_query
from topicberg.settings import Settings
from topicberg.tableflow.decode.sessions import Sessions
from topicberg.tableflow.service.engine import Ingestor
from topicberg.tableflow.service.history import history_table
from topicberg.topics import TopicSpec

FORMATS = ("AVRO", "JSON", "PROTOBUF")
COMPATIBILITIES = ("BACKWARD", "FORWARD", "FULL", "NONE")
TARGET = "conformance_errors"
"""The dead-letter topic of all histories in mode LOG."""
TOPIC_CONFIG = {
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
    "segment.ms": str(2**63 - 1),  # what is in the only segment is neither compacted nor deleted
}
PLACE = re.compile(r"partition (\d+), offset (\d+)")
MISSING = "its row is missing"
ATTEMPTS = 8
STEPS = 60


@dataclass
class Sent:
    """A record.

    :param key, value: in the wire format, as a judge reads them
    :param note: what it was made as
    :param outcome: what must become of it, once it was read
    :param raw: key and value as they are sent: headers may have their schemas
    """

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    note: str
    offset: int = -1
    outcome: Outcome | None = None
    raw: tuple[bytes | None, bytes | None] = (None, None)
    headers: RecordHeaders = field(default_factory=list)
    has_bad_header: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


@dataclass
class Result:
    """What a history came to. ``problems``: none, if all is as it must be."""

    seed: int
    title: str = ""
    topic: str = ""
    records: int = 0
    rows: int = 0
    malformed: dict[tuple[int, int], Sent] = field(default_factory=dict)
    undecided: set[tuple[int, int]] = field(default_factory=set)
    logs: bool = False
    suspended: int = 0
    refused: int = 0
    versions: int = 0
    problems: list[str] = field(default_factory=list)
    is_stuck: bool = False
    """The topic was not read to its end, or stopped where it must not."""
    missing: int = 0
    """Records without the row that they must have."""
    wrong: int = 0
    """Rows with a wrong value, and rows that must not be there."""
    sent: list[Sent] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


class OneVersion:
    """A family of one schema by another author."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def first(self) -> Version:
        return self.version

    def next(self, version: Version, *, wild: bool) -> Version | None:
        return None

    def repaired(self, version: Version) -> Version:
        raise AssertionError("there is no version that a table cannot follow")

    def foreign(self, version: Version) -> list[Version]:
        return []

    def key(self, version: Version) -> Version:
        raise AssertionError("its keys have no schema")

    def next_key(self, version: Version) -> Version:
        raise AssertionError("its keys have no schema")

    def spelled(self, version: Version, key: dict[str, Any]) -> bytes:
        raise AssertionError("its keys have no schema")


class History:
    """A topic that is made, read and compared.

    :param stages: the most times that the topic is read to its end
    :param rounds: how often schemas evolve and records are sent before each of them
    :param only: the only version that the topic has, instead of random ones
    :param sessions: of Spark, which other topics use as well
    """

    def __init__(
        self,
        seed: int,
        endpoints: Endpoints,
        config: Settings,
        *,
        stages: int = 4,
        rounds: int = 1,
        only: Version | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.endpoints, self.config = endpoints, config
        self.sessions = sessions
        self.kind = only.kind if only else FORMATS[seed % len(FORMATS)]
        self.compatibility = COMPATIBILITIES[seed // len(FORMATS) % 4]
        self.upsert = rng.random() < 0.4
        self.mode = rng.choice(("SUSPEND", "SKIP", "LOG"))
        self.header_rng = headers = random.Random(f"headers {seed}")  # the rest stays as it was
        self.header_share = headers.choice((0.0, 0.0, 0.5, 1.0))
        # The dead letters of all histories are in one registry.
        self.is_confluent = self.mode != "LOG" and not only and headers.random() < 0.4
        self.context = headers.choice(("", ":.eu:")) if self.is_confluent else ""
        if self.is_confluent:
            self.compatibility = "NONE"
        self.confluent = Registry()
        self.stages, self.rounds = rng.randint(2, stages), rounds
        self.partitions = rng.randint(1, 2)
        keyed = ("bytes", "bytes") + (() if only else ("schema",))
        self.keys = rng.choice(keyed if self.upsert else (*keyed, "none"))
        self.family: Family = OneVersion(only) if only else FAMILIES[self.kind](rng)
        name = f"conformance_{seed}_{random.SystemRandom().getrandbits(32):08x}"
        self.spec = TopicSpec.model_validate(
            {
                "name": name,
                "pipeline": "conformance",
                "schema": {
                    "format": self.kind.lower(),
                    "file": "from-the-registry",
                    "message": only.message if only else None,
                    "subject": f"{self.context}{name}-value",
                },
                "partitions": self.partitions,
                "write_mode": "upsert" if self.upsert else "append",
                "history": self.upsert and rng.random() < 0.3,
                "key": {"format": self.kind.lower() if self.keys == "schema" else self.keys},
                "tableflow": {
                    "error_handling": self._handling(self.mode),
                    "engine": "spark" if seed % 5 == 0 else "auto",
                },
            }
        )
        self.title = (
            f"seed {seed}: {self.kind} {self.compatibility} {self.spec.write_mode} {self.mode} "
            f"key {self.keys} headers {self.header_share:g}"
            f"{f' confluent {self.context}' if self.is_confluent else ''}"
        )
        self.result = Result(seed, self.title, name, logs=self.mode == "LOG")
        self.judge = Judge(Side(), Side() if self.keys == "schema" else None, self.upsert)
        self.waiting: list[Sent] = []
        self.read: list[Sent] = []
        self.key_pool: list[bytes] = []
        self.decoded_pool: list[dict[str, Any]] = []
        """Keys with a schema: values by the names of its first version."""
        self.clock = 1_700_000_000_000
        self.ingestor: Ingestor | None = None
        self.producer: Producer | None = None
        self.oddity = 0.0
        """How likely a record of this stage is malformed, unusual or of a foreign schema."""

    def run(self) -> Result:
        if not self.is_confluent:
            return self._run()
        with running(self.confluent) as url:
            self.endpoints = with_registry(self.endpoints, url)
            return self._run()

    @property
    def registry(self) -> SchemaRegistryClient:
        return self.endpoints.schema_registry_client()

    def _run(self) -> Result:
        admin = self.endpoints.kafka_admin()
        config = TOPIC_CONFIG | ({"cleanup.policy": "compact"} if self.upsert else {})
        new = NewTopic(self.spec.name, num_partitions=self.partitions, config=config)
        admin.create_topics([new])[self.spec.name].result(30)
        try:
            self._begin()
            for stage in range(self.stages):
                self._stage(stage)
                if self.result.problems:
                    break
            else:
                if self.spec.history:
                    self._check_history()
        except Exception as error:
            self.result.is_stuck = True
            self.problem(f"{type(error).__name__}: {error}")
        finally:
            self._close()
            admin.delete_topics([self.spec.name])[self.spec.name].result(30)
        self._count()
        return self.result

    def refusal(self) -> Exception | None:
        """The error of a topic whose only schema has no table."""
        self._own(self.spec.value_subject, self.family.first(), self.judge.value)
        try:
            Ingestor(self.spec, self.endpoints, self.config).table()
        except TableflowError as error:
            return error
        return None

    def problem(self, text: str) -> None:
        self.result.problems.append(text)
        if text.endswith(MISSING):
            self.result.missing += 1
        elif not self.result.is_stuck:
            self.result.wrong += 1

    def _handling(self, mode: str) -> dict[str, str]:
        return {"mode": mode, **({"target": TARGET} if mode == "LOG" else {})}

    def _register(self, subject: str, version: Version) -> int:
        references: list[SchemaReference] = []
        for name, text in version.references:
            # The same text under the same name is the same subject for all topics.
            on = f"conformance-{name}"
            one = Schema(text, version.kind, list(references))
            self.registry.register_schema(f"{self.context}{on}", one)
            number = self.registry.lookup_schema(f"{self.context}{on}", one).version
            references.append(SchemaReference(name, on, number))
        return self.registry.register_schema(
            subject, Schema(version.text, version.kind, references)
        )

    def _register_default(self, subject: str, version: Version) -> None:
        context, self.context = self.context, ""
        self._register(subject, version)
        self.context = context

    def _begin(self) -> None:
        first = self.family.first()
        if self.context:  # the ids of the context are those of other schemas in the default one
            for number, version in enumerate(self.family.foreign(first)):
                self._register_default(f"decoy-{number}", version)
            self._register_default("decoy", first)
        self._own(self.spec.value_subject, first, self.judge.value)
        self.registry.set_compatibility(self.spec.value_subject, self.compatibility)
        if self.judge.key is not None:
            self._own(self.spec.key_subject, self.family.key(first), self.judge.key)
            # All of its versions have equal keys, which the registry cannot know.
            self.registry.set_compatibility(self.spec.key_subject, "NONE")
        for number, version in enumerate(self.family.foreign(first)):
            try:
                on = f"{self.context}{self.spec.name}-foreign{number}"
                schema_id = self._register(on, version)
            except SchemaRegistryError as error:
                self.result.log.append(f"the registry refuses {version.text}: {error}")
                continue
            if schema_id not in self.judge.value.own:
                self.judge.foreign[schema_id] = version
                self.result.log.append(f"foreign schema {schema_id}: {version.text}")
        for number in range(self.rng.randint(2, 8)):
            self.key_pool.append(f"key{number}".encode() * (60 if number == 1 else 1))
        if self.judge.key is not None:
            self.decoded_pool = some_keys(self.rng, self.judge.key.shape)

    def _own(self, subject: str, version: Version, side: Side) -> None:
        schema_id = self._register(subject, version)
        if schema_id in side.own:  # a version again, which does not become the newest one
            return
        side.own[schema_id] = side.latest = version
        self.result.versions += 1
        self.result.log.append(f"{subject} schema {schema_id}: {version.text}")

    def _evolve(self) -> None:
        latest = self.judge.value.latest
        assert latest is not None
        for _ in range(ATTEMPTS):
            version = self.family.next(latest, wild=self.compatibility == "NONE")
            if version is None or version.shape is None:
                continue
            try:
                self._own(self.spec.value_subject, version, self.judge.value)
            except SchemaRegistryError as error:
                if error.http_status_code not in (409, 422):
                    raise
            else:
                return

    def _evolve_key(self) -> None:
        assert self.judge.key is not None
        latest = self.judge.key.latest
        assert latest is not None
        self._own(self.spec.key_subject, self.family.next_key(latest), self.judge.key)

    def _stage(self, stage: int) -> None:
        self.oddity = self.rng.choice((0.0, 0.02, 0.15, 0.15))
        for number in range(stage * self.rounds, (stage + 1) * self.rounds):
            for _ in range(self.rng.choice((0, 1, 1, 2))) if number else ():
                self._evolve()
            if number and self.judge.key is not None and self.rng.random() < 0.6:
                self._evolve_key()
            self._produce(self.rng.choice((0, 5, 20, 60)) if number else self.rng.randint(5, 60))
        if self.rng.random() < 0.4:
            self._close()  # the engine starts again
        try:
            self.judge.follow()
        except Refused as refused:
            self._expect_refusal(str(refused))
            latest = next(
                version
                for version in reversed(self.judge.value.own.values())
                if _follows(self.judge, version)
            )
            # As the table, but not the registry, refused the newest version, none may fit both.
            self.registry.set_compatibility(self.spec.value_subject, "NONE")
            self._own(self.spec.value_subject, self.family.repaired(latest), self.judge.value)
            self.registry.set_compatibility(self.spec.value_subject, self.compatibility)
            self.judge.follow()
        self._ingest()

    def _produce(self, count: int) -> None:
        if self.producer is None:
            self.producer = Producer({**self.endpoints.kafka_config(), "linger.ms": 20})
        producer = self.producer
        records = [self._record() for _ in range(count)]

        def delivered(record: Sent) -> Any:
            def on_delivery(error: Any, message: Any) -> None:
                record.offset = -1 if error else message.offset()

            return on_delivery

        for record in records:
            self._move(record)
            key, value = record.raw
            producer.produce(
                self.spec.name,
                value,
                key,
                record.partition,
                on_delivery=delivered(record),
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        assert producer.flush(60) == 0
        assert all(record.offset >= 0 for record in records)
        self.result.sent += records
        self.waiting += records

    def _move(self, record: Sent) -> None:
        """Let headers name some of the schemas instead of prefixes; some of them do not."""
        rng, halves = self.header_rng, []
        if rng.random() < 0.3:
            record.headers.append(("trace", rng.randbytes(3)))
        for side, wire_form in (("key", record.key), ("value", record.value)):
            halves.append(wire_form)
            has_schema = side == "value" or self.judge.key is not None
            # An upsert table compares keys as they were sent.
            share = round(self.header_share) if side == "key" else self.header_share
            if wire_form is None or not has_schema or rng.random() >= share:
                continue
            there = moved(wire_form, self.kind, guid=self._guid(side, wire_form))
            if there is not None:
                halves[-1], header = there
                if side == "value" and rng.random() < self.oddity / 5:
                    header = rng.choice((b"", b"\x02", header[:4], header + b"\x01", b"\x01" * 17))
                    record.note, record.has_bad_header = "bad header", True
                record.headers.append((NAMES[side], header))
        record.raw = halves[0], halves[1]

    def _guid(self, side: str, wire_form: bytes) -> UUID | None:
        subject = self.spec.key_subject if side == "key" else self.spec.value_subject
        number = int.from_bytes(wire_form[1:WIRE_BYTES], "big")
        found = self.confluent.ids.get((split(subject)[0], number))
        is_sent = found is not None and self.header_rng.random() < 0.6
        return UUID(found.guid) if found is not None and is_sent else None

    def _record(self) -> Sent:
        rng = self.rng
        value: bytes | None
        key: bytes | None
        own = list(self.judge.value.own.items())
        # The newest version as often as all others: old producers stay for long.
        schema_id, version = own[-1] if rng.random() < 0.5 else rng.choice(own)
        good = wire(schema_id, version.encode(rng, 0.0))
        note, value = "good", good
        key = rng.choice(self.key_pool)
        if self.judge.key is not None:
            key_id, key_version = rng.choice(list(self.judge.key.own.items()))
            key = wire(key_id, self.family.spelled(key_version, rng.choice(self.decoded_pool)))
        if self.keys == "none" and rng.random() < 0.5:
            key = None
        if rng.random() < self.oddity:
            note, value = self._odd(schema_id, version, good)
        elif rng.random() < (0.15 if self.upsert else 0.03):
            note, value = "tombstone", None
        elif rng.random() < self.oddity / 5 and self.keys == "schema":
            note, key = "broken key", rng.randbytes(rng.randint(0, 12))
        timestamp = rng.choice((1, 1_000_000_000_123, 1_700_000_000_000, 253_402_300_799_999))
        if self.judge.key is not None and self.upsert:  # time orders the partitions of a key
            self.clock += 1
            timestamp = self.clock
        return Sent(rng.randrange(self.partitions), key, value, timestamp, note)

    def _odd(self, schema_id: int, version: Version, value: bytes) -> tuple[str, bytes]:
        rng = self.rng
        payload = value[5:]
        match rng.randint(0, 9):
            case 0:
                return "empty", b""
            case 1:
                return "cut off", value[: rng.randint(0, max(0, len(value) - 1))]
            case 2:
                return "no magic byte", b"\x01" + value[1:]
            case 3:
                return "unknown id", wire(2_000_000_000 + rng.randint(0, 5), payload)
            case 4:
                return "garbage", wire(schema_id, rng.randbytes(rng.randint(0, 40)))
            case 5 if payload:
                place = rng.randrange(len(payload))
                flipped = bytearray(payload)
                flipped[place] ^= 1 << rng.randrange(8)
                return "flipped", wire(schema_id, bytes(flipped))
            case 6 | 7:
                return "unusual value", wire(schema_id, version.encode(rng, 0.3))
        if not self.judge.foreign:
            return "magic byte only", b"\x00"
        number = rng.choice(list(self.judge.foreign))
        other = self.judge.foreign[number]
        made = other.encode(rng, 0.0) if rng.random() < 0.8 else payload
        return "foreign", wire(number, made)

    def _ingest(self) -> None:
        for record in self.waiting:
            record.outcome = self._outcome(self.judge, record)
        mode = self.spec.tableflow.error_handling.mode
        broken = [r for r in self.waiting if r.outcome and r.outcome.row is None]
        doubtful = [r for r in self.waiting if r.outcome and not r.outcome.sure]
        if mode == "SUSPEND" and (broken or doubtful):
            if not self._suspends(broken):
                return
            self._respec("SKIP")
        self._drain()
        self.read += self.waiting
        self.waiting = []
        self._check()

    def _outcome(self, judge: Judge, record: Sent) -> Outcome:
        found = judge.outcome(record.key, record.value)
        return Outcome(None) if record.has_bad_header else found

    def _expect_refusal(self, why: str) -> None:
        self.result.refused += 1
        try:
            self._drain()
        except TableflowError as error:
            self.result.log.append(f"refused as it must be ({why}): {error}")
            self._close()
        else:
            self.problem(
                f"the table cannot follow the newest schema ({why}), yet no error was reported"
            )

    def _suspends(self, broken: list[Sent]) -> bool:
        """Let it suspend at its first malformed record; False: it does otherwise."""
        try:
            self._drain()
        except TableflowError as error:
            self.result.suspended += 1
            self.result.log.append(f"suspended: {error}")
            self._close()
            return self._suspended_right(str(error))
        if any(record.outcome and record.outcome.sure for record in broken):
            self.problem("a malformed record did not suspend the topic")
            return False
        return True

    def _suspended_right(self, error: str) -> bool:
        found = PLACE.search(error)
        if not found:
            self.problem(f"suspended without naming a record: {error}")
            return False
        place = int(found[1]), int(found[2])
        named = next((r for r in self.waiting if r.place == place), None)
        if named is None or named.outcome is None or (named.outcome.row and named.outcome.sure):
            self.problem(f"suspended at {place}, which is a good record: {error}")
            return False
        before = [r for r in self.waiting if r.partition == place[0] and r.offset < place[1]]
        if any(r.outcome and r.outcome.row is None and r.outcome.sure for r in before):
            self.problem(f"suspended at {place}, after an earlier malformed record: {error}")
        if not named.outcome.is_named(error):
            self.problem(f"the error does not name {named.outcome.names}: {error}")
        if not self.upsert:
            rows = {(row["$$partition"], row["$$offset"]) for row in self._table()}
            later = {(place[0], r.offset) for r in self.waiting if r.offset >= place[1]}
            if early := later & rows:
                self.problem(f"suspended at {place}; there are rows of later records: {early}")
        return not self.result.problems

    def _respec(self, mode: str) -> None:
        fields = self.spec.model_dump(by_alias=True)
        fields["tableflow"]["error_handling"] = self._handling(mode)
        self.spec = TopicSpec.model_validate(fields)
        self._close()

    def _drain(self) -> None:
        if self.ingestor is None:
            self.ingestor = Ingestor(self.spec, self.endpoints, self.config, self.sessions)
        for _ in range(STEPS):
            done = self.ingestor.step()
            if not done.records and not done.backlog:
                return
        raise AssertionError(f"still not at the end after {STEPS} steps")

    def _close(self) -> None:
        if self.ingestor is not None and self.sessions is None:
            self.ingestor.close()
        self.ingestor = None

    def _table(self) -> list[Row]:
        return self._rows(self.spec.table_identifier(self.config))

    def _rows(self, identifier: tuple[str, str]) -> list[Row]:
        """What DuckDB reads: PyIceberg takes null for an empty list of structs."""
        table = self.endpoints.catalog(self.config).load_table(identifier)
        self.skipped = int(table.properties.get(ROWS_SKIPPED, 0))
        self.names = [field.name for field in table.schema().fields]
        if table.current_snapshot() is None:
            return []
        sql = f'SELECT * FROM lake."{identifier[0]}"."{identifier[1]}"'
        found = run_query(sql, "duckdb", self.endpoints, self.config)
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]

    def _check(self) -> None:
        rows = self._table()
        columns = self.judge.columns
        assert columns is not None
        own = {name for name in self.names if not name.startswith("$$")}
        if own != set(columns.children):
            self.problem(f"columns {sorted(own)}, expected {sorted(columns.children)}")
            return
        if self.upsert:
            self._check_upsert(rows, columns)
        else:
            self._check_append(rows, columns)
        self.result.rows = len(rows)

    def _check_history(self) -> None:
        """The table of all records of an upsert topic: made in one go by the newest schema."""
        judge = Judge(self.judge.value, self.judge.key, False, self.judge.foreign)
        judge.follow()
        assert judge.columns is not None
        read = self.read  # dead letters are by the outcomes of the topic's own table
        self.read = [replace(one, outcome=self._outcome(judge, one)) for one in read]
        identifier = history_table(self.spec)

        class HistorySpec(TopicSpec):
            def table_identifier(self, config: Settings | None = None) -> tuple[str, str]:
                return identifier

        # Not by ingest_history: the spec has no files whose schemas that could register.
        appended = self.spec.model_dump(by_alias=True) | {"write_mode": "append"}
        appended["tableflow"]["error_handling"] = {"mode": "SKIP"}
        self._close()
        self.spec = HistorySpec.model_validate(appended)
        self._drain()
        rows = self._rows(identifier)
        self._check_append(rows, judge.columns)
        self.read = read

    def _check_append(self, rows: list[Row], columns: Shape) -> None:
        found = {(row["$$partition"], row["$$offset"]): row for row in rows}
        if len(found) < len(rows):
            self.problem(f"{len(rows) - len(found)} rows are there twice")
        if strange := found.keys() - {record.place for record in self.read}:
            self.problem(f"rows of no record: {sorted(strange)}")
        for record in self.read:
            self._check_record(record, found.get(record.place), columns)
        if len(rows) + self.skipped != len(self.read):
            self.problem(f"{len(rows)} rows + {self.skipped} skipped, {len(self.read)} records")

    def _check_record(self, record: Sent, row: Row | None, columns: Shape) -> None:
        outcome = record.outcome
        assert outcome is not None
        if row is None:
            if outcome.sure and outcome.row is not None:
                self.problem(self._about(record, MISSING))
        elif outcome.row is None:
            if outcome.sure:
                self.problem(self._about(record, f"malformed, yet it has a row: {row}"))
        elif outcome.exact and (wrong := _differs(outcome.row, row, columns, record)):
            self.problem(self._about(record, wrong))

    def _check_upsert(self, rows: list[Row], columns: Shape) -> None:
        found: dict[object, Row] = {}
        for row in rows:
            place = self._identity(row["$$partition"], bytes(row["$$raw-key"]))
            if place in found:
                self.problem(f"key {place} has two rows")
            found[place] = row
        # What each key may be: the last certain state, and every doubtful one since.
        states: dict[object, list[Sent | None]] = {}
        certain = doubtful = 0
        for record in sorted(self.read, key=self._order):
            outcome = record.outcome
            assert outcome is not None
            certain += outcome.row is None and outcome.sure
            doubtful += not outcome.sure
            if record.key is None or (outcome.row is None and outcome.sure):
                continue
            sent = record.key if self.judge.key else stored_key(record.raw[0] or b"")
            place = self._identity(record.partition, sent)
            state = None if record.value is None else record
            before = [] if outcome.sure else states.get(place, [None])
            states[place] = [*before, state]
        for place, options in states.items():
            wrongs = [self._state(option, found.get(place), columns) for option in options]
            found.pop(place, None)
            if all(wrongs):
                self.problem(f"key {place}: {wrongs[-1]}")
        if found:
            self.problem(f"rows of deleted or unknown keys: {sorted(map(str, found))}")
        if not certain <= self.skipped <= certain + doubtful:
            self.problem(f"{self.skipped} skipped, {certain} malformed and {doubtful} doubtful")

    def _identity(self, partition: int, key: bytes) -> object:
        """What a row of an upsert table is identified by: the decoded key, in all partitions."""
        return (partition, key) if self.judge.key is None else self.judge.key_text(key)

    def _order(self, record: Sent) -> tuple[int, ...]:
        return record.place if self.judge.key is None else (record.timestamp, *record.place)

    def _state(self, option: Sent | None, row: Row | None, columns: Shape) -> str | None:
        if option is None:
            return None if row is None else f"deleted, yet it has a row: {row}"
        if row is None:
            return self._about(option, MISSING)
        assert option.outcome is not None
        if option.outcome.row is None or not option.outcome.exact:
            return None
        wrong = _differs(option.outcome.row, row, columns, option)
        return self._about(option, wrong) if wrong else None

    def _about(self, record: Sent, what: str) -> str:
        value = None if record.value is None else record.value.hex()
        key = None if record.key is None else record.key.hex()
        return f"record {record.place} ({record.note}), key {key}, value {value}: {what}"

    def _count(self) -> None:
        self.result.records = len(self.result.sent)
        for record in self.read:
            if record.outcome is not None and not record.outcome.sure:
                self.result.undecided.add(record.place)
            elif record.outcome is not None and record.outcome.row is None:
                self.result.malformed[record.place] = record


FAMILIES: dict[str, Any] = {"AVRO": AvroFamily, "JSON": JsonFamily, "PROTOBUF": ProtobufFamily}


def _follows(judge: Judge, version: Version) -> bool:
    side = Side(judge.value.own, version)
    attempt = Judge(side, judge.key, judge.upsert, judge.foreign, judge.columns)
    try:
        attempt.follow()
    except Refused:
        return False
    return True


def _differs(expected: Row, row: Row, columns: Shape, record: Sent) -> str | None:
    moment = row["$$timestamp"].timestamp() * 1000
    if (row["$$partition"], row["$$offset"], round(moment)) != (*record.place, record.timestamp):
        return f"the metadata are {row}"
    for name, value in expected.items():
        wanted = extended(value, columns.children[name])
        if wrong := difference(wanted, row[name], name):
            return f"wrong value: {wrong}"
    return None


def dead_letters(endpoints: Endpoints) -> dict[str, list[dict[str, Any]]]:
    """What the dead-letter topic of all histories holds, by the topic that it came from."""
    registry = endpoints.schema_registry_client()
    settings = {
        "group.id": TARGET,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**endpoints.kafka_config(), **settings, "enable.partition.eof": True})
    parts = consumer.list_topics(TARGET, 30).topics[TARGET].partitions
    consumer.assign([TopicPartition(TARGET, number, 0) for number in parts])
    found: dict[str, list[dict[str, Any]]] = {}
    schemas: dict[int, Any] = {}
    ended = 0
    while ended < len(parts):
        message = consumer.poll(30)
        assert message is not None, "the dead-letter topic does not answer"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended += 1
            continue
        value = message.value() or b""
        (number,) = struct.unpack(">I", value[1:WIRE_BYTES])
        if number not in schemas:
            text = registry.get_schema(number).schema_str or ""
            schemas[number] = fastavro.parse_schema(json.loads(text))
        body = BytesIO(value[WIRE_BYTES:])
        entry: Any = fastavro.schemaless_reader(body, schemas[number], None)
        found.setdefault(entry["source_record"]["topic"], []).append(entry)
    consumer.close()
    return found


def check_dead_letters(result: Result, entries: list[dict[str, Any]]) -> None:
    """Each malformed record must be there once, as it was, with a reason that says where."""
    found = [(e["source_record"]["partition"], e["source_record"]["offset"]) for e in entries]
    if len(set(found)) < len(found):
        result.problems.append(f"{len(found) - len(set(found))} dead letters are there twice")
    if missing := result.malformed.keys() - set(found):
        result.problems.append(f"no dead letter of {sorted(missing)}")
    if strange := set(found) - result.malformed.keys() - result.undecided:
        result.problems.append(f"dead letters of good records: {sorted(strange)}")
    for place, entry in zip(found, entries, strict=True):
        record = result.malformed.get(place)
        if record is None:
            continue
        source, message = entry["source_record"], entry["error_message"]
        if (source["key"], source["value"]) != record.raw:
            result.problems.append(f"the dead letter of {place} has other bytes: {source}")
        if not message or (record.outcome and not record.outcome.is_named(message)):
            named = record.outcome and record.outcome.names
            result.problems.append(f"the reason of {place} does not name {named}: {message}")


def dump(result: Result, folder: Path) -> Path:
    """Write all there is about a failed history."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.seed}.txt"
    lines = [result.title, f"topic {result.topic}", "", "PROBLEMS", *result.problems, ""]
    lines += ["SCHEMAS AND EVENTS", *result.log, "", "RECORDS"]
    for record in result.sent:
        facts = {
            "place": record.place,
            "note": record.note,
            "key": record.key.hex() if record.key is not None else None,
            "value": record.value.hex() if record.value is not None else None,
            "headers": [(name, text and text.hex()) for name, text in record.headers],
            "expected": repr(record.outcome),
        }
        lines.append(json.dumps(facts, default=repr))
    path.write_text("\n".join(lines) + "\n")
    return path
