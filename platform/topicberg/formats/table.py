"""The formats that there are. It imports none of them, as most of them take long to import."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

if TYPE_CHECKING:
    from topicberg.formats.contract import Format
    from topicberg.formats.subjects import SchemaType

FormatName = Literal["avro", "json", "protobuf"]  # The names of the formats in specs.
Part = Literal["value", "key"]  # Of a record.


class FormatEntry(NamedTuple):
    """A format that has schemas."""

    name: FormatName  # In specs.
    schema_type: SchemaType  # Its name in the registry.
    suffix: str  # Of the names of its schema files.

    def load(self) -> Format:
        """Import the module with its functions."""
        return cast("Format", import_module(f"topicberg.formats.{self.name}"))


_ENTRIES = (
    FormatEntry("avro", "AVRO", "avsc"),
    FormatEntry("json", "JSON", "json"),
    FormatEntry("protobuf", "PROTOBUF", "proto"),
)
FORMATS: Mapping[str, FormatEntry] = {entry.name: entry for entry in _ENTRIES}
BY_SCHEMA_TYPE: Mapping[str, FormatEntry] = {entry.schema_type: entry for entry in _ENTRIES}
