"""``/pim/v1``: provider integrations, by which Confluent Cloud enters a bucket and Glue."""

from __future__ import annotations

import uuid
from functools import partial
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


def _usages(account: Account, stored: Stored) -> list[str]:
    """What writes through it."""

    def crn_of(user: Stored) -> str:
        return clusters.crn(account, user.properties["environment"], user.properties["cluster"])

    return [
        f"{crn_of(user)}/{word}={user.name[-1]}"
        for kind, word in ((TABLE, "tableflow-topic"), (CATALOG, "catalog-integration"))
        for user in account.find(kind, integration=stored.name[0])
    ]


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    account, properties = call.account, stored.properties
    return {
        "api_version": VERSION,
        "kind": "Integration",
        "id": stored.name[0],
        "display_name": properties["display_name"],
        "provider": "AWS",
        "config": properties["config"],
        "usages": _usages(account, stored),
        "environment": environments.reference(account, properties["environment"]),
    }


def require(account: Account, environment: str, name: str) -> Stored:
    """:raises Refusal: there is no such integration in the environment"""
    missing = not_found(f"Provider integration {name}")
    return account.require(INTEGRATION, (name,), missing, environment=environment)


def _require(call: Call) -> Stored:
    return require(call.account, call.query.environment, call.path["id"])


def _create(call: Call) -> HttpResponse:
    account = call.account
    body: NewIntegration = call.body
    environment = environments.require(account, body.environment.id).name[0]
    role = body.config.customer_iam_role_arn
    for other in account.find(INTEGRATION, environment=environment):
        if other.properties["config"]["customer_iam_role_arn"] == role:
            url = f"{account.url}{PATH}/{other.name[0]}"
            raise conflict(f"The role {role} is that of {other.name[0]} already.", url)
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


def _list(call: Call) -> dict[str, Any]:
    query: ListQuery = call.query
    if query.provider.upper() not in ("", "AWS"):
        raise unsupported(f"the provider {query.provider}")
    environments.require(call.account, query.environment)
    integrations = call.account.find(INTEGRATION, environment=query.environment)
    return call.page(integrations, VERSION, "Integration", _document)


def _delete(call: Call) -> None:
    stored = _require(call)
    if used := _usages(call.account, stored):
        raise conflict(f"Provider integration {stored.name[0]} is in use by {', '.join(used)}.")
    call.account.store.delete(INTEGRATION, [stored.name])


_operation = partial(Operation, shape=Shape.PROVIDER)
_ONE = PATH + "/{id}"
OPERATIONS = [
    _operation("POST", PATH, _create, 201, body=NewIntegration),
    _operation("GET", PATH, _list, query=ListQuery),
    _operation("GET", _ONE, lambda call: _document(call, _require(call)), query=InEnvironment),
    _operation("DELETE", _ONE, _delete, 204, query=InEnvironment),
]
