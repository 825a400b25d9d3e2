"""What a service account may do over Kafka's protocol, as access lists of the real local broker.

The access lists of Kafka REST and the role bindings of a cluster become access lists of the broker,
whose own authorizer (``StandardAuthorizer``) allows what they say and nothing else. One broker has
all clusters, so the name of a user there has both: ``lkc-local1.sa-abc123``.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    Arguments = tuple[
        ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType
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
    current_rights: set[Right] = set()
    for stored in account.store.all(ACL):
        of, type_, name, pattern, principal, host, operation, permission = stored.name
        user = user_of(of, principal.removeprefix("User:"))
        current_rights.add(Right(user, type_, name, pattern, operation, permission, host))
    for cluster in account.store.all(CLUSTER):
        if clusters.GONE_AFTER not in cluster.properties:
            current_rights.update(
                _of_roles(account, cluster.name[0], cluster.properties["environment"])
            )
    return current_rights


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
            type_, name = _CRN_TYPES[part[1]], part[2]
            is_prefix = name.endswith("*") and name != "*"
            for operation in _ROLES.get(role, {}).get(type_, ()):
                yield Right(
                    user_of(cluster, principal),
                    type_,
                    name.removesuffix("*") if is_prefix else name,
                    "PREFIXED" if is_prefix else "LITERAL",
                    operation,
                )
    for principal in admins:
        for type_, name in _EVERYTHING:
            yield Right(user_of(cluster, principal), type_, name, "LITERAL", "ALL")


class KafkaRights(threading.Thread):
    """Gives the broker the access lists, whenever they change."""

    def __init__(self, account: Account) -> None:
        super().__init__(name="kafka rights", daemon=True)
        self._account = account
        self._stopping = threading.Event()
        self._given: set[Right] | None = None
        """What the broker has; None: not looked yet."""

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._give(rights(self._account))
            except TopicbergError as error:  # the stack is not up yet, or Kafka restarts
                self._given = None
                logger.debug("access lists: %s", error)
            except Exception:
                self._given = None
                logger.exception("access lists")

    def _give(self, wanted: set[Right]) -> None:
        """:raises TopicbergError: Kafka does not answer"""
        if wanted == self._given:
            return
        if self._given is None:
            self._given = self._found()
        admin = self._account.kafka_admin()
        if missing := [_binding(right) for right in wanted - self._given]:
            for created in admin.create_acls(missing, request_timeout=TIMEOUT_SECONDS).values():
                broker.wait(created, "access lists")
        if surplus := [_filter(right) for right in self._given - wanted]:
            for deleted in admin.delete_acls(surplus, request_timeout=TIMEOUT_SECONDS).values():
                broker.wait(deleted, "access lists")
        self._given = wanted

    def _found(self) -> set[Right]:
        from confluent_kafka.admin import (
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        any_name: Any = None
        every = AclBindingFilter(
            ResourceType.ANY,
            any_name,
            ResourcePatternType.ANY,
            any_name,
            any_name,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        admin = self._account.kafka_admin()
        future = admin.describe_acls(every, request_timeout=TIMEOUT_SECONDS)
        acls = broker.wait(future, "access lists")
        return {
            Right(
                acl.principal.removeprefix("User:"),
                "CLUSTER" if acl.restype is ResourceType.BROKER else acl.restype.name,
                acl.name,
                acl.resource_pattern_type.name,
                acl.operation.name,
                acl.permission_type.name,
                acl.host,
            )
            for acl in acls
        }


def _binding(right: Right) -> AclBinding:
    from confluent_kafka.admin import AclBinding

    return AclBinding(*_arguments(right))


def _filter(right: Right) -> AclBindingFilter:
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(*_arguments(right))


def _arguments(right: Right) -> Arguments:
    from confluent_kafka.admin import (
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    type_ = "BROKER" if right.resource_type == "CLUSTER" else right.resource_type
    return (
        ResourceType[type_],
        right.resource_name,
        ResourcePatternType[right.pattern_type],
        f"User:{right.user}",
        right.host,
        AclOperation[right.operation],
        AclPermissionType[right.permission],
    )
