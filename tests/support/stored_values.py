"""Stored values of a reference decoder as plain ones, as DuckDB and Arrow return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from pyiceberg import types as T

_EPOCH = datetime(1970, 1, 1)
_EXACT = Context(prec=80)


def row(stored: Mapping[str, Any], fields: Sequence[T.NestedField]) -> dict[str, Any]:
    """A row of all columns."""
    assert stored.keys() <= {one.name for one in fields}
    return {one.name: plain(stored.get(one.name), one.field_type) for one in fields}


def plain(value: Any, column: T.IcebergType) -> Any:
    """A value of a column; it must be exactly of the column's type."""
    if value is None:
        return None
    match column:
        case T.StructType():
            assert list(value) == [one.name for one in column.fields]
            return row(value, column.fields)
        case T.ListType():
            return [plain(one, column.element_type) for one in value]
        case T.MapType():
            pairs = [
                (plain(key, column.key_type), plain(one, column.value_type)) for key, one in value
            ]
            assert len(dict(pairs)) == len(pairs), "a key is repeated"
            return dict(pairs)
        case T.DecimalType():
            assert type(value) is int
            assert abs(value) < 10**column.precision
            return Decimal(value).scaleb(-column.scale, _EXACT)
        case T.DateType():
            assert type(value) is int
            return date(1970, 1, 1) + timedelta(days=value)
        case T.TimestampType():
            assert type(value) is int
            return _EPOCH + timedelta(microseconds=value)
        case T.TimestamptzType():
            assert type(value) is int
            return _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=value)
    kinds: dict[type, type] = {
        T.BooleanType: bool,
        T.IntegerType: int,
        T.LongType: int,
        T.FloatType: float,
        T.DoubleType: float,
        T.StringType: str,
        T.BinaryType: bytes,
        T.FixedType: bytes,
    }
    assert type(value) is kinds[type(column)], (value, column)
    return value
