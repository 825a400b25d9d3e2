"""Columns of Avro, JSON Schema and Protobuf schemas, and the errors of a schema.

Types follow the mappings of Confluent's "Schemas with Tableflow".
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from topicberg.errors import SpecError, TableflowError
from topicberg.formats import as_record, is_union
from topicberg.formats.connect import with_connect_types
from topicberg.formats.envelope import Changes, changed_columns
from topicberg.formats.limits import refused, too_deep
from topicberg.formats.subjects import JsonOptions, RegisteredSchema

if TYPE_CHECKING:
    from topicberg.topics.schema import Part

P = ParamSpec("P")
Columns = dict[str, str]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_REASON = 200
_PROTOBUF = re.compile(r"^\s*(syntax\s*=|edition\s*=|message\s+\w+\s*\{)", re.MULTILINE)
_JSON_SCHEMA = {"$schema", "properties", "$ref", "$defs", "definitions", "oneOf", "allOf", "anyOf"}


def _refusing(
    function: Callable[Concatenate[str, P], Columns],
) -> Callable[Concatenate[str, P], Columns]:
    """Let a function of a named schema raise SpecError for whatever a parser raises."""

    @wraps(function)
    def call(name: str, /, *arguments: P.args, **named: P.kwargs) -> Columns:
        try:
            with refused(name):
                return function(name, *arguments, **named)
        except TableflowError as error:
            raise SpecError(error.message, hint=error.hint) from None

    return call


@_refusing
def avro_columns(
    name: str,
    text: str,
    changes: Changes | Literal["key"] | None = None,
    part: Part | None = None,
) -> Columns:
    """Return top-level columns of an Avro record.

    :param changes: the records are changes of a database's table, or their keys
    :param part: see :func:`topicberg.topics.schema.read_schema`
    :raises SpecError: not Avro, not a record, recursive
    """
    import avro.schema
    from avro.errors import AvroException
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    from topicberg.formats import avro as avro_format

    _check_format(name, text, "avro")
    schema = _json(name, text)
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    if not is_record and (part is None or (part == "value" and not isinstance(schema, list))):
        raise SpecError(f"{name}: an Avro schema of a topic must be a record")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of unknown logical types
            avro.schema.parse(text)  # strict about names, duplicates and unions
        parse_schema(schema)  # strict about default values
    except (AvroException, SchemaParseException, UnknownType, TypeError, KeyError) as error:
        if any(isinstance(each, RecursionError) for each in _contexts(error)):
            raise too_deep(name) from None
        raise SpecError(f"{name} is not an Avro schema: {_reason(error)}") from None
    _check_names(name, schema)
    return _columns(name, RegisteredSchema(0, "AVRO", text), avro_format.fields, changes, part)


def _contexts(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that were being handled when it was raised."""
    while error is not None:
        yield error
        error = error.__context__


def _check_format(name: str, text: str, expected: str) -> None:
    """Refuse a file that is clearly of another format.

    :raises SpecError: it names that format
    """
    found = None
    try:
        schema = json.loads(text)
    except json.JSONDecodeError:
        if _PROTOBUF.search(text):
            found = "protobuf", "a Protobuf file"
    else:
        if isinstance(schema, dict) and schema.get("type") == "record" and "fields" in schema:
            found = "avro", "an Avro schema"
        elif isinstance(schema, dict) and _JSON_SCHEMA & schema.keys():
            found = "json", "a JSON Schema"
    if found and found[0] != expected:
        raise SpecError(f"{name} is {found[1]}: is this `format: {found[0]}`, not {expected}?")


def _check_names(file: str, schema: Any) -> None:
    """Refuse field names that Avro's parsers accept and Avro's specification does not."""
    if isinstance(schema, list):
        for branch in schema:
            _check_names(file, branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if not _NAME.fullmatch(str(field["name"])):
                raise SpecError(f"{file}: {field['name']!r} is not a field name of Avro")
            _check_names(file, field["type"])
        for inner in ("type", "items", "values"):
            if not isinstance(schema.get(inner), str):
                _check_names(file, schema.get(inner))


@_refusing
def json_columns(
    name: str,
    text: str,
    changes: Changes | Literal["key"] | None = None,
    part: Part | None = None,
    options: JsonOptions | None = None,
) -> Columns:
    """Return top-level columns of a JSON Schema.

    :param changes: the records are changes of a database's table, or their keys
    :param part: see :func:`topicberg.topics.schema.read_schema`
    :param options: what the spec says besides the schema
    :raises SpecError: not JSON Schema, not an object with properties, recursive, or without a field
        that has conversions
    """
    from topicberg.formats import json as json_schema
    from topicberg.formats.json.columns import read_node
    from topicberg.formats.json.conversions import check_conversions

    _check_format(name, text, "json")
    _json(name, text)
    schema = RegisteredSchema(0, "JSON", text, options=options or JsonOptions())
    found = _columns(name, schema, json_schema.fields, changes, part)
    if schema.options.conversions:
        check_conversions(name, read_node(name, schema), schema.options.conversions)
    return found


@_refusing
def protobuf_columns(name: str, text: str, message: str | None) -> Columns:
    """Return top-level columns of a Protobuf message; imports of Google's own types are known.

    :raises SpecError: protoc refuses it, no such message, or it contains itself
    """
    from topicberg.formats.protobuf import file_fields

    _check_format(name, text, "protobuf")
    return {field.name: _kind(field.field_type) for field in file_fields(name, text, message)}


def _columns(
    name: str,
    schema: RegisteredSchema,
    fields: Callable[[str, RegisteredSchema, Iterator[int]], list[NestedField]],
    changes: Changes | Literal["key"] | None = None,
    part: Part | None = None,
) -> Columns:
    """Return the columns that the Tableflow engine derives from a schema."""
    if part is not None and changes is None and is_union(schema):
        return {part: "binary"}
    if part == "key":
        schema = as_record(schema, "key")
    found = fields(name, with_connect_types(schema) if changes else schema, count(1))
    if changes in ("rows", "changes"):
        found = changed_columns(name, found, changes)
    return {field.name: _kind(field.field_type) for field in found}


def _kind(column: IcebergType) -> str:
    """Return ``struct``, ``list`` or ``map`` without its parts; else Iceberg's name of the type."""
    if isinstance(column, (StructType, ListType, MapType)):
        return type(column).__name__.removesuffix("Type").lower()
    return str(column).replace(" ", "")


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{name} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


def _reason(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
