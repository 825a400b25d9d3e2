"""What becomes of records that are left out; in mode LOG, they are dead letters, exactly once.

The dead-letter topic is a topic like any other: it has a spec (see
:func:`topicberg.topics.deadletters.dead_letter_spec`), and so a table. A topic that exists already
is used as it is.

Dead letters are produced before the batch is published, in transactions that also record, in the
topic :data:`STATE_TOPIC`, which records they are. If the engine crashes in between, the engine that
reads the batch next does not produce them again. What others write to the dead-letter topic is
never read.

Source: Confluent's "Configure a Dead Letter Queue", which Tableflow's mode ``log`` shares; columns
in ``topics/schemas/error_log.avsc``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from pydantic import BaseModel, Field
from pyiceberg.table import Table

from topicberg.clients.registry import NOT_FOUND, IncompatibleSchemaError, registry_errors
from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import TableflowError, TopicbergError
from topicberg.formats.dispatch import format_of
from topicberg.formats.framing import WIRE_BYTES, wire_prefix
from topicberg.formats.subjects import RegisteredSchema
from topicberg.kafka import schemas, transactions
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.kafka.offsets import Offsets, PartitionOffset
from topicberg.kafka.records import DamagedRecordsError, headers_of
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import BatchPlan
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.values.logs import log_number
from topicberg.tableflow.values.metadata import FIRST_MS, LAST_MS, NO_TIMESTAMP, wrong_header
from topicberg.tableflow.values.offsets import OffsetSet
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import ERROR_LOG_SCHEMA, dead_letter_spec
from topicberg.topics.schema import schema_path
from topicberg.wording import count

logger = logging.getLogger(__name__)
STATE_TOPIC = "topicberg.dead-letters"
"""Compacted: id of the producer → :class:`_State`."""
CANNOT_DECODE = 1
PROCESSOR = "topicberg.tableflow"
TRANSACTION_SECONDS = 60
_TRANSACTION_RECORDS, _TRANSACTION_BYTES = 5_000, 16_000_000
_DEFAULT_MAX_BYTES = 1_000_000
_MIN_CLIENT_BYTES = 4_000_000
"""The state of what is logged may be larger than a dead letter."""
_RECORD_OVERHEAD = 512
"""The most bytes that Kafka adds to a key and a value."""
KEPT_CHUNKS = 50
"""Offsets that are committed are forgotten once their set has more chunks."""
COLUMNS = (
    *("partition", "offset", "timestamp_ms", "timestampType", "headers", "key", "value"),
    *("reason", "schema_id"),
)

Record = Mapping[str, Any]
"""Values of :data:`COLUMNS`."""


class _State(BaseModel):
    """The records of one topic that are in the dead-letter topic and may be read again."""

    topic_id: str
    """And dot, number of the table's log, if that is not the first one."""
    logged: dict[str, str] = Field(default_factory=dict)
    """See :class:`.OffsetSet`."""


@dataclass
class _Session:
    """A producer that fenced off all others of its id, and the records it has logged since."""

    producer_id: str
    topic_id: str
    producer: Producer
    logged: OffsetSet
    prefix: bytes
    max_bytes: int
    """Of a key and a value in the dead-letter topic."""


class DeadLetters:
    """The dead-letter topic of one topic."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
        self.spec, self.target = spec, dead_letter_spec(spec)
        self._endpoints, self._config = endpoints, config
        self._session: _Session | None = None
        self._schema: Any = None

    def write(
        self, table: Table, topic_id: str, committed: Offsets, malformed: Iterable[Record]
    ) -> None:
        """Produce the malformed records that the dead-letter topic does not have yet.

        :param committed: up to where the table holds the topic: earlier records are not read again
        :param malformed: records with :data:`COLUMNS`
        :raises CommitConflictError: another engine of this topic took over
        :raises TopicbergError: the dead-letter topic does not take them
        """
        if number := log_number(table):  # its offsets are those of other records
            topic_id = f"{topic_id}.{number}"
        session, self._session = self._session, None  # any failure ends it
        with transactions.transaction_errors(
            f"topic {self.spec.name}: dead-letter topic {self.target.name}",
            hint=f"check the rights to write transactions to {self.target.name} and {STATE_TOPIC}; "
            "nothing of the batch was committed, the engine tries again",
        ):
            # By table: a new table of the topic logs its own dead letters.
            wanted = f"topicberg-dead-letters-{table.metadata.table_uuid}", topic_id
            if session is None or (session.producer_id, session.topic_id) != wanted:
                session = self._open(*wanted)
            if session.logged.chunks > KEPT_CHUNKS:
                session.logged = session.logged.without_chunks_before(committed)
            try:
                for some in self._new(session, malformed):
                    self._send(session, some)
            finally:
                transactions.abort(session.producer)
        self._session = session

    def record(self, place: PartitionOffset, reason: str, *, is_readable: bool = True) -> Record:
        """Return one record that cannot be decoded, without bytes that the client cannot read."""
        partition, offset = place
        problem: dict[str, Any] = {"reason": reason, "schema_id": None}
        known = {"partition": partition, "offset": offset, "timestamp_ms": NO_TIMESTAMP}
        ranges = {partition: (offset, offset + 1)}
        read = messages(self._endpoints, self.spec.name, ranges) if is_readable else ()
        try:
            for message in read:
                kind, known["timestamp_ms"] = message.timestamp()
                headers = [{"key": k, "value": v} for k, v in headers_of(message) or ()]
                content = {"key": message.key(), "value": message.value(), "headers": headers}
                return {**known, **content, "timestampType": kind - 1, **problem}
        except DamagedRecordsError as error:
            if error.message not in reason:
                problem["reason"] = f"{reason}; {error.message}"
        return {**dict.fromkeys(COLUMNS), **known, **problem}

    def _open(self, producer_id: str, topic_id: str) -> _Session:
        where = f"topic {self.spec.name}: dead-letter topic {self.target.name}"
        try:
            kafka.create_topic(self.target, self._endpoints, self._config)
            prefix = wire_prefix(self._register())
            kafka.ensure_internal_topic(STATE_TOPIC, self._endpoints)
        except TopicbergError as error:
            raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
        allowed = kafka.topic_config(self._endpoints, self.target.name).get("max.message.bytes")
        max_bytes = int(allowed or _DEFAULT_MAX_BYTES)
        producer = transactions.transactional_producer(
            producer_id,
            self._endpoints,
            TRANSACTION_SECONDS,
            **{
                "message.max.bytes": min(max(max_bytes, _MIN_CLIENT_BYTES), 1_000_000_000),
                "batch.size": min(max_bytes, _DEFAULT_MAX_BYTES),
            },
        )
        wait = TRANSACTION_SECONDS * 1.5
        state_text = transactions.newest_states(self._endpoints, STATE_TOPIC, wait).get(producer_id)
        state = _State.model_validate_json(state_text) if state_text else _State(topic_id=topic_id)
        logged = OffsetSet.load(state.logged if state.topic_id == topic_id else {})
        room = max_bytes - _RECORD_OVERHEAD
        return _Session(producer_id, topic_id, producer, logged, prefix, room)

    def _register(self) -> int:
        """Return the id of the schema, in the topic's subject if that is ours, else in its own."""
        path = self.target.schema_path("value", self._config)
        assert path is not None  # noqa: S101  its spec has a schema file
        self._schema = fastavro.parse_schema(json.loads(path.read_text()))
        own = str(self._schema["name"])
        subject = self.target.value_subject if self._is_ours(own) else own
        register = partial(schemas.register_schema, self._endpoints)
        try:
            number = register(subject, self.target.value_schema, path)
        except IncompatibleSchemaError:
            if subject == own:
                raise
            number = register(own, self.target.value_schema, path)
        assert number is not None  # noqa: S101  there is a file
        return number

    def _is_ours(self, name: str) -> bool:
        """Return whether the topic's subject has the dead letters' schema, or no version."""
        subject = self.target.value_subject
        with registry_errors(f"the schema of {subject}"):
            try:
                latest = self._endpoints.schema_registry_client().get_latest_version(subject)
            except SchemaRegistryError as error:
                if error.http_status_code != NOT_FOUND:
                    raise
                return True
        schema = RegisteredSchema(0, "AVRO", latest.schema.schema_str or "")
        try:
            return format_of(schema).identity(schema) == name
        except TableflowError:  # it is another writer's, of whatever format
            return False

    def _new(
        self, session: _Session, malformed: Iterable[Record]
    ) -> Iterator[dict[PartitionOffset, bytes]]:
        """Yield the encoded dead letters that are not logged yet, one transaction's at a time."""
        some: dict[PartitionOffset, bytes] = {}
        size = 0
        for record in malformed:
            place = record["partition"], record["offset"]
            if place in session.logged or place in some:
                continue
            room = session.max_bytes - len(self._key(place))
            some[place] = self._encoded(session.prefix, self._entry(record, session.topic_id), room)
            size += len(some[place])
            if len(some) >= _TRANSACTION_RECORDS or size >= _TRANSACTION_BYTES:
                yield some
                some, size = {}, 0
        if some:
            yield some

    def _send(self, session: _Session, some: Mapping[PartitionOffset, bytes]) -> None:
        """Commit dead letters and the record of them in one transaction."""
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer = session.producer
        producer.begin_transaction()
        for place, value in some.items():
            kafka.produce(producer, self.target.name, value, self._key(place), delivered)
            session.logged.add(place)
        state = _State(topic_id=session.topic_id, logged=session.logged.dump()).model_dump_json()
        kafka.produce(
            producer, STATE_TOPIC, state.encode(), session.producer_id.encode(), delivered
        )
        try:
            producer.commit_transaction(TRANSACTION_SECONDS)
        except KafkaException:
            if not refused:
                raise
            raise TopicbergError(
                f"topic {self.spec.name}: the dead-letter topic {self.target.name} does not take "
                f"{len(refused)} of {len(some)} records: {refused[0]}",
                hint=f"check the configuration of {self.target.name}, or choose another topic: "
                f"`topicberg tableflow enable {self.spec.name} --log-target TOPIC`; nothing of "
                "the batch was committed, it is tried again",
            ) from KafkaException(refused[0])

    def _key(self, place: PartitionOffset) -> bytes:
        return f"{self.spec.name}-{place[0]}-{place[1]}".encode()

    def _encoded(self, prefix: bytes, entry: dict[str, Any], room: int) -> bytes:
        """Return the entry, its longest values cut to fit; ``error_details`` has their sizes."""
        source, details = entry["source_record"], entry["error_details"]
        while True:
            buffer = BytesIO(prefix)
            buffer.seek(0, 2)
            fastavro.schemaless_writer(buffer, self._schema, entry)
            excess = buffer.tell() - room
            if excess <= 0:
                return buffer.getvalue()
            excess += 100  # for the note itself
            parts = {part: len(source[part] or b"") for part in ("value", "key")}
            part = max(parts, key=lambda name: parts[name])
            if parts[part]:
                details.setdefault(f"{part}_bytes", str(parts[part]))
                details["truncated"] = "true"
                source[part] = source[part][: max(0, parts[part] - excess)]
            elif source["headers"]:
                details["headers_left_out"] = str(len(source["headers"]))
                details["truncated"] = "true"
                source["headers"] = {}
            elif len(entry["error_message"]) > 100:
                entry["error_message"] = entry["error_message"][:100]
            else:
                return buffer.getvalue()  # the topic refuses every size; its error is reported

    def _entry(self, row: Record, topic_id: str) -> dict[str, Any]:
        topic_id, _, log = topic_id.partition(".")
        details = {"topic_id": topic_id, **({"log": log} if log else {})}
        if row["schema_id"] is not None:
            details["schema_id"] = str(row["schema_id"])
        milliseconds = row["timestamp_ms"]
        has_time = FIRST_MS <= milliseconds <= LAST_MS and milliseconds != NO_TIMESTAMP
        if not has_time:
            details["timestamp"] = str(milliseconds)
        return {
            "error_timestamp": datetime.now(UTC),
            "error_code": CANNOT_DECODE,
            "error_reason": "the record cannot be decoded",
            "error_message": row["reason"],
            "error_details": details,
            "processor": PROCESSOR,
            "affected_type": "key" if row["reason"].startswith("the key") else "value",
            "affected_catalog": CATALOG,
            "affected_database": self.spec.table_identifier(self._config)[0],
            "affected_name": self.spec.name,
            "source_record": {
                "topic": self.spec.name,
                "partition": row["partition"],
                "offset": row["offset"],
                "timestamp_type": "LOG_APPEND_TIME" if row["timestampType"] else "CREATE_TIME",
                "timestamp": milliseconds if has_time else None,
                "headers": {header["key"]: header["value"] for header in row["headers"] or ()},
                "key": row["key"],
                "value": row["value"],
            },
        }


def read_dead_letters(
    spec: TopicSpec, endpoints: Endpoints, log: int, topic_id: str | None
) -> Iterator[tuple[Message, bool]]:
    """Yield the records of a log that dead letters have, in order, and whether these are whole.

    None if their topic does not exist.

    :raises TopicbergError: Kafka does not answer
    """
    target, prefix = dead_letter_spec(spec).name, f"{spec.name}-".encode()
    schema = fastavro.parse_schema(json.loads(schema_path(Path(), ERROR_LOG_SCHEMA).read_text()))
    try:
        transactions.await_others(endpoints, target, TRANSACTION_SECONDS * 1.5)
        ends = kafka.topic_log(endpoints, target)
    except kafka.NoSuchTopicError:
        return
    ranges = {p: (ends.beginning.get(p, 0), end) for p, end in ends.end.items()}
    for message in messages(endpoints, target, ranges):
        if not (message.key() or b"").startswith(prefix):
            continue
        try:
            content = BytesIO((message.value() or b"")[WIRE_BYTES:])
            entry: Any = fastavro.schemaless_reader(content, schema, None)
        except Exception:  # noqa: S112  another writer's
            continue
        source, details = entry["source_record"], entry["error_details"]
        of_log = details.get("topic_id"), int(details.get("log", 0))
        own = PROCESSOR, spec.name, topic_id, log
        if (entry["processor"], source["topic"], *of_log) != own:
            continue
        time_ms = int(details.get("timestamp", NO_TIMESTAMP))
        if (moment := source["timestamp"]) is not None:
            time_ms = (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
        pair = source["key"], source["value"]
        kind = 1 + (source["timestamp_type"] == "LOG_APPEND_TIME")
        # Of records that the client cannot read, and of their headers, it has nothing.
        is_read = (pair, time_ms) != ((None, None), NO_TIMESTAMP)
        has_headers = not entry["error_message"].endswith(wrong_header("")[-20:])
        record = Message(
            *(spec.name, source["partition"], source["offset"], *pair),
            headers=[*source["headers"].items()],
            timestamp=(kind, time_ms),
        )
        yield record, "truncated" not in details and is_read and has_headers


class LeftOut:
    """SUSPEND: the topic stops before the record; SKIP: it is counted; LOG: it is a dead letter."""

    def __init__(
        self, spec: TopicSpec, endpoints: Endpoints, config: Settings, check: Callable[[], None]
    ) -> None:
        """:param check: raises if the batch is not to be committed any more"""
        self._spec, self._check = spec, check
        is_logged = spec.tableflow.error_handling.mode == "LOG"
        self._dead_letters = DeadLetters(spec, endpoints, config) if is_logged else None

    def malformed(
        self, plan: BatchPlan, table: Table, rejections: Rejections, hint: str | None = None
    ) -> None:
        """Treat malformed records; raise TableflowError before the first of them (SUSPEND)."""
        if rejections.first is None:
            return
        name, ((partition, offset), reason, _) = self._spec.name, rejections.first
        if rejections.is_final:
            raise TableflowError(
                f"topic {name}, partition {partition}, offset {offset}: {reason}",
                hint=hint
                or f"fix the producer, or run `topicberg tableflow enable {name} --error-handling "
                "LOG` to send such records to a dead-letter topic (SKIP leaves them out)",
            )
        self._check()
        if self._dead_letters is not None:
            self._dead_letters.write(table, plan.topic_id, plan.batch.start, rejections.records)
        else:
            logger.warning(
                "topic %s: skipped %s; the first one, partition %d, offset %d: %s",
                *(name, count(rejections.count, "record"), partition, offset, reason),
            )

    def failing(self, plan: BatchPlan, table: Table) -> None:
        """Write dead letters of records that fail by themselves, and are left out now (LOG)."""
        letters, lost = self._dead_letters, sorted(plan.failing.keys() & plan.batch.skipped)
        if letters is not None and lost:
            records = [
                letters.record(place, skip.reason, is_readable=skip.end is None)
                for place in lost
                for skip in [plan.failing[place]]
            ]
            letters.write(table, plan.topic_id, plan.batch.start, records)

    def refused(
        self, plan: BatchPlan, table: Table, refused: Mapping[PartitionOffset, str]
    ) -> None:
        """Treat changes that cannot be applied like malformed records."""
        if not refused:
            return
        changes, letters = sorted(refused.items()), self._dead_letters
        rejections = Rejections(self._spec.tableflow.error_handling.mode, len(changes))
        rejections.first = *changes[0], None
        rejections.records = [dict(letters.record(*change)) for change in changes if letters]
        partition, offset = changes[0][0]
        hint = (
            "set REPLICA IDENTITY FULL in the source and let Debezium read the row again with an "
            f"incremental snapshot; or run `topicberg tableflow skip {self._spec.name} {partition} "
            f"{offset}`"
        )
        self.malformed(plan, table, rejections, hint)
