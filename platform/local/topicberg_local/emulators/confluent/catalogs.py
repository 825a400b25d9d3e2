"""``/tableflow/v1/catalog-integrations``: the catalogs in which a cluster's tables appear.

Glue is synced for real: PENDING until the first table is, as in the API's reference. Snowflake
Open Catalog and Unity Catalog can be configured, but there is none in the local stack, and their
status says so. A cluster can have one of each kind: Confluent documents several catalogs of a
cluster, and none that is of a kind with another.

https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import Field

from topicberg_local.emulators.confluent import clusters, environments, integrations
from topicberg_local.emulators.confluent.account import CATALOG, TABLE, Account, timestamp
from topicberg_local.emulators.confluent.errors import bad_request, conflict, invalid, not_found
from topicberg_local.emulators.confluent.materialization import database_of, trust_problem
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    HttpResponse,
    InCluster,
    PageInCluster,
    Reference,
    ScopedReference,
    SpecBody,
)
from topicberg_local.emulators.confluent.tableflow import VERSION, find_cluster, tableflow_operation
from topicberg_local.emulators.store import Stored

PATH = "/tableflow/v1/catalog-integrations"


class GlueChange(Body):
    kind: Literal["AwsGlue"]
    custom_database: str = ""


class NewGlue(GlueChange):
    provider_integration_id: str


class NewSnowflake(Body):
    kind: Literal["Snowflake"]
    endpoint: str
    client_id: str
    client_secret: str
    warehouse: str
    allowed_scope: str
    custom_namespace: str = ""


class NewUnity(Body):
    kind: Literal["Unity"]
    workspace_endpoint: str
    catalog_name: str
    client_id: str
    client_secret: str
    custom_schema: str = ""


class NewSpec(Body):
    display_name: str
    environment: Reference
    kafka_cluster: ScopedReference
    config: Annotated[NewGlue | NewSnowflake | NewUnity, Field(discriminator="kind")]
    suspended: bool = False


class SnowflakeChange(NewSnowflake):
    endpoint: str = ""
    client_id: str = ""
    client_secret: str = ""
    warehouse: str = ""
    allowed_scope: str = ""


class UnityChange(NewUnity):
    workspace_endpoint: str = ""
    catalog_name: str = ""
    client_id: str = ""
    client_secret: str = ""


class SpecChange(Body):
    environment: Reference
    kafka_cluster: ScopedReference
    display_name: str = ""
    config: Annotated[GlueChange | SnowflakeChange | UnityChange, Field(discriminator="kind")] = (
        GlueChange(kind="AwsGlue")
    )
    suspended: bool = False


def _status(call: Call, stored: Stored) -> dict[str, Any]:
    account, config = call.account, stored.properties["config"]
    if time.time() < stored.properties["since"] + account.delays.tableflow:
        return {"phase": "PENDING"}
    if config["kind"] != "AwsGlue":
        address = config.get("endpoint") or config.get("workspace_endpoint")
        problem = f"the local stack cannot reach a catalog at {address}"
    else:
        problem = _verdict(account, stored)
    if problem:
        return {"phase": "FAILED", "error_message": problem}
    syncs = (call.tables.status(stored, table.name[1]) for table in account.store.all(TABLE))
    times = [sync.at for sync in syncs if sync.at is not None]
    if not times:
        return {"phase": "PENDING"}
    return {"phase": "CONNECTED", "last_sync_at": timestamp(max(times))}


def _verdict(account: Account, stored: Stored) -> str:
    """Why it cannot be used; empty: it can. It is tried once: nothing makes one that failed try
    again, and only another one helps.
    """
    with account.store.lock:
        now = account.store.get(CATALOG, stored.name) or stored
        if "verdict" not in now.properties:
            integration, database = stored.properties["integration"], database_of(account, stored)
            problem = trust_problem(account, integration, database=database)
            now.properties["verdict"] = problem or ""
            account.store.put(now)
        return str(now.properties["verdict"])


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    account, properties = call.account, stored.properties
    environment, cluster = properties["environment"], properties["cluster"]
    return account.document(
        VERSION,
        "CatalogIntegration",
        stored,
        PATH,
        f"environment={environment}",
        f"cloud-cluster={cluster}",
        "catalog-integration",
        spec={
            "display_name": properties["display_name"],
            "suspended": properties.get("suspended", False),
            "config": properties["config"],
            "environment": environments.reference(account, environment),
            "kafka_cluster": clusters.reference(account, environment, cluster),
        },
        status=_status(call, stored),
    )


def shown(config: dict[str, Any]) -> dict[str, Any]:
    """Without the login, of which nothing local makes use, and which the API does not return.

    Confluent's Terraform provider takes id and secret from its own state for that reason:
    ``resource_catalog_integration.go``, ``setCatalogIntegrationAttributes``.
    """
    return {name: value for name, value in config.items() if not name.startswith("client_")}


def _require(call: Call, environment: str, cluster: str) -> Stored:
    name, within = call.path["id"], {"environment": environment, "cluster": cluster}
    missing = not_found(f"Catalog integration {name}")
    return call.account.require(CATALOG, (name,), missing, **within)


def _create(call: Call) -> HttpResponse:
    account = call.account
    spec: NewSpec = call.body.spec
    cluster = find_cluster(call, spec.environment.id, spec.kafka_cluster.id).name[0]
    if spec.suspended:
        raise invalid("An integration can only be resumed by the API.", "/spec/suspended")
    kind = spec.config.kind
    stored = clusters.require(account, spec.environment.id, cluster)
    if kind != "AwsGlue" and stored.properties["spec"]["config"]["kind"] in clusters.PRIVATE:
        raise bad_request(f"Catalogs of kind {kind} are not supported via private networking.")
    for other in account.find(CATALOG, cluster=cluster):
        if other.properties["config"]["kind"] == kind:
            raise conflict(
                f"The Kafka cluster {cluster} has a catalog integration of kind {kind} already.",
                f"{account.url}{PATH}/{other.name[0]}",
            )
    integration = ""
    if isinstance(spec.config, NewGlue):
        integration = spec.config.provider_integration_id
        integrations.require(account, spec.environment.id, integration)
    properties = {
        "display_name": spec.display_name,
        "environment": spec.environment.id,
        "cluster": cluster,
        "integration": integration,
        "config": shown(spec.config.model_dump(exclude_unset=True)),
        "since": time.time(),
    }
    stored = account.add(CATALOG, "tci", properties)
    return HttpResponse(_document(call, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> dict[str, Any]:
    query: PageInCluster = call.query
    find_cluster(call, query.environment, query.kafka_cluster)
    catalogs = call.account.find(CATALOG, cluster=query.kafka_cluster)
    return call.page(catalogs, VERSION, "CatalogIntegration", _document)


def _get(call: Call) -> dict[str, Any]:
    return _document(call, _require(call, call.query.environment, call.query.kafka_cluster))


def _change(call: Call) -> dict[str, Any]:
    change: SpecChange = call.body.spec
    stored = _require(call, change.environment.id, change.kafka_cluster.id)
    given = change.model_fields_set
    if change.suspended:
        raise invalid("An integration can only be resumed by the API.", "/spec/suspended")
    changes: dict[str, Any] = {"suspended": False} if "suspended" in given else {}
    if "display_name" in given:
        changes["display_name"] = change.display_name
    if "config" in given:
        before = stored.properties["config"]
        if change.config.kind != before["kind"]:
            raise bad_request(f"{stored.name[0]} is of kind {before['kind']}, which cannot change.")
        changes["config"] = {**before, **shown(change.config.model_dump(exclude_unset=True))}
        changes["since"] = time.time()
        call.tables.forget(stored)
    return _document(call, call.account.change(stored, changes))


def _delete(call: Call) -> None:
    stored = _require(call, call.query.environment, call.query.kafka_cluster)
    call.account.store.delete(CATALOG, [stored.name])


OPERATIONS = [
    tableflow_operation("POST", PATH, _create, 202, body=SpecBody[NewSpec]),
    tableflow_operation("GET", PATH, _list, query=PageInCluster),
    tableflow_operation("GET", PATH + "/{id}", _get, query=InCluster),
    tableflow_operation("PATCH", PATH + "/{id}", _change, body=SpecBody[SpecChange]),
    tableflow_operation("DELETE", PATH + "/{id}", _delete, 204, query=InCluster),
]
