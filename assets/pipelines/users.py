"""The trades with the user of their time."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from topicberg import derived_table

TRADE_COLUMNS = ("userid", "side", "symbol", "quantity", "price", "account")


@derived_table(
    source="stock_trades",
    lookups=("sample_data_users_history",),
    time_column="trade_timestamp",
    lineage={
        "trade_timestamp": ("$$timestamp",),
        **{column: (column,) for column in TRADE_COLUMNS},
        "regionid": ("sample_data_users_history.regionid",),
        "gender": ("sample_data_users_history.gender",),
        "user_valid_from": ("sample_data_users_history.$$timestamp",),
    },
)
def trades_by_region(trades: DataFrame, users: DataFrame) -> DataFrame:
    """Every trade with the region and gender that its user had at that time.

    That is the user's newest record up to the trade's time, by their timestamps in Kafka. Null for
    trades of before a user's first record, and of after the user was deleted.
    """
    since = F.col("`$$timestamp`")
    traded = trades.select(
        since.alias("trade_timestamp"),
        *TRADE_COLUMNS,
        F.lit(1).alias("order"),
        F.lit(None).cast("bigint").alias("kafka_offset"),
    )
    versions = users.select(
        since.alias("trade_timestamp"),
        F.col("key").cast("string").alias("userid"),
        F.lit(0).alias("order"),
        F.col("`$$offset`").alias("kafka_offset"),
        F.struct("regionid", "gender", since.alias("user_valid_from")).alias("user"),
    )
    so_far = (
        Window.partitionBy("userid")
        .orderBy("trade_timestamp", "order", "kafka_offset")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return (
        traded.unionByName(versions.filter("userid IS NOT NULL"), allowMissingColumns=True)
        .withColumn("user", F.last("user", ignorenulls=True).over(so_far))
        .filter("order = 1")
        .select("trade_timestamp", *TRADE_COLUMNS, "user.*")
    )
