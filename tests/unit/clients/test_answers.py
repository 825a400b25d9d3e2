"""Clients of a service that answers "200 OK" with an unexpected response raise one clear error."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError
from pydantic import SecretStr

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.session import ask, logging_in, parsed
from topicberg.clients.answers import AnswerError, UnknownNamesError, VendorAnswer, answered
from topicberg.clients.confluent import Api, GarbledError, UncertainError
from topicberg.clients.registry import registry_errors
from topicberg.clients.secrets import Secrets
from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.errors.meaning import classify, means
from topicberg.errors.table import UNANSWERED, UNREACHABLE
from topicberg.formats.registry import SubjectReader
from topicberg.settings import Settings

LIES = {
    "other JSON": b'{"here": "is", "nothing": ["of", "use"]}',
    "a list": b'[{"here": "is"}]',
    "a number": b"17",
    "half of a body": b'{"Table": {"Name": "orders", "Par',
    "HTML": b"<html><body>Please log in</body></html>",
    "no UTF-8": b"\xff\xfe\x00\xd8",
    "half of a gzip": gzip.compress(b'{"data": []}')[:12],
}


@dataclass
class Liar:
    """Answers every request with the same bytes."""

    body: bytes = b""
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        liar = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                liar.requests.append(f"{self.command} {self.path}")
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(liar.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(liar.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.http.server_port)

    @property
    def endpoints(self) -> Endpoints:
        url = f"http://127.0.0.1:{self.port}"
        return Endpoints(
            kafka_bootstrap="127.0.0.1:1",
            schema_registry=url,
            s3=url,
            s3_access_key=SecretStr("key"),
            s3_secret_key=SecretStr("secret"),
            iceberg_rest=url,
            spark_connect="sc://127.0.0.1:1",
            aws=url,
            aws_access_key=SecretStr("key"),
            aws_secret_key=SecretStr("secret"),
            snowflake=SnowflakeEndpoint(
                account="a",
                user="u",
                password=SecretStr("p"),
                host="127.0.0.1",
                port=self.port,
                protocol="http",
            ),
        )


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Iterator[Liar]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    liar = Liar()
    yield liar
    liar.http.shutdown()
    liar.http.server_close()


@pytest.fixture(params=LIES)
def lie(request: pytest.FixtureRequest, liar: Liar) -> str:
    liar.body = LIES[request.param]
    return str(request.param)


def refused(work: Callable[[], Any], *names: str) -> AnswerError:
    """The one clear error: it names the service and operation, has a hint, and is retried."""
    with pytest.raises(AnswerError) as caught:
        work()
    error = caught.value
    for name in (*names, "unexpected response, expected"):
        assert name in error.message
    assert "\n" not in error.message
    assert error.hint
    assert classify(error) is UNREACHABLE
    return error


@pytest.mark.usefixtures("lie")
def test_glue(liar: Liar) -> None:
    client = liar.endpoints.boto3("glue", Settings())
    error = refused(lambda: glue.get_table(client, "lake", "orders"), "Glue GetTable")
    assert means(error, UNANSWERED)
    pages = client.get_paginator("get_tables")
    refused(lambda: list(pages.paginate(DatabaseName="lake")), "Glue GetTables")


@pytest.mark.usefixtures("lie")
def test_secrets(liar: Liar) -> None:
    """It is not taken for a secret that is not there: another key would be made."""
    secrets = Secrets(liar.endpoints.boto3("secretsmanager", Settings()))
    refused(lambda: secrets.read("topicberg/key"), "Secrets Manager GetSecretValue")


@pytest.mark.usefixtures("lie")
def test_iam_and_sts(liar: Liar) -> None:
    """These answer in XML."""
    iam, sts = (liar.endpoints.boto3(name, Settings()) for name in ("iam", "sts"))
    refused(lambda: iam.get_role(RoleName="reader")["Role"], "IAM GetRole")
    refused(lambda: sts.get_caller_identity()["Account"], "STS GetCallerIdentity")


def test_other_xml(liar: Liar) -> None:
    liar.body = b"<html><body>Please log in</body></html>"
    sts = liar.endpoints.boto3("sts", Settings())
    refused(lambda: sts.get_caller_identity()["Account"], "STS GetCallerIdentity")


def test_what_aws_leaves_out(liar: Liar) -> None:
    """An object without fields is an answer: nothing is known."""
    liar.body = b"{}"
    client = liar.endpoints.boto3("glue", Settings())
    assert client.get_tables(DatabaseName="lake").get("TableList") is None
    refused(lambda: glue.get_table(client, "lake", "orders"), "Glue GetTable", "'Table'")
    client.create_database(DatabaseInput={"Name": "lake"})


@pytest.mark.usefixtures("lie")
def test_catalog(liar: Liar) -> None:
    refused(
        lambda: liar.endpoints.catalog(Settings()).load_table(("lake", "orders")), "Iceberg catalog"
    )


def test_catalog_that_lies_later(liar: Liar) -> None:
    liar.body = b'{"defaults": {}, "overrides": {}}'
    catalog = liar.endpoints.catalog(Settings())
    for liar.body in LIES.values():
        refused(lambda: catalog.load_table(("lake", "orders")), "GET /v1/namespaces/lake/tables/")
        refused(lambda: catalog.list_tables("lake"), "GET /v1/namespaces/lake/tables")


@pytest.mark.usefixtures("lie")
def test_schema_registry(liar: Liar) -> None:
    """The topic is not suspended for it: that would be a schema it cannot take."""
    registry = liar.endpoints.schema_registry_client()
    refused(lambda: SubjectReader(registry).read("orders-value"), "subject orders-value")

    def latest() -> None:
        with registry_errors("subject orders-value"):
            registry.get_versions("orders-value")

    if liar.body.startswith((b"<", b"\xff", b"\x1f")):
        refused(latest, "subject orders-value")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (500, "the schema registry fails (subject orders-value): the store is gone (500)"),
        (503, "the schema registry does not answer (subject orders-value): 503 from the proxy"),
        (401, "the schema registry refuses the login (subject orders-value)"),
        (422, "the schema registry refused subject orders-value: the store is gone (422)"),
    ],
)
def test_schema_registry_that_refuses_or_fails_is_said_with_a_hint(status: int, says: str) -> None:
    with pytest.raises(TopicbergError) as caught, registry_errors("subject orders-value"):
        raise SchemaRegistryError(status, 50001, "the store is gone")
    assert caught.value.message.startswith(says)
    assert isinstance(caught.value, UnreachableError) == (status >= 500)
    assert bool(caught.value.hint) == (status != 422)


def test_a_post_whose_answer_is_garbled_is_not_repeated(liar: Liar) -> None:
    liar.body = LIES["HTML"]
    api = Api(f"http://127.0.0.1:{liar.port}", "KEY", SecretStr("s3cret"), sleep=lambda _: None)
    with pytest.raises(GarbledError) as caught:
        api.post("/iam/v2/api-keys", {})
    assert isinstance(caught.value, UncertainError)
    assert liar.requests == ["POST /iam/v2/api-keys"]


def test_create_needs_the_object_in_the_response(liar: Liar) -> None:
    """Of an API key, say: its secret is in no other response."""
    liar.body = b""
    api = Api(f"http://127.0.0.1:{liar.port}", "KEY", SecretStr("s3cret"), sleep=lambda _: None)
    with pytest.raises(UncertainError, match="unexpected response, expected an object"):
        api.create("/iam/v2/api-keys", {})
    assert liar.requests == ["POST /iam/v2/api-keys"]


@pytest.mark.parametrize("body", [LIES["other JSON"], LIES["a list"], LIES["a number"]])
def test_snowflake_login(liar: Liar, body: bytes) -> None:
    import snowflake.connector

    liar.body = body

    def log_in() -> None:
        with logging_in():
            account = liar.endpoints.snowflake
            snowflake.connector.connect(
                account=account.account,
                user=account.user,
                **account.connector_login(),
                host=account.host,
                port=account.port,
                protocol=account.protocol,
                login_timeout=5,
            )

    refused(log_in, "Snowflake (login)")


@pytest.mark.parametrize("value", [None, "", "<html>", "[]", "17", '{"metadata'])
def test_snowflake_functions(value: object) -> None:
    refused(lambda: parsed(value, "SELECT SYSTEM$X()"), "SELECT SYSTEM$X()", "an object of JSON")
    with pytest.raises(UnknownNamesError, match="'success'; it has here") as caught:
        parsed('{"here": "is"}', "SELECT SYSTEM$X()")["success"]
    assert "the command resumes where it stopped" in str(caught.value.hint)


def test_errors_of_our_own_pass() -> None:
    def work() -> None:
        with answered("Snowflake (SELECT 1)", "rows", "snowflake.connector"):
            raise KeyError("ours")

    with pytest.raises(KeyError):
        work()
    with pytest.raises(ZeroDivisionError):
        ask(Broken(), "SELECT 1")  # type: ignore[arg-type]


class Broken:
    def cursor(self) -> None:
        raise ZeroDivisionError


def test_answer_is_a_dict() -> None:
    found = VendorAnswer({"a": 1}, "Glue GetTable")
    assert found == {"a": 1}
    assert found.get("b") is None
    assert "b" not in found
