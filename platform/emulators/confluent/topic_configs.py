"""``/kafka/v3/…/configs``: the configuration of topics."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from emulators.confluent import broker
from emulators.confluent.errors import Refusal
from emulators.confluent.kafka_rest import (
    cluster_of,
    demand,
    kafka_operation,
    resource,
    resources,
    topic_of,
)
from emulators.confluent.operation import Call
from emulators.confluent.wire import Answer, Body
from topicberg.kafka import TIMEOUT_SECONDS


class Config(Body):
    name: str
    value: str | None = None


class Alteration(Config):
    operation: Literal["SET", "DELETE"] | None = None


class Alterations(Body):
    data: list[Alteration]
    validate_only: bool = False


class ConfigValue(Body):
    value: str | None = None


def _entries(call: Call, cluster: str) -> tuple[str, dict[str, Any]]:
    name, _ = topic_of(call, cluster)
    return name, dict(sorted(broker.describe(call.account, name).items()))


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
    topic, entries = _entries(call, cluster_of(call))
    return resources(
        call, "KafkaTopicConfigList", [_entry(call, topic, entry) for entry in entries.values()]
    )


def _get_config(call: Call) -> Answer:
    topic, entries = _entries(call, cluster_of(call))
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

    name, _ = topic_of(call, demand(call, call.path["topic_name"]))
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
    broker.wait(futures[what], name)
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


_ALL = "/topics/{topic_name}/configs"
_ONE = _ALL + "/{name}"
OPERATIONS = [
    kafka_operation("GET", _ALL, _configs),
    kafka_operation("POST", _ALL + ":alter", _alter_configs, 204, body=Alterations),
    kafka_operation("GET", _ONE, _get_config),
    kafka_operation("PUT", _ONE, _put_config, 204, body=ConfigValue),
    kafka_operation("DELETE", _ONE, _reset_config, 204),
]
