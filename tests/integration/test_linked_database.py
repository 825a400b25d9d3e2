"""Catalog-linked databases in the Snowflake emulator, and topicberg's tables in one."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from snowflake.connector import SnowflakeConnection
from snowflake.connector.errors import ProgrammingError

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake import tables as snowflake_tables
from topicberg.catalogs.snowflake.names import SnowflakeNames, table_path
from topicberg.catalogs.snowflake.statements import bootstrap_linked
from topicberg.catalogs.snowflake.tables import link_status
from topicberg.checks.catalogs import check_parity
from topicberg.endpoints import Endpoints
from topicberg.orchestration.resources import Snowflake
from topicberg.query import qualify
from topicberg.settings import Settings, settings

pytestmark = pytest.mark.integration

NAMESPACE = "lkc-linked"
DATABASE = "LINKS_LINKED_DATABASE"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "tradeId", StringType()))

Query = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def config(stack: Endpoints) -> Settings:
    """Settings of a deployment with a linked database, of this file's own."""
    update = {"prefix": "links", "cluster_id": NAMESPACE, "snowflake_linked_database": True}
    kept = {"bucket": settings().bucket, "derived_bucket": settings().derived_bucket}
    return Settings.model_validate(settings().model_dump() | update | kept)


@pytest.fixture(scope="module")
def connection(stack: Endpoints) -> Iterator[SnowflakeConnection]:
    with Snowflake().connection() as made:
        yield made


@pytest.fixture(scope="module")
def query(connection: SnowflakeConnection) -> Query:
    return lambda sql: list(connection.cursor().execute(sql).fetchall())


@pytest.fixture(scope="module")
def catalog(stack: Endpoints) -> Catalog:
    catalog = stack.catalog()
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(NAMESPACE)
    return catalog


@pytest.fixture(scope="module")
def linked(config: Settings, connection: SnowflakeConnection) -> Iterator[str]:
    """The linked database, created as the asset does it."""
    assert link_status(connection, config).state == "RUNNING"
    yield DATABASE
    connection.cursor().execute(f"DROP DATABASE {DATABASE}")


def fresh(catalog: Catalog, name: str, rows: int = 3) -> Table:
    with contextlib.suppress(NoSuchTableError):
        catalog.purge_table((NAMESPACE, name))
    table = catalog.create_table((NAMESPACE, name), SCHEMA)
    append(table, rows)
    return table


def append(table: Table, rows: int) -> None:
    table.append(pa.table({"id": pa.array(range(rows), pa.int64()), "tradeId": ["x"] * rows}))


def register(stack: Endpoints, table: Table, name: str) -> None:
    glue.register(stack.boto3("glue"), table, NAMESPACE, name)


def discovered(query: Query, name: str, database: str = DATABASE) -> bool:
    """Whether the table is there, after a discovery that begins now."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")[:23]
    query(f"ALTER DATABASE {database} RESUME DISCOVERY")
    deadline = time.monotonic() + 240
    while status(query, database).get("lastLinkAttemptStartTime", "") < now:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return name in {row[1] for row in query(f"SHOW ICEBERG TABLES IN DATABASE {database}")}


def status(query: Query, database: str = DATABASE) -> dict[str, Any]:
    return dict(json.loads(query(f"SELECT SYSTEM$CATALOG_LINK_STATUS('{database}')")[0][0]))


def refused(query: Query, sql: str) -> str:
    with pytest.raises(ProgrammingError) as caught:
        query(sql)
    return str(caught.value)


def test_tables_are_discovered_and_followed(
    stack: Endpoints, catalog: Catalog, query: Query, linked: str
) -> None:
    table = fresh(catalog, "seen")
    register(stack, table, "seen")
    assert discovered(query, "seen")
    name = f'{linked}."{NAMESPACE}"."seen"'
    assert query(f'SELECT count(*), max("tradeId") FROM {name}') == [(3, "x")]
    # A case-insensitive catalog: unquoted names are found in any case.
    assert query(f'SELECT count(*) FROM {linked}."{NAMESPACE}".SEEN') == [(3,)]
    shown = query(f'SHOW ICEBERG TABLES IN SCHEMA {linked}."{NAMESPACE}"')
    (row,) = [one for one in shown if one[1] == "seen"]
    assert row[8:10] == ("seen", NAMESPACE)
    assert row[16] == ""
    state = query(f"SELECT SYSTEM$AUTO_REFRESH_STATUS('{name}')")[0][0]
    assert json.loads(state)["executionState"] == "RUNNING"
    assert [one[0] for one in query(f"DESCRIBE ICEBERG TABLE {name}")] == ["id", "tradeId"]
    append(table, 2)
    register(stack, table, "seen")
    query(f"ALTER ICEBERG TABLE {name} REFRESH")
    assert query(f"SELECT count(*) FROM {name}") == [(5,)]


def test_dropped_and_recreated_tables_follow_the_catalog(
    stack: Endpoints, catalog: Catalog, query: Query, linked: str
) -> None:
    register(stack, fresh(catalog, "again"), "again")
    assert discovered(query, "again")
    table = fresh(catalog, "again", rows=1)  # another table-uuid
    register(stack, table, "again")
    name = f'{linked}."{NAMESPACE}"."again"'
    with contextlib.suppress(ProgrammingError):  # automated refresh may be the first to see it
        query(f"ALTER ICEBERG TABLE {name} REFRESH")
    assert discovered(query, "again")
    assert query(f"SELECT count(*) FROM {name}") == [(1,)]
    stack.boto3("glue").delete_table(DatabaseName=NAMESPACE, Name="again")
    assert not discovered(query, "again")


def sync(connection: SnowflakeConnection, config: Settings, table: Table, name: str) -> Any:
    place = (NAMESPACE, name)
    return snowflake_tables.sync(connection, config, name.upper(), place, table.location())


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {table} VALUES (1, 'a')",
        "DELETE FROM {table}",
        "DROP ICEBERG TABLE {table}",
        "DROP TABLE {table}",
        "CREATE SCHEMA {database}.S",
        "DROP SCHEMA {schema}",
        "CREATE TABLE {schema}.T (A INT)",
        "CREATE VIEW {schema}.V AS SELECT 1 AS A",
        "CREATE ICEBERG TABLE {schema}.T CATALOG_TABLE_NAME = 'seen'",
    ],
)
def test_linked_database_refuses_every_write(
    stack: Endpoints, catalog: Catalog, query: Query, linked: str, statement: str
) -> None:
    if "seen" not in {row[1] for row in query(f"SHOW ICEBERG TABLES IN DATABASE {linked}")}:
        register(stack, fresh(catalog, "seen"), "seen")
        assert discovered(query, "seen")
    schema = f'{linked}."{NAMESPACE}"'
    sql = statement.format(database=linked, schema=schema, table=f'{schema}."seen"')
    assert "read-only" in refused(query, sql)
    assert query(f'SELECT count(*) > 0 FROM {schema}."seen"') == [(True,)]


def test_tables_that_cannot_be_read_are_named(
    stack: Endpoints, query: Query, linked: str, connection: SnowflakeConnection, config: Settings
) -> None:
    client = stack.boto3("glue")
    parameters = {"table_type": "ICEBERG", "metadata_location": "s3://elsewhere/v1.metadata.json"}
    entry = {"Name": "broken", "TableType": "EXTERNAL_TABLE", "Parameters": parameters}
    client.create_table(DatabaseName=NAMESPACE, TableInput=entry)
    try:
        assert not discovered(query, "broken")
        (failure,) = status(query)["failureDetails"]
        assert failure["qualifiedEntityName"] == f"{NAMESPACE}.broken"
        assert "not within the storage base URL" in failure["errorMessage"]
        found = link_status(connection, config)
        path = table_path(config, "BROKEN", (NAMESPACE, "broken"))
        assert "not within the storage base URL" in found.reason(path)
    finally:
        client.delete_table(DatabaseName=NAMESPACE, Name="broken")


def test_vended_credentials_need_lake_formation(
    stack: Endpoints, catalog: Catalog, query: Query, linked: str, config: Settings
) -> None:
    """Without an external volume; Glue vends for locations that Lake Formation knows."""
    register(stack, fresh(catalog, "vended"), "vended")
    vended = config.model_copy(update={"snowflake_vended_credentials": True, "prefix": "vends"})
    names = SnowflakeNames.of(vended)
    lake, arn = stack.boto3("lakeformation"), f"arn:aws:s3:::{config.bucket}"
    for statement in bootstrap_linked(vended):
        query(statement)
    try:
        assert not discovered(query, "vended", names.linked_database)
        failures = status(query, names.linked_database)["failureDetails"]
        assert any("Lake Formation" in one["errorMessage"] for one in failures)
        lake.register_resource(ResourceArn=arn, UseServiceLinkedRole=True)
        try:
            assert discovered(query, "vended", names.linked_database)
            name = f'{names.linked_database}."{NAMESPACE}"."vended"'
            assert query(f"SELECT count(*) FROM {name}") == [(3,)]
        finally:
            lake.deregister_resource(ResourceArn=arn)
    finally:
        query(f"DROP DATABASE {names.linked_database}")
        query(f'DROP CATALOG INTEGRATION "{names.linked_integration}"')


def test_asset_and_parity_check_use_the_linked_table(
    stack: Endpoints, catalog: Catalog, query: Query, linked: str, config: Settings
) -> None:
    table = fresh(catalog, "synced")
    register(stack, table, "synced")
    path = table_path(config, "SYNCED", (NAMESPACE, "synced"))
    assert str(path) == f"{linked}.{NAMESPACE}.synced"
    query(f"ALTER DATABASE {linked} RESUME DISCOVERY")  # else it waits for the interval's end
    with Snowflake().connection() as connection:
        seen = sync(connection, config, table, "synced")
        assert (seen.rows, seen.metadata_location) == (3, table.metadata_location)
        assert [column.name for column in seen.columns] == ["id", "tradeId"]

        def parity() -> Any:
            place = (NAMESPACE, "synced")
            probe: Any = SimpleNamespace(
                iceberg=table,
                config=config,
                deployment=SimpleNamespace(glue=lambda: stack.boto3("glue")),
                table=SimpleNamespace(
                    name="synced",
                    glue_table=place,
                    snowflake_name="SYNCED",
                    snowflake_source=place,
                    sync="sync",
                ),
                now=datetime.now(UTC),
                catalogs_patience=timedelta(0),
            )
            return check_parity(probe, connection)

        assert parity().passed
        append(table, 1)
        assert "superseded" in parity().what
        register(stack, table, "synced")
        assert sync(connection, config, table, "synced").rows == 4
        assert parity().passed
    assert query(qualify("SELECT max(tradeId) FROM synced", {"SYNCED": path}.get)) == [("x",)]
