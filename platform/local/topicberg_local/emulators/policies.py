"""Whether policies of IAM allow a request: the evaluation of AWS within one account.

A Deny wins, wherever it is. Else a policy of the identity has to allow the request, or the
resource's own policy has to name the identity; and the permissions boundary, if there is one, has
to allow it as well.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

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
