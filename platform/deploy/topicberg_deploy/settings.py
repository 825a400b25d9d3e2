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
        for detail in error.errors(include_input=False):
            name, is_missing = _called(str(detail["loc"][0])), detail["type"] == "missing"
            if is_missing:
                missing.append(f"{name}: missing")
            else:
                problems.append(f"{name}: {detail['msg']}")
    stated = deploy or _Stated(**given)
    problems += _problems(stated.catalog, config)
    if config.deployment == "cloud":
        missing += _missing_in_cloud(stated, problems)
    if deploy is not None and not problems and not missing:
        return deploy
    logins = ("confluent_api_key", "confluent_api_secret", "admin_user_secrets_root_path")
    text = "\n  ".join(["the deployment's settings are incomplete or wrong:", *missing, *problems])
    hint = "set them in the environment or in .env, or by the flag of the same name"
    if problems or any(getattr(stated, name) for name in logins):
        raise TopicbergError(text, hint=hint)
    raise NoLoginError(text, missing, hint)


def _problems(catalog: RestCatalog, config: Settings) -> list[str]:
    """Return what contradicts itself, or lacks what another setting needs.

    https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/release-versions.html and
    https://docs.snowflake.com/en/user-guide/tables-iceberg-configure-catalog-integration-rest-private
    """
    emr, unity, chosen = config.emr, config.unity, config.snowflake_catalog
    of_catalog = {
        "open_catalog": ("uri", "name", "client_id", "scope"),
        "iceberg_rest": ("uri", "client_id", "scope"),
    }.get(chosen, ())
    of_unity = ("workspace_url", "catalog", "client_id")
    stated = next((name for name in of_unity if getattr(unity, name)), None)
    a_unity = f"TOPICBERG_UNITY__{(stated or '').upper()}"
    series, _, number = emr.release.rpartition("-spark-")
    is_new = bool(series) and tuple(map(int, re.findall(r"\d+", number)[:2])) >= FIRST_RELEASE
    private, cluster = config.snowflake_privatelink, config.existing_cluster
    contradictions = {
        "TOPICBERG_SPARK_REMOTE: missing; TOPICBERG_SNOWFLAKE_CATALOG is open_catalog, which "
        "job runs of EMR Serverless do not reach: they have no network but to AWS, unless "
        "TOPICBERG_EMR__SUBNET_IDS gives them one. Without a Spark, set TOPICBERG_COMPUTE=none": (
            config.has_topics_catalog and config.on_emr and not emr.subnet_ids
        ),
        f"{TOPICS_PREFIX}__IAM_USER_ARN, {TOPICS_PREFIX}__EXTERNAL_ID: set both or none": (
            bool(catalog.iam_user_arn) != bool(catalog.external_id)
        ),
        f"{a_unity}: only Confluent's Tableflow publishes to Unity Catalog, and "
        "TOPICBERG_TABLEFLOW is topicberg": stated and config.tableflow == "topicberg",
        f"TOPICBERG_EMR__RELEASE: {emr.release} has no Spark 4.1; the first release that has it is "
        f"emr-spark-{'.'.join(map(str, FIRST_RELEASE))}.0": config.on_emr and not is_new,
        "TOPICBERG_EMR__SUBNET_IDS, TOPICBERG_EMR__SECURITY_GROUP_IDS: set both or none": (
            bool(emr.subnet_ids) != bool(emr.security_group_ids)
        ),
        "TOPICBERG_SNOWFLAKE_PRIVATELINK: by AWS PrivateLink, Snowflake reaches Glue only at "
        "its Iceberg REST API; set TOPICBERG_SNOWFLAKE_CATALOG=glue_rest": (
            private and chosen == "glue"
        ),
        "TOPICBERG_EXISTING_ENVIRONMENT: missing; it is the environment of "
        f"TOPICBERG_EXISTING_CLUSTER, {cluster}": cluster and config.existing_environment is None,
        "TOPICBERG_CLUSTER_TYPE: leave it out; the type of TOPICBERG_EXISTING_CLUSTER, "
        f"{cluster}, is not changed": cluster and config.cluster_type is not None,
    }
    absent_of_unity = absent(_UNITY_PREFIX, unity, *of_unity) if stated else ()
    return [
        *(
            f"{name}: missing; TOPICBERG_SNOWFLAKE_CATALOG is {chosen}"
            for name in catalog.absent(*of_catalog)
        ),
        *(f"{name}: missing; {a_unity} is set" for name in absent_of_unity),
        *(problem for problem, holds in contradictions.items() if holds),
    ]


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
    enabled = any(spec.tableflow.enabled for spec in specs)
    has_delta = any(spec.has_delta_table for spec in specs)
    if config.unity.workspace_url is not None and enabled and not has_delta:
        raise TopicbergError(
            "TOPICBERG_UNITY__WORKSPACE_URL: Tableflow publishes only Delta tables to Unity "
            "Catalog, and no topic has DELTA in tableflow.table_formats",
            hint="set `tableflow: {table_formats: [ICEBERG, DELTA]}` in the spec of a topic, or "
            "unset TOPICBERG_UNITY__WORKSPACE_URL",
        )


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

    endpoints, stated = load_endpoints(config), _Stated().model_fields_set
    of_emulators = {
        "confluent_url": endpoints.confluent,
        "confluent_api_key": endpoints.confluent_api_key,
        "confluent_api_secret": endpoints.confluent_api_secret,
    }
    return {name: text for name, text in of_emulators.items() if text and name not in stated}


class _Stated(HoldsSecrets, EnvironmentSettings):
    """What is set outside, whether it is complete or not."""

    model_config = DeploySettings.model_config

    confluent_url: str | None = None
    confluent_api_key: str | None = None
    confluent_api_secret: SecretStr | None = None
    admin_user_secrets_root_path: str | None = None
    catalog: Annotated[RestCatalog, *FromJson] = RestCatalog()
    profile: str | None = Field(default=None, validation_alias="AWS_PROFILE")
