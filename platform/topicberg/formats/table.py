"""The formats that there are. It imports none of them, as most of them take long to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from topicberg.formats.contract import Format
    from topicberg.formats.subjects import SchemaType

FormatName = Literal["avro", "json", "protobuf"]
"""The names of the formats in specs."""


class FormatEntry(NamedTuple):
    """A format that has schemas."""

    name: FormatName
    """In specs."""
    schema_type: SchemaType
    """Its name in the registry."""
    suffix: str
    """Of the names of its schema files."""
    load: Callable[[], Format]
    """Imports the module with its functions."""


def _avro() -> Format:
    from topicberg.formats import avro

    return avro


def _json() -> Format:
    from topicberg.formats import json

    return json


def _protobuf() -> Format:
    from topicberg.formats import protobuf

    return protobuf


_ENTRIES = (
    FormatEntry("avro", "AVRO", "avsc", _avro),
    FormatEntry("json", "JSON", "json", _json),
    FormatEntry("protobuf", "PROTOBUF", "proto", _protobuf),
)
FORMATS: Mapping[str, FormatEntry] = {entry.name: entry for entry in _ENTRIES}
BY_SCHEMA_TYPE: Mapping[str, FormatEntry] = {entry.schema_type: entry for entry in _ENTRIES}
