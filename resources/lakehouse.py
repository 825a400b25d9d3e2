"""Kafka, the Iceberg catalog and AWS of the chosen deployment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dagster import ConfigurableResource

from resources import confluent, engine
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.settings import Settings, settings
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from topicberg.iceberg.maintenance import MaintenanceReport
    from topicberg.tableflow.status import TopicStatus


RUNNING_SECONDS = 2.0
"""For so long, a stack that ran is taken to be running: a run connects a few times a table."""
_running_at: dict[Path, float] = {}


class Tableflow(Protocol):
    """What makes the tables of the topics."""

    def ingest(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        on_progress: Callable[[int], None],
    ) -> Table:
        """The topic's table, once it holds what the topic holds now."""

    def maintain(
        self, spec: TopicSpec, endpoints: Endpoints, config: Settings
    ) -> MaintenanceReport | None:
        """Do what is due for the topic's table; None: it is not ours to maintain."""

    def status(self, spec: TopicSpec, config: Settings) -> TopicStatus | None:
        """What is said of the topic; None: nothing is said to us."""

    def signals(
        self, specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings
    ) -> dict[str, str]:
        """Topic → what changes with each commit to its table, as far as it is known."""


def _tableflow() -> Tableflow:
    return engine if settings().own_engine else confluent


def connect() -> Endpoints:
    """Endpoints of the deployment that ``TOPICBERG_DEPLOYMENT`` names; starts the local stack."""
    config = settings()
    seen_at = _running_at.get(config.state_dir, -math.inf)
    if config.deployment == "local" and time.monotonic() - seen_at > RUNNING_SECONDS:
        from topicberg.local.stack import ensure_running

        ensure_running(config)
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
        return _tableflow().ingest(spec, self.endpoints(), self.config, on_progress)

    def maintain(self, spec: TopicSpec) -> MaintenanceReport | None:
        """Do what is due for the topic's table; None: Confluent's Tableflow looks after it."""
        return _tableflow().maintain(spec, self.endpoints(), self.config)

    def status(self, spec: TopicSpec) -> TopicStatus | None:
        """What the engine says of the topic; None: it says nothing to us."""
        return _tableflow().status(spec, self.config)

    def signals(self, specs: Iterable[TopicSpec]) -> dict[str, str]:
        """Return what changes with each commit to a topic's table, without loading the tables.

        A topic of which nothing is known is left out. For sensors: nothing is started.

        :returns: the name of the topic → an opaque text
        """
        return _tableflow().signals(specs, self.peek(), self.config)

    def catalog(self) -> Catalog:
        return self.endpoints().catalog(self.config)

    def glue(self) -> GlueClient:
        client: GlueClient = self.endpoints().boto3("glue", self.config)
        return client


class RunningLakehouse(Lakehouse):
    """The same for sensors: it starts nothing."""

    def endpoints(self) -> Endpoints:
        return self.peek()
