"""Whether Dagster's daemon lives and runs the project's sensors, as its web server says.

The daemon has no port. Each of its loops writes a heartbeat every 30 seconds, which the web server
knows. The web server also knows whether the code of the project loads, without which no sensor
ticks, and how the last tick of each sensor ended.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import requests

from topicberg.alerts.evaluation import explained
from topicberg.alerts.observation import StepError
from topicberg.settings import Settings

MAX_HEARTBEAT_AGE = 35.0
"""In seconds. Dagster writes a heartbeat every 30 seconds of each of the daemon's loops."""
MAX_LOOP_AGE, MAX_SCHEDULER_AGE = 50.0, 90.0
"""In seconds, of the heartbeat of one loop: a busy one takes longer, while others write theirs. The
scheduler sleeps until the next minute begins."""
LOOPS = {
    "SENSOR": "no sensor ticks",
    "SCHEDULER": "no schedule ticks",
    "QUEUED_RUN_COORDINATOR": "no queued run starts",
    "MONITORING": "runs whose process ended are not noticed",
}
"""Loops of the daemon, and what does not happen without them."""
_LOOP_HINT = (
    "see whether a process of it is stopped by a signal (state T in `ps aux`), and let that "
    "continue: `kill -CONT PID`; else restart it, locally: end `topicberg ui` and start it again"
)
SILENT_SECONDS, START_SECONDS = 25.0, 60.0
"""In which a sensor that sends alerts has to begin a tick, and to end it: it ticks every 15. The
first tick of a daemon that starts may take longer."""
MIN_FREE_BYTES = 32 * 1024**2
"""With less, SQLite may not write."""
SLOW = "the web server does not say"
SENDERS = ("alerts", "engine")
"""The sensors that send alerts."""
_MARKS = frozenset({"alerts", "snapshots"})
"""A code location that has these sensors is one of topicberg."""
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


def daemon_problem(url: str, seconds: float) -> str | None:
    """Return why the daemon is not alive; None: it is, or the web server does not say."""
    try:
        response = requests.post(f"{url}/graphql", json={"query": _QUERY}, timeout=seconds)
        health = response.json()["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]
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
        allowed = MAX_SCHEDULER_AGE if loop == "SCHEDULER" else MAX_LOOP_AGE
        if loop in required and (age := time.time() - times[loop]) > allowed:
            return (
                f"its loop {loop} hangs, so {without}: the last heartbeat of the loop was "
                f"{age:.0f} s ago\n  → {_LOOP_HINT}"
            )
    return None


def storage_problem(config: Settings) -> str | None:
    """Return which of Dagster's databases cannot be written, with a hint; None: all can, or it has
    no SQLite.
    """
    folder = config.state_dir / "dagster"
    if (full := full_disk(folder)) is not None:
        return full
    for path in sorted(folder.rglob("*.db")):
        try:
            with closing(
                sqlite3.connect(f"{path.as_uri()}?mode=rw", timeout=0.5, uri=True)
            ) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("SELECT name FROM sqlite_master").fetchall()
                connection.rollback()
        except sqlite3.Error as error:
            hint = (
                f"`fuser {path}` names the processes that use it: end what holds it; free some "
                "space if the disk is full"
            )
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                hint = (
                    f"end `topicberg ui`, move {path} away and start it again: Dagster creates an "
                    "empty one, without the history of runs; no table is affected"
                )
            return f"it cannot use its database {path}: {error}\n  → {hint}"
    return None


def full_disk(folder: Path) -> str | None:
    """Return which disk has no space left: a transaction that writes nothing succeeds there."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    left = disk.f_bavail * disk.f_frsize
    if left < MIN_FREE_BYTES:
        return (
            f"its disk is full: {left // 1024**2} MB are left in {folder}\n  → free some space; "
            f"`du -x -d 2 {folder.parent}` shows what takes it"
        )
    if disk.f_files and not disk.f_favail:
        return (
            f"its disk has no room for another file: {folder}\n  → delete files that are not needed"
        )
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
        response = requests.post(f"{url}/graphql", json={"query": _CODE_QUERY}, timeout=seconds)
        answer = response.json()
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
        message, hint = explained([StepError((location["message"], *chain))])
        return f"it does not load: {_shortened(message)}" + (f"\n  → {hint}" if hint else "")
    for _, states in _repositories(location):
        if off := [name for name in SENDERS if states.get(name) == "STOPPED"]:
            return (
                f"the sensor {off[0]} is off, which sends alerts\n  → turn it on: Automation, "
                f"{off[0]}"
            )
    return None


def _sender_problem(url: str, seconds: float, name: str, location: Mapping[str, Any]) -> str | None:
    """Return which sensor that sends alerts fails or hangs: no sensor reports that.

    :param name: of the code location
    """
    for repository, states in _repositories(location):
        for sensor in (sender for sender in SENDERS if states.get(sender) == "RUNNING"):
            selector = {
                "repositoryLocationName": name,
                "repositoryName": repository,
                "sensorName": sensor,
            }
            body = {"query": _TICK_QUERY, "variables": {"one": selector}}
            try:
                response = requests.post(f"{url}/graphql", json=body, timeout=seconds).json()
                ticks = response["data"]["sensorOrError"]["sensorState"]["ticks"]
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
        message, own = explained([StepError((error["message"], *chain))])
        return (
            f"the sensor {sensor}, which sends alerts, fails: {_shortened(message)}\n"
            f"  → {own or hint}"
        )
    age = time.time() - float(tick["timestamp"])
    if age <= SILENT_SECONDS:
        return None
    if tick["status"] == "STARTED":
        why = f"hangs: its last tick has been in progress for {age:.0f} s"
    else:
        why = f"does not tick: its last tick was {age:.0f} s ago"
    hint = f"{hint}. If it stays so, restart Dagster"
    return f"the sensor {sensor}, which sends alerts, {why}\n  → {hint}"


def _repositories(location: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the repositories of topicberg in a code location: name, and sensor → status."""
    for repository in location.get("repositories", ()):
        states = {
            sensor["name"]: sensor["sensorState"]["status"] for sensor in repository["sensors"]
        }
        if states.keys() >= _MARKS:
            yield repository["name"], states


def _shortened(text: str) -> str:
    return " ".join(text.split())[:300]
