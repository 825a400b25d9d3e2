"""Which columns of a table hold a value, for tables of which nothing says where they have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, NestedField, StructType

from topicberg.iceberg.erasure.locations import data_files
from topicberg.iceberg.erasure.matching import ColumnPath, Rows, columns


@dataclass
class HeldIn:
    """How often a column holds a value, in files of history too."""

    rows: int = 0
    files: int = 0


def search(table: Table, values: Mapping[ColumnPath, Sequence[Any]]) -> dict[ColumnPath, HeldIn]:
    """Return the columns that hold one of their values, in any file of the table.

    :param values: column → what to look for in it
    :raises TopicbergError: a file cannot be read
    """
    schema, by_column = table.schema(), dict[ColumnPath, HeldIn]()
    wanted = {path: Rows(schema, ({path: values[path]},)) for path in values}
    names = {path[0] for path in wanted}
    for file in data_files(table) if wanted else ():
        in_file = dict.fromkeys(wanted, 0)
        try:
            for batch, _ in columns(table.io, file, schema, names):
                for path, rows in wanted.items():
                    in_file[path] += int(np.count_nonzero(rows.among(batch)))
        except FileNotFoundError:
            continue
        for path, count in in_file.items():
            if count:
                counts = by_column.setdefault(path, HeldIn())
                counts.rows += count
                counts.files += 1
    return by_column


def fields_in_structs(
    fields: Sequence[NestedField], path: ColumnPath = ()
) -> Iterator[tuple[ColumnPath, IcebergType]]:
    """Yield columns and the fields in their structs, but not those in lists and maps."""
    for field in fields:
        where = (*path, field.name)
        yield where, field.field_type
        if isinstance(field.field_type, StructType):
            yield from fields_in_structs(field.field_type.fields, where)


def find_column(schema: Schema, name: str) -> tuple[ColumnPath, IcebergType] | None:
    """Return the path and the type of a column, or of a field in a struct by ``a.b``.

    Iceberg does not allow a column ``a.b`` beside such a field.
    """
    found = (each for each in fields_in_structs(schema.fields) if ".".join(each[0]) == name)
    return next(found, None)
