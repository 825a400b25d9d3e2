"""The Schema Registry's own API, at the root: the real local registry, behind keys and roles.

Confluent's registry is at an address of its own, with a key of its own; so is this one, only that
its address is the emulator's. A registry goes with its environment, and so do the subjects that
were registered through it.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from urllib.parse import quote

import requests

from topicberg.errors import TopicbergError
from topicberg_local.emulators.confluent import roles
from topicberg_local.emulators.confluent.account import REGISTRY, SUBJECT, Account
from topicberg_local.emulators.confluent.errors import Refusal, Shape
from topicberg_local.emulators.confluent.operation import Call, HttpResponse, KeyKind, Operation
from topicberg_local.emulators.store import Stored

TIMEOUT_SECONDS = 30
_MANAGERS = ("DeveloperManage", "ResourceOwner", "DataSteward", "EnvironmentAdmin")
_ROLES = {
    "Read": ("DeveloperRead", "DeveloperWrite", *_MANAGERS),
    "Write": ("DeveloperWrite", "ResourceOwner", "DataSteward", "EnvironmentAdmin"),
    "Delete": _MANAGERS,
}
"""What is done to a subject → the roles that may.

https://docs.confluent.io/cloud/current/security/access-control/rbac/predefined-rbac-roles.html
"""


def demand(call: Call, subject: str, operation: str) -> None:
    """
    :param operation: Read, Write or Delete
    :raises Refusal: the owner of the key may not
    """
    if not may(call.account, _registry(call), call.caller.principal, subject, operation):
        text = f"User is denied operation {operation} on Subject: {subject}"
        raise Refusal(HTTPStatus.FORBIDDEN, text, number=40301)


def may(
    account: Account, registry: Stored | None, principal: str, subject: str, operation: str
) -> bool:
    """Whether a user or service account may do it, in an environment's registry."""
    name = registry.name[0] if registry else ""
    within = f"environment={registry.properties['environment']}" if registry else ""
    crn = account.crn(within, f"schema-registry={name}", f"subject={subject}")
    return roles.honours(account, principal, (*_ROLES[operation], "OrganizationAdmin"), crn)


def of_environment(account: Account, environment: str) -> Stored | None:
    """The registry of an environment, if it has one yet."""
    return next(iter(account.find(REGISTRY, environment=environment)), None)


def _registry(call: Call) -> Stored | None:
    """The one that the key is for."""
    return call.account.store.get(REGISTRY, (call.caller.resource or "",))


def operation_on(call: Call) -> tuple[str, str]:
    """Subject of a request and what is done to it; an empty subject: it is about none."""
    root, _, rest = call.url.removeprefix(call.account.url + "/").partition("/")
    if root not in ("subjects", "config", "mode") or not rest:
        return "", "Read"
    subject, _, below = rest.partition("/")
    if call.method == "DELETE":
        return subject, "Delete"
    writes = call.method == "PUT" or (call.method == "POST" and below == "versions")
    return subject, "Write" if writes else "Read"


def check(call: Call) -> None:
    """:raises Refusal: the owner of the key may not do what it asks"""
    subject, what = operation_on(call)
    if subject:
        demand(call, subject, what)


def _forward(call: Call) -> HttpResponse:
    """:raises TopicbergError: the registry does not answer"""
    check(call)
    account, path = call.account, call.url.removeprefix(call.account.url)
    subject, operation = operation_on(call)
    new = operation == "Write" and not _ask(account, "GET", f"/subjects/{subject}/versions").ok
    response = _ask(account, call.method, path, list(call.parameters), call.content or None)
    registry = _registry(call)
    if new and response.ok and registry is not None:
        account.store.put(Stored(SUBJECT, (registry.properties["environment"], subject)))
    media_type = response.headers.get("Content-Type")
    return HttpResponse(response.content, response.status_code, media_type=media_type)


def _ask(
    account: Account,
    method: str,
    path: str,
    parameters: list[tuple[str, str]] | None = None,
    content: bytes | None = None,
) -> requests.Response:
    endpoints = account.endpoints()
    media_type = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    try:
        return requests.request(
            method,
            endpoints.schema_registry + quote(path, safe="/:"),
            params=parameters,
            data=content,
            headers={**endpoints.registry_login.headers(), **media_type},
            timeout=TIMEOUT_SECONDS,
        )
    except requests.RequestException as error:
        raise TopicbergError(f"the schema registry does not answer: {error}") from None


def delete_all(account: Account, environment: str) -> None:
    """Delete the subjects that were registered through an environment's registry.

    :raises TopicbergError: the registry does not answer
    """
    for stored in account.store.all(SUBJECT, lambda entry: entry.name[0] == environment):
        for parameters in ([], [("permanent", "true")]):
            _ask(account, "DELETE", f"/subjects/{stored.name[1]}", parameters)
        account.store.delete(SUBJECT, [stored.name])


_operation = partial(
    Operation, key=KeyKind.SCHEMA_REGISTRY, shape=Shape.REGISTRY, rated=False, any_query=True
)
OPERATIONS = [
    _operation(method, path, _forward)
    for root in ("subjects", "schemas", "config", "mode", "compatibility", "contexts")
    for path in (f"/{root}", f"/{root}/{{rest}}")
    for method in ("GET", "POST", "PUT", "DELETE")
]
