"""Schema files: read them, and say which top-level columns they give a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from topicberg.errors import SpecError

SchemaFormat = Literal["avro", "json", "protobuf", "none"]

_AVRO_LOGICAL = {
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "uuid": "uuid",
}
_AVRO_TYPES = {
    "string": "string",
    "bytes": "binary",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "fixed": "fixed",
    "enum": "string",
    "array": "list",
    "map": "map",
    "record": "struct",
}


@dataclass(frozen=True)
class SchemaFile:
    """A schema as it is registered, and the columns it makes.

    ``columns`` maps names to Iceberg types; nested ones are ``struct``, ``list`` and ``map`` only.
    """

    text: str
    columns: dict[str, str]


def read_schema(path: Path, kind: str, message: str | None = None) -> SchemaFile:
    """Read and check one schema file.

    :raises SpecError: missing, not of that format, or recursive
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path.name} does not exist in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path.name} cannot be read: {error}") from None
    return SchemaFile(text, _avro_columns(path.name, text))


def _avro_columns(name: str, text: str) -> dict[str, str]:
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        schema: Any = parse_schema(json.loads(text))
    except json.JSONDecodeError as error:
        raise SpecError(f"{name} is not JSON: {error}") from None
    except (SchemaParseException, UnknownType) as error:
        raise SpecError(f"{name} is not an Avro schema: {error}") from None
    return {field["name"]: _avro_type(field["type"]) for field in schema["fields"]}


def _avro_type(schema: Any) -> str:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return _avro_type(branches[0]) if len(branches) == 1 else "struct"
    if isinstance(schema, dict):
        logical = schema.get("logicalType")
        if logical == "decimal":
            return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
        return _AVRO_LOGICAL.get(str(logical)) or _avro_type(schema["type"])
    return _AVRO_TYPES.get(schema, "struct")
