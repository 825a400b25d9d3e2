"""What computes the derived tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from topicberg.settings.deployment import DeploymentSettings
from topicberg.settings.environment import Concern, FromJson, Group


class EmrSettings(Group):
    """An EMR Serverless application that computes the derived tables."""

    application_id: str = Field(pattern=r"^[0-9a-z]{1,64}$")
    execution_role_arn: str = Field(pattern=r"^arn:aws[a-zA-Z0-9-]*:iam::\d{12}:role/[!-~]+$")
    """What the job may do."""
    entry_point: str = Field(pattern=r"^(s3://[^/\s]+|local://)?/\S+\.py$")
    """job.py that `topicberg deploy emr-image` writes, in the image or in S3."""
    log_uri: str = Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/\S*)?$")
    """Where in S3 the logs of job runs go, and what they report to Dagster."""
    spark_submit_parameters: str = ""
    """Are added after those that topicberg generates, and override them."""


class NewEmrSettings(Group):
    """The EMR Serverless application that ``topicberg deploy`` creates."""

    release: str = Field(
        default="emr-spark-8.1.0", pattern=r"^emr-(spark-)?\d+\.\d+\.\d+(-\d{8})?$"
    )
    """It needs Spark 4.1."""
    image: str | None = Field(
        default=None,
        pattern=r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.[a-z0-9.-]+/[^\s:@]+(:[\w.-]+|@sha256:[0-9a-f]{64})$",
    )
    """Built from what `topicberg deploy emr-image` writes; without it, the code is uploaded."""
    max_vcpu: int = Field(default=16, ge=4, le=4000)
    """What all of its job runs may use together."""
    subnet_ids: str = Field(
        default="", pattern=r"^(subnet-[0-9a-f]{8,24}(,subnet-[0-9a-f]{8,24}){0,15})?$"
    )
    """Subnets (separated by commas, at most 16) in which its job runs have network interfaces, for
    what they reach in a VPC; without them they reach AWS only."""
    security_group_ids: str = Field(
        default="", pattern=r"^(sg-[0-9a-f]{8,24}(,sg-[0-9a-f]{8,24}){0,4})?$"
    )
    """Security groups of these network interfaces (separated by commas, at most 5)."""


class ComputeSettings(DeploymentSettings):
    """Spark Connect, or an EMR Serverless application."""

    concern = Concern.COMPUTE

    compute: Literal["emr", "none"] | None = Field(
        default=None,
        description="emr: `topicberg deploy` creates an EMR Serverless application, which computes "
        "the derived tables; none: it creates none; by default it creates one unless "
        "TOPICBERG_SPARK_REMOTE is set",
    )
    spark_remote: SecretStr | None = Field(
        default=None, exclude=True, description="the Spark Connect endpoint of a cloud deployment"
    )
    emr: Annotated[NewEmrSettings, *FromJson] = Field(
        default=NewEmrSettings(),
        description="the EMR Serverless application that `topicberg deploy` creates: release, "
        "image, max_vcpu, subnet_ids, security_group_ids",
    )
    emr_jobs: Annotated[EmrSettings | None, *FromJson] = Field(
        default=None,
        exclude=True,
        repr=False,
        description="another EMR Serverless application that computes the derived tables: "
        "application_id, execution_role_arn, entry_point, log_uri, spark_submit_parameters",
    )

    @property
    def on_emr(self) -> bool:
        """Whether the deployment has an EMR Serverless application of its own."""
        return self.compute == "emr" or (self.compute is None and self.spark_remote is None)

    @property
    def has_spark(self) -> bool:
        """Whether there is a Spark Connect endpoint; EMR Serverless computes only tables."""
        return self.deployment == "local" or self.spark_remote is not None
