"""The key and the value of a topic's records: their schemas, and the columns that they fill."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from uuid import UUID

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats.dispatch import format_of, is_union
from topicberg.formats.envelope import SOURCE, Changes, changed_columns
from topicberg.formats.framing import Framing, RecordFraming
from topicberg.formats.protobuf import message_indexes
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.iceberg.names import name_in_files
from topicberg.tableflow.layout.meanings import without_comments

KEY: Final = "key"
VALUE: Final = "value"
UNREADABLE_SCHEMA = (TableflowError, ValueError, KeyError, TypeError, RecursionError)
"""What the functions of a format raise at a schema that cannot be used."""


@dataclass(frozen=True)
class MessageField:
    """The key or the value of the records."""

    column: str
    """``key`` or ``value``: Kafka's column, and the table's column if the bytes are not decoded."""
    subject: Subject | None
    """None: the bytes are not decoded."""
    message: str | None = None
    """Protobuf only: the message type."""
    changes: Changes | None = None
    """The value is the envelope of a change: the columns are the row's after it, or both rows."""
    has_connect_types: bool = False
    """See :mod:`topicberg.formats.connect`."""
    framing: Framing = "confluent"
    """How the records name their schemas; ``none``: all are of the newest one."""
    is_text: bool = False
    """The bytes that are not decoded are text in UTF-8."""

    @property
    def latest(self) -> RegisteredSchema | None:
        return self.subject.latest if self.subject else None

    @property
    def fitted(self) -> object:
        """What the columns come from: the id of a schema, or the schema if no id stays its own."""
        latest = self.latest
        return latest and (latest if self.framing in ("none", "glue") else latest.schema_id)

    def record_framing(self, guids: Mapping[UUID, int] = MappingProxyType({})) -> RecordFraming:
        """Return how records name their schemas, by new GUIDs too, or raise TableflowError."""
        assert self.subject is not None  # noqa: S101  it is decoded
        latest, indexes = self.subject.latest, b""
        if self.framing == "none" and latest.schema_type == "PROTOBUF":
            indexes = message_indexes(latest, self.message)
        return RecordFraming(
            self.column, latest.schema_type, {**self.subject.guids, **guids}, self.framing, indexes
        )

    def fields(self, ids: Iterator[int] | None = None) -> list[T.NestedField]:
        """Return the columns, all optional, with the next ids (from 1), or raise TableflowError."""
        ids = itertools.count(1) if ids is None else ids
        if self.subject is None:
            kind = T.StringType() if self.is_text else T.BinaryType()
            return [T.NestedField(next(ids), self.column, kind, required=False)]
        return self._columns(self._written(self.subject, self.subject.latest, ids))

    def _written(
        self, subject: Subject, version: RegisteredSchema, ids: Iterator[int]
    ) -> list[T.NestedField]:
        return format_of(version).fields(f"subject {subject.name}", version, ids, self.message)

    def _columns(self, fields: list[T.NestedField]) -> list[T.NestedField]:
        if self.subject and self.changes:
            fields = changed_columns(f"subject {self.subject.name}", fields, self.changes)
        return fields

    def envelope(self) -> dict[str, T.IcebergType]:
        """Return the fields of the envelope of a change, in the newest version."""
        if self.subject is None or self.changes is None:
            return {}
        fields = self._written(self.subject, self.subject.latest, itertools.count(1))
        return {field.name: field.field_type for field in fields}

    def source_fields(self) -> dict[str, T.IcebergType]:
        """Return the fields of a change's source."""
        source = self.envelope().get(SOURCE, T.StructType())
        return {field.name: field.field_type for field in inner_fields(source)}

    def older_fields(self, ids: Iterator[int]) -> Iterator[list[T.NestedField]]:
        """Yield the columns of each older version that can become a table, the newest one first."""
        if self.subject is None:
            return
        latest = self.subject.latest
        for older in reversed([*self.subject.schemas.values()]):
            is_other = older != latest and older.schema_type == latest.schema_type
            with suppress(*UNREADABLE_SCHEMA):
                if is_other and not is_union(older):
                    names = format_of(older).written(older, latest, self.message)
                    columns = self._written(self.subject, older, ids)
                    yield self._columns([field for field in columns if field.name in names])


@dataclass(frozen=True)
class Layout:
    """The source of every column of a topic's table."""

    key: MessageField
    value: MessageField

    @property
    def fitted(self) -> tuple[object, object]:
        """What the columns come from, to find out whether it is another schema."""
        return self.key.fitted, self.value.fitted

    @property
    def schema_ids(self) -> tuple[object, ...]:
        """Ids of all schemas by which records are decoded, and of the newest ones."""
        subjects = (half.subject for half in (self.key, self.value))
        return self.fitted, *(subject and tuple(subject.schemas) for subject in subjects)

    def older_columns(self) -> Iterator[T.StructType]:
        """Yield the columns of each older version, those of keys without the values' columns."""
        ids = itertools.count(1)
        names = {field.name for field in self.value.fields(ids)}
        for fields in self.value.older_fields(ids):
            names.update(field.name for field in fields)
            yield T.StructType(*fields)
        for fields in self.key.older_fields(ids):
            yield T.StructType(*(field for field in fields if field.name not in names))


def raw_columns(
    layout: Layout, fields: Iterable[T.NestedField]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return which of ``key`` and ``value`` are columns as they are, and which of these are text.

    The column ``key`` holds no keys if it is a field of the value with another type.
    """
    types = {field.name: field.field_type for field in fields}
    raw = {VALUE} if layout.value.subject is None else set[str]()
    own = T.StringType if layout.key.is_text else T.BinaryType
    if layout.key.subject is None and isinstance(types.get(KEY), own):
        raw.add(KEY)
    texts = {half.column for half in (layout.key, layout.value) if half.is_text}
    return frozenset(raw), frozenset(raw & texts)


def twins(
    existing: Sequence[T.NestedField], new: Sequence[T.NestedField], path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the paths of fields that would be one column with another, and its path, at any depth.

    Their names differ only in case, as of which Spark, Glue, DuckDB and Snowflake treat them as one
    column; or they have one name in Parquet files, as ``a b`` and ``a_x20b`` do.
    """
    by_lower: dict[str, T.NestedField] = {}
    for field in existing:
        by_lower.setdefault(name_in_files(field.name).lower(), field)
    by_name = {field.name: field for field in existing}
    for field in new:
        where = f"{path}{field.name}"
        twin = by_lower.setdefault(name_in_files(field.name).lower(), field)
        if twin.name != field.name:
            yield where, f"{path}{twin.name}"
        same = by_name.get(field.name, field)
        yield from twins(inner_fields(same.field_type), inner_fields(field.field_type), f"{where}.")


def sameness(field: str, twin: str) -> str:
    """Return why two fields that :func:`twins` found would be one column, after their names."""
    if field.lower() == twin.lower():
        return "differ only in case, which Spark, Glue, DuckDB and Snowflake ignore"
    return f"are both {name_in_files(field)} in Parquet files"


def columns_to_fill(
    half: MessageField, layout: Layout, fields: Sequence[T.NestedField]
) -> Sequence[T.NestedField]:
    """Return the table's columns, without those of the value that a key's field does not fit."""
    value = layout.value.subject
    if half.column == VALUE or value is None:
        return fields
    natural = {field.name: type_text(field) for field in half.fields()}
    unlike = {
        field.name
        for field in fields
        if natural.get(field.name, type_text(field)) != type_text(field)
    }
    if not unlike:
        return fields
    written = (
        format_of(schema).written(schema, value.latest, layout.value.message)
        for schema in value.schemas.values()
        if schema.schema_type == value.latest.schema_type
    )
    shared = unlike & frozenset().union(*written)
    return [field for field in fields if field.name not in shared]


def type_text(field: T.NestedField) -> str:
    """Return the type of a column without field ids and comments."""
    return re.sub(r"\b\d+: ", "", str(without_comments(field.field_type)))


def inner_fields(kind: T.IcebergType) -> Sequence[T.NestedField]:
    """Return the fields of a struct, or of the struct in a list or a map."""
    match kind:
        case T.StructType():
            return kind.fields
        case T.ListType(element_type=inner) | T.MapType(value_type=inner):
            return inner_fields(inner)
    return ()
