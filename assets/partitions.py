"""Event-time partitions of derived tables, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, time

from dagster import DailyPartitionsDefinition, HourlyPartitionsDefinition

from topicberg.derived import Window
from topicberg.errors import SpecError
from topicberg.topics import TopicSpec

TimePartitions = HourlyPartitionsDefinition | DailyPartitionsDefinition


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


def partition_key(partitions: TimePartitions, moment: datetime) -> str:
    """Key of the partition that holds a moment; it may lie in the future and not exist yet."""
    first = partitions.start.astimezone(UTC)
    hourly = isinstance(partitions, HourlyPartitionsDefinition)
    floor = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if not hourly:
        floor = floor.replace(hour=0)
    return max(floor, first).strftime(partitions.fmt)
