"""Names of tables are those of one deployment, also for a catalog-linked database."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from topicberg.catalogs.snowflake.names import TablePath
from topicberg.errors import TopicbergError
from topicberg.orchestration.resources.tables import Tables
from topicberg.query import _mentioned_elsewhere, own_namespaces, own_tables, qualify
from topicberg.settings import Settings
from topicberg.topics import load_topic

CONFIG = Settings(prefix="demo", cluster_id="lkc-1")
OURS = load_topic("stock_trades").namespace(CONFIG)
OTHERS = load_topic("stock_trades").namespace(Settings(prefix="acme"))


@pytest.fixture
def shared(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    """A catalog of two deployments whose pipelines have derived tables of the same name."""
    for namespace, *names in (
        ("lkc-1", "stock_trades", "shop.orders"),
        (OURS, "large_trades", "stock_trades"),
        (OTHERS, "large_trades", "their_trades"),
    ):
        catalog.create_namespace(namespace)
        for name in names:
            catalog.create_table((namespace, name), Schema(NestedField(1, "n", LongType())))
    monkeypatch.setattr(Tables, "catalog", property(lambda _: catalog))
    monkeypatch.setattr(Tables, "config", property(lambda _: CONFIG))
    return catalog


def test_own_namespaces_topics_first_then_pipelines() -> None:
    first, *pipelines = own_namespaces(CONFIG)
    assert first == "lkc-1"
    assert OURS in pipelines
    assert all(name.startswith("demo_") for name in pipelines)


def test_own_tables_have_none_of_another_deployment(shared: SqlCatalog) -> None:
    assert own_tables(shared, CONFIG) == [
        ("lkc-1", "shop.orders"),
        ("lkc-1", "stock_trades"),
        (OURS, "large_trades"),
        (OURS, "stock_trades"),
    ]


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("large_trades", (OURS, "large_trades")),
        ("stock_trades", ("lkc-1", "stock_trades")),
        ("shop.orders", ("lkc-1", "shop.orders")),
        (f"{OTHERS}.large_trades", (OTHERS, "large_trades")),
    ],
)
def test_identifier_is_that_of_the_deployment(name: str, identifier: tuple[str, str]) -> None:
    assert Tables().identifier(name) == identifier


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", ["their_trades", "shop.order", f"{OTHERS}.x", ".x", "x."])
def test_identifier_of_no_table_of_the_deployment_is_refused(name: str) -> None:
    with pytest.raises(TopicbergError, match="cannot be read: it does not exist"):
        Tables().identifier(name)


def test_spark_has_views_of_the_deployments_tables_only(shared: SqlCatalog) -> None:
    class At:
        def catalog(self, _: Settings) -> SqlCatalog:
            return shared

    sql = "SELECT * FROM large_trades, their_trades, stock_trades"
    assert _mentioned_elsewhere(sql, cast(Any, At()), CONFIG) == [(OURS, "large_trades")]


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
