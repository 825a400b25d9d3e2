"""The sensor's decisions under any interleaving of commits, ticks, crashes and run outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from topicberg.iceberg.changes import Mark
from topicberg.iceberg.hours import Hours
from topicberg.orchestration.assets.partitions import Span, spans, time_partitions
from topicberg.orchestration.jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    MAX_RANGES,
    ComputationRequest,
    RunState,
    TableCursor,
    observe,
    observe_metadata,
    postpone,
    register,
    request,
    settle,
    wants_registration,
)
from topicberg.topics import TopicSpec

PARTITIONS = time_partitions(
    TopicSpec.model_validate(
        {
            "name": "t",
            "pipeline": "p",
            "schema": {"format": "none"},
            "derived_partitions": {"granularity": "hourly", "start": "2026-01-01"},
        }
    )
)
FIRST = int(PARTITIONS.start.timestamp()) // 3600
HOURS = 24


def plan(existing: int = HOURS) -> Callable[[list[Hours]], tuple[list[Span], list[Hours]]]:
    """:param existing: so many partitions exist"""
    now = PARTITIONS.start + timedelta(hours=existing) - timedelta(minutes=1)
    return lambda hours: spans(PARTITIONS, hours, now, MAX_RANGES)


def mark(number: int) -> Mark:
    return Mark(table="t", snapshot=number, sequence=number, at=number)


def ranges(hours: Iterable[int]) -> list[Hours]:
    return [Hours(FIRST + hour, FIRST + hour + 1) for hour in hours]


def covered(spans: Iterable[Span]) -> set[int]:
    return {
        hour - FIRST
        for span in spans
        for hour in range(max(span.hours.start, FIRST), span.hours.stop)
    }


NEW = TableCursor(life="l")


def ask(cursor: TableCursor, key: str) -> tuple[TableCursor, ComputationRequest | None]:
    """What the sensor does for every table: the request of the run that registers it, if any."""
    if not wants_registration(cursor):
        return cursor, None
    cursor = register(cursor, key)
    return cursor, cursor.registration


@dataclass
class World:
    """A table, a run storage that knows each run key once, and a sensor with a durable cursor."""

    snapshots: list[set[int]] = field(default_factory=list)
    cursor: str | None = None
    reported: list[int] = field(default_factory=list)
    runs: dict[str, RunState] = field(default_factory=dict)
    covers: dict[str, tuple[set[int], int]] = field(default_factory=dict)
    registered: dict[str, int] = field(default_factory=dict)
    registrations: int = 0
    existing: int = HOURS

    def tick(self, *, crash: bool = False) -> None:
        before = TableCursor.parse(self.cursor)
        asked = [wanted for wanted in (before.request, before.registration) if wanted]
        keys = [key for wanted in asked for key in wanted.ranges]
        cursor = settle(before, {key: self.runs.get(key, "missing") for key in keys})
        start = cursor.snapshot or 0
        for number in range(start, len(self.snapshots)):
            cursor = observe(cursor, mark(number + 1), ranges(self.snapshots[number]))
        cursor, runs = request(cursor, plan(self.existing), "t")
        cursor, registration = ask(cursor, f"registration:{self.registrations}")
        if crash:  # nothing of the tick is kept
            return
        self.reported += range(start + 1, len(self.snapshots) + 1)
        self.cursor = cursor.model_dump_json()
        assert not runs or (cursor.request and [*cursor.request.ranges] == [*runs])
        for key, chosen in runs.items():
            if key not in self.runs:  # Dagster skips a run key that it has seen
                under_way = {run for run, state in self.runs.items() if state == "active"}
                assert not under_way & set(self.covers) - set(runs)
                self.runs[key] = "active"
                self.covers[key] = covered(chosen), len(self.snapshots)
        self.registrations += registration is not None
        for key in registration.ranges if registration else ():
            assert not {run for run in self.registered if self.runs.get(run) == "active"}
            self.runs.setdefault(key, "active")
            self.registered.setdefault(key, len(self.snapshots))

    def finish(self, state: RunState) -> None:
        for key in self.runs:
            if self.runs[key] == "active":
                self.runs[key] = state


steps = st.lists(
    st.one_of(
        st.sets(st.integers(0, HOURS - 1), max_size=4).map(lambda p: ("commit", frozenset(p))),
        st.sampled_from(
            [("tick", None), ("crash", None), ("succeed", None), ("fail", None), ("lose", None)]
        ),
    ),
    max_size=40,
)


@given(steps)
def test_every_touched_partition_is_computed_after_it_was_touched(
    history: list[tuple[str, frozenset[int] | None]],
) -> None:
    world = World()
    for action, hours in history:
        match action:
            case "commit":
                world.snapshots.append(set(hours or ()))
            case "lose":  # runs that were requested and never launched
                for key in [key for key, state in world.runs.items() if state == "active"]:
                    del world.runs[key]
            case "tick" | "crash":
                world.tick(crash=action == "crash")
            case "succeed" | "fail":
                world.finish("succeeded" if action == "succeed" else "failed")
    world.snapshots.append(set())  # even after runs that failed for good, the next snapshot heals
    for _ in range(MAX_ATTEMPTS + 3):
        world.tick()
        world.finish("succeeded")
    assert world.reported == list(range(1, len(world.snapshots) + 1))
    done = [covers for key, covers in world.covers.items() if world.runs.get(key) == "succeeded"]
    for number, touched in enumerate(world.snapshots, start=1):
        for partition in touched:
            assert any(partition in hours and seen >= number for hours, seen in done)
    assert (
        TableCursor.parse(world.cursor).request is None
        or not TableCursor.parse(world.cursor).pending
    )
    newest = [seen for key, seen in world.registered.items() if world.runs.get(key) == "succeeded"]
    assert max(newest) == len(world.snapshots)


def test_a_burst_of_snapshots_costs_one_run() -> None:
    world = World(snapshots=[{0}] * 20)
    for _ in range(5):
        world.tick()
        world.finish("succeeded")
    assert len(world.covers) == len(world.registered) == 1
    assert world.reported == list(range(1, 21))


def test_partitions_wait_while_a_run_is_under_way() -> None:
    world = World(snapshots=[{0}])
    world.tick()
    world.snapshots += [{1}, {2}, {5}]
    world.tick()
    assert len(world.covers) == 1
    world.finish("succeeded")
    world.tick()
    assert [sorted(covered) for covered, _ in list(world.covers.values())[1:]] == [[1, 2, 5]]


def test_a_failed_run_is_repeated_and_then_awaits_the_next_snapshot() -> None:
    world = World(snapshots=[{0}])
    for _ in range(10):
        world.tick()
        world.finish("failed")
    assert len(world.covers) == len(world.registered) == MAX_ATTEMPTS
    world.snapshots.append({3})
    world.tick()
    hours = set.union(*(c for key, (c, _) in world.covers.items() if key.startswith("t:2:")))
    assert hours == {0, 3}
    assert len(world.registered) == MAX_ATTEMPTS + 1


def test_hours_of_the_future_wait_for_their_partition() -> None:
    world = World(snapshots=[{3}], existing=2)
    world.tick()
    world.finish("succeeded")
    world.tick()
    assert not world.covers
    world.existing = 4
    world.tick()
    assert list(world.covers.values())[-1][0] == {3}


def test_compaction_refreshes_the_registrations_alone() -> None:
    cursor, runs = request(observe(NEW, mark(7), ()), plan(), "t")
    assert not runs
    cursor, wanted = ask(cursor, "first")
    assert wanted == ComputationRequest(ranges={"first": []})
    assert cursor.registration == wanted


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=900))
@settings(max_examples=20)
def test_scattered_partitions_are_few_runs_that_compute_no_others(scattered: set[int]) -> None:
    """Also those that a tick had no room to request are requested by the next."""
    cursor, computed, requests = observe(NEW, mark(1), ranges(scattered)), list[int](), 0
    while cursor.pending:
        cursor, runs = request(cursor, plan(4000), "t")
        postponed, again = request(postpone(cursor), plan(4000), "t")
        assert (*again.values(),) == (*runs.values(),)
        assert not again.keys() & runs.keys()
        cursor, runs = postponed, again
        (chosen,) = runs.values()
        computed += sorted(covered(chosen))
        cursor = settle(cursor, dict.fromkeys(runs, "succeeded"))
        requests += 1
    assert computed == sorted(scattered)
    assert requests <= len(scattered) // MAX_RANGES + 1


def test_run_keys_after_a_reset_are_new_ones() -> None:
    """Dagster launches no run with a key that it has seen, however often a cursor is reset."""
    keys: list[str] = []
    for _ in range(3):
        cursor = observe(TableCursor.parse(None), mark(7), ranges([1]))
        cursor, runs = request(cursor, plan(), "t")
        assert runs
        keys += runs
    assert len(set(keys)) == 3


class Catalogs:
    """Ticks of a sensor whose runs succeed at once; ``requests``: how many there were."""

    def __init__(self) -> None:
        self.cursor, self.requests = NEW, 0

    def tick(self, metadata: str, snapshot: int) -> None:
        before = self.cursor
        ran = before.registration.ranges if before.registration else ()
        cursor = settle(before, dict.fromkeys(ran, "succeeded"))
        if cursor.snapshot != snapshot:
            cursor = observe(cursor, mark(snapshot), [])
        cursor = observe_metadata(cursor, before, metadata, metadata)
        self.cursor, wanted = ask(cursor, f"registration:{self.requests}")
        self.requests += wanted is not None


def test_maintenance_without_a_snapshot_asks_for_the_catalogs_once() -> None:
    catalogs = Catalogs()
    for _ in range(4):
        catalogs.tick("1.json", 1)
    assert catalogs.requests == 1
    for _ in range(4):
        catalogs.tick("2.json", 1)  # snapshots expired
    assert catalogs.requests == 2


def test_a_staged_batch_asks_for_nothing_before_it_is_published() -> None:
    catalogs = Catalogs()
    catalogs.tick("1.json", 1)
    catalogs.tick("1.json", 1)
    catalogs.tick("2.json", 1)  # staged
    assert catalogs.requests == 1
    catalogs.tick("3.json", 2)  # published
    catalogs.tick("3.json", 2)
    catalogs.tick("3.json", 2)
    assert catalogs.requests == 2


def test_a_computation_does_not_hold_up_the_catalogs() -> None:
    """Each snapshot is registered once, one at a time, and computed when there is time for it."""
    cursor, computing = request(observe(NEW, mark(1), ranges([0])), plan(), "t")
    assert computing
    cursor, first = ask(cursor, "first")
    assert first
    assert ask(cursor, "second") == (cursor, None), "it is registered already"

    cursor = observe(cursor, mark(2), ranges([0]))
    assert ask(cursor, "second")[1] is None, "the first is under way"
    states: dict[str, RunState] = {
        **dict.fromkeys(computing, "active"),
        **dict.fromkeys(first.ranges, "succeeded"),
    }
    cursor = settle(cursor, states)
    assert not request(cursor, plan(), "t")[1]
    cursor, second = ask(cursor, "second")
    assert second

    states.update(dict.fromkeys(second.ranges, "failed"))
    states.update(dict.fromkeys(computing, "succeeded"))
    cursor = settle(cursor, states)
    cursor, computing = request(cursor, plan(), "t")
    assert computing, "what was touched meanwhile is computed all the same"
    assert covered(*computing.values()) == {0}
    assert ask(cursor, "third")[1], "what failed is tried again"
