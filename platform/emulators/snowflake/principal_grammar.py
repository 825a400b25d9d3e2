"""Grammar of users, roles, grants, warehouses and USE.

https://docs.snowflake.com/en/sql-reference/sql/create-user,
https://docs.snowflake.com/en/sql-reference/sql/create-role,
https://docs.snowflake.com/en/sql-reference/sql/grant-privilege,
https://docs.snowflake.com/en/sql-reference/sql/grant-role,
https://docs.snowflake.com/en/sql-reference/sql/show-grants and
https://docs.snowflake.com/en/sql-reference/sql/create-warehouse
"""

from __future__ import annotations

from typing import Any

from emulators.snowflake.errors import invalid_privilege, invalid_property, unsupported
from emulators.snowflake.grammar import Kind, Statement, nothing
from emulators.snowflake.options import Reader, Spec, boolean, choice, integer, text
from emulators.snowflake.tokens import Stream


def _text_or_name(stream: Stream, _name: str) -> str:
    """A string, or an identifier where users often write one: ``DEFAULT_ROLE = PUBLIC``."""
    return stream.advance().value if stream.peek().kind in ("string", "quoted") else stream.word()


def _secondary_roles(stream: Stream, _name: str) -> list[str]:
    stream.expect("(")
    roles = [] if stream.at(")") else [stream.string().upper()]
    stream.expect(")")
    return roles


_USER_PROPERTIES: dict[str, Reader] = {
    "PASSWORD": text,
    "LOGIN_NAME": _text_or_name,
    "DISPLAY_NAME": _text_or_name,
    "FIRST_NAME": _text_or_name,
    "MIDDLE_NAME": _text_or_name,
    "LAST_NAME": _text_or_name,
    "EMAIL": text,
    "MUST_CHANGE_PASSWORD": boolean,
    "DISABLED": boolean,
    "DAYS_TO_EXPIRY": integer,
    "MINS_TO_UNLOCK": integer,
    "DEFAULT_WAREHOUSE": _text_or_name,
    "DEFAULT_NAMESPACE": _text_or_name,
    "DEFAULT_ROLE": _text_or_name,
    "DEFAULT_SECONDARY_ROLES": _secondary_roles,
    "RSA_PUBLIC_KEY": _text_or_name,
    "RSA_PUBLIC_KEY_2": _text_or_name,
    "TYPE": choice("PERSON", "SERVICE", "LEGACY_SERVICE"),
    "COMMENT": text,
    "NETWORK_POLICY": _text_or_name,
}
_USER = Spec("USER", _USER_PROPERTIES)


def _create_user(stream: Stream, statement: Statement) -> None:
    statement.properties = _USER.read(stream, until=("WITH", "TAG"))
    if stream.peek().kind != "end":
        raise unsupported("tags of a user")


def _alter_user(stream: Stream, statement: Statement) -> None:
    if stream.take("SET"):
        _set(stream, statement, _USER)
    elif stream.take("UNSET"):
        _unset(stream, statement, _USER)
    elif stream.peek().value in ("ABORT", "ADD", "ENROLL", "MODIFY", "REMOVE", "RENAME", "RESET"):
        raise unsupported(f"ALTER USER … {stream.peek().value}")
    elif stream.at("ROTATE"):
        raise unsupported("ALTER USER … ROTATE KEY PAIR")
    else:
        raise stream.unexpected()


def _set(stream: Stream, statement: Statement, spec: Spec) -> None:
    statement.action = "SET"
    if stream.at("TAG") or stream.peek(1).value == "POLICY":
        raise unsupported(f"ALTER {spec.kind} … SET {stream.peek().value}")
    statement.properties = spec.read(stream)
    if not statement.properties:
        raise stream.unexpected()


def _unset(stream: Stream, statement: Statement, spec: Spec) -> None:
    statement.action = "UNSET"
    names = [stream.word()]
    while stream.take(",") or stream.peek().kind == "word":
        names.append(stream.word())
    for name in names:
        if name not in spec.readers:
            raise invalid_property(name, spec.kind)
    statement.properties = dict.fromkeys(names)


USER = Kind("USER", create=_create_user, alter=_alter_user, describe=nothing, plural="USERS")

_ROLE = Spec("ROLE", {"COMMENT": text})


def _create_role(stream: Stream, statement: Statement) -> None:
    statement.properties = _ROLE.read(stream, until=("WITH", "TAG"))
    if stream.peek().kind != "end":
        raise unsupported("tags of a role")


def _alter_role(stream: Stream, statement: Statement) -> None:
    if stream.take("SET"):
        _set(stream, statement, _ROLE)
    elif stream.take("UNSET"):
        _unset(stream, statement, _ROLE)
    elif stream.at("RENAME"):
        raise unsupported("ALTER ROLE … RENAME")
    else:
        raise stream.unexpected()


ROLE = Kind("ROLE", create=_create_role, alter=_alter_role, plural="ROLES")

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


def _create_warehouse(stream: Stream, statement: Statement) -> None:
    stream.take("WITH")
    statement.properties = _WAREHOUSE.read(stream)


def _alter_warehouse(stream: Stream, statement: Statement) -> None:
    if stream.take("SUSPEND"):
        statement.action = "SUSPEND"
    elif stream.take("RESUME"):
        stream.take("IF", "SUSPENDED")
        statement.action = "RESUME"
    elif stream.take("SET"):
        _set(stream, statement, _WAREHOUSE)
    elif stream.peek().value in ("ABORT", "RENAME", "UNSET"):
        raise unsupported(f"ALTER WAREHOUSE … {stream.peek().value}")
    else:
        raise stream.unexpected()


WAREHOUSE = Kind("WAREHOUSE", create=_create_warehouse, alter=_alter_warehouse, plural="WAREHOUSES")

_TABLE_PRIVILEGES = {
    *("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "EVOLVE SCHEMA"),
    *("REBUILD", "APPLYBUDGET", "MONITOR"),
}
_GRANTED_ON: dict[str, set[str]] = {
    "WAREHOUSE": {"APPLYBUDGET", "MODIFY", "MONITOR", "OPERATE", "USAGE"},
    "DATABASE": {
        *("APPLYBUDGET", "CREATE DATABASE ROLE", "CREATE SCHEMA", "MODIFY", "MONITOR"),
        *("REFERENCE_USAGE", "USAGE"),
    },
    "SCHEMA": {
        *("ADD SEARCH OPTIMIZATION", "APPLYBUDGET", "MODIFY", "MONITOR", "USAGE"),
        *("CREATE ICEBERG TABLE", "CREATE SEQUENCE", "CREATE TABLE", "CREATE VIEW"),
    },
    "EXTERNAL VOLUME": {"USAGE"},
    "INTEGRATION": {"USAGE", "USE_ANY_ROLE"},
    "ICEBERG TABLE": _TABLE_PRIVILEGES,
    "TABLE": _TABLE_PRIVILEGES,
    "VIEW": {"SELECT", "REFERENCES"},
    "USER": {"MONITOR"},
    "ACCOUNT": {
        *("CREATE DATABASE", "CREATE EXTERNAL VOLUME", "CREATE INTEGRATION", "CREATE ROLE"),
        *("CREATE USER", "CREATE WAREHOUSE", "MANAGE GRANTS", "MANAGE WAREHOUSES"),
        *("MONITOR EXECUTION", "MONITOR USAGE"),
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
    to = "TO" if verb == "GRANT" else "FROM"
    if verb == "REVOKE" and stream.take("GRANT", "OPTION", "FOR"):
        raise unsupported("REVOKE GRANT OPTION FOR")
    properties: dict[str, Any] = {"PRIVILEGES": [], "ON": "", "OBJECT": (), "GRANT_OPTION": False}
    if stream.take("ROLE"):
        statement.name = stream.name()
    elif stream.at("DATABASE", "ROLE") or stream.at("OWNERSHIP"):
        raise unsupported(f"{verb} {stream.peek().value}")
    else:
        properties |= _privileges(stream, verb)
    stream.expect(to)
    if properties["PRIVILEGES"]:
        stream.take("ROLE")
        properties["TO"] = "ROLE"
    elif stream.take("USER"):
        properties["TO"] = "USER"
    else:
        stream.expect("ROLE")
        properties["TO"] = "ROLE"
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
            raise unsupported(f"{verb} … ON {scope} …")
    for kind in _GRANTED_ON:
        if stream.take(*kind.split()):
            unknown = set(privileges) - _GRANTED_ON[kind] - {"ALL", "ALL PRIVILEGES"}
            if unknown:
                raise invalid_privilege(min(unknown), kind)
            name = () if kind == "ACCOUNT" else stream.name(3)
            return {"PRIVILEGES": privileges, "ON": kind, "OBJECT": name}
    raise unsupported(f"{verb} … ON {stream.peek().text}")


def parse_show_grants(stream: Stream) -> Statement | None:
    """``SHOW GRANTS [TO ROLE | TO USER | OF ROLE | ON kind] name``; ``action`` says which."""
    if not stream.take("SHOW", "GRANTS"):
        return None
    statement = Statement("SHOW", "GRANT")
    for action in ("TO ROLE", "TO USER", "OF ROLE"):
        if stream.take(*action.split()):
            statement.action, statement.name = action, stream.name()
            break
    else:
        if stream.take("ON"):
            statement.action = "ON"
            for kind in _GRANTED_ON:
                if stream.take(*kind.split()):
                    statement.properties = {"ON": kind}
                    statement.name = () if kind == "ACCOUNT" else stream.name(3)
                    break
            else:
                raise unsupported(f"SHOW GRANTS ON {stream.peek().text}")
        elif stream.peek().kind == "word":
            raise unsupported(f"SHOW GRANTS {stream.peek().text}")
    stream.end()
    return statement


def parse_use(stream: Stream) -> Statement | None:
    """USE [ROLE | WAREHOUSE | SECONDARY ROLES | DATABASE | SCHEMA] name."""
    if not stream.take("USE"):
        return None
    statement = Statement("USE", "SCHEMA")
    if stream.take("SECONDARY", "ROLES"):
        statement.kind = "SECONDARY ROLES"
        statement.name = (stream.choice("SECONDARY ROLES", ("ALL", "NONE")),)
    elif (
        stream.at("SCHEMA") or stream.at("DATABASE") or stream.at("ROLE") or stream.at("WAREHOUSE")
    ):
        statement.kind = stream.word()
        statement.name = stream.name(2 if statement.kind == "SCHEMA" else 1)
    else:
        statement.name = stream.name(2)
        statement.kind = "SCHEMA" if len(statement.name) == 2 else "DATABASE"
    stream.end()
    return statement
