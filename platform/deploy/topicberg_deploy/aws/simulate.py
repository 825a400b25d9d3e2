"""Whether who deploys may do all that it takes in AWS, asked of IAM before anything is created.

IAM simulates the policies of a user or a role, its boundary and those of the organization. It does
not know all of a request: a denial may depend on a key that is unknown here, such as an address, so
it is a warning.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError
from topicberg.errors.meaning import means
from topicberg.errors.table import DENIED, MISSING
from topicberg_deploy.aws.iam import Document, caller, listed
from topicberg_deploy.aws.permissions import Deployed, policy
from topicberg_deploy.context import DeployContext

logger = logging.getLogger(__name__)
_OPTIONAL = ("lakeformation:", "iam:SimulatePrincipalPolicy", "iam:CreateServiceLinkedRole")
"""Beginnings of actions whose denial `deploy` gets by with: an account has one service-linked role,
and may have it already."""
_OF_EMR = ("emr-serverless:", "iam:PassRole")
_OF_ATHENA = ("athena:",)


def check_permissions(context: DeployContext) -> None:
    """:raises TopicbergError: lists all actions that who deploys may not do"""
    principal = ""
    try:
        principal = caller(context)
        if principal.endswith(":root"):  # nothing denies it anything, and it cannot be simulated
            return
        denied_actions = list(_denied(context, principal))
    except ClientError as error:
        if not means(error, DENIED, MISSING):
            raise
        logger.warning(
            "whether %s has all permissions is not checked, because IAM does not simulate them "
            "(%s): a missing one shows when it is needed",
            principal or "the login",
            error,
        )
        return
    denied = [action for action, keys in denied_actions if not keys]
    if doubtful := [f"{action} ({', '.join(keys)})" for action, keys in denied_actions if keys]:
        logger.warning(
            "%s may lack permissions, by keys that are not known yet: %s",
            principal,
            "; ".join(doubtful),
        )
    if denied:
        raise TopicbergError(
            f"{principal} lacks permissions: {'; '.join(denied)}",
            hint="attach the policies that `topicberg deploy bootstrap-ci` prints for `deploy`",
        )


Denied = tuple[str, list[str]]
"""An action with its resources, and the keys on which it depends, which are not known."""


def _denied(context: DeployContext, principal: str) -> Iterator[Denied]:
    """Yield each action that is denied."""
    iam, config = context.aws.client("iam"), context.config
    secrets = tuple(filter(None, (context.deploy.admin_user_secrets_root_path,)))
    of = Deployed(config, context.aws.account, tuple(context.specs), secrets)
    unused = (
        *_OPTIONAL,
        *(() if config.on_emr else _OF_EMR),
        *(() if config.athena else _OF_ATHENA),
    )
    for statement in policy("deploy", of)["Statement"]:
        actions = [action for action in statement["Action"] if not action.startswith(unused)]
        if actions:
            yield from _simulate(
                iam,
                PolicySourceArn=principal,
                ActionNames=actions,
                ResourceArns=[_example(resource) for resource in listed(statement["Resource"])],
                ContextEntries=_entries(context, statement),
            )


def _example(arn: str) -> str:
    """Return an ARN that a pattern is about: IAM takes the signs of a pattern literally."""
    return arn if arn == "*" else arn.replace("??????", "AbCdEf").replace("*", "example")


def _entries(context: DeployContext, statement: Document) -> list[dict[str, Any]]:
    """Return what is known of the requests."""
    known = {
        "aws:RequestedRegion": context.config.aws_region,
        "aws:SecureTransport": "true",
        **{f"aws:RequestTag/{name}": value for name, value in context.aws.tags.items()},
    }
    if boundary := context.config.iam.permissions_boundary_arn:
        known["iam:PermissionsBoundary"] = boundary
    for tests in statement.get("Condition", {}).values():
        known |= {key: _example(listed(value)[0]) for key, value in tests.items()}
    kinds = {"aws:SecureTransport": "boolean"}
    return [
        {
            "ContextKeyName": name,
            "ContextKeyValues": [value],
            "ContextKeyType": kinds.get(name, "string"),
        }
        for name, value in known.items()
    ]


def _simulate(iam: Any, **request: Any) -> Iterator[Denied]:
    for result in every(iam, "simulate_principal_policy", "EvaluationResults", **request):
        specific = result.get("ResourceSpecificResults") or [
            {
                "EvalResourceName": result.get("EvalResourceName", "*"),
                "EvalResourceDecision": result["EvalDecision"],
                "MissingContextValues": result.get("MissingContextValues", []),
            }
        ]
        denied = [
            resource for resource in specific if resource["EvalResourceDecision"] != "allowed"
        ]
        if not denied:
            continue
        more = f" and {len(denied) - 1} more" if len(denied) > 1 else ""
        keys = [set(resource.get("MissingContextValues", [])) for resource in denied]
        action = f"{result['EvalActionName']} on {denied[0]['EvalResourceName']}{more}"
        # It is certain if one resource is denied whatever the unknown keys are.
        yield action, sorted(set().union(*keys)) if all(keys) else []
