"""Addresses and credentials of all services, and the clients that use them.

In the ``local`` deployment the running stack writes them to ``.topicberg/runtime.json`` (mode
0600). Clients are created only here, so that deployments differ only in this model.
"""

from __future__ import annotations

import base64
import json
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError

from topicberg.errors import StackError, StackNotRunningError
from topicberg.security.redaction import HoldsSecrets, remember, remember_values
from topicberg.settings import Settings, settings
from topicberg.spark import NO_SUBSTITUTION

if TYPE_CHECKING:
    import boto3
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyiceberg.catalog import Catalog

RUNTIME_FILE = "runtime.json"
CATALOG = "lake"
"""Name of the Iceberg catalog in Spark and in DuckDB."""
TOKEN_VARIABLE = "TOPICBERG_ICEBERG_REST_TOKEN"  # noqa: S105
"""Environment variable that holds the token of the Iceberg REST catalog."""


@lru_cache(maxsize=8)
def _catalog(properties: tuple[tuple[str, str], ...]) -> Catalog:
    """Return the catalog's client, cached: a new one costs a request for every tick of a sensor."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(CATALOG, **dict(properties))


class SnowflakeEndpoint(HoldsSecrets):
    """How the Snowflake connector logs in to the account: with a password or a key pair."""

    account: str
    user: str
    password: SecretStr | None = None
    private_key: SecretStr | None = Field(default=None, description="base64 of a PEM file")
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
            return {**self.login()}
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_pem_private_key,
        )

        pem = base64.b64decode(self.private_key.get_secret_value())
        key = load_pem_private_key(pem, password=None)
        return {"private_key": key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())}


class LakeEndpoints(HoldsSecrets):
    """Addresses of the tables only. URLs have no trailing slash."""

    s3: str | None = Field(default=None, description="None: Amazon S3")
    s3_access_key: SecretStr | None = None
    s3_secret_key: SecretStr | None = None
    iceberg_rest: str
    iceberg_rest_token: SecretStr | None = Field(
        default=None, description="a bearer token; None: the catalog requires none"
    )

    @property
    def is_glue(self) -> bool:
        """Whether the catalog is Glue's Iceberg REST API, which requires AWS's signatures."""
        return self.iceberg_rest.startswith("https://glue.")

    def iceberg_rest_headers(self) -> dict[str, str]:
        """Return headers for requests to the catalog that no Iceberg client sends."""
        token = self.iceberg_rest_token
        return {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}

    def catalog(self, config: Settings | None = None) -> Catalog:
        """Return the Iceberg REST catalog, through PyIceberg."""
        from topicberg.clients.catalog import READ_ONLY, TABLES, CheckedCatalog

        config = config or settings()
        properties: dict[str, str] = {
            "py-catalog-impl": f"{CheckedCatalog.__module__}.{CheckedCatalog.__name__}",
            "uri": self.iceberg_rest,
            "warehouse": config.warehouse,
            TABLES: config.derived_warehouse,
            "s3.region": config.aws_region,
            **self._glue(config),
        }
        if not config.own_engine:
            properties[READ_ONLY] = config.cluster_id
        if self.iceberg_rest_token:
            properties["token"] = self.iceberg_rest_token.get_secret_value()
        if self.s3:
            properties["s3.endpoint"] = self.s3
            properties["s3.force-virtual-addressing"] = "false"
        if self.s3_access_key and self.s3_secret_key:
            properties["s3.access-key-id"] = self.s3_access_key.get_secret_value()
            properties["s3.secret-access-key"] = self.s3_secret_key.get_secret_value()
        elif self.s3 is None:
            properties |= _profile_keys()
        return _catalog(tuple(properties.items()))

    def spark_properties(self, config: Settings) -> dict[str, str]:
        """Return Spark's properties for the same catalog as ``lake``, and for UTC as time zone.

        They exclude the key of the object store, which Spark's processes have from their
        environment or their role, and the catalog's token, which they have from the variable
        :data:`TOKEN_VARIABLE`.
        """
        catalog = {
            "type": "rest",
            "uri": self.iceberg_rest,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.region": config.aws_region,
            # Tables change outside of Spark: the engine publishes its commits through the catalog.
            "cache-enabled": "false",
            **self._glue(config),
        }
        if self.s3:
            catalog |= {"s3.endpoint": self.s3, "s3.path-style-access": "true"}
        if self.iceberg_rest_token:
            # Iceberg's client reads the variable itself. It would exchange the token for another.
            catalog |= {"token": f"env:{TOKEN_VARIABLE}", "token-refresh-enabled": "false"}
        name = f"spark.sql.catalog.{CATALOG}"
        return {
            "spark.sql.session.timeZone": "UTC",
            **NO_SUBSTITUTION,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions."
            "IcebergSparkSessionExtensions",
            name: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{name}.{key}": value for key, value in catalog.items()},
        }

    def _glue(self, config: Settings) -> dict[str, str]:
        """Return what Glue's Iceberg REST API needs beside its address, the same for all clients.

        https://docs.aws.amazon.com/glue/latest/dg/connect-glu-iceberg-rest.html
        """
        if not self.is_glue:
            return {}
        return {
            "warehouse": config.aws_account_id,
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "glue",
            "rest.signing-region": config.aws_region,
        }


class Endpoints(LakeEndpoints):
    """One deployment's addresses. URLs have no trailing slash."""

    kafka_bootstrap: str
    kafka_client: dict[str, str] = Field(
        default_factory=dict, repr=False, description="further librdkafka properties, e.g. SASL"
    )
    kafka_writer: dict[str, str] | None = Field(
        default=None,
        repr=False,
        description="the same properties for writing records and creating topics; None: "
        "those of kafka_client",
    )
    schema_registry: str
    schema_registry_user_info: SecretStr | None = None
    spark_connect: str = Field(repr=False, description="may hold a token: sc://host/;token=…")
    aws: str | None = Field(default=None, description="None: the real AWS")
    aws_access_key: SecretStr | None = None
    aws_secret_key: SecretStr | None = None
    snowflake: SnowflakeEndpoint
    confluent: str = Field(
        default="https://api.confluent.cloud", description="base URL of Confluent Cloud's APIs"
    )
    confluent_api_key: str | None = Field(default=None, description="a Cloud API key")
    confluent_api_secret: SecretStr | None = None
    confluent_admin_token: SecretStr | None = Field(
        default=None, description="of the Confluent emulator's faults and delays"
    )

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        remember(urlsplit(self.spark_connect).path.split("token=")[1:])
        remember_values(self.kafka_client)
        remember_values(self.kafka_writer or {})

    def kafka_config(self, *, writes: bool = False) -> dict[str, Any]:
        """Return configuration for any ``confluent_kafka`` client.

        :param writes: the client writes records, or creates and changes topics
        """
        login = self.kafka_writer if writes and self.kafka_writer else self.kafka_client
        return {"bootstrap.servers": self.kafka_bootstrap, **login}

    def kafka_spark_options(self) -> dict[str, str]:
        """Return options of Spark's Kafka source, from the librdkafka properties."""
        java = {"bootstrap.servers": self.kafka_bootstrap, **self.kafka_client}
        user, password = java.pop("sasl.username", None), java.pop("sasl.password", None)
        if mechanism := java.pop("sasl.mechanisms", None):
            java["sasl.mechanism"] = mechanism
        if user is not None and password is not None:
            login = "org.apache.kafka.common.security.plain.PlainLoginModule"
            if java.get("sasl.mechanism", "PLAIN").startswith("SCRAM"):
                login = "org.apache.kafka.common.security.scram.ScramLoginModule"
            quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password))
            java["sasl.jaas.config"] = '{} required username="{}" password="{}";'.format(
                login, *quoted
            )
        return {f"kafka.{name}": value for name, value in java.items()}

    def kafka_admin(self) -> AdminClient:
        """Return a new client; keep it until its futures are done: they end with it."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.kafka_config())

    def schema_registry_client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        config: dict[str, Any] = {"url": self.schema_registry}
        if self.schema_registry_user_info:
            config["basic.auth.user.info"] = self.schema_registry_user_info.get_secret_value()
        return SchemaRegistryClient(config)

    def boto3(self, service: str, config: Settings | None = None, options: Any = None) -> Any:
        """Return a boto3 client; ``s3`` goes to the object store, all else to the AWS endpoint.

        :param options: a ``botocore.config.Config``
        """
        on_s3 = service == "s3"
        access_key = self.s3_access_key if on_s3 else self.aws_access_key
        secret_key = self.s3_secret_key if on_s3 else self.aws_secret_key
        return _aws_session().client(
            service,
            region_name=(config or settings()).aws_region,
            endpoint_url=self.s3 if on_s3 else self.aws,
            aws_access_key_id=access_key.get_secret_value() if access_key else None,
            aws_secret_access_key=secret_key.get_secret_value() if secret_key else None,
            config=options,
        )


_SHARED = ("shared-credentials-file", "config-file", "assume-role-with-web-identity")
_OF_MACHINES = ("container-role", "iam-role")
"""Where boto3 and PyArrow, whose readers of S3 are AWS's C++ clients, find the same credentials."""


def _profile_keys() -> dict[str, str]:
    """Return keys for PyArrow if it finds none itself: a profile of SSO, of a role or of a process.

    They expire, and boto3 renews them; a process opens its catalog again and again.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    credentials = _aws_session().get_credentials()
    if credentials is None or credentials.method in (*_SHARED, *_OF_MACHINES):
        return {}
    keys = credentials.get_frozen_credentials()
    named = {
        "s3.access-key-id": keys.access_key,
        "s3.secret-access-key": keys.secret_key,
        "s3.session-token": keys.token,
    }
    return {name: value for name, value in named.items() if value}


@cache
def _aws_session() -> boto3.Session:
    """Return one session for all clients: it has read the descriptions of AWS's services."""
    from topicberg.clients.aws import aws_session

    return aws_session()


def runtime_file(config: Settings | None = None) -> Path:
    return (config or settings()).state_dir / RUNTIME_FILE


def bypass_proxy() -> None:
    """Exclude the local stack from the proxy that this user needs for the internet.

    Every client here (requests, boto3, PyIceberg, gRPC, Snowflake's) reads these variables.
    """
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if "127.0.0.1" not in hosts and hosts != ["*"]:
            os.environ[name] = ",".join([*hosts, "127.0.0.1", "localhost"])


def load_endpoints(config: Settings | None = None) -> Endpoints:
    """Return the endpoints of the chosen deployment.

    :raises TopicbergError: the local stack does not run, or settings of the cloud are missing
    """
    config = config or settings()
    if config.deployment == "cloud":
        from topicberg.endpoints.cloud import connect

        return connect(config)
    return local_endpoints(config)


def local_endpoints(config: Settings) -> Endpoints:
    """Return the endpoints of the local stack, whatever deployment is chosen.

    :raises StackNotRunningError: the local stack was never started or is stopped
    :raises StackError: its runtime file is damaged
    """
    bypass_proxy()
    path = runtime_file(config)
    try:
        return Endpoints.model_validate(json.loads(path.read_text())["endpoints"])
    except FileNotFoundError:
        raise StackNotRunningError(
            "the local stack is not running", hint="start it with `topicberg up`"
        ) from None
    except (ValueError, KeyError, ValidationError) as error:
        raise StackError(
            f"{path} is damaged: {type(error).__name__}",
            hint="run `topicberg down` and `topicberg up` to write it again",
        ) from None


def glue_rest_uri(config: Settings) -> str:
    """Return the address of Glue's Iceberg REST API in the deployment's region."""
    return f"https://glue.{config.aws_region}.amazonaws.com/iceberg"
