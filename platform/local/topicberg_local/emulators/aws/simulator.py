"""IAM's SimulatePrincipalPolicy, which moto lacks: what a user or a role may do.

There is one result for each action, with the decision on each resource inside. Keys that a
statement's condition needs and that the request does not have are listed as missing.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
https://docs.aws.amazon.com/IAM/latest/APIReference/API_EvaluationResult.html
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from topicberg_local.emulators.aws.refusal import Refusal
from topicberg_local.emulators.aws.state import backends
from topicberg_local.emulators.policies import Document, Policies, Request, is_about, statements

ACTION = "SimulatePrincipalPolicy"
_SEVERITY = ("allowed", "implicitDeny", "explicitDeny")


def simulate(body: bytes, account: str, principal: str) -> bytes:
    """Return the answer of the Query API.

    :param principal: who requests it
    :raises Refusal: there is no such user or role, or the principal may not simulate it
    """
    form = parse_qs(body.decode())
    source = form["PolicySourceArn"][0]
    if not principal.endswith(":root"):
        request = Request(f"iam:{ACTION}", source)
        if reason := policies_of(principal, account).denial(request):
            text = f"User: {principal} is not authorized to perform: {request} {reason}"
            raise Refusal(HTTPStatus.FORBIDDEN, "AccessDenied", text)
    policies = policies_of(source, account)
    context = _context(form)
    results = [
        _result(policies, action, _members(form, "ResourceArns") or ["*"], context)
        for action in _members(form, "ActionNames")
    ]
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
    members = {}
    for key, values in form.items():
        if key.startswith(f"{name}.member.") and key.removeprefix(f"{name}.member.").isdigit():
            members[int(key.rpartition(".")[2])] = values[0]
    return [members[number] for number in sorted(members)]


def _context(form: dict[str, list[str]]) -> dict[str, str]:
    context = {}
    for key, values in form.items():
        if key.startswith("ContextEntries.member.") and key.endswith(".ContextKeyName"):
            begin = key.removesuffix(".ContextKeyName")
            context[values[0].lower()] = form[f"{begin}.ContextKeyValues.member.1"][0]
    return context


def policies_of(arn: str, account: str) -> Policies:
    """Return all that decides on the requests of a user or a role.

    :raises Refusal: NoSuchEntity
    """
    iam = backends("iam")[account]["aws"]
    kind, _, name = arn.split(":")[5].partition("/")
    name = name.rpartition("/")[2]
    principal: Any = None
    if kind == "role":
        principal = next((role for role in iam.roles.values() if role.arn == arn), None)
    elif kind == "user":
        principal = iam.users.get(name)
    if principal is None:
        raise Refusal(
            HTTPStatus.NOT_FOUND, "NoSuchEntity", f"The entity with name {name} cannot be found."
        )
    identity = [
        statement for policy in principal.managed_policies.values() for statement in _of(policy)
    ]
    identity += [
        statement for text in principal.policies.values() for statement in statements(text)
    ]
    boundary = getattr(principal, "permissions_boundary_arn", None)
    limits = tuple(_of(iam.managed_policies[boundary])) if boundary else None
    return Policies(tuple(identity), limits, principal=arn)


def _of(policy: Any) -> list[Document]:
    default = next(version for version in policy.versions if version.is_default)
    return statements(default.document)


def _result(policies: Policies, action: str, resources: list[str], context: dict[str, str]) -> str:
    requests = [Request(action, resource, context) for resource in resources]
    decisions = [_decision(policies.denial(request)) for request in requests]
    specific = "".join(
        f"<member><EvalResourceName>{escape(request.resource)}</EvalResourceName>"
        f"<EvalResourceDecision>{decision}</EvalResourceDecision>"
        f"{_missing(policies, request)}</member>"
        for request, decision in zip(requests, decisions, strict=True)
    )
    return (
        f"<member><EvalActionName>{escape(action)}</EvalActionName>"
        f"<EvalDecision>{max(decisions, key=_SEVERITY.index)}</EvalDecision>"
        f"<ResourceSpecificResults>{specific}</ResourceSpecificResults></member>"
    )


def _decision(denial: str | None) -> str:
    if denial is None:
        return "allowed"
    return "explicitDeny" if "explicit deny" in denial else "implicitDeny"


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
