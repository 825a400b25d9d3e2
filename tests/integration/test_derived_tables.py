"""The tables derived from trades, users and airlines equal a reference in plain Python."""

from __future__ import annotations

import math
import re
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from found_topics import AVRO_TOPIC
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from assets.pipelines.airline import (
    FLIGHT_COLUMNS,
    Consolidation,
    flight,
    flyer_stats,
    flyer_totals,
)
from assets.pipelines.stock_trades import (
    AnomalyRules,
    flagged_stock_trades,
    stock_total_trades,
    stock_trades_with_totals,
)
from assets.pipelines.users import TRADE_COLUMNS
from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.iceberg import summaries
from topicberg.kafka import topics as kafka
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import run_once
from topicberg.tableflow.service.history import history_table, ingest_history
from topicberg.tableflow.values import skips
from topicberg.testing import rows, topic_frame
from topicberg.topics import load_topic
from topicberg_local.datagen.producer import avro_encoder

pytestmark = [pytest.mark.integration]

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

few = examples(max_examples=6)
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


USERS = st.sampled_from(["User_1", "User_2", None])


def reference(trades: list[Row], users: list[Row]) -> list[Row]:
    found = []
    for trade in trades:
        known = [
            user
            for user in users
            if user["userid"] == trade["userid"] is not None
            and user["$$timestamp"] <= trade["$$timestamp"]
        ]
        user = max(known, key=lambda u: (u["$$timestamp"], u["$$offset"]), default={})
        found.append(
            {
                "trade_timestamp": trade["$$timestamp"],
                **{column: trade.get(column) for column in TRADE_COLUMNS},
                "regionid": user.get("regionid"),
                "gender": user.get("gender"),
                "user_valid_from": user.get("$$timestamp"),
            }
        )
    return found


def test_the_history_has_every_record(stack: Endpoints, spark: SparkSession) -> None:
    """Those that an upsert replaced, those of one batch, and tombstones; each once."""
    name = f"users{uuid.uuid4().hex[:8]}"
    spec = load_topic("sample_data_users").model_copy(update={"name": name, "partitions": 1})
    ensured = kafka.ensure_topic(spec, stack)
    encode = avro_encoder(spec.schema_path("value").read_text(), ensured.value_schema_id or 0)

    def send(*regions: str | None) -> None:
        producer = Producer(stack.kafka_config())
        for region in regions:
            user = {"registertime": 1, "userid": "u", "regionid": region, "gender": "OTHER"}
            producer.produce(name, encode(user) if region else None, b"u")
        assert producer.flush(30) == 0

    def history() -> list[tuple[int, str | None, str]]:
        found = ingest_history(spec, stack, settings()).scan().to_arrow().to_pylist()
        return sorted((row["$$offset"], row["regionid"], row["key"]) for row in found)

    send("a", "b")
    assert history() == [(0, "a", "u"), (1, "b", "u")]
    send(None, "c")
    run_once(spec, stack, settings())
    for _ in range(2):
        assert history() == [(0, "a", "u"), (1, "b", "u"), (2, None, "u"), (3, "c", "u")]
    newest = stack.catalog(settings()).load_table(spec.table_identifier()).scan().to_arrow()
    assert newest["regionid"].to_pylist() == ["c"]
    producer = Producer(stack.kafka_config())
    producer.produce(name, b"\x01this is no record", b"u")
    assert producer.flush(30) == 0
    send("d")
    with pytest.raises(TableflowError, match="offset 4"):
        history()
    broken = stack.catalog(settings()).load_table(spec.table_identifier())
    assert skips.request(broken, stack, name, (0, 4), "a test")  # as `tableflow skip` does
    for _ in range(2):
        assert [offset for offset, *_ in history()] == [0, 1, 2, 3, 5]
    producer.produce(name, b"\x01nor is this", b"u")
    assert producer.flush(30) == 0
    send("e")
    logs = {"error_handling": {"mode": "LOG"}}
    control.enable(settings(), name, logs, "upsert", discovered=AVRO_TOPIC)
    try:  # what was asked for since holds for it as well; the dead letters are the topic's own
        assert [offset for offset, *_ in history()] == [0, 1, 2, 3, 5, 7]
        table = stack.catalog(settings()).load_table(history_table(spec))
        assert table.properties[summaries.ROWS_SKIPPED] == "2"
    finally:
        control.disable(settings(), name)


MORNING = datetime(2026, 3, 1, 10, tzinfo=UTC)

times = (
    st.integers(-3000, 3000).map(
        lambda minutes: (MORNING + timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M:%S")
    )
    | st.none()
    | st.sampled_from(["", "2026-02-30 10:00:00", "2026-03-01T10:00:00", "2026-3-1 10:00:00", "x"])
)
BOOKINGS = st.lists(
    st.fixed_dictionaries(
        {
            "$$timestamp": st.integers(0, 400).map(lambda s: MORNING + timedelta(seconds=s)),
            "email_address": st.sampled_from(["A@email.com", "B@email.com", None]),
            "departure_time": times,
            "arrival_time": times,
            "departure_airport_code": st.sampled_from(["ATL", None]),
            "arrival_airport_code": st.sampled_from(["DFW", None]),
            "flight_number": st.sampled_from(["SUN1", None]),
            "confirmation_code": st.sampled_from(["SUNABCDEF", None]),
        }
    ),
    max_size=150,
)


def parsed(text: str | None) -> datetime | None:
    if text is None or not re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def reference_flights(bookings: list[Row], airline: str, as_of: datetime | None) -> list[Row]:
    return [
        {
            "booked_at": booking["$$timestamp"],
            **{column: booking[column] for column in FLIGHT_COLUMNS},
            "airline": airline,
        }
        for booking in bookings
        if (arrival := parsed(booking["arrival_time"]))
        and arrival > (as_of or booking["$$timestamp"])
    ]


def reference_stats(flights: list[Row]) -> list[Row]:
    windows: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    for each in flights:
        departure, arrival = parsed(each["departure_time"]), parsed(each["arrival_time"])
        if each["email_address"] is not None and departure and arrival:
            minute = each["booked_at"].replace(second=0, microsecond=0)
            minutes = int((arrival - departure).total_seconds() / 60)
            windows[minute, each["email_address"]].append(minutes)
    return [
        {
            "window_start": start,
            "window_end": start + timedelta(minutes=1),
            "email_address": email,
            "total_flight_duration": sum(minutes),
            "number_of_flights": len(minutes),
        }
        for (start, email), minutes in windows.items()
    ]


def reference_flyer_totals(stats: list[Row]) -> list[Row]:
    """A reducer with state, as the kickstarter's: it never forgets what it has seen of a flyer."""
    state: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    found = []
    for window in sorted(stats, key=lambda row: row["window_start"]):
        duration, flights = state[window["email_address"]]
        state[window["email_address"]] = (
            duration + window["total_flight_duration"],
            flights + window["number_of_flights"],
        )
        names = ("total_flight_duration", "number_of_flights")
        found.append(window | dict(zip(names, state[window["email_address"]], strict=True)))
    return found


@few
@given(sunset=BOOKINGS, skyone=BOOKINGS, as_of=st.none() | st.just(MORNING + timedelta(hours=1)))
def test_every_airline_table(
    spark: SparkSession, sunset: list[Row], skyone: list[Row], as_of: datetime | None
) -> None:
    flights = flight.transform(
        topic_frame(spark, "airline.sunset", sunset),
        topic_frame(spark, "airline.skyone", skyone),
        parameters=Consolidation(as_of=as_of),
    )
    stats, expected = flyer_stats.transform(flights), reference_flights(sunset, "Sunset", as_of)
    expected += reference_flights(skyone, "SkyOne", as_of)
    assert ordered(rows(flights)) == ordered(expected)
    assert ordered(rows(stats)) == ordered(reference_stats(expected))
    totals = reference_flyer_totals(reference_stats(expected))
    assert ordered(rows(flyer_totals.transform(stats))) == ordered(totals)
