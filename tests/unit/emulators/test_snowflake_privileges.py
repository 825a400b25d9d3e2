"""Privileges, network policies and tags in the Snowflake emulator, and as `deploy` sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from snowflake.connector.errors import ProgrammingError

from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.snowflake.principals import NetworkPolicy, UserPolicy
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
    logins, login = Logins(account, "ROOT", "secret"), Login("U", "p", "SNOWFLAKE", "", "A")
    with pytest.raises(LoginRefused, match="default role 'READER' is not granted"):
        logins.open(login, None, None)
    assert logins.open(login, "PUBLIC", None).role == "PUBLIC"
    platform("SECURITYADMIN", "GRANT ROLE reader TO USER u")
    assert logins.open(login, None, None).role == "READER"


def test_a_login_gets_no_warehouse_that_it_may_not_use(platform: Run, account: Account) -> None:
    platform("SECURITYADMIN", "ALTER USER u SET DEFAULT_WAREHOUSE = W DEFAULT_ROLE = PUBLIC")
    logins, login = Logins(account, "ROOT", "secret"), Login("U", "p", "SNOWFLAKE", "", "A")
    assert logins.open(login, None, None).warehouse is None
    platform("SECURITYADMIN", "GRANT USAGE ON WAREHOUSE w TO ROLE PUBLIC")
    assert logins.open(login, None, None).warehouse == "W"


Execute = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def execute(account: Account) -> Iterator[Execute]:
    session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    def execute(statement: str, role: str = "SECURITYADMIN") -> list[tuple[object, ...]]:
        session.context.role = role
        rows = session.execute(statement).payload["rowset"]
        return [tuple(row) for row in rows]

    execute("CREATE USER u PASSWORD = 'p'")
    yield execute
    session.close()


@pytest.fixture
def log_in(account: Account) -> Callable[[str], None]:
    logins = Logins(account, "root", "secret")

    def log_in(address: str) -> None:
        logins.open(Login("u", "p", "SNOWFLAKE", "", "a", address), None, None)

    return log_in


def test_policy_keeps_other_addresses_out(execute: Execute, log_in: Callable[[str], None]) -> None:
    log_in("203.0.113.9")
    execute("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('203.0.113.0/24', '198.51.100.7')")
    execute("ALTER USER u SET NETWORK_POLICY = p")
    for address in ("203.0.113.9", "198.51.100.7"):
        log_in(address)
    for address in ("198.51.100.8", "127.0.0.1"):
        with pytest.raises(LoginRefused, match=f"IP/Token {address} is not allowed"):
            log_in(address)
    execute("ALTER NETWORK POLICY p SET BLOCKED_IP_LIST = ('203.0.113.9')")
    with pytest.raises(LoginRefused):
        log_in("203.0.113.9")
    assert execute("DESC NETWORK POLICY p") == [
        ("ALLOWED_IP_LIST", "203.0.113.0/24,198.51.100.7"),
        ("BLOCKED_IP_LIST", "203.0.113.9"),
    ]
    ((key, value, _, level, *_),) = execute("SHOW PARAMETERS LIKE 'network_policy' IN USER u")
    assert (key, value, level) == ("NETWORK_POLICY", "P", "USER")
    execute("ALTER USER u UNSET NETWORK_POLICY")
    log_in("127.0.0.1")
    ((_, value, *_),) = execute("SHOW PARAMETERS LIKE 'network_policy' FOR USER u")
    assert value == ""


def test_policy_of_the_account_is_for_users_without_one(
    execute: Execute, log_in: Callable[[str], None]
) -> None:
    execute("CREATE NETWORK POLICY everywhere ALLOWED_IP_LIST = ('203.0.113.0/24')")
    execute("CREATE NETWORK POLICY own ALLOWED_IP_LIST = ('198.51.100.7')")
    execute("ALTER ACCOUNT SET NETWORK_POLICY = everywhere")
    ((_, value, _, level, *_),) = execute("SHOW PARAMETERS LIKE 'network_policy' IN USER u")
    assert (value, level) == ("EVERYWHERE", "ACCOUNT")
    log_in("203.0.113.9")
    with pytest.raises(LoginRefused):
        log_in("198.51.100.7")
    with pytest.raises(ProgrammingError, match="attached to the account"):
        execute("DROP NETWORK POLICY everywhere")
    execute("ALTER USER u SET NETWORK_POLICY = own")
    log_in("198.51.100.7")
    execute("ALTER ACCOUNT UNSET NETWORK_POLICY")
    execute("DROP NETWORK POLICY everywhere")
    for statement, problem in (
        ("ALTER ACCOUNT SET NETWORK_POLICY = own", "Insufficient privileges"),
        ("ALTER ACCOUNT SET X = 1", "not supported"),
    ):
        with pytest.raises(ProgrammingError, match=problem):
            execute(statement, "SYSADMIN")


def test_attached_policy_is_not_dropped(execute: Execute) -> None:
    execute("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('203.0.113.0/24')")
    execute("ALTER USER u SET NETWORK_POLICY = p")
    with pytest.raises(ProgrammingError, match="attached to a user"):
        execute("DROP NETWORK POLICY p")
    execute("ALTER USER u UNSET NETWORK_POLICY")
    execute("DROP NETWORK POLICY p")
    assert execute("SHOW NETWORK POLICIES") == []
    execute("DROP NETWORK POLICY IF EXISTS p")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('x')", "invalid value 'x'"),
        ("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('::1')", "invalid value"),
        ("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('1.2.3.4/33')", "invalid value"),
        ("CREATE NETWORK POLICY p BLOCKED_IP_LIST = ('0.0.0.0/0')", "invalid value"),
        ("CREATE NETWORK POLICY p ALLOWED_IPS = ('1.2.3.4')", "invalid property"),
        ("CREATE NETWORK POLICY p ALLOWED_NETWORK_RULE_LIST = ('r')", "not supported"),
        ("ALTER USER u SET NETWORK_POLICY = missing", "does not exist"),
        ("CREATE USER v NETWORK_POLICY = missing", "does not exist"),
        ("SHOW NETWORK POLICIES LIKE 'p'", "not supported"),
        ("SHOW PARAMETERS IN USER u", "not supported"),
    ],
)
def test_statement_that_snowflake_refuses(execute: Execute, statement: str, problem: str) -> None:
    with pytest.raises(ProgrammingError, match=problem):
        execute(statement)


def test_policy_is_for_security_admins(execute: Execute) -> None:
    create = "CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('203.0.113.0/24')"
    with pytest.raises(ProgrammingError, match="Insufficient privileges"):
        execute(create, "SYSADMIN")
    execute(create)
    for statement in ("DROP NETWORK POLICY p", "ALTER NETWORK POLICY p SET COMMENT = 'x'"):
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            execute(statement, "SYSADMIN")


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("", True),
        ("203.0.113.0/24,198.51.100.7", True),
        ("203.0.113.0/33", False),
        ("203.0.113.256", False),
        ("203.0.113.1, 203.0.113.2", False),
        ("'; DROP USER u --", False),
        ("::1", False),
    ],
)
def test_setting_takes_only_addresses(value: str, fits: bool) -> None:
    if fits:
        assert Settings(snowflake_allowed_ips=value).snowflake_allowed_ips == value
    else:
        with pytest.raises(TopicbergError, match="TOPICBERG_SNOWFLAKE_ALLOWED_IPS"):
            Settings(snowflake_allowed_ips=value)


class Emulated:
    """A deployment's sessions, answered by the emulator without its HTTP server."""

    def __init__(self, account: Account) -> None:
        self.snowflake = self
        self._session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    @contextmanager
    def session(self) -> Iterator[Emulated]:
        yield self

    def run(self, statement: str, role: str) -> list[dict[str, str]]:
        self._session.context.role = role
        found = self._session.execute(statement).payload
        names = [column["name"].lower() for column in found["rowtype"]]
        return [dict(zip(names, row, strict=True)) for row in found["rowset"]]


def test_deploy_creates_changes_and_deletes_the_policy(account: Account, execute: Execute) -> None:
    context = cast("Any", Emulated(account))
    policy = NetworkPolicy("key", "MY_POLICY", allowed=("198.51.100.7", "203.0.113.0/24"))
    attached = UserPolicy("key2", "MY_POLICY of U", user="U", policy="MY_POLICY")
    assert (policy.find(context), attached.find(context)) == (None, None)
    for resource in (policy, attached):
        resource.create(context)
        live = resource.find(context)
        assert live is not None
        assert live.fields == resource.desired(context)
    narrow = replace(policy, allowed=("198.51.100.7",))
    live = narrow.find(context)
    assert live is not None
    narrow.update(context, live, {"allowed": (live.fields["allowed"], "198.51.100.7")})
    live = narrow.find(context)
    assert live is not None
    assert live.fields == narrow.desired(context)
    attached.delete(context, live)
    policy.delete(context, live)
    assert (policy.find(context), attached.find(context)) == (None, None)
    assert UserPolicy("key2", "x", user="MISSING", policy="x").find(context) is None


def test_policies_of_others_are_not_taken_for_ours(account: Account, execute: Execute) -> None:
    """Of the account, or set by an operator: deploy neither plans to delete nor waits for them."""
    context = cast("Any", Emulated(account))
    attached = UserPolicy("key2", "MY_POLICY of U", user="U", policy="MY_POLICY")
    for name in ("everywhere", "my_policy", "another"):
        execute(f"CREATE NETWORK POLICY {name} ALLOWED_IP_LIST = ('203.0.113.0/24')")
    execute("ALTER ACCOUNT SET NETWORK_POLICY = everywhere")
    assert attached.find(context) is None
    execute("ALTER USER u SET NETWORK_POLICY = another")
    assert attached.find(context) is None
    attached.create(context)
    assert attached.find(context) is not None


RunTags = Callable[..., list[tuple[object, ...]]]
TAG = "gov.tags.cost_center"


@pytest.fixture
def run_tags(account: Account) -> Iterator[RunTags]:
    session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    def run_tags(statement: str, role: str = "ACCOUNTADMIN") -> list[tuple[object, ...]]:
        session.context.role = role
        return [tuple(row) for row in session.execute(statement).payload["rowset"]]

    for statement in ("CREATE DATABASE gov", "CREATE SCHEMA gov.tags", f"CREATE TAG {TAG}"):
        run_tags(statement)
    run_tags("CREATE WAREHOUSE w")
    yield run_tags
    session.close()


def value(run_tags: RunTags, name: str, domain: str, tag: str = TAG) -> object:
    ((found,),) = run_tags(f"SELECT SYSTEM$GET_TAG('{tag}', '{name}', '{domain}') AS value")
    return found


def test_tag_is_set_and_changed(run_tags: RunTags) -> None:
    assert value(run_tags, "w", "WAREHOUSE") is None
    run_tags(f"ALTER WAREHOUSE w SET TAG {TAG} = 'data'")
    assert value(run_tags, "w", "warehouse") == "data"
    run_tags(f"ALTER WAREHOUSE w SET TAG {TAG} = 'other'")
    assert value(run_tags, "w", "WAREHOUSE") == "other"


def test_schema_has_the_tags_of_its_database(run_tags: RunTags) -> None:
    run_tags(f"ALTER DATABASE gov SET TAG {TAG} = 'data'")
    assert value(run_tags, "gov.tags", "SCHEMA") == "data"
    run_tags(f"ALTER SCHEMA gov.tags SET TAG {TAG} = 'own'")
    assert value(run_tags, "gov.tags", "SCHEMA") == "own"


def test_object_that_is_created_again_has_no_tags(run_tags: RunTags) -> None:
    run_tags(f"ALTER WAREHOUSE w SET TAG {TAG} = 'data'")
    run_tags("DROP WAREHOUSE w")
    run_tags("CREATE WAREHOUSE w")
    assert value(run_tags, "w", "WAREHOUSE") is None


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER WAREHOUSE w SET TAG gov.tags.none = 'v'", "does not exist"),
        (f"ALTER WAREHOUSE none SET TAG {TAG} = 'v'", "does not exist"),
        (f"ALTER WAREHOUSE w SET TAG {TAG} = '{'v' * 257}'", "not allowed"),
        ("ALTER WAREHOUSE w SET TAG gov.tags.few = 'c'", "not allowed"),
        (f"ALTER EXTERNAL VOLUME v SET TAG {TAG} = 'v'", "not supported"),
        (f"SELECT SYSTEM$GET_TAG('{TAG}', 'v', 'EXTERNAL VOLUME')", "Invalid object domain"),
        (f"CREATE TAG {TAG}", "already exists"),
    ],
)
def test_wrong_statement_is_refused(run_tags: RunTags, statement: str, expected: str) -> None:
    run_tags("CREATE TAG gov.tags.few ALLOWED_VALUES 'a', 'b' COMMENT = 'c'")
    with pytest.raises(ProgrammingError, match=expected):
        run_tags(statement)


def test_role_needs_apply_tag_of_the_account(run_tags: RunTags) -> None:
    run_tags("CREATE ROLE r")
    run_tags("GRANT USAGE ON DATABASE gov TO ROLE r")
    run_tags("GRANT USAGE ON SCHEMA gov.tags TO ROLE r")
    with pytest.raises(ProgrammingError, match="Insufficient privileges"):
        run_tags(f"ALTER WAREHOUSE w SET TAG {TAG} = 'v'", role="R")
    run_tags("GRANT APPLY TAG ON ACCOUNT TO ROLE r")
    run_tags(f"ALTER WAREHOUSE w SET TAG {TAG} = 'v'", role="R")
    assert value(run_tags, "w", "WAREHOUSE") == "v"
