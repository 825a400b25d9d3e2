"""The supervisor itself, with small services: crashes are reported, killed services restart."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr
from waiting import wait_until

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import StackError
from topicberg.settings import Settings
from topicberg_local import health, ports, stack, state, supervisor
from topicberg_local.engine import watched_supervisor
from topicberg_local.progress import LogReport
from topicberg_local.service import Context, Service

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


def service(code: str, healthy: bool, name: str = "little", order: int = 1) -> Service:
    def ask(_: Endpoints) -> None:
        if not healthy:
            raise ConnectionError("no server")

    return Service(
        name=name,
        command=[sys.executable, "-c", code],
        environment={"QUOTED": "100% 'of' it, a=b"},
        url=None,
        start_order=order,
        healthy=ask,
        answers=lambda _: None if healthy else "no server",
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
    short = "subprocess.run(['sleep', '0.002'])"
    busy = service(f"import subprocess; [{short} for _ in iter(int, 1)]", True)
    supervisor.launch(context, [busy])
    control = supervisor.Control(context)
    health.wait(context, [busy], NOWHERE, control, LogReport())
    info = (control.processes() or {})["little"]
    assert {health.service_status(busy, info).state for _ in range(200)} == {"running"}


def test_frozen_service_is_unresponsive(context: Context) -> None:
    """Its port accepts connections, as the kernel does that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        frozen = replace(
            service("import time; time.sleep(600)", True),
            port=server.getsockname()[1],
            answers=lambda seconds: f"no answer within {seconds:.0f} s",
        )
        supervisor.launch(context, [frozen])
        control = supervisor.Control(context)
        health.wait(context, [frozen], NOWHERE, control, LogReport())
        info = (control.processes() or {})["little"]
        status = health.service_status(frozen, info)
        assert (status.state, status.problem) == ("unresponsive", "no answer within 5 s")
    process, absent = psutil.Process(info["pid"]), replace(frozen, port=1)
    assert health.service_status(absent, info).state == "starting", "nothing listens"
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    status = health.service_status(absent, info)
    assert (status.state, status.problem) == (
        "unresponsive",
        "a signal stopped the process (SIGSTOP)",
    )
    process.resume()


def test_supervisor_that_was_killed_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its services run on, and nothing starts them again. No run ends them while it is stopped."""
    config = context.config
    state.save_ports(context)
    running = service("import time; time.sleep(600)", True)
    supervisor.launch(context, [running])
    health.wait(context, [running], NOWHERE, supervisor.Control(context), LogReport())
    watched = watched_supervisor(config)
    assert watched.check(5) is None
    pid = int((config.state_dir / "supervisor" / "supervisord.pid").read_text())
    psutil.Process(pid).suspend()
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 0.2)
    assert "a signal stopped it" in (watched.check(5) or "")
    for ask in (stack.status, stack.ensure_running):
        with pytest.raises(StackError, match="supervisor of the local stack does not answer"):
            ask(config)
    psutil.Process(pid).kill()
    wait_until(lambda: not ports.listens(context.ports["supervisor"]))
    assert watched.check(5) == "it ended: what ends is not started again"
    with pytest.raises(StackError, match="ended, and 1 of its processes are still running"):
        stack.status(config)


def test_service_that_ends_while_it_is_asked_is_restarted() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:

        def ends(_: float) -> str:
            process.kill()
            process.wait()
            return "no answer"

        info = {"statename": "RUNNING", "pid": process.pid, "now": 1, "start": 0}
        ending = replace(service("", True), answers=ends)
        assert health.service_status(ending, info).state == "restarting"


def test_supervisor_that_does_not_answer_is_not_waited_for(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", context.ports["supervisor"])):
        began = time.monotonic()
        assert supervisor.Control(context).processes() is None
        assert time.monotonic() - began < 10
        assert supervisor.Control(context).has_ended(), "the port is of another process"


def test_what_is_killed_comes_back(context: Context) -> None:
    steady = service("import time; time.sleep(600)", True)
    supervisor.launch(context, [steady])
    control = supervisor.Control(context)
    health.wait(context, [steady], NOWHERE, control, LogReport())
    first = health.service_status(steady, (control.processes() or {})["little"])
    assert first.running
    assert first.pid
    process = psutil.Process(first.pid)
    # Neither supervisord before it runs the shell, nor the shell, which makes the folder.
    code = steady.command[-1]
    wait_until(lambda: "python" in process.name() and code in process.cmdline(), 120)
    left = context.temporary("little") / "left-by-a-killed-process"
    left.touch()
    process.kill()
    deadline = time.monotonic() + 120
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
    list(supervisor.until_gone(context.config.state_dir, 120))
    assert not supervisor.stack_processes(context.config.state_dir)


def test_services_of_one_order_stop_at_the_same_time(context: Context) -> None:
    """Each writes at the signal to stop, and a second later; others stop only after that."""
    log, script = (context.config.state_dir / name for name in ("stops", "script.py"))
    script.write_text("""
import signal, threading, time
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
print("ready", flush=True)
stop.wait()
for word in ("begin", "end"):
    with open("stops", "a") as stream:
        stream.write(f"{name} {word}\\n")
    time.sleep(1)
""")
    services = [
        service(f"name = '{name}'; exec(open('script.py').read())", True, name, order)
        for name, order in (("one", 1), ("other", 1), ("last", 2))
    ]
    supervisor.launch(context, services)
    control = supervisor.Control(context)
    logs = [supervisor.log_file(context, each.name) for each in services]
    wait_until(lambda: all(path.exists() and "ready" in path.read_text() for path in logs), 120)
    control.shutdown()
    list(supervisor.until_gone(context.config.state_dir, 120))
    assert not supervisor.stack_processes(context.config.state_dir)
    found = log.read_text().splitlines()
    assert found[:2] == ["last begin", "last end"]
    assert {*found[2:4]} == {"one begin", "other begin"}
    assert {*found[4:]} == {"one end", "other end"}
