"""The access proxy: the addresses of Kafka and the schema registry for the user's own clients."""

from __future__ import annotations

import sys

import requests

from topicberg.clients.liveness import Check, answers_http
from topicberg.endpoints import Endpoints
from topicberg_local.answers import answers_kafka
from topicberg_local.schema_registry import API
from topicberg_local.service import KAFKA_USER, Context, Service


def service(context: Context) -> Service:
    secrets = context.credentials
    token = secrets.registry_login.token
    assert token is not None  # noqa: S101  it is a bearer token
    ports = {
        "--kafka": ("kafka", "kafka_proxied"),
        "--registry": ("schema_registry", "schema_registry_server"),
    }
    arguments = [
        part
        for option, (port, target) in ports.items()
        for part in (option, str(context.ports[port]), str(context.ports[target]))
    ]
    return Service(
        name="access_proxy",
        command=[sys.executable, "-m", "topicberg_local.access_proxy_server", *arguments],
        environment={
            "TOPICBERG_PROXY_KAFKA_USER": KAFKA_USER,
            "TOPICBERG_PROXY_KAFKA_PASSWORD": secrets.kafka_password.get_secret_value(),
            "TOPICBERG_PROXY_REGISTRY_TOKEN": token.get_secret_value(),
        },
        url=f"127.0.0.1:{context.ports['kafka']}",
        port=context.ports["kafka"],
        start_order=20,
        healthy=_healthy,
        answers=_answers(context),
        stop_seconds=10,
    )


def _answers(context: Context) -> Check:
    """Return the check of both ways; the service behind a way has to answer as well."""
    kafka = answers_kafka("127.0.0.1", context.ports["kafka"])
    registry = answers_http(f"{context.url('schema_registry')}{API}/schemas/types")
    return lambda seconds: kafka(seconds / 2) or registry(seconds / 2)


def _healthy(endpoints: Endpoints) -> None:
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": endpoints.kafka_bootstrap, "log_level": 0})
    client.list_topics(timeout=2)
    requests.get(endpoints.schema_registry + "/subjects", timeout=2).raise_for_status()
