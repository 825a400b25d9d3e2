"""``/iam/v2/service-accounts`` and ``/iam/v2/users``: who can own keys."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from emulators.confluent.account import KEY, ROLE_BINDING, SERVICE_ACCOUNT, USER, Account, changed
from emulators.confluent.errors import conflict, not_found, unsupported
from emulators.confluent.operation import Call, Operation
from emulators.confluent.wire import Answer, Body, Page, Query
from emulators.store import Stored

VERSION = "iam/v2"
PATH = "/iam/v2/service-accounts"
USERS = "/iam/v2/users"


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


def _document(account: Account, stored: Stored) -> dict[str, Any]:
    name = stored.name[0]
    return {
        "api_version": VERSION,
        "kind": "ServiceAccount",
        "id": name,
        "metadata": account.metadata(stored, f"{PATH}/{name}", f"service-account={name}"),
        "display_name": stored.properties["display_name"],
        "description": stored.properties["description"],
    }


def _require(call: Call) -> Stored:
    found = call.account.store.get(SERVICE_ACCOUNT, (call.path["id"],))
    if found is None:
        raise not_found(f"Service account {call.path['id']}")
    return found


def _refuse_taken(account: Account, display_name: str, but: str = "") -> None:
    for other in account.store.all(SERVICE_ACCOUNT):
        if other.properties["display_name"] == display_name and other.name[0] != but:
            raise conflict(
                f"Service name '{display_name}' is already in use.",
                f"{account.url}{PATH}/{other.name[0]}",
            )


def _create(call: Call) -> Answer:
    body: NewServiceAccount = call.body
    account = call.account
    if call.query.assigned_resource_owner:
        raise unsupported("assigned_resource_owner")
    _refuse_taken(account, body.display_name)
    stored = Stored(SERVICE_ACCOUNT, (account.new_id(SERVICE_ACCOUNT, "sa"),), body.model_dump())
    account.store.put(stored)
    return Answer(_document(account, stored), location=f"{PATH}/{stored.name[0]}")


def _list(call: Call) -> Answer:
    wanted: list[str] = call.query.display_name
    found = call.account.find(
        SERVICE_ACCOUNT, lambda one: not wanted or one["display_name"] in wanted
    )
    return call.page(found, VERSION, "ServiceAccount", lambda one: _document(call.account, one))


def _get(call: Call) -> Answer:
    return Answer(_document(call.account, _require(call)))


def _change(call: Call) -> Answer:
    changes = call.body.model_dump(exclude_unset=True)
    stored = changed(_require(call), changes)
    if "display_name" in changes:
        _refuse_taken(call.account, changes["display_name"], but=stored.name[0])
    call.account.store.put(stored)
    return Answer(_document(call.account, stored))


def _delete(call: Call) -> Answer:
    """With its keys and role bindings."""
    account = call.account
    name = _require(call).name[0]
    keys = account.find(KEY, lambda key: key["owner"] == name)
    account.store.delete(KEY, [key.name for key in keys])
    bindings = account.find(ROLE_BINDING, lambda one: one["principal"] == f"User:{name}")
    account.store.delete(ROLE_BINDING, [binding.name for binding in bindings])
    account.store.delete(SERVICE_ACCOUNT, [(name,)])
    return Answer()


def _user(account: Account, stored: Stored) -> dict[str, Any]:
    name = stored.name[0]
    return {
        "api_version": VERSION,
        "kind": "User",
        "id": name,
        "metadata": account.metadata(stored, f"{USERS}/{name}", f"user={name}"),
        "email": "local@example.com",
        "full_name": "Local User",
        "auth_type": "AUTH_TYPE_LOCAL",
    }


def _users(call: Call) -> Answer:
    found = call.account.store.all(USER)
    return call.page(found, VERSION, "User", lambda one: _user(call.account, one))


def _get_user(call: Call) -> Answer:
    found = call.account.store.get(USER, (call.path["id"],))
    if found is None:
        raise not_found(f"User {call.path['id']}")
    return Answer(_user(call.account, found))


OPERATIONS = [
    Operation("POST", PATH, _create, 201, CreateQuery, NewServiceAccount),
    Operation("GET", PATH, _list, query=ListQuery),
    Operation("GET", PATH + "/{id}", _get),
    Operation("PATCH", PATH + "/{id}", _change, body=ServiceAccountChange),
    Operation("DELETE", PATH + "/{id}", _delete, 204),
    Operation("GET", USERS, _users, query=Page),
    Operation("GET", USERS + "/{id}", _get_user),
]
