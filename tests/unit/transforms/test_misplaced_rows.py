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
        (Source(("shop", "o"), "at"),),
        ("shop", "t"),
        unused,
        "ts",
        lookahead=HOUR,
        first=START,
    )
    """``number``: of the partition; 0 with everything before it, None what is before it alone."""
    end = START if number is None else START + (number + 1) * HOUR
    source = Window(end - HOUR if number else None, end)
    text = f"[USER_RAISED_EXCEPTION] {OUTSIDE} {source} <{time}> SQLSTATE: P0001"
    refused = REFUSED.search(text)
    assert refused
    error = misplaced(plan, *refused.groups())
    assert expected in error.message
    assert hint in (error.hint or "")
