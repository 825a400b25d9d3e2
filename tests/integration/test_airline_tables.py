"""The airline tables equal a reference in plain Python, for any input."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given
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
from topicberg.testing import rows, topic_frame

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Row = dict[str, Any]
START = datetime(2026, 3, 1, 10, tzinfo=UTC)
few = examples(max_examples=5, suppress_health_check=list(HealthCheck))

times = (
    st.integers(-3000, 3000).map(
        lambda minutes: (START + timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M:%S")
    )
    | st.none()
    | st.sampled_from(["", "2026-02-30 10:00:00", "2026-03-01T10:00:00", "2026-3-1 10:00:00", "x"])
)
BOOKINGS = st.lists(
    st.fixed_dictionaries(
        {
            "$$timestamp": st.integers(0, 400).map(lambda s: START + timedelta(seconds=s)),
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


def ordered(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: repr(sorted(row.items())))


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


def reference_totals(stats: list[Row]) -> list[Row]:
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
@given(sunset=BOOKINGS, skyone=BOOKINGS, as_of=st.none() | st.just(START + timedelta(hours=1)))
def test_every_airline_table(
    spark: SparkSession, sunset: list[Row], skyone: list[Row], as_of: datetime | None
) -> None:
    flights = flight.transform(
        topic_frame(spark, "airline.sunset", sunset),
        topic_frame(spark, "airline.skyone", skyone),
        parameters=Consolidation(as_of=as_of),
    )
    stats = flyer_stats.transform(flights)
    expected = reference_flights(sunset, "Sunset", as_of)
    expected += reference_flights(skyone, "SkyOne", as_of)
    assert ordered(rows(flights)) == ordered(expected)
    assert ordered(rows(stats)) == ordered(reference_stats(expected))
    totals = reference_totals(reference_stats(expected))
    assert ordered(rows(flyer_totals.transform(stats))) == ordered(totals)
