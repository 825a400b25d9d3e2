"""Who may log in: the stack's own user, and users made with CREATE USER."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from topicberg_local.emulators.snowflake.account import USER, Account, Context
from topicberg_local.emulators.snowflake.login_policies import PARAMETER, refuses, rejects
from topicberg_local.emulators.snowflake.privileges import PUBLIC, holds, may_use_warehouse
from topicberg_local.emulators.snowflake.users import matches, token_user, verify_token

ADMIN = "ACCOUNTADMIN"
_INCORRECT = "Incorrect username or password was specified."


@dataclass(eq=False)  # an exception must be hashable
class LoginRefused(Exception):
    """An answer to a login: Snowflake's code and message."""

    code: str
    message: str


@dataclass(frozen=True, repr=False)
class Login:
    """What a client says who it is. ``token`` is a JWT of key-pair authentication."""

    user: str
    password: str
    authenticator: str
    token: str
    account: str
    address: str = "127.0.0.1"
    """Of the client."""


class Logins:
    """:param user: the stack's own user, who is ACCOUNTADMIN"""

    def __init__(self, account: Account, user: str, password: str) -> None:
        self._account, self._user, self._password = account, user.upper(), password

    def open(self, login: Login, role: str | None, warehouse: str | None) -> Context:
        """The context of a new session; raises LoginRefused: who it is, or the role, is wrong."""
        name = login.user.upper()
        if name == self._user and login.authenticator != "SNOWFLAKE_JWT":
            if not hmac.compare_digest(login.password.encode(), self._password.encode()):
                raise LoginRefused("390100", _INCORRECT)
            context = Context(user=name, role=ADMIN, is_admin=True, warehouse="COMPUTE_WH")
        else:
            context = self._open_created(login, name, role)
        if role is not None:
            if not holds(self._account, context.user, context.is_admin, role):
                raise LoginRefused(
                    "390189",
                    f"Role '{role}' specified in the connect string is not granted to this user. "
                    "Contact your local system administrator, or attempt to login with another "
                    "role, e.g. PUBLIC.",
                )
            context.role = role
        chosen = context.warehouse if warehouse is None else warehouse
        context.warehouse = chosen if may_use_warehouse(self._account, context, chosen) else None
        return context

    def _open_created(self, login: Login, name: str, role: str | None) -> Context:
        """The context of a user made with CREATE USER, who may ask for a role."""
        users = self._account.store.all(USER, lambda u: u.properties["LOGIN_NAME"] == name)
        user, method = users[0] if users else None, "PASSWORD"
        if login.authenticator == "SNOWFLAKE_JWT":
            same, method = token_user(login.token) == name, "KEYPAIR"
            if user is None or not same or not verify_token(login.token, user.properties):
                raise LoginRefused("390144", "JWT token is invalid.")
        elif (
            login.authenticator != "SNOWFLAKE"
            or user is None
            or not matches(login.password, user.properties.get("PASSWORD"))
        ):
            raise LoginRefused("390100", _INCORRECT)
        value = user.properties.get
        if value("DISABLED"):
            raise LoginRefused("390101", "User access disabled. Contact your administrator.")
        if rejects(self._account, user, method):
            raise LoginRefused(
                "390202", "Authentication attempt rejected by the current authentication policy."
            )
        if refuses(self._account, value(PARAMETER), login.address):
            raise LoginRefused(
                "390422",
                f"Incoming request with IP/Token {login.address} is not allowed to access "
                "Snowflake. Contact your account administrator.",
            )
        database, _, schema = (value("DEFAULT_NAMESPACE") or "").upper().partition(".")
        default = value("DEFAULT_ROLE") or PUBLIC
        if role is None and not holds(self._account, user.name[0], False, default):
            raise LoginRefused(
                "390186",
                f"User's configured default role '{default}' is not granted to this user. Contact "
                "your local system administrator, or attempt to login using a CLI client with a "
                "connect string selecting another role, e.g. PUBLIC.",
            )
        return Context(
            user=user.name[0],
            role=default,
            is_admin=False,
            warehouse=value("DEFAULT_WAREHOUSE"),
            database=database or None,
            schema=schema or None,
        )
