"""``/cmk/v2``: Kafka clusters, all of them on the one local broker.

The first has the id of the settings (``cluster_id``), after which its tables are named; further
ones have topics of their own, but neither connectors nor Tableflow.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from topicberg_local.emulators.confluent import broker, environments, roles
from topicberg_local.emulators.confluent.account import (
    ACL,
    CATALOG,
    CLUSTER,
    CONNECTOR,
    KEY,
    REGISTRY,
    TABLE,
    Account,
)
from topicberg_local.emulators.confluent.errors import bad_request, conflict, gone, unsupported
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    HttpResponse,
    InEnvironment,
    Operation,
    PageInEnvironment,
    Reference,
    ScopedReference,
    SpecBody,
    distinct,
)
from topicberg_local.emulators.store import Stored

VERSION = "cmk/v2"
PATH = "/cmk/v2/clusters"
GONE_AFTER = "gone_after"
"""Property of a cluster that is deleted: until then, in s since 1970, it is still shown."""
_ZONES = {"SINGLE_ZONE": "LOW", "MULTI_ZONE": "HIGH"}
"""The service answers the older names with the newer ones."""
PRIVATE = ("Enterprise", "Freight")
"""Types of clusters that are taken for clusters in a private network: their addresses are those of
access points only."""
Units = Annotated[int, Field(ge=1)]
Availability = Literal["MULTI_ZONE", "SINGLE_ZONE", "HIGH", "LOW"]


class Elastic(Body):
    kind: Literal["Basic", "Standard", "Enterprise", "Freight"]
    max_ecku: Units = 1


class Dedicated(Body):
    kind: Literal["Dedicated"]
    cku: Units
    encryption_key: str = ""
    zones: Annotated[list[str], Field(min_length=1), AfterValidator(distinct)] = Field(default=[])
    release_priority: Literal["REGULAR", "PRIORITY"] = "REGULAR"


Config = Annotated[Elastic | Dedicated, Field(discriminator="kind")]


class NewSpec(Body):
    display_name: str
    availability: Availability
    cloud: Literal["AWS", "GCP", "AZURE"]
    region: str
    config: Config
    environment: ScopedReference
    deletion_protection: bool = False
    network: ScopedReference = ScopedReference(id="-")
    byok: Reference = Reference(id="-")


class SpecChange(Body):
    environment: ScopedReference
    display_name: str = ""
    availability: Availability = "LOW"
    config: Config = Elastic(kind="Basic")
    deletion_protection: bool = False


class ListClusters(PageInEnvironment):
    deletion_protection: bool | None = Field(default=None, alias="spec.deletion_protection")
    network: list[str] = Field(default=[], alias="spec.network")


def require(account: Account, environment: str, cluster: str) -> Stored:
    """:raises Refusal: there is no such cluster in the environment"""
    missing = gone(f"Kafka cluster {cluster} of environment {environment}")
    stored = account.require(CLUSTER, (cluster,), missing, environment=environment)
    if _is_gone(stored):
        raise missing
    return stored


def _is_gone(cluster: Stored) -> bool:
    return bool(time.time() > cluster.properties.get(GONE_AFTER, float("inf")))


def require_main(account: Account, environment: str, cluster: str, action: str) -> Stored:
    """:raises Refusal: no such cluster, or not the one of the local engine and generators"""
    stored, main = require(account, environment, cluster), account.config.cluster_id
    if cluster != main:
        raise unsupported(f"{action} on a further Kafka cluster ({cluster}); only {main} has them")
    return stored


def crn(account: Account, environment: str, cluster: str) -> str:
    """The resource name by which roles are bound to a cluster and what is in it."""
    return account.crn(f"environment={environment}", f"cloud-cluster={cluster}")


def reference(account: Account, environment: str, cluster: str) -> dict[str, str]:
    return account.reference(
        cluster, f"{PATH}/{cluster}", f"environment={environment}", f"cloud-cluster={cluster}"
    )


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    account, properties = call.account, stored.properties
    environment = properties["environment"]
    ready = time.time() >= stored.created + account.delays.cluster
    spec = {**properties["spec"], "environment": environments.reference(account, environment)}
    status: dict[str, Any] = {"phase": "PROVISIONED" if ready else "PROVISIONING"}
    if "cku" in spec["config"]:
        status["cku"] = spec["config"]["cku"]
    if ready:
        addresses = {
            "kafka_bootstrap_endpoint": f"SASL_PLAINTEXT://{account.kafka}",
            "http_endpoint": account.url,
        }
        is_private = spec["config"]["kind"] in PRIVATE
        point, kind = ("ap1", "PRIVATELINK") if is_private else ("PUBLIC", "PUBLIC")
        spec |= {} if is_private else addresses
        spec["endpoints"] = {point: {**addresses, "connection_type": kind}}
    return account.document(
        VERSION,
        "Cluster",
        stored,
        PATH,
        f"environment={environment}",
        "cloud-cluster",
        spec=spec,
        status=status,
    )


def _spec(spec: NewSpec | SpecChange) -> dict[str, Any]:
    """What was given, in the service's own words."""
    given = spec.model_dump(exclude_unset=True, exclude={"environment", "network", "byok"})
    if "availability" in given:
        given["availability"] = _ZONES.get(given["availability"], given["availability"])
    return given


def _create(call: Call) -> HttpResponse:
    account = call.account
    spec: NewSpec = call.body.spec
    (environment,) = environments.require(account, spec.environment.id).name
    if spec.model_fields_set & {"network", "byok"}:
        raise unsupported("Kafka clusters with a network or an encryption key of one's own")
    name = account.config.cluster_id
    main = account.store.get(CLUSTER, (name,))
    if main is not None and GONE_AFTER not in main.properties:
        name = account.new_id(CLUSTER, "lkc")
    stored = Stored(CLUSTER, (name,), {"environment": environment, "spec": _spec(spec)})
    account.store.put(stored)
    # The first cluster brings the Schema Registry of its environment.
    if not account.find(REGISTRY, environment=environment):
        place = {"environment": environment, "cloud": spec.cloud, "region": spec.region}
        account.add(REGISTRY, "lsrc", place)
    return HttpResponse(_document(call, stored), location=f"{PATH}/{name}")


def _list(call: Call) -> dict[str, Any]:
    query: ListClusters = call.query
    account = call.account
    if query.network:
        raise unsupported("the filter spec.network")
    environments.require(account, query.environment)
    clusters = [
        cluster
        for cluster in account.find(CLUSTER, environment=query.environment)
        if not _is_gone(cluster)
        and account.delays.lists(cluster)
        and query.deletion_protection
        in (None, cluster.properties["spec"].get("deletion_protection", False))
    ]
    return call.page(clusters, VERSION, "Cluster", _document)


def _require(call: Call) -> Stored:
    return require(call.account, call.query.environment, call.path["id"])


def _change(call: Call) -> dict[str, Any]:
    spec: SpecChange = call.body.spec
    stored = require(call.account, spec.environment.id, call.path["id"])
    before, changes = stored.properties["spec"], _spec(spec)
    kinds = (before["config"]["kind"], changes.get("config", before["config"])["kind"])
    if kinds[0] != kinds[1] and kinds != ("Basic", "Standard"):
        raise bad_request(f"A {kinds[0]} cluster cannot become a {kinds[1]} one.")
    return _document(call, call.account.change(stored, {"spec": {**before, **changes}}))


def _delete(call: Call) -> None:
    """With its keys, bindings, and the topics that were made through this API."""
    account, stored = call.account, _require(call)
    (name,) = stored.name
    if GONE_AFTER in stored.properties:
        return
    if stored.properties["spec"].get("deletion_protection"):
        raise conflict(f"Kafka cluster {name} is protected from deletion.")
    for kind in (CONNECTOR, TABLE, CATALOG):
        for inside in account.find(kind, cluster=name):
            raise conflict(
                f"Kafka cluster {name} cannot be deleted: it has the {kind} {inside.name[-1]}."
            )
    broker.delete_all(account, name)
    lists = account.store.all(ACL, lambda acl: acl.name[0] == name)
    account.store.delete(ACL, [acl.name for acl in lists])
    account.delete(KEY, resource=name)
    roles.unbind(account, crn(account, call.query.environment, name))
    account.change(stored, {GONE_AFTER: time.time() + account.delays.deletion})


_ONE = PATH + "/{id}"
OPERATIONS = [
    Operation("POST", PATH, _create, 202, body=SpecBody[NewSpec]),
    Operation("GET", PATH, _list, query=ListClusters),
    Operation("GET", _ONE, lambda call: _document(call, _require(call)), query=InEnvironment),
    Operation("PATCH", _ONE, _change, body=SpecBody[SpecChange]),
    Operation("DELETE", _ONE, _delete, 204, query=InEnvironment),
]
