"""Roles, grants and warehouses. What they allow: :mod:`privileges`.

https://docs.snowflake.com/en/sql-reference/sql/create-role,
https://docs.snowflake.com/en/sql-reference/sql/grant-privilege,
https://docs.snowflake.com/en/sql-reference/sql/grant-role,
https://docs.snowflake.com/en/sql-reference/sql/create-warehouse,
https://docs.snowflake.com/en/sql-reference/sql/show-grants,
https://docs.snowflake.com/en/sql-reference/sql/show-roles and
https://docs.snowflake.com/en/sql-reference/sql/show-warehouses
"""

from __future__ import annotations

from typing import Any

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import (
    DONE,
    GRANT,
    INTEGRATION,
    OWNER,
    ROLE,
    TABLE,
    USER,
    VOLUME,
    WAREHOUSE,
    Account,
    Context,
    chosen,
    create,
    forget_grantee,
    remove,
    resolve,
)
from topicberg_local.emulators.snowflake.privileges import SYSTEM_ROLES, holds
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Spec,
    Statement,
    Stream,
    alters,
    boolean,
    choice,
    creates,
    display,
    integer,
    text,
)
from topicberg_local.emulators.store import Stored

_ROLE = Spec("ROLE", {"COMMENT": text})
ROLE_KIND = Kind(
    "ROLE",
    create=creates(_ROLE, tags="tags of a role"),
    alter=alters(_ROLE, refused=("RENAME", "UNSET")),
    plural="ROLES",
)
_SIZES = ("XSMALL", "SMALL", "MEDIUM", "LARGE", "XLARGE", "XXLARGE", "XXXLARGE", "X4LARGE")
_SIZE_NAMES = ("X-SMALL", "X-LARGE", "2X-LARGE", "3X-LARGE", "4X-LARGE")
_WAREHOUSE = Spec(
    "WAREHOUSE",
    {
        "WAREHOUSE_TYPE": choice("STANDARD", "SNOWPARK-OPTIMIZED"),
        "WAREHOUSE_SIZE": choice(*_SIZES, *_SIZE_NAMES),
        "MAX_CLUSTER_COUNT": integer,
        "MIN_CLUSTER_COUNT": integer,
        "SCALING_POLICY": choice("STANDARD", "ECONOMY"),
        "AUTO_SUSPEND": integer,
        "AUTO_RESUME": boolean,
        "INITIALLY_SUSPENDED": boolean,
        "STATEMENT_TIMEOUT_IN_SECONDS": integer,
        "COMMENT": text,
    },
)


WAREHOUSE_KIND = Kind(
    "WAREHOUSE",
    create=creates(_WAREHOUSE),
    alter=alters(_WAREHOUSE, refused=("ABORT", "RENAME", "RESUME", "SUSPEND", "UNSET")),
    plural="WAREHOUSES",
)
_TABLE_PRIVILEGES = {
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "TRUNCATE",
    "REFERENCES",
    "EVOLVE SCHEMA",
    "REBUILD",
    "APPLYBUDGET",
    "MONITOR",
}
_GRANTED_ON: dict[str, set[str]] = {
    "WAREHOUSE": {"APPLYBUDGET", "MODIFY", "MONITOR", "OPERATE", "USAGE"},
    "DATABASE": {
        "APPLYBUDGET",
        "CREATE DATABASE ROLE",
        "CREATE SCHEMA",
        "MODIFY",
        "MONITOR",
        "REFERENCE_USAGE",
        "USAGE",
    },
    "SCHEMA": {
        "ADD SEARCH OPTIMIZATION",
        "APPLYBUDGET",
        "MODIFY",
        "MONITOR",
        "USAGE",
        "CREATE ICEBERG TABLE",
        "CREATE SEQUENCE",
        "CREATE TABLE",
        "CREATE VIEW",
        "CREATE TAG",
    },
    "EXTERNAL VOLUME": {"USAGE"},
    "INTEGRATION": {"USAGE", "USE_ANY_ROLE"},
    "ICEBERG TABLE": _TABLE_PRIVILEGES,
    "TABLE": _TABLE_PRIVILEGES,
    "VIEW": {"SELECT", "REFERENCES"},
    "USER": {"MONITOR"},
    "ACCOUNT": {
        "CREATE DATABASE",
        "CREATE EXTERNAL VOLUME",
        "CREATE INTEGRATION",
        "CREATE ROLE",
        "CREATE USER",
        "CREATE WAREHOUSE",
        "MANAGE GRANTS",
        "MANAGE WAREHOUSES",
        "APPLY TAG",
        "CREATE NETWORK POLICY",
        "MONITOR EXECUTION",
        "MONITOR USAGE",
    },
}
"""The kinds of objects that privileges are granted on, and the privileges that each has."""


def parse_grant(stream: Stream) -> Statement | None:
    """GRANT and REVOKE of roles and of privileges; None when it is neither.

    ``properties`` has PRIVILEGES (empty: a role is granted), ON, OBJECT, TO (ROLE or USER),
    GRANTEE and GRANT_OPTION; ``name`` is the role that is granted.
    """
    verb = stream.peek().value
    if stream.peek().kind != "word" or verb not in ("GRANT", "REVOKE"):
        return None
    stream.advance()
    statement = Statement(verb, "GRANT")
    if verb == "REVOKE" and stream.take("GRANT", "OPTION", "FOR"):
        raise errors.unsupported("REVOKE GRANT OPTION FOR")
    properties: dict[str, Any] = {"PRIVILEGES": [], "ON": "", "OBJECT": (), "GRANT_OPTION": False}
    if stream.take("ROLE"):
        statement.name = stream.name()
    elif stream.at("DATABASE", "ROLE") or stream.at("OWNERSHIP"):
        raise errors.unsupported(f"{verb} {stream.peek().value}")
    else:
        properties |= _privileges(stream, verb)
    stream.expect("TO" if verb == "GRANT" else "FROM")
    to_user = not properties["PRIVILEGES"] and stream.take("USER")
    if not to_user and not stream.take("ROLE") and not properties["PRIVILEGES"]:
        raise stream.unexpected()
    properties["TO"] = "USER" if to_user else "ROLE"
    properties["GRANTEE"] = stream.identifier()
    if verb == "GRANT":
        properties["GRANT_OPTION"] = stream.take("WITH", "GRANT", "OPTION")
    else:
        stream.take("CASCADE") or stream.take("RESTRICT")
    stream.end()
    statement.properties = properties
    return statement


def _privileges(stream: Stream, verb: str) -> dict[str, Any]:
    privileges: list[str] = []
    while not privileges or stream.take(","):
        words = [stream.word()]
        while stream.peek().kind == "word" and not stream.at("ON"):
            words.append(stream.word())
        privileges.append(" ".join(words))
    stream.expect("ON")
    for scope in ("ALL", "FUTURE"):
        if stream.at(scope):
            raise errors.unsupported(f"{verb} … ON {scope} …")
    for kind in _GRANTED_ON:
        if stream.take(*kind.split()):
            unknown = set(privileges) - _GRANTED_ON[kind] - {"ALL", "ALL PRIVILEGES"}
            if unknown:
                raise errors.invalid_privilege(min(unknown), kind)
            name = () if kind == "ACCOUNT" else stream.name(3)
            return {"PRIVILEGES": privileges, "ON": kind, "OBJECT": name}
    raise errors.unsupported(f"{verb} … ON {stream.peek().text}")


def parse_show_grants(stream: Stream) -> Statement | None:
    """``SHOW GRANTS {TO | OF} ROLE name``; ``action`` says which."""
    if not stream.take("SHOW", "GRANTS"):
        return None
    for action in ("TO", "OF"):
        if stream.take(action, "ROLE"):
            statement = Statement("SHOW", "GRANT", stream.name(), action=action)
            stream.end()
            return statement
    raise errors.unsupported(f"SHOW GRANTS {stream.peek().text}")


def parse_use(stream: Stream) -> Statement | None:
    """USE [ROLE | WAREHOUSE | SECONDARY ROLES | DATABASE | SCHEMA] name."""
    if not stream.take("USE"):
        return None
    statement = Statement("USE", "SCHEMA")
    if stream.take("SECONDARY", "ROLES"):
        statement.kind = "SECONDARY ROLES"
        statement.name = (stream.choice("SECONDARY ROLES", ("ALL", "NONE")),)
    elif any(stream.at(kind) for kind in ("SCHEMA", "DATABASE", "ROLE", "WAREHOUSE")):
        statement.kind = stream.word()
        statement.name = stream.name(2 if statement.kind == "SCHEMA" else 1)
    else:
        statement.name = stream.name(2)
        statement.kind = "SCHEMA" if len(statement.name) == 2 else "DATABASE"
    stream.end()
    return statement


def create_role(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.name[0] in SYSTEM_ROLES:
        if statement.if_not_exists:
            return Rows.status(f"{statement.name[0]} already exists, statement succeeded.")
        raise errors.already_exists(display(statement.name))
    return create(account, context, statement, statement.name, lambda _: statement.properties)


def drop_role(account: Account, _context: Context, statement: Statement) -> Rows:
    return remove(account, statement, lambda role: forget_grantee(account, "ROLE", role.name[0]))


def show_roles(account: Account, context: Context, statement: Statement) -> Rows:
    system = [Stored(ROLE, (name,), {}, 0.0) for name in SYSTEM_ROLES]
    roles = sorted([*system, *account.store.all(ROLE)], key=lambda role: role.name)
    grants = [g.properties for g in account.store.all(GRANT) if g.properties["ON"] == "ROLE"]
    names = (
        "created_on",
        "name",
        "is_default",
        "is_current",
        "is_inherited",
        "assigned_to_users",
        "granted_to_roles",
        "granted_roles",
        "owner",
        "comment",
    )
    rows = []
    for role in chosen(statement, roles):
        given = [g for g in grants if g["OBJECT"] == [*role.name]]
        grantees = sum(g["GRANTEE"] == role.name[0] for g in grants)
        current = "Y" if role.name[0] == context.role else "N"
        rows.append(
            (
                role.created,
                role.name[0],
                "N",
                current,
                "N",
                sum(g["TO"] == "USER" for g in given),
                sum(g["TO"] == "ROLE" for g in given),
                grantees,
                role.properties.get(OWNER, ""),
                role.properties.get("COMMENT", ""),
            )
        )
    return Rows.of(names, rows, times=("created_on",))


def create_warehouse(account: Account, context: Context, statement: Statement) -> Rows:
    result = create(account, context, statement, statement.name, lambda _: statement.properties)
    context.warehouse = statement.name[0]
    return result


def drop_warehouse(account: Account, context: Context, statement: Statement) -> Rows:
    result = remove(account, statement)
    if context.warehouse == statement.name[0]:
        context.warehouse = None
    return result


def show_warehouses(account: Account, context: Context, statement: Statement) -> Rows:
    names = (
        "name",
        "state",
        "type",
        "size",
        "min_cluster_count",
        "max_cluster_count",
        "is_default",
        "is_current",
        "auto_suspend",
        "auto_resume",
        "created_on",
        "owner",
        "comment",
        "scaling_policy",
    )
    rows = []
    for warehouse in chosen(statement, account.store.all(WAREHOUSE)):
        value = warehouse.properties.get
        rows.append(
            (
                warehouse.name[0],
                "SUSPENDED" if value("INITIALLY_SUSPENDED") else "STARTED",
                value("WAREHOUSE_TYPE", "STANDARD"),
                value("WAREHOUSE_SIZE", "X-Small"),
                value("MIN_CLUSTER_COUNT", 1),
                value("MAX_CLUSTER_COUNT", 1),
                "N",
                "Y" if warehouse.name[0] == context.warehouse else "N",
                value("AUTO_SUSPEND", 600),
                value("AUTO_RESUME", True),
                warehouse.created,
                value(OWNER, "SYSADMIN"),
                value("COMMENT", ""),
                value("SCALING_POLICY", "STANDARD"),
            )
        )
    return Rows.of(names, rows, times=("created_on",))


def _require_role(account: Account, name: str) -> None:
    if name not in SYSTEM_ROLES:
        account.require(ROLE, (name,))


def _grants(account: Account, context: Context, statement: Statement) -> list[Stored]:
    """The grants that a statement makes or takes back, one for each privilege."""
    properties = statement.properties
    grantee = properties["GRANTEE"]
    if properties["TO"] == "USER":
        _require_user(account, context, grantee)
    else:
        _require_role(account, grantee)
    if statement.name:
        _require_role(account, statement.name[0])
        on, thing, privileges = "ROLE", statement.name, ["USAGE"]
    else:
        on, privileges = properties["ON"], properties["PRIVILEGES"]
        thing = _require_object(account, context, on, properties["OBJECT"])
    return [
        Stored(
            GRANT,
            (properties["TO"], grantee, privilege.removesuffix(" PRIVILEGES"), on, *thing),
            {
                "PRIVILEGE": privilege.removesuffix(" PRIVILEGES"),
                "ON": on,
                "OBJECT": list(thing),
                "TO": properties["TO"],
                "GRANTEE": grantee,
                "GRANT_OPTION": properties["GRANT_OPTION"],
                "GRANTED_BY": context.role,
            },
        )
        for privilege in privileges
    ]


def _require_user(account: Account, context: Context, name: str) -> None:
    if name != context.user:
        account.require(USER, (name,))


def _require_object(account: Account, context: Context, on: str, name: Name) -> Name:
    """The object's full name.

    :raises ProgrammingError: there is no such object
    """
    if on == "ACCOUNT":
        return ()
    if on == "USER":
        _require_user(account, context, name[0])
        return name
    if on in ("WAREHOUSE", VOLUME, "INTEGRATION"):
        account.require(INTEGRATION if on == "INTEGRATION" else on, name)
        return name
    if on == "DATABASE":
        account.require_database(name[0])
        return name
    if on == "SCHEMA":
        full = resolve((*name, ""), context, "GRANT")[:2]
        account.require_schema(full)
        return full
    full = resolve(name, context, "GRANT")
    if not account.engine.has_relation(full):
        raise errors.does_not_exist("Object", display(full))
    if on == TABLE:
        account.require(TABLE, full)
    return full


def grant(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.name and statement.properties["GRANTEE"] == statement.name[0]:
        raise errors.invalid_request("A role cannot be granted to itself.")
    with account.store.lock:
        for granted in _grants(account, context, statement):
            account.store.put(granted)
    return Rows.status(DONE)


def revoke(account: Account, context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        account.store.delete(
            GRANT, [revoked.name for revoked in _grants(account, context, statement)]
        )
    return Rows.status(DONE)


def show_grants(account: Account, _context: Context, statement: Statement) -> Rows:
    """SHOW GRANTS TO ROLE: what the role has; OF ROLE: who has the role."""
    (role,) = statement.name
    _require_role(account, role)
    grants = [(g.created, g.properties) for g in account.store.all(GRANT)]
    columns: tuple[str, ...]
    if statement.action == "OF":
        columns = ("created_on", "role", "granted_to", "grantee_name", "granted_by")
        rows: list[Any] = [
            (created, role, p["TO"], p["GRANTEE"], p["GRANTED_BY"])
            for created, p in grants
            if p["ON"] == "ROLE" and p["OBJECT"] == [role]
        ]
        return Rows.of(columns, rows, times=("created_on",))
    columns = (
        "created_on",
        "privilege",
        "granted_on",
        "name",
        "granted_to",
        "grantee_name",
        "grant_option",
        "granted_by",
    )
    rows = [
        (
            created,
            p["PRIVILEGE"],
            p["ON"].replace(" ", "_"),
            display(tuple(p["OBJECT"])),
            p["TO"],
            p["GRANTEE"],
            p["GRANT_OPTION"],
            p["GRANTED_BY"],
        )
        for created, p in grants
        if p["TO"] == "ROLE" and p["GRANTEE"] == role
    ]
    return Rows.of(columns, rows, times=("created_on",))


def use(account: Account, context: Context, statement: Statement) -> Rows:
    """USE: the session's role, warehouse, database or schema."""
    name = statement.name
    if statement.kind == "ROLE":
        _require_role(account, name[0])
        if not holds(account, context.user, context.is_admin, name[0]):
            raise errors.role_not_granted(name[0])
        context.role = name[0]
    elif statement.kind == "SECONDARY ROLES":
        context.has_secondary_roles = name[0] == "ALL"
    elif statement.kind == "WAREHOUSE":
        account.require(WAREHOUSE, name)
        context.warehouse = name[0]
    elif statement.kind == "DATABASE":
        account.require_database(name[0])
        context.database = name[0]
        has_public = account.engine.has_schema(name[0], "PUBLIC")
        context.schema = "PUBLIC" if has_public else None
    elif statement.kind == "SCHEMA":
        full = account.canonical(resolve((*name, ""), context, "USE SCHEMA")[:2])
        account.require_schema(full)
        context.database, context.schema = full
    return Rows.status(DONE)
