"""What was last found in Kafka and the registry of topics without a spec of their own.

Definitions are loaded from these files, never from Kafka or the registry, so a service that does
not answer changes nothing. :mod:`topicberg.kafka.discovery` writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from topicberg.files import update_file
from topicberg.formats.table import FORMATS, FormatName, Part
from topicberg.settings import Settings
from topicberg.topics.schema import Framing

logger = logging.getLogger(__name__)

RAW = frozenset({"none", "text", "string", "bytes"})
"""Formats of keys and values without a schema."""


class SchemaSource(NamedTuple):
    """What a spec says of where the schema of a topic's keys, or values, is; None: by default."""

    subject: str | None = None
    framing: Framing = "confluent"


class FoundSchema(BaseModel):
    """The newest schema of a subject."""

    format: FormatName
    version: int
    is_envelope: bool = False
    """It is Debezium's envelope of a change."""
    subject: str | None = None
    """None: the default one: see :func:`topicberg.topics.spec.default_subject`."""

    @property
    def section(self) -> dict[str, Any]:
        """What it says in a section of a spec."""
        return self.model_dump(include={"format", "subject"}, exclude_none=True)


class FoundTopic(BaseModel):
    """A topic in Kafka."""

    partitions: int
    is_compacted: bool = False
    value: FoundSchema | None = None
    key: FoundSchema | None = None
    looked_at: float = 0.0
    """When its configuration and its schemas were read, in seconds since 1970."""
    problem: str | None = None
    """Why they cannot be read."""


class Discovery(BaseModel):
    """The topics that were found, by name."""

    topics: dict[str, FoundTopic] = Field(default_factory=dict)


def found_document(
    name: str,
    found_topic: FoundTopic,
    pipeline: str,
    given: Mapping[str, Any] = MappingProxyType({}),
    *,
    own_engine: bool,
) -> dict[str, Any] | None:
    """Return the spec of a topic by what Kafka and the registry have of it; None: they have no
    schema of the values. It is the one rule for topics without a spec of their own.

    :param given: fields of the spec that a pattern, or the command, has; before ``pipeline``
    """
    schema, key = dict(given.get("schema") or {}), dict(given.get("key") or {})
    own = schema.get("format") in RAW or (
        schema.get("framing") == "none" and schema.keys() & {"file", "subject"}
    )
    if not own and found_topic.value is None:
        return None
    if not own and found_topic.value is not None:
        schema |= found_topic.value.section
    document: dict[str, Any] = {"name": name, "pipeline": pipeline, **given, "schema": schema}
    document |= {"external": True, "partitions": found_topic.partitions}
    is_change = bool(own_engine and found_topic.value and found_topic.value.is_envelope)
    if is_change and not own and "changelog" not in given:
        document["changelog"] = {"format": "debezium"}
    is_change = bool(document.get("changelog"))
    # Bytes without a schema; the keys of changes have one, or a table has no primary key.
    own_key: dict[str, Any] = {"format": "none" if is_change else "bytes"}
    if found_topic.key is not None and key.get("format") not in RAW:
        own_key = found_topic.key.section
    document["key"] = key = own_key | key
    if "write_mode" not in given:
        # The key of a change is written as its value is.
        is_upsert = key["format"] == schema["format"] if is_change else found_topic.is_compacted
        document["write_mode"] = "upsert" if is_upsert else "append"
    return document


def index_file(config: Settings) -> Path:
    """Return the file of the last discovery."""
    return _folder(config) / "topics.json"


def schema_file(config: Settings, topic: str, part: Part, kind: str) -> Path:
    """Return the file of a schema that was found."""
    return _folder(config) / f"{topic}-{part}.{FORMATS[kind].suffix}"


def read_discovery(config: Settings) -> Discovery:
    """Return the last discovery; it is empty if there was none."""
    path = index_file(config)
    try:
        return Discovery.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("%s cannot be read, so no discovered topic is known: %s", path, error)
        return Discovery()


def write_discovery(config: Settings, discovery: Discovery) -> None:
    """Replace the last discovery, if it differs."""
    update_file(index_file(config), discovery.model_dump_json(exclude_defaults=True))


def _folder(config: Settings) -> Path:
    return config.state_dir / "discovery"
