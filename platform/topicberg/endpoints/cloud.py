"""The cloud deployment: from the environment, and otherwise from what ``topicberg deploy`` created.

Its secrets are found by their paths, which the prefix determines. After a rotation, the previous
key stays valid for a whole period, so secrets need not be read again for every request.
"""

from __future__ import annotations

import time
from typing import Literal

from pydantic import Field, SecretStr, ValidationError

from topicberg.endpoints import Endpoints, SnowflakeEndpoint, glue_rest_uri
from topicberg.endpoints.addresses import Addresses
from topicberg.errors import TopicbergError
from topicberg.naming import Names
from topicberg.settings import DEPLOYED_FILE, Settings, emr_settings

SECRETS_SECONDS = 300.0
"""How long read secrets are cached."""
_read: dict[str, tuple[float, dict[str, str]]] = {}


SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class CloudSettings(Addresses):
    """``TOPICBERG_<FIELD>`` in the environment or in ``.env``; AWS by the usual AWS variables.

    Settings that are missing are found in the deployment.
    """

    kafka_bootstrap: str | None = None
    kafka_api_key: SecretStr | None = None
    kafka_api_secret: SecretStr | None = None
    kafka_security_protocol: SecurityProtocol = "SASL_SSL"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    schema_registry_api_key: SecretStr | None = None
    schema_registry_api_secret: SecretStr | None = None
    iceberg_rest_uri: str | None = None
    """Default: the Iceberg REST API of AWS Glue."""
    iceberg_rest_token: SecretStr | None = None
    """A bearer token for that catalog; Glue's has none."""
    s3_endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    """Endpoint of an object store that is not Amazon's."""
    spark_remote: str = ""
    """Empty: there is none, and EMR Serverless computes the derived tables."""
    snowflake_account: str | None = None
    snowflake_user: str | None = None
    snowflake_password: SecretStr | None = None


def connect(config: Settings) -> Endpoints:
    """Return the endpoints of the cloud deployment.

    :raises TopicbergError: settings are missing, and the deployment does not have them either
    """
    try:
        cloud = CloudSettings()
    except ValidationError as error:
        names = ", ".join(f"TOPICBERG_{str(e['loc'][0]).upper()}" for e in error.errors())
        raise TopicbergError(
            f"settings of the cloud deployment are missing or invalid: {names}",
            hint="set them in the environment or in .env; TOPICBERG_DEPLOYMENT=local needs none",
        ) from None
    has_emr = config.compute == "none" or emr_settings() is not None
    if not cloud.spark_remote and (config.own_engine or not has_emr):
        raise TopicbergError(
            "the cloud deployment has no Spark: there is neither TOPICBERG_SPARK_REMOTE nor an EMR "
            f"Serverless application in {config.state_dir / DEPLOYED_FILE}",
            hint="set TOPICBERG_SPARK_REMOTE, or run `topicberg deploy create`, which creates the "
            "application; `topicberg deploy status` writes that file on another machine",
        )
    bootstrap, reader, writer = _kafka(cloud, config)
    registry, user_info = _registry(cloud, config)
    return Endpoints(
        s3=cloud.s3_endpoint,
        kafka_bootstrap=bootstrap,
        kafka_client=reader,
        kafka_writer=writer,
        schema_registry=registry,
        schema_registry_user_info=user_info,
        iceberg_rest=cloud.iceberg_rest_uri or glue_rest_uri(config),
        iceberg_rest_token=cloud.iceberg_rest_token if cloud.iceberg_rest_uri else None,
        spark_connect=cloud.spark_remote,
        snowflake=_snowflake(cloud, config),
    )


Login = dict[str, str]
"""librdkafka's properties for an account."""


def _kafka(cloud: CloudSettings, config: Settings) -> tuple[str, Login, Login | None]:
    """Return the address, the readers' login, and the writers' login if it is another one.

    topicberg's own engine creates topics with names of its choice, so it uses the account that
    manages the cluster; Dagster by itself reads with one account and publishes with another.
    """
    protocol: str = cloud.kafka_security_protocol
    if not protocol.startswith("SASL"):
        if cloud.kafka_bootstrap is None:
            raise TopicbergError(
                f"TOPICBERG_KAFKA_SECURITY_PROTOCOL is {protocol}, and there is no "
                "TOPICBERG_KAFKA_BOOTSTRAP",
                hint="set the address of your Kafka; Confluent Cloud accepts only SASL_SSL",
            )
        return cloud.kafka_bootstrap, {"security.protocol": protocol}, None
    key, secret = cloud.kafka_api_key, cloud.kafka_api_secret
    if cloud.kafka_bootstrap and key and secret:
        login = _login(cloud, key.get_secret_value(), secret.get_secret_value())
        return cloud.kafka_bootstrap, login, None
    roles = ("app_manager",) if config.own_engine else ("app_consumer", "app_producer")
    found = [_kafka_secret(role, config) for role in roles]
    logins = [_login(cloud, one["sasl.username"], one["sasl.password"]) for one in found]
    return found[0]["bootstrap.servers"], logins[0], logins[1] if len(logins) > 1 else None


def _kafka_secret(role: str, config: Settings) -> dict[str, str]:
    path = Names(config.prefix).confluent_secret(f"kafka_cluster/{role}/python_client")
    return _secret(path, config, "KAFKA_BOOTSTRAP, _API_KEY and _API_SECRET")


def _login(cloud: CloudSettings, user: str, password: str) -> Login:
    return {
        "security.protocol": cloud.kafka_security_protocol,
        "sasl.mechanism": cloud.kafka_sasl_mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def _registry(cloud: CloudSettings, config: Settings) -> tuple[str, SecretStr | None]:
    """Return address and user info; an address without user info requires none."""
    key, secret = cloud.schema_registry_api_key, cloud.schema_registry_api_secret
    if cloud.schema_registry_url and key and secret:
        info = f"{key.get_secret_value()}:{secret.get_secret_value()}"
        return cloud.schema_registry_url, SecretStr(info)
    if cloud.schema_registry_url and config.own_engine:
        return cloud.schema_registry_url, None
    path = Names(config.prefix).confluent_secret("schema_registry_cluster/python_client")
    found = _secret(path, config, "SCHEMA_REGISTRY_URL, _API_KEY and _API_SECRET")
    user_info = SecretStr(found["schema.registry.basic.auth.user.info"])
    return found["schema.registry.url"], user_info


def _snowflake(cloud: CloudSettings, config: Settings) -> SnowflakeEndpoint:
    address = {
        "host": cloud.snowflake_host,
        "port": cloud.snowflake_port,
        "protocol": cloud.snowflake_protocol,
    }
    if cloud.snowflake_account and cloud.snowflake_user and cloud.snowflake_password:
        return SnowflakeEndpoint(
            account=cloud.snowflake_account,
            user=cloud.snowflake_user,
            password=cloud.snowflake_password,
            **address,
        )
    path = Names(config.prefix).snowflake_secret
    found = _secret(path, config, "SNOWFLAKE_ACCOUNT, _USER and _PASSWORD")
    return SnowflakeEndpoint(
        account=found["snowflake_account_identifier"],
        user=found["snowflake_service_user"],
        private_key=SecretStr(found[f"snowflake_rsa_private_key_{found['active_key_number']}_pem"]),
        **address,
    )


def _secret(path: str, config: Settings, instead: str) -> dict[str, str]:
    """
    :param instead: the settings that could be set instead
    :raises TopicbergError: there is no such secret
    """
    found = read_secret(path, config)
    if found is None:
        raise TopicbergError(
            f"{_of_secret(path, config)}: there is no such secret",
            hint=f"run `topicberg deploy create` to create it, or set TOPICBERG_{instead}",
        )
    return found


def read_secret(path: str, config: Settings) -> dict[str, str] | None:
    """Return a secret of the deployment, or None if there is none.

    :raises TopicbergError: AWS does not answer, or refuses
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from topicberg.clients.aws import aws_session, login_hint
    from topicberg.clients.secrets import Secrets

    at, values = _read.get(path, (0.0, {}))
    if values and time.monotonic() - at < SECRETS_SECONDS:
        return values
    try:
        client = aws_session(region_name=config.aws_region).client("secretsmanager")
        found = Secrets(client).read(path)
    except (BotoCoreError, ClientError) as error:
        raise TopicbergError(
            f"{_of_secret(path, config)}: {error}",
            hint=login_hint(error, None)
            or "grant secretsmanager:GetSecretValue on it to the user of this process, or run "
            "`topicberg deploy create` to create it",
        ) from None
    if not found:
        return None
    _read[path] = (time.monotonic(), found)
    return found


def _of_secret(path: str, config: Settings) -> str:
    return f"secret {path} of AWS Secrets Manager in {config.aws_region}"
