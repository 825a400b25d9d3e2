"""``/org/v2``: environments, and the organization."""

from __future__ import annotations

from typing import Any, Literal

from emulators.confluent import subjects
from emulators.confluent.account import (
    CATALOG,
    CLUSTER,
    ENVIRONMENT,
    INTEGRATION,
    ORGANIZATION,
    REGISTRY,
    ROLE_BINDING,
    Account,
    changed,
)
from emulators.confluent.errors import conflict, not_found
from emulators.confluent.operation import Call, Operation
from emulators.confluent.wire import Answer, Body, Page
from emulators.store import Stored

VERSION = "org/v2"
PATH = "/org/v2/environments"


class Governance(Body):
    package: Literal["ESSENTIALS", "ADVANCED"]


class NewEnvironment(Body):
    display_name: str
    stream_governance_config: Governance = Governance(package="ESSENTIALS")


class EnvironmentChange(Body):
    display_name: str = ""
    stream_governance_config: Governance = Governance(package="ESSENTIALS")


def require(account: Account, environment: str) -> Stored:
    """:raises Refusal: there is no such environment"""
    found = account.store.get(ENVIRONMENT, (environment,))
    if found is None:
        raise not_found(f"Environment {environment}")
    return found


def reference(account: Account, environment: str) -> dict[str, str]:
    return account.reference(environment, f"{PATH}/{environment}", f"environment={environment}")


def _document(account: Account, stored: Stored) -> dict[str, Any]:
    name = stored.name[0]
    return {
        "api_version": VERSION,
        "kind": "Environment",
        "id": name,
        "metadata": account.metadata(stored, f"{PATH}/{name}", f"environment={name}"),
        "display_name": stored.properties["display_name"],
        "stream_governance_config": stored.properties["stream_governance_config"],
    }


def _refuse_taken(account: Account, display_name: str, but: str = "") -> None:
    for other in account.store.all(ENVIRONMENT):
        if other.properties["display_name"] == display_name and other.name[0] != but:
            raise conflict(
                f"An environment named '{display_name}' exists already.",
                f"{account.url}{PATH}/{other.name[0]}",
            )


def _create(call: Call) -> Answer:
    body: NewEnvironment = call.body
    account = call.account
    _refuse_taken(account, body.display_name)
    stored = Stored(ENVIRONMENT, (account.new_id(ENVIRONMENT, "env"),), body.model_dump())
    account.store.put(stored)
    return Answer(_document(account, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> Answer:
    found = call.account.store.all(ENVIRONMENT)
    return call.page(found, VERSION, "Environment", lambda one: _document(call.account, one))


def _get(call: Call) -> Answer:
    return Answer(_document(call.account, require(call.account, call.path["id"])))


def _change(call: Call) -> Answer:
    body: EnvironmentChange = call.body
    stored = require(call.account, call.path["id"])
    changes = body.model_dump(exclude_unset=True)
    if "display_name" in changes:
        _refuse_taken(call.account, changes["display_name"], but=stored.name[0])
    stored = changed(stored, changes)
    call.account.store.put(stored)
    return Answer(_document(call.account, stored))


def _delete(call: Call) -> Answer:
    """With its Schema Registry, subjects and role bindings; not while anything runs in it."""
    account = call.account
    name = require(account, call.path["id"]).name[0]
    for kind in (CLUSTER, INTEGRATION, CATALOG):
        inside = account.find(
            kind,
            lambda properties: properties["environment"] == name and "gone_after" not in properties,
        )
        if inside:
            raise conflict(
                f"Environment {name} cannot be deleted: it has the {kind} {inside[0].name[-1]}."
            )
    crn = account.crn(f"environment={name}")
    for kind, dead in (
        (CLUSTER, account.find(CLUSTER, lambda properties: properties["environment"] == name)),
        (REGISTRY, account.find(REGISTRY, lambda properties: properties["environment"] == name)),
        (
            ROLE_BINDING,
            account.find(
                ROLE_BINDING,
                lambda properties: (properties["crn_pattern"] + "/").startswith(f"{crn}/"),
            ),
        ),
    ):
        account.store.delete(kind, [stored.name for stored in dead])
    subjects.delete_all(account, name)
    account.store.delete(ENVIRONMENT, [(name,)])
    return Answer()


def _organization(account: Account, stored: Stored) -> dict[str, Any]:
    name = stored.name[0]
    return {
        "api_version": VERSION,
        "kind": "Organization",
        "id": name,
        "metadata": account.metadata(stored, f"/org/v2/organizations/{name}"),
        "display_name": "topicberg",
        "jit_enabled": True,
    }


def _organizations(call: Call) -> Answer:
    found = call.account.store.all(ORGANIZATION)
    return call.page(found, VERSION, "Organization", lambda one: _organization(call.account, one))


def _get_organization(call: Call) -> Answer:
    stored = call.account.store.get(ORGANIZATION, (call.path["id"],))
    if stored is None:
        raise not_found(f"Organization {call.path['id']}")
    return Answer(_organization(call.account, stored))


OPERATIONS = [
    Operation("POST", PATH, _create, 201, body=NewEnvironment),
    Operation("GET", PATH, _list, query=Page),
    Operation("GET", PATH + "/{id}", _get),
    Operation("PATCH", PATH + "/{id}", _change, body=EnvironmentChange),
    Operation("DELETE", PATH + "/{id}", _delete, 204),
    Operation("GET", "/org/v2/organizations", _organizations, query=Page),
    Operation("GET", "/org/v2/organizations/{id}", _get_organization),
]
