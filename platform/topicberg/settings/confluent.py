"""Confluent Cloud."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from topicberg.settings.deployment import DeploymentSettings
from topicberg.settings.environment import Concern, FromJson, Group


class UnitySettings(Group):
    """A Databricks Unity Catalog."""

    workspace_url: str | None = Field(default=None, pattern=r"^https://[^/\s]+$")
    catalog: str | None = None
    client_id: str | None = None
    """The service principal as which Tableflow logs in to it."""
    client_secret: SecretStr | None = None
    """The OAuth secret of that service principal."""


class ConfluentSettings(DeploymentSettings):
    """The environment and the cluster of Confluent Cloud."""

    concern = Concern.CONFLUENT

    cluster_id: str = Field(
        default="lkc-local",
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="id of the Kafka cluster: namespace of its tables and name of its Glue "
        "database, unless they have a name of their own",
    )
    tableflow_namespace: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9_-]{0,254}$",
        description="namespace and Glue database of the topics' tables, in the place of the "
        "cluster's id; choose it before the first table exists",
    )
    cluster_type: Literal["Basic", "Standard"] | None = Field(
        default=None,
        description="of the Kafka cluster that `topicberg deploy` creates: Basic by default; a "
        "cluster that exists keeps its type, and a Basic one can become a Standard one",
    )
    existing_environment: str | None = Field(
        default=None,
        pattern=r"^env-[a-z0-9]+$",
        description="id of an environment of Confluent Cloud that exists: `topicberg deploy` "
        "neither changes nor deletes it",
    )
    existing_cluster: str | None = Field(
        default=None,
        pattern=r"^lkc-[a-z0-9]+$",
        description="id of a Kafka cluster in that environment, of any type: `topicberg deploy` "
        "neither changes nor deletes it",
    )
    unity: Annotated[UnitySettings, *FromJson] = Field(
        default=UnitySettings(),
        exclude=True,
        repr=False,
        description="a Unity Catalog to which Confluent's Tableflow also publishes the topics' "
        "Delta tables: workspace_url, catalog, client_id, client_secret",
    )
    auto_offset_reset: Literal["earliest", "latest"] = Field(
        default="latest",
        description="where consumers begin that read their settings from Parameter Store",
    )
    generators: bool = Field(
        default=True,
        description="`topicberg deploy` creates the Datagen connectors of topics with a generator",
    )

    @property
    def is_deployed(self) -> bool:
        """Whether the Kafka cluster is known: the default id is not one of a cloud deployment."""
        return self.deployment == "local" or "cluster_id" in self.model_fields_set

    @property
    def topics_namespace(self) -> str:
        """Namespace and Glue database of the topics' tables.

        https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html
        """
        return self.tableflow_namespace or self.cluster_id
