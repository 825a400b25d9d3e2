"""Tables for code of one's own: by PyIceberg, DuckDB and Spark, and in a check of a project."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import topicberg
from topicberg.checks.check import Probe
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.tables import find_table
from topicberg.orchestration.checks.own import own_check
from topicberg.orchestration.resources import RESOURCES
from topicberg.query import QueryError
from topicberg.settings import settings
from topicberg.topics import load_topics

pytestmark = [pytest.mark.integration, pytest.mark.project]

ROWS = pa.table({"id": [1, 2], "amount": [5.0, -1.0]})


@pytest.fixture(scope="module")
def names(stack: Endpoints) -> Iterator[dict[str, tuple[str, str]]]:
    """A topic's table with a dot in its name, and a derived table of another namespace."""
    catalog, suffix = stack.catalog(), uuid.uuid4().hex[:8]
    found = {
        "orders": (settings().cluster_id, f"shop.orders_{suffix}"),
        "payments": (load_topics()[0].namespace(settings()), f"payments_{suffix}"),
    }
    for identifier in found.values():
        catalog.create_namespace_if_not_exists(identifier[0])
        catalog.create_table(identifier, ROWS.schema).append(ROWS)
    yield found
    for identifier in found.values():
        catalog.drop_table(identifier)


def test_every_reader_has_the_newest_rows(
    stack: Endpoints, names: dict[str, tuple[str, str]]
) -> None:
    for identifier in names.values():
        name = identifier[1]
        with topicberg.Tables() as tables:
            assert name in tables.names()
            counted = f'SELECT count(*) AS rows FROM "{name}"'
            before = tables.sql(counted)["rows"][0].as_py()
            assert tables.frame(name).count() == before
            stack.catalog().load_table(identifier).append(ROWS)
            # What is open does not keep what it has seen.
            assert tables.sql(counted)["rows"][0].as_py() == before + 2
            assert tables.frame(name).count() == before + 2
            assert tables.iceberg(name).scan().count() == before + 2
            assert tables.duckdb().sql(f'FROM "{name}"').count("*").fetchone() == (before + 2,)


def test_what_is_wrong_is_one_message(names: dict[str, tuple[str, str]]) -> None:
    name = names["payments"][1]
    with topicberg.Tables() as tables:
        with pytest.raises(TopicbergError, match=f"did you mean '{name}'"):
            tables.frame(f"{name}x")
        with pytest.raises(QueryError, match="DELETE is not a query"):
            tables.sql(f"DELETE FROM {name}")
        with pytest.raises(QueryError, match="amounts"):
            tables.sql(f"SELECT amounts FROM {name}")
        with pytest.raises(Exception, match=r"(?i)read-only|cannot"):
            tables.duckdb().execute(f"DELETE FROM {name}")
    with pytest.raises(TopicbergError, match="this process works for"):
        _ = topicberg.Tables(project="/elsewhere").config


def test_asset_of_another_code_location_reads_tables(names: dict[str, tuple[str, str]]) -> None:
    name = names["payments"][1]

    @dg.asset
    def total(tables: topicberg.Tables) -> dg.MaterializeResult[None]:
        rows = tables.sql(f"SELECT sum(amount) AS total FROM {name}")
        amount = tables.frame(name).filter("amount > 0").count()
        return dg.MaterializeResult(metadata={"total": rows["total"][0].as_py(), "rows": amount})

    tables = topicberg.Tables()
    result = dg.materialize([total], resources={"tables": tables})
    (event,) = result.asset_materializations_for_node("total")
    rows = topicberg.Tables().iceberg(name).scan().to_arrow()
    assert event.metadata["total"].value == sum(rows["amount"].to_pylist())
    assert event.metadata["rows"].value == rows.num_rows / 2


def test_process_outside_of_the_project_names_it(
    names: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    name, config = names["orders"][1], settings()
    code = (
        "import sys, topicberg\n"
        "with topicberg.Tables(project=sys.argv[1]) as tables:\n"
        "    print(tables.iceberg(sys.argv[2]).scan().count())\n"
    )
    environment = os.environ | {"TOPICBERG_STATE_DIR": str(config.state_dir)}
    environment.pop("TOPICBERG_PROJECT_ROOT", None)
    done = subprocess.run(
        [sys.executable, "-c", code, str(config.project_root), name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == topicberg.Tables().iceberg(name).scan().count()


def test_check_reads_the_tables_that_it_names(names: dict[str, tuple[str, str]]) -> None:
    """By every reader; others it cannot read, as it would not be evaluated when they change."""
    orders = names["orders"]
    found: list[object] = []

    @topicberg.table_check("orders", "payments")
    def amounts(tables: topicberg.Tables) -> dg.AssetCheckResult:
        """Both have the same negative amounts."""
        query = "SELECT count(*) AS rows FROM {} WHERE amount < 0"
        rows = [tables.sql(query.format(name))["rows"][0].as_py() for name in names]
        found.append([tables.frame(name).count() for name in names])
        found.append(tables.names())
        for name in (orders[1], "stock_trades"):
            with pytest.raises(TopicbergError, match=r"does not exist|does not name"):
                tables.sql(f'FROM "{name}"')
            with pytest.raises(TopicbergError, match="the check does not name it"):
                tables.iceberg(name)
        return dg.AssetCheckResult(passed=rows[0] == rows[1], description=f"{rows[0]} of each")

    lakehouse = RESOURCES["topicberg_lakehouse"]
    probe = Probe(
        table=type("Named", (), {"identifier": orders, "name": "orders"})(),
        deployment=lakehouse,  # type: ignore[arg-type]
        snowflake=lambda: pytest.fail("not used"),
        last=lambda _: None,
    )
    finding, catalog = own_check(amounts, names).evaluate(probe), topicberg.Tables().catalog
    rows = {
        name: table.scan().count() for name in names if (table := find_table(catalog, names[name]))
    }
    assert finding.what == f"{rows['orders'] // 2} of each"
    assert finding.passed == (rows["orders"] == rows["payments"])
    assert found == [list(rows.values()), ["orders", "payments"]]
