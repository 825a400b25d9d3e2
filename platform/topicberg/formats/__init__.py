"""The formats of records: the columns of a schema, and what decodes a record.

A format is a module with the functions of :class:`.contract.Format`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from json import dumps, loads  # the submodule json takes the name of the module
from typing import TYPE_CHECKING, Any

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.contract import Format, RecordDecoder, ResolvedSchema
from topicberg.formats.limits import refused
from topicberg.formats.subjects import RegisteredSchema, SchemaType

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

    from topicberg.formats.columnar.program import ProgramCode, Slot

__all__ = ["Format", "RecordDecoder", "ResolvedSchema", "as_record", "format_of", "is_union"]


def is_union(schema: RegisteredSchema) -> bool:
    """Return whether the schema is a choice of several event types, which has no single table.

    These are an Avro union, and a JSON Schema of only oneOf or anyOf of references.
    """
    if schema.schema_type == "PROTOBUF":
        return False
    parsed = _parsed(schema)
    if schema.schema_type == "AVRO":
        return isinstance(parsed, list)
    if not isinstance(parsed, dict) or "properties" in parsed:
        return False
    choice = parsed.get("oneOf") or parsed.get("anyOf")
    if not isinstance(choice, list):
        return False
    return len([branch for branch in choice if branch != {"type": "null"}]) > 1


def _parsed(schema: RegisteredSchema) -> Any:
    """:raises TableflowError: the schema is not JSON, or exceeds the limits"""
    where = f"schema {schema.schema_id}"
    limits.check_size(where, schema)
    try:
        return loads(schema.text)
    except RecursionError:
        raise limits.too_deep(where) from None
    except ValueError as error:
        raise TableflowError(f"{where}: the schema is not JSON: {error}") from None


def as_record(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Return a key's schema that is not a record as a record with one field.

    An Avro value has the same bytes as a record of one field. A JSON value is put into an object
    when it is read (``RegisteredSchema.wrapped_as``). Protobuf has only messages. A schema that
    cannot be read is returned as it is: its format reports why.

    Only the top of the schema decides whether it is a record, as in ``{"$ref": …}``: the columns of
    tables depend on it.
    """
    try:
        return schema if schema.schema_type == "PROTOBUF" else _wrapped(schema, name)
    except (TableflowError, RecursionError):
        return schema


def _wrapped(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    parsed = _parsed(schema)
    if schema.schema_type == "AVRO":
        if isinstance(parsed, list) or (
            isinstance(parsed, dict) and parsed.get("type") == "record"
        ):
            return schema
        record = {"type": "record", "name": "key", "fields": [{"name": name, "type": parsed}]}
        return replace(schema, text=dumps(record))
    if not isinstance(parsed, dict) or "properties" in parsed or parsed.get("type") == "object":
        return schema
    shared = {key: parsed[key] for key in ("$schema", "definitions", "$defs") if key in parsed}
    wrapped = {**shared, "type": "object", "properties": {name: parsed}}
    return replace(schema, text=dumps(wrapped), wrapped_as=name)


def format_of(schema: RegisteredSchema) -> Format:
    """Return the functions of a schema's format."""
    from topicberg.formats import avro, json, protobuf

    modules: dict[SchemaType, Format] = {"AVRO": avro, "JSON": json, "PROTOBUF": protobuf}
    try:
        return _Guarded(modules[schema.schema_type])
    except KeyError:
        raise TableflowError(
            f"schema {schema.schema_id} is of the unknown type {schema.schema_type}",
            hint="use AVRO, JSON or PROTOBUF",
        ) from None


@dataclass(frozen=True)
class _Guarded:
    """A format whose functions refuse a schema at which a parser fails.

    The author of a schema decides what the parsers get. An unexpected exception would be tried
    again for ever, instead of suspending the topic or making the records malformed.
    """

    module: Format

    def fields(
        self, subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
    ) -> list[NestedField]:
        with refused(f"subject {subject}"):
            found = self.module.fields(subject, schema, ids, message)
            limits.check_paths(f"subject {subject}", found)
            return found

    def identity(self, schema: RegisteredSchema, message: str | None = None) -> str | None:
        with refused(f"schema {schema.schema_id}"):
            return self.module.identity(schema, message)

    def written(
        self, writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
    ) -> frozenset[str]:
        with refused(f"schema {writer.schema_id}"):
            return self.module.written(writer, latest, message)

    def filled(self, pairing: ResolvedSchema) -> frozenset[str]:
        with refused(f"schema {pairing.writer.schema_id}"):
            return self.module.filled(pairing)

    def program(
        self, code: ProgramCode, places: Mapping[str, Slot], pairing: ResolvedSchema
    ) -> None:
        with refused(f"schema {pairing.writer.schema_id}"):
            self.module.program(code, places, pairing)

    def record_decoder(self, pairing: ResolvedSchema) -> RecordDecoder:
        with refused(f"schema {pairing.writer.schema_id}"):
            return self.module.record_decoder(pairing)
