"""The sensor's decisions under any interleaving of commits, ticks, crashes and run outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from jobs.snapshot_cursor import (
    MAX_ATTEMPTS,
    MAX_RANGES,
    Cursor,
    Request,
    RunState,
    observe,
    observe_metadata,
    register,
    request,
    settle,
)

PARTITIONS = [f"2026-01-01-{hour:02}:00" for hour in range(24)]


@dataclass
class World:
    """A table, a run storage that knows each run key once, and a sensor with a durable cursor."""

    snapshots: list[set[str]] = field(default_factory=list)
    cursor: str | None = None
    reported: list[int] = field(default_factory=list)
    runs: dict[str, RunState] = field(default_factory=dict)
    covers: dict[str, tuple[set[str], int]] = field(default_factory=dict)
    registered: dict[str, int] = field(default_factory=dict)
    existing: int = len(PARTITIONS)

    def tick(self, *, crash: bool = False) -> None:
        before = Cursor.parse(self.cursor)
        asked = [wanted for wanted in (before.request, before.registration) if wanted]
        keys = [key for wanted in asked for key in wanted.ranges]
        cursor = settle(before, {key: self.runs.get(key, "missing") for key in keys})
        start = cursor.snapshot or 0
        for number in range(start, len(self.snapshots)):
            cursor = observe(cursor, number + 1, self.snapshots[number])
        cursor, wanted = request(cursor, PARTITIONS[: self.existing], "t")
        cursor, registration = register(cursor, "t")
        if crash:  # nothing of the tick is kept
            return
        self.reported += range(start + 1, len(self.snapshots) + 1)
        self.cursor = cursor.model_dump_json()
        for key, partitions in wanted.ranges.items() if wanted else ():
            if key not in self.runs:  # Dagster skips a run key that it has seen
                under_way = {run for run, state in self.runs.items() if state == "active"}
                assert not under_way & set(self.covers) - set(wanted.ranges)
                self.runs[key] = "active"
                self.covers[key] = (set(partitions), len(self.snapshots))
        for key in registration.ranges if registration else ():
            assert not {run for run in self.registered if self.runs[run] == "active"}
            self.runs.setdefault(key, "active")
            self.registered.setdefault(key, len(self.snapshots))

    def finish(self, state: RunState) -> None:
        for key in self.runs:
            if self.runs[key] == "active":
                self.runs[key] = state


steps = st.lists(
    st.one_of(
        st.sets(st.sampled_from(PARTITIONS), max_size=4).map(lambda p: ("commit", frozenset(p))),
        st.sampled_from([("tick", None), ("crash", None), ("succeed", None), ("fail", None)]),
    ),
    max_size=40,
)


@given(steps)
def test_every_touched_partition_is_computed_after_it_was_touched(
    history: list[tuple[str, frozenset[str] | None]],
) -> None:
    world = World()
    for action, partitions in history:
        match action:
            case "commit":
                world.snapshots.append(set(partitions or ()))
            case "tick" | "crash":
                world.tick(crash=action == "crash")
            case "succeed" | "fail":
                world.finish("succeeded" if action == "succeed" else "failed")
    world.snapshots.append(set())  # even after runs that failed for good, the next snapshot heals
    for _ in range(MAX_ATTEMPTS + 3):
        world.tick()
        world.finish("succeeded")
    assert world.reported == list(range(1, len(world.snapshots) + 1))
    done = [covers for key, covers in world.covers.items() if world.runs[key] == "succeeded"]
    for number, touched in enumerate(world.snapshots, start=1):
        for partition in touched:
            assert any(partition in covered and seen >= number for covered, seen in done)
    assert Cursor.parse(world.cursor).request is None or not Cursor.parse(world.cursor).pending
    newest = [seen for key, seen in world.registered.items() if world.runs[key] == "succeeded"]
    assert max(newest) == len(world.snapshots)


def test_a_burst_of_snapshots_costs_one_run() -> None:
    world = World(snapshots=[{PARTITIONS[0]}] * 20)
    for _ in range(5):
        world.tick()
        world.finish("succeeded")
    assert len(world.covers) == len(world.registered) == 1
    assert world.reported == list(range(1, 21))


def test_partitions_wait_while_a_run_is_under_way() -> None:
    world = World(snapshots=[{PARTITIONS[0]}])
    world.tick()
    world.snapshots += [{PARTITIONS[1]}, {PARTITIONS[2]}, {PARTITIONS[5]}]
    world.tick()
    assert len(world.covers) == 1
    world.finish("succeeded")
    world.tick()
    assert [sorted(covered) for covered, _ in list(world.covers.values())[1:]] == [
        PARTITIONS[1:3],
        PARTITIONS[5:6],
    ]


def test_a_failed_run_is_repeated_and_then_awaits_the_next_snapshot() -> None:
    world = World(snapshots=[{PARTITIONS[0]}])
    for _ in range(10):
        world.tick()
        world.finish("failed")
    assert len(world.covers) == len(world.registered) == MAX_ATTEMPTS
    world.snapshots.append({PARTITIONS[3]})
    world.tick()
    covered = set.union(*(c for key, (c, _) in world.covers.items() if key.startswith("t:2:")))
    assert covered == {PARTITIONS[0], PARTITIONS[3]}
    assert len(world.registered) == MAX_ATTEMPTS + 1


def test_hours_of_the_future_wait_for_their_partition() -> None:
    world = World(snapshots=[{PARTITIONS[3]}], existing=2)
    world.tick()
    world.finish("succeeded")
    world.tick()
    assert not world.covers
    world.existing = 4
    world.tick()
    assert list(world.covers.values())[-1][0] == {PARTITIONS[3]}


def test_compaction_refreshes_the_registrations_alone() -> None:
    cursor, wanted = request(observe(Cursor(), 7, ()), PARTITIONS, "t")
    assert wanted is None
    cursor, wanted = register(cursor, "t")
    assert wanted == Request(snapshot=7, ranges={"t:7:0": []})
    assert cursor.registration == wanted


def test_scattered_partitions_are_few_runs() -> None:
    scattered = set(PARTITIONS[::2])
    _, wanted = request(observe(Cursor(), 1, scattered), PARTITIONS, "t")
    assert wanted is not None
    assert len(wanted.ranges) == MAX_RANGES
    assert scattered <= {partition for ranges in wanted.ranges.values() for partition in ranges}


class Catalogs:
    """Ticks of a sensor whose runs succeed at once; ``requests``: how many there were."""

    def __init__(self) -> None:
        self.cursor, self.requests = Cursor(), 0

    def tick(self, metadata: str, snapshot: int) -> None:
        before = self.cursor
        ran = before.registration.ranges if before.registration else ()
        cursor = settle(before, dict.fromkeys(ran, "succeeded"))
        if cursor.snapshot != snapshot:
            cursor = observe(cursor, snapshot, [])
        cursor = observe_metadata(cursor, before, metadata)
        self.cursor, wanted = register(cursor, "t")
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
    cursor, computing = request(observe(Cursor(), 1, PARTITIONS[:1]), PARTITIONS, "t")
    assert computing
    cursor, first = register(cursor, "t")
    assert first
    assert register(cursor, "t") == (cursor, None), "it is registered already"

    cursor = observe(cursor, 2, PARTITIONS[:1])
    assert register(cursor, "t")[1] is None, "the first is under way"
    states: dict[str, RunState] = {
        **dict.fromkeys(computing.ranges, "active"),
        **dict.fromkeys(first.ranges, "succeeded"),
    }
    cursor = settle(cursor, states)
    assert request(cursor, PARTITIONS, "t")[1] is None
    cursor, second = register(cursor, "t")
    assert second
    assert not set(second.ranges) & set(first.ranges)

    states.update(dict.fromkeys(second.ranges, "failed"))
    states.update(dict.fromkeys(computing.ranges, "succeeded"))
    cursor = settle(cursor, states)
    cursor, computing = request(cursor, PARTITIONS, "t")
    assert computing, "what was touched meanwhile is computed all the same"
    assert list(computing.ranges.values()) == [PARTITIONS[:1]]
    assert register(cursor, "t")[1], "what failed is tried again"


def test_a_cursor_of_an_older_version_goes_on() -> None:
    """It registered in the run that computes; the last run beside it stayed in the cursor."""
    was = (
        '{"snapshot": 3, "dirty": true, "pending": ["2026-01-01-05:00"], "requests": 4, '
        '"request": {"snapshot": 2, "ranges": {"t:2:1": []}}, '
        '"registration": {"snapshot": 2, "ranges": {"t:2:2:registered": []}}}'
    )
    cursor = settle(Cursor.parse(was), {"t:2:1": "succeeded", "t:2:2:registered": "succeeded"})
    cursor, computing = request(cursor, PARTITIONS, "t")
    assert computing == Request(
        snapshot=3, ranges={"t:3:4:2026-01-01-05:00..2026-01-01-05:00": [PARTITIONS[5]]}
    )
    assert register(cursor, "t")[1] == Request(snapshot=3, ranges={"t:3:5": []})
