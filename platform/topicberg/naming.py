"""What the platform's resources are called.

With the default prefix the names are those that Confluent's Terraform kickstarter gave them, so
that what it made is adopted. With another prefix every name that is global in its account carries
it, so that several deployments share an account.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "tableflow_kickstarter"


@dataclass(frozen=True)
class Names:
    """Names under one prefix."""

    prefix: str

    def of(self, name: str) -> str:
        """A name of the kickstarter: itself, or with the prefix instead of its own beginning."""
        if self.prefix == DEFAULT_PREFIX:
            return name
        for beginning in (DEFAULT_PREFIX, "tableflow"):
            if name == beginning or name.startswith(f"{beginning}_"):
                return self.prefix + name.removeprefix(beginning)
        return f"{self.prefix}_{name}"

    @property
    def environment(self) -> str:
        return self.of("tableflow_kickstarter")

    @property
    def cluster(self) -> str:
        return self.of("tableflow_kickstarter")

    def service_account(self, role: str) -> str:
        """``app_manager``, ``app_consumer``, ``app_producer``, ``app_connector`` or
        ``schema_registry``."""
        if role == "schema_registry":
            return self.of("tableflow_kickstarter_schema_registry_cluster_api")
        return self.of(f"tableflow_{role}")

    @property
    def provider_integration(self) -> str:
        return self.of("tableflow_aws_integration")

    @property
    def catalog_integration(self) -> str:
        return self.of("tableflow_aws_glue_catalog_sync")

    @property
    def tableflow_role(self) -> str:
        return self.of("tableflow_s3_glue_role")

    @property
    def tableflow_policy(self) -> str:
        return self.of("tableflow_s3_glue_access_policy")

    @property
    def snowflake_role(self) -> str:
        return self.of("snowflake_s3_glue_role")

    @property
    def snowflake_policy(self) -> str:
        return self.of("snowflake_s3_glue_role_access_policy")

    def connector(self, topic: str) -> str:
        """A connector is in its cluster, so its name needs no prefix."""
        if topic == "stock_trades":
            return "SampleSourceConnector"
        return f"{topic}_source"

    def namespace(self, pipeline: str) -> str:
        """Iceberg namespace and Glue database of a pipeline's tables; the topics' is the cluster's.

        AWS has one Glue catalog in an account and region, so deployments would meet in it.
        """
        return pipeline if self.prefix == DEFAULT_PREFIX else f"{self.prefix}_{pipeline}"

    def confluent_secret(self, path: str) -> str:
        return f"/confluent_cloud_resource/{self.prefix}/{path}"

    @property
    def snowflake_secret(self) -> str:
        return f"/snowflake_resource/{self.prefix}"

    @property
    def tag(self) -> tuple[str, str]:
        """Name and value of the tag on what is ours in AWS."""
        return "topicberg", self.prefix

    @property
    def lock(self) -> str:
        return f"/topicberg/{self.prefix}/deploy-lock"
