"""Compare the schema files of a topic with the schema registry, and register or pull schemas.

Producers register the schemas that they write with. topicberg registers those of the schema files:
when the engine starts with a topic, when a generator or a published table writes to it, when
``iceberg/<topic>`` is materialized, by ``topicberg deploy create`` in the cloud, and at any time by
``topicberg topics register``.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from confluent_kafka.schema_registry import SchemaRegistryClient

from topicberg.clients.registry import registry_errors
from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError
from topicberg.kafka import schemas
from topicberg.settings import Settings
from topicberg.topics.spec import SchemaSection, TopicSpec

State = Literal["equal", "not registered", "registry is ahead"]
_THREADS = 8


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
    """Compare the schema files of a topic with the newest versions of their subjects.

    :raises SpecError: a schema file is invalid
    :raises TopicbergError: the registry does not answer, or refuses
    """
    registry = endpoints.schema_registry_client()
    return [_compare(registry, spec.name, *one) for one in spec.schema_files(config)]


def compare_all(
    specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings
) -> list[FileState]:
    """Compare the schema files of several topics, at most eight at a time.

    :raises TopicbergError: as :func:`compare`
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda spec: compare(spec, endpoints, config), specs)
        return [state for states in found for state in states]


def _compare(
    registry: SchemaRegistryClient, topic: str, subject: str, schema: SchemaSection, path: Path
) -> FileState:
    file_schema = schemas.as_registered(schema, path)
    with registry_errors(f"subject {subject}"):
        latest = schemas.latest_version(registry, subject)
        if latest is None:
            return FileState(topic, subject, path.name, None, None)
        registered = schemas.lookup(registry, subject, file_schema)
        if registered is not None:
            return FileState(topic, subject, path.name, registered.version, latest.version)
        level = schema.compatibility or schemas.compatibility(registry, subject)
        acceptable = None
        if schema.compatibility in (None, schemas.compatibility(registry, subject)):
            acceptable = registry.test_compatibility(subject, file_schema)
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
    """Register the schema files of a topic that no version of their subjects has.

    :returns: the state of the files afterwards
    :raises IncompatibleSchemaError: a subject's compatibility level does not allow it
    :raises TopicbergError: the registry does not answer, or refuses
    """
    for subject, schema, path in spec.schema_files(config):
        schemas.register_schema(endpoints, subject, schema, path)
    return compare(spec, endpoints, config)


def pull(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> list[Path]:
    """Write the newest versions of the topic's subjects to its schema files.

    :returns: the files that changed
    :raises SpecError: a subject does not exist, its schema refers to others, or a file has a schema
        that is not registered
    :raises TopicbergError: the registry does not answer, or refuses
    """
    registry = endpoints.schema_registry_client()
    written = []
    for subject, schema, path in spec.schema_files(config):
        with registry_errors(f"subject {subject}"):
            latest = schemas.latest_version(registry, subject)
            if latest is None or latest.schema is None:
                raise SpecError(
                    f"subject {subject} does not exist in the schema registry",
                    hint=f"run `topicberg topics register {spec.name}`",
                )
            registered = schemas.lookup(registry, subject, schemas.as_registered(schema, path))
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
