"""IAM's SimulatePrincipalPolicy, which moto lacks: what a user or a role may do.

The policies of the organization, which its management account attaches, are :data:`ORGANIZATION`.
They are simulated without knowing their conditions' keys, and no request here meets them.

There is one result for each action, with the decision on each resource inside. Keys that a
statement's condition needs and that the request does not have are listed as missing.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
https://docs.aws.amazon.com/IAM/latest/APIReference/API_EvaluationResult.html
"""

from __future__ import annotations

import re
from http import HTTPStatus
from itertools import chain
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from topicberg_local.emulators.aws.shapes import Refusal
from topicberg_local.emulators.aws.state import backends
from topicberg_local.emulators.iam import Document, Policies, Request, is_about, statements

ACTION = "SimulatePrincipalPolicy"
ORGANIZATION: list[Document] = []
"""Statements of service control policies; empty: the account is in no organization."""
_SEVERITY = ("allowed", "implicitDeny", "explicitDeny")


def simulate(body: bytes, account: str, principal: str) -> bytes:
    """Return the answer of the Query API to a principal; raises Refusal: it may not."""
    form = parse_qs(body.decode())
    source = form["PolicySourceArn"][0]
    if not principal.endswith(":root"):
        request = Request(f"iam:{ACTION}", source)
        if reason := policies_of(principal, account).denial(request):
            text = f"User: {principal} is not authorized to perform: {request} {reason}"
            raise Refusal(HTTPStatus.FORBIDDEN, "AccessDenied", text)
    policies, context = policies_of(source, account), _context(form)
    resources = _members(form, "ResourceArns") or ["*"]
    actions = _members(form, "ActionNames")
    results = [_result(policies, action, resources, context) for action in actions]
    return (
        '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/">'
        "<SimulatePrincipalPolicyResult><IsTruncated>false</IsTruncated>"
        f"<EvaluationResults>{''.join(results)}</EvaluationResults>"
        "</SimulatePrincipalPolicyResult><ResponseMetadata>"
        "<RequestId>00000000-0000-0000-0000-000000000000</RequestId></ResponseMetadata>"
        "</SimulatePrincipalPolicyResponse>"
    ).encode()


def _members(form: dict[str, list[str]], name: str) -> list[str]:
    """Return the items of a list, in their order: ``ActionNames.member.1`` and so on."""
    pattern = re.compile(rf"{name}\.member\.(\d+)")
    numbered = ((pattern.fullmatch(key), values[0]) for key, values in form.items())
    members = {int(match[1]): value for match, value in numbered if match}
    return [members[number] for number in sorted(members)]


def _context(form: dict[str, list[str]]) -> dict[str, str]:
    names = {
        values[0].lower(): key.removesuffix("Name")
        for key, values in form.items()
        if key.startswith("ContextEntries.member.") and key.endswith(".ContextKeyName")
    }
    return {name: form[f"{key}Values.member.1"][0] for name, key in names.items()}


def policies_of(arn: str, account: str) -> Policies:
    """Return all that decides on the requests of a user or a role; raises Refusal: NoSuchEntity."""
    iam = backends("iam")[account]["aws"]
    kind, _, path = arn.split(":")[5].partition("/")
    name = path.rpartition("/")[2]
    roles = {role.arn: role for role in iam.roles.values()}
    principal: Any = roles.get(arn) or (iam.users.get(name) if kind == "user" else None)
    if principal is None:
        text = f"The entity with name {name} cannot be found."
        raise Refusal(HTTPStatus.NOT_FOUND, "NoSuchEntity", text)
    managed = (_of(policy) for policy in principal.managed_policies.values())
    identity = chain(*managed, *map(statements, principal.policies.values()))
    boundary = getattr(principal, "permissions_boundary_arn", None)
    limits = tuple(_of(iam.managed_policies[boundary])) if boundary else None
    return Policies(tuple(identity), limits, principal=arn)


def _of(policy: Any) -> list[Document]:
    default = next(version for version in policy.versions if version.is_default)
    return statements(default.document)


def _result(policies: Policies, action: str, resources: list[str], context: dict[str, str]) -> str:
    requests = [Request(action, resource, context) for resource in resources]
    above = Policies(tuple(ORGANIZATION))
    by_organization = [above.denial(request) if ORGANIZATION else None for request in requests]
    denials = map(policies.denial, requests)
    decisions = [_decision(*both) for both in zip(denials, by_organization, strict=True)]
    is_allowed = str(not any(by_organization)).lower()
    specific = "".join(
        f"<member><EvalResourceName>{escape(request.resource)}</EvalResourceName>"
        f"<EvalResourceDecision>{decision}</EvalResourceDecision>"
        f"{_missing(policies, request)}</member>"
        for request, decision in zip(requests, decisions, strict=True)
    )
    return (
        f"<member><EvalActionName>{escape(action)}</EvalActionName>"
        f"<EvalDecision>{max(decisions, key=_SEVERITY.index)}</EvalDecision>"
        f"<OrganizationsDecisionDetail><AllowedByOrganizations>{is_allowed}"
        "</AllowedByOrganizations></OrganizationsDecisionDetail>"
        f"<ResourceSpecificResults>{specific}</ResourceSpecificResults></member>"
    )


def _decision(*denials: str | None) -> str:
    reasons = [denial for denial in denials if denial]
    if any("explicit deny" in reason for reason in reasons):
        return "explicitDeny"
    return "implicitDeny" if reasons else "allowed"


def _missing(policies: Policies, request: Request) -> str:
    keys = {
        key
        for statement in (*policies.identity, *(policies.boundary or ()))
        if is_about(statement, request)
        for tests in statement.get("Condition", {}).values()
        for key in tests
        if key.lower() not in request.context
    }
    members = "".join(f"<member>{escape(key)}</member>" for key in sorted(keys))
    return f"<MissingContextValues>{members}</MissingContextValues>"
