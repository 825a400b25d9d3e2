"""``/kafka/v3``: the cluster, and topics with their configurations on the real local broker."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from pydantic import Field

from topicberg.kafka.topics import TIMEOUT_SECONDS
from topicberg.topics import requests
from topicberg_local.emulators.confluent import broker
from topicberg_local.emulators.confluent.account import TOPIC
from topicberg_local.emulators.confluent.errors import Refusal, unsupported
from topicberg_local.emulators.confluent.kafka_rest import (
    cluster_of,
    demand,
    kafka_operation,
    resource,
    resources,
    topic_of,
)
from topicberg_local.emulators.confluent.operation import Body, Call, HttpResponse, Query
from topicberg_local.emulators.store import Stored

DEFAULT_PARTITIONS = 6
"""Confluent Cloud's, not the broker's."""
CLOUD_REPLICATION = 3
"""The only factor that Confluent Cloud takes; the local broker keeps as many as it can: one."""


class Config(Body):
    name: str
    value: str | None = None


class Alteration(Config):
    operation: Literal["SET", "DELETE"] | None = None


class Alterations(Body):
    data: list[Alteration]
    validate_only: bool = False


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


def _shown(call: Call, name: str, description: Any) -> dict[str, Any]:
    replicas = [len(partition.replicas) for partition in description.partitions.values()]
    return _document(call, name, len(description.partitions), max(replicas, default=1))


def _list(call: Call) -> HttpResponse:
    found = broker.names(call.account, cluster_of(call))
    return resources(
        call, "KafkaTopicList", [_shown(call, name, topic) for name, topic in found.items()]
    )


def _create(call: Call) -> HttpResponse:
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
        config={
            setting.name: setting.value for setting in body.configs if setting.value is not None
        },
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
    return HttpResponse(_document(call, name, body.partitions_count, 1))


def _get(call: Call) -> HttpResponse:
    query: GetTopic = call.query
    if query.include_authorized_operations:
        raise unsupported("include_authorized_operations")
    return HttpResponse(_shown(call, *topic_of(call, cluster_of(call))))


def _change(call: Call) -> HttpResponse:
    from confluent_kafka.admin import NewPartitions

    body: TopicChange = call.body
    name, found = topic_of(call, demand(call, call.path["topic_name"]))
    if body.partitions_count != len(found.partitions):
        grow = [NewPartitions(name, body.partitions_count)]
        admin = call.account.kafka_admin()
        broker.wait(admin.create_partitions(grow, request_timeout=TIMEOUT_SECONDS)[name], name)
    return HttpResponse(_document(call, name, body.partitions_count, 1))


def _delete(call: Call) -> HttpResponse:
    cluster = demand(call, call.path["topic_name"])
    name, _ = topic_of(call, cluster)
    admin = call.account.kafka_admin()
    broker.wait(admin.delete_topics([name], request_timeout=TIMEOUT_SECONDS)[name], name)
    requests.topic_deleted(call.account.config, name)
    call.account.store.delete(TOPIC, [(cluster, name)])
    return HttpResponse()


def _get_cluster(call: Call) -> HttpResponse:
    name = cluster_of(call)
    base = f"{call.account.url}/kafka/v3/clusters/{name}"
    parts = ("acls", "brokers", "broker-configs", "consumer-groups", "topics")
    related: dict[str, Any] = {
        part.replace("-", "_"): {"related": f"{base}/{part}"} for part in parts
    }
    related["partition_reassignments"] = {"related": f"{base}/topics/-/partitions/-/reassignment"}
    return HttpResponse(resource(call, "KafkaCluster", "", "", related))


def _entries(call: Call, cluster: str) -> tuple[str, dict[str, Any]]:
    name, _ = topic_of(call, cluster)
    return name, dict(sorted(broker.describe(call.account, name).items()))


def _source(entry: Any) -> str:
    from confluent_kafka.admin import ConfigSource

    name = ConfigSource(entry.source).name
    return {"UNKNOWN_CONFIG": "UNKNOWN", "GROUP_CONFIG": "UNKNOWN"}.get(name, name)


def _entry(call: Call, topic: str, entry: Any) -> dict[str, Any]:
    synonyms = sorted((entry.synonyms or {}).values(), key=lambda synonym: int(synonym.source))
    document = {
        "topic_name": topic,
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "is_default": bool(entry.is_default) or _source(entry) != "DYNAMIC_TOPIC_CONFIG",
        "is_read_only": bool(entry.is_read_only),
        "is_sensitive": bool(entry.is_sensitive),
        "source": _source(entry),
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": _source(synonym)}
            for synonym in synonyms
        ],
    }
    return resource(
        call,
        "KafkaTopicConfig",
        f"/topics/{topic}/configs/{entry.name}",
        f"/topic={topic}/config={entry.name}",
        document,
    )


def _configs(call: Call) -> HttpResponse:
    topic, entries = _entries(call, cluster_of(call))
    return resources(
        call, "KafkaTopicConfigList", [_entry(call, topic, entry) for entry in entries.values()]
    )


def _get_config(call: Call) -> HttpResponse:
    topic, entries = _entries(call, cluster_of(call))
    if call.path["name"] not in entries:
        raise Refusal(
            HTTPStatus.NOT_FOUND,
            f"Config {call.path['name']} cannot be found for TOPIC {topic}",
            number=404,
        )
    return HttpResponse(_entry(call, topic, entries[call.path["name"]]))


def _alter(call: Call) -> HttpResponse:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    body: Alterations = call.body
    name, _ = topic_of(call, demand(call, call.path["topic_name"]))
    entries = []
    for change in body.data:
        delete = change.operation == "DELETE" or change.value is None  # back to the default
        kind = AlterConfigOpType.DELETE if delete else AlterConfigOpType.SET
        value = "" if delete else str(change.value)
        entries.append(ConfigEntry(change.name, value, incremental_operation=kind))
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    futures = call.account.kafka_admin().incremental_alter_configs(
        [resource], request_timeout=TIMEOUT_SECONDS, validate_only=body.validate_only
    )
    broker.wait(futures[resource], name)
    return HttpResponse()


_CONFIGS = "/topics/{topic_name}/configs"
OPERATIONS = [
    kafka_operation("GET", "", _get_cluster),
    kafka_operation("GET", "/topics", _list),
    kafka_operation("POST", "/topics", _create, 201, body=NewTopic),
    kafka_operation("GET", "/topics/{topic_name}", _get, query=GetTopic),
    kafka_operation("PATCH", "/topics/{topic_name}", _change, body=TopicChange),
    kafka_operation("DELETE", "/topics/{topic_name}", _delete, 204),
    kafka_operation("GET", _CONFIGS, _configs),
    kafka_operation("POST", _CONFIGS + ":alter", _alter, 204, body=Alterations),
    kafka_operation("GET", _CONFIGS + "/{name}", _get_config),
]
