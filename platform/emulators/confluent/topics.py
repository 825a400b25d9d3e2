"""``/kafka/v3``: the cluster, and topics on the real local broker."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import Field

from emulators.confluent import broker
from emulators.confluent.account import TOPIC
from emulators.confluent.errors import Refusal, unsupported
from emulators.confluent.kafka_rest import (
    cluster_of,
    demand,
    kafka_operation,
    resource,
    resources,
    topic_of,
)
from emulators.confluent.operation import Call
from emulators.confluent.topic_configs import Config
from emulators.confluent.wire import Answer, Body, Query
from emulators.store import Stored
from topicberg.kafka import TIMEOUT_SECONDS
from topicberg.topics import requests

DEFAULT_PARTITIONS = 6
"""Confluent Cloud's, not the broker's."""
CLOUD_REPLICATION = 3
"""The only factor that Confluent Cloud takes; the local broker keeps as many as it can: one."""


class NewTopic(Body):
    topic_name: str
    partitions_count: int = Field(default=DEFAULT_PARTITIONS, ge=1)
    replication_factor: int = CLOUD_REPLICATION
    configs: list[Config] = Field(default=[])
    validate_only: bool = False


class TopicChange(Body):
    partitions_count: int = Field(ge=1)


class GetTopic(Query):
    include_authorized_operations: bool = False


def _document(call: Call, name: str, partitions: int, replication: int) -> dict[str, Any]:
    path = f"/topics/{name}"
    base = f"{call.account.url}/kafka/v3/clusters/{call.path['cluster_id']}{path}"
    document: dict[str, Any] = {
        "topic_name": name,
        "is_internal": False,
        "replication_factor": replication,
        "partitions_count": partitions,
        "partitions": {"related": f"{base}/partitions"},
        "configs": {"related": f"{base}/configs"},
        "partition_reassignments": {"related": f"{base}/partitions/-/reassignment"},
        "authorized_operations": [],
    }
    return resource(call, "KafkaTopic", path, f"/topic={name}", document)


def _shown(call: Call, name: str, found: Any) -> dict[str, Any]:
    replicas = [len(partition.replicas) for partition in found.partitions.values()]
    return _document(call, name, len(found.partitions), max(replicas, default=1))


def _list(call: Call) -> Answer:
    found = broker.names(call.account, cluster_of(call))
    return resources(
        call, "KafkaTopicList", [_shown(call, name, topic) for name, topic in found.items()]
    )


def _create(call: Call) -> Answer:
    from confluent_kafka.admin import NewTopic as Wanted

    body: NewTopic = call.body
    account = call.account
    name = body.topic_name
    cluster = demand(call, name)
    if body.replication_factor not in (1, CLOUD_REPLICATION):
        raise Refusal(HTTPStatus.BAD_REQUEST, "Replication factor must be 3.", number=40002)
    for other in account.store.all(TOPIC):
        if other.name[1] == name and other.name[0] != cluster:
            raise unsupported(
                f"the topic {name} in {cluster}: all clusters are on one broker, and"
                f" {other.name[0]} has a topic of that name"
            )
    wanted = Wanted(
        name,
        num_partitions=body.partitions_count,
        replication_factor=-1,
        config={one.name: one.value for one in body.configs if one.value is not None},
    )
    # First ours, then the broker's: what is made by halves is seen, and made again.
    new = account.store.get(TOPIC, (cluster, name)) is None
    if new and not body.validate_only:
        account.store.put(Stored(TOPIC, (cluster, name)))
    admin = account.kafka_admin()
    try:
        made = admin.create_topics(
            [wanted], request_timeout=TIMEOUT_SECONDS, validate_only=body.validate_only
        )
        broker.wait(made[name], name)
    except Refusal:
        if new:
            account.store.delete(TOPIC, [(cluster, name)])
        raise
    if not body.validate_only:
        requests.topic_created(account.config, name)
    return Answer(_document(call, name, body.partitions_count, 1))


def _get(call: Call) -> Answer:
    query: GetTopic = call.query
    if query.include_authorized_operations:
        raise unsupported("include_authorized_operations: the local broker has no access lists")
    return Answer(_shown(call, *topic_of(call, cluster_of(call))))


def _change(call: Call) -> Answer:
    from confluent_kafka.admin import NewPartitions

    body: TopicChange = call.body
    name, found = topic_of(call, demand(call, call.path["topic_name"]))
    if body.partitions_count != len(found.partitions):
        grow = [NewPartitions(name, body.partitions_count)]
        admin = call.account.kafka_admin()
        broker.wait(admin.create_partitions(grow, request_timeout=TIMEOUT_SECONDS)[name], name)
    return Answer(_document(call, name, body.partitions_count, 1))


def _delete(call: Call) -> Answer:
    cluster = demand(call, call.path["topic_name"])
    name, _ = topic_of(call, cluster)
    admin = call.account.kafka_admin()
    broker.wait(admin.delete_topics([name], request_timeout=TIMEOUT_SECONDS)[name], name)
    requests.topic_deleted(call.account.config, name)
    call.account.store.delete(TOPIC, [(cluster, name)])
    return Answer()


def _get_cluster(call: Call) -> Answer:
    name = cluster_of(call)
    base = f"{call.account.url}/kafka/v3/clusters/{name}"
    parts = ("acls", "brokers", "broker-configs", "consumer-groups", "topics")
    related: dict[str, Any] = {
        part.replace("-", "_"): {"related": f"{base}/{part}"} for part in parts
    }
    related["partition_reassignments"] = {"related": f"{base}/topics/-/partitions/-/reassignment"}
    return Answer(resource(call, "KafkaCluster", "", "", related))


OPERATIONS = [
    kafka_operation("GET", "", _get_cluster),
    kafka_operation("GET", "/topics", _list),
    kafka_operation("POST", "/topics", _create, 201, body=NewTopic),
    kafka_operation("GET", "/topics/{topic_name}", _get, query=GetTopic),
    kafka_operation("PATCH", "/topics/{topic_name}", _change, body=TopicChange),
    kafka_operation("DELETE", "/topics/{topic_name}", _delete, 204),
]
