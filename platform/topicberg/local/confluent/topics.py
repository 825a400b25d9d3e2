"""``/kafka/v3``: topics on the real local broker.

All clusters are on one broker. The main one (``cluster_id`` of the settings) has every topic that
no other cluster made, be it from here or not; a topic's name is taken in all of them.
"""

from __future__ import annotations

from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Literal, TypeVar

from pydantic import Field

from topicberg.errors import TopicbergError
from topicberg.kafka import TIMEOUT_SECONDS
from topicberg.local.confluent import clusters, roles
from topicberg.local.confluent.account import CLUSTER, TOPIC, Account
from topicberg.local.confluent.errors import Refusal, Shape, unsupported
from topicberg.local.confluent.operation import Call, KeyKind, Operation
from topicberg.local.confluent.wire import Answer, Body, Query
from topicberg.local.store import Stored

PATH = "/kafka/v3/clusters/{cluster_id}"
DEFAULT_PARTITIONS = 6
"""Confluent Cloud's, not the broker's."""
CLOUD_REPLICATION = 3
"""The only factor that Confluent Cloud takes; the local broker keeps as many as it can: one."""

T = TypeVar("T")


class Config(Body):
    name: str
    value: str | None = None


class NewTopic(Body):
    topic_name: str
    partitions_count: int = Field(default=DEFAULT_PARTITIONS, ge=1)
    replication_factor: int = CLOUD_REPLICATION
    configs: list[Config] = Field(default=[])
    validate_only: bool = False


class TopicChange(Body):
    partitions_count: int = Field(ge=1)


class Alteration(Config):
    operation: Literal["SET", "DELETE"] | None = None


class Alterations(Body):
    data: list[Alteration]
    validate_only: bool = False


class ConfigValue(Body):
    value: str | None = None


class GetTopic(Query):
    include_authorized_operations: bool = False


# --- the broker ---


def names(account: Account, cluster: str) -> dict[str, Any]:
    """The topics of a cluster, with the broker's metadata. Kafka's own are not shown.

    :raises Refusal: the broker does not answer
    """
    from confluent_kafka import KafkaException

    owners = {stored.name[1]: stored.name[0] for stored in account.store.all(TOPIC)}
    try:
        found = account.kafka_admin().list_topics(timeout=TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise _refusal(error, "the topics") from error
    main = account.config.cluster_id
    return {
        name: found[name]
        for name in sorted(found)
        if not name.startswith("__") and owners.get(name, main) == cluster
    }


def cleanup_policy(account: Account, topic: str) -> str:
    """``cleanup.policy`` of a topic.

    :raises Refusal: there is no such topic
    """
    return str(_describe(account, topic)["cleanup.policy"].value)


def _describe(account: Account, topic: str) -> dict[str, Any]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    what = ConfigResource(ResourceType.TOPIC, topic)
    admin = account.kafka_admin()
    return _wait(admin.describe_configs([what], request_timeout=TIMEOUT_SECONDS)[what], topic)


def delete_all(account: Account, cluster: str) -> None:
    """Delete the topics that were made through this API in a cluster.

    :raises Refusal: the broker does not answer
    """
    made = [stored.name[1] for stored in account.store.all(TOPIC) if stored.name[0] == cluster]
    for name in made:
        try:
            _wait(account.kafka_admin().delete_topics([name])[name], name)
        except Refusal as refusal:
            if refusal.status is not HTTPStatus.NOT_FOUND:
                raise
        account.store.delete(TOPIC, [(cluster, name)])


def _wait(future: Future[T], what: str) -> T:
    """:raises Refusal: the broker refuses, or does not answer"""
    from confluent_kafka import KafkaException

    try:
        return future.result(TIMEOUT_SECONDS)
    except KafkaException as error:
        raise _refusal(error, what) from error
    except TimeoutError:
        raise TopicbergError(f"Kafka does not answer ({what})") from None


def _refusal(error: Exception, what: str) -> Exception:
    from confluent_kafka import KafkaError

    reason = error.args[0]
    if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return _unknown(what)
    if reason.code() < 0:  # librdkafka's own: no connection, no answer in time
        return TopicbergError(f"Kafka does not answer ({what}): {reason.str()}")
    text = f"Topic '{what}' already exists." if reason.name() == "TOPIC_ALREADY_EXISTS" else ""
    return Refusal(HTTPStatus.BAD_REQUEST, text or reason.str(), number=40002)


def _unknown(topic: str) -> Refusal:
    return Refusal(
        HTTPStatus.NOT_FOUND,
        f"This server does not host this topic-partition: {topic}",
        number=40403,
    )


# --- requests ---


def _cluster(call: Call) -> str:
    """The cluster of a request; the key says already that it is there."""
    name = call.path["cluster_id"]
    stored = call.account.store.get(CLUSTER, (name,))
    if stored is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"Cluster {name} cannot be found.", number=40401)
    if call.path.get("topic_name") == "-":
        raise unsupported("the configurations of all topics at once")
    return name


def demand(call: Call, topic: str | None = None) -> str:
    """The cluster of a request that changes something.

    :raises Refusal: the owner of the key may not
    """
    name = _cluster(call)
    stored = call.account.store.get(CLUSTER, (name,))
    assert stored is not None  # noqa: S101
    crn = clusters.rbac_crn(call.account, stored)
    owned = f"{crn}/kafka={name}/topic={topic}"
    if topic is None or not roles.honours(
        call.account, call.caller.principal, ("ResourceOwner", "DeveloperManage"), owned
    ):
        roles.demand(call.account, call.caller.principal, roles.ADMINS, crn)
    return name


def _topic(call: Call, cluster: str) -> tuple[str, Any]:
    """The topic of a request, and its metadata.

    :raises Refusal: there is none
    """
    name = call.path["topic_name"]
    found = names(call.account, cluster).get(name)
    if found is None:
        raise _unknown(name)
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


def resources(call: Call, kind: str, found: list[dict[str, Any]]) -> Answer:
    """A list as Kafka REST shows it: never in pages."""
    return Answer({"kind": kind, "metadata": {"self": call.url, "next": None}, "data": found})


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
    found = names(call.account, _cluster(call))
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
    try:
        _wait(
            account.kafka_admin().create_topics(
                [wanted], request_timeout=TIMEOUT_SECONDS, validate_only=body.validate_only
            )[name],
            name,
        )
    except Refusal:
        if new:
            account.store.delete(TOPIC, [(cluster, name)])
        raise
    return Answer(_document(call, name, body.partitions_count, 1))


def _get(call: Call) -> Answer:
    query: GetTopic = call.query
    if query.include_authorized_operations:
        raise unsupported("include_authorized_operations: the local broker has no access lists")
    return Answer(_shown(call, *_topic(call, _cluster(call))))


def _change(call: Call) -> Answer:
    from confluent_kafka.admin import NewPartitions

    body: TopicChange = call.body
    name, found = _topic(call, demand(call, call.path["topic_name"]))
    if body.partitions_count != len(found.partitions):
        grow = [NewPartitions(name, body.partitions_count)]
        admin = call.account.kafka_admin()
        _wait(admin.create_partitions(grow, request_timeout=TIMEOUT_SECONDS)[name], name)
    return Answer(_document(call, name, body.partitions_count, 1))


def _delete(call: Call) -> Answer:
    cluster = demand(call, call.path["topic_name"])
    name, _ = _topic(call, cluster)
    admin = call.account.kafka_admin()
    _wait(admin.delete_topics([name], request_timeout=TIMEOUT_SECONDS)[name], name)
    call.account.store.delete(TOPIC, [(cluster, name)])
    return Answer()


# --- a topic's configuration ---


def _entries(call: Call, cluster: str) -> tuple[str, dict[str, Any]]:
    name, _ = _topic(call, cluster)
    return name, dict(sorted(_describe(call.account, name).items()))


def _source(entry: Any) -> str:
    from confluent_kafka.admin import ConfigSource

    name = ConfigSource(entry.source).name
    return {"UNKNOWN_CONFIG": "UNKNOWN", "GROUP_CONFIG": "UNKNOWN"}.get(name, name)


def _entry(call: Call, topic: str, entry: Any) -> dict[str, Any]:
    synonyms = sorted((entry.synonyms or {}).values(), key=lambda one: int(one.source))
    document = {
        "topic_name": topic,
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "is_default": bool(entry.is_default) or _source(entry) != "DYNAMIC_TOPIC_CONFIG",
        "is_read_only": bool(entry.is_read_only),
        "is_sensitive": bool(entry.is_sensitive),
        "source": _source(entry),
        "synonyms": [
            {"name": one.name, "value": one.value, "source": _source(one)} for one in synonyms
        ],
    }
    return resource(
        call,
        "KafkaTopicConfig",
        f"/topics/{topic}/configs/{entry.name}",
        f"/topic={topic}/config={entry.name}",
        document,
    )


def _configs(call: Call) -> Answer:
    topic, entries = _entries(call, _cluster(call))
    return resources(
        call, "KafkaTopicConfigList", [_entry(call, topic, entry) for entry in entries.values()]
    )


def _get_config(call: Call) -> Answer:
    topic, entries = _entries(call, _cluster(call))
    if call.path["name"] not in entries:
        raise Refusal(
            HTTPStatus.NOT_FOUND,
            f"Config {call.path['name']} cannot be found for TOPIC {topic}",
            number=404,
        )
    return Answer(_entry(call, topic, entries[call.path["name"]]))


def _alter(call: Call, changes: dict[str, str | None], validate_only: bool = False) -> Answer:
    """:param changes: None: back to the default"""
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    name, _ = _topic(call, demand(call, call.path["topic_name"]))
    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for key, value in changes.items()
    ]
    what = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin = call.account.kafka_admin()
    futures = admin.incremental_alter_configs(
        [what], request_timeout=TIMEOUT_SECONDS, validate_only=validate_only
    )
    _wait(futures[what], name)
    return Answer()


def _alter_configs(call: Call) -> Answer:
    body: Alterations = call.body
    changes = {one.name: None if one.operation == "DELETE" else one.value for one in body.data}
    return _alter(call, changes, body.validate_only)


def _put_config(call: Call) -> Answer:
    body: ConfigValue = call.body
    return _alter(call, {call.path["name"]: body.value})


def _reset_config(call: Call) -> Answer:
    return _alter(call, {call.path["name"]: None})


def _get_cluster(call: Call) -> Answer:
    name = _cluster(call)
    base = f"{call.account.url}/kafka/v3/clusters/{name}"
    parts = ("acls", "brokers", "broker-configs", "consumer-groups", "topics")
    related: dict[str, Any] = {
        part.replace("-", "_"): {"related": f"{base}/{part}"} for part in parts
    }
    related["partition_reassignments"] = {"related": f"{base}/topics/-/partitions/-/reassignment"}
    return Answer(resource(call, "KafkaCluster", "", "", related))


def kafka_operation(
    method: str, path: str, handler: Any, success: int = 200, **more: Any
) -> Operation:
    """An operation of Kafka REST.

    :param path: after the cluster's
    """
    return Operation(
        method,
        PATH + path,
        handler,
        success,
        key=KeyKind.KAFKA,
        shape=Shape.KAFKA,
        rated=False,
        invalid_is_400=True,
        **more,
    )


OPERATIONS = [
    kafka_operation("GET", "", _get_cluster),
    kafka_operation("GET", "/topics", _list),
    kafka_operation("POST", "/topics", _create, 201, body=NewTopic),
    kafka_operation("GET", "/topics/{topic_name}", _get, query=GetTopic),
    kafka_operation("PATCH", "/topics/{topic_name}", _change, body=TopicChange),
    kafka_operation("DELETE", "/topics/{topic_name}", _delete, 204),
    kafka_operation("GET", "/topics/{topic_name}/configs", _configs),
    kafka_operation(
        "POST", "/topics/{topic_name}/configs:alter", _alter_configs, 204, body=Alterations
    ),
    kafka_operation("GET", "/topics/{topic_name}/configs/{name}", _get_config),
    kafka_operation(
        "PUT", "/topics/{topic_name}/configs/{name}", _put_config, 204, body=ConfigValue
    ),
    kafka_operation("DELETE", "/topics/{topic_name}/configs/{name}", _reset_config, 204),
]
