"""What a Delta table says of itself: Iceberg's schema as Delta's protocol and metaData actions.

Every Parquet file that an Iceberg engine writes has Iceberg's field ids, and names its columns so
that Avro could (``$$offset`` is ``_x24_x24offset``). A table whose names need no such encoding is
plain Delta that every reader reads. Any other one has Delta's column mapping, by id, with the
files' ids and names: Spark goes by the ids, delta-rs by the names.

A widened column (int to long, float to double, a longer decimal) has its new type and no more:
Delta's table feature for it, typeWidening, would shut out delta-rs, whose reader widens all the
same, as Spark's does.

Source: Delta's PROTOCOL.md, "Schema Serialization Format", "Column Mapping", "Timestamp without
timezone (TimestampNtz)", "Valid Feature Names in Table Features".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unicodedata import category

from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from topicberg.errors import TableflowError

if TYPE_CHECKING:
    from pyiceberg.table import Table

Action = dict[str, Any]

_PRIMITIVES: dict[type[IcebergType], str] = {
    BooleanType: "boolean",
    IntegerType: "integer",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    DateType: "date",
    TimestamptzType: "timestamp",
    TimestampType: "timestamp_ntz",
    StringType: "string",
    BinaryType: "binary",
    FixedType: "binary",
    UUIDType: "binary",
}
_WRITER_FEATURES = ("appendOnly", "invariants", "topicberg")
"""What writer version 2 means, to be named from version 7 on, and a feature that no other writer
has: each must refuse the table, which a vacuum of Delta's alone would rob of Iceberg's metadata."""


def definition(table: Table, retention_ms: int) -> tuple[Action, Action]:
    """The protocol and the metaData action of the table's current schema.

    :param retention_ms: for how long Delta's log and its removed files are kept
    :raises TableflowError: Delta has no type for a column, or a column was renamed
    """
    _refuse_renamed(table)
    names = (field.name for field in index_by_id(table.schema()).values())
    mapped = any(name_in_files(name) != name for name in names)
    fields = _Fields(".".join(table.name()), mapped)
    schema = fields.struct(table.schema().as_struct(), "")
    retention = f"interval {retention_ms} milliseconds"
    configuration = {
        "delta.logRetentionDuration": retention,
        "delta.deletedFileRetentionDuration": retention,
    }
    if mapped:
        configuration["delta.columnMapping.mode"] = "id"
        configuration["delta.columnMapping.maxColumnId"] = str(table.metadata.last_column_id)
    metadata = {
        "id": str(table.metadata.table_uuid),
        "name": ".".join(table.name()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": configuration,
    }
    return {"protocol": _protocol(mapped, fields.features)}, {"metaData": metadata}


def name_in_files(name: str) -> str:
    """The name of a column in the Parquet files that Iceberg's Java library writes.

    Source: ``AvroSchemaUtil.makeCompatibleName``, which looks at UTF-16 code units; PyIceberg's
    function of that name takes more characters for letters.
    """
    text = name.encode("utf-16-be")
    units = [chr(text[at] << 8 | text[at + 1]) for at in range(0, len(text), 2)]
    return "".join(
        unit
        if unit == "_" or category(unit)[0] == "L" or (at > 0 and category(unit) == "Nd")
        else f"_{unit}"
        if category(unit) == "Nd"
        else f"_x{ord(unit):X}"
        for at, unit in enumerate(units)
    )


def _protocol(mapped: bool, features: set[str]) -> Action:
    """The lowest reader that reads the table, so that most can; and no writer but this one."""
    named = sorted(features | ({"columnMapping"} if mapped else set()))
    protocol: Action = {
        "minReaderVersion": 3 if features else 2 if mapped else 1,
        "minWriterVersion": 7,
        "writerFeatures": sorted({*named, *_WRITER_FEATURES}),
    }
    return {**protocol, "readerFeatures": named} if features else protocol


def _refuse_renamed(table: Table) -> None:
    """A column has one name in Delta and its files, and some readers know no other way to find it.

    :raises TableflowError: a column was renamed, or has the name of one that was dropped
    """
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in table.schemas().values():
        for number, name in index_name_by_id(schema).items():
            if ids.setdefault(name, number) != number or names.setdefault(number, name) != name:
                raise TableflowError(
                    f"table {'.'.join(table.name())}: column {name} had another name before, or "
                    "its name was another column's; the Delta log cannot tell which file has which",
                    hint="take DELTA out of tableflow.table_formats, or make the table anew",
                )


class _Fields:
    """Walks a schema; ``features`` are the table features that it turned out to need."""

    def __init__(self, table: str, mapped: bool) -> None:
        self.table = table
        self.mapped = mapped
        self.features: set[str] = set()

    def struct(self, struct: StructType, path: str) -> Action:
        fields = [self.field(field, f"{path}{field.name}") for field in struct.fields]
        return {"type": "struct", "fields": fields}

    def field(self, field: NestedField, path: str) -> Action:
        metadata: Action = {"comment": field.doc} if field.doc else {}
        if self.mapped:
            metadata["delta.columnMapping.id"] = field.field_id
            metadata["delta.columnMapping.physicalName"] = name_in_files(field.name)
        return {
            "name": field.name,
            "type": self.type(field.field_type, path),
            "nullable": not field.required,
            "metadata": metadata,
        }

    def type(self, kind: IcebergType, path: str) -> Action | str:
        if isinstance(kind, StructType):
            return self.struct(kind, f"{path}.")
        if isinstance(kind, ListType):
            return {
                "type": "array",
                "elementType": self.type(kind.element_type, f"{path}.element"),
                "containsNull": not kind.element_required,
            }
        if isinstance(kind, MapType):
            return {
                "type": "map",
                "keyType": self.type(kind.key_type, f"{path}.key"),
                "valueType": self.type(kind.value_type, f"{path}.value"),
                "valueContainsNull": not kind.value_required,
            }
        if isinstance(kind, DecimalType):
            return f"decimal({kind.precision},{kind.scale})"
        if type(kind) not in _PRIMITIVES:
            raise TableflowError(
                f"table {self.table}: Delta has no type for column {path}, a {kind}",
                hint="take DELTA out of tableflow.table_formats, or change the column's type",
            )
        if isinstance(kind, TimestampType):
            self.features.add("timestampNtz")
        return _PRIMITIVES[type(kind)]
