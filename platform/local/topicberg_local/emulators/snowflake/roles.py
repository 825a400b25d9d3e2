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
    CREATED,
    DATABASE,
    DONE,
    FUTURE,
    GRANT,
    INTEGRATION,
    OWNER,
    ROLE,
    SCHEMA,
    TABLE,
    USER,
    WAREHOUSE,
    Account,
    Context,
    create_object,
    grants,
    remove,
    resolve,
    show,
    value_of,
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
    and GRANTEE; ``name`` is the role that is granted.
    """
    verb = stream.peek().value
    if not stream.take("GRANT") and not stream.take("REVOKE"):
        return None
    statement = Statement(verb, "GRANT")
    if verb == "REVOKE" and stream.take("GRANT", "OPTION", "FOR"):
        raise errors.unsupported("REVOKE GRANT OPTION FOR")
    properties: dict[str, Any] = {"PRIVILEGES": [], "ON": "", "OBJECT": ()}
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
    if verb == "REVOKE":
        stream.take("CASCADE") or stream.take("RESTRICT")
    statement.properties = properties
    return statement


def _privileges(stream: Stream, verb: str) -> dict[str, Any]:
    def read() -> str:
        words = [stream.word()]
        while stream.peek().kind == "word" and not stream.at("ON"):
            words.append(stream.word())
        return " ".join(words)

    privileges = stream.many(read)
    stream.expect("ON")
    if stream.at("ALL"):
        raise errors.unsupported(f"{verb} … ON ALL …")
    if stream.take("FUTURE"):
        for kind in (SCHEMA, TABLE):
            if stream.take(*f"{kind}S IN DATABASE".split()):
                on = f"{FUTURE}{kind}"
                return {"PRIVILEGES": privileges, "ON": on, "OBJECT": stream.name(1)}
    for kind, known in _GRANTED_ON.items():
        if stream.take(*kind.split()):
            if unknown := set(privileges) - known - {"ALL", "ALL PRIVILEGES"}:
                raise errors.invalid_privilege(min(unknown), kind)
            name = () if kind == "ACCOUNT" else stream.name(3)
            return {"PRIVILEGES": privileges, "ON": kind, "OBJECT": name}
    raise errors.unsupported(f"{verb} … ON {stream.peek().text}")


def parse_show_grants(stream: Stream) -> Statement | None:
    """``SHOW GRANTS {TO | OF} ROLE name`` and ``SHOW FUTURE GRANTS TO ROLE name``; ``action`` says
    which."""
    for action in ("GRANTS TO", "GRANTS OF", "FUTURE GRANTS TO"):
        if stream.take("SHOW", *action.split(), "ROLE"):
            return Statement("SHOW", "GRANT", stream.name(), action=action)
    if not stream.take("SHOW", "GRANTS"):
        return None
    raise errors.unsupported(f"SHOW GRANTS {stream.peek().text}")


def parse_use(stream: Stream) -> Statement | None:
    """USE [ROLE | WAREHOUSE | SECONDARY ROLES | DATABASE | SCHEMA] name."""
    if not stream.take("USE"):
        return None
    if stream.take("SECONDARY", "ROLES"):
        kind = "SECONDARY ROLES"
        return Statement("USE", kind, (stream.choice(kind, ("ALL", "NONE")),))
    for kind, parts in (("SCHEMA", 2), ("DATABASE", 1), ("ROLE", 1), ("WAREHOUSE", 1)):
        if stream.take(kind):
            return Statement("USE", kind, stream.name(parts))
    name = stream.name(2)
    return Statement("USE", "SCHEMA" if len(name) == 2 else "DATABASE", name)


def create_role(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.name[0] in SYSTEM_ROLES:
        if statement.if_not_exists:
            return Rows.status(f"{statement.name[0]} already exists, statement succeeded.")
        raise errors.already_exists(display(statement.name))
    return create_object(account, context, statement)


def show_roles(account: Account, context: Context, statement: Statement) -> Rows:
    system = [Stored(ROLE, (name,), {}, 0.0) for name in SYSTEM_ROLES]
    roles = sorted([*system, *account.store.all(ROLE)], key=lambda role: role.name)

    def granted(**properties: Any) -> int:
        return len(grants(account, ON="ROLE", **properties))

    columns = {
        **CREATED,
        "name": lambda role: role.name[0],
        "is_default": "N",
        "is_current": lambda role: "Y" if role.name[0] == context.role else "N",
        "is_inherited": "N",
        "assigned_to_users": lambda role: granted(OBJECT=[*role.name], TO="USER"),
        "granted_to_roles": lambda role: granted(OBJECT=[*role.name], TO="ROLE"),
        "granted_roles": lambda role: granted(GRANTEE=role.name[0]),
        "owner": value_of(OWNER),
        "comment": value_of("COMMENT"),
    }
    return show(statement, roles, columns)


def create_warehouse(account: Account, context: Context, statement: Statement) -> Rows:
    result = create_object(account, context, statement)
    context.warehouse = statement.name[0]
    return result


def drop_warehouse(account: Account, context: Context, statement: Statement) -> Rows:
    result = remove(account, statement)
    if context.warehouse == statement.name[0]:
        context.warehouse = None
    return result


def show_warehouses(account: Account, context: Context, statement: Statement) -> Rows:
    suspended = value_of("INITIALLY_SUSPENDED")
    columns = {
        "name": lambda warehouse: warehouse.name[0],
        "state": lambda warehouse: "SUSPENDED" if suspended(warehouse) else "STARTED",
        "type": value_of("WAREHOUSE_TYPE", "STANDARD"),
        "size": value_of("WAREHOUSE_SIZE", "X-Small"),
        "min_cluster_count": value_of("MIN_CLUSTER_COUNT", 1),
        "max_cluster_count": value_of("MAX_CLUSTER_COUNT", 1),
        "is_default": "N",
        "is_current": lambda warehouse: "Y" if warehouse.name[0] == context.warehouse else "N",
        "auto_suspend": value_of("AUTO_SUSPEND", 600),
        "auto_resume": value_of("AUTO_RESUME", True),
        "created_on": lambda warehouse: warehouse.created,
        "owner": value_of(OWNER, "SYSADMIN"),
        "comment": value_of("COMMENT"),
        "scaling_policy": value_of("SCALING_POLICY", "STANDARD"),
    }
    return show(statement, account.store.all(WAREHOUSE), columns)


def _grants(account: Account, context: Context, statement: Statement) -> list[Stored]:
    """The grants that a statement makes or takes back, one for each privilege."""
    properties = statement.properties
    to, grantee = properties["TO"], properties["GRANTEE"]
    _require_object(account, context, to, (grantee,))
    on, name, privileges = properties["ON"], properties["OBJECT"], properties["PRIVILEGES"]
    if statement.name:
        on, name, privileges = "ROLE", statement.name, ["USAGE"]
    thing = _require_object(account, context, on, name)
    common = {"ON": on, "OBJECT": list(thing), "TO": to, "GRANTEE": grantee}
    common |= {"GRANTED_BY": context.role}
    return [
        Stored(GRANT, (to, grantee, privilege, on, *thing), {"PRIVILEGE": privilege, **common})
        for privilege in (granted.removesuffix(" PRIVILEGES") for granted in privileges)
    ]


def _require_object(account: Account, context: Context, on: str, name: Name) -> Name:
    """The object's full name; raises ProgrammingError: there is no such object."""
    if on.startswith(FUTURE):
        on = DATABASE
    if on == SCHEMA:
        name = resolve((*name, ""), context, "GRANT")[:2]
    elif on in (TABLE, "TABLE", "VIEW"):
        name = resolve(name, context, "GRANT")
        if not account.engine.has_relation(name):
            raise errors.does_not_exist("Object", display(name))
    is_system_role = on == ROLE and name[0] in SYSTEM_ROLES
    if on not in ("TABLE", "VIEW") and not is_system_role and (on, name) != (USER, (context.user,)):
        account.demand(INTEGRATION if on == "INTEGRATION" else on, name)
    return name


def grant(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.name and statement.properties["GRANTEE"] == statement.name[0]:
        raise errors.invalid_request("A role cannot be granted to itself.")
    with account.store.lock:
        for granted in _grants(account, context, statement):
            account.store.put(granted)
    return Rows.status(DONE)


def revoke(account: Account, context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        revoked = _grants(account, context, statement)
        account.store.delete(GRANT, [grant.name for grant in revoked])
    return Rows.status(DONE)


def show_grants(account: Account, context: Context, statement: Statement) -> Rows:
    """SHOW GRANTS TO ROLE: what the role has; OF ROLE: who has the role; SHOW FUTURE GRANTS: what
    the role will have.

    https://docs.snowflake.com/en/sql-reference/sql/show-grants
    """
    (role,) = statement.name
    _require_object(account, context, ROLE, (role,))
    grantee = {"granted_to": value_of("TO"), "grantee_name": value_of("GRANTEE")}
    by = {"granted_by": value_of("GRANTED_BY")}
    if statement.action == "GRANTS OF":
        granted = grants(account, ON="ROLE", OBJECT=[role])
        return show(statement, granted, {**CREATED, "role": role, **grantee, **by})
    is_future = statement.action.startswith("FUTURE")

    def kind(grant: Stored) -> str:
        return str(grant.properties["ON"]).removeprefix(FUTURE).replace(" ", "_")

    def name(grant: Stored) -> str:
        target = display(tuple(grant.properties["OBJECT"]))
        return f"{target}.<{kind(grant)}>" if is_future else target

    verb = "grant" if is_future else "granted"
    columns = {
        **CREATED,
        "privilege": value_of("PRIVILEGE"),
        f"{verb}_on": kind,
        "name": name,
        f"{verb}_to": value_of("TO"),
        "grantee_name": value_of("GRANTEE"),
        "grant_option": False,
        **({} if is_future else by),
    }
    of_role = grants(account, TO="ROLE", GRANTEE=role)
    shown = [g for g in of_role if g.properties["ON"].startswith(FUTURE) == is_future]
    return show(statement, shown, columns)


def use(account: Account, context: Context, statement: Statement) -> Rows:
    """USE: the session's role, warehouse, database or schema."""
    kind, name = statement.kind, statement.name
    if kind == SCHEMA:
        name = account.canonical(resolve((*name, ""), context, "USE SCHEMA")[:2])
    if kind != "SECONDARY ROLES":
        _require_object(account, context, kind, name)
    if kind == ROLE and not holds(account, context.user, context.is_admin, name[0]):
        raise errors.role_not_granted(name[0])
    match kind:
        case "ROLE":
            context.role = name[0]
        case "SECONDARY ROLES":
            context.has_secondary_roles = name[0] == "ALL"
        case "WAREHOUSE":
            context.warehouse = name[0]
        case "DATABASE":
            has_public = account.is_there(SCHEMA, (*name, "PUBLIC"))
            context.database, context.schema = name[0], "PUBLIC" if has_public else None
        case "SCHEMA":
            context.database, context.schema = name
    return Rows.status(DONE)
