"""Kafka, the Iceberg catalog and AWS of the chosen deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dagster import ConfigurableResource

from resources import cloud, local
from topicberg.endpoints import Endpoints
from topicberg.settings import Settings, settings
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from pyiceberg.catalog import Catalog


class Deployment(Protocol):
    """What a deployment module offers."""

    def connect(self, config: Settings) -> Endpoints:
        """The endpoints; starts what has to run."""

    def peek(self, config: Settings) -> Endpoints:
        """The endpoints, without starting anything."""

    def catch_up(self, spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
        """Commit what the topic holds now, or say why it is not for us to do."""


_DEPLOYMENTS: dict[str, Deployment] = {"local": local, "cloud": cloud}


def _deployment() -> Deployment:
    return _DEPLOYMENTS[settings().deployment]


def connect() -> Endpoints:
    """Endpoints of the deployment that ``TOPICBERG_DEPLOYMENT`` names; starts the local stack."""
    return _deployment().connect(settings())


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
        return _deployment().peek(settings())

    def catch_up(self, spec: TopicSpec) -> None:
        """Commit what the topic holds now, when its engine did not by itself."""
        _deployment().catch_up(spec, self.endpoints(), self.config)

    def catalog(self) -> Catalog:
        return self.endpoints().catalog(self.config)

    def glue(self) -> GlueClient:
        client: GlueClient = self.endpoints().boto3("glue", self.config)
        return client
