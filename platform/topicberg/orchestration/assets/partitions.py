"""Event-time partitions of derived tables, in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import accumulate, pairwise

from dagster import DailyPartitionsDefinition, HourlyPartitionsDefinition

from topicberg.errors import SpecError, TopicbergError
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours, union, without
from topicberg.topics import TopicSpec
from topicberg.transforms.windows import Window

TimePartitions = HourlyPartitionsDefinition | DailyPartitionsDefinition
HORIZON = timedelta(days=366)
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"  # Tags of a run for several partitions.
SCATTERED = ".dagster/topicberg/partitions"
"""Tag of a run for partitions of which Dagster knows only the last: see :func:`scattered`. The UI
hides it. Postgres has an index on the values of tags, with room for 2,700 bytes."""
_HOUR = "%Y-%m-%d-%H:%M"


def time_partitions(spec: TopicSpec) -> TimePartitions:
    """The partitions of derived tables by a spec, with the open one; SpecError: it has none."""
    if spec.derived_partitions is None:
        raise SpecError(
            f"topic {spec.name} has derived tables, but its spec has no `derived_partitions`",
            hint='add e.g. `derived_partitions: {granularity: hourly, start: "2026-01-01"}`',
        )
    start = datetime.combine(spec.derived_partitions.start, time(), UTC)
    is_hourly = spec.derived_partitions.granularity == "hourly"
    kind = HourlyPartitionsDefinition if is_hourly else DailyPartitionsDefinition
    return kind(start_date=start, timezone="UTC", end_offset=1)


def window(partitions: TimePartitions, start: datetime, end: datetime) -> Window:
    """The window of a partition range. The first partition also has everything before it.

    :raises TopicbergError: the range begins earlier, as of runs from before ``start`` became later
    """
    start, end, first = (moment.astimezone(UTC) for moment in (start, end, partitions.start))
    if start < first:
        raise TopicbergError(
            f"there is no partition of {start:%F %H:%M}: the first one, of {first:%F %H:%M}, has "
            "everything before it as well",
            hint=f"compute the partition `{first:{partitions.fmt}}`",
        )
    return Window(None if start == first else start, end)


def requested_ranges(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return first and last partition of each range that the tags of a run request."""
    if text := tags.get(SCATTERED):
        first, lengths = text.split()
        is_day = len(first) <= len("2026-03-01")
        form, last = ("%Y-%m-%d", timedelta(days=1)) if is_day else (_HOUR, timedelta(hours=1))
        hours = accumulate(map(int, lengths.split(",")), initial=0)
        moments = [datetime.strptime(first, form) + timedelta(hours=hour) for hour in hours]
        pairs = zip(moments[::2], moments[1::2], strict=True)
        return [(f"{start:{form}}", f"{end - last:{form}}") for start, end in pairs]
    begin = tags.get(RANGE_START) or tags.get("dagster/partition")
    end = tags.get(RANGE_END) or begin
    return [(begin, end)] if begin and end else []


def described_range(first: str, last: str) -> str:
    """Return hours for people: ``2026-03-01 03:00 to 05:00``, without the end; of days both."""
    if len(first) <= len("2026-03-01"):
        return first if first == last else f"{first} to {last}"
    begin, end = (datetime.strptime(key, _HOUR) for key in (first, last))
    is_one_day, end = begin.date() == end.date(), end + timedelta(hours=1)
    return f"{begin:%F %H:%M} to {end:{'%H:%M' if is_one_day else '%F %H:%M'}}"


def requested_windows(partitions: TimePartitions, tags: Mapping[str, str]) -> list[Window]:
    """The windows of the partitions that the tags of a run request; none: it has no partitions."""
    of_key = partitions.time_window_for_partition_key
    return [
        window(partitions, of_key(first).start, of_key(last).end)
        for first, last in requested_ranges(tags)
    ]


def scattered(partitions: TimePartitions, spans: Sequence[Span]) -> str:
    """Return the tag :data:`SCATTERED` of a run that computes spans, which are apart. It has the
    first partition, then the hours of a span and of the gap after it, alternately. For each
    partition of a run and each table, Dagster would write an event: ten milliseconds."""
    start = _hour(partitions.start)
    bounds = [bound for s in spans for bound in (max(s.hours.start, start), s.hours.stop)]
    return f"{spans[0].first} {','.join(str(end - begin) for begin, end in pairwise(bounds))}"


def partition_key(partitions: TimePartitions, moment: datetime) -> str:
    """Key of the partition that holds a moment; it may lie in the future and not exist yet."""
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if isinstance(partitions, DailyPartitionsDefinition):
        hour = hour.replace(hour=0)
    return max(hour, partitions.start.astimezone(UTC)).strftime(partitions.fmt)


@dataclass(frozen=True)
class Span:
    """Consecutive partitions."""

    first: str
    last: str
    hours: Hours


def spans(
    partitions: TimePartitions,
    hours: Iterable[Hours],
    now: datetime,
    limit: int,
    first_hour: int = BEFORE_EVERYTHING,
) -> tuple[list[Span], list[Hours]]:
    """Return the partitions that exist and hold some of these hours, and what is left of the hours.

    What lies before the first partition belongs to it. What lies more than :data:`HORIZON` ahead is
    left to a backfill: such times come from a wrong clock.

    :param limit: of the spans; the hours of others are left
    """
    hours, width = union(hours), _width(partitions)
    start, end = _hour(partitions.start), _end(partitions, now)
    if end == start:
        return [], hours
    future = without(hours, Hours(BEFORE_EVERYTHING, end))
    future = without(future, Hours(_hour(now + HORIZON), -BEFORE_EVERYTHING))
    begin = max(start, first_hour)
    begin = start + -(-(begin - start) // width) * width
    wanted = (Hours(max(each.start, begin), each.stop) for each in _whole(partitions, hours, end))
    ranges = union(each for each in wanted if each)
    return [_span(partitions, each) for each in ranges[:limit]], union([*ranges[limit:], *future])


def partition_count(partitions: TimePartitions, span: Span) -> int:
    """Return how many partitions a span has."""
    return (span.hours.stop - max(span.hours.start, _hour(partitions.start))) // _width(partitions)


def _span(partitions: TimePartitions, hours: Hours) -> Span:
    first, last = (
        partition_key(partitions, datetime.fromtimestamp(hour * 3600, UTC))
        for hour in (hours.start, hours.stop - 1)
    )
    begin = BEFORE_EVERYTHING if hours.start == _hour(partitions.start) else hours.start
    return Span(first, last, Hours(begin, hours.stop))


def partition_keys(
    partitions: TimePartitions,
    hours: Iterable[Hours],
    now: datetime,
    first_hour: int = BEFORE_EVERYTHING,
) -> list[str]:
    """Return the keys of partitions with some of these hours, of the future as well, in order."""
    ranges = _whole(partitions, hours, _hour(now + HORIZON))
    starts = (hour for span in ranges for hour in span[:: _width(partitions)] if hour >= first_hour)
    moments = (datetime.fromtimestamp(hour * 3600, UTC) for hour in starts)
    return [partition_key(partitions, moment) for moment in moments]


def _whole(partitions: TimePartitions, hours: Iterable[Hours], end: int) -> list[Hours]:
    """Return the hours of partitions that hold some of these before ``end``; the first holds all
    that lies before it."""
    start, width = _hour(partitions.start), _width(partitions)
    clipped = (Hours(max(h.start, start), min(max(h.stop, start + 1), end)) for h in hours)
    return union(
        Hours(
            start + (span.start - start) // width * width,
            start - (start - span.stop) // width * width,
        )
        for span in clipped
        if span
    )


def _width(partitions: TimePartitions) -> int:
    return 24 if isinstance(partitions, DailyPartitionsDefinition) else 1


def _end(partitions: TimePartitions, now: datetime) -> int:
    """Return the hour in which the last partition ends; the open one is one of them."""
    width, start = _width(partitions), _hour(partitions.start)
    return max(start, start + ((_hour(now) - start) // width + 1) * width)


def _hour(moment: datetime) -> int:
    return int(moment.timestamp()) // 3600
