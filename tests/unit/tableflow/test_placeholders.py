"""What Debezium writes instead of a value that it did not have, in every type of column."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as T

from topicberg.formats.columnar.columns import arrow_type
from topicberg.tableflow.placeholders import is_placeholder

TEXT = "__debezium_unavailable_value"
RAW = list(TEXT.encode())
EPOCH = datetime(1970, 1, 1)


def listed(element: T.IcebergType) -> T.ListType:
    return T.ListType(1, element, element_required=False)


CASES: list[tuple[T.IcebergType, Any, Any]] = [
    (T.StringType(), TEXT, TEXT + "x"),
    (T.StringType(), f'{{"{TEXT}":"{TEXT}"}}', "{}"),
    (T.BinaryType(), TEXT.encode(), b""),
    (listed(T.IntegerType()), RAW, RAW[1:]),
    (listed(T.LongType()), RAW, [*RAW, None]),
    (listed(T.FloatType()), [float(one) for one in RAW], [0.5] * len(RAW)),
    (listed(T.DoubleType()), [float(one) for one in RAW], []),
    (listed(T.BooleanType()), [True] * len(RAW), [True] * (len(RAW) - 1)),
    (listed(T.DateType()), [date(1970, 1, 1) + timedelta(days=one) for one in RAW], []),
    (listed(T.TimestampType()), [EPOCH + timedelta(microseconds=one) for one in RAW], [EPOCH]),
    (listed(T.TimestampType()), [EPOCH + timedelta(milliseconds=one) for one in RAW], [None]),
    (listed(T.DecimalType(12, 2)), [Decimal(one).scaleb(-2) for one in RAW], [Decimal("1.00")]),
    (listed(T.DecimalType(2, 2)), None, []),
    (listed(T.StringType()), [TEXT], [TEXT, TEXT]),
    (listed(T.StringType()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], [None]),
    (listed(T.StringType()), [str(one) for one in RAW], []),
    (listed(T.BinaryType()), [TEXT.encode()], [b""]),
    (
        T.MapType(1, T.StringType(), 2, T.StringType(), value_required=False),
        [(TEXT, TEXT)],
        [(TEXT, "x")],
    ),
]


@pytest.mark.parametrize(("kind", "placeholder", "other"), CASES, ids=lambda one: str(one)[:30])
def test_only_the_placeholder_is_recognized(
    kind: T.IcebergType, placeholder: Any, other: Any
) -> None:
    values = pa.array([placeholder, other, None], arrow_type(kind))
    found = is_placeholder(values, kind, TEXT)
    assert found.tolist() == [placeholder is not None, False, False]
    # A part of a column, as records that are left out make it.
    assert is_placeholder(values.slice(1), kind, TEXT).tolist() == [False, False]
