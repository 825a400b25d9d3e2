"""A company whose servers all ask for a login, and topicberg's settings there."""

from __future__ import annotations

from dataclasses import dataclass

from gateways import Gateway
from real_servers import PASSWORD, USER, Broker, OAuthServer

from topicberg.endpoints import Endpoints

REALM = {"Polaris-Realm": "topicberg"}


@dataclass
class Site:
    """A company's servers, all with logins."""

    stack: Endpoints
    oauth: OAuthServer
    broker: Broker
    catalog: Gateway
    registry: Gateway
    spark: str | None = None
    """Another Spark than the stack's."""
    s3: str | None = None
    """The same for the object store."""

    @property
    def base(self) -> dict[str, str]:
        """Settings without the login to Kafka."""
        client = {"client_id": "engine", "client_secret": "engine-client-secret"}
        client["token_uri"] = self.oauth.token_uri
        return {
            "DEPLOYMENT": "cloud",
            "TABLEFLOW": "topicberg",
            "CLUSTER_ID": "company",
            "SCHEMA_REGISTRY_URL": self.registry.url,
            **{f"SCHEMA_REGISTRY_OAUTH__{n.upper()}": value for n, value in client.items()},
            "ICEBERG_REST_URI": self.catalog.url,
            **{f"ICEBERG_REST_OAUTH__{n.upper()}": value for n, value in client.items()},
            "ICEBERG_REST_HEADERS": '{"Polaris-Realm": "topicberg"}',
            "ICEBERG_REST_DELEGATION": "vended-credentials",
            "SPARK_REMOTE": self.spark or self.stack.spark_connect,
            "S3_ENDPOINT": self.s3 or self.stack.s3 or "",
            "SNOWFLAKE_ACCOUNT": "a",
            "SNOWFLAKE_USER": "u",
            "SNOWFLAKE_PASSWORD": "p",
        }

    def kafka(self, kind: str) -> dict[str, str]:
        """Settings of one of the broker's logins."""
        signed = self.broker.certificates
        return {
            "oidc": {
                "KAFKA_BOOTSTRAP": self.broker.oidc,
                "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "KAFKA_OAUTH__CLIENT_ID": "engine",
                "KAFKA_OAUTH__CLIENT_SECRET": "engine-client-secret",
                "KAFKA_OAUTH__TOKEN_URI": self.oauth.token_uri,
                "KAFKA_OAUTH__SCOPE": "kafka",
            },
            "scram": {
                "KAFKA_BOOTSTRAP": self.broker.scram,
                "KAFKA_AUTH": "scram",
                "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "KAFKA_API_KEY": USER,
                "KAFKA_API_SECRET": PASSWORD,
            },
            "mtls": {
                "KAFKA_BOOTSTRAP": self.broker.mtls,
                "KAFKA_AUTH": "mtls",
                "KAFKA_CA_FILE": str(signed.authority),
                "KAFKA_CERTIFICATE_FILE": str(signed.client),
                "KAFKA_KEY_FILE": str(signed.client_key),
            },
        }[kind]
