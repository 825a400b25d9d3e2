"""The instances of ``dagster.yaml``, local and in production, and what is kept in one."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.instance.ref import InstanceRef

from definitions import defs
from topicberg.dagster.home import dagster_home
from topicberg.orchestration.assets.tables import COMPUTATION, REGISTRATION
from topicberg.orchestration.checks.evaluations import last_evaluations
from topicberg.orchestration.jobs.retention import retention_job
from topicberg.settings import Settings, settings

ROOT = settings().project_root
FILES = ("dagster.yaml", "docs/production/dagster.yaml")
FORGET = retention_job({dg.AssetKey("orders"), dg.AssetKey("totals")})


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSTGRES_HOST", "POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"):
        monkeypatch.setenv(f"DAGSTER_{name}", "somewhere")
    monkeypatch.setenv("DAGSTER_LOGS_BUCKET", "logs")


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("file", FILES)
def test_dagster_takes_the_file(tmp_path: Path, file: str) -> None:
    shutil.copy(ROOT / file, tmp_path / "dagster.yaml")
    ref = InstanceRef.from_dir(str(tmp_path))
    assert ref.run_coordinator_data.class_name == "QueuedRunCoordinator"
    storage = "DagsterPostgresStorage" if "production" in file else "SqliteStorage"
    assert ref.storage_data.class_name == storage
    text = (ROOT / file).read_text()
    assert "password:" not in text or "{env: DAGSTER_POSTGRES_PASSWORD}" in text


@pytest.mark.parametrize("file", FILES)
def test_limits_are_on_kinds_of_runs_that_there_are(file: str) -> None:
    kinds = {
        job.tags["topicberg/kind"]
        for job in defs.get_repository_def().get_all_jobs()
        if "topicberg/kind" in job.tags
    }
    kinds |= {COMPUTATION, REGISTRATION}
    limits = yaml.safe_load((ROOT / file).read_text())["concurrency"]["runs"]
    assert {limit["value"] for limit in limits["tag_concurrency_limits"]} <= kinds


@pytest.mark.parametrize("file", FILES)
def test_a_run_that_was_killed_gives_its_slots_of_the_pools_back(file: str) -> None:
    """Or the pool is blocked for ever; and a run that hangs ends."""
    monitoring = yaml.safe_load((ROOT / file).read_text())["run_monitoring"]
    assert monitoring["enabled"]
    assert 0 < monitoring["free_slots_after_run_end_seconds"] <= 300
    assert monitoring["max_runtime_seconds"] > 0


def test_helm_watches_runs_as_the_instance_in_production_does() -> None:
    """The chart's keys are the instance's in camel case."""
    production = yaml.safe_load((ROOT / "docs/production/dagster.yaml").read_text())
    daemon = yaml.safe_load((ROOT / "docs/production/values.yaml").read_text())["dagsterDaemon"]
    assert {
        re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", key): value
        for key, value in daemon["runMonitoring"].items()
    } == production["run_monitoring"]


def test_pools_are_limited(tmp_path: Path) -> None:
    home = dagster_home(Settings(state_dir=tmp_path))
    assert {"spark", "snowflake", "publish"} <= {
        pool
        for job in defs.get_repository_def().get_all_jobs()
        for node in job.nodes
        for pool in node.definition.pools
    }
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert instance.global_op_concurrency_default_limit == 1
        storage = instance.event_log_storage
        storage.initialize_concurrency_limit_to_default("spark")  # as the executor does
        first = storage.claim_concurrency_slot("spark", "run", "one")
        second = storage.claim_concurrency_slot("spark", "run", "two")
        assert first.is_claimed
        assert not second.is_claimed


def test_old_runs_are_deleted_except_newest_materializations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dg.asset
    def orders() -> None: ...

    @dg.job(tags={"topicberg/kind": "checks"})
    def checks() -> None: ...

    with dg.instance_for_test() as instance, monkeypatch.context() as patch:

        def forget() -> int:
            return int(FORGET.execute_in_process(instance=instance).output_for_node("forget"))

        first = dg.materialize([orders], instance=instance).run_id
        last = dg.materialize([orders], instance=instance).run_id
        check = checks.execute_in_process(instance=instance).run_id
        assert forget() == 0
        patch.setenv("TOPICBERG_KEEP_CHECK_RUNS_DAYS", "1e-9")
        settings.cache_clear()
        assert forget() == 2  # the check, and the first run of this job
        assert {run.run_id for run in instance.get_runs()} >= {first, last}
        assert check not in {run.run_id for run in instance.get_runs()}
        patch.setenv("TOPICBERG_KEEP_RUNS_DAYS", "1e-9")
        settings.cache_clear()
        forget()
        left = {run.run_id for run in instance.get_runs()}
        assert last in left
        assert first not in left
        event = instance.get_latest_materialization_event(dg.AssetKey("orders"))
        assert datetime.now(UTC) - datetime.fromtimestamp(event.timestamp, UTC) < timedelta(hours=1)
    settings.cache_clear()


def test_a_partition_stays_materialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """What computed it last is kept, what computed it before is forgotten soon."""

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["one", "two"]))
    def totals() -> None: ...

    tags = {"topicberg/kind": "computation"}
    with dg.instance_for_test() as instance, monkeypatch.context() as patch:
        before, one, two = (
            dg.materialize([totals], partition_key=key, instance=instance, tags=tags).run_id
            for key in ("one", "one", "two")
        )
        patch.setenv("TOPICBERG_KEEP_CHECK_RUNS_DAYS", "1e-9")
        settings.cache_clear()
        FORGET.execute_in_process(instance=instance)
        assert {before, one, two} & {run.run_id for run in instance.get_runs()} == {one, two}
        assert instance.get_materialized_partitions(dg.AssetKey("totals")) == {"one", "two"}
    settings.cache_clear()


def test_what_lies_outside_runs_is_forgotten_but_for_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Events of snapshots, results of checks, and the files of deleted runs."""
    orders, key = dg.AssetKey("orders"), dg.AssetCheckKey(dg.AssetKey("orders"), "rows")

    @dg.asset_check(asset=orders)
    def rows() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    checks = dg.Definitions(
        asset_checks=[rows],
        jobs=[
            dg.define_asset_job(
                "check", dg.AssetSelection.all_asset_checks(), tags={"topicberg/kind": "checks"}
            )
        ],
    ).resolve_job_def("check")

    def evaluation(passed: bool) -> dg.AssetCheckEvaluation:
        return dg.AssetCheckEvaluation(orders, "rows", passed, {})

    home = dagster_home(Settings(state_dir=tmp_path))
    with dg.DagsterInstance.from_config(str(home)) as instance, monkeypatch.context() as patch:
        storage = instance.event_log_storage

        def kept() -> list[tuple[str | None, object]]:
            found = instance.fetch_materializations(orders, limit=100).records
            return [
                (record.partition_key, record.asset_materialization.metadata["number"].value)
                for record in found
                if record.asset_materialization
            ]

        def left() -> set[str]:
            return {file.name.split(".db")[0] for file in tmp_path.rglob("*.db*")} | {
                folder.name for folder in (tmp_path / "dagster" / "storage").glob("*")
            }

        for number in range(3):
            for partition in ("one", "two", None):
                instance.report_runless_asset_event(
                    dg.AssetMaterialization(orders, None, {"number": number}, partition)
                )
            instance.report_runless_asset_event(evaluation(passed=number == 1))
        ran = [checks.execute_in_process(instance=instance).run_id for _ in range(2)]
        assert left() > set(ran)
        instance.report_runless_asset_event(evaluation(passed=False))
        before = len(kept())
        FORGET.execute_in_process(instance=instance)
        assert len(kept()) == before == 9
        patch.setenv("TOPICBERG_KEEP_CHECK_RUNS_DAYS", "1e-9")
        settings.cache_clear()
        FORGET.execute_in_process(instance=instance)
        assert kept() == [(None, 2), ("two", 2), ("one", 2)]
        assert instance.get_materialized_partitions(orders) == {"one", "two"}
        (result,) = storage.get_asset_check_execution_history(key, limit=10)
        assert result.status.value == "FAILED"
        assert last_evaluations(instance, [key])[key].event == evaluation(passed=False)
        assert not left() & set(ran)
        dg.materialize([dg.asset(lambda: None, name="orders")], instance=instance)
        assert len(instance.fetch_materializations(orders, limit=100).records) == 4
    settings.cache_clear()
