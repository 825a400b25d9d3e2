"""Derived tables of the stock trades."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from topicberg import derived_table
from topicberg.charts import axes, legend, markdown_table, minute_bars, times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRADE_COLUMNS = ("userid", "side", "symbol", "quantity", "price")
FLAGGED_COLUMNS = ("side", "quantity", "symbol", "price", "account", "userid")
DRAWN_ROWS = 2000
OFFENDING_ROWS = 20
NORMAL = "NORMAL"


def totals_by_symbol(totals: DataFrame) -> Figure:
    """The value traded of each symbol, minute by minute."""
    minute = F.date_trunc("minute", "trade_timestamp")
    rows = (
        totals.groupBy("symbol", minute.alias("minute"))
        .agg((F.sum("total_price") / 100_000_000).cast("double").alias("millions"))
        .orderBy("minute")
        .toArrow()
        .to_pylist()
    )
    figure, drawn = axes("traded value by symbol", "time (UTC)", "million dollars a minute")
    minute_bars(
        drawn, ((str(row["symbol"]), row["minute"], row["millions"] or 0.0) for row in rows)
    )
    legend(drawn)
    return figure


@derived_table(
    source="stock_trades",
    time_column="trade_timestamp",
    lineage={
        "trade_timestamp": ("$$timestamp",),
        **{column: (column,) for column in TRADE_COLUMNS},
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
        *TRADE_COLUMNS,
        (F.col("quantity").cast("bigint") * F.col("price")).alias("total_price"),
    )


@derived_table(
    source="stock_trades",
    time_column="trade_timestamp",
    lineage={
        "trade_timestamp": ("$$timestamp",),
        **{column: (column,) for column in ("userid", "side", "symbol")},
        "total_price": ("quantity", "price"),
    },
    chart=totals_by_symbol,
)
def stock_total_trades(trades: DataFrame) -> DataFrame:
    """The sum of the totals (pennies) of each user, side and symbol at each trade timestamp.

    Columns:
        total_price: pennies. It has 38 digits: no number of rows that fits in a table overflows it.
            Trades without a quantity or a price add nothing; the sum of only such trades is null.
    """
    total = F.col("quantity").cast("bigint") * F.col("price")
    return trades.groupBy(
        F.col("`$$timestamp`").alias("trade_timestamp"), "userid", "side", "symbol"
    ).agg(F.sum(total.cast("decimal(28,0)")).alias("total_price"))


class AnomalyRules(BaseModel):
    """When a trade is flagged; the first three as in Snowflake's quickstart."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    large_quantity: int = 4000
    """A trade of more shares is large."""
    unusual_price: int = 900
    """A higher price (pennies) is unusual for any symbol."""
    window_minutes: int = Field(default=60, gt=0)
    """The past by which a price is judged as one of its symbol."""
    z_score: float = Field(default=3.0, gt=0)
    """Standard deviations from the moving average beyond which a price is unusual."""
    min_trades: int = Field(default=30, ge=2)
    """Trades that the window must have before it judges."""
    min_anomaly_rate: float = Field(default=0.0, ge=0, le=1)
    max_anomaly_rate: float = Field(default=0.5, ge=0, le=1)

    @property
    def window(self) -> timedelta:
        return timedelta(minutes=self.window_minutes)


def anomaly_rate(trades: DataFrame, parameters: AnomalyRules) -> dg.AssetCheckResult:
    """The share of flagged trades is within the bounds of the spec."""
    flagged = trades.filter((F.col("anomaly_flag") != NORMAL) | F.col("unusual_for_symbol"))
    counts = {
        row["anomaly_flag"]: row["trades"]
        for row in trades.groupBy("anomaly_flag")
        .agg(F.count("*").alias("trades"))
        .toArrow()
        .to_pylist()
    }
    total = sum(counts.values())
    rate = 1 - counts.get(NORMAL, 0) / total if total else 0.0
    newest = flagged.orderBy(F.col("trade_timestamp").desc()).limit(OFFENDING_ROWS).toArrow()
    bounds = f"{parameters.min_anomaly_rate:.1%} to {parameters.max_anomaly_rate:.1%}"
    return dg.AssetCheckResult(
        passed=not total or parameters.min_anomaly_rate <= rate <= parameters.max_anomaly_rate,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{rate:.1%} of {total:,} trades are flagged; allowed are {bounds}",
        metadata={
            "anomaly_rate": rate,
            "trades": total,
            "unusual_for_symbol": flagged.filter("unusual_for_symbol").count(),
            **{f"trades {flag}": count for flag, count in sorted(counts.items())},
            "newest flagged trades": dg.MetadataValue.md(markdown_table(newest)),
        },
    )


def prices_with_anomalies(trades: DataFrame, parameters: AnomalyRules) -> Figure:
    """The newest prices; anomalies in colours."""
    newest = trades.orderBy(F.col("trade_timestamp").desc()).limit(DRAWN_ROWS).toArrow()
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in newest.to_pylist():
        of_symbol = row["anomaly_flag"] == NORMAL and row["unusual_for_symbol"]
        kind = "unusual for its symbol" if of_symbol else row["anomaly_flag"]
        kinds.setdefault(kind, []).append(row)
    figure, drawn = axes("prices and their anomalies", "time (UTC)", "price in pennies")
    for kind, points in sorted(kinds.items(), key=lambda item: item[0] != NORMAL):
        drawn.scatter(
            [row["trade_timestamp"] for row in points],
            [float("nan") if row["price"] is None else row["price"] for row in points],
            s=4 if kind == NORMAL else 10,
            c="lightgrey" if kind == NORMAL else None,
            label=kind,
        )
    times(drawn)
    legend(drawn)
    return figure


@derived_table(
    source="stock_trades",
    time_column="trade_timestamp",
    lookback=lambda rules: rules.window,
    parameters=AnomalyRules,
    checks=(anomaly_rate,),
    chart=prices_with_anomalies,
    lineage={
        "trade_timestamp": ("$$timestamp",),
        **{column: (column,) for column in FLAGGED_COLUMNS},
        "anomaly_flag": ("price", "quantity"),
        **dict.fromkeys(
            ("moving_average", "moving_stddev", "z_score", "unusual_for_symbol"),
            ("price", "symbol", "$$timestamp"),
        ),
    },
)
def flagged_stock_trades(trades: DataFrame, parameters: AnomalyRules) -> DataFrame:
    """Every trade with what is unusual about it.

    ``anomaly_flag``: the first that is true of NEGATIVE_PRICE, LARGE_TRADE and UNUSUAL_PRICE, else
    NORMAL. ``moving_average``, ``moving_stddev`` (of a sample) and ``z_score`` judge the price by
    the trades of its symbol in the time before it; ``unusual_for_symbol``: the score is beyond the
    bound of the spec.
    """
    average, deviation = _moving_statistics(parameters)
    with_statistics = trades.select(
        F.col("`$$timestamp`").alias("trade_timestamp"),
        *FLAGGED_COLUMNS,
        F.when(F.col("price") < 0, "NEGATIVE_PRICE")
        .when(F.col("quantity") > parameters.large_quantity, "LARGE_TRADE")
        .when(F.col("price") > parameters.unusual_price, "UNUSUAL_PRICE")
        .otherwise(NORMAL)
        .alias("anomaly_flag"),
        average.alias("moving_average"),
        deviation.alias("moving_stddev"),
    )
    distance = (F.col("price") - F.col("moving_average")) / F.col("moving_stddev")
    score = F.when(F.col("moving_stddev") > 0, distance)
    return with_statistics.withColumn("z_score", score).withColumn(
        "unusual_for_symbol", F.coalesce(F.abs("z_score") > parameters.z_score, F.lit(False))
    )


def _moving_statistics(rules: AnomalyRules) -> tuple[Column, Column]:
    """Average and standard deviation of the symbol's prices in the window before a trade.

    Null if the window has too few trades. Both come from exact sums, so the order of rows and the
    cut into partitions change no bit of them. A sum over the window is the difference of two sums
    from the beginning: Spark grows those row by row, but adds up a sliding frame again at each row.
    """
    microseconds = int(rules.window / timedelta(microseconds=1))
    of_symbol = Window.partitionBy("symbol").orderBy(F.unix_micros("`$$timestamp`"))
    before = of_symbol.rangeBetween(Window.unboundedPreceding, -1)
    too_old = of_symbol.rangeBetween(Window.unboundedPreceding, -microseconds - 1)

    def total(of: Column) -> Column:
        def until(frame: WindowSpec) -> Column:
            return F.coalesce(F.sum(of.cast("decimal(28,0)")).over(frame), F.lit(0))

        return (until(before) - until(too_old)).cast("decimal(38,0)")

    price = F.col("price").cast("decimal(10,0)")
    count = total(F.when(price.isNotNull(), 1).otherwise(0))
    sums, squares = total(price), total(price * price)
    enough = count >= rules.min_trades
    spread = (count * squares).cast("decimal(38,0)") - (sums * sums).cast("decimal(38,0)")
    variance = spread.cast("double") / (count * (count - 1)).cast("double")
    return (
        F.when(enough, sums.cast("double") / count.cast("double")),
        F.when(enough, F.sqrt(variance)),
    )
