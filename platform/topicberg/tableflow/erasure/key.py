"""A key as a user writes it, and its value in columns of any type.

The value is personal data: no message, log or table property has it. A digest stands for it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyiceberg.types as iceberg

from topicberg.errors import SpecError
from topicberg.tableflow.values.forgotten import digest

_HEX = "hex"
_NOT_OF_TYPE = (ValueError, TypeError, KeyError, ArithmeticError)
_EXACT = Context(prec=100)  # More digits than a decimal of Iceberg has.
_BITS: dict[type[iceberg.IcebergType], int] = {iceberg.IntegerType: 31, iceberg.LongType: 63}


@dataclass(frozen=True)
class Key:
    """``given``: the value of each column of the key: JSON, or text for any type."""

    topic: str
    fields: tuple[iceberg.NestedField, ...]
    given: Mapping[str, Any]
    argument: str = "KEY"  # What a user writes it in, for messages.

    @classmethod
    def parse(
        cls, topic: str, fields: Sequence[iceberg.NestedField], text: str, argument: str = "KEY"
    ) -> Key:
        """Return the key that a text means: JSON with all columns, or the value of the only one.

        :param fields: the columns of the topic's keys, with their types
        :param argument: what the user writes the text in, for messages
        :raises SpecError: the text does not have the columns, or a value is not of its type
        """
        names = [field.name for field in fields]
        given: Any = None
        if text.lstrip().startswith("{"):
            with suppress(ValueError):
                given = json.loads(text, parse_float=str)
        if not isinstance(given, dict) or set(given) != set(names):
            if len(names) > 1:
                raise SpecError(
                    f"topic {topic}: KEY is not a JSON object with the columns of the topic's "
                    f"keys: {described(fields)}",
                    hint="write KEY as JSON: '{" + ", ".join(f'"{n}": …' for n in names) + "}'",
                )
            given = {names[0]: text}
        key = cls(topic, tuple(fields), given, argument)
        for field in fields:
            key.value(field.name, field.field_type)
        return key

    def value(self, name: str, kind: iceberg.IcebergType) -> Any:
        """Return the value of a column of the key in some type, or raise a SpecError."""
        try:
            return _value(self.given[name], kind)
        except _NOT_OF_TYPE:
            raise SpecError(
                f"topic {self.topic}: the value of {self.argument} for the column {name} is not of "
                f"type {kind}",
                hint=f"write {self.argument} with these columns: {described(self.fields)}",
            ) from None

    def raw(self) -> bytes:
        """Return the bytes of a key without a schema, whose only column is binary or text."""
        (field,) = self.fields
        value: bytes | str = self.value(field.name, field.field_type)
        return value.encode() if isinstance(value, str) else value

    def as_found_in(self, name: str, kind: iceberg.IcebergType) -> list[Any]:
        """Return what a column of some type may hold if it has the value of a column of the key.

        Text may be the value as it is written; a null, and a boolean, identify nothing.
        """
        given = self.given[name]
        is_hex = isinstance(given, dict) and set(given) == {_HEX}
        if given is None or (isinstance(given, bool | dict | list) and not is_hex):
            return []
        with suppress(*_NOT_OF_TYPE):
            value = _value(given if is_hex else str(given), kind)
            return [] if isinstance(value, bool) else [value]
        return []

    def digest(self, table: uuid.UUID) -> str:
        """Return a hash of the key for records of what was done, which differs by table."""
        values = {field.name: self.value(field.name, field.field_type) for field in self.fields}
        return digest(values, table)


def described(fields: Sequence[iceberg.NestedField]) -> str:
    """Return the names and types of columns, for messages."""
    return ", ".join(f"{field.name} ({field.field_type})" for field in fields)


def _value(given: Any, kind: iceberg.IcebergType) -> Any:
    if given is None:
        return None
    match kind:
        case iceberg.StructType():
            if not isinstance(given, dict) or set(given) - {f.name for f in kind.fields}:
                raise ValueError
            return {f.name: _value(given.get(f.name), f.field_type) for f in kind.fields}
        case iceberg.ListType():
            return [_value(item, kind.element_type) for item in _of(list, given)]
        case iceberg.MapType():
            pairs = _of(dict, given).items()
            return [(_value(k, kind.key_type), _value(v, kind.value_type)) for k, v in pairs]
        case iceberg.BinaryType():
            if isinstance(given, dict) and given.keys() == {_HEX}:
                return bytes.fromhex(given[_HEX])
            return str(_of(str, given)).encode()
        case iceberg.StringType():
            return _of(str, given)
        case iceberg.BooleanType() if isinstance(given, bool | str):
            return {True: True, False: False, "true": True, "false": False}[given]
    if isinstance(given, bool) or isinstance(kind, iceberg.BooleanType):
        raise ValueError
    return _scalar(str(given).strip(), kind)


def _scalar(text: str, kind: iceberg.IcebergType) -> Any:
    match kind:
        case iceberg.IntegerType() | iceberg.LongType():
            number = int(text)
            if not -(1 << _BITS[type(kind)]) <= number < 1 << _BITS[type(kind)]:
                raise ValueError
            return number
        case iceberg.FloatType():
            return float(np.float32(text))
        case iceberg.DoubleType():
            return float(text)
        case iceberg.DecimalType():
            decimal = Decimal(text)
            scaled = _EXACT.scaleb(decimal, kind.scale)
            if (
                scaled != scaled.to_integral_value(context=_EXACT)
                or len(str(abs(int(scaled)))) > kind.precision
            ):
                raise ValueError
            return decimal.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
        case iceberg.DateType():
            return date.fromisoformat(text)
        case iceberg.TimestamptzType():
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        case iceberg.TimestampType():
            local = datetime.fromisoformat(text)
            if local.tzinfo is not None:
                raise ValueError
            return local
    raise TypeError


def _of(kind: type[Any], given: Any) -> Any:
    if not isinstance(given, kind):
        raise TypeError
    return given
