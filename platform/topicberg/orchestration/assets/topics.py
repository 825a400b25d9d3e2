"""Topics as assets, created from their specs: ``kafka`` and ``iceberg``; and ``kafka/<topic>`` for
every spec that says ``publishes``, of a derived table."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dagster as dg
from pyiceberg.table import Table

from topicberg.errors import SpecError
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import Offsets
from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.assets.metadata import copied_columns, documentation, table_metadata
from topicberg.orchestration.assets.tables import LakeTable, kafka_key, priority, retried
from topicberg.orchestration.resources import Lakehouse, Spark
from topicberg.settings import emr_settings
from topicberg.tableflow.service.history import ingest_history
from topicberg.topics import TopicSpec
from topicberg.topics.schema import read_schema
from topicberg.transforms.upsert_view import UpsertView, refresh
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.orchestration.assets.lake import Lake


def observe(spec: TopicSpec, lakehouse: Lakehouse) -> dg.ObserveResult:
    """Return where the topic begins and ends."""
    endpoints = lakehouse.endpoints()
    begin = kafka.beginning_offsets(endpoints, spec.name)
    end = kafka.end_offsets(endpoints, spec.name)
    return dg.ObserveResult(
        kafka_key(spec), metadata=kafka_metadata(begin, end), data_version=kafka_data_version(end)
    )


def _values(spec: TopicSpec) -> str:
    """Return what the values are, and where their schema is."""
    own = spec.value_schema
    if own.is_registered:
        return f"{own.described} (subject `{spec.value_subject}`)"
    if own.framing == "glue":
        return f"{own.described} (schema `{spec.value_subject}` of AWS Glue)"
    return f"{own.described} (schema file `{own.file}`)" if own.file else own.described


def kafka_spec(spec: TopicSpec) -> dg.AssetSpec:
    """The topic in Kafka."""
    produce = f"; produce some with `topicberg datagen start {spec.name}`" if spec.generator else ""
    return dg.AssetSpec(
        kafka_key(spec),
        group_name=spec.pipeline,
        description=f"Kafka topic `{spec.name}`, {count(spec.partitions, 'partition')}, "
        f"values: {_values(spec)}.\n\n{spec.description}\n\n"
        f"See its newest records with `topicberg peek {spec.name}`{produce}.",
        kinds={"kafka"},
        owners=list(spec.owners),
        metadata={
            "partitions": spec.partitions,
            "dagster/table_name": spec.name,
            **documentation("add-a-topic.md"),
        },
    )


def kafka_data_version(end: dict[int, int]) -> dg.DataVersion:
    return dg.DataVersion(",".join(f"{p}:{offset}" for p, offset in sorted(end.items())))


def kafka_metadata(begin: dict[int, int], end: dict[int, int]) -> dict[str, Any]:
    return {
        "offsets": sum(end.values()) - sum(begin.values()),  # of a compacted topic, with its gaps
        "end_offsets": dg.MetadataValue.json({str(p): o for p, o in end.items()}),
    }


def consumer_lag_metadata(committed: Offsets, begin: Offsets, end: Offsets) -> dict[str, Any]:
    """Offsets of the topic that are not in its table, which holds those before ``committed``."""
    lag = {p: max(0, offset - committed.get(p, begin.get(p, 0))) for p, offset in end.items()}
    return {
        "consumer_lag": sum(lag.values()),
        "consumer_lag_by_partition": dg.MetadataValue.json({str(p): n for p, n in lag.items()}),
    }


def topic_spec(spec: TopicSpec, table: LakeTable) -> dg.AssetSpec:
    """The table of a topic, which Tableflow writes."""
    return dg.AssetSpec(
        table.key("iceberg"),
        deps=[kafka_key(spec)],
        group_name=table.group,
        kinds={"iceberg", "spark"},
        owners=list(table.owners),
        description=f"Iceberg table `{'.'.join(table.identifier)}` of the topic. Tableflow writes "
        f"it.\n\n{spec.description}\n\nIts sensor reports every snapshot. A materialization waits "
        "until the table has the records that the topic had at the start.\n\n"
        f"See its rows with `topicberg query 'FROM \"{spec.name}\" LIMIT 10'`, and how far it is "
        f"with `topicberg tableflow status {spec.name}`.",
        metadata={
            "dagster/table_name": ".".join(table.identifier),
            **documentation("tableflow.md"),
        },
    )


def wait_for_topic(
    context: dg.AssetExecutionContext, spec: TopicSpec, table: LakeTable, lakehouse: Lakehouse
) -> dg.MaterializeResult:
    """Return the table's state once Tableflow has committed what the topic has now."""

    def report(missing: int) -> None:
        message = f"topic {spec.name}: waiting for Tableflow to commit {count(missing, 'record')}"
        context.log.info(message)

    return _materialized(table, lakehouse.ingest(spec, report))


def _materialized(table: LakeTable, iceberg: Table, **more: Any) -> dg.MaterializeResult:
    """Return the state of a table as a materialization of its asset."""
    head = iceberg.current_snapshot()
    return dg.MaterializeResult(
        asset_key=table.key("iceberg"),
        metadata={**table_metadata(iceberg), **more},
        data_version=dg.DataVersion(str(head.snapshot_id)) if head else None,
    )


def history_asset(spec: TopicSpec, history: LakeTable) -> dg.AssetsDefinition:
    name = ".".join(history.identifier)

    @dg.asset(
        key=history.key("iceberg"),
        deps=[kafka_key(spec)],
        group_name=history.group,
        kinds={"iceberg", "spark"},
        owners=list(history.owners),
        pool="spark",
        description=f"Iceberg table `{name}`: every record of the topic; the topic's own table "
        f"has the newest of each key.\n\n{spec.description}",
        metadata={"dagster/table_name": name, **documentation("tableflow.md")},
    )
    @retried()
    def append(topicberg_lakehouse: Lakehouse) -> dg.MaterializeResult:
        lakehouse = topicberg_lakehouse
        return _materialized(history, ingest_history(spec, lakehouse.endpoints(), lakehouse.config))

    return append


def upsert_view_asset(
    spec: TopicSpec, table: LakeTable, view: LakeTable, definition: UpsertView
) -> dg.AssetsDefinition:
    name = ".".join(view.identifier)

    @dg.asset(
        key=view.key("iceberg"),
        deps=[table.key("iceberg")],
        group_name=view.group,
        kinds={"iceberg", "pyspark"},
        owners=list(view.owners),
        pool="spark",
        description=f"Iceberg table `{name}`: of the records of topic `{spec.name}` the newest "
        f"one of each {', '.join(f'`{key}`' for key in definition.keys)}. New records are merged "
        "in.",
        metadata={"dagster/table_name": name, **documentation("tableflow.md")},
    )
    @retried()
    def merge(
        context: dg.AssetExecutionContext, topicberg_lakehouse: Lakehouse, topicberg_spark: Spark
    ) -> dg.MaterializeResult:
        lakehouse = topicberg_lakehouse
        if emr := emr_settings():
            from topicberg.orchestration.emr.client import write_window_on_emr

            write_window_on_emr(
                context, view.name, (), emr, lakehouse.config, lakehouse.endpoints()
            )
            iceberg = lakehouse.catalog().load_table(view.identifier)
        else:
            iceberg = refresh(topicberg_spark.spark_session, lakehouse.catalog(), definition)
        names = {field.name: field.name for field in iceberg.schema().fields}
        lineage = copied_columns(table.key("iceberg"), names)
        return _materialized(view, iceberg, **{"dagster/column_lineage": lineage})

    return merge


def publishing_asset(spec: TopicSpec, derived: DerivedTable, lake: "Lake") -> dg.AssetsDefinition:
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
