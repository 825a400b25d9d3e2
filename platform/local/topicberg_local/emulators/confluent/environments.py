"""``/org/v2``: environments, and the organization."""

from __future__ import annotations

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
from topicberg_local.emulators.confluent.operation import Body, Call, HttpResponse, Operation, Page
from topicberg_local.emulators.store import Stored

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
    body: NewEnvironment = call.body
    _refuse_taken(call.account, body.display_name)
    stored = call.account.add(ENVIRONMENT, "env", body.model_dump())
    return HttpResponse(_document(call, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> HttpResponse:
    return call.page(call.account.store.all(ENVIRONMENT), VERSION, "Environment", _document)


def _get(call: Call) -> HttpResponse:
    return HttpResponse(_document(call, require(call.account, call.path["id"])))


def _change(call: Call) -> HttpResponse:
    body: EnvironmentChange = call.body
    stored = require(call.account, call.path["id"])
    changes = body.model_dump(exclude_unset=True)
    if "display_name" in changes:
        _refuse_taken(call.account, changes["display_name"], but=stored.name[0])
    return HttpResponse(_document(call, call.account.change(stored, changes)))


def _delete(call: Call) -> HttpResponse:
    """With its Schema Registry, subjects and role bindings; not while anything runs in it."""
    account = call.account
    name = require(account, call.path["id"]).name[0]

    def is_inside(properties: dict[str, Any]) -> bool:
        return bool(properties["environment"] == name)

    for kind in (CLUSTER, INTEGRATION, CATALOG):
        for inside in account.find(kind, is_inside):
            if "gone_after" not in inside.properties:
                raise conflict(
                    f"Environment {name} cannot be deleted: it has the {kind} {inside.name[-1]}."
                )
    for kind in (CLUSTER, REGISTRY):
        account.delete(kind, is_inside)
    roles.unbind(account, account.crn(f"environment={name}"))
    subjects.delete_all(account, name)
    account.store.delete(ENVIRONMENT, [(name,)])
    return HttpResponse()


def _organizations(call: Call) -> HttpResponse:
    organizations = call.account.store.all(ORGANIZATION)
    return call.page(organizations, VERSION, "Organization", _organization)


def _organization(call: Call, stored: Stored) -> dict[str, Any]:
    shown = {"display_name": "topicberg", "jit_enabled": True}
    return call.account.document(VERSION, "Organization", stored, "/org/v2/organizations", **shown)


OPERATIONS = [
    Operation("POST", PATH, _create, 201, body=NewEnvironment),
    Operation("GET", PATH, _list, query=Page),
    Operation("GET", PATH + "/{id}", _get),
    Operation("PATCH", PATH + "/{id}", _change, body=EnvironmentChange),
    Operation("DELETE", PATH + "/{id}", _delete, 204),
    Operation("GET", "/org/v2/organizations", _organizations, query=Page),
]
