"""A session: one user's statements, one after the other.

A statement is answered by :mod:`commands` when it is about the account's objects; queries, and
DDL and DML on ordinary tables, go to fakesnow and DuckDB. What neither does is refused by name:
nothing is accepted and then ignored.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

import duckdb
from fakesnow.conn import FakeSnowflakeConnection
from fakesnow.cursor import FakeSnowflakeCursor
from fakesnow.statement_type import DML_TYPE_IDS, statement_type_id
from snowflake.connector.errors import Error, ProgrammingError
from sqlglot import exp
from sqlglot.errors import SqlglotError

from topicberg.catalogs.snowflake.names import quote
from topicberg_local.emulators.snowflake import commands, pass_through
from topicberg_local.emulators.snowflake.account import TABLE, Account, Context, resolve
from topicberg_local.emulators.snowflake.errors import already_exists, does_not_exist, read_only
from topicberg_local.emulators.snowflake.privileges import check_read
from topicberg_local.emulators.snowflake.results import Rows, arrow_payload, text_column
from topicberg_local.emulators.snowflake.sql import Name, Statement, display

DDL = 0x6000


@dataclass(frozen=True)
class StatementResult:
    """What goes back: the result, the kind of the statement, and the query's id."""

    payload: dict[str, Any]
    statement_type: int
    query_id: str


class Session:
    """:param context: user, role, and what the login chose"""

    def __init__(self, account: Account, context: Context) -> None:
        self.account, self.context = account, context
        self.last_used, self._lock = time.monotonic(), threading.Lock()
        self._connection = FakeSnowflakeConnection(
            account.engine.cursor(),
            account.engine.results_cache,
            create_database=False,
            create_schema=False,
            db_path=account.engine.folder,
        )
        self._follow()

    def interrupt(self) -> None:
        """Cancel the statement that is running."""
        self._connection._duck_conn.interrupt()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def execute(self, sql: str, parameters: tuple[Any, ...] | None = None) -> StatementResult:
        """Run one statement, with values of its placeholders; raises ProgrammingError."""
        with self._lock:
            self.last_used = time.monotonic()
            try:
                return self._execute(sql, parameters)
            except (Error, duckdb.Error, NotImplementedError, SqlglotError) as error:
                raise pass_through.translate(error) from error

    def _execute(self, sql: str, parameters: tuple[Any, ...] | None) -> StatementResult:
        if statement := commands.parse(sql):
            return self._command(statement)
        if called := commands.call_system_function(self.account, self.context, sql):
            column, value = called
            return _answer(Rows([text_column(column)], [(value,)]), 0)
        tree = pass_through.parse(sql)
        if command := self._on_iceberg_table(tree):
            return self._command(command)
        self._check_tables(tree)
        return self._pass_on(sql, parameters, tree)

    def _command(self, statement: Statement) -> StatementResult:
        rows = commands.run(self.account, self.context, statement)
        self._follow()
        return _answer(rows, DDL if statement.verb in ("CREATE", "ALTER", "DROP") else 0)

    def _on_iceberg_table(self, tree: exp.Expr) -> Statement | None:
        """A plain statement as one on an Iceberg table; raises ProgrammingError: it writes."""
        written = pass_through.written_table(tree)
        if written is not None and self._iceberg(written):
            self.account.refuse_write(self._full(written) or (), f"{tree.key.upper()}")
            raise read_only(written[-1])
        table = tree.find(exp.Table)
        if table is None or not isinstance(tree, exp.Create | exp.Drop | exp.Describe):
            return None
        name = pass_through.table_name(table)
        if not self._iceberg(name):
            return None
        kind = str(tree.args["kind"]).upper()
        if isinstance(tree, exp.Create):
            raise already_exists(display(name))
        if kind != "TABLE":
            raise does_not_exist(kind.capitalize(), display(name))
        verb = "DROP" if isinstance(tree, exp.Drop) else "DESCRIBE"
        return Statement(verb, TABLE, name, if_exists=bool(tree.args.get("exists")))

    def _check_tables(self, tree: exp.Expr) -> None:
        """
        :raises ProgrammingError: the role may not query a table, or the table's name has another
            case than in the case-sensitive catalog (DuckDB ignores case), or the statement would
            write to a catalog
        """
        within = {query.alias_or_name for query in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            full = self._full(pass_through.table_name(table))
            if full is None or (table.name in within and not table.db):
                continue
            if self.account.store.get(TABLE, full) is not None:
                check_read(self.account, self.context, full)
            elif self.account.linked(full[0]) is not None and len(full) == 3:
                if isinstance(tree, exp.Create | exp.Drop | exp.Alter):
                    self.account.refuse_write(full, f"{tree.key.upper()} {tree.args.get('kind')}")
                if full[1].upper() != "INFORMATION_SCHEMA":
                    raise does_not_exist("Object", display(full))

    def _full(self, name: Name) -> Name | None:
        """Return the table's whole name as it is stored; None: the context lacks a part."""
        try:
            return self.account.canonical(resolve(name, self.context, "statement"))
        except ProgrammingError:
            return None

    def _iceberg(self, name: Name) -> bool:
        full = self._full(name)
        return full is not None and self.account.store.get(TABLE, full) is not None

    def _pass_on(
        self, sql: str, parameters: tuple[Any, ...] | None, tree: exp.Expr
    ) -> StatementResult:
        statement_type = statement_type_id(tree)
        cursor: FakeSnowflakeCursor = self._connection.cursor()
        sql = pass_through.fill_in(tree, sql, self.context)
        cursor.execute(sql, binding_params=parameters, server=True)
        table = cursor._arrow_table
        query_id = cursor.sfqid or str(uuid.uuid4())
        if table is None or isinstance(tree, pass_through.WITHOUT_RESULT):
            payload = Rows.status("Statement executed successfully.").payload()
        elif statement_type in DML_TYPE_IDS:
            columns = [text_column(name) for name in table.column_names]
            rows = [tuple(row.values()) for row in table.to_pylist()]
            payload = Rows(columns, rows).payload()
        else:
            types = self._connection._duck_conn.description or []
            semi_structured = {i for i, (_, kind, *_) in enumerate(types) if str(kind) == "JSON"}
            labels = pass_through.labels(tree)
            if labels and len(labels) == table.num_columns:
                names = zip(labels, table.column_names, strict=True)
                table = table.rename_columns([label or name for label, name in names])
            payload = arrow_payload(table, semi_structured)
        return StatementResult(payload, statement_type, query_id)

    def _follow(self) -> None:
        """Make the context's database and schema those of DuckDB and of fakesnow."""
        connection, context, engine = self._connection, self.context, self.account.engine
        if context.database not in engine.databases():
            context.database = context.schema = None
        elif not engine.has_schema(str(context.database), context.schema or ""):
            context.schema = None
        connection.database, connection._schema = context.database, context.schema
        connection.database_set = context.database is not None
        connection.schema_set = context.schema is not None
        schema = quote(context.schema or "main")
        connection._duck_conn.execute(f"USE {context.database or 'memory'}.{schema}")


def _answer(rows: Rows, statement_type: int) -> StatementResult:
    return StatementResult(rows.payload(), statement_type, str(uuid.uuid4()))
