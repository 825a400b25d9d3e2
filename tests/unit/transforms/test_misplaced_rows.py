"""What the error of a row says that no run would find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.placement import OUTSIDE, REFUSED, misplaced
from topicberg.transforms.windows import Window

START = datetime(2026, 1, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


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
    refused = REFUSED.search(text)
    error = misplaced(plan, *refused.groups())
    assert expected in error.message
    assert hint in (error.hint or "")


def test_misplaced_row_of_one_source_names_what_that_source_needs() -> None:
    unused: Any = None
    orders, refunds = Source(("shop", "o"), "at"), Source(("shop", "r"), "at", lookahead=5 * HOUR)
    plan = Derivation((orders, refunds), ("shop", "t"), unused, "ts", first=START)
    partition = str(Window(START + HOUR, START + 2 * HOUR))
    error = misplaced(plan, partition, "2026-01-01 04:30:00", "shop.o")
    assert "for the rows 2026-01-01 06:00 to 2026-01-01 07:00 of shop.o" in error.message
    assert "expected is a time from 2026-01-01 06:00 to before 2026-01-01 07:00" in error.message
    assert "earlier it may be for shop.o: `lookahead=timedelta(hours=3)`" in (error.hint or "")
