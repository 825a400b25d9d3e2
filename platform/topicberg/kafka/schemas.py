"""Schemas in the registry, as specs name them: registered, compared, pulled, deleted.

Producers register the schemas that they write with. topicberg registers those of the schema files:
when the engine starts with a topic, when a generator or a published table writes to it, when
``iceberg/<topic>`` is materialized, by ``topicberg deploy create`` in the cloud, and at any time by
``topicberg topics register``.

The functions raise :class:`SpecError` for an invalid schema file, and :class:`TopicbergError` if
the registry does not answer, or refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from topicberg.clients.registry import CONFLICT, IncompatibleSchemaError, if_found, registry_errors
from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError, TopicbergError
from topicberg.errors.incompatible import refusal
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg.topics.schema import read_schema
from topicberg.topics.spec import SchemaSection

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient

logger = logging.getLogger(__name__)
State = Literal["equal", "not registered", "registry is ahead"]
_THREADS = 8


def register_schema(endpoints: Endpoints, subject: str, schema: SchemaSection, path: Path) -> int:
    """Return the id of the schema in the subject; register it if no version of the subject has it.

    The subject gets the compatibility level of the spec, if the spec has one.

    :param path: the file of the section of the spec
    :raises IncompatibleSchemaError: the subject's compatibility level does not allow it
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    registry, file_schema = endpoints.schema_registry_client(), as_registered(schema, path)
    with registry_errors(f"the schema of {subject}"):
        _set_compatibility(registry, subject, schema.compatibility)
        registered = lookup(registry, subject, file_schema)
        if registered is not None and registered.schema_id is not None:
            return registered.schema_id
        try:
            schema_id = registry.register_schema(subject, file_schema)
        except SchemaRegistryError as error:
            if error.http_status_code != CONFLICT:
                raise
            reason, hint = refusal(error.error_message, compatibility(registry, subject))
            raise IncompatibleSchemaError(
                f"the schema registry refused the schema of {subject} ({path.name}): {reason}",
                hint=hint,
            ) from error
        # A registry may forget the level of a subject that has no versions yet.
        _set_compatibility(registry, subject, schema.compatibility)
    logger.info("registered schema %d as %s", schema_id, subject)
    return schema_id


def as_registered(schema: SchemaSection, path: Path) -> Schema:
    """Return the schema of a section of a spec, and of its file, as it is registered."""
    from confluent_kafka.schema_registry import Schema

    text = read_schema(path, schema.format, schema.message, part="key").text
    return Schema(text, schema.format.upper())


def lookup(registry: SchemaRegistryClient, subject: str, schema: Schema) -> RegisteredSchema | None:
    """Return the version of a subject that has this schema, or None."""
    return if_found(registry.lookup_schema, subject, schema)


def latest_version(registry: SchemaRegistryClient, subject: str) -> RegisteredSchema | None:
    """Return the newest version of a subject, or None if the subject does not exist."""
    return if_found(registry.get_latest_version, subject)


def compatibility(registry: SchemaRegistryClient, subject: str) -> str | None:
    """Return the compatibility level of a subject, or None if the registry does not report it."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    for name in (subject, None):
        with suppress(SchemaRegistryError, KeyError):
            return registry.get_compatibility(name)
    return None


def _set_compatibility(registry: SchemaRegistryClient, subject: str, level: str | None) -> None:
    if level is not None and if_found(registry.get_compatibility, subject) != level:
        registry.set_compatibility(subject, level)


def later_versions(
    spec: TopicSpec, endpoints: Endpoints, config: Settings | None = None
) -> list[tuple[str, int]]:
    """Return subjects and their versions that came after the schema of the topic's spec.

    :raises SpecError: the spec names no schema file
    """
    if not list(spec.schema_files(config)):
        raise SpecError(
            f"the spec of topic {spec.name} names no schema file to return to",
            hint="let the owner of the schemas delete the versions"
            if spec.external
            else "add `schema.file` to the spec",
        )
    registry = endpoints.schema_registry_client()
    later: list[tuple[str, int]] = []
    for subject, schema, path in spec.schema_files(config):
        with registry_errors(f"the schema of {subject}"):
            if (ours := lookup(registry, subject, as_registered(schema, path))) is None:
                raise TopicbergError(
                    f"subject {subject} has no version with the schema of {path.name}",
                    hint=f"run `topicberg topics register {spec.name}`, which registers it",
                )
            versions = registry.get_versions(subject)
            later += [
                (subject, n) for n in versions if ours.version is not None and n > ours.version
            ]
    return later


def delete_versions(versions: list[tuple[str, int]], endpoints: Endpoints) -> None:
    """Delete versions of subjects, as :func:`later_versions` returns them."""
    registry = endpoints.schema_registry_client()
    for subject, version in versions:
        with registry_errors(f"the schema of {subject}"):
            registry.delete_version(subject, version)


@dataclass(frozen=True)
class FileState:
    """A schema file of a topic, compared with its subject.

    :param file: name of the schema file
    :param version: the version that the file is; None: it is not registered
    :param latest: the newest version of the subject; None: the subject does not exist
    :param acceptable: whether the registry would accept the file; None: it has it, or was not asked
    :param level: the subject's compatibility level, if the registry reports it
    """

    topic: str
    subject: str
    file: str
    version: int | None
    latest: int | None
    acceptable: bool | None = None
    level: str | None = None

    @property
    def state(self) -> State:
        if self.version is None:
            return "not registered"
        return "equal" if self.version == self.latest else "registry is ahead"

    @property
    def document(self) -> dict[str, Any]:
        """The state for programs, as JSON."""
        return {
            "subject": self.subject,
            "file": self.file,
            "state": self.state,
            "file_version": self.version,
            "latest_version": self.latest,
        }

    @property
    def what(self) -> str:
        """The state as a sentence without its full stop."""
        if self.state == "equal":
            return f"{self.file} is version {self.latest} of {self.subject}, the newest one"
        if self.version is not None:
            return (
                f"the registry is ahead: {self.file} is version {self.version} of {self.subject}, "
                f"whose newest version is {self.latest}"
            )
        if self.latest is None:
            return f"{self.file} is not registered: subject {self.subject} does not exist"
        sentence = (
            f"{self.file} is newer than the registry: no version of {self.subject} "
            f"(newest: {self.latest}) has this schema"
        )
        if self.acceptable is False:
            sentence += f", and compatibility {self.level or 'of the subject'} does not allow it"
        return sentence

    @property
    def remediation(self) -> str | None:
        """How to resolve the difference, or None if there is none."""
        if self.state == "equal":
            return None
        if self.state == "registry is ahead":
            return (
                f"run `topicberg topics pull {self.topic}` to write the newest version to the "
                f"file, or `topicberg topics restore-schema {self.topic}` to delete the versions "
                "after the file's"
            )
        if self.acceptable is False:
            return f"run `topicberg topics register {self.topic}` to see why and what to change"
        return (
            f"run `topicberg topics register {self.topic}` to register it; otherwise a producer "
            "that uses it does, or the engine when it is started"
        )


def compare(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> list[FileState]:
    """Compare the schema files of a topic with the newest versions of their subjects."""
    registry = endpoints.schema_registry_client()
    return [_compare(registry, spec.name, *one) for one in spec.schema_files(config)]


def compare_all(
    specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings
) -> list[FileState]:
    """Compare the schema files of several topics, at most eight at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return [*chain(*pool.map(lambda spec: compare(spec, endpoints, config), specs))]


def _compare(
    registry: SchemaRegistryClient, topic: str, subject: str, schema: SchemaSection, path: Path
) -> FileState:
    file_schema = as_registered(schema, path)
    with registry_errors(f"subject {subject}"):
        if (latest := latest_version(registry, subject)) is None:
            return FileState(topic, subject, path.name, None, None)
        if (registered := lookup(registry, subject, file_schema)) is not None:
            return FileState(topic, subject, path.name, registered.version, latest.version)
        acceptable, level = None, compatibility(registry, subject)
        if schema.compatibility in (None, level):
            acceptable = registry.test_compatibility(subject, file_schema)
    level = schema.compatibility or level
    return FileState(topic, subject, path.name, None, latest.version, acceptable, level)


def why_no_files(spec: TopicSpec) -> str:
    """Return why no schema file of a topic belongs into the registry."""
    if own := [section.file for section in (spec.value_schema, spec.key) if section.file]:
        return (
            f"{' and '.join(own)} is not for the registry: the topic's records name no schema "
            "(`framing: none`)"
        )
    if any(section.framing == "glue" for section in (spec.value_schema, spec.key)):
        return "its schemas are in AWS Glue, which topicberg only reads (`framing: glue`)"
    if spec.external:
        return "the topic is external, so its schemas are read from the registry, not from files"
    return "neither its values nor its keys have a schema"


def register(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> list[FileState]:
    """Register schema files of a topic that no version has; return their states afterwards.

    :raises IncompatibleSchemaError: a subject's compatibility level does not allow it
    """
    for subject, schema, path in spec.schema_files(config):
        register_schema(endpoints, subject, schema, path)
    return compare(spec, endpoints, config)


def pull(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> list[Path]:
    """Write the newest versions of the topic's subjects to its schema files; return what changed.

    :raises SpecError: a subject does not exist, its schema refers to others, or a file has a schema
        that is not registered
    """
    registry = endpoints.schema_registry_client()
    written = []
    for subject, schema, path in spec.schema_files(config):
        with registry_errors(f"subject {subject}"):
            if (latest := latest_version(registry, subject)) is None or latest.schema is None:
                raise SpecError(
                    f"subject {subject} does not exist in the schema registry",
                    hint=f"run `topicberg topics register {spec.name}`",
                )
            registered = lookup(registry, subject, as_registered(schema, path))
        if registered is None:
            raise SpecError(
                f"{path.name} has changes that are not registered as {subject}",
                hint=f"run `topicberg topics register {spec.name}` first, or restore the file",
            )
        if registered.version == latest.version:
            continue
        if latest.schema.references:
            raise SpecError(
                f"subject {subject}: version {latest.version} refers to other subjects",
                hint=f"put the definitions into one schema, {path.name}",
            )
        path.write_text(f"{latest.schema.schema_str}\n", encoding="utf-8")
        written.append(path)
    return written
