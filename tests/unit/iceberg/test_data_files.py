"""Data files that are written without Spark, on a table in a folder."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from topicberg.iceberg import data_files
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget, repeated
from topicberg.iceberg.files import partition_of

SCHEMA = Schema(
    NestedField(1, "$$time", TimestamptzType(), required=False),
    NestedField(2, "kind", StringType(), required=False),
    NestedField(3, "day", DateType(), required=False),
    NestedField(4, "price", DecimalType(9, 2), required=False),
    NestedField(5, "number", LongType(), required=False),
)
SPEC = PartitionSpec(
    PartitionField(1, 1000, DayTransform(), "time_day"),
    PartitionField(2, 1001, IdentityTransform(), "kind"),
    PartitionField(3, 1002, IdentityTransform(), "day"),
)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "$$time": datetime(2026, 1, 1 + n % 3, n % 24, tzinfo=UTC) if n % 7 else None,
            "kind": ("a/b", "ü", None)[n % 3],
            "day": date(1969, 12, 31) if n % 2 else None,
            "price": Decimal(n).scaleb(-2),
            "number": n,
        }
        for n in range(count)
    ]


def columns(found: list[dict[str, Any]]) -> dict[str, pa.Array]:
    table = pa.Table.from_pylist(
        found,
        schema=pa.schema(
            [
                ("$$time", pa.timestamp("us", "UTC")),
                ("kind", pa.string()),
                ("day", pa.date32()),
                ("price", pa.decimal128(9, 2)),
                ("number", pa.int64()),
            ]
        ),
    )
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def make_table(folder: Path, spec: PartitionSpec = SPEC) -> Table:
    catalog = InMemoryCatalog("test", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    return catalog.create_table("n.t", SCHEMA, partition_spec=spec)


def test_the_next_file_begins_when_one_is_large(tmp_path: Path) -> None:
    table = make_table(tmp_path, PartitionSpec())
    with DataFileWriter(WriteTarget.of(table), table.io, 1) as writer:
        writer.write(columns(rows(10)))
        writer.write(columns(rows(10)))
    assert [file.record_count for file in writer.files] == [10, 10]
    assert len({file.file_path for file in writer.files}) == 2


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    writer = DataFileWriter(WriteTarget.of(table), table.io, 2**30)
    writer.__enter__().write(columns(rows(10)))
    writer.__exit__(RuntimeError, RuntimeError(), None)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("source", "transform"),
    [
        *((1, T()) for T in (YearTransform, MonthTransform, DayTransform, HourTransform)),
        *((3, T()) for T in (YearTransform, MonthTransform, DayTransform)),
        *((n, BucketTransform(4)) for n in (1, 2, 3, 4, 5)),
        *((n, TruncateTransform(7)) for n in (2, 4, 5)),
        *((n, IdentityTransform()) for n in (1, 2, 3, 4, 5)),
    ],
)
def test_files_of_each_transform_have_the_values_of_the_specification(
    tmp_path: Path, source: int, transform: Transform[Any, Any]
) -> None:
    field = SCHEMA.find_field(source)
    table = make_table(tmp_path, PartitionSpec(PartitionField(source, 1000, transform, "p")))
    expected = transform.transform(field.field_type)
    with DataFileWriter(WriteTarget.of(table), table.io, 2**30) as writer:
        writer.write(columns(rows(100)))
    for file in writer.files:
        values = pq.read_table(file.file_path.removeprefix("file://")).column(source - 1)
        for value in values.to_pylist():
            wanted = None if value is None else literal(value).to(field.field_type).value
            assert file.partition[0] == expected(wanted)
    assert sum(file.record_count for file in writer.files) == 100


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``limit(MAX_OPEN=3)``: what a writer may hold until the test ends."""

    def use(**limits: int) -> None:
        for name, value in limits.items():
            monkeypatch.setattr(data_files, name, value)

    return use


@pytest.mark.parametrize("waiting", [0, 2**30])
def test_rows_of_more_partitions_than_open_files_are_read_again(
    tmp_path: Path, limit: Callable[..., None], waiting: int
) -> None:
    limit(MAX_OPEN=3, MAX_WAITING_BYTES=waiting)
    spec = PartitionSpec(PartitionField(5, 1000, TruncateTransform(10), "tens"))
    table, wanted = make_table(tmp_path, spec), rows(200)
    random.Random(1).shuffle(wanted)
    places: dict[int, tuple[str, int]] = {}
    with DataFileWriter(WriteTarget.of(table), table.io, 2**30) as writer:
        for first in range(0, 200, 50):
            some = wanted[first : first + 50]
            for placed in writer.write(columns(some)):
                assert placed.rows is not None
                for position, row in enumerate(placed.rows, placed.first):
                    places[some[row]["number"]] = placed.path, position
    assert len(writer.files) >= 20
    assert (len(writer.files) == 20) == (waiting > 0)
    found: dict[int, tuple[str, int]] = {}
    for file in writer.files:
        numbers = pq.read_table(file.file_path.removeprefix("file://")).column("number")
        assert {n // 10 * 10 for n in numbers.to_pylist()} == {file.partition[0]}
        found |= {n: (file.file_path, at) for at, n in enumerate(numbers.to_pylist())}
    assert found == places


def test_a_written_file_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, most = WeakSet[pq.ParquetWriter](), 0

    class Counted(pq.ParquetWriter):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            nonlocal most
            super().__init__(*arguments, **options)
            alive.add(self)
            most = max(most, len(alive))

    monkeypatch.setattr(pq, "ParquetWriter", Counted)
    spec = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "number"))
    table = make_table(tmp_path, spec)
    with DataFileWriter(WriteTarget.of(table), table.io, 2**30) as writer:
        writer.write(columns(rows(1_000)))
    assert len(writer.files) == 1_000
    assert most <= data_files.MAX_OPEN + 8  # those that are written at once


@pytest.mark.parametrize("most", [0, 3, 64])
@pytest.mark.parametrize("group", [0, 2**22])
@pytest.mark.parametrize("width", [10, 1_000])
def test_memory_of_written_rows_may_be_overwritten(
    tmp_path: Path, limit: Callable[..., None], most: int, group: int, width: int
) -> None:
    limit(MAX_OPEN=most, GROUP_BYTES=group)
    spec = PartitionSpec(PartitionField(5, 1000, TruncateTransform(width), "tens"))
    table, memory, seen = make_table(tmp_path, spec), np.zeros(25, np.int64), list[int]()
    absent = {name: column.type for name, column in columns(rows(1)).items() if name != "number"}
    with DataFileWriter(WriteTarget.of(table), table.io, 2**30) as writer:
        for first in range(0, 300, 25):
            memory[:] = np.arange(first, first + 25)
            number = pa.Array.from_buffers(pa.int64(), 25, [None, pa.py_buffer(memory)])
            nulls = {name: pa.nulls(25, kind) for name, kind in absent.items()}
            writer.write(nulls | {"number": number})
        memory[:] = -1
    for file in writer.files:
        found = pq.read_table(file.file_path.removeprefix("file://")).column("number").to_pylist()
        assert {n // width * width for n in found} == {file.partition[0]}
        seen += found
    assert sorted(seen) == list(range(300))


@given(st.data())
def test_rows_are_grouped_by_any_number_of_fields(data: st.DataObject) -> None:
    known = data.draw(st.lists(st.sampled_from([1, 2, 3, 2**31]), min_size=1, max_size=6))
    rows = data.draw(
        st.lists(st.tuples(*(st.integers(0, min(one, 4) - 1) for one in known)), min_size=1)
    )
    codes = [np.array(one, np.int32) for one in zip(*rows, strict=True)]
    order = data.draw(st.none() | st.permutations(range(len(rows))).map(np.array))
    combined, moves = data_files._grouped(codes, known, order)
    places = list(range(len(rows)) if moves is None else moves)
    assert sorted(places) == list(range(len(rows)))
    groups = [
        [rows[place] for _, place in some]
        for _, some in groupby(zip(combined, places, strict=True), itemgetter(0))
    ]
    assert all(len(set(one)) == 1 for one in groups)
    assert len({one[0] for one in groups}) == len(groups)
    given_order = list(range(len(rows)) if order is None else order)
    for wanted in set(rows):
        of_group = [place for place in places if rows[place] == wanted]
        assert of_group == [place for place in given_order if rows[place] == wanted]


def test_only_values_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
    table = pa.table(
        {
            "same": pa.array(["x"] * 100),
            "unique": pa.array(range(100)),
            "nested": pa.array([{"a": 1, "b": ["y"]}] * 100, struct),
            "pairs": pa.array([[("k", b"v")]] * 100, pa.map_(pa.string(), pa.binary())),
        }
    )
    paths = ("same", "unique", "nested.a", "nested.b.list.element")
    named = repeated(table, [*paths, "pairs.key_value.key", "pairs.key_value.value"])
    pq.write_table(table, tmp_path / "f.parquet", use_dictionary=named)
    group = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    assert {
        group.column(n).path_in_schema
        for n in range(group.num_columns)
        if group.column(n).has_dictionary_page
    } == set(named)
    assert {one.partition(".")[0] for one in named} == {"same", "nested", "pairs"}


def test_fields_of_any_name_keep_their_values_at_every_depth(tmp_path: Path) -> None:
    """In files, names are escaped; Arrow's cast would look fields up by their names."""
    numbers = iter(range(1, 100))
    inner = StructType(
        NestedField(next(numbers), "Kind'", StringType(), required=False),
        NestedField(
            next(numbers), "p-x", ListType(next(numbers), LongType(), False), required=False
        ),
        NestedField(next(numbers), "größe", LongType(), required=False),
    )
    schema = Schema(
        NestedField(next(numbers), "a b", inner, required=False),
        NestedField(next(numbers), "l", ListType(next(numbers), inner, False), required=False),
        NestedField(
            next(numbers),
            "m",
            MapType(next(numbers), StringType(), next(numbers), inner, False),
            required=False,
        ),
    )
    catalog = InMemoryCatalog("test", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    table, one = catalog.create_table("n.names", schema), {"Kind'": "B", "p-x": [1, 2], "größe": 3}
    other = {"Kind'": None, "p-x": None, "größe": -1}
    rows_ = [
        {"a b": one, "l": [one, None, other], "m": [("k", one), ("n", None)]},
        {"a b": None, "l": None, "m": None},
        {"a b": other, "l": [], "m": []},
    ]
    kinds = schema_to_pyarrow(table.schema(), include_field_ids=False)
    with DataFileWriter(WriteTarget.of(table), table.io) as writer:
        for part in (rows_[:1], rows_[1:]):
            arrow = pa.Table.from_pylist(part, schema=kinds)
            writer.write({name: arrow.column(name).combine_chunks() for name in arrow.column_names})
    (file,) = writer.files
    with table.io.new_input(file.file_path).open() as stream:
        found = pq.read_table(stream).to_pylist()
    assert without_names(found) == without_names(rows_)


def without_names(value: Any) -> Any:
    """Return rows, and the structs in them, as lists of their values."""
    if isinstance(value, dict):
        value = [*value.values()]
    return [*map(without_names, value)] if isinstance(value, list | tuple) else value


def of_one_column(
    folder: Path, kind: IcebergType, transform: Transform[Any, Any], *batches: pa.Array
) -> list[tuple[Any, list[Any]]]:
    """Write a table with one column; return the partition and the rows of each file."""
    schema = Schema(NestedField(1, "value", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    with DataFileWriter(WriteTarget(folder.as_uri(), schema, spec, {}), PyArrowFileIO()) as writer:
        for batch in batches:
            writer.write({"value": batch})
    return [
        (file.partition[0], pq.read_table(urlparse(file.file_path).path)["value"].to_pylist())
        for file in writer.files
    ]


@given(st.lists(st.lists(st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5, None]), min_size=1)))
@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
def test_identity_of_floats_has_one_partition_for_zeros_and_one_for_nan(
    tmp_path_factory: pytest.TempPathFactory, kind: IcebergType, batches: list[list[float | None]]
) -> None:
    arrow = pa.float64() if isinstance(kind, DoubleType) else pa.float32()
    arrays = [pa.array(batch, arrow) for batch in batches]
    found = of_one_column(tmp_path_factory.mktemp("floats"), kind, IdentityTransform(), *arrays)
    written = {repr(part): list(map(repr, values)) for part, values in found}
    assert len(written) == len(found)
    wanted: dict[str, list[str]] = {}
    for value in (value for batch in batches for value in batch):
        wanted.setdefault(repr(value).replace("-0.0", "0.0"), []).append(repr(value))
    assert written == wanted


@pytest.mark.parametrize(
    ("transform", "partitions"),
    [
        (IdentityTransform(), {"orders", None}),
        (VoidTransform(), {None}),
        (TruncateTransform(2), {"or", None}),
        (BucketTransform(8), {BucketTransform(8).transform(StringType())("orders"), None}),
    ],
)
def test_constant_is_partitioned_as_its_values(
    tmp_path: Path, transform: Transform[Any, Any], partitions: set[Any]
) -> None:
    constant = pa.array(["orders", None, "orders"]).dictionary_encode()
    found = of_one_column(tmp_path, StringType(), transform, constant, constant)
    assert {part for part, _ in found} == partitions
    assert len(found) == len(partitions)
    assert sum(len(values) for _, values in found) == 6


NESTED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(
        2,
        "order",
        StructType(NestedField(4, "kind", StringType()), NestedField(3, "id", LongType())),
        required=False,
    ),
)
ORDERS = pa.StructArray.from_arrays(
    [pa.array(["a", "b", "c"]), pa.array([80, 70, 60])],
    names=["kind", "id"],
    mask=pa.array([False, False, True]),
)


@pytest.mark.parametrize("column", ["id", "number"])
def test_rows_of_a_nested_partition_field_have_the_partition_of_its_values(
    tmp_path: Path, column: str
) -> None:
    """A column may have the name of the nested field; a null struct has a null partition."""
    schema = Schema(NestedField(1, column, LongType(), required=False), NESTED.fields[1])
    spec = PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "order.id"),
        PartitionField(3, 1001, TruncateTransform(50), "order.id_trunc"),
    )
    target = WriteTarget(tmp_path.as_uri(), schema, spec, {})
    with DataFileWriter(target, PyArrowFileIO()) as writer:
        writer.write({column: pa.array([1, 2, 3]), "order": ORDERS})
    partitions = {tuple(file.partition[n] for n in (0, 1)) for file in writer.files}
    assert partitions == {(80, 50), (70, 50), (None, None)}


def test_rows_are_sorted_by_a_nested_field(tmp_path: Path) -> None:
    order = SortOrder(SortField(3, IdentityTransform()))
    target = WriteTarget(tmp_path.as_uri(), NESTED, PartitionSpec(), {}, order)
    with DataFileWriter(target, PyArrowFileIO()) as writer:
        writer.write({"id": pa.array([1, 2, 3]), "order": ORDERS})
    (file,) = writer.files
    assert pq.read_table(urlparse(file.file_path).path)["id"].to_pylist() == [3, 2, 1]


def test_rows_of_a_partition_field_whose_column_was_dropped_are_written(tmp_path: Path) -> None:
    """A table of format version 1 keeps its former partition fields as `void`."""
    spec = PartitionSpec(PartitionField(9, 1000, VoidTransform(), "kind"))
    target = WriteTarget(tmp_path.as_uri(), SCHEMA, spec, {})
    with DataFileWriter(target, PyArrowFileIO()) as writer:
        writer.write(columns(rows(3)))
    (file,) = writer.files
    assert (file.record_count, file.partition[0]) == (3, None)


def test_partitions_of_zero_and_of_minus_zero_are_two_groups_of_files() -> None:
    files = [
        DataFile.from_args(partition=Record(value)) for value in (0.0, -0.0, math.nan, float("nan"))
    ]
    for file in files:
        file.spec_id = 0
    assert len({partition_of(file) for file in files}) == 3
