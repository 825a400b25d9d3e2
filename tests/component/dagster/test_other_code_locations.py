"""A code location, and an instance of Dagster, that also have what is not topicberg's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from lakehouses import lakehouse_of

import topicberg
from definitions import defs
from topicberg.alerts.alert import AlertState
from topicberg.alerts.evaluation import evaluate
from topicberg.orchestration import Lakehouse, Spark
from topicberg.orchestration.jobs.alerts import alert_sensor
from topicberg.orchestration.jobs.observation import observe
from topicberg.orchestration.jobs.retention import retention_job
from topicberg.orchestration.jobs.schedules import PROJECT, schedule_unless_busy
from topicberg.orchestration.jobs.table_jobs import CHECK
from topicberg.orchestration.jobs.watches import SENSOR, Cursor, TableCursor
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import settings

HERE, OTHER = "shop", "warehouse"
"""Two code locations, as the tests call them."""
ORDERS, STOCK = dg.AssetKey(["iceberg", "orders"]), dg.AssetKey(["iceberg", "stock"])


class Warehouse(dg.ConfigurableResource):
    """A resource of the company."""


@dg.asset
def report(spark: Warehouse, topicberg_spark: Spark, topicberg_lakehouse: Lakehouse) -> str:
    """Use the company's resource beside those of topicberg."""
    kinds = (type(one).__name__ for one in (spark, topicberg_spark, topicberg_lakehouse))
    return " ".join(kinds)


def test_definitions_merge_beside_resources_of_the_same_names() -> None:
    own = dg.Definitions(
        assets=[report],
        resources={"spark": Warehouse(), "lakehouse": Warehouse(), "snowflake": Warehouse()},
    )
    merged = dg.Definitions.merge(topicberg.definitions(), own)
    resources = merged.get_repository_def().get_top_level_resources()
    assert {"spark", "lakehouse", "snowflake", *RESOURCES} <= set(resources)
    with dg.DagsterInstance.ephemeral() as instance:
        ran = merged.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=[report.key]
        )
    assert ran.output_for_node("report") == "Warehouse Spark Lakehouse"


# --- an instance with two code locations ---


@dg.op
def nothing() -> None: ...


@dg.job(name=CHECK)
def look() -> None:
    nothing()


@dg.asset(key=ORDERS)
def orders() -> None: ...


@dg.asset(key=STOCK)
def stock() -> None: ...


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def label(location: str) -> str:
    return f"__repository__@{location}"


def origin(location: str, job: str) -> RemoteJobOrigin:
    of_location = RegisteredCodeLocationOrigin(location)
    return RemoteRepositoryOrigin(of_location, "__repository__").get_job_origin(job)


def run_in(
    instance: dg.DagsterInstance,
    location: str | None,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS,
    *assets: dg.AssetKey,
    **tags: str,
) -> str:
    """Store a run of a code location; None: of a command."""
    run = dg.DagsterRun(
        job_name=look.name,
        run_id=str(uuid.uuid4()),
        status=status,
        asset_selection=frozenset(assets) or None,
        remote_job_origin=origin(location, look.name) if location else None,
        tags={f"topicberg/{name}": value for name, value in tags.items()},
    )
    instance.add_run(run)
    return run.run_id


def forget(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Run the job in the code location HERE; return the runs that are left."""
    job = retention_job({ORDERS})
    for name in ("RUNS", "CHECK_RUNS"):
        monkeypatch.setenv(f"TOPICBERG_KEEP_{name}_DAYS", "1e-9")
    settings.cache_clear()
    run = instance.create_run_for_job(job, remote_job_origin=origin(HERE, job.name))
    assert execute_run(InMemoryJob(job), run, instance).success
    settings.cache_clear()
    return {run.run_id for run in instance.get_runs()} - {run.run_id}


def test_forgetting_leaves_runs_that_are_not_topicbergs(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = dg.DagsterRunStatus.SUCCESS
    foreign = {
        run_in(instance, OTHER, ended, kind="checks"),
        run_in(instance, OTHER, ended, ORDERS),
        run_in(instance, OTHER, ended, STOCK, kind="registration"),
        run_in(instance, OTHER, ended, ORDERS, STOCK, kind="registration"),
        run_in(instance, OTHER),
        run_in(instance, HERE),
        run_in(instance, HERE, ended, STOCK),
        run_in(instance, HERE, ended, ORDERS, STOCK),
        run_in(instance, None, ended, kind="checks"),
        run_in(instance, None),
        dg.materialize([stock], instance=instance).run_id,
        dg.materialize([orders, stock], instance=instance).run_id,
    }
    own = {
        run_in(instance, HERE, ended, kind="checks"),
        run_in(instance, HERE, ended, STOCK, kind="registration"),  # a topic that was deleted
        run_in(instance, HERE, ended, ORDERS),
        run_in(instance, OTHER, ended, ORDERS, kind="registration"),  # before it was renamed
        run_in(instance, None, ended, ORDERS),
        dg.materialize([orders], instance=instance).run_id,
    }
    newest, left = dg.materialize([orders], instance=instance).run_id, forget(instance, monkeypatch)
    assert left == {*foreign, newest}
    assert not left & own


def test_forgetting_leaves_events_of_other_assets(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (ORDERS, STOCK):
        for _ in range(3):
            instance.report_runless_asset_event(dg.AssetMaterialization(key))
            instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, "rows", True, {}))
    forget(instance, monkeypatch)
    assert {
        key: len(instance.fetch_materializations(key, limit=9).records) for key in (ORDERS, STOCK)
    } == {ORDERS: 1, STOCK: 3}
    history = instance.event_log_storage.get_asset_check_execution_history
    assert len(history(dg.AssetCheckKey(ORDERS, "rows"), limit=9)) == 1
    assert len(history(dg.AssetCheckKey(STOCK, "rows"), limit=9)) == 3
    evaluations = dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    entries = [record.event_log_entry for record in instance.get_event_records(evaluations)]
    checked = [
        entry.dagster_event.asset_check_evaluation_data.asset_key
        for entry in entries
        if entry.dagster_event
    ]
    assert checked == [STOCK] * 3  # in the copy of events by run, of which none has to stay


def test_alerts_tell_of_their_own_code_location(instance: dg.DagsterInstance) -> None:
    shop = dg.Definitions(assets=[orders], jobs=[look], sensors=[alert_sensor()])
    repository, state = shop.get_repository_def(), AlertState(runs_until=1.0)
    failed, queued = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.QUEUED
    run_in(instance, OTHER, failed)
    run_in(instance, OTHER, queued)
    run_in(instance, None, failed)
    dg.materialize([stock], instance=instance)
    run_in(instance, OTHER)
    _sensor_state(instance, OTHER, "alerts")
    seen = observe(instance, repository, state, location=label(HERE))
    assert seen.runs == []
    assert seen.queued is None
    assert seen.check_runs.ended_at is None
    assert seen.automations == []
    own = [run_in(instance, HERE, failed), run_in(instance, HERE, queued), run_in(instance, HERE)]
    by_command = dg.materialize([orders], instance=instance).run_id
    _sensor_state(instance, HERE, "alerts")
    seen = observe(instance, repository, state, location=label(HERE))
    assert [run.id for run in seen.runs] == [own[0], own[2], by_command]
    assert (seen.queued.count, seen.queued.oldest) == (1, own[1])
    assert seen.check_runs.ended_at
    assert [one.name for one in seen.automations] == ["alerts"]


def _sensor_state(
    instance: dg.DagsterInstance, location: str, sensor: str, cursor: str | None = None
) -> InstigatorState:
    of_sensor = origin(location, "").repository_origin.get_instigator_origin(sensor)
    data = SensorInstigatorData(min_interval=30, cursor=cursor)
    return instance.add_instigator_state(
        InstigatorState(of_sensor, InstigatorType.SENSOR, InstigatorStatus.STOPPED, data)
    )


def test_tables_that_another_project_has_as_well_are_an_alert(instance: dg.DagsterInstance) -> None:
    shop = dg.Definitions(assets=[orders, stock], sensors=[alert_sensor()])
    repository, first = shop.get_repository_def(), AlertState()

    def shared() -> dict[str, str]:
        seen = observe(instance, repository, first, location=label(HERE))
        _, faults = evaluate(first, seen, "http://ui")
        return {key: alert.what for key, alert in faults.items() if key.startswith("shared")}

    for location in (HERE, OTHER):
        cursor = Cursor.of({"orders": TableCursor()}, 0).model_dump_json()
        state = _sensor_state(instance, location, SENSOR, cursor)
        if location == OTHER:
            assert shared() == {}, "it may have been unloaded long ago"
        tick = TickData(
            instigator_origin_id=state.instigator_origin_id,
            instigator_name=SENSOR,
            instigator_type=InstigatorType.SENSOR,
            status=TickStatus.SKIPPED,
            timestamp=datetime.now(UTC).timestamp(),
            selector_id=state.selector_id,
        )
        instance.create_tick(tick)
    (what,) = shared().values()
    assert what.startswith(f"the code location {label(OTHER)} also has iceberg/orders; in Dagster")


def test_schedule_does_not_wait_for_a_job_of_another_project(instance: dg.DagsterInstance) -> None:
    schedule = schedule_unless_busy(CHECK, "* * * * *")

    def tick() -> object:
        resources = {"topicberg_lakehouse": lakehouse_of()}
        return schedule(dg.build_schedule_context(instance, resources=resources))

    started = dg.DagsterRunStatus.STARTED
    run_in(instance, OTHER, started)
    run_in(instance, OTHER, started, project="another")
    assert isinstance(tick(), dg.RunRequest)
    run_in(instance, HERE, started, project=settings().prefix)
    assert isinstance(tick(), dg.SkipReason)


def test_jobs_of_schedules_are_told_apart_by_their_project() -> None:
    repository = defs.get_repository_def()
    for name in (CHECK, "maintain_tables"):
        assert repository.get_job(name).tags[PROJECT] == settings().prefix


def test_jobs_run_their_steps_in_one_process() -> None:
    """Whatever executor the company has: steps that topics share know what failed before."""
    own = dg.Definitions(executor=dg.multiprocess_executor)
    repository = dg.Definitions.merge(topicberg.definitions(), own).get_repository_def()
    executors = {job.name: job.executor_def.name for job in repository.get_all_jobs()}
    assert executors["__ASSET_JOB"] == "multiprocess"
    own_jobs = {name for name in executors if not name.startswith("__")}
    assert {CHECK, "register_tables", "compute_tables", "maintain_tables"} <= own_jobs
    assert {executors[name] for name in own_jobs} == {"in_process"}
