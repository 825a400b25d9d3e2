"""Configurations of Datagen connectors: what is wrong with one, and how it is kept and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topicberg.topics import check_topics
from topicberg_local.emulators.confluent import broker, keys
from topicberg_local.emulators.confluent.account import SERVICE_ACCOUNT, Account
from topicberg_local.emulators.confluent.connector_rights import unseen_cluster
from topicberg_local.emulators.store import Stored

PLUGIN = "DatagenSource"
MASK = "****************"
FORMATS = {"AVRO": "avro", "JSON_SR": "json", "PROTOBUF": "protobuf"}
"""``output.data.format`` → the spec's schema format."""
_OF_THE_SERVICE = ("cloud.environment", "cloud.provider", "kafka.endpoint", "kafka.region")
"""In every answer; whoever sends them back changes nothing."""
_SECRETS = ("kafka.api.key", "kafka.api.secret")
_KNOWN = (
    "connector.class",
    "name",
    "kafka.auth.mode",
    "kafka.service.account.id",
    *_SECRETS,
    "kafka.topic",
    "output.data.format",
    "quickstart",
    "max.interval",
    "tasks.max",
    "confluent.connector.type",
    *_OF_THE_SERVICE,
)
Configuration = dict[str, str]
Complain = Callable[[str, str], None]
"""Takes a field, and what is wrong with it."""


def complaints(account: Account, cluster: Stored, config: Configuration) -> dict[str, list[str]]:
    """Field → what is wrong with it; a field that is not there can be wrong too."""
    wrong: dict[str, list[str]] = {}

    def complain(field: str, text: str) -> None:
        wrong.setdefault(field, []).append(text)

    for field in ("connector.class", "name", "kafka.topic", "output.data.format", "quickstart"):
        if not config.get(field):
            complain(field, f"{field} is required")
    for field in config:
        if field not in _KNOWN:
            complain(field, "not supported by the local Confluent emulator")
    if config.get("confluent.connector.type", "MANAGED") != "MANAGED":
        complain("confluent.connector.type", "the local Confluent emulator has managed ones only")
    for field, default, least in (("tasks.max", "", 1), ("max.interval", "1000", 10)):
        value = config.get(field, default)
        if not value.isdecimal() or int(value) < least:
            complain(field, f"{value!r} is not a number from {least}")
    _check_identity(account, cluster, config, complain)
    _check_topic(account, cluster, config, complain)
    return wrong


def _check_identity(
    account: Account, cluster: Stored, config: Configuration, complain: Complain
) -> None:
    mode = config.get("kafka.auth.mode", "KAFKA_API_KEY")
    if mode == "SERVICE_ACCOUNT":
        name = config.get("kafka.service.account.id", "")
        environment = cluster.properties["environment"]
        if account.store.get(SERVICE_ACCOUNT, (name,)) is None:
            complain("kafka.service.account.id", f"there is no service account '{name}'")
        elif unseen := unseen_cluster(account, environment, cluster.name[0], name):
            complain("kafka.service.account.id", unseen)
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
    spec = {topic_spec.name: topic_spec for topic_spec in check_topics(account.config)[0]}.get(
        topic
    )
    if spec is None or spec.generator is None:
        complain("kafka.topic", f"the local generator needs a spec of {topic} with a generator")
        return
    if topic not in broker.names(account, cluster.name[0]):
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


def shown(account: Account, cluster: Stored, config: Configuration) -> dict[str, str]:
    """As the service answers it: secrets masked, its own fields added."""
    return {
        **config,
        "cloud.environment": "prod",
        "cloud.provider": cluster.properties["spec"]["cloud"].lower(),
        "kafka.endpoint": f"SASL_PLAINTEXT://{account.kafka}",
        "kafka.region": cluster.properties["spec"]["region"],
        "kafka.api.key": MASK,
        "kafka.api.secret": MASK,
    }


def kept(config: Configuration) -> Configuration:
    """What is stored: neither key nor secret; the generator needs none."""
    return {key: value for key, value in config.items() if key not in (*_OF_THE_SERVICE, *_SECRETS)}


def validated(account: Account, cluster: Stored, config: Configuration) -> dict[str, Any]:
    """Every field with its value and what is wrong with it."""
    wrong = complaints(account, cluster, config)
    if config.get("connector.class", PLUGIN) != PLUGIN:
        wrong.setdefault("connector.class", []).append(f"it must be {PLUGIN}")
    fields = [*dict.fromkeys([*_KNOWN, *config])]
    return {
        "name": PLUGIN,
        "groups": ["Connector"],
        "error_count": sum(len(texts) for texts in wrong.values()),
        "configs": [
            _validated(field, number, config.get(field), wrong.get(field, []))
            for number, field in enumerate(fields)
        ],
    }


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
