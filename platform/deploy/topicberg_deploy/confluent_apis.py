"""Clients of the APIs of Confluent: the control plane, Kafka, the schema registry, Tableflow."""

from __future__ import annotations

import threading
from collections.abc import Callable

from topicberg.clients.confluent import Api
from topicberg.clients.secrets import ApiKey
from topicberg_deploy.resource import Live, MissingError
from topicberg_deploy.settings import DeploySettings

ENVIRONMENT = "confluent/environment"
CLUSTER = "confluent/cluster"
REGISTRY = "confluent/schema_registry"
READER = "reader"
"""Folder of the secrets with keys that may only read: `plan` uses no others."""


class ConfluentApis:
    """A client for each address and key, both of which are known once their resources are."""

    def __init__(
        self,
        deploy: DeploySettings,
        need: Callable[[str], Live],
        sleep: Callable[[float], None],
        check_lease: Callable[[], None],
    ) -> None:
        """
        :param need: returns the last known state of a resource, or raises MissingError
        :param sleep: for so many seconds, between two attempts of a request
        :param check_lease: called before each request that changes something
        """
        self._deploy, self._need, self._sleep = deploy, need, sleep
        self._check_lease = check_lease
        self._apis: dict[tuple[str, str], Api] = {}
        self._lock = threading.RLock()

    @property
    def cloud(self) -> Api:
        """The control plane, with the key of whoever deploys."""
        key = ApiKey(self._deploy.confluent_api_key, self._deploy.confluent_api_secret)
        return self.cloud_as(key)

    def cloud_as(self, key: ApiKey) -> Api:
        return self._api(self._deploy.confluent_url, key)

    def kafka_as(self, key: ApiKey) -> Api:
        """Kafka's REST API of the cluster."""
        url = self._deploy.kafka_rest_url or self._need(CLUSTER).facts["http_endpoint"]
        return self._api(str(url).rstrip("/"), key)

    @property
    def registry_url(self) -> str:
        """The address of the schema registry, for clients too; without a trailing slash."""
        url = self._deploy.schema_registry_url or self._need(REGISTRY).facts["http_endpoint"]
        return str(url).rstrip("/")

    def registry_as(self, key: ApiKey) -> Api:
        return self._api(self.registry_url, key)

    @property
    def kafka(self) -> Api:
        return self.kafka_as(self.active_key("key/kafka_app_manager"))

    @property
    def registry(self) -> Api:
        return self.registry_as(self.active_key("key/schema_registry"))

    @property
    def tableflow(self) -> Api:
        return self.cloud_as(self.active_key("key/tableflow"))

    def active_key(self, key: str) -> ApiKey:
        """The key that consumers use now.

        :raises MissingError: it was not seen
        """
        active: ApiKey | None = self._need(key).facts.get("key")
        if active is None:
            raise MissingError(key)
        return active

    def _api(self, url: str, key: ApiKey) -> Api:
        with self._lock:
            if (url, key.id) not in self._apis:
                api = Api(url, key.id, key.secret, self._sleep, check_lease=self._check_lease)
                self._apis[url, key.id] = api
            return self._apis[url, key.id]
