"""Only queries are run: each table has one writer, which is not `topicberg query`.

A parser of the engine's SQL decides: DuckDB's own, and sqlglot's for the others. In DuckDB the
catalog is attached read-only besides.
"""

from __future__ import annotations

import logging
import re
from typing import Literal

from topicberg.errors import TopicbergError
from topicberg.extensions import of_extra
from topicberg.query.help import unquoted

Engine = Literal["duckdb", "spark", "snowflake", "athena"]

_EXPLAIN_OPTIONS = re.compile(
    r"(?:\s|/\*.*?\*/)*(?:\([^()]*\)|(?:ANALYZE|VERBOSE"  # DuckDB and Athena have these
    r"|EXTENDED|CODEGEN|COST|FORMATTED|LOGICAL"  # Spark has these
    r"|USING\s+\w+)\b)",  # Snowflake has this
    re.IGNORECASE | re.DOTALL,
)
_BEGINNINGS = ("SELECT", "WITH", "FROM", "VALUES", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PIVOT")
_HINT = "use SELECT, SHOW, DESCRIBE or EXPLAIN: only Tableflow and the tables' assets write tables"
_ENDS_EARLY = re.compile("unterminated|end of input|Expecting|tokenizing|not quoted")
_UNCLOSED = "close every quote, comment and parenthesis"
_MISTYPED = "look there and at the word before it: one may be mistyped, missing or too many"
logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of SHOW and EXPLAIN


class QueryError(TopicbergError):
    """An engine refused the query, or does not answer."""


def check_reads(sql: str, engine: Engine) -> None:
    """Refuse a query that is not one reading statement.

    :param engine: the engine of the query: each has its own quotes and comments
    :raises QueryError: it is empty, more than one, writes, or cannot be parsed
    """
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise QueryError(
            "the query is not valid UTF-8", hint="write it in UTF-8, as the terminal should"
        ) from None
    kinds = _duckdb_kinds(sql) if engine == "duckdb" else _kinds(sql, engine)
    if len(kinds) != 1:
        problem = "more than one statement" if kinds else "empty"
        raise QueryError(f"the query is {problem}", hint="give one SELECT statement")
    if kinds[0] != "query":
        raise QueryError(f"{kinds[0]} is not a query", hint=_HINT)


def _duckdb_kinds(sql: str) -> list[str]:
    """Return ``query``, or the kind of what is none, for each statement."""
    with of_extra("query"):
        import duckdb

    try:
        kinds = [statement.type.name for statement in duckdb.extract_statements(sql)]
    except duckdb.Error as error:
        raise _unreadable(sql, "duckdb", str(error)) from None
    # PIVOT creates a type of its columns for the session, and EXPLAIN may be of any statement.
    if kinds in (["CREATE", "SELECT"], ["EXPLAIN"]):
        return _kinds(sql, "duckdb")
    return ["query" if kind == "SELECT" else kind for kind in kinds]


def _kinds(sql: str, engine: Engine) -> list[str]:
    with of_extra("query"):
        from sqlglot import errors, exp, parse

    try:
        parsed = parse(sql, read=engine)
    except (errors.SqlglotError, RecursionError) as error:
        raise _unreadable(sql, engine, str(error)) from None
    reading = (exp.Query, exp.Values, exp.Pivot, exp.Summarize, exp.Show, exp.Describe)
    kinds = []
    for statement in parsed:
        if statement is None or isinstance(statement, exp.Semicolon):  # it is only a comment
            continue
        if statement.find(exp.Parameter):
            raise _unreadable(sql, engine, "a name that begins with $ is not quoted")
        kind = type(statement).__name__.upper()
        if isinstance(statement, exp.Command):
            kind = str(statement.this).upper()
            explained = statement.args.get("expression")
            if kind == "EXPLAIN" and explained is not None:
                check_reads(_without_options(str(explained.this)), engine)
        if isinstance(statement, reading) or kind in ("SHOW", "EXPLAIN"):
            inner = statement.find(exp.DML, exp.Into)  # WITH … AS (INSERT …), and their like
            kind = type(inner).__name__.upper() if inner else "query"
        kinds.append(kind)
    return kinds


def _without_options(explained: str) -> str:
    while option := _EXPLAIN_OPTIONS.match(explained):
        explained = explained[option.end() :]
    return explained


def _unreadable(sql: str, engine: Engine, reason: str) -> QueryError:
    """Return the error of a query that the parser refuses, with the parser's first line."""
    word = re.match(r"\W*(\w+)", sql)
    if word and word[1].upper() not in _BEGINNINGS:
        return QueryError(f"{word[1].upper()} is not a query", hint=_HINT)
    first = next((line.strip() for line in reason.splitlines() if line.strip()), "no reason given")
    hint = unquoted(sql, engine) or (_UNCLOSED if _ENDS_EARLY.search(reason) else _MISTYPED)
    return QueryError(f"the query cannot be parsed as SQL of {engine}: {first}", hint=hint)
