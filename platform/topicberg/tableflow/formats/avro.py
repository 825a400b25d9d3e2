"""Avro: the table's types, and the Spark expression that decodes a record.

Types are those of "Avro schema type mapping" in Confluent's "Schemas with Tableflow", with two
differences that Spark imposes: it has no Iceberg ``time``, so that time-millis stays an int
(milliseconds) and time-micros a long (microseconds of the day), and it reads a uuid as a string.
Every column is optional, because a later schema version may drop the field.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from topicberg.errors import TableflowError
from topicberg.tableflow.formats import DECODED
from topicberg.tableflow.subjects import RegisteredSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_PRECISION = 38
_PRIMITIVES: dict[str, Callable[[], IcebergType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "bytes": BinaryType,
    "string": StringType,
}
_NAMED: dict[str, Callable[[], IcebergType]] = {"fixed": BinaryType, "enum": StringType}
_LOGICAL: dict[tuple[str, str], Callable[[], IcebergType]] = {
    ("int", "date"): DateType,
    ("long", "timestamp-millis"): TimestamptzType,
    ("long", "timestamp-micros"): TimestamptzType,
    ("long", "local-timestamp-millis"): TimestampType,
    ("long", "local-timestamp-micros"): TimestampType,
}


def fields(
    subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[NestedField]:
    """The columns of a record schema; see :class:`topicberg.tableflow.formats.Format`."""
    return _Converter(subject, ids).fields(resolve(subject, schema))


def decode(
    records: DataFrame,
    payload: Column,
    writer: RegisteredSchema,
    latest: RegisteredSchema,
    fields: Sequence[NestedField],
    message: str | None = None,
) -> tuple[DataFrame, Column]:
    """The record, read with the latest schema; see :class:`topicberg.tableflow.formats.Format`.

    A field that the latest schema dropped, and that the table and the writer still have, is read
    as it was written. :data:`DECODED` is a field that no writer has and every reader defaults to
    true.
    """
    from pyspark.sql import functions as F

    where = f"schema {latest.schema_id}"
    reader, written = resolve(where, latest), resolve(where, writer)
    record = _from_avro(payload, written, reader)
    kept = {name for field in reader["fields"] for name in (field["name"], *_aliases(field))}
    dropped = [
        field.name
        for field in fields
        if field.name not in kept and field.name in {f["name"] for f in written["fields"]}
    ]
    if not dropped:
        return records, record
    as_written = _from_avro(payload, written, written)
    names = [DECODED, *(f["name"] for f in reader["fields"])]
    return records, F.struct(
        *(record.getField(name).alias(name) for name in names),
        *(as_written.getField(name).alias(name) for name in dropped),
    )


def _from_avro(payload: Column, writer: dict[str, Any], reader: dict[str, Any]) -> Column:
    from pyspark.sql.avro.functions import from_avro

    marker = {"name": DECODED, "type": "boolean", "default": True}
    marked = {**reader, "fields": [*reader["fields"], marker]}
    options = {
        "avroSchema": json.dumps(marked),
        "mode": "PERMISSIVE",
        "datetimeRebaseMode": "CORRECTED",  # Avro's calendar is the proleptic Gregorian one
    }
    return from_avro(payload, json.dumps(writer), options)


def _aliases(field: dict[str, Any]) -> list[str]:
    return list(field.get("aliases", ()))


def resolve(subject: str, schema: RegisteredSchema) -> dict[str, Any]:
    """The record schema with the definitions of its references inside, names in full.

    :raises TableflowError: it is no record, or refers to what is not there
    """
    known: dict[str, Any] = {}
    for _, text in schema.references:
        _collect(json.loads(text), "", known)
    resolved = _Inliner(subject, known).inline(json.loads(schema.text), "")
    if not isinstance(resolved, dict) or resolved.get("type") != "record":
        raise TableflowError(
            f"subject {subject}: the schema is no record",
            hint="a table needs named columns: register a record",
        )
    return resolved


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name = str(schema["name"])
    if "." in name:
        return name
    namespace = schema.get("namespace", namespace) or ""
    return f"{namespace}.{name}" if namespace else name


def _collect(schema: Any, namespace: str, known: dict[str, Any]) -> None:
    """Remember every named type that a referenced schema defines."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, known)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "error", "enum", "fixed"):
            full = _full_name(schema, namespace)
            namespace = full.rpartition(".")[0]
            known[full] = {**schema, "name": full}
        for field in schema.get("fields", ()):
            _collect(field["type"], namespace, known)
        for inner in ("type", "items", "values"):
            if isinstance(schema.get(inner), dict | list):
                _collect(schema[inner], namespace, known)


class _Inliner:
    """Copies a schema, giving every name in full, and defining a referenced type where first used.

    Enclosing namespaces apply, and a name without one falls back to the null namespace.
    """

    def __init__(self, subject: str, known: dict[str, Any]) -> None:
        self.subject = subject
        self.known = known
        self.defined: set[str] = set()

    def inline(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, list):
            return [self.inline(branch, namespace) for branch in schema]
        if isinstance(schema, str):
            return self.name(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.inline(kind, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            return self.define(schema, kind, namespace)
        if kind == "array":
            return {**schema, "items": self.inline(schema["items"], namespace)}
        if kind == "map":
            return {**schema, "values": self.inline(schema["values"], namespace)}
        if kind in _PRIMITIVES or kind == "null":
            return schema
        return self.name(kind, namespace)

    def define(self, schema: dict[str, Any], kind: str, namespace: str) -> dict[str, Any]:
        full = _full_name(schema, namespace)
        self.defined.add(full)
        copied = {key: value for key, value in schema.items() if key != "namespace"}
        copied["name"] = full
        if kind in ("record", "error"):
            inside = full.rpartition(".")[0]
            copied["type"] = "record"
            copied["fields"] = [
                {**field, "type": self.inline(field["type"], inside)} for field in schema["fields"]
            ]
        return copied

    def name(self, name: str, namespace: str) -> Any:
        if name in _PRIMITIVES or name == "null":
            return name
        candidates = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for full in candidates:
            if full in self.defined:
                return full
            if full in self.known:
                return self.define(copy.deepcopy(self.known[full]), self.known[full]["type"], "")
        raise TableflowError(
            f"subject {self.subject}: the type {name} is not defined",
            hint="define the type in the schema, or refer to the subject that has it",
        )


class _Converter:
    """Walks a resolved schema; named types may be referred to after their definition."""

    def __init__(self, subject: str, ids: Iterator[int]) -> None:
        self.subject = subject
        self.ids = ids
        self.named: dict[str, dict[str, Any]] = {}
        self.open: list[str] = []

    def fields(self, record: dict[str, Any]) -> list[NestedField]:
        self.named[record["name"]] = record
        self.open.append(record["name"])
        found = [
            NestedField(
                field_id=next(self.ids),
                name=field["name"],
                field_type=self.convert(field["type"], f"{record['name']}.{field['name']}"),
                required=False,
                doc=field.get("doc"),
            )
            for field in record["fields"]
            if field["type"] not in ("null", {"type": "null"})  # nothing that a column could hold
        ]
        self.open.pop()
        return found

    def convert(self, schema: Any, path: str) -> IcebergType:
        if isinstance(schema, list):
            return self.union(schema, path)
        if isinstance(schema, str):
            return _PRIMITIVES[schema]() if schema in _PRIMITIVES else self.reference(schema, path)
        kind = schema["type"]
        if "name" in schema:
            self.named[schema["name"]] = schema
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return self.decimal(schema, path)
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]()
        if kind == "record":
            return self.record(schema, path)
        if kind == "array":
            return ListType(
                element_id=next(self.ids),
                element_type=self.convert(schema["items"], f"{path}.element"),
                element_required=False,
            )
        if kind == "map":
            return MapType(
                key_id=next(self.ids),
                key_type=StringType(),
                value_id=next(self.ids),
                value_type=self.convert(schema["values"], f"{path}.value"),
                value_required=False,
            )
        return (_PRIMITIVES | _NAMED)[kind]()

    def decimal(self, schema: dict[str, Any], path: str) -> IcebergType:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not (
            isinstance(precision, int)
            and isinstance(scale, int)
            and 1 <= precision <= MAX_PRECISION
            and 0 <= scale <= precision
        ):
            raise TableflowError(
                f"subject {self.subject}: field {path}: a decimal has a precision from 1 to "
                f"{MAX_PRECISION} and a scale up to it, not {precision} and {scale}",
                hint="Spark and Iceberg have no other decimals; register it as bytes or string",
            )
        return DecimalType(precision, scale)

    def reference(self, name: str, path: str) -> IcebergType:
        if name in self.open:
            raise TableflowError(
                f"subject {self.subject}: field {path} refers to {name}, which contains it",
                hint="recursive schemas have no table; break the cycle",
            )
        return self.convert(self.named[name], path)

    def record(self, schema: dict[str, Any], path: str) -> IcebergType:
        found = self.fields(schema)
        if not found:
            raise TableflowError(
                f"subject {self.subject}: field {path} is a record without fields",
                hint="Parquet has no empty structs; give it a field or remove it",
            )
        return StructType(*found)

    def union(self, branches: list[Any], path: str) -> IcebergType:
        """Null and a type: that type; int or long, float or double: the wider; else a struct.

        The struct has a member for each branch, of which one is not null, as Spark names them.
        """
        rest = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if len(rest) == 1:
            return self.convert(rest[0], path)
        if sorted(map(str, rest)) == ["int", "long"]:
            return LongType()
        if sorted(map(str, rest)) == ["double", "float"]:
            return DoubleType()
        return StructType(
            *(
                NestedField(
                    field_id=next(self.ids),
                    name=f"member{index}",
                    field_type=self.convert(branch, f"{path}.member{index}"),
                    required=False,
                )
                for index, branch in enumerate(rest)
            )
        )
