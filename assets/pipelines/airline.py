"""Flights of all airlines, and what their flyers fly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from topicberg import FOREVER, derived_table
from topicberg.charts import axes, legend, minute_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATS_COLUMNS = (
    *("window_start", "window_end", "email_address", "total_flight_duration"),
    "number_of_flights",
)
TIME_FORMAT = "yyyy-MM-dd HH:mm:ss"
FLIGHT_COLUMNS = (
    *("email_address", "departure_time", "departure_airport_code", "arrival_time"),
    *("arrival_airport_code", "flight_number", "confirmation_code"),
)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


class Consolidation(BaseModel):
    """Which flights are consolidated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: Annotated[AwareDatetime, AfterValidator(_utc)] | None = None
    """Flights that arrive after this time; None: after the time of their booking."""


def _time(column: str) -> Column:
    """A time as text, in UTC; null if it is none."""
    return F.try_to_timestamp(F.col(column), F.lit(TIME_FORMAT))


def flights_by_airline(flights: DataFrame) -> Figure:
    """Bookings of each airline, minute by minute."""
    minute = F.date_trunc("minute", "booked_at")
    rows = (
        flights.groupBy("airline", minute.alias("minute"))
        .agg(F.count("*").alias("bookings"))
        .orderBy("minute")
        .toArrow()
        .to_pylist()
    )
    figure, drawn = axes("flights by airline", "time of booking (UTC)", "bookings a minute")
    minute_bars(drawn, ((row["airline"], row["minute"], row["bookings"]) for row in rows))
    legend(drawn)
    return figure


@derived_table(
    source=("airline.sunset", "airline.skyone"),
    time_column="booked_at",
    parameters=Consolidation,
    chart=flights_by_airline,
    lineage={
        "booked_at": ("$$timestamp",),
        **{column: (column,) for column in FLIGHT_COLUMNS},
        "airline": (),
    },
)
def flight(sunset: DataFrame, skyone: DataFrame, parameters: Consolidation) -> DataFrame:
    """The flights of both airlines that have not arrived yet, one row a booking.

    Which ones have arrived is judged at the time that the spec sets, never by the clock of a run:
    the same bookings make the same flights whenever they are computed. Bookings without a readable
    arrival time are left out. Partitioned by the time of booking: by arrival airport, as in the
    kickstarter, every run would write 30 small files instead of one.
    """
    booked_at = F.col("`$$timestamp`")
    as_of = booked_at if parameters.as_of is None else F.lit(parameters.as_of)

    def of(bookings: DataFrame, airline: str) -> DataFrame:
        return bookings.filter(_time("arrival_time") > as_of).select(
            booked_at.alias("booked_at"), *FLIGHT_COLUMNS, F.lit(airline).alias("airline")
        )

    return of(sunset, "Sunset").unionByName(of(skyone, "SkyOne"))


@derived_table(
    source="flight",
    time_column="window_start",
    lineage={
        "window_start": ("booked_at",),
        "window_end": ("booked_at",),
        "email_address": ("email_address",),
        "total_flight_duration": ("departure_time", "arrival_time"),
        "number_of_flights": ("departure_time", "arrival_time"),
    },
)
def flyer_stats(flights: DataFrame) -> DataFrame:
    """How long (minutes) and how often each flyer flies, by the bookings of each minute.

    A minute is from ``window_start`` up to, not including, ``window_end``. Flights without a flyer,
    or without readable times, count nothing. Partitioned by time: a partition for each flyer, as in
    the kickstarter, would be a file of a few bytes for each flyer in every run.
    """
    seconds = F.unix_seconds(_time("arrival_time")) - F.unix_seconds(_time("departure_time"))
    window_start = F.date_trunc("minute", "booked_at")
    counted = flights.select(
        window_start.alias("window_start"),
        (window_start + F.expr("INTERVAL 1 MINUTE")).alias("window_end"),
        "email_address",
        # towards zero, as java.time.Duration.toMinutes does
        (seconds / 60).cast("bigint").alias("minutes"),
    ).filter("email_address IS NOT NULL AND minutes IS NOT NULL")
    return counted.groupBy("window_start", "window_end", "email_address").agg(
        F.sum("minutes").alias("total_flight_duration"), F.count("*").alias("number_of_flights")
    )


@derived_table(
    source="flyer_stats",
    time_column="window_start",
    lookback=FOREVER,
    lineage={column: (column,) for column in STATS_COLUMNS},
)
def flyer_totals(stats: DataFrame) -> DataFrame:
    """Running totals of each flyer since the beginning, in every minute that has a booking of hers.

    What the kickstarter calls flyer stats: each window's row has the sums up to its end. Late
    bookings change all later windows, so the partitions after theirs are computed again as well.
    """
    until_now = (
        Window.partitionBy("email_address")
        .orderBy("window_start")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return stats.select(
        "window_start",
        "window_end",
        "email_address",
        F.sum("total_flight_duration").over(until_now).alias("total_flight_duration"),
        F.sum("number_of_flights").over(until_now).alias("number_of_flights"),
    )
