"""The cloud deployment: from the environment, and otherwise from what ``topicberg deploy`` created.

Its secrets are found by their paths, which the prefix determines. After a rotation, the previous
key stays valid for a whole period, so secrets need not be read again for every request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from pydantic import Field, SecretStr

from topicberg.clients.secrets import active_slot
from topicberg.endpoints.addresses import Addresses
from topicberg.endpoints.model import Endpoints, SnowflakeEndpoint, glue_rest_uri
from topicberg.errors import TopicbergError
from topicberg.logins import from_environment
from topicberg.logins.catalog import CatalogLogin, CatalogSettings, RestCatalog, TopicsCatalogLogin
from topicberg.logins.kafka import KafkaLogin, KafkaSettings
from topicberg.logins.registry import RegistryLogin, RegistrySettings
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.settings.emr import emr_settings
from topicberg.settings.environment import read_settings

SECRETS_SECONDS = 300.0
"""How long read secrets are cached."""
_read: dict[str, tuple[float, dict[str, str]]] = {}


class CloudSettings(Addresses):
    """``TOPICBERG_<FIELD>`` in the environment or in ``.env``; AWS by the usual AWS variables.

    Settings that are missing are found in the deployment. Those of the logins are in
    :mod:`topicberg.logins`.
    """

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
    """Return the endpoints of the cloud deployment.

    :raises TopicbergError: settings are missing, and the deployment does not have them either
    """
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
    """Return the login to the Iceberg REST catalog.

    :raises TopicbergError: its settings are incomplete
    """
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
    derived tables are in: its address, its login, and the login to the derived tables' catalog of
    the same server, if it has one.

    :raises TopicbergError: settings are missing
    """
    if not config.has_topics_catalog:
        return None, None, None
    login = stated.login(stated.name, vends=config.snowflake_vended_credentials)
    derived = stated.login(stated.derived_name, vends=True) if stated.derived_name else None
    return stated.uri, login, derived


def _kafka(cloud: CloudSettings, config: Settings) -> tuple[str, KafkaLogin, KafkaLogin | None]:
    """Return the address, the readers' login, and the writers' login if it is another one.

    topicberg's own engine creates topics with names of its choice, so it uses the account that
    manages the cluster; Dagster by itself reads with one account and publishes with another.
    """
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
    names = Names(config.prefix)
    secrets = [_secret(names.confluent_secret(path), config, instead) for path in paths]
    logins = [login.as_user(secret["sasl.username"], secret["sasl.password"]) for secret in secrets]
    return secrets[0]["bootstrap.servers"], logins[0], logins[1] if len(logins) > 1 else None


def _all_given(service: str, given: Mapping[str, object]) -> bool:
    """Return whether the settings of a login are given, all or none: the keys of the deployment do
    not complete those of another service.

    :param given: the settings' names, without ``TOPICBERG_``, and their values
    :raises TopicbergError: only some of them are given
    """
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
    or with topicberg's own engine that of a registry that requires no login.
    """
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
    account, user, password = (
        cloud.snowflake_account,
        cloud.snowflake_user,
        cloud.snowflake_password,
    )
    given = {"SNOWFLAKE_ACCOUNT": account, "SNOWFLAKE_USER": user, "SNOWFLAKE_PASSWORD": password}
    if _all_given("Snowflake", given) and account and user:
        return SnowflakeEndpoint(account=account, user=user, password=password, **address)
    path = Names(config.prefix).snowflake_secret
    values = _secret(path, config, "SNOWFLAKE_ACCOUNT, _USER and _PASSWORD")
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
    """
    :param instead: the settings that could be set instead
    :raises TopicbergError: there is no such secret
    """
    values = read_secret(path, config)
    if values is None:
        raise TopicbergError(
            f"{_of_secret(path, config)}: there is no such secret",
            hint=f"run `topicberg deploy create` to create it, or set TOPICBERG_{instead}",
        )
    return _Secret(values, _of_secret(path, config))


def read_secret(path: str, config: Settings) -> dict[str, str] | None:
    """Return a secret of the deployment, or None if there is none.

    :raises TopicbergError: AWS does not answer, or refuses
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from topicberg.clients.aws import aws_session
    from topicberg.clients.secrets import Secrets
    from topicberg.errors.meaning import explain

    read_at, values = _read.get(path, (0.0, {}))
    if values and time.monotonic() - read_at < SECRETS_SECONDS:
        return values
    try:
        client = aws_session(region_name=config.aws_region).client("secretsmanager")
        secret = Secrets(client).read(path)
    except (BotoCoreError, ClientError) as error:
        rights = "grant secretsmanager:GetSecretValue on it to the user of this process"
        raise explain(_of_secret(path, config), error, rights=rights) from None
    if not secret:
        return None
    _read[path] = (time.monotonic(), secret)
    return secret


def _of_secret(path: str, config: Settings) -> str:
    return f"secret {path} of AWS Secrets Manager in {config.aws_region}"
