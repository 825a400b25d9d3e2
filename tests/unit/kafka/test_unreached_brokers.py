"""A broker that clients do not get to: the reason is in the error, and is not waited for."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import SecretStr

from topicberg.errors import CertificateError, LoginError, NotFoundError, UnreachableError
from topicberg.kafka import topics as kafka
from topicberg.logins import OAuthFields
from topicberg.logins.kafka import KafkaLogin


class Endpoints:
    """A broker at an address that is given."""

    kafka_login = KafkaLogin(auth="none", security_protocol="PLAINTEXT")

    def __init__(self, address: str = "127.0.0.1:9") -> None:
        self.kafka_bootstrap = address

    def kafka_config(self, *, writes: bool = False) -> dict[str, Any]:
        return {"bootstrap.servers": self.kafka_bootstrap, **self.kafka_login.librdkafka()}

    def kafka_listener(self, writes: bool = False) -> tuple[str, KafkaLogin]:
        return self.kafka_bootstrap, self.kafka_login


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 600.0)
    monkeypatch.setattr(kafka, "FAILING_SECONDS", 0.3)


def test_name_that_does_not_resolve_is_reported_before_the_deadline() -> None:
    with pytest.raises(NotFoundError) as raised:
        kafka.topic_id(cast("Any", Endpoints("kafka.invalid:9092")), "orders")
    assert raised.value.message == (
        "Kafka cannot be reached (describe topic orders): the host name kafka.invalid does not "
        "resolve"
    )


@pytest.mark.parametrize(
    ("name", "text", "kind", "says"),
    [
        (
            "_AUTHENTICATION",
            "sasl_ssl://a:1/bootstrap: SASL authentication error: Invalid username or password",
            LoginError,
            "the login to Kafka at 127.0.0.1:9 failed (none, describe topic orders): sasl_ssl://a",
        ),
        (
            "_SSL",
            "ssl://kafka:9093/bootstrap: SSL handshake failed: certificate has expired",
            CertificateError,
            "the certificate of kafka:9093 has expired",
        ),
        (
            "_SSL",
            "ssl://kafka:9093/bootstrap: SSL handshake failed: Disconnected: connecting to a "
            "PLAINTEXT broker listener?",
            CertificateError,
            "Kafka at kafka:9093 cannot be reached (describe topic orders): ssl://kafka:9093",
        ),
    ],
)
def test_reason_that_a_client_reports_is_in_the_error(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, kind: type[Exception], says: str
) -> None:
    error = KafkaError(getattr(KafkaError, name), text)

    class Client:
        account: Any = None

        def poll(self, _: float) -> None:
            self.account.error, self.account.failed_at = error, time.monotonic()

    client = Client()
    client.account = kafka._Account(cast("Any", client))
    monkeypatch.setattr(kafka, "_account_of", lambda *_: client.account)
    with pytest.raises(kind) as raised:
        kafka.result_of(Future(), cast("Any", Endpoints()), "describe topic orders")
    assert says in str(raised.value)
    assert isinstance(raised.value.__cause__, KafkaException)
    assert raised.value.__cause__.args[0].code() == error.code()


def test_silent_broker_hint_of_another_login_leaves_out_the_oauth_server() -> None:
    endpoints, silent = Endpoints(), Future[Any]()
    oauth = OAuthFields(token_uri="https://login.example/token")
    endpoints.kafka_login = KafkaLogin(
        auth="plain", api_key="key", api_secret=SecretStr("secret"), oauth=oauth
    )
    silent.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    with pytest.raises(UnreachableError, match="does not answer") as raised:
        kafka.result_of(silent, cast("Any", endpoints), "describe topic orders")
    assert "login.example" not in str(raised.value.hint)
