"""The cloud deployment: addresses and credentials from the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import TopicbergError
from topicberg.settings import PROJECT_ROOT, Settings
from topicberg.topics import TopicSpec

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from topicberg.tableflow.maintenance import MaintenanceReport
    from topicberg.tableflow.status import TopicStatus

PATIENCE_SECONDS = 20 * 60.0
"""Tableflow commits every 15 minutes or 250 MB."""


class CloudSettings(BaseSettings):
    """``TOPICBERG_<FIELD>`` in the environment or in ``.env``; AWS by the usual AWS variables."""

    model_config = SettingsConfigDict(
        env_prefix="TOPICBERG_", env_file=PROJECT_ROOT / ".env", extra="ignore"
    )

    kafka_bootstrap: str
    kafka_api_key: SecretStr
    kafka_api_secret: SecretStr
    schema_registry_url: str
    schema_registry_api_key: SecretStr
    schema_registry_api_secret: SecretStr
    iceberg_rest_uri: str
    spark_remote: str
    snowflake_account: str
    snowflake_user: str
    snowflake_password: SecretStr
    snowflake_host: str | None = None
    snowflake_port: int | None = None
    snowflake_protocol: str | None = None


def connect(config: Settings) -> Endpoints:
    """Endpoints of the cloud deployment.

    :raises TopicbergError: settings are missing; names all of them
    """
    try:
        cloud = CloudSettings()
    except ValidationError as error:
        names = ", ".join(f"TOPICBERG_{str(e['loc'][0]).upper()}" for e in error.errors())
        raise TopicbergError(
            f"the cloud deployment lacks or cannot read: {names}",
            hint="set them in the environment or in .env; TOPICBERG_DEPLOYMENT=local needs none",
        ) from None
    registry_user = cloud.schema_registry_api_key.get_secret_value()
    registry_password = cloud.schema_registry_api_secret.get_secret_value()
    return Endpoints(
        kafka_bootstrap=cloud.kafka_bootstrap,
        kafka_client={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": cloud.kafka_api_key.get_secret_value(),
            "sasl.password": cloud.kafka_api_secret.get_secret_value(),
        },
        schema_registry=cloud.schema_registry_url,
        schema_registry_user_info=SecretStr(f"{registry_user}:{registry_password}"),
        iceberg_rest=cloud.iceberg_rest_uri,
        spark_connect=cloud.spark_remote,
        snowflake=SnowflakeEndpoint(
            account=cloud.snowflake_account,
            user=cloud.snowflake_user,
            password=cloud.snowflake_password,
            host=cloud.snowflake_host,
            port=cloud.snowflake_port,
            protocol=cloud.snowflake_protocol,
        ),
    )


peek = connect


def ingest(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, on_progress: Callable[[int], None]
) -> Table:
    """Wait for Confluent's Tableflow, whose table is its alone to make and to write.

    :raises TopicbergError: it made no progress for :data:`PATIENCE_SECONDS`
    """
    from topicberg import kafka
    from topicberg.tableflow.wait import wait_for

    table = endpoints.catalog(config).load_table(spec.table_identifier(config))
    target = kafka.end_offsets(endpoints, spec.name)
    if not wait_for(table, target, PATIENCE_SECONDS, on_progress):
        raise TopicbergError(
            f"topic {spec.name}: Tableflow has not committed the records that were there at the "
            "start",
            hint="see the topic's Tableflow status in Confluent Cloud, then materialize again",
        )
    return table.refresh()


def maintain(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> MaintenanceReport | None:
    """Nothing: Confluent's Tableflow maintains the tables that it writes."""
    return None


def status(spec: TopicSpec, config: Settings) -> TopicStatus | None:
    """Nothing: Confluent Cloud shows the state of its Tableflow, and the lag tells of trouble."""
    return None
