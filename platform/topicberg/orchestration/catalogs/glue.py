"""AWS Glue in the graph: ``glue/<table>`` points to the table's current metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import dagster as dg
from pyiceberg.table import StaticTable, Table

from topicberg.catalogs import glue
from topicberg.checks.catalogs import pointer_check
from topicberg.checks.check import TableCheck
from topicberg.orchestration.assets.metadata import copied_columns, documentation, table_metadata
from topicberg.orchestration.assets.tables import LakeTable
from topicberg.orchestration.catalogs.catalog import ICEBERG
from topicberg.orchestration.resources import Lakehouse, Snowflake


class Glue:
    """Tables of Glue's Data Catalog, which Athena, EMR and Snowflake read."""

    name, source, pool = "glue", ICEBERG, None
    modules: ClassVar[tuple[str, ...]] = ()

    def spec(self, table: LakeTable) -> dg.AssetSpec:
        """The Glue registration: a pointer to the table's current metadata."""
        database, name = table.glue_table
        return dg.AssetSpec(
            table.key("glue"),
            deps=[table.key("iceberg")],
            group_name=table.group,
            kinds={"aws", "glue"},
            owners=list(table.owners),
            description=f"Glue table `{database}`.`{name}`, which points to the current metadata "
            f"of Iceberg table `{'.'.join(table.identifier)}`. Athena, EMR and Snowflake find it "
            "here.",
            metadata={"dagster/table_name": f"{database}.{name}", **documentation("concepts.md")},
        )

    def register(
        self, table: LakeTable, lakehouse: Lakehouse, _snowflake: Snowflake
    ) -> dg.MaterializeResult:
        """Register the table in Glue."""
        database, name = table.glue_table
        iceberg = lakehouse.catalog().load_table(table.identifier)
        moved = glue.register(lakehouse.glue(), iceberg, database, name)
        return dg.MaterializeResult(
            asset_key=table.key("glue"),
            metadata={
                **table_metadata(iceberg, sample=False),
                "dagster/column_lineage": copied_columns(
                    table.key("iceberg"),
                    {field.name: field.name for field in iceberg.schema().fields},
                ),
                "dagster/table_name": f"{database}.{name}",
                "metadata_location": iceberg.metadata_location,
                "pointer_moved": moved,
            },
        )

    def is_current(self, table: LakeTable, iceberg: Table, lakehouse: Lakehouse) -> bool:
        """Return whether Glue points to the table's state, if only to another file of it."""
        found = glue.get_table(lakehouse.glue(), *table.glue_table)
        location = glue.metadata_location(found) if found else None
        if location not in {entry.metadata_file for entry in iceberg.metadata.metadata_log}:
            return location == iceberg.metadata_location
        pointed = StaticTable.from_metadata(location, iceberg.io.properties)
        return glue.registered_state(pointed) == glue.registered_state(iceberg)

    def checks(self, dropped: str | None) -> Sequence[TableCheck]:
        """Return whether Glue points to the table's current state."""
        return (pointer_check(dropped),)


GLUE = Glue()
