"""The EMR Serverless application that computes the derived tables."""

from __future__ import annotations

from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from topicberg.settings import DeployedSettings, Settings, settings
from topicberg.settings.environment import Concern, EnvironmentSettings, invalid, problems


class EmrSettings(EnvironmentSettings):
    """An EMR Serverless application that computes the derived tables: ``TOPICBERG_EMR_<FIELD>``."""

    model_config = SettingsConfigDict(env_prefix="TOPICBERG_EMR_")
    concern = Concern.COMPUTE

    application_id: str = Field(pattern=r"^[0-9a-z]{1,64}$")
    """Of the EMR Serverless application."""
    execution_role_arn: str = Field(
        pattern=r"^arn:aws[a-zA-Z0-9-]*:iam::\d{12}:role/[!-~]+$", description="role of its jobs"
    )
    entry_point: str = Field(
        pattern=r"^(s3://[^/\s]+|local://)?/\S+\.py$",
        description="job.py that `topicberg deploy emr-image` writes, in the image or in S3",
    )
    log_uri: str = Field(
        pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/\S*)?$",
        description="where in S3 the logs of job runs go, and what they report to Dagster",
    )
    spark_submit_parameters: str = Field(
        default="", description="are added after those that topicberg generates, and override them"
    )


def emr_settings() -> EmrSettings | None:
    """Return the application that computes the derived tables: that of the environment, else the
    one that ``topicberg deploy`` created. None: compute where ``TOPICBERG_SPARK_REMOTE`` is.

    :raises TopicbergError: names every setting that is missing or invalid, if any is set
    """
    try:
        return EmrSettings()
    except ValidationError as error:
        errors, wrong = error.errors(), problems(EmrSettings, error)
    # pydantic's input for a missing field is all that was given; a .env file may have more.
    if all(
        each["type"] == "missing" and not EmrSettings.model_fields.keys() & each["input"].keys()
        for each in errors
    ):
        return _deployed_emr(settings())
    raise invalid(
        "the settings of EMR Serverless are incomplete or invalid",
        wrong,
        "set all of them or none, in the environment or in .env; see docs/production.md",
    )


def _deployed_emr(config: Settings) -> EmrSettings | None:
    """Return the application of the deployment, if its derived tables are computed there."""
    found = config.deployed_emr if isinstance(config, DeployedSettings) and config.on_emr else None
    return EmrSettings.model_validate(found) if found else None
