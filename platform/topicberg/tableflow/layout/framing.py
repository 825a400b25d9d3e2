"""Changes in JSON without Confluent's wire format: with a schema in each record, or with none.

Such a record is read as if it were in the wire format. A schema in the record is registered in the
subject, once; so the table follows it as any other version. A record without one is of the newest
version, which the spec's schema file defines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from topicberg.clients.registry import registry_errors
from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.formats.envelope import AFTER, OPERATION, SOURCE
from topicberg.formats.json import connect as connect_json
from topicberg.formats.subjects import MAX_SCHEMA_BYTES
from topicberg.kafka.consumer import messages
from topicberg.kafka.offsets import Offsets, PartitionOffset, Ranges
from topicberg.kafka.records import DamagedRecordsError, place_of
from topicberg.tableflow.layout.inline_schemas import Frame, InlineSchemas
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, MessageField
from topicberg.topics import TopicSpec
from topicberg.topics.schema import PARTS
from topicberg.topics.spec import SchemaSection

MAX_OPENINGS, MAX_BYTES = 500, 16 * MAX_SCHEMA_BYTES
"""The most schemas in records that are known, and their total size."""
REFUSED_SECONDS = 20.0
"""How long a refused schema is not registered again."""
_MISSING, _CONFLICT, _INVALID = 404, 409, 422


@dataclass
class _Known:
    """The schemas of the keys, or of the values."""

    openings: dict[Frame, int | None] = field(default_factory=dict)
    """What surrounds a payload → the id of its schema; None: it names no schema."""
    refused: dict[Frame, tuple[str, float]] = field(default_factory=dict)
    """Why the schema cannot be used, and until when it is not registered again."""


class Framing:
    """Turns keys and values of one topic into the wire format."""

    def __init__(
        self, spec: TopicSpec, endpoints: Endpoints, registry: SchemaRegistryClient
    ) -> None:
        self._spec, self._endpoints, self._registry = spec, endpoints, registry
        self._subjects: dict[str, str] = {
            part: spec.subject(part) for part in PARTS if _is_recognized(spec.section(part))
        }
        self._known = {part: _Known() for part in self._subjects}
        self._has_read, self._lookups = False, 0

    def learn_from(self, begin: Offsets, end: Offsets) -> None:
        """Register the schemas of the first and the last record of each partition, once.

        :raises TableflowError: they cannot be used, and the registry has no others
        """
        if self._has_read:
            return
        starts = {p: begin.get(p, 0) for p in end}
        self._learn(self._read({p: (starts[p], min(starts[p] + 1, e)) for p, e in end.items()}))
        self._learn(self._read({p: (max(starts[p], e - 1), e) for p, e in end.items()}))
        # A topic without a change of a row is read again: the registry may have no schema yet.
        values = self._known.get(VALUE, _Known())
        has_none = bool(values.refused and not values.openings)
        self._has_read = any(end.values()) and not has_none
        if has_none and not self._is_registered(VALUE):
            raise TableflowError(
                f"topic {self._spec.name}: {next(iter(values.refused.values()))[0]}",
                hint="remove `changelog` from the spec, unless changes of rows are still to come",
            )

    def look_up(
        self, places: Iterable[PartitionOffset], records: Iterable[Message] | None = None
    ) -> bool:
        """Register the schemas of records that differ in them; return whether one is new.

        :param records: those at the places, and others; None: the log has them
        """
        allowed = dict.fromkeys(islice(places, max(0, MAX_OPENINGS - self._lookups)))
        self._lookups += len(allowed)
        if records is not None:
            return self._learn([each for each in records if place_of(each) in allowed])
        learnt = [self._learn(self._read({p: (offset, offset + 1)})) for p, offset in allowed]
        return any(learnt)

    def _read(self, ranges: Ranges) -> list[Message]:
        try:
            return list(messages(self._endpoints, self._spec.name, ranges))
        except DamagedRecordsError:
            return []

    def _learn(self, records: list[Message]) -> bool:
        has_learnt = False
        for message in sorted(records, key=lambda each: each.timestamp()[1]):
            other = _other_record(message.value())
            key = message.key() if other is None else None
            for half, raw in ((KEY, key), (VALUE, message.value())):
                if raw is not None and half in self._subjects:
                    has_learnt |= self._register(half, raw, other)
        return has_learnt

    def _register(self, half: str, raw: bytes, other: str | None) -> bool:
        """Register the schema of a record; return whether more is known of it than before.

        :param other: why the record is no change of a row, so its schema is not the table's
        """
        known = self._known[half]
        opening = connect_json.opening(raw)
        if opening is None or (frame := (opening.text, opening.rest)) in known.openings:
            return False
        if known.refused.get(frame, ("", 0.0))[1] > time.monotonic():
            return False
        try:
            if other is not None:
                raise TableflowError(other)
            size = sum(len(before) + len(after) for before, after in (*known.openings, frame))
            if len(known.openings) >= MAX_OPENINGS or size > MAX_BYTES:
                raise TableflowError(
                    f"the records have more than {MAX_OPENINGS} different schemas, or {MAX_BYTES} "
                    "characters of them",
                    hint="let the connector write one table to one topic",
                )
            number = None
            if opening.schema is not None:
                number = self._registered(half, connect_json.json_schema(opening.schema))
        except TableflowError as error:
            if len(known.refused) >= MAX_OPENINGS:
                known.refused.clear()
            known.refused[frame] = error.message, time.monotonic() + REFUSED_SECONDS
        else:
            known.openings[frame] = number
        return True

    def _registered(self, half: str, text: str) -> int:
        subject = self._subjects[half]
        with registry_errors(f"subject {subject}"):
            try:
                return self._registry.register_schema(subject, Schema(text, "JSON"))
            except SchemaRegistryError as error:
                if error.http_status_code not in (_CONFLICT, _INVALID):
                    raise
                raise TableflowError(
                    f"the schema registry refuses the schema of the record for the subject "
                    f"{subject}: {error.error_message}",
                    hint="set schema.compatibility and key.compatibility of the spec to NONE",
                ) from None

    def _is_registered(self, half: str) -> bool:
        subject = self._subjects[half]
        with registry_errors(f"subject {subject}"):
            try:
                self._registry.get_latest_version(subject)
            except SchemaRegistryError as error:
                if error.http_status_code != _MISSING:
                    raise
                return False
        return True

    def begin_batch(self) -> None:
        self._lookups = 0

    def inline(self, half: MessageField) -> InlineSchemas | None:
        """Return what brings keys or values into the wire format; None: they are."""
        if half.column not in self._subjects or half.latest is None:
            return None
        known, now = self._known[half.column], time.monotonic()
        refused = {text: reason for text, (reason, until) in known.refused.items() if now < until}
        openings = tuple(known.openings.items())
        return InlineSchemas(half.column, half.latest.schema_id, openings, refused)

    def inline_schemas(self, layout: Layout) -> dict[str, InlineSchemas]:
        """Return the same for the halves that are not in the wire format."""
        # Of a record that is not a change of a row, the value says so.
        return {
            half.column: inline
            for half in (layout.value, layout.key)
            if (inline := self.inline(half)) is not None
        }

    def wire(self, half: MessageField, raw: bytes) -> bytes:
        """Return a key or value in the wire format; MalformedError: its schema cannot be used."""
        inline = self.inline(half)
        return raw if inline is None else inline.wire(raw)


def _other_record(value: bytes | None) -> str | None:
    """Return why a record with a schema is not a change of a row; None: it may be one. Some
    connectors write schema changes and watermarks into the topic of a table."""
    opening = None if value is None else connect_json.opening(value)
    if opening is None or opening.schema is None:
        return None
    fields = opening.schema.get("fields")
    names = [field.get("field") for field in fields or () if isinstance(field, dict)]
    if {AFTER, SOURCE, OPERATION} <= {*names}:
        return None
    return "the record is not a change of a row (after, source, op): its fields are " + ", ".join(
        map(str, names)
    )


def _is_recognized(own: SchemaSection) -> bool:
    """Return whether each record shows whether it names a schema, has one or none."""
    return own.format == "json" and own.framing == "confluent"


def framing(
    spec: TopicSpec, endpoints: Endpoints, registry: SchemaRegistryClient
) -> Framing | None:
    """Return what frames the records of a topic; None: they are in the wire format already."""
    is_recognized = _is_recognized(spec.value_schema) or _is_recognized(spec.key)
    is_framed = spec.changelog is not None and is_recognized
    return Framing(spec, endpoints, registry) if is_framed else None
