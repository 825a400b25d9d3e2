"""The EMR Serverless application that computes the derived tables."""

from __future__ import annotations

from topicberg.settings import DeployedSettings, Settings, settings
from topicberg.settings.compute import EmrSettings


def emr_settings() -> EmrSettings | None:
    """Return the application that computes the derived tables: that of the environment, else the
    one that ``topicberg deploy`` created. None: compute where ``TOPICBERG_SPARK_REMOTE`` is.

    :raises TopicbergError: names every setting that is missing or invalid, if any is set
    """
    if stated := Settings().emr_jobs:
        return stated
    config = settings()
    noted = config.deployed_emr if isinstance(config, DeployedSettings) and config.on_emr else None
    return EmrSettings.model_validate(noted) if noted else None
