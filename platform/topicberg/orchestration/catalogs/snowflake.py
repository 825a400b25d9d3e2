"""Snowflake in the graph: ``snowflake/<table>`` reads the state that Glue points to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg
from pyiceberg.table import Table

from topicberg.catalogs.snowflake.names import TablePath, table_path
from topicberg.catalogs.snowflake.tables import sync
from topicberg.checks.catalogs import parity_check
from topicberg.checks.check import TableCheck
from topicberg.orchestration.assets.metadata import copied_columns, documentation
from topicberg.orchestration.assets.tables import LakeTable
from topicberg.orchestration.resources import Lakehouse, Snowflake
from topicberg.security.text import markdown_lines
from topicberg.settings import settings


class SnowflakeTables:
    """Iceberg tables of Snowflake, or of a database that is linked to the catalog."""

    name, source, pool = "snowflake", "glue", "snowflake"
    modules = ("dagster_snowflake",)

    def spec(self, table: LakeTable) -> dg.AssetSpec:
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

    def register(
        self, table: LakeTable, lakehouse: Lakehouse, snowflake: Snowflake
    ) -> dg.MaterializeResult:
        """Bring the table in Snowflake to what Glue has."""
        iceberg = lakehouse.catalog().load_table(table.identifier)
        with snowflake.connection() as connection:
            where = table.snowflake_name, table.snowflake_source
            state = iceberg.location(), iceberg.format_version
            seen = sync(connection, lakehouse.config, *where, *state)
        folded = {field.name.upper(): field.name for field in iceberg.schema().fields}
        return dg.MaterializeResult(
            asset_key=table.key("snowflake"),
            metadata={
                "dagster/column_schema": dg.TableSchema(
                    columns=[
                        dg.TableColumn(
                            column.name,
                            column.type,
                            column.comment and markdown_lines(column.comment),
                        )
                        for column in seen.columns
                    ]
                ),
                "dagster/column_lineage": copied_columns(
                    table.key("glue"),
                    {
                        c.name: folded[c.name.upper()]
                        for c in seen.columns
                        if c.name.upper() in folded
                    },
                ),
                "dagster/table_name": seen.name,
                "dagster/row_count": seen.rows,
                "metadata_location": seen.metadata_location,
                "refreshed_at": dg.MetadataValue.timestamp(datetime.now(UTC)),
            },
        )

    def is_current(self, _table: LakeTable, _iceberg: Table, _lakehouse: Lakehouse) -> bool:
        """Leave it to Glue, to which it looks: the check ``parity`` reports what it lacks."""
        return True

    def checks(self, _dropped: str | None) -> Sequence[TableCheck]:
        """Return whether Snowflake reads what Glue points to."""
        return (parity_check(),)


SNOWFLAKE = SnowflakeTables()


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
