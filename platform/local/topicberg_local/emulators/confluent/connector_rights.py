"""What a connector's service account must be allowed, without which the connector fails.

https://docs.confluent.io/cloud/current/connectors/service-account.html
"""

from __future__ import annotations

import time

from topicberg_local.emulators.confluent import roles, subjects
from topicberg_local.emulators.confluent.account import ACL, CONNECTOR, KEY, Account
from topicberg_local.emulators.store import Stored

Configuration = dict[str, str]


def unseen_cluster(account: Account, environment: str, cluster: str, principal: str) -> str | None:
    """Why it cannot even see the cluster; None: it can."""
    crn = account.crn(f"environment={environment}", f"cloud-cluster={cluster}")
    if roles.honours(account, principal, roles.ADMINS, crn):
        return None
    if _listed(account, cluster, principal, "CLUSTER", "kafka-cluster", "DESCRIBE"):
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
            environment, cluster = now.properties["environment"], now.properties["cluster"]
            principal = now.properties.get("principal") or principal_of(
                account, now.properties["config"]
            )
            topic = now.properties["topic"]
            now.properties["denied"] = problem(account, environment, cluster, principal, topic)
            account.store.put(now)
        return str(now.properties["denied"])


def problem(account: Account, environment: str, cluster: str, principal: str, topic: str) -> str:
    """What it may not do; empty: it may do all that it has to."""
    above = f"environment={environment}"
    crn = account.crn(above, f"cloud-cluster={cluster}", f"kafka={cluster}", f"topic={topic}")
    writers = ("DeveloperWrite", "ResourceOwner", *roles.ADMINS)
    if not roles.honours(account, principal, writers, crn) and not _listed(
        account, cluster, principal, "TOPIC", topic, "WRITE"
    ):
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
        for _, type_, on, pattern, who, _, allowed, permission in (
            stored.name for stored in account.store.all(ACL, lambda entry: entry.name[0] == cluster)
        )
        if (type_, who) == (kind, f"User:{principal}")
        and (on in (name, "*") if pattern == "LITERAL" else name.startswith(on))
        and allowed in (operation, "ALL")
    }
    return permissions == {"ALLOW"}
