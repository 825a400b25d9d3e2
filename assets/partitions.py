"""Event-time partitions of derived tables, in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache

from dagster import DailyPartitionsDefinition, HourlyPartitionsDefinition

from topicberg.derived import Window
from topicberg.errors import SpecError
from topicberg.snapshots import Hours
from topicberg.topics import TopicSpec

TimePartitions = HourlyPartitionsDefinition | DailyPartitionsDefinition
HORIZON = timedelta(days=366)
RANGE_START, RANGE_END = (
    "dagster/asset_partition_range_start",
    "dagster/asset_partition_range_end",
)
"""Tags of a run for several partitions."""
_PARTITION = "dagster/partition"


def time_partitions(spec: TopicSpec) -> TimePartitions:
    """The partitions that a topic's spec gives to its derived tables; the open one included.

    :raises SpecError: the spec has no ``derived_partitions``
    """
    if spec.derived_partitions is None:
        raise SpecError(
            f"topic {spec.name} has derived tables, but its spec has no `derived_partitions`",
            hint='add e.g. `derived_partitions: {granularity: hourly, start: "2026-01-01"}`',
        )
    start = datetime.combine(spec.derived_partitions.start, time(), UTC)
    kind = (
        HourlyPartitionsDefinition
        if spec.derived_partitions.granularity == "hourly"
        else DailyPartitionsDefinition
    )
    return kind(start_date=start, timezone="UTC", end_offset=1)


def window(partitions: TimePartitions, start: datetime, end: datetime) -> Window:
    """The window of a partition range. The first partition also has everything before it."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    return Window(None if start <= partitions.start.astimezone(UTC) else start, end)


def asked_range(tags: Mapping[str, str]) -> tuple[str, str] | None:
    """First and last of the partitions that a run was asked for, by its tags; None: it was not."""
    first = tags.get(RANGE_START) or tags.get(_PARTITION)
    last = tags.get(RANGE_END) or first
    return (first, last) if first and last else None


def asked_window(partitions: TimePartitions, tags: Mapping[str, str]) -> Window | None:
    """The window of the same partitions."""
    asked = asked_range(tags)
    if asked is None:
        return None
    first, last = asked
    start = partitions.time_window_for_partition_key(first).start
    return window(partitions, start, partitions.time_window_for_partition_key(last).end)


def partition_key(partitions: TimePartitions, moment: datetime) -> str:
    """Key of the partition that holds a moment; it may lie in the future and not exist yet."""
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if isinstance(partitions, DailyPartitionsDefinition):
        hour = hour.replace(hour=0)
    return max(hour, partitions.start.astimezone(UTC)).strftime(partitions.fmt)


def existing_keys(partitions: TimePartitions, now: datetime) -> Sequence[str]:
    """Keys of all partitions that there are, oldest first; the open one included."""
    return _existing_keys(partitions, _hour(now))


@lru_cache(maxsize=32)
def _existing_keys(partitions: TimePartitions, hour: int) -> Sequence[str]:
    """Listing a year of hours takes longer than all else that an idle sensor does."""
    return partitions.get_partition_keys(datetime.fromtimestamp(hour * 3600, UTC))


def partition_keys(partitions: TimePartitions, hours: Iterable[Hours], now: datetime) -> set[str]:
    """Keys of the partitions that hold some of these hours.

    What lies before the first partition belongs to the first one. What lies more than
    :data:`HORIZON` ahead is left to a backfill: such times come from a wrong clock.
    """
    first = _hour(partitions.start)
    end = _hour(now + HORIZON)
    touched = {
        hour
        for asked in hours
        for hour in Hours(max(asked.start, first), min(max(asked.stop, first + 1), end))
    }
    return {partition_key(partitions, datetime.fromtimestamp(h * 3600, UTC)) for h in touched}


def _hour(moment: datetime) -> int:
    return int(moment.timestamp()) // 3600
