"""The product as its users meet it: the demo, and Dagster with its daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
from dagster_dev import dagster_dev
from repository import PROJECT_ROOT

from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.query import QueryError, run_query
from topicberg.settings import settings
from topicberg_local.datagen.runner import run_here

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.project]

TOTALS = "stock_trades_with_totals"


def environment() -> dict[str, str]:
    return {**os.environ, "TOPICBERG_STATE_DIR": str(settings().state_dir)}


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.demo", *arguments],
        cwd=PROJECT_ROOT,
        env={**environment(), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_ends_with_the_same_counts_through_three_doors(stack: Endpoints) -> None:
    done = demo("--records", "5000")
    assert done.returncode == 0, done.stdout + done.stderr
    produced = sum(kafka.end_offsets(stack, "stock_trades").values())
    (trades,) = re.findall(r"^│ stock_trades +│(.*)│$", done.stdout, re.MULTILINE)
    (totals,) = re.findall(rf"^│ {TOTALS} +│(.*)│$", done.stdout, re.MULTILINE)
    numbers = re.findall(r"[\d,]+", trades) + re.findall(r"[\d,]+", totals)
    in_kafka = numbers.pop(4)  # of the totals: transactions leave markers in the topic
    assert numbers == [f"{produced:,}"] * 7  # Kafka and three engines, then three engines
    assert int(in_kafka.replace(",", "")) >= produced
    assert "sample_data_users: an upsert table has one row for each key" in done.stdout
    assert "agree" in done.stdout
    assert stack.snowflake.password.get_secret_value() not in done.stdout + done.stderr


@pytest.mark.slow  # test_graph has the daemon's ticks
def test_the_daemon_carries_records_to_snowflake(stack: Endpoints) -> None:
    run_here(settings(), "stock_trades", rate=0, count=1000)
    produced, seen = sum(kafka.end_offsets(stack, "stock_trades").values()), -1
    with dagster_dev(settings()):
        deadline = time.monotonic() + 240
        while seen != produced:
            assert time.monotonic() < deadline, f"Snowflake has {seen} of {produced} rows"
            time.sleep(3)
            try:
                sql = f"SELECT count(*) FROM {TOTALS}"
                seen = int(run_query(sql, "snowflake", stack, settings()).scalar())
            except QueryError:  # the table is not there yet
                continue
