"""The Snowflake emulator through the real connector, over tables that other engines write."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from datetime import time as clock
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import snowflake.connector
from cryptography.hazmat.primitives import serialization
from equality_deletes import with_equality_deletes
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from snowflake.connector import SnowflakeConnection
from snowflake.connector.errors import ProgrammingError
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.clients.secrets import Secrets
from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg.spark import new_session

pytestmark = pytest.mark.integration

NAMESPACE = "snowflake_test"
DATABASE = "STANDIN_TEST"
OPTIONS = "EXTERNAL_VOLUME = 'STANDIN_VOLUME' CATALOG = 'STANDIN_CATALOG'"
VOLUME = """CREATE EXTERNAL VOLUME IF NOT EXISTS STANDIN_VOLUME STORAGE_LOCATIONS = ((
  NAME = 'here' STORAGE_PROVIDER = 'S3' STORAGE_BASE_URL = '{url}'
  STORAGE_AWS_ROLE_ARN = 'arn:aws:iam::000000000000:role/r' STORAGE_AWS_EXTERNAL_ID = 'x'))
  ALLOW_WRITES = {writes}"""
INTEGRATION = f"""CREATE CATALOG INTEGRATION IF NOT EXISTS STANDIN_CATALOG CATALOG_SOURCE = GLUE
  TABLE_FORMAT = ICEBERG GLUE_AWS_ROLE_ARN = 'arn:aws:iam::000000000000:role/r'
  GLUE_CATALOG_ID = '000000000000' CATALOG_NAMESPACE = '{NAMESPACE}' ENABLED = TRUE
  REFRESH_INTERVAL_SECONDS = 30"""

Query = Callable[..., list[Any]]


def connect(stack: Endpoints, **changes: Any) -> SnowflakeConnection:
    address = stack.snowflake
    arguments: dict[str, Any] = {
        "account": address.account,
        "user": address.user,
        "password": address.password.get_secret_value(),
        "host": address.host,
        "port": address.port,
        "protocol": address.protocol,
        "login_timeout": 10,
        "database": DATABASE,
        "schema": "PUBLIC",
    }
    return snowflake.connector.connect(**(arguments | changes))


def ask(connection: SnowflakeConnection, sql: str, *arguments: Any) -> list[Any]:
    cursor = connection.cursor()
    cursor.execute(sql, *arguments)
    return list(cursor.fetchall())


@pytest.fixture(scope="module")
def connection(stack: Endpoints) -> Iterator[SnowflakeConnection]:
    with connect(stack) as made:
        for sql in (
            f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
            VOLUME.format(url=settings().warehouse, writes="FALSE"),
            INTEGRATION,
        ):
            made.cursor().execute(sql)
        yield made


@pytest.fixture
def query(connection: SnowflakeConnection) -> Query:
    return lambda sql, *arguments: ask(connection, sql, *arguments)


def refused(query: Query, sql: str) -> ProgrammingError:
    with pytest.raises(ProgrammingError) as caught:
        query(sql)
    return caught.value


@pytest.fixture(scope="module")
def catalog(stack: Endpoints) -> Catalog:
    catalog = stack.catalog()
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(NAMESPACE)
    return catalog


def fresh(catalog: Catalog, name: str, schema: Schema, **properties: str) -> Table:
    with contextlib.suppress(NoSuchTableError):
        catalog.purge_table((NAMESPACE, name))
    return catalog.create_table((NAMESPACE, name), schema, properties=properties)


def register(stack: Endpoints, name: str, location: str, kind: str = "ICEBERG") -> None:
    """Tell Glue where the table's metadata is."""
    glue = stack.boto3("glue")
    with contextlib.suppress(glue.exceptions.AlreadyExistsException):
        glue.create_database(DatabaseInput={"Name": NAMESPACE})
    parameters = {"table_type": kind, "metadata_location": location}
    entry = {"Name": name, "TableType": "EXTERNAL_TABLE", "Parameters": parameters}
    try:
        glue.create_table(DatabaseName=NAMESPACE, TableInput=entry)
    except glue.exceptions.AlreadyExistsException:
        glue.update_table(DatabaseName=NAMESPACE, TableInput=entry, SkipArchive=True)


IDS = Schema(NestedField(1, "id", LongType()), NestedField(2, "$$offset", LongType()))


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "$$offset": pa.array(values, pa.int64())})


def numbers(stack: Endpoints, catalog: Catalog, query: Query, name: str, more: str = "") -> Table:
    """An Iceberg table with the ids 1 to 3, in Glue and in Snowflake."""
    table = fresh(catalog, name, IDS)
    table.append(ids(1, 2, 3))
    register(stack, name, table.metadata_location)
    query(f"CREATE OR REPLACE ICEBERG TABLE {name} {OPTIONS} CATALOG_TABLE_NAME = '{name}' {more}")
    return table


def test_a_volume_is_really_checked(stack: Endpoints, query: Query) -> None:
    def verify(name: str) -> dict[str, Any]:
        return dict(json.loads(query(f"SELECT SYSTEM$VERIFY_EXTERNAL_VOLUME('{name}')")[0][0]))

    assert verify("standin_volume")["readResult"] == "SKIPPED"
    for name, url in (("GOOD", settings().warehouse), ("BAD", "s3://no-such-bucket/")):
        sql = VOLUME.replace("STANDIN_VOLUME", name).replace("IF NOT EXISTS ", "")
        query(sql.format(url=url, writes="TRUE"))
    checked = verify("GOOD")
    assert checked["success"] is True
    assert {checked[f"{kind}Result"] for kind in ("read", "list", "write", "delete")} == {"PASSED"}
    assert verify("BAD")["success"] is False
    assert "NoSuchBucket" in verify("BAD")["listResult"]
    for name in ("GOOD", "BAD"):
        query(f"DROP EXTERNAL VOLUME {name}")


def test_every_type_comes_back(stack: Endpoints, catalog: Catalog, query: Query) -> None:
    fields = {
        "key": (BinaryType(), b"k\x00", bytearray(b"k\x00"), "BINARY(67108864)"),
        "flag": (BooleanType(), True, True, "BOOLEAN"),
        "small": (IntegerType(), -7, -7, "NUMBER(10,0)"),
        "big": (LongType(), 2**62, 2**62, "NUMBER(19,0)"),
        "single": (FloatType(), 1.5, 1.5, "FLOAT"),
        "double": (DoubleType(), -2.25, -2.25, "FLOAT"),
        "price": (DecimalType(10, 2), Decimal("12.34"), Decimal("12.34"), "NUMBER(10,2)"),
        "day": (DateType(), date(1969, 12, 31), date(1969, 12, 31), "DATE"),
        "hour": (TimeType(), clock(1, 2, 3, 4), clock(1, 2, 3, 4), "TIME(6)"),
        "local": (
            *(TimestampType(), datetime(1960, 1, 1, 0, 0, 0, 250_001)),
            *(datetime(1960, 1, 1, 0, 0, 0, 250_001), "TIMESTAMP_NTZ(6)"),
        ),
        "$$timestamp": (
            *(TimestamptzType(), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
            *(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "TIMESTAMP_LTZ(6)"),
        ),
        "mixedCase": (StringType(), "ä'\"", "ä'\"", "VARCHAR(134217728)"),
        "id": (UUIDType(), b"0123456789abcdef", bytearray(b"0123456789abcdef"), "BINARY(16)"),
        "code": (FixedType(2), b"ab", bytearray(b"ab"), "BINARY(2)"),
    }
    nested = [
        NestedField(50, "tags", ListType(51, StringType(), element_required=False)),
        NestedField(52, "$$headers", MapType(53, StringType(), 54, BinaryType(), False)),
        NestedField(
            *(55, "inner"),
            StructType(NestedField(56, "X", LongType()), NestedField(57, "y", BinaryType())),
        ),
    ]
    plain = [NestedField(i, name, field[0]) for i, (name, field) in enumerate(fields.items(), 1)]
    table = fresh(catalog, "types", Schema(*plain, *nested))
    row = {name: field[1] for name, field in fields.items()}
    row |= {"tags": ["a", None], "$$headers": [("h", b"\x00v")], "inner": {"X": 1, "y": b"z"}}
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([row, dict.fromkeys(row)], schema=arrow))
    register(stack, "types", table.metadata_location)
    query(f"CREATE OR REPLACE ICEBERG TABLE types {OPTIONS} CATALOG_TABLE_NAME = 'types'")

    assert {r[0]: r[1] for r in query("DESC ICEBERG TABLE types")} == {
        **{name.upper(): field[3] for name, field in fields.items()},
        "TAGS": "ARRAY(VARCHAR(134217728))",
        "$$HEADERS": "MAP(VARCHAR(134217728), BINARY(67108864))",
        "INNER": "OBJECT(X NUMBER(19,0), y BINARY(67108864))",
    }
    assert query("DESC TABLE types") == query("DESC ICEBERG TABLE types")
    (values,) = query("SELECT * FROM types WHERE flag")
    assert list(values[: len(fields)]) == [field[2] for field in fields.values()]
    inside = [json.loads(value) for value in values[len(fields) :]]
    assert inside == [["a", None], {"h": "0076"}, {"X": 1, "y": "7A"}]
    (nothing,) = query("SELECT * FROM types WHERE flag IS NULL")
    assert set(nothing) == {None}
    assert query(
        'SELECT mixedcase, MixedCase, "$$timestamp", "$$headers":h::varchar, tags[0]::varchar, '
        "SUM(price) FROM types WHERE key IS NOT NULL GROUP BY ALL"
    ) == [("ä'\"", "ä'\"", fields["$$timestamp"][2], "0076", "a", Decimal("12.34"))]


def test_a_table_is_stale_until_it_is_refreshed(
    stack: Endpoints, catalog: Catalog, query: Query
) -> None:
    table = numbers(stack, catalog, query, "stale")
    first = table.metadata_location
    table.append(ids(4, 5))
    register(stack, "stale", table.metadata_location)
    bucket, _, key = first.removeprefix("s3://").partition("/")
    stack.boto3("s3").delete_object(Bucket=bucket, Key=key)

    def information() -> Any:
        function = "SYSTEM$GET_ICEBERG_TABLE_INFORMATION"
        return json.loads(query(f"SELECT {function}('standin_test.public.stale')")[0][0])

    assert query('SELECT COUNT(*), MAX("$$offset") FROM stale') == [(3, 3)]
    assert information() == {"metadataLocation": first, "status": "success"}
    query("ALTER ICEBERG TABLE stale REFRESH")
    assert query('SELECT COUNT(*), MAX("$$offset") FROM stale') == [(5, 5)]
    assert information()["metadataLocation"] == table.metadata_location
    assert refused(query, "ALTER ICEBERG TABLE stale REFRESH 'metadata/x.json'").errno == 91300
    joined = "SELECT COUNT(*) FROM stale a JOIN stale b ON a.id = b.id WHERE a.id > 2"
    assert query(joined) == [(3,)]


@pytest.mark.parametrize("version", [2, 3], ids=["position deletes", "deletion vectors"])
def test_row_level_deletes_are_applied(
    stack: Endpoints, catalog: Catalog, query: Query, version: int
) -> None:
    name = f"deletes_v{version}"
    full, spark = f"lake.{NAMESPACE}.{name}", new_session(stack.spark_connect)
    for sql in (
        f"DROP TABLE IF EXISTS {full} PURGE",
        f"CREATE TABLE {full} (id BIGINT, name STRING) USING iceberg TBLPROPERTIES "
        f"('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')",
        f"INSERT INTO {full} SELECT id, 'n' || id FROM range(0, 1000, 1, 1)",
        f"DELETE FROM {full} WHERE id % 3 = 0",
    ):
        spark.sql(sql)
    spark.stop()
    table = catalog.load_table((NAMESPACE, name))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert int(snapshot.summary["total-position-deletes"] or 0) == 334
    register(stack, name, table.metadata_location)
    query(f"CREATE OR REPLACE ICEBERG TABLE {name} {OPTIONS} CATALOG_TABLE_NAME = '{name}'")
    assert query(f"SELECT COUNT(*), MIN(id) FROM {name}") == [(666, 1)]
    assert query(f"SELECT name FROM {name} WHERE id IN (3, 4)") == [("n4",)]


@pytest.mark.parametrize(
    "summary",
    [{"operation": "delete", "total-equality-deletes": "1"}, {"operation": "delete"}],
    ids=["counted", "found in the manifests"],
)
def test_equality_deletes_are_refused(
    stack: Endpoints, catalog: Catalog, query: Query, summary: dict[str, str]
) -> None:
    table = numbers(stack, catalog, query, "equality")
    register(stack, "equality", with_equality_deletes(table, summary))
    assert "equality delete" in str(refused(query, "ALTER ICEBERG TABLE equality REFRESH"))
    assert query("SELECT COUNT(*) FROM equality") == [(3,)]
    create = f"CREATE ICEBERG TABLE equality_2 {OPTIONS} CATALOG_TABLE_NAME = 'equality'"
    assert "equality delete" in str(refused(query, create))


def test_a_table_is_read_only(stack: Endpoints, catalog: Catalog, query: Query) -> None:
    numbers(stack, catalog, query, "fixed")
    for sql in (
        "INSERT INTO fixed VALUES (4, 4)",
        "UPDATE fixed SET id = 1",
        "DELETE FROM STANDIN_TEST.PUBLIC.FIXED",
        "TRUNCATE TABLE fixed",
        "MERGE INTO fixed USING (SELECT 1 AS id) s ON fixed.id = s.id WHEN MATCHED THEN DELETE",
        "ALTER TABLE fixed ADD COLUMN c INT",
    ):
        error = refused(query, sql)
        assert "read-only" in str(error), sql
        assert error.errno == 91357
    assert refused(query, "CREATE OR REPLACE TABLE fixed (a INT)").errno == 2002
    assert query("SELECT COUNT(*) FROM fixed") == [(3,)]


def test_what_cannot_be_resolved_is_refused(
    stack: Endpoints, catalog: Catalog, query: Query
) -> None:
    table = numbers(stack, catalog, query, "resolved")
    create = f"CREATE ICEBERG TABLE unresolved {OPTIONS} CATALOG_TABLE_NAME = '%s'"
    assert "EntityNotFound" in str(refused(query, create % "no_such_table"))
    register(stack, "hive", table.metadata_location, kind="HIVE")
    assert "not an Iceberg table" in str(refused(query, create % "hive"))
    register(stack, "outside", "s3://elsewhere/metadata/v1.metadata.json")
    assert "not within the storage base URL" in str(refused(query, create % "outside"))
    register(stack, "missing", f"{table.location()}/metadata/none.metadata.json")
    assert "NoSuchKey" in str(refused(query, create % "missing"))
    wrong = create.replace("STANDIN_VOLUME", "NOPE") % "resolved"
    assert refused(query, wrong).errno == 2003
    for sql in ("DROP EXTERNAL VOLUME standin_volume", "DROP CATALOG INTEGRATION standin_catalog"):
        assert "STANDIN_TEST.PUBLIC.RESOLVED" in str(refused(query, sql))
    replace = INTEGRATION.replace("CREATE", "CREATE OR REPLACE").replace("IF NOT EXISTS", "")
    assert "cannot be dropped or replaced" in str(refused(query, replace))


def test_automated_refresh_follows_the_catalog(
    stack: Endpoints, catalog: Catalog, query: Query
) -> None:
    table = numbers(stack, catalog, query, "followed", "AUTO_REFRESH = TRUE")

    def status() -> dict[str, str]:
        sql = "SELECT SYSTEM$AUTO_REFRESH_STATUS('STANDIN_TEST.PUBLIC.FOLLOWED')"
        return dict(json.loads(query(sql)[0][0]))

    def becomes(check: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 240  # the shortest interval is half a minute
        while not check() and time.monotonic() < deadline:
            time.sleep(0.2)
        return check()

    register(stack, "followed", "s3://elsewhere/metadata/v1.metadata.json")
    assert becomes(lambda: status()["executionState"] == "STALLED")
    assert "elsewhere" in status()["invalidExecutionStateReason"]
    table.append(ids(4))
    register(stack, "followed", table.metadata_location)
    assert becomes(lambda: query("SELECT COUNT(*) FROM followed") == [(4,)])
    assert status()["executionState"] == "RUNNING"
    assert status()["currentSnapshotId"] == str(table.metadata.current_snapshot_id)
    assert all(isinstance(value, str) for value in status().values())
    query("ALTER ICEBERG TABLE followed SET AUTO_REFRESH = FALSE")
    assert status()["executionState"] == "STOPPED"


def test_bootstrap_creates_the_admin_user(stack: Endpoints, query: Query) -> None:
    """Twice, and then the key in the secret opens all roles that a deployment needs."""
    address, name = stack.snowflake, "/bootstrap_admin"
    login = address.login()["password"]
    command = ["deploy", "bootstrap-snowflake", address.account, "--secret", name]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0, printed.output
    assert "CREATE USER" in printed.stdout
    for _ in range(2):
        done = CliRunner().invoke(app, [*command, "--run-as", address.user], input=f"{login}\n")
        assert done.exit_code == 0, done.output
    other = CliRunner().invoke(app, [*command, "--user", "OTHER"])
    assert "admin_service_user is TOPICBERG_ADMIN, not OTHER" in str(other.exception)
    secret = Secrets(stack.boto3("secretsmanager")).read(name)
    assert secret is not None
    assert secret["snowflake_rsa_private_key_1_pem"] not in printed.output + done.output
    assert secret["snowflake_rsa_public_key_1_pem"] in printed.stdout
    pem = base64.b64decode(secret["snowflake_rsa_private_key_1_pem"])
    der = serialization.load_pem_private_key(pem, password=None).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with snowflake.connector.connect(
        account=address.account,
        user="TOPICBERG_ADMIN",
        private_key=der,
        host=address.host,
        port=address.port,
        protocol=address.protocol,
    ) as made:
        for role in ("ACCOUNTADMIN", "SECURITYADMIN", "SYSADMIN"):
            ask(made, f"USE ROLE {role}")
            assert ask(made, "SELECT CURRENT_ROLE()") == [(role,)]
    query("DROP USER topicberg_admin")


def test_errors_have_snowflakes_shape(query: Query) -> None:
    for sql, number, state in (
        ("SELEC 1", 1003, "42000"),
        ("SELECT * FROM no_such_table", 2003, "42S02"),
        ("SELECT * FROM no_such_db.s.t", 2003, "02000"),
        ("SELECT nope FROM (SELECT 1 AS a)", 904, "42000"),
        ("CREATE STAGE s", 2, "0A000"),
        ("CREATE DATABASE standin_test", 2002, "42710"),
        ("USE ROLE nope", 2003, "02000"),
    ):
        error = refused(query, sql)
        assert (error.errno, error.sqlstate) == (number, state), sql
