"""What the function of a derived table gets for a partition depends on no run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil, floor
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.placement import OUTSIDE, REFUSED, misplaced
from topicberg.transforms.windows import FOREVER, Window, reached

START = datetime(2026, 1, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
DURATIONS = st.sampled_from([None, timedelta(minutes=5), HOUR, 5 * HOUR, 30 * HOUR, FOREVER])
MINUTES = st.integers(-300, 5100)
CUTS = st.sets(st.integers(1, 79), max_size=8)


def plan(lookback: timedelta | None, lookahead: timedelta | None, width: int) -> Derivation:
    start = START if width == 1 else START.replace(hour=0)
    unused: Any = None
    return Derivation(
        sources=(Source(("shop", "orders"), "at", lookback=lookback, lookahead=lookahead),),
        target=("shop", "totals"),
        transform=unused,
        target_time="at",
        partitioned_by="hour" if width == 1 else "day",
        first=start,
    )


def window(derivation: Derivation, first: int, stop: int) -> Window:
    assert derivation.first
    partition = timedelta(hours=derivation.hours)
    start = derivation.first + first * partition if first else None
    return Window(start, derivation.first + stop * partition)


def reads(derivation: Derivation, runs: list[tuple[int, int]]) -> dict[Window, Window | None]:
    """Return partition → what the function reads for it, over all runs."""
    (source,) = derivation.sources
    return {
        partition: derivation.read(source, call)
        for run in runs
        for call in derivation.calls(window(derivation, *run))
        for partition in call.cut(derivation.hours, derivation.first)
    }


@given(DURATIONS, DURATIONS, st.sampled_from([1, 24]), CUTS)
def test_calls_of_any_runs_read_the_same_for_a_partition(
    lookback: timedelta | None, lookahead: timedelta | None, width: int, cuts: set[int]
) -> None:
    derivation = plan(lookback, lookahead, width)
    found = reads(derivation, list(pairwise([0, *sorted(cuts), 80])))
    assert found == reads(derivation, [(0, 80)])
    assert len(found) == 80
    for partition, read in found.items():
        if read is None:
            assert FOREVER in (lookback, lookahead)
            continue
        source = derivation.sources[0]
        assert read.end == partition.end + derivation.ahead(source)
        assert derivation.ahead(source) >= (lookahead or timedelta())
        if read.start is not None:
            assert partition.start is not None
            assert read.start == partition.start - derivation.back(source)


@given(DURATIONS, DURATIONS, st.sampled_from([1, 24]), st.integers(0, 20), st.data())
def test_rows_where_they_may_be_are_in_partitions_that_are_computed_again(
    lookback: timedelta | None,
    lookahead: timedelta | None,
    width: int,
    number: int,
    data: st.DataObject,
) -> None:
    """What is allowed for a partition is computed when any hour of it changes, and reads it."""
    derivation = plan(lookback, lookahead, width)
    first = derivation.first
    assert first
    source = data.draw(
        st.sampled_from([*derivation.partitions(window(derivation, number, number + 1))])
    )
    row = (source.start or first) + data.draw(st.floats(-80, 80)) * HOUR
    allowed = derivation.placed(source, derivation.sources)
    if not (row < allowed.end and (allowed.start is None or row >= allowed.start)):
        return
    hour = source.hours.stop - data.draw(st.integers(1, width if source.start else 1000))
    orders = derivation.sources[0]
    later, earlier = derivation.reach(orders), derivation.ahead(orders)
    hours = reached(Hours(hour, hour + 1), later, first + 1000 * HOUR, earlier)
    place = max(0, (row - first) // (width * HOUR))
    partition = window(derivation, place, place + 1)
    assert hours.start < partition.hours.stop or place == 0
    assert partition.hours.start < hours.stop
    (read,) = reads(derivation, [(place, place + 1)]).values()
    if read is not None:
        assert read.start is None or read.start <= (source.start or first)
        assert source.end <= read.end


@given(
    st.lists(st.tuples(DURATIONS, DURATIONS), min_size=3, max_size=3),
    st.lists(st.lists(MINUTES.map(lambda m: m / 60), max_size=8), min_size=3, max_size=3),
    CUTS,
    st.integers(0, 60),
)
def test_partners_of_each_row_depend_neither_on_runs_nor_on_the_place_in_time(
    durations: list[tuple[timedelta | None, timedelta | None]],
    times: list[list[float]],
    cuts: set[int],
    shift: int,
) -> None:
    """Each row of orders has as partners what its own partition reads of the other sources."""
    unused: Any = None
    derivation = Derivation(
        sources=tuple(
            Source(("shop", name), "at", lookback=back, lookahead=ahead)
            for name, (back, ahead) in zip(
                ("orders", "payments", "refunds"), durations, strict=True
            )
        ),
        target=("shop", "orders_paid"),
        transform=unused,
        target_time="at",
        first=START,
    )

    def table(moved: int, runs: list[tuple[int, int]]) -> set[tuple[float, int, tuple[float, ...]]]:
        """Return order → all rows of the others that the function gets beside it."""
        plan = replace(derivation, first=START + moved * HOUR)

        def rows(number: int, read: Window | None) -> list[float]:
            def is_read(at: datetime) -> bool:
                return not read or (at < read.end and (read.start is None or read.start <= at))

            moments = ((hours, START + (hours + moved) * HOUR) for hours in times[number])
            return [hours for hours, at in moments if is_read(at)]

        rows_of_runs = set()
        for run in runs:
            for call in plan.calls(window(plan, *run)):
                orders, *others = (
                    rows(number, plan.read(source, call))
                    for number, source in enumerate(plan.sources)
                )
                of_call = set(rows(0, call)) & set(orders)
                rows_of_runs |= {
                    (order, number, tuple(partners))
                    for order in of_call
                    for number, partners in enumerate(others)
                }
        return rows_of_runs

    whole = table(0, [(0, 80)])
    assert table(0, [*pairwise([0, *sorted(cuts), 80])]) == whole
    assert table(shift, [(0, 80)]) == whole
    for order, number, partners in whole:
        back, ahead = durations[number + 1]
        if FOREVER in (back, ahead) or order < 1:
            continue
        start = floor(order) - ceil((back or timedelta()) / HOUR)
        end = floor(order) + 1 + ceil((ahead or timedelta()) / HOUR)
        assert [*partners] == [at for at in times[number + 1] if start <= at < end]


@pytest.mark.parametrize(
    ("lookback", "lookahead", "hours"),
    [
        (timedelta(), timedelta(), Hours(10, 12)),
        (HOUR, timedelta(), Hours(10, 13)),
        (timedelta(), timedelta(minutes=90), Hours(8, 12)),
        (FOREVER, HOUR, Hours(9, 21)),
        (timedelta(), FOREVER, Hours(BEFORE_EVERYTHING, 12)),
    ],
)
def test_reached_with_lookback_and_lookahead_is_wider(
    lookback: timedelta, lookahead: timedelta, hours: Hours
) -> None:
    now = datetime.fromtimestamp(20 * 3600, UTC)
    assert reached(Hours(10, 12), lookback, now, lookahead) == hours


def test_reached_of_rows_without_a_time_stays_at_the_beginning() -> None:
    none = Hours(BEFORE_EVERYTHING, BEFORE_EVERYTHING + 1)
    assert reached(none, timedelta(), START, 5 * HOUR).start == BEFORE_EVERYTHING


@pytest.mark.parametrize(
    ("number", "time", "expected", "hint"),
    [
        (2, "2026-01-01 03:20:00", "expected is a time from 2026-01-01 06:00", "hours=5)"),
        (2, "2026-01-01 23:20:00.5", "to before 2026-01-01 08:00", "lookback=timedelta(hours=17)"),
        (2, "+57000-01-01 00:00:00", "row with the ts +57000", "leave out rows with such a time"),
        (2, "2026-01-02", "row with the ts 2026-01-02;", "lookback=timedelta(hours=17)"),
        (2, "null", "a row without a ts", "leave out rows without a ts"),
        (None, "2026-01-01 07:00:00", "before 2026-01-01 06:00", "`derived_partitions.start`"),
        (0, "2026-01-01 07:00:00", "before 2026-01-01 06:00", "lookback=timedelta(hours=2)"),
    ],
)
def test_misplaced_row_names_what_was_found_expected_and_needed(
    number: int | None, time: str, expected: str, hint: str
) -> None:
    unused: Any = None
    plan = Derivation(
        (Source(("shop", "o"), "at", lookahead=HOUR),), ("shop", "t"), unused, "ts", first=START
    )
    """``number``: of the partition; 0 with everything before it, None what is before it alone."""
    end = START if number is None else START + (number + 1) * HOUR
    source = Window(end - HOUR if number else None, end)
    text = f"[USER_RAISED_EXCEPTION] {OUTSIDE} {source} <{time}> SQLSTATE: P0001"
    error = misplaced(plan, *REFUSED.search(text).groups())
    assert expected in error.message
    assert hint in (error.hint or "")


def test_plan_that_another_error_quotes_has_no_misplaced_row() -> None:
    """As Spark 4.1 answers when the table of a source is dropped meanwhile."""
    window = Window(START, START + HOUR)
    plan = f"concat({OUTSIDE} {window} <, coalesce(cast('at as string), null), >)"
    assert REFUSED.search(f"[TABLE_OR_VIEW_NOT_FOUND] `lake`.`orders`; 'Project [{plan}]") is None


def test_misplaced_row_of_one_source_names_what_that_source_needs() -> None:
    unused: Any = None
    orders, refunds = Source(("shop", "o"), "at"), Source(("shop", "r"), "at", lookahead=5 * HOUR)
    plan = Derivation((orders, refunds), ("shop", "t"), unused, "ts", first=START)
    partition = str(Window(START + HOUR, START + 2 * HOUR))
    error = misplaced(plan, partition, "2026-01-01 04:30:00", "shop.o")
    assert "for the rows 2026-01-01 06:00 to 2026-01-01 07:00 of shop.o" in error.message
    assert "expected is a time from 2026-01-01 06:00 to before 2026-01-01 07:00" in error.message
    assert "earlier it may be for shop.o: `lookahead=timedelta(hours=3)`" in (error.hint or "")
