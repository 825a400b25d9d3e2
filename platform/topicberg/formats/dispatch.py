"""The functions of a registered schema's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyiceberg.types import NestedField

from topicberg.errors import TableflowError
from topicberg.formats import limits
from topicberg.formats.connect import with_connect_types
from topicberg.formats.contract import Format, ResolvedSchema
from topicberg.formats.limits import refused
from topicberg.formats.subjects import RegisteredSchema
from topicberg.formats.table import BY_SCHEMA_TYPE


def format_of(schema: RegisteredSchema) -> Format:
    """Return the functions of a schema's format; TableflowError: no format has its type."""
    if schema.schema_type not in BY_SCHEMA_TYPE:
        raise TableflowError(
            f"{schema.label} is of the unknown type {schema.schema_type}",
            hint=f"use {', '.join(BY_SCHEMA_TYPE)}",
        )
    return cast("Format", _Guarded(BY_SCHEMA_TYPE[schema.schema_type].load()))


def is_union(schema: RegisteredSchema) -> bool:
    """Return whether the schema is a choice of several event types, which has no single table."""
    return schema.schema_type in BY_SCHEMA_TYPE and format_of(schema).is_union(schema)


def as_record(schema: RegisteredSchema, name: str) -> RegisteredSchema:
    """Return a key's schema as a record with one field, or as it is if it cannot be read."""
    try:
        return format_of(schema).as_record(schema, name)
    except (TableflowError, RecursionError):
        return schema


def as_read(schema: RegisteredSchema, side: str, *, has_connect_types: bool) -> RegisteredSchema:
    """Return the schema by which the keys, or the values, of a topic are decoded.

    :param has_connect_types: types of Connect and Debezium count, as in a change log
    """
    schema = with_connect_types(schema) if has_connect_types else schema
    return as_record(schema, side) if side == "key" else schema


@dataclass(frozen=True)
class _Guarded:
    """A format whose functions refuse a schema at which a parser fails.

    The author of a schema decides what the parsers get. An unexpected exception would be tried
    again for ever, instead of suspending the topic or making the records malformed.
    """

    module: Format

    def fields(
        self, where: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
    ) -> list[NestedField]:
        with refused(where):
            columns = self.module.fields(where, schema, ids, message)
            limits.check_paths(where, columns)
            return columns

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.module, name)

        def guarded(*arguments: Any) -> Any:
            with refused(_subject(arguments)):
                return function(*arguments)

        return guarded


def _subject(arguments: Sequence[Any]) -> str:
    """Return what a call of a format's function is about: a file, or the schema of a writer."""
    for argument in arguments:
        match argument:
            case str():
                return argument
            case (
                RegisteredSchema(schema_id=number)
                | ResolvedSchema(writer=RegisteredSchema(schema_id=number))
            ):
                return f"schema {number}"
    return "the schema"
