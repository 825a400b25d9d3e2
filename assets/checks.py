"""Checks: cheap ones for every table, from metadata and counts; those of derived tables."""

import inspect
from typing import TYPE_CHECKING

import dagster as dg

from assets.derived import DataCheck, DerivedTable, with_parameters
from assets.lake import Lake
from assets.partitions import asked_window, time_partitions
from assets.tables import LakeTable, topic_table
from resources import Lakehouse, Snowflake, Spark
from topicberg import glue
from topicberg.derived import read_window
from topicberg.settings import Settings
from topicberg.snowflake import read_back
from topicberg.tableflow.commit import committed, summary
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from pyiceberg.table import Table


def parity_check(table: LakeTable) -> dg.AssetChecksDefinition:
    """Iceberg = Glue = Snowflake: the same metadata file, the same number of rows.

    The table goes on changing while it is looked at: Glue and Snowflake may be behind the catalog,
    but must be at one and the same state that the catalog had.
    """

    @dg.asset_check(
        asset=table.key("snowflake"),
        name="parity",
        description="Glue and Snowflake point to the same state of the Iceberg table, and Snowflake"
        " counts the rows that this state has.",
    )
    def parity(lakehouse: Lakehouse, snowflake: Snowflake) -> dg.AssetCheckResult:
        from pyiceberg.table import StaticTable

        iceberg = lakehouse.catalog().load_table(table.identifier)
        found = glue.get_table(lakehouse.glue(), *table.glue_table)
        in_glue = glue.metadata_location(found) if found else None
        with snowflake.connection() as connection:
            seen = read_back(connection, lakehouse.config, table.snowflake_name)
        iceberg.refresh()
        history = {entry.metadata_file for entry in iceberg.metadata.metadata_log}
        known = in_glue in history | {iceberg.metadata_location}
        rows: int | None = None
        if in_glue and known:
            rows = _rows(StaticTable.from_metadata(in_glue, iceberg.io.properties))
        same = in_glue == seen.metadata_location
        return dg.AssetCheckResult(
            passed=known and same and rows == seen.rows,
            description=_explain(known=known, same=same, rows=rows, seen=seen.rows),
            metadata={
                "iceberg_metadata_location": iceberg.metadata_location,
                "glue_metadata_location": in_glue or "none",
                "snowflake_metadata_location": seen.metadata_location,
                "iceberg_rows": rows if rows is not None else "unknown",
                "snowflake_rows": seen.rows,
            },
        )

    return parity


def _rows(table: "Table") -> int:
    """From the summary alone, unless files have deletes: those count what is deleted as well."""
    head = table.current_snapshot()
    properties = summary(head) if head else {}
    if int(properties.get("total-delete-files", 0)):
        return table.scan().count()
    return int(properties.get("total-records", 0))


def _explain(*, known: bool, same: bool, rows: int | None, seen: int) -> str:
    if not known:
        return (
            "Glue points to a state that this table never had: somebody moved the pointer. "
            "Materialize the Glue asset, then the Snowflake asset."
        )
    if not same:
        return "Snowflake is at another state than Glue: materialize the Snowflake asset."
    if rows != seen:
        return (
            f"Iceberg has {rows} rows, Snowflake counts {seen}: look for deletes that Snowflake "
            "cannot read."
        )
    return "Iceberg, Glue and Snowflake agree."


def lag_check(spec: TopicSpec, config: Settings) -> dg.AssetChecksDefinition:
    """How many records of the topic the table does not hold yet."""
    table = topic_table(spec, config)
    allowed = spec.checks.max_lag_records

    @dg.asset_check(
        asset=table.key("iceberg"),
        name="kafka_lag",
        description="Records in Kafka that Tableflow has not committed yet; at most "
        f"{allowed:,} by the spec (checks.max_lag_records).",
    )
    def kafka_lag(lakehouse: Lakehouse) -> dg.AssetCheckResult:
        from topicberg import kafka
        from topicberg.tableflow.status import read_status

        held = committed(lakehouse.catalog().load_table(table.identifier)).offsets
        end = kafka.end_offsets(lakehouse.endpoints(), spec.name)
        lag = sum(max(0, offset - held.get(p, 0)) for p, offset in end.items())
        problem = read_status(lakehouse.config, spec.name).error_message
        return dg.AssetCheckResult(
            passed=allowed is None or lag <= allowed,
            severity=dg.AssetCheckSeverity.WARN,
            description=problem or f"{lag:,} records behind Kafka",
            metadata={"lag_records": lag},
        )

    return kafka_lag


def data_check(check: DataCheck, derived: DerivedTable, lake: Lake) -> dg.AssetChecksDefinition:
    """A check on the rows of the partitions of its run; without partitions, on all rows."""
    table, root = lake.table(derived), lake.root(derived)
    partitions = time_partitions(root)
    function = with_parameters(check, derived.parameters_of(root))

    @dg.asset_check(
        asset=table.key("iceberg"), name=check.__name__, description=inspect.getdoc(check)
    )
    def checked(context: dg.AssetCheckExecutionContext, spark: Spark) -> dg.AssetCheckResult:
        asked = asked_window(partitions, context.run.tags)
        return function(
            read_window(spark.spark_session, table.identifier, derived.time_column, asked)
        )

    return checked
