"""Statements for Snowflake: names are quoted, values escaped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from topicberg.catalogs import snowflake
from topicberg.errors import TopicbergError
from topicberg.settings import Settings

CONFIG = Settings(prefix="demo", cluster_id="lkc-1")
LOGIN = snowflake.RestLogin("https://c", "c", "id", SecretStr("s"), "scope")


@given(st.text(min_size=1))
def test_a_name_cannot_leave_its_quotes(name: str) -> None:
    quoted = snowflake.quote(name)
    assert quoted[1:-1].replace('""', "").count('"') == 0
    assert quoted[1:-1].replace('""', '"') == name


@given(st.text())
def test_a_value_cannot_leave_its_quotes(value: str) -> None:
    inside = snowflake.text(value)[1:-1]
    assert inside.replace("\\\\", "").replace("''", "").count("'") == 0
    assert inside.replace("''", "'").replace("\\\\", "\\") == value


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        (
            snowflake.create_volume(CONFIG),
            ['IF NOT EXISTS "DEMO_VOLUME"', "'s3://demo/'", "ALLOW_WRITES = FALSE"],
        ),
        (
            snowflake.create_volume(CONFIG, derived=True),
            ['IF NOT EXISTS "DEMO_DERIVED_VOLUME"', "'s3://demo-derived/'"],
        ),
        (
            snowflake.create_integration(CONFIG),
            ["CATALOG_SOURCE = GLUE", "CATALOG_NAMESPACE = 'lkc-1'", "ENABLED = TRUE"],
        ),
        (
            snowflake.create_table(snowflake.Names.of(CONFIG), "T", "db", "t"),
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
        snowflake.create_integration(config, linked=linked),
        snowflake.create_rest_integration(config, LOGIN, linked=linked),
        snowflake.set_polling(config, "CI"),
    ):
        assert "REFRESH_INTERVAL_SECONDS = 600 ENABLED = TRUE" in statement


@pytest.mark.parametrize("seconds", [29, 86401])
def test_interval_that_snowflake_refuses_is_no_setting(seconds: int) -> None:
    with pytest.raises(TopicbergError, match="TOPICBERG_SNOWFLAKE_REFRESH_SECONDS"):
        Settings(snowflake_refresh_seconds=seconds)


def test_nothing_that_is_there_is_made_anew() -> None:
    """A new volume or integration has another external id, and the trust in it is gone."""
    names = snowflake.Names.of(CONFIG)
    made = [*snowflake.bootstrap(CONFIG), snowflake.create_table(names, "T", "db", "t")]
    for statement in made:
        assert "OR REPLACE" not in statement
        if not statement.startswith("USE ROLE"):
            assert "IF NOT EXISTS" in statement
    assert "STORAGE_AWS_EXTERNAL_ID = 'demo'" in snowflake.create_volume(CONFIG)
    assert "AUTO_REFRESH = TRUE" in snowflake.create_table(names, "T", "db", "t", auto_refresh=True)
