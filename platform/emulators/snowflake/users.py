"""Users: https://docs.snowflake.com/en/sql-reference/sql/create-user and …/desc-user."""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import UTC, datetime
from typing import Any

from emulators.snowflake import keys
from emulators.snowflake.account import (
    NETWORK_POLICY,
    OWNER,
    USER,
    Account,
    Context,
    chosen,
    create,
    drop,
)
from emulators.snowflake.errors import invalid_property
from emulators.snowflake.grammar import Statement
from emulators.snowflake.results import Rows
from emulators.store import Stored

_KEYS = ("RSA_PUBLIC_KEY", "RSA_PUBLIC_KEY_2")
_DESCRIBED = (
    "NAME",
    "COMMENT",
    "DISPLAY_NAME",
    "TYPE",
    "LOGIN_NAME",
    "FIRST_NAME",
    "MIDDLE_NAME",
    "LAST_NAME",
    "EMAIL",
    "PASSWORD",
    "MUST_CHANGE_PASSWORD",
    "DISABLED",
    "DAYS_TO_EXPIRY",
    "MINS_TO_UNLOCK",
    "DEFAULT_WAREHOUSE",
    "DEFAULT_NAMESPACE",
    "DEFAULT_ROLE",
    "DEFAULT_SECONDARY_ROLES",
    "RSA_PUBLIC_KEY",
    "RSA_PUBLIC_KEY_FP",
    "RSA_PUBLIC_KEY_LAST_SET_TIME",
    "RSA_PUBLIC_KEY_2",
    "RSA_PUBLIC_KEY_2_FP",
    "RSA_PUBLIC_KEY_2_LAST_SET_TIME",
    "PASSWORD_LAST_SET_TIME",
)


def create_user(account: Account, context: Context, statement: Statement) -> Rows:
    given = _prepared(statement.properties)
    name = statement.name[0]

    def make(_old: Stored | None) -> dict[str, Any]:
        properties = {"LOGIN_NAME": name, "DISPLAY_NAME": name, "DISABLED": False, **given}
        _check(properties)
        _check_policy(account, properties)
        return properties

    return create(account, context, statement, statement.name, make)


def _prepared(given: dict[str, Any]) -> dict[str, Any]:
    """Properties as they are stored: keys checked and dated, the password hashed."""
    prepared = dict(given)
    if "LOGIN_NAME" in prepared:
        prepared["LOGIN_NAME"] = prepared["LOGIN_NAME"].upper()
    for name in _KEYS:
        if prepared.get(name):
            keys.load(prepared[name])
            prepared[name] = "".join(prepared[name].split())
            prepared[f"{name}_LAST_SET_TIME"] = time.time()
    if prepared.get("PASSWORD"):
        prepared["PASSWORD"] = hash_password(prepared["PASSWORD"])
        prepared["PASSWORD_LAST_SET_TIME"] = time.time()
    return prepared


def _check(properties: dict[str, Any]) -> None:
    if properties.get("TYPE") == "SERVICE":
        for name in ("PASSWORD", "FIRST_NAME", "MIDDLE_NAME", "LAST_NAME", "MUST_CHANGE_PASSWORD"):
            if properties.get(name):
                raise invalid_property(name, "SERVICE USER")


def _check_policy(account: Account, properties: dict[str, Any]) -> None:
    """:raises ProgrammingError: the network policy does not exist"""
    policy = properties.get("NETWORK_POLICY")
    if policy is not None:
        account.require(NETWORK_POLICY, (policy,))


def hash_password(password: str) -> str:
    salt = secrets.token_hex(16)
    return f"{salt}${_scrypt(password, salt)}"


def matches(password: str, hashed: str) -> bool:
    salt, _, digest = hashed.partition("$")
    return secrets.compare_digest(_scrypt(password, salt), digest)


def _scrypt(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=2**14, r=8, p=1).hex()


def alter_user(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(USER, statement.name) is None and statement.if_exists:
            return Rows.status("Statement executed successfully.")
        user = account.require(USER, statement.name)
        if statement.action == "SET":
            user.properties |= _prepared(statement.properties)
        else:
            for name in statement.properties:
                user.properties.pop(name, None)
                user.properties.pop(f"{name}_LAST_SET_TIME", None)
        _check(user.properties)
        _check_policy(account, user.properties)
        account.store.put(user)
    return Rows.status("Statement executed successfully.")


def drop_user(account: Account, _context: Context, statement: Statement) -> Rows:
    from emulators.snowflake.roles import forget_grantee

    with account.store.lock:
        if account.store.get(USER, statement.name) is None and statement.if_exists:
            return Rows.status("Drop statement executed successfully.")
        account.require(USER, statement.name)
        forget_grantee(account, "USER", statement.name[0])
        drop(account, USER, statement.name)
    return Rows.status(f"{statement.name[0]} successfully dropped.")


def describe_user(account: Account, _context: Context, statement: Statement) -> Rows:
    user = account.require(USER, statement.name)
    values = {**user.properties, "NAME": user.name[0]}
    for name in _KEYS:
        if values.get(name):
            values[f"{name}_FP"] = keys.fingerprint(values[name])
    if values.get("PASSWORD"):
        values["PASSWORD"] = "********"  # noqa: S105  what Snowflake shows instead of one
    rows = [(name, _shown(name, values.get(name)), "null", "") for name in _DESCRIBED]
    return Rows.of(("property", "value", "default", "description"), rows)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(f'"{one}"' for one in value) + "]"
    if name.endswith("_TIME"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return str(value)


def show_users(account: Account, _context: Context, statement: Statement) -> Rows:
    names = (
        *("name", "created_on", "login_name", "display_name", "first_name", "last_name", "email"),
        *("comment", "disabled", "must_change_password", "default_warehouse"),
        *("default_namespace", "default_role", "default_secondary_roles", "owner"),
        *("has_password", "has_rsa_public_key", "type"),
    )
    rows = []
    for user in chosen(statement, account.store.all(USER)):
        value = user.properties.get
        rows.append(
            (
                *(user.name[0], user.created, value("LOGIN_NAME"), value("DISPLAY_NAME")),
                *(value("FIRST_NAME", ""), value("LAST_NAME", ""), value("EMAIL", "")),
                *(value("COMMENT", ""), value("DISABLED"), value("MUST_CHANGE_PASSWORD", False)),
                *(value("DEFAULT_WAREHOUSE", ""), value("DEFAULT_NAMESPACE", "")),
                *(value("DEFAULT_ROLE", ""), _shown("", value("DEFAULT_SECONDARY_ROLES", []))),
                *(value(OWNER, "USERADMIN"), bool(value("PASSWORD"))),
                *(any(value(key) for key in _KEYS), value("TYPE", "")),
            )
        )
    return Rows.of(names, rows, times=("created_on",))
