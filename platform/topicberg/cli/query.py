"""``topicberg query``: query the tables."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Iterator
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from topicberg.cli.lazy import settings
from topicberg.cli.output import cell, echo, echo_json, print_table, warn
from topicberg.security.text import terminal
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.query import QueryResult
    from topicberg.settings import Settings

TABLE_ROWS = 50


EngineName = Literal["duckdb", "spark", "snowflake", "athena"]
"""As in :mod:`topicberg.query`, which takes long to import."""
OutputFormat = Literal["table", "json", "csv"]


def query(
    sql: Annotated[str, typer.Argument(help='For example "SELECT count(*) FROM stock_trades".')],
    engine: Annotated[
        EngineName,
        typer.Option(
            help="DuckDB and Spark read the Iceberg catalog, Snowflake its own tables, Athena "
            "those of AWS Glue."
        ),
    ] = "duckdb",
    form: Annotated[
        OutputFormat, typer.Option("--format", help="How to print the rows.")
    ] = "table",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Rows to show; by default {TABLE_ROWS} as a table, else all."),
    ] = None,
) -> None:
    """Query the tables with any of the engines.

    The name of a table is enough. Its full name consists of the cluster id and the topic
    ("lkc-local".stock_trades), or, for derived tables, of the pipeline and the table
    (stock_trades.stock_trades_with_totals).

    DuckDB, Snowflake and Athena quote names with "", Spark with ``: "$$offset".
    In Snowflake all tables are in one schema, in upper case.
    """
    from topicberg.query import run_query

    max_rows = limit or (TABLE_ROWS if form == "table" else None)
    started = time.monotonic()
    result = run_query(sql, engine, max_rows=max_rows)
    seconds = time.monotonic() - started
    if form == "json":
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        echo_json(rows, _plain)
    elif form == "csv":
        # A program gets the values as they are; on a terminal they must not act as controls.
        shown = _shown if sys.stdout.isatty() else _plain
        writer = csv.writer(sys.stdout)
        writer.writerows(map(shown, row) for row in (result.columns, *result.rows))
    else:
        _print_table(result, engine, seconds)
    warn(deleted_topics(sql, settings()))


def deleted_topics(sql: str, config: Settings) -> Iterator[str]:
    """Return a note for each table in a query whose topic was deleted."""
    from topicberg.topics.requests import read_requests

    requests, _ = read_requests(config)  # `tableflow status` reports those that cannot be read
    words = {re.sub(r"\W", "_", word.lower()) for word in re.findall(r"[\w.-]+", sql)}
    for name, request in requests.items():
        if request.deleted and re.sub(r"\W", "_", name.lower()) in words:
            yield (
                f"topic {name} was deleted; these are the rows that its table still has: run "
                f"`topicberg tableflow disable {name} --drop-table` to delete them"
            )


def _print_table(result: QueryResult, engine: EngineName, seconds: float) -> None:
    if result.columns:
        numeric = {
            number
            for row in result.rows
            for number, value in enumerate(row)
            if isinstance(value, int | float | Decimal)
        }
        rows_of_cells = ([cell(_shown(value)) for value in row] for row in result.rows)
        print_table(map(cell, result.columns), rows_of_cells, right=numeric)
    more = " shown, there are more" if result.more else ""
    rows = count(len(result.rows), "row")
    echo(f"{rows}{more} · {engine} · {seconds:.1f} s", dim=True, err=True)


def _shown(value: Any) -> str:
    return "" if value is None else terminal(str(_plain(value)))


def _plain(value: Any) -> Any:
    """Return text for values that JSON and CSV cannot represent; binary values in hexadecimal."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value.hex()
        case datetime() | date() | time_of_day():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return value
