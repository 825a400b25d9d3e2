"""Whether Dagster's web server and daemon live: what the web server answers.

The daemon has no port. It writes a heartbeat every 30 seconds, which the web server knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import requests

from topicberg.alerts.settings import AlertSettings
from topicberg.alerts.watch import Watched
from topicberg.clients.liveness import Check, answers_http
from topicberg.files import replace_file
from topicberg.settings import Settings

MAX_HEARTBEAT_AGE = 35.0
"""In seconds. Dagster writes a heartbeat every 30 seconds of each of the daemon's loops."""
DAEMON_PATIENCE = 8.0
"""The next look confirms it: after a laptop slept, the first heartbeat is old."""
WEBSERVER, DAEMON = "dagster_webserver", "dagster_daemon"
_QUERY = "{instance{daemonHealth{allDaemonStatuses{daemonType lastHeartbeatTime}}}}"


def ui_file(config: Settings) -> Path:
    """Return the file that says where `topicberg ui` serves, and by which process."""
    return config.state_dir / "dagster" / "ui.json"


def note_ui(config: Settings, url: str) -> None:
    """Write that this process, which becomes Dagster's, serves there."""
    process = psutil.Process()
    document = {"url": url, "pid": process.pid, "started": process.create_time()}
    replace_file(ui_file(config), json.dumps(document))


def running_ui(config: Settings) -> str | None:
    """Return the address of Dagster's web server if `topicberg ui` runs."""
    try:
        known = json.loads(ui_file(config).read_text())
        process = psutil.Process(int(known["pid"]))
        runs = abs(process.create_time() - known["started"]) < 1
    except (OSError, ValueError, LookupError, TypeError, psutil.Error):
        return None
    return str(known["url"]) if runs else None


def dagster_checks(url: str) -> dict[str, Check]:
    """Return the checks of Dagster's web server and daemon."""
    return {
        WEBSERVER: answers_http(f"{url}/server_info"),
        DAEMON: lambda seconds: daemon_problem(url, seconds),
    }


def watched_dagster(config: Settings, chosen: AlertSettings) -> Iterator[Watched]:
    """Return Dagster's processes, as far as `topicberg ui` runs them, or the settings name them.

    Those of the settings are watched from their first answer on: not every engine reaches the UI.
    """

    def check(name: str) -> Check:
        answered: set[str] = set()

        def ask(seconds: float) -> str | None:
            own = running_ui(config)
            url = own or (chosen.ui_url.rstrip("/") if "ui_url" in chosen.model_fields_set else "")
            if not url:
                return None
            why = dagster_checks(url)[name](seconds)
            if why is None:
                answered.add(url)
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
