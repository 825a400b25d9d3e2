"""How a record of one Avro schema becomes a row of a table that other schemas defined too.

Each type of the writer is paired with the column of its values, and with the latest schema's type.
A pair is a :class:`~topicberg.formats.avro_values.Reading`: the schemas for Spark's ``from_avro``,
the SQL that converts its result to the column's value, and the same in Python, which finds the
reason of a malformed record.

``from_avro`` gets two schemas built here. The writer's has the layout of the bytes, but the
names of the table's columns, and each use of a named type has a name of its own, so that Avro's
resolution has nothing to match. The reader's has the shape of the column.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyiceberg import types as T

from topicberg.formats import avro_values as values
from topicberg.formats import connect_values, sql
from topicberg.formats.avro_defaults import default
from topicberg.formats.avro_schema import Field, Type
from topicberg.formats.avro_values import UTF8, Cursor, Reading, Scan
from topicberg.formats.columnar.program import AvroOp, Code, Emit, NotCoveredError, Place
from topicberg.formats.reasons import MalformedError, field_at, shortened
from topicberg.spark import quote

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
    "enum": ("string",),
}
_NAMED = ("record", "enum", "fixed")


@dataclass(frozen=True)
class Row:
    """How records of a writer become rows.

    ``parts``: the writer's fields in order, each with the name of its column, if there is one.
    ``defaults``: the constants of columns that the writer lacks.
    """

    parts: Sequence[tuple[Field, str | None, Reading]]
    defaults: Mapping[str, str]

    @property
    def readings(self) -> dict[str, Reading]:
        """The readings of the columns that the writer has."""
        return {name: reading for _, name, reading in self.parts if name is not None}

    @property
    def wire(self) -> list[dict[str, Any]]:
        """The layout of the bytes, as fields of an Avro record."""
        return [
            {"name": f"topicberg_{number}" if name is None else name, "type": reading.wire}
            for number, (_, name, reading) in enumerate(self.parts)
        ]

    def scan(self, cursor: Cursor, path: str) -> None:
        for field, _, reading in self.parts:
            reading.scan(cursor, f"{path}.{field.name}" if path else field.name)

    def program(self, code: Code, places: Mapping[str, Place]) -> None:
        """Append the instructions that read the fields.

        :raises NotCoveredError: there are none
        """
        if self.defaults:
            raise NotCoveredError("fields that the writer lacks have defaults")
        for field, name, reading in self.parts:
            if name is None:
                values.skip(code, field.type)
            else:
                reading.program(code, places[name])


def sources(writer: Type, latest: Type | None) -> dict[str, Field]:
    """Return the writer's fields by the names of the columns that they go to.

    These names are the latest schema's, also for fields that it renames with an alias, and the
    writer's own for fields that the latest schema does not have.
    """
    own = {field.name: field for field in writer.fields}
    newest = latest.fields if latest else []
    found = {field.name: own[field.name] for field in newest if field.name in own}
    used = set(found)
    for field in newest:
        alias = next((name for name in field.aliases if name in own and name not in used), None)
        if field.name not in own and alias is not None:
            found[field.name] = own[alias]
            used.add(alias)
    return found | {name: field for name, field in own.items() if name not in used}


class Reader:
    """Pairs a writer's types with columns."""

    def __init__(self) -> None:
        self._names = itertools.count()
        self._skipped: dict[int, str] = {}

    def row(self, writer: Type, latest: Type | None, columns: Sequence[T.NestedField]) -> Row:
        """Pair the fields of a record with columns, by name."""
        by_name = {column.name: column for column in columns}
        newest = {field.name: field for field in latest.fields} if latest else {}
        targets = {
            id(field): by_name[name]
            for name, field in sources(writer, latest).items()
            if name in by_name
        }
        parts: list[tuple[Field, str | None, Reading]] = []
        for field in writer.fields:
            if (column := targets.get(id(field))) is None:
                parts.append((field, None, self._unread(field.type, None)))
            else:
                new = newest.get(column.name)
                reading = self.value(field.type, new.type if new else None, column.field_type)
                parts.append((field, column.name, reading))
        have = {name for _, name, _ in parts}
        defaults = {
            column.name: constant
            for column in columns
            if column.name not in have
            and (new := newest.get(column.name)) is not None
            and (constant := default(new, column.field_type)) is not None
        }
        return Row(parts, defaults)

    def value(self, writer: Type, latest: Type | None, column: T.IcebergType) -> Reading:
        """Pair a type with a column."""
        if latest is not None and not latest.members:
            latest = None
        members = writer.members
        if not members:
            return self._unread(writer, column)
        if len(members) > 1:
            return self._union(writer, latest, column)
        branch = self._branch(members[0], None, latest, column)
        if writer.kind != "union":
            return branch
        choices = [None if one.kind == "null" else branch for one in writer.branches]
        return replace(
            branch,
            wire=["null" if one is None else one.wire for one in choices],
            read=["null", branch.read],
            scan=_scan(choices),
            emit=_choice(choices),
        )

    def _unread(self, kind: Type, column: T.IcebergType | None) -> Reading:
        """Return how values are skipped; a column has no value."""
        return Reading(
            self.skipped(kind),
            None if column is None else self._optional(column),
            values.scan_of(kind),
            emit=lambda code, _: values.skip(code, kind),
        )

    def skipped(self, kind: Type) -> Any:
        """Return the layout of a type whose values have no column; it may be recursive."""
        if kind.inner is not None:
            return {
                "type": kind.kind,
                "items" if kind.kind == "array" else "values": self.skipped(kind.inner),
            }
        if kind.kind == "union":
            return [self.skipped(branch) for branch in kind.branches]
        if kind.kind not in _NAMED:
            return kind.kind
        if id(kind) in self._skipped:
            return self._skipped[id(kind)]
        named: dict[str, Any] = {"type": kind.kind, "name": self._name()}
        self._skipped[id(kind)] = named["name"]
        match kind.kind:
            case "enum":
                named["symbols"] = [f"S{number}" for number in range(len(kind.symbols))]
            case "fixed":
                named["size"] = kind.size
            case "record":
                named["fields"] = [
                    {"name": f"f{number}", "type": self.skipped(field.type)}
                    for number, field in enumerate(kind.fields)
                ]
        return named

    def _name(self) -> str:
        return f"t{next(self._names)}"

    def _optional(self, column: T.IcebergType) -> Any:
        """Return an Avro type that Spark reads as the column's, or null."""
        return ["null", self._natural(column)]

    def _natural(self, column: T.IcebergType) -> Any:
        match column:
            case T.StructType():
                fields = [self._missing(field) for field in column.fields]
                return {"type": "record", "name": self._name(), "fields": fields}
            case T.ListType():
                return {"type": "array", "items": self._optional(column.element_type)}
            case T.MapType():
                return {"type": "map", "values": self._optional(column.value_type)}
            case T.DecimalType():
                precision, scale = column.precision, column.scale
                decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
                return {"type": "bytes", **decimal}
            case T.DateType():
                return {"type": "int", "logicalType": "date"}
            case T.TimestamptzType():
                return {"type": "long", "logicalType": "timestamp-micros"}
            case T.TimestampType():
                return {"type": "long", "logicalType": "local-timestamp-micros"}
            case T.BinaryType():
                return "bytes"
        return str(column)

    def _missing(self, field: T.NestedField) -> dict[str, Any]:
        return {"name": field.name, "type": self._optional(field.field_type), "default": None}

    def _unfit(self, writer: Type, column: T.IcebergType) -> Reading:
        """Return a reading that makes every record with such a value malformed.

        ``from_avro`` fails at the first value of the type.
        """

        def scan(_cursor: Cursor, path: str) -> None:
            where = field_at(path, column)
            raise MalformedError(f"{where}: a value of the type {writer} does not fit")

        wire = {"type": "fixed", "name": self._name(), "size": 1}
        emit = values.operation(AvroOp.FAIL)
        return Reading(wire, self._natural(column), scan, emit=emit)

    def _branch(
        self, writer: Type, place: int | None, latest: Type | None, column: T.IcebergType
    ) -> Reading:
        """Pair a type that is not a union with the column, or with a member of the column.

        :param place: index of the type in the writer's union; None: its column has no members
        """
        fields = column.fields if isinstance(column, T.StructType) else ()
        columns = {field.name: field for field in fields}
        kept = None if place is None else columns.get(f"member{place}")
        shares_fields = not columns.keys().isdisjoint(field.name for field in writer.fields)
        if latest is None:
            # The latest schema dropped the field; the column is of this or another version.
            if kept is not None:
                return self._member(writer, None, column, kept)
            if _has_only_members(columns) and not shares_fields:
                return self._unfit(writer, column)
            return self._direct(writer, None, column)
        options = latest.members
        if latest.has_members:
            index = _match(writer, options)
            if index is not None and (member := columns.get(f"member{index}")) is not None:
                return self._member(writer, options[index], column, member)
            if kept is not None and place is not None and place >= len(options):
                return self._member(writer, None, column, kept)
            if shares_fields:
                return self._direct(writer, None, column)
            return self._unfit(writer, column)
        # Of several records, only the record of that name is what the column is of now.
        is_named = place is not None and writer.kind in _NAMED and writer.kind == options[0].kind
        if is_named and _match(writer, options) is None:
            if kept is not None:
                return self._member(writer, None, column, kept)
            return self._unfit(writer, column)
        return self._direct(writer, options[0] if len(options) == 1 else None, column)

    def _member(
        self, writer: Type, latest: Type | None, column: T.IcebergType, member: T.NestedField
    ) -> Reading:
        """Pair a type with one member of a union's column; the others are null."""
        assert isinstance(column, T.StructType)  # noqa: S101  it has the member
        inner = self._direct(writer, latest, member.field_type)

        def value(raw: str) -> str:
            members = sql.row(column, {member.name: inner.value(raw)})
            return f"if({raw} IS NOT NULL, {members}, NULL)"

        def emit(code: Code, place: Place) -> None:
            code.emit(AvroOp.PRESENT, place)
            inner.program(code, place.field(member.name))

        return replace(inner, sql=value, is_cast=False, emit=emit)

    def _union(self, writer: Type, latest: Type | None, column: T.IcebergType) -> Reading:
        """Pair a union of several types with a column.

        Each branch becomes a record of one field, which has the same bytes. Spark then returns a
        struct with a member for each branch, whatever the branches are.
        """
        wire: list[Any] = []
        read: list[Any] = ["null"]
        branches: list[Reading] = []
        choices: list[Reading | None] = []
        for one in writer.branches:
            if one.kind == "null":
                wire.append("null")
                choices.append(None)
                continue
            place = len(branches) if writer.has_members else None
            branch = self._branch(one, place, latest, column)
            record = {"type": "record", "name": self._name()}
            wire.append({**record, "fields": [{"name": "v", "type": branch.wire}]})
            read.append({**record, "fields": [{"name": "v", "type": branch.read}]})
            branches.append(branch)
            choices.append(branch)

        def value(union: str) -> str:
            parts = (one.value(f"{union}.member{index}.v") for index, one in enumerate(branches))
            return f"coalesce({', '.join(parts)})"

        checks = tuple(
            check.inside(("field", f"member{index}"), ("field", "v"))
            for index, one in enumerate(branches)
            for check in one.checks
        )
        return Reading(wire, read, _scan(choices), value, checks, emit=_choice(choices))

    def _direct(self, writer: Type, latest: Type | None, column: T.IcebergType) -> Reading:
        """Pair a type that is not a union with a column as a whole."""
        if latest is not None and latest.kind != writer.kind and writer.kind in _CONTAINERS:
            latest = None
        match writer.kind, column:
            case "record", T.StructType():
                return self._record(writer, latest, column)
            case "array", T.ListType():
                return self._array(writer, latest, column)
            case "map", T.MapType():
                return self._map(writer, latest, column)
        return self._scalar(writer, latest, column) or self._unfit(writer, column)

    def _record(self, writer: Type, latest: Type | None, column: T.StructType) -> Reading:
        row = self.row(writer, latest, column.fields)
        name, readings = self._name(), row.readings
        read = [
            {"name": field.name, "type": readings[field.name].read}
            if field.name in readings
            else self._missing(field)
            for field in column.fields
        ]

        def value(raw: str) -> str:
            read = {name: one.value(f"{raw}.{quote(name)}") for name, one in readings.items()}
            return f"if({raw} IS NOT NULL, {sql.row(column, {**row.defaults, **read})}, NULL)"

        def emit(code: Code, place: Place) -> None:
            code.emit(AvroOp.PRESENT, place)
            row.program(code, {inner.name: inner for inner in place.inside})

        checks = (
            check.inside(("field", name))
            for name, reading in readings.items()
            for check in reading.checks
        )
        found = Reading(
            {"type": "record", "name": name, "fields": row.wire},
            {"type": "record", "name": name, "fields": read},
            row.scan,
            value,
            tuple(checks),
            emit=emit,
        )
        return found if row.defaults else _converted(found, column, list(readings.values()))

    def _array(self, writer: Type, latest: Type | None, column: T.ListType) -> Reading:
        assert writer.inner is not None  # noqa: S101  it is an array
        inner = self.value(writer.inner, latest and latest.inner, column.element_type)

        def scan(cursor: Cursor, path: str) -> None:
            where = field_at(path, column)
            cursor.blocks(where, lambda index: inner.scan(cursor, f"{path}[{index}]"))

        def emit(code: Code, place: Place) -> None:
            values.items(code, place, writer, lambda code: inner.program(code, place.inside[0]))

        found = Reading(
            {"type": "array", "items": inner.wire},
            {"type": "array", "items": inner.read},
            scan,
            lambda raw: sql.each(raw, inner.value),
            tuple(check.inside(("items",)) for check in inner.checks),
            emit=emit,
        )
        return _converted(found, column, [inner])

    def _map(self, writer: Type, latest: Type | None, column: T.MapType) -> Reading:
        assert writer.inner is not None  # noqa: S101  it is a map
        inner = self.value(writer.inner, latest and latest.inner, column.value_type)

        def scan(cursor: Cursor, path: str) -> None:
            where = field_at(path, column)

            def entry(_: int) -> None:
                key = values.utf8(cursor.text(where), f"field {path} (key of a map)")
                inner.scan(cursor, f"{path}[{shortened(key)}]")

            cursor.blocks(where, entry)

        found = Reading(
            {"type": "map", "values": inner.wire},
            {"type": "map", "values": inner.read},
            scan,
            lambda raw: sql.each_value(raw, inner.value),
            (UTF8.inside(("keys",)), *(check.inside(("values",)) for check in inner.checks)),
        )
        return _converted(found, column, [inner])

    def _scalar(self, writer: Type, latest: Type | None, column: T.IcebergType) -> Reading | None:
        """Pair a type with a column of one value; None if no value of the type fits.

        If only one of the two schemas has a logical type, it gives the number its meaning.
        """
        kind, meaning = writer.kind, _meaning(writer)
        if (meaning or "").startswith("topicberg."):
            return connect_values.reading(writer, self._name(), column)
        new = _meaning(latest) if latest else None
        is_whole = kind in ("int", "long")
        means_the_same = meaning is None or new in (None, meaning)
        match column:
            case T.BooleanType() if kind == "boolean":
                return values.boolean(column)
            case T.IntegerType() if kind == "int" and means_the_same:
                return values.whole(column, kind)
            case T.LongType() if is_whole and means_the_same:
                return values.whole(column, kind)
            case T.FloatType() if is_whole or kind == "float":
                return values.floating(column, kind)
            case T.DoubleType() if is_whole or kind in ("float", "double"):
                return values.floating(column, kind)
            case T.StringType() if kind == "enum":
                return values.enum(writer, self._name(), column)
            case T.StringType() if kind == "string" or (kind == "bytes" and meaning is None):
                return values.string(column)
            case T.BinaryType() if kind in ("bytes", "string", "fixed"):
                return values.binary(writer, self._name(), column)
            case T.DateType() if kind == "int" and (meaning or new) == "date":
                return values.date(column)
            case T.TimestamptzType() | T.TimestampType() if is_whole:
                return values.timestamp(column, kind, meaning or new or "")
            case T.DecimalType() if kind in ("bytes", "fixed"):
                scaled = writer if meaning else latest
                if scaled is not None and scaled.is_decimal:
                    return values.decimal(writer, self._name(), scaled.scale, column)
        return None


_CONTAINERS = ("record", "array", "map")


def _scan(choices: Sequence[Reading | None]) -> Scan:
    """Return how a union is read in Python; None: null."""
    return values.scan_branches([None if one is None else one.scan for one in choices])


def _choice(choices: Sequence[Reading | None]) -> Emit:
    """Return how a union is read by instructions; None: null."""

    def emit(code: Code, place: Place) -> None:
        of_each = [None if one is None else partial(one.program, place=place) for one in choices]
        values.branches(code, of_each)

    return emit


def _converted(found: Reading, column: T.IcebergType, parts: Sequence[Reading]) -> Reading:
    """Return the reading, converting a whole value only if its parts have to be converted."""
    if not any(part.sql for part in parts):
        return replace(found, sql=None)
    if all(part.sql is None or part.is_cast for part in parts):
        return replace(found, sql=values.cast(column), is_cast=True)
    return found


def _has_only_members(columns: Mapping[str, T.NestedField]) -> bool:
    names = [f"member{index}" for index in range(len(columns))]
    return bool(columns) and list(columns) == names


def _meaning(kind: Type) -> str | None:
    """Return the logical type; None if the number or the bytes have no further meaning."""
    return None if kind.logical == "decimal" and not kind.is_decimal else kind.logical


def _match(branch: Type, options: Sequence[Type]) -> int | None:
    """Return the index of the latest union's branch that a branch of the writer's is."""
    alike = [index for index, one in enumerate(options) if one.kind == branch.kind]
    if branch.kind in _NAMED:
        short = branch.name.rpartition(".")[2]
        same = [
            index
            for index in alike
            if branch.name == options[index].name or branch.name in options[index].aliases
        ]
        alike = same or [i for i in alike if options[i].name.rpartition(".")[2] == short]
    if alike:
        return alike[0]
    wider = _PROMOTED.get(branch.kind, ())
    promoted = [index for index, one in enumerate(options) if one.kind in wider]
    if promoted:
        return promoted[0]
    # The latest version narrowed it; the column may still be of the wider type.
    narrowed = [
        (_PROMOTED[one.kind].index(branch.kind), index)
        for index, one in enumerate(options)
        if branch.kind in _PROMOTED.get(one.kind, ()) and one.logical == branch.logical
    ]
    return min(narrowed)[1] if narrowed else None
