"""The login to Kafka, as librdkafka's properties."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from topicberg.errors import LoginError
from topicberg.logins import OAUTH_CLIENT, OAuthFields, TlsFields, missing
from topicberg.security.redaction import remember
from topicberg.settings.environment import Concern, EnvironmentSettings, FromJson

PREFIX = "TOPICBERG_KAFKA"
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_MECHANISMS = {"plain": "PLAIN", "scram": "SCRAM-SHA-512", "scram_256": "SCRAM-SHA-256"}
"""Kafka's names of the logins by user and password."""
_SASL = (*_MECHANISMS, "oidc", "msk_iam")


class KafkaLogin(TlsFields):
    """How to log in to Kafka, and how to check that it is Kafka."""

    auth: Literal["none", "plain", "scram", "scram_256", "oidc", "mtls", "msk_iam"] | None = None
    """None: by the settings that are given; scram: SCRAM-SHA-512."""
    security_protocol: SecurityProtocol | None = None
    """Default: with TLS."""
    api_key: str | None = None
    """The user of PLAIN and SCRAM."""
    api_secret: SecretStr | None = None
    """The password of PLAIN and SCRAM."""
    oauth: Annotated[OAuthFields, *FromJson] = Field(default=OAuthFields(), repr=False)
    """The OAuth 2 client of OIDC: ``client_id``, ``client_secret``, ``token_uri``, ``scope``."""
    extensions: Annotated[dict[str, str], *FromJson] = Field(default_factory=dict)
    """SASL extensions of OIDC: Confluent Cloud wants logicalCluster and identityPoolId."""
    role_arn: str | None = Field(default=None, pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/\S+$")
    """The role that logs in to MSK; default: the process's own credentials."""
    _region: str = "us-east-1"

    @model_validator(mode="after")
    def _check(self) -> KafkaLogin:
        """:raises ValueError: settings are missing or contradict each other"""
        if self.auth is None:
            self.auth = self._given()
        if self.security_protocol is None:
            sasl = self.auth in _SASL
            plain = self.auth == "none" and self.ca_file is None
            self.security_protocol = "SASL_SSL" if sasl else "PLAINTEXT" if plain else "SSL"
        if (self.auth in _SASL) != self.security_protocol.startswith("SASL"):
            raise ValueError(
                f"{PREFIX}_AUTH is {self.auth}, which does not fit {PREFIX}_SECURITY_PROTOCOL="
                f"{self.security_protocol}"
            )
        required = {"oidc": OAUTH_CLIENT, "mtls": ("certificate_file", "key_file")}
        missing(PREFIX, self.auth, self, *required.get(self.auth, ()))
        self.check_files(PREFIX)
        return self

    def _given(self) -> Literal["none", "plain", "oidc", "mtls"]:
        """Return the kind that the settings describe, also if it is incomplete."""
        if self.oauth.is_given:
            return "oidc"
        has_certificate = self.certificate_file or self.key_file
        if self.security_protocol and not self.security_protocol.startswith("SASL"):
            return "mtls" if has_certificate else "none"
        is_mtls = self.security_protocol is None and has_certificate and not self.api_key
        return "mtls" if is_mtls else "plain"

    @property
    def mechanism(self) -> str:
        """Return Kafka's name of the mechanism; empty without SASL."""
        return _MECHANISMS.get(str(self.auth), "OAUTHBEARER" if self.auth in _SASL else "")

    @property
    def has_user(self) -> bool:
        """Whether it logs in with a user and a password."""
        return self.auth in _MECHANISMS

    def in_region(self, region: str) -> KafkaLogin:
        """Return the same login, to MSK in a region."""
        self._region = region
        return self

    def as_user(self, user: str, password: str) -> KafkaLogin:
        """Return the login of another user."""
        remember([password])
        return self.model_copy(update={"api_key": user, "api_secret": SecretStr(password)})

    def librdkafka(self) -> dict[str, Any]:
        """Return the properties of librdkafka's clients, also of those in Python."""
        if self.auth == "msk_iam":
            _signer()
        listed = ",".join(f"{name}={value}" for name, value in self.extensions.items())
        oidc = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": str(self.oauth.client_id),
            "sasl.oauthbearer.client.secret": _open(self.oauth.client_secret),
            "sasl.oauthbearer.token.endpoint.url": str(self.oauth.token_uri),
            "sasl.oauthbearer.scope": self.oauth.scope or None,
            "sasl.oauthbearer.extensions": listed or None,
        }
        given = {
            "security.protocol": str(self.security_protocol),
            "sasl.mechanism": self.mechanism or None,
            "sasl.username": self.api_key or "" if self.has_user else None,
            "sasl.password": _open(self.api_secret) if self.has_user else None,
            **(oidc if self.auth == "oidc" else {}),
            "oauth_cb": MskToken(self._region, self.role_arn) if self.auth == "msk_iam" else None,
            "ssl.ca.pem": _read(self.ca_file, "ca_file") if self.ca_file else None,
        }
        if self.certificate_file and self.key_file:
            given["ssl.certificate.pem"] = _read(self.certificate_file, "certificate_file")
            given["ssl.key.pem"] = self._key()
        return {name: value for name, value in given.items() if value is not None}

    def _key(self) -> str:
        """Return the private key as PKCS 8, without a password."""
        from cryptography.hazmat.primitives import serialization as as_bytes

        assert self.key_file is not None  # noqa: S101  see the caller
        password = _open(self.key_password).encode() or None
        try:
            key = as_bytes.load_pem_private_key(self.key_file.read_bytes(), password)
        except (OSError, ValueError, TypeError) as error:
            raise LoginError(
                f"the private key {self.key_file} cannot be read: {error}",
                hint=f"set {PREFIX}_KEY_FILE to a key in PEM, and {PREFIX}_KEY_PASSWORD to its "
                "password if it has one",
            ) from None
        text = key.private_bytes(
            encoding=as_bytes.Encoding.PEM,
            format=as_bytes.PrivateFormat.PKCS8,
            encryption_algorithm=as_bytes.NoEncryption(),
        ).decode()
        remember([text])
        return text

    def settings_hint(self) -> str:
        """Return what to check if Kafka refuses this login."""
        settings: dict[str, tuple[str, ...]] = {
            "plain": ("API_KEY", "API_SECRET"),
            **dict.fromkeys(("scram", "scram_256"), ("API_KEY", "API_SECRET", "AUTH")),
            "oidc": ("OAUTH__CLIENT_ID", "OAUTH__CLIENT_SECRET", "OAUTH__TOKEN_URI"),
            "mtls": ("CERTIFICATE_FILE", "KEY_FILE", "CA_FILE"),
            "msk_iam": ("ROLE_ARN",),
        }
        names = settings.get(str(self.auth), ("AUTH", "SECURITY_PROTOCOL"))
        return "check " + ", ".join(f"{PREFIX}_{name}" for name in names)


class KafkaSettings(KafkaLogin, EnvironmentSettings):
    """``TOPICBERG_KAFKA_<FIELD>``."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}_")
    concern = Concern.KAFKA


@dataclass(frozen=True)
class MskToken:
    """Librdkafka's callback for a token, in any process: it is sent to those that read. Each batch
    is read by a client of its own, and the token of a role is a request to AWS, so clients share
    one for the first half of its time. A client wants another one after four fifths."""

    region: str
    role_arn: str | None

    def __call__(self, _: str) -> tuple[str, float]:
        """Return the token, and when it expires (seconds since 1970)."""
        with _LOCK:
            now, found = time.time(), _TOKENS.get(self)
            if found is None or now >= found[2]:
                text, until = self._computed()
                found = _TOKENS[self] = text, until, now + (until - now) / 2
            return found[:2]

    def _computed(self) -> tuple[str, float]:
        provider = _signer()
        text, until_ms = (
            provider.generate_auth_token_from_role_arn(self.region, self.role_arn)
            if self.role_arn
            else provider.generate_auth_token(self.region)
        )
        return text, until_ms / 1000


_LOCK = Lock()
_TOKENS: dict[MskToken, tuple[str, float, float]] = {}
"""Token, when it expires, and until when it is shared."""


def _signer() -> ModuleType:
    """:raises LoginError: AWS's library is not installed"""
    try:
        return import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError:
        raise LoginError(
            "the login to MSK with IAM needs the package aws-msk-iam-sasl-signer-python",
            hint="run `pip install aws-msk-iam-sasl-signer-python`",
        ) from None


def _open(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise LoginError(
            f"{path} cannot be read: {error.strerror}", hint=f"set {PREFIX}_{name.upper()}"
        ) from None
