"""The topics' tables in Snowflake: whether they follow their catalog, and what makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from topicberg.catalogs.snowflake.names import SnowflakeNames
from topicberg.settings import Settings
from topicberg.topics import load_topic
from topicberg_deploy.resource import Live
from topicberg_deploy.snowflake.tables import IcebergTable, LinkedTable
from topicberg_deploy.snowflake_account import SnowflakeSession


class Account:
    """A context whose Snowflake has one table, in this state of automated refresh."""

    config = Settings(prefix="demo", cluster_id="lkc-1")
    seen = config

    def __init__(self, state: str) -> None:
        self.status = json.dumps({"executionState": state}) if state else ""
        self.sent: list[str] = []

    @property
    def snowflake(self) -> Account:
        return self

    @contextmanager
    def session(self) -> Iterator[Account]:
        yield self

    def run(self, statement: str, _role: str) -> list[dict[str, Any]]:
        if not statement.startswith("SHOW"):
            self.sent.append(statement.rpartition('" ')[2] or statement)
            return []
        columns = ("catalog_name", "external_volume_name", "catalog_namespace")
        row = dict.fromkeys((*columns, "catalog_table_name"), "")
        names = ("stock_trades", "STOCK_TRADES")
        return [row | {"name": name, "auto_refresh_status": self.status} for name in names]


def found(kind: type[IcebergTable], account: Account) -> tuple[IcebergTable, Live]:
    table = kind("key", "STOCK_TRADES", spec=load_topic("stock_trades"))
    live = table.find(cast("Any", account))
    assert live is not None
    return table, live


@pytest.mark.parametrize(
    ("state", "created_follows", "linked_follows"),
    [
        ("RUNNING", True, True),
        ("STALLED", True, True),
        ("", False, True),
        ("STOPPED", False, False),
        ("ICEBERG_TABLE_NOT_INITIALIZED", False, False),
    ],
)
def test_table_follows_by_its_state(
    state: str, created_follows: bool, linked_follows: bool
) -> None:
    """A table of a linked database is refreshed by default, and may have no state."""
    for kind, follows in ((IcebergTable, created_follows), (LinkedTable, linked_follows)):
        _, live = found(kind, Account(state))
        assert live.fields["auto_refresh"] is follows, kind


@pytest.mark.parametrize("kind", [IcebergTable, LinkedTable])
def test_stopped_table_is_refreshed_before_it_follows_again(kind: type[IcebergTable]) -> None:
    account = Account("STOPPED")
    table, live = found(kind, account)
    table.update(cast("Any", account), live, {"auto_refresh": (False, True)})
    assert [one for one in account.sent if not one.startswith("USE WAREHOUSE")] == [
        "SET AUTO_REFRESH = FALSE",
        "REFRESH",
        "SET AUTO_REFRESH = TRUE",
    ]
    account = Account("ICEBERG_TABLE_NOT_INITIALIZED")
    table, live = found(kind, account)
    table.update(cast("Any", account), live, {"auto_refresh": (False, True)})
    assert account.sent == ["SET AUTO_REFRESH = TRUE"]


def test_delete_never_drops_in_the_linked_database() -> None:
    """There, Snowflake would drop the table in the catalog, too."""
    account = Account("RUNNING")
    table, live = found(LinkedTable, account)
    table.delete(cast("Any", account), live)
    linked = SnowflakeNames.of(account.config).linked_database
    assert account.sent
    assert not [statement for statement in account.sent if linked in statement]


def test_session_takes_only_the_role_that_the_settings_name() -> None:
    """The identity that plans has no other."""

    class Connection:
        description = ()

        def __init__(self) -> None:
            self.sent: list[str] = []

        def cursor(self) -> Connection:
            return self

        def execute(self, statement: str) -> None:
            self.sent.append(statement)

        def fetchall(self) -> list[Any]:
            return []

    for only_role, taken in ((None, ["ACCOUNTADMIN", "SYSADMIN"]), ("PLANNER", ["PLANNER"])):
        connection = Connection()
        session = SnowflakeSession(cast("Any", connection), only_role=only_role)
        session.run("SHOW EXTERNAL VOLUMES", "ACCOUNTADMIN")
        session.run("SHOW WAREHOUSES", "SYSADMIN")
        assert [one for one in connection.sent if one.startswith("USE")] == [
            f"USE ROLE {role}" for role in taken
        ]
