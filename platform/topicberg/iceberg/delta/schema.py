"""The definition of a Delta table: Iceberg's schema as Delta's protocol and metaData actions.

Every Parquet file that an Iceberg engine writes has Iceberg's field ids, and column names that are
valid in Avro (``$$offset`` is ``_x24_x24offset``). A table whose names need no such encoding is
plain Delta that every reader reads. Any other one has Delta's column mapping, by id, with the
files' ids and names: Spark uses the ids, delta-rs the names.

A widened column (int to long, float to double, a longer decimal) just has its new type. Delta's
table feature for it, typeWidening, would exclude delta-rs, although its reader widens such columns,
as Spark's does.

Source: Delta's PROTOCOL.md, "Schema Serialization Format", "Column Mapping", "Timestamp without
timezone (TimestampNtz)", "Valid Feature Names in Table Features".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pyiceberg import types as T
from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.table import Table

from topicberg.errors import TableflowError
from topicberg.iceberg.names import name_in_files

Action = dict[str, Any]

_PRIMITIVES = {
    **{name: name for name in ("boolean", "long", "float", "double", "date", "string", "binary")},
    "int": "integer",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "uuid": "binary",
}  # Iceberg's name of a primitive type → Delta's.
_MAPPING = "delta.columnMapping"
_WRITER_FEATURES = ("appendOnly", "invariants", "topicberg")
"""The features of writer version 2, which have to be listed from version 7 on, and a feature that
no other writer has: other writers must refuse the table, because a vacuum by Delta would delete
Iceberg's metadata."""


def definition(table: Table, retention_ms: int) -> tuple[Action, Action]:
    """Return the protocol and the metaData action of the table's current schema.

    :param retention_ms: how long Delta's log and its removed files are kept
    :raises TableflowError: Delta has no type for a column, or a column was renamed or has a default
    """
    _check_columns(table)
    names = {column.name for column in index_by_id(table.schema()).values()}
    mapped = any(name_in_files(name) != name for name in names)
    fields = _Fields(".".join(table.name()), mapped)
    schema = fields.struct(table.schema().as_struct(), "")
    retention = f"interval {retention_ms} milliseconds"
    configuration = {
        "delta.logRetentionDuration": retention,
        "delta.deletedFileRetentionDuration": retention,
    }
    if mapped:
        last = str(table.metadata.last_column_id)
        configuration |= {f"{_MAPPING}.mode": "id", f"{_MAPPING}.maxColumnId": last}
    metadata = {
        "id": str(table.metadata.table_uuid),
        "name": ".".join(table.name()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": configuration,
    }
    # The lowest reader version that can read the table, and a writer that only topicberg has.
    named = sorted({*fields.features, *(["columnMapping"] if mapped else [])})
    protocol: Action = {
        "minReaderVersion": 3 if fields.features else 2 if mapped else 1,
        "minWriterVersion": 7,
        "writerFeatures": sorted({*named, *_WRITER_FEATURES}),
        **({"readerFeatures": named} if fields.features else {}),
    }
    return {"protocol": protocol}, {"metaData": metadata}


def _check_columns(table: Table) -> None:
    """Check that no column was renamed, and that older files lack none with a default.

    In Delta and in its files a column has one name, which is all that some readers use to find it.

    :raises TableflowError: a column was renamed, has the name of one that was dropped, or a default
    """
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in table.schemas().values():
        for number, name in index_name_by_id(schema).items():
            if ids.setdefault(name, number) != number or names.setdefault(number, name) != name:
                raise TableflowError(
                    f"table {'.'.join(table.name())}: column {name} had another name before, or "
                    "its name was another column's: the Delta log cannot represent that",
                    hint="remove DELTA from tableflow.table_formats, or recreate the table",
                )
    for number, column in index_by_id(table.schema()).items():
        if column.initial_default is not None:
            raise TableflowError(
                f"table {'.'.join(table.name())}: column {table.schema().find_column_name(number)} "
                "was added with a default: in Delta, rows of older files would have null",
                hint="remove DELTA from tableflow.table_formats, or recreate the table",
            )


@dataclass
class _Fields:
    """Walks a schema."""

    table: str
    mapped: bool
    features: set[str] = field(default_factory=set)  # The table features that it needs.

    def struct(self, struct: T.StructType, path: str) -> Action:
        fields = [self.column(column, f"{path}{column.name}") for column in struct.fields]
        return {"type": "struct", "fields": fields}

    def column(self, column: T.NestedField, path: str) -> Action:
        name, kind = name_in_files(column.name), self.type(column.field_type, path)
        mapping = {f"{_MAPPING}.id": column.field_id, f"{_MAPPING}.physicalName": name}
        comment = {"comment": column.doc} if column.doc else {}
        described = {"name": column.name, "type": kind, "nullable": not column.required}
        return {**described, "metadata": {**comment, **(mapping if self.mapped else {})}}

    def type(self, kind: T.IcebergType, path: str) -> Action | str:
        match kind:
            case T.StructType():
                return self.struct(kind, f"{path}.")
            case T.ListType():
                return {
                    "type": "array",
                    "elementType": self.type(kind.element_type, f"{path}.element"),
                    "containsNull": not kind.element_required,
                }
            case T.MapType():
                return {
                    "type": "map",
                    "keyType": self.type(kind.key_type, f"{path}.key"),
                    "valueType": self.type(kind.value_type, f"{path}.value"),
                    "valueContainsNull": not kind.value_required,
                }
            case T.DecimalType():
                return f"decimal({kind.precision},{kind.scale})"
        name = "binary" if isinstance(kind, T.FixedType) else _PRIMITIVES.get(str(kind))
        if name is None:
            raise TableflowError(
                f"table {self.table}: Delta has no type for column {path}, a {kind}",
                hint="remove DELTA from tableflow.table_formats, or change the column's type",
            )
        if isinstance(kind, T.TimestampType):
            self.features.add("timestampNtz")
        return name
