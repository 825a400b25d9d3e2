"""Avro: the table's types, and the Spark expression that decodes a record.

Types are those of "Avro schema type mapping" in Confluent's "Schemas with Tableflow", with two
differences due to Spark: it does not support Iceberg's ``time``, so time-millis stays an int
(milliseconds) and time-micros a long (microseconds of the day), and it reads a uuid as a string.
Every column is optional, because a later schema version may drop the field.

A record is malformed if bytes follow it, and if it has a value that the schema does not allow: text
that is not UTF-8, an int of more than 32 bits, a boolean that is neither 0 nor 1.
:mod:`topicberg.formats.avro_reading` describes how records of other versions are read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import DECODED, Pairing, sql
from topicberg.formats.avro_reading import Reader, Row, sources
from topicberg.formats.avro_schema import LOGICAL, Type, documented, parse, parse_record
from topicberg.formats.avro_values import MAX_PRECISION, Cursor
from topicberg.formats.columnar.program import AvroOp, Code, Place
from topicberg.formats.reasons import MalformedError
from topicberg.formats.subjects import RegisteredSchema
from topicberg.spark import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PRIMITIVES: dict[str, type[T.IcebergType]] = {
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "bytes": T.BinaryType,
    "string": T.StringType,
    "fixed": T.BinaryType,
    "enum": T.StringType,
}
_END = -7_934_817_264_950_318_463
"""A number appended to each record, which is read correctly only where the record ends."""
_END_BYTES = bytes.fromhex("fdd580b0e290919edc01")
_numbers = itertools.count()


def fields(
    subject: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
) -> list[T.NestedField]:
    """Return the columns of a record; see :class:`topicberg.formats.Format`."""
    where = f"subject {subject}"
    return _Converter(where, ids).fields(parse_record(where, schema))


def identity(schema: RegisteredSchema, message: str | None = None) -> str | None:
    """Return the full name of a record; see :class:`topicberg.formats.Format`."""
    found = parse(f"schema {schema.schema_id}", schema)
    return found.name if found.kind == "record" and schema.wrapped_as is None else None


def written(
    writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
) -> frozenset[str]:
    """Return the columns that a writer fills; see :class:`topicberg.formats.Format`."""
    return frozenset(sources(*_records(writer, latest)))


def decode(records: DataFrame, payload: Column, pairing: Pairing) -> tuple[DataFrame, Column]:
    """Return a record as its columns; see :class:`topicberg.formats.Format`."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    row = _row(pairing)
    end = {"name": DECODED, "type": "long"}
    read = [{"name": name, "type": reading.read} for name, reading in row.readings.items()]
    options = {
        "avroSchema": _record([*read, end]),
        "mode": "PERMISSIVE",
        "datetimeRebaseMode": "CORRECTED",  # Avro's calendar is the proleptic Gregorian one
    }
    ended = F.concat(payload, F.lit(_END_BYTES))
    name = f"__topicberg_avro{next(_numbers)}"
    records = records.withColumn(name, from_avro(ended, _record([*row.wire, end]), options))
    return records, F.expr(_struct(row, name))


def _record(members: Sequence[object]) -> str:
    return json.dumps({"type": "record", "name": "row", "fields": members})


def _struct(row: Row, raw: str) -> str:
    """Return the SQL of the columns and :data:`DECODED`, from the struct that Spark read."""
    values: dict[str, str] = {}
    checks: list[str] = []
    for name, reading in row.readings.items():
        field = f"{raw}.{quote(name)}"
        values[name] = reading.value(field)
        checks += [check.sql(field) for check in reading.checks]
    wrong = sql.either(checks)
    decoded = f"{raw}.{DECODED} = {_END}L"
    if wrong is not None:
        decoded = f"{decoded} AND NOT coalesce({wrong}, false)"
    struct = sql.struct([*(values | dict(row.defaults)).items(), (DECODED, decoded)])
    # Spark expands a struct again unless it is inside of another expression.
    return f"if({raw} IS NOT NULL, {struct}, NULL)" if row.defaults else struct


def program(code: Code, places: Mapping[str, Place], pairing: Pairing) -> None:
    """Append a program that decodes records; see :class:`topicberg.formats.Format`."""
    _row(pairing).program(code, places)
    code.emit(AvroOp.END, None)


def explain(payload: bytes, pairing: Pairing) -> str:
    """Return why a record is malformed; see :class:`topicberg.formats.Format`."""
    cursor = Cursor(payload)
    try:
        _row(pairing).scan(cursor, "")
    except MalformedError as malformed:
        return str(malformed)
    except RecursionError:
        return "the record has too many nested values"
    if cursor.left:
        return (
            f"the record ends at byte {cursor.at}, but there are {len(payload)} bytes: it was "
            f"written with another schema than {pairing.writer.schema_id}"
        )
    return f"the record does not fit schema {pairing.writer.schema_id}"


@lru_cache(maxsize=64)
def _row(pairing: Pairing) -> Row:
    return Reader().row(*_records(pairing.writer, pairing.latest), pairing.fields)


def _records(writer: RegisteredSchema, latest: RegisteredSchema) -> tuple[Type, Type]:
    written, newest = (parse_record(f"schema {one.schema_id}", one) for one in (writer, latest))
    return written, newest


class _Converter:
    """Converts Avro types to Iceberg types of columns."""

    def __init__(self, where: str, ids: Iterator[int]) -> None:
        self.where = where
        self.ids = ids
        self.open: list[Type] = []

    def fail(self, path: str, problem: str, hint: str) -> TableflowError:
        return TableflowError(f"{self.where}: field {path} {problem}", hint=hint)

    def fields(self, record: Type) -> list[T.NestedField]:
        self.open.append(record)
        found = [
            self.field(field.name, field.type, f"{record.name}.{field.name}", documented(field))
            for field in record.fields
            if field.type.members  # otherwise a column could not hold anything
        ]
        self.open.pop()
        return found

    def field(self, name: str, kind: Type, path: str, doc: str | None = None) -> T.NestedField:
        number = next(self.ids)
        return T.NestedField(number, name, self.convert(kind, path), required=False, doc=doc)

    def convert(self, kind: Type, path: str) -> T.IcebergType:
        """Return a type's column. For a union: a struct with a member for each type.

        At most one member is not null. Null and a type are that type; int and long, or float and
        double, are the wider type.
        """
        members = kind.members
        if kind.has_members:
            names = [f"member{index}" for index in range(len(members))]
            return T.StructType(
                *(self.field(n, one, f"{path}.{n}") for n, one in zip(names, members, strict=True))
            )
        if not members:
            raise self.fail(path, "allows only null", "give the field a type, or remove it")
        if len(members) > 1:
            return T.LongType() if members[0].kind in ("int", "long") else T.DoubleType()
        kind = members[0]
        match kind.kind:
            case "record" if kind.logical is None:
                return self.record(kind, path)
            case "array" | "map":
                return self.container(kind, path)
        if kind.logical == "decimal":
            return self.decimal(kind, path)
        return (LOGICAL.get((kind.kind, kind.logical)) or _PRIMITIVES[kind.kind])()

    def record(self, kind: Type, path: str) -> T.IcebergType:
        if kind in self.open:
            raise self.fail(
                path,
                f"refers to {kind.name}, which contains it",
                "break the cycle: recursive schemas cannot become a table",
            )
        found = self.fields(kind)
        if not found:
            raise self.fail(
                path,
                "is a record without fields",
                "give it a field, or remove it: Parquet has no empty structs",
            )
        return T.StructType(*found)

    def container(self, kind: Type, path: str) -> T.IcebergType:
        assert kind.inner is not None  # noqa: S101  it is an array or a map
        first = next(self.ids)
        if kind.kind == "array":
            return T.ListType(first, self.convert(kind.inner, f"{path}.element"), False)
        second = next(self.ids)
        value = self.convert(kind.inner, f"{path}.value")
        return T.MapType(first, T.StringType(), second, value, False)

    def decimal(self, kind: Type, path: str) -> T.IcebergType:
        if not kind.is_decimal or kind.precision > MAX_PRECISION:
            limit = min(MAX_PRECISION, kind.digits)
            raise self.fail(
                path,
                f"is a decimal of precision {kind.precision} and scale {kind.scale}: a decimal "
                f"has a precision from 1 to {limit} and a scale up to it",
                "register it as bytes or string: Spark and Iceberg have no other decimals",
            )
        return T.DecimalType(kind.precision, kind.scale)
