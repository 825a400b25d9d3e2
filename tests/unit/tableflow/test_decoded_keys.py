"""Decoded keys are equal if their values are, whatever types their files have."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from topicberg.tableflow.keys import _one_text

texts = st.none() | st.text(max_size=6)
numbers = st.none() | st.integers(-(2**31), 2**31 - 1)


def one_text(columns: list[Any], types: list[Any]) -> list[bytes]:
    found: list[bytes] = _one_text(columns, types).to_pylist()
    return found


@given(st.lists(st.tuples(texts, texts, numbers), min_size=1, max_size=30))
def test_decoded_keys_are_equal_if_values_are(
    keys: list[tuple[str | None, str | None, int | None]],
) -> None:
    kinds = [pa.string(), pa.large_string(), pa.int64()]
    columns = [pa.array([key[n] for key in keys], kind) for n, kind in enumerate(kinds)]
    found = one_text(columns, kinds)
    assert len(set(found)) == len(set(keys))
    for one, key in zip(found, keys, strict=True):
        assert one == found[keys.index(key)]


def test_decoded_keys_of_narrower_types_are_equal() -> None:
    wide, narrow = pa.array([1, -7], pa.int64()), pa.array([1, -7], pa.int32())
    assert one_text([wide], [pa.int64()]) == one_text([narrow], [pa.int64()])
    digits = [Decimal("1.50")]
    short, long = (pa.array(digits, pa.decimal128(size, 2)) for size in (4, 20))
    assert one_text([short], [pa.decimal128(20, 2)]) == one_text([long], [pa.decimal128(20, 2)])


def test_decoded_keys_of_times_are_text_of_numbers() -> None:
    times = pa.array([0, 1_000_000], pa.timestamp("us", "UTC"))
    assert one_text([times], [pa.timestamp("us", "UTC")]) == [b"1:0", b"7:1000000"]
