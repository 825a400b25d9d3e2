"""Statistics of a written Parquet file, as a manifest has them.

PyIceberg collects them. Readers skip files by bounds, so a bound that is too narrow hides rows.

Source: Iceberg spec, "Data File Fields"; Parquet's ``Statistics``, whose minimum and maximum are
optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import StatisticsCollector, data_file_statistics_from_parquet_metadata
from pyiceberg.types import StringType

_SURROGATES = range(0xD800, 0xE000)
_LAST = 0x10FFFF
"""The highest code point of Unicode."""


def file_statistics(
    metadata: pq.FileMetaData, plan: dict[int, StatisticsCollector], paths: dict[str, int]
) -> dict[str, Any]:
    """Return the fields of a data file that describe its rows.

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
    return statistics.to_serialized_dict()


def _unbounded(metadata: pq.FileMetaData, paths: Mapping[str, int]) -> set[int]:
    """Return the columns that have values in a row group without their minimum and maximum.

    Parquet's C++ writer omits those of values above 4,096 bytes, and of NaN only. PyIceberg takes
    the bounds of the other row groups for those of the file.
    """
    unbounded = set[int]()
    if metadata.num_row_groups < 2:
        return unbounded
    first = metadata.row_group(0)
    fields = ((n, paths.get(first.column(n).path_in_schema)) for n in range(first.num_columns))
    columns = [(number, field_id) for number, field_id in fields if field_id is not None]
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for number, field_id in columns:
            statistics = group.column(number).statistics
            if statistics is None or (
                not statistics.has_min_max
                and (not statistics.has_null_count or statistics.null_count < group.num_rows)
            ):
                unbounded.add(field_id)
    return unbounded


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
