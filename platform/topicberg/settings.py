"""Where topicberg runs and what its resources are called: one model, read from the environment.

Every field can be set as ``TOPICBERG_<FIELD>``, or in a ``.env`` file in the project's root
(``TOPICBERG_ENV_FILE`` names another one).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

PROJECT_ROOT = Path(__file__).resolve().parents[2]
ENV_FILE = Path(os.environ.get("TOPICBERG_ENV_FILE", PROJECT_ROOT / ".env"))


class Settings(BaseSettings):
    """The deployment and the names in it."""

    model_config = SettingsConfigDict(env_prefix="TOPICBERG_", env_file=ENV_FILE, extra="ignore")

    deployment: Literal["local", "cloud"] = "local"
    project_root: Path = PROJECT_ROOT
    state_dir: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default=PROJECT_ROOT / ".topicberg", description="state of the local stack and of Dagster"
    )
    prefix: str = Field(
        default="tableflow_kickstarter",
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="starts the name of every resource that topicberg creates",
    )
    cluster_id: str = Field(
        default="lkc-local",
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="id of the Kafka cluster: namespace of its tables, name of its Glue database",
    )
    ports: dict[str, int] = Field(
        default_factory=dict,
        description='ports of the local services, as JSON: {"kafka": 9092}; else free ones',
    )
    aws_region: str = "us-east-1"
    aws_account_id: str = Field(default="000000000000", pattern=r"^\d{12}$")
    bucket: str = Field(
        default_factory=lambda fields: str(fields["prefix"]).replace("_", "-"),
        pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
        description="holds every table; S3 takes no underscore, Snowflake no dot",
    )

    catalogs_patience_seconds: float = Field(
        default=300,
        ge=0,
        description="how long Glue and Snowflake may be behind a table before checks say so",
    )

    keep_runs_days: float = Field(
        default=30, gt=0, description="how long Dagster keeps runs and their logs"
    )
    keep_check_runs_days: float = Field(
        default=2, gt=0, description="the same for runs of checks and maintenance, which are many"
    )

    @property
    def topics_dir(self) -> Path:
        return self.project_root / "platform" / "topics"

    @property
    def schemas_dir(self) -> Path:
        return self.project_root / "platform" / "schemas"

    @property
    def warehouse(self) -> str:
        return f"s3://{self.bucket}/"

    def snowflake_name(self, kind: str) -> str:
        """Name of a Snowflake object, e.g. ``snowflake_name("volume")`` → ``…_VOLUME``."""
        return f"{self.prefix}_{kind}".upper()


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process."""
    return Settings()
