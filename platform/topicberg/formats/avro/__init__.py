"""Avro: the functions of the format.

A record is malformed if bytes follow it, and if it has a value that the schema does not allow: text
that is not UTF-8, an int of more than 32 bits, a boolean that is neither 0 nor 1.

==================  ==========================================================================
``schema.py``       schemas as types
``columns.py``      the columns of a schema
``resolution.py``   how records of any version become rows of a table; ``defaults.py``: defaults
``record.py``       the reference decoder: what a record is
``program.py``      instructions for the compiled decoder
``files.py``        what schema files are checked for
==================  ==========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from pyiceberg import types as T

from topicberg.formats import limits
from topicberg.formats.avro import record
from topicberg.formats.avro.columns import Converter
from topicberg.formats.avro.files import check_file as check_file
from topicberg.formats.avro.program import emit_row
from topicberg.formats.avro.resolution import Row, resolve, sources
from topicberg.formats.avro.schema import Type, parse, parse_record
from topicberg.formats.columnar.program import AvroOp, ProgramCode, Slot
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.subjects import RegisteredSchema


def fields(
    where: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[T.NestedField]:
    """Return the columns of a record; see :class:`..contract.Format`."""
    return Converter(where, ids).fields(parse_record(where, schema))


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the full name of a record; see :class:`..contract.Format`."""
    found = parse(f"schema {schema.schema_id}", schema)
    return found.name if found.kind == "record" and schema.wrapped_as is None else None


def is_union(schema: RegisteredSchema) -> bool:
    """Return whether it is Avro's union; see :class:`..contract.Format`."""
    return isinstance(limits.parsed_json(f"schema {schema.schema_id}", schema), list)


def as_record(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Return a key's schema as a record; see :class:`topicberg.formats.contract.Format`.

    A value has the same bytes as a record of one field, but for ``bytes``: Confluent's serializer
    for Java writes them without their length, those for other languages with it.
    """
    parsed = limits.parsed_json(f"schema {schema.schema_id}", schema)
    kind = parsed.get("type") if isinstance(parsed, dict) else parsed
    if isinstance(parsed, list) or kind in ("record", "bytes"):
        return schema
    record = {"type": "record", "name": "key", "fields": [{"name": name, "type": parsed}]}
    return replace(schema, text=json.dumps(record))


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`..contract.Format`."""
    return frozenset(sources(*_records(writer, latest)))


def filled(resolved_schema: ResolvedSchema) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`..contract.Format`."""
    return written(resolved_schema.writer, resolved_schema.latest, resolved_schema.message)


def program(code: ProgramCode, slots: Mapping[str, Slot], resolved_schema: ResolvedSchema) -> None:
    """Append a program that decodes records; see :class:`..contract.Format`."""
    emit_row(code, slots, _row(resolved_schema))
    code.emit(AvroOp.END, None)


@lru_cache(maxsize=256)
def record_decoder(resolved_schema: ResolvedSchema) -> RecordDecoder:
    """Return the reference decoder; see :class:`..contract.Format`."""
    return record.record_decoder(_row(resolved_schema), resolved_schema.writer.schema_id)


@lru_cache(maxsize=64)
def _row(resolved_schema: ResolvedSchema) -> Row:
    return resolve(
        *_records(resolved_schema.writer, resolved_schema.latest), resolved_schema.fields
    )


def _records(writer: RegisteredSchema, latest: RegisteredSchema) -> tuple[Type, Type]:
    written, newest = (
        parse_record(f"schema {schema.schema_id}", schema) for schema in (writer, latest)
    )
    return written, newest
