"""Servers that are not found or not trusted: named, with the cause and a fix."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import requests
from confluent_kafka.schema_registry.error import SchemaRegistryError
from httpx2 import ConnectError, Request
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from real_servers import certificates

from topicberg.clients.registry import registry_errors
from topicberg.errors import (
    CertificateError,
    LoginError,
    NotFoundError,
    ThrottledError,
    TopicbergError,
)
from topicberg.errors.connections import connection_error
from topicberg.errors.meaning import classify, explain, to_report
from topicberg.errors.table import THROTTLED, UNRESOLVED
from topicberg.settings import settings
from topicberg.spark import check_spark

URLLIB = (
    "HTTPConnectionPool(host='catalog.invalid', port=8181): Max retries exceeded with url: "
    "/v1/config (Caused by NameResolutionError(\"HTTPConnection(host='catalog.invalid', "
    "port=8181): Failed to resolve 'catalog.invalid' ([Errno -2] Name or service not known)\"))"
)
CURL = "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: "


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOPICBERG_DEPLOYMENT", "cloud")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


@pytest.mark.parametrize(
    ("service", "text", "host", "setting"),
    [
        ("Iceberg's catalog", URLLIB, "catalog.invalid", "TOPICBERG_ICEBERG_REST_URI"),
        (
            "the object store",
            f"{CURL}6, Could not resolve hostname; Details: Could not resolve host: s3.invalid",
            "s3.invalid",
            "TOPICBERG_S3_ENDPOINT",
        ),
        (
            "Kafka",
            "kafka.invalid:9092/bootstrap: Failed to resolve 'kafka.invalid:9092': Name or service "
            "not known (after 20ms in state CONNECT)",
            "kafka.invalid",
            "TOPICBERG_KAFKA_BOOTSTRAP",
        ),
        (
            "Iceberg's catalog",
            "(org.apache.iceberg.exceptions.RESTException) Caused by: "
            "java.net.UnknownHostException: catalog.invalid: Name or service not known",
            "catalog.invalid",
            "TOPICBERG_ICEBERG_REST_URI",
        ),
        (
            "Spark",
            "DNS resolution failed for spark.invalid:15002: C-ares status is not ARES_SUCCESS",
            "spark.invalid",
            "TOPICBERG_SPARK_REMOTE",
        ),
    ],
)
@pytest.mark.usefixtures("cloud")
def test_name_that_does_not_resolve_is_named(
    service: str, text: str, host: str, setting: str
) -> None:
    error = connection_error(service, text)
    assert isinstance(error, NotFoundError)
    assert error.message == f"{service} cannot be reached: the host name {host} does not resolve"
    assert setting in (error.hint or "")
    assert classify(error) == UNRESOLVED


EXPIRED, UNTRUSTED, OTHER = "has expired", "is not trusted", "is of another host name"
VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        (f"{VERIFY}certificate has expired (_ssl.c:1006)", EXPIRED, "renew"),
        (f"{VERIFY}certificate is not yet valid (_ssl.c:1006)", "is not valid yet", "clock"),
        (f"{VERIFY}self-signed certificate in certificate chain (_ssl.c:1)", UNTRUSTED, "CA_FILE"),
        (f"{VERIFY}unable to get local issuer certificate (_ssl.c:1)", UNTRUSTED, "CA_FILE"),
        (f"{VERIFY}Hostname mismatch, certificate is not valid for 'a'", OTHER, "host name"),
        ("SSL validation failed for https://a/ hostname 'a' doesn't match 'b'", OTHER, "host name"),
        (
            f"{CURL}60, SSL peer certificate or SSH remote key was not OK; Details: SSL certificate"
            " OpenSSL verify result: certificate has expired (10)",
            EXPIRED,
            "renew",
        ),
        (
            "javax.net.ssl.SSLHandshakeException: PKIX path building failed: unable to find valid "
            "certification path to requested target",
            UNTRUSTED,
            "CA_FILE",
        ),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1)", "does not use TLS", "port"),
        (
            "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required",
            "refuses the certificate of this client",
            "client's certificate",
        ),
    ],
)
def test_certificate_that_is_not_accepted_is_explained(text: str, reason: str, fix: str) -> None:
    error = connection_error("the schema registry", text, where="orders", address="registry:443")
    assert isinstance(error, CertificateError)
    assert error.message.startswith("the schema registry cannot be reached (orders): ")
    assert reason in error.message
    assert "registry:443" in error.message or "https://a" in text
    assert fix in (error.hint or "")
    assert classify(error) is None, "no retry resolves it"


@pytest.mark.parametrize(
    "text",
    [
        "Connection refused",
        "the schema doesn't match",
        "Read timed out",
        "SSL_ERROR_SYSCALL",
        "certificates.parquet: AWS Error ACCESS_DENIED during HeadObject operation",
        "SSLHandshakeException: Received fatal alert: internal_error",
    ],
)
def test_other_failures_are_left_to_others(text: str) -> None:
    assert connection_error("Kafka", OSError(text)) is None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server with TLS whose certificate has expired, and the authority that signed it."""
    files = certificates(tmp_path, timedelta(days=2))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.broker)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", files.authority


def test_reason_that_a_client_withholds_is_read_from_the_server(server: tuple[str, Path]) -> None:
    address, authority = server
    text = "SSL handshake failed: certificate verify failed: broker certificate could not be …"
    error = connection_error("Kafka", text, address=address, authority=authority)
    assert error.message == f"Kafka cannot be reached: the certificate of {address} has expired"


def test_registry_and_spark_whose_names_do_not_resolve_are_named() -> None:
    failed = ConnectError("[Errno -2] Name or service not known")
    failed.request = Request("GET", "http://registry.invalid:8081/subjects")
    with pytest.raises(NotFoundError) as raised, registry_errors("subject orders-value"):
        raise failed
    assert raised.value.message == (
        "the schema registry cannot be reached (subject orders-value): the host name "
        "registry.invalid does not resolve"
    )
    with pytest.raises(NotFoundError, match=r"Spark .* spark\.invalid does not resolve"):
        check_spark("sc://spark.invalid:15002", timeout=1)


def test_error_of_a_turn_names_the_host() -> None:
    error = explain(
        "topic orders", OSError(f"{CURL}6; Details: Could not resolve host: s3.invalid")
    )
    assert isinstance(error, NotFoundError)
    assert error.message == (
        "topic orders: the object store cannot be reached: the host name s3.invalid does not "
        "resolve"
    )


def test_server_behind_spark_is_not_called_spark() -> None:
    error = SparkConnectGrpcException("java.net.UnknownHostException: s3.invalid")
    client = {"__name__": "pyspark.sql.connect"}
    exec("def fail(error):\n    raise error", client)  # noqa: S102  raised by a module of PySpark
    with pytest.raises(SparkConnectGrpcException) as raised:
        client["fail"](error)  # type: ignore[operator]
    found = to_report(raised.value)
    assert str(found).startswith("a server that Spark uses cannot be reached: the host name s3.inv")


def test_text_of_a_user_is_not_taken_for_a_server() -> None:
    error = requests.ConnectionError(URLLIB)
    assert to_report(error) is error, "not raised by a client that is known"


def test_password_with_a_slash_is_not_taken_for_the_host() -> None:
    text = "certificate has expired: https://user:se/cret@registry.example:8443/subjects"
    error = connection_error("the schema registry", OSError(text), where="orders")
    assert "registry.example:8443" in error.message
    assert "se/cret" not in str(error)
    assert "user" not in str(error)


def test_registry_that_throttles_is_asked_again() -> None:
    with pytest.raises(ThrottledError) as raised, registry_errors("orders-value"):
        raise SchemaRegistryError(429, 42901, "too many requests")
    assert classify(raised.value) is THROTTLED


def test_refused_login_is_not_retried_whatever_caused_it() -> None:
    cause = ConnectionResetError("the broker ends the connection")
    refused = LoginError("the login to Kafka failed")
    refused.__cause__ = cause
    outer = TopicbergError("the run failed")
    outer.__cause__ = refused
    assert classify(outer) is None
