"""Environment, Kafka cluster and its Schema Registry: APIs org/v2, cmk/v2 and srcm/v3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from topicberg.clients.confluent import Api, ApiError, GoneError
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.context import DeployContext
from topicberg_deploy.costs import HOURS, PRICES, Cost
from topicberg_deploy.polling import poll
from topicberg_deploy.resource import CannotChangeError, Changes, Fields, Live, Resource

PACKAGE = "ESSENTIALS"
CLUSTER_TYPE = "Basic"
"""Of a new cluster, where the settings do not say otherwise."""
AVAILABILITY = {"SINGLE_ZONE": "LOW", "MULTI_ZONE": "HIGH"}
"""What the service calls in its answers what one asks for."""
CLUSTER_SECONDS = 3600.0
REGISTRY_SECONDS = 600.0


def named(
    objects: Iterable[dict[str, Any]], name: str, kind: str, within: str = ""
) -> dict[str, Any] | None:
    """Return the object that has the name, by itself or in its ``spec``; None: there is none.

    :param kind: in the plural
    :raises ApiError: there are several, so it is unknown which one is meant
    """
    candidates = [
        candidate
        for candidate in objects
        if candidate.get("spec", candidate).get("display_name") == name
    ]
    if len(candidates) > 1:
        ids = ", ".join(str(candidate["id"]) for candidate in candidates)
        raise ApiError(
            f"there are {len(candidates)} {kind} named {name}{within}: {ids}",
            hint="delete all but one of them",
        )
    return candidates[0] if candidates else None


def organization(cloud: Api) -> str:
    """Id of the organization that the key belongs to."""
    first = next(cloud.pages("/org/v2/organizations"), None)
    if first is None:
        raise ApiError("the Cloud API key sees no organization")
    return str(first["id"])


def _given(cloud: Api, path: str, **params: str) -> dict[str, Any] | None:
    """Return an object by its id; None: there is none, or the key may not see it."""
    try:
        existing: dict[str, Any] = cloud.get(path, **params)
    except GoneError:
        return None
    return existing


def check_given(context: DeployContext) -> None:
    """Check the environment and the cluster that exist, before anything is changed.

    :raises TopicbergError: one of them is not there, or the cluster is elsewhere than the bucket
    """
    config, cloud = context.config, context.confluent.cloud
    environment, cluster = config.existing_environment, config.existing_cluster
    if environment is None:
        return
    hint = "check the id, and that the owner of the Cloud API key may see it"
    if _given(cloud, f"/org/v2/environments/{environment}") is None:
        raise TopicbergError(
            f"TOPICBERG_EXISTING_ENVIRONMENT: there is no environment {environment}", hint=hint
        )
    if cluster is None:
        return
    existing = _given(cloud, f"/cmk/v2/clusters/{cluster}", environment=environment)
    if existing is None:
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: environment {environment} has no cluster {cluster}",
            hint=hint,
        )
    spec, phase = existing["spec"], (existing.get("status") or {}).get("phase")
    place = (str(spec.get("cloud")).upper(), spec.get("region"))
    if place != ("AWS", context.config.aws_region):
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: {cluster} is in {' '.join(map(str, place))}, expected "
            f"AWS {context.config.aws_region}: Tableflow writes to buckets of the cluster's region",
            hint="set TOPICBERG_AWS_REGION to the cluster's region, or choose another cluster",
        )
    if phase != "PROVISIONED":
        raise TopicbergError(
            f"TOPICBERG_EXISTING_CLUSTER: {cluster} is {phase}, expected PROVISIONED",
            hint="run the command again when it is provisioned",
        )


@dataclass(frozen=True)
class Environment(Resource):
    """:param given: id of one that exists; it is never created, changed or deleted"""

    given: str | None = None

    kind = "environment"
    holds_data = True

    def find(self, context: DeployContext) -> Live | None:
        if self.given:
            environment = _given(context.confluent.cloud, f"/org/v2/environments/{self.given}")
        else:
            pages = context.confluent.cloud.pages("/org/v2/environments")
            environment = named(pages, self.name, "environments")
        if environment is None:
            return None
        package = (environment.get("stream_governance_config") or {}).get("package")
        within = f"crn://confluent.cloud/organization={organization(context.confluent.cloud)}"
        crn = f"{within}/environment={environment['id']}"
        return Live(environment["id"], {"stream_governance": package}, {"crn": crn})

    def is_ours(self, context: DeployContext) -> bool:
        return self.given is None

    def waits(self, context: DeployContext) -> str:
        return f"environment {self.given} does not exist" if self.given else ""

    def desired(self, context: DeployContext) -> Fields:
        if self.given:
            return {}
        live = context.live.get(self.key)
        has = live.fields["stream_governance"] if live else None
        return {"stream_governance": "ADVANCED" if has == "ADVANCED" else PACKAGE}

    def create(self, context: DeployContext) -> None:
        body = {"display_name": self.name, "stream_governance_config": {"package": PACKAGE}}
        context.confluent.cloud.post("/org/v2/environments", body)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        body = {"stream_governance_config": {"package": changes["stream_governance"][1]}}
        context.confluent.cloud.patch(f"/org/v2/environments/{live.id}", body)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.cloud.delete(f"/org/v2/environments/{live.id}")


@dataclass(frozen=True)
class Cluster(Resource):
    """A Kafka cluster in one zone, in AWS, in the region of the bucket.

    :param type: what the settings ask for; None: Basic, and one that exists stays as it is
    :param given: id of one that exists; it is never created, changed or deleted
    """

    type: str | None = None
    given: str | None = None

    kind = "Kafka cluster"
    is_part = True
    usual_minutes = 5
    holds_data = True
    unique = False
    replaced_for = frozenset({"cloud", "region", "availability"})

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        if self.given is not None:
            return None  # a given cluster costs the same without topicberg
        cluster_type = self.type or (live.fields["type"] if live else "Basic")
        hourly = PRICES["standard" if cluster_type == "Standard" else "basic"].usd
        basis = f"{cluster_type}, and ${PRICES['traffic'].usd} a GB in or out, beside storage"
        return Cost(self, hourly * HOURS, basis)

    def find(self, context: DeployContext) -> Live | None:
        if self.given:
            path = f"/cmk/v2/clusters/{self.given}"
            cluster = _given(context.confluent.cloud, path, environment=context.environment)
        else:
            pages = context.confluent.cloud.pages(
                "/cmk/v2/clusters", environment=context.environment
            )
            cluster = named(pages, self.name, "Kafka clusters", f" in {context.environment}")
        if cluster is None:
            return None
        spec = cluster["spec"]
        availability, endpoint = spec.get("availability"), spec.get("http_endpoint")
        within = context.need("confluent/environment").facts["crn"]
        fields = {
            "cloud": str(spec.get("cloud", "")).upper(),
            "region": spec.get("region"),
            "type": (spec.get("config") or {}).get("kind"),
            "availability": AVAILABILITY.get(availability, availability),
        }
        facts = {
            "phase": (cluster.get("status") or {}).get("phase"),
            "http_endpoint": endpoint.rstrip("/") if endpoint else None,
            "bootstrap": _bootstrap(spec),
            "crn": f"{within}/cloud-cluster={cluster['id']}",
        }
        return Live(cluster["id"], fields, facts)

    def is_ours(self, context: DeployContext) -> bool:
        return self.given is None

    def waits(self, context: DeployContext) -> str:
        return f"Kafka cluster {self.given} does not exist" if self.given else ""

    def desired(self, context: DeployContext) -> Fields:
        if self.given:
            return {}
        live = context.live.get(self.key)
        return {
            "cloud": "AWS",
            "region": context.config.aws_region,
            "type": self.type or (live.fields["type"] if live else CLUSTER_TYPE),
            "availability": AVAILABILITY["SINGLE_ZONE"],
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
        context.confluent.cloud.post("/cmk/v2/clusters", {"spec": spec})

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        has, wanted = changes["type"]
        if (has, wanted) != ("Basic", "Standard"):
            raise CannotChangeError(
                f"{self.title} is a {has} cluster, TOPICBERG_CLUSTER_TYPE says {wanted}: Confluent "
                "changes Basic to Standard only",
                hint=f"set TOPICBERG_CLUSTER_TYPE={has}, or leave it out",
            )
        spec = {"config": {"kind": wanted}, "environment": {"id": context.environment}}
        context.confluent.cloud.patch(f"/cmk/v2/clusters/{live.id}", {"spec": spec})

    def settle(self, context: DeployContext, live: Live) -> None:
        def provisioned() -> bool:
            cluster = self.find(context)
            phase = cluster.facts["phase"] if cluster else None
            if phase == "FAILED":
                raise ApiError(f"{self.title}: Confluent could not provision it")
            return phase == "PROVISIONED"

        poll(provisioned, f"{self.title} is provisioned", CLUSTER_SECONDS, sleep=context.sleep)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.cloud.delete(
            f"/cmk/v2/clusters/{live.id}", environment=context.environment
        )


def _bootstrap(spec: dict[str, Any]) -> str | None:
    """``host:port``, from the endpoint's old place or its new one."""
    endpoints = [spec, *(spec.get("endpoints") or {}).values()]
    addresses = [
        address for place in endpoints if (address := place.get("kafka_bootstrap_endpoint"))
    ]
    return str(addresses[0]).rpartition("://")[2] if addresses else None


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
        within = context.need("confluent/environment").facts["crn"]
        facts = {
            "phase": (registry.get("status") or {}).get("phase"),
            "http_endpoint": registry["spec"].get("http_endpoint"),
            "crn": f"{within}/schema-registry={registry['id']}",
        }
        return Live(registry["id"], {}, facts)

    def settle(self, context: DeployContext, live: Live) -> None:
        def provisioned() -> bool:
            found = self.find(context)
            return found is not None and found.facts["phase"] == "PROVISIONED"

        poll(provisioned, f"{self.title} is provisioned", REGISTRY_SECONDS, sleep=context.sleep)
