"""The layout of a topic's table: which columns come from a record's key, its value and Kafka.

Source: Confluent's "Schemas with Tableflow": the key's fields, then the value's, then metadata
columns; a half without one schema of its own is one binary column, ``key`` or ``value``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyiceberg import types as T
from pyiceberg.schema import Schema

from topicberg.errors import TableflowError
from topicberg.formats.dispatch import as_read, is_union
from topicberg.formats.framing import OWN_SCHEMA_ID
from topicberg.formats.limits import MAX_FIELDS
from topicberg.formats.metadata import HEADERS, METADATA_TYPES, RAW_KEY, SOURCE_POSITION
from topicberg.formats.registry import SchemaReaders
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.formats.table import FORMATS, Part
from topicberg.formats.time_text import EPOCHS, TIME
from topicberg.iceberg.names import shared_full_name
from topicberg.settings import Settings
from topicberg.tableflow.layout import message_fields
from topicberg.tableflow.layout.event_time import EventTime
from topicberg.tableflow.layout.writers import ForeignSchemas
from topicberg.topics.columns import check_names
from topicberg.topics.schema import PARTS, SECTIONS
from topicberg.topics.spec import TopicSpec

_METADATA_TYPES: Mapping[str, type[T.IcebergType]] = {
    "string": T.StringType,
    "int": T.IntegerType,
    "long": T.LongType,
    "timestamptz": T.TimestamptzType,
    "binary": T.BinaryType,
}
_NUMBERS = (T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType)
METADATA_COLUMNS = (*(name for name in METADATA_TYPES if name != HEADERS), RAW_KEY)
"""The metadata columns of simple types."""


def read_layout(
    spec: TopicSpec, readers: SchemaReaders, config: Settings | None = None
) -> message_fields.Layout:
    """Return the layout for the spec and the current schemas of the registries.

    Records that name no schema are of the spec's schema file, or of a version of the subject.

    A subject whose newest version is a union (several event types) leaves its half binary. A key
    that is not a record becomes a record with the one field ``key``.

    :raises TableflowError: a subject is missing
    :raises SpecError: a schema file is missing or invalid
    """
    value = _message_field(spec, message_fields.VALUE, readers, config)
    layout = message_fields.Layout(_message_field(spec, message_fields.KEY, readers, config), value)
    if spec.changelog is not None:
        _check_changes(spec, layout)
    return layout


def _message_field(
    spec: TopicSpec, part: Part, readers: SchemaReaders, config: Settings | None
) -> message_fields.MessageField:
    """Return the keys or the values; the arguments and errors are those of :func:`read_layout`."""
    own, is_change = spec.section(part), spec.changelog is not None
    subject = _subject(spec, part, readers, config) if own.has_schema else None
    if subject is not None and is_union(subject.latest):
        subject = None
        if own.framing == "none":
            section = SECTIONS[part]
            raise TableflowError(
                f"topic {spec.name}: the schema of the {part}s is a union of several types, "
                f"and with {section}.framing none nothing says of which one a record is",
                hint=f"set {section}.format to bytes, or name a schema of one type",
            )
    return message_fields.MessageField(
        column=part,
        subject=subject,
        message=own.message,
        changes=spec.changes if part == message_fields.VALUE else None,
        has_connect_types=is_change,
        framing=own.framing,
        is_text=own.is_text,
    )


def _subject(
    spec: TopicSpec, part: Part, readers: SchemaReaders, config: Settings | None
) -> Subject:
    """Return the schemas by which keys or values are decoded; errors: see :func:`read_layout`."""
    own, name = spec.section(part), spec.subject(part)
    options, is_change = spec.json_options(part), spec.changelog is not None

    def mapped(schema: RegisteredSchema) -> RegisteredSchema:
        return as_read(replace(schema, options=options), part, has_connect_types=is_change)

    if own.framing != "none":
        subject = readers.of(own.framing).read(name)
        schemas = {number: mapped(schema) for number, schema in subject.schemas.items()}
        return replace(subject, latest=mapped(subject.latest), schemas=schemas)
    if own.file is None:
        schema = readers.confluent.version(name, None if own.version == "newest" else own.version)
    else:
        name, text = own.file, spec.schema_text(part, config)
        schema = RegisteredSchema(OWN_SCHEMA_ID, FORMATS[own.format].schema_type, text)
    schema = mapped(replace(schema, schema_id=OWN_SCHEMA_ID))
    return Subject(name, {OWN_SCHEMA_ID: schema}, schema)


def _check_changes(spec: TopicSpec, layout: message_fields.Layout) -> None:
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
        if field.field_type.is_struct or isinstance(field.field_type, T.ListType | T.MapType):
            raise TableflowError(
                f"topic {spec.name}: the field {field.name} of the key is a {field.field_type}, "
                "which cannot be a key",
                hint="set message.key.columns of the connector, or write_mode append",
            )


def table_schema(spec: TopicSpec, layout: message_fields.Layout) -> Schema:
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
        T.NestedField(
            field_id=next(ids),
            name=spec.metadata_column(name),
            field_type=_metadata_type(kind, ids),
            required=False,
            doc=_RAW_KEY_DOC if name == RAW_KEY else None,
        )
        for name, kind in types.items()
    ]
    fields, key_names = key + value, {field.name for field in key}
    for older in layout.value.older_fields(ids):
        fields = _with_dropped(fields, [column for column in older if column.name not in key_names])
        _check_count(spec.name, fields)
    for older in layout.key.older_fields(ids):
        others = {field.name for field in fields} - key_names
        fields = _with_dropped(fields, [column for column in older if column.name not in others])
    if taken := {field.name for field in fields} & {field.name for field in metadata}:
        raise TableflowError(
            f"topic {spec.name}: field {min(taken)} has the name of a metadata column",
            hint="rename the field, or choose the other metadata_column_naming_scheme",
        )
    check_names(f"topic {spec.name}", (field.name for field in fields))
    for field, twin in message_fields.twins((), fields):
        raise TableflowError(
            f"topic {spec.name}: the fields {twin} and {field} "
            + message_fields.sameness(field, twin),
            hint="rename one: they would be one column",
        )
    if (full_name := shared_full_name(T.StructType(*fields, *metadata))) is not None:
        raise TableflowError(
            f"topic {spec.name}: two fields of the versions of its schemas are {full_name} in a "
            "table, one by the dot in its name, the other inside of another field",
            hint="rename one of them, and delete the versions of the schema that have the other "
            "name from the registry",
        )
    return Schema(*fields, *metadata)


def _metadata_type(kind: str, ids: Iterator[int]) -> T.IcebergType:
    """Return the type of a metadata column; ``map`` and ``list`` are those of headers."""
    if kind in _METADATA_TYPES:
        return _METADATA_TYPES[kind]()
    if kind == "map":
        return T.MapType(next(ids), T.StringType(), next(ids), T.BinaryType(), False)
    pair = T.StructType(
        T.NestedField(next(ids), "key", T.StringType(), required=False),
        T.NestedField(next(ids), "value", T.BinaryType(), required=False),
    )
    return T.ListType(next(ids), pair, element_required=False)


def _check_count(topic: str, fields: Sequence[T.NestedField]) -> None:
    count, more = 0, list(fields)
    while more:
        count += len(more)
        more = [inner for field in more for inner in message_fields.inner_fields(field.field_type)]
    if count > 2 * MAX_FIELDS:
        raise TableflowError(
            f"topic {topic}: the versions of the schema together have {count} fields, including "
            f"nested and dropped ones; a table has at most {2 * MAX_FIELDS} columns",
            hint="delete old versions of the schema",
        )


def _with_dropped(
    fields: Sequence[T.NestedField], older: Sequence[T.NestedField]
) -> list[T.NestedField]:
    """Return the fields, and those that only an older version has. A field whose type differs from
    a later version's has no column, nor has one whose name differs from a later one only in case:
    such records of that version are malformed."""
    types = {field.name: field.field_type for field in older}
    columns = [
        column.model_copy(update={"field_type": _type_with_dropped(column.field_type, older_type)})
        if (older_type := types.get(column.name)) is not None
        else column
        for column in fields
    ]
    # The first one of each name that is not taken.
    new = {field.name.lower(): field for field in [*reversed(older), *fields]}
    return columns + [field for field in older if new[field.name.lower()] is field]


def _type_with_dropped(kind: T.IcebergType, older: T.IcebergType) -> T.IcebergType:
    match kind, older:
        case T.StructType(), T.StructType():
            return T.StructType(*_with_dropped(kind.fields, older.fields))
        case T.ListType(), T.ListType():
            inside = _type_with_dropped(kind.element_type, older.element_type)
            return T.ListType(kind.element_id, inside, kind.element_required)
        case T.MapType(), T.MapType():
            inside = _type_with_dropped(kind.value_type, older.value_type)
            return T.MapType(kind.key_id, kind.key_type, kind.value_id, inside, kind.value_required)
    return kind


_RAW_KEY_DOC = "the record's key as it was sent; its SHA-256 if it has more than 256 bytes"


def row_columns(spec: TopicSpec, fields: Sequence[T.NestedField]) -> list[T.NestedField]:
    """Return the table's columns without the metadata columns."""
    metadata = {*map(spec.metadata_column, (*METADATA_TYPES, RAW_KEY, *spec.change_columns))}
    return [field for field in fields if field.name not in metadata]


def event_time(spec: TopicSpec, columns: Sequence[T.NestedField]) -> EventTime | None:
    """Return how event times are read; None: a column of the table is the event time.

    :raises TableflowError: there is no such field, or it cannot have times of that format
    """
    rule = spec.payload_time
    if rule is None or rule.format is None:
        return None
    path_and_type = _field(rule.field, columns)
    if path_and_type is None:
        raise TableflowError(
            f"topic {spec.name}: event_time.field {rule.field}: the table has no such column, "
            "and no such field in a struct",
            hint="set event_time.field to a column, or to `column.field` in a struct",
        )
    path, kind = path_and_type
    of_text = (*(_NUMBERS if rule.format in EPOCHS else ()), T.StringType)
    if not isinstance(kind, T.TimestamptzType if rule.format == TIME else of_text):
        raise TableflowError(
            f"topic {spec.name}: event_time.field {rule.field} is a {kind}, which does not "
            f"have times of format {rule.format}",
            hint="set event_time.format to what the field has",
        )
    return EventTime(
        rule.format,
        path,
        kind,
        timezone=rule.timezone,
        otherwise=rule.otherwise,
        earliest=rule.earliest,
        max_ahead_hours=rule.max_ahead_hours,
    )


def _field(
    text: str, columns: Sequence[T.NestedField]
) -> tuple[tuple[str, ...], T.IcebergType] | None:
    """Return the path and the type of a column, or of a field in structs."""
    by_name = {field.name: field.field_type for field in columns}
    if text in by_name:
        return (text,), by_name[text]
    for position in (number for number, letter in enumerate(text) if letter == "."):
        kind = by_name.get(text[:position])
        if isinstance(kind, T.StructType) and (inner := _field(text[position + 1 :], kind.fields)):
            return (text[:position], *inner[0]), inner[1]
    return None


def foreign_schemas(spec: TopicSpec, readers: SchemaReaders) -> dict[str, ForeignSchemas]:
    """Return the schemas for the keys and the values of a topic, each of its subject's context.

    Keys, or values, without a schema share those of the other: no registry is asked for them alone.
    """
    known, by_part = dict[tuple[int, str], ForeignSchemas](), dict[str, ForeignSchemas]()
    for part in [part for part in PARTS if spec.section(part).has_schema] or PARTS:
        reader = readers.of(spec.section(part).framing)
        place = id(reader), reader.context(spec.subject(part))
        by_part[part] = known.setdefault(place, ForeignSchemas(reader, place[1]))
    return {part: by_part.get(part) or next(iter(by_part.values())) for part in PARTS}
