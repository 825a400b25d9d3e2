"""Addresses and credentials of all services, and the clients that use them.

Clients are created only here, so that deployments differ only in this model.
"""

from __future__ import annotations

import base64
import os
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from topicberg.logins.catalog import PREFIX, CatalogLogin, TopicsCatalogLogin
from topicberg.logins.kafka import KafkaLogin
from topicberg.logins.registry import RegistryLogin
from topicberg.security.models import HoldsSecrets
from topicberg.security.redaction import remember
from topicberg.settings import Settings, settings
from topicberg.spark import NO_SUBSTITUTION

if TYPE_CHECKING:
    import boto3
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyiceberg.catalog import Catalog

    from topicberg.endpoints.parameters import Client

CATALOG = "lake"  # Name of the Iceberg catalog in Spark and in DuckDB.
TOPICS_CATALOG = "topics"  # The same, of the topics' catalog, where they have one of their own.
TOKEN_VARIABLE = f"{PREFIX}_TOKEN"
"""Environment variable that holds the token of the Iceberg REST catalog."""
Given = tuple[tuple[str, str], ...]  # Properties of PyIceberg's client of a catalog.
_CREATING = Lock()  # Clients may be shared by threads; the session that creates them may not.
REGISTRY_SECONDS, REGISTRY_RETRIES = 10, 1
"""Deadline of a request to the schema registry, without which its client waits for ever, and how
often the client repeats one: by default three times, and reports nothing meanwhile."""


@lru_cache(maxsize=8)
def _catalog(properties: Given, of_topics: Given | None = None) -> Catalog:
    """Return the catalog's client, cached: a new one costs a request for every tick of a sensor."""
    from pyiceberg.catalog import load_catalog

    if of_topics is None:
        return load_catalog(CATALOG, **dict(properties))
    from topicberg.clients.catalog import SplitCatalog

    return SplitCatalog(CATALOG, load_catalog(TOPICS_CATALOG, **dict(of_topics)), dict(properties))


class SnowflakeEndpoint(HoldsSecrets):
    """How the Snowflake connector logs in to the account: with a password or a key pair."""

    account: str
    user: str
    password: SecretStr | None = None
    private_key: SecretStr | None = None
    """Base64 of a PEM file."""
    host: str | None = None
    port: int | None = None
    protocol: str | None = None

    def login(self) -> dict[str, Any]:
        """Return ``password`` or ``private_key``, as dagster-snowflake expects them."""
        if self.private_key:
            return {"private_key": self.private_key.get_secret_value()}
        return {"password": self.password.get_secret_value() if self.password else ""}

    def connector_login(self) -> dict[str, Any]:
        """Return the same, as Snowflake's own connector expects them."""
        if not self.private_key:
            return self.login()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        pem = base64.b64decode(self.private_key.get_secret_value())
        return {"private_key": load_pem_private_key(pem, password=None)}


class LakeEndpoints(HoldsSecrets):
    """Addresses of the tables only. URLs have no trailing slash."""

    s3: str | None = None
    """None: Amazon S3."""
    s3_access_key: SecretStr | None = None
    s3_secret_key: SecretStr | None = None
    iceberg_rest: str
    iceberg_rest_token: SecretStr | None = None
    """The local catalog's bearer token, which Spark has from its environment."""
    iceberg_login: CatalogLogin = Field(default_factory=CatalogLogin)
    """Of a catalog that is not the local one."""
    topics_rest: str | None = None
    """The topics' catalog, if it is not that of the derived tables."""
    topics_login: TopicsCatalogLogin | None = None

    @property
    def is_glue(self) -> bool:
        """Whether the catalog is Glue's Iceberg REST API, which requires AWS's signatures."""
        return self.iceberg_rest.startswith("https://glue.")

    @property
    def login(self) -> CatalogLogin:
        """How every client logs in to the catalog."""
        if self.iceberg_login.auth is not None:
            return self.iceberg_login
        given: dict[str, Any] = {"auth": "none"}
        if self.is_glue:
            given = {"auth": "sigv4"}
        elif token := self.iceberg_rest_token:
            given = {"auth": "token", "token": token}
        return self.iceberg_login.model_copy(update=given)

    def iceberg_rest_headers(self) -> dict[str, str]:
        """Return headers for requests to the catalog that no Iceberg client sends."""
        bearer = {"Authorization": f"Bearer {token}"} if (token := self.login.bearer()) else {}
        return {**self.login.headers, **bearer}

    def catalog(self, config: Settings | None = None) -> Catalog:
        """Return the Iceberg REST catalog, through PyIceberg."""
        from topicberg.clients.catalog import READ_ONLY, TABLES, CheckedCatalog

        config = config or settings()
        common = {
            "py-catalog-impl": f"{CheckedCatalog.__module__}.{CheckedCatalog.__name__}",
            "s3.region": config.aws_region,
        }
        read_only = {READ_ONLY: config.topics_namespace}
        properties = {
            **common,
            "uri": self.iceberg_rest,
            "warehouse": self.warehouse(config) or config.warehouse,
            TABLES: config.derived_warehouse,
            **self.login.pyiceberg(config.aws_region),
            **({} if config.own_engine else read_only),
            **self._store(self.login),
        }
        if self.topics_rest is None or self.topics_login is None:
            return _catalog(tuple(properties.items()))
        of_topics = {
            **common,
            "uri": self.topics_rest,
            **read_only,
            **self.topics_login.pyiceberg(config.aws_region),
            **self._store(self.topics_login),
        }
        return _catalog(tuple(properties.items()), tuple(of_topics.items()))

    def _store(self, login: CatalogLogin) -> dict[str, str]:
        """Return PyIceberg's properties of the object store."""
        from topicberg.clients.file_io import LakeFileIO

        properties = {"py-io-impl": f"{LakeFileIO.__module__}.{LakeFileIO.__name__}"}
        if self.s3:
            properties |= {"s3.endpoint": self.s3, "s3.force-virtual-addressing": "false"}
        if login.vends:
            return properties  # the catalog's own keys come with each table
        if self.s3_access_key and self.s3_secret_key:
            keys = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
            return properties | dict(zip(_KEYS, keys, strict=False))
        return properties if self.s3 else properties | _profile_keys()

    def spark_properties(self, config: Settings) -> dict[str, str]:
        """Return Spark's properties for the same catalog as ``lake``, and for UTC as time zone.

        They hold no secret: Spark's processes have the key of the object store from their
        environment or their role, a fixed token of the catalog from the variable
        :data:`TOKEN_VARIABLE`, and everything else from :meth:`spark_session`.
        """
        catalog = self._spark_catalog(config) | self.login.spark_common(config.aws_region)
        if self.login.auth == "token":
            # Iceberg's client reads the variable itself. It would exchange the token for another.
            catalog |= {"token": f"env:{TOKEN_VARIABLE}", "token-refresh-enabled": "false"}
        return {
            "spark.sql.session.timeZone": "UTC",
            **NO_SUBSTITUTION,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions."
            "IcebergSparkSessionExtensions",
            **_named(catalog),
        }

    def spark_session(self, config: Settings) -> tuple[dict[str, str], float | None]:
        """Return what each Spark session states of the catalog, with the secrets; and the time
        (monotonic) from which a new session is needed, or None: Spark renews the login itself.
        Nothing, if Spark has it all from its own configuration."""
        properties: dict[str, str] = {}
        ends: list[float] = []
        for name, login in ((CATALOG, self.iceberg_login), (TOPICS_CATALOG, self.topics_login)):
            if login is None or not login.in_sessions:
                continue
            stated, renew_at = (self.login if name == CATALOG else login).spark(config.aws_region)
            catalog = self._spark_catalog(config)
            if name == TOPICS_CATALOG:
                catalog |= {"uri": str(self.topics_rest), "warehouse": str(login.warehouse)}
            properties |= _named(catalog | stated, name)
            ends += [] if renew_at is None else [renew_at]
        if not properties:
            return {}, None
        # Spark shows the properties of a session in its event log, redacted by these names.
        hidden = {"spark.sql.redaction.options.regex": "(?i)url|credential|header"}
        return {**hidden, **properties}, min(ends, default=None)

    def _spark_catalog(self, config: Settings) -> dict[str, str]:
        """Return the properties of Iceberg's catalog in Spark, without the login."""
        catalog = {
            "type": "rest",
            "uri": self.iceberg_rest,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.region": config.aws_region,
            # Tables change outside of Spark: the engine publishes its commits through the catalog.
            "cache-enabled": "false",
        }
        warehouse = self.warehouse(config)
        store = {"s3.endpoint": self.s3, "s3.path-style-access": "true"} if self.s3 else {}
        return catalog | ({"warehouse": warehouse} if warehouse else {}) | store

    def warehouse(self, config: Settings) -> str | None:
        """Return which catalog of the server it is; Glue's REST API names it by the account.
        https://docs.aws.amazon.com/glue/latest/dg/connect-glu-iceberg-rest.html"""
        return self.login.warehouse or (config.aws_account_id if self.is_glue else None)


def _named(catalog: dict[str, str], called: str = CATALOG) -> dict[str, str]:
    """Return properties of a catalog as Spark names them."""
    name = f"spark.sql.catalog.{called}"
    return {
        name: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{name}.{key}": value for key, value in catalog.items()},
    }


class OwnListener(HoldsSecrets):
    """A listener of the local Kafka for topicberg's own clients; others use the access proxy."""

    proxy: str
    bootstrap: str
    login: KafkaLogin


class Endpoints(LakeEndpoints):
    """One deployment's addresses. URLs have no trailing slash."""

    kafka_bootstrap: str
    kafka_login: KafkaLogin = Field(default_factory=lambda: KafkaLogin(auth="none"))
    kafka_deployed: bool = False  # `topicberg deploy` created the cluster, and settings of clients.
    kafka_writer: KafkaLogin | None = None
    """The login for writing records and creating topics; None: kafka_login."""
    kafka_own: OwnListener | None = None  # Used instead of kafka_bootstrap while that is its proxy.
    schema_registry: str
    registry_login: RegistryLogin = Field(default_factory=lambda: RegistryLogin(auth="none"))
    spark_connect: str = Field(repr=False)  # May hold a token: sc://host/;token=….
    aws: str | None = None  # None: the real AWS.
    aws_access_key: SecretStr | None = None
    aws_secret_key: SecretStr | None = None
    snowflake: SnowflakeEndpoint
    confluent: str = "https://api.confluent.cloud"  # Base URL of Confluent Cloud's APIs.
    confluent_api_key: str | None = None  # A Cloud API key.
    confluent_api_secret: SecretStr | None = None
    confluent_admin_token: SecretStr | None = None  # Of the Confluent emulator's faults and delays.

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        remember(urlsplit(self.spark_connect).path.split("token=")[1:])

    def kafka_config(self, *, writes: bool = False) -> dict[str, Any]:
        """Return configuration for any ``confluent_kafka`` client; ``writes``: the client writes
        records, or creates and changes topics."""
        address, login = self.kafka_listener(writes)
        return {"bootstrap.servers": address, **login.librdkafka()}

    def kafka_tuning(self, client: Client) -> dict[str, str]:
        """Return the deployment's own settings for a kind of Kafka client; raise TopicbergError if
        AWS does not answer, or refuses."""
        from topicberg.endpoints.parameters import client_parameters

        return client_parameters(settings(), client) if self.kafka_deployed else {}

    def kafka_listener(self, writes: bool = False) -> tuple[str, KafkaLogin]:
        """Return the address and the login of topicberg's own clients."""
        if self.kafka_own and self.kafka_own.proxy == self.kafka_bootstrap:
            return self.kafka_own.bootstrap, self.kafka_own.login
        login = self.kafka_writer if writes and self.kafka_writer else self.kafka_login
        return self.kafka_bootstrap, login

    def kafka_admin(self) -> AdminClient:
        """Return a new client; keep it until its futures are done: they end with it."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.kafka_config())

    def schema_registry_client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        return SchemaRegistryClient(
            {
                "url": self.schema_registry,
                "timeout": REGISTRY_SECONDS,
                "max.retries": REGISTRY_RETRIES,
                **self.registry_login.client(),
            }
        )

    def boto3(self, service: str, config: Settings | None = None, options: Any = None) -> Any:
        """Return a boto3 client; ``s3`` goes to the object store, all else to the AWS endpoint.

        :param options: a ``botocore.config.Config``; a client without options is shared
        """
        url, *keys = self.aws, self.aws_access_key, self.aws_secret_key
        if service == "s3":
            url, *keys = self.s3, self.s3_access_key, self.s3_secret_key
        with _CREATING:
            return _client(
                _aws_session(_aws_variables()),
                service,
                (config or settings()).aws_region,
                url,
                *(key.get_secret_value() if key else None for key in keys),
                options,
            )


_KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")  # PyIceberg's properties.
_SHARED = ("shared-credentials-file", "config-file", "assume-role-with-web-identity")
_OF_MACHINES = ("container-role", "iam-role")
"""Where boto3 and PyArrow, whose readers of S3 are AWS's C++ clients, find the same credentials."""


def _profile_keys() -> dict[str, str]:
    """Return keys for PyArrow if it finds none itself: a profile of SSO, of a role or of a process.
    They expire, and boto3 renews them; a process opens its catalog again and again."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    credentials = _aws_session(_aws_variables()).get_credentials()
    if credentials is None or credentials.method in (*_SHARED, *_OF_MACHINES):
        return {}
    keys = credentials.get_frozen_credentials()
    values = keys.access_key, keys.secret_key, keys.token
    return {name: value for name, value in zip(_KEYS, values, strict=True) if value}


def _aws_variables() -> frozenset[tuple[str, str]]:
    return frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))


@lru_cache(maxsize=2)
def _aws_session(variables: frozenset[tuple[str, str]]) -> boto3.Session:
    """Return one session for all clients: it keeps the credentials that it found in the variables,
    and has read the descriptions of AWS's services."""
    from topicberg.clients.aws import aws_session

    return aws_session()


@lru_cache(maxsize=16)
def _client(
    session: boto3.Session,
    service: str,
    region: str,
    url: str | None,
    access_key: str | None,
    secret_key: str | None,
    options: Any,
) -> Any:
    """Return a client, which all threads share: creating one takes longer than most calls."""
    return session.client(
        service,
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=options,
    )


def glue_rest_uri(config: Settings) -> str:
    """Return the address of Glue's Iceberg REST API in the deployment's region."""
    return f"https://glue.{config.aws_region}.amazonaws.com/iceberg"
