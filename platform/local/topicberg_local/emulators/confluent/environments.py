"""``/org/v2``: environments, and the organization; ``/srcm/v3``: the Schema Registry that an
environment gets with its first Kafka cluster.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from topicberg_local.emulators.confluent import roles, subjects
from topicberg_local.emulators.confluent.account import (
    CATALOG,
    CLUSTER,
    ENVIRONMENT,
    INTEGRATION,
    ORGANIZATION,
    REGISTRY,
    Account,
)
from topicberg_local.emulators.confluent.errors import conflict, not_found
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    HttpResponse,
    InEnvironment,
    Operation,
    Page,
    PageInEnvironment,
)
from topicberg_local.emulators.store import Stored

VERSION = "org/v2"
PATH = "/org/v2/environments"
REGISTRIES = "/srcm/v3/clusters"


class Governance(Body):
    package: Literal["ESSENTIALS", "ADVANCED"]


class NewEnvironment(Body):
    display_name: str
    stream_governance_config: Governance = Governance(package="ESSENTIALS")


class EnvironmentChange(NewEnvironment):
    display_name: str = ""


def require(account: Account, environment: str) -> Stored:
    """:raises Refusal: there is no such environment"""
    missing = not_found(f"Environment {environment}")
    return account.require(ENVIRONMENT, (environment,), missing)


def reference(account: Account, environment: str) -> dict[str, str]:
    return account.reference(environment, f"{PATH}/{environment}", f"environment={environment}")


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    shown = {key: stored.properties[key] for key in NewEnvironment.model_fields}
    return call.account.document(VERSION, "Environment", stored, PATH, "environment", **shown)


def _refuse_taken(account: Account, display_name: str, but: str = "") -> None:
    text = f"An environment named '{display_name}' exists already."
    account.refuse_taken(ENVIRONMENT, PATH, display_name, text, but)


def _create(call: Call) -> HttpResponse:
    _refuse_taken(call.account, call.body.display_name)
    stored = call.account.add(ENVIRONMENT, "env", call.body.model_dump())
    return HttpResponse(_document(call, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> dict[str, Any]:
    return call.page(call.account.store.all(ENVIRONMENT), VERSION, "Environment", _document)


def _require(call: Call) -> Stored:
    return require(call.account, call.path["id"])


def _change(call: Call) -> dict[str, Any]:
    stored, changes = _require(call), call.body.model_dump(exclude_unset=True)
    if "display_name" in changes:
        _refuse_taken(call.account, changes["display_name"], but=stored.name[0])
    return _document(call, call.account.change(stored, changes))


def _delete(call: Call) -> None:
    """With its Schema Registry, subjects and role bindings; not while anything runs in it."""
    account = call.account
    (name,) = _require(call).name
    for kind in (CLUSTER, INTEGRATION, CATALOG):
        for inside in account.find(kind, environment=name):
            if "gone_after" not in inside.properties:
                raise conflict(
                    f"Environment {name} cannot be deleted: it has the {kind} {inside.name[-1]}."
                )
    for kind in (CLUSTER, REGISTRY):
        account.delete(kind, environment=name)
    roles.unbind(account, account.crn(f"environment={name}"))
    subjects.delete_all(account, name)
    account.store.delete(ENVIRONMENT, [(name,)])


def _organizations(call: Call) -> dict[str, Any]:
    organizations = call.account.store.all(ORGANIZATION)
    return call.page(organizations, VERSION, "Organization", _organization)


def _organization(call: Call, stored: Stored) -> dict[str, Any]:
    shown = {"display_name": "topicberg", "jit_enabled": True}
    return call.account.document(VERSION, "Organization", stored, "/org/v2/organizations", **shown)


def _registry(call: Call, stored: Stored) -> dict[str, Any]:
    account, properties = call.account, stored.properties
    environment = properties["environment"]
    governance = require(account, environment).properties["stream_governance_config"]
    spec = {
        "display_name": "Stream Governance Package",
        "package": governance["package"],
        "http_endpoint": account.url,
        "cloud": properties["cloud"],
        "region": properties["region"],
        "environment": reference(account, environment),
    }
    ready = _appeared(account, stored, account.delays.schema_registry)
    status = {"phase": "PROVISIONED" if ready else "PROVISIONING"}
    return account.document(
        "srcm/v3",
        "Cluster",
        stored,
        REGISTRIES,
        f"environment={environment}",
        "schema-registry",
        spec=spec,
        status=status,
    )


def _appeared(account: Account, registry: Stored, delay: float = 0.0) -> bool:
    """It appears only after the Kafka cluster is there."""
    return time.time() >= registry.created + account.delays.cluster + delay


def _list_registries(call: Call) -> dict[str, Any]:
    account, environment = call.account, call.query.environment
    require(account, environment)
    registries = account.find(REGISTRY, environment=environment)
    appeared = [registry for registry in registries if _appeared(account, registry)]
    return call.page(appeared, "srcm/v3", "Cluster", _registry)


def _get_registry(call: Call) -> dict[str, Any]:
    missing = not_found(f"Schema Registry cluster {call.path['id']}")
    within = call.query.environment
    registry = call.account.require(REGISTRY, (call.path["id"],), missing, environment=within)
    if not _appeared(call.account, registry):
        raise missing
    return _registry(call, registry)


OPERATIONS = [
    Operation("POST", PATH, _create, 201, body=NewEnvironment),
    Operation("GET", PATH, _list, query=Page),
    Operation("GET", PATH + "/{id}", lambda call: _document(call, _require(call))),
    Operation("PATCH", PATH + "/{id}", _change, body=EnvironmentChange),
    Operation("DELETE", PATH + "/{id}", _delete, 204),
    Operation("GET", "/org/v2/organizations", _organizations, query=Page),
    Operation("GET", REGISTRIES, _list_registries, query=PageInEnvironment),
    Operation("GET", REGISTRIES + "/{id}", _get_registry, query=InEnvironment),
]
