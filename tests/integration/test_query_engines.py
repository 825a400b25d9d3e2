"""The same question to every engine has the same answer."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import uuid
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.query import Engine, QueryError, run_query
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg.topics import load_topics

pytestmark = pytest.mark.integration

ROWS = [
    (1, "a", datetime(2026, 1, 1, 12, tzinfo=UTC), Decimal("1.50"), b"k1"),
    (2, "b", datetime(2026, 7, 1, 12, tzinfo=UTC), None, b"\xff"),
]


@pytest.fixture(scope="module")
def tables(stack: Endpoints) -> Iterator[tuple[str, str]]:
    """A topic's table with a dot in its name, and a derived table; both hold ROWS."""
    catalog, suffix = stack.catalog(), uuid.uuid4().hex[:8]
    topic = (settings().cluster_id, f"query.{suffix}")
    derived = (load_topics()[0].namespace(settings()), f"derived_{suffix}")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("$$timestamp", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(10, 2)),
            ("key", pa.binary()),
        ]
    )
    data = pa.table(list(zip(*ROWS, strict=True)), schema=schema)
    for identifier in (topic, derived):
        catalog.create_namespace_if_not_exists(identifier[0])
        catalog.create_table(identifier, schema).append(data)
    yield topic[1], derived[1]
    for identifier in (topic, derived):
        catalog.drop_table(identifier)


def quoted(name: str, engine: Engine) -> str:
    return f"`{name}`" if engine == "spark" else f'"{name}"'


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_unqualified_names_and_values(
    stack: Endpoints, tables: tuple[str, str], engine: Engine
) -> None:
    """Tables of topics and derived ones, without their namespaces; values as Python has them."""
    for table in tables:
        result = run_query(f"SELECT * FROM {quoted(table, engine)} ORDER BY id", engine, stack)
        assert result.columns == ("id", "name", "$$timestamp", "price", "key")
        assert result.rows == ROWS
    joined = " JOIN ".join(quoted(table, engine) for table in tables)
    assert run_query(f"SELECT count(*) FROM {joined} USING (id)", engine, stack).scalar() == 2


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_qualified_names(stack: Endpoints, tables: tuple[str, str], engine: Engine) -> None:
    name = f"{quoted(settings().cluster_id, engine)}.{quoted(tables[0], engine)}"
    assert run_query(f"SELECT count(*) FROM {name}", engine, stack).scalar() == 2
    assert run_query(f"SELECT count(*) FROM lake.{name}", engine, stack).scalar() == 2


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_rows_are_limited(stack: Endpoints, tables: tuple[str, str], engine: Engine) -> None:
    sql = f"SELECT id FROM {quoted(tables[0], engine)} ORDER BY id"
    assert run_query(sql, engine, stack, max_rows=1).rows == [(1,)]
    assert run_query(sql, engine, stack, max_rows=1).more
    assert not run_query(sql, engine, stack, max_rows=2).more


@pytest.mark.parametrize("engine", ["duckdb", "spark", "snowflake"])
def test_errors_are_the_engines_own_words_in_one_line(stack: Endpoints, engine: Engine) -> None:
    with pytest.raises(QueryError, match=f"(?i)^{engine}: .*no_such_function") as raised:
        run_query("SELECT no_such_function(1)", engine, stack)
    assert "\n" not in raised.value.message
    assert "at org." not in raised.value.message


def test_snowflake_answers(stack: Endpoints) -> None:
    assert run_query("SELECT 1 + 1 AS two", "snowflake", stack).rows == [(2,)]


def test_command_line(stack: Endpoints, tables: tuple[str, str]) -> None:
    def ask(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["query", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    sql = f'SELECT * FROM "{tables[0]}" ORDER BY id'
    assert [line.split() for line in ask(sql).splitlines()[:2]] == [
        ["id", "name", "$$timestamp", "price", "key"],
        ["1", "a", "2026-01-01T12:00:00+00:00", "1.50", "k1"],
    ]
    assert json.loads(ask(sql, "--format", "json"))[1] == {
        "id": 2,
        "name": "b",
        "$$timestamp": "2026-07-01T12:00:00+00:00",
        "price": None,
        "key": "ff",
    }
    assert ask(sql, "--format", "csv").splitlines()[2] == "2,b,2026-07-01T12:00:00+00:00,,ff"
    command = [str(Path(sys.executable).with_name("topicberg")), "query", "SELECT nope FROM x"]
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: duckdb: ")
    assert "Traceback" not in wrong.stderr


def test_forgotten_session_does_not_affect_others(stack: Endpoints) -> None:
    """Spark's client would close what all its sessions share, from any thread, and could hang."""
    from pyspark.sql.connect.client.reattach import (
        ExecutePlanResponseReattachableIterator as Results,
    )

    kept, forgotten = new_session(stack.spark_connect), new_session(stack.spark_connect)
    assert kept.range(3).count() == forgotten.range(3).count() == 3
    shared = Results._release_thread_pool_instance
    assert shared is not None
    client = weakref.ref(forgotten)
    del forgotten
    gc.collect()
    assert client() is None
    assert Results._release_thread_pool_instance is shared
    kept.stop()
