"""The engine as a service of the local stack: it also watches the other services, and Dagster.

Run as ``python -m topicberg_local.engine --metrics-port PORT``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from functools import partial

from topicberg.alerts.alert import Alert
from topicberg.alerts.dagster_processes import ui_url, watched_dagster
from topicberg.alerts.settings import alert_settings
from topicberg.alerts.watch import Watched, Watcher, how_to_restart, note_start
from topicberg.errors import StackError
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.service import Engine, main
from topicberg.tableflow.service.status import Unavailable
from topicberg_local import ports, stack, state
from topicberg_local.supervisor import Control

logger = logging.getLogger(__name__)
NEEDED = ("kafka", "schema_registry", "iceberg_rest", "s3")
"""Services without which the engine commits nothing."""
SUPERVISOR = "supervisor"
_CAUSES = {"access_proxy": ("kafka", "schema_registry")}
_TITLES = {
    "kafka": "Kafka at 127.0.0.1:{port}",
    "schema_registry": "the schema registry",
    "s3": "the object store (s3)",
    "iceberg_rest": "Iceberg's catalog",
    "spark": "Spark",
}
"""What messages call a service elsewhere; others by their names."""


def watch(engine: Engine) -> None:
    """Watch the services of the stack, and Dagster, until the process ends."""
    config, chosen = engine.config, alert_settings()
    watched = [watched_supervisor(config), *_services(config), *watched_dagster(config, chosen)]

    def report(faults: Mapping[str, Alert]) -> None:
        engine.pool.miss(unavailable(faults, *NEEDED), unavailable(faults, "spark"))

    times, url = partial(start_times, config), partial(ui_url, config, chosen)
    Watcher(config, watched, report, engine.is_healthy, url, times).start()


def unavailable(faults: Mapping[str, Alert], *names: str) -> Unavailable | None:
    """Return the first of these services that does not answer."""
    for name in names:
        if alert := faults.get(f"service {name}"):
            message = f"{alert.what}\n  → {alert.remediation}"
            return Unavailable(message, int(alert.since.timestamp() * 1000), name)
    return None


def start_times(config: Settings) -> dict[str, float]:
    """Return service → when its process was started, as the supervisor says."""
    try:
        context = state.load_context(config)
    except (StackError, OSError):  # the watch of the supervisor reports it
        return {}
    processes = (Control(context).processes() if context else None) or {}
    return {name: float(info["start"]) for name, info in processes.items() if info["start"]}


def watched_supervisor(config: Settings) -> Watched:
    """Return the supervisor, without which services run, and are not started again if they end."""

    def check(_seconds: float) -> str | None:
        context = state.load_context(config)
        if context is None or Control(context).answers():
            return None
        if ports.listens(context.ports["supervisor"]):
            return (
                "it hangs, or a signal stopped it (SIGSTOP): no service that ends is started again"
            )
        return "it ended: what ends is not started again"

    return Watched(
        name=SUPERVISOR,
        title="the supervisor of the local stack",
        check=check,
        remediation="run `topicberg down`, then `topicberg up`: they end the processes that are "
        "left, and start the stack again; nothing is lost",
    )


def _services(config: Settings) -> Iterator[Watched]:
    for service in stack.services(config):
        name = service.name
        if name != "tableflow":
            yield Watched(
                name=name,
                title=_TITLES.get(name, "").format(port=service.port),
                check=service.answers,
                remediation=how_to_restart(name),
                causes=_CAUSES.get(name, ()),
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The Tableflow engine of the local stack.")
    parser.add_argument("--metrics-port", type=int, help="answer on 127.0.0.1 with OpenMetrics")
    metrics_port = parser.parse_args().metrics_port
    try:
        note_start(settings())
    except OSError as error:  # a full disk stops no engine
        logger.warning("the start cannot be noted: %s", error)
    main(metrics_port, started=watch)
