"""``/iam/v2``: service accounts, who can own keys; role bindings, and who may do what.

Bindings are demanded where forgetting one is a known trap: to change topics and access lists over
Kafka REST, and to let Tableflow write through a provider integration. Elsewhere a key of the right
kind is enough.
"""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus
from typing import Any

from pydantic import Field

from topicberg_local.emulators.confluent import errors
from topicberg_local.emulators.confluent.account import (
    BOOTSTRAP_USER,
    CLUSTER,
    ENVIRONMENT,
    KEY,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Account,
)
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    HttpResponse,
    Operation,
    Page,
    Query,
)
from topicberg_local.emulators.store import Stored

VERSION = "iam/v2"
ACCOUNTS = "/iam/v2/service-accounts"
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


class NewServiceAccount(Body):
    display_name: str = Field(max_length=64)
    description: str = ""


class ServiceAccountChange(Body):
    display_name: str = ""
    description: str = ""


class NewServiceAccountQuery(Query):
    assigned_resource_owner: str = ""


class ListServiceAccounts(Page):
    display_name: list[str] = Field(default=[])


class NewBinding(Body):
    principal: str = Field(pattern=r"^(User|Group):.+$")
    role_name: str
    crn_pattern: str = Field(pattern=r"^crn://.+$")


class ListBindings(Page):
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
        raise errors.Refusal(
            HTTPStatus.FORBIDDEN,
            f"{principal} is not authorized: it needs {' or '.join(roles)} on {crn}",
            "forbidden",
            number=40301,
        )


def covers(pattern: str, crn: str) -> bool:
    """Whether a pattern of a binding has this resource."""
    is_prefix = pattern.endswith("*")
    return crn.startswith(pattern[:-1]) if is_prefix else f"{crn}/".startswith(f"{pattern}/")


def unbind(account: Account, crn: str) -> None:
    """Delete the bindings on a resource, and on what is in it."""
    bindings = account.store.all(
        ROLE_BINDING, lambda b: f"{b.properties['crn_pattern']}/".startswith(f"{crn}/")
    )
    account.store.delete(ROLE_BINDING, [binding.name for binding in bindings])


def _service_account(call: Call, stored: Stored) -> dict[str, Any]:
    shown = {key: stored.properties[key] for key in NewServiceAccount.model_fields}
    kind, crn = "ServiceAccount", "service-account"
    return call.account.document(VERSION, kind, stored, ACCOUNTS, crn, **shown)


def _require_account(call: Call) -> Stored:
    name = call.path["id"]
    return call.account.require(
        SERVICE_ACCOUNT, (name,), errors.not_found(f"Service account {name}")
    )


def _refuse_taken(call: Call, display_name: str, but: str = "") -> None:
    text = f"Service name '{display_name}' is already in use."
    call.account.refuse_taken(SERVICE_ACCOUNT, ACCOUNTS, display_name, text, but)


def _create_account(call: Call) -> HttpResponse:
    if call.query.assigned_resource_owner:
        raise errors.unsupported("assigned_resource_owner")
    _refuse_taken(call, call.body.display_name)
    stored = call.account.add(SERVICE_ACCOUNT, "sa", call.body.model_dump())
    return HttpResponse(_service_account(call, stored), location=f"{ACCOUNTS}/{stored.name[0]}")


def _list_accounts(call: Call) -> dict[str, Any]:
    wanted: list[str] = call.query.display_name
    accounts = call.account.store.all(
        SERVICE_ACCOUNT, lambda stored: not wanted or stored.properties["display_name"] in wanted
    )
    return call.page(accounts, VERSION, "ServiceAccount", _service_account)


def _change_account(call: Call) -> dict[str, Any]:
    changes, stored = call.body.model_dump(exclude_unset=True), _require_account(call)
    if "display_name" in changes:
        _refuse_taken(call, changes["display_name"], but=stored.name[0])
    return _service_account(call, call.account.change(stored, changes))


def _delete_account(call: Call) -> None:
    """With its keys and role bindings."""
    name = _require_account(call).name[0]
    call.account.delete(KEY, owner=name)
    call.account.delete(ROLE_BINDING, principal=f"User:{name}")
    call.account.store.delete(SERVICE_ACCOUNT, [(name,)])


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    shown = stored.properties
    return call.account.document(VERSION, "RoleBinding", stored, PATH, "role-binding", **shown)


def _require(call: Call) -> Stored:
    name = call.path["id"]
    missing = errors.Refusal(HTTPStatus.FORBIDDEN, f"Forbidden access to {name}", number=40301)
    return call.account.require(ROLE_BINDING, (name,), missing)


def _refuse_unknown(account: Account, body: NewBinding) -> None:
    """:raises Refusal: a principal, role, or resource that does not exist"""
    kind, _, name = body.principal.partition(":")
    is_known = name == BOOTSTRAP_USER or account.store.get(SERVICE_ACCOUNT, (name,))
    if kind == "Group" or not is_known:
        raise errors.bad_request(f"The principal {body.principal} does not exist.")
    if body.role_name not in ROLES:
        raise errors.bad_request(f"There is no role {body.role_name}.")
    parts = body.crn_pattern.removeprefix(account.crn()).strip("/").split("/")
    if not f"{body.crn_pattern}/".startswith(f"{account.crn()}/"):
        raise errors.bad_request(f"{body.crn_pattern} is not in {account.crn()}.")
    for part in parts:
        label, _, name = part.partition("=")
        sort = {"environment": ENVIRONMENT, "cloud-cluster": CLUSTER}.get(label)
        if sort and name != "*" and account.store.get(sort, (name,)) is None:
            raise errors.bad_request(f"{body.crn_pattern}: the {sort} {name} does not exist.")
        cluster = account.store.get(CLUSTER, (name,)) if label == "kafka" else None
        # https://docs.confluent.io/cloud/current/security/access-control/rbac/overview.html
        if cluster and cluster.properties["spec"]["config"]["kind"] == "Basic":
            raise errors.bad_request(
                f"{body.role_name} on {body.crn_pattern}: Basic clusters have no role bindings for "
                "topics, consumer groups and transactional ids."
            )


def _create(call: Call) -> HttpResponse:
    body: NewBinding = call.body
    account, properties = call.account, body.model_dump()
    _refuse_unknown(account, body)
    for other in account.find(ROLE_BINDING, **properties):
        raise errors.conflict(
            f"{body.principal} has {body.role_name} on {body.crn_pattern} already.",
            f"{account.url}{PATH}/{other.name[0]}",
        )
    stored = account.add(ROLE_BINDING, "rb", properties)
    return HttpResponse(_document(call, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> dict[str, Any]:
    query: ListBindings = call.query
    bindings = [
        binding
        for binding in call.account.store.all(ROLE_BINDING)
        if query.crn_pattern in binding.properties["crn_pattern"]
        and query.principal in ("", binding.properties["principal"])
        and query.role_name in ("", binding.properties["role_name"])
    ]
    return call.page(bindings, VERSION, "RoleBinding", _document)


def _delete(call: Call) -> dict[str, Any]:
    stored = _require(call)
    call.account.store.delete(ROLE_BINDING, [stored.name])
    return _document(call, stored)


_operation = partial(Operation, shape=errors.Shape.ROLES, rated=False, invalid_is_400=True)
_ACCOUNT = ACCOUNTS + "/{id}"
OPERATIONS = [
    Operation("POST", ACCOUNTS, _create_account, 201, NewServiceAccountQuery, NewServiceAccount),
    Operation("GET", ACCOUNTS, _list_accounts, query=ListServiceAccounts),
    Operation("GET", _ACCOUNT, lambda call: _service_account(call, _require_account(call))),
    Operation("PATCH", _ACCOUNT, _change_account, body=ServiceAccountChange),
    Operation("DELETE", _ACCOUNT, _delete_account, 204),
    _operation("POST", PATH, _create, 201, body=NewBinding),
    _operation("GET", PATH, _list, query=ListBindings),
    _operation("GET", PATH + "/{id}", lambda call: _document(call, _require(call))),
    _operation("DELETE", PATH + "/{id}", _delete),
]
