"""``/srcm/v3``: the Schema Registry that an environment gets with its first Kafka cluster."""

from __future__ import annotations

import time
from typing import Any

from emulators.confluent import environments
from emulators.confluent.account import REGISTRY, Account
from emulators.confluent.errors import not_found
from emulators.confluent.operation import Call, Operation
from emulators.confluent.wire import Answer, InEnvironment, PageInEnvironment
from emulators.store import Stored

VERSION = "srcm/v3"
PATH = "/srcm/v3/clusters"


def _document(account: Account, stored: Stored) -> dict[str, Any]:
    name, properties = stored.name[0], stored.properties
    environment = properties["environment"]
    delays = account.delays
    ready = time.time() >= stored.created + delays.cluster + delays.schema_registry
    governance = environments.require(account, environment).properties["stream_governance_config"]
    return {
        "api_version": VERSION,
        "kind": "Cluster",
        "id": name,
        "metadata": account.metadata(
            stored, f"{PATH}/{name}", f"environment={environment}", f"schema-registry={name}"
        ),
        "spec": {
            "display_name": "Stream Governance Package",
            "package": governance["package"],
            "http_endpoint": account.url,
            "cloud": properties["cloud"],
            "region": properties["region"],
            "environment": environments.reference(account, environment),
        },
        "status": {"phase": "PROVISIONED" if ready else "PROVISIONING"},
    }


def _there(account: Account, stored: Stored) -> bool:
    """It appears only after the Kafka cluster is there."""
    return time.time() >= stored.created + account.delays.cluster


def _list(call: Call) -> Answer:
    query: PageInEnvironment = call.query
    account = call.account
    environments.require(account, query.environment)
    found = account.store.all(
        REGISTRY,
        lambda one: one.properties["environment"] == query.environment and _there(account, one),
    )
    return call.page(found, VERSION, "Cluster", lambda one: _document(account, one))


def _get(call: Call) -> Answer:
    query: InEnvironment = call.query
    found = call.account.store.get(REGISTRY, (call.path["id"],))
    if (
        found is None
        or found.properties["environment"] != query.environment
        or not _there(call.account, found)
    ):
        raise not_found(f"Schema Registry cluster {call.path['id']}")
    return Answer(_document(call.account, found))


OPERATIONS = [
    Operation("GET", PATH, _list, query=PageInEnvironment),
    Operation("GET", PATH + "/{id}", _get, query=InEnvironment),
]
