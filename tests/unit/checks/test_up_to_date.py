"""Whether a derived table has computed everything: by hours, through expiry, drops and gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, TimestamptzType

from topicberg.checks.derived import MEMORY, check_merged, check_up_to_date
from topicberg.checks.finding import Finding
from topicberg.iceberg.changes import Mark
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.iceberg.summaries import SOURCE_SNAPSHOTS
from topicberg.transforms import upsert_view
from topicberg.transforms.unread import (
    MAX_RANGES,
    READ,
    Read,
    SourceTable,
    Unread,
    _coarse,
    after,
    unread,
)
from topicberg.transforms.upsert_view import DEFINITION, UpsertView, defined_alike, refresh
from topicberg.transforms.windows import FOREVER, WINDOW, Window

SCHEMA = Schema(NestedField(1, "at", TimestamptzType()), NestedField(2, "id", LongType()))
START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = int(START.timestamp()) // 3600
NAME = "shop.orders"
numbers = count()


class Pair:
    """A source, and a table that is derived from it, as far as metadata go."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog, self.number = catalog, next(numbers)
        self.source = catalog.create_table(f"shop.orders{self.number}", SCHEMA)
        self.table: Table | None = None
        self.before: Any = None
        self.asked: list[str] = []

    def arrive(self, *hours: int) -> None:
        """In a snapshot each."""
        for hour in hours:
            rows = [{"at": START + timedelta(hours=hour), "id": hour}]
            self.source.append(pa.Table.from_pylist(rows, schema=schema_to_pyarrow(SCHEMA)))

    max_lateness: timedelta | None = None
    lookahead = timedelta()

    def begin(self, reach: timedelta = timedelta()) -> tuple[int | None, dict[str, Any]]:
        """What a run reads before it computes: the source's head, and what is unread of it."""
        if self.table is None:
            self.table = self.catalog.create_table(f"shop.totals{self.number}", SCHEMA)
        head = self.source.refresh().current_snapshot()
        windows = reach, self.lookahead
        sources = {NAME: SourceTable(self.source, "at", *windows, max_lateness=self.max_lateness)}
        return head.snapshot_id if head else None, unread(self.table.refresh(), "at", sources)

    def compute(
        self,
        first: int,
        last: int,
        begun: tuple[int | None, dict[str, Any]] | None = None,
        reach: timedelta = timedelta(),
    ) -> None:
        """The window of some hours, by a run that begins now or that began before."""
        head, read = begun or self.begin(reach)
        self.table.refresh().append(
            schema_to_pyarrow(SCHEMA).empty_table(),
            snapshot_properties={
                SOURCE_SNAPSHOTS: json.dumps({NAME: head}),
                WINDOW: str(window(first, last)),
                READ: after(read, [window(first, last)]),
            },
        )

    def expire(self, table: Table, keep: int) -> None:
        table.refresh()
        gone = [each.snapshot_id for each in sorted_snapshots(table)[:-keep]]
        if gone:
            table.maintenance.expire_snapshots().by_ids(gone).commit()
        table.refresh()

    def drop(self) -> None:
        self.catalog.drop_table(f"shop.totals{self.number}")
        self.table = None

    def check(
        self,
        minutes: float = 0,
        *,
        remember: bool = True,
        allowed: int = 30,
        reach: timedelta = timedelta(),
        first_hour: int = BEFORE_EVERYTHING,
    ) -> Finding:
        def keys(hours: Iterable[Hours]) -> list[str]:
            self.asked = sorted({f"{h - FIRST:02}" for r in hours for h in r if h >= FIRST - 9})
            return self.asked

        self.source.refresh()
        found = check_up_to_date(
            self.table.refresh() if self.table else None,
            "at",
            {
                NAME: SourceTable(
                    self.source, "at", reach, self.lookahead, max_lateness=self.max_lateness
                )
            },
            allowed,
            datetime.now(UTC) + timedelta(minutes=minutes),
            self.before if remember else None,
            keys,
            lambda late: f"compute {' '.join(late)}",
            first_hour,
        )
        if remember:
            self.before = json.loads(json.dumps(found.facts[MEMORY]))
        return found


def window(first: int, last: int) -> Window:
    begin = START + timedelta(hours=first)
    return Window(None if first <= 0 else begin, START + timedelta(hours=last + 1))


def sorted_snapshots(table: Table) -> list[Any]:
    return sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)


@pytest.fixture
def pair(catalog: SqlCatalog) -> Pair:
    return Pair(catalog)


@pytest.mark.parametrize("first", [-1, 0, 5])
def test_a_window_is_read_again_from_its_text(first: int) -> None:
    there = window(first, 7)
    assert Window.parse(str(there)) == there
    assert there.hours.stop == FIRST + 8


def test_an_hour_that_was_never_computed_is_told_whatever_else_was(pair: Pair) -> None:
    pair.arrive(1, 9)
    pair.compute(9, 9)
    assert pair.check().passed
    late = pair.check(31)
    assert not late.passed
    assert pair.asked == ["01"]
    assert "compute 01" in (late.remediation or "")
    assert "were not read yet, the oldest for 31 min" in late.what
    pair.compute(1, 1)
    assert pair.check(60).passed
    assert pair.asked == []


def test_the_open_hour_that_lags_a_little_is_never_late(pair: Pair) -> None:
    """New rows come between any two evaluations, and of each some are not read yet."""
    pair.arrive(9)
    for _ in range(3):
        pair.compute(9, 9)
        pair.arrive(9)
        head = pair.source.current_snapshot()
        (hours,) = pair.begin()[1][NAME].unread
        assert hours.since == head.timestamp_ms
    pair.arrive(9)
    (hours,) = pair.begin()[1][NAME].unread
    assert hours.since == head.timestamp_ms, "nothing was computed meanwhile"


def test_what_changes_nothing_is_not_waited_for(pair: Pair) -> None:
    """An empty append (a batch of broken records), or an hour that has not come yet."""
    pair.arrive(9)
    pair.compute(9, 9)
    pair.source.append(schema_to_pyarrow(SCHEMA).empty_table())
    pair.arrive(24 * 365 * 40)
    assert pair.check(60).passed
    assert pair.check(60, remember=False).passed


def test_rows_of_a_later_hour_are_named_until_it_is_computed(pair: Pair) -> None:
    later = int(datetime.now(UTC).timestamp()) // 3600 - FIRST + 3
    pair.arrive(9, later)
    pair.compute(9, 9)
    found = pair.check()
    assert (found.passed, found.facts["later_partitions"]) == (True, 1)
    assert found.what == (
        "everything that its sources hold was read; "
        f"rows of later hours in 1 partition ({later}) wait for their time"
    )
    pair.compute(later, later)
    assert pair.check().facts["later_partitions"] == 0


def test_expired_computations_are_not_forgotten(pair: Pair) -> None:
    """The writes of older hours expired, and no evaluation is remembered."""
    for hour in range(6):
        pair.arrive(hour)
        pair.compute(hour, hour)
    pair.arrive(1)
    pair.compute(4, 5)
    assert pair.table
    pair.expire(pair.table, 1)
    assert not pair.check(60, remember=False).passed
    assert pair.asked == ["01"]
    pair.compute(1, 1)
    pair.expire(pair.table, 1)
    assert pair.check(60, remember=False).passed
    pair.arrive(2)
    assert not pair.check(60, remember=False).passed
    assert pair.asked == ["02"]


def test_a_source_whose_snapshots_expired_before_they_were_looked_at(pair: Pair) -> None:
    for hour in range(4):
        pair.arrive(hour)
        pair.compute(hour, hour)
    pair.expire(pair.source, 1)
    assert pair.check(60).passed


def test_a_table_that_was_never_made(pair: Pair) -> None:
    pair.arrive(3)
    assert pair.check().passed
    late = pair.check(31)
    assert not late.passed
    assert "compute 03" in (late.remediation or "")
    pair.compute(3, 3)
    assert pair.check(40).passed


def test_a_table_that_was_dropped(pair: Pair) -> None:
    pair.arrive(1, 2)
    pair.compute(0, 2)
    assert pair.check(60).passed
    pair.drop()
    gone = pair.check(60)
    assert not gone.passed
    assert "the table is missing" in gone.what
    assert "compute 01 02" in (gone.remediation or "")
    assert not pair.check(60).passed, "until it is there again"
    pair.arrive(2)
    pair.compute(2, 2)
    assert not pair.check(60).passed, "the new one has one hour of two"
    assert pair.asked == ["01"]
    pair.compute(0, 2)
    assert pair.check(60).passed


def test_rows_that_a_rollback_undid_must_be_removed(pair: Pair) -> None:
    pair.arrive(1)
    head = pair.source.current_snapshot()
    pair.arrive(2)
    begun = pair.begin()
    pair.compute(0, 2)
    pair.source.manage_snapshots().rollback_to_snapshot(head.snapshot_id).commit()
    assert not pair.check(60).passed
    assert pair.asked == ["02"]
    pair.compute(0, 1)
    pair.compute(2, 2, begun)  # by a run that began before the rollback
    assert not pair.check(60).passed
    assert pair.asked == ["02"]
    pair.compute(2, 2)
    pair.arrive(3)
    pair.compute(3, 3)
    assert pair.check(60).passed


def test_a_lookup_counts_for_everything_after_it(pair: Pair) -> None:
    this_hour = int(datetime.now(UTC).timestamp()) // 3600 - FIRST
    next_hour = this_hour + 1  # which may come meanwhile
    pair.compute(this_hour - 9, next_hour, reach=FOREVER)
    pair.arrive(this_hour - 2)
    pair.compute(this_hour - 2, this_hour - 2, reach=FOREVER)
    assert not pair.check(60, remember=False, reach=FOREVER).passed
    assert pair.asked[:2] == [f"{this_hour - 1:02}", f"{this_hour:02}"]
    assert pair.asked[2:] in ([], [f"{next_hour:02}"])
    pair.compute(this_hour - 2, next_hour, reach=FOREVER)
    assert pair.check(60, remember=False, reach=FOREVER).passed


def test_what_looks_back_is_late_when_its_hour_has_come(pair: Pair) -> None:
    """A row of an hour counts for the next one as well, which has no partition yet."""
    hour, number = timedelta(hours=1), 24 * 365 * 40  # in the future: no clock comes there
    pair.arrive(number)
    pair.compute(number, number, reach=hour)

    def passes(minutes: int) -> bool:
        """Whether the check passes so long after the beginning of the hour."""
        moment = START + number * hour + timedelta(minutes=minutes)
        return pair.check((moment - datetime.now(UTC)) / timedelta(minutes=1), reach=hour).passed

    assert passes(30)
    assert pair.asked == []
    assert passes(65)
    assert pair.asked == [f"{number + 1:02}"]
    assert not passes(91)


@contextmanager
def memory_catalog(folder: str) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("unit", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
    catalog.create_namespace("shop")
    yield catalog
    catalog.close()


Step = tuple[str, int, int]
hours = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), hours, hours),
        st.tuples(st.just("compute"), hours, hours),
        st.tuples(st.just("begin"), hours, hours),
        st.tuples(st.just("compute what was begun"), hours, hours),
        st.tuples(st.just("check"), hours, hours),
    ),
    max_size=14,
)


@settings(max_examples=20)
@given(steps)
def test_whatever_happens_the_unread_hours_are_known(steps: list[Step]) -> None:
    with TemporaryDirectory() as folder, memory_catalog(folder) as catalog:
        pair = Pair(catalog)
        pair.compute(0, -1)
        unread: set[int] = set()
        begun, since = pair.begin(), set[int]()
        for what, one, other in [*steps, ("check", 0, 0)]:
            first, last = sorted((one, other))
            match what:
                case "arrive":
                    pair.arrive(one)
                    unread.add(one)
                    since.add(one)
                case "compute":
                    pair.compute(first, last)
                    unread -= set(range(first, last + 1))
                case "begin":
                    begun, since = pair.begin(), set[int]()
                case "compute what was begun":
                    pair.compute(first, last, begun)
                    unread -= set(range(first, last + 1)) - since
                case "check":
                    pair.check(60)
                    assert pair.asked == [f"{hour:02}" for hour in sorted(unread)]


def test_what_is_remembered_is_bounded() -> None:
    many = [Unread(hour, hour + 1, hour, hour, hour, hour) for hour in range(0, 40_000, 2)]
    many[500] = Unread(100_000, 100_001, 5, 5, 5, 5)
    coarse = _coarse(many, MAX_RANGES)
    assert len(coarse) <= MAX_RANGES
    assert coarse[-1] == many[500]
    held = {hour for each in coarse for hour in range(each.start, each.stop)}
    assert held >= {each.start for each in many}


MARK = Mark(table="t", snapshot=1, sequence=1, at=1)
hours_and_clocks = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(*[hours_and_clocks] * 6).map(lambda numbers: Unread(*numbers))))
def test_unread_hours_are_the_same_after_their_text(ranges: list[Unread]) -> None:
    read = Read(mark=MARK, unread=ranges, late=ranges[:1])
    assert Read.model_validate_json(read.model_dump_json()) == read
    lists = {**read.model_dump(), "unread": ranges, "late": ranges[:1]}
    assert Read.model_validate(lists) == read, "as earlier versions wrote them"


@pytest.mark.parametrize("gaps", [[40], [2, 3, 5, 80, 7], range(1, 90)])
def test_summary_of_2000_late_hours_is_a_few_kilobytes(gaps: Iterable[int]) -> None:
    hours = [*accumulate(Random(1).choices([*gaps], k=2000), initial=FIRST)]
    read = Read(mark=MARK, unread=[Unread(h, h + 1, h % 3, h % 3, h % 3, h % 3) for h in hours])
    assert len(after({NAME: read}, [])) < 10_000


def test_shorter_retention_for_a_while_forgets_no_unread_hours(pair: Pair) -> None:
    pair.arrive(1, 900)
    pair.compute(0, 900)
    pair.arrive(1)  # late
    assert not pair.check(60, remember=False).passed
    limit = FIRST + 900 - 30 * 24
    found = pair.check(60, first_hour=limit)
    assert found.passed
    assert "but for rows of before 2026-01-08 12:00" in found.what
    sources = {NAME: SourceTable(pair.source.refresh(), "at")}
    for _ in range(2):
        read = unread(pair.table.refresh(), "at", sources, limit)
        pair.compute(900, 900, (pair.source.current_snapshot().snapshot_id, read))
    assert pair.check(60, first_hour=limit).passed
    assert not pair.check(60).passed
    assert pair.asked == ["01"]


def test_rows_past_a_retention_are_counted(pair: Pair) -> None:
    pair.arrive(1, 1, 2, 9)
    pair.compute(9, 9)
    pair.arrive(2)
    limit = FIRST + 9
    found = pair.check(60, first_hour=limit)
    assert found.passed
    assert found.facts["late_rows"] == 4
    assert f"(up to 4 rows of {NAME})" in found.what
    pair.compute(2, 2)
    assert pair.check(60, first_hour=limit).facts["late_rows"] == 2
    pair.compute(1, 2)
    assert pair.check(60, first_hour=limit).facts["late_rows"] == 0


def test_rows_that_come_later_than_the_limit_are_counted_and_not_computed(pair: Pair) -> None:
    old = (datetime.now(UTC) - START) // timedelta(hours=1)
    pair.max_lateness = timedelta(hours=48)
    pair.arrive(0, old)
    pair.check()  # a table that is new computes everything
    assert pair.asked == ["00", f"{old:02}"]
    pair.compute(0, old)
    pair.arrive(3, 3, old - 49, old - 47, old)
    assert not pair.check(60).passed
    assert pair.asked == [f"{old - 47:02}", f"{old:02}"]
    pair.compute(old - 47, old)
    found = pair.check(60)
    assert found.passed
    assert found.facts["late_rows"] == 3
    assert "rows that came later than its `max_lateness` (up to 3 rows" in found.what
    pair.expire(pair.source, 1)
    assert pair.check(60).facts["late_rows"] == 3
    pair.compute(3, 3)  # a user requested it
    assert pair.check(60).facts["late_rows"] == 1


def test_late_partner_marks_all_hours_that_read_it_and_counts_where_they_are_too_old(
    pair: Pair,
) -> None:
    old = (datetime.now(UTC) - START) // timedelta(hours=1)
    pair.lookahead, pair.max_lateness = timedelta(hours=3), timedelta(hours=48)
    pair.arrive(0, old)
    pair.check()
    pair.compute(0, old)
    assert pair.check(60).facts["late_rows"] == 0
    pair.arrive(old - 20)
    assert not pair.check(60).passed
    assert pair.asked == [f"{old - hours:02}" for hours in (23, 22, 21, 20)]
    pair.compute(old - 23, old - 20)
    assert pair.check(60).facts["late_rows"] == 0, "every hour that reads it is computed"
    pair.arrive(old - 46)
    assert not pair.check(60).passed
    assert pair.asked == [f"{old - hours:02}" for hours in (48, 47, 46)]
    pair.compute(old - 48, old - 46)
    found = pair.check(60)
    assert found.passed
    assert found.facts["late_rows"] == 1, "the hour before the limit is not computed"
    pair.compute(old - 49, old - 49)
    assert pair.check(60).facts["late_rows"] == 0


def test_an_upsert_view(pair: Pair) -> None:
    def judge(view: Table | None, minutes: float) -> Finding:
        now = datetime.now(UTC) + timedelta(minutes=minutes)
        return check_merged(definition, view, pair.source.refresh(), 30, now, "merge")

    def merge(view: Table) -> None:
        head = pair.source.refresh().current_snapshot()
        note = {
            SOURCE_SNAPSHOTS: json.dumps({name: head.snapshot_id if head else None}),
            DEFINITION: definition.definition,
        }
        view.append(schema_to_pyarrow(SCHEMA).empty_table(), snapshot_properties=note)

    name = ".".join(pair.source.name())
    definition = UpsertView(
        ("shop", pair.source.name()[-1]), ("shop", "view"), ("id", "at"), ("at", "offset")
    )
    assert judge(None, 60).passed, "there are no records"
    pair.arrive(1)
    assert judge(None, 20).passed
    assert not judge(None, 60).passed
    view = pair.catalog.create_table(f"shop.view{pair.number}", SCHEMA)
    merge(view)
    assert judge(view, 60).passed
    pair.source.append(schema_to_pyarrow(SCHEMA).empty_table())
    assert judge(view, 60).passed, "no record came"
    pair.arrive(2)
    late = judge(view, 60)
    assert not late.passed
    assert "not read yet: 1 snapshot," in late.what
    merge(view)
    assert judge(view, 60).passed
    definition = replace(definition, keys=("at", "id"))
    assert judge(view, 0).passed, "the same keys"
    for changed in ({"keys": ("id",)}, {"order": ("id", "offset")}):
        changed_definition = replace(definition, **changed)
        assert not defined_alike(view, changed_definition)
        assert (
            "other keys or another order"
            in check_merged(
                changed_definition, view, pair.source, 30, datetime.now(UTC), "merge"
            ).what
        )


def test_refresh_of_a_view_with_other_keys_replaces_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.arrive(1)
    replaced: list[dict[str, str]] = []

    def replace_view(_: Any, view: UpsertView, source: Table, target: Table, note: Any) -> None:
        replaced.append(note)
        target.append(schema_to_pyarrow(SCHEMA).empty_table(), snapshot_properties=note)

    monkeypatch.setattr(upsert_view, "_replace", replace_view)
    spark: Any = None
    view = UpsertView(
        ("shop", pair.source.name()[-1]), ("shop", f"view{pair.number}"), ("id",), ("at",)
    )
    pair.catalog.create_table(view.target, SCHEMA)
    refresh(spark, pair.catalog, view)
    refresh(spark, pair.catalog, view)
    assert len(replaced) == 1
    refresh(spark, pair.catalog, replace(view, keys=("at",)))
    assert len(replaced) == 2
    assert json.loads(replaced[1][DEFINITION]) == {"keys": ["at"], "order": ["at"]}
