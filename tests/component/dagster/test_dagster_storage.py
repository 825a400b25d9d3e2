"""Kept connections change nothing: the same files, read back by Dagster's own storage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from topicberg.dagster.home import dagster_home
from topicberg.settings import Settings
from topicberg_local.dagster import sqlite as dagster_storage

DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-03-01")
RANGE = {
    "dagster/asset_partition_range_start": "2026-01-05",
    "dagster/asset_partition_range_end": "2026-01-09",
}


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def daily() -> None: ...


def _plain(home: Path) -> Path:
    """Dagster's own configuration of the same files."""
    plain = home / "plain"
    plain.mkdir()
    own = {"storage": {"sqlite": {"base_dir": str(home)}}}
    (plain / "dagster.yaml").write_text(yaml.safe_dump(own))
    return plain


def test_dagsters_own_storage_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dagster_storage, "KEPT", 4)
    home = dagster_home(Settings(state_dir=tmp_path))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for _ in range(dagster_storage.KEPT + 3):  # more runs than databases stay open
            assert dg.materialize([daily], instance=instance, tags=RANGE).success
        runs = instance.get_runs()
        ours = {run.run_id: [e.message for e in instance.all_logs(run.run_id)] for run in runs}
        assert len(instance.get_materialized_partitions(daily.key)) == 5
    with dg.DagsterInstance.from_config(str(_plain(home))) as instance:
        assert [run.run_id for run in instance.get_runs()] == [run.run_id for run in runs]
        for run_id, messages in ours.items():
            assert [entry.message for entry in instance.all_logs(run_id)] == messages
        assert len(instance.get_materialized_partitions(daily.key)) == 5


def test_what_was_reported_outlives_kill_9_beside_another_writer(tmp_path: Path) -> None:
    home = dagster_home(Settings(state_dir=tmp_path))
    code = (
        "import os, signal, sys, dagster as dg\n"
        f"with dg.DagsterInstance.from_config({str(home)!r}) as instance:\n"
        "    for number in range(50):\n"
        "        instance.report_runless_asset_event(dg.AssetMaterialization(f'a{number}'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with dg.DagsterInstance.from_config(str(home)) as instance:
        with subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ)) as other:
            for number in range(50):
                instance.report_runless_asset_event(dg.AssetMaterialization(f"b{number}"))
        assert other.returncode == -signal.SIGKILL
        keys = {key.to_user_string() for key in instance.get_asset_keys()}
    assert keys == {f"{who}{number}" for who in "ab" for number in range(50)}
