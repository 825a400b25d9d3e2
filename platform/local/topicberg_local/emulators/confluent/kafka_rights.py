"""What a service account may do over Kafka's protocol, as access lists of the real local broker.

The access lists of Kafka REST and the role bindings of a cluster become access lists of the broker,
whose own authorizer (``StandardAuthorizer``) allows what they say and nothing else. One broker has
all clusters, so the name of a user there has both: ``lkc-local1.sa-abc123``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from confluent_kafka import admin as kafka

from topicberg.errors import TopicbergError
from topicberg.kafka.topics import TIMEOUT_SECONDS
from topicberg_local.emulators.confluent import broker, clusters, roles
from topicberg_local.emulators.confluent.account import (
    ACL,
    BOOTSTRAP_USER,
    CLUSTER,
    ROLE_BINDING,
    Account,
)
from topicberg_local.emulators.process import Worker

Arguments = tuple[
    kafka.ResourceType,
    str,
    kafka.ResourcePatternType,
    str,
    str,
    kafka.AclOperation,
    kafka.AclPermissionType,
]
logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
_OF_CLUSTER = "kafka-cluster"
_EVERYTHING = (("TOPIC", "*"), ("GROUP", "*"), ("TRANSACTIONAL_ID", "*"), ("CLUSTER", _OF_CLUSTER))
_CRN_TYPES = {"topic": "TOPIC", "group": "GROUP", "transactional-id": "TRANSACTIONAL_ID"}
_ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "DeveloperRead": {"TOPIC": ("READ",), "GROUP": ("READ",)},
    "DeveloperWrite": {"TOPIC": ("WRITE",), "TRANSACTIONAL_ID": ("WRITE",)},
    "DeveloperManage": {
        "TOPIC": ("CREATE", "DELETE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
        "GROUP": ("DELETE",),
    },
    "ResourceOwner": {"TOPIC": ("ALL",), "GROUP": ("ALL",), "TRANSACTIONAL_ID": ("ALL",)},
}
"""Role → type of resource → operations. Each of these implies DESCRIBE in Kafka.

https://docs.confluent.io/cloud/current/security/access-control/rbac/predefined-rbac-roles.html
"""


class Right(NamedTuple):
    """A line of the broker's access lists."""

    user: str
    resource_type: str
    resource_name: str
    pattern_type: str
    operation: str
    permission: str = "ALLOW"
    host: str = "*"


def user_of(cluster: str, principal: str) -> str:
    """Return the broker's name of a service account that has a key of the cluster."""
    return f"{cluster}.{principal}"


def rights(account: Account) -> set[Right]:
    """Return all that the access lists and the role bindings say now."""
    listed = (
        Right(user_of(of, principal.removeprefix("User:")), *resource, operation, permission, host)
        for of, *resource, principal, host, operation, permission in (
            acl.name for acl in account.store.all(ACL)
        )
    )
    existing = account.store.all(CLUSTER, lambda c: clusters.GONE_AFTER not in c.properties)
    of_roles = (_of_roles(account, c.name[0], c.properties["environment"]) for c in existing)
    return {*listed, *chain.from_iterable(of_roles)}


def _of_roles(account: Account, cluster: str, environment: str) -> Iterator[Right]:
    crn = clusters.crn(account, environment, cluster)
    admins = {BOOTSTRAP_USER}
    since = time.time() - account.delays.role_binding
    for binding in account.store.all(ROLE_BINDING, lambda entry: entry.created <= since):
        principal = binding.properties["principal"].removeprefix("User:")
        role, pattern = binding.properties["role_name"], binding.properties["crn_pattern"]
        if role in roles.ADMINS and roles.covers(pattern, crn):
            admins.add(principal)
        part = re.fullmatch(rf"{re.escape(crn)}/kafka={re.escape(cluster)}/([a-z-]+)=(.+)", pattern)
        if part and part[1] in _CRN_TYPES:
            type_, name, pattern_type = _CRN_TYPES[part[1]], part[2], "LITERAL"
            if name.endswith("*") and name != "*":
                name, pattern_type = name.removesuffix("*"), "PREFIXED"
            for operation in _ROLES.get(role, {}).get(type_, ()):
                yield Right(user_of(cluster, principal), type_, name, pattern_type, operation)
    for principal in admins:
        for type_, name in _EVERYTHING:
            yield Right(user_of(cluster, principal), type_, name, "LITERAL", "ALL")


class KafkaRights(Worker):
    """Gives the broker the access lists, whenever they change."""

    def __init__(self, account: Account) -> None:
        super().__init__("kafka rights", LOOK_SECONDS)
        self._account = account
        self._given: set[Right] | None = None
        """What the broker has; None: not looked yet."""

    def look(self) -> None:
        wanted, given, self._given = rights(self._account), self._given, None
        try:
            if wanted != given:
                self._give(wanted, given)
        except TopicbergError as error:  # the stack is not up yet, or Kafka restarts
            logger.debug("access lists: %s", error)
        else:
            self._given = wanted

    def _give(self, wanted: set[Right], given: set[Right] | None) -> None:
        """:raises TopicbergError: Kafka does not answer"""
        client = self._account.kafka_admin()
        if given is None:
            unnamed: Any = None
            types = (kafka.ResourceType.ANY, unnamed, kafka.ResourcePatternType.ANY)
            operations = (kafka.AclOperation.ANY, kafka.AclPermissionType.ANY)
            every = kafka.AclBindingFilter(*types, unnamed, unnamed, *operations)
            described = client.describe_acls(every, request_timeout=TIMEOUT_SECONDS)
            given = {_right(acl) for acl in broker.wait(described, "access lists")}
        if missing := [kafka.AclBinding(*_arguments(right)) for right in wanted - given]:
            for created in client.create_acls(missing, request_timeout=TIMEOUT_SECONDS).values():
                broker.wait(created, "access lists")
        if surplus := [kafka.AclBindingFilter(*_arguments(right)) for right in given - wanted]:
            for deleted in client.delete_acls(surplus, request_timeout=TIMEOUT_SECONDS).values():
                broker.wait(deleted, "access lists")


def _right(acl: Any) -> Right:
    return Right(
        acl.principal.removeprefix("User:"),
        "CLUSTER" if acl.restype.name == "BROKER" else acl.restype.name,
        acl.name,
        acl.resource_pattern_type.name,
        acl.operation.name,
        acl.permission_type.name,
        acl.host,
    )


def _arguments(right: Right) -> Arguments:

    type_ = "BROKER" if right.resource_type == "CLUSTER" else right.resource_type
    return (
        kafka.ResourceType[type_],
        right.resource_name,
        kafka.ResourcePatternType[right.pattern_type],
        f"User:{right.user}",
        right.host,
        kafka.AclOperation[right.operation],
        kafka.AclPermissionType[right.permission],
    )
