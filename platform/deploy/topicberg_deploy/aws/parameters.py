"""What is in SSM Parameter Store: the configuration of Kafka clients, one parameter a property, and
what a deployment notes there, so that everything else finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from topicberg.clients.aws import every
from topicberg.settings import (
    DEPLOYED_EMR,
    DEPLOYED_LINK,
    DEPLOYED_NAMES,
    DEPLOYED_NAMESPACE,
    Settings,
    read_deployment,
)
from topicberg_deploy.aws.emr import runtime_settings
from topicberg_deploy.aws.iam import tags
from topicberg_deploy.context import CLUSTER
from topicberg_deploy.costs import QUOTAS
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource

_COMMON = {
    "client.dns.lookup": "use_all_dns_ips",
    "sasl.mechanism": "PLAIN",
    "security.protocol": "SASL_SSL",
}
CONSUMER = {
    **_COMMON,
    "auto.commit.interval.ms": "1000",
    "basic.auth.credentials.source": "USER_INFO",
    "enable.auto.commit": "true",
    "max.poll.interval.ms": "300000",
    "request.timeout.ms": "60000",
    "session.timeout.ms": "90000",
}
PRODUCER = {
    **_COMMON,
    "acks": "all",
    "auto.create.topics.enable": "true",
    "compression.type": "gzip",
    "transaction.timeout.ms": "60000",
}


@dataclass(frozen=True)
class Parameters(Resource):
    """:param name: the path that they are under"""

    values: dict[str, str] = field(default_factory=dict, hash=False)

    kind = "SSM parameters"
    quota = QUOTAS["SSM parameters"]

    def quota_units(self, config: Settings) -> int:
        return len(self.values)

    def find(self, context: DeployContext) -> Live | None:
        ssm, begin = context.aws.client("ssm"), f"{self.name}/"
        listed = every(ssm, "get_parameters_by_path", "Parameters", Path=self.name)
        values = {entry["Name"].removeprefix(begin): entry["Value"] for entry in listed}
        return Live(self.name, values) if values else None

    def desired(self, context: DeployContext) -> Fields:
        return dict(self.values)

    def create(self, context: DeployContext) -> None:
        self._put(context, self.values)
        for name in self.values:  # a request that overwrites takes no tags
            context.aws.client("ssm").add_tags_to_resource(
                ResourceType="Parameter", ResourceId=f"{self.name}/{name}", Tags=tags(context)
            )

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        self._put(context, {name: new for name, (_, new) in changes.items()})

    def _put(self, context: DeployContext, values: dict[str, str]) -> None:
        for name, value in values.items():
            context.aws.client("ssm").put_parameter(
                Name=f"{self.name}/{name}", Value=value, Type="String", Overwrite=True
            )

    def delete(self, context: DeployContext, live: Live) -> None:
        names = [f"{self.name}/{name}" for name in live.fields]
        for start in range(0, len(names), 10):
            context.aws.client("ssm").delete_parameters(Names=names[start : start + 10])


def note(context: DeployContext) -> None:
    """Write down what only the accounts know, if it is not there already."""
    config, deploy = context.config, context.deploy
    if config.deployment == "local" or CLUSTER not in context.live:
        return
    before, _, _ = read_deployment(config, deploy.profile, deploy.aws_endpoint_url)
    names = {name: getattr(context.seen, name) for name in (*DEPLOYED_NAMES, DEPLOYED_LINK)}
    if config.tableflow_namespace:
        names[DEPLOYED_NAMESPACE] = config.tableflow_namespace
    # Without it, it was not looked at, e.g. with --target.
    emr = runtime_settings(context) or (before.get(DEPLOYED_EMR) if config.on_emr else None)
    if emr is not None:
        names[DEPLOYED_EMR] = emr
    if names != before:
        context.aws.client("ssm").put_parameter(
            Name=context.names.deployment,
            Value=json.dumps(names),
            Type="String",
            Overwrite=True,
            Tier="Intelligent-Tiering",  # with long names it may pass the 4,096 characters
        )


@contextmanager
def noting(context: DeployContext) -> Iterator[None]:
    """Write the names down at the end, also of a deployment that was created in part."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the error that ended the deployment is reported
            note(context)
        raise
    note(context)


def forget_note(context: DeployContext) -> None:
    """Delete what was noted."""
    ssm = context.aws.client("ssm")
    with suppress(ssm.exceptions.ParameterNotFound):
        ssm.delete_parameter(Name=context.names.deployment)
