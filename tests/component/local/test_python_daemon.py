"""The daemon that computes Spark's Python functions, as Spark starts it."""

from __future__ import annotations

import importlib.util
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LOOK = 2.0
PROGRAM = f"from topicberg_local import python_daemon; python_daemon.main({LOOK})"


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROGRAM, "pyspark.worker"]
    pipe = subprocess.PIPE
    secret = {"PYTHON_WORKER_FACTORY_SECRET": "secret"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | secret) as process:
        yield process
        process.kill()


def connect(process: subprocess.Popen[bytes]) -> socket.socket:
    """As Spark does to get a worker."""
    (port,) = struct.unpack("!i", process.stdout.read(4))
    connection = socket.create_connection(("127.0.0.1", port), 10)
    (worker,) = struct.unpack("!i", connection.recv(4))
    assert worker != process.pid
    return connection


def test_it_stays_for_its_workers_and_ends_without_one(daemon: subprocess.Popen[bytes]) -> None:
    with connect(daemon), pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(5 * LOOK)
    assert daemon.wait(30) == 0


def test_workers_do_not_read_sparks_archives_again() -> None:
    """``importlib.invalidate_caches``, which a worker calls for each task, would."""
    found = importlib.util.find_spec("pyspark")
    assert found.origin is not None
    home = Path(found.origin).parent
    archives = [*map(str, (home / "python" / "lib").glob("*.zip"))]
    archives += map(str, (home / "jars").glob("spark-core_*.jar"))
    assert len(archives) == 3
    program = (
        "import sys; from topicberg_local import python_daemon; python_daemon.drop_archives()\n"
        "import py4j, pyspark; print(*sys.path, pyspark.__file__, py4j.__file__, sep='\\n')"
    )
    spark = {"SPARK_HOME": str(home), "PYTHONPATH": os.pathsep.join(archives)}  # as Spark does
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | spark, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(home / "__init__.py") in done.stdout.splitlines()
    assert not [line for line in done.stdout.splitlines() if line.startswith(tuple(archives))]
