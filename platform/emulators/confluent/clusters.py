"""``/cmk/v2``: Kafka clusters, all of them on the one local broker.

The first has the id of the settings (``cluster_id``), after which its tables are named; further
ones have topics of their own, but neither connectors nor Tableflow.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from emulators.confluent import broker, environments
from emulators.confluent.account import (
    ACL,
    CATALOG,
    CLUSTER,
    CONNECTOR,
    KEY,
    REGISTRY,
    ROLE_BINDING,
    TABLE,
    Account,
    changed,
)
from emulators.confluent.errors import bad_request, conflict, gone, unsupported
from emulators.confluent.operation import Call, Operation
from emulators.confluent.wire import (
    Answer,
    Body,
    InEnvironment,
    PageInEnvironment,
    Reference,
    ScopedReference,
    distinct,
)
from emulators.store import Stored

VERSION = "cmk/v2"
PATH = "/cmk/v2/clusters"
GONE_AFTER = "gone_after"
"""Property of a cluster that is deleted: until then, in s since 1970, it is still shown."""
_ZONES = {"SINGLE_ZONE": "LOW", "MULTI_ZONE": "HIGH"}
"""The service answers the older names with the newer ones."""

Units = Annotated[int, Field(ge=1)]


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
Availability = Literal["MULTI_ZONE", "SINGLE_ZONE", "HIGH", "LOW"]


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


class NewCluster(Body):
    spec: NewSpec


class SpecChange(Body):
    environment: ScopedReference
    display_name: str = ""
    availability: Availability = "LOW"
    config: Config = Elastic(kind="Basic")
    deletion_protection: bool = False


class ClusterChange(Body):
    spec: SpecChange


class ListClusters(PageInEnvironment):
    deletion_protection: bool | None = Field(default=None, alias="spec.deletion_protection")
    network: list[str] = Field(default=[], alias="spec.network")


def require(account: Account, environment: str, cluster: str) -> Stored:
    """:raises Refusal: there is no such cluster in the environment"""
    found = account.store.get(CLUSTER, (cluster,))
    if found is None or found.properties["environment"] != environment or _is_gone(found):
        raise gone(f"Kafka cluster {cluster} of environment {environment}")
    return found


def _is_gone(cluster: Stored) -> bool:
    return bool(time.time() > cluster.properties.get(GONE_AFTER, float("inf")))


def require_main(account: Account, cluster: str, what: str) -> None:
    """:raises Refusal: not the cluster whose topics the local engine and generators know"""
    if cluster != account.config.cluster_id:
        raise unsupported(
            f"{what} on a further Kafka cluster ({cluster}); only"
            f" {account.config.cluster_id} has them"
        )


def provisioned(account: Account, cluster: Stored) -> bool:
    return time.time() >= cluster.created + account.delays.cluster


def crn(account: Account, environment: str, cluster: str) -> str:
    """The resource name by which roles are bound to a cluster and what is in it."""
    return account.crn(f"environment={environment}", f"cloud-cluster={cluster}")


def reference(account: Account, environment: str, cluster: str) -> dict[str, str]:
    return account.reference(
        cluster, f"{PATH}/{cluster}", f"environment={environment}", f"cloud-cluster={cluster}"
    )


def _document(account: Account, stored: Stored) -> dict[str, Any]:
    name, properties = stored.name[0], stored.properties
    environment = properties["environment"]
    ready = provisioned(account, stored)
    spec = {**properties["spec"], "environment": environments.reference(account, environment)}
    status: dict[str, Any] = {"phase": "PROVISIONED" if ready else "PROVISIONING"}
    if "cku" in spec["config"]:
        status["cku"] = spec["config"]["cku"]
    if ready:
        bootstrap = f"PLAINTEXT://{account.endpoints().kafka_bootstrap}"
        spec |= {
            "kafka_bootstrap_endpoint": bootstrap,
            "http_endpoint": account.url,
            "endpoints": {
                "public": {
                    "kafka_bootstrap_endpoint": bootstrap,
                    "http_endpoint": account.url,
                    "connection_type": "PUBLIC",
                }
            },
        }
    return {
        "api_version": VERSION,
        "kind": "Cluster",
        "id": name,
        "metadata": account.metadata(
            stored, f"{PATH}/{name}", f"environment={environment}", f"cloud-cluster={name}"
        ),
        "spec": spec,
        "status": status,
    }


def _spec(spec: NewSpec | SpecChange) -> dict[str, Any]:
    """What was given, in the service's own words."""
    given = spec.model_dump(exclude_unset=True, exclude={"environment", "network", "byok"})
    if "availability" in given:
        given["availability"] = _ZONES.get(given["availability"], given["availability"])
    return given


def _create(call: Call) -> Answer:
    spec: NewSpec = call.body.spec
    account = call.account
    environment = environments.require(account, spec.environment.id)
    if spec.model_fields_set & {"network", "byok"}:
        raise unsupported("Kafka clusters with a network or an encryption key of one's own")
    name = account.config.cluster_id
    main = account.store.get(CLUSTER, (name,))
    if main is not None and GONE_AFTER not in main.properties:
        name = account.new_id(CLUSTER, "lkc")
    stored = Stored(CLUSTER, (name,), {"environment": environment.name[0], "spec": _spec(spec)})
    account.store.put(stored)
    _ensure_registry(account, environment, spec.cloud, spec.region)
    return Answer(_document(account, stored), location=f"{PATH}/{name}")


def _ensure_registry(account: Account, environment: Stored, cloud: str, region: str) -> None:
    """The first cluster brings the Schema Registry of its environment."""
    name = environment.name[0]
    if not account.find(REGISTRY, lambda properties: properties["environment"] == name):
        properties = {"environment": name, "cloud": cloud, "region": region}
        account.store.put(Stored(REGISTRY, (account.new_id(REGISTRY, "lsrc"),), properties))


def _list(call: Call) -> Answer:
    query: ListClusters = call.query
    account = call.account
    if query.network:
        raise unsupported("the filter spec.network")
    environments.require(account, query.environment)
    found = [
        cluster
        for cluster in account.store.all(CLUSTER)
        if cluster.properties["environment"] == query.environment
        and not _is_gone(cluster)
        and account.delays.lists(cluster)
        and query.deletion_protection
        in (None, cluster.properties["spec"].get("deletion_protection", False))
    ]
    return call.page(found, VERSION, "Cluster", lambda one: _document(account, one))


def _get(call: Call) -> Answer:
    query: InEnvironment = call.query
    return Answer(
        _document(call.account, require(call.account, query.environment, call.path["id"]))
    )


def _change(call: Call) -> Answer:
    spec: SpecChange = call.body.spec
    stored = require(call.account, spec.environment.id, call.path["id"])
    before, changes = stored.properties["spec"], _spec(spec)
    kinds = (before["config"]["kind"], changes.get("config", before["config"])["kind"])
    if kinds[0] != kinds[1] and kinds != ("Basic", "Standard"):
        raise bad_request(f"A {kinds[0]} cluster cannot become a {kinds[1]} one.")
    stored = changed(stored, {"spec": {**before, **changes}})
    call.account.store.put(stored)
    return Answer(_document(call.account, stored))


def _delete(call: Call) -> Answer:
    """With its keys, bindings, and the topics that were made through this API."""
    query: InEnvironment = call.query
    account = call.account
    stored = require(account, query.environment, call.path["id"])
    name = stored.name[0]
    if GONE_AFTER in stored.properties:
        return Answer()
    if stored.properties["spec"].get("deletion_protection"):
        raise conflict(f"Kafka cluster {name} is protected from deletion.")
    for kind in (CONNECTOR, TABLE, CATALOG):
        inside = account.find(kind, lambda properties: properties["cluster"] == name)
        if inside:
            raise conflict(
                f"Kafka cluster {name} cannot be deleted: it has the {kind} {inside[0].name[-1]}."
            )
    broker.delete_all(account, name)
    lists = account.store.all(ACL, lambda acl: acl.name[0] == name)
    account.store.delete(ACL, [acl.name for acl in lists])
    keys = account.find(KEY, lambda properties: properties["resource"] == name)
    account.store.delete(KEY, [key.name for key in keys])
    above = crn(account, query.environment, name) + "/"
    bindings = account.find(
        ROLE_BINDING, lambda properties: (properties["crn_pattern"] + "/").startswith(above)
    )
    account.store.delete(ROLE_BINDING, [binding.name for binding in bindings])
    account.store.put(changed(stored, {GONE_AFTER: time.time() + account.delays.deletion}))
    return Answer()


OPERATIONS = [
    Operation("POST", PATH, _create, 202, body=NewCluster),
    Operation("GET", PATH, _list, query=ListClusters),
    Operation("GET", PATH + "/{id}", _get, query=InEnvironment),
    Operation("PATCH", PATH + "/{id}", _change, body=ClusterChange),
    Operation("DELETE", PATH + "/{id}", _delete, 204, query=InEnvironment),
]
