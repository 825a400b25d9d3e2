"""The jobs that check and that maintain every table, and their schedules."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pyiceberg.exceptions import NoSuchTableError

from topicberg.alerts.observation import CHECKS_REST
from topicberg.dagster import BACKGROUND
from topicberg.dagster.executor import EXECUTOR
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.assets.tables import KIND, retried
from topicberg.orchestration.checks.adapter import CheckKeys
from topicberg.orchestration.jobs.schedules import PROJECT, schedule_unless_busy
from topicberg.orchestration.resources import Lakehouse

CHECK, MAINTAIN = "check_tables", "maintain_tables"


def check_job(lake: Lake) -> "dg.UnresolvedAssetJobDefinition":
    """Every check that costs no computation: those of metadata, and the rules of the specs."""
    return dg.define_asset_job(
        CHECK,
        selection=dg.AssetSelection.checks(*CheckKeys(lake).all()),
        executor_def=EXECUTOR,
        description="Checks every table in every catalog: from metadata, manifests and counts. A "
        "check that fails says what is wrong, since when, and how to fix it.",
        tags={
            KIND: "checks",
            PROJECT: lake.config.prefix,
            "dagster/priority": "1",
            "dagster/max_runtime": "1800",
            BACKGROUND: "true",
        },
    )


def check_schedule() -> dg.ScheduleDefinition:
    """Every five minutes, or as often as a tenth of the time allows."""
    return schedule_unless_busy(CHECK, "*/5 * * * *", CHECKS_REST)


def maintenance_job(lake: Lake) -> dg.JobDefinition:
    """Return the job, with a step for each table, so that one that fails stops no other."""
    tables = {table.name: table for table in lake.tables}

    @dg.op(out=dg.DynamicOut(dg.Nothing), description="Begins a step for each table.")
    def list_tables() -> Iterator[dg.DynamicOutput[None]]:
        for name in tables:
            yield dg.DynamicOutput(None, mapping_key=name)

    @dg.op(
        ins={"table": dg.In(dg.Nothing)},
        description="Maintains the table that the step is named after.",
        pool="spark",
    )
    @retried()
    def maintain(context: dg.OpExecutionContext, topicberg_lakehouse: Lakehouse) -> None:
        _maintain(tables[str(context.get_mapping_key())], context, topicberg_lakehouse)

    @dg.job(
        name=MAINTAIN,
        executor_def=EXECUTOR,
        tags={
            KIND: "maintenance",
            PROJECT: lake.config.prefix,
            "dagster/priority": "-1",
            BACKGROUND: "true",
        },
        description="Merges small files, expires snapshots and rows, removes orphan files: of each "
        "table what is due. Reports an observation of every table that it changed.",
    )
    def maintain_tables() -> None:
        list_tables().map(maintain)

    return maintain_tables


def _maintain(table: Table, context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
    try:
        report = table.maintain(lakehouse)
    except NoSuchTableError:
        context.log.info("the table was not created yet")
        return
    context.log.info(str(report or "Confluent's Tableflow maintains this table"))
    if report and report.changed:
        description = f"maintained in {report.seconds:.1f} s"
        facts: dict[str, Any] = {
            **{
                f"{name}_{when}": getattr(state, name)
                for name in ("data_files", "delete_files", "bytes", "snapshots")
                for when, state in (("before", report.before), ("after", report.after))
            },
            **report.counts,
            **({"postponed": ", ".join(report.postponed)} if report.postponed else {}),
            "seconds": round(report.seconds, 1),
        }
        context.log_event(
            dg.AssetObservation(table.key("iceberg"), description=description, metadata=facts)
        )
