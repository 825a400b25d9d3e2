"""What the catalog's client does when the catalog refuses a request, and with keys that expire."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from moto import mock_aws
from pydantic import SecretStr

from topicberg.clients.catalog import CatalogRefusalError, MissingMetadataError
from topicberg.clients.file_io import VendedFileIO
from topicberg.endpoints import LakeEndpoints
from topicberg.errors import LoginError
from topicberg.errors.meaning import classify, explained
from topicberg.iceberg.tables import find_table
from topicberg.logins.catalog import CatalogLogin, RestCatalog, role_session
from topicberg.logins.oauth import OAuthClient
from topicberg.settings import Settings

SECRET = "correct-horse-battery"


class Server:
    """A catalog that knows its configuration, and otherwise refuses."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 401
        self.message, self.kind = "the token is not valid", "Refused"
        self.clock_seconds = 0.0
        self.tokens: list[str] = []

    def catalog(self, **login: Any) -> Any:
        given = CatalogLogin(**login)
        return LakeEndpoints(iceberg_rest=self.url, iceberg_login=given).catalog(Settings())


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ok = "/config" in self.path
            error = {"message": found.message, "type": found.kind, "code": found.status}
            config = {"defaults": {}, "overrides": {}, "access_token": "token"}
            body = json.dumps(config if ok else {"error": error})
            if not ok:
                found.tokens.append(self.headers["Authorization"])
            self.send_response_only(200 if ok else found.status)
            self.send_header("Date", formatdate(time.time() + found.clock_seconds, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield found
        http.shutdown()
        thread.join()


def test_table_whose_metadata_file_is_missing_was_not_dropped(server: Server) -> None:
    """Else the checks would say that it was not created yet, and that Glue has a dropped one."""
    file = "s3://lake/shop/orders/metadata/00216-c3409052.metadata.json"
    server.status, server.kind = 404, "NotFoundException"
    server.message = f"Location does not exist: {file}"
    with pytest.raises(MissingMetadataError) as caught:
        find_table(server.catalog(), ("shop", "orders"))
    assert caught.value.message == (
        f"table shop.orders: its metadata file is missing in the object store: {file}"
    )
    server.kind, server.message = "NoSuchTableException", "Table does not exist: shop.orders"
    assert find_table(server.catalog(), ("shop", "orders")) is None


CLIENT = {"client_id": "engine", "client_secret": SECRET, "token_uri": "http://idp.example/token"}
OAUTH = {"oauth": CLIENT}


def test_token_refused_by_catalog_is_replaced_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(("config", "first", "second", "third"))
    held = [next(tokens)]
    monkeypatch.setattr(OAuthClient, "token", lambda _: held[0])
    monkeypatch.setattr(
        OAuthClient, "discard", lambda _, token: held.__setitem__(0, next(tokens)) if token else 0
    )
    catalog = server.catalog(**OAUTH)
    with pytest.raises(CatalogRefusalError) as refused:
        catalog.load_table(("shop", "orders"))
    assert server.tokens == ["Bearer config", "Bearer first"]
    assert "the catalog refuses the login" in refused.value.message
    assert server.url in refused.value.message
    assert "the token is not valid (401)" in refused.value.message
    assert "TOPICBERG_ICEBERG_REST_OAUTH (scope" in str(refused.value.hint)
    assert classify(refused.value) is None


@pytest.mark.parametrize(
    ("status", "meant"), [(401, "TOPICBERG_CATALOG (scope"), (403, "TOPICBERG_CATALOG the right")]
)
def test_topics_catalog_refusal_names_its_settings(server: Server, status: int, meant: str) -> None:
    given: Any = {**CLIENT, "token_uri": f"{server.url}/config"}
    login = RestCatalog(uri=server.url, name="lake", **given).login("lake", vends=False)
    server.status = status
    endpoints = LakeEndpoints(iceberg_rest=server.url, iceberg_login=login)
    with pytest.raises(CatalogRefusalError) as refused:
        endpoints.catalog(Settings()).load_namespace_properties("shop")
    assert meant in str(refused.value.hint)
    assert login.oauth_client().prefix == "TOPICBERG_CATALOG_"


def test_clock_that_differs_is_named(server: Server) -> None:
    server.clock_seconds = -600
    with pytest.raises(CatalogRefusalError) as refused:
        server.catalog(token=SECRET).load_table(("shop", "orders"))
    assert re.search("its clock is -(599|60[01]) s from this machine's", refused.value.message)
    assert "NTP" in str(refused.value.hint)
    assert SECRET not in str(refused.value)


def test_missing_permission_names_the_object(server: Server) -> None:
    server.status, server.message = 403, "principal engine may not TABLE_READ_DATA"
    catalog = server.catalog(token=SECRET)
    with pytest.raises(LoginError) as refused, explained("topic orders"):
        catalog.load_table(("shop", "orders"))
    assert "namespaces/shop/tables/orders" in refused.value.message
    assert "may not TABLE_READ_DATA (403)" in refused.value.message
    assert len(server.tokens) == 1


def test_expired_signature_is_a_matter_of_the_login(server: Server) -> None:
    server.status, server.message = 403, "Signature expired: 20260101T000000Z"
    with pytest.raises(CatalogRefusalError, match="refuses the login"):
        server.catalog(token=SECRET).load_table(("shop", "orders"))


def test_vended_keys_are_renewed_before_they_expire() -> None:
    def keys(name: str, seconds: float) -> dict[str, str]:
        return {
            "s3.access-key-id": name,
            "s3.secret-access-key": "x",
            "s3.region": "eu-west-1",
            "s3.session-token-expires-at-ms": str(int((time.time() + seconds) * 1000)),
        }

    io = VendedFileIO(keys("first", 900))
    renewed: list[int] = []

    def renew() -> dict[str, str]:
        renewed.append(1)
        return keys("second", 900)

    io.renew = renew
    first = io.fs_by_scheme("s3", "bucket")
    assert io.fs_by_scheme("s3", "bucket") is first
    assert not renewed
    io._renew_at = time.time() - 1
    assert io.fs_by_scheme("s3", "bucket") is not first
    assert io.properties["s3.access-key-id"] == "second"
    io.fs_by_scheme("s3", "bucket")
    assert len(renewed) == 1


def test_oauth_secret_is_not_a_property_of_the_catalog(server: Server) -> None:
    """PyIceberg copies the properties of a catalog into those of each table's files."""
    client = OAuthClient(**{**CLIENT, "client_secret": SecretStr(SECRET)})
    assert SECRET not in str(CatalogLogin(**OAUTH).pyiceberg("eu-west-1"))
    assert SECRET not in repr(client)


@mock_aws
def test_role_signs_the_requests(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own-key-of-the-process")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    role_session.cache_clear()
    role = "arn:aws:iam::123456789012:role/lake"
    login = CatalogLogin(auth="sigv4", signing="s3tables", role_arn=role)
    lake = LakeEndpoints(iceberg_rest=server.url, iceberg_login=login)
    catalog = lake.catalog(Settings(aws_region="eu-west-1"))
    with pytest.raises(CatalogRefusalError):
        catalog.load_table(("shop", "orders"))
    (signature,) = server.tokens
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=ASIA")
    assert "/eu-west-1/s3tables/aws4_request" in signature
    session, renew_at = login.spark("eu-west-1")
    assert session["rest.access-key-id"].startswith("ASIA")
    assert session["rest.session-token"]
    assert renew_at is not None
    assert SECRET not in str(session)
    role_session.cache_clear()
