"""The engine as a service of the local stack: it also watches the other services, and Dagster.

Run as ``python -m topicberg_local.engine --metrics-port PORT``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from topicberg.alerts.alert import Alert
from topicberg.alerts.dagster_ui import watched_dagster
from topicberg.alerts.settings import alert_settings
from topicberg.alerts.watch import Watched, Watcher
from topicberg.settings import Settings
from topicberg.tableflow.service import Engine, main
from topicberg.tableflow.status import Unavailable
from topicberg_local import stack

NEEDED = ("kafka", "schema_registry", "iceberg_rest", "s3")
"""Services without which the engine commits nothing."""
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
    watched = [*_services(engine.config), *watched_dagster(engine.config, alert_settings())]

    def report(faults: Mapping[str, Alert]) -> None:
        engine.pool.miss(unavailable(faults, *NEEDED), unavailable(faults, "spark"))

    Watcher(engine.config, watched, report, engine.is_healthy).start()


def unavailable(faults: Mapping[str, Alert], *names: str) -> Unavailable | None:
    """Return the first of these services that does not answer."""
    for name in names:
        if alert := faults.get(f"service {name}"):
            message = f"{alert.what}\n  → {alert.remediation}"
            return Unavailable(message, int(alert.since.timestamp() * 1000))
    return None


def _services(config: Settings) -> Iterator[Watched]:
    for service in stack.services(config):
        name = service.name
        if name != "tableflow":
            yield Watched(
                name=name,
                title=_TITLES.get(name, "").format(port=service.port),
                check=service.answers,
                remediation=f"see `topicberg logs {name}`; if you end the process that `topicberg "
                "status` shows (`kill -9 PID`), the supervisor starts it again",
                causes=_CAUSES.get(name, ()),
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The Tableflow engine of the local stack.")
    parser.add_argument("--metrics-port", type=int, help="answer on 127.0.0.1 with OpenMetrics")
    main(parser.parse_args().metrics_port, started=watch)
