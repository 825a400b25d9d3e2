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


@derived_table(
    source="stock_trades",
    time_column="trade_timestamp",
    lineage={
        "trade_timestamp": ("$$timestamp",),
        "userid": ("userid",),
        "side": ("side",),
        "symbol": ("symbol",),
        "total_price": ("quantity", "price"),
    },
)
def stock_total_trades(trades: DataFrame) -> DataFrame:
    """The sum of the totals (pennies) of each user, side and symbol at each trade timestamp.

    ``total_price`` has 38 digits: no number of rows that fits in a table overflows it. Trades
    without a quantity or a price add nothing; the sum of only such trades is null.
    """
    total = F.col("quantity").cast("bigint") * F.col("price")
    return trades.groupBy(
        F.col("`$$timestamp`").alias("trade_timestamp"), "userid", "side", "symbol"
    ).agg(F.sum(total.cast("decimal(28,0)")).alias("total_price"))
