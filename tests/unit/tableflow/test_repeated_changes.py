"""Which rows of a batch's keys may be of newer changes than those of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.tableflow.changelog.changes import READ
from topicberg.tableflow.changelog.current_rows import OldRows
from topicberg.tableflow.changelog.fold_state import is_repetition, order_of

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
