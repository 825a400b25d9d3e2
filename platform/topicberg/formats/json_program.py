"""The program that decodes JSON records by their plan; see :mod:`topicberg.formats.columnar`.

It has the result of the Spark expression (:mod:`.json_sql`). Unions, maps and JSON text have no
instructions, nor have the types of topics with a change log.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType

from topicberg.formats.columnar.program import Code, JsonOp, NotCoveredError, Place
from topicberg.formats.json_nodes import Kind
from topicberg.formats.json_plan import Plan
from topicberg.formats.json_sql import RANGES

_SIMPLE: dict[Kind, JsonOp] = {
    "string": JsonOp.TEXT,
    "boolean": JsonOp.BOOLEAN,
    "binary": JsonOp.BINARY,
    "date-time": JsonOp.TIME,
    "double": JsonOp.DOUBLE,
}
_WHOLE: dict[Kind, int] = {"int": 1, "long": 1, "date": 1, "timestamp": 1000, "timestamptz": 1000}
"""Kinds of whole numbers, and what a column's value is of them."""
_EXACT = {FloatType: 2**24, DoubleType: 2**53}
"""All whole numbers up to this one are exact."""


def emit_record(code: Code, plan: Plan, places: Mapping[str, Place]) -> None:
    """Append the instructions that read a record's object.

    :param places: where the values of the columns go, by name
    :raises NotCoveredError: there are none
    """
    if plan.kind != "struct":
        raise NotCoveredError(f"a record is a {plan.kind}")
    _object(code, plan, None, places)


def emit(code: Code, plan: Plan, place: Place) -> None:
    """Append the instructions that read a value.

    :raises NotCoveredError: there are none
    """
    kind, column = plan.kind, plan.column
    match kind:
        case "struct":
            _object(code, plan, place, {inner.name: inner for inner in place.inside})
        case "list":
            at = code.emit(JsonOp.ARRAY, place, place.items, code.at + 1)
            assert code.at == at + 1  # noqa: S101  the instruction of an item
            emit(code, plan.children["element"], place.inside[0])
        case "float":
            is_wider = isinstance(column, DoubleType)
            code.emit(JsonOp.WIDER if is_wider else JsonOp.FLOAT, place)
        case "decimal":
            _decimal(code, plan, place)
        case _ if kind in _WHOLE:
            _whole(code, plan, place)
        case _ if kind in _SIMPLE:
            code.emit(_SIMPLE[kind], place)
        case _:
            raise NotCoveredError(f"the column {place.name} is read from a {kind}")


def _object(code: Code, plan: Plan, place: Place | None, places: Mapping[str, Place]) -> None:
    names = list(plan.children)
    if not names:
        raise NotCoveredError("an object has no property with a column")
    if any(ord(one) < 32 or one in '"\\' for name in names for one in name):
        raise NotCoveredError("the name of a property is written with escapes")
    first = len(code.targets)
    code.targets += [-1] * (len(names) + 1)
    texts = code.text([name.encode() for name in names])
    code.emit(JsonOp.OBJECT, place, first, len(names), texts)
    for number, (name, child) in enumerate(plan.children.items()):
        code.targets[first + number] = code.at
        emit(code, child, places[name])


def _whole(code: Code, plan: Plan, place: Place) -> None:
    low, high = RANGES[plan.kind]
    column = type(plan.column)
    if column in _EXACT:
        most = _EXACT[column]
        operation = JsonOp.WHOLE_FLOAT if column is FloatType else JsonOp.WHOLE_DOUBLE
        code.emit(operation, place, max(low, -most), min(high, most))
    elif column is DecimalType:
        raise NotCoveredError(f"the column {place.name} is a decimal of whole numbers")
    elif column is IntegerType or plan.kind == "date":
        code.emit(JsonOp.INT, place, max(low, -(2**31)), min(high, 2**31 - 1))
    else:
        code.emit(JsonOp.LONG, place, low, high, _WHOLE[plan.kind])


def _decimal(code: Code, plan: Plan, place: Place) -> None:
    precision, scale, column = plan.node.precision, plan.node.scale, plan.column
    assert isinstance(column, DecimalType)  # noqa: S101  the plan's
    if column.scale != scale:
        raise NotCoveredError(f"the column {place.name} has another scale")
    limit = 10 ** min(precision, column.precision)
    low = limit & (2**64 - 1)
    code.emit(JsonOp.DECIMAL, place, scale, limit >> 64, low - (2**64 if low >= 2**63 else 0))
