"""What computes the derived tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from topicberg.settings.aws import ROLE_ARN
from topicberg.settings.deployment import DeploymentSettings
from topicberg.settings.environment import Concern


class ComputeSettings(DeploymentSettings):
    """Spark Connect, or the EMR Serverless application that ``topicberg deploy`` creates."""

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
    emr_release: str = Field(
        default="emr-spark-8.1.0",
        pattern=r"^emr-(spark-)?\d+\.\d+\.\d+(-\d{8})?$",
        description="release of the EMR Serverless application; it needs Spark 4.1",
    )
    emr_image: str | None = Field(
        default=None,
        pattern=r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.[a-z0-9.-]+/[^\s:@]+(:[\w.-]+|@sha256:[0-9a-f]{64})$",
        description="image of EMR Serverless, built from what `topicberg deploy emr-image` "
        "writes; without it `topicberg deploy` uploads the code",
    )
    emr_role_arn: str | None = Field(
        default=None, pattern=ROLE_ARN, description="an existing IAM role for EMR Serverless"
    )
    emr_max_vcpu: int = Field(
        default=16, ge=4, le=4000, description="vCPU of all job runs of EMR Serverless"
    )

    emr_subnet_ids: str = Field(
        default="",
        pattern=r"^(subnet-[0-9a-f]{8,24}(,subnet-[0-9a-f]{8,24}){0,15})?$",
        description="subnets (separated by commas, at most 16) in which its job runs have network "
        "interfaces, for what they reach in a VPC; without them they reach AWS only",
    )
    emr_security_group_ids: str = Field(
        default="",
        pattern=r"^(sg-[0-9a-f]{8,24}(,sg-[0-9a-f]{8,24}){0,4})?$",
        description="security groups of job runs in a VPC (separated by commas, at most 5)",
    )

    @property
    def on_emr(self) -> bool:
        """Whether the deployment has an EMR Serverless application of its own."""
        return self.compute == "emr" or (self.compute is None and self.spark_remote is None)

    @property
    def has_spark(self) -> bool:
        """Whether there is a Spark Connect endpoint; EMR Serverless computes only tables."""
        return self.deployment == "local" or self.spark_remote is not None
