"""Places of changes in a source's log, placeholders, and rows that may be of newer changes."""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats import json as json_format
from topicberg.formats.columnar.columns import arrow_type
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.subjects import RegisteredSchema
from topicberg.tableflow.changelog.changes import (
    READ,
    ChangePlan,
    Envelopes,
    envelope,
    read_envelopes,
)
from topicberg.tableflow.changelog.current_rows import OldRows
from topicberg.tableflow.changelog.fold_state import is_repetition, order_of
from topicberg.tableflow.changelog.placeholders import is_placeholder
from topicberg.topics import TopicSpec

SPEC = TopicSpec.model_validate(
    {
        "name": "t",
        "pipeline": "p",
        "schema": {"format": "avro"},
        "key": {"format": "avro"},
        "changelog": {"format": "debezium"},
        "write_mode": "upsert",
        "external": True,
    }
)


def positions(source: list[dict[str, Any]]) -> list[Any]:
    return cast("list[Any]", read(pa.array(source)).facts["p"].to_pylist())


def read(source: pa.Array, kinds: dict[str, Any] | None = None) -> Envelopes:
    plan = ChangePlan(True, (), (), kinds or {}, {}, "")
    values = {
        "source": source,
        "op": pa.array(["c"] * len(source)),
        "after": pa.array([{"id": 1}] * len(source)),
    }
    every = np.ones(len(source), np.int64)
    return read_envelopes(plan, {}, values, every > 0, every)


def test_files_of_mysqls_log_are_ordered_by_their_numbers() -> None:
    rng = random.Random(1)
    numbers = sorted(
        {3, *range(999_998, 1_000_003), *(rng.randrange(1, 2**31) for _ in range(500))}
    )
    events = [
        {"file": f"mysql-bin.{number:06}", "pos": pos, "row": row}
        for number in numbers
        for pos, row in ((4, 0), (99, 0), (99, 1))
    ]
    found = positions(events)
    assert found == sorted(found)
    assert found[0].startswith("mysql-bin.0")
    assert (
        positions([{"file": None, "pos": 4, "row": 0}, {"file": "7", "pos": 4, "row": 0}])[0]
        is None
    )


def layout(**source: T.IcebergType) -> Any:
    value = SimpleNamespace(changes="rows", envelope=dict, source_fields=lambda: source)
    return SimpleNamespace(value=value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"ts_ms": T.TimestamptzType()}, "source.ts_ms is timestamptz; Debezium writes a whole"),
        ({"ts_us": T.BooleanType()}, "source.ts_us is boolean"),
        ({"lsn": T.BinaryType()}, "source.lsn is binary"),
        ({"lsn": T.DateType()}, "source.lsn is date"),
        (
            {"txId": T.ListType(1, T.LongType())},
            "source.txId is list<long>; Debezium writes a number",
        ),
        ({"snapshot": T.StructType()}, "source.snapshot is struct"),
    ],
)
def test_source_of_another_type_is_refused(source: dict[str, T.IcebergType], expected: str) -> None:
    with pytest.raises(TableflowError) as told:
        envelope(layout(**source), [])
    assert expected in told.value.message


def test_source_with_numbers_or_text_is_read() -> None:
    kinds = (T.IntegerType(), T.LongType(), T.StringType())
    for ts_ms, txid in itertools.product(kinds[:2], kinds):
        parts = envelope(layout(ts_ms=ts_ms, txId=txid), [])
        assert [part.name for part in parts] == ["after", "source", "op"]


def test_numbers_of_a_source_may_be_text_or_have_fractions() -> None:
    """As in JSON without types. What is no number makes its record malformed, and no other."""
    times = pa.array([1_700_000_000_000.5, 5.0, float("nan"), None])
    found = read(pa.StructArray.from_arrays([times], ["ts_ms"]))
    assert found.facts["m"].to_pylist() == [1_700_000_000_000_000, 5_000, None, None]
    assert list(found.wrong) == [2]
    for places in (pa.array(["7", "0/16B3748", None]), pa.array([7, 2**63, None], pa.uint64())):
        found = read(pa.StructArray.from_arrays([places], ["lsn"]), {"lsn": None})
        assert found.facts["p"].to_pylist() == [7, None, None]
        assert found.wrong == {1: "field source (struct): lsn is not a number of 64 bits"}


def test_nanoseconds_are_the_time_of_a_source_that_has_no_other() -> None:
    """As those of CockroachDB's changefeeds with the envelope ``enriched``."""
    nanos = pa.array([1_745_527_444_910_044_999, None])
    found = read(pa.StructArray.from_arrays([nanos], ["ts_ns"]))
    assert found.facts["m"].to_pylist() == [1_745_527_444_910_044, None]
    found = read(pa.StructArray.from_arrays([pa.array([7, None]), nanos], ["ts_ms", "ts_ns"]))
    assert found.facts["m"].to_pylist() == [7_000, None]


def test_source_without_time_and_position_is_refused() -> None:
    """Between partitions, nothing else says which change of a row is the newest one."""
    with pytest.raises(TableflowError, match=r"no time .* or position of the change"):
        envelope(layout(snapshot=T.StringType()), [])


Change = tuple[int, int | None, int | None]
"""Partition, time and position."""
CHANGES = st.tuples(st.integers(0, 1), st.none() | st.integers(0, 2), st.none() | st.integers(0, 2))


def old_rows(rows: Sequence[Change], kind: pa.DataType) -> OldRows:
    """Return the rows of a table whose changes are these."""
    types = [pa.int32(), pa.timestamp("us", "UTC"), kind, pa.int64()]
    target: Any = SimpleNamespace(
        order_columns=["partition", "time", "position"],
        offset_column="offset",
        types=lambda _: types,
    )
    old = OldRows(target, [], [], [])
    arrays = [
        pa.array([row[column] for row in rows], given).cast(to)
        for column, (given, to) in enumerate(
            zip((pa.int32(), pa.int64(), pa.int64()), types, strict=False)
        )
    ]
    arrays.append(pa.array(range(len(rows)), pa.int64()))
    old.values = pa.table(arrays, names=old.values.schema.names)
    return old


def places_of(changes: Sequence[Change], kind: pa.DataType, ops: list[str]) -> pa.Table:
    partitions, micros, positions = zip(*changes, strict=True) if changes else ((), (), ())
    return pa.table(
        {
            "partition": pa.array(partitions, pa.int32()),
            "op": pa.array(ops, pa.string()),
            "m": pa.array(micros, pa.int64()),
            "p": pa.array(positions, pa.int64()).cast(kind),
        }
    )


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=["numbers", "texts"])
@given(st.lists(st.tuples(CHANGES, CHANGES, st.sampled_from("cudr"), st.booleans()), max_size=20))
def test_maybe_newer_any_changes_has_each_repetition(
    kind: pa.DataType, given_changes: list[tuple[Change, Change, str, bool]]
) -> None:
    old = old_rows([row for row, *_ in given_changes], kind)
    places = places_of(
        [change for _, change, *_ in given_changes], kind, [op for _, _, op, _ in given_changes]
    )
    matches = np.array([n if row[3] else -1 for n, row in enumerate(given_changes)], np.int64)
    numbers = set(old.maybe_newer(places, matches).tolist())
    for number, (row, change, op, has_row) in enumerate(given_changes):
        order = order_of(change[1], places.column("p")[number].as_py())
        newest = order_of(row[1], old.values.column("position")[number].as_py())
        is_own = op != READ and has_row and row[0] == change[0]
        if is_own and order is not None and newest is not None and is_repetition(order, newest):
            assert number in numbers
        assert is_own or number not in numbers


@pytest.mark.parametrize("positions", [range(1, 1001), [None] * 1000], ids=["some", "none"])
def test_maybe_newer_many_changes_of_one_time_has_none(positions: Any) -> None:
    rows = [(0, 7, position and position - 1) for position in positions]
    places = places_of([(0, 7, position) for position in positions], pa.int64(), ["u"] * 1000)
    matches = np.arange(1000)
    assert not old_rows(rows, pa.int64()).maybe_newer(places, matches).size


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
    assert is_placeholder(values, kind, TEXT).tolist() == [placeholder is not None, False, False]
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
    row = decode(json.dumps({"a": value}, separators=(",", ":"), ensure_ascii=False).encode())
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
