"""The search for failing records, and what is learnt of the size of batches."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.kafka.offsets import Offsets, Place
from topicberg.tableflow.isolation import ATTEMPTS, Isolation
from topicberg.tableflow.offsets import plan_batch
from topicberg.tableflow.places import CHUNK, Places
from topicberg.tableflow.sizing import (
    LEARNT_BYTES,
    MIN_RATIO,
    SMALL_BYTES,
    BatchSize,
    small,
)

logs = st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 50), st.integers(0, 300)))
places = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 350)), max_size=6)


@given(logs, places, st.integers(1, 500), st.integers(1, 100))
def test_isolation_blames_failing_records_only(
    log: dict[int, tuple[int, int]], bad: set[Place], limit: int, part: int
) -> None:
    """As the engine does it: every other record is read once, and the number of steps is bounded.

    :param part: how much one attempt reads at most: the client stops after some megabytes
    """
    beginning = {p: first for p, (first, _) in log.items()}
    latest = {p: first + count for p, (first, count) in log.items()}
    held: Offsets = dict(beginning)
    blamed: set[Place] = set()
    read: list[Place] = []
    search: Isolation | None = None
    steps = 0
    while True:
        if search is not None and search.culprit is not None:
            blamed.add(search.culprit)
            search = None
        ends = search.next_ends(held, limit) if search else None
        if ends is None:
            search, ends = None, latest
        batch = plan_batch("t", held, beginning, ends, limit, blamed)
        if not batch.records:
            break
        if search is not None:  # by the client
            cut = next((p for p, (s, e) in batch.ranges.items() if e - s > part), None)
            if cut is not None:
                batch = batch.until({cut: batch.ranges[cut][0] + part})
        steps += 1
        found = {(p, o) for p, (start, end) in batch.ranges.items() for o in range(start, end)}
        if not found & bad:
            read += found
            held = batch.end
        elif search is None:
            search = Isolation(batch.end, "it fails")
        else:
            search.fail(batch.ranges, "it fails")
    everything = {(p, o) for p in log for o in range(beginning[p], latest[p])}
    assert blamed == bad & everything
    assert sorted(read) == sorted(everything - bad)
    rounds = len(everything) / min(limit, part) + len(blamed) * (2 * log2(limit + 1) + 10)
    assert steps <= 2 * rounds + 2 * len(log) + 2


def test_isolation_requires_proof_before_it_blames_a_record() -> None:
    search = Isolation({0: 100}, "it fails")
    assert search.unchecked
    for number in range(ATTEMPTS):
        assert search.culprit is None
        search.unchecked = False
        search.fail({0: (7, 8)}, f"{number}")
        assert search.unchecked
    assert search.culprit == (0, 7)


def test_isolation_blames_a_certain_record_at_its_first_failure() -> None:
    search = Isolation({0: 100}, "it fails")
    search.fail({0: (5, 8)}, "it fails", is_certain=True)  # of several, any may be the reason
    assert search.culprit is None
    search.fail({0: (7, 8)}, "it fails", is_certain=True)
    assert search.unchecked
    assert search.culprit == (0, 7)


def test_isolation_ends_where_others_committed() -> None:
    search = Isolation({0: 100, 1: 50}, "it fails")
    search.fail({0: (10, 20), 1: (0, 5)}, "it fails")
    assert search.next_ends({0: 15, 1: 5}, 1000) == {0: 17, 1: 5}
    search.fail({0: (15, 16)}, "it fails")
    assert search.next_ends({0: 16, 1: 5}, 1000) == {0: 100, 1: 50}
    assert search.single_failures == 0
    assert search.next_ends({0: 100, 1: 50}, 1000) is None


@given(st.integers(1, 100_000), st.data(), st.sampled_from([2, 16]))
def test_isolation_bounds_failures_and_commits(size: int, data: st.DataObject, parts: int) -> None:
    """Few failures, each of which may cost a restart of Spark, and few commits for each of them."""
    bad = data.draw(st.integers(0, size - 1))
    search, held, failures, commits = Isolation({0: size}, "it fails"), 0, 1, 0
    search.fail({0: (0, size)}, "it fails")
    while search.culprit is None:
        ends = search.next_ends({0: held}, size, parts)
        assert ends is not None
        if held <= bad < ends[0]:
            failures += 1
            search.fail({0: (held, ends[0])}, "it fails")
        else:
            commits, held = commits + 1, ends[0]
    assert search.culprit == (0, bad)
    levels = log2(size) / log2(parts) + 1
    assert failures <= levels + ATTEMPTS + 1
    assert commits <= (2 * parts + 2) * levels


def test_size_fits_the_bytes_of_a_commit() -> None:
    size = BatchSize.of(5_000_000, 250_000_000)
    large = [1_000_000.0] * 5
    assert size.fit(large, 100_000)[0] == 250
    assert size.fit([100.0] * 5, 100_000)[0] == 100_000
    assert size.fit([], 3_000_000) == (3_000_000, None)
    # Small records first: the batch ends before the large ones.
    records, average = size.fit([100.0, 100.0, 1e6, 1e6, 1e6], 4_000_000)
    assert 1_000_000 <= records <= 1_000_200
    assert average == pytest.approx(250, rel=0.1)
    # What is learnt of the files' compression makes later batches larger, within limits.
    compressed = size.committed(250, 1_000_000.0, 25_000_000)
    assert compressed.fit(large, 100_000)[0] == 250 / max(0.1, MIN_RATIO)
    assert size.committed(250, 1_000_000.0, LEARNT_BYTES - 1).ratio == 1.0


@given(
    st.lists(st.floats(0, 1e8), max_size=6),
    st.integers(1, 10**7),
    st.integers(1, 10**9),
    st.floats(0, 10),
)
def test_size_is_within_its_limits(
    sizes: list[float], offsets: int, max_bytes: int, ratio: float
) -> None:
    size = BatchSize(5_000_000, max_bytes, 5_000_000, ratio)
    records, average = size.fit(sizes, offsets)
    assert 1 <= records <= min(offsets, 5_000_000)
    if average and records > 1:
        assert (records - 1) * average * max(ratio, MIN_RATIO) <= max_bytes * 1.01 + average


def test_size_shrinks_after_failures_and_grows_again() -> None:
    size = BatchSize.of(5_000_000, 250_000_000)
    full = size.out_of_space(10_000, None)
    assert full.limit == 5_000
    assert full.committed(5_000, None, 1).limit == 10_000
    assert small(1_000_000.0) == SMALL_BYTES // 1_000_000
    for _ in range(60):
        full = full.out_of_space(full.limit, 10_000_000.0)
    assert full.limit == 1
    for _ in range(30):
        full = full.committed(full.limit, None, 1)
    assert full.limit == 5_000_000


def test_size_survives_a_restart() -> None:
    size = BatchSize.of(5_000_000, 250_000_000).out_of_space(1_000_000, None)
    size = size.committed(100_000, 1000.0, 20_000_000)
    again = BatchSize.of(5_000_000, 250_000_000, size.dump())
    assert (again.limit, again.ratio) == (size.limit, size.ratio)
    assert BatchSize.of(10, 1, size.dump()).limit == 10
    learnt = BatchSize.of(1_000_000, 1_000, '{"limit": 1000000, "ratio": 0.1}')
    assert learnt.fit([1, 1], 1_000_000)[0] == 8_000
    assert learnt.fit([1, 1], 1_000_000, is_compressed=False)[0] == 1_000
    assert BatchSize.of(10, 1, "{}").limit == 10


@given(st.sets(st.tuples(st.integers(0, 2000), st.integers(0, 2**63 - 1)), max_size=30))
def test_places_are_the_same_after_a_restart(some: set[Place]) -> None:
    found = Places()
    for place in some:
        assert place not in found
        found.add(place)
    again = Places.load(found.dump())
    assert all(place in again for place in some)
    assert all((p, o + 1) in some or (p, o + 1) not in again for p, o in some)


def test_places_are_small_and_forget_what_is_committed() -> None:
    found = Places()
    for offset in range(0, 60 * CHUNK, 3):
        found.add((0, offset))
    assert sum(map(len, found.dump().values())) < 250_000
    found.forget({0: 59 * CHUNK})
    assert (0, 0) not in found
    assert (0, 60 * CHUNK - 3) in found
