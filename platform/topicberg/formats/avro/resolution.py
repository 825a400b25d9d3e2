"""How a record of one Avro schema becomes a row of a table that other schemas defined too.

Each type of the writer is resolved to the column of its values, and to the latest schema's type.
The result is a tree of what the bytes have, in their order: the reference decoder reads a record by
it (:mod:`.record`), and instructions (:mod:`.program`) are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count, repeat
from typing import Any

from pyiceberg import types as T

from topicberg.formats.avro.defaults import UNITS, default
from topicberg.formats.avro.schema import AvroField, Type
from topicberg.formats.bounds import DAYS, INT, LONG, MAX_PRECISION, MICROS
from topicberg.formats.connect import MAX_SCALE, TEXTS
from topicberg.formats.meanings import meaning_of

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
    "enum": ("string",),
}
_NAMED = ("record", "enum", "fixed")
_CONTAINERS = ("record", "array", "map")
_BOUNDS = {"int": INT, "long": LONG}


class Form(Enum):
    """How a single value is read."""

    BOOLEAN = 1
    WHOLE = 2  # A number within ``bounds``, times ``factor``.
    NEAREST = 3  # A number within ``bounds``, as the nearest float or double.
    FLOAT, DOUBLE, TEXT = 4, 5, 6
    BINARY = 7  # ``size`` bytes; None: their number precedes them.
    ENUM = 8  # One of ``symbols``, by its index.
    DECIMAL = 9  # An unscaled number in ``size`` bytes, of ``scale``.
    CONNECT_TEXT = 10  # A text of the kind ``text``, a :class:`Text`.
    NANOS = 11  # Nanoseconds since 1970; what is beyond microseconds is dropped.
    DECIMAL_TEXT = 12  # An unscaled number of ``scale``, as text.
    VARIABLE_DECIMAL = 13
    """A record of a scale and an unscaled number, in the order of ``symbols``, as text."""


@dataclass(frozen=True)
class AvroScalar:
    """A value without parts, and its column, a :class:`T.IcebergType`."""

    form: Form
    column: Any
    bounds: tuple[int, int] = LONG
    factor: int = 1
    problem: str = "is out of range"  # What is wrong with a number beyond ``bounds``.
    size: int | None = None
    scale: int = 0
    symbols: tuple[str, ...] = ()
    text: Any = None


@dataclass(frozen=True)
class Skipped:
    """A value that has no column, or whose column is null."""

    type: Type
    column: T.IcebergType | None


@dataclass(frozen=True)
class Unfit:
    """A value that its column cannot hold: a record that has it is malformed."""

    type: Type
    column: T.IcebergType


@dataclass(frozen=True)
class Choice:
    """A value of a union. ``branches``: None is null."""

    branches: tuple[Node | None, ...]


@dataclass(frozen=True)
class AvroMember:
    """A value that is a member of its column, which is a union's; the other members are null."""

    name: str
    inner: Node
    column: T.StructType


@dataclass(frozen=True)
class Items:
    """The items of an array."""

    inner: Node
    column: T.ListType


@dataclass(frozen=True)
class Entries:
    """The values of a map."""

    inner: Node
    column: T.MapType


@dataclass(frozen=True)
class Row:
    """The fields of a record, the writer's in order, each with the name of its column, or None.

    ``defaults``: the stored values of columns that the writer lacks, unless they are null.
    """

    parts: tuple[tuple[str, str | None, Node], ...]
    defaults: Mapping[str, Any]
    column: T.StructType


Node = AvroScalar | Skipped | Unfit | Choice | AvroMember | Items | Entries | Row


def sources(writer: Type, latest: Type | None) -> dict[str, AvroField]:
    """Return the writer's fields by the names of the columns that they go to.

    These names are the latest schema's, also for fields that it renames with an alias, and the
    writer's own for fields that the latest schema does not have.
    """
    fields = {field.name: field for field in writer.fields}
    newest = latest.fields if latest else []
    by_column = {field.name: fields[field.name] for field in newest if field.name in fields}
    rest = {name: field for name, field in fields.items() if name not in by_column}
    for field in newest:
        if field.name not in fields and (alias := next(filter(rest.get, field.aliases), None)):
            by_column[field.name] = rest.pop(alias)
    return by_column | rest


def resolve(writer: Type, latest: Type | None, columns: Sequence[T.NestedField]) -> Row:
    """Resolve the fields of a record to columns, by name."""
    by_name = {column.name: column for column in columns}
    newest = {field.name: field for field in latest.fields} if latest else {}
    targets = {id(field): by_name.get(name) for name, field in sources(writer, latest).items()}

    def part(field: AvroField) -> tuple[str, str | None, Node]:
        if (column := targets.get(id(field))) is None:
            return field.name, None, Skipped(field.type, None)
        new, unit = newest.get(column.name), meaning_of(column.doc).values
        node = _value(field.type, new.type if new else None, column.field_type, unit)
        return field.name, column.name, node

    parts = tuple(part(field) for field in writer.fields)
    missing = by_name.keys() - {name for _, name, _ in parts}
    values = {
        column.name: default(newest[column.name], column.field_type)
        for column in columns
        if column.name in missing and column.name in newest
    }
    defaults = {name: value for name, value in values.items() if value is not None}
    return Row(parts, defaults, T.StructType(*columns))


def _value(writer: Type, latest: Type | None, column: T.IcebergType, unit: str | None) -> Node:
    """:param unit: of the times of the column; None: they are none, or its comment has no unit"""
    if latest is not None and not latest.members:
        latest = None
    if not writer.members:
        return Skipped(writer, column)
    if writer.kind != "union":
        return _branch(writer, None, latest, column, unit)
    place = count() if writer.has_members else repeat(None)
    return Choice(
        tuple(
            None if branch.kind == "null" else _branch(branch, next(place), latest, column, unit)
            for branch in writer.branches
        )
    )


def _branch(
    writer: Type, place: int | None, latest: Type | None, column: T.IcebergType, unit: str | None
) -> Node:
    """Resolve a type that is not a union to the column, or to the column's member at a place."""
    fields = column.fields if isinstance(column, T.StructType) else ()
    columns = {field.name: field for field in fields}
    kept = None if place is None else columns.get(f"member{place}")
    shares_fields = not columns.keys().isdisjoint(field.name for field in writer.fields)
    if latest is None:
        # The latest schema dropped the field; the column is of this or another version.
        if kept is not None:
            return _member(writer, None, column, kept)
        has_only_members = columns and [*columns] == [f"member{n}" for n in range(len(columns))]
        if has_only_members and not shares_fields:
            return Unfit(writer, column)
        return _direct(writer, None, column, unit)
    options = latest.members
    if latest.has_members:
        index = _match(writer, options)
        if index is not None and (member := columns.get(f"member{index}")) is not None:
            return _member(writer, options[index], column, member)
        if kept is not None and place is not None and place >= len(options):
            return _member(writer, None, column, kept)
        return _direct(writer, None, column, unit) if shares_fields else Unfit(writer, column)
    # Of several records, only the record of that name is what the column is of now.
    is_named = place is not None and writer.kind in _NAMED and writer.kind == options[0].kind
    if is_named and _match(writer, options) is None:
        return _member(writer, None, column, kept) if kept is not None else Unfit(writer, column)
    return _direct(writer, options[0] if len(options) == 1 else None, column, unit)


def _member(
    writer: Type, latest: Type | None, column: T.IcebergType, member: T.NestedField
) -> Node:
    assert isinstance(column, T.StructType)  # noqa: S101  it has the member
    unit = meaning_of(member.doc).values
    return AvroMember(member.name, _direct(writer, latest, member.field_type, unit), column)


def _direct(writer: Type, latest: Type | None, column: T.IcebergType, unit: str | None) -> Node:
    """Resolve a type that is not a union to a column as a whole."""
    if latest is not None and latest.kind != writer.kind and writer.kind in _CONTAINERS:
        latest = None
    match writer.kind, column:
        case "record", T.StructType():
            return resolve(writer, latest, column.fields)
        case "array", T.ListType(element_type=items):
            return Items(_value(writer.inner, latest and latest.inner, items, unit), column)
        case "map", T.MapType(value_type=values):
            return Entries(_value(writer.inner, latest and latest.inner, values, unit), column)
    if isinstance(column, T.IntegerType | T.LongType) and writer.unit is not None:
        unit = unit or (latest.unit if latest else None)
        if unit not in (None, writer.unit):
            return Unfit(writer, column)
    return _scalar(writer, latest, column) or Unfit(writer, column)


def _scalar(writer: Type, latest: Type | None, column: T.IcebergType) -> AvroScalar | None:
    """Resolve a type to a column of one value; None if no value of the type fits. If only one of
    the two schemas has a logical type, it gives the number its meaning."""
    kind, meaning = writer.kind, _meaning(writer)
    if (meaning or "").startswith("topicberg."):
        return _connect(writer, column)
    new = _meaning(latest) if latest else None
    has_unit = latest is not None and writer.unit is not None and writer.unit == latest.unit
    is_whole, bounds = kind in _BOUNDS, _BOUNDS.get(kind, LONG)
    size = writer.size if kind == "fixed" else None
    means_the_same = meaning is None or new in (None, meaning) or has_unit
    match column:
        case T.BooleanType() if kind == "boolean":
            return AvroScalar(Form.BOOLEAN, column)
        case T.IntegerType() if kind == "int" and means_the_same:
            return AvroScalar(Form.WHOLE, column, bounds)
        case T.LongType() if is_whole and means_the_same:
            return AvroScalar(Form.WHOLE, column, bounds)
        case T.FloatType() | T.DoubleType() if is_whole:
            return AvroScalar(Form.NEAREST, column, bounds)
        case T.FloatType() | T.DoubleType() if kind == "float":
            return AvroScalar(Form.FLOAT, column)
        case T.DoubleType() if kind == "double":
            return AvroScalar(Form.DOUBLE, column)
        case T.StringType() if kind == "enum":
            return AvroScalar(Form.ENUM, column, symbols=writer.symbols)
        case T.StringType() if kind == "string" or (kind == "bytes" and meaning is None):
            return AvroScalar(Form.TEXT, column)
        case T.BinaryType() if kind in ("bytes", "string", "fixed"):
            return AvroScalar(Form.BINARY, column, size=size)
        case T.DateType() if kind == "int" and (meaning or new) == "date":
            return AvroScalar(
                Form.WHOLE, column, DAYS, problem="is not a day of the years 1 to 9999"
            )
        case T.TimestamptzType() | T.TimestampType() if is_whole:
            return _timestamp(column, bounds, meaning or new or "")
        case T.DecimalType() if kind in ("bytes", "fixed"):
            scaled = writer if meaning else latest
            if scaled is not None and scaled.is_decimal and scaled.scale <= MAX_PRECISION:
                return AvroScalar(Form.DECIMAL, column, size=size, scale=scaled.scale)
    return None


def _timestamp(column: T.IcebergType, bounds: tuple[int, int], meaning: str) -> AvroScalar | None:
    """:param meaning: the logical type; None is returned if it is not of the column's kind"""
    place, _, unit = meaning.rpartition("timestamp-")
    if unit not in UNITS or place != ("local-" if isinstance(column, T.TimestampType) else ""):
        return None
    factor = UNITS[unit]
    if bounds == INT:
        return AvroScalar(Form.WHOLE, column, INT, factor, f"({meaning}) is out of range")
    bounds, problem = (MICROS[0] // factor, MICROS[1] // factor), "is not of the years 1 to 9999"
    return AvroScalar(Form.WHOLE, column, bounds, factor, f"({meaning}) {problem}")


def _connect(writer: Type, column: T.IcebergType) -> AvroScalar | None:
    """Resolve a type of :mod:`topicberg.formats.connect`."""
    if (text := TEXTS.get((writer.logical or "").removeprefix("topicberg."))) is not None:
        if isinstance(column, text.column):
            return AvroScalar(Form.CONNECT_TEXT, column, text=text)
        return AvroScalar(Form.TEXT, column) if isinstance(column, T.StringType) else None
    kinds, scale = {field.name: field.type.kind for field in writer.fields}, writer.scale
    match writer.logical, column:
        case "topicberg.nano-timestamp", T.TimestampType():
            return AvroScalar(Form.NANOS, column)
        case "topicberg.decimal", T.StringType() if type(scale) is int and abs(scale) <= MAX_SCALE:
            return AvroScalar(Form.DECIMAL_TEXT, column, scale=scale)
        case "topicberg.variable-decimal", T.StringType():
            if kinds == {"scale": "int", "value": "bytes"}:
                return AvroScalar(Form.VARIABLE_DECIMAL, column, symbols=tuple(kinds))
    return None


def _meaning(kind: Type) -> str | None:
    """Return the logical type; None if the number or the bytes have no further meaning."""
    return None if kind.logical == "decimal" and not kind.is_decimal else kind.logical


def _match(branch: Type, options: Sequence[Type]) -> int | None:
    """Return the index of the latest union's branch that a branch of the writer's is."""
    alike = [index for index, option in enumerate(options) if option.kind == branch.kind]
    if branch.kind in _NAMED:
        short = branch.name.rpartition(".")[2]
        same = [i for i in alike if branch.name in (options[i].name, *options[i].aliases)]
        alike = same or [i for i in alike if options[i].name.rpartition(".")[2] == short]
    wider = _PROMOTED.get(branch.kind, ())
    alike = alike or [index for index, option in enumerate(options) if option.kind in wider]
    if alike:
        return alike[0]
    # The latest version narrowed it; the column may still be of the wider type.
    narrowed = [
        (_PROMOTED[option.kind].index(branch.kind), index)
        for index, option in enumerate(options)
        if branch.kind in _PROMOTED.get(option.kind, ()) and option.logical == branch.logical
    ]
    return min(narrowed)[1] if narrowed else None
