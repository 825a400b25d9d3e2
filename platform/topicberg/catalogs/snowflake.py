"""Iceberg tables in Snowflake: the statements, and the few steps that use them.

Names are quoted and values escaped here and nowhere else.
Source: Snowflake SQL reference, ``CREATE EXTERNAL VOLUME``, ``CREATE CATALOG INTEGRATION (Apache
Iceberg, AWS Glue; Iceberg REST; Snowflake Open Catalog)``, ``CREATE ICEBERG TABLE (AWS Glue)``,
``ALTER ICEBERG TABLE … REFRESH``, ``CREATE DATABASE (catalog-linked)``, ``ALTER DATABASE
(catalog-linked)``.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from topicberg.clients.answers import VendorAnswer, answered, unusable
from topicberg.endpoints import glue_rest_uri
from topicberg.errors import TopicbergError
from topicberg.naming import Names as DeployNames

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection
    from snowflake.connector.errors import ProgrammingError

    from topicberg.settings import Settings


NOT_THERE = (2003, 2043)
"""Snowflake's error numbers for an object that does not exist (or that one may not see)."""
NOT_ALLOWED = 3001
LIBRARY = "snowflake.connector"
QUERY_ROLE = "query_role"
"""The role that can only read, as ``topicberg deploy`` creates it for ``topicberg query``."""
READ_ATTEMPTS = 5
"""How often a table is read again that is refreshed in between."""
DISCOVERY_POLL_SECONDS = 2.0
DISCOVERY_SECONDS = 180.0
"""How long a discovery may take, after the interval between two."""
MAX_DISCOVERY_SECONDS = 600.0
"""How long to wait at most for a table that the next discovery should find."""


def quote(*names: str) -> str:
    """A (qualified) identifier: ``quote("DB", "T")`` → ``"DB"."T"``."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


@dataclass(frozen=True)
class SnowflakeNames:
    """What topicberg's objects are called in Snowflake."""

    database: str
    schema: str
    warehouse: str
    volume: str
    location: str
    derived_volume: str
    derived_location: str
    integration: str
    """Of Glue."""
    rest_integration: str
    """Of another REST catalog, where the topics' tables are in one."""
    linked_integration: str
    """Of the REST catalog that the linked database follows."""
    linked_database: str

    @staticmethod
    def of(config: Settings) -> SnowflakeNames:
        kinds = {each.name: each.name for each in fields(SnowflakeNames)} | {
            "integration": "catalog_integration",
            "rest_integration": "rest_catalog_integration",
            "linked_integration": "linked_catalog_integration",
        }
        return SnowflakeNames(**{name: config.snowflake_name(kind) for name, kind in kinds.items()})

    def table(self, name: str) -> str:
        return quote(self.database, self.schema, name)


@dataclass(frozen=True)
class TablePath:
    """Where Snowflake has a table.

    :param is_linked: in a catalog-linked database, which finds it by itself
    """

    database: str
    schema: str
    table: str
    is_linked: bool = False

    @property
    def sql(self) -> str:
        return quote(self.database, self.schema, self.table)

    @property
    def within(self) -> str:
        """Its schema, in SQL."""
        return quote(self.database, self.schema)

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.table}"


def table_path(config: Settings, table: str, glue: tuple[str, str]) -> TablePath:
    """Return where Snowflake has a table of the lake.

    Names in the linked database are the catalog's, whose case they keep: quote them.

    :param table: its name in Snowflake where it is created
    :param glue: database and table in Glue
    """
    names = SnowflakeNames.of(config)
    if config.snowflake_linked_database and glue[0] == config.topics_namespace:
        schema = config.snowflake_namespace
        return TablePath(names.linked_database, schema, glue[1], is_linked=True)
    return _created_path(names, table)


def _created_path(names: SnowflakeNames, table: str) -> TablePath:
    return TablePath(names.database, names.schema, table)


def find_table_path(
    connection: SnowflakeConnection, config: Settings, table: str, glue: tuple[str, str]
) -> TablePath:
    """Return where Snowflake has a table of the lake: :func:`table_path`, but for a deployment
    whose tables were created one by one before a linked database became the default, and whose
    host knows nothing of that choice.
    """
    path = table_path(config, table, glue)
    if not path.is_linked or _has_database(connection, path.database):
        return path
    created = _created_path(SnowflakeNames.of(config), table)
    return path if _volume_of(connection, created) is None else created


def _has_database(connection: SnowflakeConnection, name: str) -> bool:
    found = records(connection, f"SHOW DATABASES LIKE {like(name)}")
    return any(row["name"] == name for row in found)


def like(name: str) -> str:
    """Return the pattern of exactly this name, in any case."""
    return text(name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%"))


def role_arn(config: Settings) -> str:
    """The IAM role by which Snowflake reads S3 and Glue."""
    name = DeployNames(config.prefix).snowflake_role
    own = f"arn:aws:iam::{config.aws_account_id}:role{config.iam_path}{name}"
    return config.snowflake_role_arn or own


def create_volume(config: Settings, *, derived: bool = False) -> str:
    """For the topics' tables or for derived ones: a volume reads only its first location."""
    names = SnowflakeNames.of(config)
    volume, location, url = names.volume, names.location, config.warehouse
    if derived:
        volume, location = names.derived_volume, names.derived_location
        url = config.derived_warehouse
    return (
        f"CREATE EXTERNAL VOLUME IF NOT EXISTS {quote(volume)} STORAGE_LOCATIONS = (("
        f"NAME = {text(location)} STORAGE_PROVIDER = 'S3' "
        f"STORAGE_BASE_URL = {text(url)} "
        f"STORAGE_AWS_ROLE_ARN = {text(role_arn(config))} "
        f"STORAGE_AWS_EXTERNAL_ID = {text(config.prefix)})) ALLOW_WRITES = FALSE"
    )


def create_integration(config: Settings, *, linked: bool = False) -> str:
    """With Glue, or with its Iceberg REST API.

    :param linked: for the linked database, which needs a REST catalog
    """
    names = SnowflakeNames.of(config)
    name = names.linked_integration if linked else names.integration
    begin = f"CREATE CATALOG INTEGRATION IF NOT EXISTS {quote(name)} "
    if linked or config.snowflake_catalog == "glue_rest":
        return (
            f"{begin}CATALOG_SOURCE = ICEBERG_REST TABLE_FORMAT = ICEBERG "
            f"CATALOG_NAMESPACE = {text(config.snowflake_namespace)} "
            f"REST_CONFIG = (CATALOG_URI = {text(glue_rest_uri(config))} "
            f"CATALOG_API_TYPE = AWS_GLUE CATALOG_NAME = {text(config.aws_account_id)}"
            f"{_delegation(config) if linked else ''}) "
            f"REST_AUTHENTICATION = (TYPE = SIGV4 SIGV4_IAM_ROLE = {text(role_arn(config))} "
            f"SIGV4_SIGNING_REGION = {text(config.aws_region)} "
            f"SIGV4_EXTERNAL_ID = {text(config.prefix)}) {_polling(config)}"
        )
    return (
        f"{begin}CATALOG_SOURCE = GLUE TABLE_FORMAT = ICEBERG "
        f"GLUE_AWS_ROLE_ARN = {text(role_arn(config))} "
        f"GLUE_CATALOG_ID = {text(config.aws_account_id)} "
        f"GLUE_REGION = {text(config.aws_region)} "
        f"CATALOG_NAMESPACE = {text(config.snowflake_namespace)} {_polling(config)}"
    )


def delegation(config: Settings) -> str:
    """Return how the linked database gets at the tables' storage.

    https://docs.snowflake.com/en/user-guide/tables-iceberg-configure-catalog-integration-vended-credentials
    """
    vended = config.snowflake_vended_credentials
    return "VENDED_CREDENTIALS" if vended else "EXTERNAL_VOLUME_CREDENTIALS"


def _delegation(config: Settings) -> str:
    return f" ACCESS_DELEGATION_MODE = {delegation(config)}"


def _polling(config: Settings) -> str:
    """Return the end of a statement that creates or changes a catalog integration."""
    return f"REFRESH_INTERVAL_SECONDS = {config.snowflake_refresh_seconds} ENABLED = TRUE"


def set_polling(config: Settings, integration: str) -> str:
    """Return the statement that enables an integration with the interval of the settings."""
    return f"ALTER CATALOG INTEGRATION {quote(integration)} SET {_polling(config)}"


@dataclass(frozen=True)
class RestLogin:
    """How Snowflake logs in to a REST catalog, by OAuth.

    :param catalog: its name there
    :param token_uri: where tokens are from; None: the catalog's own
    """

    uri: str
    catalog: str | None
    client_id: str
    client_secret: SecretStr
    scope: str
    token_uri: str | None = None


def create_rest_integration(config: Settings, login: RestLogin, *, linked: bool = False) -> str:
    """With Snowflake Open Catalog, or with another REST catalog.

    :param linked: for the linked database
    """
    names = SnowflakeNames.of(config)
    source = "POLARIS" if config.snowflake_catalog == "open_catalog" else "ICEBERG_REST"
    catalog = f" CATALOG_NAME = {text(login.catalog)}" if login.catalog else ""
    token = f"OAUTH_TOKEN_URI = {text(login.token_uri)} " if login.token_uri else ""
    return (
        "CREATE CATALOG INTEGRATION IF NOT EXISTS "
        f"{quote(names.linked_integration if linked else names.rest_integration)} "
        f"CATALOG_SOURCE = {source} TABLE_FORMAT = ICEBERG "
        f"CATALOG_NAMESPACE = {text(config.snowflake_namespace)} "
        f"REST_CONFIG = (CATALOG_URI = {text(login.uri)}{catalog}"
        f"{_delegation(config) if linked else ''}) "
        f"REST_AUTHENTICATION = (TYPE = OAUTH {token}"
        f"OAUTH_CLIENT_ID = {text(login.client_id)} "
        f"OAUTH_CLIENT_SECRET = {text(login.client_secret.get_secret_value())} "
        f"OAUTH_ALLOWED_SCOPES = ({text(login.scope)})) {_polling(config)}"
    )


def set_rest_secret(integration: str, login: RestLogin) -> str:
    return (
        f"ALTER CATALOG INTEGRATION {quote(integration)} SET "
        "REST_AUTHENTICATION = "
        f"(OAUTH_CLIENT_SECRET = {text(login.client_secret.get_secret_value())})"
    )


def topic_integration(config: Settings) -> str:
    """The integration by which Snowflake finds the topics' tables."""
    names = SnowflakeNames.of(config)
    return names.integration if config.topics_in_glue else names.rest_integration


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
) -> str:
    """
    :param integration: Glue's by default
    :param volume: that of the topics' tables by default
    """
    follow = " AUTO_REFRESH = TRUE" if auto_refresh else ""
    return (
        f"CREATE ICEBERG TABLE IF NOT EXISTS {names.table(table)} "
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
        create_volume(config),
        create_volume(config, derived=True),
        create_integration(config),
    ]


def bootstrap_linked(config: Settings) -> list[str]:
    """Return what the local stack needs for a linked database, after :func:`bootstrap`."""
    return [create_integration(config, linked=True), create_linked_database(config)]


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


def ask(
    connection: SnowflakeConnection, statement: str, most: int | None = None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Columns and rows of a statement.

    :param most: rows to fetch; None: all
    :raises AnswerError: what answers is not Snowflake
    """
    with answered(_called(statement), "columns and rows", LIBRARY):
        cursor = connection.cursor()
        cursor.execute(statement)
        columns = tuple(column.name for column in cursor.description or ())
        rows = cursor.fetchall() if most is None else cursor.fetchmany(most)
        return columns, [tuple(row) for row in rows]


def logging_in() -> AbstractContextManager[None]:
    """Around what opens a connection.

    :raises AnswerError: what answers is not Snowflake
    """
    return answered("Snowflake (login)", "a session", LIBRARY)


def sync(
    connection: SnowflakeConnection,
    config: Settings,
    table: str,
    glue: tuple[str, str],
    location: str,
) -> SnowflakeTable:
    """Make the Iceberg table if it is missing, refresh it to what Glue has, and read it back.

    In a linked database wait for its discovery instead. A table whose Iceberg table was created
    again in the other bucket is replaced: it is a pointer, and its volume cannot change.

    :param table: its name in Snowflake
    :param glue: database and table in Glue
    :param location: of the Iceberg table
    """
    path = find_table_path(connection, config, table, glue)
    if _refused(connection, refresh_table(path)):
        if path.is_linked:
            _wait_for_discovery(connection, config, path)
        else:
            _require(connection, config, path, glue, location)
        if error := _refused(connection, refresh_table(path)):
            # A topic's table that belongs to another role follows by itself. One that was created
            # again in the catalog is dropped by Snowflake, and discovered again.
            if path.is_linked and _volume_of(connection, path) is None:
                _wait_for_discovery(connection, config, path)
            elif error.errno != NOT_ALLOWED:
                raise error
    if config.deployment == "cloud" and not path.is_linked:
        _let_query(connection, config, path)
    return _read(connection, path)


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
) -> None:
    """Make the table if it is missing, or if it is on another volume than its files."""
    names = SnowflakeNames.of(config)
    derived = config.derived_bucket != config.bucket and location.startswith(
        config.derived_warehouse
    )
    volume = names.derived_volume if derived else names.volume
    held = _volume_of(connection, path)
    if held is not None and held != volume:
        ask(connection, f"DROP ICEBERG TABLE IF EXISTS {path.sql}")
    if held != volume:
        _create(connection, config, create_table(names, path.table, *glue, volume=volume))


def _let_query(connection: SnowflakeConnection, config: Settings, path: TablePath) -> None:
    """Let the role of queries read a table. `topicberg deploy` grants it those that it creates."""
    role = quote(config.snowflake_name(QUERY_ROLE))
    error = _refused(connection, f"GRANT SELECT ON ICEBERG TABLE {path.sql} TO ROLE {role}")
    # Another role owns the table, or an earlier version deployed the platform.
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
        found = self.tables.get(f"{path.schema}.{path.table}") or self.failure
        return f": {' '.join(found.split())}" if found else ""


def link_status(connection: SnowflakeConnection, config: Settings) -> LinkStatus:
    """Return the state of the linked database; in the local stack make it first, if it is missing.

    :raises TopicbergError: there is no such database
    """
    from snowflake.connector.errors import ProgrammingError

    database = SnowflakeNames.of(config).linked_database
    look = f"SELECT SYSTEM$CATALOG_LINK_STATUS({text(quote(database))})"
    try:
        found = parsed(_value(connection, look), look)
    except ProgrammingError as error:
        if error.errno not in NOT_THERE:  # known to fail where the catalog is Glue
            return LinkStatus("of unknown state", str(error.msg), {})
        if config.deployment == "cloud":
            raise TopicbergError(
                f"Snowflake has no catalog-linked database {database} that this user may use",
                hint="run `topicberg deploy create`, or set TOPICBERG_SNOWFLAKE_LINKED_DATABASE="
                "false to use tables that are created one by one",
            ) from None
        for each in [*bootstrap(config), *bootstrap_linked(config)]:
            ask(connection, each)
        found = parsed(_value(connection, look), look)
    failures = found.get("failureDetails") or []
    return LinkStatus(
        str(found["executionState"]),
        str(found.get("failedExecutionStateReason") or ""),
        {str(one.get("qualifiedEntityName")): str(one.get("errorMessage")) for one in failures},
    )


def _create(connection: SnowflakeConnection, config: Settings, statement: str) -> None:
    """Make a table; in the local stack also what it needs, if `topicberg deploy` did not make that.

    :raises TopicbergError: in the cloud something that it needs is missing
    """
    if (error := _refused(connection, statement)) is None:
        return
    if config.deployment == "cloud" and error.errno in (*NOT_THERE, NOT_ALLOWED):
        raise TopicbergError(
            f"Snowflake cannot create an Iceberg table: {' '.join(str(error.msg).split())}",
            hint="run `topicberg deploy create`, which creates volumes, the catalog "
            "integration, the schema and the user's privileges on them",
        )
    if error.errno not in NOT_THERE:
        raise error
    for each in [*bootstrap(config), statement]:
        ask(connection, each)


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
            break  # else it was refreshed meanwhile
    columns = (SnowflakeColumn(c["name"], c["type"], c.get("comment")) for c in described)
    return SnowflakeTable(name, rows, location, tuple(columns))


def _metadata_location(connection: SnowflakeConnection, path: TablePath) -> str:
    look = f"SELECT SYSTEM$GET_ICEBERG_TABLE_INFORMATION({text(path.sql)})"
    return str(parsed(_value(connection, look), look)["metadataLocation"])


def _volume_of(connection: SnowflakeConnection, path: TablePath) -> str | None:
    """Return the external volume of an Iceberg table; None: there is no such table.

    It is empty where the catalog vends credentials.
    """
    from snowflake.connector.errors import ProgrammingError

    show = f"SHOW ICEBERG TABLES LIKE {like(path.table)} IN SCHEMA {path.within}"
    try:
        found = records(connection, show)
    except ProgrammingError as error:
        if error.errno in NOT_THERE:  # no such schema yet
            return None
        raise
    # LIKE ignores case.
    same = (row for row in found if row["name"] == path.table)
    return next((str(row["external_volume_name"] or "") for row in same), None)


def records(connection: SnowflakeConnection, statement: str) -> list[VendorAnswer]:
    """Return the rows of a statement: column in lower case → value."""
    columns, rows = ask(connection, statement)
    names = [column.lower() for column in columns]
    asked = _called(statement)
    return [
        VendorAnswer(dict(zip(names, row, strict=True)), asked, is_certain=True) for row in rows
    ]


def _called(statement: str) -> str:
    """Return the first words of a statement; the others may have secrets."""
    return f"Snowflake ({' '.join(statement.split()[:3])} …)"


def parsed(value: Any, statement: str) -> VendorAnswer:
    """The object that one of Snowflake's system functions answers as text.

    :raises AnswerError: it is none
    """
    asked = f"Snowflake ({statement})"
    try:
        found = json.loads(value)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise unusable(asked, "an object of JSON")
    return VendorAnswer(found, asked, is_certain=True)


def _value(connection: SnowflakeConnection, statement: str) -> Any:
    _, rows = ask(connection, statement)
    if len(rows) != 1 or len(rows[0]) != 1:
        raise unusable(f"Snowflake ({statement})", "one value")
    return rows[0][0]
