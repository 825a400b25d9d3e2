"""Environment, Kafka cluster, its Schema Registry, service accounts and role bindings: APIs org/v2,
cmk/v2, srcm/v3 and iam/v2.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from topicberg.clients.confluent import Api, ApiError, GoneError
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.context import ENVIRONMENT
from topicberg_deploy.costs import HOURS, PRICES, QUOTAS, Cost
from topicberg_deploy.resource import (
    CannotChangeError,
    Changes,
    DeployContext,
    Fields,
    Live,
    Resource,
)

PACKAGE = "ESSENTIALS"
CLUSTER_TYPE = "Basic"
"""Of a new cluster, where the settings do not say otherwise."""
CLUSTER_SECONDS = 3600.0
REGISTRY_SECONDS = 600.0


def organization(cloud: Api) -> str:
    """Id of the organization that the key belongs to."""
    first = next(cloud.pages("/org/v2/organizations"), None)
    if first is None:
        raise ApiError("the Cloud API key sees no organization")
    return str(first["id"])


def _given(cloud: Api, path: str, **params: str) -> dict[str, Any] | None:
    """Return an object by its id; None: there is none, or the key may not see it."""
    with suppress(GoneError):
        return dict(cloud.get(path, **params))
    return None


def check_given(context: DeployContext) -> None:
    """Check the environment and the cluster that exist, before anything is changed.

    :raises TopicbergError: one of them is not there, or the cluster is elsewhere than the bucket
    """
    config, cloud = context.config, context.confluent.cloud
    environment, cluster = config.existing_environment, config.existing_cluster
    if environment is None:
        return
    hint = "check the id, and that the owner of the Cloud API key may see it"
    if _given(cloud, f"{Environment.path}/{environment}") is None:
        raise TopicbergError(
            f"TOPICBERG_EXISTING_ENVIRONMENT: there is no environment {environment}", hint=hint
        )
    if cluster is None:
        return
    existing = _given(cloud, f"{Cluster.path}/{cluster}", environment=environment)
    if existing is None:
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: environment {environment} has no cluster {cluster}",
            hint=hint,
        )
    spec, phase = existing["spec"], (existing.get("status") or {}).get("phase")
    place = (str(spec.get("cloud")).upper(), spec.get("region"))
    if place != ("AWS", config.aws_region):
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: {cluster} is in {' '.join(map(str, place))}, expected "
            f"AWS {config.aws_region}: Tableflow writes to buckets of the cluster's region",
            hint="set TOPICBERG_AWS_REGION to the cluster's region, or choose another cluster",
        )
    if phase != "PROVISIONED":
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: {cluster} is {phase}, expected PROVISIONED",
            hint="run the command again when it is provisioned",
        )
    _check_network(context, spec, cluster)


def _check_network(context: DeployContext, spec: dict[str, Any], cluster: str) -> None:
    """:raises TopicbergError: Tableflow does not do in a private network what is configured

    https://docs.confluent.io/cloud/current/topics/tableflow/operate/tableflow-private-networking.html
    """
    points = (spec.get("endpoints") or {}).values()
    in_network = points and all(point.get("connection_type") != "PUBLIC" for point in points)
    if not (spec.get("network") or in_network):
        return
    config = context.config
    managed = [spec.name for spec in context.specs if spec.tableflow.storage == "managed"]
    refused = {
        f"`tableflow: {{storage: managed}}` of {', '.join(managed)}": managed,
        "TOPICBERG_UNITY__WORKSPACE_URL": config.unity.workspace_url,
        "TOPICBERG_SNOWFLAKE_CATALOG=open_catalog": config.snowflake_catalog == "open_catalog",
    }
    if problems := [setting for setting, is_set in refused.items() if is_set]:
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: {cluster} is in a private network, where Confluent's "
            f"Tableflow has no storage of its own and no other catalog than AWS Glue: "
            f"{'; '.join(problems)}",
            hint="let Tableflow write to the bucket and publish to AWS Glue, or choose a cluster "
            "with a public address",
        )


@dataclass(frozen=True)
class NamedObject(Resource):
    """What Confluent's control plane finds by the name that people gave it."""

    path: ClassVar[str]
    """Of its API."""
    plural: ClassVar[str]

    def params(self, context: DeployContext) -> dict[str, str]:
        """Return what a request for it states besides its id."""
        return {}

    def api(self, context: DeployContext) -> Api:
        return context.confluent.cloud

    def read(self, context: DeployContext) -> dict[str, Any] | None:
        """Return the object that has the name, by itself or in its ``spec``; None: there is none.

        :raises ApiError: there are several, so it is unknown which one is meant
        """
        params = self.params(context)
        candidates = [
            candidate
            for candidate in self.api(context).pages(self.path, **params)
            if candidate.get("spec", candidate).get("display_name") == self.name
        ]
        if len(candidates) > 1:
            within = f" in {params['environment']}" if params else ""
            ids = ", ".join(str(candidate["id"]) for candidate in candidates)
            raise ApiError(
                f"there are {len(candidates)} {self.plural} named {self.name}{within}: {ids}",
                hint="delete all but one of them",
            )
        return candidates[0] if candidates else None

    def as_live(self, context: DeployContext, listed: dict[str, Any]) -> Live:
        """Return the object as the API describes it."""
        raise NotImplementedError

    def find(self, context: DeployContext) -> Live | None:
        found = self.read(context)
        return self.as_live(context, found) if found is not None else None

    def delete(self, context: DeployContext, live: Live) -> None:
        self.api(context).delete(f"{self.path}/{live.id}", **self.params(context))


@dataclass(frozen=True)
class GivenObject(NamedObject):
    """:param given: id of one that exists; it is never created, changed or deleted"""

    given: str | None = None

    holds_data = True

    def read(self, context: DeployContext) -> dict[str, Any] | None:
        if self.given is None:
            return super().read(context)
        path = f"{self.path}/{self.given}"
        return _given(context.confluent.cloud, path, **self.params(context))

    def is_ours(self, context: DeployContext) -> bool:
        return self.given is None

    def waits(self, context: DeployContext) -> str:
        return f"{self.kind} {self.given} does not exist" if self.given else ""


@dataclass(frozen=True)
class Environment(GivenObject):
    kind = "environment"
    path = "/org/v2/environments"
    plural = "environments"

    def as_live(self, context: DeployContext, listed: dict[str, Any]) -> Live:
        package = (listed.get("stream_governance_config") or {}).get("package")
        within = f"crn://confluent.cloud/organization={organization(context.confluent.cloud)}"
        crn = f"{within}/environment={listed['id']}"
        return Live(listed["id"], {"stream_governance": package}, {"crn": crn})

    def desired(self, context: DeployContext) -> Fields:
        if self.given:
            return {}
        live = context.live.get(self.key)
        has = live.fields["stream_governance"] if live else None
        return {"stream_governance": "ADVANCED" if has == "ADVANCED" else PACKAGE}

    def create(self, context: DeployContext) -> None:
        body = {"display_name": self.name, "stream_governance_config": {"package": PACKAGE}}
        context.confluent.cloud.post(self.path, body)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        body = {"stream_governance_config": {"package": changes["stream_governance"][1]}}
        context.confluent.cloud.patch(f"{self.path}/{live.id}", body)


@dataclass(frozen=True)
class Cluster(GivenObject):
    """A Kafka cluster in AWS, in the region of the bucket: in one zone, unless it exists.

    :param type: what the settings ask for; None: Basic, and one that exists stays as it is
    """

    type: str | None = None

    kind = "Kafka cluster"
    path = "/cmk/v2/clusters"
    plural = "Kafka clusters"
    is_part = True
    usual_minutes = 5
    unique = False
    replaced_for = frozenset({"cloud", "region"})

    def params(self, context: DeployContext) -> dict[str, str]:
        return {"environment": context.environment}

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        if self.given is not None:
            return None  # a given cluster costs the same without topicberg
        cluster_type = self._type(live)
        hourly = PRICES["standard" if cluster_type == "Standard" else "basic"]
        basis = f"{cluster_type}, and ${PRICES['traffic']} a GB in or out, beside storage"
        return Cost(hourly * HOURS, basis)

    def _type(self, live: Live | None) -> str:
        return self.type or (live.fields["type"] if live else CLUSTER_TYPE)

    def as_live(self, context: DeployContext, listed: dict[str, Any]) -> Live:
        spec = listed["spec"]
        endpoint = _address(spec, "http_endpoint")
        fields = {
            "cloud": str(spec.get("cloud", "")).upper(),
            "region": spec.get("region"),
            "type": (spec.get("config") or {}).get("kind"),
        }
        facts = {
            "phase": (listed.get("status") or {}).get("phase"),
            "http_endpoint": endpoint,
            "bootstrap": (_address(spec, "kafka_bootstrap_endpoint") or "").rpartition("://")[2],
            "crn": f"{context.need(ENVIRONMENT).facts['crn']}/cloud-cluster={listed['id']}",
        }
        return Live(listed["id"], fields, facts)

    def desired(self, context: DeployContext) -> Fields:
        if self.given:
            return {}
        return {
            "cloud": "AWS",
            "region": context.config.aws_region,
            "type": self._type(context.live.get(self.key)),
        }

    def create(self, context: DeployContext) -> None:
        spec = {
            "display_name": self.name,
            "availability": "SINGLE_ZONE",
            "cloud": "AWS",
            "region": context.config.aws_region,
            "config": {"kind": self.type or CLUSTER_TYPE},
            "environment": {"id": context.environment},
        }
        context.confluent.cloud.post(self.path, {"spec": spec})

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        has, wanted = changes["type"]
        if (has, wanted) != ("Basic", "Standard"):
            raise CannotChangeError(
                f"{self.title} is a {has} cluster, TOPICBERG_CLUSTER_TYPE says {wanted}: Confluent "
                "changes Basic to Standard only",
                hint=f"set TOPICBERG_CLUSTER_TYPE={has}, or leave it out",
            )
        spec = {"config": {"kind": wanted}, "environment": {"id": context.environment}}
        context.confluent.cloud.patch(f"{self.path}/{live.id}", {"spec": spec})

    def settle(self, context: DeployContext, live: Live) -> None:
        _wait_provisioned(self, context, CLUSTER_SECONDS)


def _address(spec: dict[str, Any], name: str) -> str | None:
    """Return an address of a cluster: a public one if there is one. The field by itself is
    deprecated, and clusters of some types have none there: theirs are by access point.
    """
    points = sorted(
        (spec.get("endpoints") or {}).values(),
        key=lambda point: point.get("connection_type") != "PUBLIC",
    )
    addresses = filter(None, (point.get(name) for point in (*points, spec)))
    return next((str(address).rstrip("/") for address in addresses), None)


def _wait_provisioned(resource: Resource, context: DeployContext, seconds: float) -> None:
    def provisioned() -> bool:
        live = resource.find(context)
        phase = live.facts["phase"] if live else None
        if phase == "FAILED":
            raise ApiError(f"{resource.title}: Confluent could not provision it")
        return phase == "PROVISIONED"

    context.poll(provisioned, f"{resource.title} is provisioned", seconds)


@dataclass(frozen=True)
class SchemaRegistry(Resource):
    """It appears by itself with the environment's first Kafka cluster, and goes with it."""

    kind = "Schema Registry"
    built_in = True

    def find(self, context: DeployContext) -> Live | None:
        pages = context.confluent.cloud.pages("/srcm/v3/clusters", environment=context.environment)
        registry = next(pages, None)
        if registry is None:
            return None
        within, spec = context.need(ENVIRONMENT).facts["crn"], registry["spec"]
        facts = {
            "phase": (registry.get("status") or {}).get("phase"),
            "http_endpoint": spec.get("http_endpoint") or spec.get("private_http_endpoint"),
            "crn": f"{within}/schema-registry={registry['id']}",
        }
        return Live(registry["id"], {}, facts)

    def settle(self, context: DeployContext, live: Live) -> None:
        _wait_provisioned(self, context, REGISTRY_SECONDS)


@dataclass(frozen=True)
class ServiceAccount(NamedObject):
    description: str = field(kw_only=True)

    kind = "service account"
    path = "/iam/v2/service-accounts"
    plural = "service accounts"
    quota = QUOTAS["service accounts"]

    def as_live(self, context: DeployContext, listed: dict[str, Any]) -> Live:
        return Live(listed["id"], {"description": listed.get("description") or ""})

    def desired(self, context: DeployContext) -> Fields:
        return {"description": self.description}

    def create(self, context: DeployContext) -> None:
        body = {"display_name": self.name, **self.desired(context)}
        context.confluent.cloud.post(self.path, body)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        context.confluent.cloud.patch(f"{self.path}/{live.id}", self.desired(context))


@dataclass(frozen=True)
class RoleBinding(Resource):
    """A role of a service account on one pattern.

    :param account: key of the service account
    :param on: key of the resource whose CRN the pattern begins with
    :param pattern: what follows the CRN, e.g. ``/topic=*``
    """

    account: str = field(kw_only=True)
    role: str = field(kw_only=True)
    on: str = field(kw_only=True)
    pattern: str = field(kw_only=True)

    kind = "role binding"
    is_part = True
    path: ClassVar[str] = "/iam/v2/role-bindings"

    def _body(self, context: DeployContext) -> dict[str, str]:
        return {
            "principal": f"User:{context.need(self.account).id}",
            "role_name": self.role,
            "crn_pattern": f"{context.need(self.on).facts['crn']}{self.pattern}",
        }

    def find(self, context: DeployContext) -> Live | None:
        wanted = self._body(context)
        # The filter is a partial search; what is not exactly ours is another binding.
        found = context.confluent.cloud.pages(self.path, **wanted)
        return next((Live(one["id"]) for one in found if wanted.items() <= one.items()), None)

    def create(self, context: DeployContext) -> None:
        context.confluent.cloud.post(self.path, self._body(context))

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.cloud.delete(f"{self.path}/{live.id}")
