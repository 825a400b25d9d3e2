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
    PATH,
    cluster_of,
    demand,
    kafka_operation,
    resource,
    resources,
    topic_of,
)
from topicberg_local.emulators.confluent.operation import Body, Call, Query
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
    document = {
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


def _list(call: Call) -> dict[str, Any]:
    topics = broker.names(call.account, cluster_of(call).name[0])
    documents = [_shown(call, name, topic) for name, topic in topics.items()]
    return resources(call, "KafkaTopicList", documents)


def _create(call: Call) -> dict[str, Any]:
    from confluent_kafka.admin import NewTopic as Wanted

    body: NewTopic = call.body
    account, name = call.account, body.topic_name
    cluster = demand(call, name)
    if body.replication_factor not in (1, CLOUD_REPLICATION):
        raise Refusal(HTTPStatus.BAD_REQUEST, "Replication factor must be 3.", number=40002)
    for other in account.store.all(TOPIC):
        if other.name[1] == name and other.name[0] != cluster:
            raise unsupported(
                f"the topic {name} in {cluster}: all clusters are on one broker, and"
                f" {other.name[0]} has a topic of that name"
            )
    configs = {setting.name: setting.value for setting in body.configs if setting.value is not None}
    wanted = Wanted(name, body.partitions_count, replication_factor=-1, config=configs)
    # First ours, then the broker's: what is made by halves is seen, and made again.
    new = account.store.get(TOPIC, (cluster, name)) is None
    if new and not body.validate_only:
        account.store.put(Stored(TOPIC, (cluster, name)))
    timeout, dry = TIMEOUT_SECONDS, body.validate_only
    admin = account.kafka_admin()
    try:
        made = admin.create_topics([wanted], request_timeout=timeout, validate_only=dry)
        broker.wait(made[name], name)
    except Refusal:
        if new:
            account.store.delete(TOPIC, [(cluster, name)])
        raise
    if not dry:
        requests.topic_created(account.config, name)
    return _document(call, name, body.partitions_count, 1)


def _get(call: Call) -> dict[str, Any]:
    if call.query.include_authorized_operations:
        raise unsupported("include_authorized_operations")
    return _shown(call, *topic_of(call, cluster_of(call).name[0]))


def _change(call: Call) -> dict[str, Any]:
    from confluent_kafka.admin import NewPartitions

    count: int = call.body.partitions_count
    name, found = topic_of(call, demand(call, call.path["topic_name"]))
    if count != len(found.partitions):
        grow, admin = [NewPartitions(name, count)], call.account.kafka_admin()
        broker.wait(admin.create_partitions(grow, request_timeout=TIMEOUT_SECONDS)[name], name)
    return _document(call, name, count, 1)


def _delete(call: Call) -> None:
    cluster = demand(call, call.path["topic_name"])
    name, _ = topic_of(call, cluster)
    admin = call.account.kafka_admin()
    broker.wait(admin.delete_topics([name], request_timeout=TIMEOUT_SECONDS)[name], name)
    requests.topic_deleted(call.account.config, name)
    call.account.store.delete(TOPIC, [(cluster, name)])


def _get_cluster(call: Call) -> dict[str, Any]:
    base = f"{call.account.url}/kafka/v3/clusters/{cluster_of(call).name[0]}"
    parts = ("acls", "brokers", "broker-configs", "consumer-groups", "topics")
    related = {part.replace("-", "_"): {"related": f"{base}/{part}"} for part in parts}
    related["partition_reassignments"] = {"related": f"{base}/topics/-/partitions/-/reassignment"}
    return resource(call, "KafkaCluster", "", "", related)


def _entries(call: Call) -> tuple[str, dict[str, Any]]:
    name, _ = topic_of(call, cluster_of(call).name[0])
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
    path, crn = f"/topics/{topic}/configs/{entry.name}", f"/topic={topic}/config={entry.name}"
    return resource(call, "KafkaTopicConfig", path, crn, document)


def _configs(call: Call) -> dict[str, Any]:
    topic, entries = _entries(call)
    documents = [_entry(call, topic, entry) for entry in entries.values()]
    return resources(call, "KafkaTopicConfigList", documents)


def _get_config(call: Call) -> dict[str, Any]:
    (topic, entries), name = _entries(call), call.path["name"]
    if name not in entries:
        text = f"Config {name} cannot be found for TOPIC {topic}"
        raise Refusal(HTTPStatus.NOT_FOUND, text, number=404)
    return _entry(call, topic, entries[name])


def _alter(call: Call) -> None:
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


_TOPICS = PATH + "/topics"
_TOPIC = _TOPICS + "/{topic_name}"
OPERATIONS = [
    kafka_operation("GET", PATH, _get_cluster),
    kafka_operation("GET", _TOPICS, _list),
    kafka_operation("POST", _TOPICS, _create, 201, body=NewTopic),
    kafka_operation("GET", _TOPIC, _get, query=GetTopic),
    kafka_operation("PATCH", _TOPIC, _change, body=TopicChange),
    kafka_operation("DELETE", _TOPIC, _delete, 204),
    kafka_operation("GET", _TOPIC + "/configs", _configs),
    kafka_operation("POST", _TOPIC + "/configs:alter", _alter, 204, body=Alterations),
    kafka_operation("GET", _TOPIC + "/configs/{name}", _get_config),
]
