"""``/connect/v1``: Datagen source connectors, which are the local generators.

A connector's topic needs a spec with a generator of the same kind; what the generator cannot do is
refused. Its rate is that of ``max.interval``, or else the spec's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field

from topicberg.datagen.status import ALIVE, read_status
from topicberg.local.confluent import clusters, keys, topics
from topicberg.local.confluent.account import CONNECTOR, SERVICE_ACCOUNT, Account
from topicberg.local.confluent.errors import (
    Refusal,
    Shape,
    bad_request,
    not_found,
    unsupported,
)
from topicberg.local.confluent.operation import Call, KeyKind, Operation
from topicberg.local.confluent.wire import Answer, Body, Query
from topicberg.local.store import Stored
from topicberg.topics import load_topics

PATH = "/connect/v1/environments/{environment_id}/clusters/{kafka_cluster_id}"
PLUGIN = "DatagenSource"
MASK = "****************"
FORMATS = {"AVRO": "avro", "JSON_SR": "json", "PROTOBUF": "protobuf"}
"""``output.data.format`` → the spec's schema format."""
_OF_THE_SERVICE = ("cloud.environment", "cloud.provider", "kafka.endpoint", "kafka.region")
"""In every answer; whoever sends them back changes nothing."""
_SECRETS = ("kafka.api.key", "kafka.api.secret")
_KNOWN = (
    *("connector.class", "name", "kafka.auth.mode", "kafka.service.account.id", *_SECRETS),
    *("kafka.topic", "output.data.format", "quickstart", "max.interval", "tasks.max"),
    *("confluent.connector.type", *_OF_THE_SERVICE),
)
Configuration = dict[str, str]
Complain = Callable[[str, str], None]
"""Takes a field, and what is wrong with it."""


class Offset(Body):
    partition: dict[str, Any] = Field(default={})
    offset: dict[str, Any] = Field(default={})


class NewConnector(Body):
    name: str = Field(min_length=1)
    config: Configuration
    offsets: list[Offset] = Field(default=[])


class ListQuery(Query):
    expand: Annotated[str, Field(pattern=r"^(id|info|status)(,(id|info|status))*$")] = ""


# --- configurations ---


def _complaints(account: Account, cluster: Stored, config: Configuration) -> dict[str, list[str]]:
    """Field → what is wrong with it; a field that is not there can be wrong too."""
    wrong: dict[str, list[str]] = {}

    def complain(field: str, text: str) -> None:
        wrong.setdefault(field, []).append(text)

    for field in ("connector.class", "name", "kafka.topic", "output.data.format", "quickstart"):
        if not config.get(field):
            complain(field, f"{field} is required")
    for field in config:
        if field not in _KNOWN:
            complain(field, "not supported by the local Confluent stand-in")
    if config.get("confluent.connector.type", "MANAGED") != "MANAGED":
        complain("confluent.connector.type", "the local Confluent stand-in has managed ones only")
    if config.get("tasks.max") != "1":
        complain("tasks.max", "it must be 1: the local generator is one task")
    interval = config.get("max.interval", "1")
    if not interval.isdecimal() or int(interval) < 1:
        complain("max.interval", f"{interval} is no number of milliseconds")
    _check_identity(account, cluster, config, complain)
    _check_topic(account, cluster, config, complain)
    return wrong


def _check_identity(
    account: Account, cluster: Stored, config: Configuration, complain: Any
) -> None:
    mode = config.get("kafka.auth.mode", "KAFKA_API_KEY")
    if mode == "SERVICE_ACCOUNT":
        name = config.get("kafka.service.account.id", "")
        if account.store.get(SERVICE_ACCOUNT, (name,)) is None:
            complain("kafka.service.account.id", f"there is no service account '{name}'")
    elif mode == "KAFKA_API_KEY":
        key, secret = (config.get(field, "") for field in _SECRETS)
        if secret != MASK and not keys.opens(account, key, secret, cluster.name[0]):
            complain("kafka.api.key", "no API key of this Kafka cluster, or its secret is wrong")
    else:
        complain("kafka.auth.mode", f"{mode} is neither KAFKA_API_KEY nor SERVICE_ACCOUNT")


def _check_topic(
    account: Account, cluster: Stored, config: Configuration, complain: Complain
) -> None:
    topic, kind = config.get("kafka.topic"), config.get("quickstart", "")
    if not topic or not kind:
        return
    spec = {one.name: one for one in load_topics(account.config)}.get(topic)
    if spec is None or spec.generator is None:
        complain("kafka.topic", f"the local generator needs a spec of {topic} with a generator")
        return
    if topic not in topics.names(account, cluster.name[0]):
        complain("kafka.topic", f"the topic {topic} does not exist")
    if kind.lower() != spec.generator.kind:
        complain(
            "quickstart", f"the spec of {topic} generates {spec.generator.kind.upper()}, not {kind}"
        )
    wanted = config.get("output.data.format", "")
    if FORMATS.get(wanted) != spec.value_schema.format:
        complain(
            "output.data.format",
            f"the spec of {topic} has the format {spec.value_schema.format}, not {wanted}",
        )


def _refuse_wrong(account: Account, cluster: Stored, name: str, config: Configuration) -> None:
    """:raises Refusal: the configuration cannot be; another connector has its topic"""
    if config.get("connector.class", PLUGIN) != PLUGIN:
        raise unsupported(f"the connector class {config['connector.class']}; there is {PLUGIN}")
    wrong = _complaints(account, cluster, config)
    if config.get("name") != name:
        wrong.setdefault("name", []).append(f"it is '{config.get('name')}', not '{name}'")
    if wrong:
        raise bad_request("; ".join(f"{key}: {' '.join(texts)}" for key, texts in wrong.items()))
    for other in account.find(CONNECTOR, lambda one: one["topic"] == config["kafka.topic"]):
        if other.name != (cluster.name[0], name):
            raise unsupported(f"two connectors on one topic: {other.name[1]} and {name}")


def _shown(account: Account, cluster: Stored, config: Configuration) -> dict[str, str]:
    """As the service answers it: secrets masked, its own fields added."""
    return {
        **config,
        "cloud.environment": "prod",
        "cloud.provider": cluster.properties["spec"]["cloud"].lower(),
        "kafka.endpoint": f"PLAINTEXT://{account.endpoints().kafka_bootstrap}",
        "kafka.region": cluster.properties["spec"]["region"],
        "kafka.api.key": MASK,
        "kafka.api.secret": MASK,
    }


def _kept(config: Configuration) -> Configuration:
    """What is stored: neither key nor secret; the generator needs none."""
    return {key: value for key, value in config.items() if key not in (*_OF_THE_SERVICE, *_SECRETS)}


# --- states ---


def state(account: Account, connector: Stored) -> tuple[str, str]:
    """State and trace, as the service names them."""
    properties = connector.properties
    if properties["paused"]:
        return "PAUSED", ""
    if time.time() < properties["started"] + account.delays.connector:
        return "PROVISIONING", ""
    status = read_status(account.config, properties["topic"])
    if status is not None and status.state in ALIVE:
        return ("RUNNING" if status.state == "running" else "PROVISIONING"), ""
    if properties["trace"]:
        return "FAILED", properties["trace"]
    return "PROVISIONING", ""


def _status(account: Account, connector: Stored) -> dict[str, Any]:
    name = connector.name[1]
    now, trace = state(account, connector)
    tasks = [{"id": 0, "state": now, "worker_id": name, "msg": trace}]
    return {
        "name": name,
        "type": "source",
        "connector": {"state": now, "worker_id": name, "trace": trace},
        "tasks": [] if now == "PROVISIONING" else tasks,
    }


# --- requests ---


def _cluster(call: Call) -> Stored:
    cluster = clusters.require(
        call.account, call.path["environment_id"], call.path["kafka_cluster_id"]
    )
    clusters.require_main(call.account, cluster.name[0], "connectors")
    return cluster


def _require(call: Call) -> tuple[Stored, Stored]:
    """Cluster and connector."""
    cluster = _cluster(call)
    name = call.path["connector_name"]
    found = call.account.store.get(CONNECTOR, (cluster.name[0], name))
    if found is None:
        raise not_found(f"Connector {name}")
    return cluster, found


def _info(account: Account, cluster: Stored, connector: Stored) -> dict[str, Any]:
    name = connector.name[1]
    return {
        "name": name,
        "config": _shown(account, cluster, connector.properties["config"]),
        "tasks": [{"connector": name, "task": 0}],
        "type": "source",
    }


def _create(call: Call) -> Answer:
    body: NewConnector = call.body
    account = call.account
    cluster = _cluster(call)
    if body.offsets:
        raise unsupported("offsets of a new connector")
    if account.store.get(CONNECTOR, (cluster.name[0], body.name)):
        raise Refusal(HTTPStatus.CONFLICT, f"A connector named {body.name} exists already.")
    _refuse_wrong(account, cluster, body.name, body.config)
    properties = {
        "id": account.new_id(CONNECTOR, "lcc"),
        "environment": cluster.properties["environment"],
        "cluster": cluster.name[0],
        "config": _kept(body.config),
        "topic": body.config["kafka.topic"],
        "paused": False,
        "started": time.time(),
        "trace": "",
    }
    stored = Stored(CONNECTOR, (cluster.name[0], body.name), properties)
    account.store.put(stored)
    call.generators.wake()
    return Answer({**_info(account, cluster, stored), "tasks": []})


def _list(call: Call) -> Answer:
    query: ListQuery = call.query
    account = call.account
    cluster = _cluster(call)
    found = account.find(CONNECTOR, lambda one: one["cluster"] == cluster.name[0])
    if not query.expand:
        return Answer([connector.name[1] for connector in found])
    expanded = query.expand.split(",")
    answer = {}
    for connector in found:
        parts: dict[str, Any] = {
            "id": {"id": connector.properties["id"], "id_type": "ID"},
            "info": _info(account, cluster, connector),
            "status": _status(account, connector),
        }
        answer[connector.name[1]] = {part: parts[part] for part in expanded}
    return Answer(answer)


def _get(call: Call) -> Answer:
    return Answer(_info(call.account, *_require(call)))


def _get_config(call: Call) -> Answer:
    cluster, connector = _require(call)
    return Answer(_shown(call.account, cluster, connector.properties["config"]))


def _get_status(call: Call) -> Answer:
    return Answer(_status(call.account, _require(call)[1]))


def _get_tasks(call: Call) -> Answer:
    cluster, connector = _require(call)
    task = {
        "id": {"connector": connector.name[1], "task": 0},
        "config": _shown(call.account, cluster, connector.properties["config"]),
    }
    return Answer([task])


def _put_config(call: Call) -> Answer:
    config: Configuration = call.body
    account = call.account
    cluster, connector = _require(call)
    name = connector.name[1]
    _refuse_wrong(account, cluster, name, config)
    call.generators.end(connector)
    connector.properties |= {
        "config": _kept(config),
        "topic": config["kafka.topic"],
        "started": time.time(),
        "trace": "",
    }
    account.store.put(connector)
    call.generators.wake()
    return Answer(_info(account, cluster, connector))


def _pause(call: Call) -> Answer:
    _, connector = _require(call)
    connector.properties["paused"] = True
    call.account.store.put(connector)
    call.generators.end(connector)
    return Answer()


def _resume(call: Call) -> Answer:
    _, connector = _require(call)
    connector.properties |= {"paused": False, "started": time.time(), "trace": ""}
    call.account.store.put(connector)
    call.generators.wake()
    return Answer()


def _delete(call: Call) -> Answer:
    _, connector = _require(call)
    connector.properties["paused"] = True
    call.account.store.put(connector)
    call.generators.end(connector)
    call.account.store.delete(CONNECTOR, [connector.name])
    return Answer({"error": None})


def _plugins(call: Call) -> Answer:
    _cluster(call)
    return Answer([{"class": PLUGIN, "type": "source", "version": "0.1.0"}])


def _validate(call: Call) -> Answer:
    """Every field with its value and what is wrong with it."""
    config: Configuration = call.body
    cluster = _cluster(call)
    if call.path["plugin_name"] != PLUGIN:
        raise unsupported(f"the connector plugin {call.path['plugin_name']}; there is {PLUGIN}")
    wrong = _complaints(call.account, cluster, config)
    if config.get("connector.class", PLUGIN) != PLUGIN:
        wrong.setdefault("connector.class", []).append(f"it must be {PLUGIN}")
    fields = [*dict.fromkeys([*_KNOWN, *config])]
    return Answer(
        {
            "name": PLUGIN,
            "groups": ["Connector"],
            "error_count": sum(len(texts) for texts in wrong.values()),
            "configs": [
                _validated(field, number, config.get(field), wrong.get(field, []))
                for number, field in enumerate(fields)
            ],
        }
    )


def _validated(field: str, order: int, value: str | None, errors: list[str]) -> dict[str, Any]:
    secret = field in _SECRETS
    return {
        "definition": {
            "name": field,
            "type": "PASSWORD" if secret else "STRING",
            "required": field in ("name", "connector.class", "kafka.topic", "quickstart"),
            "default_value": "",
            "importance": "HIGH",
            "documentation": "",
            "group": "Connector",
            "width": "NONE",
            "display_name": field,
            "dependents": [],
            "order": order,
            "alias": "",
        },
        "value": {
            "name": field,
            "value": MASK if secret and value else value or "",
            "recommended_values": [],
            "errors": errors,
            "visible": True,
        },
        "metadata": {},
    }


def _operation(method: str, path: str, handler: Any, success: int = 200, **more: Any) -> Operation:
    return Operation(
        method,
        PATH + path,
        handler,
        success,
        key=KeyKind.CLOUD,
        shape=Shape.CONNECT,
        rated=False,
        invalid_is_400=True,
        **more,
    )


_ONE = "/connectors/{connector_name}"
OPERATIONS = [
    _operation("GET", "/connectors", _list, query=ListQuery),
    _operation("POST", "/connectors", _create, 201, body=NewConnector),
    _operation("GET", _ONE, _get),
    _operation("DELETE", _ONE, _delete),
    _operation("GET", _ONE + "/config", _get_config),
    _operation("PUT", _ONE + "/config", _put_config, body=Configuration),
    _operation("GET", _ONE + "/status", _get_status),
    _operation("GET", _ONE + "/tasks", _get_tasks),
    _operation("PUT", _ONE + "/pause", _pause, 202),
    _operation("PUT", _ONE + "/resume", _resume, 202),
    _operation("GET", "/connector-plugins", _plugins),
    _operation(
        "PUT", "/connector-plugins/{plugin_name}/config/validate", _validate, body=Configuration
    ),
]
