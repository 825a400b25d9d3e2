"""Who may log in: the stack's own user, and users made with CREATE USER."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from topicberg.local.snowflake.account import Account, Context

ADMIN = "ACCOUNTADMIN"


class LoginRefused(Exception):
    """An answer to a login: Snowflake's code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, repr=False)
class Login:
    """What a client says who it is. ``token`` is a JWT of key-pair authentication."""

    user: str
    password: str
    authenticator: str
    token: str
    account: str


class Logins:
    """
    :param user: the stack's own user, who is ACCOUNTADMIN
    """

    def __init__(self, account: Account, user: str, password: str) -> None:
        self._account = account
        self._user = user.upper()
        self._password = password

    def open(self, login: Login, role: str | None, warehouse: str | None) -> Context:
        """The context of a new session.

        :raises LoginRefused: user or password is wrong
        """
        name = login.user.upper()
        same = hmac.compare_digest(login.password.encode(), self._password.encode())
        if name != self._user or not same:
            raise LoginRefused("390100", "Incorrect username or password was specified.")
        return Context(user=name, role=role or ADMIN, warehouse=warehouse)
