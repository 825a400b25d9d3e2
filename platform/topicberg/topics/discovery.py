"""What was last found in Kafka and the registry of topics without a spec of their own.

Definitions are loaded from these files, never from Kafka or the registry, so a service that does
not answer changes nothing. :mod:`topicberg.kafka.discovery` writes them.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from topicberg.files import update_file
from topicberg.settings import Settings

logger = logging.getLogger(__name__)

SUFFIXES = {"avro": "avsc", "json": "json", "protobuf": "proto"}
Part = Literal["value", "key"]


class FoundSchema(BaseModel):
    """The newest schema of a subject."""

    format: Literal["avro", "json", "protobuf"]
    version: int
    is_envelope: bool = False
    """It is Debezium's envelope of a change."""


class FoundTopic(BaseModel):
    """A topic in Kafka."""

    partitions: int
    is_compacted: bool
    value: FoundSchema | None = None
    key: FoundSchema | None = None
    looked_at: float = 0.0
    """When its configuration and its schemas were read, in seconds since 1970."""
    problem: str | None = None
    """Why they cannot be read."""


class Discovery(BaseModel):
    """The topics that were found, by name."""

    topics: dict[str, FoundTopic] = Field(default_factory=dict)


def index_file(config: Settings) -> Path:
    """Return the file of the last discovery."""
    return _folder(config) / "topics.json"


def schema_file(config: Settings, topic: str, part: Part, kind: str) -> Path:
    """Return the file of a schema that was found."""
    return _folder(config) / f"{topic}-{part}.{SUFFIXES[kind]}"


def read_discovery(config: Settings) -> Discovery:
    """Return the last discovery; it is empty if there was none."""
    path = index_file(config)
    try:
        return Discovery.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Discovery()
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read, so no discovered topic is known: %s", path, error)
        return Discovery()


def write_discovery(config: Settings, found: Discovery) -> None:
    """Replace the last discovery, if it differs."""
    update_file(index_file(config), found.model_dump_json(exclude_defaults=True))


def _folder(config: Settings) -> Path:
    return config.state_dir / "discovery"
