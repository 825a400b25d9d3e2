"""The schemas of a subject, as the registry has them at the moment."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from confluent_kafka.schema_registry.error import SchemaRegistryError

from topicberg.clients.answers import unusable
from topicberg.clients.registry import registry_errors
from topicberg.errors import TableflowError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

MAGIC_BYTE = 0
GLUE_HEADERS, GLUE_BYTES = (b"\x03\x00", b"\x03\x05"), 18
"""AWS Glue Schema Registry's: version 3, compression or none, and the UUID of a schema."""
WIRE_BYTES = 5
"""Magic byte and schema id, before a record."""
NOT_FOUND = 404
MAX_SCHEMA_BYTES = 1024 * 1024
"""Characters of a schema, including all that it refers to."""
MAX_REFERENCES = 500
"""Schemas that one schema refers to, directly or not."""
MAX_VERSIONS, MAX_SUBJECT_BYTES = 500, 8 * MAX_SCHEMA_BYTES
"""Newest versions of a subject that are read, by number and by characters; older ones are looked up
when a record names their id, as schemas of other subjects are."""

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry holds it.

    ``references``: (name, text) of every schema that it refers to, directly or indirectly, each
    after those that it needs itself. ``wrapped_as``: records are JSON values that become a property
    of an object. ``parses_times``: JSON strings with ``format: date-time`` are times.
    ``has_connect_types``: the titles of JSON types are those of Kafka Connect and Debezium.
    ``problem``: why it cannot be read; it then has no text.
    """

    schema_id: int
    schema_type: SchemaType
    text: str
    references: tuple[tuple[str, str], ...] = ()
    wrapped_as: str | None = None
    parses_times: bool = False
    has_connect_types: bool = False
    problem: str | None = None

    @property
    def size(self) -> int:
        """Number of characters, including the references."""
        return len(self.text) + sum(len(text) for _, text in self.references)


@dataclass(frozen=True)
class Subject:
    """Every version of a subject's schema.

    ``schemas``: by schema id, every version up to :data:`MAX_VERSIONS`. ``latest``: the newest
    version, which defines the table.
    """

    name: str
    schemas: Mapping[int, RegisteredSchema]
    latest: RegisteredSchema


def wire_prefix(schema_id: int) -> bytes:
    """Return the five bytes before a record: magic byte and big-endian schema id (wire format)."""
    return struct.pack(">bI", MAGIC_BYTE, schema_id)


class _TooLargeError(Exception):
    """A schema, including all that it refers to, exceeds the limits."""


class SubjectReader:
    """Reads subjects from the registry; versions are immutable and therefore read only once."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}

    def read(self, name: str) -> Subject:
        """Return all versions of a subject.

        :raises TableflowError: the subject, or a schema that one of its versions refers to, does
            not exist
        :raises TopicbergError: the registry does not answer
        """
        with registry_errors(f"subject {name}"):
            try:
                versions = self._client.get_versions(name)
            except SchemaRegistryError as error:
                if error.http_status_code != NOT_FOUND:
                    raise
                versions = []
            if not isinstance(versions, list) or not all(isinstance(v, int) for v in versions):
                raise unusable(f"the schema registry (subject {name})", "a list of versions")
            if not versions:
                raise TableflowError(
                    f"subject {name} does not exist in the schema registry",
                    hint="run `topicberg topics register TOPIC`, let the producer register its "
                    "schema, or write a topic spec with `schema: {format: none}`",
                )
            schemas = self._newest(name, sorted(versions))
        return Subject(
            name=name, schemas={schema.schema_id: schema for schema in schemas}, latest=schemas[-1]
        )

    def _newest(self, name: str, versions: list[int]) -> list[RegisteredSchema]:
        found: list[RegisteredSchema] = []
        size = 0
        for version in reversed(versions[-MAX_VERSIONS:]):
            schema = self._version(name, version)
            size += schema.size
            if found and size > MAX_SUBJECT_BYTES:
                break
            found.insert(0, schema)
        kept = set(versions[-len(found) :])
        self._versions = {
            key: schema
            for key, schema in self._versions.items()
            if key[0] != name or key[1] in kept
        }
        return found

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        """Return any schema of the registry, or None if it has no such id."""
        with registry_errors(f"schema {schema_id}"):
            try:
                schema = self._client.get_schema(schema_id)
            except SchemaRegistryError as error:
                if error.http_status_code == NOT_FOUND:
                    return None
                raise
            return self._resolved(f"schema {schema_id}", schema_id, schema)

    def _version(self, name: str, version: int) -> RegisteredSchema:
        if (name, version) not in self._versions:
            registered = self._client.get_version(name, version)
            if registered.schema is None or registered.schema_id is None:
                raise TableflowError(f"subject {name}: version {version} has no schema")
            self._versions[name, version] = self._resolved(
                f"subject {name}, version {version}", registered.schema_id, registered.schema
            )
        return self._versions[name, version]

    def _resolved(self, where: str, schema_id: int, schema: Schema) -> RegisteredSchema:
        self._client.clear_caches()  # type: ignore[no-untyped-call]  # its caches are unbounded
        found: dict[str, str] = {}
        schema_type = cast("SchemaType", schema.schema_type or "AVRO")
        text = schema.schema_str or ""
        try:
            if len(text) > MAX_SCHEMA_BYTES:
                raise _TooLargeError
            self._resolve(where, schema, found)
        except (_TooLargeError, RecursionError):
            problem = (
                f"the schema has more than {MAX_SCHEMA_BYTES} characters or {MAX_REFERENCES} "
                "references"
            )
            return RegisteredSchema(schema_id, schema_type, "", problem=problem)
        return RegisteredSchema(schema_id, schema_type, text, tuple(found.items()))

    def _resolve(self, where: str, schema: Schema, found: dict[str, str]) -> None:
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name is None or subject is None or version is None or name in found:
                continue
            try:
                target = self._client.get_version(subject, version).schema
            except SchemaRegistryError as error:
                if error.http_status_code != NOT_FOUND:
                    raise
                target = None
            if target is None:
                raise TableflowError(
                    f"{where} refers to {name}, but subject {subject} has no version {version}",
                    hint="register the referenced schema again",
                )
            self._resolve(where, target, found)
            found[name] = target.schema_str or ""
            if len(found) > MAX_REFERENCES or sum(map(len, found.values())) > MAX_SCHEMA_BYTES:
                raise _TooLargeError
