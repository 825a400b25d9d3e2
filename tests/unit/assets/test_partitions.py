"""Partitions of event times, also of clocks that are wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.errors import TopicbergError
from topicberg.iceberg.hours import EVERYTHING
from topicberg.orchestration.assets.partitions import (
    RANGE_END,
    RANGE_START,
    SCATTERED,
    TimePartitions,
    described_range,
    partition_count,
    partition_key,
    partition_keys,
    requested_ranges,
    requested_windows,
    scattered,
    spans,
    time_partitions,
    window,
)
from topicberg.orchestration.jobs.tick_computations import MAX_RANGES
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
    [("hourly", "2026-01-01-00:00", "2026-03-01-00:00"), ("daily", "2026-01-01", "2026-03-01")],
)
def test_keys(granularity: str, first: str, now: str) -> None:
    requested = [range(0, 1), range(HOUR_NOW, HOUR_NOW + 1), range(10**9, 10**9 + 1)]
    assert partition_keys(partitions(granularity), requested, NOW) == [first, now]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("2026-03-01-03:00", "2026-03-01-03:00", "2026-03-01 03:00 to 04:00"),
        ("2026-03-01-03:00", "2026-03-01-04:00", "2026-03-01 03:00 to 05:00"),
        ("2026-03-01-23:00", "2026-03-01-23:00", "2026-03-01 23:00 to 00:00"),
        ("2026-03-01-03:00", "2026-03-02-04:00", "2026-03-01 03:00 to 2026-03-02 05:00"),
        ("2026-03-01", "2026-03-01", "2026-03-01"),
        ("2026-03-01", "2026-03-04", "2026-03-01 to 2026-03-04"),
    ],
)
def test_range_of_partitions_is_described_in_hours(first: str, last: str, expected: str) -> None:
    assert described_range(first, last) == expected


@given(st.sampled_from(["hourly", "daily"]), st.integers(0, 5000), st.integers(0, 50))
def test_any_range_of_partitions_is_described(granularity: str, begin: int, more: int) -> None:
    own, start = partitions(granularity), HOUR_NOW - 24 * 59
    first, last = (
        partition_key(own, datetime.fromtimestamp((start + hour) * 3600, UTC))
        for hour in (begin, begin + more)
    )
    assert described_range(first, last).startswith(first[:10])


@given(st.integers(-(2**62), 2**62), st.integers(1, 100))
def test_partitions_of_any_wrong_clock_do_not_fail(hour: int, width: int) -> None:
    for granularity in ("hourly", "daily"):
        partition_keys(partitions(granularity), [range(hour, hour + width)], NOW)
        spans(partitions(granularity), [range(hour, hour + width)], NOW, 10)


START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) // 3600
some_hours = st.lists(
    st.tuples(st.integers(START - 40, START + 90), st.integers(1, 30)).map(
        lambda each: range(each[0], each[0] + each[1])
    ),
    max_size=5,
)


@given(some_hours, st.integers(-5, 60), st.integers(1, 4), st.integers(START - 9, START + 50))
@pytest.mark.parametrize("granularity", ["hourly", "daily"])
def test_spans_hold_the_hours_that_exist(
    granularity: str, hours: list[range], now: int, limit: int, first_hour: int
) -> None:
    kind, moment = partitions(granularity), datetime.fromtimestamp((START + now) * 3600 + 60, UTC)
    existing = list(kind.get_partition_keys(moment))
    found, left = spans(kind, hours, moment, limit, first_hour)
    assert len(found) <= limit
    chosen = [key for span in found for key in existing if span.first <= key <= span.last]
    assert len(chosen) == len(set(chosen))
    late = {key for key in existing if _begin(kind, key) < first_hour}
    assert not late & set(chosen)
    wanted, rest = set(partition_keys(kind, hours, moment)), set(partition_keys(kind, left, moment))
    assert set(chosen) <= wanted, "and no hours between them"
    assert (set(chosen) | (rest & set(existing))) - late == wanted & set(existing) - late
    assert rest >= wanted - set(existing)
    if limit > len(hours):
        assert set(chosen) == wanted & set(existing) - late
    for span in found:
        window = kind.time_window_for_partition_key(span.last)
        assert span.hours.stop == int(window.end.timestamp()) // 3600
        assert span.hours.start <= _begin(kind, span.first)


@given(some_hours.filter(any), st.sampled_from(["hourly", "daily"]))
def test_tag_of_scattered_partitions_has_exactly_their_windows(
    hours: list[range], granularity: str
) -> None:
    kind, moment = partitions(granularity), datetime.fromtimestamp((START + 200) * 3600, UTC)
    found, _ = spans(kind, hours, moment, 100)
    tags = {SCATTERED: scattered(kind, found)}
    windows = requested_windows(kind, tags)
    assert [each.hours for each in windows] == [span.hours for span in found]
    assert requested_ranges(tags) == [(span.first, span.last) for span in found]
    keys = [key for window in windows for key in partition_keys(kind, [window.hours], moment)]
    assert len(keys) == sum(partition_count(kind, span) for span in found)


def test_tag_of_the_most_scattered_partitions_fits_into_an_index_of_postgres() -> None:
    hourly = partitions("hourly")
    hours = [range(START + 9000 * n, START + 9000 * n + 1) for n in range(MAX_RANGES)]
    later = datetime.fromtimestamp((START + 9000 * MAX_RANGES) * 3600, UTC)
    found, _ = spans(hourly, hours, later, MAX_RANGES)
    assert len(found) == MAX_RANGES
    assert len(scattered(hourly, found)) < 2700


def _begin(kind: TimePartitions, key: str) -> int:
    return int(kind.time_window_for_partition_key(key).start.timestamp()) // 3600


def test_spans_of_everything_are_all_partitions() -> None:
    hourly = partitions("hourly")
    (span,), left = spans(hourly, [EVERYTHING], NOW, 10)
    keys = hourly.get_partition_keys(NOW)
    assert (span.first, span.last) == (keys[0], keys[-1])
    assert left[0].start == HOUR_NOW + 1


def test_the_first_window_is_open_to_the_left() -> None:
    hourly = partitions("hourly")
    assert window(hourly, hourly.start, NOW).start is None
    assert window(hourly, NOW, NOW).start == NOW


@pytest.mark.parametrize(
    ("granularity", "range_", "first"),
    [
        ("hourly", ("2025-12-31-23:00", "2026-01-01-05:00"), "2026-01-01-00:00"),
        ("daily", ("2025-12-30", "2025-12-31"), "2026-01-01"),
    ],
)
def test_window_before_the_first_partition_is_refused(
    granularity: str, range_: tuple[str, str], first: str
) -> None:
    tags = dict(zip((RANGE_START, RANGE_END), range_, strict=True))
    with pytest.raises(TopicbergError, match=r"no partition of 2025-12-3.*everything") as refused:
        requested_windows(partitions(granularity), tags)
    assert refused.value.hint == f"compute the partition `{first}`"
