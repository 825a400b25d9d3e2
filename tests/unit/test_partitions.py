"""Partitions of event times, also of clocks that are wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.partitions import TimePartitions, partition_keys, time_partitions, window
from topicberg.topics import TopicSpec

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR_NOW = int(NOW.timestamp()) // 3600


def partitions(granularity: str) -> TimePartitions:
    return time_partitions(
        TopicSpec.model_validate(
            {
                "name": "t",
                "pipeline": "p",
                "schema": {"format": "avro", "file": "t.avsc"},
                "derived_partitions": {"granularity": granularity, "start": "2026-01-01"},
            }
        )
    )


@pytest.mark.parametrize(
    ("granularity", "first", "now"),
    [
        ("hourly", "2026-01-01-00:00", "2026-03-01-00:00"),
        ("daily", "2026-01-01", "2026-03-01"),
    ],
)
def test_keys(granularity: str, first: str, now: str) -> None:
    asked = [range(0, 1), range(HOUR_NOW, HOUR_NOW + 1), range(10**9, 10**9 + 1)]
    assert partition_keys(partitions(granularity), asked, NOW) == {first, now}


@given(st.integers(-(2**62), 2**62), st.integers(1, 100))
def test_no_clock_is_wrong_enough_to_fail(hour: int, width: int) -> None:
    for granularity in ("hourly", "daily"):
        partition_keys(partitions(granularity), [range(hour, hour + width)], NOW)


def test_the_first_window_is_open_to_the_left() -> None:
    hourly = partitions("hourly")
    start = hourly.start
    assert window(hourly, start, NOW).start is None
    assert window(hourly, NOW, NOW).start == NOW
