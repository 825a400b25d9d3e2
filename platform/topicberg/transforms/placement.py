"""Where the rows may be that follow from the rows of a partition, and the error of others.

A run reads no further than the declaration of the table says, so no run would find them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from math import ceil

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from topicberg.errors import TopicbergError
from topicberg.spark import quote
from topicberg.transforms.derivation import AT_ONCE, Derivation
from topicberg.transforms.windows import Window

OUTSIDE = "topicberg-outside-of-the-window"
REFUSED = re.compile(rf"{OUTSIDE} (\S+) <([^>]*)>")


def refusing(computed: DataFrame, time: str, kind: DataType, window: Window) -> DataFrame:
    """Return all rows; those outside of a window end the job, and the error says where they are."""
    where = F.coalesce(F.col(quote(time)).cast("string"), F.lit("null"))
    refused = F.raise_error(F.concat(F.lit(f"{OUTSIDE} {window} <"), where, F.lit(">")))
    inside = window.condition(time, kind)
    return computed.withColumn(time, F.when(inside, F.col(quote(time))).otherwise(refused))


def check_places(
    derivation: Derivation,
    result: Callable[[Window], DataFrame],
    kind: DataType,
    partitions: Sequence[Window],
) -> None:
    """Check of some partitions that their rows become rows only where the declaration says.

    Else the runs of other partitions would have to find them, and these do not read that far.

    :param kind: the type of the event time
    """
    time = derivation.target_time

    def rows_elsewhere(partition: Window) -> DataFrame:
        allowed = derivation.placed(partition).condition(time, kind)
        return (
            result(partition)
            .filter(~F.coalesce(allowed, F.lit(False)))
            .select(
                F.lit(str(partition)).alias("partition"),
                F.coalesce(F.col(quote(time)).cast("string"), F.lit("null")).alias("time"),
            )
        )

    for begin in range(0, len(partitions), AT_ONCE):
        frames = map(rows_elsewhere, partitions[begin : begin + AT_ONCE])
        for row in reduce(lambda combined, other: combined.union(other), frames).limit(1).collect():
            raise misplaced(derivation, row["partition"], row["time"])


def misplaced(derivation: Derivation, partition: str, time: str) -> TopicbergError:
    """Return the error of a row that no run would find.

    :param partition: the window of the rows of the sources that it follows from
    :param time: of the row, in UTC
    """
    source, column = Window.parse(partition), derivation.target_time
    allowed = derivation.placed(source)
    start, end = (
        f"{moment:%Y-%m-%d %H:%M}" if moment else "" for moment in (allowed.start, allowed.end)
    )
    expected = f"from {start} to before {end}" if start else f"before {end}"
    of_source = f"before {source.end:%Y-%m-%d %H:%M}"
    if source.start:
        of_source = f"{source.start:%Y-%m-%d %H:%M} to {source.end:%Y-%m-%d %H:%M}"
    if time == "null":
        return TopicbergError(
            f"table {derivation.name}: for the rows {of_source} of its sources, its function "
            f"returns a row without a {column}; expected is a time {expected}",
            hint=f"leave out rows without a {column} in the function, or use another time for them",
        )
    return TopicbergError(
        f"table {derivation.name}: for the rows {of_source} of its sources, its function returns a "
        f"row with the {column} {time}; expected is a time {expected} (UTC)",
        hint=f"return the event time of the sources in {column}, "
        + _declaration(derivation, source, time),
    )


def _declaration(derivation: Derivation, source: Window, time: str) -> str:
    """Return what would allow a row, as text."""
    try:
        moment = datetime.fromisoformat(time).replace(tzinfo=UTC)
    except ValueError:  # Python's years are those of four digits
        return "and leave out rows with such a time"
    hour = timedelta(hours=1)
    if moment >= derivation.placed(source).end:
        if source.start is None and source.end == derivation.first:
            return "or set an earlier `derived_partitions.start` in the spec of the topic"
        start = source.start or source.end - timedelta(hours=derivation.hours)
        back = ceil((moment - start) / hour)
        return (
            "or declare in `@derived_table` how much later it may be: "
            f"`lookback=timedelta(hours={back})`, or more"
        )
    ahead = ceil((source.end - moment) / hour)
    return (
        "or declare in `@derived_table` how much earlier it may be: "
        f"`lookahead=timedelta(hours={ahead})`, or more, or `lookahead=FOREVER`, which reads the "
        "sources as a whole"
    )
