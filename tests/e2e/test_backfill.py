"""A backfill of everything over 30 days, launched as the UI does it; a run of it is killed."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from dagster_dev import Dagster, dagster_dev
from project_copy import begin_partitions, copy_project

from topicberg.datagen import record_generator
from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg_local.datagen.producer import avro_encoder

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

HOURS = 30 * 24
RECORDS = 200
FINISHED = ("COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED", "COMPLETED")
ASSETS = "{ assetNodes { assetKey { path } groupName isMaterializable } }"
LAUNCH = """
mutation ($backfill: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $backfill) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
STATUS = """
query ($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status error { message } unfinishedRuns { status } }
  }
}
"""


def produce(stack: Endpoints, hours: list[datetime]) -> None:
    """Records of every generator in these hours."""
    producer = Producer(stack.kafka_config())
    for spec in load_topics():
        path = spec.schema_path("value")
        if spec.generator is None or path is None:
            continue
        ensured = kafka.ensure_topic(spec, stack, settings())
        encode = avro_encoder(path.read_text(), ensured.value_schema_id or 0)
        generated = record_generator(spec.generator.kind)(Random(1), 1)
        for number, record in enumerate(islice(generated, RECORDS)):
            key = str(record[spec.key.field]).encode() if spec.key.field else None
            at = hours[number % len(hours)] + timedelta(seconds=number)
            producer.produce(spec.name, encode(record), key, timestamp=int(at.timestamp() * 1000))
    assert producer.flush(60) == 0


def launch(dagster: Dagster, partitions: list[str]) -> str:
    """Of every asset but those of the platform."""
    deadline = time.monotonic() + 300
    while True:
        try:
            nodes = dagster.ask(ASSETS)["assetNodes"]
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(2)
    keys = [
        node["assetKey"]
        for node in nodes
        if node["isMaterializable"] and node["groupName"] != "platform"
    ]
    backfill = {"assetSelection": keys, "partitionNames": partitions}
    launched = dagster.ask(LAUNCH, backfill=backfill)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return str(launched["backfillId"])


def test_thirty_days_of_everything(stack: Endpoints, tmp_path: Path) -> None:
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    hours = [this_hour - timedelta(hours=number) for number in reversed(range(HOURS))]
    produce(stack, [hours[0], hours[HOURS // 2], hours[-1]])
    project = copy_project(tmp_path)
    begin_partitions(project, hours[0].date())
    kills = 0
    with dagster_dev(settings().model_copy(update={"project_root": project})) as dagster:
        backfill = launch(dagster, [hour.strftime("%Y-%m-%d-%H:00") for hour in hours])
        status: dict[str, Any] = {}
        while status.get("status") not in FINISHED:
            time.sleep(2)
            status = dagster.ask(STATUS, id=backfill)["partitionBackfillOrError"]
            if any(run["status"] == "STARTED" for run in status.get("unfinishedRuns", ())):
                kills += kills < 2 and kill_one(dagster)
        assert status["status"] == "COMPLETED_SUCCESS", status
    assert kills == 2
    lake = Lake(settings(), tuple(load_topics()), tuple(find_derived()))
    produced = sum(kafka.end_offsets(stack, "stock_trades").values())

    def ask(sql: str, engine: Any = "duckdb") -> Any:
        return run_query(sql, engine, stack, settings()).rows[0]

    for table in ("stock_trades_with_totals", "flagged_stock_trades", "trades_by_region"):
        assert ask(f"SELECT count(*) FROM {table}") == (produced,)
        assert ask(f"SELECT count(*) FROM {table}", "snowflake") == (produced,)
    sums = {
        ask(f"SELECT sum({what}) FROM {table}")
        for table, what in (
            ("stock_trades", "quantity::BIGINT * price"),
            ("stock_trades_with_totals", "total_price"),
            ("stock_total_trades", "total_price"),
        )
    }
    assert len(sums) == 1
    assert all(ask(f"SELECT count(*) > 0 FROM {table.name}") == (True,) for table in lake.derived)


def kill_one(dagster: Dagster) -> bool:
    """A process that has worked for some seconds."""
    for process in dagster.runs():
        with suppress(psutil.NoSuchProcess):
            if process.cpu_times().user > 4:
                process.kill()
                return True
    return False
