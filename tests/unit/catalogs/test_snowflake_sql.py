"""Statements for Snowflake: names are quoted, values escaped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from snowflake.connector.errors import ProgrammingError

from topicberg.catalogs.snowflake.names import SnowflakeNames, TablePath, quote, text
from topicberg.catalogs.snowflake.statements import (
    bootstrap,
    create_integration,
    create_linked_database,
    create_table,
    create_volume,
)
from topicberg.catalogs.snowflake.tables import read_back, sync
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.snowflake.integrations import RestLogin, create_rest_integration, set_polling

CONFIG = Settings(prefix="demo", cluster_id="lkc-1")
LOGIN = RestLogin("https://c", "c", "id", SecretStr("s"), "scope")


@given(st.text(min_size=1))
def test_names_and_values_cannot_leave_their_quotes(given: str) -> None:
    name, value = quote(given)[1:-1], text(given)[1:-1]
    assert (name.replace('""', "").count('"'), name.replace('""', '"')) == (0, given)
    assert value.replace("\\\\", "").replace("''", "").count("'") == 0
    assert value.replace("''", "'").replace("\\\\", "\\") == given


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        (
            create_volume(CONFIG, if_missing=True),
            ['IF NOT EXISTS "DEMO_VOLUME"', "'s3://demo/'", "ALLOW_WRITES = FALSE"],
        ),
        (
            create_volume(CONFIG, derived=True),
            ['CREATE EXTERNAL VOLUME "DEMO_DERIVED_VOLUME"', "'s3://demo-derived/'"],
        ),
        (
            create_integration(CONFIG),
            ["CATALOG_SOURCE = GLUE", "CATALOG_NAMESPACE = 'lkc-1'", "ENABLED = TRUE"],
        ),
        (
            create_linked_database(CONFIG),
            ["ALLOWED_NAMESPACES = ('lkc-1')", "CATALOG_CASE_SENSITIVITY = CASE_INSENSITIVE"],
        ),
        (
            create_linked_database(CONFIG.model_copy(update={"snowflake_catalog": "open_catalog"})),
            ["CATALOG_CASE_SENSITIVITY = CASE_SENSITIVE"],
        ),
        (
            create_table(SnowflakeNames.of(CONFIG), "T", "db", "t"),
            ['"DEMO_DATABASE"."DEMO_SCHEMA"."T"', "CATALOG_NAMESPACE = 'db'"],
        ),
    ],
)  # fmt: skip
def test_statements(statement: str, parts: list[str]) -> None:
    for part in parts:
        assert part in statement


@pytest.mark.parametrize("linked", [False, True])
def test_every_integration_polls_at_the_interval_of_the_settings(linked: bool) -> None:
    """At once: a plan right after the first `create` finds no difference."""
    config = Settings(prefix="demo", cluster_id="lkc-1", snowflake_refresh_seconds=600)
    for statement in (
        create_integration(config, linked=linked),
        create_rest_integration(config, LOGIN, linked=linked),
        set_polling(config, "CI"),
    ):
        assert "REFRESH_INTERVAL_SECONDS = 600 ENABLED = TRUE" in statement


@pytest.mark.parametrize("seconds", [29, 86401])
def test_interval_that_snowflake_refuses_is_no_setting(seconds: int) -> None:
    with pytest.raises(TopicbergError, match="TOPICBERG_SNOWFLAKE_REFRESH_SECONDS"):
        Settings(snowflake_refresh_seconds=seconds)


def test_nothing_that_is_there_is_made_anew() -> None:
    """A new volume or integration has another external id, and the trust in it is gone."""
    names = SnowflakeNames.of(CONFIG)
    for statement in [*bootstrap(CONFIG), create_table(names, "T", "db", "t", if_missing=True)]:
        assert "OR REPLACE" not in statement
        if not statement.startswith("USE ROLE"):
            assert "IF NOT EXISTS" in statement
    assert "STORAGE_AWS_EXTERNAL_ID = 'demo'" in create_volume(CONFIG)
    assert "AUTO_REFRESH = TRUE" in create_table(names, "T", "db", "t", auto_refresh=True)


class Refreshed:
    """A connection to a table that is refreshed ``left`` times, each time before its rows count."""

    def __init__(self, left: int) -> None:
        self.left, self.state = left, 0
        self.description: list[Any] = []
        self.found: list[tuple[Any, ...]] = []

    def cursor(self) -> Refreshed:
        return self

    def execute(self, statement: str) -> None:
        names, self.found = ["value"], [(self.state,)]
        if statement.startswith("SHOW"):
            names, self.found = ["name", "external_volume_name"], [("T", "v")]
        elif statement.startswith("DESCRIBE"):
            names, self.found = ["name", "type"], [("ID", "NUMBER")]
        elif "INFORMATION" in statement:
            self.found = [(f'{{"metadataLocation": "state {self.state}"}}',)]
        elif self.left:
            self.left, self.state = self.left - 1, self.state + 1
            self.found = [(self.state,)]
        self.description = [SimpleNamespace(name=name) for name in names]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.found


@pytest.mark.parametrize("times", [0, 1, 3])
def test_rows_are_those_of_the_metadata_file(times: int) -> None:
    connection: Any = Refreshed(times)
    seen = read_back(connection, TablePath("D", "S", "T"))
    assert (seen.metadata_location, seen.rows) == (f"state {times}", times)


def test_table_that_is_refreshed_all_the_time_is_read() -> None:
    connection: Any = Refreshed(1000)
    assert read_back(connection, TablePath("D", "S", "T")).rows


class Occupied(Refreshed):
    """A connection to a schema in which a view has the name, or an Iceberg table from now on."""

    def __init__(self, *, is_view: bool) -> None:
        super().__init__(0)
        self.is_view, self.is_created = is_view, False

    def execute(self, statement: str) -> None:
        if statement.startswith("CREATE"):
            self.is_created = not self.is_view
            raise ProgrammingError("Object 'T' already exists.", errno=2002)
        if statement.startswith("ALTER") and not self.is_created:
            raise ProgrammingError("no such table", errno=2003)
        super().execute(statement)
        if statement.startswith("SHOW") and not self.is_created:
            self.found = []


def test_view_in_the_place_of_a_table_is_named_with_the_fix() -> None:
    connection: Any = Occupied(is_view=True)
    with pytest.raises(TopicbergError) as caught:
        sync(connection, CONFIG, "T", ("db", "t"), "s3://lake/t")
    assert "cannot create the Iceberg table" in caught.value.message
    assert "another object has this name" in caught.value.message
    assert "drop or rename the object: SHOW OBJECTS LIKE 'T'" in (caught.value.hint or "")


def test_table_that_another_process_created_first_is_used() -> None:
    connection: Any = Occupied(is_view=False)
    assert sync(connection, CONFIG, "T", ("db", "t"), "s3://lake/t").rows == 0


class Suspended(Refreshed):
    """A connection to a linked database whose discovery is suspended."""

    def execute(self, statement: str) -> None:
        if statement.startswith("ALTER ICEBERG"):
            raise ProgrammingError("no such table", errno=2003)
        super().execute(statement)
        if statement.startswith("SHOW"):
            self.found = []
        elif "LINK_STATUS" in statement:
            self.found = [('{"executionState": "SUSPENDED"}',)]


def test_sync_does_not_wait_for_discovery_that_is_suspended() -> None:
    connection: Any = Suspended(0)
    config = CONFIG.model_copy(update={"snowflake_linked_database": True})
    with pytest.raises(TopicbergError, match=r"discovery of .* is SUSPENDED") as caught:
        sync(connection, config, "T", ("lkc-1", "t"), "s3://lake/t")
    assert "RESUME DISCOVERY, or `topicberg deploy create`" in (caught.value.hint or "")
