"""How to log in to a catalog, to Kafka and to a schema registry: one model each.

A model holds the settings, reports at once what is wrong with them, and renders them for every
client: PyIceberg, Spark and DuckDB; librdkafka; the registry's client.
Nothing else knows the clients' names of a setting. Secrets are redacted from every message of the
process.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr

from topicberg.security.models import HoldsSecrets
from topicberg.settings.environment import NESTED, Group, Model, read_settings


def from_environment(model: type[Model], where: str, docs: str) -> Model:
    """Return a login as the environment and ``.env`` state it.

    :param where: the service, for messages
    :param docs: the page that explains the settings
    :raises TopicbergError: names every setting that is missing or invalid; shows no value
    """
    hint = f"correct them in the environment or in .env; {docs} has an example of each kind"
    return read_settings(model, f"the settings of the login to {where} are wrong", hint)


class TlsFields(HoldsSecrets):
    """The settings of a login that has to do with certificates, all of them in PEM."""

    ca_file: Path | None = None
    """Certificates (PEM) of who signed the server's; default: those of the system."""
    certificate_file: Path | None = None
    """The client's certificate (PEM)."""
    key_file: Path | None = None
    """The key of the client's certificate (PEM)."""
    key_password: SecretStr | None = None
    """Of an encrypted key."""

    def check_files(self, prefix: str) -> None:
        """:raises ValueError: a file does not exist; names the first one"""
        for name in ("ca_file", "certificate_file", "key_file"):
            if (path := getattr(self, name)) and not path.is_file():
                raise ValueError(f"{prefix}_{name.upper()}: there is no file {path}")


OAUTH_CLIENT = ("oauth__client_id", "oauth__client_secret", "oauth__token_uri")
"""The settings that a client of an OAuth server requires."""


class OAuthFields(Group):
    """The settings of a login by a client of an OAuth 2 server."""

    client_id: str | None = None
    client_secret: SecretStr | None = None
    token_uri: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Where the client requests tokens."""
    scope: str | None = None
    """What the token is requested for."""

    @property
    def is_given(self) -> bool:
        """Whether settings of the client are given, some or all."""
        return bool(self.client_id or self.client_secret or self.token_uri)


def missing(prefix: str, kind: str, login: Any, *required: str) -> None:
    """Refuse a login, of a kind of ``<prefix>_AUTH``, that lacks settings.

    :raises ValueError: names the required ones without a value
    """
    if names := absent(prefix, login, *required):
        raise ValueError(f"{prefix}_AUTH is {kind}, which requires {', '.join(names)}")


def absent(prefix: str, fields: Any, *required: str) -> list[str]:
    """Return the variables of the required settings without a value; ``prefix``: of their names; of
    a group, with an underscore at the end."""
    return [
        f"{prefix}_{name.upper()}"
        for name in required
        if not reduce(getattr, name.split(NESTED), fields)
    ]
