"""The login to an Iceberg REST catalog, rendered for PyIceberg, Spark and DuckDB."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from topicberg.errors import TopicbergError
from topicberg.errors.meaning import aws_explained
from topicberg.logins import OAUTH_CLIENT, absent, missing
from topicberg.logins.oauth import OAuthClient, OAuthSettings
from topicberg.security.models import HoldsSecrets
from topicberg.security.redaction import remember
from topicberg.settings.environment import Concern, EnvironmentSettings, FromJson, Group

PREFIX = "TOPICBERG_ICEBERG_REST"
TOPICS_PREFIX = "TOPICBERG_CATALOG"
DELEGATION = "X-Iceberg-Access-Delegation"
VENDED = "vended-credentials"
OAUTH = "topicberg.oauth"
"""Property of PyIceberg's catalog: the client of :func:`oauth_client` that requests its tokens."""
ROLE = "topicberg.role-arn"  # The same: the role whose keys sign the requests.
IS_VENDED = "topicberg.vended"  # The same: the catalog gives out the keys of the object store.
LOCATIONS = "topicberg.locations"
"""The same: ``catalog`` if the catalog chooses the locations of new tables."""
SETTINGS = "topicberg.settings"
"""The same: what the names of its settings begin with, for messages."""
ROLE_SECONDS = 3600
_SCOPE = "catalog"  # Iceberg's clients send this one if there is no other.
_SECRET_HEADER = re.compile(r"auth|key|token|secret|password", re.IGNORECASE)
_clients: dict[str, OAuthClient] = {}


class CatalogLogin(HoldsSecrets):
    """How to log in to an Iceberg REST catalog, and who has the keys of the object store."""

    settings_prefix: ClassVar[str] = PREFIX
    """Of the names of its settings, for messages."""
    oauth_prefix: ClassVar[str] = f"{PREFIX}_OAUTH_"
    """The same, of those of its OAuth 2 client."""

    auth: Literal["none", "oauth2", "token", "sigv4"] | None = None
    """None: by the settings that are given."""
    token: SecretStr | None = None
    """A token that the catalog accepts as it is."""
    oauth: Annotated[OAuthSettings, *FromJson] = Field(default=OAuthSettings(), repr=False)
    """The OAuth 2 client: ``client_id``, ``client_secret``, ``token_uri``, ``scope`` (catalog),
    ``audience``, ``client_auth`` (form or basic)."""
    signing: str = Field(default="glue", pattern=r"^[a-z0-9-]+(/[a-z0-9-]+)?$")
    """AWS's name of the service: glue, s3tables, execute-api; of another region than the
    deployment's with it, s3tables/eu-west-1."""
    role_arn: str | None = Field(default=None, pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/\S+$")
    """The role whose keys sign the requests; default: the process's own credentials."""
    warehouse: str | None = None
    """Which catalog of the server; default: the bucket, or the account's number for Glue."""
    headers: Annotated[dict[str, str], *FromJson] = Field(default_factory=dict, repr=False)
    """Further headers of every request, those for tokens included: a realm, for instance."""
    delegation: Literal["vended-credentials", "remote-signing", "none"] | None = None
    """Who gives out the keys of the object store; default: the process has its own."""
    locations: Literal["topicberg", "catalog"] | None = None
    """Who chooses the location of a new table; default: S3 Tables its own, else topicberg."""

    @model_validator(mode="after")
    def _check(self) -> CatalogLogin:
        """:raises ValueError: settings are missing or contradict each other"""
        remember(value for name, value in self.headers.items() if _SECRET_HEADER.search(name))
        if self.auth is None:
            if self.oauth.client_id and self.token:
                raise ValueError(
                    f"{PREFIX}_TOKEN and {PREFIX}_OAUTH__CLIENT_ID are both set: set {PREFIX}_AUTH "
                    "to token or oauth2"
                )
            self.auth = "token" if self.token else "oauth2" if self.oauth.is_given else None
        required = {"oauth2": OAUTH_CLIENT, "token": ("token",)}.get(str(self.auth), ())
        missing(self.settings_prefix, str(self.auth), self, *required)
        if self.role_arn and self.auth != "sigv4":
            raise ValueError(f"{PREFIX}_ROLE_ARN signs requests: set {PREFIX}_AUTH=sigv4")
        if self.delegation == "remote-signing":
            raise ValueError(
                f"{PREFIX}_DELEGATION: remote-signing is not supported, because DuckDB and PyArrow "
                f"cannot sign through a catalog; use {VENDED} or none"
            )
        return self

    @property
    def vends(self) -> bool:
        """Whether the catalog gives out the keys of the object store."""
        return self.delegation == VENDED

    @property
    def in_sessions(self) -> bool:
        """Whether each Spark session has to state it, so that the server needs no key."""
        return self.auth in ("oauth2", "token", "sigv4") or self.vends or bool(self.headers)

    def oauth_client(self) -> OAuthClient | None:
        """Return the client that requests tokens, if it logs in by OAuth 2."""
        if self.auth != "oauth2":
            return None
        client = self.oauth.model_copy(update={"scope": self.oauth.scope or _SCOPE})
        return client.client(self.oauth_prefix, tuple(self.headers.items()))

    def bearer(self) -> str | None:
        """Return a valid token, if the catalog requires one."""
        if client := self.oauth_client():
            return client.token()
        return self.token.get_secret_value() if self.auth == "token" and self.token else None

    def public(self) -> dict[str, Any]:
        """Return it without its secrets, for a process that has them in its environment."""
        hidden: Any = {"headers": True, "token": True, "oauth": {"client_secret"}}
        shown = self.model_dump(mode="json", exclude_none=True, exclude=hidden)
        return shown | {"headers": sorted(self.headers)}

    @classmethod
    def from_public(cls, public: Mapping[str, Any]) -> Self:
        """Return such a login with the secrets of this process's environment.

        :raises TopicbergError: the environment lacks a secret; names the variable
        """
        given = dict(public)
        of_client, token = f"{cls.oauth_prefix}_CLIENT_SECRET", f"{cls.settings_prefix}_TOKEN"
        variable = {"oauth2": of_client, "token": token}.get(given.get("auth", ""))
        secret = os.environ.get(variable) or None if variable else None
        headers = json.loads(os.environ.get(f"{cls.settings_prefix}_HEADERS") or "{}")
        lacks = [] if secret or variable is None else [variable]
        if unknown := set(given.pop("headers", ())) - set(headers):
            lacks.append(f"{cls.settings_prefix}_HEADERS lacks {', '.join(sorted(unknown))}")
        if lacks:
            raise TopicbergError(
                f"the job's environment lacks a secret of the Iceberg catalog: {', '.join(lacks)}",
                hint="add --conf spark.emr-serverless.driverEnv.<name>=<value> to "
                "TOPICBERG_EMR_JOBS__SPARK_SUBMIT_PARAMETERS; see docs/production.md",
            )
        if given.get("auth") == "token":
            return cls(**given, token=secret, headers=headers)
        oauth = {**given.pop("oauth", {}), "client_secret": secret}
        return cls(**given, oauth=oauth, headers=headers)

    def pyiceberg(self, region: str) -> dict[str, str]:
        """Return PyIceberg's properties; :class:`topicberg.clients.catalog.CheckedCatalog`
        understands those that begin with ``topicberg.``"""
        properties = {**self.spark_common(region), SETTINGS: self.settings_prefix}
        client = self.oauth_client()
        in_s3_tables = self.auth == "sigv4" and self.signing.startswith("s3tables")
        locations = self.locations or ("catalog" if in_s3_tables else "topicberg")
        own = {
            OAUTH: _register(client) if client else None,
            "token": None if client else self.bearer(),
            ROLE: self.role_arn,
            IS_VENDED: "true" if self.vends else None,
            LOCATIONS: "catalog" if locations == "catalog" else None,
        }
        return properties | {name: value for name, value in own.items() if value}

    def spark(self, region: str) -> tuple[dict[str, str], float | None]:
        """Return properties of Iceberg's catalog in a Spark session, with the secrets; and the time
        (monotonic) after which the session needs new ones, or None: Spark renews them."""
        properties: dict[str, str] = self.spark_common(region)
        renew_at: float | None = None
        oauth = self.oauth
        if self.auth == "oauth2" and oauth.client_auth == "form" and oauth.client_secret:
            properties |= {
                "rest.auth.type": "oauth2",
                "credential": f"{oauth.client_id}:{oauth.client_secret.get_secret_value()}",
                "oauth2-server-uri": str(oauth.token_uri),
                "scope": oauth.scope or _SCOPE,
                # It would exchange an expired token, which only few servers can: it requests one.
                "token-exchange-enabled": "false",
                "token-refresh-enabled": "true",  # whatever Spark's own configuration states
            }
            properties |= {"audience": oauth.audience} if oauth.audience else {}
        elif client := self.oauth_client():
            # Iceberg's client in Java cannot send the client's id as Basic: a token of ours.
            token, renew_at = client.token_until()
            properties |= {"token": token, "token-refresh-enabled": "false"}
        elif given := self.bearer():
            properties |= {"token": given, "token-refresh-enabled": "false"}
        if self.role_arn:
            keys = role_keys(self.role_arn, region)
            properties |= {
                "rest.access-key-id": keys.access_key,
                "rest.secret-access-key": keys.secret_key,
                "rest.session-token": keys.token,
            }
            renew_at = time.monotonic() + ROLE_SECONDS / 4
        return properties, renew_at

    def duckdb(self, region: str, name: str = "lake") -> tuple[str | None, str]:
        """Return a statement that creates the secret ``<name>_catalog``, and options of ATTACH."""
        delegation = (
            f"ACCESS_DELEGATION_MODE 'vended_credentials', DEFAULT_REGION {literal(region)}"
            if self.vends  # the catalog may leave the region out
            else "ACCESS_DELEGATION_MODE 'none'"
        )
        if self.auth == "sigv4":
            # DuckDB finds the name of the service in the host's name.
            return None, f"AUTHORIZATION_TYPE 'sigv4', {delegation}"
        headers = ", ".join(f"{literal(k)}: {literal(v)}" for k, v in self.headers.items())
        extra = f", EXTRA_HTTP_HEADERS MAP {{{headers}}}" if headers else ""
        token = self.bearer()
        if token is None:
            return None, f"AUTHORIZATION_TYPE 'none', {delegation}{extra}"
        # It does not send the headers with a request for a token, nor renews one: a token of ours.
        secret = f"CREATE SECRET {name}_catalog (TYPE iceberg, TOKEN {literal(token)}{extra})"
        return secret, f"SECRET {name}_catalog, {delegation}"

    def spark_common(self, region: str) -> dict[str, str]:
        """Return the properties without secrets, which PyIceberg and Spark share."""
        properties = {f"header.{name}": value for name, value in self.headers.items()}
        given = {"warehouse": self.warehouse, f"header.{DELEGATION}": self.delegation}
        if self.auth == "sigv4":
            service, _, own_region = self.signing.partition("/")
            given |= {"rest.sigv4-enabled": "true", "rest.signing-name": service}
            given |= {"rest.signing-region": own_region or region}
        return properties | {name: value for name, value in given.items() if value}


class CatalogSettings(CatalogLogin, EnvironmentSettings):
    """``TOPICBERG_ICEBERG_REST_<FIELD>``."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}_")
    concern = Concern.CATALOGS


class TopicsCatalogLogin(CatalogLogin):
    """The login to the catalog of the topics' tables, where Tableflow publishes them to another one
    than the derived tables are in."""

    settings_prefix: ClassVar[str] = f"{TOPICS_PREFIX}_"
    oauth_prefix: ClassVar[str] = settings_prefix


class RestCatalog(Group):
    """An Iceberg REST catalog of the topics' tables, such as Open Catalog: `topicberg deploy` lets
    Tableflow publish them to it, and Dagster reads them there."""

    uri: str | None = Field(default=None, pattern=r"^https?://.+[^/]$")
    """Open Catalog's ends in ``/polaris/api/catalog``."""
    name: str | None = None
    """The catalog in it, which some call its warehouse."""
    derived_name: str | None = None
    """The catalog of the same server in which derived tables are; default: AWS Glue."""
    client_id: str | None = None
    client_secret: SecretStr | None = None
    scope: str | None = None
    """E.g. ``PRINCIPAL_ROLE:ALL``."""
    token_uri: str | None = Field(default=None, pattern=r"^https?://.+$")
    """By default the catalog's own."""
    iam_user_arn: str | None = Field(
        default=None, pattern=r"^arn:aws[a-z-]*:iam::\d{12}:(user|role|root)[!-~]*$"
    )
    """Who reads the bucket for Open Catalog, as its catalog's details show it."""
    external_id: str | None = Field(default=None, min_length=2, max_length=1224)

    def absent(self, *required: str) -> list[str]:
        """Return the variables of the fields without a value."""
        return absent(f"{TOPICS_PREFIX}_", self, *required)

    def login(self, warehouse: str | None, *, vends: bool) -> TopicsCatalogLogin:
        """Return the login to a catalog of the server.

        :param vends: the catalog gives out the keys of the object store
        :raises TopicbergError: settings are missing
        """
        if names := self.absent("uri", "client_id", "client_secret", "name"):
            raise TopicbergError(
                "TOPICBERG_SNOWFLAKE_CATALOG is open_catalog, and the login to it is incomplete: "
                f"it requires {', '.join(names)}",
                hint="set in Dagster's environment what `topicberg deploy` was given; see "
                "docs/cloud-tables.md",
            )
        return TopicsCatalogLogin(
            auth="oauth2",
            oauth=OAuthSettings(
                client_id=self.client_id,
                client_secret=self.client_secret,
                token_uri=self.token_uri or f"{self.uri}/v1/oauth/tokens",
                scope=self.scope or "PRINCIPAL_ROLE:ALL",
            ),
            warehouse=warehouse,
            delegation=VENDED if vends else None,
        )


def oauth_client(key: str) -> OAuthClient:
    """Return the client that a property :data:`OAUTH` names."""
    return _clients[key]


def _register(client: OAuthClient) -> str:
    """Return the name of a client for properties, which other libraries log and copy."""
    key = f"{client.client_id}@{urlsplit(client.token_uri).netloc}/{hash(client):x}"
    _clients[key] = client
    return key


def role_keys(role_arn: str, region: str) -> Any:
    """Return the keys of a role; raise TopicbergError if AWS does not answer, or refuses."""
    with role_errors(role_arn):
        return role_session(role_arn, region).get_credentials().get_frozen_credentials()


@contextmanager
def role_errors(role_arn: str) -> Iterator[None]:
    """Turn botocore's errors about a role into one message; raise TopicbergError if AWS does not
    give out keys of the role."""
    rights = (
        f"check {PREFIX}_ROLE_ARN, allow sts:AssumeRole on the role to the user of this process, "
        "and name that user in the role's trust policy"
    )
    with aws_explained(f"AWS does not give out keys of the role {role_arn}", rights):
        yield


@lru_cache(maxsize=8)
def role_session(role_arn: str, region: str) -> Any:
    """Return a session of botocore with the keys of a role, which it renews by itself; raise
    NoCredentialsError if this process has none to assume the role with."""
    import botocore.session
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import NoCredentialsError

    own = botocore.session.Session()
    if own.get_credentials() is None:
        raise NoCredentialsError
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(own.create_client, region_name=region),
        source_credentials=own.get_credentials(),
        role_arn=role_arn,
        extra_args={"RoleSessionName": "topicberg", "DurationSeconds": ROLE_SECONDS},
    )
    session: Any = botocore.session.Session()
    # The keys of a role end after an hour, so the session has some that renew themselves.
    keys = DeferredRefreshableCredentials(
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    provider = SimpleNamespace(load_credentials=lambda: keys)
    session.register_component("credential_provider", provider)
    session.set_config_variable("region", region)
    return session


def literal(value: str) -> str:
    """Return a string literal of DuckDB."""
    return "'" + value.replace("'", "''") + "'"
