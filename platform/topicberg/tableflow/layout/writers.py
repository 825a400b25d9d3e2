"""The schemas by which the key, or the value, of a topic's records is decoded.

These are the versions of the subject, and schemas of other subjects that records name and that have
the same type.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

from pyiceberg.types import NestedField

from topicberg.errors import TableflowError
from topicberg.formats import framing
from topicberg.formats.columnar.program import NotCoveredError, ProgramCode, Programs, Shape
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.dispatch import as_read, format_of
from topicberg.formats.framing import Framed, RecordFraming, id_of
from topicberg.formats.framing import payload as payload_of
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import (
    DEFAULT_CONTEXT,
    RegisteredSchema,
    SchemaReader,
    SchemaType,
    Subject,
)
from topicberg.tableflow.layout.message_fields import (
    UNREADABLE_SCHEMA,
    VALUE,
    MessageField,
    sameness,
    twins,
)

logger = logging.getLogger(__name__)
MAX_SCHEMAS = 1_000
"""The most schemas, and the most missing ids, that are cached."""
MAX_CHARACTERS = 64 * 1024 * 1024
"""Total size of the cached schemas."""
MAX_LOOKUPS = 1_000
"""Ids that are looked up for one batch."""
MISSING_SECONDS = 20.0
MAX_FOREIGN_WRITERS = 100
"""The most schemas of other subjects by which the records of one batch are decoded."""
UNKNOWN = "which is not looked up: one batch names too many schemas of other subjects"


class ForeignSchemas:
    """Schemas of the registry for ids that records name and their subjects do not have.

    A producer may write any bytes as an id or a GUID, so the cache is bounded. What is missing is
    looked up again after :data:`MISSING_SECONDS`: it may be registered later.
    """

    def __init__(
        self,
        subjects: SchemaReader,
        context: str = DEFAULT_CONTEXT,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param context: of the registry, which has ids of its own"""
        self._subjects, self._context, self._now = subjects, context, now
        self.schemas: OrderedDict[int, RegisteredSchema] = OrderedDict()
        """The schemas found in the registry, by id."""
        self._missing: OrderedDict[int | UUID, tuple[str, float]] = OrderedDict()
        self._lookups = 0

    @property
    def missing(self) -> Mapping[int | UUID, str]:
        """What the registry recently did not have, or had only in part, and why."""
        now = self._now()
        return {number: why for number, (why, until) in self._missing.items() if now < until}

    @property
    def guids(self) -> dict[UUID, int]:
        """The GUIDs that are known, and their ids."""
        return self._subjects.guids(self._context)

    def begin_batch(self) -> None:
        """Allow :data:`MAX_LOOKUPS` lookups again."""
        self._lookups = 0

    def look_up(self, named: Iterable[int | UUID]) -> bool:
        """Look up ids and GUIDs in the registry; return whether a schema was found.

        :raises TopicbergError: the registry does not answer
        """
        missing, guids = self.missing, self.guids
        new = [
            reference
            for reference in named
            if reference not in missing and id_of(reference, guids) not in self.schemas
        ][: MAX_LOOKUPS - self._lookups]
        self._lookups += len(new)
        are_new = [
            self._look_up_guid(reference)
            if isinstance(reference, UUID)
            else self._look_up(reference)
            for reference in new
        ]
        return any(are_new)

    @property
    def _unknown(self) -> str:
        is_named = self._context.startswith(DEFAULT_CONTEXT) and self._context != DEFAULT_CONTEXT
        inside = f" in the context {self._context}" if is_named else ""
        return f"which {self._subjects.name} does not have{inside}"

    def _look_up_guid(self, guid: UUID) -> bool:
        try:
            number, why = self._subjects.id_of(guid, self._context), self._unknown
        except TableflowError as error:
            number, why = None, f"which cannot be read: {error.message}"
        if number is None:
            self._missing[guid] = why, self._now() + MISSING_SECONDS
            return False
        if number in self.schemas or self._look_up(number):
            return True
        self._missing[guid] = self._missing[number]
        return False

    def _look_up(self, number: int) -> bool:
        try:
            schema = self._subjects.by_id(number, self._context)
            why = self._unknown
        except TableflowError as error:  # due to this schema, e.g. a missing reference
            schema, why = None, f"which cannot be read: {error.message}"
        if schema is not None:
            self.schemas[number] = schema
            self._missing.pop(number, None)
        else:
            self._missing[number] = why, self._now() + MISSING_SECONDS
        for kept in (self.schemas, self._missing):
            while len(kept) > MAX_SCHEMAS:
                kept.popitem(last=False)
        while sum(stored.size for stored in self.schemas.values()) > MAX_CHARACTERS:
            self.schemas.popitem(last=False)
        return schema is not None


@dataclass(frozen=True)
class Writers:
    """The schemas by which the key, or the value, of a topic's records is decoded."""

    half: MessageField
    foreign: ForeignSchemas
    fields: Sequence[NestedField]
    """The columns that the half may fill: the table's, those of a key without the fields that it
    shares with the value, or the envelope of a change."""
    accepted: dict[int, RegisteredSchema] = field(default_factory=dict)
    columns: dict[int, frozenset[str]] = field(default_factory=dict)
    """For each accepted schema: the columns that it has a field for."""
    refused: dict[int | UUID, str] = field(default_factory=dict)
    """For each refused id: why its records are not decoded."""

    @property
    def subject(self) -> Subject:
        assert self.half.subject is not None  # noqa: S101  a half without one is not decoded
        return self.half.subject

    def pairing(self, writer: RegisteredSchema) -> ResolvedSchema:
        return ResolvedSchema(writer, self.subject.latest, self.fields, self.half.message)

    def refuse(self, number: int, error: Exception) -> None:
        """Note why records of a schema are not decoded; raise the error of the latest one."""
        if number == self.subject.latest.schema_id:
            raise error
        self.refused[number] = f"which does not fit the table: {why(error)}"


def check_names(
    writer: RegisteredSchema, filled: frozenset[str], fields: Sequence[NestedField]
) -> None:
    """Refuse a schema with a filled field that would be lost; Protobuf's are matched by number."""
    if writer.schema_type == "PROTOBUF":
        return
    own = [column for column in _natural(writer) if column.name in filled]
    for name, twin in twins(fields, own):
        raise TableflowError(f"its field {name} and the column {twin} {sameness(name, twin)}")


@lru_cache(maxsize=4_096)
def _natural(writer: RegisteredSchema) -> tuple[NestedField, ...]:
    """Return the columns of a table that only this schema defines."""
    return tuple(format_of(writer).fields(f"schema {writer.schema_id}", writer, itertools.count(1)))


def candidates(writers: Writers) -> list[tuple[int, RegisteredSchema]]:
    """Return the subject's own schemas, and those of other subjects that have the same type."""
    own, latest = writers.subject.schemas, writers.subject.latest
    usable: list[tuple[int, RegisteredSchema]] = []
    message = writers.half.message
    expected = _identity(latest, message)
    for number, schema in writers.foreign.schemas.items():
        if number in own:
            continue
        writer = as_read(
            replace(schema, options=latest.options),
            writers.half.column,
            has_connect_types=writers.half.has_connect_types,
        )
        if reason := _other_type(writer, latest) or _unlike(writer, expected, message):
            writers.refused[number] = reason
        elif len(usable) >= MAX_FOREIGN_WRITERS:
            writers.refused[number] = (
                f"which is one of more than {MAX_FOREIGN_WRITERS} schemas of other subjects"
            )
        else:
            usable.append((number, writer))
    for number, writer in own.items():
        if reason := _other_type(writer, latest):
            writers.refused[number] = reason
        else:
            usable.append((number, writer))
    return usable


def _other_type(writer: RegisteredSchema, latest: RegisteredSchema) -> str | None:
    if writer.schema_type == latest.schema_type:
        return None
    return f"which is of type {writer.schema_type}; the table is of {latest.schema_type}"


def _unlike(
    writer: RegisteredSchema, expected: str | TableflowError | None, message: str | None
) -> str | None:
    """Return why a schema of another subject is not one for these records; None: it is one."""
    identity = _identity(writer, message)
    if isinstance(identity, TableflowError):
        return f"which cannot be read: {identity.message}"
    if identity is not None and identity == expected:
        return None
    named = f"is {identity}" if identity else "has no name"
    return f"which {named}, of another subject; the records of this topic are {expected}"


@lru_cache(maxsize=4_096)
def _identity(schema: RegisteredSchema, message: str | None) -> str | TableflowError | None:
    try:
        return format_of(schema).identity(schema, message)
    except UNREADABLE_SCHEMA as error:
        return error if isinstance(error, TableflowError) else TableflowError(why(error))


def why(error: Exception) -> str:
    """Return why a schema cannot be used."""
    return error.message if isinstance(error, TableflowError) else f"{type(error).__name__}"


def message_decoder(writers: Writers) -> MessageDecoder:
    """Return how keys or values are decoded; TableflowError: the latest schema does not fit."""
    half, latest = writers.half, writers.subject.latest
    for number, writer in candidates(writers):
        try:
            pairing = writers.pairing(writer)
            filled = format_of(writer).filled(pairing)
            check_names(writer, filled, writers.fields)
            format_of(writer).record_decoder(pairing)
        except UNREADABLE_SCHEMA as error:
            writers.refuse(number, error)
        else:
            writers.accepted[number], writers.columns[number] = writer, filled
    names = frozenset[str]().union(*writers.columns.values())
    fields = tuple(column for column in writers.fields if column.name in names)
    pairings = {
        number: ResolvedSchema(writer, latest, fields, half.message)
        for number, writer in writers.accepted.items()
    }
    return MessageDecoder(
        column=half.column,
        fields=fields,
        programs=_programs(pairings, fields, latest.schema_type),
        writers=pairings,
        filled=writers.columns,
        refused=writers.refused,
        # What a table holds of a key names a version of AWS Glue, which may be of another schema.
        framing=half.record_framing(writers.foreign.guids if half.framing == "glue" else {}),
    )


def _programs(
    pairings: Mapping[int, ResolvedSchema], fields: Sequence[NestedField], language: SchemaType
) -> Programs | None:
    """Return the programs of the schemas that have one."""
    code, places = ProgramCode(), {place.name: place for place in Shape(fields).places}
    starts = list[tuple[int, int]]()
    for number, pairing in pairings.items():
        begin = code.mark()
        try:
            format_of(pairing.writer).program(code, places, pairing)
        except (NotCoveredError, *UNREADABLE_SCHEMA) as error:
            code.reset(begin)
            logger.info("schema %d has no program: %s", number, error)
        else:
            starts.append((number, begin[0]))
    return Programs.of(code, starts, language) if starts else None


class UnknownSchemaError(MalformedError):
    """A record names a schema, by id or GUID (:func:`named_schemas`), not looked up yet."""

    def __init__(self, what: str, schema: int | UUID) -> None:
        super().__init__(f"{what}, {UNKNOWN}")
        self.schema_id = schema.hex if isinstance(schema, UUID) else str(schema)


def resolved(
    column: str,
    record: Framed | str,
    guids: Mapping[UUID, int],
    writers: Mapping[int, ResolvedSchema],
    refused: Mapping[int | UUID, str],
) -> tuple[ResolvedSchema, bytes]:
    """Return by which schema a key or a value is decoded, and its payload.

    :param record: a reason: it names no schema
    :param refused: why the records of other writers are not decoded
    :raises MalformedError: it is not decoded
    :raises UnknownSchemaError: its schema was not looked up yet
    """
    if isinstance(record, str):
        raise MalformedError(record)
    schema = record.schema
    number = id_of(schema, guids)
    if number is None or number not in writers:
        where = framing.named(column, is_header=record.indexes is not None)
        naming = f"{where} names {record.named}"
        reason = refused.get(schema) or refused.get(schema if number is None else number)
        if reason is None:
            raise UnknownSchemaError(naming, schema)
        raise MalformedError(f"{naming}, {reason}")
    payload = payload_of(column, record, writers[number].writer.schema_type)
    if isinstance(payload, str):
        raise MalformedError(payload)
    return writers[number], payload


@dataclass(frozen=True)
class MessageDecoder:
    """How the keys, or the values, of a batch are decoded; small enough to be sent to a task."""

    column: str
    """``key`` or ``value``."""
    fields: tuple[NestedField, ...]
    """The columns that they fill."""
    programs: Programs | None
    """None: no schema has one."""
    writers: Mapping[int, ResolvedSchema]
    """By the ids of their schemas."""
    filled: Mapping[int, frozenset[str]]
    """For each writer: the columns that it has a field for."""
    refused: Mapping[int | UUID, str]
    """For each refused id or GUID: why its records are not decoded."""
    framing: RecordFraming
    """How records name their schemas."""

    def without(self, missing: Mapping[int | UUID, str]) -> MessageDecoder:
        """Return the same for a registry that lacks some schemas, given why."""
        return replace(self, refused={**missing, **self.refused}) if missing else self

    def decode(self, raw: bytes, header: bytes | None) -> Mapping[str, Any]:
        """Return the stored values of one record, by the reference decoder of its format.

        :param header: what a header says of the schema
        :raises MalformedError: the record is malformed, or (its subclass) names an unknown schema
        """
        return self._decode(self.framing.framed(raw, header))

    def decode_held(self, raw: bytes) -> Mapping[str, Any]:
        """Return the same for what a table holds of a record; see :meth:`.RecordFraming.held`."""
        return self._decode(self.framing.of_held(raw))

    def _decode(self, record: Framed | str) -> Mapping[str, Any]:
        guids = self.framing.guids
        pairing, payload = resolved(self.column, record, guids, self.writers, self.refused)
        try:
            return _record_decoder(pairing)(payload)
        except MalformedError as error:
            raise MalformedError(named(self.column, str(error))) from None


@lru_cache(maxsize=1024)
def _record_decoder(pairing: ResolvedSchema) -> RecordDecoder:
    return format_of(pairing.writer).record_decoder(pairing)


def named(column: str, reason: str) -> str:
    """Return a reason of the format, with the record's part that it is about."""
    return reason if column == VALUE else f"the {column}: {reason}"


def named_schemas(texts: Iterable[str]) -> list[int | UUID]:
    """Return ids and GUIDs of their texts: decimal, and 32 hexadecimal digits."""
    return [UUID(text) if len(text) == 32 else int(text) for text in texts]
