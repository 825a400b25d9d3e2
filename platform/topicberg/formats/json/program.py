"""The program that decodes JSON records by their plan; see :mod:`topicberg.formats.columnar`.

It has the result of the reference decoder (:mod:`.record`), or refuses a record. Some types of
topics with a change log have no instructions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType

from topicberg.formats.columnar.program import JsonOp, NotCoveredError, ProgramCode, Slot, Slots
from topicberg.formats.json.columns import Kind, Node
from topicberg.formats.json.conversions import NULL_FROM_EMPTY, NUMBER_FROM_TEXT
from topicberg.formats.json.plan import COMPARED, RANGES, JsonMember, JsonPlan, in_order_for_text

_SIMPLE: dict[Kind, JsonOp] = {
    "string": JsonOp.TEXT,
    "boolean": JsonOp.BOOLEAN,
    "binary": JsonOp.BINARY,
    "date-time": JsonOp.TIME,
    "double": JsonOp.DOUBLE,
    "any-double": JsonOp.DOUBLE,
}
_WHOLE: dict[Kind, int] = {
    "int": 1,
    "long": 1,
    "date": 1,
    "timestamp": 1000,
    "timestamptz": 1000,
    "timestamp-micros": 1,
}
"""Kinds of whole numbers, and what a column's value is of them."""
_EXACT: dict[type, int] = {FloatType: 2**24, DoubleType: 2**53}
"""All whole numbers up to this one are exact."""
_TYPES = ("string", "number", "boolean", "object", "array")
"""JSON's types, as the targets of a union are in order."""
_OPENINGS = {"object": "{", "array": "[", "string": '"'}
_MAX_BITS = 62  # Of a mask: kinds of objects, and names of their properties.


def emit_record(code: ProgramCode, plan: JsonPlan, slots: Slots) -> None:
    """Append the instructions that read a record's object into slots; NotCoveredError: none."""
    match plan.kind:
        case "struct":
            _object(code, plan, None, slots)
        case "union" if code.unknown is None:
            _union(code, plan, None, slots)
        case kind:
            raise NotCoveredError(f"a record is a {kind}")


def emit(code: ProgramCode, plan: JsonPlan, place: Slot, *, is_exact: bool = False) -> None:
    """Append the instructions that read a value, or raise NotCoveredError.

    :param is_exact: they refuse a value that its schema does not allow, or does not declare all of
    """
    kind, column = plan.kind, plan.column
    if is_exact and (plan.node.constants or (kind == "json" and plan.node.is_closed)):
        raise NotCoveredError(f"the column {place.name} has constants")
    # Other conversions are left to the reference decoder: the instructions refuse such values.
    if NULL_FROM_EMPTY in plan.node.conversions:
        code.emit(JsonOp.EMPTY, place)
    if NUMBER_FROM_TEXT in plan.node.conversions:
        code.emit(JsonOp.QUOTED, place)
    match kind:
        case "struct":
            exact = [code.at + 1]  # the instructions of the object
            if is_exact and _choice(code, [plan], exact, exact, place, is_exact=True) < 0:
                raise NotCoveredError(f"the column {place.name} has constants")
            _object(code, plan, place, place.by_name, is_exact=is_exact)
        case "list":
            code.emit(JsonOp.ARRAY, place, place.items)
            emit(code, plan.children["element"], place.inside[0], is_exact=is_exact)
        case "map":
            key, value = place.inside
            code.emit(JsonOp.MAP, place, place.items, key.slot, int(key.store))
            code.emit(JsonOp.TEXT, key)
            emit(code, plan.children["value"], value, is_exact=is_exact)
        case "entries":
            key, _ = place.inside
            code.emit(JsonOp.ENTRIES, place, place.items, key.slot, int(key.store))
            _object(code, plan, None, place.by_name, place.items, is_exact=is_exact)
        case "union":
            _union(code, plan, place, place.by_name, is_exact=is_exact)
        case "float" | "any-float":
            code.emit(JsonOp.WIDER if isinstance(column, DoubleType) else JsonOp.FLOAT, place)
        case "decimal":
            _decimal(code, plan, place, is_exact=is_exact)
        case "json":
            kinds = sum(bit for mark, bit in (("{", 1), ("[", 2)) if mark in plan.node.opening)
            code.emit(JsonOp.JSON, place, kinds if plan.node.opening else 7)
        case _ if kind in _WHOLE:
            _whole(code, plan, place)
        case _ if kind in _SIMPLE:
            code.emit(_SIMPLE[kind], place)
        case _:
            raise NotCoveredError(f"the column {place.name} is read from a {kind}")


def _object(
    code: ProgramCode,
    plan: JsonPlan,
    place: Slot | None,
    slots: Slots,
    domain: int = 0,
    *,
    is_exact: bool = False,
) -> None:
    """Append the instructions of an object, and of its properties.

    :param domain: of an object that has no place of its own
    """
    names, first = list(plan.children), len(code.targets)
    code.targets += [-1] * len(names)
    if code.unknown is None or is_exact:
        code.targets.append(-2 if is_exact else -1)
    else:
        code.targets += [-3, code.unknown.slot] if place is None and domain == 0 else [-2]
    code.emit(JsonOp.OBJECT, place, first, len(names), _names(code, names), domain=domain)
    for number, (name, child) in enumerate(plan.children.items()):
        code.targets[first + number] = code.at
        if is_exact and plan.kind == "struct" and _has_only_texts(child.node):
            child = replace(child, node=replace(child.node, constants=()))
        emit(code, child, slots[name], is_exact=is_exact)


def _has_only_texts(node: Node) -> bool:
    """Return whether a value is a text of some, which the instruction of a choice checks."""
    return node.kind == "string" and all(isinstance(value, str) for value in node.constants)


def _names(code: ProgramCode, names: Sequence[str]) -> int:
    """Add names as JSON text has them, then without escapes; return the number of the first one."""
    escaped = [json.dumps(name, ensure_ascii=False)[1:-1].encode() for name in names]
    return code.text([*escaped, *(name.encode() for name in names)])


def _union(
    code: ProgramCode, plan: JsonPlan, place: Slot | None, slots: Slots, *, is_exact: bool = False
) -> None:
    """Append the instructions of a value of several types. A value goes to the first member that
    has its JSON type: if that cannot read it, the record is refused. A member that is not covered,
    has no column, or accepts only some values, refuses it. If another member has that type too, the
    value must be allowed and declared by the first one, at every depth: the reference decoder
    compares the others with it."""
    first = len(code.targets)
    code.targets += [-1] * len(_TYPES)
    code.emit(JsonOp.UNION, place, first)
    targets: dict[tuple[int, bool], int] = {}

    def target(member: JsonMember, is_strict: bool) -> int:
        """Return the instruction of a member, which is emitted once."""
        key = id(member), is_strict and not _is_plain(member.plan, is_checked=not is_exact)
        if key not in targets:
            targets[key] = _member(code, member, place, slots, is_exact=key[1])
        return targets[key]

    for offset, kind in enumerate(_TYPES):
        members = in_order_for_text(plan.members) if kind == "string" else plan.members
        able = [member for member in members if _may_be(member.plan, kind)]
        is_strict = is_exact or len(able) > 1
        if kind == "object" and able:
            exact = [target(member, is_strict) for member in able]
            sole = exact if is_exact else [target(member, False) for member in able]
            code.targets[first + offset] = _choice(
                code, [member.plan for member in able], sole, exact, None, is_exact=is_exact
            )
        elif able and not (
            able[0].plan.node.constants if is_strict else _is_limited(able[0].plan.node)
        ):
            code.targets[first + offset] = target(able[0], is_strict)


def _is_plain(plan: JsonPlan, *, is_checked: bool = False) -> bool:
    """Return whether the schema allows and declares all that the instructions read.

    :param is_checked: the instruction of a choice has checked the properties of an object
    """
    match plan.kind:
        case "struct":
            return (
                is_checked
                and not plan.node.constants
                and plan.children.keys() == plan.node.children.keys()
                and all(
                    _has_only_texts(child.node) or _is_plain(child)
                    for child in plan.children.values()
                )
            )
        case "list" | "map":
            return not plan.node.constants and all(map(_is_plain, plan.children.values()))
        case "union" | "entries" | "decimal":
            return False
    return not (plan.node.constants or plan.node.is_closed)


def _may_be(plan: JsonPlan, kind: str) -> bool:
    """Return whether a value of a JSON type may be a value of a member."""
    match plan.kind:
        case "struct" | "map" | "variable-decimal":
            return kind == "object"
        case "list" | "entries":
            return kind == "array"
        case "json":
            return not plan.node.opening or _OPENINGS.get(kind, " ") in plan.node.opening
        case "decimal" | "decimal-text" | "any-float" | "any-double":
            return kind in ("number", "string")
        case "boolean":
            return kind == "boolean"
        case "union":
            return any(_may_be(member.plan, kind) for member in plan.members)
    is_number = plan.kind in RANGES or plan.kind in ("float", "double")
    return kind == ("number" if is_number else "string")


def _is_limited(node: Node) -> bool:
    """Return whether only some values are accepted."""
    return bool(node.constants) and node.kind in COMPARED


def _member(
    code: ProgramCode, member: JsonMember, place: Slot | None, slots: Slots, *, is_exact: bool
) -> int:
    """Return the first instruction of a member; -1: it has none."""
    if member.place is None:
        return -1
    mark, first = code.mark(), code.at
    try:
        slot = place if member.place == "" else slots[member.place]
        inside = slots if slot is None else slot.by_name
        if is_exact and member.plan.kind == "struct" and not member.plan.node.constants:
            _object(code, member.plan, slot, inside, is_exact=True)
        elif slot is not None:
            emit(code, member.plan, slot, is_exact=is_exact)
        elif is_exact:
            raise NotCoveredError("a record is one of several types in one of several")
        else:
            emit_record(code, member.plan, slots)
    except NotCoveredError:
        code.reset(mark)
        return -1
    return first


def _choice(
    code: ProgramCode,
    plans: Sequence[JsonPlan],
    sole: Sequence[int],
    exact: Sequence[int],
    place: Slot | None,
    *,
    is_exact: bool,
) -> int:
    """Return the instruction that finds the kind of an object, or that of the only one; -1: none.

    The targets of the instruction are: how many kinds there are; the instruction of each, if no
    other one accepts the object, and if others do; the mask of those that may have a property that
    no kind declares; whether a kind must declare all properties; and for each property: the masks
    of those that declare it, that require it, and that may have any value of it, the first of its
    constant texts, and how many it has. The constants follow as pairs of a text and a mask.

    :param sole: the instruction of each kind that accepts the object without another one
    :param exact: that of a kind if others accept the object; it refuses what the kind does not
        allow or declare
    :param place: of the object; None: it cannot be null
    """
    nodes = [plan.node for plan in plans]
    declared: list[Mapping[str, Node] | None] = [
        plan.node.children if plan.kind == "struct" else None for plan in plans
    ]
    required = [node.required if node.kind == "struct" else frozenset() for node in nodes]
    names = list(dict.fromkeys(chain.from_iterable(filter(None, declared))))
    names += sorted(set().union(*required) - set(names))
    limited = [[*filter(_is_limited, (properties or {}).values())] for properties in declared]
    if len(plans) == 1 and not (required[0] or limited[0]):
        return sole[0]
    if max(len(plans), len(names)) > _MAX_BITS or not all(map(_has_only_texts, chain(*limited))):
        return -1

    def mask(flags: Iterator[bool]) -> int:
        return sum(flag << number for number, flag in enumerate(flags))

    first = len(code.targets)
    code.targets += [len(plans), *sole, *exact]
    code.targets += [mask(properties is None for properties in declared), is_exact]
    rows = len(code.targets)
    code.targets += [0] * (5 * len(names))
    for number, name in enumerate(names):
        children = [None if properties is None else properties.get(name) for properties in declared]
        allowed = [
            set(child.constants) if child is not None and _is_limited(child) else None
            for child in children
        ]
        constants = sorted(set().union(*(values for values in allowed if values is not None)))
        code.targets[rows + 5 * number : rows + 5 * number + 5] = [
            mask(properties is None or name in properties for properties in declared),
            mask(name in required_names for required_names in required),
            mask(values is None for values in allowed),
            len(code.targets),
            len(constants),
        ]
        for constant in constants:
            text = code.text([json.dumps(constant, ensure_ascii=False)[1:-1].encode()])
            code.targets += [text, mask(values is None or constant in values for values in allowed)]
    return code.emit(JsonOp.CHOICE, place, first, len(names), _names(code, names))


def _whole(code: ProgramCode, plan: JsonPlan, place: Slot) -> None:
    (low, high), column = RANGES[plan.kind], plan.column
    if type(column) in _EXACT:
        most = _EXACT[type(column)]
        operation = JsonOp.WHOLE_FLOAT if isinstance(column, FloatType) else JsonOp.WHOLE_DOUBLE
        code.emit(operation, place, max(low, -most), min(high, most))
    elif isinstance(column, DecimalType):
        most = 10 ** (column.precision - column.scale) - 1
        code.emit(JsonOp.WHOLE_DECIMAL, place, max(low, -most), min(high, most), column.scale)
    elif isinstance(column, IntegerType) or plan.kind == "date":
        code.emit(JsonOp.INT, place, max(low, -(2**31)), min(high, 2**31 - 1))
    else:
        code.emit(JsonOp.LONG, place, low, high, _WHOLE[plan.kind])


def _decimal(code: ProgramCode, plan: JsonPlan, place: Slot, *, is_exact: bool) -> None:
    precision, own_scale, column = plan.node.precision, plan.node.scale, plan.column
    scale, first = min(own_scale, column.scale), len(code.targets)
    limit = 10 ** (min(precision - own_scale, column.precision - column.scale) + scale)
    low = limit & (2**64 - 1)
    code.targets += [own_scale, scale, column.scale - scale]
    code.targets += [limit >> 64, low - (2**64 if low >= 2**63 else 0), is_exact]
    code.emit(JsonOp.DECIMAL, place, first)
