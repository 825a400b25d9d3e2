"""Faults of Dagster's sensors, runs and processes, by other means; see :mod:`fault_site`."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from fault_site import PATIENCE_SECONDS, End, Fault, Site
from waiting import wait_until

from topicberg.alerts.dagster_processes import CODE, DAEMON, WEBSERVER

RAISES = "def _broken(*_, **__):\n    raise RuntimeError('no more')\n"
HANGS = "def _broken(*_, **__):\n    import time\n\n    time.sleep(3600)\n"
SNAPSHOTS = "import topicberg.orchestration.jobs.sensors as code\ncode.SensorTick.run = _broken\n"
ALERTS = "import topicberg.alerts.evaluation as code\ncode.evaluate = _broken\n"


def code(*lines: str) -> Callable[[Site], End]:
    """Add lines to the project's code, and reload it."""

    def begin(site: Site) -> End:
        file = site.project / "definitions.py"
        text = file.read_text()

        def end() -> None:
            file.write_text(text)
            site.reload()

        file.write_text("\n".join([text, *lines]))
        try:
            site.reload()
        except BaseException:  # else the next fault begins with this one
            end()
            raise
        return end

    return begin


def launch(site: Site) -> str:
    """Start a run of the checks, and return its id."""
    query = """mutation($it:ExecutionParams!){launchRun(executionParams:$it){__typename
        ...on LaunchRunSuccess{run{runId}}}}"""
    selector = {
        "repositoryLocationName": site.location(),
        "repositoryName": "__repository__",
        "pipelineName": "check_tables",
    }
    found = site.ask(query, it={"selector": selector, "mode": "default"})["launchRun"]
    return str(found["run"]["runId"])


def next_run(site: Site) -> psutil.Process:
    """Start a run, and return its process."""
    server = site.process("multiprocessing.forkserver")
    known = {child.pid for child in server.children()}
    launch(site)
    return wait_until(
        lambda: next((child for child in server.children() if child.pid not in known), None),
        PATIENCE_SECONDS,
        pause=0.02,
    )


def run_frozen(site: Site) -> End:
    process = next_run(site)
    process.suspend()
    return process.resume


def launcher_frozen(site: Site) -> End:
    """The server that forks the processes of runs is stopped by a signal, and a run is to start."""
    process = site.process("multiprocessing.forkserver")
    process.suspend()
    launch(site)
    return process.resume


def killed(*modules: str) -> Callable[[Site], End]:
    def begin(site: Site) -> End:
        for process in [site.process(module) for module in modules]:
            process.kill()

        def end() -> None:
            site.end_ui()
            site.start_ui()

        return end

    return begin


FAULTS = (
    Fault(
        "a sensor fails at every tick",
        code(RAISES, SNAPSHOTS),
        "tick snapshots",
        "no more",
        "Automation, snapshots",
    ),
    Fault(
        "the ticks of a sensor hang",
        code(HANGS, SNAPSHOTS),
        "tick snapshots",
        "in progress|longer than",
        "Automation, snapshots",
    ),
    Fault(
        "the sensor `alerts` fails at every tick",
        code(RAISES, ALERTS),
        f"service {CODE}",
        "the sensor alerts, which sends alerts, fails: no more",
        "Automation, alerts",
    ),
    Fault(
        "the ticks of the sensor `alerts` hang",
        code(HANGS, ALERTS),
        f"service {CODE}",
        "the sensor alerts, which sends alerts, (hangs|fails: .*longer than)",
        "Automation, alerts",
    ),
    Fault(
        "the process of a run is stopped by a signal",
        run_frozen,
        r"frozen \w+",
        "of a run of .* is stopped by a signal",
        "kill -CONT",
    ),
    Fault(
        "the process that starts runs is stopped by a signal",
        launcher_frozen,
        f"service {DAEMON}",
        "its loop QUEUED_RUN_COORDINATOR hangs, so no queued run starts",
        "kill -CONT",
    ),
    Fault(
        "Dagster's web server is killed",
        killed("dagster_webserver"),
        f"service {WEBSERVER}",
        "ended|nothing listens",
        "topicberg ui",
    ),
)
