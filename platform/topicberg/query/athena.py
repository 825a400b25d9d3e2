"""SQL by Amazon Athena, on the tables that AWS Glue knows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.naming import Names
from topicberg.settings import Settings

FIRST_SECONDS, LONGEST_SECONDS = 0.3, 3.0
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class AthenaError(TopicbergError):
    """Athena refused the query, or could not run it."""


def ask(
    sql: str,
    endpoints: Endpoints,
    config: Settings,
    max_rows: int | None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return columns and rows, at most ``max_rows`` and one more.

    Interrupting it stops the query, which would go on and cost.

    :raises AthenaError: with Athena's own words
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from topicberg.errors.aws import login_hint, refusal_of

    if config.deployment == "local":
        raise AthenaError(
            "Athena is a service of AWS, and the local AWS emulator runs no queries",
            hint="use --engine duckdb, or set TOPICBERG_DEPLOYMENT=cloud",
        )
    client = endpoints.boto3("athena", config)
    workgroup, query = Names(config.prefix).athena_workgroup, ""
    try:
        query = client.start_query_execution(
            QueryString=sql,
            WorkGroup=workgroup,
            QueryExecutionContext={
                "Catalog": "AwsDataCatalog",
                "Database": config.topics_namespace,
            },
        )["QueryExecutionId"]
        _wait(client, query, sleep)
        return _rows(client, query, max_rows)
    except ClientError as error:
        code, message, _ = refusal_of(error)
        raise AthenaError(
            f"athena: {code}: {message}",
            hint=f"run `topicberg deploy create`, which creates workgroup {workgroup}"
            if "WorkGroup" in message and "not found" in message
            else login_hint(error, None)
            or "check that your AWS profile may use Athena, Glue and both buckets",
        ) from None
    except BotoCoreError as error:
        raise AthenaError(
            f"athena: {error}",
            hint=login_hint(error, None) or "check the profile: `aws sts get-caller-identity`",
        ) from None
    except KeyboardInterrupt:
        if query:
            client.stop_query_execution(QueryExecutionId=query)
        raise


def _wait(client: Any, query: str, sleep: Callable[[float], None]) -> None:
    """:raises AthenaError: it failed or was cancelled"""
    seconds, poll = FIRST_SECONDS, partial(client.get_query_execution, QueryExecutionId=query)
    while (status := poll()["QueryExecution"]["Status"])["State"] not in ENDED:
        sleep(seconds)
        seconds = min(LONGEST_SECONDS, seconds * 1.5)
    if status["State"] != "SUCCEEDED":
        why = status.get("AthenaError", {}).get("ErrorMessage") or status.get("StateChangeReason")
        raise AthenaError(
            f"athena: query {query} is {status['State']}: {why or 'Athena gives no reason'}",
            hint='check the names: Athena quotes them with "", e.g. "lkc-abc"."airline.sunset"',
        )


def _rows(
    client: Any, query: str, max_rows: int | None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the results. Of a SELECT, the first row repeats the names of the columns."""
    names: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = []
    pages = client.get_paginator("get_query_results").paginate(QueryExecutionId=query)
    for number, page in enumerate(pages):
        columns = page["ResultSet"]["ResultSetMetadata"]["ColumnInfo"]
        names = tuple(column["Name"] for column in columns)
        # What has no type of Python, such as an array, stays text.
        kinds = [_KINDS.get(column["Type"], str) for column in columns]
        for place, row in enumerate(page["ResultSet"]["Rows"]):
            texts = [cell.get("VarCharValue") for cell in row.get("Data", [])]
            if number == place == 0 and tuple(texts) == names:
                continue
            # SHOW and EXPLAIN answer lines, which may have fewer cells.
            texts += [None] * (len(kinds) - len(texts))
            cells = zip(texts, kinds, strict=False)
            rows.append(tuple(None if text is None else kind(text) for text, kind in cells))
            if max_rows is not None and len(rows) > max_rows:
                return names, rows
    return names, rows


def _timestamp(text: str) -> datetime:
    """Return the time; Athena writes ``2026-01-01 10:00:00.123 UTC`` with a zone."""
    return datetime.fromisoformat(text.removesuffix(" UTC") + ("+00:00" if " UTC" in text else ""))


_KINDS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "integer", "bigint"), int),
    **dict.fromkeys(("real", "float", "double"), float),
    "decimal": Decimal,
    "boolean": lambda text: text == "true",
    "date": date.fromisoformat,
    "timestamp": _timestamp,
    "timestamp with time zone": _timestamp,
    "varbinary": lambda text: bytes.fromhex(text.replace(" ", "")),
}
