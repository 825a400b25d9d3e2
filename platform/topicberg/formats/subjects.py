"""Schemas as a registry holds them, and the versions of a subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self
from uuid import UUID

MAX_SCHEMA_BYTES = 1024 * 1024
"""Characters of a schema, including all that it refers to."""
SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
DEFAULT_CONTEXT = "."


@dataclass(frozen=True)
class JsonOptions:
    """What the spec of a topic says of its JSON values, besides their schema.

    ``parses_times``: strings with ``format: date-time`` are times. ``unknown_as``: the column with
    the JSON text of what the schema does not name; None: there is none. ``conversions``: see
    :mod:`topicberg.formats.json.conversions`.
    """

    parses_times: bool = False
    unknown_as: str | None = None
    conversions: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry holds it.

    ``references``: (name, text) of every schema that it refers to, directly or indirectly, each
    after those that it needs itself. ``wrapped_as``: records are JSON values that become a property
    of an object. ``options``: of JSON. ``has_connect_types``: the titles of JSON types are those of
    Kafka Connect and Debezium. ``has_glue_index``: of Protobuf, records begin with AWS's index of
    their message, not with Confluent's. ``problem``: why it cannot be read; it then has no text.
    """

    schema_id: int
    schema_type: SchemaType
    text: str
    references: tuple[tuple[str, str], ...] = ()
    wrapped_as: str | None = None
    options: JsonOptions = JsonOptions()
    has_connect_types: bool = False
    has_glue_index: bool = False
    problem: str | None = None

    @property
    def label(self) -> str:
        """Its name in errors."""
        return f"schema {self.schema_id}"

    @property
    def size(self) -> int:
        """Number of characters, including the references."""
        return len(self.text) + sum(len(text) for _, text in self.references)


@dataclass(frozen=True)
class Subject:
    """Every version of a subject's schema, by its id, up to :data:`.registry.MAX_VERSIONS`.

    ``latest``: the newest one, which defines the table. ``guids``: ids of known GUIDs.
    """

    name: str
    schemas: Mapping[int, RegisteredSchema]
    latest: RegisteredSchema
    guids: Mapping[UUID, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, schemas: Sequence[RegisteredSchema], guids: Mapping[UUID, int]) -> Self:
        """Return a subject of these versions, of which the last one is the latest."""
        return cls(name, {schema.schema_id: schema for schema in schemas}, schemas[-1], guids)


class SchemaReader(Protocol):
    """Reads the subjects of a registry.

    The methods raise TableflowError for what cannot be read, TopicbergError without an answer.
    """

    @property
    def name(self) -> str:
        """The registry, for a message."""

    def read(self, name: str) -> Subject:
        """Return all versions of a subject."""

    def context(self, subject: str) -> str:
        """Return the context of a subject, in which ids are unique."""

    def by_id(self, schema_id: int, context: str) -> RegisteredSchema | None:
        """Return any schema of a context, or None if it has no such id."""

    def id_of(self, guid: UUID, context: str) -> int | None:
        """Return the id that the schema of a GUID has in a context; None: it has none there."""

    def guids(self, context: str) -> dict[UUID, int]:
        """Return the GUIDs of a context that are known, and their ids."""
