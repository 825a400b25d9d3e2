"""Catalog-linked databases: Snowflake finds the catalog's namespaces and tables by itself; and
automated refresh.

Every SYNC_INTERVAL_SECONDS a discovery reads AWS Glue by its Iceberg REST API: namespaces become
schemas, Iceberg tables become tables with automated refresh. What the catalog no longer has, or
has as another table of that name (another table-uuid), is dropped here, never there. Suspended
discovery leaves automated refresh on. The emulator writes to no catalog: what would is refused
(``Account.refuse_write``).

Tables with AUTO_REFRESH follow their catalog: Snowflake polls it every ``REFRESH_INTERVAL_SECONDS``
of the integration, only while a table wants it; what fails makes the table STALLED, and it recovers
by itself.

https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh,
https://docs.snowflake.com/en/user-guide/tables-iceberg-catalog-linked-database,
https://docs.snowflake.com/en/sql-reference/sql/create-database-catalog-linked,
https://docs.snowflake.com/en/sql-reference/sql/alter-database-catalog-linked,
https://docs.snowflake.com/en/sql-reference/functions/system_catalog_link_status and
https://docs.snowflake.com/en/sql-reference/functions/system_get_catalog_linked_database_config
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from snowflake.connector.errors import ProgrammingError

from topicberg.catalogs.snowflake.names import quote
from topicberg_local.emulators.process import Worker
from topicberg_local.emulators.snowflake import errors, tables
from topicberg_local.emulators.snowflake.account import (
    DATABASE,
    DONE,
    INTEGRATION,
    OWNER,
    SCHEMA,
    TABLE,
    VOLUME,
    Account,
    Context,
    drop,
    grant_future,
)
from topicberg_local.emulators.snowflake.integrations import interval, list_problem
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Name,
    Reader,
    Spec,
    Statement,
    Stream,
    choice,
    display,
    group,
    reference,
    text,
    texts,
)
from topicberg_local.emulators.store import Stored

NAMESPACES = "ALLOWED_NAMESPACES"
"""The others, nested ones and blocked ones, are not emulated."""
_CHANGEABLE: dict[str, Reader] = {
    "ALLOWED_WRITE_OPERATIONS": choice("NONE", "ALL"),
    "SYNC_INTERVAL_SECONDS": interval,
}
_CATALOG = Spec(
    "LINKED_CATALOG",
    {"CATALOG": reference, NAMESPACES: texts, **_CHANGEABLE},
    required=("CATALOG",),
)
_DATABASE = Spec(
    "DATABASE",
    {
        "LINKED_CATALOG": group(_CATALOG),
        "EXTERNAL_VOLUME": reference,
        "COMMENT": text,
        "CATALOG_CASE_SENSITIVITY": choice("CASE_SENSITIVE", "CASE_INSENSITIVE"),
    },
    required=("LINKED_CATALOG",),
)


def read_linked(stream: Stream, statement: Statement) -> None:
    """Read what follows the name of a catalog-linked database."""
    properties = _DATABASE.read(stream, until=("WITH", "TAG"), commas=True)
    if stream.peek().kind != "end":
        raise errors.unsupported("tags and contacts of a catalog-linked database")
    statement.properties = properties


def alter_linked(stream: Stream, statement: Statement) -> None:
    """Read what follows the name in an ALTER DATABASE: of catalog-linked databases only."""
    for action in ("SUSPEND", "RESUME"):
        if stream.take(action, "DISCOVERY"):
            statement.action = action
            return
    if not stream.take("UPDATE", "LINKED_CATALOG"):
        raise errors.unsupported(f"ALTER DATABASE … {stream.peek().value}")
    if stream.take("SET"):
        statement.action = "SET"
        statement.properties = Spec("LINKED_CATALOG", _CHANGEABLE).read(stream)
        if len(statement.properties) != 1:
            raise errors.invalid_request("UPDATE LINKED_CATALOG SET takes one property.")
        return
    for action, preposition in (("ADD", "TO"), ("REMOVE", "FROM")):
        if stream.take(action):
            statement.action = action
            statement.properties = {NAMESPACES: texts(stream, action)}
            stream.expect(preposition, NAMESPACES)
            return
    raise errors.unsupported(f"UPDATE LINKED_CATALOG {stream.peek().value}")


logger = logging.getLogger(__name__)

_DEFAULTS: dict[str, Any] = {
    NAMESPACES: [],
    "ALLOWED_WRITE_OPERATIONS": "ALL",
    "NAMESPACE_MODE": "IGNORE_NESTED_NAMESPACE",
    "NAMESPACE_FLATTEN_DELIMITER": None,
    "SYNC_INTERVAL_SECONDS": 30,
}


def properties_of(account: Account, given: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a new linked database; raises ProgrammingError: they are wrong."""
    catalog = given["LINKED_CATALOG"]
    integration = account.require(INTEGRATION, (catalog["CATALOG"],))
    if integration.properties["CATALOG_SOURCE"] not in ("ICEBERG_REST", "POLARIS"):
        raise errors.invalid_request(
            "A catalog-linked database needs a catalog integration for an Iceberg REST catalog; "
            f"'{catalog['CATALOG']}' has CATALOG_SOURCE = "
            f"{integration.properties['CATALOG_SOURCE']}."
        )
    if "EXTERNAL_VOLUME" in given:
        account.require(VOLUME, (given["EXTERNAL_VOLUME"],))
    return {
        "CATALOG_CASE_SENSITIVITY": "CASE_INSENSITIVE",
        **given,
        "CATALOG": catalog["CATALOG"],
        "LINKED_CATALOG": _DEFAULTS | catalog,
        "SUSPENDED": False,
        "REQUESTED": time.time(),
        "DISCOVERY": {"STARTED": None, "ERROR": None, "FAILURES": []},
    }


def alter_database(account: Account, _context: Context, statement: Statement) -> Rows:
    """Suspend or resume discovery, or change what is discovered; raises ProgrammingError."""
    with account.store.lock:
        if statement.if_exists and not account.is_there(DATABASE, statement.name):
            return Rows.status(DONE)
        database = _require(account, statement.name)
        catalog = database.properties["LINKED_CATALOG"]
        match statement.action:
            case "SUSPEND" | "RESUME":
                database.properties["SUSPENDED"] = statement.action == "SUSPEND"
            case "SET":
                catalog |= statement.properties
            case action:
                names = statement.properties[NAMESPACES]
                others = [name for name in catalog[NAMESPACES] if name not in names]
                catalog[NAMESPACES] = others + (names if action == "ADD" else [])
        if statement.action != "SUSPEND":
            database.properties["REQUESTED"] = time.time()
        account.store.put(database)
    return Rows.status(DONE)


def is_due(database: Stored) -> bool:
    """Return whether the interval has passed since discovery began, or the database was changed."""
    properties = database.properties
    started = properties["DISCOVERY"]["STARTED"] or 0.0
    interval = properties["LINKED_CATALOG"]["SYNC_INTERVAL_SECONDS"]
    due = started < properties["REQUESTED"] or time.time() >= started + interval
    return due and not properties["SUSPENDED"]


def discover(account: Account, name: str) -> None:
    """Bring the database's schemas and tables to those of the catalog, and note what failed."""
    with account.refreshing((name,)):
        database = account.linked(name)
        if database is None:
            return
        started, error, failures = time.time(), None, list[dict[str, str]]()
        try:
            _discover(account, database, failures)
        except ProgrammingError as problem:
            logger.warning("discovery of %s: %s", name, problem.msg)
            error = {"REASON": str(problem.msg), "CODE": f"{problem.errno:06}"}
        result = {"STARTED": started, "ERROR": error, "FAILURES": failures}
        with account.store.lock:
            if (current := account.linked(name)) is not None:
                current.properties["DISCOVERY"] = result
                account.store.put(current)


def _discover(account: Account, database: Stored, failures: list[dict[str, str]]) -> None:
    (name,) = database.name
    integration = account.require(INTEGRATION, (database.properties["CATALOG"],))
    namespaces = _namespaces(account, integration, database.properties["LINKED_CATALOG"])
    names: set[Name] = {
        (name, namespace, table)
        for namespace in namespaces
        for table in account.sources.iceberg_tables(namespace)
    }
    _drop_missing(account, name, set(namespaces), names)
    for namespace in namespaces:
        _show_schema(account, database, namespace)
    for table in sorted(table for table in names if not account.is_there(TABLE, table)):
        try:
            tables.link(account, database, table)
        except ProgrammingError as problem:
            failures.append(
                {
                    "qualifiedEntityName": ".".join(table[1:]),
                    "entityDomain": "TABLE",
                    "operation": "CREATE",
                    "errorCode": f"{problem.errno:06}",
                    "errorMessage": str(problem.msg),
                }
            )


def _namespaces(account: Account, integration: Stored, catalog: dict[str, Any]) -> list[str]:
    """Return the catalog's namespaces that the database follows. Glue nests none."""
    allowed = catalog[NAMESPACES]
    namespaces = [name for name in account.sources.namespaces() if not allowed or name in allowed]
    if problem := list_problem(account, integration, namespaces):
        raise errors.invalid_request(problem)
    return namespaces


def _show_schema(account: Account, database: Stored, namespace: str) -> None:
    schema = (*database.name, namespace)
    with account.store.lock:
        if account.is_there(DATABASE, schema) and not account.is_there(SCHEMA, schema):
            account.engine.cursor().execute(f"CREATE SCHEMA {quote(*schema)}")
            owner = {OWNER: database.properties[OWNER]}
            account.store.put(Stored(SCHEMA, schema, owner))
            grant_future(account, SCHEMA, schema)


def _drop_missing(account: Account, name: str, namespaces: set[str], discovered: set[Name]) -> None:
    """Drop the tables and schemas that the catalog does not have, or that are not followed."""
    with account.store.lock:
        for table in account.store.all(TABLE, lambda entry: entry.name[0] == name):
            if table.name not in discovered:
                tables.unlink(account, table.name)
        for schema in account.engine.schemas():
            if schema[0] == name and schema[1] not in namespaces:
                drop(account, SCHEMA, schema)
                account.engine.cursor().execute(f"DROP SCHEMA {quote(*schema)} CASCADE")


def _require(account: Account, name: Name) -> Stored:
    database = account.linked(name[0])
    if database is None:
        account.require(DATABASE, name[:1])
        raise errors.invalid_request(f"Database '{name[0]}' is not a catalog-linked database.")
    return database


def link_status(account: Account, _context: Context, name: Name) -> str:
    """SYSTEM$CATALOG_LINK_STATUS."""
    properties = _require(account, name).properties
    discovery = properties["DISCOVERY"]
    error = discovery["ERROR"]
    state = "FAILED" if error else "RUNNING"
    response: dict[str, Any] = {
        "executionState": "SUSPENDED" if properties["SUSPENDED"] else state,
        "failureDetails": discovery["FAILURES"],
    }
    if error:
        response["failedExecutionStateReason"] = error["REASON"]
        response["failedExecutionStateErrorCode"] = error["CODE"]
    if discovery["STARTED"] is not None:
        moment = datetime.fromtimestamp(discovery["STARTED"], UTC)
        response["lastLinkAttemptStartTime"] = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment:%f}"[:-3] + "Z"
    return json.dumps(response)


def link_config(account: Account, _context: Context, name: Name) -> str:
    """SYSTEM$GET_CATALOG_LINKED_DATABASE_CONFIG; namespaces are in quotes, as in its example."""
    properties = _require(account, name).properties
    catalog = properties["LINKED_CATALOG"]

    fields = [name for name in _DEFAULTS if name != NAMESPACES]
    return json.dumps(
        {
            "catalog_integration": properties["CATALOG"],
            "catalog_name": None,
            "external_volume": properties.get("EXTERNAL_VOLUME"),
            **{name.lower(): catalog[name] for name in fields},
            "catalog_case_sensitivity": properties["CATALOG_CASE_SENSITIVITY"],
            "is_suspended": properties["SUSPENDED"],
            "allowed_namespaces": [f"'{namespace}'" for namespace in catalog[NAMESPACES]] or None,
            "blocked_namespaces": None,
        }
    )


class Refresher(Worker):
    """Refreshes what is due."""

    def __init__(self, account: Account) -> None:
        super().__init__("refresher")
        self._account = account
        self._polled: dict[tuple[str, ...], float] = {}

    def look(self) -> None:
        for database in self._account.store.all(DATABASE):
            if "LINKED_CATALOG" in database.properties and is_due(database):
                try:
                    discover(self._account, database.name[0])
                except Exception:
                    logger.exception("discovery of %s", display(database.name))
        for table in self._account.store.all(TABLE, lambda t: t.properties["AUTO_REFRESH"]):
            integration = self._account.store.get(INTEGRATION, (table.properties["CATALOG"],))
            interval = integration.properties["REFRESH_INTERVAL_SECONDS"] if integration else 30
            if time.monotonic() >= self._polled.get(table.name, 0.0) + interval:
                try:
                    tables.refresh(self._account, table.name)
                except Exception as error:
                    logger.warning("automated refresh of %s: %s", display(table.name), error)
                    tables.note_refresh(self._account, table.name, str(error))
                self._polled[table.name] = time.monotonic()
