"""The columns of an Avro schema: one for each field of the record.

Types are those of "Avro schema type mapping" in Confluent's "Schemas with Tableflow", with two
differences due to Spark: it does not support Iceberg's ``time``, so time-millis stays an int
(milliseconds) and time-micros a long (microseconds of the day), and it reads a uuid as a string.
Every column is optional, because a later schema version may drop the field.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats.avro.schema import LOGICAL, Type, meaning
from topicberg.formats.bounds import MAX_PRECISION
from topicberg.formats.meanings import with_meaning

_PRIMITIVES: dict[str, type[T.IcebergType]] = {
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    **dict.fromkeys(("bytes", "fixed"), T.BinaryType),
    **dict.fromkeys(("string", "enum"), T.StringType),
}


class Converter:
    """Converts Avro types to Iceberg types of columns."""

    def __init__(self, where: str, ids: Iterator[int]) -> None:
        self.where, self.ids, self.open = where, ids, list[Type]()

    def fail(self, path: str, problem: str, hint: str) -> TableflowError:
        return TableflowError(f"{self.where}: field {path} {problem}", hint=hint)

    def fields(self, record: Type) -> list[T.NestedField]:
        self.open.append(record)
        fields = [
            self.field(field.name, field.type, f"{record.name}.{field.name}", field.doc)
            for field in record.fields
            if field.type.members  # otherwise a column could not hold anything
        ]
        self.open.pop()
        return fields

    def field(self, name: str, kind: Type, path: str, doc: str | None = None) -> T.NestedField:
        number, comment = next(self.ids), with_meaning(doc, meaning(kind))
        return T.NestedField(number, name, self.convert(kind, path), required=False, doc=comment)

    def convert(self, kind: Type, path: str) -> T.IcebergType:
        """Return a type's column. For a union: a struct with a member for each type.

        At most one member is not null. Null and a type are that type; int and long, or float and
        double, are the wider type.
        """
        members = kind.members
        if kind.has_members:
            names = [f"member{index}" for index in range(len(members))]
            return T.StructType(
                *(
                    self.field(n, part, f"{path}.{n}")
                    for n, part in zip(names, members, strict=True)
                )
            )
        if not members:
            raise self.fail(path, "allows only null", "give the field a type, or remove it")
        if len(members) > 1:
            return T.LongType() if members[0].kind in ("int", "long") else T.DoubleType()
        match kind := members[0]:
            case Type("record", None):
                return self.record(kind, path)
            case Type("array" | "map"):
                return self.container(kind, path)
            case Type(_, "decimal"):
                return self.decimal(kind, path)
        return (LOGICAL.get((kind.kind, kind.logical)) or _PRIMITIVES[kind.kind])()

    def record(self, kind: Type, path: str) -> T.IcebergType:
        if kind in self.open:
            raise self.fail(
                path,
                f"refers to {kind.name}, which contains it",
                "break the cycle: recursive schemas cannot become a table",
            )
        if fields := self.fields(kind):
            return T.StructType(*fields)
        raise self.fail(
            path,
            "is a record without fields",
            "give it a field, or remove it: Parquet has no empty structs",
        )

    def container(self, kind: Type, path: str) -> T.IcebergType:
        first = next(self.ids)
        if kind.kind == "array":
            return T.ListType(first, self.convert(kind.inner, f"{path}.element"), False)
        second, value = next(self.ids), self.convert(kind.inner, f"{path}.value")
        return T.MapType(first, T.StringType(), second, value, False)

    def decimal(self, kind: Type, path: str) -> T.IcebergType:
        if kind.is_decimal and kind.precision <= MAX_PRECISION:
            return T.DecimalType(kind.precision, kind.scale)
        raise self.fail(
            path,
            f"is a decimal of precision {kind.precision} and scale {kind.scale}: a decimal has a "
            f"precision from 1 to {min(MAX_PRECISION, kind.digits)} and a scale up to it",
            "register it as bytes or string: Spark and Iceberg have no other decimals",
        )
