"""``/pim/v1``: provider integrations, by which Confluent Cloud enters a bucket and Glue."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import Field

from topicberg_local.emulators.confluent import clusters, environments
from topicberg_local.emulators.confluent.account import CATALOG, INTEGRATION, TABLE, Account
from topicberg_local.emulators.confluent.errors import Shape, conflict, not_found, unsupported
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    HttpResponse,
    InEnvironment,
    Operation,
    PageInEnvironment,
    Reference,
)
from topicberg_local.emulators.store import Stored

VERSION = "pim/v1"
PATH = "/pim/v1/integrations"
CONFLUENT_ACCOUNT = "999999999999"
"""The AWS account of the role that takes on the customer's."""


class AwsConfig(Body):
    kind: Literal["AwsIntegrationConfig"]
    customer_iam_role_arn: str = Field(min_length=20, max_length=2048, pattern=r"^arn:")


class NewIntegration(Body):
    config: AwsConfig
    environment: Reference
    display_name: str = Field(default="", max_length=60)
    provider: Literal["AWS", "aws"] = "AWS"
    """Lower case is what Confluent's own Terraform provider sends."""


class ListQuery(PageInEnvironment):
    provider: str = ""


def crn(account: Account, stored: Stored) -> str:
    return account.crn(
        f"environment={stored.properties['environment']}", f"provider-integration={stored.name[0]}"
    )


def find(account: Account, environment: str, name: str) -> Stored | None:
    stored = account.store.get(INTEGRATION, (name,))
    if stored is None or stored.properties["environment"] != environment:
        return None
    return stored


def _usages(account: Account, stored: Stored) -> list[str]:
    """What writes through it."""
    used = []
    for kind, word in ((TABLE, "tableflow-topic"), (CATALOG, "catalog-integration")):
        for user in account.find(kind, lambda document: document["integration"] == stored.name[0]):
            environment, cluster = user.properties["environment"], user.properties["cluster"]
            inside = clusters.crn(account, environment, cluster)
            used.append(f"{inside}/{word}={user.name[-1]}")
    return used


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    account, name, properties = call.account, stored.name[0], stored.properties
    return {
        "api_version": VERSION,
        "kind": "Integration",
        "id": name,
        "display_name": properties["display_name"],
        "provider": "AWS",
        "config": properties["config"],
        "usages": _usages(account, stored),
        "environment": environments.reference(account, properties["environment"]),
    }


def _require(call: Call) -> Stored:
    query: InEnvironment = call.query
    stored = find(call.account, query.environment, call.path["id"])
    if stored is None:
        raise not_found(f"Provider integration {call.path['id']}")
    return stored


def _create(call: Call) -> HttpResponse:
    body: NewIntegration = call.body
    account = call.account
    environment = environments.require(account, body.environment.id).name[0]
    role = body.config.customer_iam_role_arn
    for other in account.find(INTEGRATION, lambda document: document["environment"] == environment):
        if other.properties["config"]["customer_iam_role_arn"] == role:
            raise conflict(
                f"The role {role} is that of {other.name[0]} already.",
                f"{account.url}{PATH}/{other.name[0]}",
            )
    name = account.new_id(INTEGRATION, "cspi")
    config = {
        **body.config.model_dump(),
        "iam_role_arn": f"arn:aws:iam::{CONFLUENT_ACCOUNT}:role/{name}",
        "external_id": str(uuid.uuid4()),
    }
    properties = {"display_name": body.display_name, "config": config, "environment": environment}
    stored = Stored(INTEGRATION, (name,), properties)
    account.store.put(stored)
    return HttpResponse(_document(call, stored), location=f"{PATH}/{name}")


def _list(call: Call) -> HttpResponse:
    query: ListQuery = call.query
    if query.provider.upper() not in ("", "AWS"):
        raise unsupported(f"the provider {query.provider}")
    environments.require(call.account, query.environment)
    integrations = call.account.find(
        INTEGRATION, lambda document: document["environment"] == query.environment
    )
    return call.page(integrations, VERSION, "Integration", _document)


def _get(call: Call) -> HttpResponse:
    return HttpResponse(_document(call, _require(call)))


def _delete(call: Call) -> HttpResponse:
    stored = _require(call)
    if used := _usages(call.account, stored):
        raise conflict(f"Provider integration {stored.name[0]} is in use by {', '.join(used)}.")
    call.account.store.delete(INTEGRATION, [stored.name])
    return HttpResponse()


OPERATIONS = [
    Operation("POST", PATH, _create, 201, body=NewIntegration, shape=Shape.PROVIDER),
    Operation("GET", PATH, _list, query=ListQuery, shape=Shape.PROVIDER),
    Operation("GET", PATH + "/{id}", _get, query=InEnvironment, shape=Shape.PROVIDER),
    Operation("DELETE", PATH + "/{id}", _delete, 204, query=InEnvironment, shape=Shape.PROVIDER),
]
