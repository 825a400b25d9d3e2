"""Kafka, the Iceberg catalog and AWS of the chosen deployment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dagster import ConfigurableResource
from pyiceberg.table import Table

from topicberg.catalogs import glue
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import TopicbergError
from topicberg.extensions import local_stack
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings, settings
from topicberg.tableflow.service import confluent, control, wait
from topicberg.tableflow.service.status import read_status, reported_snapshot
from topicberg.topics import TopicSpec
from topicberg.topics.requests import require_unpaused

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from pyiceberg.catalog import Catalog

    from topicberg.iceberg.maintenance import MaintenanceReport
    from topicberg.tableflow.service.status import TopicStatus


RUNNING_SECONDS = 2.0
"""For so long, a stack that ran is taken to be running: a run connects a few times a table."""
ENGINE_PATIENCE_SECONDS = 30.0  # How much longer than its commit interval the engine may be silent.
CONFLUENT_PATIENCE_SECONDS = 20 * 60.0  # Tableflow commits every 15 minutes or 250 MB.
_running_at: dict[Path, float] = {}


def connect() -> Endpoints:
    """Endpoints of the deployment that ``TOPICBERG_DEPLOYMENT`` names; starts the local stack."""
    config = settings()
    seen_at = _running_at.get(config.state_dir, -math.inf)
    if config.deployment == "local" and time.monotonic() - seen_at > RUNNING_SECONDS:
        local_stack().ensure_running(config)
        _running_at[config.state_dir] = time.monotonic()
    return load_endpoints(config)


class Lakehouse(ConfigurableResource):
    """Clients of the deployment. Nothing connects before an asset asks for it."""

    @property
    def config(self) -> Settings:
        return settings()

    def endpoints(self) -> Endpoints:
        return connect()

    def peek(self) -> Endpoints:
        """The endpoints without starting anything, for sensors; an error if they are not there."""
        return load_endpoints(settings())

    def ingest(self, spec: TopicSpec, on_progress: Callable[[int], None]) -> Table:
        """The topic's table, once Tableflow has committed what the topic holds now."""
        ingest = ingest_by_engine if self.config.own_engine else ingest_by_confluent
        return ingest(spec, self.endpoints(), self.config, on_progress)

    def maintain(self, spec: TopicSpec) -> MaintenanceReport | None:
        """Do what is due for the topic's table; None: Confluent's Tableflow maintains its own."""
        # Definitions are loaded without it: it imports pandas.
        from topicberg.iceberg import maintenance

        if not self.config.own_engine:
            return None
        return maintenance.maintain(spec, self.endpoints(), self.config)

    def status(self, spec: TopicSpec) -> TopicStatus | None:
        """Return what the engine, or Confluent, says of the topic; None: nothing that is read."""
        read = read_status if self.config.own_engine else confluent.read_status
        return read(self.config, spec.name)

    def signals(self, specs: Iterable[TopicSpec]) -> dict[str, str]:
        """Return topic → an opaque text that changes with each commit; nothing is started."""
        signals = signals_of_engine if self.config.own_engine else signals_of_confluent
        return signals(specs, self.peek(), self.config)

    def catalog(self) -> Catalog:
        return self.endpoints().catalog(self.config)

    def glue(self) -> GlueClient:
        return cast("GlueClient", self.endpoints().boto3("glue", self.config))


class RunningLakehouse(Lakehouse):
    """The same for sensors: it starts nothing."""

    def endpoints(self) -> Endpoints:
        return self.peek()


def ingest_by_engine(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, on_progress: Callable[[int], None]
) -> Table:
    """Make the topic and its table if they are missing, and let the engine commit what there is.

    If it is silent for too long, one in this process commits; of two, the second plans again.

    :raises TopicbergError: the topic is paused, or it cannot be read
    """
    from topicberg.tableflow.service.engine import Ingestor, run_once

    def missing(records: int) -> None:
        control.commit_soon(config, spec.name)
        on_progress(records)

    require_unpaused(config, spec.name)
    kafka.ensure_topic(spec, endpoints, config)
    table = Ingestor(spec, endpoints, config).table()
    target = kafka.end_offsets(endpoints, spec.name)
    patience = spec.tableflow.commit_interval_seconds + ENGINE_PATIENCE_SECONDS
    of_topic = partial(wait.noted_offsets, topic_id=kafka.topic_id(endpoints, spec.name))
    if not wait.wait_for(table, target, patience, missing, of_topic):
        run_once(spec, endpoints, config)
    return table.refresh()


def signals_of_engine(
    specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings
) -> dict[str, str]:
    """Return the snapshots that the engine on this machine reports, of the topics that it knows."""
    found = {spec.name: reported_snapshot(config, spec.name) for spec in specs}
    return {name: str(snapshot) for name, snapshot in found.items() if snapshot is not None}


def ingest_by_confluent(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, on_progress: Callable[[int], None]
) -> Table:
    """Wait for Confluent's Tableflow, whose table is its alone to make and to write."""
    table = endpoints.catalog(config).load_table(spec.table_identifier(config))
    target = kafka.end_offsets(endpoints, spec.name)
    if not wait.wait_for(
        table,
        target,
        CONFLUENT_PATIENCE_SECONDS,
        on_progress,
        lambda table: wait.held_offsets(table, spec, endpoints, target),
    ):
        raise TopicbergError(
            f"topic {spec.name}: Tableflow has not committed the records that were there at the "
            "start",
            hint="see the topic's Tableflow status in Confluent Cloud, then materialize again",
        )
    return table.refresh()


def signals_of_confluent(
    specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings
) -> dict[str, str]:
    """Return the metadata files to which Tableflow points in Glue: they change with commits.
    Nothing is known of topics in another catalog: Glue has what was registered last."""
    if endpoints.topics_rest:
        return {}
    tables = {(spec.table_identifier(config)[0], spec.glue_name): spec.name for spec in specs}
    client = endpoints.boto3("glue", config)
    return {
        tables[database, name]: location
        for database in sorted({database for database, _ in tables})
        for name, location in glue.pointers(client, database)
        if (database, name) in tables
    }
