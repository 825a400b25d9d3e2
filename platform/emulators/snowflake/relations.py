"""SHOW TABLES, VIEWS and OBJECTS: ordinary relations and Iceberg tables together.

https://docs.snowflake.com/en/sql-reference/sql/show-tables, …/show-views and …/show-objects
"""

from __future__ import annotations

from typing import Any

from emulators.snowflake.account import OWNER, TABLE, Account, Context, chosen
from emulators.snowflake.grammar import Kind, Statement
from emulators.snowflake.results import Rows
from emulators.snowflake.table_views import scope
from emulators.store import Stored

TABLES = Kind("TABLE", plural="TABLES", drop=False, in_account=False)
VIEWS = Kind("VIEW", plural="VIEWS", drop=False, in_account=False)
OBJECTS = Kind("OBJECT", plural="OBJECTS", drop=False, in_account=False)

_ALL = ("created_on", "name", "kind", "database_name", "schema_name")
_OBJECTS = (*_ALL, "comment", "rows", "bytes", "owner", "owner_role_type", "is_iceberg")
_COLUMNS = {
    "TABLE": _OBJECTS,
    "VIEW": (*_ALL, "owner", "comment", "text", "owner_role_type"),
    "OBJECT": _OBJECTS,
}


def show_relations(account: Account, context: Context, statement: Statement) -> Rows:
    prefix = scope(account, context, statement)
    found = [one for one in _relations(account) if one.name[: len(prefix)] == prefix]
    kept = [one for one in found if statement.kind in ("OBJECT", one.kind)]
    names = _COLUMNS[statement.kind]
    rows = [
        [{**one.properties, "created_on": one.created}[name] for name in names]
        for one in chosen(statement, kept)
    ]
    return Rows.of(names, rows, times=("created_on",))


def _relations(account: Account) -> list[Stored]:
    iceberg = {table.name: table for table in account.store.all(TABLE)}
    rows = (
        account.engine.cursor()
        .execute(
            "SELECT database_name, schema_name, table_name, 'TABLE', estimated_size, comment, '' "
            "FROM duckdb_tables() UNION ALL "
            "SELECT database_name, schema_name, view_name, 'VIEW', NULL, comment, sql "
            "FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
        )
        .fetchall()
    )
    schemas = set(account.engine.schemas())
    found = []
    for database, schema, name, kind, count, comment, text in rows:
        if (database, schema) not in schemas:
            continue
        full = (database, schema, name)
        properties: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "database_name": database,
            "schema_name": schema,
            "comment": comment or "",
            "rows": count,
            "bytes": None,
            "owner": "ACCOUNTADMIN",
            "owner_role_type": "ROLE",
            "is_iceberg": "N",
            "text": text,
        }
        table = iceberg.get(full)
        if table is None:
            found.append(Stored(kind, full, properties, 0.0))
        else:
            properties |= _iceberg(table)
            found.append(Stored("TABLE", full, properties, table.created))
    return found


def _iceberg(table: Stored) -> dict[str, Any]:
    summary = table.properties["SNAPSHOT_SUMMARY"]
    deleted = int(summary.get("total-position-deletes", 0))
    return {
        "kind": "TABLE",
        "comment": table.properties["COMMENT"],
        "rows": int(summary.get("total-records", 0)) - deleted,
        "bytes": int(summary.get("total-files-size", 0)),
        "is_iceberg": "Y",
        "owner": table.properties.get(OWNER, "SYSADMIN"),
    }
