"""A table of the lake as assets: ``glue/<name>`` and ``snowflake/<name>``."""

# Dagster reads the annotations of an operation's function: no `from __future__ import annotations`.

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.names import TablePath, table_path
from topicberg.catalogs.snowflake.tables import sync
from topicberg.checks.check import CheckedTable
from topicberg.orchestration.assets.metadata import copied_columns, documentation, table_metadata
from topicberg.orchestration.assets.retries import retried
from topicberg.orchestration.resources import Lakehouse, Snowflake
from topicberg.security.text import markdown_lines
from topicberg.settings import settings
from topicberg.topics import TopicSpec

CATALOGS = ("iceberg", "glue", "snowflake")
SNOWFLAKE_POOL = "snowflake"
_PRIORITIES = {"iceberg": 2, "glue": 3, "snowflake": 4}
"""Of steps of one table, in the order in which a run executes what it can (0: computations): a
table reaches Snowflake before the next one is computed, not after all of them."""


@dataclass(frozen=True)
class LakeTable(CheckedTable):
    """A table as Dagster shows it: in which group, and who looks after it."""

    group: str
    owners: tuple[str, ...] = ()

    def key(self, system: str) -> dg.AssetKey:
        return dg.AssetKey([system, self.name])


def kafka_key(spec: TopicSpec) -> dg.AssetKey:
    """The topic itself."""
    return dg.AssetKey(["kafka", spec.asset_name])


def operation_name(key: dg.AssetKey) -> str:
    """Return the name of the operation, and so of the step, that is for this asset only."""
    return "__".join(key.path)


def pool_of(system: str) -> str | None:
    """Return the pool of the operations of a system."""
    return SNOWFLAKE_POOL if system == "snowflake" else None


def priority(number: int) -> dict[str, str]:
    """Return the tags of a step: a run executes the one with the greatest number first.

    https://docs.dagster.io/guides/operate/managing-concurrency/run-priority
    """
    return {"dagster/priority": str(number)}


def own_operation(
    spec: dg.AssetSpec,
    work: Callable[[dg.AssetExecutionContext, Lakehouse, Snowflake], dg.MaterializeResult],
) -> dg.AssetsDefinition:
    """Return an asset as an operation of its own."""

    system = spec.key.path[0]

    @dg.multi_asset(
        name=operation_name(spec.key),
        specs=[spec],
        pool=pool_of(system),
        op_tags=priority(_PRIORITIES[system]),
    )
    @retried()
    def materialize(
        context: dg.AssetExecutionContext,
        topicberg_lakehouse: Lakehouse,
        topicberg_snowflake: Snowflake,
    ) -> dg.MaterializeResult:
        return work(context, topicberg_lakehouse, topicberg_snowflake)

    return materialize


def glue_spec(table: LakeTable) -> dg.AssetSpec:
    """The Glue registration: a pointer to the table's current metadata."""
    database, name = table.glue_table
    return dg.AssetSpec(
        table.key("glue"),
        deps=[table.key("iceberg")],
        group_name=table.group,
        kinds={"aws", "glue"},
        owners=list(table.owners),
        description=f"Glue table `{database}`.`{name}`, which points to the current metadata of "
        f"Iceberg table `{'.'.join(table.identifier)}`. Athena, EMR and Snowflake find it here.",
        metadata={"dagster/table_name": f"{database}.{name}", **documentation("concepts.md")},
    )


def register(table: LakeTable, lakehouse: Lakehouse) -> dg.MaterializeResult:
    """Register the table in Glue."""
    database, name = table.glue_table
    iceberg = lakehouse.catalog().load_table(table.identifier)
    client = lakehouse.glue()
    moved = glue.register(client, iceberg, database, name)
    return dg.MaterializeResult(
        asset_key=table.key("glue"),
        metadata={
            **table_metadata(iceberg, sample=False),
            "dagster/column_lineage": copied_columns(
                table.key("iceberg"), {field.name: field.name for field in iceberg.schema().fields}
            ),
            "dagster/table_name": f"{database}.{name}",
            "metadata_location": iceberg.metadata_location,
            "pointer_moved": moved,
        },
    )


def snowflake_spec(table: LakeTable) -> dg.AssetSpec:
    """The Iceberg table in Snowflake, refreshed to what Glue has."""
    path = table_path(settings(), table.snowflake_name, table.snowflake_source)
    return dg.AssetSpec(
        table.key("snowflake"),
        deps=[table.key("glue")],
        group_name=table.group,
        kinds={"snowflake", "iceberg"},
        owners=list(table.owners),
        description=_description(path),
        metadata={"dagster/table_name": str(path), **documentation("concepts.md")},
    )


def refresh(table: LakeTable, lakehouse: Lakehouse, snowflake: Snowflake) -> dg.MaterializeResult:
    """Bring the table in Snowflake to what Glue has."""
    iceberg = lakehouse.catalog().load_table(table.identifier)
    with snowflake.connection() as connection:
        where = (table.snowflake_name, table.snowflake_source)
        state = iceberg.location(), iceberg.format_version
        seen = sync(connection, lakehouse.config, *where, *state)
    folded = {field.name.upper(): field.name for field in iceberg.schema().fields}
    return dg.MaterializeResult(
        asset_key=table.key("snowflake"),
        metadata={
            "dagster/column_schema": dg.TableSchema(
                columns=[
                    dg.TableColumn(
                        column.name, column.type, column.comment and markdown_lines(column.comment)
                    )
                    for column in seen.columns
                ]
            ),
            "dagster/column_lineage": copied_columns(
                table.key("glue"),
                {c.name: folded[c.name.upper()] for c in seen.columns if c.name.upper() in folded},
            ),
            "dagster/table_name": seen.name,
            "dagster/row_count": seen.rows,
            "metadata_location": seen.metadata_location,
            "refreshed_at": dg.MetadataValue.timestamp(datetime.now(UTC)),
        },
    )


def _description(path: TablePath) -> str:
    if path.is_linked:
        return (
            f"Snowflake table `{path.table}` of the catalog-linked database `{path.database}`, "
            "which Snowflake discovers by itself; no data is copied."
        )
    return (
        f"Snowflake Iceberg table `{path.table}`, read through the Glue catalog integration and "
        "the external volume; no data is copied."
    )
