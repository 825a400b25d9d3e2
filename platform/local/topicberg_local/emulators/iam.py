"""Whether policies of IAM allow a request: the evaluation of AWS within one account; and whether a
vendor could take on a role of the local IAM, and what it could do then.

A Deny wins, wherever it is. Else a policy of the identity has to allow the request, or the
resource's own policy has to name the identity; and the permissions boundary, if there is one, has
to allow it as well. Trust policies are evaluated with their principals, actions, conditions and
denials; permissions with the role's policies, its boundary, and the policies of buckets.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

Document = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """
    :param action: e.g. ``s3:GetObject``
    :param resource: its ARN
    :param context: condition keys in lower case → values; others are not known here
    """

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.action} on {self.resource}"


@dataclass(frozen=True)
class Policies:
    """All that decides on the requests of one identity.

    :param identity: statements of the policies that are attached to it, and of inline ones
    :param boundary: statements of its permissions boundary; None: it has none
    :param resource: statements of the resource's policy
    :param principal: ARN of the identity
    """

    identity: tuple[Document, ...]
    boundary: tuple[Document, ...] | None = None
    resource: tuple[Document, ...] = ()
    principal: str = ""

    def denial(self, request: Request) -> str | None:
        """Return why a request is denied, as AWS words it; None: it is allowed."""
        named = [
            statement for statement in self.resource if is_principal(statement, self.principal)
        ]
        kinds: dict[str, Iterable[Document]] = {
            "an identity-based policy": self.identity,
            "a resource-based policy": named,
            "a permissions boundary": self.boundary or (),
        }
        for kind, statements in kinds.items():
            if _any_applies(statements, "Deny", request):
                return f"with an explicit deny in {kind}"
        if not _any_applies((*self.identity, *named), "Allow", request):
            return "because no identity-based policy allows it"
        if self.boundary is not None and not _any_applies(self.boundary, "Allow", request):
            return "because no permissions boundary allows it"
        return None


def statements(document: Any) -> list[Document]:
    """Return the statements of a document, which may be text."""
    policy = json.loads(document) if isinstance(document, str) else document
    return many(policy.get("Statement"))


def many(value: Any) -> list[Any]:
    """In policies, one may stand for a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def is_principal(statement: Document, principal: str) -> bool:
    """Whether a statement is about the principal: itself, its whole account, or everybody."""
    account = principal.split(":")[4]
    of_principal = {principal, account, f"arn:aws:iam::{account}:root", "*"}
    is_excluded = "NotPrincipal" in statement
    named = statement.get("NotPrincipal" if is_excluded else "Principal", {})
    principals = many(named.get("AWS") if isinstance(named, dict) else named)
    return is_excluded != bool(of_principal & set(principals))


def is_about(statement: Document, request: Request) -> bool:
    """Return whether a statement names the action and the resource, whatever its conditions."""
    return _names(statement, "Action", request.action.lower(), str.lower) and _names(
        statement, "Resource", request.resource
    )


def _any_applies(statements: Iterable[Document], effect: str, request: Request) -> bool:
    return any(
        statement.get("Effect") == effect
        and is_about(statement, request)
        and holds(statement.get("Condition", {}), request.context, unknown=effect == "Deny")
        for statement in statements
    )


def _names(statement: Document, element: str, value: str, fold: Callable[[str], str] = str) -> bool:
    is_excluded = f"Not{element}" in statement
    patterns = many(statement.get(f"Not{element}" if is_excluded else element))
    return is_excluded != any(fnmatchcase(value, fold(pattern)) for pattern in patterns)


def holds(conditions: Document, context: Mapping[str, str], *, unknown: bool) -> bool:
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
            elif negated == any(matches(value, str(expected)) for expected in many(values)):
                return False
    return True


def _equals_ignoring_case(value: str, wanted: str) -> bool:
    return value.lower() == wanted.lower()


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": str.__eq__,
    "StringEqualsIgnoreCase": _equals_ignoring_case,
    "StringLike": fnmatchcase,
    "ArnEquals": fnmatchcase,
    "ArnLike": fnmatchcase,
    "Bool": _equals_ignoring_case,
}


def _role(client: Any, arn: str) -> Document | None:
    """Return the role of this ARN; None: there is none.

    :raises ClientError: another error of IAM
    """
    try:
        role: Document = client.get_role(RoleName=arn.rpartition("/")[2])["Role"]
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("NoSuchEntity", "ValidationError"):
            raise
        return None
    return role if role["Arn"] == arn else None


def problem(
    client: Any,
    arn: str,
    principal: str,
    external_id: str,
    *needs: tuple[str, str],
    s3: Any,
    may_be_missing: bool = False,
) -> str | None:
    """Return why the principal cannot do what it needs with the role; None: it can.

    :param client: of IAM
    :param needs: action and resource, e.g. ``("s3:GetObject", "arn:aws:s3:::bucket/*")``
    :param s3: a client of S3, which has the policies of buckets
    :param may_be_missing: whether a role that does not exist is no problem
    """
    try:
        role = _role(client, arn)
        if role is None:
            return None if may_be_missing else f"the role {arn} does not exist"
        if _trusts(role, principal, external_id):
            return denial(client, s3, role, *needs)
        with_id = f"with the external id {external_id}"
        return f"the role {arn} does not let {principal} assume the role {with_id}"
    except BotoCoreError as error:
        return f"AWS does not answer: {error}"
    except ClientError as error:
        return f"the role {arn} cannot be read: {error}"


def denial(client: Any, s3: Any, role: Document, *needs: tuple[str, str]) -> str | None:
    """Return what a role may not do of what is needed; None: it may do everything."""
    arn = role["Arn"]
    boundary = role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
    identity = tuple(_granted(client, role["RoleName"])) if needs else ()
    limits = tuple(_document(client, boundary)) if boundary and needs else None
    context = {
        "aws:securetransport": "true",
        "aws:principalarn": arn,
        "aws:principalaccount": arn.split(":")[4],
    }
    bucket_policy = cache(partial(_bucket_policy, s3))
    for action, resource in needs:
        _, is_object, path = resource.partition("arn:aws:s3:::")
        of_bucket = bucket_policy(path.partition("/")[0]) if is_object else ()
        policies = Policies(identity, limits, of_bucket, arn)
        request = Request(action, resource, context)
        if reason := policies.denial(request):
            return f"the role {arn} is not authorized to perform {request} {reason}"
    return None


def _trusts(role: Document, principal: str, external_id: str) -> bool:
    """Return whether the trust policy allows sts:AssumeRole: a Deny wins."""
    context = {"sts:externalid": external_id, "aws:principalarn": principal}
    context["aws:principalaccount"] = principal.split(":")[4]
    trust = [
        # What a trust policy is about is its role: it names no resource.
        {**statement, "Resource": "*"}
        for statement in statements(role["AssumeRolePolicyDocument"])
        if is_principal(statement, principal)
    ]
    request = Request("sts:AssumeRole", role["Arn"], context)
    return Policies(tuple(trust)).denial(request) is None


def _granted(client: Any, role: str) -> list[Document]:
    """The statements of the role's policies, attached and inline."""
    attached = client.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    names = client.list_role_policies(RoleName=role)["PolicyNames"]
    inline = (client.get_role_policy(RoleName=role, PolicyName=name) for name in names)
    return [
        *chain.from_iterable(_document(client, policy["PolicyArn"]) for policy in attached),
        *chain.from_iterable(statements(policy["PolicyDocument"]) for policy in inline),
    ]


def _document(client: Any, arn: str) -> list[Document]:
    """The statements of a managed policy. One that does not exist any more allows nothing."""
    try:
        version = client.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        policy = client.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]
    except client.exceptions.NoSuchEntityException:
        return []
    return statements(policy["Document"])


def _bucket_policy(s3: Any, bucket: str) -> tuple[Document, ...]:
    """The statements of a bucket's policy; none where the store has no policies or no such bucket:
    requests to it tell.
    """
    try:
        return tuple(statements(s3.get_bucket_policy(Bucket=bucket)["Policy"]))
    except ClientError:
        return ()
