"""Where the rows may be that follow from the rows of a partition, and the error of others.

A run reads no further than the declaration of the table says, so no run would find them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import starmap
from math import ceil

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from topicberg.errors import TopicbergError
from topicberg.spark import quote
from topicberg.transforms.derivation import AT_ONCE, Derivation, Source
from topicberg.transforms.windows import Window

OUTSIDE = "topicberg-outside-of-the-window"
REFUSED = re.compile(rf"{OUTSIDE} (\S+) <(null|[-+\d][-+\d:. ]*)>")
"""In an error: any other one may quote the plan, which has the marker, but no time."""


def refusing(computed: DataFrame, time: str, kind: DataType, window: Window) -> DataFrame:
    """Return all rows; those outside of a window end the job, and the error says where they are."""
    where = F.coalesce(F.col(quote(time)).cast("string"), F.lit("null"))
    refused = F.raise_error(F.concat(F.lit(f"{OUTSIDE} {window} <"), where, F.lit(">")))
    inside = window.condition(time, kind)
    return computed.withColumn(time, F.when(inside, F.col(quote(time))).otherwise(refused))


def check_places(
    derivation: Derivation,
    result: Callable[[Callable[[Source], Window | None]], DataFrame],
    kind: DataType,
    partitions: Sequence[Window],
) -> None:
    """Check of some partitions that their rows become rows only where the declaration says.

    Else the runs of other partitions would have to find them, and these do not read that far. The
    rows of a source that is read less far than another one are checked without those of others.

    :param result: what is read of each source → the rows of the function
    :param kind: the type of the event time
    """
    time, windowed = derivation.target_time, derivation.windowed
    widest = max(map(derivation.back, windowed)), max(map(derivation.ahead, windowed))
    groups = [
        windowed,
        *([s] for s in windowed if (derivation.back(s), derivation.ahead(s)) != widest),
    ]

    def rows_elsewhere(partition: Window, sources: Sequence[Source]) -> DataFrame:
        allowed = derivation.placed(partition, sources).condition(time, kind)
        nothing = Window(partition.end, partition.end)
        return (
            result(lambda source: partition if source in sources else nothing)
            .filter(~F.coalesce(allowed, F.lit(False)))
            .select(
                F.lit(str(partition)).alias("partition"),
                F.coalesce(F.col(quote(time)).cast("string"), F.lit("null")).alias("time"),
                F.lit(sources[0].name if len(groups) > 1 and len(sources) == 1 else "").alias(
                    "source"
                ),
            )
        )

    checked = [(partition, sources) for partition in partitions for sources in groups]
    for begin in range(0, len(checked), AT_ONCE):
        frames = starmap(rows_elsewhere, checked[begin : begin + AT_ONCE])
        for row in reduce(lambda combined, other: combined.union(other), frames).limit(1).collect():
            raise misplaced(derivation, *row)


def misplaced(
    derivation: Derivation, partition: str, time: str, of_source: str = ""
) -> TopicbergError:
    """Return the error of a row that no run would find.

    :param partition: the window of the rows of the sources that it follows from
    :param time: of the row, in UTC
    :param of_source: the name of the source, if it follows from the rows of only this one
    """
    source, column = Window.parse(partition), derivation.target_time
    sources = [source for source in derivation.windowed if of_source in ("", source.name)]
    allowed = derivation.placed(source, sources)
    moments = (allowed.start, allowed.end, source.start, source.end)
    start, end, first, last = (f"{each:%Y-%m-%d %H:%M}" if each else "" for each in moments)
    expected = f"from {start} to before {end}" if start else f"before {end}"
    rows = f"{first} to {last}" if first else f"before {last}"
    subject = f"table {derivation.name}: for the rows {rows} of {of_source or 'its sources'}, its"
    if time == "null":
        return TopicbergError(
            f"{subject} function returns a row without a {column}; expected is a time {expected}",
            hint=f"leave out rows without a {column} in the function, or use another time for them",
        )
    return TopicbergError(
        f"{subject} function returns a row with the {column} {time}; expected is a time {expected} "
        "(UTC)",
        hint=f"return the event time of the sources in {column}, "
        + _declaration(derivation, source, allowed, time, f" for {of_source}" if of_source else ""),
    )


def _declaration(
    derivation: Derivation, source: Window, allowed: Window, time: str, where: str
) -> str:
    """Return what would allow a row, as text; ``where``: for which source, in a sentence."""
    try:
        moment = datetime.fromisoformat(time).replace(tzinfo=UTC)
    except ValueError:  # Python's years are those of four digits
        return "and leave out rows with such a time"
    hour = timedelta(hours=1)
    if moment >= allowed.end:
        if source.start is None and source.end == derivation.first:
            return "or set an earlier `derived_partitions.start` in the spec of the topic"
        start = source.start or source.end - timedelta(hours=derivation.hours)
        return (
            f"or declare in `@derived_table` how much later it may be{where}: "
            f"`lookback=timedelta(hours={ceil((moment - start) / hour)})`, or more"
        )
    ahead = ceil((source.end - moment) / hour)
    return (
        f"or declare in `@derived_table` how much earlier it may be{where}: "
        f"`lookahead=timedelta(hours={ahead})`, or more, or `lookahead=FOREVER`, which reads the "
        "sources as a whole"
    )
