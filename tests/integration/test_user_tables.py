"""Every version of a user is kept, and a trade gets the one of its time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from assets.pipelines.users import TRADE_COLUMNS, sample_data_users_history, trades_by_region
from topicberg.derived import Derivation, Source, Window, spark_name, write_window
from topicberg.endpoints import CATALOG, Endpoints
from topicberg.settings import settings
from topicberg.testing import create_table, rows, spark_session, topic_frame

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
USERS = st.sampled_from(["User_1", "User_2", None])
TIMES = st.integers(0, 30).map(lambda seconds: START + timedelta(seconds=seconds))


@pytest.fixture(scope="module")
def spark(stack: Endpoints) -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


def ordered(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: repr(sorted(row.items())))


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


@examples(max_examples=5, suppress_health_check=list(HealthCheck))
@given(
    trades=st.lists(
        st.fixed_dictionaries(
            {
                "$$timestamp": TIMES,
                "userid": USERS,
                "price": st.none() | st.integers(1, 9),
                "symbol": st.just("ZVV"),
            }
        ),
        max_size=100,
    ),
    users=st.lists(
        st.fixed_dictionaries(
            {
                "$$timestamp": TIMES,
                "userid": USERS,
                "regionid": st.sampled_from(["Region_1", "Region_2", None]),
                "gender": st.sampled_from(["MALE", "OTHER", None]),
            }
        ),
        max_size=40,
    ),
)
def test_trades_by_region(spark: SparkSession, trades: list[Row], users: list[Row]) -> None:
    users = [user | {"$$offset": offset} for offset, user in enumerate(users)]
    history = sample_data_users_history.transform(topic_frame(spark, "sample_data_users", users))
    frame = topic_frame(spark, "stock_trades", trades)
    found = rows(trades_by_region.transform(frame, history))
    assert ordered(found) == ordered(reference(trades, users))


def test_versions_outlive_their_replacement_and_their_snapshots(
    stack: Endpoints, spark: SparkSession
) -> None:
    catalog, name = stack.catalog(settings()), f"t{uuid.uuid4().hex[:8]}"
    catalog.create_namespace_if_not_exists("versions")
    source, target = ("versions", f"{name}_users"), ("versions", name)

    def version(offset: int, user: str) -> Row:
        at = START + timedelta(minutes=offset)
        return {"$$timestamp": at, "userid": user, "$$partition": 0, "$$offset": offset}

    def upsert(*versions: Row) -> None:
        """As the engine: position deletes of the rows of these keys, then the new rows."""
        frame = topic_frame(spark, "sample_data_users", versions).drop("$$headers")
        if not catalog.table_exists(source):
            create_table(spark, frame, source, "$$timestamp")
            spark.sql(
                f"ALTER TABLE {spark_name(source)} SET TBLPROPERTIES "
                "('format-version'='2', 'write.delete.mode'='merge-on-read')"
            )
            return
        users = ", ".join(f"'{each['userid']}'" for each in versions)
        spark.sql(f"DELETE FROM {spark_name(source)} WHERE userid IN ({users})")
        frame.writeTo(spark_name(source)).append()

    derivation = Derivation(
        sources=(Source(source, "$$timestamp", versions=True),),
        target=target,
        transform=sample_data_users_history.transform,
        target_time="valid_from",
        keep=sample_data_users_history.versions,
    )

    def history() -> list[int]:
        write_window(spark, catalog, derivation, Window(START, START + timedelta(hours=1)))
        found = rows(spark.table(spark_name(target)))
        return sorted(row["kafka_offset"] for row in found)

    upsert(version(0, "a"), version(1, "b"))
    upsert(version(2, "a"))
    upsert(version(3, "a"))
    assert history() == [0, 1, 2, 3]
    upsert(version(4, "b"))
    spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => 'versions.{source[1]}', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    assert history() == [0, 1, 2, 3, 4]
    assert history() == [0, 1, 2, 3, 4]
