"""Network policies in the Snowflake emulator: who may make them, and whom they keep out."""

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
from topicberg_local.emulators.snowflake.account import Account, Context
from topicberg_local.emulators.snowflake.logins import Login, LoginRefused, Logins
from topicberg_local.emulators.snowflake.session import Session

Run = Callable[..., list[tuple[object, ...]]]


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
    session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    def run(statement: str, role: str = "SECURITYADMIN") -> list[tuple[object, ...]]:
        session.context.role = role
        rows = session.execute(statement).payload["rowset"]
        return [tuple(row) for row in rows]

    run("CREATE USER u PASSWORD = 'p'")
    yield run
    session.close()


@pytest.fixture
def log_in(account: Account) -> Callable[[str], None]:
    logins = Logins(account, "root", "secret")

    def log_in(address: str) -> None:
        logins.open(Login("u", "p", "SNOWFLAKE", "", "a", address), None, None)

    return log_in


def test_policy_keeps_other_addresses_out(run: Run, log_in: Callable[[str], None]) -> None:
    log_in("203.0.113.9")
    run("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('203.0.113.0/24', '198.51.100.7')")
    run("ALTER USER u SET NETWORK_POLICY = p")
    for address in ("203.0.113.9", "198.51.100.7"):
        log_in(address)
    for address in ("198.51.100.8", "127.0.0.1"):
        with pytest.raises(LoginRefused, match=f"IP/Token {address} is not allowed"):
            log_in(address)
    run("ALTER NETWORK POLICY p SET BLOCKED_IP_LIST = ('203.0.113.9')")
    with pytest.raises(LoginRefused):
        log_in("203.0.113.9")
    assert run("DESC NETWORK POLICY p") == [
        ("ALLOWED_IP_LIST", "203.0.113.0/24,198.51.100.7"),
        ("BLOCKED_IP_LIST", "203.0.113.9"),
    ]
    ((key, value, _, level, *_),) = run("SHOW PARAMETERS LIKE 'network_policy' IN USER u")
    assert (key, value, level) == ("NETWORK_POLICY", "P", "USER")
    run("ALTER USER u UNSET NETWORK_POLICY")
    log_in("127.0.0.1")
    ((_, value, *_),) = run("SHOW PARAMETERS LIKE 'network_policy' FOR USER u")
    assert value == ""


def test_policy_of_the_account_is_for_users_without_one(
    run: Run, log_in: Callable[[str], None]
) -> None:
    run("CREATE NETWORK POLICY everywhere ALLOWED_IP_LIST = ('203.0.113.0/24')")
    run("CREATE NETWORK POLICY own ALLOWED_IP_LIST = ('198.51.100.7')")
    run("ALTER ACCOUNT SET NETWORK_POLICY = everywhere")
    ((_, value, _, level, *_),) = run("SHOW PARAMETERS LIKE 'network_policy' IN USER u")
    assert (value, level) == ("EVERYWHERE", "ACCOUNT")
    log_in("203.0.113.9")
    with pytest.raises(LoginRefused):
        log_in("198.51.100.7")
    with pytest.raises(ProgrammingError, match="attached to the account"):
        run("DROP NETWORK POLICY everywhere")
    run("ALTER USER u SET NETWORK_POLICY = own")
    log_in("198.51.100.7")
    run("ALTER ACCOUNT UNSET NETWORK_POLICY")
    run("DROP NETWORK POLICY everywhere")
    for statement, problem in (
        ("ALTER ACCOUNT SET NETWORK_POLICY = own", "Insufficient privileges"),
        ("ALTER ACCOUNT SET X = 1", "not supported"),
    ):
        with pytest.raises(ProgrammingError, match=problem):
            run(statement, "SYSADMIN")


def test_attached_policy_is_not_dropped(run: Run) -> None:
    run("CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('203.0.113.0/24')")
    run("ALTER USER u SET NETWORK_POLICY = p")
    with pytest.raises(ProgrammingError, match="attached to a user"):
        run("DROP NETWORK POLICY p")
    run("ALTER USER u UNSET NETWORK_POLICY")
    run("DROP NETWORK POLICY p")
    assert run("SHOW NETWORK POLICIES") == []
    run("DROP NETWORK POLICY IF EXISTS p")


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
def test_statement_that_snowflake_refuses(run: Run, statement: str, problem: str) -> None:
    with pytest.raises(ProgrammingError, match=problem):
        run(statement)


def test_policy_is_for_security_admins(run: Run) -> None:
    create = "CREATE NETWORK POLICY p ALLOWED_IP_LIST = ('203.0.113.0/24')"
    with pytest.raises(ProgrammingError, match="Insufficient privileges"):
        run(create, "SYSADMIN")
    run(create)
    for statement in ("DROP NETWORK POLICY p", "ALTER NETWORK POLICY p SET COMMENT = 'x'"):
        with pytest.raises(ProgrammingError, match="Insufficient privileges"):
            run(statement, "SYSADMIN")


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
        self.session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    @contextmanager
    def snowflake(self) -> Iterator[Emulated]:
        yield self

    def run(self, statement: str, role: str) -> list[dict[str, str]]:
        self.session.context.role = role
        found = self.session.execute(statement).payload
        names = [column["name"].lower() for column in found["rowtype"]]
        return [dict(zip(names, row, strict=True)) for row in found["rowset"]]

    def find(self, statement: str, role: str) -> list[dict[str, str]] | None:
        try:
            return self.run(statement, role)
        except ProgrammingError:
            return None


def test_deploy_creates_changes_and_deletes_the_policy(account: Account, run: Run) -> None:
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


def test_policies_of_others_are_not_taken_for_ours(account: Account, run: Run) -> None:
    """Of the account, or set by an operator: deploy neither plans to delete nor waits for them."""
    context = cast("Any", Emulated(account))
    attached = UserPolicy("key2", "MY_POLICY of U", user="U", policy="MY_POLICY")
    for name in ("everywhere", "my_policy", "another"):
        run(f"CREATE NETWORK POLICY {name} ALLOWED_IP_LIST = ('203.0.113.0/24')")
    run("ALTER ACCOUNT SET NETWORK_POLICY = everywhere")
    assert attached.find(context) is None
    run("ALTER USER u SET NETWORK_POLICY = another")
    assert attached.find(context) is None
    attached.create(context)
    assert attached.find(context) is not None
