"""The deployment and the names of its resources, read from the environment.

Every field can be set as ``TOPICBERG_<FIELD>``, or in a ``.env`` file in the project's root
(``TOPICBERG_ENV_FILE`` names another one). Each concern has a model of its own;
:class:`Settings` is all of them, since the names of resources in one concern come from another.
Logins, addresses, alerts and lineage have their models where they are used.

What only the accounts of a deployment know is in SSM Parameter Store: ``topicberg deploy`` writes
it, and every process of the cloud deployment reads it when it starts, on whatever machine. None of
it is secret.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pydantic import PrivateAttr, ValidationError

from topicberg import errors
from topicberg.errors import TopicbergError
from topicberg.errors.aws import code_of
from topicberg.project import env_file
from topicberg.settings import models
from topicberg.settings.environment import invalid, problems

DEPLOYED_EMR = "emr"  # The settings of the EMR Serverless application that ``deploy`` created.
DEPLOYED_NAMES = ("cluster_id", "bucket", "derived_bucket", "aws_account_id")
DEPLOYED_LINK = "snowflake_linked_database"
"""The choice of the deployment, which outlasts a new default."""
DEPLOYED_NAMESPACE = "tableflow_namespace"  # The topics' namespace, if it is not the cluster's id.
_TIMEOUT_SECONDS = 5


class Settings(
    models.DagsterSettings,
    models.SnowflakeSettings,
    models.ComputeSettings,
    models.AwsSettings,
    models.ConfluentSettings,
    models.EngineSettings,
    models.LocalStackSettings,
    models.DeploymentSettings,  # its fields come first: pydantic takes those of the last base first
):
    """The deployment and the names in it.

    :raises TopicbergError: names the variable of each invalid setting
    """

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            lines = problems(Settings, error, show_values=True)
            subject = "invalid setting" if len(lines) == 1 else "invalid settings"
            where = f"in the environment or in {env_file()}"
            hint = f"correct it, or remove it to use the default, {where}"
            raise invalid(subject, lines, hint) from None


class DeployedSettings(Settings):
    """Settings of the cloud deployment: an unknown name is an error, never a default."""

    _emr: dict[str, str] | None = PrivateAttr(default=None)
    """The settings of the application that ``deploy`` created; None: there is none."""
    _reason: str = PrivateAttr(default="")

    def __getattribute__(self, name: str) -> Any:
        stated = super().__getattribute__
        given = stated("model_fields_set") if name in DEPLOYED_NAMES else {name}
        if name not in given and not (name == "derived_bucket" and "bucket" in given):
            raise TopicbergError(
                f"the cloud deployment's {name} is not known: {self.unknown_reason}",
                hint="run `topicberg deploy create`, which writes that parameter, permit this "
                "process to read it (ssm:GetParameter), or set "
                + ", ".join(f"TOPICBERG_{each.upper()}" for each in DEPLOYED_NAMES),
            )
        return stated(name)

    @property
    def unknown_reason(self) -> str:
        """Why a name of the deployment may not be known."""
        return self._reason


def deployment_parameter(prefix: str) -> str:
    """Return the name of the parameter."""
    return f"/topicberg/{prefix}/deployment"


def read_deployment(
    config: Settings, profile: str | None = None, endpoint: str | None = None
) -> tuple[dict[str, Any], str, bool]:
    """Return the names of a deployment, why one may be missing, and whether AWS answered.

    :param profile: of AWS; by default that of the environment
    :param endpoint: of AWS's services, likewise
    """
    import boto3  # it takes a fifth of a second, which the local deployment saves
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    name = deployment_parameter(config.prefix)
    title = f"SSM parameter {name} in {config.aws_region}"
    options = Config(connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS)
    try:
        session = boto3.Session(profile_name=profile, region_name=config.aws_region)
        ssm = session.client("ssm", endpoint_url=endpoint, config=options)
        text = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: an address of no scheme
        if code_of(error) == "ParameterNotFound":
            return {}, f"there is no {title}", True
        return {}, f"{title} cannot be read: {error}", False
    names = None
    with suppress(ValueError):
        names = json.loads(text)
    if not isinstance(names, dict):
        return {}, f"{title} is not a JSON object", False
    return names, f"{title} lacks it", True


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process; in the cloud, with the names that ``deploy`` found. The
    environment takes precedence. If it has all names, and no application of EMR Serverless can be
    among them, AWS is not asked."""
    stated = Settings()
    if stated.deployment == "local":
        return stated
    names, reason = dict[str, Any](), ""
    if stated.on_emr or not stated.model_fields_set >= {*DEPLOYED_NAMES} - {"derived_bucket"}:
        names, reason, _ = read_deployment(stated)
    emr = names.pop(DEPLOYED_EMR, None)
    unset = names.keys() - stated.model_fields_set
    deployed = DeployedSettings(**{name: names[name] for name in unset})
    deployed._emr, deployed._reason = emr, reason
    return deployed


def emr_settings() -> models.EmrSettings | None:
    """Return the application that computes the derived tables: that of the environment, else the
    one that ``topicberg deploy`` created. None: compute where ``TOPICBERG_SPARK_REMOTE`` is.

    :raises TopicbergError: names every setting that is missing or invalid, if any is set
    """
    if stated := Settings().emr_jobs:
        return stated
    config = settings()
    noted = config._emr if isinstance(config, DeployedSettings) and config.on_emr else None
    return models.EmrSettings.model_validate(noted) if noted else None


errors.is_local = lambda: settings().deployment == "local"
