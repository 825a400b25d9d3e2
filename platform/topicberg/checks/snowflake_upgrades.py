"""What Snowflake needs when a table is upgraded from format version 2 to 3 of Iceberg.

https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh,
https://docs.snowflake.com/en/user-guide/tables-iceberg-upgrade-version
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicberg.catalogs.snowflake.names import text

if TYPE_CHECKING:
    from topicberg.catalogs.snowflake.names import TablePath
    from topicberg.checks.check import CheckedTable
    from topicberg.settings import Settings


def describe_needs(path: TablePath, config: Settings) -> str:
    """Return what stops in Snowflake with the upgrade, for its kind of access to the table."""
    needs = f"Snowflake cannot refresh {path} until the table has a snapshot of version 3"
    if path.is_linked:
        return f"{needs}; the upgrade commits one"
    needs += (
        ", which the upgrade commits, and is replaced in Snowflake, where grants, tags and "
        "policies on it end"
    )
    if config.snowflake_catalog != "glue":
        return needs
    return (
        f"{needs}. Snowflake excludes tables of its native Glue source "
        "(TOPICBERG_SNOWFLAKE_CATALOG=glue) from upgrades: before you continue, set "
        "TOPICBERG_SNOWFLAKE_CATALOG=glue_rest and run `topicberg deploy create`"
    )


def describe_steps(path: TablePath, table: CheckedTable, config: Settings) -> str:
    """Return what to do after the upgrade so that Snowflake refreshes the table again."""
    if path.is_linked:
        return (
            f"run SELECT SYSTEM$AUTO_REFRESH_STATUS({text(path.sql)}) in Snowflake, and ALTER "
            f"ICEBERG TABLE {path.sql} REFRESH if it is not RUNNING"
        )
    if config.deployment == "cloud" and table.identifier[0] == config.topics_namespace:
        return (
            f"run DROP ICEBERG TABLE {path.sql} in Snowflake, which deletes no data, then "
            "`topicberg deploy create`, which creates it again with topicberg's grants"
        )
    return f"{table.sync}, which replaces the table in Snowflake"
