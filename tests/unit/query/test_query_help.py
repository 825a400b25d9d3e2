"""Errors of the three engines, and what to do about them; their texts are the engines' own."""

from __future__ import annotations

import duckdb
import pytest

from topicberg.query import Engine, QueryError, check_reads
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
            "ORDERS is not registered in Snowflake yet: run `topicberg sync TABLE`, or materialize "
            "its asset snowflake/…",
        ),
        (
            "snowflake",
            "000904 (42000): SQL compilation error: error line 1\ninvalid identifier 'PRICE'",
            "the Iceberg table has this column, and Snowflake reads an older state of it: run "
            "`topicberg sync TABLE`; `topicberg checks TABLE` says how old it is",
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
    ],
)
def test_hint_of_an_engine_names_what_is_similar(
    engine: Engine, text: str, expected: str | None
) -> None:
    assert hint(text, engine, lambda: KNOWN) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM ordrs", "did you mean the table orders?"),
        ("SELECT 1 FROM skyone", 'did you mean the table "airline.skyone"?'),
        ("SELECT 1 FROM airline.skyone", 'did you mean the table "airline.skyone"?'),
        ('SELECT "offset" FROM orders', 'did you mean the column "$$offset"?'),
        ("SELECT prize FROM orders", "did you mean the column price?"),
        (
            "SELECT xyz FROM orders",
            'choose one of the columns "$$offset", price, "ship-to", target',
        ),
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
