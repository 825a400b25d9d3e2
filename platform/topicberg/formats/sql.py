"""Fragments of Spark SQL; as a tree of columns, an expression can be too deep for Spark Connect."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.spark import quote

_SCALARS: dict[type[T.IcebergType], str] = {
    T.BinaryType: "binary",
    T.BooleanType: "boolean",
    T.DateType: "date",
    T.DoubleType: "double",
    T.FloatType: "float",
    T.IntegerType: "int",
    T.LongType: "bigint",
    T.StringType: "string",
    T.TimestampType: "timestamp_ntz",
    T.TimestamptzType: "timestamp",
}
_numbers = itertools.count()


def spark_type(column: T.IcebergType) -> str:
    """Return the name of a column's type in Spark SQL.

    :raises TableflowError: the engine does not create columns of this type
    """
    match column:
        case T.DecimalType():
            return f"decimal({column.precision},{column.scale})"
        case T.ListType():
            return f"array<{spark_type(column.element_type)}>"
        case T.MapType():
            return f"map<{spark_type(column.key_type)},{spark_type(column.value_type)}>"
        case T.StructType():
            return struct_type((one.name, spark_type(one.field_type)) for one in column.fields)
    try:
        return _SCALARS[type(column)]
    except KeyError:
        raise TableflowError(f"the table has a column of the type {column}") from None


def struct_type(members: Iterable[tuple[str, str]]) -> str:
    """Return the type of a struct of names and types."""
    return f"struct<{','.join(f'{quote(name)}:{kind}' for name, kind in members)}>"


def text(value: str) -> str:
    """Return a string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def null(column: T.IcebergType) -> str:
    """Return the null of a column's type."""
    return f"CAST(NULL AS {spark_type(column)})"


def struct(members: Iterable[tuple[str, str]]) -> str:
    """Return a struct of names and values."""
    return f"named_struct({', '.join(f'{text(name)}, {value}' for name, value in members)})"


def row(column: T.StructType, values: Mapping[str, str], *more: tuple[str, str]) -> str:
    """Return a struct of a column's fields, and more; fields without a value are null."""
    fields = [(one.name, values.get(one.name) or null(one.field_type)) for one in column.fields]
    return struct([*fields, *more])


def each(array: str, body: Callable[[str], str]) -> str:
    """Return an array of ``body`` of each element."""
    name = _variable()
    return f"transform({array}, {name} -> {body(name)})"


def each_value(mapping: str, body: Callable[[str], str]) -> str:
    """Return a map with ``body`` of each value."""
    key, name = _variable(), _variable()
    return f"transform_values({mapping}, ({key}, {name}) -> {body(name)})"


def some(array: str, body: Callable[[str], str]) -> str:
    """Return whether ``body`` is true for an element; null: unknown."""
    name = _variable()
    return f"exists({array}, {name} -> {body(name)})"


def either(conditions: Iterable[str]) -> str | None:
    """Return whether one condition is true; None if there is no condition."""
    return " OR ".join(f"({condition})" for condition in conditions) or None


def _variable() -> str:
    """Return a name that no other lambda's variable has."""
    return f"x{next(_numbers)}"
