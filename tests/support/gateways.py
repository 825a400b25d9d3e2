"""Proxies that ask for a login before a server of the local stack, which asks for none or another.

What is behind them is the real server: Iceberg's REST catalog, the schema registry.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

import jwt
import requests
from real_servers import OAuthServer

from topicberg.endpoints import Endpoints

Refusal = tuple[int, str]
_HOP = {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "date"}
_HIDDEN = {"authorization", "accept-encoding", "keep-alive", "server"}


@dataclass
class Gateway:
    """A running proxy."""

    url: str
    refused: Counter[int] = field(default_factory=Counter)
    tokens: set[str] = field(default_factory=set)
    """The tokens that clients used."""
    token_uri: str = ""
    """Where it trusts the tokens of."""
    vended: Counter[str] = field(default_factory=Counter)
    """User agent → tables for which it got keys."""


@dataclass(frozen=True)
class TokenCheck:
    """Admits who has a valid token of the OAuth server; ``reader`` may not write."""

    oauth: OAuthServer
    headers: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, handler: BaseHTTPRequestHandler, gateway: Gateway) -> Refusal | None:
        for name, value in self.headers.items():
            if handler.headers.get(name) != value:
                return 404, f"unknown realm {handler.headers.get(name)}"
        kind, _, token = handler.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer":
            return 401, "no token"
        try:
            key = keys(self.oauth).get_signing_key_from_jwt(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=["RS256"],
                issuer=self.oauth.issuer,
                options={"verify_aud": False},
            )
        except jwt.PyJWTError as error:
            return 401, f"Not authorized: {error}"
        gateway.tokens.add(token)
        if claims["sub"] == "reader" and handler.command not in ("GET", "HEAD"):
            return 403, "reader is not allowed to write"
        return None


_keys: dict[str, jwt.PyJWKClient] = {}


def keys(oauth: OAuthServer) -> jwt.PyJWKClient:
    return _keys.setdefault(oauth.jwks_uri, jwt.PyJWKClient(oauth.jwks_uri))


@contextmanager
def gateway(
    target: str,
    headers: Mapping[str, str],
    check: Callable[[BaseHTTPRequestHandler, Gateway], Refusal | None],
    answer: Callable[[BaseHTTPRequestHandler, bytes, Gateway], bytes] = lambda _, body, __: body,
    route: Callable[[str], str] = lambda path: path,
) -> Iterator[Gateway]:
    """
    :param headers: what the server itself asks for
    :param check: refuses a request
    :param answer: changes the body of a response
    :param route: changes the path of a request
    """
    session = requests.Session()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if refusal := check(self, found):
                status, message = refusal
                found.refused[status] += 1
                error = {"message": message, "type": "Refused", "code": status}
                content = {"error": error, "error_code": status * 100, "message": message}
                self.reply(status, json.dumps(content).encode())
                return
            kept = {k: v for k, v in self.headers.items() if k.lower() not in _HOP | _HIDDEN}
            try:
                response = session.request(
                    self.command, target + route(self.path), data=body, headers={**kept, **headers}
                )
            except requests.RequestException:  # as a load balancer whose target does not answer
                self.reply(503, b"")
                return
            content_type = response.headers.get("Content-Type", "application/json")
            text = answer(self, response.content, found) if response.ok else response.content
            self.reply(response.status_code, text, content_type)

        def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do

    with serving(Handler) as url:
        found = Gateway(url)
        yield found


@dataclass
class Store:
    """A proxy before the object store, which admits only the keys that it gave out."""

    url: str
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → requests."""
    _until: dict[str, float] = field(default_factory=dict)

    def vend(self, seconds: float) -> dict[str, str]:
        """Return new keys, as a catalog's response has them."""
        key, token = f"ASIA{uuid.uuid4().hex[:16].upper()}", uuid.uuid4().hex
        until = time.time() + seconds
        self._until[f"{key}/{token}"] = until
        return {
            "s3.endpoint": self.url,
            "s3.path-style-access": "true",
            "s3.access-key-id": key,
            "s3.secret-access-key": uuid.uuid4().hex,
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int(until * 1000)),
        }

    def refusal(self, headers: Message[str, str]) -> str | None:
        """Return the reason to refuse a request, as S3's code."""
        key = headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        until = self._until.get(f"{key}/{headers.get('X-Amz-Security-Token', '')}")
        if until is None:
            return "InvalidAccessKeyId"
        return "ExpiredToken" if until < time.time() else None


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yield the address of a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def catalog_gateway(
    stack: Endpoints,
    oauth: OAuthServer,
    seconds: float,
    realm: Mapping[str, str] | None = None,
    temporary: Store | None = None,
) -> Iterator[Gateway]:
    """The stack's Iceberg catalog by OAuth, which gives out the keys of the object store.

    :param seconds: how long the keys are valid
    :param temporary: gives out keys; None: the keys are the stack's own
    """
    check, answer = TokenCheck(oauth, realm or {}), _vending(stack, seconds, temporary)
    with gateway(stack.iceberg_rest, stack.iceberg_rest_headers(), check, answer) as found:
        yield found


def _vending(
    stack: Endpoints, seconds: float, temporary: Store | None = None
) -> Callable[[BaseHTTPRequestHandler, bytes, Gateway], bytes]:
    """Return what adds the keys of the object store to the responses that have a table."""
    assert stack.s3
    store = {
        "s3.endpoint": stack.s3,
        "s3.path-style-access": "true",
        "s3.access-key-id": stack.s3_access_key.get_secret_value(),
        "s3.secret-access-key": stack.s3_secret_key.get_secret_value(),
    }

    def answer(handler: BaseHTTPRequestHandler, body: bytes, found: Gateway) -> bytes:
        if handler.headers.get("X-Iceberg-Access-Delegation") != "vended-credentials":
            return body
        content = json.loads(body) if body else None
        if not isinstance(content, dict) or "metadata" not in content:
            return body
        expiry = {"s3.session-token-expires-at-ms": str(int((time.time() + seconds) * 1000))}
        content["config"] = {
            **(content.get("config") or {}),
            **(temporary.vend(seconds) if temporary else {**store, **expiry}),
        }
        found.vended[handler.headers.get("User-Agent", "?").partition("/")[0]] += 1
        return json.dumps(content).encode()

    return answer


@contextmanager
def polaris_gateway(
    stack: Endpoints, oauth: OAuthServer, external: str, namespace: str
) -> Iterator[Gateway]:
    """The stack's Iceberg catalog as a server of catalogs, as Apache Polaris is one: a catalog is
    the first part of a path, and an external one can only be read.

    https://github.com/apache/polaris, IcebergCatalogHandler: ``isStaticFacade``

    :param external: the catalog that has only the namespace; all other catalogs have the rest
    """
    admits, vend = TokenCheck(oauth), _vending(stack, 600)
    of_catalog = re.compile(r"^/v1/([^/]+)/namespaces(?:/([^/?]+))?")

    def check(handler: BaseHTTPRequestHandler, found: Gateway) -> Refusal | None:
        if refusal := admits(handler, found):
            return refusal
        if not (match := of_catalog.match(handler.path)):
            return None
        catalog, wanted = match.groups()
        if wanted and (unquote(wanted) == namespace) != (catalog == external):
            return 404, f"Namespace does not exist: {wanted}"
        reads = handler.command in ("GET", "HEAD") or handler.path.endswith("/metrics")
        if catalog == external and not reads:
            return 400, "Cannot create table on static-facade external catalogs."
        return None

    def answer(handler: BaseHTTPRequestHandler, body: bytes, found: Gateway) -> bytes:
        path, _, query = handler.path.partition("?")
        if path == "/v1/config":
            content = json.loads(body)
            content["overrides"] = {"prefix": parse_qs(query)["warehouse"][0]}
            content.pop("endpoints", None)  # they are without a prefix
            return json.dumps(content).encode()
        return vend(handler, body, found)

    with gateway(
        stack.iceberg_rest,
        stack.iceberg_rest_headers(),
        check,
        answer,
        route=lambda path: of_catalog.sub(lambda m: m[0].replace(f"/{m[1]}", "", 1), path),
    ) as found:
        yield found


@contextmanager
def registry_gateway(stack: Endpoints, oauth: OAuthServer) -> Iterator[Gateway]:
    """The stack's schema registry by OAuth."""
    base, slash, path = stack.schema_registry.partition("/apis")
    with gateway(base, {}, TokenCheck(oauth)) as found:
        found.url += slash + path
        yield found
