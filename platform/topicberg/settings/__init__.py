"""The deployment and the names of its resources, read from the environment.

Every field can be set as ``TOPICBERG_<FIELD>``, or in a ``.env`` file in the project's root
(``TOPICBERG_ENV_FILE`` names another one). Each concern has a model of its own;
:class:`Settings` is all of them, since the names of resources in one concern come from another.
Logins, addresses, alerts and lineage have their models where they are used.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from topicberg.errors import TopicbergError
from topicberg.project import env_file
from topicberg.settings.aws import AwsSettings
from topicberg.settings.compute import ComputeSettings
from topicberg.settings.confluent import ConfluentSettings
from topicberg.settings.dagster import DagsterSettings
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


DEPLOYED_FILE = "deployment.json"
"""In the state directory: names that only a deployment's accounts know. None is secret."""
DEPLOYED_EMR = "emr"
"""In that file: the settings of the EMR Serverless application that ``deploy`` created."""
DEPLOYED_NAMES = ("cluster_id", "bucket", "derived_bucket", "aws_account_id")
DEPLOYED_LINK = "snowflake_linked_database"
"""In that file: the choice of the deployment, which outlasts a new default."""
DEPLOYED_NAMESPACE = "tableflow_namespace"
"""In that file: the topics' namespace, if it is not the cluster's id."""


class DeployedSettings(Settings):
    """Settings of the cloud deployment: an unknown name is an error, never a default."""

    def __getattribute__(self, name: str) -> Any:
        stated = super().__getattribute__
        from_bucket = name == "derived_bucket" and "bucket" in stated("model_fields_set")
        if name in DEPLOYED_NAMES and name not in stated("model_fields_set") and not from_bucket:
            raise TopicbergError(
                f"the cloud deployment's {name} is not known: {noted(self)[1]}",
                hint="run `topicberg deploy status` once, which writes that file, or set "
                + ", ".join(f"TOPICBERG_{each.upper()}" for each in DEPLOYED_NAMES),
            )
        return super().__getattribute__(name)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process; in the cloud, with the names that ``deploy`` found.

    The environment takes precedence.
    """
    stated = Settings()
    if stated.deployment == "local":
        return stated
    names = noted(stated)[0]
    return DeployedSettings(**{k: v for k, v in names.items() if k not in stated.model_fields_set})


def with_choices(config: Settings) -> Settings:
    """Return the settings with the choices that the deployment remembers, for ``deploy``."""
    names = {} if config.deployment == "local" else noted(config)[0]
    choices = {DEPLOYED_LINK, DEPLOYED_NAMESPACE} - config.model_fields_set
    return config.model_copy(update={name: names[name] for name in choices & names.keys()})


def is_deployed(config: Settings) -> bool:
    """Return whether ``topicberg deploy`` has created the platform; in the cloud it always has."""
    return config.deployment == "cloud" or (config.state_dir / DEPLOYED_FILE).exists()


def noted(config: Settings) -> tuple[dict[str, Any], str]:
    """Return the names that ``topicberg deploy`` wrote, and why one may be missing."""
    path = config.state_dir / DEPLOYED_FILE
    try:
        names = json.loads(path.read_text())
        prefix = names.pop("prefix", None)
    except FileNotFoundError:
        return {}, f"there is no {path}"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return {}, f"{path} cannot be read: {type(error).__name__}"
    if prefix != config.prefix:
        return {}, f"{path} is of prefix {prefix}, not {config.prefix}"
    if names:  # a file without the choice is of a deployment whose tables were created
        names.setdefault(DEPLOYED_LINK, False)
    return names, f"{path} lacks it"


def see_whether_it_runs(service: str, *, starts: bool = False) -> str:
    """Return the hint about a service that does not answer.

    Only the local stack knows its services: `topicberg status` says nothing of another deployment.

    :param starts: also say how to start it
    """
    if settings().deployment == "local":
        start = ", `topicberg up` to start it" if starts else ""
        return f"run `topicberg status` to see whether {service} runs{start}"
    return f"check that {service} runs, and that this machine reaches it: network, DNS and firewall"
