"""A Spark standalone cluster on loopback.

Needs a JDK with all its modules, since Spark starts its executors with ``jdk.incubator.vector``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from topicberg.settings import Settings
from topicberg_local import state

JAVA = shutil.which("java")
HAS_JDK = JAVA is not None and "jdk.incubator.vector" in (
    subprocess.run([JAVA, "--list-modules"], capture_output=True, text=True, check=False).stdout
)
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
