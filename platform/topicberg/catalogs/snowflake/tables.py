"""Iceberg tables in Snowflake: brought to what the catalog has, and read back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicberg.catalogs.snowflake import statements
from topicberg.catalogs.snowflake.names import (
    QUERY_ROLE,
    SnowflakeNames,
    TablePath,
    like,
    quote,
    table_path,
    text,
)
from topicberg.catalogs.snowflake.session import NOT_THERE, _value, ask, parsed, records
from topicberg.errors import TopicbergError
from topicberg.settings import Settings

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection
    from snowflake.connector.errors import ProgrammingError

NOT_ALLOWED, EXISTS_ALREADY = 3001, 2002
READ_ATTEMPTS = 5  # How often a table is read again that is refreshed in between.
DISCOVERY_POLL_SECONDS = 2.0
DISCOVERY_SECONDS = 180.0  # How long a discovery may take, after the interval between two.
MAX_DISCOVERY_SECONDS = 600.0  # How long to wait for a table that the next discovery should find.


def find_table_path(
    connection: SnowflakeConnection, config: Settings, table: str, glue: tuple[str, str]
) -> TablePath:
    """Return where Snowflake has a table of the lake: :func:`table_path`, but for a deployment
    whose tables were created one by one before a linked database became the default, and whose host
    knows nothing of that choice."""
    path = table_path(config, table, glue)
    if not path.is_linked:
        return path
    databases = records(connection, f"SHOW DATABASES LIKE {like(path.database)}")
    names = SnowflakeNames.of(config)
    created = TablePath(names.database, names.schema, table)
    has_linked = any(row["name"] == path.database for row in databases)
    return path if has_linked or _volume_of(connection, created) is None else created


@dataclass(frozen=True)
class SnowflakeColumn:
    """A column with its type in Snowflake."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True)
class SnowflakeTable:
    """What Snowflake reads: rows, and the metadata file that they are of."""

    name: str
    rows: int
    metadata_location: str
    columns: tuple[SnowflakeColumn, ...]


class NoSuchIcebergTableError(TopicbergError):
    """Snowflake has no such Iceberg table."""


def sync(
    connection: SnowflakeConnection,
    config: Settings,
    table: str,
    glue: tuple[str, str],
    location: str,
    version: int = 2,
) -> SnowflakeTable:
    """Make the Iceberg table if it is missing, refresh it to what Glue has, and read it back.

    In a linked database wait for its discovery instead. A table whose Iceberg table was created
    again in the other bucket, or upgraded, is replaced: it is a pointer, and its volume and format
    version cannot change.

    :param table: its name in Snowflake
    :param glue: database and table in Glue
    :param location: of the Iceberg table
    :param version: of Iceberg's format, of the Iceberg table
    """
    path = find_table_path(connection, config, table, glue)
    if error := _refused(connection, statements.refresh_table(path)):
        if path.is_linked:
            _wait_for_discovery(connection, config, path)
        else:
            # `topicberg deploy` owns the topics' tables, with grants that others lose.
            version = 0 if error.errno == NOT_ALLOWED else version
            _require(connection, config, path, glue, location, version)
        if error := _refused(connection, statements.refresh_table(path)):
            # A topic's table that belongs to another role follows by itself. One that was created
            # again in the catalog is dropped by Snowflake, and discovered again.
            if path.is_linked and _volume_of(connection, path) is None:
                _wait_for_discovery(connection, config, path)
            elif error.errno != NOT_ALLOWED:
                raise error
    if config.deployment == "cloud" and not path.is_linked:
        _let_query(connection, config, path)
    return _read(connection, path)


def drop(
    connection: SnowflakeConnection, config: Settings, table: str, glue: tuple[str, str]
) -> None:
    """Drop the Iceberg table, but no file; a linked database drops it by itself.

    :param table: its name in Snowflake
    :param glue: database and table in Glue
    """
    path = find_table_path(connection, config, table, glue)
    if not path.is_linked:
        ask(connection, f"DROP ICEBERG TABLE IF EXISTS {path.sql}")


def _refused(connection: SnowflakeConnection, statement: str) -> ProgrammingError | None:
    """Run a statement; return the error if Snowflake refuses it."""
    from snowflake.connector.errors import ProgrammingError

    try:
        ask(connection, statement)
    except ProgrammingError as error:
        return error
    return None


def _require(
    connection: SnowflakeConnection,
    config: Settings,
    path: TablePath,
    glue: tuple[str, str],
    location: str,
    version: int,
) -> None:
    """Make the table if it is missing, on another volume than its files, or of an older version."""
    names = SnowflakeNames.of(config)
    is_beside = config.derived_bucket != config.bucket
    is_derived = is_beside and location.startswith(config.derived_warehouse)
    volume = names.derived_volume if is_derived else names.volume
    current = _shown(connection, path)
    if not (
        current is not None
        and current["external_volume_name"] == volume
        and int(current.get("iceberg_table_format_version") or version) >= version
    ):
        if current is not None:
            ask(connection, f"DROP ICEBERG TABLE IF EXISTS {path.sql}")
        statement = statements.create_table(
            names, path.table, *glue, volume=volume, if_missing=True
        )
        _create(connection, config, path, statement)


def _let_query(connection: SnowflakeConnection, config: Settings, path: TablePath) -> None:
    """Let the role of queries read a table. `topicberg deploy` grants it those that it creates."""
    role = quote(config.snowflake_name(QUERY_ROLE))
    error = _refused(connection, f"GRANT SELECT ON ICEBERG TABLE {path.sql} TO ROLE {role}")
    # Another role owns the table, or `topicberg deploy` has not created that role.
    if error and error.errno not in (NOT_ALLOWED, *NOT_THERE):
        raise error


def _wait_for_discovery(connection: SnowflakeConnection, config: Settings, path: TablePath) -> None:
    """:raises TopicbergError: Snowflake does not discover the table, with what it says of it"""
    if _volume_of(connection, path) is not None:
        return
    status = link_status(connection, config)
    patience = config.snowflake_refresh_seconds + DISCOVERY_SECONDS
    deadline = time.monotonic() + min(MAX_DISCOVERY_SECONDS, patience)
    while status.state != "SUSPENDED" and time.monotonic() < deadline:
        time.sleep(DISCOVERY_POLL_SECONDS)
        if _volume_of(connection, path) is not None:
            return
    status = link_status(connection, config)
    alter = f"ALTER DATABASE {quote(path.database)} RESUME DISCOVERY"
    raise NoSuchIcebergTableError(
        f"Snowflake has not discovered table {path}: discovery of the catalog-linked database is "
        f"{status.state}{status.reason(path)}",
        hint=f"run {alter}, or `topicberg deploy create`"
        if status.state == "SUSPENDED"
        else f"read SELECT SYSTEM$CATALOG_LINK_STATUS({text(quote(path.database))}), fix the cause,"
        f" and run {alter} to discover at once",
    )


@dataclass(frozen=True)
class LinkStatus:
    """What Snowflake says of a linked database's discovery.

    https://docs.snowflake.com/en/sql-reference/functions/system_catalog_link_status

    :param state: RUNNING, FAILED or SUSPENDED, if the function does not fail
    :param failure: of discovery as a whole
    :param tables: namespace and name of a table that it cannot show → why
    """

    state: str
    failure: str
    tables: dict[str, str]

    def reason(self, path: TablePath) -> str:
        """Return why the table is missing, as far as Snowflake says so."""
        error = self.tables.get(f"{path.schema}.{path.table}") or self.failure
        return f": {' '.join(error.split())}" if error else ""


def link_status(connection: SnowflakeConnection, config: Settings) -> LinkStatus:
    """Return the state of the linked database; in the local stack make it first, if it is missing.

    :raises TopicbergError: there is no such database
    """
    from snowflake.connector.errors import ProgrammingError

    database = SnowflakeNames.of(config).linked_database
    look = f"SELECT SYSTEM$CATALOG_LINK_STATUS({text(quote(database))})"
    try:
        status = parsed(_value(connection, look), look)
    except ProgrammingError as error:
        if error.errno not in NOT_THERE:  # known to fail where the catalog is Glue
            return LinkStatus("of unknown state", str(error.msg), {})
        if config.deployment == "cloud":
            raise TopicbergError(
                f"Snowflake has no catalog-linked database {database} that this user may use",
                hint="run `topicberg deploy create`, or set TOPICBERG_SNOWFLAKE_LINKED_DATABASE="
                "false to use tables that are created one by one",
            ) from None
        for sql in [*statements.bootstrap(config), *statements.bootstrap_linked(config)]:
            ask(connection, sql)
        status = parsed(_value(connection, look), look)
    failures = status.get("failureDetails") or []
    tables = {
        str(each.get("qualifiedEntityName")): str(each.get("errorMessage")) for each in failures
    }
    failure = str(status.get("failedExecutionStateReason") or "")
    return LinkStatus(str(status["executionState"]), failure, tables)


def _create(
    connection: SnowflakeConnection, config: Settings, path: TablePath, statement: str
) -> None:
    """Make a table; in the local stack also what it needs, if `topicberg deploy` did not make that.

    :raises TopicbergError: another object has its name; or in the cloud, something that it needs is
        missing
    """
    if (error := _refused(connection, statement)) is None:
        return
    if error.errno == EXISTS_ALREADY:
        if _volume_of(connection, path) is not None:
            return  # another process was faster
        raise TopicbergError(
            f"Snowflake cannot create the Iceberg table {path}: another object has this name",
            hint=f"drop or rename the object: SHOW OBJECTS LIKE {like(path.table)} IN SCHEMA "
            f"{path.within} says what it is",
        )
    if config.deployment == "cloud" and error.errno in (*NOT_THERE, NOT_ALLOWED):
        raise TopicbergError(
            f"Snowflake cannot create an Iceberg table: {' '.join(str(error.msg).split())}",
            hint="run `topicberg deploy create`, which creates volumes, the catalog "
            "integration, the schema and the user's privileges on them",
        )
    if error.errno not in NOT_THERE:
        raise error
    for sql in [*statements.bootstrap(config), statement]:
        ask(connection, sql)


def read_back(connection: SnowflakeConnection, path: TablePath) -> SnowflakeTable:
    """Rows, columns and metadata location of the table as Snowflake has it now.

    :raises NoSuchIcebergTableError: there is none
    """
    if _volume_of(connection, path) is None:
        raise NoSuchIcebergTableError(f"Snowflake has no Iceberg table {path.sql}")
    return _read(connection, path)


def _read(connection: SnowflakeConnection, path: TablePath) -> SnowflakeTable:
    name, location = path.sql, _metadata_location(connection, path)
    for _ in range(READ_ATTEMPTS):
        rows = int(_value(connection, f"SELECT COUNT(*) FROM {name}"))  # noqa: S608  quoted above
        described = records(connection, f"DESCRIBE ICEBERG TABLE {name}")
        before, location = location, _metadata_location(connection, path)
        if location == before:
            break  # else another process refreshed it
    columns = (SnowflakeColumn(c["name"], c["type"], c.get("comment")) for c in described)
    return SnowflakeTable(name, rows, location, tuple(columns))


def _metadata_location(connection: SnowflakeConnection, path: TablePath) -> str:
    look = f"SELECT SYSTEM$GET_ICEBERG_TABLE_INFORMATION({text(path.sql)})"
    return str(parsed(_value(connection, look), look)["metadataLocation"])


def _volume_of(connection: SnowflakeConnection, path: TablePath) -> str | None:
    """Return the volume of a table, empty where the catalog vends credentials; None: no table."""
    row = _shown(connection, path)
    return None if row is None else str(row["external_volume_name"] or "")


def _shown(connection: SnowflakeConnection, path: TablePath) -> dict[str, Any] | None:
    """Return what SHOW ICEBERG TABLES says of a table; None: there is no such table."""
    from snowflake.connector.errors import ProgrammingError

    show = f"SHOW ICEBERG TABLES LIKE {like(path.table)} IN SCHEMA {path.within}"
    try:
        rows = records(connection, show)
    except ProgrammingError as error:
        if error.errno in NOT_THERE:  # the schema does not exist yet
            return None
        raise
    # LIKE ignores case.
    return next((row for row in rows if row["name"] == path.table), None)
