"""Data files written in this process.

PyIceberg's own writer has no choice of the columns that get a dictionary: see :func:`repeated`.

Source: Iceberg spec, "Data File Fields" and "Partition Transforms".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import (
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, TimestampType, TimestamptzType

from topicberg.errors import TopicbergError
from topicberg.iceberg.manifests import new_file

MAX_OPEN = 64
"""Partitions whose files are written at once."""
_SAMPLE = 4096
"""Values of a column that are inspected."""
_UNITS = {HourTransform: "h", DayTransform: "D", MonthTransform: "M", YearTransform: "Y"}


class UnsupportedWriteError(TopicbergError):
    """The table, or the batch, is for Spark to write."""


@dataclass(frozen=True)
class Target:
    """What a writer needs to know of a table; small enough to be sent to a task."""

    location: str
    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str]

    @classmethod
    def of(cls, table: Table) -> Target:
        """:raises UnsupportedWriteError: files of the table are not written here"""
        if table.metadata.default_sort_order_id:
            raise UnsupportedWriteError("its files are sorted")
        target = cls(table.location(), table.schema(), table.spec(), table.properties)
        if target.properties.get("write.format.default", "parquet") != "parquet":
            raise UnsupportedWriteError("its files are not Parquet")
        sources = [field.source_id for field in target.spec.fields]
        if len(set(sources)) < len(sources):
            raise UnsupportedWriteError("two partition fields are of one column")
        for field in target.spec.fields:
            kind = target.schema.find_field(field.source_id).field_type
            if isinstance(field.transform, IdentityTransform):
                if not kind.is_primitive:
                    raise UnsupportedWriteError(f"it is partitioned by a {kind}")
            elif type(field.transform) not in _UNITS or not isinstance(
                kind, TimestampType | TimestamptzType
            ):
                raise UnsupportedWriteError(f"it is partitioned by {field.transform}({kind})")
        return target


@dataclass(frozen=True)
class Placed:
    """Where rows were written: in one file, one after the other."""

    path: str
    first: int
    """Position of the first row in the file."""
    rows: NDArray[np.intp] | None = None
    """Which of the rows that were given; None: all."""


class DataFileWriter:
    """Writes rows to one open file for each partition; a context manager."""

    def __init__(self, target: Target, io: FileIO, size: int) -> None:
        """:param size: bytes of rows in memory after which the next file begins"""
        self._properties, self._io, self._most = target.properties, io, size
        self._spec, self._schema = target.spec, target.schema
        self._file_schema = sanitize_column_names(self._schema)
        self._arrow = schema_to_pyarrow(self._file_schema)
        self._paths = load_location_provider(target.location, target.properties)
        self._open: dict[tuple[Any, ...], _File] = {}
        self.files: list[DataFile] = []
        self._id = uuid.uuid4().hex
        self._format = _Format(self._file_schema, target.properties)

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for file in list(self._open.values()):
                self._close(file)
            return
        for file in self._open.values():
            file.abandon()

    def write(self, columns: Mapping[str, pa.Array]) -> list[Placed]:
        """Write rows, and return where each is.

        :param columns: by the names of the table's columns
        :raises UnsupportedWriteError: they are of too many partitions
        """
        arrays, fields = list[pa.Array](), list[pa.Field]()
        for place, column in enumerate(self._schema.fields):
            field, array = self._arrow.field(place), columns[column.name]
            if pa.types.is_dictionary(array.type):  # a constant, which is written as it is
                field = field.with_type(array.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
            fields.append(field)
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        placed = []
        for values, some in self._partitions(columns, table):
            rows = table if some is None else table.take(pa.array(some))
            placed.append(Placed(*self._write(values, rows), some))
        return placed

    def _partitions(
        self, columns: Mapping[str, pa.Array], table: pa.Table
    ) -> Iterator[tuple[tuple[Any, ...], NDArray[np.intp] | None]]:
        """Yield the values of each partition and its rows; None: all."""
        if self._spec.is_unpartitioned() or not len(table):
            yield (), None
            return
        codes, names = list[NDArray[Any]](), list[list[Any]]()
        for field in self._spec.fields:
            column = columns[self._schema.find_field(field.source_id).name]
            transformed = _transformed(column, field.transform)
            encoded = pc.dictionary_encode(transformed, null_encoding="encode")
            codes.append(encoded.indices.to_numpy(zero_copy_only=False))
            names.append(encoded.dictionary.to_pylist())
        combined = codes[0].astype(np.int64)
        for code, known in zip(codes[1:], names[1:], strict=True):
            combined = combined * max(1, len(known)) + code
        found, first, groups = np.unique(combined, return_index=True, return_inverse=True)
        if len(found) > MAX_OPEN:
            raise UnsupportedWriteError(f"a batch has rows of more than {MAX_OPEN} partitions")
        for number, row in enumerate(first):
            values = tuple(known[code[row]] for code, known in zip(codes, names, strict=True))
            yield values, None if len(found) == 1 else np.flatnonzero(groups == number)

    def _write(self, values: tuple[Any, ...], rows: pa.Table) -> tuple[str, int]:
        """Write rows of one partition; return their file, and the position of the first one."""
        file = self._open.get(values)
        if file is None:
            if len(self._open) == MAX_OPEN:
                raise UnsupportedWriteError(f"a batch has rows of more than {MAX_OPEN} partitions")
            file = self._open[values] = self._new(values)
        place = file.path, file.rows
        file.write(rows)
        if file.size >= self._most:
            self._close(file)
        return place

    def _new(self, values: tuple[Any, ...]) -> _File:
        key, partition = None, Record()
        if values:
            fields = list(map(PartitionFieldValue, self._spec.fields, values))
            key = PartitionKey(fields, self._spec, self._schema)
            partition = key.partition
        name = f"{self._id}-{len(self.files) + len(self._open):05}.parquet"
        path = self._paths.new_data_location(name, key)
        return _File(self._io, path, values, partition, self._format)

    def _close(self, file: _File) -> None:
        del self._open[file.values]
        self.files.append(file.close(self._spec.spec_id))


class _File:
    """An open file."""

    def __init__(
        self, io: FileIO, path: str, values: tuple[Any, ...], partition: Record, owner: _Format
    ) -> None:
        self.values, self.path, self.size, self.rows = values, path, 0, 0
        self._io, self._partition, self._format = io, partition, owner
        self._output = io.new_output(path)
        self._stream: Any = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._stream = self._output.create(overwrite=True)
            self._writer = pq.ParquetWriter(
                self._stream,
                rows.schema,
                use_dictionary=repeated(rows),
                compression=self._format.compression,
                compression_level=self._format.level,
                store_decimal_as_integer=True,
                store_schema=False,
            )
        self._writer.write_table(rows, row_group_size=len(rows))
        self.size += rows.nbytes
        self.rows += len(rows)

    def close(self, spec_id: int) -> DataFile:
        assert self._writer is not None  # noqa: S101  a file is opened to be written
        with self._stream:
            self._writer.close()
        metadata, plan, paths = self._writer.writer.metadata, self._format.plan, self._format.paths
        return described(self._output, spec_id, self._partition, metadata, plan, paths)

    def abandon(self) -> None:
        with suppress(Exception):  # it is never part of the table; maintenance removes it
            if self._writer is not None:
                self._writer.close()
                self._stream.close()
            self._io.delete(self.path)


class _Format:
    """How the files of a table are written."""

    def __init__(self, schema: Schema, properties: Mapping[str, str]) -> None:
        self.compression = compression(properties)
        level = properties.get("write.parquet.compression-level")
        self.level = int(level) if level else None
        self.plan = compute_statistics_plan(schema, dict(properties))
        self.paths = parquet_path_to_id_mapping(schema)


def compression(properties: Mapping[str, str]) -> str:
    """Return PyArrow's name of the codec of a table's files."""
    codec = properties.get("write.parquet.compression-codec", "zstd")
    return "none" if codec == "uncompressed" else codec


def described(
    file: OutputFile | InputFile,
    spec_id: int,
    partition: Record,
    metadata: pq.FileMetaData,
    plan: dict[int, StatisticsCollector],
    paths: dict[str, int],
    **more: Any,
) -> DataFile:
    """Return the metadata of a written Parquet file, with its statistics.

    :param plan: field id → what is collected of a column
    :param paths: column of the file → field id
    """
    statistics = data_file_statistics_from_parquet_metadata(metadata, plan, paths)
    return new_file(
        spec_id,
        content=DataFileContent.DATA,
        file_path=file.location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(file),
        **more,
        **statistics.to_serialized_dict(),
    )


def repeated(rows: pa.Table) -> list[str]:
    """Return the Parquet columns whose values repeat, by a sample: a dictionary makes them smaller.

    A dictionary of values that do not repeat is built, written and abandoned by the writer: without
    this choice it takes twice as long, and its files are twice as large.
    """
    found: list[str] = []
    for field in rows.schema:
        if pa.types.is_nested(field.type):
            found += _leaves(field.name, field.type)
        elif pa.types.is_dictionary(field.type) or _repeats(rows.column(field.name)):
            found.append(field.name)
    return found


def _repeats(column: pa.ChunkedArray) -> bool:
    sample = column.slice(0, _SAMPLE)
    return bool(pc.count_distinct(sample, mode="all").as_py() * 2 <= len(sample) + 1)


def _leaves(path: str, kind: pa.DataType) -> list[str]:
    """Return the names of the Parquet columns of an Arrow column."""
    if pa.types.is_struct(kind):
        return [name for one in kind for name in _leaves(f"{path}.{one.name}", one.type)]
    if pa.types.is_map(kind):
        parts = kind.key_field, kind.item_field
        return [n for one in parts for n in _leaves(f"{path}.key_value.{one.name}", one.type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [path]


def _transformed(column: pa.Array, transform: Any) -> pa.Array:
    unit = _UNITS.get(type(transform))
    if unit is None:
        return column
    micros = column.cast(pa.int64())
    times = micros.fill_null(0).to_numpy().astype("datetime64[us]")
    numbers = times.astype(f"datetime64[{unit}]").astype(np.int64).astype(np.int32)
    return pa.array(numbers, mask=column.is_null().to_numpy(zero_copy_only=False))


# --- files as text, to return them from a task ---

_BOUNDS = ("lower_bounds", "upper_bounds")
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_AS_IS = ("file_path", "record_count", "file_size_in_bytes", "split_offsets")


def _partition_types(target: Target) -> list[PrimitiveType]:
    fields = target.spec.partition_type(target.schema).fields
    return [cast("PrimitiveType", field.field_type) for field in fields]


def dump_file(file: DataFile, target: Target) -> str:
    """Return the metadata of a new data file as JSON."""
    kinds = _partition_types(target)
    partition = [
        None if (value := file.partition[place]) is None else to_bytes(kind, value).hex()
        for place, kind in enumerate(kinds)
    ]
    fields: dict[str, Any] = {name: getattr(file, name) for name in (*_COUNTS, *_AS_IS)}
    for name in _BOUNDS:
        bounds = getattr(file, name) or {}
        fields[name] = {number: bytes(value).hex() for number, value in bounds.items()}
    return json.dumps({**fields, "partition": partition})


def load_file(text: str, target: Target) -> DataFile:
    """Return the metadata of a new data file."""
    given = json.loads(text)
    kinds = _partition_types(target)
    values = [
        None if value is None else from_bytes(kind, bytes.fromhex(value))
        for kind, value in zip(kinds, given.pop("partition"), strict=True)
    ]
    for name in _COUNTS:
        given[name] = {int(number): value for number, value in (given[name] or {}).items()}
    for name in _BOUNDS:
        given[name] = {int(number): bytes.fromhex(value) for number, value in given[name].items()}
    return new_file(
        target.spec.spec_id,
        content=DataFileContent.DATA,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        **given,
    )
