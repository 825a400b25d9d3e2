"""``/iam/v2/role-bindings``, and who may do what.

Bindings are demanded where forgetting one is a known trap: to change topics and access lists over
Kafka REST, and to let Tableflow write through a provider integration. Elsewhere a key of the right
kind is enough.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from pydantic import Field

from topicberg_local.emulators.confluent.account import (
    BOOTSTRAP_USER,
    CLUSTER,
    ENVIRONMENT,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Account,
)
from topicberg_local.emulators.confluent.errors import Refusal, Shape, bad_request, conflict
from topicberg_local.emulators.confluent.operation import Body, Call, HttpResponse, Operation, Page
from topicberg_local.emulators.store import Stored

VERSION = "iam/v2"
PATH = "/iam/v2/role-bindings"
ADMINS = ("OrganizationAdmin", "EnvironmentAdmin", "CloudClusterAdmin")
ROLES = {
    *ADMINS,
    "AccountAdmin",
    "Assigner",
    "BillingAdmin",
    "DataDiscovery",
    "DataSteward",
    "DeveloperManage",
    "DeveloperRead",
    "DeveloperWrite",
    "FlinkAdmin",
    "FlinkDeveloper",
    "KsqlAdmin",
    "MetricsViewer",
    "NetworkAdmin",
    "Operator",
    "ResourceKeyAdmin",
    "ResourceOwner",
}


class NewBinding(Body):
    principal: str = Field(pattern=r"^(User|Group):.+$")
    role_name: str
    crn_pattern: str = Field(pattern=r"^crn://.+$")


class ListQuery(Page):
    crn_pattern: str = Field(min_length=1)
    principal: str = ""
    role_name: str = ""


def honours(account: Account, principal: str, roles: tuple[str, ...], crn: str) -> bool:
    """Whether a user or service account has one of the roles on a resource, or on what holds it."""
    if principal == BOOTSTRAP_USER:
        return True
    since = time.time() - account.delays.role_binding
    return any(
        binding.properties["principal"] == f"User:{principal}"
        and binding.properties["role_name"] in roles
        and covers(binding.properties["crn_pattern"], crn)
        and binding.created <= since
        for binding in account.store.all(ROLE_BINDING)
    )


def demand(account: Account, principal: str, roles: tuple[str, ...], crn: str) -> None:
    """:raises Refusal: the principal has none of the roles there"""
    if not honours(account, principal, roles, crn):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            f"{principal} is not authorized: it needs {' or '.join(roles)} on {crn}",
            "forbidden",
            number=40301,
        )


def covers(pattern: str, crn: str) -> bool:
    """Whether a pattern of a binding has this resource."""
    if pattern.endswith("*"):
        return crn.startswith(pattern[:-1])
    return f"{crn}/".startswith(f"{pattern}/")


def unbind(account: Account, crn: str) -> None:
    """Delete the bindings on a resource, and on what is in it."""
    account.delete(
        ROLE_BINDING, lambda document: f"{document['crn_pattern']}/".startswith(f"{crn}/")
    )


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    shown = stored.properties
    return call.account.document(VERSION, "RoleBinding", stored, PATH, "role-binding", **shown)


def _require(call: Call) -> Stored:
    name = call.path["id"]
    missing = Refusal(HTTPStatus.FORBIDDEN, f"Forbidden access to {name}", number=40301)
    return call.account.require(ROLE_BINDING, (name,), missing)


def _refuse_unknown(account: Account, body: NewBinding) -> None:
    """:raises Refusal: a principal, role, or resource that does not exist"""
    kind, _, name = body.principal.partition(":")
    is_known = name == BOOTSTRAP_USER or account.store.get(SERVICE_ACCOUNT, (name,))
    if kind == "Group" or not is_known:
        raise bad_request(f"The principal {body.principal} does not exist.")
    if body.role_name not in ROLES:
        raise bad_request(f"There is no role {body.role_name}.")
    parts = body.crn_pattern.removeprefix(account.crn()).strip("/").split("/")
    if not f"{body.crn_pattern}/".startswith(f"{account.crn()}/"):
        raise bad_request(f"{body.crn_pattern} is not in {account.crn()}.")
    for part in parts:
        label, _, name = part.partition("=")
        sort = {"environment": ENVIRONMENT, "cloud-cluster": CLUSTER}.get(label)
        if sort and name != "*" and account.store.get(sort, (name,)) is None:
            raise bad_request(f"{body.crn_pattern}: the {sort} {name} does not exist.")
        cluster = account.store.get(CLUSTER, (name,)) if label == "kafka" else None
        # https://docs.confluent.io/cloud/current/security/access-control/rbac/overview.html
        if cluster and cluster.properties["spec"]["config"]["kind"] == "Basic":
            raise bad_request(
                f"{body.role_name} on {body.crn_pattern}: Basic clusters have no role bindings for "
                "topics, consumer groups and transactional ids."
            )


def _create(call: Call) -> HttpResponse:
    body: NewBinding = call.body
    account = call.account
    _refuse_unknown(account, body)
    properties = body.model_dump()
    for other in account.find(ROLE_BINDING, lambda other: other == properties):
        raise conflict(
            f"{body.principal} has {body.role_name} on {body.crn_pattern} already.",
            f"{account.url}{PATH}/{other.name[0]}",
        )
    stored = account.add(ROLE_BINDING, "rb", properties)
    return HttpResponse(_document(call, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> HttpResponse:
    query: ListQuery = call.query
    bindings = call.account.find(
        ROLE_BINDING,
        lambda document: (
            query.crn_pattern in document["crn_pattern"]
            and query.principal in ("", document["principal"])
            and query.role_name in ("", document["role_name"])
        ),
    )
    return call.page(bindings, VERSION, "RoleBinding", _document)


def _get(call: Call) -> HttpResponse:
    return HttpResponse(_document(call, _require(call)))


def _delete(call: Call) -> HttpResponse:
    stored = _require(call)
    call.account.store.delete(ROLE_BINDING, [stored.name])
    return HttpResponse(_document(call, stored))


def _operation(method: str, path: str, handler: Any, **more: Any) -> Operation:
    return Operation(
        method, path, handler, shape=Shape.ROLES, rated=False, invalid_is_400=True, **more
    )


OPERATIONS = [
    _operation("POST", PATH, _create, success=201, body=NewBinding),
    _operation("GET", PATH, _list, query=ListQuery),
    _operation("GET", PATH + "/{id}", _get),
    _operation("DELETE", PATH + "/{id}", _delete),
]
