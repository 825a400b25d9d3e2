"""The asset graph on a Spark standalone cluster: a master and two workers, all on loopback.

Needs a JDK with all its modules, since Spark starts its executors with ``jdk.incubator.vector``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psutil
import pyspark
import pytest

from assets.partitions import partition_key, time_partitions
from definitions import defs
from topicberg import kafka
from topicberg.datagen.runner import run_here
from topicberg.endpoints import Endpoints
from topicberg.local import stack as local_stack
from topicberg.local import state
from topicberg.local.ports import choose
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.topics import load_topic

TOPIC = "stock_trades"
RECORDS = 20_000
JAVA = shutil.which("java")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        JAVA is None
        or "jdk.incubator.vector"
        not in subprocess.run([JAVA, "--list-modules"], capture_output=True, text=True).stdout,
        reason="no JDK",
    ),
]


@contextmanager
def spark_process(name: str, folder: Path, *arguments: str, **environment: str) -> Iterator[Path]:
    """A process of the cluster; where it logs."""
    home = Path(pyspark.__file__).parent
    main = f"org.apache.spark.deploy.{name}"
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [str(JAVA), "-cp", str(home / "jars" / "*"), "-Xmx256m", main, *arguments],
            env={
                "PATH": os.environ["PATH"],
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SCALA_VERSION": "2.13",  # what the launch scripts find out
                "SPARK_WORKER_DIR": str(folder / "work"),
                **environment,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield log
        finally:
            started = psutil.Process(process.pid)
            family = [started, *started.children(recursive=True)]
            process.terminate()
            # Where the tests ignore SIGTERM (in the background, say), so does Java.
            for left in psutil.wait_procs(family, timeout=10)[1]:
                left.kill()


def wait_for_line(log: Path, text: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.3)


@pytest.fixture
def cluster(tmp_path: Path, _own_state_dir: None) -> Iterator[tuple[Endpoints, list[Path]]]:
    """A stack of its own on a cluster, and the folders of the two workers."""
    port = choose({}, {})["spark"]
    master = f"spark://127.0.0.1:{port}"
    workers = [tmp_path / "1", tmp_path / "2"]
    serves = ("--host", "127.0.0.1", "--webui-port", "0", "--port")
    with ExitStack() as processes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path / "state"))
        patch.setenv("TOPICBERG_SPARK_MASTER", master)
        settings.cache_clear()
        processes.callback(settings.cache_clear)
        state.prepare_dir(settings())
        key = state.credentials(settings())
        log = processes.enter_context(spark_process("master.Master", tmp_path, *serves, str(port)))
        wait_for_line(log, "I have been elected leader")
        for folder in workers:
            folder.mkdir()
            worker = spark_process(
                "worker.Worker",
                folder,
                *(*serves, "0", "--cores", "1", "--memory", "1g", master),
                AWS_ACCESS_KEY_ID=key.s3_access_key,
                AWS_SECRET_ACCESS_KEY=key.s3_secret_key.get_secret_value(),
                AWS_REGION=settings().aws_region,
            )
            wait_for_line(processes.enter_context(worker), "Successfully registered with master")
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
            instance=instance,
            partition_key=partition_key(time_partitions(spec), datetime.now(UTC)),
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
