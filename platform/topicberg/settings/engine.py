"""The Tableflow engine."""

from __future__ import annotations

from pydantic import Field

from topicberg.settings.environment import Concern, EnvironmentSettings


class EngineSettings(EnvironmentSettings):
    """How much topicberg's engine does at once, and with which others it shares the topics."""

    concern = Concern.ENGINE

    engine_workers: int = Field(
        default=8,
        ge=1,
        le=256,
        description="batches that the Tableflow engine commits at once, each in a Spark session; "
        "all topics share them",
    )
    engine_processes: int = Field(
        default=2,
        ge=1,
        le=64,
        description="processes of the Tableflow engine that read and decode small batches, and the "
        "parts of large ones of a database's changes",
    )
    engine_process_memory_mb: int = Field(
        default=2048,
        ge=512,
        description="memory that a batch may take in a process of the engine, and a part of one in "
        "a task of Spark; a record that takes more is malformed",
    )
    engine_group: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="engines with the same name here share the topics; all of them need the same "
        "specs; by default these are the engines of one cluster and bucket",
    )
