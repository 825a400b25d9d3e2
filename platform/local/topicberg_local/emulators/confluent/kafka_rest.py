"""What the operations of ``/kafka/v3`` share: their cluster, its topics, and how they answer."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from topicberg_local.emulators.confluent import broker, clusters, roles
from topicberg_local.emulators.confluent.account import CLUSTER
from topicberg_local.emulators.confluent.errors import Refusal, Shape, unsupported
from topicberg_local.emulators.confluent.operation import Call, KeyKind, Operation
from topicberg_local.emulators.store import Stored

PATH = "/kafka/v3/clusters/{cluster_id}"
kafka_operation = partial(
    Operation, key=KeyKind.KAFKA, shape=Shape.KAFKA, rated=False, invalid_is_400=True
)
"""Makes an operation of Kafka REST."""


def cluster_of(call: Call) -> Stored:
    """The cluster of a request."""
    name = call.path["cluster_id"]
    stored = call.account.store.get(CLUSTER, (name,))
    if stored is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"Cluster {name} cannot be found.", number=40401)
    if call.path.get("topic_name") == "-":
        raise unsupported("the configurations of all topics at once")
    return stored


def demand(call: Call, topic: str | None = None) -> str:
    """The cluster of a request that changes something.

    :raises Refusal: the owner of the key may not
    """
    cluster = cluster_of(call)
    name, environment = cluster.name[0], cluster.properties["environment"]
    crn = clusters.crn(call.account, environment, name)
    owned = f"{crn}/kafka={name}/topic={topic}"
    if topic is None or not roles.honours(
        call.account, call.caller.principal, ("ResourceOwner", "DeveloperManage"), owned
    ):
        roles.demand(call.account, call.caller.principal, roles.ADMINS, crn)
    return name


def topic_of(call: Call, cluster: str) -> tuple[str, Any]:
    """The topic of a request, and its metadata.

    :raises Refusal: there is none
    """
    name = call.path["topic_name"]
    found = broker.names(call.account, cluster).get(name)
    if found is None:
        raise broker.unknown(name)
    return name, found


def resource(
    call: Call, kind: str, path: str, crn: str, document: dict[str, Any]
) -> dict[str, Any]:
    """An object as Kafka REST shows it.

    :param path: after the cluster's
    """
    cluster = call.path["cluster_id"]
    metadata = {
        "self": f"{call.account.url}/kafka/v3/clusters/{cluster}{path}",
        "resource_name": f"crn:///kafka={cluster}{crn}",
    }
    return {"kind": kind, "metadata": metadata, "cluster_id": cluster, **document}


def resources(call: Call, kind: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """A list as Kafka REST shows it: never in pages."""
    return {"kind": kind, "metadata": {"self": call.url, "next": None}, "data": items}
