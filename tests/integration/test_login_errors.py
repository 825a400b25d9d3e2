"""What the command line says when an OAuth server or a catalog refuses: a line, no secret."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from gateways import serving
from project_copy import add_code
from repository import PROJECT_ROOT
from typer.testing import CliRunner, Result

from topicberg.cli import app
from topicberg.errors import TopicbergError
from topicberg.settings import settings

SECRET = "secret-of-the-client"
REFUSALS = {
    "secret": (401, "invalid_client", "Invalid client credentials"),
    "expired": (401, "invalid_client", "AADSTS7000222: The provided client secret is expired."),
    "scope": (400, "invalid_scope", "Invalid scopes: catalog"),
    "realm": (404, "Realm does not exist", ""),
    "down": (503, "temporarily_unavailable", ""),
}
"""Path of the token endpoint → status and body, as Keycloak and Entra answer."""


def token() -> str:
    """A JSON Web Token that nobody signed; librdkafka reads when it expires."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": "engine", "iat": now, "exp": now + 3600})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join(part.rstrip("=") for part in encoded) + ".c2ln"


class Handler(BaseHTTPRequestHandler):
    """An OAuth server by POST, and a catalog and a registry that refuse by GET."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/ok":
            self.reply(200, {"access_token": token(), "expires_in": 60, "token_type": "Bearer"})
            return
        status, code, text = REFUSALS[self.path.strip("/")]
        self.reply(status, {"error": code, "error_description": text} if text else {"error": code})

    def do_GET(self) -> None:
        if self.path.startswith("/registry"):
            self.reply(403, {"error_code": 40301, "message": "User is denied operation Read"})
        elif self.path.startswith("/unknown"):
            self.reply(401, {"error": {"message": "expired", "type": "Refused", "code": 401}})
        elif "/config" in self.path:
            self.reply(200, {"defaults": {}, "overrides": {}})
        else:
            error = {"message": "engine may not LOAD_TABLE", "type": "Refused", "code": 403}
            self.reply(403, {"error": error})

    do_HEAD = do_GET

    def reply(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


Run = Callable[..., tuple[Result, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(Handler) as url:
        yield url


@pytest.fixture
def run(
    server: str, monkeypatch: pytest.MonkeyPatch, impatient_kafka: None, tmp_path: Path
) -> Iterator[Run]:
    """``run(*words, **settings)``: the result of a command, and what an operator reads of it."""
    for name in ("topics/stock_trades.yaml", "schemas/stock_trades.avsc"):
        (tmp_path / "platform" / name).parent.mkdir(parents=True)
        shutil.copy(PROJECT_ROOT / "platform" / name, tmp_path / "platform" / name)
    shutil.copy(PROJECT_ROOT / "dagster.yaml", tmp_path)
    add_code(tmp_path)
    given = {
        "DEPLOYMENT": "cloud",
        "TABLEFLOW": "topicberg",
        "CLUSTER_ID": "company",
        "BUCKET": "lake-bucket",
        "DERIVED_BUCKET": "derived-bucket",
        "PROJECT_ROOT": str(tmp_path),
        "STATE_DIR": str(tmp_path / "state"),
        "SPARK_REMOTE": "sc://127.0.0.1:9",
        "S3_ENDPOINT": "http://127.0.0.1:9",
        "SNOWFLAKE_ACCOUNT": "a",
        "SNOWFLAKE_USER": "u",
        "SNOWFLAKE_PASSWORD": SECRET,
        "KAFKA_BOOTSTRAP": "127.0.0.1:9",
        "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_OAUTH__SCOPE": "kafka",
        "SCHEMA_REGISTRY_URL": f"{server}/registry",
        "ICEBERG_REST_URI": f"{server}/catalog",
        "ICEBERG_REST_DELEGATION": "vended-credentials",
    }
    for service in ("KAFKA", "SCHEMA_REGISTRY", "ICEBERG_REST"):
        given |= {
            f"{service}_OAUTH__CLIENT_ID": "engine",
            f"{service}_OAUTH__CLIENT_SECRET": SECRET,
        }
        given[f"{service}_OAUTH__TOKEN_URI"] = f"{server}/ok"

    def invoke(*words: str, **changes: str) -> tuple[Result, str]:
        for name, value in (given | changes).items():
            monkeypatch.setenv(f"TOPICBERG_{name}", value)
        settings.cache_clear()
        found = CliRunner().invoke(app, list(words))
        text = found.output
        if found.exception and not isinstance(found.exception, SystemExit):
            assert isinstance(found.exception, TopicbergError), found.exception
            text += str(found.exception)
        assert SECRET not in text
        assert "Traceback" not in text
        return found, text

    yield invoke
    settings.cache_clear()


QUERY = ("query", "SELECT count(*) FROM stock_trades")


@pytest.mark.parametrize(
    ("fault", "said", "hint"),
    [
        ("secret", "invalid_client: Invalid client credentials", "_CLIENT_SECRET"),
        ("expired", "secret is expired", "_CLIENT_SECRET"),
        ("scope", 'invalid_scope: Invalid scopes: catalog (scope "catalog")', "_SCOPE"),
        ("realm", "Realm does not exist", "_HEADERS"),
        ("down", "fails with status 503", "_TOKEN_URI"),
    ],
)
def test_oauth_server_that_refuses_is_named(
    run: Run, server: str, fault: str, said: str, hint: str
) -> None:
    of_catalog = {"ICEBERG_REST_OAUTH__TOKEN_URI": f"{server}/{fault}"}
    of_registry = {"SCHEMA_REGISTRY_OAUTH__TOKEN_URI": f"{server}/{fault}"}
    for words, changes, prefix in (
        (QUERY, of_catalog, "ICEBERG_REST"),
        (("env",), of_catalog, "ICEBERG_REST"),
        (("tableflow", "status"), of_registry, "SCHEMA_REGISTRY"),
    ):
        _, text = run(*words, **changes)
        assert f"the OAuth server {server}/{fault}" in text, words
        if prefix == "ICEBERG_REST" or fault != "scope":
            assert said in text, words
        assert f"TOPICBERG_{prefix}" in text, words
        assert hint in text or fault == "realm", words


@pytest.mark.parametrize(
    ("path", "said", "hint"),
    [
        ("catalog", "refuses to read: {url}/catalog: engine may not LOAD_TABLE (403)", "grant"),
        ("unknown", "refuses the login: {url}/unknown", "_OAUTH"),
    ],
)
def test_catalog_that_refuses_a_query_is_named(
    run: Run, server: str, path: str, said: str, hint: str
) -> None:
    _, text = run(*QUERY, ICEBERG_REST_URI=f"{server}/{path}")
    assert said.format(url=server) in text
    assert hint in text


def test_registry_that_refuses_is_reported_beside_the_status(run: Run) -> None:
    found, text = run("tableflow", "status")
    assert found.exit_code == 0
    assert "the schema registry refuses the login" in text
    assert "TOPICBERG_SCHEMA_REGISTRY_URL" in text


@pytest.mark.parametrize("fault", ["secret", "expired", "scope", "realm", "down"])
def test_kafka_without_a_token_names_the_oauth_server(run: Run, server: str, fault: str) -> None:
    _, text = run("peek", "stock_trades", KAFKA_OAUTH__TOKEN_URI=f"{server}/{fault}")
    assert f"the OAuth server {server}/{fault}" in text
    if fault != "down":
        _, code, reason = REFUSALS[fault]
        assert code in text
        assert reason in text
        assert "TOPICBERG_KAFKA_OAUTH__CLIENT_SECRET" in text


def test_env_of_the_cloud_has_a_token_that_expires(run: Run, server: str) -> None:
    found, text = run("env")
    assert found.exit_code == 0
    assert f"export ICEBERG_REST_URI={server}/catalog" in text
    assert "export ICEBERG_REST_TOKEN=ey" in text
