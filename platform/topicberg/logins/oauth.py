"""Access tokens by OAuth 2's client credentials (RFC 6749, 4.4), renewed before they expire.

Vendors' clients differ in what they send (the client's id in the form or as Basic), to whom (extra
headers) and in what they report. So tokens for PyIceberg, DuckDB and the registry come from here.
"""

from __future__ import annotations

import base64
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Literal

import requests
from pydantic import ConfigDict, SecretStr

from topicberg.errors import LoginError, ThrottledError, TopicbergError, UnreachableError
from topicberg.errors.connections import connection_error
from topicberg.logins import OAuthFields
from topicberg.security.models import HoldsSecrets
from topicberg.security.redaction import remember

TIMEOUT_SECONDS = (5.0, 15.0)
DEFAULT_SECONDS = 3600.0  # How long a token is valid if the server does not say.
REFUSED_SECONDS = 5.0
"""How long a refusal is repeated without a request: servers lock clients that insist."""
SKEW_SECONDS = 30.0
_CLIENT = {"invalid_client", "unauthorized_client", "access_denied", "invalid_grant"}
_SCOPE = {"invalid_scope", "invalid_target", "invalid_resource"}


class OAuthClient(HoldsSecrets):
    """A client of an OAuth 2 server.

    :param prefix: of the names of its settings, as ``TOPICBERG_ICEBERG_REST_OAUTH_``
    :param client_auth: how the server wants id and secret: in the form, or as HTTP Basic
    """

    model_config = ConfigDict(frozen=True)

    client_id: str
    client_secret: SecretStr
    token_uri: str
    scope: str | None = None
    audience: str | None = None
    client_auth: Literal["form", "basic"] = "form"
    headers: tuple[tuple[str, str], ...] = ()
    prefix: str = "TOPICBERG"

    def token(self) -> str:
        """Return a token that is valid for a while.

        :raises LoginError: the server refuses the client
        :raises UnreachableError: the server does not answer
        """
        return _held(self).valid(self)

    def token_until(self) -> tuple[str, float]:
        """Return such a token, and the time (monotonic) from which another one is requested."""
        held = _held(self)
        return held.valid(self), held.renew_at

    def discard(self, token: str) -> None:
        """Request another token next time: this one was refused."""
        _held(self).discard(token)

    @property
    def skew_seconds(self) -> float | None:
        """How much the server's clock is ahead of this machine's; None: not known."""
        return _held(self).skew


class OAuthSettings(OAuthFields):
    """The settings of a login by OAuth 2, with topicberg as the client."""

    audience: str | None = None
    """For whom the token is, for servers that want to know."""
    client_auth: Literal["form", "basic"] = "form"
    """How the server wants id and secret: in the form, or as HTTP Basic."""

    def client(self, prefix: str, headers: tuple[tuple[str, str], ...] = ()) -> OAuthClient:
        """Return the client that requests tokens; the settings, of this prefix, are complete."""
        return OAuthClient(**self.model_dump(exclude_none=True), headers=headers, prefix=prefix)


@dataclass
class _Held:
    """The newest token of a client."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    text: str = ""
    renew_at: float = 0.0
    skew: float | None = None
    refusal: LoginError | None = None
    refused_until: float = 0.0

    def valid(self, client: OAuthClient) -> str:
        with self.lock:
            now = time.monotonic()
            if self.text and now < self.renew_at:
                return self.text
            if self.refusal and now < self.refused_until:
                raise self.refusal
            try:
                answer, self.skew = _request(client)
            except LoginError as refusal:
                self.refusal, self.refused_until = refusal, now + REFUSED_SECONDS
                raise
            self.text, self.refusal = str(answer["access_token"]), None
            remember([self.text])
            seconds = float(answer.get("expires_in") or DEFAULT_SECONDS)
            # What starts with this token still has a third of its life, or a minute.
            self.renew_at = now + max(seconds * 2 / 3, seconds - 60)
            return self.text

    def discard(self, token: str) -> None:
        with self.lock:
            if self.text == token:
                self.text = ""


@lru_cache(maxsize=64)
def _held(_: OAuthClient) -> _Held:
    return _Held()


def _request(client: OAuthClient) -> tuple[dict[str, Any], float | None]:
    """Return the server's response, and how much its clock is ahead."""
    secret = client.client_secret.get_secret_value()
    form = {"grant_type": "client_credentials"}
    headers = {"Accept": "application/json", **dict(client.headers)}
    if client.client_auth == "basic":
        pair = base64.b64encode(f"{client.client_id}:{secret}".encode()).decode()
        remember([pair])
        headers["Authorization"] = f"Basic {pair}"
    else:
        form |= {"client_id": client.client_id, "client_secret": secret}
    given = {"scope": client.scope, "audience": client.audience}
    form |= {name: value for name, value in given.items() if value}
    try:
        response = requests.post(
            client.token_uri,
            data=form,
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            allow_redirects=False,  # a redirect would get the secret
        )
    except requests.RequestException as error:
        server = f"the OAuth server {client.token_uri}"
        raise connection_error(server, error) or UnreachableError(
            f"{server} does not answer: {_reason(error)}",
            hint=f"check that it runs and that {client.prefix}_TOKEN_URI is its address",
        ) from None
    answer = None
    with suppress(ValueError):
        answer = response.json()
    if response.status_code == 200 and isinstance(answer, dict) and answer.get("access_token"):
        return answer, skew(response)
    raise _refusal(client, response, answer if isinstance(answer, dict) else {})


def _refusal(
    client: OAuthClient, response: requests.Response, answer: dict[str, Any]
) -> TopicbergError:
    """Return the error for a response without a token."""
    code, text, status = str(answer.get("error") or ""), "", response.status_code
    if isinstance(answer.get("error"), dict):  # as Iceberg's REST catalogs report errors
        code, text = str(answer["error"].get("type")), str(answer["error"].get("message"))
    text = str(answer.get("error_description") or text or "")
    reason = ": ".join(part for part in (code, *text.splitlines()[:1]) if part)[:300]
    where = f"the OAuth server {client.token_uri}"
    reason = reason or f"unexpected response {status}"
    if status == 429:
        return ThrottledError(f"{where} throttles requests: {reason}")
    if status >= 500:
        return UnreachableError(
            f"{where} fails with status {status}: {reason}",
            hint=f"read its log; {client.prefix}_TOKEN_URI is its address",
        )
    who = f'{where} refuses the client "{client.client_id}": {reason}'
    if code in _SCOPE or "scope" in text.lower():
        return LoginError(
            f'{who} (scope "{client.scope or ""}")',
            hint=f"set {client.prefix}_SCOPE"
            + (f" and {client.prefix}_AUDIENCE" if client.audience else "")
            + " to what the server grants to the client",
        )
    if status in (404, 405) or "realm" in f"{code} {text}".lower() or not code:
        return LoginError(
            who,
            hint=f"check {client.prefix}_TOKEN_URI, with the realm or tenant in it, and the realm "
            f"in {client.prefix.removesuffix('_OAUTH_')}_HEADERS if the server reads one there",
        )
    if status == 401 or code in _CLIENT:
        other = "basic" if client.client_auth == "form" else "form"
        return LoginError(
            who,
            hint=f"set {client.prefix}_CLIENT_ID and {client.prefix}_CLIENT_SECRET to those of a "
            "client whose secret has not expired; if they are right, set "
            f"{client.prefix}_CLIENT_AUTH={other}",
        )
    return LoginError(
        who, hint=f"check {client.prefix}_SCOPE, {client.prefix}_AUDIENCE and the client's rights"
    )


def skew(response: requests.Response) -> float | None:
    """Return how much the clock of a server is ahead of this machine's, in seconds."""
    try:
        theirs = parsedate_to_datetime(response.headers["Date"])
    except (KeyError, TypeError, ValueError):
        return None
    return (theirs - datetime.now(UTC)).total_seconds()


def _reason(error: requests.RequestException) -> str:
    """Return the reason without the address of the connection pool, which repeats the URL."""
    match error:
        case requests.Timeout():
            return "no response in time"
        case requests.exceptions.SSLError():
            return f"TLS: {str(error.args[0])[-200:]}" if error.args else "TLS"
    cause: Any = error.args[0] if error.args else error
    cause = getattr(cause, "reason", cause)
    return str(cause).rpartition("> ")[2].rpartition(": ")[2][:200] or type(error).__name__
