"""Derived tables as Kafka topics: ``kafka/<topic>`` for every spec that says ``publishes``."""

from contextlib import suppress

import dagster as dg

from topicberg.errors import SpecError
from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.metadata import copied_columns, documentation
from topicberg.orchestration.assets.tables import kafka_key, priority, retried
from topicberg.orchestration.resources import Lakehouse, Spark
from topicberg.topics import TopicSpec
from topicberg.topics.schema import read_schema


def publishing_asset(spec: TopicSpec, derived: DerivedTable, lake: Lake) -> dg.AssetsDefinition:
    """The topic, brought to the newest snapshot of its table."""
    table, path = lake.table(derived), spec.schema_path("value", lake.config)
    fields: dict[str, str] = {}
    with suppress(SpecError):  # of a file that is wrong now; the last good spec is in use
        fields = read_schema(path, spec.value_schema.format).columns if path else {}
    compacted = "compacted" if spec.write_mode == "upsert" else "append only"

    @dg.asset(
        key=kafka_key(spec),
        deps=[table.key("iceberg")],
        group_name=table.group,
        kinds={"kafka", spec.value_schema.format},
        owners=list(spec.owners or table.owners),
        # Dagster's command line runs a range of its table only together with assets that have this.
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool="publish",
        op_tags=priority(-1),  # runs of tables begin earlier
        description=f"Kafka topic `{spec.name}` ({compacted}, subject `{spec.value_subject}`) of "
        f"the rows of `{'.'.join(table.identifier)}`.\n\n{spec.description}\n\nA materialization "
        "sends the rows that changed since the last one in transactions, exactly once.",
        metadata={
            "dagster/table_name": spec.name,
            **documentation("pipelines.md"),
            "dagster/column_schema": dg.TableSchema(
                columns=[dg.TableColumn(name, kind) for name, kind in fields.items()]
            ),
            "dagster/column_lineage": copied_columns(
                table.key("iceberg"), {name: name for name in fields}
            ),
        },
    )
    @retried()
    def publish_changes(
        topicberg_lakehouse: Lakehouse, topicberg_spark: Spark
    ) -> dg.MaterializeResult:
        from topicberg.transforms.publish import publish

        published = publish(
            topicberg_spark.spark_session,
            topicberg_lakehouse.catalog(),
            topicberg_lakehouse.endpoints(),
            topicberg_lakehouse.config,
            spec,
            table.identifier,
            derived.time_column,
        )
        return dg.MaterializeResult(
            metadata={
                "source_snapshots": {".".join(table.identifier): str(published.snapshot)},
                "records_sent": published.records,
                "tombstones_sent": published.tombstones,
                "rows_not_taken_back": published.not_taken_back,
            }
        )

    return publish_changes
