"""How well a value matches the schema of a union's member.

Of the members that can read a value, its schema allows some, and some of these declare all of it.
What decides is checked in objects, arrays, maps and inner unions too: types, required properties,
constants, and properties that are not declared. Keywords that only restrict values further, such as
``pattern``, are not. Null is allowed everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from topicberg.formats.json.columns import Node
from topicberg.formats.json.plan import OTHER_NUMBERS, RANGES
from topicberg.formats.json.scalars import whole_number
from topicberg.formats.json.syntax import Number


class Match(NamedTuple):
    """What a member that allows a value has of it; the least one is the best.

    ``lost``: how many values its schema does not declare. ``converted``: how many texts are the
    numbers that Kafka Connect writes as text, such as the bytes of a decimal.
    """

    lost: int = 0
    converted: int = 0


EXACT = Match()  # All of the value is declared.
Matcher = Callable[[Any], Match | None]
"""Returns how a value that is not null matches; None: the schema does not allow it."""
_STARTS: Mapping[type, str] = {dict: "{", list: "["}


def matcher(node: Node, take: Callable[[int], None]) -> Matcher:
    """Return what matches values with a schema, and calls ``take`` with how many are looked at."""
    match_type = _of_type(node, take)
    is_constant = one_of(node.constants) if node.constants else None
    cost = 1 + sum(isinstance(constant, list | dict) for constant in node.constants)

    def match_value(value: Any) -> Match | None:
        take(cost + (len(value) if isinstance(value, list | dict | str) else 0))
        return match_type(value) if is_constant is None or is_constant(value) else None

    return match_value


def one_of(constants: Sequence[Any]) -> Callable[[Any], bool]:
    """Return whether a value is equal to one of a schema's constants."""
    texts = frozenset(constant for constant in constants if type(constant) is str)
    wholes = frozenset(_exactly(constant) for constant in constants if type(constant) is int)
    doubles = frozenset(constant for constant in constants if type(constant) is float)
    others = [constant for constant in constants if type(constant) not in (str, int, float)]

    def is_constant(value: Any) -> bool:
        if type(value) is str:
            return value in texts
        if type(value) is int or type(value) is Number:
            return _exactly(value) in wholes or (bool(doubles) and _double(value) in doubles)
        return any(_is_equal(constant, value) for constant in others)

    return is_constant


def _is_equal(constant: Any, value: Any) -> bool:
    """Return whether a constant of JSON is equal to a value of :func:`.syntax.parsed`."""
    if type(value) is int or type(value) is Number:
        if type(constant) is float:
            return _double(value) == constant
        return type(constant) is int and _exactly(constant) == _exactly(value)
    if type(constant) is not type(value):
        return False
    if isinstance(value, list):
        return len(constant) == len(value) and all(map(_is_equal, constant, value))
    if isinstance(value, dict):
        return constant.keys() == value.keys() and all(
            _is_equal(constant[name], inner) for name, inner in value.items()
        )
    return bool(constant == value)


def _double(value: int | Number) -> float | None:
    """Return the nearest double; None: the number is too large."""
    try:
        return float(value)
    except OverflowError:
        return None


def _exactly(value: int | Number) -> tuple[bool, str, int]:
    number = Number(value)
    digits, exponent = number.parts()
    return bool(digits) and number.startswith("-"), digits, exponent


def _of_type(node: Node, take: Callable[[int], None]) -> Matcher:
    match node.kind:
        case "struct":
            return _object(node, node.required, take)
        case "list":
            return _array(matcher(node.children["element"], take))
        case "map":
            return _map(matcher(node.children["value"], take))
        case "entries":
            return _array(_object(node, frozenset(("key",)), take))
        case "union":
            return _best([matcher(member, take) for member in node.children.values()])
        case "json":
            return _any(node)
    return _scalar(node)


def _object(node: Node, required: frozenset[str], take: Callable[[int], None]) -> Matcher:
    matchers = {name: matcher(child, take) for name, child in node.children.items()}

    def match_property(name: str, inner: Any) -> Match | None:
        if name in matchers:
            return EXACT if inner is None else matchers[name](inner)
        return None if node.is_closed else Match(lost=_count(inner))

    def match_object(value: Any) -> Match | None:
        if type(value) is not dict or not value.keys() >= required:
            return None
        return _sum(itertools.starmap(match_property, value.items()))

    return match_object


def _count(value: Any) -> int:
    """Return how many values a value has in it, and itself."""
    values, count = [value], 0
    while values:
        inner, count = values.pop(), count + 1
        values += inner.values() if isinstance(inner, dict) else ()
        values += inner if isinstance(inner, list) else ()
    return count


def _array(match_element: Matcher) -> Matcher:
    return lambda value: (
        _sum(match_element(inner) for inner in value if inner is not None)
        if type(value) is list
        else None
    )


def _map(match_inner: Matcher) -> Matcher:
    match_values = _array(match_inner)
    return lambda value: match_values([*value.values()]) if type(value) is dict else None


def _sum(matches: Iterable[Match | None]) -> Match | None:
    """Return what all matches have together; None: one does not match."""
    total = EXACT
    for match in matches:
        if match is None:
            return None
        total = Match(total.lost + match.lost, total.converted + match.converted)
    return total


def _best(matchers: list[Matcher]) -> Matcher:
    def match_member(value: Any) -> Match | None:
        best: Match | None = None
        for match_value in matchers:
            if (result := match_value(value)) == EXACT:
                return result
            if result is not None and (best is None or result < best):
                best = result
        return best

    return match_member


def _any(node: Node) -> Matcher:
    def match_any(value: Any) -> Match | None:
        is_allowed = not node.opening or _STARTS.get(type(value), " ") in node.opening
        return EXACT if is_allowed and not (node.is_closed and value) else None

    return match_any


def _scalar(node: Node) -> Matcher:
    kind = node.kind
    if kind in RANGES:
        return lambda value: EXACT if whole_number(value) is not None else None
    if kind not in ("float", "double", "any-float", "any-double", "decimal", "decimal-text"):
        json_type = {"boolean": bool, "variable-decimal": dict}.get(kind, str)
        return lambda value: EXACT if type(value) is json_type else None
    has_bytes = kind.startswith("decimal")
    others = OTHER_NUMBERS if kind.startswith("any-") else {}

    def match_number(value: Any) -> Match | None:
        if type(value) is int or type(value) is Number:
            return EXACT
        is_text = type(value) is str and (has_bytes or value in others)
        return Match(converted=1) if is_text else None

    return match_number
