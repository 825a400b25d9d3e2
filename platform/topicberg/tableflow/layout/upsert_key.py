"""What identifies a row of an upsert table: the bytes of its key, or the decoded key.

A key without a schema is its bytes, in its partition of Kafka. A key with a schema is its decoded
value (:mod:`.values.key_values`) in all partitions, because its bytes, and with them
the partition, change with the id of the schema.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg import types as T
from pyiceberg.types import NestedField

from topicberg.formats.dispatch import format_of
from topicberg.formats.framing import GLUE_BYTES, WIRE_BYTES
from topicberg.formats.metadata import OFFSET, PARTITION, RAW_KEY
from topicberg.formats.protobuf import absent_values
from topicberg.tableflow.layout.message_fields import (
    UNREADABLE_SCHEMA,
    Layout,
    MessageField,
    inner_fields,
    type_text,
)
from topicberg.tableflow.values.key_values import KeyShape

MetadataColumn = Callable[[str], str]
"""See :meth:`.TopicSpec.metadata_column`."""
NO_KEY = "the record has no key to upsert by"
IDENTITY = "__topicberg_identity"
"""What identifies a row of an upsert table: the text of a decoded key, or the raw key."""
HASHED_KEY_BYTES = 256
"""Longer keys are distinguished by their SHA-256: Confluent's "Write Modes with Tableflow"."""
MAX_VERSIONS = 999
"""Versions of the key's schema that decide which of two records of one millisecond is newer."""


@dataclass(frozen=True)
class UpsertKey:
    """The key of an upsert table without a change log."""

    raw: str
    """The column with the key as it was sent."""
    partition: str
    offset: str
    time: str
    fields: tuple[NestedField, ...] = ()
    """The fields of the newest key schema, of the types that they are decoded to; none: the keys
    have no schema."""
    shapes: tuple[KeyShape, ...] = ()
    """What of the fields counts."""
    is_in_columns: bool = False
    """Whether the table has the decoded key of every row in the columns of these names. If not, it
    is decoded from the raw key: a value has a field of the same name, or a version of the key has
    no such field or names it otherwise."""

    hidden: frozenset[str] = frozenset()
    """The fields whose columns are the value's, and of another type."""
    versions: tuple[bytes, ...] = ()
    """What raw keys have of the key's schemas, at :attr:`version_at`, the oldest one first."""
    version_at: tuple[int, int] = (1, WIRE_BYTES)

    @property
    def is_decoded(self) -> bool:
        return bool(self.fields)

    @property
    def definition(self) -> str:
        """What of the keys is compared; types count only if they change the text of a value."""
        scales = [re.findall(r"decimal\(\d+, \d+\)", type_text(field)) for field in self.fields]
        return repr((self.names, self.shapes, [[one.split(", ")[1] for one in s] for s in scales]))

    def to_decode(self, columns: Sequence[NestedField]) -> list[NestedField]:
        """Return what keys are decoded to: columns that any version may fill, and their fields."""
        return [*(one for one in columns if one.name not in self.names), *self.fields]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def key_shape(kind: T.IcebergType, absent: Any = None) -> KeyShape:
    """Return the parts of a field; ``absent``: its value, or its fields', in records without it."""
    match kind:
        case T.StructType():
            of_fields = absent or {}
            parts = [(f.name, key_shape(f.field_type, of_fields.get(f.name))) for f in kind.fields]
        case T.ListType():
            parts = [("element", key_shape(kind.element_type))]
        case T.MapType():
            parts = [("key", key_shape(kind.key_type)), ("value", key_shape(kind.value_type))]
        case _:
            return KeyShape(absent=absent)
    return KeyShape(tuple(parts))


def upsert_key(
    metadata_column: MetadataColumn, layout: Layout, columns: Sequence[NestedField]
) -> UpsertKey:
    """Return the key of an upsert table with these columns."""
    if layout.key.subject is None:
        return raw_key(metadata_column)
    natural = layout.key.fields()
    texts = {field.name: type_text(field) for field in natural}
    shared = texts.keys() & _written(layout.value)
    fitting = {
        column.name: column
        for column in columns
        if column.name in texts
        and (column.name not in shared or type_text(column) == texts[column.name])
    }
    latest, paths = layout.key.subject.latest, set(_paths(natural))
    absent = absent_values(latest, layout.key.message) if latest.schema_type == "PROTOBUF" else {}
    return replace(
        raw_key(metadata_column),
        fields=tuple(fitting.get(field.name, field) for field in natural),
        shapes=tuple(key_shape(field.field_type, absent.get(field.name)) for field in natural),
        is_in_columns=not shared and all(paths <= {*_paths(v)} for v in _versions(layout.key)),
        hidden=frozenset({field.name for field in columns} & shared - fitting.keys()),
        **_named_versions(layout.key),
    )


def _named_versions(key: MessageField) -> dict[str, Any]:
    """Return how raw keys name the versions of their schema."""
    assert key.subject is not None  # noqa: S101  see the caller
    numbers = list(key.subject.schemas)[:MAX_VERSIONS]
    if key.framing != "glue":
        return {"versions": tuple(number.to_bytes(WIRE_BYTES - 1, "big") for number in numbers)}
    uuids = {number: uuid for uuid, number in key.subject.guids.items()}
    versions = tuple(uuids[number].bytes for number in numbers)
    return {"versions": versions, "version_at": (2, GLUE_BYTES)}


def raw_key(metadata_column: MetadataColumn) -> UpsertKey:
    """Return the key of an upsert table whose keys have no schema."""
    raw, partition, offset = map(metadata_column, (RAW_KEY, PARTITION, OFFSET))
    return UpsertKey(raw, partition, offset, metadata_column("timestamp"))


def _written(value: MessageField) -> set[str]:
    """Return the names of the columns that some version of the value fills."""
    names = {field.name for field in value.fields()}
    if value.subject is None:
        return names
    for writer in value.subject.schemas.values():
        if writer.schema_type == value.subject.latest.schema_type:
            with suppress(*UNREADABLE_SCHEMA):
                names |= format_of(writer).written(writer, value.subject.latest, value.message)
    return names


def _versions(key: MessageField) -> Iterator[list[NestedField]]:
    """Yield the fields of each version of the key that can become a table, by its own names."""
    assert key.subject is not None  # noqa: S101  see the caller
    where = f"subject {key.subject.name}"
    for writer in key.subject.schemas.values():
        if writer.schema_type == key.subject.latest.schema_type:
            with suppress(*UNREADABLE_SCHEMA):
                yield format_of(writer).fields(where, writer, itertools.count(1), key.message)


def _paths(fields: Sequence[NestedField], path: str = "") -> Iterator[str]:
    for field in fields:
        yield f"{path}{field.name}"
        yield from _paths(inner_fields(field.field_type), f"{path}{field.name}.")


def held_key(raw: bytes) -> bytes:
    """Return a raw key as upsert tables hold it."""
    return raw if len(raw) <= HASHED_KEY_BYTES else hashlib.sha256(raw).digest()
