"""A stack whose Kafka and registry ask for a login: other users have no access, and all works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_topics import ORDER, Topic
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.local import stack as local_stack
from topicberg.local.state import load_ports
from topicberg.settings import settings
from topicberg.topics import TopicSpec

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(tmp_path_factory.mktemp("closed")))
        patch.setenv("TOPICBERG_LOCAL_LOGINS", "true")
        settings.cache_clear()
        try:
            yield local_stack.up(settings())
        finally:
            local_stack.down(settings())
    settings.cache_clear()


@pytest.mark.parametrize(
    "login",
    [
        {},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        | {"sasl.username": "topicberg", "sasl.password": "wrong"},
    ],
)
def test_kafka_answers_only_its_own_user(closed: Endpoints, login: dict[str, str]) -> None:
    for bootstrap in (
        closed.kafka_bootstrap,
        f"127.0.0.1:{load_ports(settings())['kafka_controller']}",
    ):
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **login})
        with pytest.raises(KafkaException):
            client.list_topics(timeout=5)
    assert closed.kafka_admin().list_topics(timeout=20).brokers


@pytest.mark.parametrize("token", [None, "", "a.b.c"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_registry_answers_only_with_its_token(
    closed: Endpoints, method: str, token: str | None
) -> None:
    """Not at its other APIs and ports either."""
    headers = {"Host": "attacker.example"} | (
        {} if token is None else {"Authorization": f"Bearer {token}"}
    )
    root, _, api = closed.schema_registry.partition("/apis/")
    for path in (f"apis/{api}/subjects", "apis/registry/v3/groups", "apis/ccompat/v7/config"):
        answer = requests.request(
            method,
            f"{root}/{path}",
            json={} if method == "POST" else None,
            headers=headers,
            timeout=20,
        )
        assert answer.status_code in (401, 405), (path, answer.text)
    assert "stock_trades-value" in closed.schema_registry_client().get_subjects()


def test_topic_becomes_a_table(closed: Endpoints) -> None:
    """In columns and by Spark, whose reader logs in too; commands print no password."""
    for decoder in ("columnar", "spark"):
        spec = TopicSpec.model_validate(
            {
                "name": f"orders_{decoder}",
                "pipeline": "shop",
                "schema": {"format": "avro", "file": "stock_trades.avsc"},
                "partitions": 3,
                "write_mode": "append",
            }
        )
        admin = closed.kafka_admin()
        admin.create_topics([NewTopic(spec.name, 3)])[spec.name].result(30)
        config = settings().model_copy(update={"engine_decoder": decoder})
        topic = Topic(closed, spec, config)
        topic.send(ORDER, [{"id": n, "note": "x"} for n in range(1_500)])
        topic.ingest()
        assert sorted(row["id"] for row in topic.rows("id")) == list(range(1_500))
    password = closed.kafka_login.api_secret
    token = closed.registry_login.token
    assert password
    assert token
    shown = CliRunner().invoke(app, ["status", "--json"]).output
    exported = CliRunner().invoke(app, ["env"]).output
    for secret in (password.get_secret_value(), token.get_secret_value()):
        assert secret not in shown
        assert secret in exported
