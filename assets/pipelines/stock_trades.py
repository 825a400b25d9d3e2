"""Derived tables of the stock trades."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.derived import derived_table


@derived_table(
    source="stock_trades",
    time_column="trade_timestamp",
    lineage={
        "trade_timestamp": ("$$timestamp",),
        "userid": ("userid",),
        "side": ("side",),
        "symbol": ("symbol",),
        "quantity": ("quantity",),
        "price": ("price",),
        "total_price": ("quantity", "price"),
    },
)
def stock_trades_with_totals(trades: DataFrame) -> DataFrame:
    """A row per trade with its total: quantity times price, in pennies.

    ``trade_timestamp`` is the timestamp of the Kafka record; ``total_price`` is a 64-bit integer,
    which no product of two 32-bit integers overflows.
    """
    return trades.select(
        F.col("`$$timestamp`").alias("trade_timestamp"),
        "userid",
        "side",
        "symbol",
        "quantity",
        "price",
        (F.col("quantity").cast("bigint") * F.col("price")).alias("total_price"),
    )
