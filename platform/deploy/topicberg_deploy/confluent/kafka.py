"""Topics and access lists, through Kafka's REST API v3 with a Kafka key; subjects, through the
Schema Registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from topicberg.clients.confluent import ConflictError, if_found
from topicberg.errors.incompatible import refusal
from topicberg.formats.table import FORMATS
from topicberg.kafka.topics import WaitingDriftError, losing_configs, partition_drift
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg.topics.schema import read_schema
from topicberg_deploy.costs import QUOTAS
from topicberg_deploy.resource import (
    CannotChangeError,
    Changes,
    DeployContext,
    Fields,
    Live,
    Resource,
)


@dataclass(frozen=True)
class KafkaTopic(Resource):
    spec: TopicSpec = field(kw_only=True)

    kind = "topic"
    is_part = True
    quota = QUOTAS["partitions"]
    holds_data = True

    def _path(self, context: DeployContext, rest: str = "") -> str:
        return f"/kafka/v3/clusters/{context.cluster}/topics/{quote(self.name, safe='')}{rest}"

    def quota_units(self, config: Settings) -> int:
        return self.spec.partitions

    def find(self, context: DeployContext) -> Live | None:
        topic = if_found(context.confluent.kafka.get, self._path(context))
        if topic is None:
            return None
        configs = context.confluent.kafka.get(self._path(context, "/configs"))["data"]
        values = {config["name"]: config.get("value") for config in configs}
        return Live(self.name, {"partitions": topic["partitions_count"], **values})

    def desired(self, context: DeployContext) -> Fields:
        wanted = {"partitions": self.spec.partitions, **self.spec.kafka_config}
        return wanted | {n: context.live[self.key].fields.get(n) for n in self._waiting(context)}

    def _waiting(self, context: DeployContext) -> Fields:
        """Return what of the spec waits for ``create --irrevocable``: more partitions, and
        configurations by which Kafka deletes records."""
        if (live := context.live.get(self.key)) is None or context.irrevocable:
            return {}
        drift = partition_drift(self.spec, live.fields["partitions"])
        more = {"partitions": self.spec.partitions} if isinstance(drift, WaitingDriftError) else {}
        return more | losing_configs(self.spec.kafka_config, live.fields)

    def remark(self, context: DeployContext, live: Live) -> str:
        waiting = [f"{n}: {live.fields.get(n)} → {v}" for n, v in self._waiting(context).items()]
        create = "`topicberg deploy create --irrevocable` sets "
        return f"{create}{', '.join(waiting)}, which cannot be undone" if waiting else ""

    def create(self, context: DeployContext) -> None:
        body = {
            "topic_name": self.name,
            "partitions_count": self.spec.partitions,
            "configs": [{"name": k, "value": v} for k, v in self.spec.kafka_config.items()],
        }
        context.confluent.kafka.post(f"/kafka/v3/clusters/{context.cluster}/topics", body)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        if "partitions" in changes:
            has, wanted = changes["partitions"]
            if wanted < has or self.spec.is_compacted:
                raise CannotChangeError(
                    f"topic {self.name} has {has} partitions, its spec says {wanted}",
                    hint="Kafka cannot take partitions away, and more would scatter the keys of "
                    f"an upsert topic: set `partitions: {has}`",
                )
            context.confluent.kafka.patch(self._path(context), {"partitions_count": wanted})
        configs = {name: wanted for name, (_, wanted) in changes.items() if name != "partitions"}
        if configs:
            data = [{"name": k, "value": v, "operation": "SET"} for k, v in configs.items()]
            path = self._path(context, "/configs:alter")
            context.confluent.kafka.post(path, {"data": data}, repeatable=True)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.kafka.delete(self._path(context))


@dataclass(frozen=True)
class Acl(Resource):
    """What a service account may do in the cluster.

    An access list, not a role binding: Basic clusters have no roles for topics, groups and
    transactional ids (https://docs.confluent.io/cloud/current/clusters/cluster-types.html).

    :param account: key of the service account
    :param of: CLUSTER, TOPIC, GROUP or TRANSACTIONAL_ID
    :param on: the name of that, or what it begins with
    """

    account: str = field(kw_only=True)
    operation: str = field(kw_only=True)
    of: str = field(kw_only=True)
    on: str = field(kw_only=True)
    prefixed: bool = field(kw_only=True)

    kind = "access list"
    is_part = True
    quota = QUOTAS["ACLs"]

    def _path(self, context: DeployContext) -> str:
        return f"/kafka/v3/clusters/{context.cluster}/acls"

    def _body(self, context: DeployContext) -> dict[str, str]:
        return {
            "resource_type": self.of,
            "resource_name": self.on,
            "pattern_type": "PREFIXED" if self.prefixed else "LITERAL",
            "principal": f"User:{context.need(self.account).id}",
            "host": "*",
            "operation": self.operation,
            "permission": "ALLOW",
        }

    def find(self, context: DeployContext) -> Live | None:
        found = context.confluent.kafka.get(self._path(context), **self._body(context))["data"]
        return Live(f"{self.operation} {context.need(self.account).id}") if found else None

    def create(self, context: DeployContext) -> None:
        context.confluent.kafka.post(self._path(context), self._body(context), repeatable=True)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.kafka.delete(self._path(context), **self._body(context))


@dataclass(frozen=True)
class RegistrySubject(Resource):
    """A schema of a topic's spec, registered under a subject."""

    file: Path = field(kw_only=True)
    format: str = field(kw_only=True)
    message: str | None = None
    compatibility: str | None = None

    kind = "subject"
    quota = QUOTAS["schemas"]

    def _path(self, begin: str = "/subjects", end: str = "") -> str:
        return f"{begin}/{quote(self.name, safe='')}{end}"

    def _body(self) -> dict[str, Any]:
        text = read_schema(self.file, self.format, self.message, part="key").text
        return {"schema": text, "schemaType": FORMATS[self.format].schema_type}

    def find(self, context: DeployContext) -> Live | None:
        registry = context.confluent.registry
        versions = if_found(registry.listed, self._path(end="/versions"))
        if versions is None:
            return None
        fields: Fields = {"schema": "as in its file"}
        if self.compatibility:  # without a level of its own, it has the registry's
            level = if_found(registry.get, self._path("/config"))
            fields["compatibility"] = level and level.get("compatibilityLevel")
        if if_found(registry.post, self._path(), self._body(), repeatable=True) is None:
            fields["schema"] = f"versions {versions}, none as in its file"
        return Live(self.name, fields)

    def desired(self, context: DeployContext) -> Fields:
        level = {"compatibility": self.compatibility} if self.compatibility else {}
        return {"schema": "as in its file", **level}

    def create(self, context: DeployContext) -> None:
        self._register(context)
        if self.compatibility:
            self._set_level(context)  # of a subject that exists

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        if "compatibility" in changes:
            self._set_level(context)
        if "schema" in changes:
            self._register(context)

    def _set_level(self, context: DeployContext) -> None:
        level = {"compatibility": self.compatibility}
        context.confluent.registry.put(self._path("/config"), level)

    def _register(self, context: DeployContext) -> None:
        path = self._path(end="/versions")
        try:
            context.confluent.registry.post(path, self._body(), repeatable=True)
        except ConflictError as error:
            what, hint = refusal(error.message, self.compatibility)
            raise CannotChangeError(
                f"subject {self.name}: {self.file.name} is {what}", hint=hint
            ) from error

    def is_ours(self, context: DeployContext) -> bool:
        """It goes with the environment's registry: no account needs the right to delete schemas."""
        return False
