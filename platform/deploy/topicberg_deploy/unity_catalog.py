"""Databricks Unity Catalog: what has to be done there by its administrator.

Tableflow registers its Delta tables as external tables, with Unity Catalog's open API, and
Databricks reads their files with a storage credential of its own. The workspace must be reachable
over the public internet.

https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-unity-catalog.html
and https://docs.databricks.com/aws/en/external-access/create-external-tables
"""

from __future__ import annotations

from topicberg_deploy.context import DeployContext

INTEGRATION = "confluent/unity_integration"


def manual_steps(context: DeployContext) -> list[str]:
    """Return the steps with their values; empty: Tableflow has published a table, so they are
    done.
    """
    live, unity = context.live.get(INTEGRATION), context.config.unity
    if live is not None and live.facts["phase"] == "CONNECTED":
        return []
    client, catalog = unity.client_id, unity.catalog
    bucket = f"s3://{context.aws.bucket}/"
    return [
        "enable external data access in the details of the metastore",
        f"create a storage credential and an external location for {bucket}, with an IAM role that "
        "Databricks may assume and that reads the bucket",
        f"create the catalog {catalog}, and a service principal with an OAuth secret: "
        f"TOPICBERG_UNITY__CLIENT_ID ({client}) and TOPICBERG_UNITY__CLIENT_SECRET",
        "GRANT USE CATALOG, USE SCHEMA, CREATE SCHEMA, CREATE TABLE, EXTERNAL USE SCHEMA "
        f"ON CATALOG `{catalog}` TO `{client}`",
        "GRANT CREATE EXTERNAL TABLE, EXTERNAL USE LOCATION ON EXTERNAL LOCATION "
        f"`<location>` TO `{client}`",
    ]
