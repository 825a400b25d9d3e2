"""Which offsets a batch reads: nothing twice, nothing left out, whatever the cuts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.kafka.offsets import Offsets, PartitionOffset, dump_offsets, parse_offsets
from topicberg.tableflow.values.offsets import plan_batch
from topicberg.tableflow.values.skips import Skip, places

offsets = st.dictionaries(st.integers(0, 40), st.integers(0, 10**12), max_size=12)


@given(offsets)
def test_round_trip(value: Offsets) -> None:
    assert parse_offsets(dump_offsets(value)) == value


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 500))),
    st.integers(1, 200),
)
def test_batches_tile_the_log(log: dict[int, tuple[int, int]], limit: int) -> None:
    beginning = {p: first for p, (first, _) in log.items()}
    latest = {p: first + count for p, (first, count) in log.items()}
    held: Offsets = {}
    read: dict[int, list[int]] = {p: [] for p in log}
    while True:
        batch = plan_batch(held, beginning, latest, limit)
        if not batch.records:
            break
        assert batch.records <= limit
        for partition, (start, end) in batch.ranges.items():
            read[partition] += range(start, end)
        held = batch.end
    assert read == {p: list(range(beginning[p], latest[p])) for p in log}


def test_places_of_a_batch_that_is_half_passed_are_the_rest() -> None:
    skip = Skip(partition=1, offset=10, end=14, by="the engine", at_ms=0, reason="")
    assert [*places([skip], {})] == [(1, 10), (1, 11), (1, 12), (1, 13)]
    assert [*places([skip], {1: 12})] == [(1, 12), (1, 13)]
    assert not places([skip], {1: 10**9})


def test_shorter_batch_has_only_its_own_skips() -> None:
    batch = plan_batch({}, {0: 0, 1: 0}, {0: 9, 1: 9}, 100, [(0, 0), (1, 0), (1, 1)])
    shorter = batch.until({0: 0, 1: 1})
    assert shorter.skipped == {(1, 0)}
    following = plan_batch(shorter.end, {0: 0, 1: 0}, {0: 9, 1: 9}, 100, [(0, 0), (1, 1)])
    assert shorter.skipped | following.skipped == batch.skipped


def test_new_partition_starts_at_its_beginning() -> None:
    assert plan_batch({0: 5}, {0: 0, 1: 0}, {0: 5, 1: 9}, 100).ranges == {1: (0, 9)}


def test_first_batch_starts_where_the_log_does() -> None:
    assert plan_batch({}, {0: 0, 1: 3}, {0: 5, 1: 9}, 100).ranges == {0: (0, 5), 1: (3, 9)}


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 60))),
    st.sets(st.tuples(st.integers(0, 6), st.integers(0, 120)), max_size=40),
    st.integers(1, 200),
)
def test_batches_leave_out_what_is_skipped(
    log: dict[int, tuple[int, int]], skip: set[PartitionOffset], limit: int
) -> None:
    beginning = {p: first for p, (first, _) in log.items()}
    latest = {p: first + count for p, (first, count) in log.items()}
    held: Offsets = {}
    read: list[PartitionOffset] = []
    skipped: list[PartitionOffset] = []
    while (batch := plan_batch(held, beginning, latest, limit, skip)).records:
        read += [(p, o) for p, (start, end) in batch.ranges.items() for o in range(start, end)]
        skipped += batch.skipped
        held = batch.end
    everything = {(p, o) for p in log for o in range(beginning[p], latest[p])}
    assert sorted(read + skipped) == sorted(everything)
    assert set(skipped) == skip & everything


@pytest.mark.parametrize(
    ("offsets", "text"),
    [({1: 7, 0: 12}, "[12,7]"), ({1: 7}, '{"1":7}'), ({}, "{}"), ({0: 12}, '{"0": 12}')],
)
def test_parse_offsets_of_any_version_returns_them(offsets: dict[int, int], text: str) -> None:
    assert parse_offsets(text) == offsets
    assert len(dump_offsets(offsets)) <= len(text)
