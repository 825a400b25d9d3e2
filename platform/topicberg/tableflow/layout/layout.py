"""The layout of a topic's table: which columns come from a record's key, its value and Kafka.

Source: Confluent's "Schemas with Tableflow": the key's fields, then the value's, then metadata
columns; a half without one schema of its own is one binary column, ``key`` or ``value``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from uuid import UUID

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
from topicberg.formats.dispatch import as_read, format_of, is_union
from topicberg.formats.envelope import SOURCE, Changes, changed_columns
from topicberg.formats.framing import OWN_SCHEMA_ID, Framing, RecordFraming
from topicberg.formats.limits import MAX_FIELDS
from topicberg.formats.protobuf import message_indexes
from topicberg.formats.subjects import RegisteredSchema, SchemaReaders, Subject
from topicberg.formats.table import FORMATS
from topicberg.iceberg.names import name_in_files, shared_full_name
from topicberg.settings import Settings
from topicberg.tableflow.layout.meanings import without_comments
from topicberg.topics.columns import check_names
from topicberg.topics.schema import SECTIONS, Part
from topicberg.topics.spec import HEADERS, METADATA_TYPES, RAW_KEY, SOURCE_POSITION, TopicSpec

KEY: Final = "key"
VALUE: Final = "value"

_METADATA_TYPES: Mapping[str, type[IcebergType]] = {
    "string": StringType,
    "int": IntegerType,
    "long": LongType,
    "timestamptz": TimestamptzType,
    "binary": BinaryType,
}
METADATA_COLUMNS = (*(name for name in METADATA_TYPES if name != HEADERS), RAW_KEY)
"""The metadata columns of simple types."""


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
        """Return how the records name their schemas.

        :param guids: the ids of GUIDs that were looked up since
        :raises TableflowError: the one schema of all records has no such message
        """
        assert self.subject is not None  # noqa: S101  it is decoded
        latest, indexes = self.subject.latest, b""
        if self.framing == "none" and latest.schema_type == "PROTOBUF":
            indexes = message_indexes(latest, self.message)
        of_subject = latest.schema_type, {**self.subject.guids, **guids}
        return RecordFraming(self.column, *of_subject, self.framing, indexes)

    def fields(self, ids: Iterator[int] | None = None) -> list[NestedField]:
        """Return the half's columns, all of them optional.

        :param ids: of the columns; None: from 1
        :raises TableflowError: the schema cannot become a table
        """
        ids = itertools.count(1) if ids is None else ids
        if self.subject is None:
            kind = StringType() if self.is_text else BinaryType()
            return [NestedField(next(ids), self.column, kind, required=False)]
        return self._columns(self._written(self.subject, self.subject.latest, ids))

    def _written(
        self, subject: Subject, version: RegisteredSchema, ids: Iterator[int]
    ) -> list[NestedField]:
        return format_of(version).fields(f"subject {subject.name}", version, ids, self.message)

    def _columns(self, fields: list[NestedField]) -> list[NestedField]:
        if self.changes is None or self.subject is None:
            return fields
        return changed_columns(f"subject {self.subject.name}", fields, self.changes)

    def envelope(self) -> dict[str, IcebergType]:
        """Return the fields of the envelope of a change, in the newest version."""
        if self.subject is None or self.changes is None:
            return {}
        fields = self._written(self.subject, self.subject.latest, itertools.count(1))
        return {field.name: field.field_type for field in fields}

    def source_fields(self) -> dict[str, IcebergType]:
        """Return the fields of a change's source."""
        source = self.envelope().get(SOURCE)
        fields = inner_fields(source) if source is not None else ()
        return {field.name: field.field_type for field in fields}

    def older_fields(self, ids: Iterator[int]) -> Iterator[list[NestedField]]:
        """Yield the columns of each older version, the newest one first.

        Versions that cannot become a table are left out: their records are malformed.
        """
        if self.subject is None:
            return
        latest = self.subject.latest
        for older in reversed([*self.subject.schemas.values()]):
            if older == latest or older.schema_type != latest.schema_type:
                continue
            try:
                if is_union(older):
                    continue
                names = format_of(older).written(older, latest, self.message)
                columns = self._written(self.subject, older, ids)
                columns = self._columns([field for field in columns if field.name in names])
            except (TableflowError, ValueError, KeyError, TypeError, RecursionError):
                continue
            yield columns


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

    def older_columns(self) -> Iterator[StructType]:
        """Yield the columns of each older version, those of keys without the values' columns."""
        ids = itertools.count(1)
        names = {field.name for field in self.value.fields(ids)}
        for fields in self.value.older_fields(ids):
            names.update(field.name for field in fields)
            yield StructType(*fields)
        for fields in self.key.older_fields(ids):
            yield StructType(*(field for field in fields if field.name not in names))


def read_layout(spec: TopicSpec, readers: SchemaReaders, config: Settings | None = None) -> Layout:
    """Return the layout for the spec and the current schemas of the registries.

    Records that name no schema are of the spec's schema file, or of a version of the subject.

    A subject whose newest version is a union (several event types) leaves its half binary. A key
    that is not a record becomes a record with the one field ``key``.

    :raises TableflowError: a subject is missing
    :raises SpecError: a schema file is missing or invalid
    """
    value = _message_field(spec, VALUE, readers, config)
    layout = Layout(_message_field(spec, KEY, readers, config), value)
    if spec.changelog is not None:
        _check_changes(spec, layout)
    return layout


def _message_field(
    spec: TopicSpec, part: Part, readers: SchemaReaders, config: Settings | None
) -> MessageField:
    """Return the keys or the values; the arguments and errors are those of :func:`read_layout`."""
    own, is_change = spec.section(part), spec.changelog is not None
    subject = None
    if own.has_schema:
        subject, options = _subject(spec, part, readers, config), spec.json_options(part)

        def mapped(schema: RegisteredSchema) -> RegisteredSchema:
            return as_read(replace(schema, options=options), part, has_connect_types=is_change)

        schemas = {number: mapped(schema) for number, schema in subject.schemas.items()}
        subject = replace(subject, latest=mapped(subject.latest), schemas=schemas)
    if subject is not None and is_union(subject.latest):
        subject = None
        if own.framing == "none":
            section = SECTIONS[part]
            raise TableflowError(
                f"topic {spec.name}: the schema of the {part}s is a union of several types, "
                f"and with {section}.framing none nothing says of which one a record is",
                hint=f"set {section}.format to bytes, or name a schema of one type",
            )
    return MessageField(
        column=part,
        subject=subject,
        message=own.message,
        changes=spec.changes if part == VALUE else None,
        has_connect_types=is_change,
        framing=own.framing,
        is_text=own.is_text,
    )


def _subject(
    spec: TopicSpec, part: Part, readers: SchemaReaders, config: Settings | None
) -> Subject:
    """Return the schemas by which keys or values are decoded.

    :raises TableflowError: the subject, or its version, does not exist
    :raises SpecError: the schema file is missing or invalid
    """
    own, name = spec.section(part), spec.subject(part)
    if own.framing != "none":
        return readers.of(own.framing).read(name)
    if own.file is None:
        schema = readers.confluent.version(name, None if own.version == "newest" else own.version)
    else:
        name, text = own.file, spec.schema_text(part, config)
        schema = RegisteredSchema(OWN_SCHEMA_ID, FORMATS[own.format].schema_type, text)
    schema = replace(schema, schema_id=OWN_SCHEMA_ID)
    return Subject(name, {OWN_SCHEMA_ID: schema}, schema)


def _check_changes(spec: TopicSpec, layout: Layout) -> None:
    """:raises TableflowError: the records are not changes that the table can follow"""
    if layout.value.subject is None:
        raise TableflowError(
            f"topic {spec.name}: changelog needs values with a schema of one type",
            hint="set schema.format and schema.subject to those of the connector",
        )
    if spec.write_mode == "append":
        return
    if layout.key.subject is None:
        raise TableflowError(
            f"topic {spec.name}: write_mode upsert of a change log needs keys with a schema",
            hint="set key.format to the connector's key converter; a table without a primary key "
            "needs write_mode append",
        )
    for field in layout.key.fields():
        if field.field_type.is_struct or isinstance(field.field_type, ListType | MapType):
            raise TableflowError(
                f"topic {spec.name}: the field {field.name} of the key is a {field.field_type}, "
                "which cannot be a key",
                hint="set message.key.columns of the connector, or write_mode append",
            )


def raw_columns(
    layout: Layout, fields: Iterable[NestedField]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return which of ``key`` and ``value`` are columns as they are, and which of these are text.

    The column ``key`` holds no keys if it is a field of the value with another type.

    :param fields: of the table
    """
    types = {field.name: field.field_type for field in fields}
    raw = {VALUE} if layout.value.subject is None else set[str]()
    own = StringType if layout.key.is_text else BinaryType
    if layout.key.subject is None and isinstance(types.get(KEY), own):
        raw.add(KEY)
    texts = {half.column for half in (layout.key, layout.value) if half.is_text}
    return frozenset(raw), frozenset(raw & texts)


def table_schema(spec: TopicSpec, layout: Layout) -> Schema:
    """Return the columns of a topic's table; of a field of both key and value, the value's.

    The columns are those of the newest versions, then what only older versions have, at every
    depth: old producers may still write those fields.

    An upsert table also has the key as it was sent, in the metadata column ``raw-key``: see
    :mod:`topicberg.tableflow.layout.upsert_key`.

    :raises TableflowError: a schema cannot become a table, or has the name of a metadata column, or
        two columns have one full name
    """
    ids = itertools.count(1)
    value = layout.value.fields(ids)
    names = {field.name for field in value}
    key = [field for field in layout.key.fields(ids) if field.name not in names]
    types = spec.metadata_types | ({RAW_KEY: "binary"} if spec.is_compacted else {})
    if SOURCE_POSITION in types and "lsn" in layout.value.source_fields():
        types[SOURCE_POSITION] = "long"
    metadata = [
        NestedField(
            field_id=next(ids),
            name=spec.metadata_column(name),
            field_type=_metadata_type(kind, ids),
            required=False,
            doc=_RAW_KEY_DOC if name == RAW_KEY else None,
        )
        for name, kind in types.items()
    ]
    fields = key + value
    for older in layout.value.older_fields(ids):
        others = {field.name for field in key}
        fields = _with_dropped(fields, [column for column in older if column.name not in others])
        _check_count(spec.name, fields)
    for older in layout.key.older_fields(ids):
        others = {field.name for field in fields} - {field.name for field in key}
        fields = _with_dropped(fields, [column for column in older if column.name not in others])
    if taken := {field.name for field in fields} & {field.name for field in metadata}:
        raise TableflowError(
            f"topic {spec.name}: field {min(taken)} has the name of a metadata column",
            hint="rename the field, or choose the other metadata_column_naming_scheme",
        )
    check_names(f"topic {spec.name}", (field.name for field in fields))
    for field, twin in twins((), fields):
        raise TableflowError(
            f"topic {spec.name}: the fields {twin} and {field} {sameness(field, twin)}",
            hint="rename one: they would be one column",
        )
    if (full_name := shared_full_name(StructType(*fields, *metadata))) is not None:
        raise TableflowError(
            f"topic {spec.name}: two fields of the versions of its schemas are {full_name} in a "
            "table, one by the dot in its name, the other inside of another field",
            hint="rename one of them, and delete the versions of the schema that have the other "
            "name from the registry",
        )
    return Schema(*fields, *metadata)


def _metadata_type(kind: str, ids: Iterator[int]) -> IcebergType:
    """Return the type of a metadata column.

    :param kind: its name; ``map`` and ``list`` are those of headers, whose names a list may repeat
    """
    if kind in _METADATA_TYPES:
        return _METADATA_TYPES[kind]()
    if kind == "map":
        return MapType(next(ids), StringType(), next(ids), BinaryType(), False)
    pair = StructType(
        NestedField(next(ids), "key", StringType(), required=False),
        NestedField(next(ids), "value", BinaryType(), required=False),
    )
    return ListType(next(ids), pair, element_required=False)


def _check_count(topic: str, fields: Sequence[NestedField]) -> None:
    count, more = 0, list(fields)
    while more:
        count += len(more)
        more = [inner for field in more for inner in inner_fields(field.field_type)]
    if count > 2 * MAX_FIELDS:
        raise TableflowError(
            f"topic {topic}: the versions of the schema together have {count} fields, including "
            f"nested and dropped ones; a table has at most {2 * MAX_FIELDS} columns",
            hint="delete old versions of the schema",
        )


def _with_dropped(fields: Sequence[NestedField], older: Sequence[NestedField]) -> list[NestedField]:
    """Return the fields, and those that only an older version has.

    A field whose type differs from a later version's has no column, nor has one whose name differs
    from a later one only in case: such records of that version are malformed.
    """
    types = {field.name: field.field_type for field in older}
    columns = [
        column.model_copy(update={"field_type": _type_with_dropped(column.field_type, older_type)})
        if (older_type := types.get(column.name)) is not None
        else column
        for column in fields
    ]
    taken = {field.name.lower() for field in fields}
    for field in older:
        if field.name.lower() not in taken:
            taken.add(field.name.lower())
            columns.append(field)
    return columns


def _type_with_dropped(kind: IcebergType, older: IcebergType) -> IcebergType:
    match kind, older:
        case StructType(), StructType():
            return StructType(*_with_dropped(kind.fields, older.fields))
        case ListType(), ListType():
            inside = _type_with_dropped(kind.element_type, older.element_type)
            return ListType(kind.element_id, inside, kind.element_required)
        case MapType(), MapType():
            inside = _type_with_dropped(kind.value_type, older.value_type)
            return MapType(kind.key_id, kind.key_type, kind.value_id, inside, kind.value_required)
    return kind


_RAW_KEY_DOC = "the record's key as it was sent; its SHA-256 if it has more than 256 bytes"


def twins(
    existing: Sequence[NestedField], new: Sequence[NestedField], path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the fields that would be one column with another one, at every depth.

    Their names differ only in case, as of which Spark, Glue, DuckDB and Snowflake treat them as one
    column; or they have one name in Parquet files, as ``a b`` and ``a_x20b`` do.

    :return: path of the new field, name of the column
    """
    by_lower: dict[str, NestedField] = {}
    for field in existing:
        by_lower.setdefault(name_in_files(field.name).lower(), field)
    by_name = {field.name: field for field in existing}
    for field in new:
        where = f"{path}{field.name}"
        twin = by_lower.setdefault(name_in_files(field.name).lower(), field)
        if twin.name != field.name:
            yield where, f"{path}{twin.name}"
        same = by_name.get(field.name, field)
        held_inside, inside = inner_fields(same.field_type), inner_fields(field.field_type)
        yield from twins(held_inside, inside, f"{where}.")


def sameness(field: str, twin: str) -> str:
    """Return why two fields that :func:`twins` found would be one column, after their names."""
    if field.lower() == twin.lower():
        return "differ only in case, which Spark, Glue, DuckDB and Snowflake ignore"
    return f"are both {name_in_files(field)} in Parquet files"


def columns_to_fill(
    half: MessageField, layout: Layout, fields: Sequence[NestedField]
) -> Sequence[NestedField]:
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


def type_text(field: NestedField) -> str:
    """Return the type of a column without field ids and comments."""
    return re.sub(r"\b\d+: ", "", str(without_comments(field.field_type)))


def inner_fields(kind: IcebergType) -> Sequence[NestedField]:
    """Return the fields of a struct, or of the struct in a list or a map."""
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return inner_fields(kind.element_type)
    if isinstance(kind, MapType):
        return inner_fields(kind.value_type)
    return ()
