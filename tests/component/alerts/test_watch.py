"""The engine's watch: what does not answer becomes one alert, after a while, and is resolved."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import dagster as dg
import psutil
import pytest
from clocks import Clock as WallClock
from pydantic import SecretStr
from waiting import wait_until

from topicberg.alerts import dagster_processes, watch
from topicberg.alerts.alert import Alert, end_silence, silence
from topicberg.alerts.channels import alerts_file
from topicberg.alerts.dagster_processes import (
    CODE,
    DAEMON,
    MAX_HEARTBEAT_AGE,
    UI_START_SECONDS,
    WEBSERVER,
    end_orphans,
    forget_ui,
    lost_ui,
    note_ui,
    running_ui,
    watched_dagster,
)
from topicberg.alerts.settings import AlertSettings, alert_settings
from topicberg.alerts.watch import (
    PATIENCE_SECONDS,
    STABLE_SECONDS,
    STARTS,
    WINDOW_SECONDS,
    ServiceWatch,
    Watched,
    Watcher,
    note_start,
    read_restarts,
    read_state,
    restart_problem,
    starts_file,
    with_restarts,
)
from topicberg.cli.ui import ui
from topicberg.endpoints import local_endpoints
from topicberg.errors import SpecError, StackError, TopicbergError, split_hint
from topicberg.orchestration.jobs.alerts import confirmed, engine_check, engine_sensor
from topicberg.settings import Settings
from topicberg_local.engine import NEEDED, start_times, unavailable, watched_supervisor
from topicberg_local.python_services import as_environment
from topicberg_local.stack import SERVICES


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Service:
    """Answers, or says why not."""

    def __init__(self) -> None:
        self.why: str | None = None

    def __call__(self, _seconds: float) -> str | None:
        return self.why


def test_service_is_a_fault_after_its_patience_and_no_longer_when_it_answers() -> None:
    clock, kafka, spark = Clock(), Service(), Service()
    looks = ServiceWatch(
        [Watched("kafka", kafka, "end it"), Watched("spark", spark, "end it")], clock
    )
    assert looks.look() == {}
    kafka.why = "no answer within 5 s"
    assert looks.look() == {}
    clock.now += PATIENCE_SECONDS - 1
    assert looks.look() == {}
    clock.now += 1
    (alert,) = looks.look().values()
    assert (alert.key, alert.severity) == ("service kafka", "error")
    assert alert.what == "kafka does not answer: no answer within 5 s"
    kafka.why = None
    assert looks.look() == {}
    kafka.why = "again"
    assert looks.look() == {}, "it has to fail for a while again"


def test_consequence_has_its_patience_after_its_cause() -> None:
    """What answers a moment later than its cause is no fault."""
    clock, kafka, proxy = Clock(), Service(), Service()
    watched = [Watched("kafka", kafka, ""), Watched("proxy", proxy, "", causes=("kafka",))]
    looks = ServiceWatch(watched, clock)
    kafka.why = proxy.why = "frozen"
    for _ in range(5):
        looks.look()
        clock.now += PATIENCE_SECONDS
    assert list(looks.look()) == ["service kafka"]
    kafka.why = None
    clock.now += PATIENCE_SECONDS / 2
    assert looks.look() == {}
    clock.now += PATIENCE_SECONDS
    assert list(looks.look()) == ["service proxy"]


def test_check_that_hangs_is_asked_once_and_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SECONDS", -0.9)
    clock, over, asked = Clock(), threading.Event(), []

    def hang(_seconds: float) -> str | None:
        asked.append(1)
        over.wait(30)
        return None

    looks = ServiceWatch([Watched("s3", hang, "")], clock)
    assert looks.look() == {}
    clock.now += PATIENCE_SECONDS
    assert list(looks.look()) == ["service s3"]
    assert len(asked) == 1
    over.set()


def test_error_of_a_check_is_a_reason() -> None:
    def broken(_seconds: float) -> str | None:
        raise ValueError("odd")

    looks = ServiceWatch([Watched("aws", broken, "", patience=0)])
    assert looks.look()["service aws"].what == "aws does not answer: ValueError: odd"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("WEBHOOK_URL", "HEARTBEAT_URL", "UI_URL"):
        monkeypatch.delenv(f"TOPICBERG_ALERT_{name}", raising=False)
    return Settings(state_dir=tmp_path)


def notices(config: Settings) -> list[tuple[str, str]]:
    """Key and state of what was sent."""
    path = alerts_file(config)
    lines = path.read_text().splitlines() if path.exists() else []
    return [(one["alert"]["key"], one["state"]) for one in map(json.loads, lines)]


def watcher(
    config: Settings, *watched: Watched, healthy: bool = True, **more: Any
) -> tuple[Watcher, list[Any]]:
    reported: list[Mapping[str, Alert]] = []
    return Watcher(config, watched, reported.append, lambda: healthy, lambda: "", **more), reported


def test_fault_is_sent_once_and_resolved_also_by_the_next_process(config: Settings) -> None:
    kafka, proxy = Service(), Service()
    watched = (
        Watched("kafka", kafka, "end it", patience=0),
        Watched("proxy", proxy, "end it", patience=0, causes=("kafka",)),
    )
    first, reported = watcher(config, *watched)
    first.look()
    assert notices(config) == []
    kafka.why = proxy.why = "frozen"
    first.look()
    first.look()
    assert notices(config) == [("service kafka", "firing")], "a consequence is not sent"
    assert list(reported[-1]) == ["service kafka"]
    second, _ = watcher(config, *watched)
    second.look()
    kafka.why = proxy.why = None
    second.look()
    assert notices(config)[1:] == [("service kafka", "resolved")]

    (config.state_dir / watch.STATE_FILE).write_text("half of")
    second.look()
    assert len(notices(config)) == 2


def test_service_that_is_away_twice_is_an_outage_until_its_last_end(config: Settings) -> None:
    """What follows from the second outage is not sent either."""
    kafka, ends = Service(), list[datetime]()
    first, _ = watcher(config, Watched("kafka", kafka, "end it", patience=0))
    for _ in range(2):
        for kafka.why in ("frozen", None):
            first.look()
        state = read_state(config.state_dir / watch.STATE_FILE)
        ends.append(state.outages["service kafka"].seen_at)
    assert ends[0] < ends[1]
    first.look()
    state = read_state(config.state_dir / watch.STATE_FILE)
    assert state.outages["service kafka"].seen_at == ends[1]


def test_silenced_service_is_not_sent(config: Settings) -> None:
    kafka = Service()
    kafka.why = "frozen"
    first, _ = watcher(config, Watched("kafka", kafka, "end it", patience=0))
    silence(config, "service kafka", "an upgrade", timedelta(hours=1))
    first.look()
    assert notices(config) == []
    end_silence(config, "service kafka")
    first.look()
    assert notices(config) == [("service kafka", "firing")]


class _Recorded(BaseHTTPRequestHandler):
    """Answers as Dagster's web server, and for the heartbeat."""

    workspace: ClassVar[dict[str, Any] | None] = None
    """What a query of the code locations returns."""
    ticks: ClassVar[dict[str, list[dict[str, Any]]]] = {}
    """By sensor, the last one."""
    requested: ClassVar[list[str]] = []
    heartbeats: ClassVar[list[float | None]] = []
    status = 200

    def do_GET(self) -> None:
        self.requested.append(f"{self.command} {self.path}")
        types = ("SENSOR", "QUEUED_RUN_COORDINATOR", "ASSET", "SCHEDULER")
        health = [
            {"daemonType": kind, "required": kind != "ASSET", "lastHeartbeatTime": at}
            for kind, at in zip(types, self.heartbeats, strict=False)
        ]
        daemons = {"daemonHealth": {"allDaemonStatuses": health}}
        body = json.dumps({"data": {"instance": daemons}}).encode()
        query = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if b"workspaceOrError" in query and self.workspace is not None:
            body = json.dumps(self.workspace).encode()
        if b"sensorOrError" in query:
            ticks = self.ticks.get(json.loads(query)["variables"]["one"]["sensorName"], [])
            found = {"sensorOrError": {"sensorState": {"ticks": ticks}}}
            body = json.dumps({"data": found}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving() -> Iterator[tuple[str, type[_Recorded]]]:
    handler = type("Handler", (_Recorded,), {"requested": [], "heartbeats": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", handler
        http.shutdown()


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Recorded]]]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("healthy", [True, False])
def test_heartbeat_is_sent_while_the_engine_works(
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[str, type[_Recorded]],
    healthy: bool,
) -> None:
    url, handler = server
    monkeypatch.setenv("TOPICBERG_ALERT_HEARTBEAT_URL", f"{url}/ping/secret")
    engine, _ = watcher(config, healthy=healthy)
    engine.look()
    engine.look()
    assert handler.requested == ["GET /ping/secret"] * healthy


def test_heartbeat_is_sent_although_the_state_cannot_be_written(
    config: Settings, monkeypatch: pytest.MonkeyPatch, server: tuple[str, type[_Recorded]]
) -> None:
    url, handler = server
    monkeypatch.setenv("TOPICBERG_ALERT_HEARTBEAT_URL", f"{url}/ping/secret")
    kafka = Service()
    kafka.why = "frozen"
    engine, _ = watcher(config, Watched("kafka", kafka, "end it", patience=0))
    (config.state_dir / watch.STATE_FILE).mkdir()
    with pytest.raises(OSError, match=watch.STATE_FILE):
        engine.look()
    assert handler.requested == ["GET /ping/secret"]


def test_heartbeat_that_is_refused_hides_its_address(
    server: tuple[str, type[_Recorded]], caplog: pytest.LogCaptureFixture
) -> None:
    url, handler = server
    handler.status = 404
    watch.send_heartbeat(SecretStr(f"{url}/ping/secret"))
    watch.send_heartbeat(SecretStr("http://127.0.0.1:1/ping/secret"))
    assert "HTTP status 404" in caplog.text
    assert "ConnectionError" in caplog.text
    assert "secret" not in caplog.text


def test_settings_of_alerts_reach_a_process_without_the_file(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICBERG_ALERT_WEBHOOK_URL", "http://127.0.0.1:1/hook")
    monkeypatch.setenv("TOPICBERG_ALERT_SMTP__TLS", "false")
    chosen = alert_settings()
    for name, value in as_environment(alert_settings()).items():
        monkeypatch.setenv(name, value)
    assert alert_settings() == chosen
    assert (
        as_environment(alert_settings())["TOPICBERG_ALERT_WEBHOOK_URL"] == "http://127.0.0.1:1/hook"
    )


def dagster(config: Settings, **chosen: Any) -> dict[str, Callable[[float], str | None]]:
    return {one.name: one.check for one in watched_dagster(config, AlertSettings(**chosen))}


def note_old_ui(config: Settings, url: str) -> None:
    """Note a `topicberg ui` that has had its time to start."""
    note_ui(config, url)
    known = json.loads(dagster_processes.ui_file(config).read_text())
    dagster_processes.ui_file(config).write_text(json.dumps(known | {"served": 0}))


def test_ui_that_loads_the_code_has_its_time_also_after_another_one(config: Settings) -> None:
    with serving() as (url, _):
        note_old_ui(config, url)
        check = dagster(config)[WEBSERVER]
        assert check(5) is None
    noted = json.loads(dagster_processes.ui_file(config).read_text())
    for more in (1, -1):
        served = time.time() - UI_START_SECONDS + 60 * more
        dagster_processes.ui_file(config).write_text(json.dumps(noted | {"served": served}))
        why, hint = split_hint(check(5) or "")
        assert why == ("" if more > 0 else "nothing listens on its port")
        assert ("what an import of it waits for" in (hint or "")) == (more < 0)


def test_daemon_is_judged_by_its_newest_heartbeat(
    config: Settings, server: tuple[str, type[_Recorded]]
) -> None:
    url, handler = server
    note_old_ui(config, url)
    checks, now = dagster(config), time.time()
    handler.heartbeats[:] = [now - MAX_HEARTBEAT_AGE - 10, now - MAX_HEARTBEAT_AGE + 10, None]
    assert (checks[DAEMON](5), checks[WEBSERVER](5)) == (None, None)
    handler.heartbeats[:] = [now - 3 * MAX_HEARTBEAT_AGE, now - MAX_HEARTBEAT_AGE - 10]
    assert "its last heartbeat was 45 s ago" in (checks[DAEMON](5) or "")
    assert checks[WEBSERVER](5) is None
    handler.heartbeats[:] = [None]
    assert checks[DAEMON](5) == "it has never written a heartbeat"


def test_dagster_is_watched_while_the_user_runs_it(config: Settings) -> None:
    assert set(dagster(config)) == {WEBSERVER, DAEMON, CODE}
    assert dagster(config)[WEBSERVER](5) is None, "nobody started it"
    note_old_ui(config, "http://127.0.0.1:1")
    assert running_ui(config) == "http://127.0.0.1:1"
    assert dagster(config)[WEBSERVER](5) == "nothing listens on its port"
    assert dagster(config)[DAEMON](5) is None, "the web server does not say"
    known = json.loads(dagster_processes.ui_file(config).read_text())
    for changed in ({"started": known["started"] - 100}, {"pid": 2**22 + 1}, {"pid": None}):
        dagster_processes.ui_file(config).write_text(json.dumps(known | changed))
        assert running_ui(config) is None, changed
    assert psutil.Process().pid == known["pid"]


@pytest.mark.parametrize("ended", [False, True])
def test_alert_of_an_engine_elsewhere_links_to_the_port_of_the_ui(
    config: Settings, ended: bool
) -> None:
    """Of `topicberg tableflow serve`; links of a UI that ended are those of the settings."""
    note_old_ui(config, "http://127.0.0.1:3417")
    if ended:
        known = json.loads(dagster_processes.ui_file(config).read_text())
        dagster_processes.ui_file(config).write_text(json.dumps(known | {"pid": 2**22 + 1}))
    looks = dagster_processes.dagster_watcher(config, lambda: True)
    looks._watch._watched[WEBSERVER] = Watched(WEBSERVER, lambda _: "frozen", "", patience=0)
    looks.look()
    (sent,) = map(json.loads, alerts_file(config).read_text().splitlines())
    url = alert_settings().ui_url if ended else "http://127.0.0.1:3417"
    assert sent["alert"]["link"] == url


def test_dagster_that_ended_by_itself_is_reported_until_it_runs_again(config: Settings) -> None:
    """``dagster dev`` ends, with status 0, when its daemon was killed."""
    note_ui(config, "http://127.0.0.1:1")
    known = json.loads(dagster_processes.ui_file(config).read_text())
    dagster_processes.ui_file(config).write_text(json.dumps(known | {"pid": 2**22 + 1}))
    why = "the process of `topicberg ui` (4194305) ended, and no user has ended it"
    assert dagster(config)[WEBSERVER](5) == why
    assert dagster(config)[DAEMON](5) is None, "a consequence"
    earlier = psutil.boot_time() - 100
    dagster_processes.ui_file(config).write_text(
        json.dumps({**known, "pid": 1, "started": earlier})
    )
    assert dagster(config)[WEBSERVER](5) is None, "the machine was started again"
    dagster_processes.ui_file(config).write_text(json.dumps(known | {"pid": 2**22 + 1}))
    forget_ui(config)
    assert dagster(config)[WEBSERVER](5) is None, "a user has ended it"


def test_dagster_that_ended_and_was_not_waited_for_does_not_run(config: Settings) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL) as process:
        found = psutil.Process(process.pid)
        note_ui(config, "http://127.0.0.1:1")
        known = {"url": "http://x", "pid": process.pid, "started": found.create_time()}
        dagster_processes.ui_file(config).write_text(json.dumps(known))
        wait_until(lambda: found.status() == psutil.STATUS_ZOMBIE)
        assert running_ui(config) is None
        assert "ended" in (lost_ui(config) or "")


def test_second_ui_starts_nothing_and_forgets_no_other(
    config: Settings, as_settings: Callable[[Settings], None]
) -> None:
    as_settings(config)
    note_ui(config, "http://x")
    other = psutil.Process(os.getppid())
    noted = {"url": "http://x", "pid": other.pid, "started": other.create_time()}
    dagster_processes.ui_file(config).write_text(json.dumps(noted))
    with pytest.raises(TopicbergError, match="`topicberg ui` runs at http://x"):
        ui(3000)
    assert not forget_ui(config)
    assert running_ui(config) == "http://x"
    dagster_processes.ui_file(config).unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TopicbergError, match=f"port {port} is taken"):
            ui(port)


def test_daemon_of_a_killed_ui_is_ended_and_its_runs_go_on(config: Settings) -> None:
    name, sleep = "TOPICBERG_STACK_UI", "import time; time.sleep(30)"
    note_ui(config, "http://x")
    mine, killed = os.environ.pop(name), f"{2**22 + 1} 1.0 {config.state_dir}"
    cases = [(killed, "dagster._daemon"), (killed, "run"), (mine, "dagster._daemon")]
    processes = [
        subprocess.Popen([sys.executable, "-c", sleep, kind], env={name: value})
        for value, kind in cases
    ]
    assert end_orphans(config) == 1
    assert [psutil.pid_exists(process.pid) for process in processes] == [False, True, True]
    for process in processes:
        process.kill()
        process.wait()


def test_daemon_whose_database_is_locked_says_so(
    config: Settings, server: tuple[str, type[_Recorded]]
) -> None:
    """Starting it again would not help."""
    url, handler = server
    note_old_ui(config, url)
    handler.heartbeats[:] = [time.time() - 2 * MAX_HEARTBEAT_AGE]
    path = config.state_dir / "dagster" / "schedules" / "schedules.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE ticks (number INTEGER)")
        assert "its last heartbeat was" in (dagster(config)[DAEMON](5) or "")
        other.execute("BEGIN EXCLUSIVE")
        (watched,) = (one for one in watched_dagster(config, AlertSettings()) if one.name == DAEMON)
        (alert,) = ServiceWatch([replace(watched, patience=0.0, causes=())]).look().values()
    assert alert.what == (
        f"dagster_daemon does not answer: it cannot use its database {path}: database is locked"
    )
    assert (alert.remediation or "").startswith(f"`fuser {path}` names the processes")


@pytest.mark.parametrize(
    ("left", "files", "why"),
    [
        (10**6, 10**6, None),
        (256, 10**6, "its disk is full: 1 MB are left in "),
        (10**6, 0, "its disk has no room for another file: "),
    ],
)
def test_full_disk_of_dagster_is_the_cause_that_is_named(
    config: Settings, monkeypatch: pytest.MonkeyPatch, left: int, files: int, why: str | None
) -> None:
    disk = SimpleNamespace(f_bavail=left, f_frsize=4096, f_files=10**6, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    found = dagster_processes.storage_problem(config)
    assert (found or "").startswith(why or "")
    assert (found is None) == (why is None)
    kafka = Service()
    kafka.why = "frozen"
    watcher(config, Watched("kafka", kafka, "end it", patience=0))[0].look()
    expected = "service disk" if why else "service kafka"
    assert notices(config) == [(expected, "firing")], "it is the cause of all else"


def test_what_a_full_disk_left_behind_is_sent_once_it_stays(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=0, f_frsize=4096, f_files=10**6, f_favail=10**6)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    kafka, spark = Service(), Service()
    kafka.why = "it ends"
    services = (Watched("kafka", kafka, "fix", patience=0), Watched("spark", spark, "", patience=0))
    starts = [time.time() - 9 + n for n in (0, 1, 2, *[STARTS] * 3)]
    looks = watcher(config, *services, start_times=lambda: {"spark": starts.pop(0)})[0]
    for _ in range(STARTS + 1):
        looks.look()
    disk.f_bavail = 10**6
    looks.look()
    assert notices(config) == [("service disk", "firing"), ("service disk", "resolved")]
    looks._state = looks._state.model_copy(update={"outages": {}})  # as some minutes later
    looks.look()
    assert notices(config)[2:] == [("service kafka", "firing"), ("service spark", "firing")]


def test_watch_names_what_does_not_answer_before_it_is_an_alert(config: Settings) -> None:
    """The sensor of the alerts may see its consequences first."""
    kafka = Service()
    looks, _ = watcher(config, Watched("kafka", kafka, "end it"))
    states = [watch.read_state(config.state_dir / watch.STATE_FILE)]
    for why in ("frozen", None):
        kafka.why = why
        looks.look()
        states.append(watch.read_state(config.state_dir / watch.STATE_FILE))
    assert [[*watch.reported_faults([one])] for one in states] == [[], ["service kafka"], []]
    assert notices(config) == []


def workspace(location: dict[str, Any]) -> dict[str, Any]:
    entries = [{"name": "shop", "locationOrLoadError": location}]
    return {"data": {"workspaceOrError": {"locationEntries": entries}}}


def sensors(**states: str) -> dict[str, Any]:
    shown = [{"name": name, "sensorState": {"status": state}} for name, state in states.items()]
    return workspace({"repositories": [{"name": "__repository__", "sensors": shown}]})


NOT_LOADED = {
    "message": "dagster.DagsterUserCodeLoadError: Error occurred during the loading of code",
    "errorChain": [
        {
            "error": {
                "message": '  File "/shop/defs.py", line 3\n    defs = (\n           ^\n'
                "SyntaxError: '(' was never closed\n"
            }
        }
    ],
}
OWN_ERROR = {
    "message": "dagster.DagsterUserCodeLoadError: Error occurred during the loading of code",
    "errorChain": [
        {"error": {"message": f"topicberg.errors.SpecError: {SpecError('a', hint='b')}"}}
    ],
}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (sensors(alerts="RUNNING", engine="RUNNING", snapshots="STOPPED"), None),
        (sensors(alerts="STOPPED"), None),  # of someone else
        (
            sensors(alerts="STOPPED", engine="RUNNING", snapshots="RUNNING"),
            "shop: the sensor alerts is off, which sends alerts\n"
            "  → turn it on: Automation, alerts",
        ),
        (
            workspace(NOT_LOADED),
            "shop: it does not load: /shop/defs.py, line 3: '(' was never closed",
        ),
        (workspace(OWN_ERROR), "shop: it does not load: a\n  → b"),
        (workspace({}), None),  # it is being loaded
        (
            {"errors": [{"message": "(sqlite3.OperationalError) database is locked"}]},
            "the web server cannot say whether it runs: (sqlite3.OperationalError) database is "
            "locked",
        ),
        ({"data": {"workspaceOrError": {"message": "no\n  workspace"}}}, "no workspace"),
        ({"data": None}, None),
    ],
)
def test_code_location_without_which_no_alert_is_sent_is_reported(
    config: Settings, server: tuple[str, type[_Recorded]], answer: dict[str, Any], why: str | None
) -> None:
    url, handler = server
    note_old_ui(config, url)
    handler.workspace = answer
    assert dagster(config)[CODE](5) == why


def test_code_location_of_others_in_the_instance_is_not_reported(
    config: Settings, server: tuple[str, type[_Recorded]]
) -> None:
    url, handler = server
    check = dagster(config, ui_url=url)[CODE]
    handler.workspace = workspace(NOT_LOADED)
    assert check(5) is None
    handler.workspace = sensors(alerts="RUNNING", snapshots="RUNNING")
    assert check(5) is None
    handler.workspace = workspace(NOT_LOADED)
    assert "never closed" in (check(5) or ""), "it was one of topicberg when it loaded"


def tick(status: str, age: float, **error: Any) -> dict[str, list[dict[str, Any]]]:
    return {"alerts": [{"timestamp": time.time() - age, "status": status, "error": error or None}]}


FAILED = {
    "message": "dagster.SensorExecutionError: Error occurred during the execution",
    "errorChain": [{"error": {"message": "PermissionError: [Errno 13] Permission denied"}}],
}


@pytest.mark.parametrize(
    ("ticks", "why"),
    [
        (tick("SKIPPED", -6_000), None),
        (tick("STARTED", -6_000), None),
        ({}, None),
        (tick("FAILURE", 1, **FAILED), r"fails: \[Errno 13\] Permission denied"),
        (tick("STARTED", 50), r"hangs: its last tick has been in progress for \d+ s"),
        (tick("SKIPPED", 50), r"does not tick: its last tick was \d+ s ago"),
    ],
)
def test_sensor_that_sends_no_alerts_is_reported_by_the_engine(
    server: tuple[str, type[_Recorded]], ticks: dict[str, Any], why: str | None
) -> None:
    url, handler = server
    handler.workspace = sensors(alerts="RUNNING", engine="RUNNING", snapshots="RUNNING")
    handler.ticks = ticks
    found = dagster_processes.dagster_checks(url)[CODE](5)
    if why is None:
        assert found is None
    else:
        assert re.match(f"shop: the sensor alerts, which sends alerts, {why}", found or "")
        assert "\n  → see its last tick: Automation, alerts" in (found or "")


def test_dagster_that_has_just_started_may_have_an_old_tick(
    server: tuple[str, type[_Recorded]],
) -> None:
    url, handler = server
    handler.workspace = sensors(alerts="RUNNING", snapshots="RUNNING")
    handler.ticks = tick("SKIPPED", 5000)
    for started, is_reported in ((time.time() - 10, False), (time.time() - 100, True)):
        check = dagster_processes.dagster_checks(url, started=started)[CODE]
        assert (check(5) is not None) == is_reported


def test_loop_of_the_daemon_that_hangs_is_reported_with_what_it_does(
    config: Settings, server: tuple[str, type[_Recorded]]
) -> None:
    """The other loops write their heartbeats."""
    url, handler = server
    note_old_ui(config, url)
    now = time.time()
    # ASSET is not required, and the scheduler writes once a minute.
    handler.heartbeats[:] = [now, now - 20, now - 900, now - 65]
    assert dagster(config)[DAEMON](5) is None
    handler.heartbeats[:] = [now, now - 70]
    assert dagster_processes.daemon_problem(url, 5, now - 100) is None, "it imports at its start"
    handler.heartbeats[:] = [time.time(), time.time() - 70]
    why, hint = split_hint(dagster(config)[DAEMON](5) or "")
    assert why == (
        "its loop QUEUED_RUN_COORDINATOR hangs, so no queued run starts: the last heartbeat of the "
        "loop was 70 s ago"
    )
    assert "`kill -CONT PID`" in (hint or "")


def test_service_that_is_started_again_and_again_is_a_fault_until_it_stays_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers at each look."""
    clock = WallClock(monkeypatch, 1e9, of=["time"])
    watched, started = [Watched("s3", lambda _: None, "")], clock.now - 500
    looks = ServiceWatch(watched, start_times=lambda: {"s3": started})
    for _ in range(STARTS):
        assert looks.look() == {}
        clock.now = started = clock.now + 12
    (alert,) = looks.look().values()
    assert alert.key == "service s3"
    assert alert.what == (
        "s3 does not stay up: it ends again and again: it was started again 3 times in 24 s"
    )
    assert "`topicberg logs s3`" in (alert.remediation or "")
    clock.now += STABLE_SECONDS
    assert len(looks.look()) == 1
    clock.now += 1
    assert looks.look() == {}


def test_restarts_that_are_far_apart_are_no_fault() -> None:
    starts = [number * WINDOW_SECONDS / 2.5 for number in range(10)]
    assert restart_problem(starts, starts[-1] + 1) is not None
    assert with_restarts("nothing listens", starts, starts[-1] + 1) == (
        "nothing listens; it was started again 3 times in 241 s"
    )
    assert with_restarts("nothing listens", [], 1.0) == "nothing listens"
    assert restart_problem(starts, starts[0] - 86_400) is None, "the clock was wrong"
    rare = [number * WINDOW_SECONDS * 0.6 for number in range(10)]
    assert restart_problem(rare, rare[-1] + 1) is None


def test_engine_that_ends_again_and_again_is_sent_by_the_sensor(
    config: Settings, server: tuple[str, type[_Recorded]], as_settings: Callable[[Settings], None]
) -> None:
    """It answers at each tick; each start watches from the beginning, and knows of no other."""
    as_settings(config)
    url, _handler = server
    services = {"services": {"tableflow": {"url": f"{url}/metrics"}}}
    (config.state_dir / "runtime.json").write_text(json.dumps(services))
    sensor, cursor, began = engine_sensor(), None, time.time()

    def tick() -> None:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        cursor = sensor.evaluate_tick(context).cursor

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(1 + STARTS):  # the first one is by `topicberg up`
            tick()
            assert notices(config) == []
            note_start(config)
        tick()
        assert notices(config) == [("service tableflow", "firing")]
        starts_file(config).write_text(json.dumps([began - 200, *[began - 100] * STARTS]))
        tick()
    assert notices(config)[1:] == [("service tableflow", "resolved")]
    starts_file(config).write_text("half of")
    assert read_restarts(config) == []


def test_address_of_the_settings_is_watched_from_its_first_answer_on(
    config: Settings, server: tuple[str, type[_Recorded]]
) -> None:
    url, handler = server
    checks = dagster(config, ui_url=url)
    handler.status = 502
    assert checks[WEBSERVER](5) is None
    handler.status = 200
    assert checks[WEBSERVER](5) is None
    handler.status = 502
    assert "502" in (checks[WEBSERVER](5) or "")


def test_engine_misses_what_it_needs() -> None:
    assert {*NEEDED, "spark"} < set(SERVICES)
    faults = ServiceWatch([Watched("s3", lambda _: "frozen", "`end it`", patience=0)]).look()
    missing = unavailable(faults, *NEEDED)
    assert missing.message == "s3 does not answer: frozen\n  → `end it`"
    assert missing.since_ms == pytest.approx(time.time() * 1000, abs=60_000)
    assert unavailable(faults, "spark") is None


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_damaged_files_of_the_stack_keep_no_watch_from_looking(config: Settings, text: str) -> None:
    for name in ("ports.json", "runtime.json", "engine-starts.json", watch.STATE_FILE):
        (config.state_dir / name).write_text(text)
    assert start_times(config) == {}
    assert "ports.json is damaged" in watched_problem(watched_supervisor(config))
    assert engine_check(config) is None
    assert read_restarts(config) == []
    looks, _ = watcher(config, replace(watched_supervisor(config), patience=0))
    looks.look()
    assert notices(config) == [("service supervisor", "firing")]
    with pytest.raises(StackError, match=r"runtime\.json is damaged"):
        local_endpoints(config)


def watched_problem(watched: Watched) -> str:
    try:
        return watched.check(5) or ""
    except StackError as error:
        return str(error)


@pytest.fixture
def confirmed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does not answer is asked again without a pause."""
    monkeypatch.setattr("topicberg.orchestration.jobs.alerts.CONFIRM_SECONDS", 0.0)


def test_sensor_sends_that_the_engine_does_not_answer(
    config: Settings,
    server: tuple[str, type[_Recorded]],
    confirmed_at_once: None,
    as_settings: Callable[[Settings], None],
) -> None:
    url, handler = server
    as_settings(config)
    services = {"services": {"tableflow": {"url": f"{url}/metrics"}}}
    (config.state_dir / "runtime.json").write_text(json.dumps(services))
    sensor, cursor = engine_sensor(), None
    with dg.DagsterInstance.ephemeral() as instance:
        for status in (200, 503, 503, 200):
            handler.status = status
            context = dg.build_sensor_context(instance=instance, cursor=cursor)
            cursor = sensor.evaluate_tick(context).cursor
    key = "service tableflow"
    assert notices(config) == [(key, "firing"), (key, "resolved")]


def test_engine_is_asked_where_the_stack_says(
    config: Settings, server: tuple[str, type[_Recorded]], confirmed_at_once: None
) -> None:
    assert engine_check(config) is None, "the stack is stopped"
    url, handler = server
    services = {"services": {"tableflow": {"url": f"{url}/metrics"}}}
    (config.state_dir / "runtime.json").write_text(json.dumps(services))
    check = engine_check(config)
    assert check is not None
    assert confirmed(check) is None
    assert handler.requested == ["GET /health"]
    answers = iter(["frozen", None, "frozen", "frozen"])
    assert confirmed(lambda _: next(answers)) is None, "it is started again"
    assert confirmed(lambda _: next(answers)) == "frozen"
