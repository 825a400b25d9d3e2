"""An upsert view has the newest record of each key, whatever comes in whatever order."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from topicberg.endpoints import Endpoints
from topicberg.iceberg.summaries import SOURCE_SNAPSHOTS, summary
from topicberg.settings import settings
from topicberg.testing import create_table, rows, topic_frame
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.upsert_view import UpsertView, refresh

pytestmark = [pytest.mark.integration]

Row = dict[str, Any]
START = datetime(2026, 4, 1, tzinfo=UTC)
KEYS = ("email_address", "departure_airport_code", "arrival_airport_code")
ORDER = ("$$timestamp", "$$partition", "$$offset")


def bookings(random: Random, first_offset: int, number: int) -> list[Row]:
    """Few keys, nulls among them, at few times: late ones, and several at the same time."""
    return [
        {
            "email_address": random.choice(["A@email.com", "B@email.com", None]),
            "departure_airport_code": random.choice(["ATL", None]),
            "arrival_airport_code": random.choice(["DFW", "DEN"]),
            "confirmation_code": f"SUN{offset}",
            "$$timestamp": START + timedelta(minutes=random.randrange(5)),
            "$$partition": random.randrange(2),
            "$$offset": offset,
            "$$headers": {"n": str(offset).encode()},
        }
        for offset in range(first_offset, first_offset + number)
    ]


def reference(records: list[Row]) -> list[tuple[Any, ...]]:
    newest: dict[tuple[Any, ...], Row] = {}
    for record in sorted(records, key=lambda r: tuple(r[column] for column in ORDER)):
        newest[tuple(record[key] for key in KEYS)] = record
    return sorted((*map(str, key), row["confirmation_code"]) for key, row in newest.items())


def shown(found: list[Row]) -> list[tuple[Any, ...]]:
    return sorted((*(str(row[key]) for key in KEYS), row["confirmation_code"]) for row in found)


def test_any_records(stack: Endpoints, spark: SparkSession) -> None:
    random, catalog, name = Random(1), stack.catalog(settings()), f"t{uuid.uuid4().hex[:8]}"
    catalog.create_namespace_if_not_exists("views")
    source = ("views", f"{name}_bookings")
    view, records = UpsertView(source, ("views", name), KEYS, ORDER), bookings(random, 0, 20)
    create_table(spark, topic_frame(spark, "airline.sunset", records), source, "$$timestamp")

    def check(table: Table) -> Table:
        assert shown(rows(spark.table(spark_name(view.target)))) == reference(records)
        assert shown(table.scan().to_arrow().to_pylist()) == reference(records)
        return table

    table = check(refresh(spark, catalog, view))
    head = table.current_snapshot()
    assert check(refresh(spark, catalog, view)).current_snapshot() == head  # nothing is new
    for _ in range(2):
        for _ in range(random.randrange(1, 3)):
            more = bookings(random, len(records), 8)
            topic_frame(spark, "airline.sunset", more).writeTo(spark_name(source)).append()
            records += more
        table = check(refresh(spark, catalog, view))
    # Rows deleted other than by their retention, or an expired history.
    deleted = records[-1]["$$offset"]
    spark.sql(f"DELETE FROM {spark_name(source)} WHERE `$$offset` = {deleted}")
    records.pop()
    newest = check(refresh(spark, catalog, view)).current_snapshot()
    assert newest is not None
    assert SOURCE_SNAPSHOTS in summary(newest)
