"""The tables of a deployment, for assets, checks, notebooks and code locations of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from topicberg.catalogs.snowflake.names import quote
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.readers import DUCKDB, READ_ALL_FILES
from topicberg.iceberg.tables import attached_catalog, find_table
from topicberg.project import VARIABLE
from topicberg.settings import Settings, settings
from topicberg.spark import new_session
from topicberg.transforms.spark_tables import name_in_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

TableName = tuple[str, str]


class Tables(ConfigurableResource):
    """Reads the tables by PyIceberg, DuckDB and Spark; nothing connects before it is used.

    ::

        @dg.asset(deps=[dg.AssetKey(["iceberg", "orders"])])
        def revenue(tables: Tables) -> float:
            return tables.sql("SELECT sum(amount) FROM orders")["sum(amount)"][0].as_py()

    Unqualified names are those of topics' tables first, then of derived tables. Tables of other
    deployments in the same catalog need their namespace: ``NAMESPACE.TABLE``. What it opens is
    closed when the run ends; elsewhere ``with Tables() as tables`` closes it.
    """

    project: str | None = Field(
        default=None,
        description="folder of the topicberg project whose settings are used; none: "
        "TOPICBERG_PROJECT_ROOT, or the project of the working directory",
    )
    _only: Mapping[str, TableName] | None = PrivateAttr(None)  # The only ones that can be read.
    _duckdb: DuckDBPyConnection | None = PrivateAttr(None)
    _spark: SparkSession | None = PrivateAttr(None)

    @classmethod
    def limited(cls, tables: Mapping[str, TableName]) -> Tables:
        """Return a resource that reads these tables only, by these names."""
        limited = cls()
        limited._only = tables
        return limited

    @property
    def config(self) -> Settings:
        """The settings of the project.

        :raises TopicbergError: this process works for another project
        """
        if self.project is not None:
            root = Path(self.project).resolve()
            if not settings.cache_info().currsize:
                os.environ.setdefault(VARIABLE, str(root))
            if (current := settings().project_root.resolve()) != root:
                raise TopicbergError(
                    f"Tables(project={self.project!r}): this process works for {current} already",
                    hint=f"use one project in a code location, or correct {VARIABLE}",
                )
        return settings()

    @property
    def endpoints(self) -> Endpoints:
        """:raises TopicbergError: the deployment is not there; nothing is started"""
        return load_endpoints(self.config)

    @property
    def catalog(self) -> Catalog:
        """The Iceberg catalog that has all tables."""
        return self.endpoints.catalog(self.config)

    def names(self) -> list[str]:
        """Return the names of all tables of the deployment."""
        return sorted(self._identifiers())

    def _identifiers(self) -> Mapping[str, TableName]:
        """Return name → namespace and name of the tables that can be read."""
        from topicberg.query import own_tables

        if self._only is not None:
            return self._only
        tables = own_tables(self.catalog, self.config)
        return {table[1]: table for table in reversed(tables)}  # the first one counts

    def identifier(self, table: str) -> TableName:
        """Return namespace and name of a table.

        :param table: its name; of one in a namespace of others, both with a dot between them
        :raises TopicbergError: there is no such table
        """
        identifiers = self._identifiers()
        if table in identifiers:
            return identifiers[table]
        namespace, _, name = table.partition(".")
        is_qualified = self._only is None and namespace and name
        if is_qualified and find_table(self.catalog, (namespace, name)) is not None:
            return namespace, name
        close = get_close_matches(table, identifiers, n=1)
        reason = "the check does not name it" if self._only is not None else "it does not exist"
        raise TopicbergError(
            f"table {table!r} cannot be read: {reason}",
            hint=f"did you mean {close[0]!r}?"
            if close
            else f"tables: {', '.join(sorted(identifiers)) or 'none'}",
        )

    def iceberg(self, table: str) -> Table:
        """Return a table as PyIceberg has it.

        :raises TopicbergError: there is no such table
        """
        return self.catalog.load_table(self.identifier(table))

    def duckdb(self) -> DuckDBPyConnection:
        """Return a connection that reads the tables, in UTC; use it in one thread only.

        :raises QueryError: the catalog does not answer
        """
        from topicberg.query import duckdb_connection

        if self._duckdb is None:
            connection = duckdb_connection(self.endpoints, self.config)
            if self._only is not None:
                connection.execute("SET search_path = 'memory.main'")
                for name in self._only:  # DuckDB quotes as Snowflake does
                    table = self.iceberg(name)
                    if DUCKDB.misses(table):
                        connection.execute(READ_ALL_FILES)
                    path = f"{attached_catalog(table)}.{quote(*table.name())}"
                    connection.execute(f"CREATE VIEW {quote(name)} AS FROM {path}")
            self._duckdb = connection
        return self._duckdb

    def sql(self, query: str) -> pa.Table:
        """Return the rows of a query by DuckDB.

        :raises QueryError: it is not one reading statement, or DuckDB refuses it: its own message
        """
        from topicberg.query import check_named_tables, check_reads, explained

        check_reads(query, "duckdb")
        endpoints, config = self.endpoints, self.config
        needs_all_files = check_named_tables(query, endpoints, config)
        with explained(query, "duckdb", endpoints, config):
            if needs_all_files:
                self.duckdb().execute(READ_ALL_FILES)
            return self.duckdb().sql(query).to_arrow_table()

    @property
    def spark(self) -> SparkSession:
        """A session of Spark Connect, in UTC.

        :raises TopicbergError: the deployment has no Spark, or it does not answer
        """
        if self._spark is None:
            endpoints = self.endpoints
            conf = {"spark.sql.session.timeZone": "UTC"} | endpoints.spark_session(self.config)[0]
            self._spark = new_session(endpoints.spark_connect, conf)
        return self._spark

    def frame(self, table: str) -> DataFrame:
        """Return the rows of a table as a DataFrame of Spark.

        :raises TopicbergError: there is no such table
        """
        return self.spark.read.table(name_in_spark(self.iceberg(table)))

    def close(self) -> None:
        """Close what was opened."""
        connection, self._duckdb = self._duckdb, None
        session, self._spark = self._spark, None
        if connection is not None:
            connection.close()
        if session is not None:
            session.stop()

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        self.close()

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
