"""Names in the files of a table: of columns in Parquet, of partition fields in manifests.

Iceberg changes a name that is not valid in Avro. Its Java library keeps every letter of Unicode,
although Avro's names are ASCII: DuckDB ends its process at such a name in a manifest.

Source: Avro specification, "Names"; Iceberg's ``AvroSchemaUtil.makeCompatibleName``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any
from unicodedata import category

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def name_in_files(name: str) -> str:
    """Return the name of a column in the Parquet files that Iceberg's Java library writes. Source:
    ``AvroSchemaUtil.makeCompatibleName``, which processes UTF-16 code units; PyIceberg's function
    of that name accepts more characters as letters."""
    text = name.encode("utf-16-be")
    units = [chr(text[position] << 8 | text[position + 1]) for position in range(0, len(text), 2)]
    return "".join(
        unit
        if unit == "_" or category(unit)[0] == "L" or (position > 0 and category(unit) == "Nd")
        else f"_{unit}"
        if category(unit) == "Nd"
        else f"_x{ord(unit):X}"
        for position, unit in enumerate(units)
    )


def schema_in_files(schema: Schema) -> Schema:
    """Return a schema with the names that its columns have in Parquet files."""
    return Schema.model_validate(_in_files(schema.model_dump(mode="json", by_alias=True)))


def _in_files(part: Any) -> Any:
    if isinstance(part, dict):  # a field, whose defaults no file has, or a type
        kept = part.keys() - {"initial-default", "write-default"}
        return {k: name_in_files(part[k]) if k == "name" else _in_files(part[k]) for k in kept}
    return [*map(_in_files, part)] if isinstance(part, list) else part


def shared_full_name(*structs: StructType) -> str | None:
    """Return a full name that two different columns of structs have; None: there is none.

    The columns ``a.b`` and ``a`` with a field ``b`` are both ``a.b``, and Iceberg has no schema
    with both. The full name of a list's items ends with ``element``, those of a map's entries with
    ``key`` and ``value``.

    :param structs: of one table; a column that several of them have is one column
    """
    paths: dict[str, tuple[str, ...]] = {}
    for struct in structs:
        for path in _paths(struct, ()):
            name = ".".join(path)
            if paths.setdefault(name, path) != path:
                return name
    return None


def _paths(kind: IcebergType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    parts = dict[str, IcebergType]()
    match kind:
        case StructType():
            parts = {field.name: field.field_type for field in kind.fields}
        case ListType():
            parts = {"element": kind.element_type}
        case MapType():
            parts = {"key": kind.key_type, "value": kind.value_type}
    for name, part in parts.items():
        yield (*path, name)
        yield from _paths(part, (*path, name))


def partition_field_name(column: str, suffix: str, taken: Iterable[str]) -> str:
    """Return the name of a new partition field: ASCII only, so that each reader can read it.

    :param suffix: the transform; empty for ``identity``
    :param taken: names of the other columns of the table, and of its other partition fields
    """
    base = _NOT_ASCII.sub(lambda match: f"_x{ord(match[0]):X}", column)
    base = f"{base}_{suffix}" if suffix else base
    in_files = {name_in_files(other).lower() for other in taken}
    names = chain([base], (f"{base}_{number}" for number in count(2)))
    return next(name for name in names if name_in_files(name).lower() not in in_files)


def find_unreadable_partition(specs: Iterable[PartitionSpec]) -> str | None:
    """Return a partition field, as others make them, whose name in manifests is not Avro's."""
    names = (field.name for spec in specs for field in spec.fields)
    return next((name for name in names if not name_in_files(name).isascii()), None)
