"""Changes in JSON without Confluent's wire format: with a schema in each record, or with none.

Such a record is read as if it were in the wire format. A schema in the record is registered in the
subject, once; so the table follows it as any other version. A record without one is of the newest
version, which the spec's schema file defines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from topicberg.clients.registry import registry_errors
from topicberg.errors import TableflowError
from topicberg.formats import connect_json
from topicberg.formats.subjects import MAGIC_BYTE, MAX_SCHEMA_BYTES, wire_prefix
from topicberg.kafka.consumer import DamagedRecordsError, messages
from topicberg.spark import F
from topicberg.tableflow.layout import KEY, VALUE, Half, Layout

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyspark.sql import Column, DataFrame

    from topicberg.endpoints import Endpoints
    from topicberg.kafka.offsets import Offsets, Place
    from topicberg.topics import TopicSpec

MAX_OPENINGS, MAX_BYTES = 500, 16 * MAX_SCHEMA_BYTES
"""The most schemas in records that are known, and their total size."""
REFUSED_SECONDS = 20.0
"""How long a refused schema is not registered again."""
_RAW = "__topicberg_raw_"
_UNKNOWN = "the schema of the record is not known: the batch has too many different ones"
_CONFLICT, _INVALID = 409, 422


@dataclass
class _Known:
    """The schemas of the keys, or of the values."""

    openings: dict[bytes, int | None] = field(default_factory=dict)
    """What precedes a payload → the id of its schema; None: it names no schema."""
    refused: dict[bytes, tuple[str, float]] = field(default_factory=dict)
    """Why the schema cannot be used, and until when it is not registered again."""


class Framing:
    """Turns keys and values of one topic into the wire format."""

    def __init__(
        self, spec: TopicSpec, endpoints: Endpoints, registry: SchemaRegistryClient
    ) -> None:
        self._spec = spec
        self._endpoints = endpoints
        self._registry = registry
        self._subjects = {}
        if spec.key.format == "json":
            self._subjects[KEY] = spec.key_subject
        if spec.value_schema.format == "json":
            self._subjects[VALUE] = spec.value_subject
        self._known = {half: _Known() for half in self._subjects}
        self._has_read = False

    # --- schemas ---

    def learn_from(self, begin: Offsets, end: Offsets) -> None:
        """Register the schemas of the first and the last record of each partition, once."""
        if self._has_read:
            return
        first = {p: (begin.get(p, 0), min(begin.get(p, 0) + 1, e)) for p, e in end.items()}
        last = {p: (max(begin.get(p, 0), e - 1), e) for p, e in end.items()}
        for ranges in (first, last):
            self._learn(ranges)
        self._has_read = True

    def look_up(self, places: Iterable[Place]) -> bool:
        """Register the schemas of some records; return whether one of them was not known."""
        found = [self._learn({partition: (at, at + 1)}) for partition, at in places]
        return any(found)

    def _learn(self, ranges: Mapping[int, tuple[int, int]]) -> bool:
        found = False
        try:
            read = list(messages(self._endpoints, self._spec.name, ranges))
        except DamagedRecordsError:
            return False
        for message in sorted(read, key=lambda one: one.timestamp()[1]):
            for half, raw in ((KEY, message.key()), (VALUE, message.value())):
                if raw is not None and half in self._subjects:
                    found |= self._register(half, raw)
        return found

    def _register(self, half: str, raw: bytes) -> bool:
        """Register the schema of a record; return whether it was not known."""
        known = self._known[half]
        opening = connect_json.opening(raw)
        if opening is None or opening.text in known.openings:
            return False
        if known.refused.get(opening.text, ("", 0.0))[1] > time.monotonic():
            return False
        try:
            self._check_size(known, opening.text)
            number = None
            if opening.schema is not None:
                number = self._registered(half, connect_json.json_schema(opening.schema))
        except TableflowError as error:
            if len(known.refused) >= MAX_OPENINGS:
                known.refused.clear()
            known.refused[opening.text] = error.message, time.monotonic() + REFUSED_SECONDS
            return False
        known.openings[opening.text] = number
        return True

    def _check_size(self, known: _Known, text: bytes) -> None:
        size = sum(map(len, known.openings)) + len(text)
        if len(known.openings) >= MAX_OPENINGS or size > MAX_BYTES:
            raise TableflowError(
                f"the records have more than {MAX_OPENINGS} different schemas, or {MAX_BYTES} "
                "characters of them",
                hint="let the connector write one table to one topic",
            )

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

    # --- records, in Spark ---

    def framed(self, records: DataFrame, layout: Layout) -> DataFrame:
        """Return records in the wire format; :meth:`restored` undoes it."""
        found: dict[str, Column] = {}
        for half in (layout.key, layout.value):
            name, latest = half.column, half.latest
            if name in self._subjects:
                found[f"{_RAW}{name}"] = F.col(name)
                found[name] = self._framed(name, latest.schema_id) if latest else F.col(name)
        return records.withColumns(found)

    def restored(self, records: DataFrame) -> DataFrame:
        """Return records with their own bytes."""
        raw = {half: F.col(f"{_RAW}{half}") for half in self._subjects}
        return records.withColumns(raw).drop(*(f"{_RAW}{half}" for half in raw))

    def unknown(self, half: str) -> Column | None:
        """Return a number below zero for a schema in a framed half that is not known, or null."""
        if half not in self._subjects:
            return None
        raw = F.col(half)
        start = F.substring_index(raw.cast("string"), '"payload"', 1)
        return F.when(_has_schema(raw), -F.abs(F.xxhash64(start) % (1 << 62)) - 1)

    def _framed(self, half: str, newest: int) -> Column:
        """:param newest: the newest schema's id, for records that name none"""
        raw = F.col(half)
        is_plain = (F.substring(raw, 1, 1) != F.lit(bytes([MAGIC_BYTE]))) & ~_has_schema(raw)
        found = F.when(is_plain, F.concat(F.lit(wire_prefix(newest)), raw))
        is_closed = F.substring(raw, -1, 1) == F.lit(b"}")
        for text, number in self._known[half].openings.items():
            prefix = F.lit(wire_prefix(newest if number is None else number))
            rest = F.substring(raw, len(text) + 1, 2**31 - 1)
            payload = F.substring(rest, F.lit(1), F.length(rest) - 1)
            is_written = F.startswith(raw, F.lit(text)) & is_closed
            found = found.when(is_written, F.concat(prefix, payload))
        return found.otherwise(raw)

    # --- records, in Python ---

    def of(self, half: Half, raw: bytes) -> bytes:
        """Return a key or value in the wire format."""
        if half.column not in self._subjects or half.latest is None:
            return raw
        if raw[:1] == bytes([MAGIC_BYTE]):
            return raw
        newest = half.latest.schema_id
        if (opening := connect_json.opening(raw)) is None:
            return wire_prefix(newest) + raw
        known = self._known[half.column].openings
        if opening.text not in known or not raw.endswith(b"}"):
            return raw
        number = known[opening.text]
        return wire_prefix(newest if number is None else number) + raw[len(opening.text) : -1]

    def problem(self, half: str, raw: bytes) -> str | None:
        """Return why the schema in a record cannot be used; None: it can, or there is none."""
        if half not in self._subjects or not connect_json.has_schema(raw):
            return None
        opening = connect_json.opening(raw)
        if opening is None or not raw.endswith(b"}"):
            return "it begins with a schema, but does not end with its payload"
        if opening.text in self._known[half].openings:
            return None
        return self._known[half].refused.get(opening.text, (_UNKNOWN, 0.0))[0]


def _has_schema(raw: Column) -> Column:
    return F.coalesce(
        F.substring(raw, 1, 200).cast("string").rlike(connect_json.OPENING), F.lit(False)
    )


def framing(
    spec: TopicSpec, endpoints: Endpoints, registry: SchemaRegistryClient
) -> Framing | None:
    """Return what frames the records of a topic; None: they are in the wire format already."""
    if spec.changelog is None or "json" not in (spec.value_schema.format, spec.key.format):
        return None
    return Framing(spec, endpoints, registry)
