"""Configuration of Kafka clients in SSM Parameter Store, one parameter a property."""

from __future__ import annotations

from dataclasses import dataclass, field

from topicberg.clients.aws import every
from topicberg.settings import Settings
from topicberg_deploy.aws.iam import tags
from topicberg_deploy.context import DeployContext
from topicberg_deploy.costs import QUOTAS
from topicberg_deploy.resource import Changes, Fields, Live, Resource

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
        listed = every(
            context.aws.client("ssm"), "get_parameters_by_path", "Parameters", Path=self.name
        )
        values = {entry["Name"].removeprefix(f"{self.name}/"): entry["Value"] for entry in listed}
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
