"""Every version of every user, and the trades with the user of their time."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from assets.derived import derived_table

TRADE_COLUMNS = ("userid", "side", "symbol", "quantity", "price", "account")


@derived_table(
    source="sample_data_users",
    time_column="valid_from",
    versions=("kafka_partition", "kafka_offset"),
    lineage={
        "valid_from": ("$$timestamp",),
        "userid": ("userid",),
        "registertime": ("registertime",),
        "regionid": ("regionid",),
        "gender": ("gender",),
        "kafka_partition": ("$$partition",),
        "kafka_offset": ("$$offset",),
    },
)
def sample_data_users_history(users: DataFrame) -> DataFrame:
    """Every version of every user, while the topic's table keeps the newest one.

    Valid from the time of its record on, until the next version of the same user. Of several
    versions in one commit Tableflow writes the last.
    """
    return users.select(
        F.col("`$$timestamp`").alias("valid_from"),
        "userid",
        "registertime",
        "regionid",
        "gender",
        F.col("`$$partition`").alias("kafka_partition"),
        F.col("`$$offset`").alias("kafka_offset"),
    )


@derived_table(
    source="stock_trades",
    lookups=("sample_data_users_history",),
    time_column="trade_timestamp",
    lineage={
        "trade_timestamp": ("$$timestamp",),
        **{column: (column,) for column in TRADE_COLUMNS},
        "regionid": ("sample_data_users_history.regionid",),
        "gender": ("sample_data_users_history.gender",),
        "user_valid_from": ("sample_data_users_history.valid_from",),
    },
)
def trades_by_region(trades: DataFrame, users: DataFrame) -> DataFrame:
    """Every trade with the region and gender that its user had at that time.

    Null for trades of before the first version of their user.
    """
    version = F.struct("regionid", "gender", F.col("valid_from").alias("user_valid_from"))
    traded = trades.select(
        F.col("`$$timestamp`").alias("trade_timestamp"),
        *TRADE_COLUMNS,
        F.lit(1).alias("order"),
        F.lit(None).cast("bigint").alias("kafka_offset"),
    )
    versions = users.filter("userid IS NOT NULL").select(
        F.col("valid_from").alias("trade_timestamp"),
        "userid",
        F.lit(0).alias("order"),
        "kafka_offset",
        version.alias("user"),
    )
    so_far = (
        Window.partitionBy("userid")
        .orderBy("trade_timestamp", "order", "kafka_offset")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return (
        traded.unionByName(versions, allowMissingColumns=True)
        .withColumn("user", F.last("user", ignorenulls=True).over(so_far))
        .filter("order = 1")
        .select("trade_timestamp", *TRADE_COLUMNS, "user.*")
    )
