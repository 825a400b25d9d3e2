"""What a deployment needs to know, from flags, the environment and ``.env``.

Every field is ``TOPICBERG_<FIELD>``; the command line's flags come before it. AWS is reached as
every AWS tool does it, by ``AWS_PROFILE`` and ``AWS_ENDPOINT_URL``, but in the region of
``TOPICBERG_AWS_REGION``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError

from topicberg.endpoints.cloud import Addresses
from topicberg.errors import TopicbergError
from topicberg.logins import absent
from topicberg.logins.catalog import TOPICS_PREFIX, RestCatalog
from topicberg.security.models import HoldsSecrets
from topicberg.settings import Settings
from topicberg.settings.environment import EnvironmentSettings, FromJson
from topicberg.topics import TopicSpec

_UNITY_PREFIX = "TOPICBERG_UNITY_"
FIRST_RELEASE = (8, 1)
"""Of EMR with Spark 4.1: emr-spark-8.0.0 has Spark 4.0, emr-7.x has Spark 3.5."""


class NoLoginError(TopicbergError):
    """No login to an account is set, and nothing else of the settings is wrong."""

    def __init__(self, message: str, missing: Sequence[str], hint: str) -> None:
        """:param missing: a line for each setting that is missing"""
        super().__init__(message, hint=hint)
        self.missing = missing


class DeploySettings(Addresses):
    """Addresses, credentials and choices of ``topicberg deploy``. URLs without a trailing slash."""

    confluent_api_key: str = Field(min_length=1, description="a Cloud API key")
    confluent_api_secret: SecretStr = Field(min_length=1)
    """The secret of the Cloud API key."""
    kafka_rest_url: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    """By default what Confluent says of the cluster."""
    kafka_bootstrap_servers: str | None = Field(
        default=None, pattern=r"^[^\s:/,]+:\d+(,[^\s:/,]+:\d+)*$"
    )
    """Where the clients of the deployment reach Kafka, e.g. by AWS PrivateLink; by default what
    Confluent says of the cluster."""

    profile: str | None = Field(default=None, validation_alias="AWS_PROFILE")
    """AWS profile, e.g. of SSO; by default the usual AWS variables."""

    aws_endpoint_url: str | None = Field(default=None, validation_alias="AWS_ENDPOINT_URL")
    """Of every AWS service; in the local deployment of all but S3, which has a store of its own."""

    admin_user_secrets_root_path: str | None = None
    """Secrets Manager secret with Snowflake's admin user and its key pairs."""
    snowflake_warehouse: str | None = None
    """Warehouse of the admin's session; the platform's own by default."""
    snowflake_role: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_$]*$")
    """The only role that the session takes, e.g. one that only reads, for ``plan``; by default the
    role that owns each object."""

    day_count: int = Field(default=30, ge=1)
    """Days between two rotations of every key."""
    number_of_api_keys_to_retain: int = Field(default=2, ge=2)
    """Keys of one kind that are alive at least, the active one included."""


def load(flags: dict[str, Any], config: Settings) -> DeploySettings:
    """The settings; flags that are not None come before the environment.

    In the local deployment the running stack's own are the defaults.

    :raises NoLoginError: names every login that is missing; none is set, and nothing is wrong
    :raises TopicbergError: names every setting that is missing or wrong, never a value of a secret
    """
    given = {name: value for name, value in flags.items() if value is not None}
    problems: list[str] = []
    missing: list[str] = []
    deploy = None
    try:
        deploy = DeploySettings(**_local(config) | given)
    except ValidationError as error:
        errors = error.errors(include_input=False)
        for detail in errors:
            name, is_missing = _called(str(detail["loc"][0])), detail["type"] == "missing"
            (missing if is_missing else problems).append(
                f"{name}: {'missing' if is_missing else detail['msg']}"
            )
    stated = deploy or _Stated(**given)
    problems += _catalog_problems(stated.catalog, config)
    problems += _unity_problems(config)
    problems += _emr_problems(config)
    problems += _private_problems(config)
    problems += _existing_problems(config)
    if config.deployment == "cloud":
        missing += _missing_in_cloud(stated, problems)
    if deploy is None or problems or missing:
        logins = ("confluent_api_key", "confluent_api_secret", "admin_user_secrets_root_path")
        has_login = any(getattr(stated, name) for name in logins)
        text = "\n  ".join(
            ["the deployment's settings are incomplete or wrong:", *missing, *problems]
        )
        hint = "set them in the environment or in .env, or by the flag of the same name"
        if problems or has_login:
            raise TopicbergError(text, hint=hint)
        raise NoLoginError(text, missing, hint)
    return deploy


def _catalog_problems(catalog: RestCatalog, config: Settings) -> list[str]:
    """What Snowflake needs to log in to a REST catalog."""
    needed = {
        "open_catalog": ("uri", "name", "client_id", "scope"),
        "iceberg_rest": ("uri", "client_id", "scope"),
    }.get(config.snowflake_catalog, ())
    problems = []
    if config.has_topics_catalog and config.on_emr and not config.emr.subnet_ids:
        problems.append(
            "TOPICBERG_SPARK_REMOTE: missing; TOPICBERG_SNOWFLAKE_CATALOG is open_catalog, which "
            "job runs of EMR Serverless do not reach: they have no network but to AWS, unless "
            "TOPICBERG_EMR__SUBNET_IDS gives them one. Without a Spark, set TOPICBERG_COMPUTE=none"
        )
    if bool(catalog.iam_user_arn) != bool(catalog.external_id):
        problems.append(
            f"{TOPICS_PREFIX}__IAM_USER_ARN, {TOPICS_PREFIX}__EXTERNAL_ID: set both or none"
        )
    return problems + [
        f"{name}: missing; TOPICBERG_SNOWFLAKE_CATALOG is {config.snowflake_catalog}"
        for name in catalog.absent(*needed)
    ]


def _unity_problems(config: Settings) -> list[str]:
    """Return what is missing to log in to Unity Catalog, and what contradicts it."""
    needed = ("workspace_url", "catalog", "client_id")
    first = next((name for name in needed if getattr(config.unity, name)), None)
    if first is None:
        return []
    problems = [
        f"{name}: missing; TOPICBERG_UNITY__{first.upper()} is set"
        for name in absent(_UNITY_PREFIX, config.unity, *needed)
    ]
    if config.tableflow == "topicberg":
        problems.append(
            f"TOPICBERG_UNITY__{first.upper()}: only Confluent's Tableflow publishes to Unity "
            "Catalog, and TOPICBERG_TABLEFLOW is topicberg"
        )
    return problems


def check_secrets(config: Settings, deploy: DeploySettings) -> None:
    """:raises TopicbergError: the secret of a client is missing, which only `create` sends"""
    in_rest_catalog = config.snowflake_catalog in ("open_catalog", "iceberg_rest")
    missing = deploy.catalog.absent("client_secret") if in_rest_catalog else []
    if config.unity.workspace_url:
        missing += absent(_UNITY_PREFIX, config.unity, "client_secret")
    if missing:
        raise TopicbergError(
            f"missing: {', '.join(missing)}", hint="set them in the environment or in .env"
        )


def check_specs(config: Settings, specs: Sequence[TopicSpec]) -> None:
    """:raises TopicbergError: the settings have Unity Catalog, and no topic a table that it takes

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html
    """
    is_empty = not any(spec.tableflow.enabled for spec in specs)
    if config.unity.workspace_url is None or is_empty:
        return
    if not any(spec.has_delta_table for spec in specs):
        raise TopicbergError(
            "TOPICBERG_UNITY__WORKSPACE_URL: Tableflow publishes only Delta tables to Unity "
            "Catalog, and no topic has DELTA in tableflow.table_formats",
            hint="set `tableflow: {table_formats: [ICEBERG, DELTA]}` in the spec of a topic, or "
            "unset TOPICBERG_UNITY__WORKSPACE_URL",
        )


def _existing_problems(config: Settings) -> list[str]:
    """Return what contradicts an environment or a cluster that exists."""
    if config.existing_cluster is None:
        return []
    problems = []
    if config.existing_environment is None:
        problems.append(
            "TOPICBERG_EXISTING_ENVIRONMENT: missing; it is the environment of "
            f"TOPICBERG_EXISTING_CLUSTER, {config.existing_cluster}"
        )
    if config.cluster_type is not None:
        problems.append(
            "TOPICBERG_CLUSTER_TYPE: leave it out; the type of TOPICBERG_EXISTING_CLUSTER, "
            f"{config.existing_cluster}, is not changed"
        )
    return problems


def _emr_problems(config: Settings) -> list[str]:
    """Return why the release cannot compute the tables: it has an earlier Spark than the library.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/release-versions.html
    """
    series, _, number = config.emr.release.rpartition("-spark-")
    is_new = bool(series) and tuple(map(int, re.findall(r"\d+", number)[:2])) >= FIRST_RELEASE
    if not config.on_emr or is_new:
        return []
    first = f"emr-spark-{'.'.join(map(str, FIRST_RELEASE))}.0"
    return [
        f"TOPICBERG_EMR__RELEASE: {config.emr.release} has no Spark 4.1; the first release that "
        f"has it is {first}"
    ]


def _private_problems(config: Settings) -> list[str]:
    """Return what contradicts private networks.

    https://docs.snowflake.com/en/user-guide/tables-iceberg-configure-catalog-integration-rest-private
    """
    problems = []
    if bool(config.emr.subnet_ids) != bool(config.emr.security_group_ids):
        problems.append(
            "TOPICBERG_EMR__SUBNET_IDS, TOPICBERG_EMR__SECURITY_GROUP_IDS: set both or none"
        )
    if config.snowflake_privatelink and config.snowflake_catalog == "glue":
        problems.append(
            "TOPICBERG_SNOWFLAKE_PRIVATELINK: by AWS PrivateLink, Snowflake reaches Glue only at "
            "its Iceberg REST API; set TOPICBERG_SNOWFLAKE_CATALOG=glue_rest"
        )
    if config.snowflake_privatelink and config.snowflake_vended_credentials:
        problems.append(
            "TOPICBERG_SNOWFLAKE_PRIVATELINK: Snowflake takes no vended credentials by AWS "
            "PrivateLink; set TOPICBERG_SNOWFLAKE_VENDED_CREDENTIALS=false"
        )
    return problems


def _missing_in_cloud(known: DeploySettings | _Stated, problems: list[str]) -> list[str]:
    """Return which logins are missing that only the cloud needs: Snowflake's admin, and AWS.

    :param problems: receives what is wrong with one that is set
    """
    import boto3
    from botocore.exceptions import BotoCoreError

    missing = []
    if not known.admin_user_secrets_root_path:
        name = _called("admin_user_secrets_root_path")
        missing.append(f"{name}: missing; it is the login to Snowflake")
    try:
        if boto3.Session(profile_name=known.profile).get_credentials() is None:
            missing.append("AWS: no credentials (AWS_PROFILE or --profile, or AWS_ACCESS_KEY_ID)")
    except BotoCoreError as error:
        problems.append(f"AWS_PROFILE (--profile): {error}")
    return missing


def _called(name: str) -> str:
    return f"TOPICBERG_{name.upper()} (--{name.replace('_', '-')})"


def _local(config: Settings) -> dict[str, Any]:
    """What the local stack knows by itself, where the environment does not say otherwise."""
    if config.deployment != "local":
        return {}
    from topicberg.endpoints import load_endpoints

    endpoints = load_endpoints(config)
    settings_of_emulators = {
        "confluent_url": endpoints.confluent,
        "confluent_api_key": endpoints.confluent_api_key,
        "confluent_api_secret": endpoints.confluent_api_secret,
    }
    stated = _Stated().model_fields_set
    return {
        name: value for name, value in settings_of_emulators.items() if value and name not in stated
    }


class _Stated(HoldsSecrets, EnvironmentSettings):
    """What is set outside, whether it is complete or not."""

    model_config = DeploySettings.model_config

    confluent_url: str | None = None
    confluent_api_key: str | None = None
    confluent_api_secret: SecretStr | None = None
    admin_user_secrets_root_path: str | None = None
    catalog: Annotated[RestCatalog, *FromJson] = RestCatalog()
    profile: str | None = Field(default=None, validation_alias="AWS_PROFILE")
