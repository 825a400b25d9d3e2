"""What SHOW, DESCRIBE and the system functions say about Iceberg tables, and SHOW TABLES about all.

https://docs.snowflake.com/en/sql-reference/sql/show-tables,
https://docs.snowflake.com/en/sql-reference/sql/show-iceberg-tables,
https://docs.snowflake.com/en/sql-reference/sql/desc-iceberg-table,
https://docs.snowflake.com/en/sql-reference/functions/system_get_iceberg_table_information and
https://docs.snowflake.com/en/sql-reference/functions/system_auto_refresh_status
"""

from __future__ import annotations

import json
from typing import Any

from topicberg_local.emulators.snowflake.account import (
    CREATED,
    DATABASE,
    OWNER,
    SCHEMA,
    TABLE,
    Account,
    Context,
    resolve,
    show,
    value_of,
)
from topicberg_local.emulators.snowflake.errors import no_current
from topicberg_local.emulators.snowflake.iceberg import snowflake_type, source_type
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import Kind, Name, Statement
from topicberg_local.emulators.snowflake.tables import load_metadata
from topicberg_local.emulators.store import Stored


def show_tables(account: Account, context: Context, statement: Statement) -> Rows:
    prefix = _scope(account, context, statement)
    tables = account.store.all(TABLE, lambda t: t.name[: len(prefix)] == prefix)

    def status(table: Stored) -> str:
        # A discovered table that needs nothing may have no state, one that is not refreshed has
        # none.
        is_discovered = account.linked(table.name[0]) is not None
        is_shown = table.properties["REFRESH_ERROR" if is_discovered else "AUTO_REFRESH"]
        return _refresh_status(table) if is_shown else ""

    columns = {
        **CREATED,
        "name": lambda table: table.name[2],
        "database_name": lambda table: table.name[0],
        "schema_name": lambda table: table.name[1],
        "owner": value_of(OWNER, "SYSADMIN"),
        "external_volume_name": value_of("EXTERNAL_VOLUME"),
        "catalog_name": value_of("CATALOG"),
        "iceberg_table_type": "UNMANAGED",
        "catalog_table_name": value_of("CATALOG_TABLE_NAME"),
        "catalog_namespace": value_of("CATALOG_NAMESPACE"),
        "base_location": None,
        "can_write_metadata": "Y",
        "comment": value_of("COMMENT"),
        "name_mapping": None,
        "owner_role_type": "ROLE",
        "catalog_sync_name": "",
        "auto_refresh_status": status,
        "partition_specs": lambda table: json.dumps(table.properties["PARTITION_SPECS"]),
        "current_partition_spec_id": value_of("PARTITION_SPEC_ID"),
        "iceberg_table_format_version": value_of("FORMAT_VERSION"),
    }
    return show(statement, tables, columns)


def _scope(account: Account, context: Context, statement: Statement) -> Name:
    """What a SHOW … IN is about: how names begin; raises ProgrammingError: it is not there."""
    kind, name = statement.scope or ("", ())
    if kind == "ACCOUNT":
        return ()
    if kind == "DATABASE" or (not kind and context.schema is None):
        database = name[0] if name else context.database
        if database is None:
            if kind:
                raise no_current("database", "SHOW")
            return ()
        prefix: Name = (database,)
    else:
        full = resolve((*(name or (context.schema or "",)), ""), context, "SHOW")
        prefix = account.canonical(full[:2])
    account.demand(DATABASE, prefix[:1])
    if len(prefix) > 1:
        account.demand(SCHEMA, prefix)
    return prefix


def describe_table(account: Account, _context: Context, statement: Statement) -> Rows:
    metadata = load_metadata(account, account.require(TABLE, statement.name))
    columns = {
        "name": lambda column: column.snowflake_name,
        "type": lambda column: snowflake_type(column.type),
        "source iceberg type": lambda column: source_type(column.type),
        "kind": "COLUMN",
        "null?": lambda column: "N" if column.required else "Y",
        "default": None,
        "primary key": "N",
        "unique key": "N",
        "check": None,
        "expression": None,
        "comment": lambda column: column.comment,
        **dict.fromkeys(("policy name", "privacy domain", "name mapping", "write default")),
    }
    return Rows.shown(metadata.columns(), columns)


def table_information(account: Account, context: Context, name: Name) -> str:
    table = _table(account, context, name, "SYSTEM$GET_ICEBERG_TABLE_INFORMATION")
    response = {"metadataLocation": table.properties["METADATA_LOCATION"], "status": "success"}
    return json.dumps(response)


def auto_refresh_information(account: Account, context: Context, name: Name) -> str:
    return _refresh_status(_table(account, context, name, "SYSTEM$AUTO_REFRESH_STATUS"))


def _table(account: Account, context: Context, name: Name, function: str) -> Stored:
    return account.require(TABLE, account.canonical(resolve(name, context, function)))


def _refresh_status(table: Stored) -> str:
    """The state of automated refresh; all values are text."""
    properties = table.properties
    error = properties["REFRESH_ERROR"]
    state = "STALLED" if error else "RUNNING"
    response = {
        "executionState": state if properties["AUTO_REFRESH"] else "STOPPED",
        "invalidExecutionStateReason": error or "",
        "pendingSnapshotCount": "0",
        "oldestSnapshotTime": "",
        "currentSnapshotId": properties["SNAPSHOT_ID"] or "",
        "currentSnapshotSummary": json.dumps(properties["SNAPSHOT_SUMMARY"]),
        "lastSnapshotTime": str(properties["SNAPSHOT_MS"] or ""),
        "lastUpdatedTime": str(int(properties["REFRESHED"] * 1000)),
        "currentMetadataFile": properties["METADATA_LOCATION"],
        "currentSchemaId": properties["SCHEMA_ID"],
    }
    return json.dumps({key: value for key, value in response.items() if value != ""})


ALL_TABLES_KIND = Kind("TABLE", plural="TABLES", drop=False, in_account=False)


def show_all_tables(account: Account, context: Context, statement: Statement) -> Rows:
    prefix = _scope(account, context, statement)
    tables = [table for table in _tables(account) if table.name[: len(prefix)] == prefix]
    columns = {
        **CREATED,
        "name": lambda table: table.name[2],
        "kind": "TABLE",
        "database_name": lambda table: table.name[0],
        "schema_name": lambda table: table.name[1],
        **{name: value_of(name) for name in ("comment", "rows", "bytes", "owner")},
        "owner_role_type": "ROLE",
        "is_iceberg": lambda table: "Y" if table.kind == TABLE else "N",
    }
    return show(statement, tables, columns)


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
