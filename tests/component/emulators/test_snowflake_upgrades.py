"""A table that another engine upgrades from version 2 to 3 of Iceberg, in Snowflake's emulator."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import snowflake.connector
from format_versions import allow_version_3, append
from pyiceberg.table import Table
from snowflake.connector.errors import ProgrammingError
from vendors import Vendors, in_this_process

from topicberg.catalogs.snowflake.names import SnowflakeNames, quote
from topicberg.catalogs.snowflake.statements import bootstrap, bootstrap_linked, create_table
from topicberg.catalogs.snowflake.tables import sync
from topicberg.iceberg.position_deletes import trim_deletes
from topicberg.settings import Settings
from topicberg_deploy.resource import Live
from topicberg_deploy.snowflake.principals import FutureGrant
from topicberg_local.emulators.snowflake import tables
from topicberg_local.emulators.snowflake.account import Context
from topicberg_local.emulators.snowflake.linked import discover
from topicberg_local.emulators.snowflake.session import Session

CONFIG = Settings(prefix="demo", cluster_id="lkc-1")
NAME = ("lkc-1", "orders")
FOLDER = "s3://demo/orders"
NAMES = SnowflakeNames.of(CONFIG)
STANDARD = (NAMES.database, NAMES.schema, "ORDERS")
LINKED = (NAMES.linked_database, *NAME)


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    with in_this_process(tmp_path_factory.mktemp("vendors")) as vendors:
        vendors.client("s3").create_bucket(Bucket="demo")
        session = Session(vendors.snowflake, Context("ROOT", "ACCOUNTADMIN", is_admin=True))
        for statement in [*bootstrap(CONFIG), *bootstrap_linked(CONFIG)]:
            session.execute(statement)
        session.close()
        yield vendors


@pytest.fixture
def table(vendors: Vendors, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """A table of version 2 with a row, which both kinds of databases show."""
    allow_version_3(monkeypatch)
    vendors.table(NAME, FOLDER)
    vendors.sql(create_table(NAMES, "ORDERS", *NAME))
    discover(vendors.snowflake, NAMES.linked_database)
    yield vendors.glue.load_table(NAME)
    vendors.sql(f"DROP ICEBERG TABLE {NAMES.table('ORDERS')}")
    vendors.glue.drop_table(NAME)
    discover(vendors.snowflake, NAMES.linked_database)


def upgrade(vendors: Vendors, table: Table) -> None:
    """Upgrade the table without a snapshot, which PyIceberg cannot."""
    s3, key = vendors.client("s3"), f"orders/metadata/00001-{uuid.uuid4()}.metadata.json"
    document = json.loads(table.io.new_input(table.metadata_location).open().read())
    document |= {"format-version": 3, "next-row-id": 0}
    s3.put_object(Bucket="demo", Key=key, Body=json.dumps(document).encode())
    client, (database, name) = vendors.client("glue"), NAME
    entry = client.get_table(DatabaseName=database, Name=name)["Table"]
    parameters = entry["Parameters"] | {"metadata_location": f"s3://demo/{key}"}
    client.update_table(DatabaseName=database, TableInput={"Name": name, "Parameters": parameters})
    table.refresh()


def refresh_error(vendors: Vendors, name: tuple[str, str, str]) -> str:
    """Return why the table cannot be refreshed; empty: it was."""
    try:
        tables.refresh(vendors.snowflake, name)
    except ProgrammingError as error:
        return str(error.msg)
    return ""


def test_refresh_after_upgrade_without_snapshot_is_refused(vendors: Vendors, table: Table) -> None:
    upgrade(vendors, table)
    for name in (STANDARD, LINKED):
        assert "from Iceberg format version 2 to 3; commit a new snapshot" in refresh_error(
            vendors, name
        )
    vendors.sql(f"DROP ICEBERG TABLE {NAMES.table('ORDERS')}")
    vendors.sql(create_table(NAMES, "ORDERS", *NAME))
    append(table.refresh(), pa.table({"id": pa.array([2], pa.int64())}))
    assert "replace the table" in refresh_error(vendors, STANDARD), "it was replaced too early"


def test_refresh_after_snapshot_of_upgraded_table_needs_replacement_in_standard_database(
    vendors: Vendors, table: Table
) -> None:
    upgrade(vendors, table)
    trim_deletes(table.refresh())
    assert refresh_error(vendors, LINKED) == ""
    assert "replace the table" in refresh_error(vendors, STANDARD)
    vendors.sql(create_table(NAMES, "ORDERS", *NAME).replace("CREATE", "CREATE OR REPLACE", 1))
    append(table.refresh(), pa.table({"id": pa.array([2], pa.int64())}))
    for name in (STANDARD, LINKED):
        assert refresh_error(vendors, name) == ""


def test_refresh_of_upgraded_table_after_rollback_works(vendors: Vendors, table: Table) -> None:
    before = table.current_snapshot()
    upgrade(vendors, table)
    trim_deletes(table.refresh())
    assert refresh_error(vendors, LINKED) == ""
    table.refresh().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    assert refresh_error(vendors, LINKED) == ""
    append(table.refresh(), pa.table({"id": pa.array([2], pa.int64())}))
    assert refresh_error(vendors, LINKED) == ""


def test_sync_of_upgraded_table_replaces_it(vendors: Vendors, table: Table) -> None:
    upgrade(vendors, table)
    trim_deletes(table.refresh())
    with snowflake.connector.connect(
        account="local",
        user="ROOT",
        password="secret",
        host="127.0.0.1",
        port=vendors.snowflake_port,
        protocol="http",
        login_timeout=60,
    ) as connection:
        seen: Any = sync(connection, CONFIG, "ORDERS", NAME, FOLDER, 3)
        assert (seen.rows, seen.metadata_location) == (1, table.refresh().metadata_location)
    assert refresh_error(vendors, STANDARD) == ""


@pytest.mark.usefixtures("table")
def test_table_that_is_discovered_again_keeps_its_readers(vendors: Vendors) -> None:
    context, role = vendors.open()[0], "DEMO_READER"
    grant = FutureGrant(
        *("snowflake/grant/future", "of readers"),
        role=role,
        privilege="SELECT",
        on="ICEBERG TABLE",
        target=(NAMES.linked_database,),
    )
    vendors.sql(f"CREATE ROLE {role}")
    assert grant.find(context) is None
    path = NAMES.linked_database, *NAME
    vendors.sql(f"GRANT SELECT ON ICEBERG TABLE {quote(*path)} TO ROLE {role}")
    for is_granted in (False, True):
        vendors.glue.drop_table(NAME)
        discover(vendors.snowflake, NAMES.linked_database)
        vendors.table(NAME, f"{FOLDER}{is_granted}")
        discover(vendors.snowflake, NAMES.linked_database)
        rows = vendors.sql(f"SHOW GRANTS TO ROLE {role}")
        assert any(row[1] == "SELECT" and NAME[1] in row[3] for row in rows) == is_granted
        if not is_granted:
            grant.create(context)
            assert grant.find(context)
    grant.delete(context, Live(""))
    assert grant.find(context) is None
    vendors.sql(f"DROP ROLE {role}")
