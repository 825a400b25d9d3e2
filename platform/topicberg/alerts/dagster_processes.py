"""Dagster's processes, as far as `topicberg ui` runs them: where they are, and whether they live.

The daemon has no port. Each of its loops writes a heartbeat every 30 seconds, which the web server
knows. The web server also knows whether the code of the project loads, without which no sensor
ticks, and how the last tick of each sensor ended.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import requests

from topicberg.alerts import evaluation, observation, watch
from topicberg.alerts.settings import AlertSettings, alert_settings
from topicberg.clients.liveness import Check, answers_http
from topicberg.files import files_below, replace_file
from topicberg.processes import marked, running
from topicberg.settings import Settings

SLOW = "the web server does not say"
DAEMON_PATIENCE = 8.0  # The next look confirms it: after a laptop slept, heartbeats are old.
CODE_PATIENCE, SLOW_PATIENCE, _SLOW = 12.0, 30.0, (SLOW, watch.NO_ANSWER, "does not tick")
"""A web server that shows a large graph to someone answers late; a daemon that stands still ticks
no sensor before its heartbeat is old."""
UI_START_SECONDS = 180.0  # In which they start on a busy machine; an end is reported at once.
MAX_HEARTBEAT_AGE = 35.0  # In seconds: each of the daemon's loops writes one every 30.
MAX_LOOP_AGE, MAX_SLOW_AGE, FIRST_SECONDS = 50.0, 90.0, 300.0
"""In seconds, of the heartbeat of one loop, while others write theirs: longer for the scheduler,
which sleeps until the next minute begins, and for loops that have started, which import."""
LOOPS = {
    "SENSOR": "no sensor ticks",
    "SCHEDULER": "no schedule ticks",
    "QUEUED_RUN_COORDINATOR": "no queued run starts",
    "MONITORING": "runs whose process ended are not noticed",
}  # Loops of the daemon, and what does not happen without them.
_LOOP_HINT = (
    "see whether a process of it is stopped by a signal (state T in `ps aux`), and let that "
    "continue: `kill -CONT PID`; else restart it, locally: end `topicberg ui` and start it again"
)
SILENT_SECONDS, START_SECONDS = 25.0, 60.0
"""In which a sensor that sends alerts has to begin a tick, and to end it: it ticks every 15. The
first tick of a daemon that starts may take longer."""
SENDERS = ("alerts", "engine")  # The sensors that send alerts.
_MARKS = frozenset({"alerts", "snapshots"})  # A code location with these sensors is topicberg's.
_QUERY = "{instance{daemonHealth{allDaemonStatuses{daemonType required lastHeartbeatTime}}}}"
_CODE_QUERY = """
{workspaceOrError{
  ...on PythonError{message}
  ...on Workspace{locationEntries{name locationOrLoadError{
    ...on PythonError{message errorChain{error{message}}}
    ...on RepositoryLocation{repositories{name sensors{name sensorState{status}}}}
}}}}}
"""
_TICK_QUERY = """
query($one:SensorSelector!){sensorOrError(sensorSelector:$one){
  ...on Sensor{sensorState{ticks(limit:1){
    timestamp status error{message errorChain{error{message}}}
}}}}}
"""
_START_HINT = (
    "\n  → it starts once the code of the project is loaded: see what an import of it waits for; "
    "else end `topicberg ui` and start it again"
)
_VARIABLE, _SERVERS = "TOPICBERG_STACK_UI", frozenset({"dagster_webserver", "dagster._daemon"})
"""Environment variable of all processes of `topicberg ui`, and the modules that two of them run."""
WEBSERVER, DAEMON, CODE = "dagster_webserver", "dagster_daemon", "dagster_code"


def ui_file(config: Settings) -> Path:
    """Return the file that says where `topicberg ui` serves, and by which process."""
    return config.state_dir / "dagster" / "ui.json"


def note_ui(config: Settings, url: str) -> None:
    """Write that this process, which becomes Dagster's, serves there, and mark its children."""
    pid, started = os.getpid(), psutil.Process().create_time()
    os.environ[_VARIABLE] = f"{pid} {started} {config.state_dir}"
    document = {"url": url, "pid": pid, "started": started, "served": time.time()}
    replace_file(ui_file(config), json.dumps(document))


def forget_ui(config: Settings) -> bool:
    """Note that a user ended `topicberg ui`; return False if that is noted, or another one runs."""
    ui = _noted_ui(config)
    if ui is None or (_runs(ui) and ui["pid"] != os.getpid()):
        return False
    ui_file(config).unlink(missing_ok=True)
    return True


def end_orphans(config: Settings) -> int:
    """End the web server and daemon that survived a killed `topicberg ui`, and return how many. Its
    runs go on; its code servers end, as no heartbeat reaches them."""
    orphans = []
    for process, mark in marked(_VARIABLE):
        with suppress(psutil.Error, ValueError):
            pid, started, folder = mark.split(" ", 2)
            is_lost = folder == str(config.state_dir) and not running(int(pid), float(started))
            if is_lost and not _SERVERS.isdisjoint(process.cmdline()):
                process.kill()
                orphans.append(process)
    psutil.wait_procs(orphans, timeout=10)
    return len(orphans)


def running_ui(config: Settings) -> str | None:
    """Return the address of Dagster's web server if `topicberg ui` runs."""
    ui = _noted_ui(config)
    return str(ui["url"]) if ui and _runs(ui) else None


def ui_url(config: Settings, chosen: AlertSettings) -> str:
    """Return the address of the Dagster UI for links: of the settings, else where it runs."""
    return ("ui_url" not in chosen.model_fields_set and running_ui(config)) or chosen.ui_url


def lost_ui(config: Settings) -> str | None:
    """Return what became of `topicberg ui` if it ended, since the machine started, by no user."""
    ui = _noted_ui(config)
    if ui is None or ui["started"] < psutil.boot_time() or _runs(ui):
        return None
    return f"the process of `topicberg ui` ({ui['pid']}) ended, and no user has ended it"


def _noted_ui(config: Settings) -> Mapping[str, Any] | None:
    try:
        ui = json.loads(ui_file(config).read_text())
        times = {name: float(ui.get(name, ui["started"])) for name in ("started", "served")}
        return {"url": ui["url"], "pid": int(ui["pid"]), **times}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _runs(ui: Mapping[str, Any] | None) -> bool:
    return ui is not None and running(ui["pid"], ui["started"]) is not None


def dagster_checks(
    url: str, known: set[str] | None = None, started: float = 0.0
) -> dict[str, Check]:
    """Return the checks of Dagster's web server, daemon and code, as :func:`code_problem` says."""
    return {
        WEBSERVER: answers_http(f"{url}/server_info"),
        DAEMON: lambda seconds: daemon_problem(url, seconds, started),
        CODE: lambda seconds: code_problem(url, seconds, known, started),
    }


def dagster_watcher(config: Settings, is_healthy: Callable[[], bool]) -> watch.Watcher:
    """Return the watch of an engine that is not a service of the local stack: over Dagster."""
    chosen = alert_settings()
    watched, url = watched_dagster(config, chosen), partial(ui_url, config, chosen)
    return watch.Watcher(config, watched, lambda faults: None, is_healthy, url)


def watched_dagster(config: Settings, chosen: AlertSettings) -> Iterator[watch.Watched]:
    """Return Dagster's processes, as far as `topicberg ui` runs them, or the settings name them.
    Those of the settings are watched from their first answer on: an engine may not reach it."""

    def check(name: str) -> Check:
        answered, known = set[tuple[str, float]](), set[str]()

        def ask(seconds: float) -> str | None:
            address = running_ui(config)
            if address is None and (lost := lost_ui(config)):
                return lost if name == WEBSERVER else None
            url = address or chosen.ui_url.rstrip("/")
            if not (address or "ui_url" in chosen.model_fields_set):
                return None
            ui = _noted_ui(config) if address else None
            started = float(ui["served"]) if ui else 0.0
            why = dagster_checks(url, None if address else known, started)[name](seconds)
            is_new, age = (url, started) not in answered, time.time() - started
            if why is None:
                answered.add((url, started))
            elif address and (is_new or name != WEBSERVER) and age < UI_START_SECONDS:
                return why if name == CODE and SLOW not in why else None
            elif address and name == DAEMON:
                why = storage_problem(config) or why
            elif address and is_new and name == WEBSERVER and age < 5 * UI_START_SECONDS:
                why += _START_HINT
            return why if address or not is_new else None

        return ask

    yield watch.Watched(
        name=WEBSERVER,
        check=check(WEBSERVER),
        remediation="end it and start it again; locally: `topicberg ui`",
    )
    yield watch.Watched(
        name=DAEMON,
        check=check(DAEMON),
        remediation="end it and start it again, locally: `topicberg ui`. Until then, no sensor and "
        "no schedule runs: tables are not computed, and no other alert is sent",
        patience=DAEMON_PATIENCE,
        causes=(WEBSERVER,),
    )
    yield watch.Watched(
        name=CODE,
        check=check(CODE),
        title="the code location of Dagster",
        remediation="correct the file and reload the code location (Deployment, Reload). Until "
        "then, only the engine sends alerts",
        patience=lambda why: SLOW_PATIENCE if any(t in why for t in _SLOW) else CODE_PATIENCE,
        causes=(WEBSERVER, DAEMON),
    )


def daemon_problem(url: str, seconds: float, started: float = 0.0) -> str | None:
    """Return why the daemon is not alive; None: it is, or the web server does not say."""
    try:
        data = _answer(url, seconds, _QUERY)["data"]
        health = data["instance"]["daemonHealth"]["allDaemonStatuses"]
        written = [daemon for daemon in health if daemon["lastHeartbeatTime"]]
        times = {daemon["daemonType"]: float(daemon["lastHeartbeatTime"]) for daemon in written}
        required = {daemon["daemonType"] for daemon in written if daemon.get("required", True)}
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return None  # the check of the web server reports it
    age = time.time() - max(times.values(), default=0.0)
    if not times:
        return "it has never written a heartbeat"
    if age > MAX_HEARTBEAT_AGE:
        return f"its last heartbeat was {age:.0f} s ago; it writes one every 30 s"
    for loop, without in LOOPS.items():
        allowed = (
            MAX_SLOW_AGE
            if loop == "SCHEDULER" or time.time() - started < FIRST_SECONDS
            else MAX_LOOP_AGE
        )
        if loop in required and (age := time.time() - times[loop]) > allowed:
            return (
                f"its loop {loop} hangs, so {without}: the last heartbeat of the loop was "
                f"{age:.0f} s ago\n  → {_LOOP_HINT}"
            )
    return None


def _answer(url: str, seconds: float, query: str, **variables: object) -> Any:
    """Return what Dagster's web server answers to a query of GraphQL."""
    body = {"query": query, "variables": variables}
    return requests.post(f"{url}/graphql", json=body, timeout=seconds).json()


def storage_problem(config: Settings) -> str | None:
    """Return which SQLite database of Dagster cannot be written, with a hint; None: all can."""
    folder = config.state_dir / "dagster"
    if (full := watch.full_disk(folder)) is not None:
        return full
    for path in sorted(p for p in files_below(folder) if p.suffix == ".db"):
        try:
            uri = f"{path.as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, timeout=0.5, uri=True)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("SELECT name FROM sqlite_master").fetchall()
                connection.rollback()
        except sqlite3.Error as error:
            is_damaged = error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
            hint = (
                f"end `topicberg ui`, move {path} away and start it again: Dagster creates an "
                "empty one, without the history of runs; no table is affected"
                if is_damaged
                else f"`fuser {path}` names the processes that use it: end what holds it; free "
                "some space if the disk is full"
            )
            return f"it cannot use its database {path}: {error}\n  → {hint}"
    return None


def code_problem(
    url: str, seconds: float, known: set[str] | None = None, started: float = 0.0
) -> str | None:
    """Return why the sensors that send alerts do not run; None: they do, or do not exist yet.

    :param known: the code locations of topicberg that loaded before, to which those that load are
        added: others in an instance may be anybody's; None: all are the user's own
    :param started: when Dagster started, in seconds since 1970, if that is known
    """
    try:
        answer = _answer(url, seconds, _CODE_QUERY)
    except requests.Timeout:
        return f"{SLOW} within {seconds:.0f} s whether it runs"
    except (requests.RequestException, ValueError):
        return None  # the check of the web server reports it
    try:
        if errors := answer.get("errors"):
            return f"the web server cannot say whether it runs: {_shortened(errors[0]['message'])}"
        workspace = answer["data"]["workspaceOrError"]
        if "locationEntries" not in workspace:
            return _shortened(workspace["message"])
        for entry in workspace["locationEntries"]:
            name, location = entry["name"], entry["locationOrLoadError"] or {}
            if known is not None and any(_repositories(location)):
                known.add(name)
            if known is not None and name not in known:
                continue
            why = _location_problem(location)
            if why is None and time.time() - started > START_SECONDS:
                why = _sender_problem(url, seconds, name, location)
            if why:
                return f"{name}: {why}"
    except (LookupError, TypeError, AttributeError):
        return None  # another version of Dagster answers so
    return None


def _location_problem(location: Mapping[str, Any]) -> str | None:
    """Return why a code location does not load, or which of its sensors that send alerts is off."""
    if "message" in location:
        chain = [cause["error"]["message"] for cause in location["errorChain"]]
        message, hint = evaluation.explained([observation.StepError((location["message"], *chain))])
        return f"it does not load: {_shortened(message)}" + (f"\n  → {hint}" if hint else "")
    for _, states in _repositories(location):
        for off in (name for name in SENDERS if states.get(name) == "STOPPED"):
            return f"the sensor {off} is off, which sends alerts\n  → turn it on: Automation, {off}"
    return None


def _sender_problem(url: str, seconds: float, name: str, location: Mapping[str, Any]) -> str | None:
    """Return which sensor of a code location that sends alerts fails or hangs: no other does."""
    for repository, states in _repositories(location):
        for sensor in (sender for sender in SENDERS if states.get(sender) == "RUNNING"):
            selector = {
                "repositoryLocationName": name,
                "repositoryName": repository,
                "sensorName": sensor,
            }
            try:
                data = _answer(url, seconds, _TICK_QUERY, one=selector)["data"]
                ticks = data["sensorOrError"]["sensorState"]["ticks"]
            except requests.Timeout:
                return f"{SLOW} within {seconds:.0f} s how the sensor {sensor} ticks"
            except (requests.RequestException, ValueError, LookupError, TypeError):
                return None
            if ticks and (why := _tick_problem(sensor, ticks[0])):
                return why
    return None


def _tick_problem(sensor: str, tick: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the last tick of a sensor that sends alerts."""
    hint = f"see its last tick: Automation, {sensor}; meanwhile only the engine sends alerts"
    if tick["status"] == "FAILURE" and (error := tick.get("error")):
        chain = [cause["error"]["message"] for cause in error.get("errorChain") or ()]
        message, own = evaluation.explained([observation.StepError((error["message"], *chain))])
        return (
            f"the sensor {sensor}, which sends alerts, fails: {_shortened(message)}\n"
            f"  → {own or hint}"
        )
    age = time.time() - float(tick["timestamp"])
    if age <= SILENT_SECONDS:
        return None
    why = (
        f"hangs: its last tick has been in progress for {age:.0f} s"
        if tick["status"] == "STARTED"
        else f"does not tick: its last tick was {age:.0f} s ago"
    )
    hint += ". If it stays so, restart Dagster"
    return f"the sensor {sensor}, which sends alerts, {why}\n  → {hint}"


def _repositories(location: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the repositories of topicberg in a code location: name, and sensor → status."""
    for repository in location.get("repositories", ()):
        states = {s["name"]: s["sensorState"]["status"] for s in repository["sensors"]}
        if states.keys() >= _MARKS:
            yield repository["name"], states


def _shortened(text: str) -> str:
    return " ".join(text.split())[:300]
