"""What the users of ``topicberg deploy`` need in AWS, as one policy a purpose, and whether a login
has it.

``calls.json`` has the actions of all requests of each purpose, with what each is about. It is
recorded: the tests create, change, rotate and delete whole deployments, with derived tables on EMR
Serverless, in emulators that allow what these policies do and nothing else. The policies, and what
`deploy` asks IAM before it creates anything, come from this file alone.

Names that contain the account's number or the cluster's id are patterns, since a policy is written
before the first deployment.

https://docs.aws.amazon.com/service-authorization/latest/reference/

IAM simulates the policies of a user or a role, its boundary and those of the organization. It does
not know all of a request: a denial may depend on a key that is unknown here, such as an address, so
it is a warning. So is a denial by the organization, whose conditions IAM does not evaluate.
https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError
from topicberg.errors.meaning import means
from topicberg.errors.table import DENIED, MISSING
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.settings.models import derived_from
from topicberg.topics import TopicSpec
from topicberg_deploy.aws.glue import pipelines
from topicberg_deploy.aws.iam import (
    READS_KEY,
    WRITES_KEY,
    Document,
    allow,
    caller,
    document,
    key_use,
    listed,
)
from topicberg_deploy.aws.image import image_repository
from topicberg_deploy.context import READER, DeployContext

logger = logging.getLogger(__name__)
Purpose = Literal["plan", "deploy", "rotate"]
"""Of a user: to plan, to create and delete, to rotate keys."""
CALLS = Path(__file__).with_name("calls.json")
CLUSTER_IDS = "lkc-*"
"""The Glue database of the topics' tables is named by the cluster's id."""
_SERVICE_LINKED = "ops.emr-serverless.amazonaws.com"
_READS = ("Get", "List", "Describe")
_GIVEN = ("table_bucket", "table_object")
"""With TOPICBERG_EXISTING_BUCKETS, another administrator manages these: they are only read."""
_LIMITED = ("iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:AttachRolePolicy")
"""Actions that could widen what a role may do: with a boundary, only of roles that have it."""
_GLOBAL = "iam:"
"""Beginning of the actions of a service that has one region, us-east-1, wherever one is.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-requestedregion
"""
_OPTIONAL = ("lakeformation:", "ecr:", "iam:SimulatePrincipalPolicy", "iam:CreateServiceLinkedRole")
"""Beginnings of actions whose denial `deploy` gets by with: an account has one service-linked role,
and may have it already."""


@dataclass(frozen=True)
class Deployed:
    """Where a deployment is, as far as that is known before it exists.

    :param secrets: the vendors' logins of who runs ``topicberg deploy``, in Secrets Manager
    """

    config: Settings
    account: str
    specs: tuple[TopicSpec, ...]
    secrets: tuple[str, ...] = ()

    @property
    def names(self) -> Names:
        return Names(self.config.prefix)

    def arn(self, service: str, resource: str) -> str:
        return f"arn:aws:{service}:{self.config.aws_region}:{self.account}:{resource}"

    def iam(self, kind: str, *names: str) -> list[str]:
        begin = f"arn:aws:iam::{self.account}:{kind}{self.config.iam.path}"
        return [f"{begin}{name}" for name in names]

    @property
    def buckets(self) -> list[str]:
        """Those of the tables, and at the end the one for computing."""
        config, given = self.config, self.config.model_fields_set
        topics = config.bucket if "bucket" in given else f"{config.bucket}-{self.account}"
        derived = config.derived_bucket if "derived_bucket" in given else derived_from(topics)
        names = [topics, derived, f"{topics[:55]}-compute"]
        return [f"arn:aws:s3:::{name}" for name in dict.fromkeys(names)]

    def secret_arns(self, *names: str) -> list[str]:
        """Return patterns of secrets: AWS appends six characters to a name."""
        return [self.arn("secretsmanager", f"secret:{name}-??????") for name in names]

    @property
    def policies(self) -> list[str]:
        """The policies; a long one is split into several, with a number at the end."""
        names = self.names
        policies_of_deploy = (names.tableflow_policy, names.snowflake_policy, names.emr_policy)
        return self.iam(
            "policy", *policies_of_deploy, *(f"{name}_*" for name in policies_of_deploy)
        )

    def resources(self) -> dict[str, list[str]]:
        """Return what the calls are about, by the names in the file; the first that fits counts.

        What is passed to EMR Serverless is only the last one.
        """
        names, config, buckets = self.names, self.config, self.buckets
        topics = config.tableflow_namespace or CLUSTER_IDS
        derived = [*map(names.namespace, pipelines(self.specs))]
        iam, image = config.iam, image_repository(config)
        given = (iam.tableflow_role_arn, iam.snowflake_role_arn, iam.emr_role_arn)

        def ssm(*paths: str) -> list[str]:
            return [self.arn("ssm", f"parameter{path}") for path in paths]

        def glue(*resources: str) -> list[str]:
            return [self.arn("glue", resource) for resource in resources]

        return {
            "compute_bucket": buckets[-1:],
            "compute_object": [f"{buckets[-1]}/*"],
            "table_bucket": buckets[:-1],
            "table_object": [f"{bucket}/*" for bucket in buckets[:-1]],
            "given_role": [arn for arn in given if arn],
            # Those that it created before another one was given are still deleted.
            "role": self.iam("role", names.tableflow_role, names.snowflake_role, names.emr_role),
            "ci_role": self.iam("role", ci_role(self, "plan"), ci_role(self, "deploy")),
            "policy": self.policies,
            "catalog": glue("catalog"),
            "database": glue(*(f"database/{name}" for name in (topics, *derived))),
            "table": glue(*(f"table/{name}/*" for name in (topics, *derived))),
            "function": glue(*(f"userDefinedFunction/{name}/*" for name in (topics, *derived))),
            "reader_secret": self.secret_arns(names.confluent_secret(f"{READER}/*")),
            "secret": self.secret_arns(names.confluent_secret("*"), names.snowflake_secret),
            "login": self.secret_arns(*self.secrets),
            "lock": ssm(names.lock),
            "deployment": ssm(names.deployment),
            "record": ssm(names.record, f"{names.record}/*"),
            "parameter": ssm(names.confluent_secret("*")),
            "application": [self.arn("emr-serverless", "/applications/*")],
            "applications": [self.arn("emr-serverless", "/*")],
            "workgroup": [self.arn("athena", f"workgroup/{names.athena_workgroup}")],
            "repository": [
                f"arn:aws:ecr:{image['region']}:{image['registry']}:repository/{image['name']}"
            ]
            if image
            else [],
            "any": ["*"],
            "passed_role": [iam.emr_role_arn or self.iam("role", names.emr_role)[0]],
        }


@cache
def recorded_calls() -> Mapping[str, Mapping[str, list[str]]]:
    """Return purpose → action → names of what it is about, as recorded."""
    return dict(json.loads(CALLS.read_text()))


def policy(purpose: Purpose, of: Deployed) -> Document:
    """Return what the user of a purpose may do, and nothing else."""
    services, uses = {
        "plan": (("glue", "secretsmanager"), READS_KEY),
        "deploy": (("s3", "glue", "secretsmanager"), WRITES_KEY),
        "rotate": (("secretsmanager",), WRITES_KEY),
    }[purpose]
    more = _of_aws(of) if purpose == "deploy" else []
    return document(*_recorded(purpose, of), *more, *key_use(of.config, uses, services))


def _recorded(purpose: Purpose, of: Deployed) -> list[Document]:
    """Return a statement for the actions that are about the same, under the same condition."""
    resources, given = of.resources(), _GIVEN if of.config.existing_buckets else ()
    grouped: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for action, kinds in recorded_calls()[purpose].items():
        changes = not action.partition(":")[2].startswith(_READS)
        targets = tuple(
            kind for kind in kinds if resources[kind] and not (changes and kind in given)
        )
        condition = _condition(action, of)
        if targets and condition is not None:
            grouped[targets, json.dumps(condition)].append(action)
    return [
        allow(actions, [arn for kind in kinds for arn in resources[kind]])
        | ({"Condition": json.loads(condition)} if condition != "{}" else {})
        for (kinds, condition), actions in grouped.items()
    ]


def _condition(action: str, of: Deployed) -> dict[str, Any] | None:
    """Return under which condition an action is allowed; None: it is not.

    Without these, who deploys could make any role that it manages an administrator's. None of them
    limits what is in a policy: only a boundary does.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
    """
    boundary = of.config.iam.permissions_boundary_arn
    if action == "iam:PassRole":
        return {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    if action == "iam:PutRolePermissionsBoundary" and not boundary:
        return None
    limits = {"iam:PermissionsBoundary": boundary} if boundary and action in _LIMITED else {}
    attached = {"iam:PolicyARN": of.policies} if action == "iam:AttachRolePolicy" else {}
    return {
        operator: test
        for operator, test in (("StringEquals", limits), ("ArnLike", attached))
        if test
    }


def _of_aws(of: Deployed) -> list[Document]:
    """Return what AWS itself does for who deploys: EMR Serverless creates its role, and the network
    interfaces of job runs that have a network.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/security-iam-user-access-policies.html
    """
    linked = {"StringLike": {"iam:AWSServiceName": _SERVICE_LINKED}}
    called = {"StringEquals": {"aws:CalledViaLast": _SERVICE_LINKED}}
    statements = [{**allow(["iam:CreateServiceLinkedRole"], "*"), "Condition": linked}]
    if of.config.emr.subnet_ids:
        statements.append({**allow(["ec2:CreateNetworkInterface"], "*"), "Condition": called})
    return statements


def ci_role(of: Deployed, purpose: Purpose) -> str:
    """Return the name of the role of a purpose."""
    return of.names.of(f"tableflow_ci_{purpose}")


def check_permissions(context: DeployContext) -> None:
    """:raises TopicbergError: lists all actions that who deploys may not do"""
    if context.skips_simulation:
        return
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
    if doubtful := [f"{action} ({why})" for action, why in denied_actions if why]:
        logger.warning(
            "it is not proved that %s has these permissions: %s", principal, "; ".join(doubtful)
        )
    if denied := [action for action, why in denied_actions if not why]:
        raise TopicbergError(
            f"{principal} lacks permissions: {'; '.join(denied)}",
            hint="attach the policies that `topicberg deploy bootstrap-ci` prints for `deploy`; if "
            "the login has them, `topicberg deploy create --skip-simulation` does not ask IAM",
        )


def _denied(context: DeployContext, principal: str) -> Iterator[tuple[str, str]]:
    """Yield each action that is denied, and why that is doubtful; empty: it is certain."""
    config = context.config
    secrets = tuple(filter(None, (context.deploy.admin_user_secrets_root_path,)))
    of = Deployed(config, context.aws.account, tuple(context.specs), secrets)
    of_emr = () if config.on_emr else ("emr-serverless:", "iam:PassRole")
    unused = (*_OPTIONAL, *of_emr, *(() if config.athena else ("athena:",)))
    for statement in policy("deploy", of)["Statement"]:
        actions = [action for action in statement["Action"] if not action.startswith(unused)]
        by_service = groupby(sorted(actions), lambda action: action.startswith(_GLOBAL))
        for is_global, some in by_service:
            results = every(
                context.aws.client("iam"),
                "simulate_principal_policy",
                "EvaluationResults",
                PolicySourceArn=principal,
                ActionNames=[*some],
                ResourceArns=[_example(resource) for resource in listed(statement["Resource"])],
                ContextEntries=_entries(context, statement, is_global=is_global),
            )
            yield from filter(None, map(_denial, results))


def _denial(result: Document) -> tuple[str, str] | None:
    """Return the action of a result that is denied, and why that is doubtful; None: it is not."""
    whole = {
        "EvalResourceName": result.get("EvalResourceName", "*"),
        "EvalResourceDecision": result["EvalDecision"],
        "MissingContextValues": result.get("MissingContextValues", []),
    }
    denied = [
        resource
        for resource in result.get("ResourceSpecificResults") or [whole]
        if resource["EvalResourceDecision"] != "allowed"
    ]
    if not denied:
        return None
    more = f" and {len(denied) - 1} more" if len(denied) > 1 else ""
    action = f"{result['EvalActionName']} on {denied[0]['EvalResourceName']}{more}"
    organization = result.get("OrganizationsDecisionDetail", {})
    if not organization.get("AllowedByOrganizations", True):
        return action, "a policy of the organization denies it"
    keys = [set(resource.get("MissingContextValues", [])) for resource in denied]
    # It is certain if one resource is denied whatever the unknown keys are.
    return action, ", ".join(sorted(set().union(*keys))) if all(keys) else ""


def _example(arn: str) -> str:
    """Return an ARN that a pattern is about: IAM takes the signs of a pattern literally."""
    return arn if arn == "*" else arn.replace("??????", "AbCdEf").replace("*", "example")


def _entries(
    context: DeployContext, statement: Document, *, is_global: bool
) -> list[dict[str, Any]]:
    """Return what is known of the requests."""
    known = {
        "aws:RequestedRegion": "us-east-1" if is_global else context.config.aws_region,
        "aws:SecureTransport": "true",
        **{f"aws:RequestTag/{name}": value for name, value in context.aws.tags.items()},
    }
    if boundary := context.config.iam.permissions_boundary_arn:
        known["iam:PermissionsBoundary"] = boundary
    for tests in statement.get("Condition", {}).values():
        known |= {key: _example(listed(value)[0]) for key, value in tests.items()}
    return [
        {
            "ContextKeyName": name,
            "ContextKeyValues": [value],
            "ContextKeyType": "boolean" if name == "aws:SecureTransport" else "string",
        }
        for name, value in known.items()
    ]
