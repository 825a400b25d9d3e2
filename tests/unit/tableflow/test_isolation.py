"""The search for failing records, sizes of batches that are learnt, subjects of dead letters."""

from __future__ import annotations

from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.kafka.offsets import PartitionOffset
from topicberg.settings import Settings
from topicberg.tableflow.batch.sizing import LEARNT_BYTES, MIN_RATIO, SMALL_BYTES, BatchSize, small
from topicberg.tableflow.rejected.deadletters import DeadLetters
from topicberg.tableflow.service.record_search import ATTEMPTS, MOST_BLAMED, Isolation
from topicberg.tableflow.values.offsets import CHUNK, OffsetSet, plan_batch
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import ERROR_LOG_SCHEMA
from topicberg.topics.schema import schema_path

logs = st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 50), st.integers(0, 300)))
places = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 350)), max_size=6)


@given(logs, places, st.integers(1, 500), st.sampled_from([2, 16]))
def test_isolation_blames_failing_records_only(
    log: dict[int, tuple[int, int]], bad: set[PartitionOffset], limit: int, parts: int
) -> None:
    """Every other record is read, and the number of attempts is bounded."""
    start = {p: first for p, (first, _) in log.items()}
    until = {p: first + count for p, (first, count) in log.items()}
    blamed: set[PartitionOffset] = set()
    read: set[PartitionOffset] = set()
    attempts, search = 0, Isolation(dict(start), until)
    while search.rest:
        batch = plan_batch(search.start, start, search.next_ends(limit, parts), limit, blamed)
        assert batch.records
        attempts += 1
        found = {(p, o) for p, (first, end) in batch.ranges.items() for o in range(first, end)}
        if not found & bad:
            read |= found
            search.succeed(batch.end)
            continue
        search.fail(batch.ranges)
        if (culprit := search.culprit) is not None:
            blamed.add(culprit)
            search.blame(culprit)
    everything = {(p, o) for p in log for o in range(start[p], until[p])}
    assert blamed == bad & everything
    assert search.blamed == len(blamed)
    assert read == everything - bad
    levels = log2(limit) / log2(parts) + 1
    rounds = len(everything) / limit + len(blamed) * (2 * parts + 2 + ATTEMPTS) * (levels + 1)
    assert attempts <= rounds + len(log) + 1


def test_isolation_blames_a_record_at_its_second_failure_in_a_row() -> None:
    search = Isolation({0: 0}, {0: 100})
    search.fail({0: (7, 8)})
    assert search.culprit is None
    search.succeed({0: 8})
    search.fail({0: (8, 9)})
    assert search.culprit is None
    search.fail({0: (8, 9)})
    assert search.culprit == (0, 8)


def test_isolation_blames_a_certain_record_at_its_first_failure() -> None:
    search = Isolation({0: 0}, {0: 100})
    search.fail({0: (5, 8)}, is_certain=True)  # of several, any may be the reason
    assert search.culprit is None
    search.fail({0: (7, 8)}, is_certain=True)
    assert search.culprit == (0, 7)


def test_isolation_goes_on_behind_a_part() -> None:
    search = Isolation({0: 0, 1: 0}, {0: 100, 1: 50})
    search.fail({0: (0, 20), 1: (0, 5)})
    assert search.next_ends(1000, 2) == {0: 12, 1: 0}
    search.succeed({0: 12, 1: 0})
    assert search.next_ends(1000, 2) == {0: 20, 1: 4}
    search.succeed({0: 20, 1: 5})
    assert search.next_ends(1000, 2) == {0: 100, 1: 50}
    search.succeed({0: 100, 1: 50})
    assert not search.rest
    assert not search.blamed


def test_isolation_of_records_that_all_fail_ends() -> None:
    search = Isolation({0: 0}, {0: 10 * MOST_BLAMED})
    while search.rest:
        ((partition, end),) = search.next_ends(10, 2).items()
        search.fail({partition: (search.start[0], end)}, is_certain=True)
        if search.culprit is not None:
            search.blame(search.culprit)
    assert search.blamed == MOST_BLAMED


@given(st.integers(1, 100_000), st.data(), st.sampled_from([2, 16]))
def test_isolation_bounds_failures(size: int, data: st.DataObject, parts: int) -> None:
    """Few failures, each of which may cost a process, and few records that are read again."""
    bad = data.draw(st.integers(0, size - 1))
    search, failures, read = Isolation({0: 0}, {0: size}), 0, 0
    while search.culprit is None:
        ((_, end),) = search.next_ends(size, parts).items()
        start = search.start[0]
        read += end - start
        if start <= bad < end:
            failures += 1
            search.fail({0: (start, end)})
        else:
            search.succeed({0: end})
    assert search.culprit == (0, bad)
    assert failures <= log2(size) / log2(parts) + 2 + ATTEMPTS
    assert read <= 3 * size + ATTEMPTS


def test_size_fits_the_bytes_of_a_commit() -> None:
    size, large = BatchSize.of(5_000_000, 250_000_000), [1_000_000.0] * 5
    assert (size.fit(large, 100_000)[0], size.fit([100.0] * 5, 100_000)[0]) == (250, 100_000)
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
    records, average = BatchSize(5_000_000, max_bytes, 5_000_000, ratio).fit(sizes, offsets)
    assert 1 <= records <= min(offsets, 5_000_000)
    if average and records > 1:
        assert (records - 1) * average * max(ratio, MIN_RATIO) <= max_bytes * 1.01 + average


def test_size_shrinks_after_failures_and_grows_again() -> None:
    full = BatchSize.of(5_000_000, 250_000_000).out_of_space(10_000, None)
    assert (full.limit, full.committed(5_000, None, 1).limit) == (5_000, 10_000)
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
def test_places_are_the_same_after_a_restart(some: set[PartitionOffset]) -> None:
    found = OffsetSet()
    for place in some:
        assert place not in found
        found.add(place)
    again = OffsetSet.load(found.dump())
    assert all(place in again for place in some)
    assert all((p, o + 1) in some or (p, o + 1) not in again for p, o in some)
    assert list(again) == sorted(some)
    half = OffsetSet.of(sorted(some)[::2])
    assert [*(again - half), *(again & half)] == [*sorted(some)[1::2], *sorted(some)[::2]]
    assert list(half | again) == sorted(some)
    assert len(again) == len(some)


def test_places_are_small_and_forget_what_is_committed() -> None:
    found = OffsetSet()
    for offset in range(0, 60 * CHUNK, 3):
        found.add((0, offset))
    assert sum(map(len, found.dump().values())) < 250_000
    found = found.without_chunks_before({0: 59 * CHUNK})
    assert (0, 0) not in found
    assert found.chunks == 1
    assert (0, 60 * CHUNK - 3) in found


OURS = schema_path(Path(), ERROR_LOG_SCHEMA).read_text()


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        (OURS, True),
        (OURS.replace("topicberg", "other"), False),
        ('{"type": "object"}', False),
        ('{"type": "record", "name": "R", "fields": 5}', False),
        ('syntax = "proto3";', False),
        ("[" * 10_000, False),
    ],
    ids=["ours", "namespace", "json", "fields", "protobuf", "deep"],
)
def test_subject_of_dead_letters_has_their_schema(tmp_path: Path, text: str, is_ours: bool) -> None:
    fields = {"name": "orders", "pipeline": "shop", "schema": {"format": "none"}}
    latest = SimpleNamespace(schema=SimpleNamespace(schema_str=text))
    registry = SimpleNamespace(get_latest_version=lambda _: latest)
    endpoints = SimpleNamespace(schema_registry_client=lambda: registry)
    letters = DeadLetters(
        TopicSpec.model_validate(fields), cast(Any, endpoints), Settings(state_dir=tmp_path)
    )
    assert letters._is_ours("topicberg.ErrorLog") is is_ours
