"""The login to a schema registry with Confluent's API, rendered for its client."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from topicberg.logins import OAUTH_CLIENT, TlsFields, missing
from topicberg.logins.oauth import OAuthSettings
from topicberg.security.redaction import remember
from topicberg.settings.environment import Concern, EnvironmentSettings, FromJson

PREFIX = "TOPICBERG_SCHEMA_REGISTRY"


class RegistryLogin(TlsFields):
    """How to log in to a schema registry, and how to check that it is that one."""

    auth: Literal["none", "basic", "bearer", "oauth2", "mtls"] | None = None
    """None: by the settings that are given; it stays None if none of them is."""
    api_key: str | None = None
    """The user of HTTP Basic."""
    api_secret: SecretStr | None = None
    """The password of HTTP Basic."""
    token: SecretStr | None = None
    """A bearer token that does not expire."""
    oauth: Annotated[OAuthSettings, *FromJson] = Field(default=OAuthSettings(), repr=False)
    """The OAuth 2 client: ``client_id``, ``client_secret``, ``token_uri``, ``scope``, ``audience``,
    ``client_auth`` (form or basic)."""
    extensions: Annotated[dict[str, str], *FromJson] = Field(default_factory=dict)
    """Of bearer and oauth2: Confluent Cloud wants logicalCluster (lsrc-…) and identityPoolId."""

    @model_validator(mode="after")
    def _check(self) -> RegistryLogin:
        """:raises ValueError: settings are missing"""
        if self.auth is None:
            self.auth = self._given()
        needed = {
            "basic": ("api_key", "api_secret"),
            "bearer": ("token",),
            "oauth2": OAUTH_CLIENT,
            "mtls": ("certificate_file", "key_file"),
        }.get(str(self.auth), ())
        missing(PREFIX, str(self.auth), self, *needed)
        self.check_files(PREFIX)
        return self

    def _given(self) -> Literal["basic", "bearer", "oauth2", "mtls"] | None:
        """Return the kind that the settings describe, also if it is incomplete."""
        if self.oauth.is_given or self.token:
            return "oauth2" if self.oauth.is_given else "bearer"
        if self.api_key or self.api_secret:
            return "basic"
        return "mtls" if self.certificate_file or self.key_file else None

    def as_user(self, user: str, password: str) -> RegistryLogin:
        """Return the login of a user by HTTP Basic, with the same certificates."""
        remember([password])
        basic = {"auth": "basic", "api_key": user, "api_secret": SecretStr(password)}
        return self.model_copy(update=basic)

    def client(self) -> dict[str, Any]:
        """Return the configuration of the registry's client, beside its address."""
        configuration: dict[str, Any] = {}
        if self.auth == "basic" and self.api_key and self.api_secret:
            pair = f"{self.api_key}:{self.api_secret.get_secret_value()}"
            configuration["basic.auth.user.info"] = pair
        elif self.auth in ("bearer", "oauth2"):
            configuration = {
                "bearer.auth.credentials.source": "CUSTOM",
                "bearer.auth.custom.provider.function": self._bearer,
                "bearer.auth.custom.provider.config": {},
            }
        files = {"ca": self.ca_file, "certificate": self.certificate_file, "key": self.key_file}
        configuration |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path}
        password = self.key_password and self.key_password.get_secret_value()
        return configuration | ({"ssl.key.password": password} if password else {})

    def headers(self) -> dict[str, str]:
        """Return the headers of a request without the registry's client."""
        if self.auth in ("bearer", "oauth2"):
            return {"Authorization": f"Bearer {self._bearer({})['bearer.auth.token']}"}
        if user := self.client().get("basic.auth.user.info"):
            return {"Authorization": f"Basic {b64encode(user.encode()).decode()}"}
        return {}

    def _bearer(self, _: dict[str, Any]) -> dict[str, str]:
        """Return what the client sends with a request; it calls this for each of them."""
        token = self.token.get_secret_value() if self.token else ""
        if self.auth == "oauth2":
            token = self.oauth.client(f"{PREFIX}_OAUTH_").token()
        cluster = self.extensions.get("logicalCluster", "")
        options = {"bearer.auth.token": token, "bearer.auth.logical.cluster": cluster}
        pool = self.extensions.get("identityPoolId")
        return options | ({"bearer.auth.identity.pool.id": pool} if pool else {})


class RegistrySettings(RegistryLogin, EnvironmentSettings):
    """``TOPICBERG_SCHEMA_REGISTRY_<FIELD>``."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}_")
    concern = Concern.REGISTRY
