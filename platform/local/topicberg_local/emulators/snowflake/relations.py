"""SHOW TABLES: ordinary tables and Iceberg tables together.

https://docs.snowflake.com/en/sql-reference/sql/show-tables
"""

from __future__ import annotations

from typing import Any

from topicberg_local.emulators.snowflake.account import OWNER, TABLE, Account, Context, chosen
from topicberg_local.emulators.snowflake.grammar import Kind, Statement
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.table_views import scope
from topicberg_local.emulators.store import Stored

TABLES = Kind("TABLE", plural="TABLES", drop=False, in_account=False)


def show_tables(account: Account, context: Context, statement: Statement) -> Rows:
    prefix = scope(account, context, statement)
    tables = [table for table in _tables(account) if table.name[: len(prefix)] == prefix]
    names = (
        "created_on",
        "name",
        "kind",
        "database_name",
        "schema_name",
        "comment",
        "rows",
        "bytes",
        "owner",
        "owner_role_type",
        "is_iceberg",
    )
    rows = []
    for relation in chosen(statement, tables):
        database, schema, name = relation.name
        shown = (relation.properties[key] for key in ("comment", "rows", "bytes", "owner"))
        iceberg = "Y" if relation.kind == TABLE else "N"
        rows.append((relation.created, name, "TABLE", database, schema, *shown, "ROLE", iceberg))
    return Rows.of(names, rows, times=("created_on",))


def _tables(account: Account) -> list[Stored]:
    """The ordinary tables as if they were stored, and the Iceberg tables with what is shown."""
    rows = account.engine.cursor().execute(
        "SELECT database_name, schema_name, table_name, comment, estimated_size "
        "FROM duckdb_tables()"
    )
    schemas, tables = set(account.engine.schemas()), list[Stored]()
    shown: dict[str, Any]
    for *name, comment, count in rows.fetchall():
        if tuple(name[:2]) in schemas:
            shown = {"comment": comment or "", "rows": count, "bytes": None}
            tables.append(Stored("TABLE", tuple(name), shown | {"owner": "ACCOUNTADMIN"}, 0.0))
    for table in account.store.all(TABLE):
        summary = table.properties["SNAPSHOT_SUMMARY"]
        deleted = int(summary.get("total-position-deletes", 0))
        shown = {
            "comment": table.properties["COMMENT"],
            "rows": int(summary.get("total-records", 0)) - deleted,
            "bytes": int(summary.get("total-files-size", 0)),
            "owner": table.properties.get(OWNER, "SYSADMIN"),
        }
        tables.append(Stored(TABLE, table.name, shown, table.created))
    return sorted(tables, key=lambda entry: entry.name)
