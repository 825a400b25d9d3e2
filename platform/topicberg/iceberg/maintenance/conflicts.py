"""Commits beside a running engine: Spark's procedures, and retries after conflicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import wait_random_exponential

from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import TopicbergError, first_line
from topicberg.errors.retry import conflicts, retry
from topicberg.settings import settings
from topicberg.spark import new_session, quote

if TYPE_CHECKING:
    from pyspark.sql import Row

ATTEMPTS = 5

Result = TypeVar("Result")


def retried(name: str, work: Callable[[], Result]) -> Result:
    """Do the work again, after a while, if another commit came first.

    :param work: starts from the newest state of the table each time
    :raises CommitConflictError: every attempt conflicted with another commit
    """
    attempt = conflicts(f"table {name}")(work)
    return retry(attempt, ATTEMPTS, wait=wait_random_exponential(multiplier=0.5, max=15))


def spark_sql(
    endpoints: Endpoints, table: str, statement: str, conf: Mapping[str, str] | None = None
) -> list[Row]:
    """Run one statement in a session of its own, so that it stages nothing (``spark.wap.id``).

    :param table: its name, for messages
    :param conf: properties of the session
    :raises CommitConflictError: another commit came first
    :raises TopicbergError: Spark failed
    """
    from pyspark.errors import PySparkException

    login, _ = endpoints.spark_session(settings())
    session: Any = new_session(endpoints.spark_connect, {**login, **(conf or {})})
    try:
        with conflicts(f"table {table}"):
            return list(session.sql(statement).collect())
    except PySparkException as error:
        raise TopicbergError(f"table {table}: Spark failed: {first_line(error)}") from error
    finally:
        with suppress(Exception):  # if the server has ended, so has the session
            session.stop()


def call(
    endpoints: Endpoints, identifier: tuple[str, str], procedure: str, arguments: dict[str, str]
) -> Row:
    """Call one of Iceberg's procedures, whose arguments are SQL; return its only row."""
    arguments = {"table": literal(quote(*identifier)), **arguments}
    listed = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    statement = f"CALL {CATALOG}.system.{procedure}({listed})"
    return spark_sql(endpoints, ".".join(identifier), statement)[0]


def literal(text: str) -> str:
    """Return a string for Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
