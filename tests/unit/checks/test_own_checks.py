"""Checks of a project: when they are evaluated, what becomes of errors, and wrong definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import topicberg
from topicberg.checks.check import Probe, TableCheck
from topicberg.checks.finding import Finding
from topicberg.errors import SpecError, TopicbergError, UnreachableError
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.registry import TopicTable
from topicberg.orchestration.checks.adapter import result
from topicberg.orchestration.checks.evaluations import finding_of
from topicberg.orchestration.checks.own import OwnCheck, find_checks, own_check
from topicberg.settings import settings
from topicberg.topics import load_topic, load_topics

KEY = dg.AssetKey(["iceberg", "orders"])
ROWS = pa.table({"id": pa.array([1], pa.int64())})
calls: list[str] = []


@topicberg.table_check("orders")
def of_orders(tables: topicberg.Tables) -> dg.AssetCheckResult:
    """Every order is fine."""
    calls.append("orders")
    return dg.AssetCheckResult(
        passed=len(calls) > 1, description="2 orders are wrong.", metadata={"rows": 2}
    )


@topicberg.table_check("orders", "payments")
def of_both(tables: topicberg.Tables) -> bool:
    calls.append("both")
    return True


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@pytest.fixture
def tables(catalog: SqlCatalog) -> dict[str, Table]:
    return {
        name: catalog.create_table(f"shop.{name}", ROWS.schema) for name in ("orders", "payments")
    }


class Checked:
    """A check of ``shop.orders``, evaluated as Dagster would: with what it stored the last time."""

    def __init__(self, check: OwnCheck, tables: dict[str, Table]) -> None:
        self.check: TableCheck = own_check(check, {name: ("shop", name) for name in check.tables})
        self.tables = tables
        self.last: Finding | None = None

    def evaluate(self, *, reads_rows: bool = True) -> Finding:
        def find(identifier: tuple[str, str]) -> Table | None:
            return self.tables.get(identifier[1])

        probe = SimpleNamespace(
            iceberg=self.tables["orders"],
            find=find,
            last=lambda _: self.last,
            reads_rows=reads_rows,
        )
        finding = self.check.evaluate(cast("Probe", probe))
        self.last = finding_of(result(KEY, self.check.name, finding, self.last))
        return finding


def test_check_is_evaluated_when_a_table_has_changed(tables: dict[str, Table]) -> None:
    checked = Checked(of_both, tables)
    first = checked.evaluate()
    assert (first.passed, calls) == (True, ["both"])
    assert checked.evaluate().what == first.what == "the check passed"
    assert calls == ["both"]
    for name in ("payments", "orders"):
        tables[name].append(ROWS)
        assert checked.evaluate().passed
        assert checked.evaluate().passed
    assert calls == ["both"] * 3


def test_failure_is_repeated_with_its_time_and_text(tables: dict[str, Table]) -> None:
    checked = Checked(of_orders, tables)
    assert checked.check.description == (
        "Every order is fine. Evaluated when orders has changed, by check_tables."
    )
    first = checked.evaluate()
    assert (first.passed, first.what, first.facts["rows"]) == (False, "2 orders are wrong", 2)
    since = checked.last and checked.last.since
    again = checked.evaluate()
    assert (again.passed, again.what, again.facts["rows"]) == (False, "2 orders are wrong", 2)
    assert checked.last.since == since
    assert since is not None
    tables["orders"].append(ROWS)
    assert checked.evaluate().passed


def test_check_of_more_than_tables_is_always_evaluated(tables: dict[str, Table]) -> None:
    checked = Checked(replace(of_both, always=True), tables)
    for _ in range(3):
        assert checked.evaluate().passed
    assert calls == ["both"] * 3


def test_run_of_a_sensor_repeats_the_result_unless_the_check_blocks(
    tables: dict[str, Table],
) -> None:
    checked, blocking = Checked(of_both, tables), Checked(replace(of_both, blocking=True), tables)
    for each in (checked, blocking):
        each.evaluate()
    tables["orders"].append(ROWS)
    found = checked.evaluate(reads_rows=False)
    assert found.passed
    assert "newer ones are read by check_tables" in found.what
    assert calls == ["both"] * 2
    assert blocking.evaluate(reads_rows=False).passed
    assert calls == ["both"] * 3
    assert checked.evaluate().what == "the check passed"  # the repeated result covers no more
    assert calls == ["both"] * 4


def test_changed_code_is_evaluated_again(
    tables: dict[str, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Checked(of_both, tables)
    checked.evaluate()
    monkeypatch.setattr("topicberg.orchestration.checks.own.code_version", lambda *_: "another")
    checked.evaluate()
    assert calls == ["both"] * 2


def test_table_that_is_not_created_yet_passes(tables: dict[str, Table]) -> None:
    del tables["payments"]
    found = Checked(of_both, tables).evaluate()
    assert (found.passed, found.what) == (True, "the table payments was not created yet")
    assert calls == []


def raising(error: Exception | Callable[[], Any]) -> OwnCheck:
    def wrong(tables: topicberg.Tables) -> Any:
        if isinstance(error, Exception):
            raise error
        return error()

    return topicberg.table_check("orders")(wrong)


@pytest.mark.parametrize(
    ("error", "what", "remediation"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero", "line"),
        (TopicbergError("no column x", hint="use y"), "no column x", "use y"),
        (lambda: None, "the check returned NoneType", "return a bool or a dg.AssetCheckResult"),
    ],
)
def test_error_fails_the_check_with_its_place(
    tables: dict[str, Table], error: Any, what: str, remediation: str
) -> None:
    checked = Checked(raising(error), tables)
    for _ in range(2):  # an error is no result that could be repeated
        found = checked.evaluate()
        assert not found.passed
        assert what in found.what
        assert found.remediation
        assert remediation in found.remediation


def test_service_that_does_not_answer_is_no_result(tables: dict[str, Table]) -> None:
    with pytest.raises(UnreachableError):
        Checked(raising(UnreachableError("the catalog does not answer")), tables).evaluate()


def lake(*checks: OwnCheck, left_out: frozenset[str] = frozenset()) -> Lake:
    specs = (spec for spec in load_topics() if not spec.publishes)
    topics = tuple(spec for spec in specs if spec.name not in left_out)
    return Lake(settings(), topics, (), left_out, own_checks=checks)


def named(name: str, *tables: str, blocking: bool = False) -> OwnCheck:
    def function(tables: topicberg.Tables) -> bool:
        return True

    function.__name__ = name
    return topicberg.table_check(*tables, blocking=blocking)(function)


def checks_of(lake: Lake, name: str) -> Iterator[str]:
    for table, system, checks in lake.checks:
        if (table.name, system) == (name, "iceberg"):
            yield from (check.name for check in checks)


def test_check_is_one_of_its_table() -> None:
    found = lake(named("own", "stock_trades", "airline.sunset"))
    assert list(checks_of(found, "stock_trades"))[-1] == "own"
    assert "own" not in checks_of(found, load_topic("airline.sunset").table_name)


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ((named("own", "stock_trade"),), "no table 'stock_trade'; did you mean stock_trades"),
        ((named("own", "stock_trades", "nothing"),), "there is no table 'nothing'"),
        ((named("Own", "stock_trades"),), "the name has other characters"),
        ((named("freshness", "stock_trades"),), "has a check of this name already"),
        ((named("own", "stock_trades"),) * 2, "has a check of this name already"),
    ],
)
def test_wrong_check_is_one_message(checks: tuple[OwnCheck, ...], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        lake(*checks)
    assert message in str(raised.value)


def test_check_of_a_topic_that_is_left_out_is_left_out() -> None:
    checks = (named("one", "stock_trades"), named("two", "airline.sunset", "stock_trades"))
    assert lake(*checks, left_out=frozenset({"stock_trades"})).own_checks == ()
    assert lake(*checks).own_checks == checks
    rest = [spec for spec in lake(*checks).topics if spec.name != "stock_trades"]
    within = lake(*checks).within([dg.AssetSpec(["iceberg", spec.table_name]) for spec in rest])
    assert within.own_checks == ()


def test_blocking_check_gives_its_table_steps_of_its_own() -> None:
    """A step that shares its table with others could not stop only what follows from this one."""
    (table,) = TopicTable.of(load_topic("stock_trades"), settings())
    alone = Lake(settings(), (load_topic("stock_trades"),), ())
    assert table.is_independent(alone)
    for blocking in (False, True):
        check = named("own", "stock_trades", blocking=blocking)
        assert table.is_independent(replace(alone, own_checks=(check,))) is not blocking


def test_checks_are_found_in_the_modules_of_pipelines(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_checks.py").write_text(
        "from topicberg import table_check\n\n"
        "@table_check('stock_trades')\n"
        "def own(tables):\n    return True\n\n"
        "same = own\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.topicberg]\npipelines = ['shop_checks']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = settings().model_copy(update={"project_root": tmp_path})
    assert [check.name for check in find_checks(config)] == ["own"]


def test_time_of_a_failure_is_the_one_that_the_check_says(tables: dict[str, Table]) -> None:
    time = datetime(2026, 1, 2, tzinfo=UTC)

    def late(tables: topicberg.Tables) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "since": dg.MetadataValue.timestamp(time),
                "remediation": "ask the desk",
                "caused by": "iceberg/orders:tableflow",
            },
        )

    found = Checked(topicberg.table_check("orders")(late), tables).evaluate()
    assert (found.since, found.severity) == (time, "warning")
    assert (found.remediation, found.cause) == ("ask the desk", "iceberg/orders:tableflow")
