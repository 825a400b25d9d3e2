"""Dagster."""

from __future__ import annotations

from pydantic import Field

from topicberg.settings.environment import Concern, EnvironmentSettings


class DagsterSettings(EnvironmentSettings):
    """Dagster's UI, its checks, and how long it keeps runs."""

    concern = Concern.DAGSTER

    catalogs_patience_seconds: float = Field(
        default=300, ge=0, description="how stale Glue and Snowflake may be before checks report it"
    )
    docs_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s]+$",
        description="address of the published site of the documentation: assets and alerts link to "
        "its pages; else topicberg's web server has them",
    )
    ui_hosts: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9.,\[\]:_ -]*$",
        description="host names, with commas between them, by which browsers reach the Dagster UI "
        "beside 127.0.0.1 and localhost; without ports",
    )
    keep_runs_days: float = Field(
        default=30, gt=0, description="how long Dagster keeps runs and their logs"
    )
    keep_check_runs_days: float = Field(
        default=2, gt=0, description="how long it keeps runs of checks, maintenance and sensors"
    )
