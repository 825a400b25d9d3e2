"""The newest records of a topic, decoded by the schemas of the registry, without Spark.

A record counts as malformed if the engine's own search for a reason finds one.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

from confluent_kafka import Message
from pyiceberg import types as T

from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import SpecError, TopicbergError
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import format_of
from topicberg.formats.framing import Framed, framed, framed_by_glue, header_of, id_of, payload
from topicberg.formats.metadata import HEADERS
from topicberg.formats.reasons import MalformedError, not_text
from topicberg.formats.table import Part
from topicberg.iceberg.tables import find_table
from topicberg.kafka import discovery
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.kafka.records import headers_of
from topicberg.settings import Settings
from topicberg.tableflow.changelog.changes import envelope, key_names
from topicberg.tableflow.layout.framing import framing
from topicberg.tableflow.layout.layout import (
    event_time,
    foreign_schemas,
    read_layout,
    row_columns,
    table_schema,
)
from topicberg.tableflow.layout.message_fields import MessageField, raw_columns
from topicberg.tableflow.layout.writers import Writers, candidates, named, resolved
from topicberg.tableflow.service.control import find_topic
from topicberg.tableflow.values.metadata import NO_TIMESTAMP, wrong_header
from topicberg.topics.discovery import FoundTopic, found_document
from topicberg.topics.loader import check_topics
from topicberg.topics.schema import SECTIONS
from topicberg.topics.spec import TopicSpec, default_subject

MAX_RECORDS = 1_000
_EPOCH, _EXACT = datetime(1970, 1, 1), Context(prec=80)
_WIDEST = 64
"""How many times more offsets than records are read, if the log has gaps."""


@dataclass(frozen=True)
class PeekedRecord:
    """A record of a topic.

    :param key, value: as JSON; of a malformed half its bytes in hex
    :param schema_id: of the value's schema; of AWS Glue, the UUID of its version
    :param problem: why it is malformed; None: it is not
    """

    partition: int
    offset: int
    timestamp: str | None
    key: Any
    value: Any
    headers: dict[str, Any] | list[dict[str, Any]]
    schema_id: int | str | None
    problem: str | None
    notes: Sequence[str] = ()
    """Why the key or the value is shown as bytes though it is not malformed."""


def newest(topic: str, number: int, endpoints: Endpoints, config: Settings) -> list[PeekedRecord]:
    """Return the newest records of a topic, by their timestamps, the newest one last.

    :param number: the most records to return
    :raises SpecError: the number is out of range
    :raises TopicbergError: there is no such topic, or a service does not answer
    """
    if not 1 <= number <= MAX_RECORDS:
        raise SpecError(f"{number} records: from 1 to {MAX_RECORDS:,} can be shown")
    try:
        raw_messages = newest_messages(topic, number, endpoints)
    except kafka.NoSuchTopicError as error:
        raise kafka.NoSuchTopicError(
            error.message, hint=_how_to_find(topic, endpoints, config)
        ) from None
    return [*map(_Decoder(topic, endpoints, config).record, raw_messages)]


def _how_to_find(topic: str, endpoints: Endpoints, config: Settings) -> str:
    """Return what to do about a topic that Kafka does not have."""
    if spec := next((one for one in check_topics(config)[0] if one.name == topic), None):
        own = f"run `topicberg tableflow enable {topic}`: the engine then creates it by its spec"
        of_others = "create it, or ask its owner: its spec says `external`, so topicberg does not"
        return of_others if spec.external else own
    close = difflib.get_close_matches(topic, discovery.list_topics(endpoints), n=1)
    return f"write {close[0]}, if you mean that topic" if close else "check the name of the topic"


def newest_messages(topic: str, number: int, endpoints: Endpoints) -> list[Message]:
    """Return the newest records of a topic, by their timestamps, the newest one last: back from the
    ends, further if transactions or compaction left gaps."""
    begin, end = kafka.beginning_offsets(endpoints, topic), kafka.end_offsets(endpoints, topic)
    step = number
    while True:
        ranges = {p: (max(begin.get(p, 0), last - step), last) for p, last in end.items()}
        raw_messages = sorted(messages(endpoints, topic, ranges), key=_age)[-number:]
        whole = all(start <= begin.get(p, 0) for p, (start, _) in ranges.items())
        if len(raw_messages) == number or whole or step >= number * _WIDEST:
            return raw_messages
        step *= 8


def _age(message: Message) -> tuple[int, int, int]:
    return message.timestamp()[1], message.partition() or 0, message.offset() or 0


class _Decoder:
    """Decodes the records of one topic as its engine would."""

    def __init__(self, topic: str, endpoints: Endpoints, config: Settings) -> None:
        registry = endpoints.schema_registry_client()
        readers = schema_readers(endpoints, config, registry)
        self._spec = _spec(topic, endpoints, config)
        self._foreign = foreign_schemas(self._spec, readers)
        self._framing = framing(self._spec, endpoints, registry)
        if self._framing is not None:
            begin = kafka.beginning_offsets(endpoints, topic)
            self._framing.learn_from(begin, kafka.end_offsets(endpoints, topic))
        layout = read_layout(self._spec, readers, config)
        self._halves: dict[Part, MessageField] = {"key": layout.key, "value": layout.value}
        fields = _columns(self._spec, endpoints, config)
        fields = table_schema(self._spec, layout).fields if fields is None else fields
        self._texts = raw_columns(layout, fields)[1]
        own = {"key": fields, "value": fields}
        if self._spec.changelog is not None:
            keys = key_names(layout)
            own["key"] = [field for field in fields if field.name in keys]
            own["value"] = envelope(layout, row_columns(self._spec, fields))
        self._event_time = event_time(self._spec, fields)
        self._names_schemas = bool(layout.value.subject) and layout.value.framing != "none"
        self._writers = {
            name: Writers(half, self._foreign[name], own[name])
            for name, half in self._halves.items()
            if half.subject
        }

    def record(self, message: Message) -> PeekedRecord:
        raw = {"key": message.key(), "value": message.value()}
        headers = headers_of(message)
        problems, notes, shown = list[str](), list[str](), dict[str, Any]()
        ids: dict[str, int | str | None] = {}
        kind, milliseconds = message.timestamp()
        time_ms = milliseconds if kind else NO_TIMESTAMP
        for name, half in self._halves.items():
            header = header_of(name, headers or ())
            shown[name], problem, ids[name] = self._half(name, half, raw[name], header, time_ms)
            problems += [problem] if problem else []
            if problem is None and shown[name] == f"0x{(raw[name] or b'').hex()}":
                notes.append(f"the {name} is shown as bytes: {self._why_bytes(name, ids[name])}")
        if self._spec.is_compacted and raw["key"] is None:
            problems.insert(0, "the record has no key to upsert by")
        may_delete = self._spec.write_mode == "upsert" or self._spec.changelog is not None
        if headers is None and not (may_delete and raw["value"] is None):
            problems.insert(0, wrong_header(self._spec.metadata_column(HEADERS)))
        pairs = [(name, _bytes(value)) for name, value in headers or ()]
        return PeekedRecord(
            partition=message.partition() or 0,
            offset=message.offset() or 0,
            timestamp=_moment(milliseconds) if kind else None,
            key=shown["key"],
            value=shown["value"],
            headers=[{"key": name, "value": value} for name, value in pairs]
            if self._spec.table.headers == "list"
            else dict(pairs),
            schema_id=ids["value"] if self._names_schemas else None,
            problem="; ".join(problems) or None,
            notes=notes,
        )

    def _why_bytes(self, name: Part, schema_id: int | str | None) -> str:
        """Return why a key or a value that is not malformed is not decoded."""
        if schema_id is not None:
            return f"its schema {schema_id} is unknown to the registry, or does not fit the bytes"
        if self._spec.section(name).has_schema:
            return "it does not name a schema of the registry"
        subject = default_subject(self._spec.name, name, "confluent")
        return (
            f"it is not text, and the registry has no subject {subject}, or the spec says "
            f"{SECTIONS[name]}.format {self._spec.section(name).format}"
        )

    def _half(
        self, name: Part, half: MessageField, raw: bytes | None, header: bytes | None, time_ms: int
    ) -> tuple[Any, str | None, int | str | None]:
        """Return the key or the value, why it is malformed, and the id of its schema."""
        if raw is None:
            return None, None, None
        if half.subject is None and not self._spec.section(name).has_schema:
            return _bytes(raw), not_text(name, raw) if name in self._texts else None, None
        own, malformed = raw, None
        try:
            if self._framing is not None and header is None:
                own = self._framing.wire(half, raw)
        except MalformedError as error:
            malformed = str(error)
        if half.subject is not None:
            record = half.record_framing().framed(own, header)
        elif half.framing == "glue":
            record = framed_by_glue(name, own)
        else:
            record = framed(name, own, header)
        schema = None if isinstance(record, str) else record.schema
        if schema is not None and (half.subject is None or schema not in half.subject.schemas):
            self._foreign[name].look_up([schema])
        guids = self._foreign[name].guids
        number = None if schema is None else id_of(schema, guids)
        shown = str(schema) if half.framing == "glue" and schema is not None else number
        if half.subject is None:
            return self._of_any_type(name, number, record, raw), None, shown
        if malformed is not None:
            return _bytes(raw), malformed, shown
        half = replace(half, subject=replace(half.subject, guids=guids))
        writers = replace(self._writers[name], half=half)
        writers.refused.clear()
        writers.accepted.update(candidates(writers))
        pairings = {of: writers.pairing(writer) for of, writer in writers.accepted.items()}
        refused = {**writers.foreign.missing, **writers.refused}
        try:
            pairing, body = resolved(name, record, guids, pairings, refused)
        except MalformedError as error:
            return _bytes(raw), str(error), shown
        try:
            stored, record_shown = _decoded(pairing, body)
            return record_shown, self._time_problem(name, stored, time_ms), shown
        except MalformedError as error:
            return _bytes(raw), named(name, str(error)), shown
        except Exception as error:  # from a library
            return _bytes(raw), f"the {name} cannot be shown: {error}", shown

    def _time_problem(self, name: Part, values: Mapping[str, Any], time_ms: int) -> str | None:
        """Return why the event time of a record makes it malformed; None: it does not."""
        own = self._event_time
        if own is None or own.otherwise != "malformed":
            return None
        if own.path[0] not in {field.name for field in self._halves[name].fields()}:
            return None
        stored: Any = values
        for part in own.path:
            stored = None if stored is None else stored.get(part)
        micros_or_reason = own.micros(own.of_stored(stored), time_ms)
        return micros_or_reason if isinstance(micros_or_reason, str) else None

    def _of_any_type(self, name: str, number: int | None, record: Framed | str, raw: bytes) -> Any:
        """Return the value of a half with several event types, decoded, or its bytes."""
        if number is None or isinstance(record, str):
            return _bytes(raw)
        writer = self._foreign[name].schemas.get(number)
        body = payload(name, record, writer.schema_type) if writer else ""
        with suppress(Exception):  # from a library
            if writer is not None and not isinstance(body, str):
                columns = format_of(writer).fields(f"schema {number}", writer, itertools.count(1))
                return _decoded(ResolvedSchema(writer, writer, columns), body)[1]
        return _bytes(raw)


def _spec(topic: str, endpoints: Endpoints, config: Settings) -> TopicSpec:
    """Return the topic's spec, or for a topic without one, what Kafka and the registry say."""
    try:
        return find_topic(config, topic)
    except SpecError:
        kafka.topic_id(endpoints, topic)  # which names a topic that does not exist
    discovered = discovery.find_topic(topic, endpoints)
    given = {"schema": {"format": "none"}} if discovered is None or discovered.value is None else {}
    discovered = discovered or FoundTopic(partitions=1, is_compacted=False)
    return TopicSpec.model_validate(
        found_document(topic, discovered, "none", given, own_engine=config.own_engine)
    )


def _columns(
    spec: TopicSpec, endpoints: Endpoints, config: Settings
) -> Sequence[T.NestedField] | None:
    """Return the columns of the topic's table; None: no table, or the catalog does not answer."""
    try:
        table = find_table(endpoints.catalog(config), spec.table_identifier(config))
    except (TopicbergError, OSError):
        return None
    return table.schema().fields if table else None


# --- values as JSON ---


def _decoded(pairing: ResolvedSchema, payload: bytes) -> tuple[Mapping[str, Any], Any]:
    """Return the stored values of a record, and the same for people."""
    values = format_of(pairing.writer).record_decoder(pairing)(payload)
    return values, _row(values, pairing.fields)


def _row(values: Mapping[str, Any], columns: Sequence[T.NestedField]) -> dict[str, Any]:
    """Return stored values for people, those that the record has."""
    kinds = {column.name: column.field_type for column in columns}
    return {name: _shown(value, kinds[name]) for name, value in values.items()}


def _shown(value: Any, column: T.IcebergType) -> Any:
    """Return a stored value, as a record decoder returns it, for people, as JSON."""
    if value is None:
        return None
    match column:
        case T.StructType():
            return _row(value, column.fields)
        case T.ListType():
            return [_shown(item, column.element_type) for item in value]
        case T.MapType():
            return {
                str(_shown(key, column.key_type)): _shown(item, column.value_type)
                for key, item in value
            }
        case T.DecimalType():
            return f"{Decimal(value).scaleb(-column.scale, _EXACT):f}"
        case T.DateType():
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        case T.TimestampType():
            return (_EPOCH + timedelta(microseconds=value)).isoformat()
        case T.TimestamptzType():
            return (_EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=value)).isoformat()
    return _plain(value)


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return f"0x{value.hex()}"
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def _bytes(raw: bytes | str | None) -> str | None:
    """Return text if it is text without control characters, else hex."""
    if raw is None or isinstance(raw, str):
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"0x{raw.hex()}"
    return text if text.isprintable() or not text else f"0x{raw.hex()}"


def _moment(milliseconds: int) -> str:
    try:
        moment = _EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        return moment.isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{milliseconds} ms"
