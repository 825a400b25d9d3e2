"""The kinds of catalog that Confluent's Tableflow publishes tables to (API tableflow/v1).

A cluster can have one of each kind. Each kind takes tables of one format: AWS Glue and Snowflake
Open Catalog those of Iceberg, Unity Catalog those of Delta Lake.
https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html

Snowflake Horizon is none of them: it reads Tableflow's own REST catalog, and nothing is configured
in Tableflow.
https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-snowflake-horizon-catalog.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from topicberg_deploy import unity_catalog
from topicberg_deploy.context import DeployContext
from topicberg_deploy.logins import ClientLogin, catalog_client

PROVIDER_INTEGRATION = "confluent/provider_integration"


def _no_steps(_: DeployContext) -> list[str]:
    return []


@dataclass(frozen=True)
class CatalogKind:
    """A kind of catalog, as the API's ``spec.config`` has it.

    :param title: what people call the catalog
    :param kind: ``config.kind``
    :param namespace: field of the user-defined namespace, see
        https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html
    :param address: field → its value by the settings; the API returns these fields
    :param login: the client that Tableflow logs in as, which the API does not return; None: it
        takes the provider integration, and the address cannot be changed
    :param steps: returns what the catalog's administrator has to do, since ``deploy`` has no login
    """

    title: str
    kind: str
    namespace: str
    address: Mapping[str, Callable[[DeployContext], str]]
    login: Callable[[DeployContext], ClientLogin] | None = None
    steps: Callable[[DeployContext], list[str]] = _no_steps


def _provider_integration(context: DeployContext) -> str:
    return context.need(PROVIDER_INTEGRATION).id


def _open_catalog_endpoint(context: DeployContext) -> str:
    """Confluent wants the account's address, Snowflake the API's."""
    return (context.deploy.catalog.uri or "").removesuffix("/polaris/api/catalog")


GLUE = CatalogKind(
    "AWS Glue", "AwsGlue", "custom_database", {"provider_integration_id": _provider_integration}
)
OPEN_CATALOG = CatalogKind(
    "Snowflake Open Catalog",
    "Snowflake",
    "custom_namespace",
    {
        "endpoint": _open_catalog_endpoint,
        "warehouse": lambda context: context.deploy.catalog.name or "",
        "allowed_scope": lambda context: context.deploy.catalog.scope or "",
    },
    catalog_client,
)
UNITY = CatalogKind(
    "Databricks Unity Catalog",
    "Unity",
    "custom_schema",
    {
        "workspace_endpoint": lambda context: context.config.unity.workspace_url or "",
        "catalog_name": lambda context: context.config.unity.catalog or "",
    },
    lambda context: ClientLogin.of(
        context.config.unity.client_id, context.config.unity.client_secret
    ),
    unity_catalog.manual_steps,
)
