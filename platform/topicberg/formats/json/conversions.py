"""What values of other types mean for a field, where the spec of a topic says that they may occur.

| conversion | of a field that is | a value in the record | becomes |
|---|---|---|---|
| ``number_from_text`` | a number | text with a number as JSON writes it | that number |
| ``text_from_any`` | a string | anything else than text | its JSON text |
| ``epoch_from_text`` | a time | text with whole milliseconds since 1970, or RFC 3339 | that time |
| ``null_from_empty`` | not nested | the text ``""`` | null |

All other values are read as without conversions. A field is named by its path; items of arrays and
values of maps have the path of these: ``lines.price`` is that of each line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from topicberg.errors import TableflowError
from topicberg.formats.json.columns import Kind, Node
from topicberg.formats.json.plan import RANGES, SCALARS, JsonPlan
from topicberg.formats.json.scalars import Read, ScalarMisfitError, unexpected_in
from topicberg.formats.json.syntax import Number, text_of
from topicberg.formats.time_text import date_time_micros

NUMBER_FROM_TEXT, TEXT_FROM_ANY = "number_from_text", "text_from_any"
EPOCH_FROM_TEXT, NULL_FROM_EMPTY = "epoch_from_text", "null_from_empty"
_KINDS: Mapping[str, frozenset[Kind]] = {
    NUMBER_FROM_TEXT: frozenset(("int", "long", "float", "double", "decimal")),
    TEXT_FROM_ANY: frozenset(("string",)),
    EPOCH_FROM_TEXT: frozenset(("date-time", "timestamptz")),
    NULL_FROM_EMPTY: frozenset(SCALARS) - {"json"},
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 1_000  # Of a whole number in text; longer ones are beyond the range of each column.
Conversions = Sequence[tuple[str, tuple[str, ...]]]
"""Paths of fields, and the names of their conversions."""


def with_conversions(node: Node, conversions: Conversions) -> Node:
    """Return the tree of a schema whose fields have their conversions. Those of a field that this
    version of the schema lacks, or has of another type, are left out."""
    for path, names in conversions:
        if (way := _way(node, path.split("."))) is not None:
            node = _with(node, way, names)
    return node


def check_conversions(where: str, node: Node, conversions: Conversions) -> None:
    """Refuse conversions of a field that the schema does not have, or of a type that has none."""
    for path, names in conversions:
        if (way := _way(node, path.split("."))) is None:
            raise TableflowError(
                f"{where}: conversions: the schema has no field {path}",
                hint="name a field by its path, such as `lines.price`",
            )
        leaf = reduce(lambda parent, name: parent.children[name], way, node)
        for name in names:
            if leaf.kind not in _KINDS[name]:
                raise TableflowError(
                    f"{where}: conversions: {path} is a {leaf.kind}, and {name} is for "
                    f"{', '.join(sorted(_KINDS[name]))}",
                    hint="correct the conversion, or the type of the field in the schema",
                )


_INNER = {"list": "element", "map": "value", "entries": "value"}
"""The child of a node that has its path."""


def _way(node: Node, path: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of the children that lead to a field; None: there is none."""
    if (inner := _INNER.get(node.kind)) is not None:
        way = _way(node.children[inner], path)
        return None if way is None else (inner, *way)
    if not path:
        return ()
    if node.kind != "struct":
        return None
    for size in range(len(path), 0, -1):  # a name may have dots
        child = node.children.get(name := ".".join(path[:size]))
        if child is not None and (way := _way(child, path[size:])) is not None:
            return (name, *way)
    return None


def _with(node: Node, way: tuple[str, ...], names: tuple[str, ...]) -> Node:
    """Return a node with the conversions of the field in it."""
    if not way:
        return replace(node, conversions=tuple(name for name in names if node.kind in _KINDS[name]))
    first, *rest = way
    child = _with(node.children[first], (*rest,), names)
    return replace(node, children={**node.children, first: child})


def converting(read: Read, plan: JsonPlan) -> Read:
    """Return what reads a value with the conversions of its field."""
    if not (names := frozenset(plan.node.conversions)):
        return read
    unexpected = unexpected_in(plan)
    from_text = next((reader for name, reader in _FROM_TEXT.items() if name in names), None)

    def converted(value: Any) -> Any:
        if type(value) is not str:
            return text_of(value) if TEXT_FROM_ANY in names else read(value)
        if not value and NULL_FROM_EMPTY in names:
            return None
        if from_text is None:
            return read(value)
        if (stored := from_text(plan, read, value)) is None:
            raise unexpected(value)
        return stored

    return converted


def _epoch_from_text(plan: JsonPlan, read: Read, text: str) -> int | None:
    """Return what text with a time means; None: it has none."""
    if (micros := date_time_micros(text)) is not None:
        return micros
    if type(millis := _number(text)) is not int:
        return None
    low, high = RANGES["timestamptz"]
    if low <= millis <= high:
        return 1000 * millis
    raise ScalarMisfitError(plan.column, "value ", text, " is not between the years 1 and 9999")


_FROM_TEXT: Mapping[str, Callable[[JsonPlan, Read, str], Any]] = {
    NUMBER_FROM_TEXT: lambda _, read, text: None if (n := _number(text)) is None else read(n),
    EPOCH_FROM_TEXT: _epoch_from_text,
}


def _number(text: str) -> int | Number | None:
    """Return the number that text has, as JSON is read; None: it has none."""
    if (match := _NUMBER.fullmatch(text)) is None:
        return None
    is_whole = match[1] is None and match[2] is None and len(text) <= _MAX_DIGITS
    return int(text) if is_whole else Number(text)
