"""Decoded keys are equal if their values are, whatever types their files have."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as T

from topicberg.tableflow.layout.upsert_key import key_shape
from topicberg.tableflow.upsert import key_hashing
from topicberg.tableflow.upsert.key_files import HeldKeys, Keys, in_order, merged, with_partition
from topicberg.tableflow.values.key_values import KeyShape, key_text

texts = st.none() | st.text(max_size=6)


def texts_of(columns: list[Any], types: list[Any]) -> list[bytes]:
    found: list[bytes] = key_hashing.one_text(columns, types).to_pylist()
    return found


def test_decoded_keys_of_narrower_types_are_equal() -> None:
    wide, narrow = pa.array([1, -7], pa.int64()), pa.array([1, -7], pa.int32())
    assert texts_of([wide], [pa.int64()]) == texts_of([narrow], [pa.int64()])
    digits = [Decimal("1.50")]
    short, long = (pa.array(digits, pa.decimal128(size, 2)) for size in (4, 20))
    assert texts_of([short], [pa.decimal128(20, 2)]) == texts_of([long], [pa.decimal128(20, 2)])


def test_text_of_earlier_versions_is_the_same() -> None:
    """The states of change logs hold hashes of such texts."""
    assert key_text(
        [
            pa.array([7, None]),
            pa.array(["a,b", ""]),
            pa.array([True, False]),
            pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            pa.array([1.5, None]),
            pa.array([b"\x00", b"x"]),
            pa.array([1, 2], pa.date32()),
        ]
    ).to_pylist() == [b"1:7,3:a,b,4:true,4:1.50,3:1.5,1:\x00,1:1", b"-,0:,5:false,-,-,1:x,1:2"]


def test_zeros_of_either_sign_are_equal_and_so_is_not_a_number() -> None:
    found = key_text([pa.array([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf])]).to_pylist()
    assert (found[0], found[2]) == (found[1], found[3])
    assert len(set(found)) == 4


def test_float_is_equal_to_the_double_of_its_value() -> None:
    narrow = pa.array([0.1, 1e30, -0.0], pa.float32())
    assert key_text([narrow]) == key_text([narrow.cast(pa.float64())])


ANY = st.recursive(
    st.just(T.LongType()) | st.just(T.StringType()) | st.just(T.BinaryType()),
    lambda inner: st.one_of(
        st.builds(
            lambda kinds: T.StructType(
                *(T.NestedField(n, f"f{n}", kind, required=False) for n, kind in enumerate(kinds))
            ),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda kind: T.ListType(1, kind), inner),
        st.builds(lambda kind: T.MapType(1, T.StringType(), 2, kind), inner),
    ),
    max_leaves=4,
)


def values_of(kind: T.IcebergType) -> st.SearchStrategy[Any]:
    match kind:
        case T.StructType():
            parts = {one.name: values_of(one.field_type) for one in kind.fields}
            return st.none() | st.fixed_dictionaries(parts)
        case T.ListType():
            return st.none() | st.lists(values_of(kind.element_type), max_size=3)
        case T.MapType():
            return st.none() | st.dictionaries(
                st.sampled_from("abc"), values_of(kind.value_type), max_size=3
            )
        case T.LongType():
            return st.none() | st.integers(-2, 2)
        case T.BinaryType():
            return st.none() | st.sampled_from([b"", b"-", b"1:a", b","])
    return st.none() | st.sampled_from(["", "-", "1:a", ",", "0:"])


def arrow(kind: T.IcebergType) -> pa.DataType:
    from topicberg.formats.columnar.columns import arrow_type

    return arrow_type(kind)


def given_to_arrow(value: Any, kind: T.IcebergType) -> Any:
    match kind:
        case T.MapType() if value is not None:
            return [(key, given_to_arrow(one, kind.value_type)) for key, one in value.items()]
        case T.StructType() if value is not None:
            return {f.name: given_to_arrow(value[f.name], f.field_type) for f in kind.fields}
        case T.ListType() if value is not None:
            return [given_to_arrow(one, kind.element_type) for one in value]
    return value


@given(st.data())
@settings(max_examples=75)
def test_nested_keys_are_equal_if_values_are(data: st.DataObject) -> None:
    kind = data.draw(ANY)
    values = data.draw(st.lists(values_of(kind), min_size=1, max_size=8))
    column = pa.array([given_to_arrow(one, kind) for one in values], arrow(kind))
    found = key_text([column], [key_shape(kind)]).to_pylist()
    for number, one in enumerate(values):
        assert [one == other for other in values] == [found[number] == text for text in found], (
            values
        )
    half = len(values) // 2
    assert key_text([column.slice(half)], [key_shape(kind)]).to_pylist() == found[half:]


def test_fields_that_the_newest_schema_lacks_do_not_count() -> None:
    held = pa.array([{"old": 7, "a": 1}, {"old": None, "a": 1}, None])
    found = key_text([held], [KeyShape((("a", KeyShape()), ("new", KeyShape())))]).to_pylist()
    assert found[0] == found[1] == b"5:1:1,-"
    assert found[2] == b"-"


# --- keys of several partitions ---

RECORDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30
)
"""Key, partition and time, in the order of the log."""


def hashed(records: list[tuple[int, int, int]]) -> Keys:
    high = np.array([7 * key for key, _, _ in records], np.uint64)
    low = with_partition(high + np.uint64(1), np.array([p for _, p, _ in records]))
    return Keys(high, low, np.arange(len(records), dtype=np.uint32))


@given(RECORDS)
@settings(max_examples=100)
def test_newest_record_of_all_partitions_is_found(records: list[tuple[int, int, int]]) -> None:
    keys, times = hashed(records), np.array([time for _, _, time in records], np.int64)
    ordered = in_order(keys.high, keys.low)
    found = ordered.position[ordered.is_newest(times)].tolist()
    last = {(key, p): (time, p, at) for at, (key, p, time) in enumerate(records)}
    expected = {
        key: max(order for (one, _), order in last.items() if one == key) for key, _ in last
    }
    assert sorted(found) == sorted(at for *_, at in expected.values())


@given(RECORDS, RECORDS)
@settings(max_examples=100)
@pytest.mark.parametrize("times", [1, 40])
def test_rows_of_a_key_are_found_in_all_partitions(
    times: int, held: list[tuple[int, int, int]], wanted: list[tuple[int, int, int]]
) -> None:
    rows, keys = merged([hashed(held * times)]), merged([hashed(wanted)])
    of_keys, of_rows = HeldKeys.of(rows).equal(keys, are_decoded=True)
    listed = held * times
    assert sorted(zip(keys.position[of_keys], rows.position[of_rows], strict=True)) == [
        (one, other)
        for one, (key, _, _) in enumerate(wanted)
        for other, (row, _, _) in enumerate(listed)
        if key == row
    ]
