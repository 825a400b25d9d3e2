"""The lookup finds what a dictionary finds, by hashes that are those of pandas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicberg.tableflow.upsert.key_files import BLOCK_BITS, HeldKeys, Keys, in_order, merged
from topicberg.tableflow.values.key_hash import hashes, pairs, passing

ALL = np.uint64(2**64 - 1)
"""Bits of the second halves."""
NEAR = st.integers(0, 8) | st.integers(2**63 - 2, 2**63 + 2) | st.integers(2**64 - 4, 2**64 - 1)
HASH = st.tuples(NEAR | st.integers(0, 2**64 - 1), st.integers(0, 2))
"""Many are equal in one half or in both."""


def keys(hashes: Sequence[tuple[int, int]]) -> Keys:
    high, low = (np.array([each[half] for each in hashes], np.uint64) for half in (0, 1))
    return merged([Keys(high, low, np.arange(len(hashes), dtype=np.uint32))])


@given(st.lists(HASH, max_size=200))
@settings(max_examples=100)
def test_keys_are_sorted_and_records_of_one_key_keep_their_order(
    listed: list[tuple[int, int]],
) -> None:
    high, low = (np.array([each[half] for each in listed], np.uint64) for half in (0, 1))
    found = in_order(high, low)
    assert found.position.tolist() == sorted(range(len(listed)), key=lambda at: listed[at])
    assert (found.high == high[found.position]).all()
    assert (found.low == low[found.position]).all()
    last = {key: at for at, key in enumerate(listed)}
    assert found.position[found.is_last()].tolist() == [last[key] for key in sorted(last)]


@pytest.mark.parametrize("size", [100, 3_000, 200_000])
def test_many_keys_are_sorted(size: int) -> None:
    random = np.random.default_rng(size)
    high, low = (random.integers(0, 2**64, size, np.uint64) for _ in range(2))
    high[::30] = high[0]
    low[::60] = low[0]
    assert np.array_equal(in_order(high, low).position, np.lexsort((np.arange(size), low, high)))


@given(st.lists(HASH, max_size=200), st.lists(HASH, max_size=200))
@settings(max_examples=100)
def test_all_pairs_of_equal_keys_are_found(
    few: list[tuple[int, int]], many: list[tuple[int, int]]
) -> None:
    one, other = keys(few), keys(many)
    of_few, of_many = pairs(one.high, one.low, other.high, other.low, ALL)
    assert sorted(zip(one.position[of_few], other.position[of_many], strict=True)) == [
        (first, second)
        for first, key in enumerate(few)
        for second, held in enumerate(many)
        if key == held
    ]


def test_more_pairs_than_expected_are_found() -> None:
    same = keys([(7, 7)] * 100)
    of_few, of_many = pairs(same.high, same.low, same.high, same.low, ALL)
    assert len({*zip(of_few.tolist(), of_many.tolist(), strict=True)}) == 10_000


@given(st.lists(HASH, max_size=200))
@settings(max_examples=100)
def test_filter_passes_all_of_its_keys(listed: list[tuple[int, int]]) -> None:
    held = HeldKeys.of(keys(listed))
    assert len(passing(held.filter, BLOCK_BITS, held.high, held.low)) == len(listed)


@pytest.mark.parametrize("size", [1, 1_000, 100_000])
def test_keys_are_found_where_hashes_are_not_spread(size: int) -> None:
    high = np.arange(size, dtype=np.uint64)
    of_few, of_many = pairs(high[::3], high[::3], high, high, ALL)
    assert np.array_equal(of_many, np.arange(0, size, 3))
    assert np.array_equal(of_few, np.arange(len(of_many)))


@given(
    st.lists(st.binary(max_size=40), max_size=20),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.integers(0, 5),
)
@settings(max_examples=150)
def test_hash_is_the_one_of_pandas(values: list[bytes], secret: str, first: int) -> None:
    array = pa.array(values, pa.binary()).slice(first)  # a slice has the buffers of the whole
    expected = pd.util.hash_array(np.array([*values[first:], None], object)[:-1], hash_key=secret)
    assert np.array_equal(hashes(array, secret.encode()), expected)
