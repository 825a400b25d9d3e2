"""Datagen connectors: what is wrong with a configuration, how it is kept and shown, and what the
connector's service account must be allowed, without which the connector fails.

https://docs.confluent.io/cloud/current/connectors/service-account.html
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from topicberg.topics import check_topics
from topicberg_local.emulators.confluent import broker, clusters, keys, roles, subjects
from topicberg_local.emulators.confluent.account import (
    ACL,
    CONNECTOR,
    KEY,
    SERVICE_ACCOUNT,
    Account,
)
from topicberg_local.emulators.store import Stored

Configuration = dict[str, str]
Complaints = dict[str, list[str]]
"""Field → what is wrong with it; a field that is not there can be wrong too."""
PLUGIN = "DatagenSource"
MASK = "****************"
FORMATS = {"AVRO": "avro", "JSON_SR": "json", "PROTOBUF": "protobuf"}
"""``output.data.format`` → the spec's schema format."""
_OF_THE_SERVICE = ("cloud.environment", "cloud.provider", "kafka.endpoint", "kafka.region")
"""In every answer; whoever sends them back changes nothing."""
_SECRETS = ("kafka.api.key", "kafka.api.secret")
_REQUIRED = ("connector.class", "name", "kafka.topic", "output.data.format", "quickstart")
_OPTIONAL = ("max.interval", "tasks.max", "confluent.connector.type", *_OF_THE_SERVICE)
_IDENTITY = ("kafka.auth.mode", "kafka.service.account.id", *_SECRETS)
_KNOWN = (*_REQUIRED[:2], *_IDENTITY, *_REQUIRED[2:], *_OPTIONAL)


def unseen_cluster(account: Account, environment: str, cluster: str, principal: str) -> str | None:
    """Why it cannot even see the cluster; None: it can."""
    is_admin = roles.honours(
        account, principal, roles.ADMINS, clusters.crn(account, environment, cluster)
    )
    if is_admin or _listed(account, cluster, principal, "CLUSTER", "kafka-cluster", "DESCRIBE"):
        return None
    return f"User:{principal} does not have DESCRIBE access to the Kafka cluster {cluster}"


def denied(account: Account, connector: Stored) -> str:
    """Why it failed when it was started, for want of a right; empty: it did not.

    It is tried once: a failed connector starts again with its configuration.
    """
    with account.store.lock:
        now = account.store.get(CONNECTOR, connector.name) or connector
        if time.time() < now.properties["started"] + account.delays.connector:
            return ""
        if "denied" not in now.properties:
            fields = ("environment", "cluster", "principal", "topic")
            now.properties["denied"] = problem(account, *(now.properties[key] for key in fields))
            account.store.put(now)
        return str(now.properties["denied"])


def problem(account: Account, environment: str, cluster: str, principal: str, topic: str) -> str:
    """What it may not do; empty: it may do all that it has to."""
    crn = f"{clusters.crn(account, environment, cluster)}/kafka={cluster}/topic={topic}"
    writers = ("DeveloperWrite", "ResourceOwner", *roles.ADMINS)
    may_write = roles.honours(account, principal, writers, crn)
    if not may_write and not _listed(account, cluster, principal, "TOPIC", topic, "WRITE"):
        return f"User:{principal} does not have WRITE access to topic {topic}"
    registry = subjects.of_environment(account, environment)
    if not subjects.may(account, registry, principal, f"{topic}-value", "Write"):
        return f"User:{principal} does not have WRITE access to subject {topic}-value"
    return ""


def principal_of(account: Account, config: Configuration) -> str:
    """Who the connector is: a service account, or the owner of its API key."""
    if "kafka.service.account.id" in config:
        return config["kafka.service.account.id"]
    key = account.store.get(KEY, (config.get("kafka.api.key", ""),))
    return str(key.properties["owner"]) if key else ""


def _listed(
    account: Account, cluster: str, principal: str, kind: str, name: str, operation: str
) -> bool:
    """Whether access lists allow it: one that denies wins, as in Kafka."""
    permissions = {
        permission
        for of, type_, on, pattern, who, _, allowed, permission in (
            stored.name for stored in account.store.all(ACL)
        )
        if (of, type_, who) == (cluster, kind, f"User:{principal}")
        and (on in (name, "*") if pattern == "LITERAL" else name.startswith(on))
        and allowed in (operation, "ALL")
    }
    return permissions == {"ALLOW"}


def complaints(account: Account, cluster: Stored, config: Configuration) -> Complaints:
    """Return what is wrong with a configuration."""
    wrong: Complaints = defaultdict(list)
    for field in _REQUIRED:
        if not config.get(field):
            wrong[field].append(f"{field} is required")
    for field in config:
        if field not in _KNOWN:
            wrong[field].append("not supported by the local Confluent emulator")
    if config.get("confluent.connector.type", "MANAGED") != "MANAGED":
        wrong["confluent.connector.type"].append(
            "the local Confluent emulator has managed ones only"
        )
    for field, default, least in (("tasks.max", "", 1), ("max.interval", "1000", 10)):
        value = config.get(field, default)
        if not value.isdecimal() or int(value) < least:
            wrong[field].append(f"{value!r} is not a number from {least}")
    _check_identity(account, cluster, config, wrong)
    _check_topic(account, cluster, config, wrong)
    return wrong


def _check_identity(
    account: Account, cluster: Stored, config: Configuration, wrong: Complaints
) -> None:
    mode = config.get("kafka.auth.mode", "KAFKA_API_KEY")
    if mode == "SERVICE_ACCOUNT":
        name = config.get("kafka.service.account.id", "")
        environment = cluster.properties["environment"]
        if account.store.get(SERVICE_ACCOUNT, (name,)) is None:
            wrong["kafka.service.account.id"].append(f"there is no service account '{name}'")
        elif unseen := unseen_cluster(account, environment, cluster.name[0], name):
            wrong["kafka.service.account.id"].append(unseen)
    elif mode == "KAFKA_API_KEY":
        key, secret = (config.get(field, "") for field in _SECRETS)
        if secret != MASK and not keys.opens(account, key, secret, cluster.name[0]):
            wrong["kafka.api.key"].append(
                "no API key of this Kafka cluster, or its secret is wrong"
            )
    else:
        wrong["kafka.auth.mode"].append(f"{mode} is neither KAFKA_API_KEY nor SERVICE_ACCOUNT")


def _check_topic(
    account: Account, cluster: Stored, config: Configuration, wrong: Complaints
) -> None:
    topic, kind = config.get("kafka.topic"), config.get("quickstart", "")
    if not topic or not kind:
        return
    spec = next((spec for spec in check_topics(account.config)[0] if spec.name == topic), None)
    if spec is None or spec.generator is None:
        wrong["kafka.topic"].append(f"the local generator needs a spec of {topic} with a generator")
        return
    if topic not in broker.names(account, cluster.name[0]):
        wrong["kafka.topic"].append(f"the topic {topic} does not exist")
    if kind.lower() != spec.generator.kind:
        expected = spec.generator.kind.upper()
        wrong["quickstart"].append(f"the spec of {topic} generates {expected}, not {kind}")
    wanted, expected = config.get("output.data.format", ""), spec.value_schema.format
    if FORMATS.get(wanted) != expected:
        wrong["output.data.format"].append(
            f"the spec of {topic} has the format {expected}, not {wanted}"
        )


def shown(account: Account, cluster: Stored, config: Configuration) -> Configuration:
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
        wrong["connector.class"].append(f"it must be {PLUGIN}")
    fields = enumerate(dict.fromkeys([*_KNOWN, *config]))
    return {
        "name": PLUGIN,
        "groups": ["Connector"],
        "error_count": sum(len(texts) for texts in wrong.values()),
        "configs": [
            _validated(field, number, config.get(field), wrong.get(field, []))
            for number, field in fields
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
