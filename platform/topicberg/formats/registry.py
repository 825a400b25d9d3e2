"""The subjects of a registry, as they are at the moment.

Confluent's registry is read by :class:`SubjectReader`, AWS Glue Schema Registry by
:class:`topicberg.formats.glue.GlueReader`. A schema of AWS Glue is a subject here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, cast
from uuid import UUID

from cachetools import FIFOCache
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from topicberg.clients.answers import unusable
from topicberg.clients.registry import if_found, registry_errors
from topicberg.errors import TableflowError
from topicberg.formats.framing import Framing
from topicberg.formats.subjects import (
    DEFAULT_CONTEXT,
    MAX_SCHEMA_BYTES,
    RegisteredSchema,
    SchemaReader,
    SchemaType,
    Subject,
)

MAX_REFERENCES = 500  # Schemas that one schema refers to, directly or not.
MAX_VERSIONS, MAX_SUBJECT_BYTES = 500, 8 * MAX_SCHEMA_BYTES
"""Newest versions of a subject that are read, by number and by characters; older ones are looked up
when a record names their id, as schemas of other subjects are."""
MAX_GUIDS = 2_000  # GUIDs whose ids are known.


def context_of(subject: str) -> str:
    """Return the context of a subject, as ``.eu`` of ``:.eu:a-value``, which has ids of its own."""
    return subject[1:].partition(":")[0] if subject.startswith(":.") else DEFAULT_CONTEXT


def _topic(subject: str) -> str:
    """Return the topic of a subject that is named after it, else a word that stands for one."""
    name = subject.rpartition(":")[2]
    topic = name.removesuffix("-value").removesuffix("-key")
    return topic if topic and topic != name else "TOPIC"


def in_context(context: str, subject: str) -> str:
    """Return the full name of a subject that another one of this context refers to."""
    is_full = context == DEFAULT_CONTEXT or subject.startswith(":.")
    return subject if is_full else f":{context}:{subject}"


class SchemaReaders:
    """The readers of a deployment's registries; AWS Glue's is made when a topic needs it."""

    def __init__(self, confluent: SubjectReader, make_glue: Callable[[], SchemaReader]) -> None:
        self.confluent, self._make_glue = confluent, make_glue

    @cached_property
    def glue(self) -> SchemaReader:
        return self._make_glue()

    def of(self, framing: Framing) -> SchemaReader:
        """Return the reader of the registry whose schemas records name."""
        return self.glue if framing == "glue" else self.confluent


def within_limits(newest_first: Iterator[RegisteredSchema]) -> list[RegisteredSchema]:
    """Return a subject's newest versions within :data:`MAX_VERSIONS`, the oldest one first."""
    kept: list[RegisteredSchema] = []
    size = 0
    for schema in islice(newest_first, MAX_VERSIONS):
        size += schema.size
        if kept and size > MAX_SUBJECT_BYTES:
            break
        kept.insert(0, schema)
    return kept


class _TooLargeError(Exception):
    """A schema, including all that it refers to, exceeds the limits."""


class SubjectReader:
    """Reads Confluent's registry; versions are immutable and therefore read only once.

    The methods raise :class:`TopicbergError` if the registry does not answer.
    """

    name = "the schema registry"

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}
        self._guids: FIFOCache[tuple[str, UUID], int] = FIFOCache(MAX_GUIDS)
        """Contexts and GUIDs → ids."""

    def read(self, name: str) -> Subject:
        """Return all versions of a subject.

        :raises TableflowError: the subject, or a schema that a version refers to, does not exist
        """
        with registry_errors(f"subject {name}"):
            versions: Any = if_found(self._client.get_versions, name)
            if versions is None:
                versions = []
            if not isinstance(versions, list) or not all(isinstance(v, int) for v in versions):
                raise unusable(f"the schema registry (subject {name})", "a list of versions")
            if not versions:
                raise TableflowError(
                    f"subject {name} does not exist in the schema registry",
                    hint=f"run `topicberg topics register {_topic(name)}`, let the producer "
                    "register its schema, or write a topic spec with `schema: {format: none}`",
                )
            schemas = self._newest(name, sorted(versions))
        return Subject.of(name, schemas, self.guids(context_of(name)))

    def context(self, subject: str) -> str:
        """See :class:`SchemaReader`."""
        return context_of(subject)

    def version(self, name: str, version: int | None) -> RegisteredSchema:
        """Return a version of a subject; None: the newest one.

        :raises TableflowError: the subject, or the version, does not exist
        """
        if version is None:
            return self.read(name).latest
        with registry_errors(f"subject {name}"):
            schema = if_found(self._version, name, version)
        if schema is None:
            raise TableflowError(
                f"subject {name} has no version {version} in the schema registry",
                hint="set `version` of the spec to one that it has, or to newest",
            )
        return schema

    def _newest(self, name: str, versions: list[int]) -> list[RegisteredSchema]:
        schemas = within_limits(self._version(name, version) for version in reversed(versions))
        kept = set(versions[-len(schemas) :])
        self._versions = {
            key: schema
            for key, schema in self._versions.items()
            if key[0] != name or key[1] in kept
        }
        return schemas

    def by_id(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> RegisteredSchema | None:
        """Return any schema of a context of the registry, or None if it has no such id."""
        inside = None if context == DEFAULT_CONTEXT else f":{context}:"
        with registry_errors(f"schema {schema_id}"):
            schema = if_found(self._client.get_schema, schema_id, inside)
            where = f"schema {schema_id}"
            return None if schema is None else self._resolved(where, schema_id, schema, context)

    def id_of(self, guid: UUID, context: str = DEFAULT_CONTEXT) -> int | None:
        """Return the id that the schema of a GUID has in a context; None: it has none there."""
        where = f"schema GUID {guid}"
        with registry_errors(where):
            # The client has no method for it, only for the schema, which may be of any context;
            # another client would repeat its log-ins, retries and certificates.
            answer: Any = if_found(self._client._rest_client.get, f"schemas/guids/{guid}/ids")
            try:
                ids = {str(entry["context"]): int(entry["id"]) for entry in answer or ()}
            except (TypeError, KeyError, ValueError):
                raise unusable(f"the schema registry ({where})", "a list of ids") from None
        if context in ids:
            self._guids[context, guid] = ids[context]
        return ids.get(context)

    def guids(self, context: str) -> dict[UUID, int]:
        """Return the GUIDs of a context that are known, and their ids."""
        return {guid: number for (of, guid), number in self._guids.items() if of == context}

    def _version(self, name: str, version: int) -> RegisteredSchema:
        if (name, version) not in self._versions:
            registered = self._client.get_version(name, version)
            if registered.schema is None or registered.schema_id is None:
                raise TableflowError(f"subject {name}: version {version} has no schema")
            where, context = f"subject {name}, version {version}", context_of(name)
            self._versions[name, version] = self._resolved(
                where, registered.schema_id, registered.schema, context
            )
            if registered.guid:  # of registries with GUIDs, not all return it here
                self._guids[context, UUID(registered.guid)] = registered.schema_id
        return self._versions[name, version]

    def _resolved(
        self, where: str, schema_id: int, schema: Schema, context: str
    ) -> RegisteredSchema:
        self._client.clear_caches()  # type: ignore[no-untyped-call]  # its caches are unbounded
        references, text = dict[str, str](), schema.schema_str or ""
        schema_type = cast("SchemaType", schema.schema_type or "AVRO")
        try:
            if len(text) > MAX_SCHEMA_BYTES:
                raise _TooLargeError
            self._resolve(where, schema, references, context)
        except (_TooLargeError, RecursionError):
            problem = (
                f"the schema has more than {MAX_SCHEMA_BYTES} characters or {MAX_REFERENCES} "
                "references"
            )
            return RegisteredSchema(schema_id, schema_type, "", problem=problem)
        return RegisteredSchema(schema_id, schema_type, text, tuple(references.items()))

    def _resolve(
        self, where: str, schema: Schema, references: dict[str, str], context: str
    ) -> None:
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name is None or subject is None or version is None or name in references:
                continue
            subject, target = self._referenced(context, subject, version)
            if target is None:
                raise TableflowError(
                    f"{where} refers to {name}, but subject {subject} has no version {version}",
                    hint="register the referenced schema again",
                )
            self._resolve(where, target, references, context_of(subject))
            references[name] = target.schema_str or ""
            if (
                len(references) > MAX_REFERENCES
                or sum(map(len, references.values())) > MAX_SCHEMA_BYTES
            ):
                raise _TooLargeError

    def _referenced(self, context: str, subject: str, version: int) -> tuple[str, Schema | None]:
        """Return the full name of a subject that is referred to, and its schema. A registry without
        contexts, which takes the context for a part of the name, has the subject under the name in
        the reference."""
        full = in_context(context, subject)
        registered = if_found(self._client.get_version, full, version)
        if registered is None and full != subject:
            contexts = if_found(self._client.get_contexts)
            if not isinstance(contexts, list) or context not in contexts:
                full, registered = subject, if_found(self._client.get_version, subject, version)
        return full, registered.schema if registered else None
