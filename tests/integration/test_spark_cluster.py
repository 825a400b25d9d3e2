"""The asset graph on a Spark standalone cluster: a master and two workers, all on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psutil
import pyspark
import pytest

from definitions import defs
from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets.partitions import partition_key, time_partitions
from topicberg.query import run_query
from topicberg.settings import Settings, settings
from topicberg.topics import load_topic
from topicberg_local import stack as local_stack
from topicberg_local import state
from topicberg_local.datagen.runner import run_here
from topicberg_local.ports import choose

TOPIC = "stock_trades"
RECORDS = 20_000
JAVA = shutil.which("java")
HAS_JDK = JAVA is not None and "jdk.incubator.vector" in (
    subprocess.run([JAVA, "--list-modules"], capture_output=True, text=True, check=False).stdout
)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_JDK, reason="no JDK"),
]
_SERVES = ("--host", "127.0.0.1", "--webui-port", "0", "--port")


@contextmanager
def master(folder: Path, port: int) -> Iterator[psutil.Process]:
    arguments = *_SERVES, str(port)
    with _process("master.Master", folder, {}, "I have been elected leader", *arguments) as process:
        yield process


@contextmanager
def worker(folder: Path, url: str, config: Settings) -> Iterator[psutil.Process]:
    """A worker that starts executors of one core, and may use the stack's object store."""
    folder.mkdir()
    key = state.credentials(config)
    environment = {
        "AWS_ACCESS_KEY_ID": key.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": key.s3_secret_key.get_secret_value(),
        "AWS_REGION": config.aws_region,
    }
    arguments = *_SERVES, "0", "--cores", "1", "--memory", "1g", url
    started = "Successfully registered with master"
    with _process("worker.Worker", folder, environment, started, *arguments) as process:
        yield process


@contextmanager
def _process(
    name: str, folder: Path, environment: Mapping[str, str], started: str, *arguments: str
) -> Iterator[psutil.Process]:
    """A process of the cluster.

    :param started: what it logs once it serves
    """
    home, main = Path(pyspark.__file__).parent, f"org.apache.spark.deploy.{name}"
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
        root = psutil.Process(process.pid)
        try:
            _wait_for_line(log, started)
            yield root
        finally:
            family = [root, *root.children(recursive=True)]
            process.terminate()
            # Where the tests ignore SIGTERM (in the background, say), so does Java.
            for left in psutil.wait_procs(family, timeout=10)[1]:
                left.kill()


def _wait_for_line(log: Path, text: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.3)


@pytest.fixture
def cluster(tmp_path: Path, _own_state_dir: Path) -> Iterator[tuple[Endpoints, list[Path]]]:
    """A stack of its own on a cluster, and the folders of the two workers."""
    port = choose({}, {})["spark"]
    address, workers = f"spark://127.0.0.1:{port}", [tmp_path / "1", tmp_path / "2"]
    with ExitStack() as processes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path / "state"))
        patch.setenv("TOPICBERG_SPARK_MASTER", address)
        settings.cache_clear()
        processes.callback(settings.cache_clear)
        state.prepare_dir(settings())
        processes.enter_context(master(tmp_path, port))
        for folder in workers:
            processes.enter_context(worker(folder, address, settings()))
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
    assert {
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    } <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
