"""The AWS account of a deployment: clients of its services, and the names of what is in it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from topicberg.clients import trace
from topicberg.clients.aws import aws_session
from topicberg.endpoints import load_endpoints
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.settings.models import derived_from
from topicberg_deploy.settings import DeploySettings

ATTEMPTS = 8
_READS = ("Get", "List", "Describe", "Head", "BatchGet", "Simulate")
"""Actions of AWS whose names begin so change nothing."""


class AwsAccount:
    """Boto3's clients, which are made when they are needed, and names."""

    def __init__(
        self,
        config: Settings,
        deploy: DeploySettings,
        names: Names,
        check_lease: Callable[[], None],
        connections: int,
    ) -> None:
        """
        :param check_lease: called before each request that may change something
        :param connections: at most, of each client
        """
        self._config, self._deploy, self._names = config, deploy, names
        self._check_lease, self._connections = check_lease, connections
        self._clients: dict[str, Any] = {}
        self._lock = threading.RLock()

    def client(self, service: str) -> Any:
        """A boto3 client: thread-safe, and retrying as AWS's SDK does."""
        with self._lock:
            if service not in self._clients:
                client = self._clients[service] = self.new_client(service)
                client.meta.events.register("before-send", self._before_send)
            return self._clients[service]

    def new_client(self, service: str) -> Any:
        """A boto3 client that does not ask for the lease."""
        from botocore.config import Config

        retries: Any = {"mode": "standard", "max_attempts": ATTEMPTS}
        options = Config(retries=retries, max_pool_connections=self._connections)
        if self._config.deployment == "local":
            endpoints, endpoint = load_endpoints(self._config), self._deploy.aws_endpoint_url
            if endpoint and service != "s3":  # something that stands between
                endpoints = endpoints.model_copy(update={"aws": endpoint})
            client = endpoints.boto3(service, self._config, options)
        else:
            # Where the environment has it, boto3 reads it, and the addresses of single services.
            url = None if "AWS_ENDPOINT_URL" in os.environ else self._deploy.aws_endpoint_url
            client = self.session.client(service, endpoint_url=url, config=options)
        client.meta.events.register("before-parse", _without_body)
        client.meta.events.register("needs-retry", _too_many)
        trace.aws(client)
        return client

    @cached_property
    def session(self) -> Any:
        """One for all clients: it has read the descriptions of AWS's services."""
        return aws_session(profile_name=self._deploy.profile, region_name=self._config.aws_region)

    def _before_send(self, event_name: str, **_: Any) -> None:
        """Each attempt of a request; what is not known to read only may change something."""
        if not event_name.rpartition(".")[2].startswith(_READS):
            self._check_lease()

    @cached_property
    def account(self) -> str:
        """The AWS account's number."""
        return str(self.client("sts").get_caller_identity()["Account"])

    @cached_property
    def bucket(self) -> str:
        """A bucket's name is global, so in the cloud the default one carries the account."""
        name = self._config.bucket
        return name if self._is_chosen("bucket") else f"{name}-{self.account}"

    @cached_property
    def derived_bucket(self) -> str:
        is_chosen = self._is_chosen("derived_bucket")
        return self._config.derived_bucket if is_chosen else derived_from(self.bucket)

    def _is_chosen(self, setting: str) -> bool:
        return self._config.deployment == "local" or setting in self._config.model_fields_set

    @property
    def compute_bucket(self) -> str:
        """For code, logs and results of queries: what is lost with it can be created again."""
        return f"{self.bucket[:55]}-compute"

    def role_arn(self, name: str) -> str:
        """Return the ARN of a role of topicberg; that of an existing role is one already."""
        created = f"arn:aws:iam::{self.account}:role{self._config.iam.path}{name}"
        return name if name.startswith("arn:") else created

    @cached_property
    def tags(self) -> dict[str, str]:
        """Tags of every resource in AWS that can have some."""
        name, value = self._names.tag
        return {**self._config.tags, name: value}


def _without_body(response_dict: dict[str, Any], **_: Any) -> None:
    """What fails in a way that passes may come from something between, which speaks no XML."""
    status = response_dict["status_code"]
    if status == 429 or status >= 500:
        response_dict |= {"status_code": max(status, 500), "body": b""}


def _too_many(response: Any, attempts: int, **_: Any) -> float | None:
    """Seconds to wait after a 429 without one of AWS's codes, which its SDK does not repeat."""
    if response is None or response[0].status_code != 429 or attempts >= ATTEMPTS:
        return None
    return random.uniform(0.5, 1.0) * min(20.0, 2.0 ** (attempts - 1))  # noqa: S311
