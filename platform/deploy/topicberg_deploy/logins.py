"""Logins of clients that vendors store and never return, such as that of a catalog.

What was sent is recorded by its fingerprint, so that a plan shows a login that differs from the
settings', and a client's secret can be changed while the one before still works.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import SecretStr

from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg_deploy.context import DeployContext

CURRENT = "that of the settings"
"""State of a login that was sent; what a plan wants."""
UNKNOWN, EARLIER = "unknown", "an earlier one"


@dataclass(frozen=True)
class ClientLogin:
    id: str
    secret: SecretStr

    @classmethod
    def of(cls, id: str | None, secret: SecretStr | None) -> ClientLogin:
        """The settings have been checked: the secret is missing only where it is not sent."""
        return cls(id or "", secret or SecretStr(""))

    def fields(self) -> dict[str, str]:
        """Return the login for a request.

        :raises TopicbergError: the secret is missing
        """
        self.check()
        return {"client_id": self.id, "client_secret": self.secret.get_secret_value()}

    def check(self) -> None:
        """:raises TopicbergError: the secret is missing, as where only plans are made"""
        if not self.secret.get_secret_value():
            raise TopicbergError(
                f"the secret of client {self.id} is missing",
                hint="set TOPICBERG_CATALOG__CLIENT_SECRET or TOPICBERG_UNITY__CLIENT_SECRET",
            )

    @property
    def fingerprint(self) -> str:
        """By a slow function, so that a secret cannot be found by trying."""
        secret = self.secret.get_secret_value().encode()
        return hashlib.scrypt(secret, salt=self.id.encode(), n=2**11, r=8, p=1, dklen=12).hex()


def catalog_client(context: DeployContext) -> ClientLogin:
    """Return the client of the REST catalog, for Snowflake and for Confluent's Tableflow."""
    return ClientLogin.of(context.deploy.catalog.client_id, context.deploy.catalog.client_secret)


def state(context: DeployContext, key: str, login: ClientLogin) -> str:
    """Return which login a vendor has. Without its secret, as in a plan by CI, nothing differs.

    :param key: of the resource that it was sent for
    :returns: :data:`CURRENT`, or what to show instead
    """
    if not login.secret.get_secret_value():
        return CURRENT
    sent = context.record.login(key)
    if sent is None:
        return UNKNOWN
    return CURRENT if sent == login.fingerprint else EARLIER


def note_sent(context: DeployContext, key: str, login: ClientLogin) -> None:
    """Record that the vendor has this login; it is kept when this returns."""
    context.record.put_login(key, login.fingerprint)
