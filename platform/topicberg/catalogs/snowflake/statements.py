"""The statements that create what Snowflake reads the tables with.

Source: Snowflake SQL reference, ``CREATE EXTERNAL VOLUME``, ``CREATE CATALOG INTEGRATION (Apache
Iceberg, AWS Glue; Iceberg REST; Snowflake Open Catalog)``, ``CREATE ICEBERG TABLE (AWS Glue)``,
``ALTER ICEBERG TABLE … REFRESH``, ``CREATE DATABASE (catalog-linked)``, ``ALTER DATABASE
(catalog-linked)``.
"""

from __future__ import annotations

from topicberg.catalogs.snowflake.names import SnowflakeNames, TablePath, quote, text
from topicberg.endpoints import glue_rest_uri
from topicberg.naming import Names as DeployNames
from topicberg.settings import Settings


def role_arn(config: Settings) -> str:
    """The IAM role by which Snowflake reads S3 and Glue."""
    name = DeployNames(config.prefix).snowflake_role
    created = f"arn:aws:iam::{config.aws_account_id}:role{config.iam.path}{name}"
    return config.iam.snowflake_role_arn or created


_IF_MISSING = "IF NOT EXISTS "  # Else what exists is an error, also if the role does not see it.


def create_volume(config: Settings, *, derived: bool = False, if_missing: bool = False) -> str:
    """For the topics' tables or for derived ones: a volume reads only its first location.

    :param if_missing: one that exists is not an error
    """
    names = SnowflakeNames.of(config)
    private = " USE_PRIVATELINK_ENDPOINT = TRUE" if config.snowflake_privatelink else ""
    volume, location, url = names.volume, names.location, config.warehouse
    if derived:
        volume, location = names.derived_volume, names.derived_location
        url = config.derived_warehouse
    return (
        f"CREATE EXTERNAL VOLUME {_IF_MISSING if if_missing else ''}{quote(volume)} "
        "STORAGE_LOCATIONS = (("
        f"NAME = {text(location)} STORAGE_PROVIDER = 'S3' "
        f"STORAGE_BASE_URL = {text(url)} "
        f"STORAGE_AWS_ROLE_ARN = {text(role_arn(config))} "
        f"STORAGE_AWS_EXTERNAL_ID = {text(config.prefix)}{private})) ALLOW_WRITES = FALSE"
    )


def create_integration(config: Settings, *, linked: bool = False, if_missing: bool = False) -> str:
    """With Glue, or with its Iceberg REST API.

    :param linked: for the linked database, which needs a REST catalog
    :param if_missing: one that exists is not an error
    """
    names = SnowflakeNames.of(config)
    name = names.linked_integration if linked else names.integration
    begin = f"CREATE CATALOG INTEGRATION {_IF_MISSING if if_missing else ''}{quote(name)} "
    if linked or config.snowflake_catalog == "glue_rest":
        return (
            f"{begin}CATALOG_SOURCE = ICEBERG_REST TABLE_FORMAT = ICEBERG "
            f"CATALOG_NAMESPACE = {text(config.snowflake_namespace)} "
            f"REST_CONFIG = (CATALOG_URI = {text(glue_rest_uri(config))} "
            f"CATALOG_API_TYPE = {glue_api(config)} CATALOG_NAME = {text(config.aws_account_id)}"
            f"{vending(config) if linked else ''}) "
            f"REST_AUTHENTICATION = (TYPE = SIGV4 SIGV4_IAM_ROLE = {text(role_arn(config))} "
            f"SIGV4_SIGNING_REGION = {text(config.aws_region)} "
            f"SIGV4_EXTERNAL_ID = {text(config.prefix)}) {polling(config)}"
        )
    return (
        f"{begin}CATALOG_SOURCE = GLUE TABLE_FORMAT = ICEBERG "
        f"GLUE_AWS_ROLE_ARN = {text(role_arn(config))} "
        f"GLUE_CATALOG_ID = {text(config.aws_account_id)} "
        f"GLUE_REGION = {text(config.aws_region)} "
        f"CATALOG_NAMESPACE = {text(config.snowflake_namespace)} {polling(config)}"
    )


def glue_api(config: Settings) -> str:
    """Return the type of Glue's Iceberg REST API."""
    return "AWS_PRIVATE_GLUE" if config.snowflake_privatelink else "AWS_GLUE"


def delegation(config: Settings) -> str:
    """Return how the linked database gets at the tables' storage.

    https://docs.snowflake.com/en/user-guide/tables-iceberg-configure-catalog-integration-vended-credentials
    """
    vended = config.snowflake_vended_credentials
    return "VENDED_CREDENTIALS" if vended else "EXTERNAL_VOLUME_CREDENTIALS"


def vending(config: Settings) -> str:
    return f" ACCESS_DELEGATION_MODE = {delegation(config)}"


def polling(config: Settings) -> str:
    """Return the end of a statement that creates or changes a catalog integration."""
    return f"REFRESH_INTERVAL_SECONDS = {config.snowflake_refresh_seconds} ENABLED = TRUE"


def create_linked_database(config: Settings) -> str:
    """A read-only database of what the catalog has of the cluster, which follows it by itself.

    Glue is a case-insensitive catalog, Open Catalog is a case-sensitive one.
    https://docs.snowflake.com/en/sql-reference/sql/create-database-catalog-linked
    """
    names = SnowflakeNames.of(config)
    vended = config.snowflake_vended_credentials
    volume = "" if vended else f" EXTERNAL_VOLUME = {text(names.volume)}"
    case = "CASE_INSENSITIVE" if config.topics_in_glue else "CASE_SENSITIVE"
    return (
        f"CREATE DATABASE {quote(names.linked_database)} "
        f"LINKED_CATALOG = (CATALOG = {text(names.linked_integration)}, "
        f"ALLOWED_NAMESPACES = ({text(config.snowflake_namespace)}), "
        f"ALLOWED_WRITE_OPERATIONS = NONE, "
        f"SYNC_INTERVAL_SECONDS = {config.snowflake_refresh_seconds}){volume} "
        f"CATALOG_CASE_SENSITIVITY = {case}"
    )


def create_table(
    names: SnowflakeNames,
    table: str,
    glue_database: str,
    glue_table: str,
    *,
    integration: str | None = None,
    volume: str | None = None,
    auto_refresh: bool = False,
    if_missing: bool = False,
) -> str:
    """
    :param integration: Glue's by default
    :param volume: that of the topics' tables by default
    :param if_missing: one that exists is not an error
    """
    follow = " AUTO_REFRESH = TRUE" if auto_refresh else ""
    return (
        f"CREATE ICEBERG TABLE {_IF_MISSING if if_missing else ''}{names.table(table)} "
        f"EXTERNAL_VOLUME = {text(volume or names.volume)} "
        f"CATALOG = {text(integration or names.integration)} "
        f"CATALOG_TABLE_NAME = {text(glue_table)} CATALOG_NAMESPACE = {text(glue_database)}"
        f"{follow}"
    )


def refresh_table(path: TablePath) -> str:
    return f"ALTER ICEBERG TABLE {path.sql} REFRESH"


def bootstrap(config: Settings) -> list[str]:
    """Return what the first Iceberg table of the local stack needs, as the roles that own it in the
    cloud; no statement changes what exists.
    """
    names = SnowflakeNames.of(config)
    return [
        "USE ROLE SYSADMIN",
        f"CREATE DATABASE IF NOT EXISTS {quote(names.database)}",
        f"CREATE SCHEMA IF NOT EXISTS {quote(names.database, names.schema)}",
        "USE ROLE ACCOUNTADMIN",
        create_volume(config, if_missing=True),
        create_volume(config, derived=True, if_missing=True),
        create_integration(config, if_missing=True),
    ]


def bootstrap_linked(config: Settings) -> list[str]:
    """Return what the local stack needs for a linked database, after :func:`bootstrap`."""
    return [
        create_integration(config, linked=True, if_missing=True),
        create_linked_database(config),
    ]
