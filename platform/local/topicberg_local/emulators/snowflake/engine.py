"""DuckDB under fakesnow: bounded, with Iceberg, and with databases that outlive the process."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
from fakesnow import info_schema, macros, transforms
from fakesnow.instance import GLOBAL_DATABASE_NAME, FakeSnow
from fakesnow.transforms import show, stage

from topicberg.catalogs.snowflake.names import quote
from topicberg.errors import StackError
from topicberg.iceberg.readers import READ_ALL_FILES
from topicberg_local.emulators.snowflake.sources import region
from topicberg_local.emulators.snowflake.sql import Name

logger = logging.getLogger(__name__)
SUFFIX = ".db"
ICEBERG_TABLES = f"{GLOBAL_DATABASE_NAME}._fs_information_schema._topicberg_iceberg_tables"
"""Names of the Iceberg tables, for SHOW and INFORMATION_SCHEMA: to DuckDB they are views."""

# fakesnow makes a folder for staged files when it is imported and leaves it behind; no stages here.
shutil.rmtree(stage.LOCAL_BUCKET_PATH, ignore_errors=True)

# fakesnow casts what it sums to DOUBLE, so that texts can be summed: amounts would not be exact.
transforms.numeric_agg_implicit_cast = lambda expression: expression


class _Nothing(dict[str, Any]):
    """Keeps no results: fakesnow would keep every one for ever, for RESULT_SCAN."""

    def __setitem__(self, _key: str, _value: Any) -> None:
        pass


class Engine(FakeSnow):
    """fakesnow over one DuckDB, whose databases are files in a folder.

    :param folder: one file a database, and the spill files of large queries
    :raises StackError: DuckDB or an extension cannot be loaded, or a database is damaged
    """

    def __init__(self, folder: Path) -> None:
        self.create_database_on_connect = False
        self.create_schema_on_connect = False
        self.nop_regexes = None
        self.results_cache: dict[str, Any] = _Nothing()
        self.db_path = self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.duck_conn = duckdb.connect(
            ":memory:",
            config={
                "allow_unsigned_extensions": "true",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "memory_limit": "512MB",
                "threads": "2",
                "temp_directory": str(folder / "spill"),
            },
        )
        for statement in (
            *(f"LOAD '{_extension(name)}'" for name in ("avro", "httpfs", "iceberg")),
            "SET GLOBAL TimeZone = 'UTC'",
            READ_ALL_FILES,  # Snowflake finds the rows that DuckDB would miss
            _secret(),
            f"ATTACH ':memory:' AS {GLOBAL_DATABASE_NAME}",
            info_schema.fs_global_creation_sql(),
            show.fs_global_creation_sql(),
            f"CREATE TABLE {ICEBERG_TABLES} (database VARCHAR, schema VARCHAR, name VARCHAR)",
        ):
            self.duck_conn.execute(statement)
        for file in sorted(folder.glob(f"*{SUFFIX}")):
            self.attach(file.name.removesuffix(SUFFIX))

    def file(self, database: str) -> Path:
        return self.folder / f"{database}{SUFFIX}"

    def attach(self, database: str) -> None:
        """Open a database; a new file if there is none.

        :param database: a name that needs no quotes
        :raises StackError: the file is damaged
        """
        path = str(self.file(database)).replace("'", "''")
        cursor = self.cursor()
        try:
            cursor.execute(f"ATTACH IF NOT EXISTS '{path}' AS {database}")
        except duckdb.Error as error:
            raise StackError(
                f"{self.file(database)} cannot be opened: {error}",
                hint="stop whoever has it open; if it is damaged, restore it from a backup or move "
                "it away to start without that database",
            ) from None
        for create in (info_schema.per_db_creation_sql, macros.creation_sql, _tables_view):
            cursor.execute(create(database))

    def detach(self, database: str) -> None:
        """Close a database and delete its file."""
        self.cursor().execute(f"DETACH {database}")
        self.file(database).unlink(missing_ok=True)

    def databases(self) -> list[str]:
        rows = self.cursor().execute("SELECT database_name FROM duckdb_databases()").fetchall()
        hidden = {"memory", "system", "temp", GLOBAL_DATABASE_NAME}
        return sorted(name for (name,) in rows if name not in hidden)

    def schemas(self) -> list[Name]:
        rows = self.cursor().execute(
            "SELECT database_name, schema_name FROM duckdb_schemas() "
            "WHERE schema_name NOT IN ('main', 'pg_catalog', 'information_schema') "
            "AND schema_name NOT LIKE '\\_fs\\_%' ESCAPE '\\'"
        )
        databases = set(self.databases())
        return sorted((d, s) for d, s in rows.fetchall() if d in databases)

    def has_schema(self, database: str, schema: str) -> bool:
        query = "SELECT 1 FROM duckdb_schemas() WHERE database_name = ? AND schema_name = ?"
        return bool(self.cursor().execute(query, [database, schema]).fetchone())

    def has_relation(self, name: Name) -> bool:
        query = (
            "SELECT 1 FROM information_schema.tables "
            "WHERE table_catalog = ? AND table_schema = ? AND upper(table_name) = upper(?)"
        )
        return bool(self.cursor().execute(query, list(name)).fetchone())

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own: sessions and threads must not share one."""
        return self.duck_conn.cursor()

    def show_iceberg_table(self, name: Name, query: str) -> None:
        """Make a query the contents of a table."""
        cursor = self.cursor()
        cursor.execute(f"CREATE OR REPLACE VIEW {quote(*name)} AS {query}")
        cursor.execute(
            f"INSERT INTO {ICEBERG_TABLES} SELECT ?, ?, ? WHERE NOT EXISTS ("
            f"FROM {ICEBERG_TABLES} WHERE (database, schema, name) = (?, ?, ?))",
            [*name, *name],
        )

    def hide_iceberg_table(self, name: Name) -> None:
        cursor = self.cursor()
        cursor.execute(f"DROP VIEW IF EXISTS {quote(*name)}")
        cursor.execute(
            f"DELETE FROM {ICEBERG_TABLES} WHERE (database, schema, name) = (?, ?, ?)",  # noqa: S608
            list(name),
        )


def _tables_view(database: str) -> str:
    """INFORMATION_SCHEMA.TABLES with the Iceberg tables in it."""
    template = info_schema.SQL_CREATE_INFORMATION_SCHEMA_TABLES_VIEW.substitute(catalog=database)
    _, _, ordinary = template.partition(" AS\n")
    name = f"{database}._fs_information_schema._fs_tables"
    return (
        f"CREATE OR REPLACE VIEW {name} AS {ordinary} "  # noqa: S608  a plain name
        'UNION ALL BY NAME SELECT database AS "TABLE_CATALOG", schema AS "TABLE_SCHEMA", '
        'name AS "TABLE_NAME", \'ACCOUNTADMIN\' AS "TABLE_OWNER", '
        "'BASE TABLE' AS \"TABLE_TYPE\", 'YES' AS \"IS_ICEBERG\" "
        f"FROM {ICEBERG_TABLES} WHERE database = '{database}'"
    )


def _extension(name: str) -> str:
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(f"the package duckdb-extension-{name} is not installed")
    files = list(Path(spec.submodule_search_locations[0]).rglob("*.duckdb_extension"))
    if len(files) != 1:
        raise StackError(f"duckdb-extension-{name} holds {len(files)} extension files, not one")
    return str(files[0])


def _secret() -> str:
    """The key by which DuckDB reads the object store."""
    endpoint = urlsplit(os.environ["TOPICBERG_S3_ENDPOINT"])
    fields = {
        "KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
        "SECRET": os.environ["AWS_SECRET_ACCESS_KEY"],
        "ENDPOINT": endpoint.netloc,
        "REGION": region(),
        "URL_STYLE": "path",
    }
    escaped = {name: value.replace("'", "''") for name, value in fields.items()}
    quoted = ", ".join(f"{name} '{value}'" for name, value in escaped.items())
    return f"CREATE SECRET (TYPE s3, {quoted}, USE_SSL {endpoint.scheme == 'https'})"
