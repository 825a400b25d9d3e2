"""What counts as a query, and how results and errors are shown."""

from __future__ import annotations

import socket

import pytest

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.query import QueryError, check_reads, run_query

SECRET = "not-to-be-shown"


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def nowhere() -> Endpoints:
    """Addresses where nothing listens."""
    url = f"http://127.0.0.1:{closed_port()}"
    return Endpoints(
        kafka_bootstrap=url.removeprefix("http://"),
        schema_registry=url,
        s3=url,
        s3_access_key="key",
        s3_secret_key=SECRET,
        iceberg_rest=url,
        spark_connect=url.replace("http", "sc"),
        snowflake=SnowflakeEndpoint(
            account="a", user="u", password=SECRET, host="127.0.0.1", port=closed_port()
        ),
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  -- a comment; with a semicolon\nselect 1 ;\n",
        "SELECT ';' AS \"delete\" -- drop",
        "(SELECT 1) UNION (SELECT 2)",
        "WITH a AS (SELECT 1) SELECT * FROM a WHERE b = 'insert; delete'",
        "/* DELETE */ SHOW TABLES",
        "FROM stock_trades SELECT count(*)",
        "SELECT `update` FROM t",
        "describe stock_trades",
    ],
)
def test_queries(sql: str) -> None:
    check_reads(sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "empty"),
        (" ; -- x", "empty"),
        ("SELECT 1; SELECT 2", "more than one"),
        ("SELECT 1; DROP TABLE x", "more than one"),
        ("drop table x", "DROP is no query"),
        ("/* SELECT */ DELETE FROM t", "DELETE is no query"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "INSERT is no query"),
        ("FROM t INSERT INTO u SELECT *", "INSERT is no query"),
        ("EXPLAIN ANALYZE DELETE FROM t", "DELETE is no query"),
        ("ALTER ICEBERG TABLE t REFRESH", "ALTER is no query"),
        ("'SELECT 1'", "no query"),
        ("SELEC 1", "SELEC is no query"),
    ],
)
def test_not_queries(sql: str, reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        check_reads(sql)


@pytest.mark.parametrize("engine", ["duckdb", "spark", "snowflake"])
def test_nothing_listens(engine: str, nowhere: Endpoints) -> None:
    """Each engine says so within seconds; a Spark Connect client alone would wait for minutes."""
    with pytest.raises(Exception, match="does not answer") as raised:
        run_query("SELECT 1", engine, nowhere)  # type: ignore[arg-type]
    assert SECRET not in str(raised.value)
    assert raised.type.__module__.startswith("topicberg")
