"""A deployment: its accounts, and the last known state of its resources."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError

from topicberg.clients.confluent import Api
from topicberg.clients.secrets import ApiKey, Secrets
from topicberg.errors import TopicbergError
from topicberg.errors.meaning import means
from topicberg.errors.table import DENIED
from topicberg.naming import Names
from topicberg.settings import DEPLOYED_LINK, DEPLOYED_NAMESPACE, Settings, read_deployment
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy.aws_account import AwsAccount
from topicberg_deploy.polling import DeadlineExceededError, T, poll
from topicberg_deploy.record import ClientLogin, CreationRecord, Pages
from topicberg_deploy.settings import DeploySettings, check_specs, load
from topicberg_deploy.snowflake_account import SnowflakeAccount

NOT_GRANTED = "Lake Formation permission"
"""In Glue's reason, which vendors pass on: "Insufficient Lake Formation permission(s)"."""
WORKERS = 8
"""Resources that are worked on at the same time."""
ENVIRONMENT = "confluent/environment"
CLUSTER = "confluent/cluster"
REGISTRY = "confluent/schema_registry"
READER = "reader"
"""Folder of the secrets with keys that may only read: `plan` uses no others."""

Fields = dict[str, Any]
"""Field → value as JSON has it. Never a secret: fields are printed."""


@dataclass(frozen=True)
class Live:
    """A resource as it is.

    :param id: how its vendor calls it
    :param fields: what is compared with what is desired
    :param facts: what others need of it, e.g. its address
    """

    id: str
    fields: Fields = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict, repr=False)


class MissingError(Exception):
    """Something that is needed to look at a resource is not there.

    :param key: of the resource that is missing
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is not there")
        self.key = key


def open_context(config: Settings, flags: dict[str, Any] | None = None) -> DeployContext:
    """Return a context whose settings are complete; nothing is connected yet.

    :raises TopicbergError: settings are missing or wrong: names all of them
    """
    deploy = load(flags or {}, config)
    config = with_choices(config, deploy.profile, deploy.aws_endpoint_url)
    specs = load_topics(config)
    check_specs(config, specs)
    return DeployContext(config, deploy, specs)


def with_choices(config: Settings, profile: str | None, endpoint: str | None) -> Settings:
    """Return the settings with the choices that the deployment remembers, for ``deploy``.

    :param profile: of AWS
    :param endpoint: of AWS's services
    :raises TopicbergError: they cannot be read; a default could contradict them
    """
    if config.deployment == "local":
        return config
    names, reason, is_known = read_deployment(config, profile, endpoint)
    if not is_known:
        raise TopicbergError(
            f"what `deploy` remembers of the deployment: {reason}",
            hint="log in to AWS (`aws sso login`), or permit ssm:GetParameter on that parameter",
        )
    choices = {DEPLOYED_LINK, DEPLOYED_NAMESPACE} - config.model_fields_set
    return config.model_copy(update={name: names[name] for name in choices & names.keys()})


@dataclass
class DeployContext:
    """What the resources of one deployment share: clients, and what is known of each other by key.

    The clients are created with the settings: assigning others later does not reach them.
    """

    config: Settings
    deploy: DeploySettings
    specs: list[TopicSpec]
    only_plans: bool = False
    """Nothing is changed, so secrets that may not be read are left out."""
    skips_simulation: bool = False
    """IAM is not asked for the permissions of who deploys."""
    purge_secrets: bool = False
    """Deleting a secret leaves no way back."""
    irrevocable: bool = False
    """What cannot be undone is done: more partitions of a topic, configurations by which Kafka
    deletes records, deletion of what holds data and is turned off."""
    sleep: Callable[[float], None] = time.sleep
    check_lease: Callable[[], None] = lambda: None
    """Called before each request that changes something; it raises LockLostError if the lease of
    the deploy that is under way is not held any more."""
    live: dict[str, Live] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """Key of a resource that cannot be created yet → what it waits for."""
    fresh: set[str] = field(default_factory=set)
    """Keys of resources that this process created or changed, or that need one of these: vendors
    may not know all of it everywhere yet."""
    waiting_since: dict[str, float] = field(default_factory=dict)
    """Key of a new resource that was refused, or is settling, → since when, by the monotonic clock:
    the time until its vendor knows everything everywhere."""
    ours: set[str] = field(default_factory=set)
    """Keys of resources that were looked at, and that ``deploy create`` has created."""
    claimed: frozenset[str] = frozenset()
    """Keys of resources that are taken for created by ``deploy``, whatever is recorded."""
    kept: dict[str, str] = field(default_factory=dict)
    """Key of a resource that exists and that a delete leaves → its title."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Key of a resource that ``deploy create`` has created and that a delete does not find → its
    title: it is gone, or hidden from who deletes."""
    made: defaultdict[str, dict[str, datetime]] = field(
        default_factory=lambda: defaultdict(dict), repr=False
    )
    """Key of a resource → ids of the API keys that this process created for it, and when."""

    def __post_init__(self) -> None:
        def check() -> None:
            self.check_lease()  # as it is when a client asks

        self.names = Names(self.config.prefix)
        self.aws = AwsAccount(self.config, self.deploy, self.names, check, 2 * WORKERS)
        self.confluent = ConfluentApis(self, check)
        self.snowflake = SnowflakeAccount(self.config, self.deploy, lambda: self.secrets, check)

    @cached_property
    def record(self) -> CreationRecord:
        """What ``deploy create`` has created."""
        return CreationRecord(Pages(self.aws.client("ssm"), self.names.record))

    def poll(self, ask: Callable[[], T | None], awaited: str, seconds: float) -> T:
        """See :func:`~topicberg_deploy.polling.poll`."""
        return poll(ask, awaited, seconds, sleep=self.sleep)

    def poll_problem(self, ask: Callable[[], str], seconds: float) -> str:
        """Ask until there is no problem. Return the last one; empty: it is solved in ``seconds``.

        A missing grant is returned at once: `create` prints it, and its administrator makes it.
        """
        problem = ""

        def is_decided() -> bool:
            nonlocal problem
            problem = ask()
            return not problem or NOT_GRANTED in problem

        with suppress(DeadlineExceededError):
            self.poll(is_decided, "", seconds)
        return problem

    def need(self, key: str) -> Live:
        """:raises MissingError: it was not seen"""
        live = self.live.get(key)
        if live is None:
            raise MissingError(key)
        return live

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

    @property
    def catalog_client(self) -> ClientLogin:
        """The client of the REST catalog, for Snowflake and for Confluent's Tableflow."""
        return ClientLogin.of(self.deploy.catalog.client_id, self.deploy.catalog.client_secret)

    def wait_of(self, *keys: str) -> str:
        """Return what the first of these resources that waits is waiting for; empty: none does."""
        return next((self.waiting[key] for key in keys if key in self.waiting), "")

    @property
    def seen(self) -> Settings:
        """The settings with what only the accounts know."""
        known = {
            "aws_account_id": self.aws.account,
            "bucket": self.aws.bucket,
            "derived_bucket": self.aws.derived_bucket,
            "cluster_id": self.cluster,
        }
        return self.config.model_copy(update=known)

    @cached_property
    def secrets(self) -> Secrets:
        key = self.config.kms.secrets_key_arn
        return Secrets(self.aws.client("secretsmanager"), self.aws.tags, key)

    def read_secret(self, name: str, version: str | None = None) -> dict[str, str] | None:
        """Return a version's values, by default the current ones; None: who plans may not."""
        try:
            return self.secrets.read(name, version) or {}
        except ClientError as error:
            if self.only_plans and means(error, DENIED):
                return None
            raise


class ConfluentApis:
    """Clients of Confluent's APIs: the control plane, Kafka, the schema registry, Tableflow.

    There is one for each address and key, both of which are known once their resources are.
    """

    def __init__(self, context: DeployContext, check_lease: Callable[[], None]) -> None:
        """:param check_lease: called before each request that changes something"""
        self._context, self._check_lease = context, check_lease
        self._deploy, self._need = context.deploy, context.need
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
        cluster = self._need(CLUSTER)
        if not (url := self._deploy.kafka_rest_url or cluster.facts["http_endpoint"]):
            raise TopicbergError(
                f"Confluent shows no address of the REST API of Kafka cluster {cluster.id}",
                hint="set TOPICBERG_KAFKA_REST_URL to the address at which this machine reaches it",
            )
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
        """:raises MissingError: the key that consumers use now was not seen"""
        active: ApiKey | None = self._need(key).facts.get("key")
        if active is None:
            raise MissingError(key)
        return active

    def _api(self, url: str, key: ApiKey) -> Api:
        with self._lock:
            if (url, key.id) not in self._apis:
                sleep, check = self._context.sleep, self._check_lease
                self._apis[url, key.id] = Api(url, key.id, key.secret, sleep, check_lease=check)
            return self._apis[url, key.id]
