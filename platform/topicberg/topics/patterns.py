"""Specs by pattern: one file describes all topics of Kafka whose names match.

The file has the field ``topics`` only::

    topics:
      match: "orders.*"
      exclude: ["*.dlq"]
      defaults: {pipeline: shop, freshness: {warn_minutes: 15, fail_minutes: 60}}

Each topic that was discovered (:mod:`topicberg.topics.discovery`) and matches gets a spec of these
defaults and of what Kafka and the registry have.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from topicberg.topics.schema import SECTIONS
from topicberg.topics.spec import SpecModel

FIELD = "topics"
INTERNAL = ("_", "topicberg.")
"""Beginnings of the names of internal topics, which no pattern matches."""
_OF_KAFKA = ("name", "partitions", "topic_config", "external", "generator", "publishes")
_OF_REGISTRY = ("file", "subject", "compatibility")
"""What Confluent's registry says, unless the records name none of its schemas."""


def _expression(text: str) -> str | None:
    """Return the regular expression between slashes; None: the text is not one."""
    is_one = len(text) > 1 and text.startswith("/") and text.endswith("/")
    return text[1:-1] if is_one else None


def _pattern(text: str) -> str:
    if (expression := _expression(text)) is not None:
        try:
            re.compile(expression)
        except re.error as error:
            raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    elif text.startswith(INTERNAL):
        raise ValueError(
            f"{text!r} can only match internal topics; write a spec of its own for such a topic"
        )
    return text


Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1), AfterValidator(_pattern)], ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


def _defaults(values: dict[str, Any]) -> dict[str, Any]:
    fields = [name for name in _OF_KAFKA if name in values]
    for section in SECTIONS.values():
        given = values.get(section)
        if isinstance(given, dict) and given.get("framing") not in ("none", "glue"):
            fields += [f"{section}.{name}" for name in _OF_REGISTRY if name in given]
    if fields:
        raise ValueError(
            f"{', '.join(fields)}: the topics exist, and Kafka and the registry say what they are; "
            "remove this, or write a spec of its own for the topic"
        )
    return values


class TopicPattern(SpecModel):
    """The field ``topics`` of a file."""

    match: Annotated[Patterns, Field(min_length=1)]
    """Names with wildcards (``*``, ``?``, ``[…]``), or a regular expression between slashes."""
    exclude: Patterns = ()
    """Names that do not match, written in the same way."""
    defaults: Annotated[dict[str, Any], AfterValidator(_defaults)] = Field(default_factory=dict)
    """Fields of a topic spec, which each topic gets."""

    def matches(self, name: str) -> bool:
        """Return whether the pattern is for the topic; it never is for internal topics."""
        if name.startswith(INTERNAL):
            return False
        return matches(self.match, name) and not matches(self.exclude, name)


def is_pattern(text: str) -> bool:
    """Return whether a text cannot be the name of a topic, but can match names."""
    return text.startswith("/") or not set(text).isdisjoint("*?[")


def matches(patterns: Collection[str], name: str) -> bool:
    return any(
        fnmatchcase(name, text) if (own := _expression(text)) is None else re.fullmatch(own, name)
        for text in patterns
    )
