"""A bad night of a new project: faults one after the other, on a machine that is busy with others.

A project as `topicberg init` writes it, with a second topic, runs as users run it. Each fault is at
most one alert, with its cause, gone when it ends; no command shows a traceback; what was stopped
stays so. ``TOPICBERG_TEST_NIGHT=kafka,disk`` chooses faults, ``TOPICBERG_TEST_BUSY=20`` adds busy
processes. As root, the disk becomes full: the state is on a disk of its own.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import shared_stack
from dagster_faults import killed, next_run, run_frozen
from fault_site import End, Site, kill
from faults import stopped
from other_faults import crash_loop, daemon_killed
from waiting import wait_until

from topicberg.alerts.alert import DECISIONS_FILE, Notice
from topicberg.alerts.channels import alerts_file
from topicberg.alerts.dagster_processes import DAEMON, WEBSERVER
from topicberg.settings import settings
from topicberg.tableflow.service.status import read_status
from topicberg_local import stack as local_stack
from topicberg_local.supervisor import stack_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ALERT_SECONDS, RESOLVED_SECONDS, QUIET_SECONDS = 150.0, 300.0, 40.0
DISK_BYTES = 4 * 2**30
COMMANDS = (["status"], ["alerts"], ["tableflow", "status"])
TOPICS = ("orders", "returns")
logger = logging.getLogger(__name__)


class Night(Site):
    """The project, its stack and Dagster."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project, self.ui = folder, folder / "parcels", None
        self.command("init", "parcels", cwd=folder)
        orders = (self.project / "topics" / "orders.yaml").read_text()
        returns = orders.replace("name: orders", "name: returns").replace("Orders", "Returns")
        (self.project / "topics" / "returns.yaml").write_text(returns)
        settings.cache_clear()
        self.config = settings()
        self.state = self.config.state_dir

    def command(self, *arguments: str, cwd: Path | None = None) -> str:
        """Return what a command shows; it may fail, and shows no traceback."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("topicberg")), *arguments],
            cwd=cwd or self.project,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        shown = done.stdout + done.stderr
        assert "Traceback" not in shown, f"topicberg {' '.join(arguments)}: {shown[-3000:]}"
        return shown

    def sent(self) -> list[Notice]:
        notices = []
        for line in alerts_file(self.config).read_text().splitlines():
            with suppress(ValueError):  # half a line that a fault has written
                notices.append(Notice.model_validate_json(line))
        return notices

    def active(self) -> list[str]:
        """Return the keys of the alerts that are sent and not resolved."""
        states = {notice.alert.key: notice.state for notice in self.sent()}
        return [key for key, state in states.items() if state != "resolved"]


class Fault(NamedTuple):
    name: str
    begin: Callable[[Night], End]
    key: str = ""
    """Pattern of the key of its alert; empty: it is none."""
    says: str = "."
    """The cause, in its text."""
    may_end: bool = False
    """Whether a run may repair it before it is to be reported."""


def nothing() -> None:
    pass


def frozen(name: str) -> Fault:
    def begin(_: Site) -> End:
        stack = ExitStack()
        stack.enter_context(stopped(name))
        return stack.close

    return Fault(name, begin, f"service {name}", "does not answer|no answer")


def frozen_process(module: str) -> Callable[[Site], End]:
    def begin(night: Site) -> End:
        process = night.process(module)
        process.suspend()
        return process.resume

    return begin


def killed_engine(_: Site) -> End:
    kill("tableflow")
    return nothing


def killed_supervisor(night: Night) -> End:
    for process in stack_processes(night.state):
        with suppress(psutil.Error):
            if "supervisord" in " ".join(process.cmdline()):
                process.kill()
    return lambda: shared_stack.up(night.config)


def killed_run(night: Site) -> End:
    next_run(night).kill()
    return nothing


def full_disk(night: Night) -> End:
    resize(night.state, shutil.disk_usage(night.state).used + 2**20)
    return lambda: resize(night.state, DISK_BYTES)


def broken_spec(night: Site) -> End:
    file = night.project / "topics" / "returns.yaml"
    text = file.read_text()
    file.write_text(text[:40] + "\n  schema: {")
    return lambda: file.write_text(text)


def broken_files(night: Night) -> End:
    """Files as a power cut leaves them: half of one, and nothing, and garbage."""
    (night.state / "tableflow" / "orders.json").write_text('{"topic": "ord')
    (night.state / "watch.json").write_text("")
    (night.state / "engine-starts.json").write_bytes(b"\x00\xff")
    (night.state / DECISIONS_FILE).write_text('{"silences": [')
    with alerts_file(night.config).open("a") as stream:
        stream.write('{"state":"firing","alert":{"key":"chec')
    return nothing


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
    return nothing


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
    Fault("ports", broken_ports, "service supervisor", "ports.json"),
    Fault("disk", full_disk, "service disk", "its disk is full"),
    Fault("run", killed_run),
    Fault("frozen_run", run_frozen, r"frozen \w+", "stopped by a signal"),
    Fault("supervisor", killed_supervisor, "service supervisor", "it ended", True),
    Fault("killed_daemon", daemon_killed, f"service {WEBSERVER}", "ended"),
    Fault("crashes", crash_loop("s3"), "service s3", "again and again"),
    Fault("files", broken_files),
    Fault("clock", wrong_clock),
    Fault("spec", broken_spec, "specs", "returns"),
    Fault("database", broken_database),
    Fault("engine", killed_engine, "service tableflow", "nothing listens|it ended", True),
    Fault("daemon", frozen_process("dagster._daemon"), f"service {DAEMON}", "heartbeat"),
    Fault("webserver", frozen_process("dagster_webserver"), f"service {WEBSERVER}", "no answer"),
    *map(frozen, ("kafka", "s3", "spark", "tableflow")),
    *map(frozen, ("iceberg_rest", "schema_registry", "aws", "snowflake")),
    Fault("killed_webserver", killed("dagster_webserver"), f"service {WEBSERVER}", "ended"),
)


def resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Give the state a disk of its own, if this user may have one."""
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
    """Run processes that take what the machine has, and leave others the first turn."""
    command = [sys.executable, "-c", "import os; os.nice(5)\nwhile True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    with ExitStack() as stack:
        stack.enter_context(disk(tmp_path / "state"))
        monkeypatch.setenv("TOPICBERG_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("TOPICBERG_PROJECT_ROOT", str(tmp_path / "parcels"))
        paths = (str(tmp_path / "parcels" / "src"), os.environ["PYTHONPATH"])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        night = Night(tmp_path)
        stack.callback(night.command, "down")
        stack.callback(night.end_ui)
        shared_stack.up(night.config)
        night.start_ui()
        alerts_file(night.config).touch()
        for topic in TOPICS:
            night.command("datagen", "start", topic, "--rate", "2")
        wait_until(
            lambda: {read_status(night.config, topic).phase for topic in TOPICS} == {"RUNNING"}, 300
        )
        stack.enter_context(busy(int(os.environ.get("TOPICBERG_TEST_BUSY", "0"))))
        yield night
    settings.cache_clear()


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
    before, end, began = len(night.sent()), fault.begin(night), time.monotonic()
    try:
        with ThreadPoolExecutor() as pool:  # each command takes a minute on a busy machine
            shown = pool.map(lambda command: night.command(*command), COMMANDS)
            with suppress(AssertionError):
                wait_until(
                    lambda: (
                        not fault.key or any(n.state == "firing" for n in night.sent()[before:])
                    ),
                    ALERT_SECONDS,
                )
            reported = time.monotonic() - began
            assert all(shown)
    finally:
        ended = time.monotonic()
        end()
    with suppress(AssertionError):
        wait_until(lambda: not night.active(), RESOLVED_SECONDS, pause=1)
    resolved = time.monotonic() - ended
    time.sleep(QUIET_SECONDS)  # for two evaluations: what the fault has left is not sent
    sent = night.sent()[before:]
    story = "; ".join(f"{n.state} {n.alert.key} [{n.alert.what[:150]}]" for n in sent)
    firing = [notice for notice in sent if notice.state == "firing"]
    assert len(firing) <= bool(fault.key), story
    assert firing or not fault.key or fault.may_end, "no alert"
    if firing:
        assert re.fullmatch(fault.key, firing[0].alert.key), story
        assert re.search(fault.says, firing[0].alert.what), story
    assert not night.active(), story
    return f"alert after {reported:.0f} s, resolved after {resolved:.0f} s"


def stays_down(night: Night) -> None:
    """What is stopped stays stopped, also by a run in progress, and by Dagster."""
    night.command("down")
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        time.sleep(8)
        assert not [one.name for one in local_stack.status(night.config) if one.state != "stopped"]
    assert "STOPPED" in night.command("tableflow", "status")
