"""Who may do what in the Snowflake emulator: as strict as Snowflake where a deployment can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snowflake.connector.errors import ProgrammingError

from topicberg_local.emulators.snowflake.account import TABLE, Account, Context
from topicberg_local.emulators.snowflake.logins import Login, LoginRefused, Logins
from topicberg_local.emulators.snowflake.session import Session
from topicberg_local.emulators.store import Stored

VOLUME = """CREATE EXTERNAL VOLUME v STORAGE_LOCATIONS = ((NAME = 'l' STORAGE_PROVIDER = 'S3'
  STORAGE_BASE_URL = 's3://b/' STORAGE_AWS_ROLE_ARN = 'arn:aws:iam::000000000000:role/r'))"""
INTEGRATION = """CREATE CATALOG INTEGRATION ci CATALOG_SOURCE = GLUE TABLE_FORMAT = ICEBERG
  GLUE_AWS_ROLE_ARN = 'arn:aws:iam::000000000000:role/r' GLUE_CATALOG_ID = '000000000000'
  ENABLED = TRUE"""
TABLE_OF_READER = (
    "CREATE ICEBERG TABLE db.s.t EXTERNAL_VOLUME = 'V' CATALOG = 'CI' "
    "CATALOG_TABLE_NAME = 't' CATALOG_NAMESPACE = 'n'"
)
Run = Callable[..., None]


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    for name in ("TOPICBERG_S3_ENDPOINT", "TOPICBERG_AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    account = Account(tmp_path)
    yield account
    account.close()


@pytest.fixture
def run(account: Account) -> Iterator[Run]:
    """``run(role, statement, …)`` as a user who has every role."""
    session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    def run(role: str, *statements: str) -> None:
        session.context.role = role
        for statement in statements:
            session.execute(statement)

    yield run
    session.close()


@pytest.fixture
def platform(run: Run) -> Run:
    """As `topicberg deploy` makes it, but for the privileges of the role ``reader``."""
    run("SYSADMIN", "CREATE DATABASE db", "CREATE SCHEMA db.s", "CREATE WAREHOUSE w")
    run("ACCOUNTADMIN", VOLUME, INTEGRATION)
    run("SECURITYADMIN", "CREATE ROLE reader", "CREATE USER u PASSWORD = 'p' DEFAULT_ROLE = READER")
    return run


def refused(run: Run, role: str, statement: str, match: str = "Insufficient privileges") -> None:
    with pytest.raises(ProgrammingError, match=match) as caught:
        run(role, statement)
    assert caught.value.errno == (2003 if "exist" in match else 3001)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("SYSADMIN", VOLUME),
        ("SYSADMIN", INTEGRATION),
        ("SECURITYADMIN", "CREATE DATABASE other"),
        ("SECURITYADMIN", "CREATE WAREHOUSE other"),
        ("SYSADMIN", "CREATE USER other"),
        ("SYSADMIN", "CREATE ROLE other"),
        ("PUBLIC", "CREATE ROLE other"),
    ],
)
def test_each_kind_is_created_by_its_system_role(run: Run, role: str, statement: str) -> None:
    refused(run, role, statement)
    run("ACCOUNTADMIN", statement)  # which inherits all of them


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("SYSADMIN", "DROP EXTERNAL VOLUME v"),
        ("SYSADMIN", "DROP CATALOG INTEGRATION ci"),
        ("SECURITYADMIN", "DROP DATABASE db"),
        ("SECURITYADMIN", "ALTER WAREHOUSE w SET COMMENT = 'x'"),
        ("SYSADMIN", "DROP USER u"),
        ("SYSADMIN", "GRANT ROLE reader TO USER u"),
        ("READER", "CREATE SCHEMA db.other"),
    ],
)
def test_an_object_is_its_owners(platform: Run, role: str, statement: str) -> None:
    refused(platform, role, statement)
    platform("ACCOUNTADMIN", statement)


def test_a_roles_table_needs_usage_of_all_that_it_uses(platform: Run) -> None:
    steps = [
        ("GRANT USAGE ON DATABASE db TO ROLE reader", "Database 'DB' does not exist"),
        ("GRANT USAGE ON SCHEMA db.s TO ROLE reader", "Schema 'DB.S' does not exist"),
        ("GRANT CREATE ICEBERG TABLE ON SCHEMA db.s TO ROLE reader", "privileges .* schema 'S'"),
        ("GRANT USAGE ON EXTERNAL VOLUME v TO ROLE reader", "privileges .* external volume 'V'"),
        ("GRANT USAGE ON INTEGRATION ci TO ROLE reader", "privileges .* integration 'CI'"),
    ]
    for grant, match in steps:
        refused(platform, "READER", TABLE_OF_READER, match)
        platform("SECURITYADMIN", grant)
    with pytest.raises(ProgrammingError, match="does not answer"):
        platform("READER", TABLE_OF_READER)


def test_a_roles_table_is_dropped_by_who_inherits_it(platform: Run, account: Account) -> None:
    """And with its database, by the database's owner."""
    options = {"EXTERNAL_VOLUME": "V", "CATALOG": "CI", "OWNER": "READER"}
    for name in ("ONE", "TWO"):
        account.store.put(Stored(TABLE, ("DB", "S", name), options))
    for what in ("EXTERNAL VOLUME v", "INTEGRATION ci"):
        platform("SECURITYADMIN", f"GRANT USAGE ON {what} TO ROLE reader")
    refused(platform, "ACCOUNTADMIN", "DROP ICEBERG TABLE db.s.one")
    with pytest.raises(ProgrammingError, match="use it"):
        platform("ACCOUNTADMIN", "DROP EXTERNAL VOLUME v")
    platform("SECURITYADMIN", "GRANT ROLE reader TO ROLE SYSADMIN")
    platform("ACCOUNTADMIN", "DROP ICEBERG TABLE db.s.one")
    platform("SECURITYADMIN", "REVOKE USAGE ON EXTERNAL VOLUME v FROM ROLE reader")
    refused(platform, "ACCOUNTADMIN", "DROP ICEBERG TABLE db.s.two", "external volume 'V'")
    platform("ACCOUNTADMIN", "DROP DATABASE db", "DROP EXTERNAL VOLUME v")


def test_grants_go_with_their_object(platform: Run) -> None:
    platform("SECURITYADMIN", "GRANT USAGE ON WAREHOUSE w TO ROLE reader")
    platform("READER", "USE WAREHOUSE w")
    platform("SYSADMIN", "DROP WAREHOUSE w", "CREATE WAREHOUSE w")
    refused(platform, "READER", "USE WAREHOUSE w", "Warehouse 'W' does not exist")


def test_a_default_role_must_be_granted_before_a_login(platform: Run, account: Account) -> None:
    logins = Logins(account, "ROOT", "secret")
    login = Login("U", "p", "SNOWFLAKE", "", "A")
    with pytest.raises(LoginRefused, match="default role 'READER' is not granted"):
        logins.open(login, None, None)
    assert logins.open(login, "PUBLIC", None).role == "PUBLIC"
    platform("SECURITYADMIN", "GRANT ROLE reader TO USER u")
    assert logins.open(login, None, None).role == "READER"


def test_a_login_gets_no_warehouse_that_it_may_not_use(platform: Run, account: Account) -> None:
    platform("SECURITYADMIN", "ALTER USER u SET DEFAULT_WAREHOUSE = W DEFAULT_ROLE = PUBLIC")
    logins = Logins(account, "ROOT", "secret")
    login = Login("U", "p", "SNOWFLAKE", "", "A")
    assert logins.open(login, None, None).warehouse is None
    platform("SECURITYADMIN", "GRANT USAGE ON WAREHOUSE w TO ROLE PUBLIC")
    assert logins.open(login, None, None).warehouse == "W"
