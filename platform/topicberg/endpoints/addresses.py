"""Where the vendors are, from the environment and ``.env``."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from topicberg.security.redaction import HoldsSecrets
from topicberg.settings import ENV_FILE


class Addresses(HoldsSecrets, BaseSettings):
    """Where the vendors are, for ``topicberg deploy`` and for the deployment that it made."""

    model_config = SettingsConfigDict(
        env_prefix="TOPICBERG_",
        env_file=ENV_FILE,
        extra="ignore",
        populate_by_name=True,
        env_ignore_empty=True,
    )

    confluent_url: str = Field(default="https://api.confluent.cloud", pattern=r"^https?://[^/]+$")
    schema_registry_url: str | None = Field(default=None, pattern=r"^https?://.+[^/]$")
    """By default what Confluent says of the Schema Registry."""
    snowflake_host: str | None = None
    """By default what follows from the account's name; so are port and protocol."""
    snowflake_port: int | None = Field(default=None, ge=1, le=65535)
    snowflake_protocol: str | None = Field(default=None, pattern="^https?$")
