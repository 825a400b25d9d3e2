"""What Debezium writes instead of a value that it did not have, in every type of column."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as T

from topicberg.formats import json as json_format
from topicberg.formats.columnar.columns import arrow_type
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.subjects import RegisteredSchema
from topicberg.tableflow.changelog.changes import ChangePlan, read_envelopes
from topicberg.tableflow.changelog.placeholders import is_placeholder

TEXT = "__debezium_unavailable_value"
RAW = list(TEXT.encode())
EPOCH = datetime(1970, 1, 1)
JSON = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
)


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


ENCODED = base64.b64encode(TEXT.encode()).decode()
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
ONES = [base64.b64encode(bytes([one])).decode() for one in RAW]
UNTYPED: list[Any] = [
    *(TEXT, ENCODED, {TEXT: TEXT}, json.dumps({TEXT: TEXT}, separators=(",", ":"))),
    *([TEXT], [ENCODED], [UUID], RAW, [float(one) for one in RAW], [True] * len(RAW)),
    *(ONES, [{"scale": 0, "value": one} for one in ONES]),
]


def decoded(schema: dict[str, Any], value: Any) -> tuple[T.IcebergType, pa.Array]:
    """Return the type of the column of a schema, and values of it: the given one, and null."""
    text = json.dumps({"type": "object", "properties": {"a": schema}})
    registered = RegisteredSchema(1, "JSON", text, has_connect_types=True)
    fields = json_format.fields("s", registered, itertools.count(1))
    decode = json_format.record_decoder(ResolvedSchema(registered, registered, fields))
    # As Kafka Connect's JsonConverter writes it.
    record = json.dumps({"a": value}, separators=(",", ":"), ensure_ascii=False)
    row = decode(record.encode())
    kind = fields[0].field_type
    return kind, pa.array([row["a"], None], arrow_type(kind))


@pytest.mark.parametrize("value", UNTYPED, ids=lambda one: str(one)[:30])
def test_is_placeholder_of_json_text_is_true(value: Any) -> None:
    kind, values = decoded({}, value)
    assert is_placeholder(values, kind, TEXT).tolist() == [True, False]


@pytest.mark.parametrize("items", [{}, {"type": "string"}])
@pytest.mark.parametrize("value", [one for one in UNTYPED if isinstance(one, list)], ids=str)
def test_is_placeholder_of_items_is_true(value: Any, items: dict[str, Any]) -> None:
    if items and not all(isinstance(item, str) for item in value):
        return
    kind, values = decoded({"type": "array", "items": items}, value)
    assert is_placeholder(values, kind, TEXT).tolist() == [True, False]


def test_is_placeholder_of_bytes_as_text_is_true() -> None:
    kind, values = decoded({"type": "string"}, ENCODED)
    assert is_placeholder(values, kind, TEXT).tolist() == [True, False]


@given(JSON)
def test_is_placeholder_of_other_json_text_is_false(value: Any) -> None:
    kind, values = decoded({}, value)
    assert is_placeholder(values, kind, TEXT).tolist() == [False, False]


@given(st.text(min_size=1).filter(str.isprintable))
def test_is_placeholder_of_any_configured_text_is_true(placeholder: str) -> None:
    kind, values = decoded({}, placeholder)
    assert is_placeholder(values, kind, placeholder).tolist() == [True, False]


def test_read_envelopes_in_append_mode_keeps_what_the_connector_sent() -> None:
    """As docs/cdc.md says: each change is a row with its values, whatever they are."""
    row = T.StructType(
        *(
            T.NestedField(number, f"c{number}", kind, required=False)
            for number, (kind, placeholder, _) in enumerate(CASES)
            if placeholder is not None
        )
    )
    value = {f"c{number}": case[1] for number, case in enumerate(CASES) if case[1] is not None}
    after = pa.array([value], arrow_type(row))
    parts = {"after": after, "source": pa.array([{"ts_ms": 1}]), "op": pa.array(["u"])}
    columns = (T.NestedField(99, "after", row, required=False),)
    plan = ChangePlan(False, columns, (), {"ts_ms": T.LongType()}, {}, TEXT)
    read = read_envelopes(plan, {}, parts, np.ones(1, bool), np.ones(1, np.int64))
    assert read.columns["after"] == after
    assert not read.wrong
