"""Errors of the three engines, and what to do about them; their texts are the engines' own."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

from topicberg.query import Engine, QueryError, check_reads, commits_since
from topicberg.query.help import hint

KNOWN = {
    "orders": [
        *("price", "$$offset", "ship-to"),
        *("target", "target.city", "target.street-no", "scans.element.cit"),
    ],
    "airline.skyone": [],
}


def test_hint_quotes_a_column_with_a_reserved_name() -> None:
    text = 'Binder Error: Could not find key "cty" in struct'
    found = hint(text, "duckdb", lambda: {"parcels": ["to", "to.city"]})
    assert found == 'did you mean the column "to".city?'
    duckdb.sql("""SELECT "to".city FROM (SELECT {'city': 'Ulm'} AS "to")""")
    with pytest.raises(duckdb.Error):
        duckdb.sql("""SELECT to.city FROM (SELECT {'city': 'Ulm'} AS "to")""")


@pytest.mark.parametrize(
    ("engine", "text", "expected"),
    [
        (
            "spark",
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordrs` cannot be found. Verify the",
            "did you mean the table orders?",
        ),
        (
            "spark",
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `airline`.`skyone` cannot be found.",
            "did you mean the table `airline.skyone`?",
        ),
        (
            "spark",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `offset` cannot be resolved.",
            "did you mean the column `$$offset`?",
        ),
        (
            "snowflake",
            "002003 (42S02): SQL compilation error:\nObject 'ORDRS' does not exist or not",
            "did you mean the table ORDERS?",
        ),
        (
            "snowflake",
            "002003 (42S02): SQL compilation error:\nObject 'L.P.SKYONE' does not exist or not",
            "did you mean the table AIRLINE_SKYONE?",
        ),
        (
            "snowflake",
            "002003 (42S02): SQL compilation error:\nObject 'L.P.ORDERS' does not exist or not",
            "run `topicberg sync orders`, or materialize snowflake/orders: the table is not "
            "registered in Snowflake yet",
        ),
        (
            "snowflake",
            "000904 (42000): SQL compilation error: error line 1\ninvalid identifier 'PRICE'",
            "run `topicberg sync orders`: the Iceberg table orders has this column, and Snowflake "
            "reads an older state of it",
        ),
        (
            "snowflake",
            "000904 (42000): SQL compilation error: error line 1\ninvalid identifier 'SHIP_TO'",
            'did you mean the column "ship-to"?',
        ),
        (
            "snowflake",
            "090105 (22000): Cannot perform SELECT. This session does not have a current database.",
            "materialize a snowflake/… asset first: it creates the database and the tables",
        ),
        (
            "duckdb",
            'Binder Error: Could not find key "cty" in struct',
            "did you mean the column target.city?",
        ),
        (
            "duckdb",
            'Binder Error: Referenced column "cty" not found in FROM clause!',
            "did you mean the column target.city?",
        ),
        (
            "spark",
            "[UNRESOLVED_COLUMN] A column with name `street_no` cannot be resolved.",
            "did you mean the column target.`street-no`?",
        ),
        ("duckdb", "Parser Error: syntax error", None),
        (
            "snowflake",
            "002003 (42S02): SQL compilation error:\nObject 'AIRLINE_SKYONE' does not exist or not",
            "run `topicberg sync airline_skyone`, or materialize snowflake/airline_skyone: the "
            "table is not registered in Snowflake yet",
        ),
        (
            "spark",
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `elsewhere`.`Orders` cannot be found.",
            "write Orders without what stands before it, if anything does: the catalog has a "
            "table of this name",
        ),
        (
            "duckdb",
            'Binder Error: Referenced column "PRICE" not found in FROM clause!',
            "check which table the column is taken from: orders has it",
        ),
    ],
)
def test_hint_of_an_engine_names_what_is_similar(
    engine: Engine, text: str, expected: str | None
) -> None:
    assert hint(text, engine, lambda: KNOWN) == expected


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        (0, "check which table the column is taken from: orders has it"),
        (1, "Snowflake reads a state that is 1 commit older"),
        (12, "Snowflake reads a state that is 12 commits older"),
        (None, "Snowflake reads an older state of it"),
    ],
)
def test_hint_of_a_column_that_snowflake_lacks_says_by_how_much_it_is_stale(
    commits: int | None, expected: str
) -> None:
    asked = []

    def behind(table: str) -> int | None:
        asked.append(table)
        return commits

    found = hint("invalid identifier 'PRICE'", "snowflake", lambda: KNOWN, behind)
    assert (found or "").endswith(expected)
    assert asked == ["orders"]


@given(
    st.sampled_from(["duckdb", "spark", "snowflake"]),
    st.sampled_from(["orders", "price", "$$offset", "ship-to", "target"]),
)
def test_hint_never_suggests_the_name_that_was_given(engine: str, name: str) -> None:
    for text in (
        f"Table with name {name} does not exist",
        f"table or view `{name}` cannot be found",
        f"Object '{name.upper()}' does not exist",
        f'column "{name}" not found',
        f"invalid identifier '{name.upper()}'",
    ):
        shown = hint(text, engine, lambda: KNOWN) or ""
        assert not re.search(rf"did you mean the \w+ \W?{re.escape(name)}\W?\?", shown, re.I), shown


def test_commits_since_counts_the_states_after_one(tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri="sqlite://", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", pa.schema([("a", pa.int64())]))
    locations = [table.metadata_location]
    for number in range(4):
        if number % 2:
            with table.update_schema() as update:
                update.add_column(f"c{number}", LongType())
        else:
            table.append(pa.table({name: [number] for name in table.schema().column_names}))
        locations.append(table.metadata_location)
    assert [commits_since(table, location) for location in locations] == [4, 3, 2, 1, 0]
    assert commits_since(table, "file:///elsewhere/v1.metadata.json") is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM ordrs", "did you mean the table orders?"),
        ("SELECT 1 FROM airline.skyone", 'did you mean the table "airline.skyone"?'),
        ('SELECT "offset" FROM orders', 'did you mean the column "$$offset"?'),
    ],
)
def test_hint_of_duckdb_names_what_is_similar(sql: str, expected: str) -> None:
    with duckdb.connect() as connection:
        connection.execute('CREATE TABLE orders (price INT, "$$offset" INT, "ship-to" TEXT)')
        with pytest.raises(duckdb.Error) as raised:
            connection.sql(sql).fetchall()
    assert hint(str(raised.value), "duckdb", lambda: KNOWN) == expected


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("duckdb", 'write "$$offset"'),
        ("spark", "write `$$offset`"),
        ("snowflake", 'write "$$offset"'),
    ],
)
def test_name_with_dollars_is_shown_quoted(engine: Engine, expected: str) -> None:
    with pytest.raises(QueryError) as raised:
        check_reads("SELECT $$offset, price FROM orders", engine)
    assert raised.value.hint == expected
