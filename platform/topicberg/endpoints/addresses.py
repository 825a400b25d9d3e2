"""Addresses of the vendors, from the environment and ``.env``."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from topicberg.logins.catalog import RestCatalog
from topicberg.security.models import HoldsSecrets
from topicberg.settings.environment import EnvironmentSettings, FromJson


class Addresses(HoldsSecrets, EnvironmentSettings):
    """Addresses of the vendors, for ``topicberg deploy`` and for its deployment."""

    model_config = SettingsConfigDict(populate_by_name=True)

    confluent_url: str = Field(default="https://api.confluent.cloud", pattern=r"^https?://[^/]+$")
    """Of Confluent Cloud's API."""
    schema_registry_url: str | None = Field(default=None, pattern=r"^https?://.+[^/]$")
    """Default: the Schema Registry's address that Confluent returns."""
    snowflake_url: str | None = Field(default=None, pattern=r"^https?://[^/:]+(:\d{1,5})?$")
    """Default: derived from the account's name."""
    catalog: Annotated[RestCatalog, *FromJson] = Field(default=RestCatalog(), repr=False)
    """An Iceberg REST catalog of the topics' tables, such as Open Catalog: ``uri``, ``name``,
    ``derived_name``, ``client_id``, ``client_secret``, ``scope``, ``token_uri``,
    ``iam_user_arn``, ``external_id``."""

    def snowflake_address(self) -> dict[str, Any]:
        """Return the connector's arguments for the address; empty: it is the usual one."""
        if self.snowflake_url is None:
            return {}
        parts = urlsplit(self.snowflake_url)
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
        return {"host": parts.hostname, "port": port, "protocol": parts.scheme}
