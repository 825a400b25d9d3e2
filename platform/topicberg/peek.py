"""The newest records of a topic, decoded by the schemas of the registry, without Spark.

A record counts as malformed if the engine's own search for a reason finds one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from topicberg import kafka
from topicberg.clients.registry import registry_errors
from topicberg.errors import SpecError, TopicbergError
from topicberg.formats import protobuf
from topicberg.formats.reasons import UNEXPLAINED
from topicberg.formats.subjects import WIRE_BYTES, RegisteredSchema, SubjectReader
from topicberg.kafka.consumer import messages
from topicberg.tableflow.changes import envelope, key_names
from topicberg.tableflow.control import find_topic
from topicberg.tableflow.foreign import ForeignSchemas
from topicberg.tableflow.framing import framing
from topicberg.tableflow.layout import Half, read_layout, table_schema
from topicberg.tableflow.rows import Writers, _candidates
from topicberg.topics.spec import TopicSpec

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyiceberg.types import NestedField

    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings

MAX_RECORDS = 1_000
_GOOD = (UNEXPLAINED, "the record does not fit schema ")
_WIDEST = 64
"""How many times more offsets than records are read, if the log has gaps."""


@dataclass(frozen=True)
class Record:
    """A record of a topic.

    :param key, value: as JSON; of a malformed half its bytes in hex
    :param problem: why it is malformed; None: it is not
    """

    partition: int
    offset: int
    timestamp: str | None
    key: Any
    value: Any
    headers: dict[str, Any]
    schema_id: int | None
    problem: str | None


def newest(topic: str, number: int, endpoints: Endpoints, config: Settings) -> list[Record]:
    """Return the newest records of a topic, by their timestamps, the newest one last.

    :param number: the most records to return
    :raises SpecError: the number is out of range
    :raises TopicbergError: there is no such topic, or a service does not answer
    """
    if not 1 <= number <= MAX_RECORDS:
        raise SpecError(f"{number} records: from 1 to {MAX_RECORDS:,} can be shown")
    found = newest_messages(topic, number, endpoints)
    decoder = _Decoder(topic, endpoints, config)
    return [decoder.record(message) for message in found]


def newest_messages(topic: str, number: int, endpoints: Endpoints) -> list[Message]:
    """Return the newest records of a topic, by their timestamps, the newest one last.

    It reads back from the ends, further if transactions or compaction left gaps.
    """
    begin, end = kafka.beginning_offsets(endpoints, topic), kafka.end_offsets(endpoints, topic)
    step = number
    while True:
        ranges = {p: (max(begin.get(p, 0), last - step), last) for p, last in end.items()}
        found = sorted(messages(endpoints, topic, ranges), key=_age)[-number:]
        whole = all(start <= begin.get(p, 0) for p, (start, _) in ranges.items())
        if len(found) == number or whole or step >= number * _WIDEST:
            return found
        step *= 8


def _age(message: Message) -> tuple[int, int, int]:
    return message.timestamp()[1], message.partition() or 0, message.offset() or 0


class _Decoder:
    """Decodes the records of one topic as its engine would."""

    def __init__(self, topic: str, endpoints: Endpoints, config: Settings) -> None:
        self._subjects = SubjectReader(endpoints.schema_registry_client())
        self._foreign = ForeignSchemas(self._subjects)
        self._spec = _spec(topic, endpoints, config)
        self._framing = framing(self._spec, endpoints, endpoints.schema_registry_client())
        if self._framing is not None:
            begin = kafka.beginning_offsets(endpoints, topic)
            self._framing.learn_from(begin, kafka.end_offsets(endpoints, topic))
        layout = read_layout(self._spec, self._subjects)
        self._halves = {"key": layout.key, "value": layout.value}
        fields: Sequence[NestedField] = table_schema(self._spec, layout).fields
        if (held := _columns(self._spec, endpoints, config)) is not None:
            fields = held
        own = {"key": fields, "value": fields}
        if self._spec.changelog is not None:
            keys = key_names(layout)
            own["key"] = [field for field in fields if field.name in keys]
            own["value"] = envelope(self._spec, layout, fields)
        self._writers = {
            name: Writers(half, self._foreign, own[name])
            for name, half in self._halves.items()
            if half.subject
        }

    def record(self, message: Message) -> Record:
        raw = {"key": message.key(), "value": message.value()}
        problems: list[str] = []
        shown: dict[str, Any] = {}
        for name, half in self._halves.items():
            shown[name], problem = self._half(name, half, raw[name])
            problems += [problem] if problem else []
        is_keyed = self._spec.write_mode == "upsert" and self._spec.changelog is None
        if is_keyed and raw["key"] is None:
            problems.insert(0, "the record has no key to upsert by")
        kind, milliseconds = message.timestamp()
        listed: Any = message.headers() or []
        headers = {name: _bytes(value) for name, value in listed}
        return Record(
            partition=message.partition() or 0,
            offset=message.offset() or 0,
            timestamp=_moment(milliseconds) if kind else None,
            key=shown["key"],
            value=shown["value"],
            headers=headers,
            schema_id=_schema_id(raw["value"]) if self._halves["value"].subject else None,
            problem="; ".join(problems) or None,
        )

    def _half(self, name: str, half: Half, raw: bytes | None) -> tuple[Any, str | None]:
        """Return the key or the value, and why it is malformed."""
        if raw is None:
            return None, None
        whole = raw
        if self._framing is not None:
            raw = self._framing.of(half, raw)
        number = _schema_id(raw)
        if half.subject is None:
            return self._of_any_type(name, number, raw), None
        writers = self._writers[name]
        if number is not None and number not in half.subject.schemas:
            self._foreign.look_up([number])
        writers.refused.clear()
        writers.accepted.update(_candidates(writers))
        problem = writers.problem(whole, self._framing)
        if not problem.removeprefix("the key: ").startswith(_GOOD):
            return _bytes(raw), problem
        assert number is not None  # noqa: S101  it is an accepted one's
        try:
            return _decoded(writers.accepted[number], raw[WIRE_BYTES:]), None
        except (
            Exception
        ) as error:  # from a library, for records that the engine may be able to read
            return _bytes(raw), f"the {name} cannot be shown: {error}"

    def _of_any_type(self, name: str, number: int | None, raw: bytes) -> Any:
        """Return the value of a half with several event types, decoded, or its bytes."""
        schema = self._spec.key if name == "key" else self._spec.value_schema
        if number is None or schema.format in ("none", "string"):
            return _bytes(raw)
        self._foreign.look_up([number])
        writer = self._foreign.schemas.get(number)
        try:
            return _decoded(writer, raw[WIRE_BYTES:]) if writer else _bytes(raw)
        except Exception:  # from a library
            return _bytes(raw)


def _spec(topic: str, endpoints: Endpoints, config: Settings) -> TopicSpec:
    """Return the topic's spec, or for a topic without one, a spec from the registry."""
    try:
        return find_topic(config, topic)
    except SpecError:
        kafka.topic_id(endpoints, topic)
    registry = endpoints.schema_registry_client()
    formats = {}
    for half in ("key", "value"):
        subject = f"{topic}-{half}"
        with registry_errors(f"subject {subject}"):
            found = kafka.latest_version(registry, subject)
        kind = found.schema.schema_type if found and found.schema else "none"
        formats[half] = {"format": (kind or "AVRO").lower()}
    return TopicSpec.model_validate(
        {"name": topic, "pipeline": "none", "schema": formats["value"], "key": formats["key"]}
    )


def _columns(
    spec: TopicSpec, endpoints: Endpoints, config: Settings
) -> Sequence[NestedField] | None:
    """Return the columns of the topic's table; None: no table, or the catalog does not answer."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = endpoints.catalog(config).load_table(spec.table_identifier(config))
    except (NoSuchTableError, TopicbergError, OSError):
        return None
    return table.schema().fields


def _schema_id(raw: bytes | None) -> int | None:
    if raw is None or len(raw) < WIRE_BYTES or raw[0] != 0:
        return None
    return int.from_bytes(raw[1:WIRE_BYTES], "big")


# --- values as JSON ---


def _decoded(writer: RegisteredSchema, payload: bytes) -> Any:
    value: Any = None
    match writer.schema_type:
        case "AVRO":
            from fastavro import schemaless_reader

            value = schemaless_reader(io.BytesIO(payload), _avro(writer), None)
        case "JSON":
            value = json.loads(payload, parse_float=_number)
            if writer.wrapped_as is not None:
                value = {writer.wrapped_as: value}
        case "PROTOBUF":
            value = _protobuf(writer, payload)
    return _plain(value)


@lru_cache(maxsize=64)
def _avro(writer: RegisteredSchema) -> Any:
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    for _, text in writer.references:
        parse_schema(json.loads(text), named)
    return parse_schema(json.loads(writer.text), named)


def _protobuf(writer: RegisteredSchema, payload: bytes) -> Any:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message_factory import GetMessageClass

    file = protobuf._file("the schema", writer)
    indexes = protobuf._indexes(payload) or [0]
    types = list(file.message_types_by_name.values())
    message = None
    for index in indexes:
        message = types[index]
        types = list(message.nested_types)
    start = max(len(prefix) for prefix in protobuf._prefixes(indexes) if payload.startswith(prefix))
    parsed = GetMessageClass(message)()
    parsed.ParseFromString(payload[start:])
    return MessageToDict(parsed, preserving_proto_field_name=True, descriptor_pool=file.pool)


def _number(text: str) -> float | str:
    """Return a number that a double represents exactly, else its text."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


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
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds")
