"""What may pass to fakesnow and DuckDB, and what their errors are in Snowflake.

fakesnow accepts some statements without doing them (tags, clustering, roles, most properties of a
table). Here every statement is either known to be done, or refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter

import duckdb
import sqlglot
from snowflake.connector.errors import ProgrammingError
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import Context
from topicberg_local.emulators.snowflake.sql import Name, Stream, display

_PLAIN = (
    exp.Query,
    exp.Insert,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.TruncateTable,
    exp.Transaction,
    exp.Commit,
    exp.Rollback,
    exp.Set,
)
WITHOUT_RESULT = (exp.Transaction, exp.Commit, exp.Rollback, exp.Set)
_SHOWN = {"COLUMNS", "IMPORTED KEYS", "PRIMARY KEYS", "SEQUENCES", "UNIQUE KEYS"}
_KINDS = {"TABLE", "VIEW", "SEQUENCE"}
_PROPERTIES = (exp.TemporaryProperty, exp.TransientProperty, exp.SchemaCommentProperty)


def parse(sql: str) -> exp.Expr:
    """The statement's tree; raises ProgrammingError: a syntax error, or it is not supported."""
    try:
        parsed = sqlglot.parse(sql, read="snowflake")
    except (ParseError, TokenError) as error:
        details = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        raise errors.syntax_error(
            details.get("line") or 1, details.get("col") or 0, details.get("highlight") or "<EOF>"
        ) from None
    statements = [tree for tree in parsed if tree and not isinstance(tree, exp.Semicolon)]
    if len(statements) != 1:
        raise errors.statement_count(len(statements))
    if not _is_done(statements[0]):
        raise errors.unsupported(_kind(sql))
    return statements[0]


def _is_done(tree: exp.Expr) -> bool:
    if isinstance(tree, _PLAIN):
        return True
    if isinstance(tree, exp.Show):
        filters = (tree.args.get(name) for name in ("like", "starts_with", "limit"))
        return tree.name.upper() in _SHOWN and not any(filters)  # fakesnow ignores them
    kind = str(tree.args.get("kind") or "").upper()
    if isinstance(tree, exp.Describe):
        return kind in ("TABLE", "VIEW")
    if isinstance(tree, exp.Create):
        properties = tree.args.get("properties")
        given = properties.expressions if properties else []
        return kind in _KINDS and all(isinstance(expression, _PROPERTIES) for expression in given)
    if isinstance(tree, exp.Drop):
        return kind in _KINDS
    if isinstance(tree, exp.Alter):
        columns = (exp.ColumnDef, exp.AlterColumn, exp.AlterRename, exp.RenameColumn, exp.Drop)
        actions = tree.args.get("actions") or []
        return kind == "SESSION" or (
            kind == "TABLE" and all(isinstance(action, columns) for action in actions)
        )
    return isinstance(tree, exp.Alias) and tree.this.name.upper() == "UNSET"


def _kind(sql: str) -> str:
    """What a statement is, from its first words: ``CREATE STAGE``."""
    stream = Stream(sql)
    words: list[str] = []
    while stream.peek().kind == "word" and len(words) < 2:
        words.append(stream.advance().value)
        stream.take("OR", "REPLACE")
    if words == ["ALTER", "TABLE"]:
        stream.take("IF", "EXISTS")
        words += [display(stream.name(3)), *(stream.peek(n).text for n in range(2))]
    return " ".join(words)


_CONTEXT = {
    f"CURRENT_{name.upper()}": attrgetter(name)
    for name in ("user", "role", "warehouse", "database", "schema")
}


def fill_in(tree: exp.Expr, sql: str, context: Context) -> str:
    """The statement with the session's context in the place of CURRENT_ROLE() and the like.

    https://docs.snowflake.com/en/sql-reference/functions-context
    """
    filled = tree.copy()
    calls = [call for call in filled.find_all(exp.Func) if _function(call) in _CONTEXT]
    for call in calls:
        value = _CONTEXT[_function(call)](context)
        call.replace(exp.Null() if value is None else exp.Literal.string(value))
    return str(filled.sql("snowflake")) if calls else sql


def _function(call: exp.Func) -> str:
    return str(call.name if isinstance(call, exp.Anonymous) else call.sql_name()).upper()


def written_table(tree: exp.Expr) -> Name | None:
    """The table that a statement changes, as far as it names it; None for a query."""
    if not isinstance(
        tree, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.TruncateTable | exp.Alter
    ):
        return None
    target = tree.expressions[0] if isinstance(tree, exp.TruncateTable) else tree.this
    table = target.find(exp.Table) if isinstance(target, exp.Expr) else None
    return table_name(table) if table is not None else None


def table_name(table: exp.Table) -> Name:
    parts = [part for part in (table.args.get("catalog"), table.args.get("db")) if part]
    return tuple(
        part.name if part.args.get("quoted") else part.name.upper() for part in (*parts, table.this)
    )


def labels(tree: exp.Expr) -> list[str] | None:
    """What Snowflake calls the columns of a query's result; None when a star hides some of them.

    An expression without a name is called by its text.
    """
    if not isinstance(tree, exp.Query) or tree.is_star:
        return None
    named = (exp.Alias, exp.Column)
    return ["" if isinstance(p, named) else p.sql("snowflake").upper() for p in tree.selects]


_Make = Callable[[str], ProgrammingError]
_TRANSLATED: tuple[tuple[type[Exception], str, _Make], ...] = (
    (duckdb.BinderException, r'Referenced column "(.*?)" not found', errors.invalid_identifier),
    (
        duckdb.BinderException,
        r'Catalog "(.*?)" does not exist',
        partial(errors.does_not_exist, "Database"),
    ),
    (
        duckdb.CatalogException,
        r"Table with name (.*?) does not exist",
        partial(errors.does_not_exist, "Object"),
    ),
)
"""DuckDB's error, a pattern of its text, and what makes Snowflake's error."""


def translate(error: Exception) -> ProgrammingError:
    """An error of fakesnow or DuckDB as Snowflake's."""
    cause = error.__cause__ if isinstance(error, ProgrammingError) else error
    if isinstance(cause, duckdb.InterruptException):
        return errors.canceled()
    message = str(cause or error).split("\n")[0]
    for kind, pattern, make in _TRANSLATED:
        if isinstance(cause, kind) and (match := re.search(pattern, message)):
            return make(match[1])
    if isinstance(cause, NotImplementedError):
        return errors.unsupported(message)
    if isinstance(error, ProgrammingError):
        return error
    return errors.execution_failure(f"{type(error).__name__}: {message}")
