"""Dagster's processes, as far as `topicberg ui` runs them, for who watches over them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from topicberg.alerts.dagster_health import SLOW, code_problem, daemon_problem, storage_problem
from topicberg.alerts.settings import AlertSettings, alert_settings
from topicberg.alerts.watch import NO_ANSWER, Watched, Watcher
from topicberg.clients.liveness import Check, answers_http
from topicberg.files import replace_file
from topicberg.processes import running
from topicberg.settings import Settings

DAEMON_PATIENCE = 8.0
"""The next look confirms it: after a laptop slept, the first heartbeat is old."""
CODE_PATIENCE, SLOW_PATIENCE, _SLOW = 12.0, 30.0, (SLOW, NO_ANSWER, "does not tick")
"""A web server that shows a large graph to someone answers late; a daemon that stands still ticks
no sensor before its heartbeat is old."""
UI_START_SECONDS = 180.0
"""In which they may start on a busy machine; that their process ended is reported at once."""
WEBSERVER, DAEMON, CODE = "dagster_webserver", "dagster_daemon", "dagster_code"


def ui_file(config: Settings) -> Path:
    """Return the file that says where `topicberg ui` serves, and by which process."""
    return config.state_dir / "dagster" / "ui.json"


def note_ui(config: Settings, url: str) -> None:
    """Write that this process, which becomes Dagster's, serves there."""
    process = psutil.Process()
    document = {"url": url, "pid": process.pid, "started": process.create_time()}
    document["served"] = time.time()  # the stack may have taken minutes before
    replace_file(ui_file(config), json.dumps(document))


def forget_ui(config: Settings) -> bool:
    """Note that the user has ended `topicberg ui`; return False if that was noted already."""
    exists = ui_file(config).exists()
    ui_file(config).unlink(missing_ok=True)
    return exists


def running_ui(config: Settings) -> str | None:
    """Return the address of Dagster's web server if `topicberg ui` runs."""
    ui = _noted_ui(config)
    return str(ui["url"]) if ui is not None and _runs(ui) else None


def ui_url(config: Settings, chosen: AlertSettings) -> str:
    """Return the address of the Dagster UI for links: of the settings, else where it runs."""
    address = None if "ui_url" in chosen.model_fields_set else running_ui(config)
    return address or chosen.ui_url


def lost_ui(config: Settings) -> str | None:
    """Return what became of `topicberg ui` if it ended and no user ended it.

    One that ran before this machine started is not missed.
    """
    ui = _noted_ui(config)
    if ui is None or ui["started"] < psutil.boot_time() or _runs(ui):
        return None
    return f"the process of `topicberg ui` ({ui['pid']}) ended, and no user has ended it"


def _noted_ui(config: Settings) -> Mapping[str, Any] | None:
    try:
        ui = json.loads(ui_file(config).read_text())
        started = float(ui["started"])
        served = float(ui.get("served", started))
        return {"url": ui["url"], "pid": int(ui["pid"]), "started": started, "served": served}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _runs(ui: Mapping[str, Any]) -> bool:
    return running(ui["pid"], ui["started"]) is not None


def dagster_checks(
    url: str, known: set[str] | None = None, started: float = 0.0
) -> dict[str, Check]:
    """Return the checks of Dagster's web server and daemon, and of the code that they run.

    :param known: as of :func:`code_problem`, and so is ``started``
    """
    return {
        WEBSERVER: answers_http(f"{url}/server_info"),
        DAEMON: lambda seconds: daemon_problem(url, seconds),
        CODE: lambda seconds: code_problem(url, seconds, known, started),
    }


def dagster_watcher(config: Settings, is_healthy: Callable[[], bool]) -> Watcher:
    """Return the watch of an engine that is not a service of the local stack: over Dagster."""
    chosen = alert_settings()
    watched, url = watched_dagster(config, chosen), partial(ui_url, config, chosen)
    return Watcher(config, watched, lambda faults: None, is_healthy, url)


def watched_dagster(config: Settings, chosen: AlertSettings) -> Iterator[Watched]:
    """Return Dagster's processes, as far as `topicberg ui` runs them, or the settings name them.

    Those of the settings are watched from their first answer on: not every engine reaches the UI.
    """

    def check(name: str) -> Check:
        answered: set[str] = set()
        known: set[str] = set()

        def ask(seconds: float) -> str | None:
            address = running_ui(config)
            if address is None and (lost := lost_ui(config)):
                return lost if name == WEBSERVER else None
            url = address or (
                chosen.ui_url.rstrip("/") if "ui_url" in chosen.model_fields_set else ""
            )
            if not url:
                return None
            ui = _noted_ui(config) if address else None
            started = float(ui["served"]) if ui else 0.0
            why = dagster_checks(url, None if address else known, started)[name](seconds)
            if why is None:
                answered.add(url)
            elif address and url not in answered and time.time() - started < UI_START_SECONDS:
                return why if name == CODE and SLOW not in why else None
            elif address and name == DAEMON:
                why = storage_problem(config) or why
            return why if address or url in answered else None

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
        patience=lambda why: SLOW_PATIENCE if any(t in why for t in _SLOW) else CODE_PATIENCE,
        causes=(WEBSERVER, DAEMON),
    )
