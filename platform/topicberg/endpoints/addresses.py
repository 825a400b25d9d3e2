"""Addresses of the vendors, from the environment and ``.env``."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from topicberg.security.models import HoldsSecrets
from topicberg.settings.environment import EnvironmentSettings


class Addresses(HoldsSecrets, EnvironmentSettings):
    """Addresses of the vendors, for ``topicberg deploy`` and for its deployment."""

    model_config = SettingsConfigDict(populate_by_name=True)

    confluent_url: str = Field(default="https://api.confluent.cloud", pattern=r"^https?://[^/]+$")
    """Of Confluent Cloud's API."""
    schema_registry_url: str | None = Field(default=None, pattern=r"^https?://.+[^/]$")
    """Default: the Schema Registry's address that Confluent returns."""
    snowflake_host: str | None = None
    """Default: derived from the account's name, as are port and protocol."""
    snowflake_port: int | None = Field(default=None, ge=1, le=65535)
    """Of an address that is not Snowflake's usual one."""
    snowflake_protocol: str | None = Field(default=None, pattern="^https?$")
    """Of an address that is not Snowflake's usual one."""
