"""The columns of a topic's table in Spark, as the schemas that are known here make them."""

from __future__ import annotations

from typing import cast

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from topicberg.errors import SpecError
from topicberg.formats.registry import SchemaReaders, SubjectReader
from topicberg.formats.subjects import RegisteredSchema, Subject
from topicberg.formats.table import FORMATS, Part
from topicberg.settings import Settings
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.topics import TopicSpec


class _KnownSchemas:
    """Reads the schemas of a topic that are known here, as the engine reads those of registries."""

    def __init__(self, spec: TopicSpec, config: Settings) -> None:
        self._spec, self._config = spec, config

    def read(self, name: str) -> Subject:
        """:raises SpecError: the schema is in a registry, and was not read from there yet"""
        part: Part = "value" if name == self._spec.subject("value") else "key"
        if (known := self._spec.known_schema(part, self._config)) is None:
            raise SpecError(
                f"topic {self._spec.name}: its schema {name} is not known yet",
                hint="run `topicberg topics validate`, which reads it from the registry",
            )
        kind = FORMATS[self._spec.section(part).format].schema_type
        schema = RegisteredSchema(0, kind, known.text)
        return Subject(name, {0: schema}, schema)

    def version(self, name: str, _: int | None) -> RegisteredSchema:
        return self.read(name).latest


def topic_columns(spec: TopicSpec, config: Settings) -> StructType:
    """Return the columns of a topic's table, or of its history.

    :raises SpecError: a schema is missing or invalid, or in a registry and not read yet
    """
    known = cast("SubjectReader", _KnownSchemas(spec, config))
    schema = table_schema(spec, read_layout(spec, SchemaReaders(known, lambda: known), config))
    columns = from_arrow_schema(schema.as_arrow(), prefer_timestamp_ntz=True)
    for column, field in zip(columns, schema.fields, strict=True):
        column.metadata = {"comment": field.doc} if field.doc else {}
    return columns
