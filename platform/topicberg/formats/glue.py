"""The schemas of AWS Glue Schema Registry, as it has them at the moment.

A schema there is a subject here, and its versions are schemas. Records name a version by its UUID.
The id of a version is its number; a version of another schema, or one whose number another version
had, has an id from :data:`FIRST_OTHER` on. Ids are those of one reader, so tables hold none.

A version is used by its status:

- ``AVAILABLE``: records of it are decoded, and the newest one defines the table.
- ``DELETING``: AWS still returns its definition, so records of it are decoded.
- ``PENDING``: AWS still checks whether it is compatible. A topic with records of it waits.
- ``FAILURE``: it is not compatible: records of it are malformed.

Schemas of AWS Glue have no references.

Source: AWS Glue's API, "Schema Registry"; default names by ``AWSSchemaNamingStrategyDefaultImpl``
(Java), which is the topic's name, of keys as of values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, cast
from uuid import UUID

from botocore.exceptions import BotoCoreError, ClientError
from cachetools import LRUCache

from topicberg.clients.answers import unusable
from topicberg.clients.aws import every
from topicberg.errors import TableflowError, UnreachableError
from topicberg.errors.meaning import explain, means
from topicberg.errors.table import MISSING
from topicberg.formats.registry import within_limits
from topicberg.formats.subjects import MAX_SCHEMA_BYTES, RegisteredSchema, SchemaType, Subject
from topicberg.formats.table import BY_SCHEMA_TYPE

NAME = "AWS Glue Schema Registry"
RIGHTS = "glue:ListSchemaVersions on the registry and its schemas, and glue:GetSchemaVersion on *"
"""What the reader of schemas needs; a version is looked up by its UUID, whose schema is not known
before: AWS's "IAM examples for deserializers"."""
FIRST_OTHER = 100_001  # AWS's greatest number of a version is 100,000.
FRESH_SECONDS = 15.0
"""How long the list of a schema's versions is not read again, unless a record names a new one."""
MAX_CACHED, MAX_CACHED_CHARACTERS = 2_000, 64 * MAX_SCHEMA_BYTES
"""Versions whose definitions are kept, by number and by characters."""
_PAGE = 100
_DECODED = ("AVAILABLE", "DELETING")


@dataclass(frozen=True)
class GlueVersion:
    """A version of a schema, and its definition; its status is that of when it was read."""

    uuid: UUID
    registry: str
    schema_name: str
    number: int
    status: str
    schema: RegisteredSchema

    @property
    def context(self) -> str:
        return f"{self.registry}/{self.schema_name}"


class _Listed(NamedTuple):
    number: int
    uuid: UUID
    status: str


class GlueReader:
    """Reads one registry of AWS Glue; versions are immutable and therefore read only once.

    The methods raise :class:`TopicbergError` if AWS does not answer, or refuses.
    """

    name = NAME

    def __init__(
        self, client: Any, registry: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        """:param client: boto3's of Glue"""
        self._client, self._registry, self._now = client, registry, now
        self._listed: dict[str, tuple[float, list[_Listed]]] = {}
        self._versions: LRUCache[UUID, GlueVersion] = LRUCache(
            MAX_CACHED_CHARACTERS,
            getsizeof=lambda version: max(version.schema.size, MAX_CACHED_CHARACTERS // MAX_CACHED),
        )
        self._ids: dict[str, dict[UUID, int]] = {}

    def context(self, subject: str) -> str:
        """Return what the ids of a schema's versions, and of others seen from it, are unique in."""
        return f"{self._registry}/{subject}"

    def newest(self, name: str) -> GlueVersion:
        """Return the newest version of a schema that is available.

        :raises TableflowError: the schema does not exist, or no version is available
        """
        if not (listed := self._list(name)):
            raise TableflowError(
                f"registry {self._registry} of {NAME} has no schema {name}",
                hint="let the producer register it, set `subject` of the spec to the schema's name "
                "in AWS Glue, or TOPICBERG_GLUE_SCHEMA_REGISTRY to its registry",
            )
        available = [entry for entry in listed if entry.status == "AVAILABLE"]
        if not available:
            raise TableflowError(
                f"schema {name} of {NAME} has no available version: the newest one, "
                f"{listed[-1].number}, is {listed[-1].status}",
                hint="register a version that is compatible",
            )
        if (version := self.version(available[-1].uuid)) is None:
            self._listed.pop(name, None)
            raise UnreachableError(
                f"{NAME}: version {available[-1].number} of schema {name} was deleted while it was "
                "read",
                hint="wait: the versions are read again",
            )
        return version

    def read(self, name: str) -> Subject:
        """Return the versions of a schema; see :meth:`newest`."""
        newest, context = self.newest(name), self.context(name)
        others = [entry for entry in self._list(name) if entry.status in _DECODED]
        uuids = dict.fromkeys([newest.uuid, *(entry.uuid for entry in reversed(others))])
        versions = (version for uuid in uuids if (version := self.version(uuid)) is not None)
        schemas = within_limits(
            replace(
                glue_version.schema,
                schema_id=self._id(context, context, glue_version.uuid, glue_version.number),
            )
            for glue_version in versions
        )
        return Subject.of(name, schemas, self.guids(context))

    def by_id(self, schema_id: int, context: str) -> RegisteredSchema | None:
        """Return the schema of a version that :meth:`id_of` gave an id; None: it gave none."""
        uuids = {number: uuid for uuid, number in self._ids.get(context, {}).items()}
        version = self.version(uuids[schema_id]) if schema_id in uuids else None
        return None if version is None else replace(version.schema, schema_id=schema_id)

    def id_of(self, guid: UUID, context: str) -> int | None:
        """Return the id of a version; None: there is no such version. See :meth:`version`."""
        if (version := self.version(guid)) is None:
            return None
        if version.context == context and guid not in self._ids.get(context, {}):
            self._listed.pop(version.schema_name, None)  # it was registered since
            listed = {entry.uuid for entry in self._list(version.schema_name)}
            if version.status == "AVAILABLE" and guid not in listed:
                # The table would not have the fields that it adds.
                raise UnreachableError(
                    f"{NAME} does not list version {version.number} of schema "
                    f"{version.schema_name} yet",
                    hint="wait: the versions are read again",
                )
        return self._id(context, version.context, guid, version.number)

    def guids(self, context: str) -> dict[UUID, int]:
        """Return the known versions of a context, and their ids."""
        return dict(self._ids.get(context, {}))

    def version(self, uuid: UUID) -> GlueVersion | None:
        """Return a version by its UUID, of any schema; None: there is none.

        :raises TableflowError: it is not compatible with its schema
        """
        if uuid in self._versions:
            return self._versions[uuid]
        with _glue_errors(f"schema version {uuid}"):
            answer = _if_found(self._client.get_schema_version, SchemaVersionId=str(uuid))
        if answer is None:
            return None
        version = _version(uuid, answer)
        title = f"version {version.number} of schema {version.schema_name}"
        if version.status == "PENDING":
            raise UnreachableError(
                f"{NAME} still checks whether {title} is compatible (PENDING)",
                hint="wait: the topic continues when the version is available",
            )
        if version.status not in _DECODED:
            problem = "it is not compatible with those before it"
            raise TableflowError(f"{title} has the status {version.status}: {problem}")
        self._versions[uuid] = version
        return version

    def _list(self, name: str) -> list[_Listed]:
        """Return the versions of a schema, the oldest one first; empty: it does not exist."""
        read_at, listed = self._listed.get(name, (0.0, []))
        if listed and self._now() - read_at < FRESH_SECONDS:
            return listed
        called = {
            "SchemaId": {"SchemaName": name, "RegistryName": self._registry},
            "PaginationConfig": {"PageSize": _PAGE},
        }
        with _glue_errors(f"schema {name} of registry {self._registry}"):
            summaries = _if_found(
                lambda: [*every(self._client, "list_schema_versions", "Schemas", **called)]
            )
        rows = [(s["VersionNumber"], s["SchemaVersionId"], s["Status"]) for s in summaries or ()]
        try:
            listed = [_Listed(int(n), UUID(str(uuid)), str(status)) for n, uuid, status in rows]
        except ValueError:
            raise unusable("Glue ListSchemaVersions", "UUIDs of versions") from None
        self._listed[name] = self._now(), sorted(listed, key=attrgetter("number"))
        return self._listed[name][1]

    def _id(self, context: str, own: str, uuid: UUID, number: int) -> int:
        """Return the id that a version has in a context; ``own``: that of its schema."""
        ids = self._ids.setdefault(context, {})
        if uuid not in ids:
            is_free = own == context and number not in ids.values()
            ids[uuid] = number if is_free else max([FIRST_OTHER - 1, *ids.values()]) + 1
        return ids[uuid]


def _version(uuid: UUID, answer: Any) -> GlueVersion:
    """:raises AnswerError: the answer is not AWS's"""
    called = f"Glue GetSchemaVersion ({uuid})"
    language, text = str(answer["DataFormat"]), str(answer["SchemaDefinition"])
    *_, registry, name = ("", *str(answer["SchemaArn"]).split("/"))
    if language not in BY_SCHEMA_TYPE or not registry or not name:
        raise unusable(called, "a data format and the ARN of a schema")
    is_large = len(text) > MAX_SCHEMA_BYTES
    schema = RegisteredSchema(
        0,
        cast("SchemaType", language),
        "" if is_large else text,
        has_glue_index=language == "PROTOBUF" and not is_large,
        problem=f"the schema has more than {MAX_SCHEMA_BYTES} characters" if is_large else None,
    )
    number, status = int(answer["VersionNumber"]), str(answer["Status"])
    return GlueVersion(uuid, registry, name, number, status, schema)


def _if_found(call: Callable[..., Any], **parameters: Any) -> Any:
    """Return what AWS returns, or None if it does not have it."""
    try:
        return call(**parameters)
    except ClientError as error:
        if not means(error, MISSING):
            raise
        return None


@contextmanager
def _glue_errors(resource: str) -> Iterator[None]:
    """Turn errors of boto3's client into one clear error that names ``resource``."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        rights = f"grant {RIGHTS} to the user of this process"
        raise explain(f"{NAME} ({resource})", error, rights=rights) from error
