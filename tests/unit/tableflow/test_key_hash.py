"""The hash of keys is the one of pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from topicberg.tableflow.values.key_hash import hashes


@given(
    st.lists(st.binary(max_size=40), max_size=20),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.integers(0, 5),
)
@settings(max_examples=400, deadline=None)
def test_hash_is_the_one_of_pandas(values: list[bytes], secret: str, first: int) -> None:
    array = pa.array(values, pa.binary()).slice(first)  # a slice has the buffers of the whole
    expected = pd.util.hash_array(np.array([*values[first:], None], object)[:-1], hash_key=secret)
    assert np.array_equal(hashes(array, secret.encode()), expected)
