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
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType
from pyiceberg import types as T

from topicberg.errors import TableflowError, causes
from topicberg.formats import limits
from topicberg.formats.avro import record
from topicberg.formats.avro.columns import Converter
from topicberg.formats.avro.program import emit_row
from topicberg.formats.avro.resolution import Row, resolve, sources
from topicberg.formats.avro.schema import Type, parse, parse_record
from topicberg.formats.columnar.program import AvroOp, ProgramCode, Slots
from topicberg.formats.contract import RecordDecoder, ResolvedSchema
from topicberg.formats.reasons import quoted
from topicberg.formats.subjects import RegisteredSchema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def fields(
    where: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[T.NestedField]:
    """Return the columns of a record; see :class:`..contract.Format`."""
    return Converter(where, ids).fields(parse_record(where, schema))


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the full name of a record; see :class:`..contract.Format`."""
    kind = parse(schema.label, schema)
    return kind.name if kind.kind == "record" and schema.wrapped_as is None else None


def is_union(schema: RegisteredSchema) -> bool:
    """Return whether it is Avro's union; see :class:`..contract.Format`."""
    return isinstance(limits.parsed_json(schema.label, schema), list)


def as_record(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Return a key's schema as a record; see :class:`topicberg.formats.contract.Format`.

    A value has the same bytes as a record of one field, but for ``bytes``: Confluent's serializer
    for Java writes them without their length, those for other languages with it.
    """
    parsed = limits.parsed_json(schema.label, schema)
    kind = parsed.get("type") if isinstance(parsed, dict) else parsed
    if isinstance(parsed, list) or kind in ("record", "bytes"):
        return schema
    record = {"type": "record", "name": "key", "fields": [{"name": name, "type": parsed}]}
    return replace(schema, text=json.dumps(record))


def check_file(where: str, schema: RegisteredSchema) -> None:
    """Refuse what Avro's libraries refuse; see :class:`..contract.Format`."""
    import avro.schema
    from avro.errors import AvroException

    parsed = limits.parsed_json(where, schema)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of unknown logical types
            avro.schema.parse(schema.text)  # strict about names, duplicates and unions
        parse_schema(parsed)  # strict about default values
    except (AvroException, SchemaParseException, UnknownType, TypeError, KeyError) as error:
        if any(isinstance(cause, RecursionError) for cause in causes(error)):
            raise limits.too_deep(where) from None
        raise TableflowError(f"{where} is not an Avro schema: {quoted(str(error))}") from None
    _check_names(where, parsed)


def _check_names(where: str, schema: Any) -> None:
    """Refuse field names that Avro's parsers accept and Avro's specification does not."""
    if isinstance(schema, list):
        for branch in schema:
            _check_names(where, branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if not _NAME.fullmatch(str(field["name"])):
                raise TableflowError(f"{where}: {field['name']!r} is not a field name of Avro")
            _check_names(where, field["type"])
        for inner in ("type", "items", "values"):
            if not isinstance(schema.get(inner), str):
                _check_names(where, schema.get(inner))


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`..contract.Format`."""
    return frozenset(sources(*_records(writer, latest)))


def filled(resolved_schema: ResolvedSchema) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`..contract.Format`."""
    return written(resolved_schema.writer, resolved_schema.latest, resolved_schema.message)


def program(code: ProgramCode, slots: Slots, resolved_schema: ResolvedSchema) -> None:
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
    return parse_record(writer.label, writer), parse_record(latest.label, latest)
