"""The supervisor itself, with small services: crashes are reported, killed services restart."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr
from waiting import wait_until

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import StackError
from topicberg.local import health, ports, state, supervisor
from topicberg.local.progress import LogReport
from topicberg.local.service import Context, Service
from topicberg.settings import Settings

NOWHERE = Endpoints(
    kafka_bootstrap="",
    schema_registry="",
    iceberg_rest="",
    spark_connect="",
    snowflake=SnowflakeEndpoint(account="", user="", password=SecretStr("")),
)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    config = Settings(state_dir=tmp_path / "50% of it")
    state.prepare_dir(config)
    yield Context(config, ports.choose({}, {}), state.credentials(config))
    supervisor.end(supervisor.stack_processes(config.state_dir))


def service(code: str, healthy: bool) -> Service:
    def ask(_: Endpoints) -> None:
        if not healthy:
            raise ConnectionError("no server")

    return Service(
        name="little",
        command=[sys.executable, "-c", code],
        environment={"QUOTED": "100% 'of' it, a=b"},
        url=None,
        start_order=1,
        healthy=ask,
    )


def test_what_crashes_fails_fast_with_its_reason(context: Context) -> None:
    crashing = service("import os; raise OSError('the disk said ' + os.environ['QUOTED'])", False)
    began = time.monotonic()
    supervisor.launch(context, [crashing])
    control = supervisor.Control(context)
    with pytest.raises(StackError) as caught:
        health.wait(context, [crashing], NOWHERE, control, LogReport())
    reason = "OSError: the disk said 100% 'of' it, a=b"
    assert caught.value.message == f"little ends as soon as it starts: {reason}"
    assert time.monotonic() - began < 30
    info = (control.processes() or {})["little"]
    assert health.service_status(crashing, info).state in ("restarting", "starting")


def test_a_service_runs_while_its_short_children_end(context: Context) -> None:
    spawning = "import subprocess; [subprocess.run(['true']) for _ in iter(int, 1)]"
    busy = service(spawning, True)
    supervisor.launch(context, [busy])
    control = supervisor.Control(context)
    health.wait(context, [busy], NOWHERE, control, LogReport())
    info = (control.processes() or {})["little"]
    assert {health.service_status(busy, info).state for _ in range(1000)} == {"running"}


def test_what_is_killed_comes_back(context: Context) -> None:
    steady = service("import time; time.sleep(600)", True)
    supervisor.launch(context, [steady])
    control = supervisor.Control(context)
    health.wait(context, [steady], NOWHERE, control, LogReport())
    first = health.service_status(steady, (control.processes() or {})["little"])
    assert first.running
    assert first.pid
    process = psutil.Process(first.pid)
    wait_until(lambda: "python" in process.name(), 20)  # no shell any more, which makes the folder
    left = context.temporary("little") / "left-by-a-killed-process"
    left.touch()
    process.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        again = health.service_status(steady, (control.processes() or {})["little"])
        tidy = left.parent.is_dir() and not left.exists()  # its shell removes and makes the folder
        if again.running and again.pid != first.pid and tidy:
            break
        time.sleep(0.2)
    else:
        raise AssertionError(again)
    assert left.parent.is_dir()
    control.shutdown()
    assert supervisor.wait_until_gone(context.config.state_dir, 20)
