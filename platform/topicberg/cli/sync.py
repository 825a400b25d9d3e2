"""``topicberg sync``: updates Glue and Snowflake to the state of an Iceberg table."""

from __future__ import annotations

from typing import Annotated

import typer

from topicberg.cli.compute import load_lake
from topicberg.cli.lazy import settings
from topicberg.cli.output import echo
from topicberg.errors import TopicbergError
from topicberg.wording import count


def sync(
    table: Annotated[str, typer.Argument(help="its name in the asset graph, e.g. stock_trades")],
) -> None:
    """Let Glue point to the table's current metadata, and refresh the Snowflake table.

    This is the same as materializing glue/TABLE and snowflake/TABLE in the UI.
    """
    from topicberg.catalogs import glue
    from topicberg.catalogs.snowflake.tables import sync
    from topicberg.orchestration.resources import Lakehouse, Snowflake

    config = settings()
    tables = {lake_table.name: lake_table for lake_table in load_lake(config).tables}
    if table not in tables:
        raise TopicbergError(f"no table {table!r}", hint=f"use one of {', '.join(sorted(tables))}")
    chosen, lakehouse = tables[table], Lakehouse()
    iceberg = lakehouse.catalog().load_table(chosen.identifier)
    moved = glue.register(lakehouse.glue(), iceberg, *chosen.glue_table)
    echo(f"Glue: {'points to' if moved else 'pointed already to'} {iceberg.metadata_location}")
    with Snowflake().connection() as connection:
        names = chosen.snowflake_name, chosen.snowflake_source
        state = iceberg.location(), iceberg.format_version
        seen = sync(connection, config, *names, *state)
    echo(f"Snowflake: {count(seen.rows, 'row')}")
