"""The job that maintains every table, and its schedule."""

from typing import Any

import dagster as dg
from pyiceberg.exceptions import NoSuchTableError

from assets import TopicGraph
from assets.tables import RETRY, LakeTable, topic_table
from resources import Lakehouse
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.tableflow.maintenance import (
    MaintenanceReport,
    Policy,
    maintain_table,
    topic_policy,
)
from topicberg.topics import TopicSpec

MAINTAIN = "maintain_tables"


def maintenance_job(graphs: list[TopicGraph], config: Settings) -> dg.JobDefinition:
    """An op for each table, so that one that fails keeps no other from its turn."""
    ops = [
        _maintain_op(table, graph.spec, config)
        for graph in graphs
        if graph.spec.tableflow.enabled
        for table in graph.tables(config)
    ]

    @dg.job(
        name=MAINTAIN,
        description="Merges small files, expires snapshots and rows, removes orphan files: of each "
        "table what is due. Reports an observation of every table that it changed.",
    )
    def maintain_tables() -> None:
        for op in ops:
            op()

    return maintain_tables


def maintenance_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every quarter of an hour, as often as compaction is due."""

    @dg.schedule(
        name=f"{MAINTAIN}_schedule",
        job=job,
        cron_schedule="*/15 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, lakehouse: Lakehouse
    ) -> dg.RunRequest | dg.SkipReason:
        try:
            lakehouse.peek()
        except TopicbergError as error:
            return dg.SkipReason(str(error))
        runs = context.instance.get_runs(
            dg.RunsFilter(
                job_name=MAINTAIN,
                statuses=[
                    dg.DagsterRunStatus.QUEUED,
                    dg.DagsterRunStatus.STARTING,
                    dg.DagsterRunStatus.STARTED,
                ],
            ),
            limit=1,
        )
        if runs:
            return dg.SkipReason(f"run {runs[0].run_id} is still under way")
        return dg.RunRequest()

    return schedule


def _maintain_op(table: LakeTable, spec: TopicSpec, config: Settings) -> dg.OpDefinition:
    of_topic = table.identifier == topic_table(spec, config).identifier

    @dg.op(
        name=f"maintain_{table.name}",
        description=f"Maintain `{'.'.join(table.identifier)}`.",
        retry_policy=RETRY,
        pool="spark",
    )
    def maintain(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
        try:
            if of_topic:
                report = lakehouse.maintain(spec)
                if report is None:
                    context.log.info("Confluent's Tableflow maintains this table")
                    return
            else:
                iceberg = lakehouse.catalog().load_table(table.identifier)
                policy = Policy(retention=topic_policy(spec).retention)
                report = maintain_table(iceberg, lakehouse.endpoints(), policy)
        except NoSuchTableError:
            context.log.info("there is no such table yet")
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


def maintenance_metadata(report: MaintenanceReport) -> dict[str, Any]:
    """Files, bytes and snapshots before and after, and what was done."""
    metadata: dict[str, Any] = {}
    for name in ("data_files", "delete_files", "bytes", "snapshots"):
        metadata[f"{name}_before"] = getattr(report.before, name)
        metadata[f"{name}_after"] = getattr(report.after, name)
    metadata |= report.counts
    if report.postponed:
        metadata["postponed"] = ", ".join(report.postponed)
    return {**metadata, "seconds": round(report.seconds, 1)}
