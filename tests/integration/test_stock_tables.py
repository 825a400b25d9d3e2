"""The tables derived from stock trades equal a reference in plain Python, for any input."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from assets.pipelines.stock_trades import (
    AnomalyRules,
    flagged_stock_trades,
    stock_total_trades,
    stock_trades_with_totals,
)
from topicberg.testing import rows, topic_frame

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
INT = st.integers(-(2**31), 2**31 - 1)
TRADES = st.lists(
    st.fixed_dictionaries(
        {
            "$$timestamp": st.integers(0, 20).map(lambda ms: START + timedelta(milliseconds=ms)),
            "side": st.sampled_from(["BUY", "SELL", None]),
            "symbol": st.sampled_from(["ZVV", "", "ZBZX", None]),
            "userid": st.sampled_from(["User_1", "User_2", None]),
            "account": st.sampled_from(["ABC123", None]),
            "quantity": st.none() | INT,
            "price": st.none() | INT,
        }
    ),
    max_size=400,
)
"""Few times, users and symbols, so that there are duplicates and ties; any integers, and nulls."""

few = examples(max_examples=6, suppress_health_check=list(HealthCheck))
"""Each example is a Spark job of many rows."""


def ordered(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: repr(sorted(row.items())))


def total(trade: Row) -> int | None:
    if trade["quantity"] is None or trade["price"] is None:
        return None
    return int(trade["quantity"] * trade["price"])


def reference_with_totals(trades: list[Row]) -> list[Row]:
    kept = ("userid", "side", "symbol", "quantity", "price")
    return [
        {
            "trade_timestamp": trade["$$timestamp"],
            **{name: trade[name] for name in kept},
            "total_price": total(trade),
        }
        for trade in trades
    ]


def reference_totals(trades: list[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for trade in trades:
        key = (trade["$$timestamp"], trade["userid"], trade["side"], trade["symbol"])
        price = total(trade)
        groups[key] += [] if price is None else [price]
    names = ("trade_timestamp", "userid", "side", "symbol")
    return [
        {**dict(zip(names, key, strict=True)), "total_price": Decimal(sum(all_)) if all_ else None}
        for key, all_ in groups.items()
    ]


@few
@given(trades=TRADES)
def test_a_row_per_trade(spark: SparkSession, trades: list[Row]) -> None:
    found = rows(stock_trades_with_totals.transform(topic_frame(spark, "stock_trades", trades)))
    assert ordered(found) == ordered(reference_with_totals(trades))


@few
@given(trades=TRADES)
def test_sums_of_totals(spark: SparkSession, trades: list[Row]) -> None:
    found = rows(stock_total_trades.transform(topic_frame(spark, "stock_trades", trades)))
    assert ordered(found) == ordered(reference_totals(trades))


def test_sums_beyond_64_bits(spark: SparkSession) -> None:
    most = {"$$timestamp": START, "quantity": 2**31 - 1, "price": 2**31 - 1}
    found = rows(stock_total_trades.transform(topic_frame(spark, "stock_trades", [most] * 5)))
    assert found[0]["total_price"] == 5 * (2**31 - 1) ** 2 > 2**64


RULES = AnomalyRules(
    window_minutes=1, min_trades=2, z_score=1.5, large_quantity=40, unusual_price=9
)
PRICED = st.lists(
    st.fixed_dictionaries(
        {
            "$$timestamp": st.integers(0, 40).map(lambda n: START + timedelta(seconds=10 * n)),
            "side": st.just("BUY"),
            "symbol": st.sampled_from(["ZVV", "ZBZX", None]),
            "userid": st.just("User_1"),
            "account": st.just("ABC123"),
            "quantity": st.none() | st.integers(38, 42),
            "price": st.none() | st.integers(-1, 11) | st.just(2**31 - 1),
        }
    ),
    max_size=150,
)


def reference_flag(trade: Row, rules: AnomalyRules) -> str:
    price, quantity = trade["price"], trade["quantity"]
    if price is not None and price < 0:
        return "NEGATIVE_PRICE"
    if quantity is not None and quantity > rules.large_quantity:
        return "LARGE_TRADE"
    if price is not None and price > rules.unusual_price:
        return "UNUSUAL_PRICE"
    return "NORMAL"


def reference_flagged(trades: list[Row], rules: AnomalyRules) -> list[Row]:
    found = []
    for trade in trades:
        now = trade["$$timestamp"]
        prices = [
            other["price"]
            for other in trades
            if other["symbol"] == trade["symbol"]
            and now - rules.window <= other["$$timestamp"] < now
            and other["price"] is not None
        ]
        average = deviation = score = None
        if (n := len(prices)) >= rules.min_trades:
            average = sum(prices) / n
            spread = n * sum(price * price for price in prices) - sum(prices) ** 2
            deviation = math.sqrt(float(spread) / float(n * (n - 1)))
            if deviation and trade["price"] is not None:
                score = (trade["price"] - average) / deviation
        kept = ("side", "quantity", "symbol", "price", "account", "userid")
        found.append(
            {
                "trade_timestamp": now,
                **{name: trade[name] for name in kept},
                "anomaly_flag": reference_flag(trade, rules),
                "moving_average": average,
                "moving_stddev": deviation,
                "z_score": score,
                "unusual_for_symbol": score is not None and abs(score) > rules.z_score,
            }
        )
    return found


@few
@given(trades=PRICED)
def test_flags_and_scores(spark: SparkSession, trades: list[Row]) -> None:
    frame = topic_frame(spark, "stock_trades", trades)
    found = rows(flagged_stock_trades.transform(frame, parameters=RULES))
    assert ordered(found) == ordered(reference_flagged(trades, RULES))
