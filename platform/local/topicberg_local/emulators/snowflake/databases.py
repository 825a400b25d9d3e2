"""Databases and schemas: files of DuckDB, each with the options that the emulator honours.

https://docs.snowflake.com/en/sql-reference/sql/create-database and
https://docs.snowflake.com/en/sql-reference/sql/create-schema
"""

from __future__ import annotations

import re

from topicberg.catalogs.snowflake.names import quote
from topicberg_local.emulators.snowflake import linked
from topicberg_local.emulators.snowflake.account import (
    CREATED,
    DATABASE,
    INTEGRATION,
    NOTHING_DROPPED,
    OWNER,
    SCHEMA,
    TABLE,
    VOLUME,
    Account,
    Context,
    drop,
    resolve,
    show,
    value_of,
)
from topicberg_local.emulators.snowflake.errors import already_exists, unsupported
from topicberg_local.emulators.snowflake.privileges import PUBLIC
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Spec,
    Statement,
    Stream,
    display,
    integer,
    reference,
    text,
)
from topicberg_local.emulators.store import Stored

_PLAIN = re.compile(r"[A-Z_][A-Z0-9_]*")
_RESERVED = {"SYSTEM", "TEMP", "MEMORY", "_FS_GLOBAL", "MAIN"}
_SCHEMA = Spec("SCHEMA", {"DATA_RETENTION_TIME_IN_DAYS": integer, "COMMENT": text})
_DATABASE = Spec(
    "DATABASE", {"EXTERNAL_VOLUME": reference, "CATALOG": reference, **_SCHEMA.readers}
)


def _create_database(stream: Stream, statement: Statement) -> None:
    if stream.find("LINKED_CATALOG") is not None:
        linked.read_linked(stream, statement)
    elif stream.at("CLONE") or stream.at("FROM") or stream.at("AS"):
        raise unsupported(f"CREATE DATABASE … {stream.peek().value}")
    else:
        statement.properties = _DATABASE.read(stream)


def _create_schema(stream: Stream, statement: Statement) -> None:
    for tail in ("CLONE", "WITH MANAGED", "WITH TAG", "WITH CONTACT"):
        if stream.at(*tail.split()):
            raise unsupported(f"CREATE SCHEMA … {tail}")
    if stream.at("WITH"):
        raise stream.unexpected()
    statement.properties = _SCHEMA.read(stream)


DATABASE_KIND = Kind(
    "DATABASE",
    create=_create_database,
    alter=linked.alter_linked,
    plural="DATABASES",
    in_account=False,
)
SCHEMA_KIND = Kind("SCHEMA", parts=2, create=_create_schema, plural="SCHEMAS", in_account=False)


def create_database(account: Account, context: Context, statement: Statement) -> Rows:
    """CREATE DATABASE makes the schema PUBLIC too, and both become the session's.

    One that links a catalog has the catalog's namespaces instead.
    """
    (name,), properties = statement.name, statement.properties
    for option, kind in (("EXTERNAL_VOLUME", VOLUME), ("CATALOG", INTEGRATION)):
        if option in properties:
            account.require(kind, (properties[option],))
    links = "LINKED_CATALOG" in properties
    if links:
        properties = linked.properties_of(account, properties)
    if not _PLAIN.fullmatch(name) or name in _RESERVED:
        raise unsupported(f"a database of the name {display(statement.name)}")
    with account.store.lock:
        if account.is_there(DATABASE, (name,)):
            if statement.if_not_exists:
                return Rows.status(f"{name} already exists, statement succeeded.")
            if not statement.or_replace:
                raise already_exists(name)
            _drop_database(account, name)
        account.engine.attach(name)
        owned = {OWNER: context.role}
        account.store.put(Stored(DATABASE, (name,), properties | owned))
        if not links:
            account.engine.cursor().execute(f"CREATE SCHEMA IF NOT EXISTS {name}.PUBLIC")
            account.store.put(Stored(SCHEMA, (name, PUBLIC), owned))
    context.database, context.schema = name, None if links else "PUBLIC"
    return Rows.status(f"Database {name} successfully created.")


def _hide_tables(account: Account, prefix: Name) -> None:
    """Forget the Iceberg tables of a database or schema."""
    inside = account.store.all(TABLE, lambda table: table.name[: len(prefix)] == prefix)
    for table in inside:
        account.engine.hide_iceberg_table(table.name)
    drop(account, TABLE, *(table.name for table in inside))


def _drop_database(account: Account, name: str) -> None:
    _hide_tables(account, (name,))
    drop(account, SCHEMA, *(schema for schema in account.engine.schemas() if schema[0] == name))
    drop(account, DATABASE, (name,))
    account.engine.detach(name)


def drop_database(account: Account, context: Context, statement: Statement) -> Rows:
    (name,) = statement.name
    with account.store.lock:
        if statement.if_exists and not account.is_there(DATABASE, (name,)):
            return Rows.status(NOTHING_DROPPED)
        account.demand(DATABASE, (name,))
        _drop_database(account, name)
    if context.database == name:
        context.database = context.schema = None
    return Rows.status(f"{name} successfully dropped.")


def _schema_name(account: Account, context: Context, statement: Statement) -> tuple[str, str]:
    """:raises ProgrammingError: the session has no database, or the database is a catalog's"""
    command = f"{statement.verb} SCHEMA"
    database, schema, _ = resolve((*statement.name, ""), context, command)
    account.refuse_write((database,), command)
    return database, schema


def create_schema(account: Account, context: Context, statement: Statement) -> Rows:
    name = database, schema = _schema_name(account, context, statement)
    with account.store.lock:
        account.demand(DATABASE, (database,))
        if account.engine.has_schema(*name):
            if statement.if_not_exists:
                return Rows.status(f"{schema} already exists, statement succeeded.")
            if not statement.or_replace:
                raise already_exists(display(name))
            _drop_schema(account, name)
        account.engine.cursor().execute(f"CREATE SCHEMA {quote(*name)}")
        account.store.put(Stored(SCHEMA, name, {OWNER: context.role}))
    context.database, context.schema = name
    return Rows.status(f"Schema {schema} successfully created.")


def _drop_schema(account: Account, name: Name) -> None:
    _hide_tables(account, name)
    drop(account, SCHEMA, name)
    account.engine.cursor().execute(f"DROP SCHEMA {quote(*name)} CASCADE")


def drop_schema(account: Account, context: Context, statement: Statement) -> Rows:
    name = _schema_name(account, context, statement)
    with account.store.lock:
        if statement.if_exists and not account.engine.has_schema(*name):
            return Rows.status(NOTHING_DROPPED)
        account.demand(SCHEMA, name)
        _drop_schema(account, name)
    if (context.database, context.schema) == name:
        context.schema = None
    return Rows.status(f"{name[1]} successfully dropped.")


def show_schemas(account: Account, context: Context, statement: Statement) -> Rows:
    kind, prefix = statement.scope or ("", ())
    if kind != "ACCOUNT":
        prefix = prefix[:1] or ((context.database,) if context.database else ())
    if prefix:
        account.demand(DATABASE, prefix)
    schemas = [
        account.store.get(SCHEMA, name) or Stored(SCHEMA, name, created=0.0)
        for name in account.engine.schemas()
        if name[: len(prefix)] == prefix
    ]
    current = (context.database, context.schema)
    columns = {
        **CREATED,
        "name": lambda schema: schema.name[1],
        "is_default": "N",
        "is_current": lambda schema: "Y" if schema.name == current else "N",
        "database_name": lambda schema: schema.name[0],
        "owner": value_of(OWNER, "SYSADMIN"),
        "comment": "",
        "options": "",
        "retention_time": "1",
        "owner_role_type": "ROLE",
    }
    return show(statement, schemas, columns)


def show_databases(account: Account, context: Context, statement: Statement) -> Rows:
    stored = {record.name: record for record in account.store.all(DATABASE)}
    databases = [
        stored.get((name,)) or Stored(DATABASE, (name,), created=0.0)
        for name in account.engine.databases()
    ]

    def kind(database: Stored) -> str:
        is_linked = "LINKED_CATALOG" in database.properties
        return "CATALOG-LINKED DATABASE" if is_linked else "STANDARD"

    columns = {
        **CREATED,
        "name": lambda database: database.name[0],
        "is_default": "N",
        "is_current": lambda database: "Y" if database.name == (context.database,) else "N",
        "origin": "",
        "owner": value_of(OWNER, "SYSADMIN"),
        "comment": value_of("COMMENT"),
        "options": "",
        "retention_time": value_of("DATA_RETENTION_TIME_IN_DAYS", 1),
        "kind": kind,
        "owner_role_type": "ROLE",
    }
    return show(statement, databases, columns)
