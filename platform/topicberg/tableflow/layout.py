"""How a record of a topic lies in its table: which columns come from its key, its value, Kafka.

Source: Confluent's "Schemas with Tableflow": the key's fields, then the value's, then metadata
columns; a half without one schema of its own is one binary column, ``key`` or ``value``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from topicberg.errors import TableflowError
from topicberg.tableflow.formats import as_record, format_of, is_union
from topicberg.tableflow.subjects import RegisteredSchema, Subject, SubjectReader

if TYPE_CHECKING:
    from topicberg.topics.spec import TopicSpec

KEY = "key"
VALUE = "value"
RAW_KEY = "raw-key"
PARTITION = "partition"

_METADATA_TYPES: dict[str, Callable[[Iterator[int]], IcebergType]] = {
    "topic": lambda _: StringType(),
    PARTITION: lambda _: IntegerType(),
    "headers": lambda ids: MapType(next(ids), StringType(), next(ids), BinaryType(), False),
    "leader-epoch": lambda _: IntegerType(),
    "offset": lambda _: LongType(),
    "timestamp": lambda _: TimestamptzType(),
    "timestamp-type": lambda _: StringType(),
}
METADATA_COLUMNS = (*(name for name in _METADATA_TYPES if name != "headers"), RAW_KEY)
"""The metadata columns of simple types."""


@dataclass(frozen=True)
class Half:
    """The key or the value of the records."""

    column: str
    """``key`` or ``value``: Kafka's column, and the table's if the bytes stay as they are."""
    subject: Subject | None
    """None: the bytes stay as they are."""
    message: str | None = None
    """Protobuf alone: the message type."""

    @property
    def latest(self) -> RegisteredSchema | None:
        return self.subject.latest if self.subject else None

    def fields(self, ids: Iterator[int]) -> list[NestedField]:
        """Its columns, every one optional.

        :raises TableflowError: the schema has no table
        """
        if self.subject is None:
            return [NestedField(next(ids), self.column, BinaryType(), required=False)]
        latest = self.subject.latest
        return format_of(latest).fields(self.subject.name, latest, ids, self.message)


@dataclass(frozen=True)
class Layout:
    """Where every column of a topic's table comes from."""

    key: Half
    value: Half

    @property
    def fitted(self) -> tuple[int | None, int | None]:
        """Ids of the schemas that the columns come from."""
        key, value = self.key.latest, self.value.latest
        return key.schema_id if key else None, value.schema_id if value else None


def read_layout(spec: TopicSpec, subjects: SubjectReader) -> Layout:
    """The layout that the spec and the registry ask for at the moment.

    A subject whose newest version is a union (several event types) leaves its half binary. A key
    that is no record is a record with the one field ``key``.

    :raises TableflowError: a subject is missing
    """
    value = None
    if spec.value_schema.format != "none":
        value = subjects.read(spec.value_subject)
    key = None
    if spec.key.format not in ("none", "string"):
        key = subjects.read(spec.key_subject)
        key = replace(
            key,
            latest=as_record(key.latest, KEY),
            schemas={number: as_record(schema, KEY) for number, schema in key.schemas.items()},
        )
    return Layout(
        key=Half(KEY, _of_one_type(key), spec.key.message),
        value=Half(VALUE, _of_one_type(value), spec.value_schema.message),
    )


def _of_one_type(subject: Subject | None) -> Subject | None:
    return None if subject is None or is_union(subject.latest) else subject


def table_schema(spec: TopicSpec, layout: Layout) -> Schema:
    """The columns of a topic's table; a field of both key and value is the value's.

    An upsert table also has the key as it was sent, in the metadata column ``raw-key``: with the
    partition it is the primary key.

    :raises TableflowError: a schema has no table, or takes the name of a metadata column
    """
    ids = itertools.count(1)
    value = layout.value.fields(ids)
    names = {field.name for field in value}
    key = [field for field in layout.key.fields(ids) if field.name not in names]
    metadata = [
        NestedField(next(ids), spec.metadata_column(name), make_type(ids), required=False)
        for name, make_type in _METADATA_TYPES.items()
    ]
    if spec.write_mode == "upsert":
        raw = NestedField(
            next(ids), spec.metadata_column(RAW_KEY), BinaryType(), required=False, doc=_RAW_KEY_DOC
        )
        metadata.append(raw)
    fields = key + value
    taken = {field.name for field in fields} & {field.name for field in metadata}
    if taken:
        raise TableflowError(
            f"topic {spec.name}: field {min(taken)} has the name of a metadata column",
            hint="rename the field, or choose the other metadata_column_naming_scheme",
        )
    _refuse_twins(spec.name, fields, "")
    return Schema(*fields, *metadata)


_RAW_KEY_DOC = "the record's key as it was sent; its SHA-256 if it has more than 256 bytes"


def _refuse_twins(topic: str, fields: list[NestedField], path: str) -> None:
    """Names that differ in case only are one column in Glue, DuckDB and Snowflake."""
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise TableflowError(
                f"topic {topic}: the fields {path}{other} and {path}{field.name} differ in case "
                "only",
                hint="rename one: Glue, DuckDB and Snowflake cannot tell them apart",
            )
        _refuse_twins(topic, _inner_fields(field.field_type), f"{path}{field.name}.")


def _inner_fields(kind: IcebergType) -> list[NestedField]:
    if isinstance(kind, StructType):
        return list(kind.fields)
    if isinstance(kind, ListType):
        return _inner_fields(kind.element_type)
    if isinstance(kind, MapType):
        return _inner_fields(kind.value_type)
    return []
