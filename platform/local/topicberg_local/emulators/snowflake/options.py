"""Property lists, the common part of Snowflake's DDL: ``NAME = value NAME = (NAME = value …)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topicberg_local.emulators.snowflake.errors import (
    duplicate_property,
    invalid_property,
    missing_options,
)
from topicberg_local.emulators.snowflake.tokens import Stream

Reader = Callable[[Stream, str], Any]
"""Reads the value of a property; the second argument is the property's name, for messages."""

Properties = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """The properties that an object of this kind has, and those that it must be given."""

    kind: str
    readers: Mapping[str, Reader]
    required: tuple[str, ...] = ()

    def read(
        self, stream: Stream, *, until: tuple[str, ...] = (), commas: bool = False
    ) -> Properties:
        """Properties up to the end of the statement, or up to one of the words ``until``.

        :param commas: they may stand between the properties, as they may within parentheses
        """
        properties: Properties = {}
        while stream.peek().kind != "end" and not any(stream.at(word) for word in until):
            if properties and (commas or ")" in until):
                stream.take(",")
            token = stream.peek()
            if token.kind not in ("word", "quoted"):
                raise stream.unexpected()
            name = token.value
            if name not in self.readers:
                raise invalid_property(name, self.kind)
            if name in properties:
                raise duplicate_property(name)
            stream.advance()
            stream.expect("=")
            properties[name] = self.readers[name](stream, name)
        self.complete(properties)
        return properties

    def complete(self, properties: Properties) -> None:
        missing = [name for name in self.required if name not in properties]
        if missing:
            raise missing_options(missing)


def text(stream: Stream, _name: str) -> str:
    return stream.string()


def reference(stream: Stream, _name: str) -> str:
    return stream.reference()


def boolean(stream: Stream, name: str) -> bool:
    return stream.boolean(name)


def integer(stream: Stream, name: str) -> int:
    return stream.integer(name)


def choice(*allowed: str) -> Reader:
    return lambda stream, name: stream.choice(name, allowed)


def listed(member: Reader, *, or_none: bool = False) -> Reader:
    """``(one, …)``.

    :param or_none: there may be none of them
    """

    def read(stream: Stream, name: str) -> list[Any]:
        stream.expect("(")
        members = [] if or_none and stream.at(")") else [member(stream, name)]
        while members and stream.take(","):
            members.append(member(stream, name))
        stream.expect(")")
        return members

    return read


texts = listed(text)


def group(spec: Spec) -> Reader:
    def read(stream: Stream, _name: str) -> Properties:
        stream.expect("(")
        inner = spec.read(stream, until=(")",))
        stream.expect(")")
        return inner

    return read
