"""Topicberg's own engine makes the tables: in the local stack, or for any Kafka in the cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import reported_snapshot
from topicberg.tableflow.service.wait import wait_for
from topicberg.topics import TopicSpec

PATIENCE_SECONDS = 30.0
"""How much longer than its commit interval the engine may be silent."""


def ingest(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, on_progress: Callable[[int], None]
) -> Table:
    """Make the topic and its table if they are missing, and let the engine commit what there is.

    If the engine is silent for too long, one in this process commits: of two engines, the second to
    commit plans its batch again.
    """
    from topicberg.tableflow.service.engine import Ingestor, run_once

    def missing(records: int) -> None:
        control.commit_soon(config, spec.name)
        on_progress(records)

    kafka.ensure_topic(spec, endpoints, config)
    table = Ingestor(spec, endpoints, config).table()
    target = kafka.end_offsets(endpoints, spec.name)
    patience = spec.tableflow.commit_interval_seconds + PATIENCE_SECONDS
    if not wait_for(table, target, patience, missing):
        run_once(spec, endpoints, config)
    return table.refresh()


def signals(specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings) -> dict[str, str]:
    """Return what changes with each commit: the snapshot that the engine on this machine reports.

    A topic that it says nothing of is left out.
    """
    found = {spec.name: reported_snapshot(config, spec.name) for spec in specs}
    return {name: str(snapshot) for name, snapshot in found.items() if snapshot is not None}
