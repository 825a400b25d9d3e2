"""The columns of schema files, and the errors of a file.

Types follow the mappings of Confluent's "Schemas with Tableflow".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import count
from typing import Literal

from pyiceberg.types import IcebergType, ListType, MapType, StructType

from topicberg.errors import SpecError, TableflowError
from topicberg.formats.dispatch import as_read, format_of, is_union
from topicberg.formats.envelope import Changes, changed_columns
from topicberg.formats.limits import refused
from topicberg.formats.subjects import JsonOptions, RegisteredSchema
from topicberg.formats.table import FORMATS, Part

Columns = dict[str, str]

_PROTOBUF = re.compile(r"^\s*(syntax\s*=|edition\s*=|message\s+\w+\s*\{)", re.MULTILINE)
_JSON_SCHEMA = {"$schema", "properties", "$ref", "$defs", "definitions", "oneOf", "allOf", "anyOf"}
_OF_ICEBERG = re.compile(
    "_(file|pos|deleted|spec_id|partition|row_id|last_updated_sequence_number)", re.IGNORECASE
)


def reserved_names(columns: Iterable[str]) -> list[str]:
    """Return the names that ``SparkSchemaUtil.validateMetadataColumnReferences`` refuses."""
    return [column for column in columns if _OF_ICEBERG.fullmatch(column)]


def check_names(table: str, columns: Iterable[str]) -> None:
    """:raises TableflowError: a column has a reserved name"""
    for name in reserved_names(columns):
        raise TableflowError(
            f"{table}: the column {name} has the name of a metadata column of Iceberg: Spark "
            "cannot read such a table",
            hint=f"rename it, for example to {name[1:]}",
        )


def file_columns(
    name: str,
    text: str,
    kind: str,
    message: str | None = None,
    options: JsonOptions | None = None,
    changes: Changes | Literal["key"] | None = None,
    part: Part | None = None,
) -> Columns:
    """Return the top-level columns that the Tableflow engine derives from a schema file.

    :param name: of the file, for errors; the others are those of
        :func:`topicberg.topics.schema.read_schema`
    :raises SpecError: not a schema of the format, recursive, not a record, no such message, or
        without a field that has conversions
    """
    try:
        with refused(name):
            _check_format(name, text, kind)
            entry = FORMATS[kind]
            schema = RegisteredSchema(0, entry.schema_type, text, options=options or JsonOptions())
            format_of(schema).check_file(name, schema)
            return _columns(name, schema, message, changes, part)
    except TableflowError as error:
        raise SpecError(error.message, hint=error.hint) from None


def _check_format(name: str, text: str, expected: str) -> None:
    """Refuse a file that is clearly of another format."""
    detected, kind = expected, ""
    try:
        schema = json.loads(text)
        if isinstance(schema, dict) and schema.get("type") == "record" and "fields" in schema:
            detected, kind = "avro", "an Avro schema"
        elif isinstance(schema, dict) and _JSON_SCHEMA & schema.keys():
            detected, kind = "json", "a JSON Schema"
    except json.JSONDecodeError:
        if _PROTOBUF.search(text):
            detected, kind = "protobuf", "a Protobuf file"
    if detected != expected:
        raise SpecError(f"{name} is {kind}: is this `format: {detected}`, not {expected}?")


def _columns(
    name: str,
    schema: RegisteredSchema,
    message: str | None,
    changes: Changes | Literal["key"] | None,
    part: Part | None,
) -> Columns:
    if part is not None and changes is None and is_union(schema):
        return {part: "binary"}
    schema = as_read(schema, part or "value", has_connect_types=changes is not None)
    columns = format_of(schema).fields(name, schema, count(1), message)
    if changes in ("rows", "changes"):
        columns = changed_columns(name, columns, changes)
    check_names(name, (column.name for column in columns))
    return {column.name: _kind(column.field_type) for column in columns}


def _kind(column: IcebergType) -> str:
    """Return ``struct``, ``list`` or ``map`` without its parts; else Iceberg's name of the type."""
    if isinstance(column, (StructType, ListType, MapType)):
        return type(column).__name__.removesuffix("Type").lower()
    return str(column).replace(" ", "")
