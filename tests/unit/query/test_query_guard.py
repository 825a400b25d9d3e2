"""What counts as a query, and how results and errors are shown."""

from __future__ import annotations

import socket

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot.errors import SqlglotError

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.query import Engine, QueryError, check_reads, run_query

ENGINES: tuple[Engine, ...] = ("duckdb", "spark", "snowflake")

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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  -- a comment; with a semicolon\nselect 1 ;\n",
        "SELECT ';' AS \"delete\" -- drop",
        "(SELECT 1) UNION (SELECT 2)",
        "WITH a AS (SELECT 1) SELECT * FROM a WHERE b = 'insert; delete'",
        "WITH a AS (SELECT 'it''s', 'C:\\dir') SELECT * FROM a",
        "WITH a AS (SELECT 1) -- don't insert\r\nSELECT * FROM a",
        "/* DELETE */ SHOW TABLES",
        "FROM stock_trades SELECT count(*)",
        'SELECT "$$offset" FROM t',
        "describe stock_trades",
    ],
)
def test_queries(sql: str, engine: Engine) -> None:
    check_reads(sql, engine)


@pytest.mark.parametrize(
    ("engine", "sql"),
    [
        ("duckdb", "WITH a AS (SELECT 'C:\\' AS c) SELECT c, 7 // 2 FROM a WHERE b LIKE'insert'"),
        ("duckdb", "FROM t SELECT j ->> 'insert'"),
        ("duckdb", "WITH x AS (SELECT $$'insert$$, E'it\\'s' AS c) SELECT c FROM x"),
        ("duckdb", "PIVOT t ON a USING sum(b)"),
        ("duckdb", "SUMMARIZE t"),
        ("duckdb", "EXPLAIN ANALYZE SELECT 1"),
        ("spark", "EXPLAIN FORMATTED SELECT 1"),
        ("spark", "SHOW TBLPROPERTIES t"),
        ("snowflake", "SHOW ICEBERG TABLES LIKE 'x' IN SCHEMA a.b"),
        ("athena", "EXPLAIN (TYPE LOGICAL) SELECT 1"),
        ("spark", "SELECT `update`, `$$offset` FROM t"),
        ("spark", r"WITH a AS (SELECT 'it\'s insert', r'\d+\insert') SELECT * FROM a"),
        ("spark", "FROM t SELECT /*+ BROADCAST(u), MERGE(t) */ 1"),
        ("snowflake", r"WITH a AS (SELECT 'it\'s insert') SELECT * FROM a"),
        ("snowflake", "SELECT system$typeof(a), a$b$c FROM t"),
    ],
)
def test_queries_of_one_engine(engine: Engine, sql: str) -> None:
    check_reads(sql, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "empty"),
        (" ; -- x", "empty"),
        ("SELECT 1; SELECT 2", "more than one"),
        ("SELECT 1; DROP TABLE x", "more than one"),
        ("drop table x", "DROP is not a query"),
        ("/* SELECT */ DELETE FROM t", "DELETE is not a query"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "INSERT is not a query"),
        ("WITH a AS PROCEDURE () RETURNS INT AS '…' CALL a()", "cannot be parsed"),
        ("FROM t INSERT INTO u SELECT *", "cannot be parsed"),
        ("EXPLAIN ANALYZE DELETE FROM t", "DELETE is not a query"),
        ("EXPLAIN /* a */ (TYPE LOGICAL) INSERT INTO t SELECT 1", "INSERT is not|cannot be parsed"),
        ("SELECT '\udcff'", "not valid UTF-8"),
        ("SHOW TABLES; DELETE FROM t", "more than one|cannot be parsed"),
        ("CALL system.remove(1)", "CALL is not a query"),
        ("SET x = 1", "SET is not a query"),
        ("ALTER ICEBERG TABLE t REFRESH", "ALTER is not a query"),
        ("'SELECT 1'", "not a query|cannot be parsed"),
        ("SELEC 1", "SELEC is not a query"),
        ("SELECT 'it", "cannot be parsed"),
    ],
)
def test_not_queries(sql: str, reason: str, engine: Engine) -> None:
    with pytest.raises(QueryError, match=reason):
        check_reads(sql, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT * FORM t", "mistyped"),
        ("SELECT 1 FROM t WHER x = 1", "mistyped"),
        ("SELECT 'it", "close every"),
        ("SELECT (1", "close every"),
    ],
)
def test_hint_of_what_cannot_be_parsed(sql: str, hint: str, engine: Engine) -> None:
    with pytest.raises(QueryError) as refused:
        check_reads(sql, engine)
    assert hint in str(refused.value.hint)


INSERT = "INSERT INTO stock_trades SELECT c FROM x"


@pytest.mark.parametrize(
    ("engine", "sql"),
    [
        ("duckdb", "EXPLAIN ANALYZE/**/COPY t TO 'here.csv'"),
        ("duckdb", "PIVOT t ON a USING sum(b); DROP TABLE t"),
        ("snowflake", f"WITH x AS ({INSERT}) SELECT * FROM x"),
        ("snowflake", "SHOW TABLES ->> INSERT INTO t SELECT 1"),
        ("athena", "UNLOAD (SELECT 1) TO 's3://bucket/'"),
        ("athena", "MSCK REPAIR TABLE t"),
        ("duckdb", rf"WITH x AS (SELECT 'a\' AS c) {INSERT} --'"),
        ("duckdb", rf"WITH x AS (SELECT E'a\'' AS c) {INSERT} --'"),
        ("duckdb", f"WITH x AS (SELECT E'a'\n'\\'' AS c) {INSERT} --'"),
        ("duckdb", f"WITH x AS (SELECT $$'$$ AS c) {INSERT} --'"),
        ("duckdb", f"WITH x AS (SELECT $a$'$a$ AS c) {INSERT} --'"),
        ("duckdb", f"WITH x AS (SELECT 1 AS c) -- '\r {INSERT} --'"),
        ("duckdb", f"WITH x AS (SELECT 1 /* /* */ ' */ AS c) {INSERT} --'"),
        ("spark", rf"WITH x AS (SELECT 'a\'' AS c) {INSERT} --'"),
        ("spark", rf'WITH x AS (SELECT "a\"" AS c) {INSERT} --"'),
        ("spark", rf"WITH x AS (SELECT r'a\' AS c) {INSERT} --'"),
        ("spark", rf"WITH x AS (SELECT 1.5R'a\' AS c) {INSERT} --'"),
        ("spark", f"WITH x AS (SELECT '''a''' AS c) {INSERT}"),
        ("spark", f"WITH x AS (SELECT 1 AS `'`) {INSERT} --'"),
        ("spark", f"WITH x AS (SELECT /*+ f('*/') */ 1 AS c) {INSERT} --'"),
        ("spark", f"WITH x AS (SELECT 1 AS c -- \\\n'\n) {INSERT} --'"),
        ("snowflake", rf"WITH x AS (SELECT 'a\'' AS c) {INSERT} --'"),
        ("snowflake", f"WITH x AS (SELECT $$'$$ AS c) {INSERT} --'"),
        ("snowflake", f"WITH x AS (SELECT 1 AS c) // '\n {INSERT} --'"),
        ("snowflake", f"WITH x AS (SELECT 1 /* /* ' */ AS c) {INSERT} --'"),
        ("snowflake", "SELECT 1 /* /* */ '*/"),
        ("snowflake", f"SELECT 1 AS c ->> {INSERT.replace('x', '$1')}"),
    ],
)
def test_no_quote_hides_what_writes(engine: Engine, sql: str) -> None:
    with pytest.raises(QueryError):
        check_reads(sql, engine)


def writes(sql: str, engine: Engine) -> bool:
    """As a parser of another author reads it; DuckDB's own."""
    try:
        if engine == "duckdb":
            return any("INSERT" in str(found.type) for found in duckdb.extract_statements(sql))
        return any(
            token.token_type == sqlglot.TokenType.INSERT for token in sqlglot.tokenize(sql, engine)
        )
    except (duckdb.Error, SqlglotError):
        return False


QUOTES = [
    "'",
    "''",
    '"',
    '""',
    "`",
    "\\",
    "\\'",
    '\\"',
    "\\\\",
    "$$",
    "$a$",
    "r'",
    "R'",
    "e'",
    "E'",
]
OTHERS = ["--", "//", "/*", "*/", "/*+", ";", "->>", "a", "b1", " ", "\n", "\r", "\\\n"]
PIECE = st.sampled_from(QUOTES + OTHERS)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=150)
@given(before=st.lists(PIECE, max_size=8), after=st.lists(PIECE, max_size=4))
def test_what_another_parser_takes_for_a_write_is_no_query(
    engine: Engine, before: list[str], after: list[str]
) -> None:
    sql = f"WITH x AS (SELECT {''.join(before)} AS c) {INSERT} {''.join(after)}"
    if writes(sql, engine):
        with pytest.raises(QueryError):
            check_reads(sql, engine)


@pytest.mark.parametrize("engine", ENGINES)
@given(
    value=st.text("ab '\"`\\$/*-;\n")
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"))
)
def test_query_with_any_text_in_strings_is_accepted(engine: Engine, value: str) -> None:
    quoted = value.replace("'", "''")
    if engine != "duckdb":
        quoted = quoted.replace("\\", "\\\\")
    check_reads(f"WITH x AS (SELECT 'insert' AS c) SELECT c FROM x WHERE c = '{quoted}'", engine)


@pytest.mark.parametrize("engine", ["duckdb", "spark", "snowflake"])
def test_nothing_listens(engine: str, nowhere: Endpoints) -> None:
    """Each engine says so within seconds; a Spark Connect client alone would wait for minutes."""
    with pytest.raises(Exception, match="does not answer") as raised:
        run_query("SELECT 1", engine, nowhere)  # type: ignore[arg-type]
    assert SECRET not in str(raised.value)
    assert raised.type.__module__.startswith("topicberg")
