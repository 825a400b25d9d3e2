"""``topicberg env``: addresses and logins of the deployment as shell exports."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from topicberg.cli.output import echo, load_endpoints, settings

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings


def env() -> None:
    """Print addresses and local credentials as shell exports: `eval "$(topicberg env)"`.

    They include DAGSTER_HOME, so that `dagster` uses the instance that `topicberg ui` shows.
    In the cloud deployment, they include a token of the Iceberg catalog, which expires, and no
    secret that does not.
    """
    from topicberg.dagster.home import dagster_home

    config = settings()
    endpoints = load_endpoints(config)
    variables = (_cloud if config.deployment == "cloud" else _local)(endpoints, config)
    for name, value in {**variables, "DAGSTER_HOME": dagster_home(config)}.items():
        if value is not None:
            text = value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
            echo(f"export {name}={shlex.quote(text)}")


def _local(endpoints: Endpoints, config: Settings) -> dict[str, Any]:
    """Return the variables of the local deployment, with its secrets."""
    snowflake = endpoints.snowflake
    return {
        **dict.fromkeys(("KAFKA_BOOTSTRAP", "KAFKA_BOOTSTRAP_SERVERS"), endpoints.kafka_bootstrap),
        **dict.fromkeys(("SCHEMA_REGISTRY", "SCHEMA_REGISTRY_URL"), endpoints.schema_registry),
        **dict.fromkeys(("ICEBERG_REST", "ICEBERG_REST_URI"), endpoints.iceberg_rest),
        "ICEBERG_REST_TOKEN": endpoints.iceberg_rest_token,
        **dict.fromkeys(("SPARK_CONNECT", "SPARK_REMOTE"), endpoints.spark_connect),
        "AWS_ENDPOINT_URL": endpoints.aws,
        "AWS_ENDPOINT_URL_S3": endpoints.s3,
        **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), config.aws_region),
        "AWS_ACCESS_KEY_ID": endpoints.aws_access_key,
        "AWS_SECRET_ACCESS_KEY": endpoints.aws_secret_key,
        "SNOWFLAKE_ACCOUNT": snowflake.account,
        "SNOWFLAKE_USER": snowflake.user,
        "SNOWFLAKE_PASSWORD": snowflake.password,
        "SNOWFLAKE_HOST": snowflake.host,
        "SNOWFLAKE_PORT": snowflake.port,
        "SNOWFLAKE_PROTOCOL": snowflake.protocol,
        "SNOWFLAKE_DATABASE": config.snowflake_name("database"),
        "SNOWFLAKE_SCHEMA": config.snowflake_name("schema"),
        "TOPICBERG_CONFLUENT_URL": endpoints.confluent,
        "TOPICBERG_CONFLUENT_API_KEY": endpoints.confluent_api_key,
        "TOPICBERG_CONFLUENT_API_SECRET": endpoints.confluent_api_secret,
        "TOPICBERG_CONFLUENT_ADMIN_TOKEN": endpoints.confluent_admin_token,
        "TOPICBERG_CLUSTER_ID": config.cluster_id,
        "TOPICBERG_WAREHOUSE_URL": config.warehouse,
        "TOPICBERG_DERIVED_WAREHOUSE_URL": config.derived_warehouse,
        "TOPICBERG_PROJECT_ROOT": str(config.project_root),
        "TOPICBERG_STATE_DIR": str(config.state_dir),
        "NO_PROXY": os.environ["NO_PROXY"],  # local_endpoints has added this machine
    }


def _cloud(endpoints: Endpoints, config: Settings) -> dict[str, Any]:
    """Return the variables of the cloud deployment, without a secret that does not expire."""
    from topicberg.spark import without_token

    login = endpoints.login
    return {
        "KAFKA_BOOTSTRAP_SERVERS": endpoints.kafka_bootstrap,
        "SCHEMA_REGISTRY_URL": endpoints.schema_registry,
        "ICEBERG_REST_URI": endpoints.iceberg_rest,
        "ICEBERG_REST_WAREHOUSE": endpoints.warehouse(config) or config.warehouse,
        "ICEBERG_REST_TOKEN": login.bearer() if login.auth == "oauth2" else None,
        "SPARK_REMOTE": without_token(endpoints.spark_connect) or None,
        "AWS_ENDPOINT_URL_S3": endpoints.s3,
        "AWS_REGION": config.aws_region,
        "SNOWFLAKE_ACCOUNT": endpoints.snowflake.account,
        "SNOWFLAKE_USER": endpoints.snowflake.user,
        "TOPICBERG_CLUSTER_ID": config.cluster_id,
    }
