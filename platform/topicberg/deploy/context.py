"""The accounts of a deployment: their clients, and the last known state of its resources."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from topicberg.clients import trace
from topicberg.clients.aws import aws_session
from topicberg.clients.confluent import Api
from topicberg.clients.secrets import ApiKey, Secrets
from topicberg.deploy.record import CreationRecord, ParameterPages
from topicberg.deploy.resource import Live, MissingError
from topicberg.deploy.settings import DeploySettings, check_specs, load
from topicberg.deploy.transient import broken
from topicberg.endpoints import load_endpoints
from topicberg.naming import Names
from topicberg.settings import Settings, with_choices
from topicberg.settings.aws import derived_from
from topicberg.topics import TopicSpec, load_topics

if TYPE_CHECKING:
    from topicberg.deploy.lock import Lease
    from topicberg.deploy.snowflake.session import SnowflakeSession

AWS_ATTEMPTS = 8
WORKERS = 8
"""Resources that are worked on at the same time."""
_READS = ("Get", "List", "Describe", "Head", "BatchGet", "Simulate")
"""Actions of AWS whose names begin so change nothing."""
ENVIRONMENT = "confluent/environment"
CLUSTER = "confluent/cluster"
REGISTRY = "confluent/schema_registry"


def open_context(config: Settings, flags: dict[str, Any] | None = None) -> DeployContext:
    """Return a context whose settings are complete; nothing is connected yet.

    :raises TopicbergError: settings are missing or wrong: names all of them
    """
    config = with_choices(config)
    deploy, specs = load(flags or {}, config), load_topics(config)
    check_specs(config, specs)
    return DeployContext(config, deploy, specs)


@dataclass
class DeployContext:
    """Clients for one deployment. Resources find each other by their keys in it."""

    config: Settings
    deploy: DeploySettings
    specs: list[TopicSpec]
    purge_secrets: bool = False
    """Deleting a secret leaves no way back."""
    sleep: Callable[[float], None] = time.sleep
    lease: Lease | None = None
    """Of the deploy that is under way."""
    live: dict[str, Live] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """Key of a resource that cannot be created yet → what it waits for."""
    fresh: set[str] = field(default_factory=set)
    """Keys of resources that this process created or changed, or that need one of these: vendors
    may not know all of it everywhere yet."""
    ours: set[str] = field(default_factory=set)
    """Keys of resources that were looked at, and that ``deploy create`` has created."""
    claimed: frozenset[str] = frozenset()
    """Keys of resources that are taken for created by ``deploy``, whatever is recorded."""
    kept: dict[str, str] = field(default_factory=dict)
    """Key of a resource that exists and that a delete leaves → its title."""
    made: defaultdict[str, dict[str, datetime]] = field(
        default_factory=lambda: defaultdict(dict), repr=False
    )
    """Key of a resource → ids of the API keys that this process created for it, and when."""
    _apis: dict[tuple[str, str], Api] = field(default_factory=dict, repr=False)
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _session: SnowflakeSession | None = field(default=None, repr=False)
    _snowflake_lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @cached_property
    def names(self) -> Names:
        return Names(self.config.prefix)

    @cached_property
    def record(self) -> CreationRecord:
        """What ``deploy create`` has created."""
        return CreationRecord(ParameterPages(self.aws("ssm"), self.names.record))

    def check_lease(self) -> None:
        """Ask before each change, if the deploy's lease is held.

        :raises LockLostError: it is not any more
        """
        if self.lease is not None:
            self.lease.check()

    # --- what was seen ---

    def need(self, key: str) -> Live:
        """:raises MissingError: it was not seen"""
        live = self.live.get(key)
        if live is None:
            raise MissingError(key)
        return live

    def remember(self, key: str, live: Live) -> None:
        self.live[key] = live

    @property
    def environment(self) -> str:
        return self.need(ENVIRONMENT).id

    @property
    def cluster(self) -> str:
        return self.need(CLUSTER).id

    @property
    def place(self) -> dict[str, dict[str, str]]:
        """Of what is in the cluster, as Confluent's APIs state it."""
        return {"environment": {"id": self.environment}, "kafka_cluster": {"id": self.cluster}}

    @property
    def namespace(self) -> str:
        """Glue database of the topics' tables."""
        return self.config.tableflow_namespace or self.cluster

    # --- Confluent ---

    @property
    def cloud(self) -> Api:
        """The control plane, with the key of whoever deploys."""
        deploy = self.deploy
        return self.cloud_as(ApiKey(deploy.confluent_api_key, deploy.confluent_api_secret))

    def cloud_as(self, key: ApiKey) -> Api:
        return self._api(self.deploy.confluent_url, key)

    def kafka_as(self, key: ApiKey) -> Api:
        """Kafka's REST API of the cluster."""
        url = self.deploy.kafka_rest_url or self.need(CLUSTER).facts["http_endpoint"]
        return self._api(str(url).rstrip("/"), key)

    @property
    def registry_url(self) -> str:
        """The address of the schema registry, for clients too; without a trailing slash."""
        url = self.deploy.schema_registry_url or self.need(REGISTRY).facts["http_endpoint"]
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

    def wait_of(self, *keys: str) -> str:
        """Return what the first of these resources that waits is waiting for; empty: none does."""
        return next((self.waiting[key] for key in keys if key in self.waiting), "")

    def active_key(self, key: str) -> ApiKey:
        """The key that consumers use now.

        :raises MissingError: it was not seen
        """
        found: ApiKey | None = self.need(key).facts.get("key")
        if found is None:
            raise MissingError(key)
        return found

    def _api(self, url: str, key: ApiKey) -> Api:
        with self._lock:
            if (url, key.id) not in self._apis:
                api = Api(url, key.id, key.secret, self.sleep, check_lease=self.check_lease)
                self._apis[url, key.id] = api
            return self._apis[url, key.id]

    # --- AWS ---

    def aws(self, service: str) -> Any:
        """A boto3 client: thread-safe, and retrying as AWS's SDK does."""
        with self._lock:
            if service not in self._clients:
                client = self._clients[service] = self.new_client(service)
                client.meta.events.register("before-send", self._before_send)
            return self._clients[service]

    def new_client(self, service: str) -> Any:
        """A boto3 client that does not ask for the lease."""
        from botocore.config import Config

        retries: Any = {"mode": "standard", "max_attempts": AWS_ATTEMPTS}
        options = Config(retries=retries, max_pool_connections=2 * WORKERS)
        if self.config.deployment == "local":
            endpoints = load_endpoints(self.config)
            own = self.deploy.aws_endpoint_url if service != "s3" else None
            if own:  # something that stands between
                endpoints = endpoints.model_copy(update={"aws": own})
            client = endpoints.boto3(service, self.config, options)
        else:
            # Where the environment has it, boto3 reads it, and the addresses of single services.
            url = None if "AWS_ENDPOINT_URL" in os.environ else self.deploy.aws_endpoint_url
            client = self._aws_session.client(service, endpoint_url=url, config=options)
        client.meta.events.register("before-parse", _without_body)
        client.meta.events.register("needs-retry", _too_many)
        trace.aws(client)
        return client

    @cached_property
    def _aws_session(self) -> Any:
        """One for all clients: it has read the descriptions of AWS's services."""
        return aws_session(profile_name=self.deploy.profile, region_name=self.config.aws_region)

    def _before_send(self, event_name: str, **_: Any) -> None:
        """Each attempt of a request; what is not known to read only may change something."""
        if not event_name.rpartition(".")[2].startswith(_READS):
            self.check_lease()

    @property
    def deploy_on_aws(self) -> bool:
        """Whether the object store is Amazon's: the local one has no settings of buckets."""
        return self.config.deployment == "cloud"

    @cached_property
    def account(self) -> str:
        """The AWS account's number."""
        return str(self.aws("sts").get_caller_identity()["Account"])

    @property
    def region(self) -> str:
        return self.config.aws_region

    @cached_property
    def bucket(self) -> str:
        """A bucket's name is global, so in the cloud the default one carries the account."""
        if self.config.deployment == "local" or "bucket" in self.config.model_fields_set:
            return self.config.bucket
        return f"{self.config.bucket}-{self.account}"

    @cached_property
    def derived_bucket(self) -> str:
        if self.config.deployment == "local" or "derived_bucket" in self.config.model_fields_set:
            return self.config.derived_bucket
        return derived_from(self.bucket)

    @property
    def compute_bucket(self) -> str:
        """For code, logs and results of queries: what is lost with it can be created again."""
        return f"{self.bucket[:55]}-compute"

    @property
    def seen(self) -> Settings:
        """The settings with what only the accounts know."""
        known = {
            "aws_account_id": self.account,
            "bucket": self.bucket,
            "derived_bucket": self.derived_bucket,
            "cluster_id": self.cluster,
        }
        return self.config.model_copy(update=known)

    def role_arn(self, name: str) -> str:
        """Return the ARN of a role of topicberg; that of an existing role is one already."""
        own = f"arn:aws:iam::{self.account}:role{self.config.iam_path}{name}"
        return name if name.startswith("arn:") else own

    @cached_property
    def tags(self) -> dict[str, str]:
        """Tags of every resource in AWS that can have some."""
        name, value = self.names.tag
        return {**self.config.tags, name: value}

    @cached_property
    def secrets(self) -> Secrets:
        key = self.config.secrets_kms_key_arn
        return Secrets(self.aws("secretsmanager"), self.tags, key)

    # --- Snowflake ---

    @contextmanager
    def snowflake(self) -> Iterator[SnowflakeSession]:
        """The admin's session; one thread at a time uses it, and a broken one is opened again."""
        from topicberg.deploy.snowflake.session import open_session

        with self._snowflake_lock:
            if self._session is None:
                self._session = open_session(self)
            try:
                yield self._session
            except Exception as error:
                if broken(error):
                    self._session = None
                raise


def _without_body(response_dict: dict[str, Any], **_: Any) -> None:
    """What fails in a way that passes may come from something between, which speaks no XML."""
    status = response_dict["status_code"]
    if status == 429 or status >= 500:
        response_dict |= {"status_code": max(status, 500), "body": b""}


def _too_many(response: Any, attempts: int, **_: Any) -> float | None:
    """Seconds to wait after a 429 without one of AWS's codes, which its SDK does not repeat."""
    if response is None or response[0].status_code != 429 or attempts >= AWS_ATTEMPTS:
        return None
    return random.uniform(0.5, 1.0) * min(20.0, 2.0 ** (attempts - 1))  # noqa: S311
