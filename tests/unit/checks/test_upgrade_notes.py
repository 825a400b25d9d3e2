"""What the upgrade of a table says of Snowflake, for each way in which it gets at the table."""

from __future__ import annotations

from typing import Any

import pytest

from topicberg.catalogs.snowflake.names import table_path
from topicberg.checks.catalogs import describe_needs, describe_steps
from topicberg.checks.check import CheckedTable
from topicberg.settings import Settings

LOCAL: dict[str, Any] = {"prefix": "demo", "cluster_id": "lkc-1"}
CREATED = LOCAL | {"deployment": "cloud", "snowflake_linked_database": False}
REST = CREATED | {"snowflake_catalog": "glue_rest"}
LINKED = CREATED | {"snowflake_linked_database": True}
DROP = 'DROP ICEBERG TABLE "DEMO_DATABASE"."DEMO_SCHEMA"."ORDERS"'


@pytest.mark.parametrize(
    ("given", "needs", "steps"),
    [
        (LOCAL, "native Glue source", "`topicberg sync orders`, which replaces the table"),
        (CREATED, "set TOPICBERG_SNOWFLAKE_CATALOG=glue_rest and run `topicberg deploy", DROP),
        (REST, "is replaced in Snowflake, where grants, tags and policies on it end", DROP),
        (LINKED, "a snapshot of version 3; the upgrade commits one", "SYSTEM$AUTO_REFRESH_STATUS"),
    ],
    ids=["local", "native Glue", "Glue REST", "linked"],
)
def test_needs_and_steps_are_those_of_the_access(
    given: dict[str, Any], needs: str, steps: str
) -> None:
    config, table = Settings(**given), CheckedTable("orders", ("lkc-1", "orders"))
    path = table_path(config, "ORDERS", table.identifier)
    assert needs in describe_needs(path, config)
    assert ("native" in describe_needs(path, config)) == (given in (LOCAL, CREATED))
    assert steps in describe_steps(path, table, config)


def test_derived_table_of_cloud_deployment_is_replaced_by_sync() -> None:
    config, table = Settings(**CREATED), CheckedTable("totals", ("demo_shop", "totals"))
    path = table_path(config, "TOTALS", table.identifier)
    assert "topicberg sync totals" in describe_steps(path, table, config)
