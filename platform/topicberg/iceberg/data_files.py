"""Data files written in this process, and their statistics as a manifest has them.

PyIceberg's own writer has no choice of the columns that get a dictionary: see :func:`repeated`.
Readers skip files by the bounds of columns, so a bound that is too narrow hides rows.

Source: Iceberg spec, "Data File Fields", "Partition Transforms" and "Truncate Transform Details";
Parquet's ``Statistics``, whose minimum and maximum are optional.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg import partitioning
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, sorting
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType, StringType

from topicberg.errors import TableflowError
from topicberg.iceberg import file_columns, manifests
from topicberg.iceberg.files import in_parallel, partition_key
from topicberg.iceberg.names import schema_in_files

MAX_OPEN = 64  # Files that are open at once; rows of more partitions wait in memory for their file.
MAX_WAITING_BYTES = 256 * 1024 * 1024  # Rows that wait in memory.
GROUP_BYTES = 4 * 1024 * 1024  # Rows in memory that are worth a row group; fewer wait for more.
_FILE_RATIO = 4  # Bytes of rows in memory for a byte of their file, about.
_FORMAT = "write.format.default"
_FILE_BYTES = 128 * 1024 * 1024
_SAMPLE = 4096  # Values of a column that are inspected.
_SURROGATES = range(0xD800, 0xE000)
_LAST = 0x10FFFF  # The highest code point of Unicode.


@dataclass(frozen=True)
class WriteTarget:
    """What a writer needs to know of a table; small enough to be sent to a task."""

    location: str
    schema: Schema
    spec: partitioning.PartitionSpec
    properties: dict[str, str]
    order: sorting.SortOrder = sorting.UNSORTED_SORT_ORDER

    @classmethod
    def of(cls, table: Table) -> WriteTarget:
        """:raises TableflowError: topicberg writes no files for the table"""
        name, spec, properties = ".".join(table.name()), table.spec(), table.properties
        if (kind := properties.get(_FORMAT, "parquet").lower()) != "parquet":
            raise TableflowError(
                f"table {name}: its property {_FORMAT} is {kind}, and topicberg writes Parquet",
                hint=f"remove the property {_FORMAT} from the table; files of other formats stay",
            )
        for field in spec.fields:
            if isinstance(field.transform, UnknownTransform):
                raise TableflowError(
                    f"table {name} is partitioned by {field.transform}, which topicberg does not "
                    "know",
                    hint="partition the table by a transform of Iceberg's specification",
                )
        return cls(table.location(), table.schema(), spec, properties, table.sort_order())


@dataclass(frozen=True)
class Placed:
    """Where rows were written: in one file, one after the other."""

    path: str
    first: int  # Position of the first row in the file.
    rows: NDArray[np.intp] | None = None  # Which of the rows that were given; None: all.


class _Key(partitioning.PartitionKey):
    """The values of a partition; of a column there may be several, which PyIceberg refuses."""

    @cached_property
    def partition(self) -> Record:
        return Record(
            *(
                partitioning.partition_record_value(value.field, value.value, self.schema)
                if not isinstance(value.field.transform, VoidTransform)
                else None
                for value in self.field_values
            )
        )


class DataFileWriter(AbstractContextManager["DataFileWriter"]):
    """Writes rows to one file for each partition.

    Rows of a file are written when they make a row group. If there are many partitions, they wait
    in memory, up to :data:`MAX_WAITING_BYTES`, and the files are written one after the other.

    If the table has a sort order, the rows that are given together are sorted by it, so each row
    group is. A file is not, and does not claim to be: compaction sorts files.
    """

    def __init__(self, target: WriteTarget, io: FileIO, size: int | None = None) -> None:
        """:param size: bytes of rows in memory after which the next file begins; None: so many that
        the file has about the size that the table's properties say
        """
        self._io = io
        self._most = file_bytes(target.properties) * _FILE_RATIO if size is None else size
        self._spec, self._schema, self._order = target.spec, target.schema, target.order
        schema = schema_in_files(self._schema)
        self._arrow = schema_to_pyarrow(schema)
        self._paths = load_location_provider(target.location, target.properties)
        self._open: dict[tuple[object, ...], _File] = {}  # By :func:`partition_key`.
        self.files: list[DataFile] = []
        self._id, self._numbers = uuid.uuid4().hex, count()
        self._format = _Format(schema, target.properties)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._close(list(self._open.values()))
        finally:  # after an error, files are still open
            for file in self._open.values():
                file.abandon()

    def write(self, columns: Mapping[str, pa.Array], *, are_kept: bool = False) -> list[Placed]:
        """Write rows, and return where each is.

        :param columns: by the names of the table's columns
        :param are_kept: whether nothing overwrites their memory
        """
        given = [columns[column.name] for column in self._schema.fields]
        fields = [  # a constant is written as it is
            field.with_type(array.type) if pa.types.is_dictionary(array.type) else field
            for field, array in zip(self._arrow, given, strict=True)
        ]
        arrays = [
            file_columns.as_type(array, field.type)
            for array, field in zip(given, fields, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        placed = [
            Placed(*self._write(values, rows, is_copy or are_kept), some)
            for values, rows, some, is_copy in self._partitions(columns, table)
        ]
        files = list(self._open.values())
        if sum(file.waiting_bytes for file in files) > MAX_WAITING_BYTES:
            if len(files) > MAX_OPEN:
                self._close(files)
            else:
                for file in files:
                    file.write()
        return placed

    def _partitions(
        self, columns: Mapping[str, pa.Array], table: pa.Table
    ) -> Iterator[tuple[tuple[Any, ...], pa.Table, NDArray[np.intp] | None, bool]]:
        """Yield each partition's values, its rows, which they are (None: all), whether copied."""
        if not len(table):
            return
        order = self._sorted(columns)
        if self._spec.is_unpartitioned():
            rows = table if order is None else table.take(pa.array(order))
            yield (), rows, order, order is not None
            return
        codes, names = list[NDArray[Any]](), list[list[Any]]()
        for field in self._spec.fields:
            transformed = (
                pa.nulls(len(table))  # the column may have been dropped
                if isinstance(field.transform, VoidTransform)
                else self._transformed(field, columns)
            )
            if pa.types.is_floating(transformed.type):
                # Iceberg's library skips the partition -0.0 if a query asks for 0.0.
                transformed = pc.add(transformed, pa.scalar(0.0, transformed.type))
            encoded = pc.dictionary_encode(transformed, null_encoding="encode")
            codes.append(encoded.indices.to_numpy(zero_copy_only=False))
            names.append(encoded.dictionary.to_pylist())
        combined, order = _grouped(codes, [len(known) for known in names], order)
        firsts = np.flatnonzero(np.diff(combined, prepend=-1))
        for first, end in zip(firsts, [*firsts[1:], len(combined)], strict=True):
            some = None if order is None else order[first:end]
            row = first if some is None else some[0]
            values = tuple(known[code[row]] for code, known in zip(codes, names, strict=True))
            if some is not None:
                yield values, table.take(pa.array(some)), some, True
            elif len(firsts) == 1:
                yield values, table, None, False
            else:
                yield values, table.slice(first, end - first), np.arange(first, end), False

    def _sorted(self, columns: Mapping[str, pa.Array]) -> NDArray[np.intp] | None:
        """Return the rows in the order of the table; None: it has none."""
        if self._order.is_unsorted:
            return None
        keys, order = dict[str, pa.Array](), list[tuple[str, str]]()
        for place, field in enumerate(self._order.fields):
            keys[str(place)] = self._transformed(field, columns)
            is_up = field.direction == sorting.SortDirection.ASC
            order.append((str(place), "ascending" if is_up else "descending"))
        nulls = self._order.fields[0].null_order == sorting.NullOrder.NULLS_FIRST
        indices = pc.sort_indices(
            pa.table(keys), sort_keys=order, null_placement="at_start" if nulls else "at_end"
        )
        return np.asarray(indices, np.intp)

    def _transformed(
        self,
        field: partitioning.PartitionField | sorting.SortField,
        columns: Mapping[str, pa.Array],
    ) -> pa.Array:
        """Return what the rows are partitioned or sorted by."""
        column = source_column(self._schema, field.source_id, columns)
        if pa.types.is_dictionary(column.type):  # which Iceberg's transforms do not know
            column = column.dictionary_decode()
        kind = self._schema.find_field(field.source_id).field_type
        return field.transform.pyarrow_transform(kind)(column)

    def _write(self, values: tuple[Any, ...], rows: pa.Table, is_copy: bool) -> tuple[str, int]:
        """Write rows of one partition; return their file, and the position of the first one."""
        key = partition_key(values)
        if (file := self._open.get(key)) is None:
            file = self._open[key] = self._new(key, values)
        place = file.path, file.rows
        file.add(rows)
        if file.waiting_bytes >= GROUP_BYTES and (
            file.is_begun or sum(other.is_begun for other in self._open.values()) < MAX_OPEN
        ):
            file.write()
        elif not is_copy:
            file.copy()
        if file.size >= self._most:
            self._close([file])
        return place

    def _new(self, key: tuple[object, ...], values: tuple[Any, ...]) -> _File:
        of_path, partition = None, Record()
        if values:
            fields = list(map(partitioning.PartitionFieldValue, self._spec.fields, values))
            of_path = _Key(fields, self._spec, self._schema)
            partition = of_path.partition
        name = f"{self._id}-{next(self._numbers):05}.parquet"
        path = self._paths.new_data_location(name, of_path)
        return _File(self._io, path, key, partition, self._format)

    def _close(self, files: Sequence[_File]) -> None:
        """Close files; those that are not begun are small, and written several at once."""
        self.files += in_parallel(lambda file: file.close(self._spec.spec_id), files)
        for file in files:
            del self._open[file.key]


class _File:
    """A file that is written."""

    def __init__(
        self, io: FileIO, path: str, key: tuple[object, ...], partition: Record, owner: _Format
    ) -> None:
        self.key, self.path, self.size, self.rows = key, path, 0, 0
        self.waiting_bytes = 0  # Bytes of rows that are not written.
        self._io, self._partition, self._format = io, partition, owner
        self._stream: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    @property
    def is_begun(self) -> bool:
        """Whether it has a row group, and takes the memory of a writer."""
        return self._writer is not None

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self.size += (size := rows.nbytes)
        self.waiting_bytes += size
        self.rows += len(rows)

    def copy(self) -> None:
        """Copy the rows that were added last: their memory will be overwritten."""
        self._waiting[-1] = copied(self._waiting[-1])

    def write(self) -> None:
        """Write the rows that wait as a row group."""
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        rows = pa.concat_tables(waiting)
        if self._writer is None:
            self._stream = self._io.new_output(self.path).create(overwrite=True)
            self._writer = pq.ParquetWriter(
                self._stream,
                rows.schema,
                use_dictionary=repeated(rows, self._format.paths),
                compression=self._format.compression,
                compression_level=self._format.level,
                store_decimal_as_integer=True,
                store_schema=False,
            )
        self._writer.write_table(rows, row_group_size=len(rows))

    def close(self, spec_id: int) -> DataFile:
        self.write()
        assert self._writer is not None  # noqa: S101  a file is opened to be written
        with self._stream:
            self._writer.close()
            size = self._stream.tell()
        metadata = self._writer.writer.metadata
        self._writer = self._stream = None  # half a megabyte, and there are thousands of files
        plan, paths = self._format.plan, self._format.paths
        return described(self.path, size, spec_id, self._partition, metadata, plan, paths)

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


def _grouped(
    codes: Sequence[NDArray[Any]], known: Sequence[int], order: NDArray[np.intp] | None
) -> tuple[NDArray[Any], NDArray[np.intp] | None]:
    """Return a number for the partition of each row, grouped, and the order that groups them.

    :param codes: numbers of each partition field
    :param known: how many each field has
    :param order: of the rows within each partition; None: as they are
    :returns: (rows,), (rows,); an order of None: they are grouped already
    """
    combined, size = codes[0].astype(np.int64), known[0]
    for code, number in zip(codes[1:], known[1:], strict=True):
        if size * number > 2**62:
            distinct, combined = np.unique(combined, return_inverse=True)
            size = len(distinct)
        combined, size = combined * number + code, size * number
    if order is not None:
        combined = combined[order]
    elif not np.any(np.diff(combined) < 0):
        return combined, None
    if int(combined.max()) < 2**16:  # NumPy sorts such numbers in one pass
        combined = combined.astype(np.uint16)
    moves = np.argsort(combined, kind="stable")
    return combined[moves].astype(np.int64), moves if order is None else order[moves]


def source_column(schema: Schema, field_id: int, columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the values of a field that a table is partitioned or sorted by, which may be nested.

    Its name alone does not say which field it is: a struct may have a field of a column's name.

    :param columns: by the names of the table's columns
    :raises KeyError: there is no such column
    """
    accessor = schema.accessor_for_field(field_id)
    column, inner = columns[schema.fields[accessor.position].name], accessor.inner
    while inner is not None:
        column = pc.struct_field(column, [inner.position])  # null where the struct is null
        inner = inner.inner
    return column


def lowest_truncated(kind: IcebergType, width: int) -> Decimal | int | None:
    """Return the lowest value whose truncation is a value of the type; None: all are.

    ``truncate`` rounds down, so a value near the lowest one of its type becomes a value that the
    type does not have. Iceberg's Java library fails at such a decimal when it writes the manifest,
    and stores a positive number for such an integer, by which later queries skip the file.
    """
    if isinstance(kind, DecimalType):
        lowest = (10**kind.precision - 1) // width * -width
        return Decimal(f"{lowest}E-{kind.scale}")  # exact, as no arithmetic of decimals is
    return -kind.min // width * -width if isinstance(kind, IntegerType | LongType) else None


def copied(table: pa.Table) -> pa.Table:
    """Return a table in memory of its own, and of its own size."""
    # A stream of the right size: one that grows copies what it has.
    measured = pa.MockOutputStream()
    with pa.ipc.new_stream(measured, table.schema) as writer:
        writer.write_table(table)
    copy = pa.allocate_buffer(measured.size())
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(copy), table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(copy).read_all()


def file_bytes(properties: Mapping[str, str]) -> int:
    """Return the size that a table's data files should have."""
    return int(properties.get("write.target-file-size-bytes", _FILE_BYTES))


def compression(properties: Mapping[str, str]) -> str:
    """Return PyArrow's name of the codec of a table's files."""
    codec = properties.get("write.parquet.compression-codec", "zstd")
    return "none" if codec == "uncompressed" else codec


def described(
    path: str,
    size: int,
    spec_id: int,
    partition: Record,
    metadata: pq.FileMetaData,
    plan: dict[int, StatisticsCollector],
    paths: dict[str, int],
    **more: Any,
) -> DataFile:
    """Return the metadata of a written Parquet file, with the statistics that PyIceberg collects.

    :param size: its bytes
    :param plan: field id → what is collected of a column
    :param paths: column of the file → field id
    """
    statistics = data_file_statistics_from_parquet_metadata(metadata, plan, paths)
    bounds = statistics.column_aggregates
    for field_id in _unbounded(metadata, {p: f for p, f in paths.items() if f in bounds}):
        del bounds[field_id]
    for column in bounds.values():
        # PyIceberg rounds U+D7FF up to half of a surrogate pair, which has no UTF-8.
        if isinstance(column.primitive_type, StringType) and column.current_max is not None:
            column.current_max = upper_bound(column.current_max, column.trunc_length)
    return manifests.new_file(
        spec_id,
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        **more,
        **statistics.to_serialized_dict(),
    )


def _unbounded(metadata: pq.FileMetaData, paths: Mapping[str, int]) -> set[int]:
    """Return the columns that have values in a row group without their minimum and maximum.
    Parquet's C++ writer omits those of values above 4,096 bytes, and of NaN only. PyIceberg takes
    the bounds of the other row groups for those of the file."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if len(groups) < 2:
        return set()
    names = [groups[0].column(number).path_in_schema for number in range(groups[0].num_columns)]
    return {
        paths[name]
        for group in groups
        for number, name in enumerate(names)
        if name in paths and _lacks_bounds(group.column(number).statistics, group.num_rows)
    }


def _lacks_bounds(statistics: pq.Statistics | None, rows: int) -> bool:
    """Return whether a row group has values of a column, and not their minimum and maximum."""
    return statistics is None or (
        not statistics.has_min_max
        and (not statistics.has_null_count or statistics.null_count < rows)
    )


def upper_bound(value: str, length: int | None) -> str | None:
    """Return a text of at most so many characters that is not below a value; None: there is none.

    Source: Iceberg's ``UnicodeUtil.truncateStringMax``.

    :param length: None: any
    """
    if length is None or len(value) <= length:
        return value
    for end in range(length, 0, -1):
        following = ord(value[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST:
            return value[: end - 1] + chr(following)
    return None


def repeated(rows: pa.Table, paths: Iterable[str]) -> list[str]:
    """Return the Parquet columns whose values repeat, by a sample: a dictionary makes them smaller.

    A dictionary of values that do not repeat is built, written and abandoned by the writer: without
    this choice it takes twice as long, and its files are twice as large. Nested columns have one.

    :param paths: of all Parquet columns
    """
    sample = rows.slice(0, _SAMPLE)
    columns = {
        field.name
        for field in rows.schema
        if pa.types.is_nested(field.type)
        or pa.types.is_dictionary(field.type)
        or pc.count_distinct(sample[field.name], mode="all").as_py() * 2 <= len(sample) + 1
    }
    return [path for path in paths if path.partition(".")[0] in columns]
