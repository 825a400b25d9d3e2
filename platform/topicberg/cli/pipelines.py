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
        found = [one for one in compile_tables(lake, spark) if table in (None, one.table)]
    if as_json:
        echo_json([asdict(one) for one in found])
    else:
        for one in found:
            if one.problem is None:
                echo(f"{one.table} ({one.file}): {count(len(one.columns), 'column')}")
            if one.problem is None and table is not None:
                for column in one.columns:
                    described = f"  {column.description}" if column.description else ""
                    echo(f"  {column.name}: {column.type}{described}")
    wrong = [one for one in found if one.problem is not None]
    for one in wrong:
        hint = f"\n  → {one.hint}" if one.hint else ""
        echo(f"{one.table} ({one.file}): {one.problem}{hint}", fg="red", err=True)
    if wrong:
        raise typer.Exit(2)
