"""Whether Dagster's web server and daemon live, and run the project's sensors: what they answer.

The daemon has no port. It writes a heartbeat every 30 seconds, which the web server knows. The web
server also knows whether the code of the project loads, without which no sensor ticks.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import requests

from topicberg.alerts.evaluation import explained
from topicberg.alerts.observation import StepError
from topicberg.alerts.settings import AlertSettings
from topicberg.alerts.watch import Watched
from topicberg.clients.liveness import Check, answers_http
from topicberg.files import replace_file
from topicberg.processes import running
from topicberg.settings import Settings

MAX_HEARTBEAT_AGE = 35.0
"""In seconds. Dagster writes a heartbeat every 30 seconds of each of the daemon's loops."""
DAEMON_PATIENCE = 8.0
"""The next look confirms it: after a laptop slept, the first heartbeat is old."""
CODE_PATIENCE = 30.0
"""A web server that shows a large graph to someone answers late."""
WEBSERVER, DAEMON, CODE = "dagster_webserver", "dagster_daemon", "dagster_code"
SENDERS = ("alerts", "engine")
"""The sensors that send alerts."""
_MARKS = frozenset({"alerts", "snapshots"})
"""A code location that has these sensors is one of topicberg."""
_QUERY = "{instance{daemonHealth{allDaemonStatuses{daemonType lastHeartbeatTime}}}}"
_CODE_QUERY = """
{workspaceOrError{
  ...on PythonError{message}
  ...on Workspace{locationEntries{name locationOrLoadError{
    ...on PythonError{message errorChain{error{message}}}
    ...on RepositoryLocation{repositories{sensors{name sensorState{status}}}}
}}}}}
"""


def ui_file(config: Settings) -> Path:
    """Return the file that says where `topicberg ui` serves, and by which process."""
    return config.state_dir / "dagster" / "ui.json"


def note_ui(config: Settings, url: str) -> None:
    """Write that this process, which becomes Dagster's, serves there."""
    process = psutil.Process()
    document = {"url": url, "pid": process.pid, "started": process.create_time()}
    replace_file(ui_file(config), json.dumps(document))


def forget_ui(config: Settings) -> None:
    """Note that the user has ended `topicberg ui`."""
    ui_file(config).unlink(missing_ok=True)


def running_ui(config: Settings) -> str | None:
    """Return the address of Dagster's web server if `topicberg ui` runs."""
    known = _noted_ui(config)
    return str(known["url"]) if known is not None and _runs(known) else None


def lost_ui(config: Settings) -> str | None:
    """Return what became of `topicberg ui` if it ended and no user ended it.

    One that ran before this machine started is not missed.
    """
    known = _noted_ui(config)
    if known is None or known["started"] < psutil.boot_time() or _runs(known):
        return None
    return f"the process of `topicberg ui` ({known['pid']}) ended, and no user has ended it"


def _noted_ui(config: Settings) -> Mapping[str, Any] | None:
    try:
        known = json.loads(ui_file(config).read_text())
        return {"url": known["url"], "pid": int(known["pid"]), "started": float(known["started"])}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _runs(known: Mapping[str, Any]) -> bool:
    return running(known["pid"], known["started"]) is not None


def dagster_checks(url: str, known: set[str] | None = None) -> dict[str, Check]:
    """Return the checks of Dagster's web server and daemon, and of the code that they run.

    :param known: as of :func:`code_problem`
    """
    return {
        WEBSERVER: answers_http(f"{url}/server_info"),
        DAEMON: lambda seconds: daemon_problem(url, seconds),
        CODE: lambda seconds: code_problem(url, seconds, known),
    }


def watched_dagster(config: Settings, chosen: AlertSettings) -> Iterator[Watched]:
    """Return Dagster's processes, as far as `topicberg ui` runs them, or the settings name them.

    Those of the settings are watched from their first answer on: not every engine reaches the UI.
    """

    def check(name: str) -> Check:
        answered: set[str] = set()
        known: set[str] = set()

        def ask(seconds: float) -> str | None:
            own = running_ui(config)
            if own is None and (lost := lost_ui(config)):
                return lost if name == WEBSERVER else None
            url = own or (chosen.ui_url.rstrip("/") if "ui_url" in chosen.model_fields_set else "")
            if not url:
                return None
            why = dagster_checks(url, None if own else known)[name](seconds)
            if why is None:
                answered.add(url)
            elif own and name == DAEMON:
                why = storage_problem(config) or why
            return why if own or url in answered else None

        return ask

    yield Watched(
        name=WEBSERVER,
        check=check(WEBSERVER),
        remediation="end it and start it again; locally: `topicberg ui`",
    )
    yield Watched(
        name=DAEMON,
        check=check(DAEMON),
        remediation="end it and start it again, locally: `topicberg ui`. Until then, no sensor and "
        "no schedule runs: tables are not computed, and no other alert is sent",
        patience=DAEMON_PATIENCE,
        causes=(WEBSERVER,),
    )
    yield Watched(
        name=CODE,
        check=check(CODE),
        title="the code location of Dagster",
        remediation="correct the file and reload the code location (Deployment, Reload). Until "
        "then, only the engine sends alerts",
        patience=CODE_PATIENCE,
        causes=(WEBSERVER, DAEMON),
    )


def daemon_problem(url: str, seconds: float) -> str | None:
    """Return why the daemon is not alive; None: it is, or the web server does not say."""
    try:
        response = requests.post(f"{url}/graphql", json={"query": _QUERY}, timeout=seconds)
        health = response.json()["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]
        times = [float(one["lastHeartbeatTime"]) for one in health if one["lastHeartbeatTime"]]
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return None  # the check of the web server reports it
    age = time.time() - max(times, default=0.0)
    if age <= MAX_HEARTBEAT_AGE:
        return None
    if not times:
        return "it has never written a heartbeat"
    return f"its last heartbeat was {age:.0f} s ago; it writes one every 30 s"


def storage_problem(config: Settings) -> str | None:
    """Return which of Dagster's databases cannot be written, with a hint; None: all can, or it has
    no SQLite.
    """
    for path in sorted((config.state_dir / "dagster").rglob("*.db")):
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", timeout=0.5, uri=True)) as one:
                one.execute("BEGIN IMMEDIATE")
                one.rollback()
        except sqlite3.Error as error:
            hint = (
                f"`fuser {path}` names the processes that use it: end what holds it; free some "
                "space if the disk is full"
            )
            return f"it cannot write its database {path}: {error}\n  → {hint}"
    return None


def code_problem(url: str, seconds: float, known: set[str] | None = None) -> str | None:
    """Return why the sensors that send alerts do not run; None: they do, or do not exist yet.

    :param known: the code locations of topicberg that loaded before, to which those that load are
        added: others in an instance may be anybody's; None: all are the user's own
    """
    try:
        response = requests.post(f"{url}/graphql", json={"query": _CODE_QUERY}, timeout=seconds)
        answer = response.json()
    except requests.Timeout:
        return f"the web server does not say within {seconds:.0f} s whether it runs"
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
            if known is not None and _is_topicberg(location):
                known.add(name)
            if (known is None or name in known) and (why := _location_problem(location)):
                return f"{name}: {why}"
    except (LookupError, TypeError, AttributeError):
        return None  # another version of Dagster
    return None


def _location_problem(location: Mapping[str, Any]) -> str | None:
    """Return why a code location does not load, or which of its sensors that send alerts is off."""
    if "message" in location:
        chain = [one["error"]["message"] for one in location["errorChain"]]
        what, hint = explained([StepError((location["message"], *chain))])
        return f"it does not load: {_shortened(what)}" + (f"\n  → {hint}" if hint else "")
    for repository in location.get("repositories", ()):
        states = {one["name"]: one["sensorState"]["status"] for one in repository["sensors"]}
        off = [name for name in SENDERS if states.get(name) == "STOPPED"]
        if off and states.keys() >= _MARKS:
            hint = f"turn it on: Automation, {off[0]}"
            return f"the sensor {off[0]} is off, which sends alerts\n  → {hint}"
    return None


def _is_topicberg(location: Mapping[str, Any]) -> bool:
    found = location.get("repositories", ())
    return any({one["name"] for one in each["sensors"]} >= _MARKS for each in found)


def _shortened(text: str) -> str:
    return " ".join(text.split())[:300]
