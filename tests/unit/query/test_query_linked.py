"""Names of topics in queries for a catalog-linked database."""

from __future__ import annotations

import pytest

from topicberg.catalogs.snowflake.names import TablePath
from topicberg.query.namespaces import qualify

TRADES = 'L."lkc"."stock_trades"'


def find(name: str) -> TablePath | None:
    if name != "STOCK_TRADES":
        return None
    return TablePath("L", "lkc", "stock_trades", is_linked=True)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM stock_trades", 'SELECT * FROM {} AS "STOCK_TRADES"'),
        ("select count(*) from Stock_Trades t", "select count(*) from {} t"),
        ('SELECT 1 FROM "STOCK_TRADES"', 'SELECT 1 FROM {} AS "STOCK_TRADES"'),
        ('SELECT 1 FROM "stock_trades"', 'SELECT 1 FROM "stock_trades"'),
        ("SELECT 1 FROM s.stock_trades", "SELECT 1 FROM s.stock_trades"),
        ("SELECT 'stock_trades' FROM totals", "SELECT 'stock_trades' FROM totals"),
        (
            "SELECT a.x FROM stock_trades a JOIN stock_trades b ON a.x = b.x -- stock_trades",
            "SELECT a.x FROM {} a JOIN {} b ON a.x = b.x -- stock_trades",
        ),
        (
            "WITH stock_trades AS (SELECT 1) SELECT * FROM stock_trades",
            "WITH stock_trades AS (SELECT 1) SELECT * FROM stock_trades",
        ),
        ("SHOW TABLES", "SHOW TABLES"),
    ],
)
def test_names_of_topics_are_qualified(sql: str, expected: str) -> None:
    assert qualify(sql, find) == expected.replace("{}", TRADES.replace("L.", '"L".'))
