"""The switches of the Tableflow engine.

The engine goes by the topics' specs: a topic is materialized if its spec says so, as its spec says.
"""

from __future__ import annotations

from typing import Any, Literal

from topicberg.errors import SpecError
from topicberg.settings import Settings
from topicberg.topics import TopicSpec, load_topic


def enable(
    config: Settings,
    topic: str,
    tableflow: dict[str, Any] | None = None,
    write_mode: Literal["append", "upsert"] | None = None,
) -> TopicSpec:
    """Materialize a topic.

    :param tableflow: fields of ``tableflow:`` in a topic spec
    :param write_mode: of a topic without a spec
    :raises SpecError: the topic has no spec, or a setting is wrong
    """
    spec = load_topic(topic, config)
    if "DELTA" in (tableflow or {}).get("table_formats", []):
        raise SpecError(f"topic {topic}: the engine does not write the table format DELTA")
    return spec


def disable(config: Settings, topic: str) -> None:
    """Materialize it no longer."""


def resume(config: Settings, topic: str) -> None:
    """Let a suspended topic try again."""


def find_topic(config: Settings, topic: str) -> TopicSpec:
    """The spec that the engine goes by."""
    return load_topic(topic, config)
