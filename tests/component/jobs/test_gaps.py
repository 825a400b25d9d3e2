"""Derived tables through outages: expired snapshots, lost cursors, rollbacks, killed runs. At the
end every table is what computing everything again makes of its sources, and at no moment a check
passes while that is not so."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from lake_model import HOURS, Lake, step
from memory_instance import memory_instance
from pyiceberg.catalog.sql import SqlCatalog

from topicberg.iceberg.changes import Mark, changed
from topicberg.iceberg.hours import Hours
from topicberg.iceberg.read_tags import PREFIX, reading
from topicberg.iceberg.summaries import ancestry
from topicberg.transforms.windows import Window


@pytest.fixture
def lake(catalog: SqlCatalog) -> Iterator[Lake]:
    with memory_instance() as instance:
        yield Lake(catalog, instance, partitioned=False)


@settings(max_examples=2)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_any_history_ends_at_the_full_recomputation(
    seed: int, partitioned: bool, exact: bool
) -> None:
    """And no run computes an hour of a table again that is complete."""
    check_history(seed, partitioned=partitioned, exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_more_histories_end_at_the_full_recomputation(seed: int, exact: bool) -> None:
    check_history(seed, partitioned=seed % 2 == 0, exact=exact)


def check_history(seed: int, *, partitioned: bool, exact: bool) -> None:
    random, history = Random(seed), list[str]()
    with TemporaryDirectory() as folder, memory_instance() as instance:
        catalog = SqlCatalog("unit", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
        lake = Lake(catalog, instance, partitioned=partitioned, exact=exact)
        try:
            history += (step(lake, random) for _ in range(18))
            lake.settle()
            lake.verify()
            lake.cursor = None
            assert lake.settle() == 0, "a reset of the cursor computes nothing again"
        except AssertionError:
            print("\n".join(history))  # noqa: T201  what led there
            raise
        finally:
            catalog.close()


@pytest.mark.parametrize(
    ("lost", "maintained"),
    [
        (False, False),
        (True, True),
        # Random histories have these as well.
        *(pytest.param(lost, not lost, marks=pytest.mark.slow) for lost in (False, True)),
    ],
)
def test_a_daemon_away_for_days_loses_no_hour(lake: Lake, lost: bool, maintained: bool) -> None:
    """All but the newest snapshot are expired, by topicberg or by another tool."""
    lake.append("a", 0, 1)
    lake.append("l", 0)
    lake.settle()
    for hour in range(HOURS + 1):
        lake.append("a", hour)
        lake.append("b", hour, ids=[hour])
    lake.delete("a", [1])
    lake.delete_by_position("a", [2, 5])
    lake.compact("a")
    for name in ("a", "b", "l", *lake.derived):
        (lake.maintain if maintained else lake.expire)(name)
    if lost:
        lake.cursor = None
    for name in lake.derived:
        if lake.rows(name) != lake.truth(name):
            assert not lake.check(name)[0].passed
    lake.settle()
    lake.verify()


def test_only_hours_that_expired_unread_are_computed(catalog: SqlCatalog) -> None:
    """Also if their rows are in other files since, and the cursor is lost."""
    with memory_instance() as instance:
        lake = Lake(catalog, instance, partitioned=True, exact=True)
        for name in ("a", "b", "l"):
            lake.ingest(name, *range(HOURS + 1))
        lake.settle()
        lake.ingest("a", 1, replaced=[2])
        lake.append("a", HOURS)
        lake.delete("b", [HOURS + 2])
        for name in ("a", "b", "l", *lake.derived):
            lake.compact(name)
            lake.maintain(name)
        lake.cursor = None
        assert lake.settle() > 0  # the lake asserts which hours the runs have
        lake.verify()


@pytest.mark.parametrize("maintained", [False, True])
def test_a_gap_costs_what_changed_in_it(lake: Lake, maintained: bool) -> None:
    """Not all hours, unless another tool expired snapshots and old files were rewritten as well."""
    expire = lake.maintain if maintained else lake.expire
    for hour in range(HOURS):
        lake.append("a", hour)
    mark = Mark.of(table := lake.table("a"), table.current_snapshot())
    lake.append("a", HOURS)
    lake.append("a", HOURS)
    expire("a")
    found = changed(lake.table("a"), "at", mark)
    assert not found.everything
    hour = int(lake.hours[-1].timestamp()) // 3600
    assert {change.hours for change in found.changes} == {Hours(hour, hour + 1)}
    lake.compact("a")
    expire("a")
    assert changed(lake.table("a"), "at", mark).everything is not maintained


def test_what_is_read_does_not_expire(lake: Lake) -> None:
    """A computation that takes longer than snapshots are kept."""
    lake.append("a", 0, 1)
    lake.append("l", 0)
    window = Window(None, lake.hours[-1])
    begun = [lake.begin(lake.derived[name], window) for name in ("looked_up", "counted")]
    tags = [name for name in lake.table("a").refs() if name.startswith(PREFIX)]
    assert {name.split("-", 3)[3].rpartition("-")[0] for name in tags} == {
        f"{lake.shop}.looked_up",
        f"{lake.shop}.counted",
    }
    for name in ("a", "l"):
        lake.append(name, 2)
        lake.compact(name)
        lake.maintain(name)
    assert all(lake.finish(each) for each in begun)
    lake.settle()
    lake.verify()


def test_tags_of_killed_readers_go_after_a_day(lake: Lake) -> None:
    lake.append("a", 0)
    killed = reading([lake.table("a")], "killed")
    killed.__enter__()  # its end would remove the tag
    (name,) = [ref for ref in lake.table("a").refs() if ref.startswith(PREFIX)]
    lake.append("a", 1)
    lake.maintain("a")
    assert len(list(lake.table("a").metadata.snapshots)) == 2
    old = f"{PREFIX}{int(name.split('-')[2]) - 2 * 86_400_000}-killed-x"
    first = list(ancestry(lake.table("a")))[-1].snapshot_id
    lake.table("a").manage_snapshots().remove_tag(name).create_tag(first, old).commit()
    lake.maintain("a")
    assert [*lake.table("a").refs()] == ["main"]
    assert len(list(lake.table("a").metadata.snapshots)) == 1
