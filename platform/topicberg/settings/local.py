"""The local stack."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from topicberg.settings.environment import Concern, EnvironmentSettings, FromJson


class LocalStackSettings(EnvironmentSettings):
    """Where the services of the local stack are, and where its Spark computes."""

    concern = Concern.LOCAL

    ports: Annotated[dict[str, int], *FromJson] = Field(
        default_factory=dict,
        description='ports of the local services, as JSON: {"kafka": 9092}; else free ones',
    )
    spark_master: str = Field(
        default="local[*]",
        pattern=r"^(local\[(\*|\d+)\]|spark://[A-Za-z0-9.-]+:\d+)$",
        description="where the local Spark computes: in its own process with n cores, local[n], or "
        "on the workers of a standalone cluster of this machine, spark://127.0.0.1:7077",
    )
