"""The schemas of a subject, as the registry has them at the moment."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.schema_registry.error import SchemaRegistryError

from topicberg.errors import TableflowError
from topicberg.kafka import registry_errors

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

MAGIC_BYTE = 0


@dataclass(frozen=True)
class Subject:
    """Every version of a subject's schema.

    ``schemas``: schema id → schema text of every version. ``latest``: text of the newest version,
    which defines the table.
    """

    name: str
    schemas: Mapping[int, str]
    latest: str


def wire_prefix(schema_id: int) -> bytes:
    """The five bytes in front of a record: magic byte and big-endian schema id (wire format)."""
    return struct.pack(">bI", MAGIC_BYTE, schema_id)


class SubjectReader:
    """Reads subjects from the registry; versions are immutable and therefore read only once."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self._versions: dict[tuple[str, int], tuple[int, str]] = {}

    def read(self, name: str) -> Subject:
        """All versions of a subject.


        :raises TableflowError: the subject does not exist
        :raises TopicbergError: the registry does not answer
        """
        with registry_errors(f"subject {name}"):
            try:
                versions = sorted(self._client.get_versions(name))
            except SchemaRegistryError as error:
                if error.http_status_code != 404:
                    raise
                raise TableflowError(
                    f"subject {name} does not exist in the schema registry",
                    hint="a topic without a schema has no table: register its value schema",
                ) from None
            for version in versions:
                if (name, version) not in self._versions:
                    self._versions[name, version] = self._get(name, version)
        return Subject(
            name=name,
            schemas=dict(self._versions[name, version] for version in versions),
            latest=self._versions[name, versions[-1]][1],
        )

    def by_id(self, schema_id: int) -> str | None:
        """The text of any schema of the registry; None if it has no such id."""
        with registry_errors(f"schema {schema_id}"):
            try:
                return self._client.get_schema(schema_id).schema_str
            except SchemaRegistryError as error:
                if error.http_status_code == 404:
                    return None
                raise

    def _get(self, name: str, version: int) -> tuple[int, str]:
        registered = self._client.get_version(name, version)
        text = registered.schema.schema_str if registered.schema else None
        if text is None or registered.schema_id is None:
            raise TableflowError(f"subject {name}: version {version} has no schema")
        return registered.schema_id, text
