"""Roles, grants and warehouses. What they allow: :mod:`privileges`.

https://docs.snowflake.com/en/sql-reference/sql/show-grants,
https://docs.snowflake.com/en/sql-reference/sql/show-roles and
https://docs.snowflake.com/en/sql-reference/sql/show-warehouses
"""

from __future__ import annotations

from typing import Any

from emulators.snowflake.account import (
    DATABASE,
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
    drop,
    resolve,
)
from emulators.snowflake.errors import (
    already_exists,
    does_not_exist,
    invalid_request,
    role_not_granted,
)
from emulators.snowflake.grammar import Statement
from emulators.snowflake.privileges import SYSTEM_ROLES, holds
from emulators.snowflake.results import Rows
from emulators.snowflake.tokens import Name, display
from emulators.store import Stored


def create_role(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.name[0] in SYSTEM_ROLES:
        if statement.if_not_exists:
            return Rows.status(f"{statement.name[0]} already exists, statement succeeded.")
        raise already_exists(display(statement.name))
    return create(account, context, statement, statement.name, lambda _: statement.properties)


def alter_role(account: Account, _context: Context, statement: Statement) -> Rows:
    return _alter(account, ROLE, statement)


def _alter(account: Account, kind: str, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(kind, statement.name) is None and statement.if_exists:
            return Rows.status("Statement executed successfully.")
        found = account.require(kind, statement.name)
        if statement.action == "UNSET":
            for name in statement.properties:
                found.properties.pop(name, None)
        elif statement.action == "SET":
            found.properties |= statement.properties
        else:
            found.properties["SUSPENDED"] = statement.action == "SUSPEND"
        account.store.put(found)
    return Rows.status("Statement executed successfully.")


def drop_role(account: Account, _context: Context, statement: Statement) -> Rows:
    (name,) = statement.name
    with account.store.lock:
        if account.store.get(ROLE, statement.name) is None and statement.if_exists:
            return Rows.status("Drop statement executed successfully.")
        account.require(ROLE, statement.name)
        forget_grantee(account, "ROLE", name)
        drop(account, ROLE, statement.name)
    return Rows.status(f"{name} successfully dropped.")


def show_roles(account: Account, context: Context, statement: Statement) -> Rows:
    system = [Stored(ROLE, (name,), {}, 0.0) for name in SYSTEM_ROLES]
    roles = sorted([*system, *account.store.all(ROLE)], key=lambda role: role.name)
    grants = account.store.all(GRANT)
    names = (
        *("created_on", "name", "is_default", "is_current", "is_inherited"),
        *("assigned_to_users", "granted_to_roles", "granted_roles", "owner", "comment"),
    )
    rows = []
    for role in chosen(statement, roles):
        of_role = [g.properties for g in grants if g.properties["OBJECT"] == list(role.name)]
        given = [g for g in of_role if g["ON"] == "ROLE"]
        held = [
            g
            for g in grants
            if g.properties["ON"] == "ROLE" and g.properties["GRANTEE"] == role.name[0]
        ]
        current = "Y" if role.name[0] == context.role else "N"
        rows.append(
            (
                *(role.created, role.name[0], "N", current, "N"),
                *(sum(g["TO"] == "USER" for g in given), sum(g["TO"] == "ROLE" for g in given)),
                *(len(held), role.properties.get(OWNER, ""), role.properties.get("COMMENT", "")),
            )
        )
    return Rows.of(names, rows, times=("created_on",))


def create_warehouse(account: Account, context: Context, statement: Statement) -> Rows:
    def make(_old: Stored | None) -> dict[str, Any]:
        given = statement.properties
        return {**given, "SUSPENDED": bool(given.get("INITIALLY_SUSPENDED", False))}

    result = create(account, context, statement, statement.name, make)
    context.warehouse = statement.name[0]
    return result


def alter_warehouse(account: Account, _context: Context, statement: Statement) -> Rows:
    return _alter(account, WAREHOUSE, statement)


def drop_warehouse(account: Account, context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(WAREHOUSE, statement.name) is None and statement.if_exists:
            return Rows.status("Drop statement executed successfully.")
        account.require(WAREHOUSE, statement.name)
        drop(account, WAREHOUSE, statement.name)
    if context.warehouse == statement.name[0]:
        context.warehouse = None
    return Rows.status(f"{statement.name[0]} successfully dropped.")


def show_warehouses(account: Account, context: Context, statement: Statement) -> Rows:
    names = (
        *("name", "state", "type", "size", "min_cluster_count", "max_cluster_count"),
        *("is_default", "is_current", "auto_suspend", "auto_resume", "created_on", "owner"),
        *("comment", "scaling_policy"),
    )
    rows = []
    for found in chosen(statement, account.store.all(WAREHOUSE)):
        value = found.properties.get
        rows.append(
            (
                *(found.name[0], "SUSPENDED" if value("SUSPENDED") else "STARTED"),
                *(value("WAREHOUSE_TYPE", "STANDARD"), value("WAREHOUSE_SIZE", "X-Small")),
                *(value("MIN_CLUSTER_COUNT", 1), value("MAX_CLUSTER_COUNT", 1), "N"),
                *("Y" if found.name[0] == context.warehouse else "N", value("AUTO_SUSPEND", 600)),
                *(value("AUTO_RESUME", True), found.created, value(OWNER, "SYSADMIN")),
                *(value("COMMENT", ""), value("SCALING_POLICY", "STANDARD")),
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
    stored = {"WAREHOUSE": WAREHOUSE, "EXTERNAL VOLUME": VOLUME, "INTEGRATION": INTEGRATION}
    if on in stored:
        account.require(stored[on], name)
        return name
    if on == "DATABASE":
        if name[0] not in account.engine.databases():
            raise does_not_exist("Database", display(name))
        return name
    if on == "SCHEMA":
        full = resolve((*name, ""), context, "GRANT")[:2]
        if not account.engine.has_schema(full[0], full[1]):
            raise does_not_exist("Schema", display(full))
        return full
    full = resolve(name, context, "GRANT")
    if not account.engine.has_relation(full):
        raise does_not_exist("Object", display(full))
    if on == "ICEBERG TABLE":
        account.require(TABLE, full)
    return full


def grant(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.name and statement.properties["GRANTEE"] == statement.name[0]:
        raise invalid_request("A role cannot be granted to itself.")
    with account.store.lock:
        for one in _grants(account, context, statement):
            account.store.put(one)
    return Rows.status("Statement executed successfully.")


def revoke(account: Account, context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        names = [one.name for one in _grants(account, context, statement)]
        account.store.delete(GRANT, names)
    return Rows.status("Statement executed successfully.")


def forget_grantee(account: Account, kind: str, name: str) -> None:
    gone = account.store.all(
        GRANT, lambda g: g.properties["TO"] == kind and g.properties["GRANTEE"] == name
    )
    account.store.delete(GRANT, [one.name for one in gone])


def show_grants(account: Account, context: Context, statement: Statement) -> Rows:
    action, name = statement.action, statement.name
    if action in ("TO ROLE", "OF ROLE"):
        _require_role(account, name[0])
    elif action == "TO USER":
        _require_user(account, context, name[0])
    elif action == "ON":
        name = _require_object(account, context, statement.properties["ON"], name)
    else:
        action, name = "TO USER", (context.user,)
    grants = account.store.all(GRANT)
    if action == "OF ROLE":
        names = ("created_on", "role", "granted_to", "grantee_name", "granted_by")
        rows: list[Any] = [
            (g.created, name[0], p["TO"], p["GRANTEE"], p["GRANTED_BY"])
            for g in grants
            if (p := g.properties)["ON"] == "ROLE" and p["OBJECT"] == list(name)
        ]
        return Rows.of(names, rows, times=("created_on",))
    if action == "TO USER":
        names = ("created_on", "role", "granted_to", "grantee_name", "granted_by")
        rows = [
            (g.created, p["OBJECT"][0], "USER", p["GRANTEE"], p["GRANTED_BY"])
            for g in grants
            if (p := g.properties)["TO"] == "USER" and p["GRANTEE"] == name[0]
        ]
        return Rows.of(names, rows, times=("created_on",))
    on = statement.properties.get("ON")
    rows = [
        (
            *(g.created, p["PRIVILEGE"], p["ON"].replace(" ", "_"), display(tuple(p["OBJECT"]))),
            *(p["TO"], p["GRANTEE"], p["GRANT_OPTION"], p["GRANTED_BY"]),
        )
        for g in grants
        if (
            (p := g.properties)["ON"] == on and p["OBJECT"] == list(name)
            if on
            else (p := g.properties)["TO"] == "ROLE" and p["GRANTEE"] == name[0]
        )
    ]
    columns = (
        *("created_on", "privilege", "granted_on", "name", "granted_to", "grantee_name"),
        *("grant_option", "granted_by"),
    )
    return Rows.of(columns, rows, times=("created_on",))


def use(account: Account, context: Context, statement: Statement) -> Rows:
    """USE: the session's role, warehouse, database or schema."""
    name = statement.name
    if statement.kind == "ROLE":
        _require_role(account, name[0])
        if not holds(account, context.user, context.is_admin, name[0]):
            raise role_not_granted(name[0])
        context.role = name[0]
    elif statement.kind == "SECONDARY ROLES":
        context.has_secondary_roles = name[0] == "ALL"
    elif statement.kind == "WAREHOUSE":
        account.require(WAREHOUSE, name)
        context.warehouse = name[0]
    elif statement.kind == "DATABASE":
        if name[0] not in account.engine.databases():
            raise does_not_exist(DATABASE.capitalize(), display(name))
        context.database = name[0]
        has_public = account.engine.has_schema(name[0], "PUBLIC")
        context.schema = "PUBLIC" if has_public else None
    elif statement.kind == "SCHEMA":
        full = account.canonical(resolve((*name, ""), context, "USE SCHEMA")[:2])
        if not account.engine.has_schema(full[0], full[1]):
            raise does_not_exist("Schema", display(full))
        context.database, context.schema = full
    return Rows.status("Statement executed successfully.")
