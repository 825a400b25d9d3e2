"""Catalog-linked databases: Snowflake finds the catalog's namespaces and tables by itself.

Every SYNC_INTERVAL_SECONDS a discovery reads AWS Glue by its Iceberg REST API: namespaces become
schemas, Iceberg tables become tables with automated refresh. What the catalog no longer has, or
has as another table of that name (another table-uuid), is dropped here, never there. Suspended
discovery leaves automated refresh on. The emulator writes to no catalog: what would is refused
(``Account.refuse_write``).

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
from topicberg_local.emulators.snowflake import errors, tables
from topicberg_local.emulators.snowflake.account import (
    DATABASE,
    INTEGRATION,
    OWNER,
    SCHEMA,
    TABLE,
    VOLUME,
    Account,
    Context,
    drop,
)
from topicberg_local.emulators.snowflake.integrations import list_problem
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Name,
    Spec,
    Statement,
    Stream,
    choice,
    group,
    integer,
    reference,
    text,
    texts,
)
from topicberg_local.emulators.store import Stored

SYNC_SECONDS = (30, 86400)
"""Shortest, which is the default too, and longest interval between two discoveries."""
FLATTEN = "FLATTEN_NESTED_NAMESPACE"
_CATALOG = Spec(
    "LINKED_CATALOG",
    {
        "CATALOG": reference,
        "ALLOWED_NAMESPACES": texts,
        "BLOCKED_NAMESPACES": texts,
        "ALLOWED_WRITE_OPERATIONS": choice("NONE", "ALL"),
        "NAMESPACE_MODE": choice("IGNORE_NESTED_NAMESPACE", FLATTEN),
        "NAMESPACE_FLATTEN_DELIMITER": text,
        "SYNC_INTERVAL_SECONDS": integer,
    },
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
_SET = Spec(
    "LINKED_CATALOG",
    {"SYNC_INTERVAL_SECONDS": integer, "ALLOWED_WRITE_OPERATIONS": choice("NONE", "ALL")},
)


def read_linked(stream: Stream, statement: Statement) -> None:
    """Read what follows the name of a catalog-linked database."""
    properties = _DATABASE.read(stream, until=("WITH", "TAG"), commas=True)
    if stream.peek().kind != "end":
        raise errors.unsupported("tags and contacts of a catalog-linked database")
    linked = properties["LINKED_CATALOG"]
    _check_interval(linked.get("SYNC_INTERVAL_SECONDS", SYNC_SECONDS[0]))
    delimiter = linked.get("NAMESPACE_FLATTEN_DELIMITER")
    if linked.get("NAMESPACE_MODE") == FLATTEN and not delimiter:
        raise errors.missing_options(["NAMESPACE_FLATTEN_DELIMITER"])
    if delimiter is not None and any(c.isalpha() or c.isspace() for c in delimiter):
        raise errors.invalid_value(delimiter, "NAMESPACE_FLATTEN_DELIMITER")
    statement.properties = properties


def _check_interval(seconds: int) -> None:
    if not SYNC_SECONDS[0] <= seconds <= SYNC_SECONDS[1]:
        raise errors.invalid_value(str(seconds), "SYNC_INTERVAL_SECONDS")


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
        statement.properties = _SET.read(stream)
        if len(statement.properties) != 1:
            raise errors.invalid_request("UPDATE LINKED_CATALOG SET takes one property.")
        if "SYNC_INTERVAL_SECONDS" in statement.properties:
            _check_interval(statement.properties["SYNC_INTERVAL_SECONDS"])
        return
    for action, preposition in (("ADD", "TO"), ("REMOVE", "FROM"), ("UNSET", "")):
        if stream.take(action):
            statement.action = action
            namespaces = texts(stream, action) if preposition else []
            if preposition:
                stream.expect(preposition)
            kind = stream.word()
            if kind not in ("ALLOWED_NAMESPACES", "BLOCKED_NAMESPACES"):
                raise errors.invalid_value(kind, "LINKED_CATALOG")
            statement.properties = {kind: namespaces}
            return
    raise stream.unexpected()


logger = logging.getLogger(__name__)

_DEFAULTS: dict[str, Any] = {
    "ALLOWED_NAMESPACES": [],
    "BLOCKED_NAMESPACES": [],
    "ALLOWED_WRITE_OPERATIONS": "ALL",
    "NAMESPACE_MODE": "IGNORE_NESTED_NAMESPACE",
    "NAMESPACE_FLATTEN_DELIMITER": None,
    "SYNC_INTERVAL_SECONDS": SYNC_SECONDS[0],
}


def properties_of(account: Account, given: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a new linked database.

    :raises ProgrammingError: there is no such integration or volume, or it is not of a REST catalog
    """
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
    """Suspend or resume discovery, or change what is discovered.

    :raises ProgrammingError: the database is missing, or links no catalog
    """
    done = Rows.status("Statement executed successfully.")
    (name,) = statement.name
    with account.store.lock:
        if name not in account.engine.databases() and statement.if_exists:
            return done
        database = account.linked(name)
        if database is None:
            account.require(DATABASE, (name,))
            raise errors.not_linked(name)
        catalog = database.properties["LINKED_CATALOG"]
        match statement.action:
            case "SUSPEND" | "RESUME":
                database.properties["SUSPENDED"] = statement.action == "SUSPEND"
            case "SET":
                catalog |= statement.properties
            case action:
                ((kind, names),) = statement.properties.items()
                namespaces = {"ADD": catalog[kind], "REMOVE": catalog[kind], "UNSET": []}[action]
                namespaces = [namespace for namespace in namespaces if namespace not in names]
                catalog[kind] = namespaces + (names if action == "ADD" else [])
        if statement.action != "SUSPEND":
            database.properties["REQUESTED"] = time.time()
        account.store.put(database)
    return done


def is_due(database: Stored) -> bool:
    """Return whether a database's next discovery has to begin: its interval has passed, or it was
    changed since the last one began.
    """
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
        with account.store.lock:
            current = account.linked(name)
            if current is not None:
                result = {"STARTED": started, "ERROR": error, "FAILURES": failures}
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
    for table in sorted(names):
        if account.store.get(TABLE, table) is not None:
            continue
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
    """Return the catalog's namespaces that the database follows. Glue nests none.

    :raises ProgrammingError: the catalog cannot be listed
    """
    namespaces = []
    for namespace in account.sources.namespaces():
        delimiter = catalog["NAMESPACE_FLATTEN_DELIMITER"]
        flattened = catalog["NAMESPACE_MODE"] == FLATTEN
        allowed = catalog["ALLOWED_NAMESPACES"]
        if (
            namespace not in catalog["BLOCKED_NAMESPACES"]
            and (not allowed or namespace in allowed)
            and not (flattened and delimiter in namespace)
        ):
            namespaces.append(namespace)
    if problem := list_problem(account, integration, namespaces):
        raise errors.invalid_request(problem)
    return namespaces


def _show_schema(account: Account, database: Stored, namespace: str) -> None:
    (name,) = database.name
    with account.store.lock:
        if name in account.engine.databases() and not account.engine.has_schema(name, namespace):
            account.engine.cursor().execute(f"CREATE SCHEMA {quote(name, namespace)}")
            owner = {OWNER: database.properties[OWNER]}
            account.store.put(Stored(SCHEMA, (name, namespace), owner))


def _drop_missing(account: Account, name: str, namespaces: set[str], discovered: set[Name]) -> None:
    """Drop the tables and schemas that the catalog does not have, or that are not followed."""
    with account.store.lock:
        for table in account.store.all(TABLE, lambda entry: entry.name[0] == name):
            if table.name not in discovered:
                tables.unlink(account, table.name)
        for schema in [
            schema_name for schema_name in account.engine.schemas() if schema_name[0] == name
        ]:
            if schema[1] not in namespaces:
                drop(account, SCHEMA, schema)
                account.engine.cursor().execute(f"DROP SCHEMA {quote(*schema)} CASCADE")


def _require(account: Account, name: Name) -> Stored:
    database = account.linked(name[0])
    if database is None:
        account.require(DATABASE, name[:1])
        raise errors.not_linked(name[0])
    return database


def link_status(account: Account, _context: Context, name: Name) -> str:
    """SYSTEM$CATALOG_LINK_STATUS."""
    properties = _require(account, name).properties
    discovery = properties["DISCOVERY"]
    error = discovery["ERROR"]
    response: dict[str, Any] = {
        "executionState": "SUSPENDED"
        if properties["SUSPENDED"]
        else "FAILED"
        if error
        else "RUNNING",
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

    def listed(kind: str) -> list[str] | None:
        return [f"'{namespace}'" for namespace in catalog[kind]] or None

    return json.dumps(
        {
            "catalog_integration": properties["CATALOG"],
            "catalog_name": None,
            "external_volume": properties.get("EXTERNAL_VOLUME"),
            "sync_interval_seconds": catalog["SYNC_INTERVAL_SECONDS"],
            "namespace_mode": catalog["NAMESPACE_MODE"],
            "namespace_flatten_delimiter": catalog["NAMESPACE_FLATTEN_DELIMITER"],
            "allowed_write_operations": catalog["ALLOWED_WRITE_OPERATIONS"],
            "catalog_case_sensitivity": properties["CATALOG_CASE_SENSITIVITY"],
            "is_suspended": properties["SUSPENDED"],
            "allowed_namespaces": listed("ALLOWED_NAMESPACES"),
            "blocked_namespaces": listed("BLOCKED_NAMESPACES"),
        }
    )
