"""Schemas in the registry, as specs name them: registered, compared, deleted."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from topicberg.clients.registry import CONFLICT, IncompatibleSchemaError, if_found, registry_errors
from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError, TopicbergError
from topicberg.errors.incompatible import refusal
from topicberg.topics.schema import read_schema

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient

    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec
    from topicberg.topics.spec import SchemaSection

logger = logging.getLogger(__name__)


def register_schema(endpoints: Endpoints, subject: str, schema: SchemaSection, path: Path) -> int:
    """Return the id of the schema in the subject; register it if no version of the subject has it.

    The subject gets the compatibility level of the spec, if the spec has one.

    :param schema: the schema section of the topic's spec
    :param path: its file
    :raises IncompatibleSchemaError: the subject's compatibility level does not allow it
    :raises TopicbergError: the registry does not answer, or refuses
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    registry = endpoints.schema_registry_client()
    file_schema = as_registered(schema, path)
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
    """Return the schema of a file as it is registered.

    :param schema: the schema section of the topic's spec
    :raises SpecError: the file is invalid
    """
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
    """Return the versions of the topic's subjects that came after the schema of its spec.

    :returns: subject and version
    :raises SpecError: the spec names no schema file
    :raises TopicbergError: a subject does not have the spec's schema
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
            ours = lookup(registry, subject, as_registered(schema, path))
            if ours is None:
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
    """Delete versions of subjects, as :func:`later_versions` returns them.

    :raises TopicbergError: the registry does not answer, or refuses
    """
    registry = endpoints.schema_registry_client()
    for subject, version in versions:
        with registry_errors(f"the schema of {subject}"):
            registry.delete_version(subject, version)
