"""Where alerts go: ``TOPICBERG_ALERT_<FIELD>`` in the environment or in ``.env``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from topicberg.project import env_file
from topicberg.security.models import HoldsSecrets
from topicberg.settings.environment import (
    Concern,
    EnvironmentSettings,
    FromJson,
    Group,
    read_settings,
)


class AlertAddresses(HoldsSecrets):
    """Where alerts are sent: each channel is on when its address is set."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    webhook_url: SecretStr | None = None
    """Gets each notice as JSON by POST."""
    slack_url: SecretStr | None = None
    """A Slack incoming webhook."""
    teams_url: SecretStr | None = None
    """A workflow of Microsoft Teams: "When a Teams webhook request is received"."""
    pagerduty_key: SecretStr | None = None
    """The integration key of a PagerDuty service (Events API v2)."""
    email_to: str | None = None
    """Addresses, with commas between them."""


class MailServer(Group):
    """The server that sends the e-mails."""

    host: str = "localhost"
    port: int = 587
    tls: bool = True
    """Whether the connection is encrypted (STARTTLS)."""
    user: str | None = None
    password: SecretStr | None = None
    sender: str = "topicberg@localhost"
    """Who sends the e-mails."""


class AlertSettings(AlertAddresses, EnvironmentSettings):
    """Each channel is on when its address is set; the file in the state directory always is."""

    model_config = SettingsConfigDict(env_prefix="TOPICBERG_ALERT_", extra="ignore")
    concern = Concern.ALERTS

    heartbeat_url: SecretStr | None = None
    """Gets a request (GET) from the engine every minute, as long as the engine works."""
    ui_url: str = "http://127.0.0.1:3000"
    """The Dagster UI, for links."""
    least: Literal["warning", "error"] = "warning"
    """The lowest severity that is sent; the file has every alert."""
    routes: dict[str, AlertAddresses] = Field(default={}, repr=False)
    """JSON, owner → addresses: ``{"team:data": {"slack_url": "…"}}``. Alerts of assets of these
    owners are sent there, and all others to the addresses of these settings."""
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"
    """PagerDuty's Events API; in the EU ``https://events.eu.pagerduty.com/v2/enqueue``."""
    smtp: Annotated[MailServer, *FromJson] = Field(default=MailServer(), repr=False)
    """The mail server: ``host``, ``port``, ``tls``, ``user``, ``password``, ``sender``."""


def alert_settings() -> AlertSettings:
    """:raises TopicbergError: a setting is wrong"""
    hint = f"correct them in the environment or in {env_file()}"
    return read_settings(AlertSettings, "invalid settings of alerts", hint)
