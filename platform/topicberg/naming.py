"""Names of the platform's resources.

With the default prefix the names are those of Confluent's Terraform kickstarter, so that resources
that it created are adopted. With another prefix, every name that is global in its account contains
the prefix, so that several deployments share an account.
"""

from __future__ import annotations

from dataclasses import dataclass

from topicberg.settings import deployment_parameter

DEFAULT_PREFIX = "tableflow_kickstarter"


class _Named:
    """A property of :class:`Names`: the name of one resource; ``name``: that of the kickstarter."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, names: Names, _: type[Names]) -> str:
        return names.of(self._name)


@dataclass(frozen=True)
class Names:
    """Names under one prefix."""

    prefix: str

    def of(self, name: str) -> str:
        """Return a name of the kickstarter, with the prefix in place of its beginning."""
        if self.prefix == DEFAULT_PREFIX:
            return name
        for beginning in (DEFAULT_PREFIX, "tableflow"):
            if name == beginning or name.startswith(f"{beginning}_"):
                return self.prefix + name.removeprefix(beginning)
        return f"{self.prefix}_{name}"

    environment = _Named("tableflow_kickstarter")
    cluster = _Named("tableflow_kickstarter")
    provider_integration = _Named("tableflow_aws_integration")
    catalog_integration = _Named("tableflow_aws_glue_catalog_sync")
    unity_integration = _Named("tableflow_unity_catalog_sync")
    tableflow_role = _Named("tableflow_s3_glue_role")
    tableflow_policy = _Named("tableflow_s3_glue_access_policy")
    snowflake_role = _Named("snowflake_s3_glue_role")
    snowflake_policy = _Named("snowflake_s3_glue_role_access_policy")
    emr_application = _Named("tableflow_spark")
    emr_role = _Named("tableflow_spark_job_role")
    emr_policy = _Named("tableflow_spark_job_policy")
    athena_workgroup = _Named("tableflow_athena")

    def service_account(self, role: str) -> str:
        """Return the name of ``app_manager``, ``app_consumer``, ``app_producer``, ``app_connector``
        or ``schema_registry``."""
        if role == "schema_registry":
            return self.of("tableflow_kickstarter_schema_registry_cluster_api")
        return self.of(f"tableflow_{role}")

    def connector(self, topic: str) -> str:
        """Return the name of a connector, which needs no prefix within its cluster."""
        return "SampleSourceConnector" if topic == "stock_trades" else f"{topic}_source"

    def namespace(self, pipeline: str) -> str:
        """Return the Iceberg namespace and Glue database of a pipeline's tables: deployments share
        the one Glue catalog of an account and region."""
        return pipeline if self.prefix == DEFAULT_PREFIX else f"{self.prefix}_{pipeline}"

    def confluent_secret(self, path: str) -> str:
        return f"/confluent_cloud_resource/{self.prefix}/{path}"

    @property
    def snowflake_secret(self) -> str:
        return f"/snowflake_resource/{self.prefix}"

    @property
    def tag(self) -> tuple[str, str]:
        """Name and value of the tag on the resources of topicberg in AWS."""
        return "topicberg", self.prefix

    @property
    def lock(self) -> str:
        return f"/topicberg/{self.prefix}/deploy-lock"

    @property
    def deployment(self) -> str:
        """Parameter with what only the deployment's accounts know."""
        return deployment_parameter(self.prefix)

    @property
    def record(self) -> str:
        """Path of the parameters that say what ``deploy create`` has created."""
        return f"/topicberg/{self.prefix}/created"
