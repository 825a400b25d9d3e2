"""The asset graph on the real stack: materialize, sense, recompute; nothing missed or twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from snapshot_daemon import Daemon, snapshot_daemon

from definitions import defs
from topicberg.catalogs import glue
from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.partitions import partition_key, time_partitions
from topicberg.orchestration.jobs import sensors
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.query import Engine, run_query
from topicberg.settings import settings
from topicberg.tableflow.service.engine import Ingestor, run_once
from topicberg.topics import load_topic, load_topics
from topicberg_local.datagen.runner import run_here

pytestmark = [pytest.mark.integration, pytest.mark.project]

TOPIC, TOTALS = "stock_trades", "stock_trades_with_totals"
DERIVED = tuple(
    table
    for table in find_derived()
    if "airline" not in table.file and not (table.lookback or table.lookups)
)
PIPELINE = Lake(
    settings(),
    tuple(
        spec
        for spec in load_topics()
        if spec.pipeline != "airline"
        and (spec.publishes is None or spec.publishes in {table.name for table in DERIVED})
    ),
    DERIVED,
)
SENSOR = snapshot_sensor(PIPELINE)
"""Without the airline, which other tests use, and without lookbacks: tests/unit/jobs has those."""
ENGINES: tuple[Engine, ...] = ("duckdb", "spark", "snowflake")


@pytest.fixture(scope="module")
def daemon(stack: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests: what it has seen and requested once, it does not again."""
    with snapshot_daemon(SENSOR, tmp_path_factory.mktemp("dagster")) as daemon:
        yield daemon


def count(table: str, engine: Engine, stack: Endpoints) -> int:
    return int(run_query(f"SELECT count(*) FROM {table}", engine, stack, settings()).scalar())


def commit_some(stack: Endpoints, records: int) -> None:
    """Another snapshot of the topic's table, at once."""
    run_here(settings(), TOPIC, rate=0, count=records)
    run_once(load_topic(TOPIC), stack, settings())


def test_pipeline_and_three_doors(stack: Endpoints, daemon: Daemon) -> None:
    spec, config = load_topic(TOPIC), settings()
    kafka.ensure_topic(spec, stack, config)
    run_here(config, TOPIC, rate=0, count=2000)
    while daemon.tick().run_requests:  # what other tests left, and ours as far as it is committed
        pass
    key = partition_key(time_partitions(spec), datetime.now(UTC))
    result = defs.resolve_job_def(f"{TOPIC}_pipeline").execute_in_process(
        instance=daemon.instance, partition_key=key
    )
    found = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert {"tableflow", "kafka_lag", "freshness", "ranges", "pointer", "parity"} <= set(found)
    assert {"anomaly_rate", "up_to_date"} <= set(found)
    assert all(found.values()), found
    produced = sum(kafka.end_offsets(stack, TOPIC).values())
    for engine in ENGINES:
        assert count(TOPIC, engine, stack) == produced
    totals = f"SELECT sum(total_price), sum(quantity * price) FROM {TOTALS}"
    assert len(set(run_query(totals, "duckdb", stack, config).rows[0])) == 1
    table = stack.catalog(config).load_table(spec.table_identifier(config))
    in_glue = glue.get_table(stack.boto3("glue", config), config.cluster_id, TOPIC)
    assert in_glue is not None
    # The engine and its maintenance go on meanwhile: Glue may be a commit behind.
    versions = [entry.metadata_file for entry in table.metadata.metadata_log]
    assert glue.metadata_location(in_glue) in [*versions, table.metadata_location]


@pytest.mark.parametrize("snapshots", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_daemon_down_for_some_snapshots_registers_each(
    stack: Endpoints, daemon: Daemon, snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_topic(TOPIC)
    kafka.ensure_topic(spec, stack, settings())
    commit_some(stack, 100)
    while not daemon.tick().skip_message:
        pass
    known, runs = len(daemon.materialized), len(daemon.runs)
    daemon.lags.clear()
    daemon.registered.clear()
    ingestor = Ingestor(spec, stack, settings())
    for _ in range(snapshots):
        run_here(settings(), TOPIC, rate=0, count=50)
        ingestor.step()
    ingestor.close()
    while not daemon.tick().skip_message:
        pass
    # The stack's own engine may commit as well.
    assert len(daemon.materialized) - known >= snapshots
    assert len(set(daemon.materialized)) == len(daemon.materialized)
    assert len(daemon.lags) >= snapshots
    assert all(0 < lag < 300 for lag in daemon.lags)
    later = time.time() + sensors.OBSERVATION_SECONDS
    monkeypatch.setattr(sensors, "_now", lambda: later)
    daemon.tick()
    lag: Mapping[str, Any] = daemon.observed[-1].metadata
    assert sum(lag["consumer_lag_by_partition"].value.values()) == lag["consumer_lag"].value == 0
    hours = 2 if datetime.now(UTC).minute < 3 else 1
    kinds = [run.dagster_run.tags["topicberg/kind"] for run in daemon.runs[runs:]]
    assert {"glue", "snowflake"} == {key.path[0] for key in daemon.registered}
    assert len(daemon.registered) <= 4  # the engine may compact the table in between
    checks = kinds.count("registration")
    assert checks <= 2
    assert kinds.count("computation") == len(kinds) - checks <= hours
    produced = sum(kafka.end_offsets(stack, TOPIC).values())
    for engine in ENGINES:
        assert count(TOTALS, engine, stack) == produced


def test_expired_snapshots_reach_glue_once(stack: Endpoints, daemon: Daemon) -> None:
    """Metadata that changes without a snapshot is registered once."""
    config, client = settings(), stack.boto3("glue", settings())
    commit_some(stack, 10)
    while not daemon.tick().skip_message:
        pass
    daemon.registered.clear()
    table = stack.catalog(config).load_table(load_topic(TOPIC).table_identifier(config))
    with table.transaction() as transaction:
        transaction.set_properties({"topicberg.note": uuid.uuid4().hex})
    for _ in range(6):
        daemon.tick()
    assert [key.path[0] for key in daemon.registered] == ["glue", "snowflake"]
    found = glue.get_table(client, config.cluster_id, TOPIC)
    assert found is not None
    assert glue.metadata_location(found) == table.refresh().metadata_location


def test_everything_on_a_stack_where_one_topic_has_records(
    stack: Endpoints, daemon: Daemon
) -> None:
    """The other topics' tables are made, and every pipeline runs; again, nothing is sent twice."""
    kafka.ensure_topic(load_topic("airline.sunset"), stack, settings())
    run_here(settings(), "airline.sunset", rate=0, count=200)
    run_once(load_topic("airline.sunset"), stack, settings())
    key = partition_key(time_partitions(load_topic(TOPIC)), datetime.now(UTC))
    derived = [
        dg.AssetKey([system, name])
        for name in ("flight", "flyer_stats", "flyer_totals")
        for system in ("iceberg", "glue", "snowflake")
    ]
    published = dg.AssetKey(["kafka", "airline_flight"])
    sent: list[int] = []
    for _ in range(2):
        result = defs.resolve_job_def("airline_pipeline").execute_in_process(
            instance=daemon.instance, partition_key=key, asset_selection=[*derived, published]
        )
        (event,) = result.asset_materializations_for_node("kafka__airline_flight")
        sent.append(int(str(event.metadata["records_sent"].value)))
    assert sent[0] > 0
    assert sent[1] == 0
    (event,) = result.asset_materializations_for_node("iceberg__flight")
    snapshots: Any = event.metadata["source_snapshots"].value
    assert set(snapshots) == {"lkc-local.airline.sunset", "lkc-local.airline.skyone"}
    assert "data:image/png;base64," in str(event.metadata["chart"].value)
