"""Columns of Avro, JSON Schema and Protobuf schemas, and what is wrong with a schema.

Types follow the mappings of Confluent's "Schemas with Tableflow".
"""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

from topicberg.errors import SpecError, TableflowError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_REASON = 200

_AVRO_PRIMITIVES = {
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
_AVRO_LOGICAL = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    ("long", "timestamp-millis"): "timestamptz",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-millis"): "timestamp",
    ("long", "local-timestamp-micros"): "timestamp",
}
_JSON_TYPES = {
    "string": "string",
    "integer": "long",
    "number": "double",
    "boolean": "boolean",
    "array": "list",
    "object": "struct",
}
_CONNECT = "org.apache.kafka.connect.data."
_JSON_TITLES = {
    f"{_CONNECT}Date": "date",
    f"{_CONNECT}Time": "time",
    f"{_CONNECT}Timestamp": "timestamptz",
    f"{_CONNECT}Decimal": "decimal",
}


def avro_columns(name: str, text: str) -> dict[str, str]:
    """Top-level columns of an Avro record.

    :raises SpecError: not Avro, not a record, recursive
    """
    import avro.schema
    from avro.errors import AvroException
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    schema = _json(name, text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SpecError(f"{name}: an Avro schema of a topic is a record")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # logical types that it does not know
            avro.schema.parse(text)  # strict about names, duplicates and unions
        parse_schema(schema)  # strict about default values
    except (AvroException, SchemaParseException, UnknownType, TypeError, KeyError) as error:
        raise SpecError(f"{name} is not an Avro schema: {_reason(error)}") from None
    return _Avro(name).columns(schema)


class _Avro:
    """Walks one schema that has been parsed before."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.named: dict[str, dict[str, Any]] = {}
        self.open: list[str] = []

    def columns(self, record: dict[str, Any]) -> dict[str, str]:
        name = self.remember(record)
        self.open.append(name)
        columns = {
            self.field_name(field): self.kind(field["type"], f"{name}.{field['name']}")
            for field in record["fields"]
        }
        self.open.pop()
        return columns

    def remember(self, schema: dict[str, Any]) -> str:
        name = str(schema["name"]).rpartition(".")[2]
        self.named[name] = schema
        return name

    def field_name(self, field: dict[str, Any]) -> str:
        name = str(field["name"])
        if not _NAME.fullmatch(name):
            raise SpecError(f"{self.file}: {name!r} is not a field name of Avro")
        return name

    def kind(self, schema: Any, path: str) -> str:
        if isinstance(schema, list):
            kinds = [self.kind(branch, path) for branch in schema if branch != "null"]
            return kinds[0] if len(kinds) == 1 else "struct"
        if isinstance(schema, str):
            return _AVRO_PRIMITIVES.get(schema) or self.reference(schema, path)
        base = schema["type"]
        if not isinstance(base, str):
            return self.kind(base, path)
        logical = schema.get("logicalType")
        if base == "record":
            self.columns(schema)
        elif base in ("enum", "fixed"):
            self.remember(schema)
        elif base in ("array", "map"):
            self.kind(schema["items" if base == "array" else "values"], path)
        if logical == "decimal" and base in ("bytes", "fixed"):
            return self.decimal(schema, path)
        return _AVRO_LOGICAL.get((base, str(logical))) or self.kind(base, path)

    def reference(self, name: str, path: str) -> str:
        short = name.rpartition(".")[2]
        if short in self.open:
            raise SpecError(
                f"{self.file}: {path} refers to {short}, which contains it: "
                "a recursive schema has no table"
            )
        return self.kind(self.named[short], path)

    def decimal(self, schema: dict[str, Any], path: str) -> str:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not (
            isinstance(precision, int)
            and isinstance(scale, int)
            and 1 <= precision <= 38
            and 0 <= scale <= precision
        ):
            raise SpecError(
                f"{self.file}: {path}: a decimal has a precision from 1 to 38 "
                f"and a scale up to it, not {precision} and {scale}"
            )
        return f"decimal({precision},{scale})"


def json_columns(name: str, text: str) -> dict[str, str]:
    """Top-level columns of a JSON Schema of type object.

    :raises SpecError: not JSON Schema, or not an object with properties
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    schema = _json(name, text)
    if not isinstance(schema, dict) or ("type" not in schema and "properties" not in schema):
        raise SpecError(f"{name}: a JSON Schema of a topic is an object with properties")
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise SpecError(f"{name} is not a JSON Schema: {_reason(error.message)}") from None
    if schema.get("type", "object") != "object":
        raise SpecError(f"{name}: a JSON Schema of a topic is an object with properties")
    return {
        field: _json_kind(schema, definition)
        for field, definition in schema.get("properties", {}).items()
    }


def _json_kind(root: dict[str, Any], definition: Any) -> str:
    for _ in range(16):  # references that lead to references
        if not isinstance(definition, dict) or "$ref" not in definition:
            break
        definition = _json_pointer(root, definition["$ref"])
    if not isinstance(definition, dict):
        return "struct"
    if kind := _JSON_TITLES.get(str(definition.get("title"))):
        return kind
    for combined in ("oneOf", "anyOf"):
        branches = [b for b in definition.get(combined, ()) if b != {"type": "null"}]
        if branches:
            return _json_kind(root, branches[0]) if len(branches) == 1 else "struct"
    types = definition.get("type", "string" if "enum" in definition else "object")
    names = [kind for kind in ([types] if isinstance(types, str) else types) if kind != "null"]
    if names == ["object"] and "properties" not in definition:
        return "map"
    return _JSON_TYPES[names[0]] if len(names) == 1 else "struct"


def _json_pointer(root: dict[str, Any], reference: str) -> Any:
    found: Any = root
    for part in reference.partition("#")[2].strip("/").split("/"):
        found = found.get(part) if isinstance(found, dict) and part else found
    return found


def protobuf_columns(name: str, text: str, message: str | None) -> dict[str, str]:
    """Top-level columns of a Protobuf message; imports of Google's own types are known.

    :raises SpecError: protoc refuses it, no such message, or it contains itself
    """
    from topicberg.tableflow.formats.protobuf import file_fields

    try:
        fields = file_fields(name, text, message)
    except TableflowError as error:
        raise SpecError(error.message, hint=error.hint) from None
    # The types of nested columns, struct<…>, list<…> and map<…>, without what is in them.
    return {
        field.name: re.sub("<.*", "", str(field.field_type)).replace(" ", "") for field in fields
    }


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
