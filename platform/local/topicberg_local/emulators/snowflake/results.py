"""Rows on Snowflake's wire.

Queries are answered as Arrow, in the physical types that the connectors' converters expect;
everything else (SHOW, DESCRIBE, DDL, DML) as JSON, as Snowflake does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

T = TypeVar("T")


class ColumnType(TypedDict):
    """A column of a result, as connectors read it."""

    name: str
    database: str
    schema: str
    table: str
    nullable: bool
    type: str
    byteLength: int | None
    length: int | None
    scale: int | None
    precision: int | None
    collation: str | None


def column(
    name: str,
    kind: str,
    precision: int | None = None,
    scale: int | None = None,
    length: int | None = None,
) -> ColumnType:
    return {
        "name": name,
        "database": "",
        "schema": "",
        "table": "",
        "nullable": True,
        "type": kind,
        "byteLength": length,
        "length": length,
        "scale": scale,
        "precision": precision,
        "collation": None,
    }


def text_column(name: str) -> ColumnType:
    return column(name, "text", length=16_777_216)


@dataclass
class Rows:
    """A small result: columns of text, unless their types are given, and rows of values."""

    columns: list[ColumnType]
    rows: list[Sequence[Any]] = field(default_factory=list)
    statement_type: int = 0

    @staticmethod
    def of(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> Rows:
        """Columns of text, and ``created_on`` of time (seconds since 1970)."""
        time = column("created_on", "timestamp_ltz", precision=0, scale=3)
        columns = [time if name == "created_on" else text_column(name) for name in names]
        return Rows(columns, list(rows))

    @staticmethod
    def shown(objects: Iterable[T], columns: Mapping[str, Any]) -> Rows:
        """A row for each object.

        :param columns: name → value, or the function of the object that returns it
        """
        values = columns.values()
        rows = [[v(shown) if callable(v) else v for v in values] for shown in objects]
        return Rows.of(columns, rows)

    @staticmethod
    def status(message: str) -> Rows:
        return Rows([text_column("status")], [(message,)])

    def payload(self) -> dict[str, Any]:
        return {
            "rowtype": self.columns,
            "total": len(self.rows),
            "queryResultFormat": "json",
            "rowset": [[_as_text(value) for value in row] for row in self.rows],
        }


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3f}" if isinstance(value, float) else str(value)  # a time has its scale


def arrow_payload(table: pa.Table, semi_structured: set[int]) -> dict[str, Any]:
    """A query's result; ``semi_structured``: the positions of JSON, to be seen as VARIANT."""
    described = [_describe(f, i in semi_structured) for i, f in enumerate(table.schema)]
    payload = {"rowtype": described, "total": table.num_rows, "queryResultFormat": "arrow"}
    if table.num_rows == 0:
        return payload | {"rowsetBase64": ""}
    arrays = [_physical(chunks.combine_chunks()) for chunks in table.columns]
    fields = [
        pa.field(
            info["name"],
            array.type,
            metadata={
                "logicalType": info["type"].upper(),
                "precision": str(info["precision"] or 38),
                "scale": str(info["scale"] or 0),
                "charLength": str(info["length"] or 0),
                "byteLength": str(info["byteLength"] or 0),
            },
        )
        for info, array in zip(described, arrays, strict=True)
    ]
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(arrays, schema=pa.schema(fields))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded = base64.b64encode(sink.getvalue()).decode("ascii")
    return payload | {"rowsetBase64": encoded}


def _describe(field_: pa.Field, semi_structured: bool) -> ColumnType:
    name, kind = field_.name, field_.type
    if semi_structured:
        return column(name, "variant")
    if pa.types.is_decimal(kind):
        return column(name, "fixed", kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return column(name, "timestamp_ltz" if kind.tz else "timestamp_ntz", 0, 9)
    for is_kind, *described in _DESCRIBED:
        if is_kind(kind):
            return column(name, *described)
    return text_column(name)


_DESCRIBED: tuple[tuple[Any, ...], ...] = (
    (pa.types.is_nested, "variant"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "fixed", 38, 0),
    (pa.types.is_null, "fixed", 38, 0),
    (pa.types.is_floating, "real"),
    (pa.types.is_binary, "binary", None, None, 8_388_608),
    (pa.types.is_large_binary, "binary", None, None, 8_388_608),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time", 0, 9),
)
"""Whether an Arrow type is of a kind, and the arguments of :func:`column` for it."""


def _physical(array: pa.Array) -> pa.Array:
    """The array in the Arrow type that connectors expect for its logical type."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _timestamp(array)
    if pa.types.is_time(kind):
        return pc.multiply(array.cast(pa.time64("us")).cast(pa.int64()), 1000)
    if pa.types.is_unsigned_integer(kind) or pa.types.is_null(kind):
        return array.cast(pa.int64())
    if pa.types.is_float32(kind):
        return array.cast(pa.float64())
    if pa.types.is_nested(kind):
        values = (None if v is None else json.dumps(v, default=str) for v in array.to_pylist())
        return pa.array(values, pa.string())
    return array


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _timestamp(array: pa.Array) -> pa.Array:
    """Seconds since 1970 and nanoseconds, as two fields; floored, for times before 1970."""
    per_second = _PER_SECOND[array.type.unit]
    value = array.cast(pa.int64())
    whole = pc.floor_temporal(array, unit="second").cast(pa.int64())
    epoch = pc.divide(whole, per_second)
    fraction = pc.multiply(pc.subtract(value, whole), 1_000_000_000 // per_second)
    return pa.StructArray.from_arrays(
        [epoch, fraction.cast(pa.int32())],
        fields=[pa.field("epoch", pa.int64()), pa.field("fraction", pa.int32())],
        mask=pc.is_null(array),
    )
