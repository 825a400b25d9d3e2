"""``topicberg query``: query the tables; ``topicberg peek``: the newest records of a topic."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import date
from datetime import time as time_of_day
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from topicberg.cli.output import (
    AsJson,
    cell,
    echo,
    echo_json,
    load_endpoints,
    print_table,
    settings,
    warn,
)
from topicberg.security.text import terminal
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.query import QueryResult
    from topicberg.settings import Settings

TABLE_ROWS = 50
_MAX_CHARACTERS = 2_000
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
    if form == "json":
        echo_json([dict(zip(result.columns, row, strict=True)) for row in result.rows], _plain)
    elif form == "csv":
        # A program gets the values as they are; on a terminal they must not act as controls.
        shown = _shown if sys.stdout.isatty() else _plain
        rows_of_text = (map(shown, row) for row in (result.columns, *result.rows))
        csv.writer(sys.stdout).writerows(rows_of_text)
    else:
        _print_table(result, engine, time.monotonic() - started)
    warn(deleted_topics(sql, settings()))


def deleted_topics(sql: str, config: Settings) -> Iterator[str]:
    """Return a note for each table in a query whose topic was deleted."""
    from topicberg.topics.requests import read_requests

    words = {re.sub(r"\W", "_", word.lower()) for word in re.findall(r"[\w.-]+", sql)}
    # `tableflow status` reports the requests that cannot be read.
    return (
        f"topic {name} was deleted; these are the rows that its table still has: run "
        f"`topicberg tableflow disable {name} --drop-table` to delete them"
        for name, request in read_requests(config)[0].items()
        if request.deleted and re.sub(r"\W", "_", name.lower()) in words
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
        case date() | time_of_day():  # a datetime is a date, too
            return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def peek(
    topic: Annotated[str, typer.Argument(help="The Kafka topic; it needs no spec.")],
    number: Annotated[int, typer.Option("-n", help="How many records.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the newest records of a topic, decoded by the schemas of the registry.

    For a malformed record, it shows the engine's reason and the record's bytes.
    """
    from topicberg.peek import newest

    config = settings()
    records = newest(topic, number, load_endpoints(config), config)
    if as_json:
        echo_json([vars(record) for record in records])
        return
    for record in records:
        place = f"partition {record.partition}, offset {record.offset}"
        schema = f", schema {record.schema_id}" if record.schema_id is not None else ""
        echo(f"{place}, {record.timestamp or 'no timestamp'}{schema}", bold=True)
        if record.problem:
            echo(f"  malformed: {record.problem}", fg="red")
        echo((f"  {note}" for note in record.notes), fg="yellow")
        echo(f"  key    {_shortened(record.key)}")
        echo(f"  value  {_shortened(record.value)}")
    if not records:
        echo(f"topic {topic} has no records")


def _shortened(value: Any) -> str:
    """Return a value on one line, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.splitlines())
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… ({len(text):,} characters; --json shows all)"
