"""Sessions of Snowflake: statements, their rows, and what Snowflake's functions return."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from topicberg.clients.answers import VendorAnswer, answered, unusable

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection


NOT_THERE = (2003, 2043)
"""Snowflake's error numbers for an object that does not exist (or that one may not see)."""
LIBRARY = "snowflake.connector"
TIMEOUTS = {"login_timeout": 60, "network_timeout": 900}
"""Seconds, as options of the connector: of a login, and of a statement with all that the connector
repeats while the network fails. That is for ever by default, so that a thread would outlive the
process that waits for it."""


def ask(
    connection: SnowflakeConnection, statement: str, most: int | None = None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Columns and rows of a statement.

    :param most: rows to fetch; None: all
    :raises AnswerError: what answers is not Snowflake
    """
    with answered(_called(statement), "columns and rows", LIBRARY):
        cursor = connection.cursor()
        cursor.execute(statement)
        columns = tuple(column.name for column in cursor.description or ())
        rows = cursor.fetchall() if most is None else cursor.fetchmany(most)
        return columns, [tuple(row) for row in rows]


def logging_in() -> AbstractContextManager[None]:
    """Around what opens a connection; raises an AnswerError if what answers is not Snowflake."""
    return answered("Snowflake (login)", "a session", LIBRARY)


def records(connection: SnowflakeConnection, statement: str) -> list[VendorAnswer]:
    """Return the rows of a statement: column in lower case → value."""
    columns, rows = ask(connection, statement)
    names, request = [column.lower() for column in columns], _called(statement)
    objects = (dict(zip(names, row, strict=True)) for row in rows)
    return [VendorAnswer(each, request, is_certain=True) for each in objects]


def _called(statement: str) -> str:
    """Return the first words of a statement; the others may have secrets."""
    return f"Snowflake ({' '.join(statement.split()[:3])} …)"


def parsed(value: Any, statement: str) -> VendorAnswer:
    """The object that a system function answers as text; raises an AnswerError if it is none."""
    request, response = f"Snowflake ({statement})", None
    with suppress(TypeError, ValueError):
        response = json.loads(value)
    if not isinstance(response, dict):
        raise unusable(request, "an object of JSON")
    return VendorAnswer(response, request, is_certain=True)


def _value(connection: SnowflakeConnection, statement: str) -> Any:
    _, rows = ask(connection, statement)
    if len(rows) != 1 or len(rows[0]) != 1:
        raise unusable(f"Snowflake ({statement})", "one value")
    return rows[0][0]
