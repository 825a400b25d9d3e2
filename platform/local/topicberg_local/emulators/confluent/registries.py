"""``/srcm/v3``: the Schema Registry that an environment gets with its first Kafka cluster."""

from __future__ import annotations

import time
from typing import Any

from topicberg_local.emulators.confluent import environments
from topicberg_local.emulators.confluent.account import REGISTRY, Account
from topicberg_local.emulators.confluent.errors import not_found
from topicberg_local.emulators.confluent.operation import (
    Call,
    HttpResponse,
    InEnvironment,
    Operation,
    PageInEnvironment,
)
from topicberg_local.emulators.store import Stored

VERSION = "srcm/v3"
PATH = "/srcm/v3/clusters"


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    account, properties = call.account, stored.properties
    environment = properties["environment"]
    ready = _there(account, stored, account.delays.schema_registry)
    governance = environments.require(account, environment).properties["stream_governance_config"]
    spec = {
        "display_name": "Stream Governance Package",
        "package": governance["package"],
        "http_endpoint": account.url,
        "cloud": properties["cloud"],
        "region": properties["region"],
        "environment": environments.reference(account, environment),
    }
    status = {"phase": "PROVISIONED" if ready else "PROVISIONING"}
    within = (f"environment={environment}", "schema-registry")
    return account.document(VERSION, "Cluster", stored, PATH, *within, spec=spec, status=status)


def _there(account: Account, stored: Stored, delay: float = 0.0) -> bool:
    """It appears only after the Kafka cluster is there."""
    return time.time() >= stored.created + account.delays.cluster + delay


def _list(call: Call) -> HttpResponse:
    query: PageInEnvironment = call.query
    account = call.account
    environments.require(account, query.environment)
    registries = account.find(
        REGISTRY, lambda document: document["environment"] == query.environment
    )
    registries = [registry for registry in registries if _there(account, registry)]
    return call.page(registries, VERSION, "Cluster", _document)


def _get(call: Call) -> HttpResponse:
    query: InEnvironment = call.query
    missing = not_found(f"Schema Registry cluster {call.path['id']}")
    registry = call.account.require(REGISTRY, (call.path["id"],), missing)
    if registry.properties["environment"] != query.environment or not _there(
        call.account, registry
    ):
        raise missing
    return HttpResponse(_document(call, registry))


OPERATIONS = [
    Operation("GET", PATH, _list, query=PageInEnvironment),
    Operation("GET", PATH + "/{id}", _get, query=InEnvironment),
]
