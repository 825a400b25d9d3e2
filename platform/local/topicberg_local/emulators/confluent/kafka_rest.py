"""``/kafka/v3``: the cluster, and topics with their configurations on the real local broker; access
lists, which it enforces (:mod:`.kafka_gateway`).
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any, Literal

from confluent_kafka import admin as kafka
from pydantic import Field

from topicberg.kafka.topics import TIMEOUT_SECONDS
from topicberg.topics import requests
from topicberg_local.emulators.confluent import broker, clusters, roles
from topicberg_local.emulators.confluent.account import ACL, CLUSTER, TOPIC
from topicberg_local.emulators.confluent.errors import Refusal, Shape, unsupported
from topicberg_local.emulators.confluent.operation import Body, Call, KeyKind, Operation, Query
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
    """The cluster of a request that changes it; raises Refusal: the owner of the key may not."""
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
    """The topic of a request, and its metadata; raises Refusal: there is none."""
    name = call.path["topic_name"]
    found = broker.names(call.account, cluster).get(name)
    if found is None:
        raise broker.unknown(name)
    return name, found


def resource(
    call: Call, kind: str, path: str, crn: str, document: dict[str, Any]
) -> dict[str, Any]:
    """An object as Kafka REST shows it; ``path``: after the cluster's."""
    cluster = call.path["cluster_id"]
    metadata = {
        "self": f"{call.account.url}/kafka/v3/clusters/{cluster}{path}",
        "resource_name": f"crn:///kafka={cluster}{crn}",
    }
    return {"kind": kind, "metadata": metadata, "cluster_id": cluster, **document}


def resources(call: Call, kind: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """A list as Kafka REST shows it: never in pages."""
    return {"kind": kind, "metadata": {"self": call.url, "next": None}, "data": items}


ResourceType = Literal[
    "UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN"
]
PatternType = Literal["UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED"]
AclOperation = Literal[
    "UNKNOWN",
    "ANY",
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
]
Permission = Literal["UNKNOWN", "ANY", "DENY", "ALLOW"]
_CONFIGURED = {"ALL", "CREATE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
_OPERATIONS: dict[str, set[str]] = {
    "TOPIC": {*_CONFIGURED, "READ", "WRITE", "DELETE"},
    "GROUP": {"ALL", "READ", "DELETE", "DESCRIBE"},
    "CLUSTER": {*_CONFIGURED, "CLUSTER_ACTION", "IDEMPOTENT_WRITE"},
    "TRANSACTIONAL_ID": {"ALL", "WRITE", "DESCRIBE"},
}
"""Type of resource → operations that can be allowed on it.

https://docs.confluent.io/cloud/current/security/access-control/acl.html
"""


class Acl(Body):
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class Search(Query):
    resource_type: ResourceType = "ANY"
    resource_name: str = ""
    pattern_type: PatternType = "ANY"
    principal: str = ""
    host: str = ""
    operation: AclOperation = "ANY"
    permission: Permission = "ANY"


class Deletion(Search):
    resource_type: ResourceType
    pattern_type: PatternType
    operation: AclOperation
    permission: Permission


def _fields(stored: Stored) -> dict[str, str]:
    return dict(zip(Acl.model_fields, stored.name[1:], strict=True))


def _acl(call: Call, stored: Stored) -> dict[str, Any]:
    acl = _fields(stored)
    return resource(call, "KafkaAcl", "/acls", f"/acl={acl['principal']}", acl)


def _found(call: Call) -> list[Stored]:
    """Those that the query asks for; MATCH: the literal ones of the name, and its prefixes."""
    wanted = call.query.model_dump()
    name = wanted.pop("resource_name")

    def passes(stored: Stored) -> bool:
        acl = _fields(stored)
        names = {"", acl["resource_name"]}
        if wanted["pattern_type"] == "MATCH":
            is_prefix = acl["pattern_type"] == "PREFIXED" and name.startswith(acl["resource_name"])
            names |= {name} if is_prefix or acl["resource_name"] == "*" else set()
        return (
            stored.name[0] == call.path["cluster_id"]
            and name in names
            and all(value in ("", "ANY", "MATCH", acl[key]) for key, value in wanted.items())
        )

    return call.account.store.all(ACL, passes)


def _create_acl(call: Call) -> None:
    acl: Acl = call.body
    cluster = demand(call)
    for value in (acl.resource_type, acl.pattern_type, acl.operation, acl.permission):
        if value in ("UNKNOWN", "ANY", "MATCH"):
            raise _invalid(f"{value} is for searches only.")
    if acl.resource_type not in _OPERATIONS:
        raise unsupported(f"access lists of the type {acl.resource_type}")
    if acl.operation not in _OPERATIONS[acl.resource_type]:
        raise _invalid(f"{acl.operation} is no operation of the type {acl.resource_type}.")
    if acl.resource_type == "CLUSTER" and acl.resource_name != "kafka-cluster":
        raise _invalid("The only resource of type CLUSTER is kafka-cluster.")
    call.account.store.put(Stored(ACL, (cluster, *acl.model_dump().values())))


def _invalid(text: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, text, number=40002)


def _list_acls(call: Call) -> dict[str, Any]:
    return resources(call, "KafkaAclList", [_acl(call, stored) for stored in _found(call)])


def _delete_acls(call: Call) -> dict[str, Any]:
    demand(call)
    acls = _found(call)
    call.account.store.delete(ACL, [stored.name for stored in acls])
    return {"data": [_acl(call, stored) for stored in acls]}


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
    wanted = kafka.NewTopic(name, body.partitions_count, replication_factor=-1, config=configs)
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
    count: int = call.body.partitions_count
    name, found = topic_of(call, demand(call, call.path["topic_name"]))
    if count != len(found.partitions):
        grow, admin = [kafka.NewPartitions(name, count)], call.account.kafka_admin()
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
    name = kafka.ConfigSource(entry.source).name
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
    body: Alterations = call.body
    name, _ = topic_of(call, demand(call, call.path["topic_name"]))
    entries = []
    for change in body.data:
        delete = change.operation == "DELETE" or change.value is None  # back to the default
        kind = kafka.AlterConfigOpType.DELETE if delete else kafka.AlterConfigOpType.SET
        value = "" if delete else str(change.value)
        entries.append(kafka.ConfigEntry(change.name, value, incremental_operation=kind))
    resource = kafka.ConfigResource(kafka.ResourceType.TOPIC, name, incremental_configs=entries)
    futures = call.account.kafka_admin().incremental_alter_configs(
        [resource], request_timeout=TIMEOUT_SECONDS, validate_only=body.validate_only
    )
    broker.wait(futures[resource], name)


_TOPICS = PATH + "/topics"
_TOPIC = _TOPICS + "/{topic_name}"
OPERATIONS = [
    kafka_operation("GET", PATH + "/acls", _list_acls, query=Search),
    kafka_operation("POST", PATH + "/acls", _create_acl, 201, body=Acl),
    kafka_operation("DELETE", PATH + "/acls", _delete_acls, query=Deletion),
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
