"""Kafka and the registry of a stack: the user's clients need an address, all others get nothing."""

from __future__ import annotations

import json
import uuid
from http.client import HTTPConnection

import pytest
import requests
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from other_user import as_other_user, needs_users
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg_local.state import credentials, load_ports

pytestmark = pytest.mark.integration
KAFKA = (
    *("kafka", "kafka_own", "kafka_proxied", "kafka_keys", "kafka_controller"),
    "confluent_kafka",
)
REGISTRY = ("schema_registry", "schema_registry_server")


@needs_users
def test_another_user_gets_nothing_of_kafka(stack: Endpoints) -> None:
    """Not at any listener, without a login and with a wrong one."""
    ports = [load_ports(settings())[name] for name in KAFKA]
    found = as_other_user(
        f"""
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
wrong = {{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
          "sasl.username": "topicberg", "sasl.password": "wrong"}}
for port in {ports!r}:
    for login in ({{}}, wrong):
        address = {{"bootstrap.servers": f"127.0.0.1:{{port}}", "log_level": 0}}
        client = AdminClient(address | login)
        try:
            client.list_topics(timeout=2)
            print("open")
        except KafkaException:
            print("closed")
""",
        "confluent_kafka.admin",
    )
    assert found.split() == ["closed"] * 2 * len(KAFKA)


@needs_users
def test_another_user_gets_nothing_of_the_registry(stack: Endpoints) -> None:
    """Not at any port, path and method."""
    ports = [load_ports(settings())[name] for name in REGISTRY]
    found = as_other_user(
        f"""
from http.client import HTTPConnection
for port in {ports!r}:
    for method, path in (
        ("GET", "/apis/ccompat/v7/subjects"), ("POST", "/apis/ccompat/v7/subjects/x/versions"),
        ("GET", "/apis/registry/v3/groups"), ("PUT", "/apis/ccompat/v7/config"),
        ("DELETE", "/apis/ccompat/v7/subjects/x"), ("GET", "//apis/ccompat/v7/subjects"),
    ):
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, b"{{}}", {{"Content-Type": "application/json"}})
            print(connection.getresponse().status)
        except OSError:
            print("closed")
""",
        "http.client",
    )
    assert set(found.split()) <= {"closed", "401", "404"}
    assert found.split()[:6] == ["closed"] * 6


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_web_page_gets_nothing_of_the_registry(
    stack: Endpoints, method: str, headers: dict[str, str]
) -> None:
    url = f"{stack.schema_registry}/subjects"
    answer = requests.request(method, url, headers=headers, timeout=20)
    assert answer.status_code == 403
    assert "stock_trades" not in answer.text


def test_own_client_needs_an_address_only(stack: Endpoints) -> None:
    """Records up to the broker's limit arrive unchanged, in transactions too."""
    address, topic = {"bootstrap.servers": stack.kafka_bootstrap}, f"proxied_{uuid.uuid4().hex[:8]}"
    admin = stack.kafka_admin()
    admin.create_topics([NewTopic(topic, 2)])[topic].result(30)
    values = [bytes([n]) * size for n, size in enumerate((0, 1, 1_000, 1_000_000, 8_000_000))]
    producer = Producer(
        address | {"transactional.id": topic, "message.max.bytes": 8_388_608, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=len(value) % 2)
    producer.commit_transaction(60)
    consumer = Consumer(address | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < len(values):
        message = consumer.poll(30)
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    assert sorted(found, key=len) == values
    admin.delete_topics([topic])[topic].result(30)


def test_listeners_behind_the_proxy_ask_for_a_login(stack: Endpoints) -> None:
    """Also the user's own processes, which a web page or a container may have led there."""
    ports = load_ports(settings())
    for name in KAFKA[1:]:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[name]}"})
        with pytest.raises(KafkaException):
            client.list_topics(timeout=2)
    answer = requests.get(
        f"http://127.0.0.1:{ports['schema_registry_server']}/apis/ccompat/v7/subjects",
        headers={"Authorization": "Bearer a.b.c"},
        timeout=20,
    )
    assert answer.status_code == 401


def test_registry_answers_as_without_a_proxy(stack: Endpoints) -> None:
    """Status, body and type, whatever the form of the request."""
    ports, token = load_ports(settings()), credentials(settings()).registry_login.headers()
    schema = json.dumps({"schema": '"string"', "note": "é" * 3}).encode()
    subject = f"proxied-{uuid.uuid4().hex[:8]}"
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    for method, path, body, headers in (
        ("POST", f"/subjects/{subject}/versions", schema, kind),
        ("POST", f"/subjects/{subject}/versions", iter([schema[:9], schema[9:]]), kind),
        ("POST", f"/subjects/{subject}/versions", b"{", kind),
        ("GET", f"/subjects/{subject}%2Fx/versions?deleted=true", None, {}),
        ("GET", f"/subjects/{subject}/versions", None, {"Accept-Encoding": "gzip"}),
        ("HEAD", f"/subjects/{subject}/versions/1", None, {}),
        ("GET", "/schemas/ids/2147483647", None, {}),
        ("DELETE", f"/subjects/{subject}", None, {}),
    ):
        found: list[tuple[int, bytes, str | None]] = []
        for port, login in (
            (ports["schema_registry"], {}),
            (ports["schema_registry_server"], token),
        ):
            if method == "DELETE" and found:
                continue
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            sent = iter([schema[:9], schema[9:]]) if not isinstance(body, bytes | None) else body
            connection.request(method, "/apis/ccompat/v7" + path, sent, headers | login)
            answer = connection.getresponse()
            found.append((answer.status, answer.read(), answer.headers["content-type"]))
        assert found[0] == found[-1], (method, path)
        assert found[0][0] != 401, (method, path)


def test_commands_print_no_password(stack: Endpoints) -> None:
    secrets = credentials(settings())
    hidden = [
        secrets.kafka_password.get_secret_value(),
        *secrets.registry_login.headers()["Authorization"].split()[1:],
    ]
    for command in (["status", "--json"], ["env"]):
        shown = CliRunner().invoke(app, command).output
        assert stack.kafka_bootstrap in shown
        assert not any(secret in shown for secret in hidden)
