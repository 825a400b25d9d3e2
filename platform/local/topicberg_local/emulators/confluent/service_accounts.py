"""``/iam/v2/service-accounts``: who can own keys."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from topicberg_local.emulators.confluent.account import KEY, ROLE_BINDING, SERVICE_ACCOUNT
from topicberg_local.emulators.confluent.errors import not_found, unsupported
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
PATH = "/iam/v2/service-accounts"


class NewServiceAccount(Body):
    display_name: str = Field(max_length=64)
    description: str = ""


class ServiceAccountChange(Body):
    display_name: str = ""
    description: str = ""


class CreateQuery(Query):
    assigned_resource_owner: str = ""


class ListQuery(Page):
    display_name: list[str] = Field(default=[])


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    shown = {key: stored.properties[key] for key in NewServiceAccount.model_fields}
    kind, crn = "ServiceAccount", "service-account"
    return call.account.document(VERSION, kind, stored, PATH, crn, **shown)


def _require(call: Call) -> Stored:
    name = call.path["id"]
    return call.account.require(SERVICE_ACCOUNT, (name,), not_found(f"Service account {name}"))


def _refuse_taken(call: Call, display_name: str, but: str = "") -> None:
    text = f"Service name '{display_name}' is already in use."
    call.account.refuse_taken(SERVICE_ACCOUNT, PATH, display_name, text, but)


def _create(call: Call) -> HttpResponse:
    body: NewServiceAccount = call.body
    if call.query.assigned_resource_owner:
        raise unsupported("assigned_resource_owner")
    _refuse_taken(call, body.display_name)
    stored = call.account.add(SERVICE_ACCOUNT, "sa", body.model_dump())
    return HttpResponse(_document(call, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> HttpResponse:
    wanted: list[str] = call.query.display_name
    accounts = call.account.find(
        SERVICE_ACCOUNT, lambda document: not wanted or document["display_name"] in wanted
    )
    return call.page(accounts, VERSION, "ServiceAccount", _document)


def _get(call: Call) -> HttpResponse:
    return HttpResponse(_document(call, _require(call)))


def _change(call: Call) -> HttpResponse:
    changes = call.body.model_dump(exclude_unset=True)
    stored = _require(call)
    if "display_name" in changes:
        _refuse_taken(call, changes["display_name"], but=stored.name[0])
    return HttpResponse(_document(call, call.account.change(stored, changes)))


def _delete(call: Call) -> HttpResponse:
    """With its keys and role bindings."""
    account = call.account
    name = _require(call).name[0]
    account.delete(KEY, lambda key: key["owner"] == name)
    account.delete(ROLE_BINDING, lambda document: document["principal"] == f"User:{name}")
    account.store.delete(SERVICE_ACCOUNT, [(name,)])
    return HttpResponse()


OPERATIONS = [
    Operation("POST", PATH, _create, 201, CreateQuery, NewServiceAccount),
    Operation("GET", PATH, _list, query=ListQuery),
    Operation("GET", PATH + "/{id}", _get),
    Operation("PATCH", PATH + "/{id}", _change, body=ServiceAccountChange),
    Operation("DELETE", PATH + "/{id}", _delete, 204),
]
