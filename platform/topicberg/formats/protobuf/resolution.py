"""How the records of a writer's message become the columns of the latest one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg import types as T

from topicberg.formats.columnar.columns import arrow_type
from topicberg.formats.protobuf import wire
from topicberg.formats.protobuf.columns import (
    SCALARS,
    is_map,
    kind_of,
    known_message,
    message_fields,
    special_kind,
    value_type,
)

_WHOLE = (T.IntegerType, T.LongType, T.DecimalType)
_TEXT = {"string", "bytes"}


class FieldMisfitError(Exception):
    """A field's values cannot be in this column."""

    def __init__(self, field: Any, problem: str) -> None:
        super().__init__(problem)
        self.field: str = field.full_name
        self.message = field.containing_type

    def of_inner(self, field: Any) -> FieldMisfitError:
        """Return the problem as that of the user's field, not of a message that stands for it."""
        if self.message is not field.message_type:
            return self
        part = self.field.rpartition(".")[2]
        return FieldMisfitError(field, f"has a {part} that {self}" if is_map(field) else str(self))


def message_plan(source: Any, target: Any, columns: Sequence[T.NestedField]) -> wire.Message:
    """Return how the writer's message becomes columns, or MisfitError: a field's values fit none.

    :param target: the latest schema's message, which names the fields; None: it has none
    """
    numbers = {column.name: place for place, column in enumerate(columns)}
    latest = {} if target is None else target.fields_by_number
    namesakes = {} if target is None else target.fields_by_name
    taken: set[str] = set()
    read: list[wire.WireField] = []
    rest: list[Any] = []
    for field in source.fields:
        if (newest := latest.get(field.number)) is None or newest.name not in numbers:
            rest.append(field)
            continue
        try:
            read.append(
                _field_plan(field, newest, columns[numbers[newest.name]], numbers[newest.name])
            )
            taken.add(newest.name)
        except FieldMisfitError:
            if newest.name == field.name or field.name not in numbers:
                raise
            rest.append(field)
    for field in rest:
        if field.name in taken:
            raise FieldMisfitError(field, "has no column: its name is that of a later field")
        place = numbers.get(field.name)
        column = None if place is None else columns[place]
        # The fields inside are named as in the latest field of that name, whatever its number is.
        read.append(_field_plan(field, namesakes.get(field.name), column, place))
    return wire.Message(fields=tuple(read), names=tuple(column.name for column in columns))


def _field_plan(
    field: Any, newest: Any, column: T.NestedField | None, place: int | None
) -> wire.WireField:
    oneof = field.containing_oneof
    facts: dict[str, Any] = {
        "name": field.name,
        "number": field.number,
        "kind": kind_of(field),
        "column": place,
        "repeated": field.is_repeated,
        "required": field.is_required,
        "oneof": None if oneof is None else oneof.index,
        "symbols": _symbols(field),
        "is_closed": field.enum_type is not None and field.enum_type.is_closed,
    }
    if column is None:
        return wire.WireField(type=None, **facts)
    kind = column.field_type
    if is_map(field):
        if not isinstance(kind, T.MapType):
            raise FieldMisfitError(field, f"is a map, its column a {kind}")
        entry = [
            T.NestedField(kind.key_id, "key", kind.key_type, required=False),
            T.NestedField(kind.value_id, "value", kind.value_type, required=False),
        ]
        newest_entry = newest.message_type if newest is not None and is_map(newest) else None
        try:
            inner = message_plan(field.message_type, newest_entry, entry)
        except FieldMisfitError as misfit:
            raise misfit.of_inner(field) from None
        return wire.WireField(type=arrow_type(kind), is_map=True, message=inner, **facts)
    element = kind
    if field.is_repeated:
        if not isinstance(kind, T.ListType):
            raise FieldMisfitError(field, f"is repeated, its column a {kind}")
        element = kind.element_type
    facts |= {"type": arrow_type(kind), "absent": _absent(field)}
    if field.message_type is not None:
        message, special = _inner(field, newest, element)
        return wire.WireField(message=message, special=special, **facts)
    _check_fits(field, SCALARS[facts["kind"]](), element)
    try:
        pa.scalar(facts["absent"], arrow_type(element))
    except (pa.ArrowException, OverflowError, UnicodeDecodeError):
        problem = f"has a default that its column, a {kind}, cannot hold"
        raise FieldMisfitError(field, problem) from None
    return wire.WireField(**facts)


def _inner(field: Any, newest: Any, column: T.IcebergType) -> tuple[wire.Message, str | None]:
    """Return how a message's values are read, and the kind of a well-known message."""
    inner = field.message_type
    special = special_kind("the writer's schema", inner)
    if special == "wrapper":
        fields = [T.NestedField(1, "value", column, required=False)]
        try:
            return message_plan(inner, None, fields), special
        except FieldMisfitError as misfit:
            raise misfit.of_inner(field) from None
    if special is not None:
        _check_fits(field, value_type("the writer's schema", field, itertools.count(1), ()), column)
        parts = {part.name: part for part in message_fields("", inner, itertools.count(1))}
        is_decimal = special == "decimal"
        names = ("value", "scale") if is_decimal else known_message(inner.full_name).fields_by_name
        return message_plan(inner, None, [parts[name] for name in names]), special
    if not isinstance(column, T.StructType):
        raise FieldMisfitError(field, f"is a message, its column a {column}")
    plan = message_plan(inner, newest and newest.message_type, column.fields)
    return plan, None if inner.fields or wire.PRESENT not in plan.names else "empty"


def _check_fits(field: Any, natural: T.IcebergType, column: T.IcebergType) -> None:
    """Check that the column can hold such values: all of them, or those that it holds exactly.
    Integers can go to each other's columns and to decimals, decimals to decimals, and text to bytes
    and back; a value that the column does not hold exactly makes its record malformed."""
    whole = isinstance(natural, _WHOLE) and getattr(natural, "scale", 0) == 0
    if natural != column and not (
        (whole and isinstance(column, _WHOLE))
        or (isinstance(natural, T.DecimalType) and isinstance(column, T.DecimalType))
        or (isinstance(natural, T.FloatType) and isinstance(column, T.DoubleType))
        or (kind_of(field) in _TEXT and isinstance(column, T.StringType | T.BinaryType))
    ):
        raise FieldMisfitError(field, f"is a {natural}, its column a {column}")


def _symbols(field: Any) -> dict[int, str]:
    values = field.enum_type.values if field.enum_type is not None else ()
    return {value.number: value.name for value in reversed(values)}  # of several names, the first


def _absent(field: Any) -> Any:
    """Return the value in a record that lacks the field; None: null."""
    in_map = field.containing_type.GetOptions().map_entry
    if field.is_repeated or (field.has_presence and not field.has_default_value and not in_map):
        return None
    if field.message_type is not None:
        return True
    is_enum = field.enum_type is not None
    return _symbols(field)[field.default_value] if is_enum else field.default_value


def absent_of_message(message: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in message.fields:
        if field.is_repeated:
            continue
        if field.message_type is None:
            values[field.name] = _absent(field)
        elif special_kind("the key's schema", field.message_type) is None:
            values[field.name] = absent_of_message(field.message_type)
    return values
