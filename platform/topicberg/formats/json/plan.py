"""The plan of a JSON record: the column, and the type, of each of its values.

A record is read by its writer's schema (:mod:`.columns`), into columns that the latest schema
or an earlier one defined. All decoders follow the plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Any, NamedTuple

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats.bounds import DAYS, INT, LONG, MICROS
from topicberg.formats.connect import TEXTS
from topicberg.formats.json.columns import ANY, UNION_FIELD, Kind, Node, join, plain
from topicberg.formats.meanings import JSON_TEXT, Meaning, meaning_of, with_meaning
from topicberg.formats.reasons import place_at

_NUMBERS = (T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType)


class JsonScalar(NamedTuple):
    """A kind of values without inner ones.

    ``columns``: the type of their column, then those of other columns that they can go to; a value
    that does not fit makes its record malformed. ``expected``: what such a value is, for reasons.
    """

    columns: tuple[type[T.IcebergType], ...]
    expected: str


_TEXTS: tuple[Kind, ...] = ("zoned-timestamp", "iso-timestamp", "iso-date", "iso-time")
_UNSCALED = "a number, or base64 of its unscaled bytes"
SCALARS: dict[Kind, JsonScalar] = {
    "string": JsonScalar((T.StringType,), "a string"),
    "json": JsonScalar((T.StringType,), "a value"),
    "boolean": JsonScalar((T.BooleanType,), "true or false"),
    "int": JsonScalar((T.IntegerType, *_NUMBERS), "a whole number"),
    "long": JsonScalar((T.LongType, *_NUMBERS), "a whole number"),
    "float": JsonScalar((T.FloatType, T.DoubleType), "a number"),
    "double": JsonScalar((T.DoubleType,), "a number"),
    "any-float": JsonScalar((T.FloatType, T.DoubleType), "a number"),
    "any-double": JsonScalar((T.DoubleType,), "a number"),
    "decimal": JsonScalar((T.DecimalType,), _UNSCALED),
    "binary": JsonScalar((T.BinaryType,), "base64"),
    "date": JsonScalar((T.DateType,), "a whole number of days"),
    "timestamp": JsonScalar((T.TimestampType,), "a whole number of milliseconds"),
    "timestamptz": JsonScalar((T.TimestamptzType,), "a whole number of milliseconds"),
    "date-time": JsonScalar(
        (T.TimestamptzType,), "a date-time of RFC 3339, such as 2026-01-31T12:00:00Z,"
    ),
    "timestamp-micros": JsonScalar((T.TimestampType,), "a whole number of microseconds"),
    "timestamp-nanos": JsonScalar((T.TimestampType,), "a whole number of nanoseconds"),
    **{kind: JsonScalar((TEXTS[kind].column,), TEXTS[kind].what) for kind in _TEXTS},
    "decimal-text": JsonScalar((T.StringType,), _UNSCALED),
    "variable-decimal": JsonScalar(
        (T.StringType,), "an object with a scale and base64 of the unscaled bytes"
    ),
}
_MILLIS = -62_135_596_800_000, 253_402_300_799_999
RANGES: dict[Kind, tuple[int, int]] = {
    "int": INT,
    "long": LONG,
    "date": DAYS,
    "timestamp": _MILLIS,
    "timestamptz": _MILLIS,
    "timestamp-micros": MICROS,
    "timestamp-nanos": (LONG[0] + 1, LONG[1] - 1),  # the others are infinite
}
"""Kinds of whole numbers, and the least and the largest one."""
COMPARED: tuple[Kind, ...] = ("string", "boolean", "int", "long")
"""Kinds whose constants tell the members of a union apart."""
OTHER_NUMBERS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
"""How Kafka Connect writes a number that JSON does not have."""
_GROUPS: dict[Kind, str] = {
    **dict.fromkeys(("int", "long", "float", "double", "decimal"), "number"),
    **dict.fromkeys(("any-float", "any-double"), "number"),
    **dict.fromkeys(("list", "entries"), "list"),
}


@dataclass(frozen=True)
class JsonPlan:
    """How a value becomes the value of a column, or of a part of one.

    ``kind``: how it is read; for a union, that is decided by its ``members``. ``children``: for a
    struct the fields that have a column, for a list its element, for a map its key and value.
    """

    kind: Kind
    column: Any
    node: Node
    children: Mapping[str, JsonPlan] = field(default_factory=dict)
    members: tuple[JsonMember, ...] = ()


@dataclass(frozen=True)
class JsonMember:
    """An alternative of a union. ``place``: the field of the column's struct; "": the column.

    ``place`` None: such a value has no column, which makes its record malformed.
    """

    plan: JsonPlan
    place: str | None


def in_order_for_text(members: Sequence[JsonMember]) -> list[JsonMember]:
    """Return the members of a union in the order in which they are tried for a text.

    Kafka Connect writes the bytes of a decimal, and a number that JSON does not have, as text. A
    text is that only if no other member takes it: any word of four letters is base64.
    """
    return sorted(members, key=lambda member: not _takes_text(member.plan))


def _takes_text(plan: JsonPlan) -> bool:
    match plan.kind:
        case "union":
            return any(_takes_text(member.plan) for member in plan.members)
        case "json":
            return not plan.node.opening or '"' in plan.node.opening
    return plan.kind in ("string", "binary", "date-time", *_TEXTS)


def fields_of(children: Mapping[str, Node], ids: Iterator[int]) -> list[T.NestedField]:
    """Return the columns of an object's properties, or of a union's members."""
    return [
        T.NestedField(
            next(ids),
            name,
            _type_of(child, ids),
            required=False,
            doc=with_meaning(child.doc, child.meaning),
        )
        for name, child in children.items()
    ]


def _type_of(node: Node, ids: Iterator[int]) -> T.IcebergType:
    match node.kind:
        case "decimal":
            return T.DecimalType(node.precision, node.scale)
        case "struct" | "union":
            return T.StructType(*fields_of(node.children, ids))
        case "list":
            return T.ListType(next(ids), _type_of(node.children["element"], ids), False)
        case "map" | "entries":
            key, value = ((next(ids), _type_of(node.children[n], ids)) for n in ("key", "value"))
            return T.MapType(*key, *value, False)
    return SCALARS[node.kind].columns[0]()


def scalar_node(column: Column) -> Node | None:
    """Return the type that Kafka Connect's values of a column have in JSON; None: no scalar."""
    for kind, scalar in SCALARS.items():
        if isinstance(column, scalar.columns[0]):
            if isinstance(column, T.DecimalType):
                return Node(kind, precision=column.precision, scale=column.scale)
            return Node(ANY.get(kind, kind))
    return None


Column = T.IcebergType
Part = tuple[Column, Meaning]  # The column of a part of a value, and what its values mean.


def _fields_of(kind: T.StructType) -> dict[str, Part]:
    """Return the fields of a struct by name."""
    return {field.name: (field.field_type, meaning_of(field.doc)) for field in kind.fields}


def fit(
    subject: str,
    node: Node,
    latest: Node | None,
    column: Column,
    path: str = "",
    meaning: Meaning = Meaning(),  # noqa: B008  it cannot be changed
) -> JsonPlan:
    """Return the plan by which values of the writer's ``node`` become values of ``column``.

    :param latest: the latest schema's type at this place; None: it has none
    :raises TableflowError: none of the writer's values could be in this column
    """
    if node.kind == "union" or (latest is not None and latest.kind == "union"):
        return _fit_union(subject, node, latest, column, path, meaning)
    node = _read_as(subject, node, latest, column, path, meaning.values)
    parts: dict[str, Part]
    match node.kind, column:
        case "struct", T.StructType():
            parts = {n: part for n, part in _fields_of(column).items() if n in node.children}
        case "list", T.ListType():
            parts = {"element": (column.element_type, meaning)}
        case "map", T.MapType() if isinstance(column.key_type, T.StringType):
            parts = {"value": (column.value_type, meaning)}
        case "entries", T.MapType():
            parts = {
                "key": (column.key_type, Meaning(meaning.keys)),
                "value": (column.value_type, Meaning(meaning.values)),
            }
        case kind, _ if kind in SCALARS and isinstance(column, SCALARS[kind].columns):
            parts = {}
        case _:
            raise _unlike(subject, node, column, path)
    newest = latest.children if latest else {}
    children = {
        part: fit(
            subject, node.children[part], newest.get(part), kind, join(path, part), inner_meaning
        )
        for part, (kind, inner_meaning) in parts.items()
    }
    return JsonPlan(node.kind, column, node, children)


def _read_as(
    subject: str, node: Node, latest: Node | None, column: Column, path: str, meaning: str | None
) -> Node:
    """Return the type as which a value is read, or TableflowError: it would mean something else.
    The ``format`` of a string may differ between versions. Text goes to a column of JSON text as
    its JSON text, and of the values that may be anything, only text goes to a column of text."""
    if isinstance(column, T.StringType):
        is_json = meaning == JSON_TEXT or (latest and latest.meaning.values == JSON_TEXT)
        if node.kind in ("string", "date-time", *_TEXTS):
            kind: Kind = "json" if is_json else "string"
            return replace(node, kind=kind, opening='"' if is_json else "")
        if node.meaning.values == JSON_TEXT and not is_json:
            if node.opening:  # the values are never text
                raise _unlike(subject, node, column, path)
            return replace(node, kind="string")
    expected = meaning or (latest.unit if latest else None)
    if node.unit and expected and node.unit != expected:
        raise TableflowError(
            f"{subject}: {place_at(path)} is in {node.unit}, its column in {expected}",
            hint=_NEW_TABLE,
        )
    is_time = latest is not None and latest.kind == "date-time"
    if node.kind == "string" and is_time and isinstance(column, T.TimestamptzType):
        return replace(node, kind="date-time")
    return node


_NEW_TABLE = (
    "disable Tableflow for the topic with --drop-table and enable it again, which creates a new "
    "table"
)


def _unlike(subject: str, node: Node, column: Column, path: str) -> TableflowError:
    return TableflowError(
        f"{subject}: {place_at(path)} is a {node.kind}, its column a {column}", hint=_NEW_TABLE
    )


def _fit_union(
    subject: str, node: Node, latest: Node | None, column: Column, path: str, meaning: Meaning
) -> JsonPlan:
    """Return the plan for a value of several types, or for a column of several types."""
    nodes = list(node.children.values()) if node.kind == "union" else [node]
    columns = _fields_of(column) if isinstance(column, T.StructType) else {}
    newest: Sequence[tuple[str | None, Node | None]]
    if f"{UNION_FIELD}0" not in columns:
        newest = [("" if _may_be(member_node, latest) else None, latest) for member_node in nodes]
    elif latest is not None and latest.kind == "union":
        newest = _matched(nodes, list(latest.children.items()))
    else:
        newest = [(f"{UNION_FIELD}{number}", None) for number in range(len(nodes))]
    members: list[JsonMember] = []
    for member_node, (place, newest_node) in zip(nodes, newest, strict=True):
        if place in ("", *columns):
            kind, own_meaning = columns.get(place or "", (column, meaning))
            with suppress(TableflowError):
                placed = fit(subject, member_node, newest_node, kind, path, own_meaning)
                members.append(JsonMember(placed, place))
                continue
        own = _type_of(member_node, itertools.count())
        unplaced = fit(subject, member_node, None, own, meaning=member_node.meaning)
        members.append(JsonMember(unplaced, None))
    if all(member.place is None for member in members):
        raise _unlike(subject, node, column, path)
    return JsonPlan("union", column, node, members=tuple(members))


def _may_be(node: Node, latest: Node | None) -> bool:
    """Return whether a member of the writer's union may go to a column of one type."""
    return latest is None or _group(node) != _group(latest) or _likeness(node, latest) > 0


def _matched(
    nodes: Sequence[Node], latest: Sequence[tuple[str, Node]]
) -> list[tuple[str | None, Node | None]]:
    """Return the place of each member of the writer's union, and the latest schema's type there.
    The index of a member changes with the members before it. Members are matched in this order: the
    same member in the same place, the same member elsewhere, a member of the same name, one whose
    properties have the same constants, and the most similar one. A member that the latest schema
    dropped keeps its place, unless another member has it now."""
    left, right = dict(enumerate(nodes)), {number: node for number, (_, node) in enumerate(latest)}
    matches: dict[int, int] = {}

    def pair(member: int, other: int) -> None:
        matches[member] = other
        del left[member], right[other]

    for number in left.keys() & right.keys():
        if _same_type(left[number], right[number]):
            pair(number, number)
    for same in (_same_type, _same_name, _same_constants):
        for member in list(left):
            others = [n for n in right if same(left[member], right[n])]
            rivals = [n for n in left if others and same(left[n], right[others[0]])]
            if len(others) == len(rivals) == 1:
                pair(member, others[0])
    alike = [(-_likeness(a, b), m, n) for m, a in left.items() for n, b in right.items()]
    for likeness, member, other in sorted(alike):
        if likeness and member in left and other in right:
            pair(member, other)
    return [
        latest[matches[number]]
        if number in matches
        else (None if number < len(latest) else f"{UNION_FIELD}{number}", None)
        for number in range(len(nodes))
    ]


def _same_type(one: Node, other: Node) -> bool:
    return plain(one) == plain(other)


def _same_name(one: Node, other: Node) -> bool:
    return one.name is not None and one.name == other.name and _group(one) == _group(other)


def _same_constants(one: Node, other: Node) -> bool:
    return any(
        child.constants and child.constants == getattr(other.children.get(name), "constants", ())
        for name, child in one.children.items()
    )


def _group(node: Node) -> str:
    return _GROUPS.get(node.kind, node.kind)


def _likeness(one: Node, other: Node) -> int:
    """Return how much two types have in common; 0: nothing."""
    if _group(one) != _group(other):
        return 0
    if one.kind == "struct":
        return len(set(one.children) & set(other.children))
    shared = (name for name in one.children if name in other.children)
    return 1 + sum(_likeness(one.children[name], other.children[name]) for name in shared)
