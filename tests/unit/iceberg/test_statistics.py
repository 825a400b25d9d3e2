"""Bounds of columns in manifests: never narrower than the values of the file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DoubleType, NestedField, StringType

from topicberg.iceberg import data_files
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget, upper_bound
from topicberg.iceberg.files import entries
from topicberg.iceberg.manifests import bounds_of
from topicberg.tableflow.erasure.rewriting import rewritten

LONG = "z" * 5000
"""A value of which Parquet's writer notes no minimum and maximum."""
TEXTS, NUMBERS = 1, 2


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(data_files, "GROUP_BYTES", 1)  # each write is a row group
    catalog = InMemoryCatalog("test", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    schema = Schema(
        NestedField(TEXTS, "text", StringType(), required=False),
        NestedField(NUMBERS, "number", DoubleType(), required=False),
    )
    return catalog.create_table("n.t", schema)


def written(table: Table, *groups: list[Any]) -> DataFile:
    """Return a file with a row group for each of these lists of texts or numbers."""
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        for group in groups:
            texts = [each if isinstance(each, str) else None for each in group]
            numbers = [each if isinstance(each, float) else None for each in group]
            writer.write(
                {"text": pa.array(texts, pa.string()), "number": pa.array(numbers, pa.float64())}
            )
    (file,) = writer.files
    return file


@pytest.mark.parametrize("groups", [[["a", "b"], ["x", LONG]], [["x", LONG], ["a", "b"]]])
def test_long_value_in_one_row_group_leaves_no_bounds(table: Table, groups: list[Any]) -> None:
    file, change = written(table, *groups), SnapshotChange(table, Operation.APPEND)
    change.add([file])
    change.commit()
    assert bounds_of(file, TEXTS) == (None, None)
    assert table.refresh().scan("text = 'x'").to_arrow()["text"].to_pylist() == ["x"]


def test_long_value_in_a_rewritten_file_leaves_no_bounds(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicberg.tableflow.erasure.rewriting.ROWS_AT_ONCE", 2)
    change = SnapshotChange(table, Operation.APPEND)
    change.add([written(table, ["a", "b", "x", LONG])])
    change.commit()
    (entry,) = entries(table.io, table.refresh().current_snapshot().manifests(table.io))
    copy = rewritten(table, entry, np.array([1]))
    assert copy is not None
    assert bounds_of(copy, TEXTS) == (None, None)


def test_row_group_of_nan_leaves_no_bounds(table: Table) -> None:
    assert bounds_of(written(table, [1.0], [math.nan]), NUMBERS) == (None, None)


def test_row_group_of_nulls_keeps_the_bounds_of_others(table: Table) -> None:
    file = written(table, ["b"], [None], ["a"])
    assert bounds_of(file, TEXTS) == (b"a", b"b")
    assert bounds_of(file, NUMBERS) == (None, None)


def test_text_whose_bound_would_be_a_surrogate_has_the_next_character(table: Table) -> None:
    file = written(table, ["z" * 15 + "\ud7ff" + "x"])
    assert bounds_of(file, TEXTS) == (b"z" * 15 + "\ud7ff".encode(), b"z" * 15 + "\ue000".encode())


def test_text_without_an_upper_bound_keeps_the_lower_one(table: Table) -> None:
    highest = "\U0010ffff" * 17
    assert bounds_of(written(table, [highest]), TEXTS) == (highest[:16].encode(), None)


@given(
    st.text(st.sampled_from("a\ud7ff\ue000\uffff\U0010ffff"), max_size=6),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_upper_bound_any_text_is_short_and_not_below_it(value: str, length: int | None) -> None:
    bound = upper_bound(value, length)
    if bound is None:
        assert set(value[:length]) == {"\U0010ffff"}
    else:
        assert bound.encode() >= value.encode()
        assert length is None or len(bound) <= length
