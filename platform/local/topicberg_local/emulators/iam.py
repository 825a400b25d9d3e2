"""Whether a vendor could take on a role of the local IAM, and what it could do then.

Trust policies are evaluated with their principals, actions, conditions and denials; permissions
with all that :mod:`topicberg_local.emulators.policies` knows: the role's policies, its boundary,
and the policies of buckets.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from topicberg_local.emulators.policies import Document, Policies, Request, is_principal, statements


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
        is_object = resource.startswith("arn:aws:s3:::")
        bucket = resource.split(":")[5].partition("/")[0]
        policies = Policies(identity, limits, bucket_policy(bucket) if is_object else (), arn)
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
