"""The limits of schemas, the same for all formats, checked before and while a schema is expanded.

A schema's author decides how large it is, and types that are defined once and used many times
multiply. A schema beyond these limits cannot become a table; records that name it are malformed.
What refuses a schema raises :class:`TableflowError`, which names its subject or file (``where``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats.reasons import shortened
from topicberg.formats.subjects import MAX_SCHEMA_BYTES, RegisteredSchema

P = ParamSpec("P")
Result = TypeVar("Result")
MAX_FIELDS = 10_000
"""Fields, elements, keys and values, including nested ones: Spark takes minutes to plan a query of
so many."""
MAX_DEPTH = 50
"""Nested types."""
MAX_COLLECTIONS = 8
"""Nested Avro arrays and maps: each one may claim millions of items in a few bytes, for which
Avro's reader reserves memory."""
MAX_MEMBERS = 200
"""Types of a union: each is a column of its value."""
MAX_NAME = 255
"""Characters of a field's name: the limit of AWS Glue and Snowflake. Also of a symbol of an Avro
enum: a byte of a record names it."""
MAX_PATHS = 8 * 1024 * 1024
"""Characters of the paths of all columns, each with the names around it."""
_SUBSTITUTION = "${"
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    re.error,
)
"""What a parser raises for a schema that no one expected."""


@contextmanager
def refused(where: str) -> Iterator[None]:
    """Refuse a schema, by a TableflowError, at which a parser fails."""
    try:
        yield
    except RecursionError as error:
        raise too_deep(where) from error
    except UNREADABLE as error:
        raise TableflowError(
            f"{where}: the schema cannot be read: {type(error).__name__}",
            hint="register a schema that is valid in its format",
        ) from error


def remembered(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function of a schema remember results and errors: those are not for every batch."""

    @lru_cache(maxsize=256)
    def attempt(*arguments: P.args, **named: P.kwargs) -> Result | TableflowError:
        try:
            return function(*arguments, **named)
        except TableflowError as error:
            # Its traceback would keep what was parsed in memory.
            return TableflowError(error.message, hint=error.hint)

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> Result:
        outcome = attempt(*arguments, **named)  # type: ignore[arg-type]  # they are hashable
        if isinstance(outcome, TableflowError):
            raise TableflowError(outcome.message, hint=outcome.hint)
        return outcome

    return call


def check_size(where: str, schema: RegisteredSchema) -> None:
    """Refuse a schema that is too large, with its references, to be read."""
    if schema.problem is not None:
        raise TableflowError(f"{where}: {schema.problem}", hint="register a smaller schema")
    if schema.size > MAX_SCHEMA_BYTES:
        raise TableflowError(
            f"{where}: the schema has {schema.size} characters with its references, the limit is "
            f"{MAX_SCHEMA_BYTES}",
            hint="split the schema",
        )


def parsed_json(where: str, schema: RegisteredSchema) -> Any:
    """Return the JSON value that a schema is, without its references, or refuse it."""
    check_size(where, schema)
    try:
        return json.loads(schema.text)
    except RecursionError:
        raise too_deep(where) from None
    except json.JSONDecodeError as error:
        raise TableflowError(
            f"{where} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


def check_unicode(where: str, contents: Any) -> None:
    """Refuse JSON whose text has half of a surrogate pair: no other system can encode it."""
    try:
        json.dumps(contents, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise TableflowError(
            f"{where}: the schema has text that is not valid Unicode", hint="correct the text"
        ) from None


def check_name(where: str, name: str) -> None:
    """Refuse a long name, and one that Spark's substitution would replace if it were enabled."""
    check_length(f"{where}: the name of a field", name)
    if _SUBSTITUTION in name:
        raise TableflowError(
            f"{where}: the name of a field contains {_SUBSTITUTION}", hint="rename the field"
        )


def check_length(described: str, name: str) -> None:
    """:raises TableflowError: the name has too many characters"""
    if len(name) > MAX_NAME:
        raise TableflowError(
            f"{described} has {len(name)} characters, the limit is {MAX_NAME}: {shortened(name)}",
            hint="use a shorter name",
        )


def check_members(where: str, count: int) -> None:
    """:raises TableflowError: a union has too many types"""
    if count > MAX_MEMBERS:
        raise TableflowError(
            f"{where}: a union has {count} types, the limit is {MAX_MEMBERS}",
            hint="split the schema",
        )


def check_paths(where: str, columns: Sequence[T.NestedField]) -> None:
    """:raises TableflowError: the names of nested fields are too long together"""
    if (size := _paths(T.StructType(*columns), 0)) > MAX_PATHS:
        raise TableflowError(
            f"{where}: the paths of all fields have {size} characters, the limit is {MAX_PATHS}",
            hint="use shorter names, or flatten the schema",
        )


def _paths(kind: T.IcebergType, around: int) -> int:
    """:param around: characters of the path to the type"""
    match kind:
        case T.StructType():
            ends = [(field.field_type, around + len(field.name) + 1) for field in kind.fields]
            return sum(end + _paths(inner, end) for inner, end in ends)
        case T.ListType():
            return _paths(kind.element_type, around)
        case T.MapType():
            return _paths(kind.key_type, around) + _paths(kind.value_type, around)
    return 0


def check_depth(where: str, depth: int) -> None:
    """:raises TableflowError: types are nested too deeply"""
    if depth > MAX_DEPTH:
        raise too_deep(where)


def too_deep(where: str) -> TableflowError:
    """Return the error for types that are nested too deeply."""
    return TableflowError(
        f"{where}: the schema is nested too deeply: the limit is {MAX_DEPTH} nested types",
        hint="flatten the schema",
    )


def too_many(where: str) -> TableflowError:
    """Return the error for too many fields."""
    return TableflowError(
        f"{where}: the schema has more than {MAX_FIELDS} fields, including nested ones",
        hint="split the schema",
    )


def bounded(where: str, ids: Iterator[int]) -> Iterator[int]:
    """Yield the ids of a schema's columns, or refuse too many."""
    for count, number in enumerate(ids):
        if count >= MAX_FIELDS:
            raise too_many(where)
        yield number
