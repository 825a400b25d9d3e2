"""What the users of ``topicberg deploy`` need in AWS, as policy documents: one for each purpose.

Names that contain the account's number or the cluster's id are patterns, since a policy is written
before the first deployment. Source: AWS's Service Authorization Reference, for the operations that
the resources of this package call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from topicberg.deploy.aws.glue import pipelines
from topicberg.deploy.aws.iam import READS_KEY, WRITES_KEY, Document, allow, document, key_use
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.settings.aws import derived_from
from topicberg.topics import TopicSpec

Purpose = Literal["plan", "deploy", "rotate"]
"""Of a user: to plan, to create and delete, to rotate keys."""
CLUSTER_IDS = "lkc-*"
"""The Glue database of the topics' tables is named by the cluster's id."""
_SERVICE_LINKED = "ops.emr-serverless.amazonaws.com"
_BUCKET_SETTINGS = (
    *("EncryptionConfiguration", "BucketPublicAccessBlock", "BucketPolicy", "BucketVersioning"),
    *("LifecycleConfiguration", "BucketTagging"),
)


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
        begin = f"arn:aws:iam::{self.account}:{kind}{self.config.iam_path}"
        return [f"{begin}{name}" for name in names]

    @property
    def buckets(self) -> list[str]:
        config, given = self.config, self.config.model_fields_set
        topics = config.bucket if "bucket" in given else f"{config.bucket}-{self.account}"
        derived = config.derived_bucket if "derived_bucket" in given else derived_from(topics)
        found = [topics, derived, f"{topics[:55]}-compute"]
        return [f"arn:aws:s3:::{name}" for name in dict.fromkeys(found)]

    @property
    def own_buckets(self) -> list[str]:
        """Those that no other administrator manages."""
        return self.buckets[-1:] if self.config.existing_buckets else self.buckets

    def secret_arns(self, *names: str) -> list[str]:
        """Return patterns of secrets: AWS appends six characters to a name."""
        return [self.arn("secretsmanager", f"secret:{name}-??????") for name in names]

    @property
    def own_secrets(self) -> list[str]:
        paths = (self.names.confluent_secret("*"), self.names.snowflake_secret)
        return self.secret_arns(*paths)

    @property
    def lock(self) -> str:
        return self.arn("ssm", f"parameter{self.names.lock}")

    @property
    def record(self) -> list[str]:
        """The path of the record of what `deploy` created, and its parameters."""
        path = self.arn("ssm", f"parameter{self.names.record}")
        return [path, f"{path}/*"]

    @property
    def glue(self) -> list[str]:
        topics = self.config.tableflow_namespace or CLUSTER_IDS
        databases = (topics, *map(self.names.namespace, pipelines(self.specs)))
        found = [self.arn("glue", "catalog")]
        for name in databases:
            found += [self.arn("glue", f"database/{name}"), self.arn("glue", f"table/{name}/*")]
        return found


def policy(purpose: Purpose, of: Deployed) -> Document:
    """Return what the user of a purpose may do, and nothing else."""
    if purpose == "rotate":
        return document(*_rotating(of))
    if purpose == "deploy":
        return document(*_reading(of), *_changing(of))
    return document(*_reading(of), *key_use(of.config, READS_KEY, ("glue", "secretsmanager")))


def _login(of: Deployed) -> list[Document]:
    """Return the statement about the logins to Confluent and Snowflake."""
    arns = of.secret_arns(*of.secrets)
    return [allow(["secretsmanager:GetSecretValue"], arns)] if arns else []


def _reading(of: Deployed) -> list[Document]:
    names = of.names
    parameters = of.arn("ssm", f"parameter{names.confluent_secret('*')}")
    return [
        *_login(of),
        allow(
            [
                *("s3:ListBucket", "s3:GetBucketLocation"),
                *(f"s3:Get{setting}" for setting in _BUCKET_SETTINGS),
            ],
            of.buckets,
        ),
        allow(
            [
                *("iam:GetRole", "iam:ListAttachedRolePolicies", "iam:ListRolePolicies"),
                *("iam:GetPolicy", "iam:GetPolicyVersion"),
            ],
            [*_roles(of), *_policies(of)],
        ),
        allow(
            [f"glue:Get{kind}" for kind in ("Database", "Databases", "Table", "Tables")], of.glue
        ),
        allow(["secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue"], of.own_secrets),
        allow(["ssm:GetParametersByPath"], [parameters, *of.record]),
        allow(["emr-serverless:ListApplications"], of.arn("emr-serverless", "/*")),
        allow(
            ["emr-serverless:GetApplication", "emr-serverless:ListJobRuns"],
            of.arn("emr-serverless", "/applications/*"),
        ),
        allow(["athena:GetWorkGroup", "athena:ListTagsForResource"], _workgroup(of)),
        allow(
            [
                *("lakeformation:GetDataLakeSettings", "lakeformation:ListPermissions"),
                "lakeformation:ListResources",
            ],
            "*",
        ),
    ]


def _in_vpc(config: Settings) -> list[Document]:
    """Return what EMR Serverless does for who gives job runs a network.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/security-iam-user-access-policies.html
    """
    if not config.emr_subnet_ids:
        return []
    called = {"StringEquals": {"aws:CalledViaLast": _SERVICE_LINKED}}
    return [{**allow(["ec2:CreateNetworkInterface"], "*"), "Condition": called}]


def _changing(of: Deployed) -> list[Document]:
    names = of.names
    objects = [f"{bucket}/*" for bucket in of.own_buckets]
    applications = of.arn("emr-serverless", "/applications/*")
    passed = {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    linked = {"StringLike": {"iam:AWSServiceName": _SERVICE_LINKED}}
    return [
        *_locking(of),
        allow(["ssm:PutParameter", "ssm:DeleteParameter"], of.record[-1:]),
        allow(
            [
                *("s3:CreateBucket", "s3:DeleteBucket", "s3:ListBucketVersions"),
                *("s3:ListBucketMultipartUploads",),
                *(f"s3:Put{setting}" for setting in _BUCKET_SETTINGS),
            ],
            of.own_buckets,
        ),
        allow(
            [
                *("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"),
                "s3:AbortMultipartUpload",
            ],
            objects,
        ),
        allow(
            [
                *("iam:CreateRole", "iam:DeleteRole", "iam:UpdateAssumeRolePolicy", "iam:TagRole"),
                *("iam:AttachRolePolicy", "iam:DetachRolePolicy", "iam:DeleteRolePolicy"),
                *("iam:PutRolePermissionsBoundary", "iam:DeleteRolePermissionsBoundary"),
            ],
            of.iam("role", *_own_roles(of)),
        ),
        allow(
            [
                *("iam:CreatePolicy", "iam:DeletePolicy", "iam:TagPolicy"),
                *("iam:CreatePolicyVersion", "iam:DeletePolicyVersion"),
                *("iam:ListPolicyVersions", "iam:ListEntitiesForPolicy"),
            ],
            _policies(of),
        ),
        {**allow(["iam:PassRole"], _roles(of)[-1:]), "Condition": passed},
        {**allow(["iam:CreateServiceLinkedRole"], "*"), "Condition": linked},
        allow(
            ["iam:SimulatePrincipalPolicy", "iam:GetRole"], of.iam("role", ci_role(of, "deploy"))
        ),
        allow(
            [
                *("glue:CreateDatabase", "glue:DeleteDatabase", "glue:BatchDeleteTable"),
                "glue:TagResource",
            ],
            of.glue,
        ),
        allow(
            _secret_changes("CreateSecret", "RestoreSecret", "DeleteSecret", "TagResource"),
            of.own_secrets,
        ),
        allow(
            ["ssm:PutParameter", "ssm:DeleteParameters", "ssm:AddTagsToResource"],
            of.arn("ssm", f"parameter{names.confluent_secret('*')}"),
        ),
        allow(
            ["emr-serverless:CreateApplication", "emr-serverless:TagResource"],
            of.arn("emr-serverless", "/*"),
        ),
        allow(
            [
                *(f"emr-serverless:{verb}Application" for verb in ("Update", "Delete", "Stop")),
                *("emr-serverless:StartApplication", "emr-serverless:StartJobRun"),
                *("emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"),
            ],
            applications,
        ),
        *_in_vpc(of.config),
        allow(
            [
                *("athena:CreateWorkGroup", "athena:UpdateWorkGroup", "athena:DeleteWorkGroup"),
                "athena:TagResource",
            ],
            _workgroup(of),
        ),
        *key_use(of.config, WRITES_KEY, ("s3", "glue", "secretsmanager")),
    ]


def _rotating(of: Deployed) -> list[Document]:
    """Only secrets: keys are the vendors', and everything else is only found by its name there."""
    reads = ("secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue")
    return [
        *_login(of),
        *_locking(of),
        allow(["ssm:GetParametersByPath"], of.record),
        allow(["ssm:PutParameter"], of.record[-1:]),  # of what a killed run created
        allow([*reads, *_secret_changes()], of.own_secrets),
        *key_use(of.config, WRITES_KEY, ("secretsmanager",)),
    ]


def _locking(of: Deployed) -> list[Document]:
    return [allow(["ssm:PutParameter", "ssm:GetParameterHistory"], of.lock)]


def _secret_changes(*more: str) -> Iterable[str]:
    changes = ("PutSecretValue", "UpdateSecretVersionStage", *more)
    return [f"secretsmanager:{change}" for change in changes]


def ci_role(of: Deployed, purpose: Purpose) -> str:
    """Return the name of the role of a purpose."""
    return of.names.of(f"tableflow_ci_{purpose}")


def _own_roles(of: Deployed) -> list[str]:
    """Return the names of the roles that `deploy` creates, also of those that it created before
    another one was given.
    """
    names = of.names
    return [names.tableflow_role, names.snowflake_role, names.emr_role]


def _roles(of: Deployed) -> list[str]:
    """Return the roles, also those of another administrator, which are only read."""
    config = of.config
    given = (config.tableflow_role_arn, config.snowflake_role_arn, config.emr_role_arn)
    roles = of.iam("role", *_own_roles(of))
    return [arn or role for arn, role in zip(given, roles, strict=True)]


def _policies(of: Deployed) -> list[str]:
    """Return the policies; a long one is split into several, with a number at the end."""
    names = of.names
    own = (names.tableflow_policy, names.snowflake_policy, names.emr_policy)
    return of.iam("policy", *own, *(f"{name}_*" for name in own))


def _workgroup(of: Deployed) -> str:
    return of.arn("athena", f"workgroup/{of.names.athena_workgroup}")
