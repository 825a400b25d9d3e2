"""Avro: the table's types, and the Spark expression that decodes a record.

Types are those of "Avro schema type mapping" in Confluent's "Schemas with Tableflow" as far as
Spark's ``from_avro`` produces them; every column is optional, because a later schema version may
drop the field.
"""

from __future__ import annotations

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
    from pyspark.sql import Column

_PRIMITIVES: dict[str, Callable[[], IcebergType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "bytes": BinaryType,
    "string": StringType,
    "fixed": BinaryType,
    "enum": StringType,
}
_LOGICAL: dict[tuple[str, str], Callable[[], IcebergType]] = {
    ("int", "date"): DateType,
    ("long", "timestamp-millis"): TimestamptzType,
    ("long", "timestamp-micros"): TimestamptzType,
    ("long", "local-timestamp-millis"): TimestampType,
    ("long", "local-timestamp-micros"): TimestampType,
}


class _Converter:
    """Walks one Avro schema; named types may be referred to after their definition."""

    def __init__(self, subject: str, ids: Iterator[int]) -> None:
        self.subject = subject
        self.ids = ids
        self.named: dict[str, dict[str, Any]] = {}
        self.open: list[str] = []

    def fields(self, record: dict[str, Any]) -> list[NestedField]:
        return [
            NestedField(
                field_id=next(self.ids),
                name=field["name"],
                field_type=self.convert(field["type"], f"{record['name']}.{field['name']}"),
                required=False,
                doc=field.get("doc"),
            )
            for field in record["fields"]
        ]

    def convert(self, schema: Any, path: str) -> IcebergType:
        if isinstance(schema, list):
            return self.union(schema, path)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]()
            return self.reference(schema, path)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):  # {"type": {"type": "int", …}}
            return self.convert(kind, path)
        if "name" in schema:
            self.define(schema)
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return DecimalType(schema["precision"], schema.get("scale", 0))
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
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]()
        return self.reference(kind, path)

    def define(self, schema: dict[str, Any]) -> None:
        name = schema["name"]
        self.named[name.rpartition(".")[2]] = schema

    def reference(self, name: str, path: str) -> IcebergType:
        short = name.rpartition(".")[2]
        if short in self.open:
            raise TableflowError(
                f"subject {self.subject}: field {path} refers to {name}, which contains it",
                hint="recursive schemas have no table; break the cycle",
            )
        if short not in self.named:
            raise TableflowError(
                f"subject {self.subject}: field {path} has the unknown type {name}",
                hint="define the type in the schema",
            )
        return self.convert(self.named[short], path)

    def record(self, schema: dict[str, Any], path: str) -> IcebergType:
        short = schema["name"].rpartition(".")[2]
        if short in self.open:
            raise TableflowError(
                f"subject {self.subject}: field {path} contains its own record {short}",
                hint="recursive schemas have no table; break the cycle",
            )
        self.open.append(short)
        fields = self.fields(schema)
        self.open.pop()
        return StructType(*fields)

    def union(self, branches: list[Any], path: str) -> IcebergType:
        """Null and a type: that type; int or long, float or double: the wider; else a struct."""
        rest = [branch for branch in branches if branch != "null"]
        if len(rest) == 1:
            return self.convert(rest[0], path)
        if set(map(str, rest)) == {"int", "long"}:
            return LongType()
        if set(map(str, rest)) == {"float", "double"}:
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


def fields(subject: str, schema: RegisteredSchema, ids: Iterator[int]) -> list[NestedField]:
    """The columns of a record schema; see :class:`topicberg.tableflow.formats.Format`."""
    converter = _Converter(subject, ids)
    for _, text in schema.references:
        converter.define_all(json.loads(text))
    parsed = json.loads(schema.text)
    if isinstance(parsed, str):  # the whole schema is a reference
        parsed = converter.named.get(parsed.rpartition(".")[2])
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise TableflowError(
            f"subject {subject}: the schema is no record",
            hint="a table needs named columns: register a record",
        )
    converter.define(parsed)
    converter.open.append(parsed["name"].rpartition(".")[2])
    return converter.fields(parsed)


def decode(
    payload: Column,
    writer: RegisteredSchema,
    latest: RegisteredSchema,
    fields: Sequence[NestedField],
) -> Column:
    """The record, read with the latest schema; see :class:`topicberg.tableflow.formats.Format`.

    :data:`DECODED` is a field that no writer has and the reader defaults to true.
    """
    from pyspark.sql.avro.functions import from_avro

    return from_avro(
        payload, writer.text, {"avroSchema": reader_schema(latest.text), "mode": "PERMISSIVE"}
    )


def reader_schema(schema: str) -> str:
    """The schema with the field :data:`DECODED`, whose default marks a decoded record."""
    parsed = json.loads(schema)
    marker = {"name": DECODED, "type": "boolean", "default": True}
    return json.dumps({**parsed, "fields": [*parsed["fields"], marker]})
