"""``topicberg pipelines``: the derived tables; ``topicberg sync``: any table in the catalogs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import (
    AsJson,
    Yes,
    complain,
    confirm,
    echo,
    echo_json,
    exit_if,
    load_lake,
    settings,
)
from topicberg.errors import TopicbergError
from topicberg.security.text import one_line
from topicberg.wording import count, suggestion

if TYPE_CHECKING:
    from topicberg.checks.check import CheckedTable
    from topicberg.orchestration.assets import Lake
    from topicberg.orchestration.resources import Lakehouse

app = typer.Typer(help="Check and drop derived tables.", no_args_is_help=True)


@app.command()
def check(
    table: Annotated[str | None, typer.Argument(help="One table; all by default.")] = None,
    as_json: AsJson = False,
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
        compiled_tables = [c for c in compile_tables(lake, spark) if table in (None, c.table)]
    wrong = [compiled for compiled in compiled_tables if compiled.problem is not None]
    if as_json:
        echo_json([asdict(compiled) for compiled in compiled_tables])
    for compiled in compiled_tables if not as_json else ():
        if compiled.problem is None:
            echo(f"{compiled.table} ({compiled.file}): {count(len(compiled.columns), 'column')}")
            for column in compiled.columns if table is not None else ():
                described = f"  {one_line(column.description)}" if column.description else ""
                echo(f"  {column.name}: {column.type}{described}")
    for compiled in wrong:
        hint = f"\n  → {compiled.hint}" if compiled.hint else ""
        complain(f"{compiled.table} ({compiled.file}): {compiled.problem}{hint}")
    exit_if(wrong, 2)


@app.command()
def drop(
    table: Annotated[str, typer.Argument(help="its name, also if the code no longer has it")],
    yes: Yes = False,
) -> None:
    """Delete a derived table with its files, in Iceberg, Glue and Snowflake, and its topics.

    May be repeated. Then remove its function and the specs of its topics: otherwise it is computed
    and published again.
    """
    from topicberg.catalogs import glue
    from topicberg.catalogs.snowflake import tables as snowflake
    from topicberg.kafka import topics as kafka
    from topicberg.orchestration.resources import Lakehouse, Snowflake
    from topicberg.tableflow.table.table import drop

    config = settings()
    lake, lakehouse = load_lake(config), Lakehouse()
    if readers := [each.name for each in lake.derived if table in each.reads]:
        raise TopicbergError(
            f"derived table {table} is read by {', '.join(readers)}",
            hint=f"run `topicberg pipelines drop {readers[0]}` and remove its function first",
        )
    chosen = _droppable(table, lake, lakehouse)
    topics = [spec.name for spec in lake.topics if spec.publishes == table]
    name, names = ".".join(chosen.identifier), ", ".join(topics)
    also = f" and topic {names} with its records" if topics else ""
    confirm(f"Delete table {name} with all its files and snapshots{also}?", yes=yes)
    for topic in topics:
        deleted = kafka.delete_topic(lakehouse.endpoints(), topic)
        echo(f"topic {topic} {'is deleted' if deleted else 'does not exist'}")
    with Snowflake().connection() as connection:
        snowflake.drop(connection, config, chosen.snowflake_name, chosen.snowflake_source)
    # Where Glue is the catalog, both are one table, and it knows the files.
    dropped = drop(lakehouse.catalog(), chosen.identifier)
    glue.delete(lakehouse.glue(), *chosen.glue_table)
    echo(f"{name} {'is deleted' if dropped else 'does not exist'} in Iceberg, Glue and Snowflake")
    if (derived := lake.derived_by_name.get(table)) is not None:
        specs = f", and the spec of {names}" if topics else ""
        echo(f"remove its function from {derived.file}{specs}; otherwise it is computed again")


def _droppable(table: str, lake: Lake, lakehouse: Lakehouse) -> CheckedTable:
    """Return a derived table: of the code, or one that topicberg has computed."""
    from topicberg.checks.check import CheckedTable
    from topicberg.iceberg.tables import find_table
    from topicberg.transforms.target import COMPUTED

    if (derived := lake.derived_by_name.get(table)) is not None:
        return lake.table(derived)
    places = {(spec.namespace(lake.config), table) for spec in lake.topics}
    for identifier in sorted(places - {each.identifier for each in lake.tables}):
        iceberg = find_table(lakehouse.catalog(), identifier)
        if iceberg is not None and COMPUTED in iceberg.properties:
            return CheckedTable(table, identifier)
    raise TopicbergError(
        f"no derived table {table!r}{suggestion(table, lake.derived_by_name)}",
        hint=f"derived tables: {', '.join(sorted(lake.derived_by_name)) or 'none'}; to delete the "
        "table of a topic, run `topicberg tableflow disable TOPIC --drop-table`",
    )


def sync(
    table: Annotated[str, typer.Argument(help="its name in the asset graph, e.g. stock_trades")],
) -> None:
    """Let Glue point to the table's current metadata, and refresh the Snowflake table.

    This is the same as materializing glue/TABLE and snowflake/TABLE in the UI.
    """
    from topicberg.catalogs import glue
    from topicberg.catalogs.snowflake.tables import sync
    from topicberg.orchestration.resources import Lakehouse, Snowflake

    config, lakehouse = settings(), Lakehouse()
    tables = {lake_table.name: lake_table for lake_table in load_lake(config).tables}
    if (chosen := tables.get(table)) is None:
        raise TopicbergError(f"no table {table!r}", hint=f"use one of {', '.join(sorted(tables))}")
    iceberg = lakehouse.catalog().load_table(chosen.identifier)
    moved = glue.register(lakehouse.glue(), iceberg, *chosen.glue_table)
    echo(f"Glue: {'points to' if moved else 'pointed already to'} {iceberg.metadata_location}")
    with Snowflake().connection() as connection:
        seen = sync(
            connection,
            config,
            table=chosen.snowflake_name,
            glue=chosen.snowflake_source,
            location=iceberg.location(),
            version=iceberg.format_version,
        )
    echo(f"Snowflake: {count(seen.rows, 'row')}")
