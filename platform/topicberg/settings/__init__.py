"""The deployment and the names of its resources, read from the environment.

Every field can be set as ``TOPICBERG_<FIELD>``, or in a ``.env`` file in the project's root
(``TOPICBERG_ENV_FILE`` names another one). Each concern has a model of its own;
:class:`Settings` is all of them, since the names of resources in one concern come from another.
Logins, addresses, alerts and lineage have their models where they are used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import PrivateAttr, ValidationError

from topicberg.errors import TopicbergError, hints
from topicberg.project import env_file
from topicberg.settings.aws import AwsSettings
from topicberg.settings.compute import ComputeSettings
from topicberg.settings.confluent import ConfluentSettings
from topicberg.settings.dagster import DagsterSettings
from topicberg.settings.deployed import (
    DEPLOYED_EMR,
    DEPLOYED_LINK,
    DEPLOYED_NAMES,
    DEPLOYED_NAMESPACE,
    read_deployment,
)
from topicberg.settings.deployment import DeploymentSettings
from topicberg.settings.engine import EngineSettings
from topicberg.settings.environment import invalid, problems
from topicberg.settings.local import LocalStackSettings
from topicberg.settings.snowflake import SnowflakeSettings


class Settings(
    DagsterSettings,
    SnowflakeSettings,
    ComputeSettings,
    AwsSettings,
    ConfluentSettings,
    EngineSettings,
    LocalStackSettings,
    DeploymentSettings,  # its fields come first: pydantic takes those of the last base first
):
    """The deployment and the names in it.

    :raises TopicbergError: names the variable of each invalid setting
    """

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            lines = problems(Settings, error, show_values=True)
        else:
            return
        raise invalid(
            "invalid setting" if len(lines) == 1 else "invalid settings",
            lines,
            f"correct it, or remove it to use the default, in the environment or in {env_file()}",
        )


class DeployedSettings(Settings):
    """Settings of the cloud deployment: an unknown name is an error, never a default."""

    _emr: dict[str, str] | None = PrivateAttr(default=None)
    _reason: str = PrivateAttr(default="")

    def __getattribute__(self, name: str) -> Any:
        stated = super().__getattribute__
        from_bucket = name == "derived_bucket" and "bucket" in stated("model_fields_set")
        if name in DEPLOYED_NAMES and name not in stated("model_fields_set") and not from_bucket:
            raise TopicbergError(
                f"the cloud deployment's {name} is not known: {self.unknown_reason}",
                hint="run `topicberg deploy create`, which writes that parameter, permit this "
                "process to read it (ssm:GetParameter), or set "
                + ", ".join(f"TOPICBERG_{each.upper()}" for each in DEPLOYED_NAMES),
            )
        return super().__getattribute__(name)

    @property
    def deployed_emr(self) -> dict[str, str] | None:
        """The settings of the application that ``deploy`` created; None: there is none."""
        return self._emr

    @property
    def unknown_reason(self) -> str:
        """Why a name of the deployment may not be known."""
        return self._reason


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process; in the cloud, with the names that ``deploy`` found.

    The environment takes precedence. If it has all names, and no application of EMR Serverless
    can be among them, AWS is not asked.
    """
    stated = Settings()
    if stated.deployment == "local":
        return stated
    names, reason = dict[str, Any](), ""
    if stated.on_emr or not stated.model_fields_set >= {*DEPLOYED_NAMES} - {"derived_bucket"}:
        names, reason, _ = read_deployment(stated)
    emr = names.pop(DEPLOYED_EMR, None)
    deployed = DeployedSettings(
        **{name: value for name, value in names.items() if name not in stated.model_fields_set}
    )
    deployed._emr, deployed._reason = emr, reason
    return deployed


def with_choices(config: Settings, profile: str | None, endpoint: str | None) -> Settings:
    """Return the settings with the choices that the deployment remembers, for ``deploy``.

    :param profile: of AWS
    :param endpoint: of AWS's services
    :raises TopicbergError: they cannot be read; a default could contradict them
    """
    if config.deployment == "local":
        return config
    names, reason, is_known = read_deployment(config, profile, endpoint)
    if not is_known:
        raise TopicbergError(
            f"what `deploy` remembers of the deployment: {reason}",
            hint="log in to AWS (`aws sso login`), or permit ssm:GetParameter on that parameter",
        )
    choices = {DEPLOYED_LINK, DEPLOYED_NAMESPACE} - config.model_fields_set
    return config.model_copy(update={name: names[name] for name in choices & names.keys()})


hints.is_local = lambda: settings().deployment == "local"
