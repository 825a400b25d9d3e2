"""Tables partitioned by each transform of each type, with hard values, and what a reader must find.

Source: Iceberg spec, "Partition Transforms".
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import live_files
from topicberg.iceberg.position_deletes import FileRows, delete_rows
from topicberg.iceberg.table import partition_spec
from topicberg.topics.spec import parse_partition_field

Dialect = Literal["duckdb", "spark"]

_TIMES = [
    datetime(1, 1, 1),
    datetime(1582, 10, 15),
    datetime(1960, 5, 5, 12),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2020, 2, 29, 23, 30),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
_WHOLE = [-1_000_001, -11, -10, -1, 0, 1, 9, 10]
_BYTES = [b"\x00", b"\x00\x00\x01", b"ab", b"abc", b"\x80", b"\xff\xff\xff"]
_TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "a\0b",
    "ß",
    "e\u0301abc",
    "eabc",
    "\U0001f44d\U0001f3fdx",
    "\uffff",
]
_BEYOND = [math.inf, math.nan]
_DATES = ("year", "month", "day", "bucket[4]")
_MOMENTS = (*_DATES, "hour")
_CUT = ("bucket[4]", "truncate[2]")
_NARROW = ("bucket[4]", "truncate[10]")

VALUES: list[tuple[IcebergType, tuple[str, ...], list[Any]]] = [
    (BooleanType(), (), [False, True]),
    (IntegerType(), _NARROW, [-(2**31) + 8, *_WHOLE, 2**31 - 1]),
    (LongType(), _NARROW, [-(2**63) + 8, *_WHOLE, 2**63 - 1]),
    (FloatType(), (), [-math.inf, -0.5, -0.0, 0.0, float.fromhex("0x1.99999ap-4"), *_BEYOND]),
    (DoubleType(), (), [-math.inf, -1e300, -0.0, 0.0, 5e-324, 0.1, 1 / 3, 1e300, *_BEYOND]),
    (DecimalType(9, 2), _NARROW, [Decimal(n).scaleb(-2) for n in _WHOLE]),
    (DecimalType(18, 3), _NARROW, [Decimal(n).scaleb(-3) for n in (*_WHOLE, 10**17 + 1)]),
    (DecimalType(38, 10), _NARROW, [Decimal(f"{n}e-10") for n in (*_WHOLE, 10**30 + 7, -(10**30))]),
    (DateType(), _DATES, [moment.date() for moment in _TIMES]),
    (TimestampType(), _MOMENTS, _TIMES),
    (TimestamptzType(), _MOMENTS, [moment.replace(tzinfo=UTC) for moment in _TIMES]),
    (StringType(), _CUT, _TEXTS),
    (BinaryType(), _CUT, [b"", *_BYTES]),
]

_OPERATORS: dict[str, tuple[Callable[[Any, Any], bool], Any]] = {
    "=": (operator.eq, EqualTo),
    "<": (operator.lt, LessThan),
    "<=": (operator.le, LessThanOrEqual),
    ">": (operator.gt, GreaterThan),
    ">=": (operator.ge, GreaterThanOrEqual),
}


@dataclass(frozen=True)
class Question:
    """A condition, and the ids of the rows that fulfil it."""

    comparison: str
    value: Any
    ids: frozenset[int]

    def expression(self) -> BooleanExpression:
        if self.value is None or is_nan(self.value):
            return IsNull(term="x") if self.value is None else IsNaN(term="x")
        expression: BooleanExpression = _OPERATORS[self.comparison][1]("x", self.value)
        return expression

    def sql(self, kind: IcebergType, dialect: Dialect) -> str:
        if self.value is None:
            return "x IS NULL"
        return f"x {self.comparison} {_literal(self.value, kind, dialect)}"


@dataclass(frozen=True)
class Case:
    """A table of one column and one partition field."""

    kind: IcebergType
    transform: str
    values: list[Any]

    def __str__(self) -> str:
        return f"{self.transform}({self.kind})"

    @property
    def name(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in str(self))

    @property
    def schema(self) -> Schema:
        return Schema(
            NestedField(1, "id", IntegerType(), required=False),
            NestedField(2, "x", self.kind, required=False),
        )

    def create(self, catalog: Catalog, namespace: str, **properties: str) -> Table:
        """Return a new table with a row for each value, as the engine writes them. Beside each row
        was another one of the value, which is deleted by position."""
        field = "x" if self.transform == "identity" else f"{self.transform}(x)"
        spec = partition_spec(self.schema, [parse_partition_field(field)])
        name = (namespace, self.name)
        table = catalog.create_table(name, self.schema, partition_spec=spec, properties=properties)
        change, count = SnapshotChange(table, Operation.APPEND), len(self.values)
        kind = table.schema().as_arrow().field("x").type
        x = pa.array(self.values * 2, pa.binary() if kind == pa.large_binary() else kind)
        with DataFileWriter(WriteTarget.of(table), table.io) as writer:
            placed = writer.write({"id": pa.array(range(2 * count), pa.int32()), "x": x})
        change.add(writer.files)
        change.commit()
        of_path, deleted = {file.file_path: file for file in live_files(table.refresh())}, []
        for rows in placed:
            numbers = np.arange(2 * count) if rows.rows is None else rows.rows
            positions = rows.first + np.flatnonzero(numbers >= count)
            deleted.append(FileRows(of_path[rows.path], positions.astype(np.uint32)))
        delete_rows(table, deleted, {}, ())
        return table.refresh()

    def questions(self) -> Iterator[Question]:
        """Yield equality and ranges of each value, as SQL has them: NaN is above all numbers."""
        for value in self.values:
            if value is None:
                yield Question("=", None, frozenset({self.values.index(None)}))
                continue
            for comparison, (compare, _) in _OPERATORS.items():
                rows = [(n, one) for n, one in enumerate(self.values) if one is not None]
                ids = (n for n, one in rows if compare(_sortable(one), _sortable(value)))
                yield Question(comparison, value, frozenset(ids))


CASES = [
    Case(kind, transform, [*values, None])
    for kind, transforms, values in VALUES
    for transform in ("identity", *transforms)
]


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _sortable(value: Any) -> Any:
    return (is_nan(value), 0 if is_nan(value) else value) if isinstance(value, float) else value


def _literal(value: Any, kind: IcebergType, dialect: Dialect) -> str:
    """Return a value as a literal of SQL."""
    match value:
        case bool():
            return str(value).upper()
        case float():
            name, text = str(kind).upper(), str(value).replace("inf", "Infinity")
            return f"CAST('{text}' AS {name})"
        case int():
            return f"CAST('{value}' AS {'BIGINT' if str(kind) == 'long' else 'INT'})"
        case Decimal():
            return f"CAST('{value:f}' AS {str(kind).upper()})"
        case datetime():
            zone = "+00" if value.tzinfo else ""
            names = {
                "duckdb": ("TIMESTAMP", "TIMESTAMPTZ"),
                "spark": ("TIMESTAMP_NTZ", "TIMESTAMP"),
            }
            text = value.replace(tzinfo=None).isoformat(" ")
            return f"{names[dialect][bool(zone)]} '{text}{zone}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case bytes() if dialect == "duckdb":
            return f"from_hex('{value.hex()}')"
        case bytes():
            return f"X'{value.hex()}'"
        case str() if dialect == "duckdb":
            return "decode(from_hex('" + value.encode().hex() + "'))"
        case _:
            return "decode(X'" + value.encode().hex() + "', 'utf-8')"
