"""What the snapshot sensor remembers, and when it tries again what failed."""

from __future__ import annotations

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.orchestration.jobs.watches import (
    ATTEMPT,
    MAX_DELAY_SECONDS,
    UNCHECKED,
    UNFINISHED,
    UNOBSERVED,
    UNREGISTERED,
    Cursor,
    RequestedRun,
    TableCursor,
    short_hash,
)

FLAGS = (UNCHECKED, UNFINISHED, UNOBSERVED, UNREGISTERED)
states = st.builds(
    TableCursor,
    snapshot=st.none() | st.integers(-(2**63), 2**63 - 1),
    registered=st.text().map(short_hash) | st.just(""),
    signal=st.text().map(lambda text: short_hash(text, 6)) | st.just(""),
    flags=st.sets(st.sampled_from(FLAGS)).map(lambda flags: "".join(sorted(flags))),
    observed=st.integers(0, 2**31 // 60),
)


@given(st.dictionaries(st.text(max_size=255), states))
def test_cursor_has_the_same_states_after_its_text(tables: dict[str, TableCursor]) -> None:
    cursor = Cursor.of(tables, 7)
    assert Cursor.parse(cursor.model_dump_json(exclude_defaults=True)).states(tables) == tables


@given(st.text(min_size=255, max_size=255), states)
def test_cursor_of_a_table_is_at_most_60_bytes(name: str, state: TableCursor) -> None:
    empty, cursor = Cursor(), Cursor.of({name: state}, 0)
    assert len(cursor.model_dump_json()) - len(empty.model_dump_json()) < 60


@pytest.mark.parametrize("text", [None, "", "7", "{}", '{"life": "1"}', '{"tables": {"x": "y"}}'])
def test_cursor_that_no_tick_has_written_is_empty(text: str | None) -> None:
    assert Cursor.parse(text).states(["x"]) == {}


def test_state_of_another_form_is_left_out() -> None:
    cursor = Cursor(tables={short_hash("a"): "x", short_hash("b"): str(TableCursor(5))})
    assert cursor.states(["a", "b"]) == {"b": TableCursor(5)}


def test_each_attempt_waits_longer_than_the_one_before() -> None:
    def delay(attempt: int) -> float:
        run = dg.DagsterRun("j", tags={ATTEMPT: str(attempt)}, status=dg.DagsterRunStatus.FAILURE)
        return RequestedRun(run, 0.0, 100.0).due - 100.0

    assert [delay(attempt) for attempt in range(4)] == [10, 20, 40, 80]
    assert delay(20) == delay(2000) == MAX_DELAY_SECONDS
