"""The job that maintains every table, and its schedule."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg
from pyiceberg.exceptions import NoSuchTableError

from assets import Lake
from assets.retries import retried
from assets.tables import LakeTable, history_lake_table, topic_table
from jobs.schedules import schedule_unless_busy
from resources import Lakehouse
from topicberg.settings import Settings
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from topicberg.iceberg.maintenance import MaintenanceReport

MAINTAIN = "maintain_tables"


def maintenance_job(lake: Lake) -> dg.JobDefinition:
    """An op for each table, so that one that fails keeps no other from its turn."""
    topics = [_topic_op(spec, lake.config) for spec in lake.materialized.values()]
    derived = [
        _derived_op(lake.table(table), lake.root(table), table.time_column)
        for table in lake.derived
    ]
    histories = [
        _derived_op(history_lake_table(spec), spec, spec.event_time)
        for spec in lake.histories.values()
    ]
    views = [_derived_op(view, spec, None) for spec, view in lake.upsert_views]
    ops = [*topics, *histories, *views, *derived]

    @dg.job(
        name=MAINTAIN,
        tags={"topicberg/kind": "maintenance", "dagster/priority": "-1"},
        description="Merges small files, expires snapshots and rows, removes orphan files: of each "
        "table what is due. Reports an observation of every table that it changed.",
    )
    def maintain_tables() -> None:
        for op in ops:
            op()

    return maintain_tables


def maintenance_schedule() -> dg.ScheduleDefinition:
    """Every quarter of an hour, as often as compaction is due."""
    return schedule_unless_busy(MAINTAIN, "*/15 * * * *")


def _topic_op(spec: TopicSpec, config: Settings) -> dg.OpDefinition:
    return _op(topic_table(spec, config), lambda lakehouse: lakehouse.maintain(spec))


def _derived_op(table: LakeTable, root: TopicSpec, time: str | None) -> dg.OpDefinition:
    def maintain(lakehouse: Lakehouse) -> "MaintenanceReport":
        from topicberg.iceberg.maintenance import Policy, maintain_table, topic_policy

        iceberg = lakehouse.catalog().load_table(table.identifier)
        policy = Policy(retention=topic_policy(root).retention)
        return maintain_table(iceberg, lakehouse.endpoints(), policy, time=time)

    return _op(table, maintain)


def _op(
    table: LakeTable, work: "Callable[[Lakehouse], MaintenanceReport | None]"
) -> dg.OpDefinition:
    @dg.op(
        name=f"maintain_{table.name}",
        description=f"Maintain `{'.'.join(table.identifier)}`.",
        pool="spark",
    )
    @retried()
    def maintain(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
        try:
            report = work(lakehouse)
        except NoSuchTableError:
            context.log.info("there is no such table yet")
            return
        if report is None:
            context.log.info("Confluent's Tableflow maintains this table")
            return
        context.log.info(str(report))
        if report.changed:
            context.log_event(
                dg.AssetObservation(
                    asset_key=table.key("iceberg"),
                    description=f"maintained in {report.seconds:.1f} s",
                    metadata=maintenance_metadata(report),
                )
            )

    return maintain


def maintenance_metadata(report: "MaintenanceReport") -> dict[str, Any]:
    """Files, bytes and snapshots before and after, and what was done."""
    metadata: dict[str, Any] = {}
    for name in ("data_files", "delete_files", "bytes", "snapshots"):
        metadata[f"{name}_before"] = getattr(report.before, name)
        metadata[f"{name}_after"] = getattr(report.after, name)
    metadata |= report.counts
    if report.postponed:
        metadata["postponed"] = ", ".join(report.postponed)
    return {**metadata, "seconds": round(report.seconds, 1)}
