"""The asset graph on a Spark standalone cluster: a master and two workers, all on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psutil
import pytest
import spark_cluster
from spark_cluster import HAS_JDK

from definitions import defs
from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets.partitions import partition_key, time_partitions
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.topics import load_topic
from topicberg_local import stack as local_stack
from topicberg_local import state
from topicberg_local.datagen.runner import run_here
from topicberg_local.ports import choose

TOPIC = "stock_trades"
RECORDS = 20_000
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_JDK, reason="no JDK"),
]


@pytest.fixture
def cluster(tmp_path: Path, _own_state_dir: None) -> Iterator[tuple[Endpoints, list[Path]]]:
    """A stack of its own on a cluster, and the folders of the two workers."""
    port = choose({}, {})["spark"]
    master = f"spark://127.0.0.1:{port}"
    workers = [tmp_path / "1", tmp_path / "2"]
    with ExitStack() as processes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path / "state"))
        patch.setenv("TOPICBERG_SPARK_MASTER", master)
        settings.cache_clear()
        processes.callback(settings.cache_clear)
        state.prepare_dir(settings())
        processes.enter_context(spark_cluster.master(tmp_path, port))
        for folder in workers:
            processes.enter_context(spark_cluster.worker(folder, master, settings()))
        try:
            yield local_stack.up(settings()), workers
        finally:
            local_stack.down(settings())


def test_the_graph_on_two_workers(cluster: tuple[Endpoints, list[Path]]) -> None:
    """From the topic to Snowflake, derived tables included, with the work done by both workers."""
    endpoints, workers = cluster
    config, spec = settings(), load_topic(TOPIC)
    kafka.ensure_topic(spec, endpoints, config)
    run_here(config, TOPIC, rate=0, count=RECORDS)
    with dg.instance_for_test() as instance:
        result = defs.resolve_job_def(f"{TOPIC}_pipeline").execute_in_process(
            instance=instance, partition_key=partition_key(time_partitions(spec), datetime.now(UTC))
        )
    assert all(check.passed for check in result.get_asset_check_evaluations())
    for engine in ("duckdb", "spark", "snowflake"):
        for table in (TOPIC, "stock_trades_with_totals"):
            counted = run_query(f"SELECT count(*) FROM {table}", engine, endpoints, config)
            assert counted.scalar() == RECORDS, (engine, table)
    for folder in workers:
        (executor,) = folder.glob("work/app-*/*/stderr")
        assert "Running task" in executor.read_text() or "Finished task" in executor.read_text()
    addresses = {
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
