"""Metrics of the engine in OpenMetrics' text format, for Prometheus and other readers of it.

All values come from the topics' statuses at the time of the scrape. Counters start at zero with the
engine's process, except ``rows_skipped``, which the table records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topicberg.errors import TopicbergError
from topicberg.extensions import local_stack
from topicberg.security.guard import Guard, WsgiApp, serve
from topicberg.settings import settings
from topicberg.tableflow.service.status import SHOWN_PHASES, TopicStatus

LOOPBACK = "127.0.0.1"
_PREFIX = "topicberg_tableflow_"
_COUNTERS = {
    "records_read": "records that committed batches read",
    "rows_committed": "rows that commits added to the table",
    "records_skipped": "records left out without a dead letter",
    "records_dead_lettered": "records left out, and sent to the dead-letter topic",
    "rows_skipped": "records left out since the table was created: malformed ones, and those that "
    "a user requested to skip",
    "bytes_committed": "bytes of the files that commits added",
    "commits": "batches committed",
    "failures": "turns that ended in an error",
}
_GAUGES = {
    "consumer_lag_records": (
        "offsets in Kafka that are not committed: records, ends of transactions, and gaps",
        "topic",
        "partition",
    ),
    "commit_lag_seconds": ("time since the last commit while records are waiting, else 0", "topic"),
    "open_transaction_seconds": (
        "age of a transaction that its producer did not end, which holds records back",
        "topic",
        "partition",
    ),
    "data_files": ("data files of the table", "topic"),
    "reader": (
        "1 for what read the newest batch: process, a process of the engine, or spark",
        "topic",
        "reader",
    ),
    "phase": ("1 for the phase of the topic", "topic", "phase"),
    "engine": ("1 for the engine that has the topic", "topic", "engine"),
    "topics": ("topics that the engine has", "engine"),
}  # Name → text, and labels.


class StatusCollector(Collector):
    """The statuses of all topics as metrics."""

    def __init__(self, statuses: Callable[[], Iterable[TopicStatus]], engine: str = "") -> None:
        """:param engine: the name of the engine that has these topics"""
        self._statuses, self._engine = statuses, engine

    def collect(self) -> Iterator[Metric]:
        statuses = list(self._statuses())
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(_PREFIX + name, text, labels=["topic"])
            for status in statuses:
                counter.add_metric([status.topic], getattr(status, name))
            yield counter
        gauges = {
            name: GaugeMetricFamily(_PREFIX + name, text, labels=labels)
            for name, (text, *labels) in _GAUGES.items()
        }

        def add(name: str, value: float, *labels: str) -> None:
            gauges[name].add_metric(labels, value)

        add("topics", len(statuses), self._engine)
        now = time.time()
        for status in statuses:
            topic = status.topic
            add("engine", 1.0, topic, self._engine)
            for partition, records in status.lag.items():
                add("consumer_lag_records", records, topic, str(partition))
            waiting = any(status.lag.values()) and status.committed_at_ms is not None
            since = now - (status.committed_at_ms or 0) / 1000
            add("commit_lag_seconds", max(0.0, since) if waiting else 0.0, topic)
            for partition, transaction in status.open_transactions.items():
                seconds = max(0.0, now - transaction.since_ms / 1000)
                add("open_transaction_seconds", seconds, topic, str(partition))
            add("data_files", status.data_files, topic)
            if status.reader is not None:
                add("reader", 1.0, topic, status.reader)
            for name in SHOWN_PHASES:
                add("phase", float(status.shown_phase == name), topic, name)
        yield from gauges.values()


def _with_health(app: WsgiApp, is_healthy: Callable[[], bool]) -> WsgiApp:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/health":
            return app(environ, start_response)
        body, status = b"ok\n", "200 OK"
        if not is_healthy():
            body, status = b"a thread of the engine hangs\n", "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    return application


def serve_metrics(
    port: int,
    statuses: Callable[[], Iterable[TopicStatus]],
    *,
    host: str = LOOPBACK,
    engine: str = "",
    is_healthy: Callable[[], bool] = lambda: True,
) -> None:
    """Serve scrapes until the process ends, and `/health`: 200 or 503.

    :param host: address to listen on; a scrape must name the host by it, or by an address of the
        machine if it is another one than the default
    :param engine: the name of this engine
    :param is_healthy: whether its threads work
    :raises TopicbergError: the port is in use, or is not allowed
    """
    registry = CollectorRegistry()
    registry.register(StatusCollector(statuses, engine))
    # In production, Prometheus may scrape as another user of the machine.
    is_own = local_stack().own_client() if settings().deployment == "local" else None
    guard = Guard(is_own=is_own, any_address=host != LOOPBACK)
    try:
        serve(_with_health(make_wsgi_app(registry), is_healthy), port, guard, host)
    except OSError as error:
        raise TopicbergError(
            f"the metrics endpoint cannot listen on {host}, port {port}: {error.strerror}",
            hint="choose another port with --metrics-port, or end the process that has it",
        ) from error
