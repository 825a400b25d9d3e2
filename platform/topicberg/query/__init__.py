"""Queries of the tables by any of the engines that read them.

Unqualified names work in all of them: topic tables and derived tables are found by their name only
(a topic's table first, if a pipeline has one of the same name). Tables of other deployments in the
same catalog need their namespace. Names with dots or hyphens are
quoted as the engine requires: ``"airline.sunset"`` in DuckDB, `` `airline.sunset` `` in Spark; in
Snowflake it is ``AIRLINE_SUNSET``, also where the table is in a catalog-linked database.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from topicberg.catalogs.snowflake.names import QUERY_ROLE, TablePath, quote
from topicberg.catalogs.snowflake.session import ask, logging_in
from topicberg.catalogs.snowflake.tables import find_table_path, read_back
from topicberg.endpoints import CATALOG, TOPICS_CATALOG, Endpoints, load_endpoints
from topicberg.errors import TopicbergError, see_whether_it_runs
from topicberg.extensions import of_extra
from topicberg.iceberg.names import find_unreadable_partition
from topicberg.iceberg.readers import ATHENA, DUCKDB, READ_ALL_FILES, SNOWFLAKE, SPARK, TableReader
from topicberg.logins.catalog import literal
from topicberg.query import athena
from topicberg.query.guard import Engine, QueryError, check_reads
from topicberg.query.help import hint, unquoted
from topicberg.settings import Settings, settings
from topicberg.topics import check_topics
from topicberg.topics.spec import asset_name

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.typedef import Identifier
    from snowflake.connector import SnowflakeConnection


__all__ = ["Engine", "QueryError", "QueryResult", "check_reads", "duckdb_connection", "run_query"]

READERS: dict[Engine, TableReader] = {
    "duckdb": DUCKDB,
    "spark": SPARK,
    "snowflake": SNOWFLAKE,
    "athena": ATHENA,
}
CONNECT_SECONDS, LOGIN_SECONDS = 5.0, 15
Answer = tuple[tuple[str, ...], list[tuple[Any, ...]]]  # Names of columns, and rows.


@dataclass(frozen=True)
class QueryResult:
    """``columns`` in order, and rows of as many values. ``more``: there were more rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False

    def scalar(self) -> Any:
        """Return the only value of a result of one row and one column."""
        ((value,),) = self.rows
        return value


def run_query(
    sql: str,
    engine: Engine = "duckdb",
    endpoints: Endpoints | None = None,
    config: Settings | None = None,
    *,
    max_rows: int | None = None,
) -> QueryResult:
    """Run a query on one engine.

    :param endpoints: None: those of the deployment
    :param max_rows: the most rows to fetch
    :raises QueryError: the engine's own message in one line
    """
    check_reads(sql, engine)
    endpoints, config = endpoints or load_endpoints(config), config or settings()
    with explained(sql, engine, endpoints, config):
        columns, rows = _ENGINES[engine](sql, endpoints, config, max_rows)
    more = max_rows is not None and len(rows) > max_rows
    return QueryResult(columns, rows[:max_rows] if more else rows, more)


@contextmanager
def explained(sql: str, engine: Engine, endpoints: Endpoints, config: Settings) -> Iterator[None]:
    """Turn the error of an engine at a query into a QueryError: one line with a hint."""
    try:
        yield
    except athena.AthenaError as error:
        raise athena.AthenaError(
            error.message, hint=_unreadable(sql, engine, endpoints, config) or error.hint
        ) from None
    except TopicbergError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("duckdb", "_duckdb", "pyspark", "snowflake")):
            raise
        if refusal := _catalog_refusal(error, engine, endpoints):
            raise refusal from None
        help_ = (
            unquoted(sql, engine)
            or _unreadable(sql, engine, endpoints, config)
            or hint(
                str(error),
                engine,
                lambda: _known_columns(sql, endpoints, config),
                lambda table: _commits_behind(table, sql, endpoints, config),
            )
        )
        raise QueryError(f"{engine}: {_one_line(error)}", hint=help_) from None


_REFUSED = re.compile(r"(?:Forbidden|Unauthorized)_(40[13])(?: with message \"(.+)\")?")
"""How DuckDB's client of Iceberg's catalog reports a refusal."""
_REFUSALS = {
    "401": (
        "the login",
        "check TOPICBERG_ICEBERG_REST_OAUTH and _TOKEN, and that the catalog trusts who issued the "
        "token",
    ),
    "403": (
        "to read",
        "grant the principal of TOPICBERG_ICEBERG_REST_OAUTH, _TOKEN or _ROLE_ARN the right to "
        "read the table",
    ),
}


def _catalog_refusal(error: Exception, engine: Engine, endpoints: Endpoints) -> QueryError | None:
    """Return DuckDB's error as one that names the catalog and the settings, if it refused."""
    if engine != "duckdb" or not (match := _REFUSED.search(str(error))):
        return None
    verb, remedy = _REFUSALS[match[1]]
    reason = f"{match[2] or 'no reason given'} ({match[1]})"
    message = f"the catalog refuses {verb}: {endpoints.iceberg_rest}: {reason}"
    return QueryError(message, hint=remedy)


def load_extensions(connection: DuckDBPyConnection) -> None:
    """Load DuckDB's extensions for Iceberg from wheels: unsigned ones must be allowed."""
    with of_extra("query"):
        import duckdb

    for name in ("httpfs", "avro", "iceberg"):  # iceberg needs the other two
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        connection.load_extension(str(folder / f"{name}.duckdb_extension"))


def duckdb_connection(endpoints: Endpoints, config: Settings | None = None) -> DuckDBPyConnection:
    """Return DuckDB with the Iceberg catalog attached, read-only, as ``lake``, in UTC."""
    with of_extra("query"):
        import duckdb

    config = config or settings()
    _check_listening("the Iceberg catalog", endpoints.iceberg_rest)
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    load_extensions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    warehouse = endpoints.warehouse(config) or config.warehouse
    catalogs = [(CATALOG, endpoints.login, warehouse, endpoints.iceberg_rest)]
    if (topics := endpoints.topics_login) is not None:
        uri = str(endpoints.topics_rest)
        catalogs.append((TOPICS_CATALOG, topics, str(topics.warehouse), uri))
    # SigV4 is signed by the same secret.
    if any(not login.vends or login.auth == "sigv4" for _, login, *_ in catalogs):
        connection.execute(_s3_secret(endpoints, config))
    for name, login, warehouse, uri in catalogs:
        secret, options = login.duckdb(config.aws_region, name)
        if secret:
            connection.execute(secret)
        connection.execute(
            f"ATTACH {literal(warehouse)} AS {name} "
            f"(TYPE iceberg, READ_ONLY, ENDPOINT {literal(uri)}, {options})"
        )
    listed = connection.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ?", [CATALOG]
    )
    there = {name for (name,) in listed.fetchall()}
    first, *pipelines = own_namespaces(config)
    schemas = [(catalogs[-1][0], first), *((CATALOG, name) for name in pipelines if name in there)]
    path = ",".join(quote(*schema) for schema in schemas)  # DuckDB quotes as Snowflake does
    connection.execute(f"SET search_path = {literal(path)}")
    return connection


def _ask_duckdb(sql: str, endpoints: Endpoints, config: Settings, max_rows: int | None) -> Answer:
    needs_all_files = check_named_tables(sql, endpoints, config)
    with duckdb_connection(endpoints, config) as connection:
        if needs_all_files:
            connection.execute(READ_ALL_FILES)
        if (relation := connection.sql(sql)) is None:
            return (), []
        limited = relation if max_rows is None else relation.limit(max_rows + 1)
        return _from_arrow(limited.to_arrow_table())


def check_named_tables(sql: str, endpoints: Endpoints, config: Settings) -> bool:
    """Return whether a query names a table of which DuckDB may skip files that have rows.

    :raises QueryError: it names a table at whose manifests DuckDB would end this process
    """
    unreadable: dict[str, str | None] = {}
    misses_rows = True  # unless all tables can be inspected
    with suppress(Exception):  # DuckDB reports what is wrong with the catalog
        reasons = list[str | None]()
        for name, table in _named_tables(sql, endpoints.catalog(config)):
            unreadable[name] = find_unreadable_partition(table.specs().values())
            reasons.append(DUCKDB.misses(table))
        misses_rows = any(reasons)
    for name, field in unreadable.items():
        if field is not None:
            raise QueryError(
                f"duckdb: table {name} has the partition field {field}, and DuckDB reads only "
                "names of ASCII letters, digits and '_' in manifests",
                hint="use `--engine spark`; or drop the table and create it again, as new tables "
                "have an escaped name",
            )
    return misses_rows


def _ask_spark(sql: str, endpoints: Endpoints, config: Settings, max_rows: int | None) -> Answer:
    from topicberg.spark import new_session, quote

    conf, _ = endpoints.spark_session(config)
    topics = TOPICS_CATALOG if endpoints.topics_login else CATALOG
    session = new_session(endpoints.spark_connect, conf, give_up_after=LOGIN_SECONDS)
    try:
        session.sql(f"USE {quote(topics, config.topics_namespace)}")
        for namespace, table in _mentioned_elsewhere(sql, endpoints, config):
            session.table(quote(CATALOG, namespace, table)).createOrReplaceTempView(quote(table))
        frame = session.sql(sql)
        return _from_arrow((frame if max_rows is None else frame.limit(max_rows + 1)).toArrow())
    finally:
        session.stop()


def _snowflake_connection(endpoints: Endpoints, config: Settings) -> SnowflakeConnection:
    """Return a connection that can only read."""
    with of_extra("snowflake"):
        import snowflake.connector

    account = endpoints.snowflake
    if account.host and account.port:
        _check_listening("Snowflake", f"http://{account.host}:{account.port}")
    address = {name: getattr(account, name) for name in ("host", "port", "protocol")}
    # The user that `topicberg deploy` created owns tables; this role of it can only read.
    deployed = config.deployment == "cloud" and account.private_key is not None
    role = {"role": config.snowflake_name(QUERY_ROLE)} if deployed else {}
    with logging_in():
        connection = snowflake.connector.connect(
            account=account.account,
            user=account.user,
            **role,
            **account.connector_login(),
            database=config.snowflake_name("database"),
            schema=config.snowflake_name("schema"),
            login_timeout=LOGIN_SECONDS,
            **{name: value for name, value in address.items() if value is not None},
        )
    if deployed:  # by default a session has the privileges of all roles of its user
        ask(connection, "USE SECONDARY ROLES NONE")
    return connection


def _ask_snowflake(
    sql: str, endpoints: Endpoints, config: Settings, max_rows: int | None
) -> Answer:
    with _snowflake_connection(endpoints, config) as connection:
        if config.snowflake_linked_database:
            sql = _in_linked_database(sql, connection, config)
        return ask(connection, sql, None if max_rows is None else max_rows + 1)


def _in_linked_database(sql: str, connection: SnowflakeConnection, config: Settings) -> str:
    """Return the query with the names that tables of topics have in the linked database."""
    topics = {
        spec.snowflake_name: spec.glue_name if config.topics_in_glue else spec.name
        for spec in check_topics(config)[0]
    }

    def find(name: str) -> TablePath | None:
        if name not in topics:
            return None
        path = find_table_path(connection, config, name, (config.topics_namespace, topics[name]))
        return path if path.is_linked else None

    return qualify(sql, find)


_ENGINES: dict[Engine, Callable[[str, Endpoints, Settings, int | None], Answer]] = {
    "duckdb": _ask_duckdb,
    "spark": _ask_spark,
    "snowflake": _ask_snowflake,
    "athena": athena.ask,
}


def own_namespaces(config: Settings) -> list[str]:
    """Return the namespaces of a deployment: of the topics' tables, then of its pipelines. A
    catalog may have those of several deployments, whose names are not found."""
    pipelines = {spec.namespace(config) for spec in check_topics(config)[0]}
    return [config.topics_namespace, *sorted(pipelines - {config.topics_namespace})]


def own_tables(catalog: Catalog, config: Settings) -> list[tuple[str, str]]:
    """Return namespace and name of a deployment's tables, in the order of the search."""
    there = {namespace[0] for namespace in catalog.list_namespaces() if len(namespace) == 1}
    return [
        (namespace, name)
        for namespace in own_namespaces(config)
        if namespace in there
        for name in sorted(table[-1] for table in catalog.list_tables(namespace))
    ]


def qualify(sql: str, find: Callable[[str], TablePath | None]) -> str:
    """Return a query for Snowflake with the whole names of tables that it calls by name only.

    Each keeps that name as its alias. The rest of the text stays as it is.

    :param sql: one statement that the parser has accepted
    :param find: name in upper case → where the table is; None: not in the linked database
    """
    from sqlglot import exp, parse_one

    tree = parse_one(sql, read="snowflake")
    within = {query.alias_or_name.upper() for query in tree.find_all(exp.CTE)}
    places: list[tuple[int, int, str]] = []
    for table in tree.find_all(exp.Table):
        name = table.name if table.this.args.get("quoted") else table.name.upper()
        place = table.this.meta
        if table.db or name in within or "start" not in place:
            continue
        if (path := find(name)) is not None:
            alias = "" if table.alias else f" AS {quote(name)}"
            places.append((place["start"], place["end"] + 1, path.sql + alias))
    for start, end, text in sorted(places, reverse=True):
        sql = sql[:start] + text + sql[end:]
    return sql


def _mentioned_elsewhere(sql: str, endpoints: Endpoints, config: Settings) -> list[tuple[str, str]]:
    """Return (namespace, table) of tables named in the query outside of the topics' namespace.
    Spark has one current namespace and no search path, so these become temporary views."""
    words = set(re.findall(r"[\w.$-]+", sql.lower()))
    tables = own_tables(endpoints.catalog(config), config)
    namespaces = {table: namespace for namespace, table in reversed(tables)}  # the first one counts
    return [
        (namespace, table)
        for table, namespace in namespaces.items()
        if namespace != config.topics_namespace and table.lower() in words
    ]


def _unreadable(sql: str, engine: Engine, endpoints: Endpoints, config: Settings) -> str | None:
    """Return the hint for a query that names a table which the engine cannot read."""
    reader, others = READERS[engine], sorted(READERS.keys() - {engine})
    with suppress(Exception):  # this is only a hint for a query that failed already
        for name, table in _named_tables(sql, endpoints.catalog(config)):
            if reason := reader.reason(table):
                return (
                    f"choose another engine ({', '.join(others)}): {reader.name} cannot read table "
                    f"{name} of format version {table.format_version}, as {reason}"
                )
    return None


def _named_tables(sql: str, catalog: Catalog) -> Iterator[tuple[str, Table]]:
    """Yield name, with the namespace, and table of those that a query names."""
    named = (identifier for identifier, is_named in _tables(sql, catalog) if is_named)
    return ((".".join(each), catalog.load_table(each)) for each in named)


def _tables(sql: str, catalog: Catalog) -> Iterator[tuple[Identifier, bool]]:
    """Yield the tables of the catalog, and whether the query names them."""
    words = {re.sub(r"\W", "_", word.lower()) for word in re.findall(r"[\w.$-]+", sql)}
    # A name may have dots of its own, or those of its catalog and namespace.
    words |= {word.rpartition(".")[2] for word in re.findall(r"[\w.$]+", sql.lower())}
    for namespace in catalog.list_namespaces():
        for identifier in catalog.list_tables(namespace):
            yield identifier, re.sub(r"\W", "_", identifier[-1].lower()) in words


def _known_columns(sql: str, endpoints: Endpoints, config: Settings) -> dict[str, list[str]]:
    """Return the tables of the catalog, with columns for those that a query names."""
    columns_by_table: dict[str, list[str]] = {}
    with suppress(Exception):  # this is only a hint for a query that failed already
        catalog, own = endpoints.catalog(config), own_namespaces(config)
        for identifier, is_named in _tables(sql, catalog):
            if is_named:
                names = catalog.load_table(identifier).schema().column_names
                columns_by_table[identifier[-1]] = list(names)
            elif identifier[0] in own:
                columns_by_table[identifier[-1]] = []
    return columns_by_table


def _commits_behind(name: str, sql: str, endpoints: Endpoints, config: Settings) -> int | None:
    """Return by how many commits Snowflake's state of a table is older; None: it is not known."""
    with suppress(Exception):  # this is only a hint for a query that failed already
        catalog = endpoints.catalog(config)
        (identifier,) = (
            each for each, named in _tables(sql, catalog) if named and each[-1] == name
        )
        table = catalog.load_table(identifier)
        source = (identifier[0], identifier[-1].lower())
        with _snowflake_connection(endpoints, config) as connection:
            path = find_table_path(connection, config, asset_name(name).upper(), source)
            return commits_since(table, read_back(connection, path).metadata_location)
    return None


def commits_since(table: Table, location: str) -> int | None:
    """Return how many commits a table has after a metadata file; None: it is no longer logged."""
    log = [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]
    return len(log) - 1 - log.index(location) if location in log else None


def _from_arrow(table: pa.Table) -> Answer:
    columns = (column.to_pylist() for column in table.columns)
    return tuple(table.column_names), list(zip(*columns, strict=True))


def _s3_secret(endpoints: Endpoints, config: Settings) -> str:
    """Return the statement that configures DuckDB's access to the object store."""
    options = {"REGION": config.aws_region}
    if endpoints.s3_access_key and endpoints.s3_secret_key:
        options |= {
            "KEY_ID": endpoints.s3_access_key.get_secret_value(),
            "SECRET": endpoints.s3_secret_key.get_secret_value(),
        }
    else:
        options |= _aws_login(endpoints.login.role_arn, config.aws_region)
    if endpoints.s3:
        address = urlsplit(endpoints.s3)
        options |= {
            "ENDPOINT": address.netloc,
            "URL_STYLE": "path",
            "USE_SSL": str(address.scheme == "https").lower(),
        }
    listed = ", ".join(f"{name} {literal(value)}" for name, value in options.items())
    return f"CREATE SECRET lake_s3 (TYPE s3, {listed})"


def _aws_login(role_arn: str | None, region: str) -> dict[str, str]:
    """Return keys for DuckDB's secret, found as every AWS tool finds them, or those of a role."""
    from botocore.exceptions import BotoCoreError

    from topicberg.clients.aws import aws_session
    from topicberg.logins.catalog import role_keys

    if role_arn:
        keys = role_keys(role_arn, region)
    else:
        try:
            credentials = aws_session().get_credentials()
        except BotoCoreError as error:
            raise QueryError(
                f"AWS: {error}", hint="run `aws sts get-caller-identity` to see more"
            ) from None
        if credentials is None:
            raise QueryError(
                "there are no AWS credentials",
                hint="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        keys = credentials.get_frozen_credentials()
    login = {"KEY_ID": keys.access_key, "SECRET": keys.secret_key, "SESSION_TOKEN": keys.token}
    return {name: value for name, value in login.items() if value}


def _check_listening(service: str, url: str) -> None:
    """:raises QueryError: nothing answers there"""
    address = urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), CONNECT_SECONDS).close()
    except OSError as error:
        raise QueryError(
            f"{service} does not answer at {url}: {error}",
            hint=see_whether_it_runs(service, starts=True),
        ) from None


def _one_line(error: Exception) -> str:
    """Return the first meaningful line, without a stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    has_title = bool(lines) and lines[0].endswith(":")
    return " ".join(lines[: 2 if has_title else 1]) or type(error).__name__
