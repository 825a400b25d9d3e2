"""Whether a vendor could take on a role of the local IAM, and what it could do then.

Trust policies are evaluated with their principals, actions, conditions and denials. Of permission
policies only Allow is, with ``*`` in actions and resources, as `topicberg deploy` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
    """Return whether the trust policy allows sts:AssumeRole: a Deny wins."""
    context = {"sts:externalid": external_id, "aws:principalarn": principal}
    context["aws:principalaccount"] = principal.split(":")[4]
    effects = {
        statement.get("Effect")
        for statement in _statements(role["AssumeRolePolicyDocument"])
        if _matches(statement.get("Action"), "sts:AssumeRole", ignore_case=True)
        and _is_principal(statement, principal)
        and _holds(
            statement.get("Condition", {}), context, unknown=statement.get("Effect") == "Deny"
        )
    }
    return "Allow" in effects and "Deny" not in effects


def _is_principal(statement: Document, principal: str) -> bool:
    """Whether a statement is about the principal: itself, its whole account, or everybody."""
    account = principal.split(":")[4]
    named = statement.get("Principal", {})
    found = _many(named.get("AWS") if isinstance(named, dict) else named)
    return bool({principal, account, f"arn:aws:iam::{account}:root", "*"} & set(found))


def _holds(conditions: Document, context: dict[str, str], *, unknown: bool) -> bool:
    """Return whether all conditions hold.

    :param unknown: what a condition counts for whose operator or key is not known here
    """
    for operator, tests in conditions.items():
        kind = operator.removesuffix("IfExists")
        negated = kind.startswith(("StringNot", "ArnNot"))
        matches = _OPERATORS.get(kind.replace("Not", "", 1) if negated else kind)
        for key, values in tests.items():
            value = context.get(key.lower())
            if matches is None or value is None:
                if not unknown:
                    return False
            elif negated == any(matches(value, str(one)) for one in _many(values)):
                return False
    return True


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": str.__eq__,
    "StringEqualsIgnoreCase": lambda value, wanted: value.lower() == wanted.lower(),
    "StringLike": fnmatchcase,
    "ArnEquals": fnmatchcase,
    "ArnLike": fnmatchcase,
}


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
    return statement.get("Effect") == "Allow" and _matches(statement.get(field), value)


def _matches(patterns: Any, value: str, *, ignore_case: bool = False) -> bool:
    if ignore_case:
        value = value.lower()
        patterns = [str(one).lower() for one in _many(patterns)]
    return any(fnmatchcase(value, one) for one in _many(patterns))


def _statements(document: Any) -> list[Document]:
    policy = json.loads(document) if isinstance(document, str) else document
    return _many(policy.get("Statement"))


def _many(value: Any) -> list[Any]:
    """In policies, one may stand for a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
