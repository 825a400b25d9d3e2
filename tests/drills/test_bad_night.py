"""A bad night of a new project: faults one after the other, on a machine that is busy with others.

A project as `topicberg init` writes it, with a second topic, runs as users run it. Each fault is
one alert with its cause, gone when it ends; no command shows a traceback; what is stopped stays so.
``TOPICBERG_TEST_NIGHT=kafka,disk`` chooses faults, ``TOPICBERG_TEST_BUSY=6`` adds busy processes.
As root, the disk becomes full: the state is on a disk of its own.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_until

from topicberg.alerts.alert import Notice
from topicberg.alerts.channels import ALERTS_FILE
from topicberg.alerts.decisions import FILE as DECISIONS_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ALERT_SECONDS, RESOLVED_SECONDS, QUIET_SECONDS = 150.0, 240.0, 45.0
DISK_BYTES = 4 * 2**30
COMMANDS = (["status"], ["alerts"], ["tableflow", "status"])
End = Callable[[], object]
logger = logging.getLogger(__name__)


class Night:
    """The project, its stack and Dagster."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.state, self.programs = state, Path(sys.executable).parent
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TOPICBERG_", "DAGSTER_"))},
            "TOPICBERG_STATE_DIR": str(state),
            "PYTHONPATH": str(folder / "parcels" / "src"),
        }
        self.ui: subprocess.Popen[bytes] | None = None
        self.log = folder / "ui.log"
        self.root = folder
        self.run("init", "parcels")
        self.root = folder / "parcels"
        orders = (self.root / "topics" / "orders.yaml").read_text()
        returns = orders.replace("name: orders", "name: returns").replace("Orders", "Returns")
        (self.root / "topics" / "returns.yaml").write_text(returns)

    def run(self, *arguments: str, timeout: float = 400) -> str:
        """Return what a command shows; it may fail, and shows no traceback."""
        command = [str(self.programs / "topicberg"), *arguments]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        shown = done.stdout + done.stderr
        assert "Traceback" not in shown, f"topicberg {' '.join(arguments)}: {shown[-3000:]}"
        return shown

    def up(self) -> None:
        """Start the stack; on a busy machine, a start may have to be continued."""
        wait_until(lambda: "the stack is up" in self.run("up"), 600)

    def start_ui(self) -> None:
        self.up()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = int(server.getsockname()[1])
        command = [str(self.programs / "topicberg"), "ui", "--port", str(port)]
        with self.log.open("ab") as log:
            self.ui = subprocess.Popen(
                command,
                cwd=self.root,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: set(self.states("dagster_")) == {"running"}, 600, pause=5)

    def end_ui(self) -> None:
        if self.ui is not None and self.ui.poll() is None:
            os.killpg(self.ui.pid, signal.SIGINT)
            try:
                self.ui.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.ui.pid, signal.SIGKILL)

    def services(self) -> dict[str, dict[str, Any]]:
        shown = self.run("status", "--json")
        with suppress(ValueError):
            return dict(json.loads(shown[shown.index("{") :])["services"])
        return {}

    def states(self, prefix: str = "") -> list[str]:
        services = self.services()
        return [one["state"] for name, one in services.items() if name.startswith(prefix)]

    def family(self, service: str) -> list[psutil.Process]:
        process = psutil.Process(self.services()[service]["pid"])
        return [process, *process.children(recursive=True)]

    def child(self, module: str) -> psutil.Process:
        assert self.ui is not None
        children = psutil.Process(self.ui.pid).children(recursive=True)
        return next(one for one in children if module in " ".join(one.cmdline()))

    def sent(self) -> list[Notice]:
        notices = []
        for line in (self.state / ALERTS_FILE).read_text().splitlines():
            with suppress(ValueError):  # half a line that a fault has written
                notices.append(Notice.model_validate_json(line))
        return notices

    def active(self) -> list[str]:
        """Keys of the alerts that are sent and not resolved."""
        states = {notice.alert.key: notice.state for notice in self.sent()}
        return [key for key, state in states.items() if state != "resolved"]


@dataclass(frozen=True)
class Fault:
    name: str
    begin: Callable[[Night], End]
    key: str = ""
    """Pattern of the key of its alert; empty: it is none."""
    says: str = "."
    """The cause, in its text."""


# --- faults ---


def frozen(name: str) -> Fault:
    def begin(night: Night) -> End:
        family = night.family(name)
        for process in family:
            process.suspend()

        def end() -> None:
            for process in family:
                with suppress(psutil.Error):
                    process.resume()

        return end

    return Fault(name, begin, f"service {name}", "does not answer|no answer")


def frozen_daemon(night: Night) -> End:
    process = night.child("dagster._daemon")
    process.suspend()
    return process.resume


def killed_daemon(night: Night) -> End:
    night.child("dagster._daemon").kill()
    return night.start_ui


def killed_supervisor(night: Night) -> End:
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "supervisord" in line and str(night.state) in line:
            process.kill()
    return night.up


def killed_run(night: Night) -> End:
    """Kill the next run that Dagster starts."""

    def runs() -> list[psutil.Process]:
        assert night.ui is not None
        children = psutil.Process(night.ui.pid).children(recursive=True)
        lines = [(one, " ".join(one.cmdline())) for one in children if one.is_running()]
        return [one for one, line in lines if "execute_run" in line or "run_process" in line]

    with suppress(psutil.Error):
        wait_until(runs, 330, pause=0.2)
    for process in runs():
        with suppress(psutil.Error):
            process.kill()
    return lambda: None


def crash_loop(night: Night) -> End:
    for _ in range(4):
        night.family("s3")[0].kill()
        time.sleep(6)
    return lambda: None


def full_disk(night: Night) -> End:
    used = shutil.disk_usage(night.state).used
    resize(night.state, used + 2**20)
    return lambda: resize(night.state, DISK_BYTES)


def broken_spec(night: Night) -> End:
    file = night.root / "topics" / "returns.yaml"
    text = file.read_text()
    file.write_text(text[:40] + "\n  schema: {")
    return lambda: file.write_text(text)


def broken_files(night: Night) -> End:
    """Files as a power cut leaves them: half of one, and nothing, and garbage."""
    (night.state / "tableflow" / "orders.json").write_text('{"topic": "ord')
    (night.state / "watch.json").write_text("")
    (night.state / "engine-starts.json").write_bytes(b"\x00\xff")
    (night.state / DECISIONS_FILE).write_text('{"silences": [')
    with (night.state / ALERTS_FILE).open("a") as stream:
        stream.write('{"state":"firing","alert":{"key":"chec')
    return lambda: None


def broken_ports(night: Night) -> End:
    file = night.state / "ports.json"
    text = file.read_text()
    file.write_text(text[: len(text) // 2])
    return lambda: file.write_text(text)


def wrong_clock(night: Night) -> End:
    """Files of a time that has not come: the clock was ahead, and is right again."""
    later = time.time() + 86_400
    for path in (*night.state.glob("tableflow/*"), *night.state.glob("*.json")):
        os.utime(path, (later, later))
    return lambda: None


def broken_database(night: Night) -> End:
    """The database of Dagster's schedules is garbage, as after a power cut."""
    file = night.state / "dagster" / "schedules" / "schedules.db"
    night.end_ui()
    kept = {path: path.read_bytes() for path in file.parent.glob("schedules.db*")}
    for path in kept:
        path.write_bytes(b"garbage" * 1000)

    def end() -> None:
        for path, content in kept.items():
            path.write_bytes(content)
        night.start_ui()

    return end


FAULTS = (
    Fault("files", broken_files),
    frozen("iceberg_rest"),
    Fault("disk", full_disk, "service disk", "its disk is full"),
    Fault("ports", broken_ports, "service supervisor", "ports.json"),
    Fault("clock", wrong_clock),
    Fault("run", killed_run, "run .*", "kill|ended"),
    Fault("daemon", frozen_daemon, "service dagster_daemon", "heartbeat"),
    Fault("killed_daemon", killed_daemon, "service dagster_webserver", "ended"),
    Fault("supervisor", killed_supervisor, "service supervisor", "it ended"),
    Fault("database", broken_database),
    *map(frozen, ("kafka", "schema_registry", "s3", "spark", "aws", "snowflake", "tableflow")),
    Fault("crashes", crash_loop, "service s3", "again and again"),
    Fault("spec", broken_spec, "specs", "returns"),
)


def resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """A disk of its own for the state, if this user may have one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    mounted = os.getuid() == 0 and subprocess.run(command, check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that take what the machine has."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    with ExitStack() as stack:
        stack.enter_context(disk(tmp_path / "state"))
        night = Night(tmp_path, tmp_path / "state")
        stack.callback(night.run, "down")
        stack.callback(night.end_ui)
        night.start_ui()
        (night.state / ALERTS_FILE).touch()
        for topic in ("orders", "returns"):
            night.run("datagen", "start", topic, "--rate", "2")
        wait_until(lambda: night.run("tableflow", "status").count("RUNNING") == 2, 300, pause=5)
        stack.enter_context(busy(int(os.environ.get("TOPICBERG_TEST_BUSY", "0"))))
        yield night


def test_bad_night_has_one_alert_for_each_fault(night: Night) -> None:
    chosen = os.environ.get("TOPICBERG_TEST_NIGHT", "").split(",")
    wait_until(lambda: not night.active(), RESOLVED_SECONDS, pause=2)
    problems = []
    for fault in FAULTS:
        if chosen != [""] and fault.name not in chosen:
            continue
        if fault.name == "disk" and not os.path.ismount(night.state):
            continue
        try:
            line = played(night, fault)
        except Exception as error:  # the next fault is another one
            line = f"{type(error).__name__}: {error}"
            problems.append(f"{fault.name}: {line}")
        logger.info("%s: %s", fault.name, line)
    try:
        stays_down(night)
    except AssertionError as error:
        problems.append(f"down: {error}")
    assert not problems, "\n".join(problems)


def played(night: Night, fault: Fault) -> str:
    """Begin a fault, see its alert, end it, see that it is resolved; return how long it took."""
    before = len(night.sent())

    def notices() -> list[tuple[str, str]]:
        return [(notice.state, notice.alert.key) for notice in night.sent()[before:]]

    end, began = fault.begin(night), time.monotonic()
    shown: list[str] = []
    try:
        if fault.key:
            with suppress(TimeoutError, AssertionError):
                wait_until(lambda: any("firing" in one for one in notices()), ALERT_SECONDS)
        reported = time.monotonic() - began
        shown = [night.run(*command) for command in COMMANDS]
    finally:
        ended = time.monotonic()
        end()
    with suppress(TimeoutError, AssertionError):
        wait_until(lambda: not night.active(), RESOLVED_SECONDS, pause=1)
    resolved = time.monotonic() - ended
    if not fault.key or "supervisor" in fault.name:
        time.sleep(QUIET_SECONDS)
    time.sleep(20)  # for two evaluations: what the fault has left is not sent
    sent = night.sent()[before:]
    story = "; ".join(f"{n.state} {n.alert.key} [{n.alert.what[:150]}]" for n in sent)
    firing = [notice for notice in sent if notice.state == "firing"]
    assert len(firing) == bool(fault.key), story or "no alert"
    if firing:
        assert re.fullmatch(fault.key, firing[0].alert.key), story
        assert re.search(fault.says, firing[0].alert.what), story
    assert not night.active(), story
    assert len(shown) == len(COMMANDS)
    return f"alert after {reported:.0f} s, resolved after {resolved:.0f} s"


def stays_down(night: Night) -> None:
    """What is stopped stays stopped, also by a run that goes on, and by Dagster."""
    night.run("down")
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        time.sleep(8)
        states = {name: one["state"] for name, one in night.services().items()}
        started = {name for name, state in states.items() if state != "stopped"}
        assert not {name for name in started if not name.startswith("dagster")}, states
    assert "STOPPED" in night.run("tableflow", "status")
