"""Kafka, the Iceberg catalog and AWS of the chosen deployment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import ConfigurableResource

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.extensions import local_stack
from topicberg.orchestration.resources import confluent, engine
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.confluent import read_status as read_of_confluent
from topicberg.tableflow.service.status import read_status
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from topicberg.iceberg.maintenance import MaintenanceReport
    from topicberg.tableflow.service.status import TopicStatus


RUNNING_SECONDS = 2.0
"""For so long, a stack that ran is taken to be running: a run connects a few times a table."""
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
        """The endpoints without starting anything, for sensors.

        :raises TopicbergError: the deployment is not there
        """
        return load_endpoints(settings())

    def ingest(self, spec: TopicSpec, on_progress: Callable[[int], None]) -> Table:
        """The topic's table, once Tableflow has committed what the topic holds now.

        :param on_progress: called with the number of records that are still missing
        """
        ingest = engine.ingest if self.config.own_engine else confluent.ingest
        return ingest(spec, self.endpoints(), self.config, on_progress)

    def maintain(self, spec: TopicSpec) -> MaintenanceReport | None:
        """Do what is due for the topic's table, as the engine may as well.

        None: Confluent's Tableflow maintains the tables that it writes.
        """
        # Definitions are loaded without it: it imports pandas.
        from topicberg.iceberg import maintenance

        if not self.config.own_engine:
            return None
        return maintenance.maintain(spec, self.endpoints(), self.config)

    def status(self, spec: TopicSpec) -> TopicStatus | None:
        """Return what the engine on this machine, or Confluent, says of the topic.

        None: it says nothing to us, or there is no key to read it with.
        """
        read = read_status if self.config.own_engine else read_of_confluent
        return read(self.config, spec.name)

    def signals(self, specs: Iterable[TopicSpec]) -> dict[str, str]:
        """Return what changes with each commit to a topic's table, without loading the tables.

        A topic of which nothing is known is left out. For sensors: nothing is started.

        :returns: the name of the topic → an opaque text
        """
        signals = engine.signals if self.config.own_engine else confluent.signals
        return signals(specs, self.peek(), self.config)

    def catalog(self) -> Catalog:
        return self.endpoints().catalog(self.config)

    def glue(self) -> GlueClient:
        client: GlueClient = self.endpoints().boto3("glue", self.config)
        return client


class RunningLakehouse(Lakehouse):
    """The same for sensors: it starts nothing."""

    def endpoints(self) -> Endpoints:
        return self.peek()
