"""Whether a vendor could take on a role of the local IAM, and what it could do then.

As far as the policies of `topicberg deploy` go: Allow alone, ``*`` in actions and resources, and
the external id as the only condition.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

Document = dict[str, Any]


def find(client: Any, arn: str) -> Document | None:
    """Return the role of this ARN; None: there is none."""
    try:
        role: Document = client.get_role(RoleName=arn.rpartition("/")[2])["Role"]
    except ClientError:
        return None
    return role if role["Arn"] == arn else None


def problem(
    client: Any, arn: str, principal: str, external_id: str, *needs: tuple[str, str]
) -> str | None:
    """Return why the principal cannot do what it needs with the role; None: it can.

    :param needs: action and resource, e.g. ``("s3:GetObject", "arn:aws:s3:::bucket/*")``
    """
    try:
        role = find(client, arn)
        if role is None:
            return f"the role {arn} does not exist"
        if not _trusts(role, principal, external_id):
            return (
                f"the role {arn} does not let {principal} assume the role with the external id"
                f" {external_id}"
            )
        granted = _granted(client, role["RoleName"]) if needs else []
    except BotoCoreError as error:
        return f"IAM does not answer: {error}"
    for action, resource in needs:
        if not any(_allows(statement, action, resource) for statement in granted):
            return f"the role {arn} is not authorized to perform {action} on {resource}"
    return None


def _trusts(role: Document, principal: str, external_id: str) -> bool:
    return any(
        _applies(statement, "Action", "sts:AssumeRole")
        and bool({principal, "*"} & set(_principals(statement)))
        and external_id
        in _many(statement.get("Condition", {}).get("StringEquals", {}).get("sts:ExternalId"))
        for statement in _statements(role["AssumeRolePolicyDocument"])
    )


def _principals(statement: Document) -> list[str]:
    principals = statement.get("Principal", {})
    return _many(principals.get("AWS") if isinstance(principals, dict) else principals)


def _granted(client: Any, role: str) -> list[Document]:
    """The statements of the role's policies."""
    found = []
    for attached in client.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        arn = attached["PolicyArn"]
        version = client.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        policy = client.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]
        found += _statements(policy["Document"])
    return found


def _allows(statement: Document, action: str, resource: str) -> bool:
    return _applies(statement, "Action", action) and _applies(statement, "Resource", resource)


def _applies(statement: Document, field: str, value: str) -> bool:
    patterns = _many(statement.get(field))
    return statement.get("Effect") == "Allow" and any(fnmatchcase(value, one) for one in patterns)


def _statements(document: Any) -> list[Document]:
    policy = json.loads(document) if isinstance(document, str) else document
    return _many(policy.get("Statement"))


def _many(value: Any) -> list[Any]:
    """In policies, one may stand for a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
