"""AWS."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from topicberg.settings.deployment import DeploymentSettings
from topicberg.settings.environment import Concern, FromJson, Group

TAG = r"^[\w .:/=+@-]{1,128}$"


def derived_from(bucket: str) -> str:
    """Return the default name of the derived bucket; S3's names have at most 63 characters."""
    return f"{bucket[:55]}-derived"


KmsKey = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+$")]
RoleArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/\S+$")]
Boundary = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::(\d{12}|aws):policy/\S+$")]


class KmsSettings(Group):
    """Keys of AWS KMS."""

    bucket_key_arn: KmsKey | None = None
    """`topicberg deploy` encrypts the buckets with it."""
    secrets_key_arn: KmsKey | None = None
    """`topicberg deploy` encrypts the secrets that it creates with it."""
    glue_key_arn: KmsKey | None = None
    """The account encrypts Glue's catalog with it."""


class IamSettings(Group):
    """The IAM roles that ``topicberg deploy`` creates, and those that exist, which it checks."""

    path: str = Field(default="/", pattern=r"^/([A-Za-z0-9._+=,@-]+/)*$")
    """Of roles and policies; choose it before the first `create`."""
    permissions_boundary_arn: Boundary | None = None
    tableflow_role_arn: RoleArn | None = None
    snowflake_role_arn: RoleArn | None = None
    emr_role_arn: RoleArn | None = None
    """For the job runs of EMR Serverless."""


class AwsSettings(DeploymentSettings):
    """The account, the buckets, keys and roles."""

    concern = Concern.AWS

    aws_region: str = "us-east-1"
    """Of all resources in AWS."""
    glue_schema_registry: str = Field(
        default="default-registry",
        pattern=r"^[a-zA-Z0-9_$#.-]{1,255}$",
        description="registry of AWS Glue Schema Registry with the schemas that records name, of "
        "topics with framing glue; the default is that of AWS's serializers",
    )
    aws_account_id: str = Field(default="000000000000", pattern=r"^\d{12}$")
    """The number of the account; in the cloud, `topicberg deploy` finds it."""
    bucket: str = Field(
        default_factory=lambda fields: str(fields["prefix"]).replace("_", "-"),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
        description="holds the topics' tables; S3 takes no underscore, Snowflake no dot",
    )
    derived_bucket: str = Field(
        default_factory=lambda fields: (
            fields["bucket"]
            if (fields["deployment"], fields["tableflow"]) == ("cloud", "topicberg")
            else derived_from(fields["bucket"])
        ),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
        validate_default=True,
        description="holds the derived tables: Tableflow needs a bucket of its own",
    )
    existing_buckets: bool = Field(
        default=False,
        description="the buckets of the tables exist: `topicberg deploy` creates, changes, empties "
        "and deletes none of them",
    )
    bucket_versioning: bool = Field(
        default=False,
        description="`topicberg deploy` keeps the versions of deleted and overwritten objects for "
        "30 days",
    )
    kms: Annotated[KmsSettings, *FromJson] = Field(
        default=KmsSettings(),
        description="keys of AWS KMS, whose use `topicberg deploy` permits to the roles that it "
        "creates: bucket_key_arn, secrets_key_arn, glue_key_arn",
    )
    iam: Annotated[IamSettings, *FromJson] = Field(
        default=IamSettings(),
        description="the IAM roles that `topicberg deploy` creates: path, "
        "permissions_boundary_arn; those that exist: tableflow_role_arn, snowflake_role_arn, "
        "emr_role_arn",
    )
    tags: Annotated[
        dict[Annotated[str, Field(pattern=TAG)], Annotated[str, Field(max_length=256)]], *FromJson
    ] = Field(
        default_factory=dict,
        description="tags of the resources in AWS beside topicberg's own, as JSON: "
        '{"team": "data"}',
    )
    athena: bool = Field(
        default=True, description="`topicberg deploy` creates a workgroup of Athena, for queries"
    )

    @property
    def warehouse(self) -> str:
        return f"s3://{self.bucket}/"

    @property
    def derived_warehouse(self) -> str:
        return f"s3://{self.derived_bucket}/"
