"""Snowflake Open Catalog: what has to be done there by its administrator.

Open Catalog shows the IAM user that reads the bucket once its catalog exists, and `deploy` has
no login to its account.

Its catalog for Tableflow is external, in which no client may create a table: derived tables need an
internal one. Credential vending is off in a new external catalog.

https://docs.snowflake.com/en/user-guide/opencatalog/create-catalog,
https://docs.snowflake.com/en/user-guide/opencatalog/enable-credential-vending-external-catalog and
https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-snowflake-open-catalog-or-apache-polaris.html
"""

from __future__ import annotations

from urllib.parse import urlsplit

from topicberg.errors import TopicbergError
from topicberg_deploy.context import DeployContext
from topicberg_deploy.snowflake.session import account

API = "/polaris/api/catalog"
"""How the address of its REST API ends."""


def check_account(context: DeployContext) -> None:
    """:raises TopicbergError: the REST catalog is Snowflake Horizon, which looks the same: it is in
    the account itself. Tableflow publishes no tables to it; Snowflake reads those of Tableflow.

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-snowflake-horizon-catalog.html
    """
    catalog, uri = context.config.snowflake_catalog, context.deploy.catalog_uri
    if catalog not in ("open_catalog", "iceberg_rest") or uri is None:
        return
    host = (urlsplit(uri).hostname or "").removesuffix(".snowflakecomputing.com")
    own = account(context).lower().replace("_", "-")
    if own and host.removesuffix(".privatelink") == own:
        raise TopicbergError(
            f"TOPICBERG_CATALOG_URI: {uri} is Snowflake Horizon, the catalog of this account, "
            "to which Tableflow publishes no tables",
            hint="set the address of an Open Catalog account, or let Snowflake read the catalog of "
            'Tableflow: see "Snowflake Horizon" in docs/cloud.md',
        )


def manual_steps(context: DeployContext) -> list[str]:
    """Return the steps with their values; empty: the tables are in another catalog, or the IAM
    user is known, so they are done.
    """
    config, deploy = context.config, context.deploy
    if config.snowflake_catalog != "open_catalog" or deploy.catalog_iam_user_arn:
        return []
    name = deploy.catalog_name
    role = config.snowflake_role_arn or context.names.snowflake_role
    vending = [
        f"enable credential vending in the details of {name}, or set "
        "TOPICBERG_SNOWFLAKE_VENDED_CREDENTIALS=false"
    ]
    derived = deploy.catalog_derived_name
    of_derived = [
        f"create an internal catalog {derived}: storage provider S3, default base location "
        f"s3://{context.aws.derived_bucket}/, the same S3 role ARN and external ID"
    ]
    catalogs = f"{name} and of {derived}" if derived else name
    return [
        f"create an external catalog {name}: storage provider S3, default base location "
        f"s3://{context.aws.bucket}/, S3 role ARN {context.aws.role_arn(role)}, "
        "external ID of your choice",
        *(vending if config.snowflake_vended_credentials else ()),
        *(of_derived if derived else ()),
        f"create a service connection; its client is TOPICBERG_CATALOG_CLIENT_ID "
        f"({deploy.catalog_client_id}) and TOPICBERG_CATALOG_CLIENT_SECRET",
        f"create a catalog role of {catalogs} with the privilege CATALOG_MANAGE_CONTENT, and grant "
        "it to the connection's principal role",
        "set TOPICBERG_CATALOG_IAM_USER_ARN to the IAM user ARN in the catalog's details, and "
        "TOPICBERG_CATALOG_EXTERNAL_ID to its external ID; then run `topicberg deploy create`, "
        "which trusts that user",
    ]
