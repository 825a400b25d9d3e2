"""``/kafka/v3/…/acls``: access lists, which the local broker enforces (:mod:`.kafka_rights`)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from topicberg_local.emulators.confluent.account import ACL
from topicberg_local.emulators.confluent.errors import Refusal, unsupported
from topicberg_local.emulators.confluent.kafka_rest import (
    PATH,
    demand,
    kafka_operation,
    resource,
    resources,
)
from topicberg_local.emulators.confluent.operation import Body, Call, Query
from topicberg_local.emulators.store import Stored

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
_FILTERS = ("UNKNOWN", "ANY", "MATCH")
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


def _document(call: Call, stored: Stored) -> dict[str, Any]:
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


def _create(call: Call) -> None:
    acl: Acl = call.body
    cluster = demand(call)
    for value in (acl.resource_type, acl.pattern_type, acl.operation, acl.permission):
        if value in _FILTERS:
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


def _list(call: Call) -> dict[str, Any]:
    return resources(call, "KafkaAclList", [_document(call, stored) for stored in _found(call)])


def _delete(call: Call) -> dict[str, Any]:
    demand(call)
    acls = _found(call)
    call.account.store.delete(ACL, [stored.name for stored in acls])
    return {"data": [_document(call, stored) for stored in acls]}


OPERATIONS = [
    kafka_operation("GET", PATH + "/acls", _list, query=Search),
    kafka_operation("POST", PATH + "/acls", _create, 201, body=Acl),
    kafka_operation("DELETE", PATH + "/acls", _delete, query=Deletion),
]
