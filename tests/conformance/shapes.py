"""Shapes of values, how a table's columns follow a schema, and where a written value belongs.

The documented rules (docs/tableflow.md) once more, in plain Python and without the engine's code.
A format's oracle turns a schema into a :class:`Shape` and a record into a value of that shape;
what is here says which row a table has of it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

Value = Any


class Refused(Exception):
    """The schema has no table, or the table cannot follow it; the text names the field."""


class Malformed(Exception):
    """A record has no row. ``field``: the field that a reason should name, if there is one."""

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field


class _Anything:
    """Stands for a value that no rule decides."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING = _Anything()


@dataclass(frozen=True)
class JsonText:
    """Stands for any JSON text of a value."""

    value: Any


@dataclass(frozen=True)
class Shape:
    """The type of a value, of a schema or of a column.

    :param kind: a scalar's Iceberg type without parameters; struct, list, map; or union, a struct
        of members of which one is set
    :param children: of a struct or union by name; ``element``; ``key`` and ``value``
    :param name: Avro only: what tells a union's branch from the others
    :param unit: what the same column may mean besides: a logical type of Avro that is a plain
        number in the column; JSON text
    :param aliases: Avro only: earlier names of a struct's field
    :param defaults: values of a struct's fields for writers that do not have them
    :param numbers: Protobuf only: the numbers of a struct's fields
    """

    kind: str
    children: Mapping[str, Shape] = field(default_factory=dict)
    precision: int = 0
    scale: int = 0
    name: str = ""
    unit: str = ""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    numbers: Mapping[str, int] | None = None

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        if self.children:
            inner = ", ".join(f"{name}: {child}" for name, child in self.children.items())
            return f"{self.kind}<{inner}>"
        return self.kind


_WIDER = {("int", "long"), ("float", "double")}
_STRUCTS = ("struct", "union")


def evolved(column: Shape | None, wanted: Shape, path: str = "") -> Shape:
    """The columns of a table after its newest schema is ``wanted``.

    :raises Refused: a table cannot follow, or could not tell two columns apart
    """
    if column is None:
        children = {n: evolved(None, c, _join(path, n)) for n, c in wanted.children.items()}
        result = Shape(wanted.kind, children, wanted.precision, wanted.scale, unit=wanted.unit)
    elif column.kind in _STRUCTS and wanted.kind in _STRUCTS:
        merged = dict(column.children)
        for name, child in wanted.children.items():
            merged[name] = evolved(merged.get(name), child, _join(path, name))
        kind = "union" if "union" in (column.kind, wanted.kind) else "struct"
        result = replace(column, kind=kind, children=merged)
    elif column.kind == wanted.kind and column.children:
        children = {
            name: evolved(child, wanted.children[name], _join(path, name))
            for name, child in column.children.items()
        }
        if column.kind == "map" and children["key"] != column.children["key"]:
            raise Refused(f"{path}: the keys of a map cannot change")
        result = replace(column, children=children)
    elif _mixes_units(column, wanted):
        raise Refused(f"{path}: the unit {column.unit} cannot become {wanted.unit}")
    elif _widens(wanted, column):
        result = replace(column, unit=wanted.unit or column.unit)
    elif _widens(column, wanted):
        result = Shape(wanted.kind, {}, wanted.precision, wanted.scale, unit=wanted.unit)
    else:
        raise Refused(f"{path}: {column} cannot become {wanted}")
    seen: dict[str, str] = {}
    for name in result.children if result.kind in _STRUCTS else ():
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise Refused(f"{_join(path, name)} differs from {other} only in case")
    return result


def with_dropped(held: Shape, older: Shape) -> Shape:
    """A shape, and the fields that only an older version of it has."""
    alike = held.kind in _STRUCTS and older.kind in _STRUCTS
    if not alike and held.kind != older.kind:
        return held
    children = {
        name: with_dropped(child, older.children[name])
        if name in older.children and (held.kind, name) != ("map", "key")
        else child
        for name, child in held.children.items()
    }
    if not alike:
        return replace(held, children=children)
    taken = {name.lower() for name in children}
    more = {n: one for n, one in older.children.items() if n.lower() not in taken}
    kind = "union" if "union" in (held.kind, older.kind) else "struct"
    return replace(held, kind=kind, children=children | more)


def fields_of(writer: Shape, latest: Shape) -> dict[str, Shape]:
    """The fields of an older version that have columns: under the newest name, if it knows them."""
    if writer.numbers is not None:
        numbers = set((latest.numbers or {}).values())
        known = set(latest.children)
        return {
            name: child
            for name, child in writer.children.items()
            if name in known or writer.numbers[name] not in numbers
        }
    aliases = {alias for names in latest.aliases.values() for alias in names}
    return {
        name: child
        for name, child in writer.children.items()
        if name in latest.children or name not in aliases
    }


def twin(columns: Shape, writer: Mapping[str, Shape]) -> str | None:
    """A written field that has no column, as another one differs from it only in case."""
    taken = {name.lower() for name in columns.children}
    for name, child in writer.items():
        column = columns.children.get(name)
        if column is None:
            if name.lower() in taken and columns.kind in _STRUCTS:
                return name
        elif found := twin(column, child.children):
            return found
    return None


def _widens(narrow: Shape, wide: Shape) -> bool:
    if narrow.kind == wide.kind == "decimal":
        return narrow.scale == wide.scale and narrow.precision <= wide.precision
    return narrow.kind == wide.kind or (narrow.kind, wide.kind) in _WIDER


def _mixes_units(column: Shape, wanted: Shape) -> bool:
    """Whether the values of a column would mean something else than those that it has."""
    if column.kind == wanted.kind == "string" or (column.kind, wanted.kind) == ("int", "long"):
        return column.unit != wanted.unit
    return bool(column.unit and wanted.unit) and column.unit != wanted.unit


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@dataclass
class Placed:
    """The row that a record becomes.

    :param sure: false: the rules leave open whether it is malformed instead
    """

    row: dict[str, Value]
    sure: bool = True


@dataclass(frozen=True)
class Half:
    """A record's value, or its key.

    :param value: of the shape ``writer``; None: a tombstone
    :param latest: the subject's newest schema, for its defaults and earlier names
    """

    value: dict[str, Value] | None
    writer: Shape
    latest: Shape


def placed(columns: Shape, *halves: Half) -> Placed:
    """The row of a decoded record: by name, at every depth.

    :param columns: the table's columns, those of metadata left out
    :param halves: of two that have a field, the first one's counts
    :raises Malformed: the value of a field has no place in its column
    """
    placing = _Placing()
    row: dict[str, Value] = dict.fromkeys(columns.children)
    placing.defaults(row, columns, *halves)
    for half in reversed(halves):
        if half.value is not None:
            row |= placing.written(half.value, half.writer, columns, half.latest, "")
            if half is not halves[0]:  # the key: a field of both has the type of the value's
                for name in halves[0].latest.children.keys() & half.writer.children.keys():
                    if not _shaped_alike(half.writer.children[name], columns.children[name]):
                        row[name] = ANYTHING
    return Placed(row, placing.sure)


def extended(value: Value, column: Shape) -> Value:
    """A value that was written before its column got more fields."""
    if value is None or value is ANYTHING or isinstance(value, JsonText):
        return value
    match column.kind:
        case "struct" | "union":
            return {name: extended(value.get(name), one) for name, one in column.children.items()}
        case "list":
            return [extended(one, column.children["element"]) for one in value]
        case "map":
            return {key: extended(one, column.children["value"]) for key, one in value.items()}
    return value


class _Placing:
    def __init__(self) -> None:
        self.sure = True
        self.is_numbered = False
        """Protobuf: a schema with whole numbers for a column of floats is refused as a whole."""

    def defaults(self, row: dict[str, Value], columns: Shape, *halves: Half) -> None:
        """Fill in the defaults for what the writers do not have; a tombstone has none."""
        for half in reversed(halves):
            for name, default in half.latest.defaults.items():
                if half.value is not None and name in row:
                    newest = half.latest.children[name]
                    row[name] = self.place(default, newest, columns.children[name], newest, name)

    def written(
        self, value: Value, writer: Shape, columns: Shape, latest: Shape | None, path: str
    ) -> dict[str, Value]:
        """What the writer has of the columns."""
        sources = _sources(writer, columns, latest)
        self.is_numbered |= writer.numbers is not None
        open_columns: dict[str, Value] = {}
        if writer.numbers is not None and latest is not None and latest.numbers is not None:
            names = {number: name for name, number in latest.numbers.items()}
            for name in writer.children.keys() - set(sources.values()):
                # The column of its number is of another type, and it has none of its own.
                if writer.numbers[name] not in names:
                    continue
                self.sure = False  # its schema may be refused as a whole
                if value[name] is not None:
                    open_columns[names[writer.numbers[name]]] = ANYTHING
        row: dict[str, Value] = {}
        wrong, doubtful, is_sure = list[Malformed](), list[str](), self.sure
        for name, source in sources.items():
            if source is None:
                continue
            called = name if name == source else f"{name}|{source}"
            self.sure = True
            try:
                row[name] = self.place(
                    value[source],
                    writer.children[source],
                    columns.children[name],
                    latest.children.get(name) if latest else None,
                    _join(path, called),
                )
            except Malformed as one:
                wrong.append(one)
            else:
                doubtful += [] if self.sure else [called]
            is_sure &= self.sure
        self.sure = is_sure
        if wrong:  # a reason names one of them
            named = [*((one.field or "").split(".")[-1] for one in wrong), *doubtful]
            raise Malformed(str(wrong[0]), "|".join(named)) if len(named) > 1 else wrong[0]
        return row | {name: one for name, one in open_columns.items() if name in columns.children}

    def fields(
        self, value: Value, writer: Shape, columns: Shape, latest: Shape | None, path: str
    ) -> dict[str, Value]:
        row: dict[str, Value] = dict.fromkeys(columns.children)
        if latest is not None:
            self.defaults(row, columns, Half(value, writer, latest))
        return row | self.written(value, writer, columns, latest, path)

    def place(
        self, value: Value, writer: Shape, column: Shape, latest: Shape | None, path: str
    ) -> Value:
        if value is None:
            if not _shaped_alike(writer, column):
                self.sure = False  # its schema may be refused as a whole
            return None
        if "union" in (writer.kind, column.kind):
            return self.union(value, writer, column, latest, path)
        if writer.kind in ("struct", "list", "map") and writer.kind != column.kind:
            raise Malformed(f"a {writer} cannot be a {column}", path)
        match column.kind:
            case "struct" if writer.kind == "struct":
                twin = latest if latest is not None and latest.kind == "struct" else None
                return self.fields(value, writer, column, twin, path)
            case "list" if writer.kind == "list":
                if not value and not _shaped_alike(writer, column):
                    self.sure = False
                inner = _child(writer, "element"), _child(column, "element"), _of(latest, "element")
                return [self.place(one, *inner, path) for one in value]
            case "map" if writer.kind == "map":
                if not value and not _shaped_alike(writer, column):
                    self.sure = False
                keys = _child(writer, "key"), _child(column, "key"), None
                inner = _child(writer, "value"), _child(column, "value"), _of(latest, "value")
                return {
                    self.place(key, *keys, path): self.place(one, *inner, path)
                    for key, one in value.items()
                }
            case "struct" | "list" | "map":
                raise Malformed(f"a {writer} cannot be a {column}", path)
        return self.scalar(value, writer, column, latest, path)

    def union(
        self, value: Value, writer: Shape, column: Shape, latest: Shape | None, path: str
    ) -> Value:
        """A branch is known by its type: the newest schema's names count, then the place."""
        if {writer.kind, column.kind} == {"struct", "union"}:
            self.sure = False  # the column has the fields of both
            return ANYTHING
        if writer.kind == "union":
            member = next(name for name, one in value.items() if one is not None)
            if not _shaped_alike(writer, column):
                self.sure = False
            value, writer = value[member], writer.children[member]
        else:
            member = "member0"
        if column.kind != "union":
            return self.place(value, writer, column, latest, path)
        target = _branch(writer, latest) or member
        if writer.kind in _TIMES and "long" in {one.kind for one in column.children.values()}:
            self.sure = False  # Avro reads a time as the number that it is sent as
            return ANYTHING
        if target not in column.children:
            raise Malformed(f"{column} has no member for {writer}", path)
        newest = latest.children.get(target) if latest and latest.kind == "union" else None
        inside = self.place(value, writer, column.children[target], newest, path)
        return {name: inside if name == target else None for name in column.children}

    def scalar(
        self, value: Value, writer: Shape, column: Shape, latest: Shape | None, path: str
    ) -> Value:
        have, want = writer.kind, column.kind
        if latest is not None and latest.unit != writer.unit:
            self.sure = False  # of two units in one column of numbers, no rule says which counts
            return ANYTHING
        if have == want == "decimal":
            assert isinstance(value, Decimal)
            digits = value.as_tuple()
            if writer.scale != column.scale:
                self.sure = False
                return ANYTHING
            if len(digits.digits) > column.precision and any(digits.digits):
                raise Malformed(f"{value} exceeds the precision of {column}", path)
            if writer.precision > column.precision:
                self.sure = False
            return value
        if have == want == "float":  # JSON's text may be more exact
            return _nearest(value, path)
        if have == want or (have, want) in _WIDER:
            return value
        numbers = {"int", "long", "float", "double"}
        if {have, want} <= numbers:
            return self.number(value, have, want, path)
        if {have, want} in ({"decimal", "int"}, {"decimal", "long"}):
            self.sure = False  # a value that fits may be a row
            limit = {"int": 2**31, "long": 2**63}.get(want, 10 ** (column.precision - column.scale))
            if not -limit <= value < limit:
                raise Malformed(f"{value} is out of range for {column}", path)
            return Decimal(value) if want == "decimal" else int(value)
        counted = numbers | {"date", "timestamptz", "timestamp"}
        if {have, want} == {"string", "binary"} or {have, want} <= counted:
            self.sure = False
            return ANYTHING
        raise Malformed(f"a {writer} cannot be a {column}", path)

    def number(self, value: Any, have: str, want: str, path: str) -> Value:
        """A number in a column of another type of numbers: itself, or malformed."""
        if want in ("float", "double"):
            wanted: float = float(value)
            if want == "float":
                wanted = _nearest(wanted, path)
            if have in ("float", "double") or wanted != value or self.is_numbered:
                self.sure = False
            if not math.isnan(wanted) and wanted != value:
                return ANYTHING
            return wanted
        self.sure = False
        if have in ("float", "double"):
            return ANYTHING
        if not -(2**31) <= value < 2**31:
            raise Malformed(f"{value} is out of range for {want}", path)
        return value


def _nearest(value: float, path: str) -> float:
    """The nearest number of 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        raise Malformed(f"{value} is out of range", path) from None


def _sources(writer: Shape, columns: Shape, latest: Shape | None) -> dict[str, str | None]:
    """For each column the writer's field that goes there."""
    found: dict[str, str | None] = dict.fromkeys(columns.children)
    if writer.numbers is not None:
        return _sources_by_number(writer, columns, latest, found)
    taken: set[str] = set()
    for name in latest.children if latest else ():
        names = (name, *(latest.aliases.get(name, ()) if latest else ()))
        source = next((one for one in names if one in writer.children), None)
        if source is not None and name in found:
            found[name] = source
            taken.add(source)
    for name in found:
        if (latest is None or name not in latest.children) and name not in taken:
            found[name] = name if name in writer.children else None
    return found


def _sources_by_number(
    writer: Shape, columns: Shape, latest: Shape | None, found: dict[str, str | None]
) -> dict[str, str | None]:
    names = {number: name for name, number in (latest.numbers or {}).items()} if latest else {}
    rest = []
    for field_name, number in writer.numbers.items():
        name = names.get(number)
        if name in found and (
            name == field_name
            or _converts(writer.children[field_name], columns.children[name], _of(latest, name))
        ):
            found[name] = field_name
        else:
            rest.append(field_name)
    for field_name in rest:
        if field_name in found and found[field_name] is None:
            found[field_name] = field_name
    return found


def fits(writer: Shape, column: Shape) -> bool:
    """Whether every value of a type can be in a column."""
    if writer.kind in _STRUCTS:
        return column.kind in _STRUCTS
    if writer.kind in ("list", "map"):
        return writer.kind == column.kind and all(
            fits(child, column.children[name]) for name, child in writer.children.items()
        )
    return _widens(writer, column)


def _converts(writer: Shape, column: Shape, latest: Shape | None) -> bool:
    """Whether some values of a type can be in a column: those of a number that another type has.
    Those of a message can if those of all its fields can."""
    if writer.kind in ("list", "map") and writer.kind == column.kind:
        return all(
            _converts(one, column.children[name], _of(latest, name))
            for name, one in writer.children.items()
        )
    if writer.numbers is not None and column.kind in _STRUCTS:
        newest = latest if latest is not None and latest.kind == "struct" else None
        return all(
            source is None
            or _converts(writer.children[source], column.children[name], _of(newest, name))
            for name, source in _sources(writer, column, newest).items()
        )
    whole, kinds = {"int", "long"}, {writer.kind, column.kind}
    if writer.kind in whole or (writer.kind == "decimal" and not writer.scale):
        return column.kind in {*whole, "decimal"}
    return fits(writer, column) or kinds in ({"decimal"}, {"string", "binary"})


def _shaped_alike(writer: Shape, column: Shape) -> bool:
    if writer.kind == column.kind and writer.kind in _STRUCTS:
        if writer.numbers is not None and not writer.children.keys() <= column.children.keys():
            return False  # renamed: which column a field's number has, a name does not say
        return all(
            _shaped_alike(child, column.children[name])
            for name, child in writer.children.items()
            if name in column.children
        )
    return fits(writer, column) and all(
        _shaped_alike(child, column.children[name]) for name, child in writer.children.items()
    )


_TIMES = frozenset({"timestamp", "timestamptz", "time", "date"})
"""Kinds that Avro sends as integers."""


def _branch(writer: Shape, latest: Shape | None) -> str | None:
    """The newest union's member of a writer's type."""
    if latest is None or latest.kind != "union" or not writer.name:
        return None  # of JSON, the place counts
    members = latest.children.items()
    for name, child in members:
        if (child.name, child.kind) == (writer.name, writer.kind):
            return name
    for name, child in members:
        if fits(writer, child) and writer.kind not in ("struct", "list", "map"):
            return name
    return None


def _child(shape: Shape, name: str) -> Shape:
    return shape.children[name]


def _of(shape: Shape | None, name: str | None) -> Shape | None:
    return shape.children.get(name) if shape is not None and name is not None else None


def difference(expected: Value, found: Value, path: str = "") -> str | None:
    """Where and how two values differ; None: they are equal. NaN equals NaN; a map may be a list of
    pairs; negative zero equals zero."""
    if expected is ANYTHING:
        return None
    if isinstance(expected, JsonText):
        same = isinstance(found, str) and json.loads(found) == expected.value
        return None if same else f"{path}: expected {expected!r}, found {found!r}"
    if isinstance(expected, dict):
        entries = dict(found) if isinstance(found, list) else found
        if not isinstance(entries, dict):
            return f"{path}: expected {expected!r}, found {found!r}"
        if missing := expected.keys() ^ entries.keys():
            return f"{path}: {sorted(map(repr, missing))} on one side only"
        parts = ((_join(path, str(k)), v, entries[k]) for k, v in expected.items())
    elif isinstance(expected, list | tuple):
        if type(found) is not type(expected) or len(found) != len(expected):
            return f"{path}: expected {expected!r}, found {found!r}"
        parts = ((f"{path}[{n}]", v, found[n]) for n, v in enumerate(expected))
    elif isinstance(expected, float) and isinstance(found, float):
        same = expected == found or (math.isnan(expected) and math.isnan(found))
        return None if same else f"{path}: expected {expected!r}, found {found!r}"
    else:
        if isinstance(found, bytearray):
            found = bytes(found)
        if type(expected) is type(found) and expected == found:
            return None
        return f"{path}: expected {expected!r}, found {found!r}"
    return next((d for p, e, f in parts if (d := difference(e, f, p)) is not None), None)
