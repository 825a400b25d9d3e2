"""Users, and their RSA public keys.

https://docs.snowflake.com/en/sql-reference/sql/create-user, …/desc-user and
https://docs.snowflake.com/en/user-guide/key-pair-auth
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from topicberg_local.emulators.snowflake.account import (
    NETWORK_POLICY,
    USER,
    Account,
    Context,
    alter,
    create,
)
from topicberg_local.emulators.snowflake.errors import invalid_property, invalid_public_key
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Spec,
    Statement,
    Stream,
    alters,
    boolean,
    choice,
    creates,
    integer,
    listed,
    text,
)
from topicberg_local.emulators.store import Stored


def load_key(key: str) -> RSAPublicKey:
    """A key in PEM without header and footer; raises ProgrammingError: not RSA, or too short."""
    try:
        public_key = load_der_public_key(base64.b64decode("".join(key.split()), validate=True))
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        raise invalid_public_key() from None
    if not isinstance(public_key, RSAPublicKey) or public_key.key_size < 2048:
        raise invalid_public_key()
    return public_key


def fingerprint(key: str) -> str:
    """``SHA256:`` and the base64 digest of the key's DER form."""
    digest = hashlib.sha256(base64.b64decode("".join(key.split()))).digest()
    return f"SHA256:{base64.b64encode(digest).decode()}"


def verify_token(token: str, properties: dict[str, Any]) -> bool:
    """Whether a JWT is signed by one of the user's keys and names it in ``iss``."""
    for key in filter(None, map(properties.get, _KEYS)):
        with suppress(jwt.InvalidTokenError):
            claims = jwt.decode(token, load_key(key), algorithms=["RS256"], leeway=60)
            return str(claims.get("iss", "")).endswith(f".{fingerprint(key)}")
    return False


def token_user(token: str) -> str:
    """The user that a JWT speaks of: ``sub`` is ``ACCOUNT.USER``. Empty when it is no JWT."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return ""
    return str(claims.get("sub", "")).partition(".")[2]


def _text_or_name(stream: Stream, _name: str) -> str:
    """A string, or an identifier where users often write one: ``DEFAULT_ROLE = PUBLIC``."""
    return stream.advance().value if stream.peek().kind in ("string", "quoted") else stream.word()


_USER = Spec(
    "USER",
    {
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
        "DEFAULT_SECONDARY_ROLES": listed(choice("ALL"), or_none=True),
        "RSA_PUBLIC_KEY": _text_or_name,
        "RSA_PUBLIC_KEY_2": _text_or_name,
        "TYPE": choice("PERSON", "SERVICE", "LEGACY_SERVICE"),
        "COMMENT": text,
        "NETWORK_POLICY": _text_or_name,
    },
)

USER_KIND = Kind(
    "USER",
    create=creates(_USER, tags="tags of a user"),
    alter=alters(
        _USER,
        unset=True,
        refused=("ABORT", "ADD", "ENROLL", "MODIFY", "REMOVE", "RENAME", "RESET", "ROTATE"),
    ),
    describe=True,
)

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
    (name,), given = statement.name, _prepared(statement.properties)
    properties = {"LOGIN_NAME": name, "DISPLAY_NAME": name, "DISABLED": False, **given}
    check = partial(_check, account, properties)
    return create(account, context, statement, (name,), properties, check=check)


def _prepared(given: dict[str, Any]) -> dict[str, Any]:
    """Properties as they are stored: keys checked and dated, the password hashed."""
    prepared = dict(given)
    if "LOGIN_NAME" in prepared:
        prepared["LOGIN_NAME"] = prepared["LOGIN_NAME"].upper()
    for name in _KEYS:
        if prepared.get(name):
            load_key(prepared[name])
            prepared[name] = "".join(prepared[name].split())
            prepared[f"{name}_LAST_SET_TIME"] = time.time()
    if prepared.get("PASSWORD"):
        prepared["PASSWORD"] = hash_password(prepared["PASSWORD"])
        prepared["PASSWORD_LAST_SET_TIME"] = time.time()
    return prepared


def _check(account: Account, properties: dict[str, Any]) -> None:
    """:raises ProgrammingError: a person's property of a service, or no such network policy"""
    if properties.get("TYPE") == "SERVICE":
        for name in ("PASSWORD", "FIRST_NAME", "MIDDLE_NAME", "LAST_NAME", "MUST_CHANGE_PASSWORD"):
            if properties.get(name):
                raise invalid_property(name, "SERVICE USER")
    if (policy := properties.get("NETWORK_POLICY")) is not None:
        account.require(NETWORK_POLICY, (policy,))


def hash_password(password: str) -> str:
    salt = secrets.token_hex(16)
    return f"{salt}${_scrypt(password, salt)}"


def matches(password: str, hashed: str | None) -> bool:
    salt, _, digest = (hashed or "").partition("$")
    return secrets.compare_digest(_scrypt(password, salt), digest)


def _scrypt(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=2**14, r=8, p=1).hex()


def alter_user(account: Account, _context: Context, statement: Statement) -> Rows:
    def change(user: Stored) -> None:
        if statement.action == "SET":
            user.properties |= _prepared(statement.properties)
        else:
            for name in statement.properties:
                user.properties.pop(name, None)
                user.properties.pop(f"{name}_LAST_SET_TIME", None)
        _check(account, user.properties)

    return alter(account, statement, change)


def describe_user(account: Account, _context: Context, statement: Statement) -> Rows:
    user = account.require(USER, statement.name)
    values = {**user.properties, "NAME": user.name[0]}
    for name in _KEYS:
        if values.get(name):
            values[f"{name}_FP"] = fingerprint(values[name])
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
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    if name.endswith("_TIME"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return str(value)
