"""The cloud deployment: from the environment, and otherwise from what ``topicberg deploy`` created.

Its secrets are found by their paths, which the prefix determines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from topicberg.clients.secrets import active_slot
from topicberg.endpoints.model import Endpoints, SnowflakeEndpoint, glue_rest_uri
from topicberg.endpoints.parameters import of_secret, read_secret
from topicberg.errors import TopicbergError
from topicberg.logins import from_environment
from topicberg.logins.catalog import CatalogLogin, CatalogSettings, RestCatalog, TopicsCatalogLogin
from topicberg.logins.kafka import KafkaLogin, KafkaSettings
from topicberg.logins.registry import RegistryLogin, RegistrySettings
from topicberg.naming import Names
from topicberg.security.models import HoldsSecrets
from topicberg.settings import Settings, emr_settings
from topicberg.settings.environment import EnvironmentSettings, FromJson, read_settings


class Addresses(HoldsSecrets, EnvironmentSettings):
    """Addresses of the vendors, for ``topicberg deploy`` and for its deployment."""

    model_config = SettingsConfigDict(populate_by_name=True)

    confluent_url: str = Field(default="https://api.confluent.cloud", pattern=r"^https?://[^/]+$")
    """Of Confluent Cloud's API."""
    schema_registry_url: str | None = Field(default=None, pattern=r"^https?://.+[^/]$")
    """Default: the Schema Registry's address that Confluent returns."""
    snowflake_url: str | None = Field(default=None, pattern=r"^https?://[^/:]+(:\d{1,5})?$")
    """Default: derived from the account's name."""
    catalog: Annotated[RestCatalog, *FromJson] = Field(default=RestCatalog(), repr=False)
    """An Iceberg REST catalog of the topics' tables, such as Open Catalog: ``uri``, ``name``,
    ``derived_name``, ``client_id``, ``client_secret``, ``scope``, ``token_uri``,
    ``iam_user_arn``, ``external_id``."""

    def snowflake_address(self) -> dict[str, Any]:
        """Return the connector's arguments for the address; empty: it is the usual one."""
        if self.snowflake_url is None:
            return {}
        parts = urlsplit(self.snowflake_url)
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
        return {"host": parts.hostname, "port": port, "protocol": parts.scheme}


class CloudSettings(Addresses):
    """``TOPICBERG_<FIELD>`` in the environment or in ``.env``; AWS by the usual AWS variables.
    Settings that are missing are found in the deployment. Those of the logins are in
    :mod:`topicberg.logins`."""

    kafka_bootstrap: str | None = None
    """Kafka's bootstrap servers; default: those of the deployment."""
    iceberg_rest_uri: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Default: the Iceberg REST API of AWS Glue."""
    s3_endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    """Endpoint of an object store that is not Amazon's."""
    spark_remote: str = ""
    """Empty: there is none, and EMR Serverless computes the derived tables."""
    snowflake_account: str | None = None
    """The account's identifier; default: that of the deployment."""
    snowflake_user: str | None = None
    """Who queries; default: the user that the deployment created."""
    snowflake_password: SecretStr | None = None
    """Of a user without a key pair."""


def connect(config: Settings) -> Endpoints:
    """Return the endpoints of the cloud deployment; raise TopicbergError if settings are missing,
    and the deployment does not have them either."""
    cloud = read_settings(
        CloudSettings,
        "settings of the cloud deployment are missing or invalid",
        "set them in the environment or in .env; TOPICBERG_DEPLOYMENT=local needs none",
    )
    has_emr = config.compute == "none" or emr_settings() is not None
    if not cloud.spark_remote and (config.own_engine or not has_emr):
        unknown = getattr(config, "unknown_reason", "")
        raise TopicbergError(
            "the cloud deployment has no Spark: there is neither TOPICBERG_SPARK_REMOTE nor an EMR "
            f"Serverless application of `topicberg deploy`{f' ({unknown})' if unknown else ''}",
            hint="set TOPICBERG_SPARK_REMOTE, or run `topicberg deploy create`, which creates the "
            "application; this process needs ssm:GetParameter on what it wrote",
        )
    bootstrap, reader, writer = _kafka(cloud, config)
    registry, registry_login = _registry(cloud, config)
    topics, topics_login, derived_login = _topics_catalog(cloud.catalog, config)
    own = None if cloud.iceberg_rest_uri else derived_login
    return Endpoints(
        s3=cloud.s3_endpoint,
        kafka_bootstrap=bootstrap,
        kafka_login=reader,
        kafka_writer=writer,
        kafka_deployed=cloud.kafka_bootstrap is None,
        schema_registry=registry,
        registry_login=registry_login,
        iceberg_rest=(
            topics if own and topics else cloud.iceberg_rest_uri or glue_rest_uri(config)
        ).rstrip("/"),
        iceberg_login=own or _catalog(cloud),
        topics_rest=topics,
        topics_login=topics_login,
        spark_connect=cloud.spark_remote,
        snowflake=_snowflake(cloud, config),
    )


def _catalog(cloud: CloudSettings) -> CatalogLogin:
    """Return the login to the Iceberg REST catalog."""
    login = from_environment(CatalogSettings, "the Iceberg catalog", "docs/catalogs.md")
    if cloud.iceberg_rest_uri or login.auth in (None, "sigv4"):
        return login
    raise TopicbergError(
        f"the login to the Iceberg catalog is {login.auth}, and there is no "
        "TOPICBERG_ICEBERG_REST_URI",
        hint="set the address of the catalog; without one it is AWS Glue's, which wants sigv4",
    )


def _topics_catalog(
    stated: RestCatalog, config: Settings
) -> tuple[str | None, TopicsCatalogLogin | None, TopicsCatalogLogin | None]:
    """Return the catalog of the topics' tables, if Tableflow publishes them to another one than the
    derived tables are in: address, login, and the login to the derived tables' catalog of its
    server."""
    if not config.has_topics_catalog:
        return None, None, None
    login = stated.login(stated.name, vends=config.snowflake_vended_credentials)
    derived = stated.login(stated.derived_name, vends=True) if stated.derived_name else None
    return stated.uri, login, derived


def _kafka(cloud: CloudSettings, config: Settings) -> tuple[str, KafkaLogin, KafkaLogin | None]:
    """Return the address, the readers' login, and the writers' login if it is another one.
    topicberg's own engine creates topics with names of its choice, so it uses the account that
    manages the cluster; Dagster by itself reads with one account and publishes with another."""
    login: KafkaLogin = from_environment(KafkaSettings, "Kafka", "docs/kafka.md")
    of_msk = re.search(r"\.kafka[\w-]*\.([a-z0-9-]+)\.amazonaws\.com", cloud.kafka_bootstrap or "")
    login = login.in_region(of_msk[1] if of_msk else config.aws_region)
    if not login.has_user:
        if cloud.kafka_bootstrap is None:
            raise TopicbergError(
                f"the login to Kafka is {login.auth} ({login.security_protocol}), and there is no "
                "TOPICBERG_KAFKA_BOOTSTRAP",
                hint="set the address of your Kafka",
            )
        return cloud.kafka_bootstrap, login, None
    given = {
        "KAFKA_BOOTSTRAP": cloud.kafka_bootstrap,
        "KAFKA_API_KEY": login.api_key,
        "KAFKA_API_SECRET": login.api_secret,
    }
    if _all_given("Kafka", given) and cloud.kafka_bootstrap:
        return cloud.kafka_bootstrap, login, None
    roles = ("app_manager",) if config.own_engine else ("app_consumer", "app_producer")
    paths = [f"kafka_cluster/{role}/python_client" for role in roles]
    instead = "KAFKA_BOOTSTRAP, _API_KEY and _API_SECRET"
    secrets = [_secret(Names(config.prefix).confluent_secret(p), config, instead) for p in paths]
    logins = [login.as_user(secret["sasl.username"], secret["sasl.password"]) for secret in secrets]
    return secrets[0]["bootstrap.servers"], logins[0], logins[1] if len(logins) > 1 else None


def _all_given(service: str, given: Mapping[str, object]) -> bool:
    """Return whether the settings of a login are given, all or none: the keys of the deployment do
    not complete those of another service."""
    missing = [f"TOPICBERG_{name}" for name, value in given.items() if not value]
    if missing and len(missing) < len(given):
        raise TopicbergError(
            f"the login to {service} is incomplete: there is no {' and no '.join(missing)}",
            hint=f"set {', '.join(f'TOPICBERG_{name}' for name in given)}; or none of them, to use "
            "the keys that `topicberg deploy` created",
        )
    return not missing


def _registry(cloud: CloudSettings, config: Settings) -> tuple[str, RegistryLogin]:
    """Return address and login. An address alone is that of a proxy of the deployment's registry,
    or with topicberg's own engine that of a registry that requires no login."""
    url = cloud.schema_registry_url
    login: RegistryLogin = from_environment(
        RegistrySettings, "the schema registry", "docs/kafka.md"
    )
    if login.auth is not None and url is None:
        raise TopicbergError(
            f"the login to the schema registry is {login.auth}, and there is no "
            "TOPICBERG_SCHEMA_REGISTRY_URL",
            hint="set the address of your registry; or no login, to use the key that "
            "`topicberg deploy` created",
        )
    if url and (login.auth is not None or config.own_engine):
        return url, login
    path = Names(config.prefix).confluent_secret("schema_registry_cluster/python_client")
    values = _secret(path, config, "SCHEMA_REGISTRY_URL, _API_KEY and _API_SECRET")
    user, _, secret = values["schema.registry.basic.auth.user.info"].partition(":")
    return url or values["schema.registry.url"], login.as_user(user, secret)


def _snowflake(cloud: CloudSettings, config: Settings) -> SnowflakeEndpoint:
    address = cloud.snowflake_address()
    account, user = cloud.snowflake_account, cloud.snowflake_user
    password = cloud.snowflake_password
    given = {"SNOWFLAKE_ACCOUNT": account, "SNOWFLAKE_USER": user, "SNOWFLAKE_PASSWORD": password}
    if _all_given("Snowflake", given):
        return SnowflakeEndpoint(account=account, user=user, password=password, **address)
    instead = "SNOWFLAKE_ACCOUNT, _USER and _PASSWORD"
    values = _secret(Names(config.prefix).snowflake_secret, config, instead)
    return SnowflakeEndpoint(
        account=values["snowflake_account_identifier"],
        user=values["snowflake_service_user"],
        private_key=SecretStr(values[f"snowflake_rsa_private_key_{active_slot(values)}_pem"]),
        **address,
    )


class _Secret(dict[str, str]):
    """The values of a secret."""

    def __init__(self, values: Mapping[str, str], title: str) -> None:
        super().__init__(values)
        self.title = title

    def __missing__(self, name: str) -> str:
        raise TopicbergError(
            f"{self.title} has no {name}", hint="run `topicberg deploy create` to complete it"
        )


def _secret(path: str, config: Settings, instead: str) -> _Secret:
    """Return a secret that must exist, or settings be set instead."""
    if (values := read_secret(path, config)) is None:
        raise TopicbergError(
            f"{of_secret(path, config)}: there is no such secret",
            hint=f"run `topicberg deploy create` to create it, or set TOPICBERG_{instead}",
        )
    return _Secret(values, of_secret(path, config))
