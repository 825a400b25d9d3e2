"""The checks on small tables of a catalog of their own, without the stack."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import boto3
import dagster as dg
import pyarrow as pa
import pytest
from equality_deletes import with_equality_deletes
from format_versions import allow_version_3, upgrade
from hypothesis import given
from hypothesis import strategies as st
from memory_kafka import MemoryKafka, topic_of
from moto import mock_aws
from partition_matrix import Case
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestamptzNanoType,
    TimestamptzType,
)
from typer.testing import CliRunner

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.names import TablePath
from topicberg.catalogs.snowflake.tables import NoSuchIcebergTableError, SnowflakeTable
from topicberg.checks.catalogs import check_parity, check_pointer, is_late, place, stale_since
from topicberg.checks.check import CheckedTable, Probe, TableCheck, evaluate
from topicberg.checks.finding import Finding, from_ms, good, moment
from topicberg.checks.rules import (
    CHECKED_RULE,
    CHECKED_SNAPSHOT,
    COVERS,
    VERDICT,
    by_statistics,
    check_columns,
    check_rules,
    column_rules,
    files_since,
    repeated,
)
from topicberg.checks.table import (
    check_readable_by,
    check_volume,
    equality_deletes_check,
    judge_volume,
    readable_by_check,
    usual_range,
)
from topicberg.checks.topic import (
    ACKNOWLEDGED,
    acknowledge,
    check_deletes,
    check_engine,
    check_freshness,
    check_history,
    check_skipped,
    last_commit,
    status_findings,
)
from topicberg.cli import app
from topicberg.errors import TableFormatError, TopicbergError, UnreachableError
from topicberg.errors.table import Kind
from topicberg.iceberg.position_deletes import trim_deletes
from topicberg.iceberg.readers import EVERY
from topicberg.iceberg.summaries import END_OFFSETS, FIRST_OFFSETS, ROWS_SKIPPED, TOPIC_ID
from topicberg.iceberg.tables import find_table
from topicberg.kafka.offsets import dump_offsets
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.registry import TopicTable
from topicberg.orchestration.checks.adapter import definition, result
from topicberg.orchestration.checks.evaluations import finding_of
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import Settings, settings
from topicberg.tableflow.erasure.matching import Rows
from topicberg.tableflow.erasure.steps import Erasure
from topicberg.tableflow.service.status import OpenTransaction, TopicStatus
from topicberg.tableflow.upsert.tombstones import MISSED, Missed
from topicberg.topics import Rules, TopicSpec, load_topic, load_topics
from topicberg.topics.spec import Freshness

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
SCHEMA = Schema(
    NestedField(1, "time", TimestamptzType()),
    NestedField(2, "side", StringType()),
    NestedField(3, "price", IntegerType()),
    NestedField(4, "amount", DecimalType(9, 2)),
    NestedField(5, "share", DoubleType()),
)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("shop.orders", SCHEMA)


def append(table: Table, *rows: dict[str, Any]) -> None:
    table.append(pa.Table.from_pylist(list(rows), schema=SCHEMA.as_arrow()))


def check(table: Table, name: str, rules: Rules, last: Finding | None = None) -> Finding:
    return check_rules(table, name, column_rules(rules, table.schema())[name], last, ("time",))


NOT_NULL = Rules(not_null=("side",))


def passed(finding: Finding) -> Finding:
    assert finding.passed
    return finding


def of_rule(finding: Finding, rule: str) -> Finding:
    return replace(finding, facts={**finding.facts, CHECKED_RULE: rule})


@pytest.mark.parametrize(
    ("name", "rules", "good", "bad"),
    [
        ("not_null", NOT_NULL, {"side": "BUY"}, {"price": 1}),
        (
            "accepted_values",
            Rules(accepted_values={"side": ["BUY", "SELL"]}),
            {"side": None},
            {"side": "HOLD"},
        ),
        ("ranges", Rules(ranges={"price": {"min": 1, "max": 9}}), {"price": 9}, {"price": 10}),
        ("ranges", Rules(ranges={"price": {"min": 0.5}}), {"price": 1}, {"price": 0}),
        ("ranges", Rules(ranges={"amount": {"max": 5}}), {"amount": 5}, {"amount": 6}),
        ("ranges", Rules(ranges={"share": {"min": 0.1}}), {"share": 0.1}, {"share": 0.05}),
        ("ranges", Rules(ranges={"price": {"min": 1}}), {"price": None}, {"price": -1}),
        ("ranges", Rules(ranges={"share": {"min": 0}}), {"share": None}, {"share": math.nan}),
        ("ranges", Rules(ranges={"share": {"max": 9}}), {"share": 9.0}, {"share": math.nan}),
        (
            "accepted_values",
            Rules(accepted_values={"share": [9.0]}),
            {"share": 9.0},
            {"share": math.nan},
        ),
    ],
)
def test_rules(table: Table, name: str, rules: Rules, good: Any, bad: Any) -> None:
    assert check(table, name, rules).passed  # no rows yet
    append(table, good)
    assert check(table, name, rules).passed
    append(table, good, {**good, **bad} if name != "not_null" else bad)
    finding = check(table, name, rules)
    assert not finding.passed
    column = next(iter(bad)) if name != "not_null" else "side"
    assert f"1 row where {column}" in finding.what
    assert finding.since is not None
    assert finding.facts["sample"].num_rows == 1


def shown(table: Table, name: str, rules: Rules, before: Finding | None) -> Finding | None:
    return by_statistics(table, column_rules(rules, table.schema())[name], before)


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``shut()``: no data file can be opened from now on."""

    def opened(*_: Any, **__: Any) -> Any:
        raise AssertionError("a data file was opened")

    return lambda: monkeypatch.setattr(ArrowScan, "to_record_batches", opened)


def test_by_statistics_good_files_pass_unopened(table: Table, shut: Callable[[], None]) -> None:
    append(table, {"side": "BUY", "price": 3})
    rules = Rules(not_null=("side",), ranges={"price": {"min": 1, "max": 9}})
    first = {name: passed(check(table, name, rules)) for name in ("not_null", "ranges")}
    append(table, {"side": "SELL", "price": 9})
    shut()
    head = table.current_snapshot()
    assert head is not None
    for name, before in first.items():
        found = shown(table, name, rules, before)
        assert found is not None
        assert passed(found).facts[CHECKED_SNAPSHOT] == str(head.snapshot_id)
        assert found.facts[CHECKED_RULE] == before.facts[CHECKED_RULE]
        assert found.facts[COVERS] == moment(from_ms(head.timestamp_ms))
        assert found.facts[VERDICT] == found.what


def test_by_statistics_nan_that_no_count_excludes_does_not_decide(table: Table) -> None:
    rules = Rules(ranges={"share": {"min": 0, "max": 9}})
    append(table, {"share": 3.0})
    before = passed(check(table, "ranges", rules))
    append(table, {"share": 4.0}, {"share": math.nan})  # Parquet's bounds leave NaN out
    assert shown(table, "ranges", rules, before) is None
    finding = check(table, "ranges", rules, before)
    assert "1 row where share violates the rule: is in 0 ≤ share ≤ 9" in finding.what


def test_ranges_of_doubles_that_partition_the_table_are_exact(catalog: SqlCatalog) -> None:
    """PyIceberg reads 0.7 in a manifest as 0.699999988, and skips the file."""
    table = Case(DoubleType(), "identity", [0.5, 0.7]).create(catalog, "shop")
    finding = check(table, "ranges", Rules(ranges={"x": {"max": 0.69999999}}))
    assert "1 row where x violates the rule" in finding.what


def test_by_statistics_does_not_decide_without_proof(table: Table) -> None:
    rules = Rules(accepted_values={"side": ["BUY", "SELL"]}, not_null=("side",))
    append(table, {"side": "BUY"})
    before = passed(check(table, "accepted_values", rules))
    append(table, {"side": "BUY"}, {"side": "SELL"})  # HOLD lies between them
    assert shown(table, "accepted_values", rules, before) is None
    assert shown(table, "not_null", rules, None) is None
    assert shown(table, "not_null", rules, of_rule(before, "another rule")) is None
    good = passed(check(table, "not_null", rules))
    append(table, {"price": 1})
    assert shown(table, "not_null", rules, good) is None


def test_repeated_verdict_says_which_rows_it_covers(table: Table) -> None:
    append(table, {"price": 1})
    key, finding = dg.AssetKey(["iceberg", "orders"]), check(table, "not_null", NOT_NULL)
    for _ in range(2):  # a repeated one does not grow
        made = result(key, "not_null", finding, None)
        evaluation = dg.AssetCheckEvaluation(
            asset_key=key,
            check_name="not_null",
            passed=made.passed,
            metadata=made.metadata,
            severity=made.severity,
            description=made.description,
        )
        again = repeated(finding_of(evaluation))
        assert again is not None
        finding = again
    assert not finding.passed
    assert finding.what.count("rows committed until") == 1
    assert finding.what.startswith("not_null: 1 row where side")
    assert finding.remediation is not None
    assert repeated(None) is None


def test_what_passed_once_is_not_read_again_unless_its_rule_or_snapshot_is_another(
    table: Table,
) -> None:
    append(table, {"side": "BUY"})
    before = passed(check(table, "not_null", NOT_NULL))
    assert files_since(table, int(before.facts[CHECKED_SNAPSHOT])) == {}
    append(table, {"price": 1})
    assert len(files_since(table, int(before.facts[CHECKED_SNAPSHOT])) or ()) == 1
    lost = replace(before, facts={**before.facts, CHECKED_SNAPSHOT: "1"})
    for earlier in (before, of_rule(before, "other"), lost):
        assert not check(table, "not_null", NOT_NULL, earlier).passed


@pytest.mark.parametrize(
    ("name", "earlier", "later", "row"),
    [
        (
            "ranges",
            Rules(ranges={"price": {"max": 1_000_004}}),
            Rules(ranges={"price": {"max": 1_000_000}}),
            {"price": 1_000_004},
        ),
        (
            "ranges",
            Rules(ranges={"share": {"min": 1_700_000_000_000}}),
            Rules(ranges={"share": {"min": 1_700_000_900_000}}),
            {"share": 1_700_000_500_000.0},
        ),
        (
            "accepted_values",
            Rules(accepted_values={"side": ["a, b"]}),
            Rules(accepted_values={"side": ["a", "b"]}),
            {"side": "a, b"},
        ),
    ],
)
def test_check_rules_narrower_rule_reads_files_that_passed(
    table: Table, name: str, earlier: Rules, later: Rules, row: dict[str, Any]
) -> None:
    append(table, row)
    before = passed(check(table, name, earlier))
    assert shown(table, name, later, before) is None
    assert "1 row where" in check(table, name, later, before).what


def test_rows_that_go_are_forgiven(table: Table) -> None:
    append(table, {"price": 1}, {"side": "BUY", "price": 2})
    assert not check(table, "not_null", NOT_NULL).passed
    table.delete(EqualTo(term="price", value=1))
    assert check(table, "not_null", NOT_NULL).passed


def test_rules_of_a_missing_column_name_where_to_fix() -> None:
    rules = Rules(not_null=("side", "prise"), unique=("also_missing",))
    finding = check_columns(rules, SCHEMA, "`rules=Rules(…)` of shares in assets/pipelines/shop.py")
    assert finding is not None
    assert "no column prise; did you mean price?" in finding.what
    assert "no column also_missing; there are time, side" in finding.what
    assert finding.remediation == "correct `rules=Rules(…)` of shares in assets/pipelines/shop.py"
    assert check_columns(NOT_NULL, SCHEMA, "") is None


def test_rules_of_a_derived_table_name_its_file(catalog: SqlCatalog) -> None:
    derived = replace(find_derived()[0], rules=NOT_NULL)
    others = [one for one in find_derived() if one.name != derived.name]
    lake = Lake(settings(), tuple(load_topics()), (derived, *others))
    named = {
        table.name: check
        for table, system, checks in lake.checks
        for check in checks
        if system == "iceberg" and check.name in ("not_null", "ranges")
    }
    without = catalog.create_table("shop.without", Schema(NestedField(1, "x", StringType())))
    probe = cast("Probe", SimpleNamespace(iceberg=without, last=lambda _: None))
    finding = named[derived.name].evaluate(probe)
    assert finding.remediation == f"correct `rules=Rules(…)` of {derived.name} in {derived.file}"
    assert (settings().project_root / derived.file).is_file()
    finding = named["stock_trades"].evaluate(probe)
    assert finding.remediation == "correct `checks:` in topics/stock_trades.yaml"


def test_readable_by_names_the_readers_that_cannot(table: Table) -> None:
    schema = Schema(
        NestedField(1, "at", TimestampNanoType()),
        NestedField(2, "list", ListType(3, TimestamptzNanoType())),
    )
    table = cast(
        "Table", SimpleNamespace(format_version=3, schema=lambda: schema, schemas=dict, specs=dict)
    )
    found = check_readable_by(table, EVERY)
    assert not found.passed
    assert found.severity == "warning"
    for reason in (
        "Athena (it reads format versions up to 2)",
        "Spark (column at is of type timestamp_ns)",
        "DuckDB (column list.element is of type timestamptz_ns)",
    ):
        assert reason in found.what
    for other in ("Snowflake", "PyIceberg"):
        assert other not in found.what


@pytest.mark.parametrize("name", ["readable_by", "equality_deletes"])
def test_checks_of_an_unreadable_table_fail_once(name: str) -> None:
    """All other checks name the check that reports it, so that it is one alert."""

    class Unreadable:
        table = SimpleNamespace(name="orders", apply_deletes="CALL …")

        @property
        def iceberg(self) -> Table:
            raise TableFormatError("table lake.orders: format version 4", hint="drop it")

    checks = readable_by_check(), equality_deletes_check()
    (check,) = (each for each in checks if each.name == name)
    found = evaluate(check, cast("Probe", Unreadable()))
    assert (found.passed, found.what) == (False, "table lake.orders: format version 4")
    assert found.cause == (None if name == "readable_by" else "iceberg/orders:readable_by")


def test_equality_deletes_block_unless_confluent_wrote_them(table: Table) -> None:
    """Only Confluent rewrites its tables, and nothing documents which deletes it writes."""
    append(table, {"side": "BUY"})
    deleted = StaticTable.from_metadata(with_equality_deletes(table, {"operation": "delete"}))
    probe = cast(
        "Probe", SimpleNamespace(iceberg=deleted, table=CheckedTable("orders", ("shop", "orders")))
    )
    ours, confluents = equality_deletes_check(), equality_deletes_check(of_confluent=True)
    assert (ours.blocking, confluents.blocking) == (True, False)
    finding = evaluate(ours, probe)
    assert (finding.passed, finding.severity) == (False, "error")
    assert "rewrite_data_files" in (finding.remediation or "")
    finding = evaluate(confluents, probe)
    assert (finding.passed, finding.severity) == (False, "warning")
    assert "Confluent" in finding.what
    assert "CALL" not in (finding.remediation or "")


@pytest.mark.parametrize("tableflow", ["confluent", "topicberg"])
def test_equality_deletes_of_a_topic_block_if_topicberg_writes_it(tableflow: str) -> None:
    cloud = {"deployment": "cloud", "tableflow": tableflow}
    config = Settings.model_validate(settings().model_dump() | cloud)
    lake = Lake(config, tuple(load_topics()), tuple(find_derived()))
    assert {
        table.reported: check.blocking
        for table, system, checks in lake.checks
        for check in checks
        if system == "iceberg" and check.name == "equality_deletes"
    } == {True: tableflow == "topicberg", False: True}


DAY = 24


@pytest.mark.parametrize(
    ("counts", "good"),
    [
        ([1000] * DAY, True),  # too little to judge
        ([1000] * (DAY - 1) + [0], True),
        ([0] * (DAY + 1), True),
        ([1000] * (DAY + 1) + [1000], True),
        ([1000] * (DAY + 1) + [4100], False),
        ([1000] * (DAY + 1) + [200], False),
        ([1000] * (DAY + 1) + [0], False),
        ([10] * (DAY + 1) + [0], True),  # so few say nothing
        ([10] * (DAY + 1) + [99], True),
        ([10] * (DAY + 1) + [100], False),
        ([100, 3000, 200, 2500, 4000, 300, 2800] * 5 + [6000], True),  # it varies a lot
        ([*[0] * 160, 1, 0, 0, 1], True),  # a rare topic
        ([*[0] * 160, 50, 0, 0, 51], True),  # that has bursts
        ([*[0] * 160, 1, 0, 0, 1000], False),
        ([0] * (DAY + 1) + [700], True),  # its first rows
        ([*[1, 1, 0] * 30, 0], True),  # a third of the hours has none
        ([*[500] * 100, 0, 500], True),
        ([*[500] * 100, 0, 0], False),
        ([*[5, 5, 5, 5, 400] * 20, 400], True),  # a job every five hours
    ],
)
def test_volume(counts: list[int], good: bool) -> None:
    finding = judge_volume(counts, timedelta(hours=1), NOW, 4)
    assert finding.passed == good, finding.what
    rows = f"{counts[-1]:,} row{'' if counts[-1] == 1 else 's'} in the hour"
    assert rows in finding.what or len(counts) == DAY


@pytest.mark.parametrize(
    ("period", "periods"),
    [(timedelta(days=1), 6), (timedelta(hours=1), 24), (timedelta(minutes=10), 12)],
)
def test_volume_needs_enough_history_before_it_fails(period: timedelta, periods: int) -> None:
    short = judge_volume([1000] * (periods - 1) + [0], period, NOW, 4)
    assert short.passed
    assert f"more than {periods} are needed" in short.what
    assert not judge_volume([1000] * periods + [0], period, NOW, 4).passed


def test_volume_of_a_table_without_partitions(table: Table) -> None:
    append(table, {"side": "BUY"})
    assert check_volume(table, 4, datetime.now(UTC)).passed


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(1.01, 100))
def test_the_median_is_always_usual(history: list[int], factor: float) -> None:
    import statistics

    low, high = usual_range(history, factor)
    assert low <= statistics.median(history) <= high


@given(st.integers(1, 23), st.integers(1, 10**6), st.integers(0, 23), st.floats(1.01, 100))
def test_hour_of_a_daily_pattern_is_usual(busy: int, rows: int, hour: int, factor: float) -> None:
    """A topic with rows in some hours of each day: neither a busy hour nor an idle one is a fault,
    as far as they are a tenth of the day."""
    day = [rows if hour < busy else 0 for hour in range(24)]
    finding = judge_volume([*day * 7, day[hour]], timedelta(hours=1), NOW, factor)
    assert finding.passed or 24 - busy < 3, finding.what


def test_states_that_readers_do_not_see_are_no_lag(table: Table) -> None:
    """A tag was created after the pointer moved, and much later rows were added."""
    append(table, {"side": "BUY"})
    location, head = table.metadata_location, table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "topicberg-reading-1").commit()
    tagged = table.metadata.last_updated_ms
    time.sleep(0.05)
    append(table, {"side": "BUY"})
    added, patience = from_ms(table.metadata.last_updated_ms), timedelta(minutes=5)
    assert added > from_ms(tagged)
    state = StaticTable.from_metadata(location, table.io.properties)
    for now, since in ((added + patience, None), (added + 2 * patience, added)):
        probe: Any = SimpleNamespace(now=now, catalogs_patience=patience)
        here = place(table, location)
        assert here.behind_since
        assert is_late(here.behind_since, probe), "the tag is older than that"
        assert stale_since(table, state, here, probe) == since


def test_place_of_a_pointer(table: Table) -> None:
    first = table.metadata_location
    assert place(table, first).behind_since is None
    append(table, {"side": "BUY"})
    second = table.metadata_location
    append(table, {"side": "BUY"})
    assert place(table, table.metadata_location).behind_since is None
    behind, far_behind = place(table, second).behind_since, place(table, first).behind_since
    assert behind is not None
    assert far_behind is not None
    assert far_behind < behind
    assert not place(table, first + ".elsewhere").known
    assert not place(table, None).known


def test_skipped_rows_until_somebody_looks(table: Table) -> None:
    spec = load_topic("stock_trades")
    assert check_skipped(spec, table).passed
    with table.transaction() as transaction:
        transaction.set_properties({ROWS_SKIPPED: "3"})
    finding = check_skipped(spec, table)
    assert not finding.passed
    begins = "malformed records that were skipped and are not acknowledged: 3; "
    assert finding.what.startswith(begins)
    assert "`topicberg tableflow acknowledge stock_trades`" in (finding.remediation or "")
    assert acknowledge(table) == 3
    assert table.properties[ACKNOWLEDGED] == "3"
    assert check_skipped(spec, table).passed
    with table.transaction() as transaction:
        transaction.set_properties({ROWS_SKIPPED: "4"})
    assert not check_skipped(spec, table).passed


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("LOG", "in the dead-letter topic broken"),
        ("SKIP", "in mode SKIP only the topic still has them"),
        ("SUSPEND", "the mode is SUSPEND now; those skipped in mode LOG are in the dead-letter"),
    ],
)
def test_skipped_rows_in_each_mode_says_where_they_are(table: Table, mode: str, says: str) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({ROWS_SKIPPED: "3"})
    document = load_topic("stock_trades").model_dump(by_alias=True)
    target = "broken" if mode == "LOG" else None
    document["tableflow"]["error_handling"] = {"mode": mode, "target": target}
    finding = check_skipped(TopicSpec.model_validate(document), table)
    assert says in finding.what
    assert finding.facts["error_handling"] == mode


class Topic:
    """A topic with one partition, and the judgement of its table so many minutes from now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = topic_of()
        self.endpoints = MemoryKafka({"stock_trades": self.log}).serve(monkeypatch).endpoints

    def grow(self, end: int) -> None:
        while len(self.log.partitions[0]) < end:
            self.log.produce(0, None, b"")

    def freshness(self, table: Table, minutes: float) -> Finding:
        now, limits = (
            datetime.now(UTC) + timedelta(minutes=minutes),
            Freshness(warn_minutes=10, fail_minutes=60),
        )
        probe = SimpleNamespace(
            iceberg=table, endpoints=self.endpoints, now=now, engine_fault=lambda _: None
        )
        return check_freshness(load_topic("stock_trades"), limits, cast("Probe", probe))


def test_freshness_of_a_table_without_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    assert topic.freshness(table, 90).passed, "the topic has no records"
    topic.grow(5)
    assert topic.freshness(table, 5).passed
    assert topic.freshness(table, 30).severity == "warning"
    late = topic.freshness(table, 90)
    assert not late.passed
    assert late.severity == "error"
    assert "5 records waiting in Kafka" in late.what
    assert late.since
    topic.log.beginning = {0: 5}
    assert topic.freshness(table, 90).passed, "Kafka has deleted them"


def test_freshness_whose_snapshots_expired_counts_from_the_oldest(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(monkeypatch)
    topic.grow(2)
    rows = pa.Table.from_pylist([{"side": "buy"}, {"side": "sell"}], schema=SCHEMA.as_arrow())
    table.append(rows, snapshot_properties={END_OFFSETS: dump_offsets({0: 2})})
    assert "newest rows" in topic.freshness(table.refresh(), 5).what
    Erasure(table, Rows(table.schema(), ({("side",): ("buy",)},))).erase()
    assert last_commit(table.refresh()) is None
    assert topic.freshness(table, 5).passed
    assert "no record was produced" in topic.freshness(table, 90).what
    topic.grow(5)
    late = topic.freshness(table, 90)
    assert not late.passed
    assert "3 records waiting in Kafka" in late.what


def test_status_of_the_engine_says_that_a_topic_is_stale_before_the_checks_run() -> None:
    limits = Freshness(warn_minutes=10, fail_minutes=60)
    spec = load_topic("stock_trades").model_copy(update={"freshness": limits})
    spec = spec.model_copy(update={"checks": spec.checks.model_copy(update={"max_lag_records": 5})})
    now = datetime.now(UTC)

    def found(minutes: float, **status: Any) -> dict[str, Finding]:
        at = int((now - timedelta(minutes=minutes)).timestamp() * 1000)
        given = {"topic": spec.name, "phase": "RUNNING", "committed_at_ms": at, **status}
        return dict(status_findings(spec, TopicStatus(**given), now))

    assert list(found(5)) == ["kafka_lag"], "a commit may have no rows"
    assert found(5)["kafka_lag"].passed
    stale = found(30)["freshness"]
    assert stale.severity == "warning"
    assert "no record was produced to it for 30 min" in stale.what
    late = found(90, lag={0: 7})
    assert "7 records waiting in Kafka" in late["freshness"].what
    assert late["freshness"].severity == "error"
    assert "7 records behind Kafka; 5 are allowed" in late["kafka_lag"].what
    assert found(90, phase="FAILED") == {}, "the check of the engine says why"
    assert found(90, committed_at_ms=None) == {}, "it is not known when rows were added"


def test_a_history_that_stays_behind_its_topic(catalog: SqlCatalog, table: Table) -> None:
    history = catalog.create_table("shop.orders_history", SCHEMA)
    row = pa.Table.from_pylist([{"price": 1}], schema=SCHEMA.as_arrow())

    def commit(table: Table, offsets: dict[int, int]) -> None:
        table.append(row, snapshot_properties={END_OFFSETS: dump_offsets(offsets)})

    def judge(minutes: float) -> Finding:
        now = datetime.now(UTC) + timedelta(minutes=minutes)
        return check_history(history, table, 30, now, "`fix it`")

    assert judge(60).passed
    commit(table, {0: 5})
    commit(table, {0: 5, 1: 3})
    assert judge(5).passed
    assert not judge(60).passed
    commit(history, {0: 5})
    late = judge(60)
    assert not late.passed
    assert "60 min ago" in late.what
    assert late.since is not None
    assert late.since > datetime.now(UTC) - timedelta(minutes=1)
    history.append(row)  # maintenance, say
    commit(history, {0: 7, 1: 3})
    assert judge(60).passed
    table.append(row)
    assert judge(60).passed


@pytest.mark.parametrize(
    ("of_history", "of_topic", "message"),
    [
        (({0: 100}, "t"), ({0: 50}, "t"), "begins at offset 100 of partition 0, .* at 50"),
        (({0: 100}, "t"), (None, "t"), "begins at offset 100 of partition 0, .* at 0"),
        (({0: 50}, "t"), ({0: 50, 1: 7}, "t"), ""),
        ((None, "t"), ({0: 50}, "t"), ""),
        ((None, "old"), (None, "new"), "topic id old, .* of new"),
    ],
)
def test_history_of_other_records_than_the_topics_table_is_reported(
    catalog: SqlCatalog,
    table: Table,
    of_history: tuple[dict[int, int] | None, str],
    of_topic: tuple[dict[int, int] | None, str],
    message: str,
) -> None:
    history = catalog.create_table("shop.orders_history", SCHEMA)
    for each, (first, topic_id) in ((history, of_history), (table, of_topic)):
        if first is not None:
            with each.transaction() as transaction:
                transaction.set_properties({FIRST_OFFSETS: dump_offsets(first)})
        facts = {END_OFFSETS: dump_offsets({0: 200, 1: 9}), TOPIC_ID: topic_id}
        each.append(pa.Table.from_pylist([{}], SCHEMA.as_arrow()), snapshot_properties=facts)
    found = check_history(history, table, 30, datetime.now(UTC), "`fix it`")
    assert found.passed is not bool(message)
    assert re.search(message, found.what)


def test_the_engine() -> None:
    spec, ago = load_topic("stock_trades"), int(NOW.timestamp() * 1000) - 600_000
    fine = TopicStatus(topic=spec.name, phase="RUNNING")
    assert check_engine(spec, fine, NOW).passed
    suspended = fine.model_copy(
        update={
            "phase": "FAILED",
            "suspended": True,
            "error_message": "offset 7: no such id\n  → `fix it`",
            "failing_since_ms": ago,
        }
    )
    finding = check_engine(spec, suspended, NOW)
    assert not finding.passed
    assert "offset 7: no such id" in finding.what
    assert finding.remediation == "`fix it`"
    assert finding.since == NOW - timedelta(minutes=10)
    failing = suspended.model_copy(update={"phase": "PENDING", "suspended": False})
    assert not check_engine(spec, failing, NOW).passed
    # it tries again by itself: a moment of it is no fault
    assert check_engine(spec, failing, NOW - timedelta(seconds=580)).passed


def test_a_hanging_transaction_is_a_fault_of_its_producer() -> None:
    spec, ago = load_topic("stock_trades"), int(NOW.timestamp() * 1000) - 20 * 60_000
    open_one = OpenTransaction(offset=7, since_ms=ago)
    status = TopicStatus(topic=spec.name, phase="RUNNING", open_transactions={2: open_one})
    finding = check_engine(spec, status, NOW)
    assert (finding.passed, finding.severity) == (False, "warning")
    assert "partition 2 from offset 7 on" in finding.what
    assert finding.since == NOW - timedelta(minutes=20)
    assert check_engine(spec, status, NOW - timedelta(minutes=10)).passed


def test_deletes_that_may_be_missing(table: Table) -> None:
    spec = load_topic("stock_trades")
    assert check_deletes(spec, table).passed
    with table.transaction() as transaction:
        transaction.set_properties({MISSED: Missed(since_ms=0, until_ms=9000).model_dump_json()})
    finding = check_deletes(spec, table)
    assert (finding.passed, finding.severity) == (False, "warning")
    assert "from 1970-01-01 00:00:00 UTC to 1970-01-01 00:00:09 UTC" in finding.what
    assert "`topicberg tableflow reread stock_trades`" in (finding.remediation or "")


def test_a_table_that_was_dropped_while_glue_still_has_it() -> None:
    with mock_aws():
        client = boto3.client("glue", region_name="us-east-1")
        client.create_database(DatabaseInput={"Name": "shop"})
        probe: Any = SimpleNamespace(
            find=lambda _: None,
            table=SimpleNamespace(identifier=("shop", "orders"), glue_table=("shop", "orders")),
            deployment=SimpleNamespace(glue=lambda: client),
        )

        def judge() -> Finding:
            return check_pointer(probe)

        assert judge().passed, "it was never made"
        client.create_table(DatabaseName="shop", TableInput={"Name": "orders"})
        assert not judge().passed
        assert "shop.orders, which is missing in Iceberg's catalog" in judge().what
        dropped = check_pointer(probe, "iceberg/orders:up_to_date")
        assert dropped.cause == "iceberg/orders:up_to_date"


PATH = TablePath("LAKE", "TABLES", "ORDERS")


class Catalogs:
    """A table in Glue and Snowflake, and what the checks inspect of it."""

    def __init__(self, catalog: SqlCatalog, client: Any) -> None:
        self.catalog, self.client = catalog, client
        self.now = datetime.now(UTC)
        self.in_snowflake: str | None = None

    def probe(self) -> Any:
        names = {"name": "orders", "sync": "sync", "snowflake_name": "", "snowflake_source": ""}
        name = ("shop", "orders")
        return SimpleNamespace(
            find=lambda name: find_table(self.catalog, name),
            iceberg=find_table(self.catalog, name),
            now=self.now,
            config=settings(),
            catalogs_patience=timedelta(minutes=5),
            table=SimpleNamespace(identifier=name, glue_table=name, **names),
            deployment=SimpleNamespace(glue=lambda: self.client),
        )

    def read_back(self, *_: Any) -> SnowflakeTable:
        if self.in_snowflake is None:
            raise NoSuchIcebergTableError("Snowflake has no such table")
        return SnowflakeTable("orders", 1, self.in_snowflake, ())


@pytest.fixture
def catalogs(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalogs]:
    with mock_aws():
        fixture = Catalogs(catalog, boto3.client("glue", region_name="us-east-1"))
        monkeypatch.setattr("topicberg.checks.catalogs.find_table_path", lambda *_: PATH)
        monkeypatch.setattr("topicberg.checks.catalogs.read_back", fixture.read_back)
        yield fixture


def test_pointer_and_parity_of_a_table_created_again_name_the_dropped_one(
    table: Table, catalogs: Catalogs
) -> None:
    append(table, {"side": "BUY"})
    glue.register(catalogs.client, table, "shop", "orders")
    catalogs.in_snowflake = dropped = table.metadata_location
    catalogs.catalog.drop_table("shop.orders")
    catalogs.catalog.create_table("shop.orders", SCHEMA)
    assert check_pointer(catalogs.probe()).passed, "the engine is about to write it"
    assert check_parity(catalogs.probe(), cast("Any", None)).passed
    catalogs.now += timedelta(minutes=6)
    pointer, parity = (
        check_pointer(catalogs.probe()),
        check_parity(catalogs.probe(), cast("Any", None)),
    )
    assert pointer.what.startswith(f"Glue points to {dropped}, which is no state of this table")
    assert parity.what.startswith(f"Snowflake reads {dropped}, which is no state of this table")
    assert parity.cause == "glue/orders:pointer"
    glue.register(catalogs.client, catalogs.catalog.load_table("shop.orders"), "shop", "orders")
    assert check_pointer(catalogs.probe()).passed


def test_parity_of_upgraded_table_that_snowflake_does_not_refresh_names_the_upgrade(
    table: Table, catalogs: Catalogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_version_3(monkeypatch)
    append(table, {"side": "BUY"})
    catalogs.in_snowflake = table.metadata_location
    table = upgrade(catalogs.catalog, table)
    trim_deletes(table)
    glue.register(catalogs.client, table.refresh(), "shop", "orders")
    catalogs.now += timedelta(minutes=6)
    parity = check_parity(catalogs.probe(), cast("Any", None))
    assert "was upgraded from format version 2 to 3, after which Snowflake does not" in parity.what
    assert parity.remediation == "sync, which replaces the table in Snowflake"


def test_pointer_and_parity_of_a_table_without_rows_pass(table: Table, catalogs: Catalogs) -> None:
    catalogs.now += timedelta(days=9)
    assert check_pointer(catalogs.probe()).what == "the table has no rows yet"
    assert check_parity(catalogs.probe(), cast("Any", None)).what == "the table has no rows yet"


def test_checks_are_tried_again_while_a_service_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And those of the same table that were evaluated before keep their verdicts."""
    monkeypatch.setattr(Kind, "wait", lambda *_: 0.01)
    tried: list[str] = []

    def silent(_: Probe) -> Finding:
        tried.append("silent")
        if len(tried) < 3:
            raise UnreachableError("Glue does not answer")
        return good("it answers")

    (table,) = TopicTable.of(load_topic("stock_trades"), settings())
    checks = [TableCheck("first", "-", lambda _: good("-")), TableCheck("second", "-", silent)]
    defs = dg.Definitions(
        asset_checks=[definition(table, "glue", checks)],
        jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
        resources=RESOURCES,
    )
    result = defs.resolve_job_def("check").execute_in_process()
    assert result.success
    verdicts = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert verdicts == {"first": True, "second": True}
    assert len(tried) == 3


def test_checks_command_lists_results_of_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    key = dg.AssetKey(["iceberg", "stock_trades"])
    with dg.DagsterInstance.get() as instance:
        for name, is_good in (("volume", True), ("not_null", False)):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=name,
                    passed=is_good,
                    metadata={COVERS: "2026-01-01 00:00:00 UTC"},
                    description="3 rows\x1b[2J are null",
                )
            )

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["checks", *arguments])
        return done.exit_code, done.output

    code, said = run()
    assert code == 1
    assert re.search(r"not_null +failed +20", said)
    assert re.search(r"volume +passed +20", said)
    assert re.search(r"pointer +not evaluated  +blocking", said)
    assert "1 failing" in said
    assert "\x1b" not in said
    code, said = run("stock_trades", "--failing", "--json")
    (row,) = json.loads(said)
    assert (row["asset"], row["check"], row["result"]) == (
        "iceberg/stock_trades",
        "not_null",
        "failed",
    )
    assert row["rows_until"] == "2026-01-01 00:00:00 UTC"
    assert row["evaluated_at"] is not None
    assert "never null" in run("iceberg/stock_trades")[1]
    assert isinstance(CliRunner().invoke(app, ["checks", "stock_trade"]).exception, TopicbergError)
