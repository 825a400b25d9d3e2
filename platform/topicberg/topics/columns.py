"""Columns of Avro, JSON Schema and Protobuf schemas, and what is wrong with a schema.

Types follow the mappings of Confluent's "Schemas with Tableflow".
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import warnings
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from pyiceberg.types import IcebergType, ListType, MapType, StructType

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
    """Top-level columns of a JSON Schema, as the Tableflow engine makes them.

    :raises SpecError: not JSON Schema, not an object with properties, recursive
    """
    from topicberg.tableflow.formats import json_schema
    from topicberg.tableflow.subjects import RegisteredSchema

    _json(name, text)
    try:
        fields = json_schema.fields(name, RegisteredSchema(0, "JSON", text), count(1))
    except TableflowError as error:
        raise SpecError(error.message, hint=error.hint) from None
    return {field.name: _kind(field.field_type) for field in fields}


def _kind(column: IcebergType) -> str:
    """``struct``, ``list`` and ``map`` without what is in them; else Iceberg's name."""
    if isinstance(column, (StructType, ListType, MapType)):
        return type(column).__name__.removesuffix("Type").lower()
    return str(column).replace(" ", "")


def protobuf_columns(name: str, text: str, message: str | None) -> dict[str, str]:
    """Top-level columns of a Protobuf message; imports of Google's own types are known.

    :raises SpecError: protoc refuses it, no such message, or it contains itself
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    descriptors = FileDescriptorSet.FromString(_protoc(name, text))
    pool = DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)
    types = pool.FindFileByName(name).message_types_by_name
    if not types:
        raise SpecError(f"{name} defines no message")
    if message is not None and message not in types:
        raise SpecError(f"{name} has no message {message}; there are {', '.join(types)}")
    root = types[message] if message else next(iter(types.values()))
    return {field.name: _protobuf_kind(name, field, (root.full_name,)) for field in root.fields}


_PROTOBUF_TYPES = {
    "double": "double",
    "float": "float",
    "int32": "int",
    "sint32": "int",
    "sfixed32": "int",
    "int64": "long",
    "sint64": "long",
    "sfixed64": "long",
    "uint32": "long",
    "fixed32": "long",
    "uint64": "decimal(20,0)",
    "fixed64": "decimal(20,0)",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
}
_PROTOBUF_MESSAGES = {
    "google.protobuf.Timestamp": "timestamptz",
    "google.type.Date": "date",
    "google.type.TimeOfDay": "time",
}


def _protobuf_kind(file: str, field: Any, open_messages: tuple[str, ...]) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    message = field.message_type
    if message is not None and message.full_name not in _PROTOBUF_MESSAGES:
        if message.full_name in open_messages:
            raise SpecError(
                f"{file}: {field.full_name} refers to {message.name}, which contains it: "
                "a recursive schema has no table"
            )
        for inner in message.fields:
            _protobuf_kind(file, inner, (*open_messages, message.full_name))
    if message is not None and message.GetOptions().map_entry:
        return "map"
    if field.is_repeated:
        return "list"
    if message is not None:
        return _PROTOBUF_MESSAGES.get(message.full_name, "struct")
    return _PROTOBUF_TYPES[Proto.Type.Name(field.type).removeprefix("TYPE_").lower()]


def _protoc(name: str, text: str) -> bytes:
    """The FileDescriptorSet of one file; protoc runs as a process, as it writes to its stderr."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / name, Path(folder) / "descriptors"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
        google = files("grpc_tools") / "_proto"
        paths = (f"--proto_path={folder}", f"--proto_path={google}")
        command = [sys.executable, "-m", "grpc_tools.protoc", *paths, "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={output}", name],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            complaints = done.stderr.replace(f"{source}:", "").replace(f"{name}:", "").split("\n")
            reason = _reason("; ".join(filter(None, complaints)))
            raise SpecError(f"{name} is not Protobuf: {reason}")
        return output.read_bytes()


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
