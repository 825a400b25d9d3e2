"""A deployment: its accounts, and the last known state of its resources."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from topicberg.clients.secrets import Secrets
from topicberg.errors.meaning import means
from topicberg.errors.table import BROKEN, DENIED
from topicberg.naming import Names
from topicberg.settings import Settings, with_choices
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy.aws_account import AwsAccount
from topicberg_deploy.confluent_apis import CLUSTER, ENVIRONMENT, ConfluentApis
from topicberg_deploy.record import CreationRecord, Pages
from topicberg_deploy.resource import Live, MissingError
from topicberg_deploy.settings import DeploySettings, check_specs, load

if TYPE_CHECKING:
    from topicberg_deploy.lock import Lease
    from topicberg_deploy.snowflake.session import SnowflakeSession

WORKERS = 8
"""Resources that are worked on at the same time."""


def open_context(config: Settings, flags: dict[str, Any] | None = None) -> DeployContext:
    """Return a context whose settings are complete; nothing is connected yet.

    :raises TopicbergError: settings are missing or wrong: names all of them
    """
    deploy = load(flags or {}, config)
    config = with_choices(config, deploy.profile, deploy.aws_endpoint_url)
    specs = load_topics(config)
    check_specs(config, specs)
    return DeployContext(config, deploy, specs)


@dataclass
class DeployContext:
    """What the resources of one deployment share: clients, and what is known of each other by key.

    The clients of AWS and Confluent are created with the settings: assigning others later does not
    reach them.
    """

    config: Settings
    deploy: DeploySettings
    specs: list[TopicSpec]
    only_plans: bool = False
    """Nothing is changed, so secrets that may not be read are left out."""
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
    unseen: dict[str, str] = field(default_factory=dict)
    """Key of a resource that ``deploy create`` has created and that a delete does not find → its
    title: it is gone, or hidden from who deletes."""
    made: defaultdict[str, dict[str, datetime]] = field(
        default_factory=lambda: defaultdict(dict), repr=False
    )
    """Key of a resource → ids of the API keys that this process created for it, and when."""
    _session: SnowflakeSession | None = field(default=None, repr=False)
    _snowflake_lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self.aws = AwsAccount(
            self.config, self.deploy, self.names, self.check_lease, connections=2 * WORKERS
        )
        self.confluent = ConfluentApis(self.deploy, self.need, self.sleep, self.check_lease)

    @cached_property
    def names(self) -> Names:
        return Names(self.config.prefix)

    @cached_property
    def record(self) -> CreationRecord:
        """What ``deploy create`` has created."""
        return CreationRecord(Pages(self.aws.client("ssm"), self.names.record))

    def check_lease(self) -> None:
        """Ask before each change, if the deploy's lease is held.

        :raises LockLostError: it is not any more
        """
        if self.lease is not None:
            self.lease.check()

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
        """Return the values of a version of a secret, by default the current one; None: who plans
        may not read them.
        """
        try:
            return self.secrets.read(name, version) or {}
        except ClientError as error:
            if self.only_plans and means(error, DENIED):
                return None
            raise

    @contextmanager
    def snowflake(self) -> Iterator[SnowflakeSession]:
        """The admin's session; one thread at a time uses it, and a broken one is opened again."""
        from topicberg_deploy.snowflake.session import open_session

        with self._snowflake_lock:
            if self._session is None:
                self._session = open_session(self)
            try:
                yield self._session
            except Exception as error:
                if means(error, BROKEN):
                    self._session = None
                raise
