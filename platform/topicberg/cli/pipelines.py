"""``topicberg pipelines``: the derived tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from topicberg.cli.compute import load_lake
from topicberg.cli.lazy import settings
from topicberg.cli.output import echo, echo_json
from topicberg.errors import TopicbergError
from topicberg.wording import count, suggestion

app = typer.Typer(help="Check the derived tables.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Check the derived tables."""


@app.command()
def check(
    table: Annotated[str | None, typer.Argument(help="One table; all by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With columns, as JSON.")] = False,
) -> None:
    """Compile every derived table against the schema files of its sources, without a run.

    Errors name unknown columns with similar ones. Spark must run; no table and no record is read.
    """
    from topicberg.orchestration.assets.compilation import compile_tables
    from topicberg.testing import spark_session

    lake = load_lake(settings())
    if table is not None and table not in lake.derived_by_name:
        raise TopicbergError(f"no derived table {table!r}{suggestion(table, lake.derived_by_name)}")
    with spark_session() as spark:
        compiled_tables = [
            compiled for compiled in compile_tables(lake, spark) if table in (None, compiled.table)
        ]
    if as_json:
        echo_json([asdict(compiled) for compiled in compiled_tables])
    else:
        for compiled in compiled_tables:
            if compiled.problem is not None:
                continue
            echo(f"{compiled.table} ({compiled.file}): {count(len(compiled.columns), 'column')}")
            for column in compiled.columns if table is not None else ():
                described = f"  {column.description}" if column.description else ""
                echo(f"  {column.name}: {column.type}{described}")
    wrong = [compiled for compiled in compiled_tables if compiled.problem is not None]
    for compiled in wrong:
        hint = f"\n  → {compiled.hint}" if compiled.hint else ""
        echo(f"{compiled.table} ({compiled.file}): {compiled.problem}{hint}", fg="red", err=True)
    if wrong:
        raise typer.Exit(2)
